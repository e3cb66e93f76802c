"""
The inbox of a running turn: messages for the model, and the request to stop.

Any process may put an entry into the inbox of a context; the running turn takes it from the store.
Each commit returns the head of the inbox, and a notification comes in between: the turn then reads.
An entry leaves the inbox in the commit that appends its message. So no taken message is ever lost,
and no message is used twice. The store refuses the commit that would end the turn
while there is news that the turn has not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from functools import partial

from looopy.errors import StoreError
from looopy.loop.incoming import Inbox, Queued
from looopy.loop.timers import Timer, after
from looopy.stores.bundle import Stores
from looopy.stores.notifier import Listening
from looopy.stores.records import Entry, EntryKind, InboxHead
from looopy.types.config import LoopConfig
from looopy.types.context import CancelToken


class TurnInbox(Inbox):
    """
    The inbox as one turn sees it; an `Inbox` for the loop.

    Args:
        actor_id: The turn takes only its own actor's messages. Messages of other actors wait for a
            turn of theirs.
        head: The head of the inbox, from the claim.
        token: Cancelled by a request to stop the turn.
    """

    def __init__(
        self,
        stores: Stores,
        context_id: str,
        turn: int,
        actor_id: str | None,
        config: LoopConfig,
        token: CancelToken,
        *,
        head: InboxHead,
    ) -> None:
        self._stores = stores
        self._context_id = context_id
        self._turn = turn
        self._actor_id = actor_id
        self._config = config
        self._token = token
        self._last = head.last
        self._read = 0 if head.waiting else head.last
        self._entries: list[Entry] = []
        self._taken: set[int] = set()
        self._withdrawn: set[int] = set()
        self._refused = False
        self._ending = False
        self._again = False
        self._looking: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._listening: Listening | None = None

    @property
    def arrived(self) -> bool:
        """True if an entry was not read, or was read and not taken."""
        return self._last > self._read or bool(self._entries)

    @property
    def heard(self) -> int:
        """The number of the newest entry that was read."""
        return self._read

    async def steering(self) -> list[Queued]:
        """Take the messages for the next model call."""
        return await self._take(EntryKind.STEER)

    async def follow_ups(self) -> list[Queued]:
        """Take the messages for the end of the turn."""
        return await self._take(EntryKind.FOLLOW_UP)

    async def _take(self, kind: EntryKind) -> list[Queued]:
        if self._last > self._read:
            await self._look()
        if not self._entries:
            return []
        mode = self._config.queue_mode
        if kind is EntryKind.FOLLOW_UP:
            mode = self._config.follow_up_mode or mode
        taken = [e for e in self._entries if e.kind is kind][: None if mode == "all" else 1]
        self._entries = [e for e in self._entries if e not in taken]
        self._taken.update(e.number for e in taken)
        return [Queued(e.message, e.number) for e in taken]

    async def _look(self) -> None:
        # Again from the oldest known entry: some may have been withdrawn.
        after = min([self._read, *(e.number - 1 for e in self._entries)])
        head, entries = await self._stores.journal.inbox(self._context_id, after=after)
        self._read = max(self._read, head.last)
        mine = [e for e in entries if e.actor_id == self._actor_id]
        self._entries = [e for e in mine if e.number not in self._taken]
        self.told(head)

    async def look_for_withdrawn(self, delivered: Sequence[int]) -> bool:
        """True if some of the messages to deliver have been withdrawn."""
        if not delivered:
            return False
        head, entries = await self._stores.journal.inbox(self._context_id)
        self._withdrawn = set(delivered) - {e.number for e in entries}
        self.told(head)
        return bool(self._withdrawn)

    def withdrawn(self) -> Collection[int]:
        """The entries of the last group that were withdrawn; returned once."""
        withdrawn, self._withdrawn = self._withdrawn, set()
        return withdrawn

    def told(self, head: InboxHead) -> None:
        """Note the *head* that a commit or a read has returned."""
        self._last = max(self._last, head.last)
        if head.cancel_turn == self._turn:
            self._token.cancel()

    def ending(self) -> None:
        """Note that the turn is about to end: the answer of that commit is enough."""
        self._ending = True

    def refuse(self, head: InboxHead) -> None:
        """Note that the store has refused the end of the turn."""
        self._refused, self._ending = True, False
        self.told(head)
        self._later()  # a poll may have been due during the commit

    def refused(self) -> bool:
        """True once if the last group was refused."""
        refused, self._refused = self._refused, False
        return refused

    # --- while the turn waits for a model or a tool ---

    def listen(self) -> None:
        """From now on, read the inbox on notifications, and at regular intervals."""
        notifier = self._stores.journal.notifier
        self._listening = notifier.listen(self._stores.tenant, self._context_id, self._rung)
        self._later()

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = after(self._stores.journal.notifier.poll_s, partial(self._rung, inbox=True))

    def _rung(self, inbox: bool) -> None:
        if not inbox or self._ending:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._peek(), name="looopy inbox")
        else:
            self._again = True  # it may be about an entry newer than those being read

    async def _peek(self) -> None:
        """Read the head of the inbox; the turn reads the entries when it can use them."""
        self._again = True
        while self._again:
            self._again = False
            with contextlib.suppress(StoreError):  # the next read or commit brings it
                head, _ = await self._stores.journal.inbox(self._context_id, after=self._last)
                self.told(head)
        self._later()
