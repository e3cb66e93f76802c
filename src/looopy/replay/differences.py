"""The first difference between a turn and its replay, in the order in which things happened."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal, TypeAlias

from looopy.llm.render import NOT_STARTED
from looopy.loop.output import how_to_answer
from looopy.replay.recording import CUT_OFF, Recorded, Recording
from looopy.types.message import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.message_json import message_to_json
from looopy.types.state import Outcome

Kind: TypeAlias = Literal["request", "arguments", "tool", "result", "message", "end"]
PARTS: Final = ("model", "tools", "prompt")
"""The parts of a request that a recording knows by their digests."""

_ANSWER_ALL: Final = (Outcome.COMPLETED, Outcome.INPUT_REQUIRED, Outcome.CANCELLED)
_MOST_CHARS = 300
_ASIDE = ("timestamp", "usage", "response_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    One difference.

    Attributes:
        kind: A request to the model, the arguments of a call, a tool that is gone, the result of a
            call, a message, or the end of the turn.
        text: One sentence for people.
        iteration: Where, from 1; 0: at the end of the turn.
        then, now: The two values, shortened; of a part of a request, its digests.
        tool_call_id: The call, if it is about one.
    """

    kind: Kind
    text: str
    iteration: int = 0
    then: str = ""
    now: str = ""
    tool_call_id: str | None = None

    def __str__(self) -> str:
        place = f"iteration {self.iteration}: " if self.iteration else ""
        lines = [f"{place}{self.text}"]
        if self.then or self.now:
            lines += [f"  then: {self.then}", f"  now:  {self.now}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """
    The outcome of a replay.

    Attributes:
        recording: The turn as it was.
        now: The turn as it was replayed.
        difference: The first difference; `None`: there is no difference.
        gone: The names of tools that the turn ran, and that the agent no longer has.
        left_out: Sentences about the parts that were not compared, and why.
    """

    recording: Recording
    now: Recording
    difference: Difference | None = None
    gone: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def check(self) -> None:
        """
        Fail if there is a difference.

        Raises:
            AssertionError: The text names the first difference.
        """
        if self.difference is not None:
            raise AssertionError(
                f"turn {self.recording.turn} of {self.recording.context_id} is another one now:"
                f" {self.difference}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """
    Facts of a replay that its messages do not show.

    Attributes:
        ran: The ids of calls whose tools were called.
        known: The names of the tools on offer.
        surplus: The call of the model that the recording does not answer; `None`: none.
        cut_off: True if the recording ended before the replay.
        unanswered: The name of a tool that ran where the recording has no result and no question.
        ended_first: True if the recorded turn ended by what a replay does not count, and the replay
            by another limit, which it would have reached next.
    """

    ran: Collection[str] = ()
    known: Collection[str] = ()
    surplus: int | None = None
    cut_off: bool = False
    unanswered: str | None = None
    ended_first: bool = False


def first_difference(
    then: Recording, now: Recording, played: Played, ignore: Collection[str]
) -> Difference | None:
    """The first difference; *ignore*: names of `PARTS` that are not compared."""
    asked_then = asked_now = ""
    tools_agree = False
    for one, other in zip_longest(_ordered(then.messages), _ordered(now.messages)):
        if one is None or other is None:
            break
        asked_then, asked_now = one.request or asked_then, other.request or asked_now
        if isinstance(one.message, AssistantMessage):
            found = _request(asked_then, asked_now, one, ignore)
            if found is not None:
                return found
            tools_agree = tools_of(asked_then) == tools_of(asked_now) != ""
        if tools_agree and _was_cut_before(one.message, other.message, then, played):
            continue
        if not _same(one.message, other.message, then, played):
            return _message(one, other, played)
    return _rest(then, now, played)


def _request(then: str, now: str, at: Recorded, ignore: Collection[str]) -> Difference | None:
    if not then or not now:
        return None
    for part, old, new in zip(PARTS, then.split(), now.split(), strict=False):
        if old != new and part not in ignore:
            name = {"model": "the model", "tools": "the tools", "prompt": "the system prompt"}[part]
            verb = "differ" if part == "tools" else "differs"
            return Difference(
                kind="request",
                iteration=at.iteration,
                text=f"{name} of the request {verb} from what was recorded",
                then=f"digest {old}",
                now=f"digest {new}",
            )
    return None


def tools_of(request: str | None) -> str:
    """The digest of the tools of a request; empty: unknown."""
    digests = (request or "").split()
    place = PARTS.index("tools")
    return digests[place] if place < len(digests) else ""


def _was_cut_before(one: Message, other: Message, then: Recording, played: Played) -> bool:
    """
    True if looopy answers a call itself, and the recorded turn was cut off just before it would.

    Both had the same tools, so the answer would be the same. The cut may be a limit that a replay
    does not count, such as of failures.
    """
    return (
        isinstance(one, ToolResultMessage)
        and isinstance(other, ToolResultMessage)
        and one.tool_call_id == other.tool_call_id
        and (one.text == NOT_STARTED or (one.text in CUT_OFF and then.was_cut))
        and one.tool_call_id not in played.ran
    )


def _message(then: Recorded, now: Recorded, played: Played) -> Difference:
    kind, text, call_id = _named(then.message, now.message, played)
    return Difference(
        kind=kind,
        text=text,
        iteration=then.iteration,
        then=_short(then.message),
        now=_short(now.message),
        tool_call_id=call_id,
    )


def _named(one: Message, other: Message, played: Played) -> tuple[Kind, str, str | None]:
    if not isinstance(one, ToolResultMessage) or not isinstance(other, ToolResultMessage):
        return "message", "another message follows", None
    name, call_id = one.tool_name, one.tool_call_id
    if call_id != other.tool_call_id:
        return "message", "another call is answered", call_id
    if call_id in played.ran:
        return "result", f"the result of {name!r} is another one", call_id
    if name not in played.known:
        return "tool", f"the tool {name!r} is gone", call_id
    return "arguments", f"{name!r} no longer takes the arguments of its call", call_id


def _rest(then: Recording, now: Recording, played: Played) -> Difference | None:
    """The difference after the messages that both have."""
    more, less = list(_ordered(then.messages)), list(_ordered(now.messages))
    if len(less) > len(more):
        extra = less[len(more)]
        text = "the turn continues where it had ended"
        return Difference(
            kind="message", text=text, iteration=extra.iteration, now=_short(extra.message)
        )
    if played.surplus is not None:
        text = f"the model is called {played.surplus} times, and was called {played.surplus - 1}"
        return Difference(kind="request", text=text)
    if played.unanswered is not None and then.outcome in _ANSWER_ALL:
        text = f"a call of {played.unanswered!r} runs, and had no result"
        return Difference(kind="result", text=text)
    if played.cut_off and all(_tells_of_a_cut(one.message) for one in more[len(less) :]):
        return None
    if len(more) > len(less):
        lost = more[len(less)]
        text = f"the turn ends earlier, as {now.stop_reason}"
        return Difference(
            kind="end", text=text, iteration=lost.iteration, then=_short(lost.message)
        )
    if played.ended_first:
        return None
    ends = [(one.outcome, one.stop_reason) for one in (then, now)]
    if ends[0] != ends[1]:
        was, is_ = (f"{outcome} ({reason})" for outcome, reason in ends)
        return Difference(kind="end", text="the turn ends otherwise", then=was, now=is_)
    asks = [sorted((one.tool_call_id, str(one.kind)) for one in each.asked) for each in (then, now)]
    if asks[0] != asks[1]:
        was, is_ = (", ".join(f"{kind} of {call}" for call, kind in each) for each in asks)
        return Difference(kind="end", text="other requests wait", then=was, now=is_)
    return None


def _tells_of_a_cut(message: Message) -> bool:
    return isinstance(message, ToolResultMessage) and message.text in CUT_OFF


def _ordered(messages: Sequence[Recorded]) -> Iterator[Recorded]:
    """*messages*, results of one answer in the order of its calls: parallel ones may end anyhow."""
    calls: dict[str, int] = {}
    results: list[Recorded] = []

    def place(one: Recorded) -> int:
        message = one.message
        assert isinstance(message, ToolResultMessage)  # noqa: S101 - only those are sorted
        return calls.get(message.tool_call_id, -1)

    for one in messages:
        if isinstance(one.message, ToolResultMessage):
            results.append(one)
            continue
        yield from sorted(results, key=place)
        results = []
        if isinstance(one.message, AssistantMessage):
            calls = {call.id: i for i, call in enumerate(one.message.tool_calls)}
        yield one
    yield from sorted(results, key=place)


def _same(one: Message, other: Message, then: Recording, played: Played) -> bool:
    if (
        then.scrubbed
        and isinstance(one, ToolResultMessage)
        and isinstance(other, ToolResultMessage)
    ):
        ours = one.tool_call_id not in played.ran  # a text of looopy, which may quote the arguments
        if ours and one.tool_call_id == other.tool_call_id:
            return one.is_error == other.is_error
    if then.scrubbed and isinstance(one, UserMessage) and isinstance(other, UserMessage):
        how = how_to_answer(one.text)  # the problem quotes the answer
        if how is not None:
            return how == how_to_answer(other.text)
    return _shown(one) == _shown(other)


def _shown(message: Message) -> dict[str, Any]:
    data = message_to_json(message)
    return {name: value for name, value in data.items() if name not in _ASIDE}


def _short(message: Message) -> str:
    calls = [block for block in message.content if isinstance(block, ToolCall)]
    text = message.text or ", ".join(f"{c.name}({json.dumps(dict(c.arguments))})" for c in calls)
    text = " ".join(text.split())
    return f"{message.role}: {text[:_MOST_CHARS]}{'…' if len(text) > _MOST_CHARS else ''}"
