"""The one file that imports the official A2A SDK; loaded at the first contact with an agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import (  # type: ignore[import-untyped]  # it has no stubs
    MessageToDict,
)

from looopy.errors import SignInFailed, ToolServerError
from looopy.tools.sources.escapes import whole_lines
from looopy.tools.sources.headers import origin_of
from looopy.types.message import ImageContent, TextContent, UserBlock

if TYPE_CHECKING:
    from looopy.tools.sources.a2a.agent import RemoteAgent

_MAX_CARD_BYTES = 256 * 1024  # a card is read at once, while other turns wait
_MAX_ELSEWHERE = 5
_TEXTS = ("application/json", "application/xml", "application/yaml")
_BINDINGS = ["JSONRPC", "HTTP+JSON"]
_CANCEL_S = 3.0
_PAUSE_S = 0.05  # before the next read of a task; doubling
_LONGEST_PAUSE_S = 2.0
_SETTLING = 20  # rounds of the loop
_LOOKS = 3  # reads of a task before an agent that does not answer counts as lost
_HISTORY = 20  # messages of a task in which the one that began it is looked for
_EXACT = 2**53  # below it, each whole number is a double
_DONE = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
)
_ASKS = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
_WORDS: dict[int, str] = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_CANCELED: "cancelled its task",
    TaskState.TASK_STATE_REJECTED: "refused the task",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    One message to an agent.

    Attributes:
        conversation: The id of the A2A context.
        task_id: The task to continue, or `None`.
    """

    text: str
    message_id: str
    conversation: str
    task_id: str | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The output of an agent so far, and its state."""

    task_id: str | None
    conversation: str
    status: int = TaskState.TASK_STATE_UNSPECIFIED
    text: str = ""
    replied: bool = False
    artifacts: dict[str, list[Part]] = field(default_factory=dict)
    _parts: Sequence[Part] = ()  # of its last message
    _ending: Sequence[Part] = ()  # of the message of its last status, which may have none

    @property
    def over(self) -> bool:
        """True if the agent has ended or waits for an answer."""
        return self.replied or self.status in _DONE or self.asks

    @property
    def asks(self) -> bool:
        """True if the agent waits for input from this side."""
        return self.status in _ASKS

    @property
    def wants_credentials(self) -> bool:
        """True if the agent waits for credentials."""
        return self.status == TaskState.TASK_STATE_AUTH_REQUIRED

    @property
    def failed(self) -> bool:
        """True if the task failed, was cancelled or was refused."""
        return self.status in _WORDS

    @property
    def state(self) -> str:
        """Its state, in a word."""
        name: str = TaskState.Name(TaskState.ValueType(self.status))
        return name.removeprefix("TASK_STATE_").lower()

    @property
    def blocks(self) -> tuple[UserBlock, ...]:
        """
        The content for the model: the message with which the task ended, and the artifacts.

        A2A 1.0, section 3.7: results should be artifacts. Many agents answer by that message all
        the same, and save artifacts beside it. A message that only repeats one is left out, and so
        is the agent's text on the way.
        """
        made = tuple(block for parts in self.artifacts.values() for block in _blocks(parts))
        shown = {block.text.strip() for block in made if isinstance(block, TextContent)}
        ending = _blocks(self._ending) if made else _blocks(self._parts)
        said = [
            block
            for block in ending
            if not (isinstance(block, TextContent) and block.text.strip() in shown)
        ]
        if self.failed:
            reason = f": {self.text}" if self.text else ""
            return (
                TextContent(f"The agent {_WORDS[TaskState.ValueType(self.status)]}{reason}"),
                *made,
            )
        return (*said, *made)

    def receive(self, response: StreamResponse, say: Callable[[str], None]) -> None:
        """Read a response of the stream, and pass new text to *say*."""
        kind = response.WhichOneof("payload")
        if kind == "message":
            self._hear_message(response.message)
            self.replied = True
            say(self.text)
        elif kind == "task":
            self.look(response.task)
        elif kind == "status_update":
            update = response.status_update
            self.task_id = update.task_id or self.task_id
            self.conversation = update.context_id or self.conversation
            self._hear_status(update.status)
            if not self.over and self.text:
                say(self.text)
        elif kind == "artifact_update":
            update = response.artifact_update
            kept = self.artifacts.setdefault(update.artifact.artifact_id, [])
            if not update.append:
                kept.clear()
            kept.extend(update.artifact.parts)
            say("".join(_text_of(part) or "" for part in update.artifact.parts))

    def look(self, task: Any) -> None:
        """Read the current state of a task."""
        self.task_id = task.id or self.task_id
        self.conversation = task.context_id or self.conversation
        self._hear_status(task.status)
        for artifact in task.artifacts:
            self.artifacts[artifact.artifact_id] = list(artifact.parts)

    def _hear_status(self, status: TaskStatus) -> None:
        self.status = status.state
        if status.HasField("message"):
            self._hear_message(status.message)
            self._ending = self._parts
        else:
            self.text, self._ending = "", ()

    def _hear_message(self, message: Message) -> None:
        self._parts = list(message.parts)
        self.text = "\n".join(b.text for b in _blocks(self._parts) if isinstance(b, TextContent))


async def fetch_card(agent: RemoteAgent, headers: Mapping[str, str] | None) -> AgentCard:
    """The agent's card; `ToolServerError` if it cannot be read, or names a forbidden origin."""
    parts = urlsplit(agent.url)
    base, path = agent.url, None
    if parts.path.endswith(".json"):
        base, path = f"{parts.scheme}://{parts.netloc}", parts.path
    try:
        max_bytes = min(agent.max_bytes, _MAX_CARD_BYTES)
        async with asyncio.timeout(agent.card_timeout_s), _http(agent, headers, max_bytes) as http:
            card = await A2ACardResolver(http, base).get_agent_card(relative_card_path=path)
            if card.capabilities.extended_agent_card and headers:
                await _extend(agent, card, http)
    except TimeoutError:
        raise _failure(agent, f"did not show its card within {agent.card_timeout_s:g} s") from None
    except Exception as error:  # noqa: BLE001 - such as a card too deep for the parser
        kind = SignInFailed if _is_not_let_in(error, headers) else ToolServerError
        raise _failure(agent, f"did not show its card: {_said(error)}", kind=kind) from None
    _choose(agent, card)
    return card


async def _extend(agent: RemoteAgent, card: AgentCard, http: httpx.AsyncClient) -> None:
    """Give *card* the skills that the agent shows only after a sign-in, if it has such."""
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=_BINDINGS)
    with contextlib.suppress(Exception):  # the public card does, whatever that one makes of the SDK
        client = ClientFactory(config).create(_choose(agent, card))
        extended = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
        if extended.skills:
            card.ClearField("skills")
            card.skills.extend(extended.skills)


async def converse(
    agent: RemoteAgent,
    card: AgentCard,
    headers: Mapping[str, str] | None,
    request: Request,
    say: Callable[[str], None],
) -> Outcome:
    """Send a message, and wait until the agent is done or asks; `ToolServerError` if it is lost."""
    outcome = Outcome(task_id=request.task_id, conversation=request.conversation)
    # An agent that does not stream would answer at its end, and a task without its id could not be
    # cancelled. A task that is continued has an id, and its old question must not come back.
    polled = not card.capabilities.streaming and request.task_id is None
    async with _http(agent, headers, agent.max_bytes) as http:
        config = ClientConfig(
            httpx_client=http, supported_protocol_bindings=_BINDINGS, polling=polled
        )
        try:
            client = ClientFactory(config).create(_choose(agent, card))
        except (A2AError, ValueError) as error:
            raise _failure(agent, f"cannot be asked: {_said(error)}") from None
        try:
            await _listen(agent, client, request, outcome, say, headers)
            await _wait(agent, client, outcome)
            if outcome.replied:  # let the loop close the stream that the SDK leaves open
                for _ in range(_SETTLING):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            await _cancel(client, request, outcome)
            raise
    return outcome


async def _listen(
    agent: RemoteAgent,
    client: Client,
    request: Request,
    outcome: Outcome,
    say: Callable[[str], None],
    headers: Mapping[str, str] | None,
) -> None:
    message = Message(
        message_id=request.message_id,
        context_id=request.conversation,
        task_id=request.task_id or "",
        role=Role.ROLE_USER,
        parts=[Part(text=request.text)],
    )
    heard = False
    try:
        responses = client.send_message(SendMessageRequest(message=message))
        async for response in responses:
            heard = True
            outcome.receive(response, say)
    except (A2AError, httpx.HTTPError, ValueError) as error:
        if heard and outcome.task_id:  # the task continues without us: it can be read later
            return
        if _is_not_let_in(error, headers):
            text = f"did not let the user sign in: {_said(error)}"
            raise _failure(agent, text, kind=SignInFailed) from None
        known = _is_refusal(error)
        text = f"could not be asked: {_said(error)}"
        if not known:
            text += ". Whether it works on it is unknown: check before asking again"
        raise _failure(agent, text, outcome_known=known) from None


async def _wait(agent: RemoteAgent, client: Client, outcome: Outcome) -> None:
    """Read the task until it is over; a stream may end before."""
    pause_s, silent = _PAUSE_S, 0
    while not outcome.over:
        if outcome.task_id is None:
            raise _failure(agent, "ended its answer without one", outcome_known=False)
        try:
            outcome.look(await client.get_task(GetTaskRequest(id=outcome.task_id)))
            silent = 0
        except (A2AError, httpx.HTTPError, ValueError) as error:
            silent += 1
            if silent >= _LOOKS or _is_refusal(error):
                text = f"was lost while it worked: {_said(error)}. Its outcome is unknown"
                raise _failure(agent, text, outcome_known=False) from None
        if not outcome.over:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _cancel(client: Client, request: Request, outcome: Outcome) -> None:
    """Request that the agent stop, within a few seconds."""
    if outcome.over:
        return
    with contextlib.suppress(Exception):  # the turn ends as cancelled, with or without the agent
        async with asyncio.timeout(_CANCEL_S):
            task_id = outcome.task_id or await _find(client, request)
            if task_id is not None:
                await client.cancel_task(CancelTaskRequest(id=task_id))


async def _find(client: Client, request: Request) -> str | None:
    """The task that *request* began, if the agent has not named it: it lists its tasks."""
    asked = ListTasksRequest(context_id=request.conversation, history_length=_HISTORY)
    for _ in range(_LOOKS):
        for task in (await client.list_tasks(asked)).tasks:
            if any(one.message_id == request.message_id for one in task.history):
                return str(task.id)
        await asyncio.sleep(4 * _PAUSE_S)  # the request may still be on its way
    return None


def _choose(agent: RemoteAgent, card: AgentCard) -> AgentCard:
    """*card* with the interfaces at allowed origins only."""
    usable = AgentCard()
    usable.CopyFrom(card)
    del usable.supported_interfaces[:]
    offered = [one for one in card.supported_interfaces if one.protocol_binding in _BINDINGS]
    elsewhere: set[str] = set()
    for one in offered:
        try:
            scheme, host, port = origin_of(one.url)
        except ValueError:  # not an address: the interface is ignored
            continue
        if (scheme, host, port) in agent.origins:
            usable.supported_interfaces.append(one)
        else:
            elsewhere.add(f"{scheme}://{host}:{port}")
    if usable.supported_interfaces:
        return usable
    if elsewhere:
        there = ", ".join(sorted(elsewhere)[:_MAX_ELSEWHERE])
        text = f"is elsewhere, its card says: allow it by origins=[...], if it is right ({there})"
    elif offered:
        text = "has a card without an address that can be used"
    else:
        text = f"speaks none of {', '.join(_BINDINGS)}"
    raise _failure(agent, text)


# --- HTTP ----------------------------------------------------------------------------------------


class _Bounded(httpx.AsyncByteStream):
    """A body that is read up to a limit, by whole lines."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream = stream
        self._left = max_bytes
        self._max_bytes = max_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return whole_lines(self._bounded(), self._max_bytes)

    async def _bounded(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx.ReadError(f"more than {self._max_bytes:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _http(
    agent: RemoteAgent, headers: Mapping[str, str] | None, max_bytes: int
) -> httpx.AsyncClient:
    async def bound(response: httpx.Response) -> None:
        response.stream = _Bounded(response.stream, max_bytes)

    # Compressed, a small body could be a large one.
    kept = {**(headers or {}), "Accept-Encoding": "identity"}
    timeout = httpx.Timeout(agent.card_timeout_s, read=None)  # the call has its own
    return httpx.AsyncClient(headers=kept, timeout=timeout, event_hooks={"response": [bound]})


# --- words ---------------------------------------------------------------------------------------


def _blocks(parts: Sequence[Part]) -> tuple[UserBlock, ...]:
    blocks: list[UserBlock] = []
    text = ""
    for part in parts:
        kind = part.WhichOneof("content")
        if (piece := _text_of(part)) is not None:
            text += piece  # chunks of one text
            continue
        if text:
            blocks.append(TextContent(text))
            text = ""
        if kind == "data":
            data = _whole(MessageToDict(part.data))
            blocks.append(TextContent(json.dumps(data, ensure_ascii=False)))
        elif kind == "url":
            blocks.append(TextContent(f"[file {part.filename or ''} at {part.url}]"))
        elif kind == "raw":
            blocks.append(_file(part))
    return (*blocks, TextContent(text)) if text else tuple(blocks)


def _text_of(part: Part) -> str | None:
    """The text of *part*: its own, or a plain-text file's."""
    kind = part.WhichOneof("content")
    if kind != "raw":
        return str(part.text) if kind == "text" else None
    media_type, _, options = part.media_type.partition(";")
    media_type = media_type.strip().lower()
    if not media_type.startswith("text/") and media_type not in _TEXTS:
        return None
    named = [one.partition("=")[2] for one in options.split(";") if "charset=" in one.lower()]
    try:
        return bytes(part.raw).decode(named[0].strip().strip('"') if named else "utf-8")
    except (LookupError, ValueError):  # not the text that it claims to be
        return None


def _whole(value: Any) -> Any:
    """*value* with its whole numbers as integers: protobuf knows doubles only."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


def _file(part: Part) -> UserBlock:
    import base64

    if part.media_type in ("image/png", "image/jpeg", "image/gif", "image/webp") and part.raw:
        return ImageContent(data=base64.b64encode(part.raw).decode(), mime_type=part.media_type)
    return TextContent(f"[file {part.filename}, {part.media_type}, {len(part.raw)} bytes]")


def _is_refusal(error: Exception) -> bool:
    """True if the agent refused the request, or was never reached."""
    from a2a.client.errors import A2AClientError

    if not isinstance(error, A2AClientError):
        return isinstance(error, A2AError)
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code < 500
    return isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout))


def _is_not_let_in(error: BaseException, headers: Mapping[str, str] | None) -> bool:
    """True if the agent refuses these *headers* with HTTP 401."""
    if not isinstance(error, httpx.HTTPStatusError) and error.__cause__ is not None:
        error = error.__cause__
    refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
    return refused and headers is not None


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _failure(
    agent: RemoteAgent,
    text: str,
    *,
    outcome_known: bool = True,
    kind: type[ToolServerError] = ToolServerError,
) -> ToolServerError:
    return kind(f"{agent.where} {text}", server=agent.name, outcome_known=outcome_known)
