"""Await a write to its end, whatever happens to the one who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def settle(work: Awaitable[T], cancelled: Callable[[], object]) -> T:
    """
    Await *work* to its end whatever happens to this task; *cancelled* is told of a cancellation
    meanwhile.

    A commit whose caller went away is still a commit: its outcome has to be known before anything
    else.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled()
        except Exception:  # noqa: BLE001 - the work's own failure: result() raises it below
            break
    return task.result()
