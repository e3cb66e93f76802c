"""
The model's view of a growing history: chosen and rendered as messages come.

A turn must not cost more because its history is longer. So the view keeps the choice of
`looopy.history.window` and the result of `looopy.llm.render` from one model call to the next, and
each call processes only the new messages. After any other change (another model, other limits, a
history that was replaced or shortened, a cut that moved) the view starts from scratch: its result
always equals `render(folded(history))`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from looopy.history.sent import Sent
from looopy.history.tokens import Counts, estimate_tokens, spec_tokens, text_tokens
from looopy.history.window import Backlog, Limits, Window, folded
from looopy.llm.render import Rendering, render
from looopy.types.config import LoopConfig
from looopy.types.message import CustomMessage, Message, Usage
from looopy.types.request import ToolSpec
from looopy.types.summary import find_fold, is_summary, shown_as


class View:
    """
    One history as the model sees it.

    Contract: between two calls of `of` the history only grows at its end, or `drop` is called.

    Attributes:
        history: The messages, oldest first; the turn that runs adds to it.
        begin: How many messages of the log come before the ones that `of` or `chosen` returned;
            rewound ones do not count, here and in `offset`.
        summary: The summary that they begin with, or `None`.
        sent: The beginning of the last request.
        told: True once a warning reported that the model does not see everything.
        offset: How many messages of the log come before the history. It changes together with the
            beginning of the history.
        estimated: Estimated tokens of the last request; 0 if its messages were not `of`'s.
        fixed: Those of its prompt and its tools.
        counts: What the model's own tokenizer counted; `None`: it has not been asked.
        backlog: Makes a reader for the messages before the history; `None`: the history is the
            whole log.
    """

    __slots__ = (
        "_counted",
        "_cut",
        "_fixed_for",
        "_for",
        "_last",
        "_limited_by",
        "_limits",
        "_read",
        "_rendering",
        "_start",
        "_summary_tokens",
        "_window",
        "backlog",
        "begin",
        "counts",
        "estimated",
        "fixed",
        "history",
        "offset",
        "sent",
        "summary",
        "told",
    )

    def __init__(self, history: list[Message]) -> None:
        self.history = history
        self.told = False
        self.offset = 0
        self.begin = 0
        self.estimated = self.fixed = 0
        self._fixed_for: tuple[str, Sequence[ToolSpec]] = "", ()
        self._limited_by: tuple[Any, ...] = ()
        self._limits = Limits(None, None)  # for those
        self.sent = Sent()
        self.counts: Counts | None = None
        self.backlog: Callable[[], Backlog] | None = None
        self.drop()

    def drop(self) -> None:
        """Forget everything: the history has become another one."""
        self._counted = 0  # how many messages of the history have been
        self._for: tuple[Limits, str, str, int] | None = None
        self._window: Window | None = None
        self._rendering: Rendering | None = None  # of the history from `_cut` on
        self.summary: Message | None = None  # shown before everything else
        self._summary_tokens = 0
        self._start = 0  # index from which on the log is shown beside it
        self._cut = 0  # counted from there
        self._read = 0  # how many messages of the history were processed
        self._last: Message | None = None  # the last one of them

    def of(
        self, config: LoopConfig, *, provider: str, model: str, window_tokens: int | None = None
    ) -> Sequence[Message]:
        """
        The messages to send: the history `folded`, then `render`, at the cost of the new ones.

        Returns:
            Messages in a sequence that does not change when the history grows.
        """
        self.sent.to(provider, model)
        history, limits = self.history, self.limits(config, window_tokens)
        reader = (limits, provider, model, self.offset)
        window = self._window
        new: Sequence[Message] = history[self._read :]
        if (
            window is None
            or self._for != reader
            or not self._is_continued()
            or any(isinstance(message, CustomMessage) and is_summary(message) for message in new)
        ):
            self.drop()
            window, new = self._begin(limits)
            self._window = window
        self._for = None  # after a failure half-way it starts from scratch
        window.extend(new)
        cut = window.cut()
        scale = self.sent.scale
        if (
            scale.used != scale.wanted
            and not self._is_counted
            and self._rescales(window, cut, self.limits(config, window_tokens, scale.wanted))
        ):
            scale.adopt()
            return self.of(config, provider=provider, model=model, window_tokens=window_tokens)
        self.estimated = 0
        if cut is None:
            # The newest question alone leads to more than fits.
            self._rendering = None
            chosen = self.chosen(config, window_tokens)
            shown: Sequence[Message] = render(chosen, provider=provider, model=model)
        else:
            rendering = self._rendering
            if rendering is None or cut != self._cut:
                rendering = self._rendering = Rendering(provider=provider, model=model)
                self._cut = cut
                if self.summary is not None:
                    rendering.extend([self.summary])
                rendering.extend(history[self._start + cut :])
            else:
                rendering.extend(new)
            shown = rendering.shown()
            self.begin = self.offset + self._start + cut
            if limits.tokens is not None:
                self.estimated = window.shown_tokens + self.fixed + self._summary_tokens
        self._read = len(history)
        self._last = history[-1] if history else None
        self._for = reader
        return shown

    def chosen(self, config: LoopConfig, window_tokens: int | None) -> list[Message]:
        """The messages to send, not rendered, at the cost of all of them."""
        history, limits = self.history, self.limits(config, window_tokens)
        chosen = folded(history, config, limits=limits, offset=self.offset)
        fold = find_fold(history)
        self.summary = None if fold is None else shown_as(fold.summary)
        self.begin = self.offset + len(history) - len(chosen) + (fold is not None)
        return chosen

    def limits(
        self, config: LoopConfig, window_tokens: int | None, scale: int | None = None
    ) -> Limits:
        """The limits of the next request, by the scale in use or by another one."""
        counts, weigh = self.counts, estimate_tokens
        if counts is not None and not counts.failed:
            scale, weigh = 100, counts.weigh
        wanted = (config, window_tokens, scale or self.sent.scale.used, self.fixed, weigh)
        if wanted != self._limited_by:
            self._limits, self._limited_by = Limits.of(*wanted), wanted
        return self._limits

    async def count(
        self,
        counter: Callable[[Sequence[str]], Awaitable[Any]],
        prepare: Callable[[], Awaitable[object]] | None,
    ) -> None:
        """
        Have the messages counted that are new, for the limits of the next request.

        Args:
            prepare: Loads what the counter needs. It has the time that it takes: the model call
                would wait for the same.

        Raises:
            Exception: The counter failed, for the first time: all is estimated from now on.
        """
        counts = self.counts = self.counts or Counts()
        new = self.history[self._counted :]
        if counts.failed or not new:
            return
        try:
            if prepare is not None:
                await prepare()
            await counts.add(new, counter)
        except BaseException:
            counts.failed = True
            raise
        counts.keep(self.history)
        self._counted += len(new)

    @property
    def _is_counted(self) -> bool:
        return self.counts is not None and not self.counts.failed

    def goes_with(self, system_prompt: str, tools: Sequence[ToolSpec]) -> None:
        """Weigh what the next request has beside the history."""
        beside = (system_prompt, tools)
        if beside != self._fixed_for:
            self._fixed_for = beside
            self.fixed = text_tokens(system_prompt) + sum(map(spec_tokens, tools))

    def measure(self, usage: Usage) -> None:
        """Compare the estimate of the last request with the usage that was reported for it."""
        if self.estimated:
            self.sent.scale.measure(
                self.estimated, usage.input + usage.cache_read + usage.cache_write
            )

    def _rescales(self, window: Window, cut: int | None, limits: Limits) -> bool:
        """
        True if the newest measurement may change the limits to *limits* now.

        The beginning of the last request must not change because of it, unless the messages since
        do not fit; and it must not move back.
        """
        if cut is None or limits.tokens is None:
            return True
        if window.shown_tokens + self._summary_tokens > limits.tokens or window.is_whole:
            return True
        before = max(0, self.sent.begin - self.offset - self._start)
        if cut <= before:
            return False
        trial, new = self._begin(limits)
        trial.extend(new)
        moved = trial.cut()
        return moved is not None and moved >= before and not trial.is_whole

    def _begin(self, limits: Limits) -> tuple[Window, Sequence[Message]]:
        """Start from scratch, after the newest summary: a window, and the messages for it."""
        fold = find_fold(self.history)
        self._summary_tokens = 0
        if fold is not None:
            self.summary, self._start = shown_as(fold.summary), fold.start
            self._summary_tokens = limits.weigh(self.summary)
            limits = limits.beside(self.summary)
        window = Window(limits, self.offset + self._start)
        return window, self.history[self._start :]

    @property
    def leaves_out(self) -> bool:
        """True if the limits hide messages from the model that no summary covers."""
        return self._window is not None and (self._rendering is None or self._cut > 0)

    def _is_continued(self) -> bool:
        """True if the processed part may still be there: a guard against a forgotten `drop`."""
        read = self._read
        return read == 0 or (len(self.history) >= read and self.history[read - 1] is self._last)
