"""The queues of a context: messages for the running turn, or for the next one, from any process."""

from __future__ import annotations

from typing import Any, Final

from looopy.agent.core import Core
from looopy.agent.request import check_auth_context, input_hash
from looopy.errors import IdempotencyConflict, TurnMismatch, ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.stores.bundle import Stores
from looopy.stores.records import EntryKind
from looopy.stores.shield import settle
from looopy.types.context import AuthContext
from looopy.types.message import UserMessage

_KINDS: Final = {None: None, "steer": EntryKind.STEER, "follow_up": EntryKind.FOLLOW_UP}


class Queues:
    """The queued messages of one agent's context; the errors are those of `Agent.steer`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def post(
        self,
        action: str,
        kind: EntryKind,
        message: str | UserMessage,
        auth_context: AuthContext | None,
        *,
        expected_turn: int | None,
        key: str | None,
    ) -> None:
        """Queue *message* as `Agent.steer` or `Agent.follow_up`, the *action*, does."""
        stores = self._core.require(action, saving=True).stores
        message = as_user_message(message, may_be_none=False)
        actor_id = _actor_of(auth_context, stores)
        named: dict[str, Any] = {}
        if key is not None:
            named = {"key": key, "input_hash": input_hash(message, {}, {})}
        posting = stores.journal.post(
            self._core.context_id,
            kind,
            message,
            actor_id=actor_id,
            expected_turn=expected_turn,
            **named,
        )
        try:
            number = await settle(posting)
        except TurnMismatch:
            used = None if key is None else await self._use_of(key, stores)
            if used is None or used[0] != expected_turn:
                raise
            number = 0  # the turn that ended since had been given it
        if key is not None and not number:
            used = await self._use_of(key, stores)
            if used is not None and used[1] != named["input_hash"]:
                raise IdempotencyConflict(
                    f"this idempotency key was used in turn {used[0]}, for another message: use"
                    " a new key"
                )

    async def _use_of(self, key: str, stores: Stores) -> tuple[int, str] | None:
        """The turn that took the message, or the request, named *key*, and the input's hash."""
        return await stores.journal.turn_of_key(self._core.context_id, key)

    async def withdraw(self, kind: str | None, auth_context: AuthContext | None) -> int:
        """As `Agent.clear_queue`."""
        stores = self._core.require("clear_queue", saving=True).stores
        if not (kind is None or (isinstance(kind, str) and kind in _KINDS)):
            raise ValueRefused(f"kind is 'steer', 'follow_up' or None, not {kind!r}", path="/kind")
        actor_id = _actor_of(auth_context, stores)
        withdrawing = stores.journal.withdraw(
            self._core.context_id, _KINDS[kind], actor_id=actor_id
        )
        return await settle(withdrawing)

    async def any_of(self, auth_context: AuthContext | None) -> bool:
        """See `Agent.has_queued_messages`."""
        stores = self._core.require("has_queued_messages").stores
        actor_id = _actor_of(auth_context, stores)
        _, entries = await stores.journal.inbox(self._core.context_id)
        return any(entry.actor_id == actor_id for entry in entries)


def _actor_of(auth_context: AuthContext | None, stores: Stores) -> str | None:
    auth = check_auth_context(auth_context, stores.tenant)
    return auth.actor_id if auth else None
