"""
One call to the child process: send a prompt, read the answer.

A grammar held the model to JSON. Here that JSON becomes the stream events that any other provider
would give: text as it grows, or a tool call once it is whole. The function that makes the call
itself is passed in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from looopy.errors import InvalidLLMResponse, LLMUnavailable
from looopy.llm.accumulate import Accumulator
from looopy.llm.local.jsonstream import Answer, AnswerReader
from looopy.llm.local.protocol import Prompt
from looopy.llm.provider import LLMProvider
from looopy.types.message import AssistantMessage, StopReason
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_MAX_TOKENS = 1024
# The child's server closes a kept connection without warning, just when it is used again.
_HEADERS = {"Connection": "close"}
_GRAMMAR_WORDS = ("grammar", "json schema", "$ref")


class Call:
    """
    One call, for one answer.

    Args:
        answer: Collects the answer as it grows.
        prompt: The prompt for the model.
        options: The caller's; options that the prompt already contains are left out.
    """

    def __init__(self, answer: Accumulator, prompt: Prompt, options: StreamOptions) -> None:
        self._answer = answer
        self._reader = AnswerReader() if prompt.speaks_json else None
        self._refused = ""  # why the answer is not JSON
        self._may_ask_again = prompt.speaks_json and not prompt.loose
        self._request = LLMRequest(messages=prompt.messages, system_prompt=prompt.system_prompt)
        self._options = replace(
            options,
            # Measured at 0: a small model that may choose freely chooses badly.
            temperature=0.0 if options.temperature is None else options.temperature,
            max_tokens=options.max_tokens or _MAX_TOKENS,
            output_schema=prompt.schema,
            tool_choice=None,
            thinking_level=None,
            thinking_budgets=None,
            api_key=None,
            headers=_HEADERS,
        )

    async def events(self, caller: LLMProvider) -> AsyncGenerator[StreamEvent, None]:
        """
        Make the call.

        Ends without an answer when the server can make no grammar of the tools' schemas: ask again
        loosely.
        """
        heard = cast(
            "AsyncGenerator[StreamEvent, None]", caller.stream(self._request, self._options)
        )
        async with aclosing(heard):
            async for event in heard:
                if event.type == "error" and self._refused_grammar(event.error):
                    return
                for ours in self._translate(event):
                    yield ours

    def _refused_grammar(self, error: Exception | None) -> bool:
        text = str(error).lower()
        return self._may_ask_again and any(word in text for word in _GRAMMAR_WORDS)

    def _translate(self, event: StreamEvent) -> tuple[StreamEvent, ...]:
        if event.type == "start":
            return self._answer.start()
        if event.type == "thinking_delta":
            return self._answer.thinking_delta(event.delta)
        if event.type == "text_delta":
            return self._text(event.delta)
        if event.type == "done" and event.message is not None:
            return self._done(event.message)
        if event.type == "error":
            if event.message is not None:
                self._answer.usage = event.message.usage
            error = event.error or LLMUnavailable("the call failed", provider="local")
            return self._answer.error(error)
        return ()

    def _text(self, delta: str) -> tuple[StreamEvent, ...]:
        if self._reader is None:
            return self._answer.text_delta(delta)
        try:
            return self._answer.text_delta(self._reader.feed(delta))
        except ValueError as error:
            self._refused = str(error)
            return ()

    def _done(self, message: AssistantMessage) -> tuple[StreamEvent, ...]:
        if self._answer.logprobs is not None:
            self._answer.logprobs.keep(message.logprobs)
        if self._reader is None:
            return self._answer.done(message.stop_reason, message.usage)
        self._answer.usage = message.usage
        if self._refused:
            return self._answer.error(self._invalid(self._refused))
        try:
            said = self._reader.finish()
        except ValueError as error:
            return self._answer.error(self._invalid(str(error)))
        return self._finish(said, message.stop_reason)

    def _finish(self, said: Answer, stop_reason: StopReason) -> tuple[StreamEvent, ...]:
        if said.kind == "call" and not said.complete:
            return self._answer.error(
                self._invalid("the tool call was cut off: allow more tokens (max_tokens)")
            )
        if said.kind == "unknown" and stop_reason != StopReason.LENGTH:
            return self._answer.error(self._invalid("the answer broke off"))
        if said.kind == "call":
            called = self._answer.tool_call(0, name=said.tool_name, arguments_delta=said.arguments)
            return (*called, *self._answer.done(StopReason.TOOL_USE))
        return (*self._answer.text_delta(said.text), *self._answer.done(stop_reason))

    def _invalid(self, why: str) -> InvalidLLMResponse:
        return InvalidLLMResponse(
            f"the local model did not answer as asked: {why}",
            provider="local",
            model=self._answer.model,
        )
