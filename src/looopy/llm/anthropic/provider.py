"""
Anthropic's models, through the official SDK.

Requests are written in `looopy.llm.anthropic.format`, answers are read in
`looopy.llm.anthropic.events`. The client, the key, the waits and the errors are the same for every
provider over an SDK, in `looopy.llm.sdk`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from types import ModuleType
from typing import TYPE_CHECKING, Any

from looopy.errors import ConfigurationError, InvalidLLMResponse, UnknownModel
from looopy.llm.accumulate import Accumulator
from looopy.llm.anthropic.events import EventReader
from looopy.llm.anthropic.format import API, PROVIDER, CacheTTL, to_body, to_headers
from looopy.llm.anthropic.models import abilities_of
from looopy.llm.dialects import Dialect, dialect_of
from looopy.llm.options import left_out
from looopy.llm.prices import Prices
from looopy.llm.sdk import ApiKey, Call, SDKProvider
from looopy.llm.strict import has_strict
from looopy.types.constructors import suggesting
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

KEY_VARIABLE = "ANTHROPIC_API_KEY"
_SAMPLING = ("temperature", "top_p", "top_k")
_AWS_FRAMES = "application/vnd.amazon.eventstream"
# The clients of clouds would name Anthropic's own newest version, which models there do not take:
# https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-claude.html
# https://docs.cloud.google.com/vertex-ai/generative-ai/docs/partner-models/claude/use-claude
_VERSIONS = {
    "AsyncAnthropicBedrock": "bedrock-2023-05-31",
    "AsyncAnthropicVertex": "vertex-2023-10-16",
}


@suggesting
class AnthropicProvider(SDKProvider):
    """
    A model of Anthropic's Messages API. See `LLMProvider` for the contract.

    Args:
        model: The model's name, such as `"claude-sonnet-5-5"`.
        api_key: A key, or a function (also a coroutine function) called for one before each call.
            `StreamOptions.api_key` wins over it. `None`: `ANTHROPIC_API_KEY`, read before each
            call. `""`: every call brings its own.
        base_url: Another server that speaks this API; needs no key. `None`: `ANTHROPIC_BASE_URL`,
            or Anthropic itself.
        client: An `anthropic.AsyncAnthropic` of yours, used as it is and never closed; give it
            `max_retries=0`. The clients for other clouds do as well.
        cache_ttl: How long the API keeps the beginning of a conversation: `"5m"`, `"1h"`, or `None`
            not to ask for it.
        window_tokens: The size of the model's window; `None`: the known size for *model*.
        extra_body: Fields added to every request's body, over ours; `tools` and `include` come
            after ours.
        price_as: The vendor whose prices apply, as genai-prices names it, such as `"anthropic"`
            behind a gateway; `""`: the vendor at the called address, if there is one.
        dialect: The rules of the server for tools; `None`: those of Anthropic's own.
        idle_timeout_s: The longest silence within an answer, unless the call sets it. Before its
            first word a model may think three times as long.
        connect_timeout_s: The longest wait for a connection, unless the call sets it.

    Raises:
        UnknownModel: *model* is empty.
        ConfigurationError: *cache_ttl* or *dialect* has another value.
        MissingExtra: The SDK is not installed.
        MissingKey: The key is missing, and so is a base URL that might need no key.
    """

    package = "anthropic"
    url_hint = "the base URL is without /v1"
    base_url_variable = "ANTHROPIC_BASE_URL"
    official_url = "https://api.anthropic.com"

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: AsyncAnthropic | None = None,
        cache_ttl: CacheTTL | None = "5m",
        window_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        price_as: str = "",
        dialect: Dialect | None = None,
        idle_timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        if not model:
            raise UnknownModel("name the model, such as AnthropicProvider('claude-sonnet-5-5')")
        super().__init__(
            model,
            name=PROVIDER,
            api_key=api_key,
            # Anthropic's key must not go to a server that was named explicitly.
            key_variable="" if base_url or client else KEY_VARIABLE,
            base_url=base_url,
            client=client,
            window_tokens=window_tokens or abilities_of(model).window_tokens,
            extra_body=extra_body,
            price_as=price_as,
            dialect=dialect,
            idle_timeout_s=idle_timeout_s,
            connect_timeout_s=connect_timeout_s,
        )
        if cache_ttl not in ("5m", "1h", None):
            raise ConfigurationError(f"cache_ttl is '5m', '1h' or None, not {cache_ttl!r}")
        self._cache_ttl: CacheTTL | None = cache_ttl

    @property
    def structured_output(self) -> bool:
        """True if the model can be held to an output schema; the earlier ones cannot."""
        return abilities_of(self.model).schemas

    def enforces(self, schema: Mapping[str, Any]) -> bool:
        """True if the API takes *schema*: not one with open objects, or that refers to itself."""
        return has_strict(schema, every=False, bounds=False)

    def _dialect_of(self, model: str) -> Dialect:
        return self._dialect or dialect_of("", PROVIDER, model)

    @property
    def _api(self) -> str:
        return API

    @property
    def _key_hint(self) -> str:
        return f"check {KEY_VARIABLE}"

    def _module(self) -> ModuleType:
        import anthropic

        return anthropic

    def _make_client(self, **common: Any) -> AsyncAnthropic:
        import anthropic

        client = anthropic.AsyncAnthropic(**common)
        client.messages.with_streaming_response  # noqa: B018 - named, it is loaded
        return client

    def _to_body(
        self, request: LLMRequest, options: StreamOptions, model: str
    ) -> tuple[dict[str, Any], Sequence[int]]:
        return to_body(
            request,
            options,
            model=model,
            abilities=abilities_of(model),
            cache_ttl=self._cache_ttl,
        )

    def _suited(self, body: dict[str, Any], options: StreamOptions, model: str) -> dict[str, Any]:
        if abilities_of(model).temperature:
            return body
        for name in [one for one in _SAMPLING if one in body]:
            left_out(options, name, f"{model} takes no {name}")
            body = {key: value for key, value in body.items() if key != name}
        return body

    def _reader(self, answer: Accumulator, call: Call) -> EventReader:
        return EventReader(answer, sources=call.sources, secrets=(call.key,))

    def _end(self, reader: EventReader, call: Call) -> Sequence[StreamEvent]:  # noqa: ARG002 - one sign is enough
        return reader.end()

    def _prices(self, model: str) -> Prices:
        return Prices(model, self._price_as, self._url, long_cache=self._cache_ttl == "1h")

    async def _open(
        self, stack: AsyncExitStack, call: Call, body: dict[str, Any], options: StreamOptions
    ) -> Any:
        """Send the request."""
        sdk: AsyncAnthropic = await self._sdk()
        if call.key:
            sdk = sdk.with_options(api_key=call.key)  # shares the connections
        headers = to_headers(body, options.headers)
        if call.key and not self._official:
            headers.setdefault("x-api-key", call.key)  # where other servers of this API look for it
        # The SDK walks its typed arguments, message by message; this body it sends as it is, over
        # theirs, and ignores a model that it thinks old.
        model = ""
        if version := _version_at(sdk):  # these clients move model and stream into the address
            model = body["model"]
            body = {k: v for k, v in body.items() if k not in ("model", "stream")}
            body.setdefault("anthropic_version", version)
        return await stack.enter_async_context(
            sdk.messages.with_streaming_response.create(
                model=model,
                messages=[],
                max_tokens=1,
                stream=True,
                extra_headers=headers,
                extra_body=body,
                **self._waits(call, options),
            )
        )

    async def _texts(
        self, kind: str, received: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[Sequence[str], None]:
        """As every provider's; the frames of Amazon Bedrock are decoded by its own client."""
        if kind != _AWS_FRAMES:
            async with aclosing(super()._texts(kind, received)) as texts:
                async for some in texts:
                    yield some
            return
        sdk: Any = await self._sdk()
        try:
            decoder = sdk._make_sse_decoder()  # noqa: SLF001 - no public one for raw bytes
            async for frame in decoder.aiter_bytes(received):
                yield (frame.data,)
        except Exception as error:
            if not type(error).__module__.startswith("botocore"):
                raise
            raise InvalidLLMResponse(  # a checksum or a length is wrong
                f"{self._where} sent a damaged frame: {error}",
                provider=self.name,
                model=self.model,
                retryable=True,
            ) from None


def _version_at(client: object) -> str | None:
    """The version of the API at the cloud of *client*; `None` for Anthropic itself."""
    names = (kind.__name__ for kind in type(client).__mro__)
    return next((_VERSIONS[name] for name in names if name in _VERSIONS), None)
