"""
Signing in to a server over HTTP, by an `httpx2.Auth` such as the SDK's `OAuthClientProvider`.

The requests of a sign-in go where the server points: to its metadata, and to an authorization
server that it names. So looopy checks where each of them goes, and reads its answer up to a limit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import httpx2
from pydantic import ValidationError

from looopy.tools.sources.headers import origin_of
from looopy.tools.sources.mcp.target import Target

_MAX_BYTES = 256 * 1024
_MAX_TEXT = 300


class SignInError(Exception):
    """A sign-in failed; the text shows no answer of the authorization server in full."""


class Fence(httpx2.Auth):
    """
    Runs the flow of *auth* within limits.

    Args:
        auth: As the application gave it.
        target: Decides where its requests may go.
        secret: Called with the value of each `Authorization` that is sent to the server.
    """

    def __init__(self, auth: Any, target: Target, secret: Callable[[str], object]) -> None:
        self._auth = auth
        self._target = target
        self._secret = secret

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """
        The requests of the flow; *request* itself is one of them.

        Raises:
            SignInError: The flow failed, or led to a place that is not allowed.
        """
        flow = self._auth.async_auth_flow(request)
        try:
            sent = await anext(flow)
            while True:
                if sent is request:
                    self._secret(sent.headers.get("authorization", ""))
                else:
                    self._check(sent)
                response = yield sent
                if sent is not request or response.status_code >= 400:
                    _bound(response, strict=sent is not request)
                sent = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (SignInError, httpx2.ConnectError, GeneratorExit):
            raise
        except Exception as error:
            raise SignInError(_text(error)) from error
        finally:
            await flow.aclose()

    def _check(self, request: httpx2.Request) -> None:
        url = str(request.url)
        if not self._target.allows(url):
            scheme, host, port = origin_of(url)
            place = f"{scheme}://{host}:{port}"
            raise SignInError(f"it leads to {place}: allow it by origins=[...], if it is right")
        request.headers["accept-encoding"] = "identity"  # a small body could be a large one
        timeout = httpx2.Timeout(self._target.connect_timeout_s)
        request.extensions.setdefault("timeout", timeout.as_dict())


def _text(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its text would show the tokens
        return f"an answer is not a valid {error.title}"
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MAX_TEXT]


def _bound(response: httpx2.Response, *, strict: bool) -> None:
    if strict and response.headers.get("content-encoding"):
        raise SignInError("an answer is compressed, although it must not be")
    response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"an answer is longer than {_MAX_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
