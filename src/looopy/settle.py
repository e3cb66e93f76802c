"""Await a write to its end, whatever happens to the one who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def settle(work: Awaitable[T], cancelled: Callable[[], object] | None = None) -> T:
    """
    Await *work* to its end whatever happens to this task.

    A commit whose caller went away is still a commit: its outcome has to be known before anything
    else.

    Args:
        cancelled: Told of a cancellation meanwhile, which ends here. `None`: it is raised once the
            work is over, as whoever cancelled (a timeout, a task group) waits for that.
    """
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.cancelled():
                raise
            if cancelled is None:
                interrupted = exc
            else:
                cancelled()
        except Exception:  # noqa: BLE001 - the work's own failure: result() raises it below
            break
    if interrupted is not None:
        raise interrupted from (None if task.cancelled() else task.exception())
    return task.result()
