"""
The contract of a provider, which answers an `LLMRequest`.

A provider needs one method. The loop knows nothing of transports, credentials or wire formats; a
provider knows nothing of turns, tools that run, or stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from looopy.types.request import LLMRequest, StreamEvent, StreamOptions


@runtime_checkable
class LLMProvider(Protocol):
    """
    Something that answers requests with a stream of events.

    Contract:
        - `stream` never raises for a failed request: the last event is `done` or `error`, and
        carries
          the final message (on `error` with stop reason `error`, the partial content kept). The
          `error` event's `error` is an `LLMError` whose `retryable` says whether trying again may
          help.
        - Cancelling the task that reads the stream, or closing the iterator, closes the connection.
        - A provider holds no state between calls, so one may serve many agents at once.
        - The SDK's own retries are off: the loop retries, visibly.

    Optional attributes, read with `getattr`: `name` (such as `"openai"`), `model` (default model
    name), `window_tokens` (what the model's window holds, where that is known; the history is cut
    to fit it), `structured_output` (true: `StreamOptions.output_schema` is kept to, beside tools
    too), `knows_cost` (whether it is known what calls cost; false: an agent with a budget of money
    does not start), `asks_for_keys` (true: it calls several others, and gets `StreamOptions.key_of`
    rather than a key), and the coroutines `prepare()`, which loads what takes time before the first
    call, and `aclose()`, which frees connections and child processes.
    """

    def stream(self, request: LLMRequest, options: StreamOptions) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events."""
        ...
