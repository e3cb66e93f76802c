"""The page of `looopy serve` in a browser: its server, its tab, and what no page may do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from tests.web.conftest import missing
from tests.web.served import TOKEN, free_port
from tests.web.stories import Story

from looopy import Stores
from looopy.server import AgentHost, create_app, ui_page
from looopy.server.gate.auth import LocalToken

ROOT = Path(__file__).parents[2]
NOTHING_SERIOUS = """async () => {
    const found = await axe.run(document, {resultTypes: ["violations"]});
    return found.violations
        .filter((one) => ["serious", "critical"].includes(one.impact))
        .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`);
}"""

BEYOND_THE_SCREEN = """() =>
    [...document.querySelectorAll("a, button, input, select, summary, textarea")]
        .filter((one) => one.checkVisibility() && !one.closest(".skip, .scroll, .picture-scroll"))
        .filter((one) => {
            const {left, right} = one.getBoundingClientRect();
            return left < 0 || right > innerWidth;
        })
        .map((one) => one.outerHTML)"""


@asynccontextmanager
async def served_here(build: Any, stores: Stores) -> AsyncIterator[tuple[str, AgentHost]]:
    """The address of a server in this process, and its host."""
    port = free_port()
    async with AgentHost(build, stores) as host:
        app = create_app(host, authenticate=LocalToken(TOKEN), protocols=[ui_page])
        config = uvicorn.Config(app, port=port, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        try:
            yield f"http://127.0.0.1:{port}", host
        finally:
            server.should_exit = True
            server.force_exit = True
            await serving


class Page:
    """The page in a tab, which reports what it should not do."""

    def __init__(self, tab: Any, url: str, axe: Path) -> None:
        self.tab = tab
        self.wrong: list[str] = []
        self._axe = axe.read_text(encoding="utf-8")
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        tab.on("console", lambda said: self._refused(said.text))
        tab.on("request", lambda request: self._elsewhere(request.url, url))

    def _refused(self, said: str) -> None:
        if "Content Security Policy" in said or "TrustedHTML" in said:
            self.wrong.append(said)

    def _elsewhere(self, asked: str, url: str) -> None:
        if not asked.startswith((url, "data:", "blob:")):
            self.wrong.append(asked)

    async def sees(self, *what: str) -> None:
        """Wait until the page shows all of it."""
        for one in what:
            await self.tab.wait_for_selector(one)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        for key in keys:
            await self.tab.keyboard.press(key)

    async def tab_to(self, what: str, key: str = "Tab") -> None:
        """Move the focus by keyboard until it is there."""
        await self.sees(what)
        for _ in range(80):
            await self.press(key)
            if await self.tab.evaluate("what => document.activeElement.matches(what)", what):
                return
        raise AssertionError(f"{key} does not lead to {what}")

    async def delayed(self, what: re.Pattern[str]) -> tuple[asyncio.Event, asyncio.Event]:
        """Keep the next answer to such a request: set once it is here, and until the other is."""
        here, until = asyncio.Event(), asyncio.Event()
        asked: list[Any] = []

        async def keep(route: Any) -> None:
            asked.append(route)
            if len(asked) > 1:  # a route that ended with `times=1` would let go of the first one
                await route.continue_()
                return
            answer = await route.fetch()
            here.set()
            await until.wait()
            await route.fulfill(response=answer)

        await self.tab.route(what, keep)
        return here, until

    async def say(self, words: str) -> None:
        """Type a message, where the focus is, and send it."""
        await self.tab.keyboard.type(words)
        await self.press("Enter")

    async def is_accessible(self) -> None:
        """Axe finds nothing serious, and no control is beyond the edge of the screen."""
        if not await self.tab.evaluate("'axe' in window"):
            await self.tab.evaluate(self._axe)
        assert await self.tab.evaluate(NOTHING_SERIOUS) == []
        assert await self.tab.evaluate(BEYOND_THE_SCREEN) == []


@asynccontextmanager
async def opened(browser: Any, url: str, modules: Path) -> AsyncIterator[Page]:
    """A page that is signed in, on a laptop."""
    axe = modules / "axe-core" / "axe.min.js"
    if not axe.is_file():
        missing("axe-core is not installed")
    tab = await browser.new_page(viewport={"width": 1440, "height": 900})
    page, story = Page(tab, url, axe), Story(tab)
    try:
        await tab.goto(f"{url}/ui#token={TOKEN}")
        await page.sees("text=New conversation")
        assert await tab.evaluate("location.href") == f"{url}/ui"  # the token is gone from it
        yield page
        assert page.wrong == []
    except Exception as error:
        error.add_note(await story.told())
        raise
