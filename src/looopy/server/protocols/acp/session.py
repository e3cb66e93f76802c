"""
One session: a context, an agent that runs its turns, and a client that sees all of them.

Everything that the client sees comes from the context's `Feed`, in one task. So it also sees the
turns of other processes, and an approval that is given elsewhere ends the question here. A
prompt starts a turn and waits until the feed has shown its end.

The protocol cannot continue a turn that a dead process left. So `session/load` and
`session/resume` report such a turn, and a prompt of `/continue`, or an empty one, continues it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from acp import schema

from looopy.agent.agent import Agent
from looopy.agent.hosted import port_of
from looopy.errors import AgentBusy, LooopyError, StoreUnavailable
from looopy.server.feed import Feed, SlowReader
from looopy.server.protocols.acp.errors import failed_turn
from looopy.server.protocols.acp.prompts import (
    CONTINUE,
    OPTIONS,
    Block,
    decision_in,
    message_of,
)
from looopy.server.protocols.acp.updates import Transcript, notice
from looopy.server.protocols.forms import form_of, value_in
from looopy.server.protocols.text_answers import answer_in
from looopy.stores.bundle import Stores
from looopy.types.approval import Approve, Deny
from looopy.types.context import AuthContext
from looopy.types.event import (
    AgentEvent,
    ApprovalDecided,
    MessageEnd,
    TurnEnd,
    TurnStart,
    UsageReport,
    utc_now,
)
from looopy.types.message import StopReason, Usage, UserMessage
from looopy.types.state import (
    AgentStatus,
    Outcome,
    PendingKind,
    PendingRequest,
    pending_to_json,
)

COMMANDS: Final = (
    schema.AvailableCommand(
        name=CONTINUE,
        description="Continue what was interrupted or failed, or answer what waits for approval",
    ),
)
ASK: Final = "ask"
ALLOW: Final = "allow"
_logger = logging.getLogger("looopy")
_AGAIN_S: Final = 1.0
_PAGE: Final = 500
_TITLE_CHARS: Final = 80
_STOP_REASONS: Final[Mapping[StopReason, schema.StopReason]] = {
    StopReason.LENGTH: "max_tokens",
    StopReason.MAX_ITERATIONS: "max_turn_requests",
    StopReason.MAX_TOOL_CALLS: "max_turn_requests",
    StopReason.CANCELLED: "cancelled",
}


class Client(Protocol):
    """The part of the SDK's connection that a session uses."""

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """Show something."""

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **kwargs: Any,
    ) -> schema.RequestPermissionResponse:
        """Ask the person."""
        ...

    async def create_elicitation(
        self, message: str, mode: schema.ElicitationFormSessionMode, **kwargs: Any
    ) -> Any:
        """Have the person fill in a form."""
        ...


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a turn ended: here, or in another process."""

    turn: int
    outcome: Outcome
    stop_reason: StopReason
    usage: Usage


class Session:
    """
    A session of one client.

    Args:
        agent: Started; the caller keeps it so, as long as the session is open.
        cwd: The client's directory; stored with the context by its first turn.
        auth_context: Whom the turns act for.
        forms: The client shows forms, in which questions are answered.

    Attributes:
        mode: `"ask"` about each call that needs approval, or `"allow"` all of them.
    """

    def __init__(
        self,
        agent: Agent,
        stores: Stores,
        client: Client,
        *,
        cwd: str,
        roots: Sequence[str] = (),
        auth_context: AuthContext | None = None,
        forms: bool = False,
    ) -> None:
        self.mode = ASK
        self.session_id = agent.context_id
        self.cwd = cwd
        self.roots = tuple(roots)
        self._agent = agent
        self._stores = stores
        self._client = client
        self._auth = auth_context
        self._forms = forms
        self._feed = Feed(agent, stores)
        self._transcript = Transcript(cwd)
        self._seen = 0  # the newest durable event that the client has seen
        self._position = 0  # the newest message that was replayed
        self._pump: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._begun = 0  # the newest turn that the client saw beginning
        self._ended: dict[int, _Ended] = {}
        self._awaited: int | None = None  # the turn that a prompt waits for
        self._renewed = False  # the session was loaded while a prompt ran
        self._lost: Exception | None = None  # why the client sees no more
        self._prompting = False
        self._cancelled = asyncio.Event()

    # --- opening and closing ---------------------------------------------------------------------

    async def begin(self, *, replay: bool) -> None:
        """Show what happens from now on; with *replay*, first the whole transcript."""
        await self._stop_pump()
        self._transcript = Transcript(self.cwd)
        record = await self._stores.state.load(self.session_id)
        self._seen = 0 if record is None else record.last_seq
        records = await self._stores.messages.records(self.session_id)
        self._position = records[-1].position if records else 0
        edits = await self._edits() if replay else {}
        for update in self._transcript.replay(records, edits):
            if replay:
                await self._send(update)
        self._renewed = True
        await self._catch_up()
        self._pump = asyncio.create_task(self._show_all(), name=f"acp {self.session_id}")

    async def _catch_up(self) -> None:
        """Note the end of an awaited turn that was replayed, so that no pump shows it."""
        if (awaited := self._awaited) is None:
            return
        for record in await self._stores.journal.turns(self.session_id, after=awaited - 1, limit=1):
            if record.end_seq is None or record.end_seq > self._seen or record.outcome is None:
                continue
            reason = record.stop_reason or StopReason.ERROR
            ended = _Ended(record.turn, record.outcome, reason, record.usage)
            async with self._news:
                self._ended[record.turn] = ended
                self._news.notify_all()

    async def _edits(self) -> dict[str, Mapping[str, Any]]:
        """The arguments that a person changed, by request id; the messages keep the model's."""
        found: dict[str, Mapping[str, Any]] = {}
        after, more = 0, True
        while more and after < self._seen:
            page = await self._stores.journal.events(self.session_id, after=after, limit=_PAGE)
            for event in page:
                after = event.seq or after
                if isinstance(event, ApprovalDecided) and event.args is not None:
                    found[event.request_id] = event.args
            more = bool(page)
        return found

    async def introduce(self) -> None:
        """Report what a client can do with the session, and what an earlier process left."""
        await self._send(
            schema.AvailableCommandsUpdate(
                session_update="available_commands_update", available_commands=list(COMMANDS)
            )
        )

    async def show_left(self) -> None:
        """Report what waits for the person: a turn to continue, an approval, a question."""
        state = self._agent.state
        approvals = [one for one in state.pending if one.kind is PendingKind.APPROVAL]
        for update in self._transcript.questions(state.pending):
            await self._send(update)
        if approvals:
            names = ", ".join(one.tool_name for one in approvals)
            text = f"{names} waits for approval: `/{CONTINUE}` asks again."
            await self._send(notice(f"{text} Any other message cancels it.", "approval"))
        elif state.interrupted_turn is not None and not state.pending:
            why = f"failed: {state.error}" if state.error else "was interrupted"
            if state.waits_for is not None:
                why = f"waits: {state.waits_for}"
            if state.needs_auth:
                why = "waits for your credentials"
            text = f"Turn {state.interrupted_turn} {why}. `/{CONTINUE}` continues it."
            await self._send(notice(text, "interrupted"))

    def left(self) -> dict[str, Any]:
        """The same for programs."""
        state = self._agent.state
        found: dict[str, Any] = {"status": state.status.value, "turn": state.turn_count}
        if state.interrupted_turn is not None:
            found["interrupted_turn"] = state.interrupted_turn
        if state.needs_auth:
            found["needs_auth"] = True
        if state.pending:
            found["pending"] = [pending_to_json(request) for request in state.pending]
        return {"looopy": found}

    async def close(self) -> None:
        """Show no more; a running turn continues."""
        await self._stop_pump()
        await self._feed.close()

    # --- a prompt --------------------------------------------------------------------------------

    async def prompt(self, prompt: Sequence[Block]) -> schema.PromptResponse:
        """
        Run a turn, and ask the person about each call that needs approval.

        Raises:
            AgentBusy: Another prompt of the session runs, or a turn of another process.
            CannotContinue: The prompt asks to continue, and there is nothing to continue.
            RequestError: The turn failed.
        """
        if self._prompting:
            raise AgentBusy("a prompt of this session runs: wait for it, or cancel it")
        self._prompting = True
        self._renewed = False
        self._cancelled.clear()
        try:
            if self._lost is not None:  # such as of a store that was away for long
                self._lost = None
                await self.begin(replay=False)
            return await self._prompt(message_of(prompt))
        finally:
            self._prompting = False

    async def cancel(self) -> None:
        """Cancel the running turn, in any process, and the questions about its calls."""
        self._cancelled.set()
        await self._agent.cancel()

    async def _prompt(self, message: UserMessage | None) -> schema.PromptResponse:
        if self._agent.state.status is not AgentStatus.BUSY:
            await self._agent.refresh()
        inputs: Mapping[str, Any] = {}
        ended: _Ended | None = None
        if self._agent.state.pending:
            if message is None:
                inputs, ended = await self._decide()
                if ended is None and not inputs and not self._expired():
                    return self._response(None)
            elif answer := answer_in(message, self._agent.state.pending):
                message, inputs = None, answer
        if ended is None:
            await self._remember_directory()
            ended = await self._turn(message, inputs)
        while ended.outcome is Outcome.INPUT_REQUIRED and not self._cancelled.is_set():
            inputs, elsewhere = await self._decide()
            if elsewhere is not None:
                ended = elsewhere
            elif inputs or self._expired():
                ended = await self._turn(None, inputs)
            else:
                break
        return self._response(ended)

    async def _turn(self, message: UserMessage | None, inputs: Mapping[str, Any]) -> _Ended:
        """Run a turn until the client has seen its end."""
        metadata: dict[str, Any] = {"cwd": self.cwd}
        if self.roots:
            metadata["additional_directories"] = list(self.roots)
        self._transcript.hide(message)
        stream = self._agent.execute_turn(
            message, self._auth, inputs=inputs or None, metadata=metadata
        )
        if self._cancelled.is_set():
            stream.cancel()
        result = await stream
        ended = await self._shown(result.turn)
        if result.outcome is Outcome.FAILED:
            raise failed_turn(result.turn, result.stop_reason, result.error)
        if result.turn == 1 and message is not None:
            await self._send_title(message)
        return ended

    def _response(self, ended: _Ended | None) -> schema.PromptResponse:
        stop: schema.StopReason = "end_turn"
        about: dict[str, Any] = {}
        if ended is not None:
            stop = _STOP_REASONS.get(ended.stop_reason, "end_turn")
            about = {"turn": ended.turn, "outcome": ended.outcome.value}
            about["stop_reason"] = ended.stop_reason.value
            if ended.outcome in (Outcome.FAILED, Outcome.INTERRUPTED):
                raise failed_turn(ended.turn, ended.stop_reason, self._agent.state.error)
        if self._cancelled.is_set():
            stop = "cancelled"
        if pending := self._agent.state.pending:
            about["pending"] = [pending_to_json(request) for request in pending]
        return schema.PromptResponse(
            stop_reason=stop,
            usage=None if ended is None else usage_of(ended.usage),
            field_meta={"looopy": about},
        )

    async def _remember_directory(self) -> None:
        """Store the directory with a new context, so that `session/list` finds it there."""
        state = self._agent.state
        if not state.turn_count and "cwd" not in state.metadata:
            await self._agent.save_state({**state.metadata, "cwd": self.cwd})

    # --- approvals -------------------------------------------------------------------------------

    def _asks(self) -> dict[str, Coroutine[Any, Any, Any]]:
        """The questions that the client can show, by request id."""
        asks: dict[str, Coroutine[Any, Any, Any]] = {}
        for request in self._agent.state.pending:
            if request.kind is PendingKind.APPROVAL:
                asks[request.request_id] = self._ask(request)
            elif self._forms and (form := form_of(request)) is not None:
                asks[request.request_id] = self._ask_in_form(request, form)
        return asks

    def _expired(self) -> bool:
        """True if a request can no longer be answered; the next turn reports that to the model."""
        now = utc_now()
        times = (request.expires_at for request in self._agent.state.pending)
        return any(at is not None and at <= now for at in times)

    async def _decide(self) -> tuple[dict[str, Any], _Ended | None]:
        """
        Ask about each call that waits for approval, and each question in a form, all at once.

        Returns:
            The answers by request id, empty if the client closed the questions; and the end of
            the turn in which another person has answered, or `None`.
        """
        newest = self._agent.state.turn_count
        asks = {name: asyncio.create_task(asked) for name, asked in self._asks().items()}
        if not asks:
            return {}, None
        answered = asyncio.gather(*asks.values())
        moved = asyncio.create_task(self._turn_behind(newest))
        stopped = asyncio.create_task(self._cancelled.wait())
        waiting: list[asyncio.Future[Any]] = [answered, moved, stopped]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                found = zip(asks, answered.result(), strict=True)
                return {name: one for name, one in found if one is not None}, None
            if moved.done():
                ended = await self._shown(moved.result())
                await self._agent.refresh()
                return {}, ended
            return {}, None
        finally:
            for task in (*waiting, *asks.values()):
                task.cancel()
            await asyncio.gather(*waiting, *asks.values(), return_exceptions=True)

    async def _ask(self, request: PendingRequest) -> Approve | Deny | None:
        """The decision of the person; `None` if there is none, or none in time."""
        if self.mode == ALLOW:
            return Approve()
        try:
            async with asyncio.timeout(_left(request)):
                response = await self._client.request_permission(
                    self.session_id, self._transcript.pending_call(request), list(OPTIONS)
                )
        except TimeoutError:
            return None
        return decision_in(response)

    async def _ask_in_form(self, request: PendingRequest, form: Mapping[str, Any]) -> Any:
        """The person's answer; `None` if there is none, or none in time."""
        call = self._transcript.pending_call(request).tool_call_id
        mode = schema.ElicitationFormSessionMode(
            session_id=self.session_id,
            tool_call_id=call,
            requested_schema=schema.ElicitationSchema.model_validate(form),
        )
        message = request.prompt or f"{request.tool_name} waits for an answer."
        try:
            async with asyncio.timeout(_left(request)):
                response = await self._client.create_elicitation(message, mode)
        except TimeoutError:
            return None
        if not isinstance(response, schema.AcceptElicitationResponse):
            return None
        return value_in(request, response.content or {})

    # --- what the client sees --------------------------------------------------------------------

    async def _show_all(self) -> None:
        """Show the context's events, until the session is closed."""
        try:
            while True:
                try:
                    async for event in self._feed.follow(self._seen):
                        await self._show(event)
                    return
                except SlowReader:
                    self._transcript.again()
                except StoreUnavailable:
                    self._transcript.again()
                    await asyncio.sleep(_AGAIN_S)
        except Exception as error:
            if not isinstance(error, (LooopyError, ConnectionError)):
                _logger.exception("session %s cannot be shown any more", self.session_id)
            async with self._news:
                self._lost = error
                self._news.notify_all()

    async def _show(self, event: AgentEvent) -> None:
        replayed = isinstance(event, MessageEnd) and (event.position or 0) <= self._position
        own = not event.path and event.context_id == self.session_id
        if not (own and replayed):
            for update in self._transcript.show(event):
                await self._send(update)
        if not own:
            return
        if isinstance(event, UsageReport):
            await self._send_usage(event)
        if event.seq is not None:
            self._seen = event.seq
        if isinstance(event, (TurnStart, TurnEnd)):
            async with self._news:
                self._begun = max(self._begun, event.turn)
                if isinstance(event, TurnEnd):
                    self._ended[event.turn] = _Ended(
                        event.turn, event.outcome, event.stop_reason, event.usage
                    )
                self._news.notify_all()

    async def _shown(self, turn: int) -> _Ended:
        """Wait until the client has seen the end of *turn*."""
        self._awaited = turn
        if self._renewed:
            await self._catch_up()
        async with self._news:
            await self._news.wait_for(lambda: turn in self._ended or self._lost is not None)
            self._awaited = None
            if turn not in self._ended and self._lost is not None:
                raise self._lost
            ended = self._ended[turn]
            self._ended = {turn: ended}
            return ended

    async def _turn_behind(self, turn: int) -> int:
        """Wait for a turn that is newer than *turn*, and return its number."""
        async with self._news:
            await self._news.wait_for(lambda: self._begun > turn or self._lost is not None)
            if self._begun <= turn and self._lost is not None:
                raise self._lost
            return self._begun

    async def _send(self, update: Any) -> None:
        await self._client.session_update(self.session_id, update)

    async def _send_title(self, message: UserMessage) -> None:
        if title := title_in(message):
            await self._send(
                schema.SessionInfoUpdate(session_update="session_info_update", title=title)
            )

    async def _send_usage(self, event: UsageReport) -> None:
        size = port_of(self._agent).window_tokens
        if size is None:
            return  # the protocol wants the size of the window
        used = event.usage.input + event.usage.cache_read + event.usage.cache_write
        cost = (self._agent.state.usage + event.turn_usage).cost
        await self._send(
            schema.UsageUpdate(
                session_update="usage_update",
                used=used + event.usage.output,
                size=size,
                cost=None if cost is None else schema.Cost(amount=cost.total, currency="USD"),
            )
        )

    async def _stop_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)


def _left(request: PendingRequest) -> float | None:
    """Seconds until *request* expires."""
    if request.expires_at is None:
        return None
    return (request.expires_at - utc_now()).total_seconds()


def usage_of(usage: Usage) -> schema.Usage:
    """The tokens of a turn."""
    return schema.Usage(
        total_tokens=usage.total_tokens,
        input_tokens=usage.input,
        output_tokens=usage.output,
        thought_tokens=usage.reasoning or None,
        cached_read_tokens=usage.cache_read or None,
        cached_write_tokens=usage.cache_write or None,
    )


def title_in(message: UserMessage) -> str | None:
    """The beginning of a message, as the title of its conversation."""
    line = " ".join(message.text.split())
    if len(line) > _TITLE_CHARS:
        line = f"{line[: _TITLE_CHARS - 3]}..."
    return line or None
