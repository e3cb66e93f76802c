"""What a page did, for the report of a test that fails: its requests, answers, console and text."""

from __future__ import annotations

import asyncio
from typing import Any

_LINES, _CHARS = 200, 2_000


class Story:
    """Listens to a page of Playwright from now on."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._log: list[str] = []
        for event in ("pageerror", "console", "request", "response", "requestfailed"):
            page.on(event, lambda what, event=event: self._log.append(_line(event, what)))

    async def told(self) -> str:
        """What it sent, got and logged, and what it shows now."""
        try:
            async with asyncio.timeout(5):
                shown = await self._page.evaluate("document.body.innerText")
        except Exception as error:  # noqa: BLE001 - a page that is gone hides no failure
            shown = repr(error)
        return "\n".join([self._page.url, *self._log[-_LINES:], "it shows:", shown, ""])


def _line(event: str, what: Any) -> str:
    match event:
        case "request" | "requestfailed":
            text = f"{what.method} {what.url} {what.failure or what.post_data or ''}"
        case "response":
            text = f"{what.status} {what.request.method} {what.url}"
        case "console":
            text = f"{what.type}: {what.text}"
        case _:
            text = str(what)
    return f"{event}: {text}"[:_CHARS]
