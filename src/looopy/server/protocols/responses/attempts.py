"""
The attempts of one request: OpenAI's SDKs repeat a request by themselves if no response came.

They send no key with it. A repetition has the same body, and its header `x-stainless-retry-count`
counts. So each turn keeps the digest of the body that began it. A repetition looks for that turn
where the first attempt put it: in its conversation, after its previous response, or in a context
whose name begins with the digest. A request without that header is always a new one: a person may
say "yes" twice. A response that was delivered whole is not what a repetition looks for, either.

With an `Idempotency-Key` the name of a new context is made of the key, which is in no other place.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request

from looopy.errors import ContextNotFound
from looopy.server.host import AgentHost
from looopy.server.protocols.chains import message_of, record_of
from looopy.server.protocols.repeats import digest
from looopy.server.protocols.responses.request import FACE, Asked
from looopy.stores.bundle import Stores
from looopy.stores.records import TurnRecord
from looopy.types.context import AuthContext
from looopy.types.state import Outcome

_TIMEOUT_S: Final = 600.0  # of the SDKs, if a request does not have its own
_PAUSE_S: Final = 60.0  # the longest that they wait before a repetition
_MOST: Final = 20  # contexts that may have begun with the same request
_DELIVERED: Final = 10_000
_MILLISECONDS: Final = 1 << 48


class Delivered:
    """The responses that this process has sent to their end; the newest ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], None] = {}

    def add(self, tenant: str, context_id: str, turn: int) -> None:
        """The response of *turn* was sent."""
        self._known[tenant, context_id, turn] = None
        if len(self._known) > _DELIVERED:
            self._known.pop(next(iter(self._known)))

    def has(self, tenant: str, context_id: str, turn: int) -> bool:
        """True if it was sent."""
        return (tenant, context_id, turn) in self._known


class Attempt:
    """
    One attempt of a request.

    Attributes:
        key: Its `Idempotency-Key`, or `None`.
    """

    def __init__(self, request: Request, body: Any, asked: Asked, auth: AuthContext) -> None:
        self.key = request.headers.get("idempotency-key")
        self._digest = digest(_without_outputs(body))
        self._asked = asked
        place = [auth.tenant_id, auth.actor_id, asked.context_id, asked.after_turn]
        self._prefix = digest(place, self._digest if self.key is None else self.key)[:24]
        self._number = _number(request, "x-stainless-retry-count")
        names = ("x-stainless-read-timeout", "x-stainless-timeout")
        self._timeout_s = max(_number(request, name) for name in names) or _TIMEOUT_S

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the turn: the request's, and its digest."""
        own = {"request": self._digest, "background": self._asked.background}
        return {**self._asked.metadata, FACE: {**own, **self._asked.brought}}

    def name(self) -> str:
        """A name for a new context: the key's, or one that sorts before the older ones."""
        if self.key is not None:
            return self._prefix
        left = _MILLISECONDS - int(time.time() * 1000)
        return f"{self._prefix}.{left:012x}{secrets.token_hex(6)}"

    async def earlier(
        self, host: AgentHost, auth: AuthContext, delivered: Delivered
    ) -> tuple[str, TurnRecord] | None:
        """The context and the turn of an earlier attempt; `None` if there was none."""
        if self.key is None and self._number <= 0:
            return None
        stores, asked = host.stores_for(auth), self._asked
        names = [] if asked.context_id is None else [asked.context_id]
        if asked.context_id is None or asked.after_turn is not None:
            names += await self._names(stores)
        for name in names:
            with suppress(ContextNotFound):
                await host.current(name, auth)  # a turn whose process died has an end then
                turn = await self._turn(stores, name)
                if turn is not None and not (
                    self.key is None and delivered.has(stores.tenant, name, turn.turn)
                ):
                    return name, turn
        return None

    async def _names(self, stores: Stores) -> Sequence[str]:
        """The contexts that were made for this request, the newest first."""
        if self.key is not None:
            return [self._prefix]
        found = await stores.state.list(after=f"{self._prefix}.", limit=_MOST)
        names = [record.context_id for record in found]
        return [name for name in names if name.startswith(self._prefix)]

    async def _turn(self, stores: Stores, name: str) -> TurnRecord | None:
        """The turn that this request began in a context."""
        if self.key is not None:
            known = await stores.journal.turn_of_key(name, self.key)
            turn = None if known is None else await record_of(stores, name, known[0])
            return turn if turn is not None and self._began(turn) else None
        if name == self._asked.context_id and self._asked.after_turn is not None:
            turn = await record_of(stores, name, self._asked.after_turn + 1)
        else:
            record = await stores.state.load(name)
            turn = await record_of(stores, name, record.turn_count) if record else None
            while turn is not None and not self._began(turn) and turn.continues is not None:
                if await message_of(stores, name, turn) is not None:
                    return None
                turn = await record_of(stores, name, turn.continues)
        oldest = timedelta(seconds=self._number * (self._timeout_s + _PAUSE_S))
        if turn is None or not self._began(turn) or datetime.now(UTC) - turn.started_at > oldest:
            return None
        return turn

    def _began(self, turn: TurnRecord) -> bool:
        """True if the same body began *turn*."""
        known = turn.metadata.get(FACE)
        return isinstance(known, dict) and known.get("request") == self._digest


def _without_outputs(body: Any) -> Any:
    """*body* without answers to calls: one may be a credential, which its digest could reveal."""
    items = body.get("input")
    if not isinstance(items, list):
        return body
    kept = [
        {**one, "output": None} if isinstance(one, dict) and "output" in one else one
        for one in items
    ]
    return {**body, "input": kept}


async def continued(stores: Stores, context_id: str, turn: TurnRecord) -> TurnRecord:
    """*turn*, or if it was interrupted, the last turn that continued it."""
    while turn.outcome is Outcome.INTERRUPTED:
        after = await record_of(stores, context_id, turn.turn + 1)
        if after is None or after.continues != turn.turn:
            break
        if await message_of(stores, context_id, after) is not None:
            break
        turn = after
    return turn


def _number(request: Request, name: str) -> float:
    """A header that is a number below 100,000; else 0."""
    text = request.headers.get(name, "")
    return float(text) if re.fullmatch(r"[0-9]{1,5}(\.[0-9]+)?", text) else 0.0
