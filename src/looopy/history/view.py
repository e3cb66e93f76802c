"""
What the model is shown of a history that grows: chosen and rendered as messages come.

A turn must not cost more because much was said before it. So what `looopy.history.window` chooses
and `looopy.llm.render` makes valid is kept from one model call to the next, and a call looks only
at the messages that are new. Whatever else changes (another model, other limits, a history that was
replaced or shortened, a cut that moved) is answered by beginning anew: what comes out always equals
`render(folded(history))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from looopy.history.window import Backlog, Limits, Window, folded
from looopy.llm.render import Rendering, render
from looopy.types.config import LoopConfig
from looopy.types.message import Message
from looopy.types.summary import find_fold, is_summary, shown_as


class View:
    """
    One history as the model sees it.

    Contract: between two calls of `of` the history only grows at its end, or `drop` is called.

    Attributes:
        told: Whether somebody was warned that the model is not shown all.
        offset: How many messages of the log come before the history. It changes together with the
            beginning of the history.
        backlog: Makes what reads back beyond the history; `None`: it is the whole log.
    """

    __slots__ = (
        "_cut",
        "_for",
        "_last",
        "_read",
        "_rendering",
        "_start",
        "_summary",
        "_window",
        "backlog",
        "offset",
        "told",
    )

    def __init__(self) -> None:
        self.told = False
        self.offset = 0
        self.backlog: Callable[[], Backlog] | None = None
        self.drop()

    def drop(self) -> None:
        """Forget everything: the history has become another one."""
        self._for: tuple[Limits, str, str, int] | None = None
        self._window: Window | None = None
        self._rendering: Rendering | None = None  # of the history from `_cut` on
        self._summary: Message | None = None  # what is shown before all else
        self._start = 0  # index from which on the log is shown beside it
        self._cut = 0  # counted from there
        self._read = 0  # how many messages of the history were looked at
        self._last: Message | None = None  # the last one of them

    def of(
        self,
        history: list[Message],
        config: LoopConfig,
        *,
        provider: str,
        model: str,
        window_tokens: int | None = None,
    ) -> Sequence[Message]:
        """
        What to send of *history*: `folded`, then `render`, at the cost of what is new.

        Returns:
            Messages in a sequence that does not change when the history goes on.
        """
        limits = Limits.of(config, window_tokens)
        reader = (limits, provider, model, self.offset)
        window = self._window
        new: Sequence[Message] = history[self._read :]
        if (
            window is None
            or self._for != reader
            or not self._continued_by(history)
            or any(map(is_summary, new))
        ):
            self.drop()
            window, new = self._begin(history, limits)
        self._for = None  # what fails half-way is begun anew
        window.extend(new)
        cut = window.cut()
        if cut is None:
            # The newest question alone leads to more than fits.
            self._rendering = None
            shown: Sequence[Message] = render(
                folded(history, config, window_tokens=window_tokens, offset=self.offset),
                provider=provider,
                model=model,
            )
        else:
            rendering = self._rendering
            if rendering is None or cut != self._cut:
                rendering = self._rendering = Rendering(provider=provider, model=model)
                self._cut = cut
                if self._summary is not None:
                    rendering.extend([self._summary])
                rendering.extend(history[self._start + cut :])
            else:
                rendering.extend(new)
            shown = rendering.shown()
        self._read = len(history)
        self._last = history[-1] if history else None
        self._for = reader
        return shown

    def _begin(self, history: list[Message], limits: Limits) -> tuple[Window, Sequence[Message]]:
        """Begin anew, behind the newest summary: a window, and what it has to look at."""
        fold = find_fold(history)
        if fold is not None:
            self._summary, self._start = shown_as(fold.summary), fold.start
            limits = limits.beside(self._summary)
        self._window = Window(limits, self.offset + self._start)
        return self._window, history[self._start :]

    @property
    def leaves_out(self) -> bool:
        """Whether the limits keep the model from seeing all that no summary speaks for."""
        return self._window is not None and (self._rendering is None or self._cut > 0)

    def _continued_by(self, history: list[Message]) -> bool:
        """Whether *history* may go on from what was read: a guard, where `drop` was forgotten."""
        read = self._read
        return read == 0 or (len(history) >= read and history[read - 1] is self._last)
