"""Models whose every event a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from looopy.errors import LLMError
from looopy.llm.accumulate import Accumulator
from looopy.types.message import Cost, StopReason, Usage

HANGS = object()
"""As a step: say nothing more."""

TEN = Usage(input=6, output=4, total_tokens=10, cost=Cost(input=0.25, output=0.5, total=0.75))


def priced(times: int) -> Usage:
    """What *times* such calls use."""
    used = Usage()
    for _ in range(times):
        used += TEN
    return used


class StepByStep:
    """
    A provider that plays steps: text, a `Usage`, `HANGS`, or an error; at their end it is done.

    A step may also be a function of the `StreamOptions`, for its effect.
    """

    def __init__(
        self, *calls: Sequence[Any], window_tokens: int | None = None, name: str = "steps"
    ) -> None:
        self.name = self.model = name
        self.calls = list(calls)
        self.window_tokens = window_tokens
        self.requests: list[Any] = []
        self.options: list[Any] = []
        self.hanging = asyncio.Event()
        self.left = asyncio.Event()

    async def stream(self, request, options=None):
        """Play the next call."""
        self.requests.append(request)
        self.options.append(options)
        answer = Accumulator(api="steps", provider=self.name, model=self.model)
        for event in answer.start():
            yield event
        stop = StopReason.STOP
        for step in self.calls.pop(0):
            if isinstance(step, StopReason):
                stop = step
            elif isinstance(step, str):
                for event in answer.text_delta(step):
                    yield event
            elif isinstance(step, Usage):
                answer.usage = step
            elif isinstance(step, LLMError):
                for event in answer.error(step):
                    yield event
                return
            elif step is HANGS:
                self.hanging.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.left.set()
            elif isinstance(step, Exception):
                raise step
            elif isinstance(step, Callable):
                step(options)
            else:
                for event in answer.tool_call(0, call_id=f"c{len(self.calls)}", name=step[0]):
                    yield event
        for event in answer.done(stop):
            yield event
