"""
Runs of AG-UI in front of an `AgentHost`; no web framework.

A run begins a turn, continues one, or shows one: that which its message or its id began, or which
runs already. A run that does not begin with a message of its own first sends the messages that are
committed.

AG-UI's client sends the same messages with another `runId` when it is asked to run again. So the id
of the last message is the key of its turn. Answers have the ids of what they answer, and any other
run its `runId`. The protocol has no word for doing a run again: `forwardedProps.looopy.again` is
ours. See `looopy.server.protocols.repeats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any
from weakref import WeakValueDictionary

from looopy.agent.agent import Agent
from looopy.agent.decisions import who_was_first
from looopy.errors import ContextNotFound, IdempotencyConflict, InputNotFound, ValueRefused
from looopy.server.gate.limits import Limits
from looopy.server.host import AgentHost
from looopy.server.protocols.ag_ui.events import (
    CREDENTIALS,
    SNAPSHOT,
    Out,
    RunEvents,
    decision_event,
    outcome_of,
)
from looopy.server.protocols.ag_ui.messages import Snapshot, call_ids_in
from looopy.server.protocols.ag_ui.request import Resumed, RunRequest
from looopy.server.protocols.call_ids import CallIds, newest_id
from looopy.server.protocols.chains import (
    last_of,
    newest_part,
    newest_with_root,
    record_of,
    root_of,
)
from looopy.server.protocols.repeats import (
    Begun,
    begun_with,
    check_again,
    decided,
    digest,
    effect_of,
    is_rewound,
    replacing,
)
from looopy.stores.bundle import Stores
from looopy.stores.pages import events_of, turns_of
from looopy.stores.records import TurnRecord
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent, AuthRequired, InputRequired, TurnEnd, TurnError
from looopy.types.state import AgentState, AgentStatus, PendingKind, PendingRequest


class Runs:
    """
    The runs of `POST /ag-ui`.

    Args:
        host: Keeps the agents, and judges who may use them.
        page_bytes: How long a snapshot of messages may be, as JSON.
    """

    def __init__(self, host: AgentHost, page_bytes: int = Limits().page_bytes) -> None:
        self._host = host
        self._page_bytes = page_bytes
        self._beginning = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def run(
        self, asked: RunRequest, auth: AuthContext | None = None
    ) -> AsyncGenerator[Out, None]:
        """
        Begin, continue or show a turn. When this returns, the page's input is stored.

        Decisions about calls in another person's thread are stored, if the host lets the caller
        decide them, and the run shows only them.

        Returns:
            The events of the run. To close the generator does not cancel the turn.

        Raises:
            InputNotFound: An answer is for an interrupt that does not wait; `AlreadyAnswered` if
                it was decided.
            LooopyError: Same as `AgentHost.agent` and `Agent.execute_turn`.
        """
        says = asked.message is not None
        try:
            async with self._host.agent(asked.thread_id, auth, create=says) as agent:
                # A run that comes twice at once differs in its `runId`, so its keys would conflict.
                one = (asked.thread_id, asked.message_id)
                async with self._beginning.setdefault(one, asyncio.Lock()):
                    with suppress(IdempotencyConflict):
                        return await self._run(agent, asked, auth)
                    return await self._run(agent, asked, auth)  # it began in another process
        except ContextNotFound:
            if asked.decisions:  # perhaps another person's
                made = await self._host.decide_all(asked.thread_id, asked.decisions, auth)
                return _alone(asked, [decision_event(one) for one in made])
            if says or asked.resume or not asked.bare:
                raise
            return _alone(asked, [_snapshot([])])  # a page that opens a thread without a message

    async def _run(
        self, agent: Agent, asked: RunRequest, auth: AuthContext | None
    ) -> AsyncGenerator[Out, None]:
        stores, name = self._host.stores_for(auth), asked.thread_id
        state = await agent.refresh()
        record = await stores.state.load(name)
        running = record.open_turn if record is not None else None
        if running is None and state.status is AgentStatus.BUSY:
            state = await agent.refresh()  # the turn ended just now, and may have asked
        message, spoken, key = asked.message, f"ag-ui-message:{asked.message_id}", _key(asked)
        begun = await begun_with(stores, name, spoken, asked.message_id) if message else []
        new = message is not None and not begun
        known = None if new else await stores.journal.turn_of_key(name, key)
        waiting = {one.request_id for one in state.pending}
        told = known is not None or (
            bool(begun) and not any(one.request_id in waiting for one in asked.resume)
        )
        try:
            inputs = {} if told else _inputs(asked, state.pending, says=new)
        except InputNotFound as error:
            raise (await who_was_first(stores.journal, name, error) or error) from None
        if running is not None and not new and not inputs:
            return self._attached(asked, auth, running.turn)
        newest, root = await newest_with_root(stores, name, state.turn_count)
        lacks = root is not None and (
            state.interrupted_turn is not None or (asked.again and state.error is not None)
        )
        shown: TurnRecord | None = None
        if known is not None:
            shown = await record_of(stores, name, known[0])
        elif begun and not inputs:
            shown = await self._repeated(asked, auth, begun, root if lacks else None)
        if shown is not None:
            first = await root_of(stores, name, shown)
            if not lacks or root is None or first.turn != root.turn:
                if newest is not None and (await last_of(stores, name, shown)).turn == newest.turn:
                    return self._attached(asked, auth, newest.turn)
                return self._shown(asked, auth, state)
        elif begun and not inputs:  # an edit, or another answer
            last = begun[-1].turn
            if not await is_rewound(stores, name, last):
                await agent.rewind(last.turn)
            spoken = replacing(spoken, last.turn)
        if begun and (inputs or shown is not None):
            message = None
        begins = message is not None or inputs or asked.resume or shown is not None
        if not begins and (asked.bare or state.interrupted_turn is None):
            return self._shown(asked, auth, state)
        turn = agent.execute_turn(
            message,
            auth,
            inputs=inputs or None,
            idempotency_key=spoken if message is not None else None if known else key,
            metadata=asked.metadata,
        )
        events = aiter(turn)  # from here on it misses no delta
        number = await turn.accepted()
        if not new or state.pending or state.interrupted_turn is not None:
            return self._attached(asked, auth, number)
        return self._streamed(asked, auth, events, number)

    async def _repeated(
        self,
        asked: RunRequest,
        auth: AuthContext | None,
        begun: list[Begun],
        lacking: TurnRecord | None,
    ) -> TurnRecord | None:
        """
        The turn that shows the message of *asked* again; `None` to send it in place of the last.

        Args:
            lacking: The turn whose answer lacks its end, or `None`.
        """
        stores, name, last = self._host.stores_for(auth), asked.thread_id, begun[-1].turn
        same = [one for one in begun if asked.message is not None and one.says(asked.message)]
        if same and not asked.again:
            return same[-1].turn
        if asked.again and _brought(last, "run_id") == asked.run_id:
            return last
        if asked.force or not asked.again:
            return None
        if lacking is not None and lacking.turn == last.turn:
            return last if await effect_of(stores, name, [last]) is not None else None
        path, force = "/forwardedProps/looopy/again", "set forwardedProps.looopy.force"
        await check_again(stores, name, begun, path=path, force=force)
        return None

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
        self, asked: RunRequest, auth: AuthContext | None, state: AgentState
    ) -> AsyncGenerator[Out, None]:
        """The context as it is: no turn begins."""
        mapped = RunEvents(asked.thread_id, asked.run_id)
        yield mapped.started()
        shown = (await self._log(asked, auth)).shown
        yield _snapshot(shown)
        ids = CallIds(call_ids_in(shown))
        waits = state.pending or state.needs_auth
        yield mapped.finished(outcome_of(state.pending, ids) if waits else {"type": "success"})

    async def _log(
        self, asked: RunRequest, auth: AuthContext | None, upto: int | None = None
    ) -> _Log:
        """
        The log of the context, to its head or to the event *upto*.

        It begins where about `page_bytes` of messages are left: clients refuse a longer snapshot.
        """
        stores, name = self._host.stores_for(auth), asked.thread_id
        first = await newest_part(stores, name, self._page_bytes)
        after = 0 if first is None else first.start_seq - 1
        log = _Log(await _names(stores, name, 0 if first is None else first.turn - 1), after)
        async for event in events_of(stores, name, after):
            log.see(event)
            if log.seq == upto:
                return log
        return log


class _Log:
    """The log as far as it was read: its messages, how its turns ended, and the last `seq`."""

    def __init__(self, names: Mapping[int, str], after: int) -> None:
        self.seq = after
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


async def _alone(asked: RunRequest, outs: Sequence[Out]) -> AsyncGenerator[Out, None]:
    """A run that no turn belongs to."""
    mapped = RunEvents(asked.thread_id, asked.run_id)
    for out in (mapped.started(), *outs, mapped.finished({"type": "success"})):
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
        inputs[entry.request_id] = _answer(request, entry)
    for request in pending:
        call_id = newest_id(request.tool_call_id, asked.calls)
        if request.kind is PendingKind.CLIENT_TOOL and call_id in asked.results:
            inputs.setdefault(request.request_id, asked.results[call_id])
    return inputs


def _answer(request: PendingRequest, entry: Resumed) -> Any:
    if request.kind is PendingKind.APPROVAL:
        return entry.decision
    if not entry.cancelled:
        return entry.payload
    if request.kind is PendingKind.CLIENT_TOOL:
        return {"is_error": True, "content": "cancelled by the user"}
    place = entry.path.rpartition("/")[0] + "/status"
    raise ValueRefused(f"{place}: a question is answered, or given up by a new message", path=place)


def _key(asked: RunRequest) -> str:
    """The key of a run without a message: what it answers, or its own id."""
    answers = {one.request_id: False if one.cancelled else one.payload for one in asked.resume}
    if answers and CREDENTIALS not in answers:
        return f"ag-ui-resume:{digest(decided(answers))}"
    return f"ag-ui:{asked.run_id}"


async def _names(stores: Stores, context_id: str, after: int) -> dict[int, str]:
    """By turn, of those after *after*, the id that the page gave the user's message."""
    names: dict[int, str] = {}
    async for record in turns_of(stores, context_id, after):
        name = _brought(record, "message_id")
        if isinstance(name, str):
            names[record.turn] = name
    return names


def _brought(record: TurnRecord, name: str) -> Any:
    """A value that the page sent with the run that began a turn; `None` without one."""
    brought = record.metadata.get("ag_ui")
    return brought.get(name) if isinstance(brought, Mapping) else None
