"""
What the model is shown of a history that grows: chosen and rendered as messages come.

A turn must not cost more because much was said before it. So what `looopy.history` chooses and
`looopy.llm.render` makes valid is kept from one model call to the next, and a call looks only at
the messages that are new. Whatever else changes (another model, other limits, a history that was
replaced or shortened, a cut that moved) is answered by beginning anew: what comes out always
equals `render(visible(history))`.
"""

from __future__ import annotations

from collections.abc import Sequence

from looopy.history import Limits, Window, visible
from looopy.llm.render import Rendering, render
from looopy.types.context import LoopConfig
from looopy.types.message import Message


class View:
    """
    One history as the model sees it.

    Contract: between two calls of `of` the history only grows at its end, or `drop` is called.
    """

    __slots__ = ("_cut", "_for", "_last", "_read", "_rendering", "_window")

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Forget everything: the history has become another one."""
        self._for: tuple[Limits, str, str] | None = None
        self._window: Window | None = None
        self._rendering: Rendering | None = None  # of the history from `_cut` on
        self._cut = 0
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
        What to send of *history*: `visible`, then `render`, at the cost of what is new.

        Returns:
            Messages in a sequence that does not change when the history goes on.
        """
        limits = Limits.of(config, window_tokens)
        reader = (limits, provider, model)
        window = self._window
        if window is None or self._for != reader or not self._continued_by(history):
            self.drop()
            window = self._window = Window(limits)
        self._for = None  # what fails half-way is begun anew
        new = history[self._read :]
        window.extend(new)
        cut = window.cut()
        if cut is None:
            # The newest question alone leads to more than fits.
            self._rendering = None
            shown: Sequence[Message] = render(
                visible(history, config, window_tokens=window_tokens),
                provider=provider,
                model=model,
            )
        else:
            rendering = self._rendering
            if rendering is None or cut != self._cut:
                rendering = self._rendering = Rendering(provider=provider, model=model)
                self._cut = cut
                rendering.extend(history[cut:])
            else:
                rendering.extend(new)
            shown = rendering.shown()
        self._read = len(history)
        self._last = history[-1] if history else None
        self._for = reader
        return shown

    def _continued_by(self, history: list[Message]) -> bool:
        """Whether *history* may go on from what was read: a guard, where `drop` was forgotten."""
        read = self._read
        return read == 0 or (len(history) >= read and history[read - 1] is self._last)
