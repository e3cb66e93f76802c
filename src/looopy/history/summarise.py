"""
Make a summary of the older part of a log, so that the model still knows the messages it no longer
sees.

The log stays as it is: a summary is appended to it (`looopy.types.summary`). The cut is before a
user message, and never between a call and its result; inside a turn, if its first part alone is too
long, before a model's answer. The model writes the summary. If it cannot, a sentence that says so
takes its place, because a conversation with less history beats one that cannot continue.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from looopy.errors import (
    BudgetExceeded,
    InvalidLLMResponse,
    LLMError,
    StoreError,
    ValueRefused,
)
from looopy.history.tokens import estimate_tokens, text_tokens
from looopy.history.window import (
    UNKNOWN_WINDOW_TOKENS,
    Backlog,
    Limits,
    safe_cuts,
    shorten,
    shortened,
)
from looopy.llm.provider import LLMProvider
from looopy.llm.retry import delay_before
from looopy.types.config import RetryPolicy
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_check import mended_answer
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions
from looopy.types.storable import repair
from looopy.types.summary import find_fold, is_summary, shown_as, summary_message

_INSTRUCTION: Final = (
    "You write the memory of a conversation between a user and an assistant that uses tools. You"
    " are given its transcript, which may begin with an earlier summary. Write notes that let the"
    " assistant go on without the transcript, in plain text, no more than 600 words, in this order."
    ' First "About the user": everything that users have said about themselves and what is theirs'
    " (names, places, people, animals, numbers, wishes), each fact on a line of its own, even if it"
    ' was said once and long ago. Then "Decided and done": what the user wants and has decided,'
    " what was done and found out, with names, numbers and identifiers as they are. Then"
    ' "Open": what is still to be done. Do not answer the user and do not call tools.'
)  # Small models lose what was said once, unless facts about the user come first.
_MOST_CHARS: Final = 2_000  # of one message in the transcript
_QUOTED_CHARS: Final = 8_000  # of the question if its answer is cut in two
_chance = random.Random()  # noqa: S311 - spreads retries, keeps no secret


@dataclass(frozen=True, slots=True)
class Part:
    """
    The part of a log to summarise, and the rest that stays.

    Attributes:
        earlier: The summary of the messages before, or `None`.
        covered: Oldest first; never empty.
        kept: How many messages of the log follow.
        question: The user's, if its answer is cut in two: it is quoted.
        tokens_before: Estimated length of the visible history without a new summary.
        tokens_kept: Estimated length of the part of it that stays.
        before: The number of messages before *covered* that were not read and have no summary.
    """

    earlier: CustomMessage | None
    covered: Sequence[Message]
    kept: int
    question: UserMessage | None
    tokens_before: int
    tokens_kept: int
    before: int = 0


async def read_part(
    history: Sequence[Message],
    backlog: Backlog | None,
    *,
    window_tokens: int | None = None,
    **choice: Any,
) -> Part | None:
    """
    Like `part_to_cover`, of a history that may be only the end of its log: what came before is read
    until no more of it would go into the transcript.

    Args:
        backlog: Reads it; `None`: *history* is the whole log.
        choice: As for `part_to_cover`.
    """
    if backlog is None:
        return part_to_cover(history, **choice)
    while True:
        part = part_to_cover(backlog.log, **choice)
        full = part is not None and transcript(part, window_tokens)[1] > 0
        if full or not await backlog.more():
            return None if part is None else replace(part, before=backlog.left)


def part_to_cover(
    messages: Sequence[Message],
    *,
    keep_turns: int = 1,
    room: Limits | None = None,
    split: bool = False,
) -> Part | None:
    """
    The older part of a log.

    Args:
        messages: The log, oldest first, with its newest summary.
        keep_turns: How many of the newest questions stay, with all that followed them.
        room: More of them stay, as long as they fit into this.
        split: Where the newest question alone led to all of it, part its answers: the last one
            stays, with what it found.

    Returns:
        `None` when there is nothing to cover.
    """
    fold = find_fold(messages)
    shown = messages[0 if fold is None else fold.start :]
    users, groups = safe_cuts(shown)
    fitting = [] if room is None else safe_cuts(shown, room)[0]
    place = max(keep_turns, len(fitting)) - 1
    cut = users[place] if place < len(users) else 0
    question = None
    if split and not _says(shown[:cut]):
        cut = groups[0] if groups else 0
        asked = (m for m in reversed(shown[:cut]) if isinstance(m, UserMessage))
        question = next(asked, None)
    if not _says(shown[:cut]):
        return None
    kept = shown[cut:]
    tokens_kept = sum(map(estimate_tokens, kept))
    before = tokens_kept + sum(map(estimate_tokens, shown[:cut]))
    if fold is not None:
        before += estimate_tokens(shown_as(fold.summary))
    earlier = None if fold is None else fold.summary
    return Part(earlier, shown[:cut], len(kept), question, before, tokens_kept)


def _says(messages: Sequence[Message]) -> bool:
    """True if a summary of *messages* would cover more than a question."""
    return any(isinstance(m, (AssistantMessage, ToolResultMessage)) and _said(m) for m in messages)


@dataclass(frozen=True, slots=True)
class Summary:
    """
    A summary to append, the usage of writing it, and the reason if the model wrote none.

    Attributes:
        unread: How many messages it covers without mentioning them: the oldest ones.
    """

    message: CustomMessage
    unread: int
    usage: Usage = field(default_factory=Usage)
    error: LLMError | None = None

    def saying(self, text: object) -> Summary:
        """The summary with the *text* of a hook; as it is, if the hook returned no text."""
        if not isinstance(text, str) or not text.strip():
            return self
        return replace(self, message=replace(self.message, content=repair(text)))

    def keeping(self, kept: int) -> CustomMessage:
        """The message, where so many others come right before it that are still shown."""
        return replace(self.message, metadata={**self.message.metadata, "kept": kept})

    def tokens_after(self, part: Part) -> int:
        """Estimated length of the visible history with this summary."""
        return part.tokens_kept + estimate_tokens(shown_as(self.message))


async def summarise(
    part: Part,
    provider: LLMProvider,
    options: StreamOptions,
    *,
    model: str,
    window_tokens: int | None,
    retry: RetryPolicy,
) -> Summary:
    """
    Let the model summarise *part*; after a failure, a plain sentence takes the place of its
    summary.

    Args:
        model: Its name; "": the provider's own.
        window_tokens: The size of the model's window, if known: half of it is filled.
        retry: As for any model call.
    """
    text, left_out = transcript(part, window_tokens)
    unread = part.before + left_out
    request = LLMRequest(
        messages=(UserMessage(text),),
        system_prompt=_INSTRUCTION,
        model=model,
    )
    usage, failures = Usage(), 0
    while True:
        answer, error = await _answer(provider, request, options)
        if answer is not None:
            usage += answer.usage
        if answer is not None and error is None:
            said = answer.text.strip()
            if unread:
                said = f"{said}\n\n(Of the {unread} oldest messages nothing is said here.)"
            return Summary(_worded(part, said), unread, usage)
        failures += 1
        failed = error or InvalidLLMResponse("it wrote no summary")
        delay = delay_before(failures, retry, failed, _chance)
        if delay is None:
            break
        await asyncio.sleep(delay)
    unread = part.before + _count(part.covered)
    said = (
        f"{unread} earlier messages are no longer shown, and no summary of them could be written."
    )
    if part.earlier is not None:
        said = f"{part.earlier.content}\n\n{said}"
    return Summary(_worded(part, said), unread, usage, failed)


async def _answer(
    provider: LLMProvider, request: LLMRequest, options: StreamOptions
) -> tuple[AssistantMessage | None, LLMError | None]:
    """The model's summary, or the reason why it wrote none."""
    last: StreamEvent | None = None
    try:
        async for event in provider.stream(request, options):
            last = event
            if event.type in ("done", "error"):
                break
    except (BudgetExceeded, StoreError):  # no call was made
        raise
    except Exception as exc:  # noqa: BLE001 - a provider that breaks its contract and raises
        return None, InvalidLLMResponse(f"the provider failed: {exc}")
    if last is None:
        return None, InvalidLLMResponse("it wrote no summary")
    message = last.message
    if message is not None:
        try:
            message = mended_answer(message, [])
        except ValueRefused as refused:
            return None, InvalidLLMResponse(f"the provider ended its stream with {refused}")
    if last.type == "done" and message is not None and message.text.strip():
        return message, None
    error = last.error
    return message, (
        error if isinstance(error, LLMError) else InvalidLLMResponse("it wrote no summary")
    )


def _worded(part: Part, text: str) -> CustomMessage:
    if part.question is not None:
        asked = shorten(part.question.text, _QUOTED_CHARS)
        text = f"{text}\n\nThe user's latest message, which is being answered:\n{asked}"
    return summary_message(repair(text), kept=part.kept)


def transcript(part: Part, window_tokens: int | None) -> tuple[str, int]:
    """
    The messages of *part*, as text for the model: the newest of them if not all fit.

    Returns:
        The text, and how many of the oldest messages it leaves out.
    """
    left = (window_tokens or UNKNOWN_WINDOW_TOKENS) // 2
    head = ""
    if part.earlier is not None:
        head = f"[earlier summary]\n{shortened(str(part.earlier.content), left // 2)}\n\n"
        left -= text_tokens(head)
    pieces: list[str] = []
    for place in range(len(part.covered) - 1, -1, -1):
        piece = _said(part.covered[place])
        left -= text_tokens(piece)
        if left < 0 and pieces:
            pieces.append("[...]\n\n")
            return head + "".join(reversed(pieces)), _count(part.covered[: place + 1])
        pieces.append(piece)
    return head + "".join(reversed(pieces)), 0


def _count(messages: Sequence[Message]) -> int:
    """The number of messages without summaries, which are repeated anyway."""
    return sum(not is_summary(message) for message in messages)


def _said(message: Message) -> str:
    if isinstance(message, UserMessage):
        return f"[user]\n{shorten(message.text, _MOST_CHARS)}\n\n"
    if isinstance(message, ToolResultMessage):
        kind = "error" if message.is_error else "result"
        return f"[{kind} of {message.tool_name}]\n{shorten(message.text, _MOST_CHARS)}\n\n"
    if isinstance(message, AssistantMessage):
        lines = [shorten(message.text, _MOST_CHARS)] if message.text else []
        for call in message.tool_calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
            lines.append(f"(calls {call.name} with {shorten(arguments, _MOST_CHARS)})")
        return "[assistant]\n" + "\n".join(lines) + "\n\n" if lines else ""
    if message.text and not is_summary(message):
        return f"[{message.role}]\n{shorten(message.text, _MOST_CHARS)}\n\n"
    return ""
