"""
Runs of AG-UI in front of an `AgentHost`; no web framework.

A run begins a turn, continues one, or shows one: that which has its id, or which runs already. A
run that does not begin with a message of its own first sends the messages that are committed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from looopy.agent.agent import Agent
from looopy.errors import ContextNotFound, InputNotFound, ValueRefused
from looopy.server.ag_ui.events import CREDENTIALS, SNAPSHOT, Out, RunEvents, outcome_of
from looopy.server.ag_ui.messages import Snapshot, call_ids_in
from looopy.server.ag_ui.request import RunRequest
from looopy.server.call_ids import CallIds, newest_id
from looopy.server.chains import begun_by, record_of, root_of
from looopy.server.host import AgentHost
from looopy.stores.bundle import Stores
from looopy.stores.pages import turns_of
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, AuthRequired, InputRequired, TurnEnd, TurnError
from looopy.types.state import AgentStatus, PendingKind, PendingRequest

_PAGE = 500
_NEWEST = 500  # turns among which the turn of a message is looked for


class Runs:
    """
    The runs of `POST /ag-ui`.

    Args:
        host: Keeps the agents, and judges who may use them.
    """

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def run(
        self, asked: RunRequest, auth: AuthContext | None = None
    ) -> AsyncGenerator[Out, None]:
        """
        Begin, continue or show a turn. When this returns, what the page said is stored.

        Returns:
            The events of the run. To close the generator does not cancel the turn.

        Raises:
            InputNotFound: An answer is for an interrupt that does not wait.
            LooopyError: As `AgentHost.agent` and `Agent.execute_turn` raise.
        """
        says = asked.message is not None
        try:
            async with self._host.agent(asked.thread_id, auth, create=says) as agent:
                return await self._run(agent, asked, auth)
        except ContextNotFound:
            if says or asked.resume or not asked.bare:
                raise
            return _nothing(asked)  # a page that opens a thread without a message

    async def _run(
        self, agent: Agent, asked: RunRequest, auth: AuthContext | None
    ) -> AsyncGenerator[Out, None]:
        stores = self._host.stores_for(auth)
        name, key = asked.thread_id, f"ag-ui:{asked.run_id}"
        state = await agent.refresh()
        record = await stores.state.load(name)
        running = record.open_turn if record is not None else None
        if running is None and state.status is AgentStatus.BUSY:
            state = await agent.refresh()  # the turn ended just now, and may have asked
        known = await stores.journal.turn_of_key(name, key)
        if known is not None:
            return self._attached(asked, auth, known[0])
        message, begun = asked.message, None
        if message is not None:
            begun = await _turn_of(stores, asked, state.turn_count)
        new = message is not None and begun is None
        inputs = _inputs(asked, state.pending, says=new)
        if running is not None and not new and not inputs:
            return self._attached(asked, auth, running.turn)
        if begun is not None and not inputs:
            newest = await record_of(stores, name, state.turn_count)
            root = newest and await root_of(stores, name, newest)
            if state.interrupted_turn is None or root is None or root.turn != begun:
                await agent.rewind(begun)  # the page edits the message, or wants another answer
            else:
                message = None
        elif begun is not None:
            message = None
        begins = new or begun is not None or inputs or asked.resume
        if not begins and (asked.bare or state.interrupted_turn is None):
            return self._shown(asked, auth, state.pending)
        turn = agent.execute_turn(
            message, auth, inputs=inputs or None, idempotency_key=key, metadata=asked.metadata
        )
        events = aiter(turn)  # from here on it misses no delta
        number = await turn.accepted()
        if not new or state.pending or state.interrupted_turn is not None:
            return self._attached(asked, auth, number)
        return self._streamed(asked, auth, events, number)

    async def _streamed(
        self,
        asked: RunRequest,
        auth: AuthContext | None,
        events: AsyncIterator[AgentEvent],
        turn: int,
    ) -> AsyncGenerator[Out, None]:
        """A turn from its beginning."""
        mapped = RunEvents(asked.thread_id, asked.run_id, turn, asked.calls)
        yield mapped.started()
        async with aclosing(self._mapped(asked, auth, mapped, events)) as outs:
            async for out in outs:
                yield out

    async def _mapped(
        self,
        asked: RunRequest,
        auth: AuthContext | None,
        mapped: RunEvents,
        events: AsyncIterator[AgentEvent],
    ) -> AsyncGenerator[Out, None]:
        async for event in events:
            for out in mapped.see(event):
                if out["type"] == SNAPSHOT:
                    log = await self._log(asked, auth, upto=mapped.seq)
                    yield _snapshot(log.shown)
                else:
                    yield out
            if mapped.ended:
                return

    async def _attached(
        self, asked: RunRequest, auth: AuthContext | None, turn: int
    ) -> AsyncGenerator[Out, None]:
        """A turn that began before: what is committed, then what comes."""
        mapped = RunEvents(asked.thread_id, asked.run_id, turn)
        yield mapped.started()
        log = await self._log(asked, auth)
        record = await record_of(self._host.stores_for(auth), asked.thread_id, turn)
        ended = record is None or record.end_seq is not None
        if record is None or (record.end_seq or 0) > log.seq:  # it ended after the log was read
            log = await self._log(asked, auth)
        shown = log.shown
        mapped.seq, mapped.ids = log.seq, CallIds(call_ids_in(shown))
        last = [out for event in log.of.get(turn, ()) for out in mapped.see(event)]
        yield _snapshot(shown)
        if last or ended:
            yield last[-1] if last else mapped.finished({"type": "success"})
            return
        events = self._host.events(asked.thread_id, auth, after=log.seq)
        async with aclosing(events), aclosing(self._mapped(asked, auth, mapped, events)) as outs:
            async for out in outs:
                yield out

    async def _shown(
        self, asked: RunRequest, auth: AuthContext | None, pending: Any
    ) -> AsyncGenerator[Out, None]:
        """The context as it is: no turn begins."""
        mapped = RunEvents(asked.thread_id, asked.run_id)
        yield mapped.started()
        shown = (await self._log(asked, auth)).shown
        yield _snapshot(shown)
        ids = CallIds(call_ids_in(shown))
        yield mapped.finished(outcome_of(pending, ids) if pending else {"type": "success"})

    async def _log(
        self, asked: RunRequest, auth: AuthContext | None, upto: int | None = None
    ) -> _Log:
        """The log of the context, to its head or to the event *upto*."""
        stores, name = self._host.stores_for(auth), asked.thread_id
        log = _Log(await _names(stores, name))
        while found := await stores.journal.events(name, after=log.seq, limit=_PAGE):
            for event in found:
                log.see(event)
                if log.seq == upto:
                    return log
        return log


class _Log:
    """The log as far as it was read: its messages, how its turns ended, and the last `seq`."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.seq = 0
        self.of: dict[int, list[AgentEvent]] = {}
        self._snapshot = Snapshot(names)

    def see(self, event: AgentEvent) -> None:
        """Add *event*."""
        self._snapshot.see(event)
        self.seq = event.seq or self.seq
        if isinstance(event, (InputRequired, AuthRequired, TurnError, TurnEnd)):
            self.of.setdefault(event.turn, []).append(event)

    @property
    def shown(self) -> list[Out]:
        """The messages so far."""
        return self._snapshot.messages()


def _snapshot(messages: list[Out]) -> Out:
    return {"type": SNAPSHOT, "messages": messages}


async def _nothing(asked: RunRequest) -> AsyncGenerator[Out, None]:
    mapped = RunEvents(asked.thread_id, asked.run_id)
    for out in (mapped.started(), _snapshot([]), mapped.finished({"type": "success"})):
        yield out


def _inputs(asked: RunRequest, pending: Any, *, says: bool) -> dict[str, Any]:
    """
    The answers to what waits, by request id.

    A page must name every interrupt. One that it cancels is denied, or given up for the message
    that it says instead.

    Raises:
        InputNotFound: No such interrupt waits.
        ValueRefused: A question was cancelled, and no message comes in its place.
    """
    waiting: dict[str, PendingRequest] = {one.request_id: one for one in pending}
    given_up = says and all(entry.cancelled for entry in asked.resume)
    inputs: dict[str, Any] = {}
    for entry in asked.resume:
        request = waiting.get(entry.request_id)
        if entry.request_id == CREDENTIALS or (request is not None and given_up):
            continue
        if request is None:
            raise InputNotFound(
                f"{entry.path}: no interrupt has the id {entry.request_id[:80]!r}",
                request_id=entry.request_id,
            )
        inputs[entry.request_id] = _answer(request, entry.payload, entry.path, entry.cancelled)
    for request in pending:
        call_id = newest_id(request.tool_call_id, asked.calls)
        if request.kind is PendingKind.CLIENT_TOOL and call_id in asked.results:
            inputs.setdefault(request.request_id, asked.results[call_id])
    return inputs


def _answer(request: PendingRequest, payload: Any, path: str, cancelled: bool) -> Any:
    if request.kind is PendingKind.APPROVAL:
        return not cancelled if payload is None else payload
    if not cancelled:
        return payload
    if request.kind is PendingKind.CLIENT_TOOL:
        return {"is_error": True, "content": "cancelled by the user"}
    place = path.rpartition("/")[0] + "/status"
    raise ValueRefused(
        f"{place}: a question is answered, or given up by a new message", path=place
    )


async def _turn_of(stores: Stores, asked: RunRequest, newest: int) -> int | None:
    """The turn that the user's message began before, by the id that the page gave it."""
    place = asked.message_id.removeprefix("message-")
    if place != asked.message_id and place.isdecimal() and len(place) < 16:
        found = await begun_by(stores, asked.thread_id, int(place))
        if found is not None:
            return found.turn
    names = await _names(stores, asked.thread_id, after=max(0, newest - _NEWEST))
    return max((turn for turn, name in names.items() if name == asked.message_id), default=None)


async def _names(stores: Stores, context_id: str, after: int = 0) -> dict[int, str]:
    """By turn, the id that the page gave the user's message."""
    names: dict[int, str] = {}
    async for record in turns_of(stores, context_id, after):
        brought = record.metadata.get("ag_ui")
        name = brought.get("message_id") if isinstance(brought, Mapping) else None
        if isinstance(name, str):
            names[record.turn] = name
    return names
