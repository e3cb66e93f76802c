"""The panels of the page beside a conversation, in Chromium: late answers, focus, and room."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.web.page import Page, opened, served_here
from tests.web.served import TOKEN

from looopy import (
    Agent,
    AuthContext,
    LoopConfig,
    Stores,
    ToolContext,
    UserMessage,
    open_stores,
    tool,
)
from looopy.server import AgentHost
from looopy.testing import ScriptedProvider, text, tool_call

pytestmark = pytest.mark.long
AUTH = AuthContext("local")
TOO_WIDE = """() => {
    const places = ".side-scroll, .chat-tools, .scroller, .panel-body, .viewer-body, .composer";
    const scrolled = ".scroll, .picture-scroll, pre";
    const isWide = (one) => one.matches(places)
        ? one.scrollWidth > one.clientWidth
        : !one.parentElement.closest(scrolled) && one.getBoundingClientRect().right > innerWidth;
    return [...document.querySelectorAll("body *")]
        .filter((one) => one.checkVisibility() && isWide(one))
        .map((one) => one.outerHTML.slice(0, 200));
}"""


class World:
    """A server, and the page that shows it."""

    def __init__(
        self, url: str, page: Page, host: AgentHost, stores: Stores, let_go: asyncio.Event
    ) -> None:
        self.url = url
        self.page = page
        self.tab = page.tab
        self.stores = stores
        self.let_go = let_go  # ends the tool that waits
        self._host = host

    async def say(self, name: str, words: str = "Hi.") -> None:
        """Run a turn."""
        async with self._host.agent(name, AUTH) as agent:
            await agent.execute_turn(words, AUTH)

    async def goes(self, address: str) -> None:
        """Change the address."""
        await self.tab.evaluate("address => { location.hash = address; }", address)

    async def answered(self, what: str, until: asyncio.Event) -> None:
        """Let go of a late answer, and wait until the page has it."""
        async with self.tab.expect_event("requestfinished", lambda one: what in one.url):
            until.set()
        await self.tab.evaluate("fetch('healthz').then((one) => one.text())")  # it came before


@asynccontextmanager
async def world(browser: Any, modules: Path) -> AsyncIterator[World]:
    """Conversations `a` with two turns and `b` with one, and `asks`, which asks."""
    let_go = asyncio.Event()

    @tool(needs_approval=True)
    async def transfer(account: int, cents: int) -> str:
        return f"{cents} to {account}"

    @tool
    async def wait() -> str:
        await let_go.wait()
        return "waited"

    @tool
    async def note(number: int) -> str:
        return f"noted {number}"

    @tool
    async def save(context: ToolContext) -> str:
        await context.artifacts.save("n30", "again")
        return "saved"

    async def saves(request: Any) -> Any:
        asked = isinstance(request.messages[-1], UserMessage)
        return tool_call("save") if asked else text("Saved.")

    async def later(request: Any) -> Any:
        asked = sum(isinstance(one, UserMessage) for one in request.messages) > 1
        return tool_call("transfer", account=1, cents=1) if asked else text("I see.")

    def build(context_id: str, stores: Stores) -> Agent:
        asked = (
            tool_call("transfer", account=1, cents=1),
            tool_call("transfer", account=2, cents=2),
        )
        notes = tuple(tool_call("note", number=number) for number in range(210))
        scripts: dict[str, Any] = {
            "asks": [asked, text("Sent.")],
            "runs": [notes, tool_call("wait"), text("Done.")],
            "saves": saves,
            "later": later,
        }
        model = ScriptedProvider(scripts.get(context_id.partition("-")[0], [text("I see.")] * 3))
        tools = [transfer, wait, note, save]
        config = LoopConfig(max_tool_calls=300, max_tool_calls_per_iteration=300)
        return Agent(context_id, llm_provider=model, tools=tools, stores=stores, loop_config=config)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        made = World(url, page, host, stores, let_go)
        for name in ("a", "a", "b"):
            await made.say(name)
        yield made


async def test_a_late_answer_changes_only_what_asked_for_it(browser: Any, modules: Path) -> None:
    """Another panel, another turn or another conversation may be shown by then."""
    async with world(browser, modules) as here:
        await here.goes("#/c/a")
        await here.page.sees(".turn-end >> nth=1")
        await _fills_no_other_panel(here)
        await _fills_no_other_turn(here)
        await _fills_no_other_conversation(here)
        await _ends_with_its_replay(here)
        await _answers_in_a_replay(here)
        await _says_only_what_is_shown(here)
        await _shows_each_version(here)


async def _fills_no_other_panel(here: World) -> None:
    asked, until = await here.page.delayed(re.compile("/turns/2/timeline"))
    await here.tab.click(".chat-tools a:has-text('Timeline')")
    await asked.wait()
    await here.tab.click(".chat-tools a:has-text('Usage')")
    await here.page.sees(".panel .tiles")
    await here.answered("/turns/2/timeline", until)
    assert await here.tab.is_visible(".panel .tiles")
    assert await here.tab.query_selector("svg.timeline") is None


async def _fills_no_other_turn(here: World) -> None:
    asked, until = await here.page.delayed(re.compile("/turns/1/timeline"))
    await here.goes("#/c/a/timeline/1")
    await asked.wait()
    await here.goes("#/c/a/timeline/2")
    await here.page.sees(".panel h3:text-is('Turn 2')")
    await here.answered("/turns/1/timeline", until)
    assert await here.tab.inner_text(".panel h3") == "Turn 2"


async def _fills_no_other_conversation(here: World) -> None:
    asked, until = await here.page.delayed(re.compile("/contexts/a/turns"))
    await here.goes("#/c/a/usage")
    await asked.wait()
    await here.goes("#/c/b/usage")
    turns = ".panel .tiles div:has-text('Turns') dd"
    await here.page.sees(f"{turns}:text-is('1')")
    await here.answered("/contexts/a/turns", until)
    assert await here.tab.inner_text(turns) == "1"


async def _ends_with_its_replay(here: World) -> None:
    """A replay that was left follows no fork, and its new fork is not gone to."""
    sent: list[str] = []
    here.tab.on("request", lambda one: sent.append(one.url))
    asked, until = await here.page.delayed(re.compile("/contexts/a/messages.*include_hidden"))
    await here.goes("#/c/a/replay/1/b")
    await asked.wait()
    await here.goes("#/c/a")
    await here.page.sees(".turn-end >> nth=1")
    await here.answered("include_hidden", until)
    assert [one for one in sent if "/contexts/b" in one] == []
    await here.goes("#/c/a/replay/1")
    asked, until = await here.page.delayed(re.compile("/run-beside$"))
    await here.tab.click(".again button.main")
    await asked.wait()
    await here.goes("#/c/b")
    await here.page.sees(".contexts a[aria-current]:has-text('b')", ".turn-end.completed")
    await here.answered("/run-beside", until)
    assert await here.tab.evaluate("location.hash") == "#/c/b"


async def _answers_in_a_replay(here: World) -> None:
    """What was typed into the other request stays; an answer that came second is told."""
    tab = here.tab
    await here.say("asks")
    await here.goes("#/c/asks/replay/1")
    await tab.click(".again button.main")
    first, second = (f".replay .request:nth-child({i})" for i in (1, 2))
    await here.page.sees(second)
    await tab.fill(f"{second} input >> nth=1", "77")
    await tab.click(f"{first} .actions .main")
    await here.page.sees(".replay .request:first-child:last-child .main:enabled")
    assert await tab.input_value(f"{first} input >> nth=1") == "77"
    fork = await tab.evaluate("location.hash.split('/').pop()")
    turns = f"{here.url}/contexts/{fork}"

    async def overtakes(route: Any) -> None:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            [one] = (await client.get(turns)).json()["pending"]
            denied = {one["request_id"]: False}
            assert (await client.post(f"{turns}/turns", json={"inputs": denied})).is_success
        await route.fulfill(response=await route.fetch())

    await tab.route(f"{turns}/turns", overtakes, times=1)
    await tab.click(f"{first} .actions .main")
    await here.page.sees(".replay > .error:has-text('Your answer for transfer was not taken: ')")
    await here.page.sees(".beside-head .chip.wait")


async def _says_only_what_is_shown(here: World) -> None:
    """A request or an error of a conversation that was left is not announced in another one."""
    tab, said = here.tab, "#announcer:has-text('waits for an answer')"
    asked, until = asyncio.Event(), asyncio.Event()

    async def late(route: Any) -> None:
        asked.set()
        await until.wait()
        if route.request.url.endswith("/fork"):
            await route.fulfill(status=500, json={"error": {"message": "no fork"}})
        else:
            await route.continue_()

    await here.say("later")
    await here.goes("#/c/later")
    await here.page.sees(".turn-end.completed")
    await tab.route(re.compile(r"/contexts/later(/fork)?$"), late)
    await here.say("later")
    await here.page.sees(said)
    await tab.click("button[aria-label='Fork here, after turn 1']")
    await here.goes("#/c/b")
    await here.page.sees(".contexts a[aria-current]:has-text('b')", ".turn-end.completed")
    before = await tab.inner_text("#announcer")
    async with tab.expect_event("requestfinished", lambda one: one.url.endswith("/fork")):
        await here.answered("/contexts/later", until)
    await tab.evaluate("fetch('healthz').then((one) => one.text())")
    assert await tab.inner_text("#announcer") == before
    assert not await tab.is_visible(".alert")


TIMELINE = re.compile("/timeline$")


async def test_the_focus_stays_with_the_reader(browser: Any, modules: Path) -> None:
    """While a panel is read again each second, and when one part of the page hides another."""
    async with world(browser, modules) as here:
        await _stays_in_a_growing_timeline(here)
        await _stays_in_a_list(here)
        await _goes_along_on_a_small_screen(here)


async def _stays_in_a_growing_timeline(here: World) -> None:
    tab = here.tab
    await here.goes("#/c/runs")
    await here.page.tab_to("#composer")
    await here.page.say("Go.")
    await here.page.sees(".chip.running", ".call.running")
    await tab.set_viewport_size({"width": 1160, "height": 800})
    await here.goes("#/c/runs/timeline/1")
    await here.page.sees(".panel tbody tr >> nth=199", "button:text-matches('Show all 2.. rows')")
    await tab.eval_on_selector(".picture-scroll", "one => { one.scrollLeft = 20; }")
    await tab.focus(".panel .fold > button")
    await here.page.press("Enter")
    await here.page.sees(".panel tbody tr:nth-child(201)")
    for _ in range(2):  # the first may have been asked for before
        await tab.wait_for_event("response", lambda one: TIMELINE.search(one.url))
    await here.page.sees("button:focus:text-is('Show the first 200 rows')")
    await here.page.sees(".panel tbody tr:nth-child(201)")
    assert await tab.eval_on_selector(".picture-scroll", "one => one.scrollLeft") == 20
    here.let_go.set()
    await here.page.sees(".chip.ready")


async def _stays_in_a_list(here: World) -> None:
    tab, one = here.tab, ".artifacts li:has-text('n30')"
    await here.say("saves")
    for i in range(90):
        await here.stores.artifacts.save("saves", f"n{i:02}", "x")
    await here.goes("#/c/saves/artifacts")
    await tab.focus(".panel-body button:text-is('More')")
    await here.page.press("Enter")
    await here.page.sees(".artifacts li:nth-child(51) button:focus")
    await tab.focus(f"{one} button >> nth=1")
    await here.say("saves")
    await here.page.sees(f"{one}:has-text('version 3')", f"{one} button:focus")
    assert await tab.locator(".artifacts li").count() == 90
    assert await tab.inner_text(":focus") == "Download"
    await here.goes("#/c/saves/usage")
    await tab.focus(".panel summary")
    await here.page.press("Enter")
    await here.say("saves")
    await here.page.sees(".panel tbody tr >> nth=2", ".panel details[open] summary:focus")


async def _goes_along_on_a_small_screen(here: World) -> None:
    page = here.page
    await here.tab.set_viewport_size({"width": 1000, "height": 700})
    await here.goes("#/c/a")
    await page.sees(".turn-end >> nth=1")
    said = {"error": {"message": "no turns today"}}
    fails = re.compile(r"/turns\?.*limit=200")
    await here.tab.route(fails, lambda route: route.fulfill(status=409, json=said), times=1)
    await page.tab_to(".chat-tools a:nth-child(3)", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".panel-head h2:focus", ".panel .alert:has-text('no turns today')")
    await page.tab_to(".panel-head a", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".chat-tools a:nth-child(3):focus", ".chat .alert:has-text('no turns today')")
    await here.tab.set_viewport_size({"width": 320, "height": 640})
    await page.tab_to("a.back", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".contexts a[href='#/c/a']:focus", ".sidebar .alert:has-text('no turns')")
    await page.press("Enter")
    await page.sees(".chat-title:focus")


async def _shows_each_version(here: World) -> None:
    page, tab, save = here.page, here.tab, here.stores.artifacts.save
    await save("a", "drawn", "First.", media_type="text/plain")
    await save("a", "drawn", "Second.", media_type="text/plain")
    await save("a", "drawn", b"GIF89a", media_type="image/gif")
    await here.goes("#/c/a/artifacts")
    await tab.click("button[aria-label='View drawn']")
    await page.sees("dialog[open] img.picture")
    pick = "dialog[open] select"
    await tab.route(re.compile("version=1"), lambda route: route.abort(), times=1)
    await tab.select_option(pick, "1")
    await page.sees("dialog[open] .error:has-text('The server does not answer')")
    assert await tab.input_value(pick) == "3"  # and its picture
    await page.is_accessible()
    await tab.select_option(pick, "1")
    await page.sees("dialog[open] code:text-is('First.')")
    assert await tab.inner_text("dialog[open] .error") == ""
    asked, until = await page.delayed(re.compile("version=2"))
    await tab.select_option(pick, "2")
    await asked.wait()
    await tab.select_option(pick, "3")
    await page.sees("dialog[open] img.picture")
    await here.answered("version=2", until)
    await page.sees("dialog[open] img.picture")
    assert not await tab.is_visible("dialog[open] code")
    async with tab.expect_download() as saved:
        await tab.click("dialog[open] button:text-is('Download')")
    assert (await (await saved.value).path()).read_bytes() == b"GIF89a"
    await page.press("Escape")


async def _shows_rows(here: World) -> None:
    """Thousands of columns are cut, and a name that all objects have is a column like others."""
    page, tab, save = here.page, here.tab, here.stores.artifacts.save
    wide = {f"k{number}": number for number in range(9_000)}
    names = ("constructor", "toString", "__proto__")
    columns = dict.fromkeys(wide, "any")
    await save("a", "rows", [wide, *[{"k1": 1} for _ in range(299)]], columns=columns)
    columns = dict.fromkeys(("a", *names), "any")
    await save("a", "odd", [{"a": 1}, dict.fromkeys(names, "<b>own</b>")], columns=columns)
    await here.goes("#/c/b")
    await here.goes("#/c/a/artifacts")
    await tab.click("button[aria-label='View rows']")
    for cut in ("The first 200 of 300 rows.", "The first 100 of 9,000 columns."):
        await page.sees(f"dialog[open] .faint:text-is('{cut}')")
    assert await tab.locator("dialog[open] td").count() == 20_000
    await page.press("Escape")
    await tab.click("button[aria-label='View odd']")
    await page.sees("dialog[open] td")
    rows = await tab.locator("dialog[open] tr").all_inner_texts()
    assert [row.split() for row in rows] == [["a", *names], ["1"], ["<b>own</b>"] * 3]
    await page.is_accessible()
    await page.press("Escape")


async def test_long_content_is_cut_and_fits_in_320_pixels(browser: Any, modules: Path) -> None:
    """Rows, columns, turns and calls by thousands, which it says; words that have no end."""
    async with world(browser, modules) as here:
        await _shows_rows(here)
        await _plots_the_last_turns(here)
        await _draws_many_attempts(here)
        await _fits_in_320_pixels(here)


async def _faked(here: World, what: str, change: Callable[[Any], None]) -> None:
    """Change the answers to a request."""

    async def answer(route: Any) -> None:
        found = await (await route.fetch()).json()
        change(found)
        await route.fulfill(json=found)

    await here.tab.route(re.compile(what), answer)


async def _plots_the_last_turns(here: World) -> None:
    def many(found: Any) -> None:
        one = found["items"][0]
        costs = [*[0.5] * 599, 123.45]
        found["items"] = [
            one | {"turn": i + 1, "usage": one["usage"] | {"cost": {"total": cost}}}
            for i, cost in enumerate(costs)
        ]

    page, tab = here.page, here.tab
    await here.goes("#/c/a")
    await page.sees(".turn-end >> nth=1")
    await _faked(here, r"/contexts/a/turns\?", many)
    await here.goes("#/c/a/usage")
    plot = ".plot:has-text('Cost by turn')"
    await page.sees(f"{plot} .faint:text-is('The last 120 of 600 turns.')")
    ticks = tab.locator(f"{plot} svg > text")
    assert await ticks.all_text_contents() == ["0", "$61.73", "$123.45"]
    label = await tab.get_attribute(f"{plot} svg", "aria-label")
    assert label == "Cost by turn, in dollars, 120 turns, at most $123.45"
    await tab.click(".panel summary")
    await page.sees(".fold .faint:text-is('The last 500 of 600 turns.')")
    await page.is_accessible()


async def _draws_many_attempts(here: World) -> None:
    """In steps that grow with their number, not with its square."""

    def many(found: Any) -> None:
        [run] = found["runs"]
        run["spans"] = [run["spans"][0] | {"attempts": 2} for _ in range(2_000)]
        run |= {"left_out": 3, "marks_left_out": 1}

    await _faked(here, "/contexts/a/turns/1/timeline", many)
    await here.tab.evaluate(
        "() => { const {parse} = Date; window.parsed = 0;"
        " Date.parse = (...all) => { window.parsed += 1; return parse(...all); }; }"
    )
    await here.goes("#/c/a/timeline/1")
    await here.page.sees("svg.timeline .tries >> nth=1999")
    assert await here.tab.evaluate("window.parsed") < 500_000
    await here.page.sees("text=Not drawn: 3 more calls and 1 more event.")


async def _fits_in_320_pixels(here: World) -> None:
    """List, conversation, requests and panels, with words and names that have no end."""
    long, at = "w" * 250, ".panel-body"
    page, tab = here.page, here.tab
    name = f"asks-{'n' * 90}"
    await here.say(name, f"{long} `{long}`")
    await here.stores.artifacts.save(name, f"{long}.json", {long: long}, description=long)
    await tab.set_viewport_size({"width": 320, "height": 640})
    for address, seen in (
        ("", ".contexts a .title"),
        (f"c/{name}", ".request >> nth=1"),
        (f"c/{name}/timeline", f"{at} svg.timeline"),
        (f"c/{name}/timeline/9", f"{at} .empty"),
        (f"c/{name}/usage", f"{at} .tiles"),
        (f"c/{name}/artifacts", f"{at} .artifacts li"),
        (f"c/{name}/replay/1", f"{at} .again textarea"),
        (f"c/{name}/replay/1/b", f"{at} .beside"),
    ):
        await here.goes(f"#/{address}")
        await page.sees(seen)
        assert await tab.evaluate(TOO_WIDE) == [], address
        await page.is_accessible()
    await here.goes(f"#/c/{name}/artifacts")
    await tab.click(f"{at} .artifacts button >> nth=0")
    await page.sees("dialog[open] code")
    assert await tab.evaluate(TOO_WIDE) == []
    await page.is_accessible()
    await page.press("Escape")
    await here.goes("#/c/runs")
    await page.tab_to("#composer")
    await page.say("Go.")
    await page.sees(".composer .danger", ".call.running")
    assert await tab.evaluate(TOO_WIDE) == []
    await page.is_accessible()
    here.let_go.set()
    await page.sees(".chip.ready")


async def test_a_second_person_decides_on_the_page(browser: Any, modules: Path) -> None:
    """The request of somebody else is listed, decided and gone; the conversation stays closed."""
    ada = AuthContext("ada")
    async with world(browser, modules) as made:
        page, tab, host = made.page, made.tab, made._host
        async with host.agent("asks", ada) as agent:
            await agent.execute_turn("Send it.", ada)
        await made.goes("#/requests")
        await page.sees("text=Nothing waits for your decision.")
        host.may_answer = lambda request, auth: (request.owner, auth.actor_id) == ("ada", "local")
        await tab.reload()
        await page.sees("a.others >> text=2 calls of others to decide")
        await page.sees(".others-view .request >> nth=1")
        assert await tab.locator(".others-view .request").count() == 2
        await page.sees("text=For ada, in asks")
        await page.is_accessible()
        first = tab.locator(".others-view .request >> nth=0")
        await first.locator("textarea").fill("fine")
        await first.locator("button.main").click()
        await page.sees("a.others >> text=1 call of others to decide")
        await tab.locator(".others-view .request button.danger").click()
        await page.sees("text=Nothing waits for your decision.")
        assert not await tab.locator("a.others").is_visible()
        record = await host.current("asks", ada)
        assert record.state.needs_auth
        said = [value for _, value in record.state.answered]
        assert said == [{"approved": True, "note": "fine"}, False]
        await made.goes("#/c/asks")
        await page.sees("text=There is no conversation of this name.")
        await made.goes("#/")
        await tab.set_viewport_size({"width": 320, "height": 600})
        assert await tab.evaluate(TOO_WIDE) == []
        assert page.wrong == []
