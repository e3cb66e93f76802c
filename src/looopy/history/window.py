"""
Chooses the messages of a context that the model sees: the newest that fit, cut at a safe place.

The log only grows, the window of a model does not. Three rules make the cut:

- It is safe: the rest begins with a user message, and no result is separated from its call. If the
  newest user message with everything after it is too large, that message stays and the oldest
  complete groups (an assistant message with its results) after it go. If the newest group alone is
  too large, the text of its results is shortened, never the pair.
- It moves in steps: up to half of the tokens that fit, or a quarter of the messages, go at a time.
  The place is chosen by its number in the log alone, even if only the log's end was read. So many
  requests in a row begin with the same message, in any process, and prompt caches stay valid.
- It is found from the end, so its cost grows with the kept part and not with the log. Callers
  that ask again and again while the log grows keep a `Window`, which processes each message once.

Nothing here is stored, and the result is still a log: `looopy.llm.render` makes it valid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from looopy.history.tokens import estimate_tokens, text_tokens
from looopy.types.config import LoopConfig
from looopy.types.constructors import quick
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    Message,
    TextContent,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.summary import find_fold, shown_as

UNKNOWN_WINDOW_TOKENS: Final = 32_000
_LEAST_RESULT_TOKENS: Final = 64
_MARKER_CHARS: Final = 56  # with a count of twelve digits
_MARKER_TOKENS: Final = 6  # beyond other text of this length
_TRIES: Final = 4


@quick
@dataclass(frozen=True, slots=True)
class Limits:
    """
    How many messages and estimated tokens may be shown; `None`: any number.

    Attributes:
        weigh: Estimates the tokens of a message, or knows them.
    """

    messages: int | None
    tokens: int | None
    weigh: Callable[[Message], int] = estimate_tokens

    @classmethod
    def of(
        cls,
        config: LoopConfig,
        window_tokens: int | None,
        scale: int = 100,
        fixed: int = 0,
        weigh: Callable[[Message], int] = estimate_tokens,
    ) -> Limits:
        """
        The limits of `visible`.

        Args:
            scale: How many tokens the model needs for a hundred estimated ones.
            fixed: Estimated tokens of the prompt and the tools, beside which the history has to
                fit. They count for `"auto"`, in a window of known size.
        """
        tokens = config.history_tokens
        if tokens == "auto":
            tokens = _auto_limit(window_tokens, fixed * scale // 100)
        if tokens is not None and scale != 100:
            tokens = max(1, tokens * 100 // scale)
        return cls(config.max_messages, tokens, weigh)

    def half(self) -> Limits:
        """Half of it."""
        return Limits(
            None if self.messages is None else self.messages // 2,
            None if self.tokens is None else self.tokens // 2,
            self.weigh,
        )

    def beside(self, summary: Message) -> Limits:
        """The limits for the messages beside a summary."""
        left = self.less(summary)
        return Limits(
            None if left.messages is None else max(0, left.messages),
            None if left.tokens is None else max(0, left.tokens),
            self.weigh,
        )

    def less(self, message: Message) -> Limits:
        """The limits beside *message*."""
        return Limits(
            None if self.messages is None else self.messages - 1,
            None if self.tokens is None else self.tokens - self.weigh(message),
            self.weigh,
        )

    @property
    def is_none(self) -> bool:
        """True if everything may be shown."""
        return self.messages is None and self.tokens is None


_WHOLE: Final = Limits(None, None)


class Backlog(Protocol):
    """
    A log that is read further back on demand; at first only its end is in memory.

    Attributes:
        log: The part read so far, oldest first: at first the history in memory.
        left: How many messages come before, unless a summary in *log* covers them.
    """

    log: Sequence[Message]
    left: int

    async def more(self) -> bool:
        """Put a page before `log`; false when nothing more can be read."""
        ...


def visible(
    messages: Sequence[Message],
    config: LoopConfig,
    *,
    window_tokens: int | None = None,
    offset: int = 0,
) -> list[Message]:
    """
    Choose the newest messages within the limits of *config*.

    Args:
        messages: The log of a context, oldest first, or the end of it: at least one message more
            than fits.
        config: Its `max_messages` and `history_tokens`; either may be `None`.
        window_tokens: The size of the model's window, if known: `"auto"` is then three quarters of
            it, to leave room for system prompt, tools and the answer.
        offset: How many messages of the log come before *messages*.

    Returns:
        All of *messages* if they fit. Otherwise its end from a user message on; or, if not even
        that fits, the newest user message and the end from an assistant message on, with long
        results shortened. The newest user message and the newest group are always there, whatever
        the limits.
    """
    return _within(messages, Limits.of(config, window_tokens), offset)


def folded(
    messages: Sequence[Message],
    config: LoopConfig,
    *,
    window_tokens: int | None = None,
    offset: int = 0,
    limits: Limits | None = None,
) -> list[Message]:
    """
    Like `visible`, for a log that may have summaries (`looopy.types.summary`).

    Args:
        limits: In place of the ones that *config* and *window_tokens* make.

    Returns:
        The newest summary as a user message, where there is one, then what is `visible` of the
        messages that it does not cover, within what it leaves of the limits.
    """
    limits = limits or Limits.of(config, window_tokens)
    fold = find_fold(messages)
    if fold is None:
        return _within(messages, limits, offset)
    summary, offset = shown_as(fold.summary), offset + fold.start
    return [summary, *_within(messages[fold.start :], limits.beside(summary), offset)]


def fitting(messages: Sequence[Message], limits: Limits) -> int:
    """
    How many of the newest messages fit into *limits*, before the cut is made.

    Returns:
        Their total number if all fit; a summary is not shown beside the messages that it covers.
    """
    if limits.is_none:
        return len(messages)
    fold = find_fold(messages)
    if fold is None:
        return len(messages) - _scan(messages, limits).first
    shown = messages[fold.start :]
    return len(shown) - _scan(shown, limits.beside(shown_as(fold.summary))).first


def _within(messages: Sequence[Message], limits: Limits, offset: int) -> list[Message]:
    if limits.is_none:
        return list(messages)
    scan = _scan(messages, limits)
    if scan.first == 0:
        return list(messages)
    start = _stepped(scan.first, scan.half, len(messages), limits, offset)
    cuts = [i for i in scan.users if i >= start]
    if cuts:
        return list(messages[cuts[-1] :])
    return _newest_turn(messages, limits)


def safe_cuts(
    messages: Sequence[Message], limits: Limits = _WHOLE
) -> tuple[Sequence[int], Sequence[int]]:
    """
    Where a log may be cut in two without parting a call from its result: in front of these user
    messages, and in front of these assistant messages; newest first.

    Args:
        limits: Only what fits into these, counted from the end.
    """
    scan = _scan(messages, limits)
    return scan.users, scan.groups


def _auto_limit(window_tokens: int | None, fixed: int) -> int:
    if window_tokens is None:
        return UNKNOWN_WINDOW_TOKENS
    limit, part = window_tokens * 3 // 4, window_tokens // 8
    if fixed > part:
        # An eighth is left for the answer. In steps, because a prompt may have a clock in it.
        limit = max(1, part, limit - part * (fixed // part))
    return limit


@dataclass(slots=True)
class _Scan:
    """
    The result of a walk from the end.

    Attributes:
        first: Index of the oldest message that still fits; 0 if all do.
        half: Index of the oldest message that fits into half of the tokens.
        users: Indices of user messages before which the log may be cut, newest first: no call
            between `first` and such an index has its result after it.
        groups: The same for assistant messages.
    """

    first: int
    half: int
    users: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)

    def tear(self, result: int) -> None:
        """Forget the places up to *result*: its call is before them."""
        for places in (self.users, self.groups):
            while places and places[-1] < result:
                places.pop()


def _scan(messages: Sequence[Message], limits: Limits) -> _Scan:
    scan = _Scan(len(messages), len(messages))
    count = tokens = 0
    results: dict[str, int] = {}
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if not isinstance(message, CustomMessage):
            count += 1
            if limits.messages is not None and count > limits.messages:
                break
            if limits.tokens is not None:
                tokens += limits.weigh(message)
                if tokens > limits.tokens:
                    break
        scan.first = i
        if limits.tokens is None or tokens <= limits.tokens // 2:
            scan.half = i
        if isinstance(message, ToolResultMessage):
            results.setdefault(message.tool_call_id, i)
        elif isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                result = results.pop(call.id, None)
                if result is not None:
                    scan.tear(result)
            scan.groups.append(i)
        elif isinstance(message, UserMessage):
            scan.users.append(i)
    return scan


class Window:
    """
    Where `visible` cuts a log that grows, found from what was added since it last looked.

    The oldest message that fits only moves towards the end, and so does every place of a cut: each
    message is weighed once when it comes and once when it goes.

    Args:
        offset: How many messages of the log come before the added ones.

    Attributes:
        length: How many messages were added.
        shown_tokens: Estimated tokens from the last cut on.
    """

    __slots__ = (
        "_announced",
        "_count",
        "_first",
        "_half",
        "_half_tokens",
        "_limits",
        "_offset",
        "_shown",
        "_tokens",
        "_torn",
        "_users",
        "_weights",
        "length",
        "shown_tokens",
    )

    def __init__(self, limits: Limits, offset: int = 0) -> None:
        self.length = 0
        self._limits = limits
        self._offset = offset
        self._first = 0  # index of the oldest message that fits
        self._count = self._tokens = 0  # of the part that fits
        self._shown = self.shown_tokens = 0  # index of the last cut, and tokens from there on
        self._half = self._half_tokens = 0  # the same for half of the tokens
        self._weights: list[int] = []  # tokens of each message; -1: is not counted
        self._users: list[int] = []  # indices of user messages
        self._torn: list[int] = []  # the newest call that each parts from its result; -1: none
        self._announced: dict[str, int] = {}  # call id -> index of the newest message with it

    def extend(self, messages: Iterable[Message]) -> None:
        """Add *messages* to the end of the log."""
        if self._limits.is_none:
            return
        weigh = None if self._limits.tokens is None else self._limits.weigh
        for message in messages:
            here, self.length = self.length, self.length + 1
            if isinstance(message, CustomMessage):
                self._weights.append(-1)
                continue
            weight = 0 if weigh is None else weigh(message)
            self._weights.append(weight)
            self._count += 1
            self._tokens += weight
            self._half_tokens += weight
            self.shown_tokens += weight
            if isinstance(message, UserMessage):
                self._users.append(here)
                self._torn.append(-1)
            elif isinstance(message, AssistantMessage):
                for call in message.tool_calls:
                    self._announced[call.id] = here
            else:
                self._tear(self._announced.get(message.tool_call_id, here))

    def cut(self) -> int | None:
        """The beginning of the visible part; `None` if `visible` has to decide: no place suits."""
        self._let_go()
        first = self._first
        if first == 0:
            return 0
        users = self._users
        start = _stepped(first, self._half, self.length, self._limits, self._offset)
        for i in range(bisect_left(users, start), len(users)):
            if self._torn[i] < first:
                self._hide(users[i])
                return users[i]
        return None

    @property
    def is_whole(self) -> bool:
        """True if all messages fit."""
        return self._first == 0

    def _hide(self, place: int) -> None:
        """Count no more what is before *place*."""
        for i in range(self._shown, place):
            self.shown_tokens -= max(0, self._weights[i])
        self._shown = max(self._shown, place)

    def _tear(self, call: int) -> None:
        """Remember that the call at *call* has its result after the users since."""
        for i in range(len(self._users) - 1, -1, -1):
            if self._users[i] < call:
                break
            self._torn[i] = max(self._torn[i], call)

    def _let_go(self) -> None:
        most, tokens, weights = self._limits.messages, self._limits.tokens, self._weights
        while (most is not None and self._count > most) or (
            tokens is not None and self._tokens > tokens
        ):
            weight = weights[self._first]
            self._first += 1
            if weight >= 0:
                self._count -= 1
                self._tokens -= weight
        while tokens is not None and self._half_tokens > tokens // 2:
            self._half_tokens -= max(0, weights[self._half])
            self._half += 1


def _stepped(first: int, half: int, length: int, limits: Limits, offset: int = 0) -> int:
    """
    *first* or a little later: a place that stays while the log grows.

    Args:
        half: The last place to choose, where half of the tokens are left.
        offset: The place of index 0 in the log, so that it is the same one for all who know its
            end.
    """
    if limits.messages is not None and length - first >= limits.messages:
        step = max(1, limits.messages // 4)
        return min(-(-(first + offset) // step) * step - offset, length)
    return _roundest(first + offset, max(first, half) + offset) - offset


def _roundest(first: int, last: int) -> int:
    """
    The number from *first* to *last* that the highest power of two divides.

    There is exactly one. While both ends grow, it stays until it is less than *first* or a rounder
    number comes, and it never decreases.
    """
    if first == 0:
        return 0
    zeros = ((first - 1) ^ last).bit_length() - 1
    return last >> zeros << zeros


def _newest_turn(messages: Sequence[Message], limits: Limits) -> list[Message]:
    """The newest user message and as many groups after it as fit."""
    asked = next(
        (i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], UserMessage)), None
    )
    question = [] if asked is None else [messages[asked]]
    answers = messages[0 if asked is None else asked + 1 :]
    for message in question:
        limits = limits.less(message)
    # Each result may take a quarter: the model must remember what it read before the last one.
    if limits.tokens is not None:
        most = max(_LEAST_RESULT_TOKENS, limits.tokens // 4)
        shown: Sequence[Message] = [_shortened(message, most) for message in answers]
    else:
        shown = answers
    scan = _scan(shown, limits)
    start = _stepped(scan.first, scan.half, len(shown), limits)
    for group in reversed(scan.groups):
        if group >= start:
            return [*question, *shown[group:]]
    newest = answers[_newest_group(answers) :]
    if limits.tokens is not None:
        most = _share(newest, limits.tokens)
        newest = [_shortened(message, most) for message in newest]
    return [*question, *newest]


def _newest_group(answers: Sequence[Message]) -> int:
    """The beginning of the newest group; the end if there is no group."""
    length = len(answers)
    return next(
        (i for i in range(length - 1, -1, -1) if isinstance(answers[i], AssistantMessage)), length
    )


def _share(group: Sequence[Message], tokens: int) -> int:
    """How many tokens the text of each result may have, so that all of *group* has *tokens*."""
    lengths = sorted(text_tokens(m.text) for m in group if isinstance(m, ToolResultMessage))
    room = tokens + sum(lengths) - sum(map(estimate_tokens, group))
    for done, length in enumerate(lengths):
        share = room // (len(lengths) - done)
        if length > share:
            return max(_LEAST_RESULT_TOKENS, share)
        room -= length
    return max(_LEAST_RESULT_TOKENS, *lengths, 0)


def _shortened(message: Message, most: int) -> Message:
    """*message*, or one with the beginning and the end of a result of more than *most* tokens."""
    if not isinstance(message, ToolResultMessage):
        return message
    text = message.text
    shown = TextContent(shortened(text, most))
    if shown.text == text:
        return message
    files = [block for block in message.content if not isinstance(block, TextContent)]
    return replace(message, content=(shown, *files))


def shortened(text: str, most_tokens: int) -> str:
    """*text*, or its beginning and its end if it has more than *most_tokens*."""
    found, most_chars = text, len(text)
    for _ in range(_TRIES):  # what is left may be denser than what went
        tokens = text_tokens(found)
        if tokens <= most_tokens:
            break
        most_chars = max(_MARKER_CHARS, most_chars * (most_tokens - _MARKER_TOKENS) // tokens)
        found = shorten(text, most_chars)
    return found


def shorten(text: str, most_chars: int) -> str:
    """*text*, or its beginning and its end if it has more than *most_chars* characters."""
    if len(text) <= most_chars:
        return text
    kept = max(0, most_chars - _MARKER_CHARS)
    end = kept // 3
    marker = f"\n[... {len(text) - kept:,} characters left out ...]\n"
    return f"{text[: kept - end]}{marker}{text[len(text) - end :]}"
