"""
All stores in dictionaries: the specification by example.

Every other backend behaves like this one, errors and order included; only durability differs
(nothing survives the process). Bodies are kept as the text that a database would keep, so what
cannot be stored elsewhere is refused here too. Every method does its work between two awaits, so
each is atomic.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from looopy.stores.base import MessageStore, StateStore
from looopy.stores.contexts.log import read_records
from looopy.stores.memory.context import (
    MemoryStore,
    Place,
    begin_turn,
    context_record,
    insert_messages,
    take_turn_over,
)
from looopy.stores.memory.contexts import InMemoryContextIndex
from looopy.stores.memory.fork import shown_messages
from looopy.stores.memory.journal import InMemoryJournal
from looopy.stores.memory.log import record_row
from looopy.stores.records import Claim, Claimed, ContextRecord, MessageRecord, Waiter
from looopy.stores.rows import events as rows
from looopy.stores.rules import (
    WAIT,
    busy,
    check_claim,
    check_context_id,
    check_lease,
    check_left_as,
    check_queue_place,
    check_ttl,
    key_used,
    metadata_changed,
    moved_on,
    no_context,
    no_entry,
    queue_busy,
)
from looopy.types.event import utc_now
from looopy.types.message import Message
from looopy.types.ranges import before, counted
from looopy.types.state import AgentStatus
from looopy.types.storable import (
    check_after,
    check_after_name,
    check_limit,
    check_number,
    dump,
)

if TYPE_CHECKING:
    from looopy.stores.memory.spending import InMemorySpending


class InMemoryMessageStore(MemoryStore, MessageStore):
    """`MessageStore` in a list; see there for the contract."""

    async def append(self, context_id: str, messages: Sequence[Message]) -> int:
        check_context_id(context_id)
        encoded = rows.message_rows(messages)
        found = self._get(context_id)
        if not messages:
            return found.last_position if found else 0
        if found is not None and found.open_turn is not None:
            raise busy(found.open_turn, WAIT)
        context = self.backend.make(self.tenant, context_id)
        insert_messages(context, encoded, context.turn_count)
        context.raise_epoch()
        context.last_seq += encoded.seqs
        context.last_activity = utc_now()
        self._ring(context_id)
        return context.last_position

    async def records(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,
    ) -> list[MessageRecord]:
        check_after(after)
        check_limit(limit)
        context = self._get(context_id)
        if context is None:
            return []
        start = max(after - context.visible_from + 1, 0)
        if context.rewound and not include_hidden:
            return await read_records(shown_messages(context, after, limit), record_row)
        stop = None if limit is None else start + limit
        return await read_records(context.messages[start:stop], record_row)

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        check_limit(limit, optional=False)
        context = self._get(context_id)
        if context is None:
            return []
        if context.rewound:
            after = before(context.last_position, limit, context.hidden)
            return await read_records(shown_messages(context, after), record_row)
        start = max(len(context.messages) - limit, 0)
        return await read_records(context.messages[start:], record_row)

    async def count(self, context_id: str, *, include_hidden: bool = False) -> int:
        context = self._get(context_id)
        if context is None:
            return 0
        return len(context.messages) - (0 if include_hidden else counted(context.hidden))


class InMemoryStateStore(MemoryStore, StateStore):
    """`StateStore` in a dictionary; see there for the contract."""

    def make_journal(self) -> InMemoryJournal:
        """The journal that goes with this store."""
        return InMemoryJournal(self.backend, self.tenant)

    def make_contexts(self) -> InMemoryContextIndex:
        """The index that goes with this store."""
        return InMemoryContextIndex(self.backend, self.tenant)

    def make_spending(self) -> InMemorySpending:
        """The accounts that go with this store."""
        from looopy.stores.memory.spending import InMemorySpending  # most turns have no account

        return InMemorySpending(self.backend, self.tenant)

    async def load(self, context_id: str) -> ContextRecord | None:
        context = self._get(context_id)
        return None if context is None else context_record(context_id, context)

    async def save(self, context_id: str, metadata: Mapping[str, Any], *, version: int) -> int:
        check_context_id(context_id)
        check_number(version, "/version", "pass the version of its record, or 0 for a new one")
        text = dump(dict(metadata), "/metadata")
        found = self._get(context_id)
        actual = found.version if found else 0
        if actual != version:
            raise metadata_changed(version, actual)
        context = self.backend.make(self.tenant, context_id)
        context.metadata = text
        context.version += 1
        self._ring(context_id)
        return context.version

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        check_after_name(after)
        check_limit(limit, optional=False)
        names = sorted(c for t, c in self.backend.contexts if t == self.tenant and c > after)
        contexts = self.backend.contexts
        return [context_record(name, contexts[self.tenant, name]) for name in names[:limit]]

    async def delete(self, context_id: str) -> None:
        if self._get(context_id) is None:
            raise no_context(context_id)
        going = [context_id]
        for name in going:
            context = self.backend.contexts[self.tenant, name]
            if context.open_turn is not None and context.lease_live:
                raise busy(context.open_turn, WAIT)
            going += self._inner(name)
        for name in going:
            del self.backend.contexts[self.tenant, name]
            self.backend.notifier.note_removal(self.tenant, name)
            self._ring(name, inbox=True)

    async def claim(self, claim: Claim) -> Claimed:
        check_context_id(claim.context_id)
        encoded = rows.encode(claim.events)
        check_claim(claim)
        state = None if claim.state is None else rows.state_column(claim.state)
        metadata = dump(dict(claim.metadata), "/metadata")
        found = self._get(claim.context_id)
        if found is not None and found.lease_live and found.holder != claim.displace:
            raise busy(found.open_turn)
        actual = found.epoch if found else 0
        is_open = found is not None and found.open_turn is not None
        if actual != claim.expected_epoch or is_open != claim.recover:
            raise moved_on(claim.expected_epoch, actual)
        if found is not None and not claim.recover and found.has_earlier(claim.ticket):
            raise queue_busy()
        if found is not None and claim.key in found.keys:
            raise key_used()
        if found is not None:
            found.take_out(claim.delivered)
        elif claim.delivered:
            raise no_entry(claim.delivered[0])
        context = self.backend.make(self.tenant, claim.context_id)
        if claim.ticket is not None:
            context.places.pop(claim.ticket, None)
        context.raise_epoch()
        context.holder = claim.holder
        context.lease_until = time.monotonic() + claim.ttl_s
        if state is not None:
            context.state = state
        if claim.recover:
            take_turn_over(context, claim)
            claimed = Claimed(
                epoch=context.epoch,
                turn=context.open_turn or 0,
                first_seq=context.last_seq + 1,
                first_position=context.last_position + 1,
                inbox=context.inbox_head,
            )
        else:
            claimed = begin_turn(context, claim, encoded, metadata)
        self._ring(claim.context_id)
        return claimed

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        check_lease(epoch, ttl_s)
        context = self._get(context_id)
        if context is None or context.epoch != epoch or context.holder is None:
            return False
        context.lease_until = time.monotonic() + ttl_s
        return True

    async def release(self, context_id: str, epoch: int) -> None:
        check_lease(epoch)
        context = self._get(context_id)
        if context is not None and context.epoch == epoch:
            context.holder = None
            self._ring(context_id, inbox=True)

    async def leave(self, context_id: str, epoch: int, status: AgentStatus) -> None:
        check_left_as(epoch, status)
        context = self._get(context_id)
        if context is not None and context.epoch == epoch and context.open_turn is None:
            context.state = rows.state_left_as(context.state, status)

    # --- the queue ---

    async def join_wait_queue(self, context_id: str, holder: str, ttl_s: float) -> int:
        check_ttl(ttl_s)
        context = self.backend.make(self.tenant, context_id)
        context.places = {ticket: p for ticket, p in context.places.items() if p.alive}
        context.last_ticket += 1
        context.places[context.last_ticket] = Place(holder, time.monotonic() + ttl_s)
        self._ring(context_id)
        return context.last_ticket

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        check_queue_place(ticket, ttl_s)
        context = self._get(context_id)
        place = context.places.get(ticket) if context else None
        if place is None:
            return False
        place.alive_until = time.monotonic() + ttl_s
        return True

    async def leave_wait_queue(self, context_id: str, ticket: int) -> None:
        check_queue_place(ticket)
        context = self._get(context_id)
        if context is not None and context.places.pop(ticket, None) is not None:
            self._ring(context_id, inbox=True)

    async def wait_queue(self, context_id: str) -> Sequence[Waiter]:
        context = self._get(context_id)
        return [
            Waiter(ticket=ticket, holder=place.holder, alive=place.alive)
            for ticket, place in (context.places.items() if context else ())
        ]
