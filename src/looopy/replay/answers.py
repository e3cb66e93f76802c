"""
A model and tools that answer from a recording.

Each answer is the recorded one, whatever is asked; `differences` compares what was asked. Where the
recorded turn was cut off, the replay is cut off as well: `Script.stop` never returns.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from looopy.errors import LLMError
from looopy.llm.provider import Abilities
from looopy.llm.render import CANCELLED, OUTCOME_UNKNOWN
from looopy.loop.incoming import Inbox, Queued
from looopy.loop.interrupt import TurnInterrupted
from looopy.replay.recording import CUT_OFF, Recorded, Recording, answers_of, results_of
from looopy.tools.asking import Ask, NeedsCredentials, NeedsInput
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.types.context import CancelToken
from looopy.types.event import AgentEvent, MessageEnd
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    StopReason,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ToolSpec
from looopy.types.state import Outcome, PendingKind, PendingRequest

_REASONS: Final = {StopReason.CANCELLED: "cancelled", StopReason.DEADLINE: "deadline"}


class Script:
    """
    The recording as it is played, shared by the model, the tools and the inbox.

    Attributes:
        cancel: The token of the replayed turn.
        over: Set when the recording ends before the replay.
        surplus: The call of the model that the recording does not answer, from 1; `None`: none.
        emitted: How many messages the replay has added, besides its prompts.
        ran: The ids of calls whose tools were called.
        answered: The ids of calls whose results the replay has added.
        reached: True once a call ran that was cut off then.
        unanswered: The name of a tool whose call the recording neither answers nor asks about.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.results = results_of(recording)
        self.over = asyncio.Event()
        self.surplus: int | None = None
        self.emitted = 0
        self.ran: set[str] = set()
        self.answered: set[str] = set()
        self.reached = False
        self.unanswered: str | None = None
        self.cancel = CancelToken()
        self._answers = answers_of(recording)
        self._answered = 0
        self._said_up_to = 0
        messages = recording.messages
        self._places = [
            i for i, one in enumerate(messages) if isinstance(one.message, AssistantMessage)
        ]

    def note(self, events: Iterable[AgentEvent]) -> None:
        """Take what the replay has added."""
        for one in events:
            if isinstance(one, MessageEnd):
                self.emitted += 1
                if isinstance(one.message, ToolResultMessage):
                    self.answered.add(one.message.tool_call_id)

    def next_answer(self) -> Recorded | None:
        """The next answer of the model; `None` after the last one."""
        if self._answered == len(self._answers):
            return None
        self._answered += 1
        return self._answers[self._answered - 1]

    @property
    def fails_now(self) -> bool:
        """True if the recorded turn failed in a model call that left no answer."""
        done = self._answered == len(self._answers)
        return done and self.recording.stop_reason is StopReason.ERROR

    def said(self) -> list[UserMessage | CustomMessage]:
        """Take the user's messages that the recording has here, before the model's next answer."""
        return self._said_from(self.emitted)

    def said_at_the_end(self) -> list[UserMessage | CustomMessage]:
        """
        Take the messages that the recording has after the last answer, where the turn would end.

        Raises:
            TurnInterrupted: The recorded turn was cut off there.
        """
        place = self._places[self._answered - 1] + 1 if self._answered else 0
        messages = self.recording.messages
        while place < len(messages) and isinstance(messages[place].message, ToolResultMessage):
            place += 1
        reason = _REASONS.get(self.recording.stop_reason or StopReason.ERROR)
        if place == len(messages) and reason is not None:
            raise TurnInterrupted(reason)
        return self._said_from(place)

    def _said_from(self, first: int) -> list[UserMessage | CustomMessage]:
        found: list[UserMessage | CustomMessage] = []
        start = max(first, self._said_up_to)
        messages = self.recording.messages
        for place in range(start, len(messages)):
            message = messages[place].message
            if isinstance(message, (UserMessage, CustomMessage)):
                found.append(message)
                self._said_up_to = place + 1
            else:
                break
        return found

    def was_cut(self, call_id: str) -> bool:
        """True if the recorded turn was cut off before this call had a result."""
        return self.recording.was_cut and self.results[call_id].text in CUT_OFF

    @property
    def ends_here(self) -> bool:
        """True if a call ran that was cut off then, and all have run that surely ran then."""
        return self.reached and not any(
            call_id not in self.ran | self.answered and result.text != CANCELLED
            for call_id, result in self.results.items()
        )

    def cut(self, model_call: bool = False) -> None:
        """End the replay where the recorded turn was cut off: by a caller, a limit or a kill."""
        reason = _REASONS.get(self.recording.stop_reason or StopReason.ERROR)
        if reason is not None:
            self.cancel.cancel(reason)
        else:
            if model_call:
                self.surplus = self._answered + 1
            self.over.set()

    async def stop(self, model_call: bool = False) -> None:
        """Like `cut`, and never return."""
        self.cut(model_call)
        await asyncio.Event().wait()


class AsThen:
    """The model of a recording: a provider with the *abilities* of a real one."""

    def __init__(self, script: Script, abilities: Abilities) -> None:
        self._script = script
        self.name = abilities.name
        self.model = abilities.model
        self.window_tokens = abilities.window_tokens
        self.structured_output = abilities.structured_output
        self.enforces = abilities.enforces

    async def stream(
        self,
        request: LLMRequest,  # noqa: ARG002 - the replay compares the turn, not each request
        options: StreamOptions,  # noqa: ARG002
    ) -> AsyncIterator[StreamEvent]:
        """Give the next recorded answer. See `LLMProvider.stream`."""
        script = self._script
        yield StreamEvent("start", partial=_Partial(AssistantMessage()))
        recorded = script.next_answer()
        if recorded is None:
            if script.fails_now:
                error = LLMError(script.recording.error or "", provider=self.name, retryable=False)
                yield StreamEvent("error", error=error)
                return
            await script.stop(model_call=True)
            return
        message = recorded.message
        assert isinstance(message, AssistantMessage)  # noqa: S101 - `answers_of` has no others
        partial = _Partial(message)
        if message.stop_reason is StopReason.ABORTED:
            yield StreamEvent("text_delta", delta=message.text, partial=partial)
            await script.stop()
        elif message.stop_reason is StopReason.ERROR and script.recording.error is not None:
            error = LLMError(message.error_message or "", provider=self.name, retryable=False)
            yield StreamEvent("error", message=message, error=error, partial=partial)
        else:
            yield StreamEvent("done", message=message, partial=partial)


class _Partial:
    """A recorded answer as one that grows."""

    def __init__(self, message: AssistantMessage) -> None:
        self._message = message
        self.text = message.text

    def snapshot(self) -> AssistantMessage:
        return self._message


def answering(tool: Tool, script: Script) -> Tool:
    """*tool* as the model sees it, whose calls get the recorded results."""
    return _Answering(tool, script)


def stand_in(name: str, script: Script) -> Tool:
    """A tool of which only its *name* is known."""
    anything = {"type": "object", "properties": {}}
    bare = Tool(name="stand_in", parameters=anything)
    bare.name = name  # models call tools by any name
    return _Answering(bare, script, known=False)


class _Answering(Tool):
    def __init__(self, tool: Tool, script: Script, *, known: bool = True) -> None:
        self.__dict__.update(copy.copy(tool.__dict__))
        self._known = known
        self._spec = tool.spec  # the model sees the real schema in any case
        if script.recording.scrubbed:
            self.parameters = {"type": "object"}
        self._script = script
        self.timeout_s = None
        self.retries = 0
        self.is_enabled = None
        self.max_result_bytes = 2**62
        self.approval_prompt = None
        asked = approvals_of(script.recording)
        self.needs_approval = (
            (lambda _args, context: context.tool_call_id in asked) if asked else False
        )

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        assert self._spec is not None  # noqa: S101 - made with the tool
        return self._spec

    async def execute(
        self,
        arguments: Mapping[str, Any],  # noqa: ARG002 - the result is the recorded one
        context: ToolContext,
    ) -> Any:
        """Give the recorded result; see `Tool.execute`."""
        script, call_id = self._script, context.tool_call_id
        script.ran.add(call_id)
        result = script.results.get(call_id)
        if result is None:
            _ask_again(script, call_id)
            script.unanswered = self.name
            await script.stop()
        assert result is not None  # noqa: S101 - the replay has stopped
        was_cut = script.was_cut(call_id)
        script.reached |= was_cut
        if script.ends_here:
            try:
                await script.stop()
            except asyncio.CancelledError:  # a result that comes now still counts
                if was_cut and self._says(result.text):
                    raise
        return ToolResult(tuple(result.content), result.details, result.is_error)

    def _says(self, text: str) -> bool:
        """True if *text* is the loop's result for a call of this tool that is cut off now."""
        return self._known and text == (CANCELLED if self.effects == "none" else OUTCOME_UNKNOWN)


def asked_by(recording: Recording) -> Sequence[PendingRequest]:
    """The requests of the turn itself; a dead turn's come from the process that ended it."""
    return () if recording.outcome is Outcome.INTERRUPTED else recording.asked


def approvals_of(recording: Recording) -> Collection[str]:
    """The calls that the loop asked about; a tool asks in its own name, and perhaps several."""
    asked = Counter(one.tool_call_id for one in asked_by(recording))
    return {
        one.tool_call_id
        for one in asked_by(recording)
        if one.kind is PendingKind.APPROVAL and asked[one.tool_call_id] == 1
    }


def _ask_again(script: Script, call_id: str) -> None:
    asked = [one for one in asked_by(script.recording) if one.tool_call_id == call_id]
    if not asked:
        if script.recording.stop_reason is StopReason.AUTH_REQUIRED:
            raise NeedsCredentials
        return
    raise NeedsInput(
        [
            Ask(
                key=one.request_id,
                kind=one.kind,
                prompt=one.prompt,
                schema=one.schema,
                options=tuple(one.options),
                auth=one.auth,
            )
            for one in asked
        ]
    )


class AsSaid(Inbox):
    """Brings the messages of a user at the places where the recording has them."""

    asks_application = True

    def __init__(self, script: Script) -> None:
        self._script = script

    async def steering(self) -> list[Queued]:
        """See `Inbox.steering`."""
        return [Queued(one) for one in self._script.said()]

    async def follow_ups(self) -> list[Queued]:
        """See `Inbox.follow_ups`."""
        return [Queued(one) for one in self._script.said_at_the_end()]
