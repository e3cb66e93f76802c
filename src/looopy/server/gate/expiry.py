"""
The end of a stream whose caller's credentials expire.

A request is authenticated once, and a stream may last for days. So a stream ends at the moment at
which its request would be refused, with the problem that the request would get. The turn that it
shows continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import TypeVar

from looopy.server.problems import Problem
from looopy.types.context import AuthContext

_T = TypeVar("_T")


async def while_valid(
    items: AsyncIterator[_T], auth: AuthContext | None
) -> AsyncGenerator[_T, None]:
    """
    Yield *items* until the credentials of *auth* expire, and close them.

    Raises:
        Problem: 401; the credentials have expired.
    """
    try:
        if auth is None or auth.expires_at is None:
            async for item in items:
                yield item
            return
        ends = asyncio.get_running_loop().time() + valid_s(auth)
        while True:
            try:
                async with asyncio.timeout_at(ends):
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not auth.expired():  # one of the items' own
                    raise
                raise Problem(
                    "the credentials of this stream have expired: come again with fresh ones",
                    status=401,
                    code="credentials_expired",
                    headers={"WWW-Authenticate": "Bearer"},
                ) from None
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def valid_s(auth: AuthContext) -> float:
    """How long the credentials of *auth* are still valid, in seconds; infinite if they stay so."""
    if auth.expires_at is None:
        return float("inf")
    return max(0.0, (auth.expires_at - datetime.now(UTC)).total_seconds())
