"""Let time pass for the event loop of a test, instead of waiting for it."""

from __future__ import annotations

import asyncio


def advance(seconds: float) -> None:
    """
    Let *seconds* pass for the running event loop, before it looks at its timers again.

    A limit of a minute is then over at the moment that a test chooses, and not one that a busy
    machine chooses. The loop keeps the lead: it is the test's own.
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.call_soon(setattr, loop, "time", lambda: time() + seconds)
