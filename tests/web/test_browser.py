"""Pages with the clients that people use, in Chromium, before a server that is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.preloaded import Preloaded
from tests.web.app import STORY
from tests.web.served import Served
from tests.web.stories import Story


@pytest.fixture
async def served(tmp_path: Path, preloaded: Preloaded) -> AsyncIterator[Served]:
    """A running server."""
    server = Served(tmp_path, preloaded, "tests.web.app")
    await server.start()
    yield server
    await server.kill()


class Page:
    """A page of one of the clients, with a conversation of its own."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.errors: list[str] = []
        self.story = Story(page)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    async def say(self, words: str) -> None:
        """Send a message, once the page is ready."""
        await self.sees("output:text-is('ready')")
        await self.page.fill("input", words)
        await self.page.click("text=Send")

    async def sees(self, what: str) -> None:
        """Wait until the page shows *what*."""
        await self.page.wait_for_selector(what)

    async def messages(self, where: str) -> Any:
        """The messages that its client has."""
        return json.loads(await self.page.evaluate(f"JSON.stringify({where})"))


@pytest.fixture
async def opened(
    browser: Any, served: Served, request: pytest.FixtureRequest
) -> AsyncIterator[Callable[[str], Awaitable[Page]]]:
    """A function that makes a page of the server. The report of a failure has all their stories."""
    pages: list[Page] = []

    async def made(name: str) -> Page:
        pages.append(Page(await browser.new_page(), f"{served.url}/page/{name}"))
        return pages[-1]

    yield made
    told = [await one.story.told() for one in pages]
    request.node.add_report_section("teardown", "pages", "\n".join(told))


async def _until_the_middle(one: Page, *, reload: bool) -> None:
    """A tool, an approval, and half a story."""
    await one.page.goto(one.address)
    await one.say("add them")
    await one.sees("p:text-is('The tool said: {\"sum\": 5}.')")
    await one.say("pay, please")
    await one.sees("text=Approve")
    if reload:  # what waits is stored
        await one.page.reload()
    await one.page.click("text=Approve")
    await one.sees("p:text-is('The tool said: paid 5.')")
    await one.say("a story")
    await one.sees("p:has-text('its process died. Once upon')")


async def _to_the_end(one: Page) -> None:
    """The server died and came back: reload, and continue."""
    await one.sees("output:text-is('error')")
    await one.page.reload()
    await one.sees("p:text-is('a story')")
    await one.sees("output:text-is('ready')")
    assert "Once upon" not in await one.page.inner_text("main")  # it was not committed
    await one.page.click("text=Continue")
    await one.sees("p:has-text('The end.')")
    await one.sees("output:text-is('ready')")


@pytest.mark.long
async def test_both_clients_survive_the_death_of_their_server(
    bundle: Callable[..., Path], opened: Any, served: Served, tmp_path: Path
) -> None:
    """A tool, an approval, `kill -9` in an answer, a reload: all is there, the turn continued."""
    for name in ("use_chat.jsx", "ag_ui_page.mjs"):
        shutil.copy(bundle(name, "browser"), tmp_path)
    chat = await opened("use_chat?one")
    ag_ui = await opened("ag_ui_page?two")
    late = [await opened("use_chat?two"), await opened("ag_ui_page?one")]  # the other client

    served.hold.touch()
    await asyncio.gather(
        _until_the_middle(chat, reload=False), _until_the_middle(ag_ui, reload=True)
    )
    for one in late:  # a page that comes in the middle sees the answer so far
        await one.page.goto(one.address)
        await one.sees("p:has-text('its process died. Once upon')")
    await served.kill()
    served.hold.unlink()
    await served.start()
    await asyncio.gather(_to_the_end(chat), _to_the_end(ag_ui))

    shown = await chat.messages("window.messages")
    assert ["".join(p.get("text", "") for p in m["parts"]) for m in shown] == [
        "add them",
        'Let me add.The tool said: {"sum": 5}.',
        "pay, please",
        "I will pay.The tool said: paid 5.",
        "a story",
        f"Let me add.{STORY}",
    ]
    async with httpx.AsyncClient() as client:
        loaded = (await client.get(f"{served.url}/api/chat/one")).json()["messages"]
    assert shown == loaded
    shown = await ag_ui.messages("window.agent.messages")
    assert [m["content"] for m in shown if m["role"] in ("user", "assistant")] == [
        "add them",
        "Let me add.",
        'The tool said: {"sum": 5}.',
        "pay, please",
        "I will pay.",
        "The tool said: paid 5.",
        "a story",
        "Let me add.",
        STORY,
    ]
    served.hold.touch()
    await chat.say("a story")
    await chat.sees("article >> nth=7 >> p:has-text('Once upon')")
    await chat.page.click("text=Stop")
    await chat.sees("output:text-is('ready')")
    assert chat.errors == []
    assert set(ag_ui.errors) <= {"network error"}  # of the client itself, when the server died
