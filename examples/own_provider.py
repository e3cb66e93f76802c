"""
Write your own provider: an object with one method, `stream`.

It yields pi's events and never raises. The last event is `done`, or `error` with an `LLMError`.
The loop retries `retryable` errors, and shows each retry to the user.
"""

import asyncio
from collections.abc import AsyncIterator

from looopy import (
    Agent,
    AssistantMessage,
    LoopConfig,
    RetryPolicy,
    StatusChange,
    StopReason,
    TextContent,
    UserMessage,
)
from looopy.errors import LLMUnavailable
from looopy.llm import LLMRequest, StreamEvent, StreamOptions


class Echo:
    """Repeats the user's message, word by word; its first call fails."""

    calls = 0

    async def stream(
        self,
        request: LLMRequest,
        options: StreamOptions,  # noqa: ARG002 - an echo has no options
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events."""
        self.calls += 1
        yield StreamEvent("start")
        if self.calls == 1:
            failed = AssistantMessage(stop_reason=StopReason.ERROR, error_message="waking up")
            yield StreamEvent("error", message=failed, error=LLMUnavailable("waking up"))
            return
        said = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
        for word in said.split():
            yield StreamEvent("text_delta", delta=word + " ")
        yield StreamEvent("done", message=AssistantMessage((TextContent(said),)))


async def main() -> None:
    """Run one turn: its first model call fails, and the loop retries it."""
    config = LoopConfig(retry=RetryPolicy(base_s=0.01))
    async with Agent("echo", llm_provider=Echo(), loop_config=config) as agent:
        turn = agent.execute_turn("hello out there")
        async for event in turn:
            if isinstance(event, StatusChange):
                print(f"attempt {event.attempt}: {event.reason}")
        print((await turn).text)


asyncio.run(main())
