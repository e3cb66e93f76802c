"""The page of `looopy serve` in Chromium: a story by keyboard, and a hostile conversation."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.preloaded import Preloaded
from tests.web.page import Page, opened, served_here
from tests.web.served import TOKEN, Served

from looopy import (
    Agent,
    AssistantMessage,
    AuthContext,
    Budget,
    ImageContent,
    LoopConfig,
    Stores,
    TextContent,
    ToolCall,
    ToolContext,
    ToolResultMessage,
    UserMessage,
    open_stores,
    tool,
)
from looopy.auth import AuthRequest
from looopy.server import AgentHost
from looopy.server.page import timeline
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Ask, NeedsInput
from looopy.types.message import Cost, DocumentContent
from looopy.types.state import PendingKind

SCROLLED_UP = """() => {
    document.querySelector(".scroller").scrollTop = 0;
    return !document.querySelector(".newest").hidden;
}"""
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
    "gg=="
)
SIGNED_IN = {"Authorization": f"Bearer {TOKEN}"}
RECORD = re.compile(r"/contexts/[^/?]+$")


@pytest.fixture
async def served(tmp_path: Path, preloaded: Preloaded) -> AsyncIterator[Served]:
    """A running server."""
    server = Served(tmp_path, preloaded)
    await server.start()
    yield server
    await server.kill()


async def test_page_continues_a_conversation_whose_server_was_killed(
    browser: Any, served: Served, modules: Path
) -> None:
    """A message, an approval, `kill -9` in the middle of a turn, and the button for that."""
    async with opened(browser, served.url, modules) as page:
        await page.tab.click("a.main")
        await page.sees("#composer:focus")
        await page.say("Book a hotel.")
        await page.tab.click(".request .actions .main")
        await page.sees(".call.done :text('approved')", ".turn-end.completed")
        served.hold.touch()
        await page.tab_to("#composer")
        await page.say("A story.")
        await page.sees("text=half of the story")
        await served.kill()
        await page.sees("text=Reconnecting")
        await served.start()
        served.hold.unlink()
        await page.tab.click(".bar:has-text('was interrupted') button.main")
        await page.sees(".message:has-text('read all of it')", ".chip.ready")


@pytest.mark.long
async def test_a_turn_killed_twice_continues_and_its_timeline_shows_it(
    browser: Any, served: Served, modules: Path
) -> None:
    """By keyboard: chat, an approval with another argument, its artifact, kill -9, reload."""
    async with opened(browser, served.url, modules) as page:
        await page.tab_to("a.main")
        await page.press("Enter")
        await page.sees("#composer:focus")
        await page.say("Book a hotel.")
        await page.tab_to(".request input[type=number]", "Shift+Tab")
        await page.press("ControlOrMeta+A")
        await page.tab.keyboard.type("3")
        await page.tab_to(".request .actions .main")
        assert await page.tab.inner_text(":focus") == "Approve with changes"
        await page.press("Enter")
        await page.sees(".prose strong:text-is('Done')", ".call.done :text('edited')")
        await page.sees(".call.done :text('approved')", ".turn-end.completed")
        await page.tab_to(".chip.artifact", "Shift+Tab")
        await page.press("Enter")
        await page.sees("dialog[open] code:has-text('\"nights\": 3')")
        unsaid = "dialog[open] code:has-text('\"breakfast\": true'):has-text('\"wish\": null')"
        await page.sees(unsaid)  # what the model left to the tool, the form left to it as well
        await page.is_accessible()
        await page.press("Escape")
        await page.sees(".chip.artifact:focus")

        await _runs_again_beside(page, served)
        await _is_killed_twice(page, served)
        await _shows_both_gaps(page, served)
        await page.tab.set_viewport_size({"width": 375, "height": 780})
        await page.tab.emulate_media(color_scheme="dark")
        await page.is_accessible()
        await page.tab_to(".panel-head a", "Shift+Tab")
        await page.press("Enter")
        await page.sees("#composer")
        await page.is_accessible()


async def _runs_again_beside(page: Page, served: Served) -> None:
    await page.tab_to("a[aria-label='Replay turn 1']", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".card .chip.good:text-is('The same')", ".panel-head h2:focus")
    other = served.hold.with_name("other")
    other.touch()
    await page.tab.reload()
    await page.sees("text=The system prompt of the request differs from what was recorded")
    await page.is_accessible()
    await page.tab_to(".choice input[name=prompt]")
    await page.press("Space")
    await page.sees(".card .chip.good", ".choice input[name=prompt]:focus")
    limit = re.compile(r"/run-beside$")
    refused = {"error": {"code": "limit_exceeded", "message": "too many turns"}}
    await page.tab.route(limit, lambda route: route.fulfill(status=429, json=refused), times=1)
    await page.tab_to(".again button.main")
    await page.press("Enter")
    await page.sees(".replay .error:text-is('too many turns')")
    await page.tab_to(".again button.main", "Shift+Tab")
    await page.press("Enter")
    await page.tab_to(".replay .request .actions .main")  # the fork asks here
    await page.press("Enter")
    await page.sees(".beside-head .chip.wait:text-is('3 parts differ')")
    marks = await page.tab.eval_on_selector_all(
        ".row.differs",
        "all => all.map(row => [...row.querySelectorAll('mark')].map(one => one.textContent))",
    )
    assert marks[0] == ["Amora", "Lina"]
    result = await page.tab.text_content(".piece.of-result .plain")
    assert result is not None
    assert result.endswith("\nbooked 3 nights")  # behind the arguments that a person gave
    kinds = await page.tab.eval_on_selector_all(
        ".row:not(.facts)", "all => all.map(row => row.classList[1]).join(' ')"
    )
    assert kinds == "same same differs differs differs same"
    await page.tab.set_viewport_size({"width": 375, "height": 780})
    await page.is_accessible()
    await page.tab.set_viewport_size({"width": 1440, "height": 900})
    other.unlink()
    await page.tab_to(".panel-head a", "Shift+Tab")
    await page.press("Enter")
    await page.sees("#composer", ".chip.ready")


async def _is_killed_twice(page: Page, served: Served) -> None:
    served.hold.touch()
    await page.tab_to("#composer")
    await page.tab.set_viewport_size({"width": 1440, "height": 400})
    await page.tab.wait_for_function(SCROLLED_UP)
    await page.say("A story.")
    holder = f".lease:has-text('process {served.pids[-1]}-'):has-text('this server')"
    await page.sees("text=half of the story", holder)
    await page.tab.wait_for_selector("button.newest", state="hidden")  # what one sends is in sight
    await page.tab.set_viewport_size({"width": 1440, "height": 900})
    old, late = asyncio.Event(), asyncio.Event()
    for last in (False, True):
        await served.kill()
        await page.sees("text=Reconnecting")
        await page.tab.route(RECORD, lambda route: route.abort(), times=1)  # it comes too early
        await served.start()
        await page.sees(".bar:has-text('was interrupted')")  # without a reload, too
        await page.tab.reload()
        await page.sees(".prose p:text-is('Let me read.')", ".call.done", ".turn-end.completed")
        booked = ".call.done:has-text('nights: 3'):has-text('edited'):has-text('approved')"
        await page.sees(f"{booked} .faint:has-text('s')")  # and the time that it took
        await page.tab_to(".bar button.main")
        if last:
            old, late = await page.delayed(RECORD)
        await page.press("Enter")
        await page.sees("text=half of the story")
    await old.wait()
    await page.tab_to("#composer")
    await page.say("Hurry.")
    await page.sees(".queued .bubble:has-text('Hurry.')")
    served.hold.unlink()
    await page.sees(".turn-end.completed >> nth=1", ".message:has-text('read all of it')")
    await page.sees(".turn-end.interrupted:has-text(': its process ended; turn ')")
    await page.sees(".log .bubble:has-text('Hurry.')")
    assert not await page.tab.is_visible(".queued .bubble")
    await page.sees(".chip.ready")
    async with page.tab.expect_request(RECORD):  # the answer of before says that it runs
        late.set()
    await page.sees(".chip.ready")


async def _shows_both_gaps(page: Page, served: Served) -> None:
    await page.tab_to(".chat-tools a:first-child")
    await page.press("Enter")
    await page.sees("svg.timeline")
    parts = await page.tab.eval_on_selector_all(
        "svg rect:is(.work, .dead), svg .process rect, svg .death line, svg .recovery circle",
        "all => all.map(one => [one.tagName === 'line' ? 'sign'"
        " : one.classList[0] ?? one.parentElement.classList[0],"
        " Number(one.getAttribute('x') ?? one.getAttribute('x1') ?? one.getAttribute('cx')),"
        " Number(one.getAttribute('width'))])",
    )
    works, deads, signs, bands, recoveries = (
        sorted((x, x + width) for kind, x, width in parts if kind == name)
        for name in ("work", "dead", "sign", "process", "mark")
    )
    assert (len(works), len(bands)) == (3, 3)
    assert (len(deads), len(signs), len(recoveries)) == (2, 2, 2)
    for i in range(2):  # a run, the sign that ends it, the gap, the recovery, the next run
        assert works[i][1] == pytest.approx(signs[i][0]) == pytest.approx(deads[i][0])
        assert deads[i][1] <= works[i + 1][0]
        assert recoveries[i][0] == pytest.approx(deads[i][1])
    tries, called = await page.tab.eval_on_selector_all(
        "svg .tries rect, svg rect.bar.model.retried",
        "all => all.map(one => [one.x.baseVal.value, one.width.baseVal.value])",
    )
    assert tries[0] >= works[0][0]
    assert tries[0] + tries[1] == pytest.approx(called[0])  # up to the attempt that answered
    assert (await page.tab.inner_text(".panel table")).count("iteration 1, 2 attempts") == 1
    for work, band in zip(works, bands, strict=True):
        assert band == pytest.approx((work[0], work[1] - 2))

    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers) as client:
        context = (await client.get("/contexts")).json()["items"][0]  # the other one is the fork
        path = f"/contexts/{context['context_id']}/turns"
        found = (await client.get(f"{path}/{context['turn_count']}/timeline")).json()
    runs = found["runs"]
    names = [run["process"] for run in runs]
    assert [int(name.partition("-")[0]) for name in names] == served.pids
    assert [run["recovered_by"] for run in runs] == [*names[1:], None]
    titles = "all => all.map(one => one.textContent)"
    processes = await page.tab.eval_on_selector_all("svg .process title", titles)
    assert processes == [f"Process {run['process']}: run {run['turn']}" for run in runs]
    rows = await page.tab.inner_text(".panel table")
    assert rows.count("began, and has no result of its own") == 2
    for run in runs[:2]:
        assert f"Last sign of the process of run {run['turn']}: {run['process']}" in rows
        assert f"Process {run['recovered_by']} finds that run {run['turn']} was inter" in rows


HTML = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><b>bold</b>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=1"></svg>'
LARGE = HTML + "\x1b" + "m" * 10_000_000
ESCAPES = "\x1b]0;title\x07\x1b[2J\u202eesrever\u2066"
LINKS = (
    "[a](javascript:window.pwned=1) [b](data:text/html,x) ![c](http://127.0.0.1:9/c.png)"
    " [d](https://example.org/\"onclick='window.pwned=1')\n\n- [ ] " + "**" * 3000 + "[" * 3000
)


@tool(needs_approval=True)
def run(command: str) -> str:
    """Run a command."""
    return command


async def _hostile(stores: Stores) -> None:
    """Two conversations of the person who signs in, with everything that could hurt a page."""
    said, auth = text(f"{HTML}\n\n{SVG}\n\n{ESCAPES}\n\n{LINKS}"), AuthContext("local")
    for name in ("many", "evil"):
        model = ScriptedProvider([said, tool_call("run", command=ESCAPES)])
        async with Agent(name, llm_provider=model, tools=[run], stores=stores) as agent:
            await agent.execute_turn(HTML, auth)
            if name == "evil":
                await agent.execute_turn("Go on.", auth)
    calls = [ToolCall(f"c{i}", f"{HTML}{i}", {"a": SVG}) for i in range(10_000)]
    svg = ImageContent(SVG, mime_type="image/svg+xml")
    far = ImageContent(url="http://127.0.0.1:9/far.png", mime_type="image/png")
    results = [
        [TextContent(LARGE)],
        [svg, far],
        [ImageContent(PNG, mime_type="image/png")],
        *[[TextContent(HTML)] for _ in range(27)],
    ]
    answers = [
        ToolResultMessage(tool_call_id=f"c{i}", tool_name="t", content=content)
        for i, content in enumerate(results)
    ]
    await stores.messages.append("many", [AssistantMessage(calls), *answers])
    save = stores.artifacts.save
    await save("many", f"../{HTML}.html", HTML + "m" * 10_000_000, media_type="text/html")
    await save("many", "x.svg", SVG, media_type="image/svg+xml")


@pytest.mark.long
async def test_a_hostile_conversation_is_shown_without_running_scripts(
    browser: Any, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTML, SVG, escapes, megabytes of a result and 10,000 calls: text, folded, and accessible."""

    def build(context_id: str, stores: Stores) -> Agent:
        model = ScriptedProvider([text("I run nothing.")])
        return Agent(context_id, llm_provider=model, tools=[run], stores=stores)

    async with open_stores("memory:") as stores, served_here(build, stores) as (url, _):
        await _hostile(stores)
        monkeypatch.setattr(timeline, "_MOST_SPANS", 0)
        async with opened(browser, url, modules) as page:
            await _look_at_it(page)


async def _look_at_it(page: Page) -> None:
    tab = page.tab
    await tab.click(".contexts a:has-text('evil')")
    await page.sees(".request .warn code:has-text('⟨202E⟩')")  # in what a person is to approve
    await page.sees(".bubble:has-text('<script>')", ".prose:has-text('<svg')", "text=␛]0;title␇")
    await page.sees(".prose a:text-is('d')", "text=(javascript:window.pwned=1)")
    await page.is_accessible()
    await tab.click("a[aria-label='Replay turn 1']")
    await page.sees(".card .chip", ".again textarea")
    await tab.click(".panel-head a")
    await tab.click(".chat-tools a:has-text('Timeline')")
    await page.sees(".facts:has-text('1 model call · 0 tool calls')")
    await page.sees("text=Not drawn: 1 more call and 1 more event.")
    await tab.click(".contexts a:has-text('many')")
    await tab.click("text=Show 200 more of 9,970 calls")
    await page.sees(".call >> nth=229")
    await page.sees(".pictures img.picture")  # beside its call, which is folded
    assert await tab.locator(".pictures img").count() == 1
    await tab.click(".call >> nth=0")
    await page.sees(".call[open] code:has-text('onerror=')", ".call[open] code:has-text('onload=')")
    length = len(LARGE)
    await tab.click(f"button:has-text('{length - 20_000:,} of {length:,}')")
    await page.sees(f"button:has-text('{length - 220_000:,} of {length:,}')")  # a part, not all
    await tab.click(".call >> nth=1")
    await page.sees("text=A picture of the type image/svg+xml", "text=, not loaded")
    await tab.click("text=Artifacts")
    await tab.click(".artifacts button:text-is('View')")
    await page.sees("dialog[open] code:has-text('<script>')", "text=The first 200.0 kB of 10.0 MB")
    await page.press("Escape")
    await tab.fill("#search", '"')
    await page.sees(".contexts .empty:has-text('the query has no words')")
    await tab.fill("#search", "bold")
    await page.sees(".snippet mark")
    await page.is_accessible()
    found = await tab.evaluate(
        """() => ({
            pwned: "pwned" in window,
            scripts: document.scripts.length,
            addresses: [...document.querySelectorAll("a, img, iframe, object")]
                .map((one) => new URL(one.href ?? one.src ?? "x:x").protocol)
                .filter((one) => !["http:", "https:", "data:", "blob:"].includes(one)),
            foreign: document.querySelectorAll(".prose :is(img, svg, iframe, script, b)").length,
            nodes: document.querySelectorAll("*").length,
        })"""
    )
    nodes = found.pop("nodes")
    assert found == {"pwned": False, "scripts": 1, "addresses": [], "foreign": 0}
    assert nodes < 6000


POOR = LoopConfig(budget=Budget(owner_day_tokens=500), max_tokens=1_000, on_budget="ask")
ENGLAND = "\U0001f3f4" + "".join(chr(0xE0000 + ord(one)) for one in "gbeng\x7f")  # its flag
SECRET = "canary-5f0c-correct-horse"
KINDS: dict[str, Any] = {
    "api": AuthRequest(type="pat", provider="github", scopes=["repo"]),
    "code": AuthRequest(
        type="oauth2",
        authorization_endpoint="https://id.example/authorize?a=b",
        client_id="app",
        code_challenge="x" * 43,
    ),
    "plain": None,
}


LONG = 2**53 + 1  # a number of JavaScript would be rounded to 2**53


class Billed(ScriptedProvider):
    """A model whose first answer has an unknown cost; each of the others costs half a dollar."""

    async def stream(self, request: Any, options: Any = None) -> AsyncIterator[Any]:
        """As scripted."""
        async for event in super().stream(request, options):
            if event.type == "done" and len(self.requests) > 1:
                usage = replace(event.message.usage, cost=Cost(total=0.5))
                event = replace(event, message=replace(event.message, usage=usage))  # noqa: PLW2901
            yield event


def _transfers_and_waits(let_go: asyncio.Event) -> Any:
    """A model that asks for an approval, and answers no result of it before *let_go* is set."""

    async def reply(request: Any) -> Any:
        if isinstance(request.messages[-1], UserMessage):
            return tool_call("transfer", account=1, cents=1)
        await let_go.wait()
        return text("I see.")

    return reply


@pytest.mark.long
async def test_a_credential_goes_with_its_answer_and_files_with_their_message(
    browser: Any, modules: Path
) -> None:
    """By keyboard: encrypted in the browser, or as it is, once; kept in no place of the page."""
    used: dict[str, str] = {}

    @tool
    async def push(context: ToolContext) -> str:
        asks = Ask("key", PendingKind.AUTH, "A key, please.", auth=KINDS[context.context_id])
        if "key" not in context.answers:
            raise NeedsInput([asks])
        used[context.context_id] = context.answers["key"]
        return f"pushed with {used[context.context_id]}"

    @tool(needs_approval=True)
    async def transfer(account: int, cents: int, context: ToolContext) -> str:
        sent = {"cents": cents, "to": account}
        await context.artifacts.save("sent.json", sent)
        return json.dumps(sent)

    @tool(needs_approval=True, approval_expires_s=1)
    async def soon() -> str:
        return "in time"

    @tool
    async def note() -> str:
        return "noted"

    asked: list[Any] = []

    async def held(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return text("I see.")

    let_go = asyncio.Event()
    scripts: dict[str, Any] = {
        **{name: [tool_call("push"), text("Pushed.")] for name in KINDS},
        "pages": [tool_call("note"), *[text("Noted.")] * 20],
        "late": [tool_call("soon"), text("Too late.")],
        "held": held,
        "shared": _transfers_and_waits(let_go),
    }

    def build(context_id: str, stores: Stores) -> Agent:
        replies = scripts.get(context_id, [text("I see.")])
        if context_id == "both":
            calls = [tool_call("transfer", account=one, cents=one) for one in (1, 2)]
            replies = [tuple(calls), text("Sent.")]
        if context_id.startswith("account"):
            account = 7 if context_id == "account-short" else LONG
            replies = [tool_call("transfer", account=account, cents=1), text("Sent.")]
        model = ScriptedProvider(replies)
        if context_id == "poor":
            model = Billed([text("I see."), text("More.")])
        config = POOR if context_id == "poor" else LoopConfig()
        tools = [push, transfer, note, soon]
        return Agent(context_id, llm_provider=model, tools=tools, stores=stores, loop_config=config)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        sent: list[tuple[str, str]] = []
        page.tab.on("request", lambda one: sent.append((one.url, one.post_data or "")))
        for name in KINDS:
            auth = AuthContext("local")
            async with host.agent(name, auth) as agent:
                await agent.execute_turn("Push it.", auth)
            await _answers(page, name)
        assert used == {"api": SECRET, "code": SECRET, "plain": SECRET}
        plain = [where for where, body in sent if SECRET in body or SECRET in where]
        assert plain == [f"{url}/contexts/plain/turns"]
        shown = await page.tab.evaluate(
            "() => document.documentElement.outerHTML + JSON.stringify([sessionStorage,"
            " localStorage, history.state, [...document.querySelectorAll('input, textarea')]"
            ".map(one => one.value)])"
        )
        assert "pushed with [redacted]" in shown
        assert SECRET not in shown
        assert SECRET not in repr(stores.state.backend.contexts)
        await _keeps_what_was_typed(page, host)
        await _is_overtaken(page, host, url, let_go)
        await _expires(page, host)
        await _attaches(page, stores)
        await _waits_for_the_server(page)
        await _waits_for_a_budget(page, host)
        await _tells_unknown_costs(page, host)
        await _marks_a_wait_for_the_budget(page)
        await _knows_times_across_pages(page, host)
        await _stops(page, url)
        await _keeps_long_numbers(page, host, stores)


async def _answers(page: Page, name: str) -> None:
    tab, field = page.tab, ".request input[type=password]"
    await tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
    await page.sees(f".contexts a[aria-current]:has-text('{name}')")
    said = SECRET
    await page.tab_to(field)
    if name == "code":
        link = await tab.get_attribute(".request a.button", "href")
        state = re.search(r"authorize\?a=b&.*&state=([\w-]+)$", link)
        assert state is not None
        await page.say(f"https://app.example/back?code={SECRET}&state=other")
        await page.sees(".request .error:has-text('another sign-in')")
        assert await tab.input_value(field) == ""
        said = f"https://app.example/back?code={SECRET}&state={state[1]}"
        await tab.focus(field)
        await page.is_accessible()
    await page.say(said)
    await tab.click(".call.done summary")
    await page.sees("text=pushed with [redacted]", ".turn-end.completed")


async def _keeps_what_was_typed(page: Page, host: AgentHost) -> None:
    """Into one request, while another one is answered."""
    auth = AuthContext("local")
    async with host.agent("both", auth) as agent:
        await agent.execute_turn("Send both.", auth)
    await page.tab.evaluate("location.hash = '#/c/both'")
    await page.sees(".request >> nth=1")
    await page.tab.fill(".request:nth-child(2) input >> nth=1", "5")
    await page.tab.click(".request:nth-child(1) .main")
    await page.sees(".call :text('approved')", ".request:first-child:last-child .main:enabled")
    assert await page.tab.inner_text(".request .main") == "Approve with changes"
    await page.tab.click(".request .main")
    await page.sees(".call.done:has-text('cents: 5')", ".turn-end.completed")


async def _is_overtaken(page: Page, host: AgentHost, url: str, let_go: asyncio.Event) -> None:
    """Two people answer in the same instant: the slower one learns what was decided."""
    auth, turns = AuthContext("local"), f"{url}/contexts/shared/turns"
    async with host.agent("shared", auth) as agent:
        turn = await agent.execute_turn("Send it.", auth)
    denied = {turn.pending[0].request_id: {"approved": False, "reason": "Too much."}}
    statuses: list[int] = []

    async def second(route: Any) -> None:
        async with httpx.AsyncClient(headers=SIGNED_IN, timeout=60) as client:
            statuses.append((await client.post(turns, json={"inputs": denied})).status_code)
        answer = await route.fetch()
        statuses.append(answer.status)
        await route.fulfill(response=answer)

    await page.tab.evaluate("location.hash = '#/c/shared'")
    await page.sees(".request")
    await page.tab.route(turns, second, times=1)
    await page.tab_to(".request .actions .main")
    await page.press("Enter")
    told = "was not taken. Another person had answered already: denied by local: Too much."
    await page.sees(f"[role=alert] .bar:has-text('{told}')")
    assert statuses == [202, 409]
    assert await page.tab.query_selector(".request") is None
    await page.is_accessible()
    let_go.set()
    await page.sees(".turn-end.completed", f".bar:has-text('{told}')")
    await page.tab_to("[role=alert] .bar button", "Shift+Tab")
    await page.press("Enter")
    assert await page.tab.query_selector(".bar") is None


async def _expires(page: Page, host: AgentHost) -> None:
    """Nobody can answer any more, and the turn goes on by keyboard."""
    auth = AuthContext("local")
    async with host.agent("late", auth) as agent:
        await agent.execute_turn(f"Soon.\u202e\u200f\U000e0041{ENGLAND}", auth)
    await page.tab.evaluate("location.hash = '#/c/late'")
    await page.sees(".request time:text-is('has expired')")
    assert await page.tab.query_selector(".request .danger, .request textarea") is None
    later = "one => { one.dateTime = new Date(Date.now() + 600_000).toISOString(); }"
    await page.tab.eval_on_selector(".request time", later)
    await page.sees(".request time:has-text('expires in 9 min')")  # it is counted down
    await page.is_accessible()
    await page.tab_to(".request button.main")
    await page.press("Enter")
    await page.sees(".prose :text('Too late.')", ".turn-end.completed")
    await page.sees("a[aria-label='Timeline of turn 2']")
    title = f"Soon.⟨202E⟩\u200f⟨E0041⟩{ENGLAND}"
    assert (await page.tab.title()).startswith(title)
    await page.sees(f".contexts .title:text-is('{title}')", f".bubble:has-text('{title}')")


async def _waits_for_the_server(page: Page) -> None:
    """A conversation that is opened while it is away comes with it; a failure is told as one."""
    tab, files = page.tab, re.compile(r"/contexts/files($|\?|/messages)")
    first = re.compile(r"/contexts\?limit=1$")
    await tab.route(first, lambda route: route.abort())
    await tab.reload()
    await page.sees("[role=status]:has-text('Reconnecting')")
    await tab.unroute(first)
    await page.sees(".sidebar", "#composer")
    await tab.route(files, lambda route: route.abort())
    await tab.evaluate("location.hash = '#/c/files'")
    await page.sees(".chip.failed:has-text('Reconnecting')", ".chat-title:text-is('files')")
    await tab.unroute(files)
    await page.sees(".chip.ready", ".bubble:has-text('note.md')")
    stream, said = re.compile(r"/contexts/both/events"), {"error": {"code": "internal_error"}}
    asked: list[Any] = []

    async def fail(route: Any) -> None:
        asked.append(route)
        body = f"event: problem\ndata: {json.dumps(said)}\n\n"
        await route.fulfill(body=body, content_type="text/event-stream")

    await tab.route(stream, fail)
    await tab.evaluate("location.hash = '#/c/both'")
    await page.sees(".chip.failed:has-text('has a problem')", ".call.done")
    while len(asked) < 2:
        await page.sees(".chip.failed:has-text('has a problem')")
    await tab.unroute(stream)
    await page.sees(".chip.ready")
    await tab.evaluate("location.hash = '#/c/never'")
    await page.sees("text=There is no conversation of this name")


async def _attaches(page: Page, stores: Stores) -> None:
    """Chosen, pasted and dropped; one that is too large is refused before it is sent."""
    tab, choosers = page.tab, asyncio.Queue[Any]()
    tab.on("filechooser", choosers.put_nowait)
    await tab.evaluate("location.hash = '#/c/files'")
    await page.tab_to("button.attach")
    await page.press("Enter")
    png = b64decode(PNG)
    await (await choosers.get()).set_files(
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": png},
            {"name": "note.md", "mimeType": "", "buffer": b"A note."},
            {"name": "big.bin", "mimeType": "", "buffer": b"\0" * 800_000},
        ]
    )
    await page.sees(".alert:has-text('big.bin has 800.0 kB and does not fit')")
    await page.sees(".attached li:has-text('note.md')", ".hint:has-text('of 783.4 kB')")
    given = "const given = new DataTransfer(); given.items.add(new File(['x'], 'x.txt'));"
    for made in (
        "new ClipboardEvent('paste', {clipboardData: given, bubbles: true})",
        "new DragEvent('drop', {dataTransfer: given, bubbles: true})",
    ):
        at = "document.querySelector('.scroller')"
        await tab.evaluate(f"{{ {given} {at}.dispatchEvent({made}) }}")
        await page.sees(".attached li:has-text('x.txt')")
        await page.tab_to("button[aria-label='Remove x.txt']")
        await page.press("Enter")
        await page.sees(".attached li:has-text('note.md') >> nth=0", ".attached button:focus")
    await page.is_accessible()
    await page.tab_to("#composer")
    await page.say("See these.")
    await page.sees(".bubble img.picture", ".bubble:has-text('note.md')", ".turn-end.completed")
    await page.sees("#composer:focus")
    assert not await tab.is_visible(".attached")
    [said] = [m for m in await stores.messages.list("files") if isinstance(m, UserMessage)]
    assert list(said.content) == [
        TextContent("See these."),
        ImageContent(PNG, mime_type="image/png"),
        DocumentContent(b64encode(b"A note.").decode(), mime_type="text/markdown", name="note.md"),
    ]
    await tab.click("a[aria-label='Replay turn 1']")
    await tab.fill("#beside-message", "Look again.")
    await tab.click(".again button.main")
    await page.sees(".beside-head .chip.wait:text-is('1 part differs')", ".row.differs mark")
    [fork] = [name for _, name in stores.state.backend.contexts if "-replay-" in name]
    [again] = [m for m in await stores.messages.list(fork) if isinstance(m, UserMessage)]
    assert list(again.content) == [TextContent("Look again."), *said.content[1:]]
    await _rewinds_and_forks(page)


async def _stops(page: Page, url: str) -> None:
    """By keyboard; a message that waited for the turn is kept, and goes when somebody says so."""
    await page.tab.evaluate("location.hash = '#/c/held'")
    await page.tab_to("#composer")
    await page.say("Begin.")
    await page.sees(".chip.running")
    await page.tab.keyboard.type("And later.")
    await page.tab_to(".composer .danger + button")
    await page.press("Enter")
    await page.sees(".queued .bubble:has-text('When the turn ends')")
    await page.tab_to(".composer .danger", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".turn-end.cancelled", ".queued .bubble:has-text('Waits for the next turn')")
    await page.is_accessible()
    await page.tab.reload()
    await page.sees(".queued .bubble:has-text('And later.')")
    await page.tab_to(".queued button.main")
    await page.press("Enter")
    await page.sees(".log .bubble:has-text('And later.')", ".turn-end.completed")
    assert not await page.tab.is_visible(".queued .bubble")
    assert "I see. The turn has ended" in await page.tab.inner_text("#announcer")
    async with httpx.AsyncClient(headers=SIGNED_IN, timeout=60) as client:
        assert (await client.delete(f"{url}/contexts/held")).status_code == 204
    await page.sees(".welcome", ".alert:has-text('This conversation was deleted.')")


async def _rewinds_and_forks(page: Page) -> None:
    """By keyboard; the message comes back to its field, and the way back is in sight."""
    await page.tab_to(".panel-head a", "Shift+Tab")
    await page.press("Enter")
    await page.tab_to("button[aria-label='Rewind to before turn 1']", "Shift+Tab")
    await page.press("Enter")
    await page.tab_to("dialog[open] button.main")
    await page.press("Enter")
    await page.sees(".bar:has-text('was rewound')", "#composer:focus")
    assert await page.tab.input_value("#composer") == "See these."
    await page.tab.wait_for_selector(".turn-end", state="hidden")
    await page.sees(".lease:has-text('1 turn (2 messages hidden by a rewind), no process')")
    await page.tab.evaluate("location.hash = '#/c/files/timeline/1'")
    await page.sees(".panel .notice:has-text('Hidden by a rewind')")
    await page.tab.click(".chat-tools a:has-text('Usage')")
    await page.sees(".panel .tiles:has-text('1 (1 hidden)')")
    await page.is_accessible()
    await page.tab.click(".panel-head a")
    await page.tab_to(".bar button", "Shift+Tab")
    await page.press("Enter")
    await page.tab_to("button[aria-label='Fork here, after turn 1']", "Shift+Tab")
    await page.press("Enter")
    await page.sees(".contexts a[aria-current]:has-text('files-fork-')", ".turn-end.completed")


async def _waits_for_a_budget(page: Page, host: AgentHost) -> None:
    """The line below the turn, the status and the bars name it; then it was raised."""
    tab = page.tab
    assert not await tab.is_visible(".budget")  # no agent so far had one
    await tab.evaluate("location.hash = '#/c/poor'")
    await page.tab_to("#composer", "Shift+Tab")
    await page.say("Hi.")
    await page.sees(".turn-end:has-text('Turn 1: waits for your budget of the day to be raised')")
    await page.sees(".bar:has-text('Budget.owner_day_tokens')", ".chip.waiting:has-text('budget')")
    await page.tab_to(".bar button.main")
    await page.press("Enter")  # nobody has raised it
    await page.sees(".bar:has-text('Turn 2 waits')")
    assert not await tab.is_visible(".notice")  # the bar says it
    await page.tab_to(".budget summary")
    await page.press("Enter")
    await page.sees(".budget-rows:has-text('0 of 500 tokens')")
    await page.is_accessible()
    await tab.set_viewport_size({"width": 375, "height": 780})
    await page.is_accessible()
    await page.tab_to("a.back")
    await page.press("Enter")
    await page.sees(".budget .budget-bar >> nth=1")
    await page.is_accessible()
    wide = "one => one.scrollWidth > one.clientWidth"
    assert not await tab.eval_on_selector(".budget", wide)
    await tab.set_viewport_size({"width": 1440, "height": 900})
    async with host.agent("poor", AuthContext("local")) as agent:
        more = Budget(owner_day_tokens=50_000, owner_day_cost_usd=5.0, unknown_cost="ignore")
        agent.loop_config = replace(POOR, budget=more)
    await tab.evaluate("location.hash = '#/c/poor/usage'")
    plotted = ".plot:has-text('Tokens by turn') svg"
    await page.sees(plotted)
    ticks = tab.locator(f"{plotted} > text")
    assert await ticks.all_text_contents() == ["0"]
    assert not await tab.eval_on_selector(".lease", wide)  # beside the panel
    await page.tab_to(".bar button.main")
    await page.press("Enter")
    await page.sees(".turn-end:has-text('Turn 1: waited for the budget, and was continued')")
    for place in (".budget", ".panel"):
        settled = "[aria-label*=' of 50,000 tokens, 49,9'][aria-label$=' left']"
        await page.sees(f"{place} .budget-rows li:has-text(' of 50,000 tokens') svg{settled}")
        await page.sees(f"{place} .budget-rows li:has-text('an unknown cost of $5.00')")
        assert not await tab.eval_on_selector(f"{place} .budget-rows", wide)
    await page.is_accessible()


async def _tells_unknown_costs(page: Page, host: AgentHost) -> None:
    """In the sum, the plot and the table: never as zero."""
    tab = page.tab
    await page.sees(".panel .tiles:has-text('unknown')")
    async with host.agent("poor", AuthContext("local")) as agent:
        await agent.execute_turn("More.", AuthContext("local"))
    await tab.reload()
    await page.sees(".panel .tiles:has-text('$0.50 + unknown')")
    plot = tab.locator(".panel .plot:has-text('Cost by turn')")
    told = await plot.locator("title").all_text_contents()
    assert told == ["Turn 1: 0", "Turn 2: 0", "Turn 3: unknown", "Turn 4: cost $0.50"]
    assert await plot.locator("g:has-text('?')").count() == 1
    label = await plot.locator("svg").get_attribute("aria-label")
    assert label.endswith("unknown, at least in part: 1 turn")
    await tab.click(".panel summary:has-text('As a table')")
    rows = await tab.locator(".panel .fold tbody tr").all_inner_texts()
    assert [row.split()[-1] for row in rows] == ["–", "–", "unknown", "$0.50"]
    sums = "async (all) => (await import('/ui/text.js')).costOfAll(all)"  # timelines and replays
    assert await tab.evaluate(sums, [{"cost": {"total": 0.5}}, {"cost": None}]) == "$0.50 + unknown"
    await page.is_accessible()


async def _marks_a_wait_for_the_budget(page: Page) -> None:
    await page.tab.evaluate("location.hash = '#/c/poor/timeline/1'")
    await page.sees(".panel .legend:has-text('$ budget')")
    assert await page.tab.locator(".panel .mark.budget text").all_text_contents() == ["$", "$"]
    titles = await page.tab.locator(".panel .mark title").all_text_contents()
    waits = re.compile(r"[\d:]+ Waits for the budget: .*Budget\.owner_day_tokens")
    assert [bool(waits.match(one)) for one in titles] == [True, True], titles
    assert not await page.tab.is_visible(".panel .legend:has-text('question')")
    await page.tab.set_viewport_size({"width": 375, "height": 780})
    narrow = "one => one.offsetWidth <= one.parentElement.clientWidth"
    assert await page.tab.eval_on_selector(".panel .facts-table", narrow)
    await page.is_accessible()
    await page.tab.set_viewport_size({"width": 1440, "height": 900})
    await page.tab.evaluate("location.hash = '#/c/poor/timeline/99'")
    await page.sees(".panel .empty:has-text('There is no turn 99. Turn 4 is the newest.')")
    assert await page.tab.query_selector("svg.timeline") is None


async def _knows_times_across_pages(page: Page, host: AgentHost) -> None:
    """A page of messages begins with the result of a call, which lies on the page before it."""
    async with host.agent("pages", AuthContext("local")) as agent:
        for _ in range(20):
            await agent.execute_turn("Note it.", AuthContext("local"))
    await page.tab.evaluate("location.hash = '#/c/pages'")
    await page.sees(".contexts a[aria-current]:has-text('pages')", ".call:has-text('note')")
    await page.tab.click("button:has-text('earlier messages')")
    await page.sees(".log .bubble >> nth=19", ".call.done:has-text('note') .faint:has-text('ms')")


async def _keeps_long_numbers(page: Page, host: AgentHost, stores: Stores) -> None:
    """Read, shown, typed and sent exactly; a browser that would round one does not send it."""
    tab, cents = page.tab, ".request .field:has-text('cents') input"

    async def asks(name: str) -> None:
        async with host.agent(name, AuthContext("local")) as agent:
            await agent.execute_turn("Send it.", AuthContext("local"))
        await tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
        await page.sees(f".contexts a[aria-current]:has-text('{name}')", ".request")

    async def sent(name: str, cents: int, account: int) -> None:
        await page.sees(".turn-end.completed")
        [said] = [m for m in await stores.messages.list(name) if isinstance(m, ToolResultMessage)]
        assert json.loads(said.text.splitlines()[-1]) == {"cents": cents, "to": account}

    await asks("account-edited")
    assert await tab.locator(".request input[type=number]").count() == 2
    await tab.fill(cents, f"{LONG}.0")
    await tab.click(".request .actions .main")
    await page.sees(".request .error:has-text('in digits alone')")
    await tab.fill(cents, str(LONG + 2))
    await page.tab_to(".request .actions .main")
    await page.press("Enter")
    await sent("account-edited", LONG + 2, LONG)
    await tab.click(".call.done summary")
    await page.sees(f".labelled:has-text('a person gave') code:has-text('\"cents\": {LONG + 2}')")
    await asks("account-same")
    await tab.fill(cents, "2")
    await page.sees(".request .actions .main:text-is('Approve with changes')")
    await tab.fill(cents, "1")
    await page.sees(".request .actions .main:text-is('Approve')")
    await tab.click("text=Edit as JSON")
    await tab.click(".request .actions .main:text-is('Approve')")
    await sent("account-same", 1, LONG)
    await tab.click(".call.done summary")
    for one in ("account", "to"):  # what it was given, and what it returned
        await page.sees(f".call-body code:has-text('\"{one}\": {LONG}')")
    await tab.click(".chip.artifact")
    await page.sees(f"dialog[open] code:has-text('\"to\": {LONG}')")

    await tab.add_init_script("delete JSON.rawJSON")  # as in a browser of 2024
    await tab.reload()
    await asks("account-short")
    await tab.fill(cents, str(LONG))
    await tab.click(".request .actions .main")
    await page.sees(".request .error:has-text('rounds a number in it')")
    await tab.fill(cents, "2")
    await tab.click(".request .actions .main")
    await sent("account-short", 2, 7)
    await asks("account-old")
    await page.sees(".request:has-text('shows a number rounded here')")
    assert await tab.locator(".request input").count() == 0
    await tab.click(".request .actions .main")
    await sent("account-old", 1, LONG)
