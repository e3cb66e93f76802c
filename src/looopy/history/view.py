"""
The model's view of a growing history: chosen and rendered as messages come.

A turn must not cost more because its history is longer. So the view keeps the choice of
`looopy.history.window` and the result of `looopy.llm.render` from one model call to the next, and
each call processes only the new messages. After any other change (another model, other limits, a
history that was replaced or shortened, a cut that moved) the view starts from scratch: its result
always equals `render(folded(history))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from looopy.history.sent import Sent
from looopy.history.window import Backlog, Limits, Window, folded
from looopy.llm.render import Rendering, render
from looopy.types.config import LoopConfig
from looopy.types.message import CustomMessage, Message
from looopy.types.summary import find_fold, is_summary, shown_as


class View:
    """
    One history as the model sees it.

    Contract: between two calls of `of` the history only grows at its end, or `drop` is called.

    Attributes:
        history: The messages, oldest first; the turn that runs adds to it.
        begin: How many messages of the log come before those that `of` or `chosen` has returned.
        summary: The summary that they begin with, or `None`.
        sent: The beginning of the last request.
        told: True once a warning said that the model does not see everything.
        offset: How many messages of the log come before the history. It changes together with the
            beginning of the history.
        backlog: Makes a reader for the messages before the history; `None`: the history is the
            whole log.
    """

    __slots__ = (
        "_cut",
        "_for",
        "_last",
        "_read",
        "_rendering",
        "_start",
        "_window",
        "backlog",
        "begin",
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
        self.sent = Sent()
        self.backlog: Callable[[], Backlog] | None = None
        self.drop()

    def drop(self) -> None:
        """Forget everything: the history has become another one."""
        self._for: tuple[Limits, str, str, int] | None = None
        self._window: Window | None = None
        self._rendering: Rendering | None = None  # of the history from `_cut` on
        self.summary: Message | None = None  # shown before everything else
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
        history, limits = self.history, Limits.of(config, window_tokens)
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
        self._for = None  # after a failure half-way it starts from scratch
        window.extend(new)
        cut = window.cut()
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
        self._read = len(history)
        self._last = history[-1] if history else None
        self._for = reader
        return shown

    def chosen(self, config: LoopConfig, window_tokens: int | None) -> list[Message]:
        """The messages to send, not rendered, at the cost of all of them."""
        history = self.history
        chosen = folded(history, config, window_tokens=window_tokens, offset=self.offset)
        fold = find_fold(history)
        self.summary = None if fold is None else shown_as(fold.summary)
        self.begin = self.offset + len(history) - len(chosen) + (fold is not None)
        return chosen

    def _begin(self, limits: Limits) -> tuple[Window, Sequence[Message]]:
        """Start from scratch, behind the newest summary: a window, and the messages for it."""
        fold = find_fold(self.history)
        if fold is not None:
            self.summary, self._start = shown_as(fold.summary), fold.start
            limits = limits.beside(self.summary)
        self._window = Window(limits, self.offset + self._start)
        return self._window, self.history[self._start :]

    @property
    def leaves_out(self) -> bool:
        """True if the limits hide messages from the model that no summary covers."""
        return self._window is not None and (self._rendering is None or self._cut > 0)

    def _is_continued(self) -> bool:
        """True if the processed part may still be there: a guard against a forgotten `drop`."""
        read = self._read
        return read == 0 or (len(self.history) >= read and self.history[read - 1] is self._last)
