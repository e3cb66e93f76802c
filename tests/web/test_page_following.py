"""The page of `looopy serve` in Chromium: one conversation, followed once and to its end."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.web.page import Page, opened, served_here
from tests.web.served import TOKEN

from looopy import Agent, AuthContext, Stores, ToolContext, UserMessage, open_stores, tool
from looopy.errors import RateLimited
from looopy.llm import (
    LLMRequest,
    RateLimits,
    RateQuota,
    Reroute,
    StreamEvent,
    StreamOptions,
)
from looopy.server import AgentHost
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.types.state import AgentStatus

pytestmark = pytest.mark.long
AUTH = AuthContext("local")
FOLLOWING = re.compile(r"/events\?.*include=")
ENDS_A_WORD = """(field) => {
    const enter = {key: "Enter", keyCode: 229, bubbles: true, cancelable: true};
    field.dispatchEvent(new KeyboardEvent("keydown", enter));
}"""
HIDE = """([hidden]) => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
LOADED_AGAIN = """async (name) => {
    const {Conversation} = await import("/ui/conversation.js");
    const made = new Conversation(name);
    made.turns.set(99, {turn: 99, ended_at: "2026-11-01T00:00:00Z"});
    made.newest = 999;
    await made.load();
    made.close();
    return [made.turns.has(99), made.newest === 999, made.turns.has(21)];
}"""
MANY_CALLS = """async ([messages, calls]) => {
    const {Conversation} = await import("/ui/conversation.js");
    const made = new Conversation("x");
    made.record = {};
    let position = 0;
    const said = (message) => made.ended({position: (position += 1), turn: 1, message});
    for (let i = 0; i < messages; i += 1) {
        const ids = Array.from({length: calls}, (_, number) => `${i}-${number}`);
        said({role: "assistant", content: ids.map((id) => ({type: "toolCall", id}))});
        for (const id of ids) made.decided({tool_call_id: id});
        for (const id of ids) said({role: "toolResult", tool_call_id: id, content: []});
    }
    const roles = [...made.entries.values()].map((one) => one.message.role);
    const [answers, results] = ["assistant", "toolResult"].map(
        (role) => roles.filter((one) => one === role).length,
    );
    return [answers, results, made.calls.size, made.callers.size, made.decisions.size];
}"""
MESSAGES = re.compile(r"/messages\?before=")
SCROLLED_UP = """() => {
    document.querySelector(".scroller").scrollTop = 0;
    return !document.querySelector(".newest").hidden;
}"""
CUT_ONCE = """() => {
    const {fetch} = window;
    window.fetch = async (...given) => {
        const answer = await fetch(...given);
        if (!answer.ok || !answer.url.includes("/messages?")) return answer;
        window.fetch = fetch;
        const cut = (body) => body.error(new TypeError("network error"));
        return new Response(new ReadableStream({start: cut}));
    };
}"""
SILENT_ONCE = """() => {
    const {fetch} = window;
    window.fetch = async (url, options) => {
        if (!String(url).includes("include=thinking")) return fetch(url, options);
        window.fetch = fetch;
        const {signal} = options;
        const silent = (body) => signal.addEventListener("abort", () => body.error(signal.reason));
        return new Response(new ReadableStream({start: silent}));
    };
}"""
TURNS = re.compile(r"/turns$")


class World(NamedTuple):
    """A server, the page, and what lets go of the calls of a conversation that wait."""

    page: Page
    url: str
    host: AgentHost
    stores: Stores
    let_go: defaultdict[str, asyncio.Event]

    async def hears(self, name: str, *said: str) -> None:
        """Run turns in a conversation, beside the page."""
        async with self.host.agent(name, AUTH) as agent:
            for one in said:
                await agent.execute_turn(one, AUTH)

    async def shows(self, name: str, *said: str) -> None:
        """Show a conversation, with messages said before."""
        await self.hears(name, *said)
        await self.page.tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
        await self.page.sees(f".contexts a[aria-current]:has-text('{name}')")

    async def waits(self, name: str) -> None:
        """Begin a turn in a new conversation, which waits in a call."""
        await self.page.tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
        await self.page.sees("text=There is no conversation of this name")
        await self.page.tab.focus("#composer")
        await self.page.say("Wait.")
        await self.page.sees(".call.running", ".chip.running")


def _reply(request: Any) -> Any:
    """Play the model: it waits if it is told to, and else repeats what it was told."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return text("Waited.")
    if last.text == "Busy.":
        return failure(RateLimited("no more requests", retry_after_s=40.0))
    return tool_call("wait") if last.text == "Wait." else text(f"Said: {last.text}")


class Model(ScriptedProvider):
    """Plays `_reply`; to `Limits.` and `Other.` its server reports a limit and another model."""

    async def stream(
        self, request: LLMRequest, options: StreamOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Report, then play."""
        said = request.messages[-1].text
        report = None if options is None else options.report
        if report is not None and said == "Limits.":
            limit = RateQuota(kind="input_tokens", left=1600, limit=8000)
            report(RateLimits(provider="p", model="m", limits=[limit]))
        if report is not None and said == "Other.":
            report(Reroute(asked="p/m", answered="p/<b>n", by="server"))
        async for event in super().stream(request, options):
            yield event


@asynccontextmanager
async def _world(browser: Any, modules: Path) -> AsyncIterator[World]:
    let_go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @tool
    async def wait(context: ToolContext) -> str:
        """Wait."""
        await let_go[context.context_id].wait()
        return "waited"

    def build(context_id: str, stores: Stores) -> Agent:
        model = Model(_reply, chunk_chars=8)
        return Agent(context_id, llm_provider=model, tools=[wait], stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        try:
            yield World(page, url, host, stores, let_go)
        finally:
            for one in let_go.values():
                one.set()


async def test_a_conversation_is_followed_whatever_happens_to_its_requests(
    browser: Any, modules: Path
) -> None:
    """They are refused, late, sent twice or lost: nothing is missed, and nothing comes twice."""
    async with _world(browser, modules) as world:
        await _is_not_deleted_while_it_runs(world)
        await _is_followed_once(world)
        await _is_sent_once(world)
        await _is_loaded_anew(world)
        await _is_opened_at_last(world)
        await _is_taken_before_the_answer(world)
        await _is_queued_once(world)
        await _forgets_old_calls(world)


async def test_paused_conversation_is_shown_as_paused(browser: Any, modules: Path) -> None:
    """In the list and the heading, in words of its own, until a turn begins."""
    async with _world(browser, modules) as world:
        await world.hears("left", "One.")
        for status, chip, listed in (
            (AgentStatus.PAUSED, ".chip.paused:has-text('Paused')", "paused"),
            (AgentStatus.SHUTDOWN, ".chip.resting:has-text('At rest')", ":"),
        ):
            record = await world.host.current("left", AUTH)
            await world.stores.state.leave("left", record.epoch, status)
            await world.shows("other", "One.")
            await world.shows("left")
            await world.page.sees(chip, f".contexts a[aria-current] .faint:has-text('{listed}')")
        await world.hears("left", "Two.")
        await world.page.sees(".chip.ready:has-text('Ready')")
        assert world.page.wrong == []


async def test_a_tab_finds_its_way_in_and_to_the_message_field(browser: Any, modules: Path) -> None:
    """By keyboard, and with a token in the address."""
    async with _world(browser, modules) as world:
        await world.page.tab.clock.install()
        await _is_signed_in(world)
        await _is_skipped_to(world)
        await _is_missed_when_it_is_silent(world)
        await _rests_while_it_is_hidden(world)
        await _comes_again_when_it_is_told(world)
        await _counts_down_while_the_model_is_busy(world)
        await _tells_limits_and_other_models(world)
        await _tells_that_the_server_is_away(world)


async def _is_signed_in(world: World) -> None:
    """By the printed link in a tab that asks for a token, or shows a conversation already."""
    tab, asked = world.page.tab, []
    tab.on("request", lambda one: asked.append(one.url))
    link = f"{world.url}/ui#token={TOKEN}"
    for wrong in ("100%", "other", TOKEN + "%E2%80%A6"):
        await tab.evaluate("wrong => { location.hash = `#token=${wrong}`; }", wrong)
        await world.page.sees(".login #token:focus", ".error:has-text('does not know this token')")
        assert await tab.evaluate("location.href") == f"{world.url}/ui"
    await tab.fill("#token", TOKEN + "\u2026")
    await world.page.press("Enter")
    await world.page.sees(".login .error:has-text('does not know this token')")
    await tab.goto(f"{world.url}/ui?again")
    await world.page.sees(".login #token:focus")
    await tab.fill("#token", "typed")
    del asked[:]
    await tab.clock.fast_forward(9_000)
    await tab.evaluate("async () => { await fetch('/readyz'); }")
    assert not any("/contexts" in one for one in asked), "nobody is signed in"
    assert await tab.input_value("#token") == "typed"
    await tab.goto(link)
    await world.page.sees(".sidebar", "text=No conversation yet.")
    await world.shows("link", "One.")
    await tab.goto(link)
    await world.page.sees(".sidebar", ".contexts:has-text('One.')")
    assert await tab.evaluate("location.href") == f"{world.url}/ui"


async def _is_skipped_to(world: World) -> None:
    """The first link of the tab leads to the message field, or to the panel that covers it."""
    tab = world.page.tab
    await world.shows("skip", "One.")
    await world.page.sees(".turn-end.completed")
    await world.page.tab_to(".skip", "Shift+Tab")
    await world.page.press("Enter")
    await world.page.sees("#composer:focus", ".turn-end.completed")
    await tab.set_viewport_size({"width": 320, "height": 640})
    await tab.evaluate("location.hash = '#/c/skip/usage'")
    await world.page.sees(".panel .tiles")
    await world.page.is_accessible()
    await world.page.tab_to(".skip", "Shift+Tab")
    await world.page.press("Enter")
    await world.page.sees(".panel-body:focus", ".panel .tiles")
    await tab.set_viewport_size({"width": 1440, "height": 900})


async def _is_missed_when_it_is_silent(world: World) -> None:
    """A stream that brings not even the comments of the server is opened again."""
    tab = world.page.tab
    await tab.evaluate(SILENT_ONCE)
    await world.shows("silent", "One.")
    await world.page.sees(".chip.ready")
    await world.hears("silent", "Two.")
    async with tab.expect_request(FOLLOWING):
        await tab.clock.fast_forward(46_000)
    await world.page.sees(".log .prose:has-text('Said: Two.')", ".chip.ready")


async def _rests_while_it_is_hidden(world: World) -> None:
    """It leaves the stream to other tabs, and then shows what has come meanwhile."""
    tab, opened_streams = world.page.tab, []
    await world.shows("hidden", "One.")
    await world.page.sees(".chip.ready")
    for seconds in (10, 31):
        await tab.evaluate(HIDE, [True])
        if seconds == 10:  # it comes back in time
            await tab.clock.fast_forward(10_000)
        else:
            async with tab.expect_event("requestfailed", lambda one: FOLLOWING.search(one.url)):
                await tab.clock.fast_forward(31_000)
            tab.on("request", lambda one: opened_streams.extend(FOLLOWING.findall(one.url)))
            await world.hears("hidden", "Two.")
            await tab.clock.fast_forward(31_000)
            await tab.evaluate("async () => { await fetch('/readyz'); }")
            assert opened_streams == []
        await tab.evaluate(HIDE, [False])
    await world.page.sees(".log .prose:has-text('Said: Two.')", ".chip.ready")
    assert len(opened_streams) == 1


async def _comes_again_when_it_is_told(world: World) -> None:
    """A stream too many is told as one, and is not asked for before its time."""
    tab, asked = world.page.tab, []
    limit = {"error": {"code": "limit_exceeded", "message": "20 streams of one actor"}}

    async def refuse(route: Any) -> None:
        asked.append(route)
        if len(asked) == 1:
            await route.fulfill(status=429, headers={"Retry-After": "7"}, json=limit)
        else:
            await route.continue_()

    await tab.route(FOLLOWING, refuse)
    await world.shows("limit", "One.")
    await world.page.sees(".chip.failed:has-text('no more for now: 20 streams of one actor.')")
    await tab.set_viewport_size({"width": 320, "height": 640})
    within = "one => one.getBoundingClientRect().right <= innerWidth"
    assert await tab.eval_on_selector(".chip.failed", within)
    await world.page.is_accessible()
    await tab.set_viewport_size({"width": 1440, "height": 900})
    await tab.clock.fast_forward(5_000)
    await tab.evaluate("async () => { await fetch('/readyz'); }")
    assert len(asked) == 1
    await tab.clock.fast_forward(3_000)
    await world.page.sees(".chip.ready")
    assert len(asked) == 2
    await tab.unroute_all()


async def _counts_down_while_the_model_is_busy(world: World) -> None:
    """By the length of the wait, as the clock of this machine is wrong, and to the turn's end."""
    tab = world.page.tab
    await world.shows("busy", "One.")
    await world.page.sees(".chip.ready")
    await world.page.say("Busy.")
    await world.page.sees("#announcer:has-text('The model is busy. Trying again in 40 s.')")
    await world.page.sees(".notice small:has-text('no more requests')")
    await tab.clock.fast_forward(28_000)
    await world.page.sees(".notice:text-matches('is busy[.] Trying again in (1[0-2]|[1-9]) s[.]')")
    await tab.clock.fast_forward(12_000)
    await world.page.sees(".notice:text-matches('is busy[.] Trying again[.]')")
    await tab.click(".composer button:has-text('Stop')")
    await world.page.sees(".turn-end.cancelled")
    assert await tab.is_hidden(".notice")


async def _tells_limits_and_other_models(world: World) -> None:
    """The sentence stays beside the answer, until the next turn."""
    await world.shows("limits", "One.")
    await world.page.sees(".chip.ready")
    await world.page.tab.focus("#composer")
    for said, notice in (
        ("Limits.", "The model may soon be busy: 1,600 of 8,000 input tokens are left."),
        ("Other.", "p/<b>n answers instead of p/m."),
    ):
        await world.page.say(said)
        await world.page.sees(f".log .prose:has-text('Said: {said}')", ".chip.ready")
        assert await world.page.tab.inner_text(".notice") == notice
    await world.page.is_accessible()
    await world.page.say("Two.")
    await world.page.sees(".log .prose:has-text('Said: Two.')")
    assert await world.page.tab.is_hidden(".notice")


async def _tells_that_the_server_is_away(world: World) -> None:
    """A screen reader learns it, and what becomes of a message; another alert stays."""
    tab = world.page.tab
    await world.shows("away", "One.")
    await world.page.sees(".chip.ready")
    large = {"name": "big.bin", "mimeType": "", "buffer": b"x" * 800_000}
    await tab.set_input_files("input[type=file]", large)
    await world.page.sees(".alert:has-text('big.bin has 800.0 kB')")
    everything = re.compile(r"/contexts")
    await tab.route(everything, lambda route: route.abort())
    await tab.clock.fast_forward(46_000)
    await world.page.sees("#announcer:has-text('Reconnecting')", ".chip.failed")
    await tab.fill("#composer", "Two.")
    await world.page.press("Enter")
    await world.page.sees("#announcer:has-text('Try again when it is back')")
    assert await tab.input_value("#composer") == "Two."
    await tab.unroute(everything)
    await world.page.sees("#announcer:has-text('The server answers again')", ".chip.ready")
    await world.page.sees(".alert:has-text('big.bin has 800.0 kB')")


async def test_a_draft_and_its_files_stay_with_their_conversation(
    browser: Any, modules: Path
) -> None:
    """It stays whole in its conversation until it is sent, and is gone then."""
    async with _world(browser, modules) as world:
        await _keeps_drafts(world)
        await _keeps_files(world)
        await _keeps_its_name(world)


async def _keeps_drafts(world: World) -> None:
    """Whole, or the page says that it cannot; a message that was sent comes back nowhere."""
    tab = world.page.tab
    await world.hears("other", "One.")
    await world.shows("draft", "One.")
    for room, size in ((0, 150_000), (5_000_000, 500_000)):
        await tab.evaluate("room => { sessionStorage.room = 'x'.repeat(room); }", room)
        await tab.fill("#composer", "y" * size)
        if room:
            await world.page.sees(".hint:has-text('too long for the tab to keep')")
        await world.shows("other")
        await world.page.sees(".hint:has-text('Enter sends')")
        await world.shows("draft")
        assert len(await tab.input_value("#composer")) == (0 if room else size)
    await tab.evaluate("delete sessionStorage.room")
    await tab.fill("#composer", "Sent.")
    here, until = await world.page.delayed(TURNS)
    await world.page.press("Enter")
    await here.wait()
    await world.shows("other")
    async with tab.expect_response(TURNS):
        until.set()
    await world.shows("draft")
    await world.page.sees(".log .prose:has-text('Said: Sent.')")
    assert await tab.input_value("#composer") == ""
    await tab.unroute_all()


async def _keeps_files(world: World) -> None:
    """Attached while another message is sent; none goes to the conversation that is shown next."""
    tab = world.page.tab
    file = {"name": "next.txt", "mimeType": "text/plain", "buffer": b"x"}
    here, until = await world.page.delayed(re.compile(r"/openapi.json$"))
    await world.shows("files", "One.")
    await tab.set_input_files("input[type=file]", file)
    await here.wait()
    await world.shows("more", "One.")
    await world.page.sees(".chip.ready")
    async with tab.expect_response(re.compile(r"/openapi.json$")):
        until.set()
    here, until = await world.page.delayed(TURNS)
    await tab.fill("#composer", "Two.")
    await tab.focus("#composer")
    await world.page.press("Enter")
    await here.wait()
    await tab.set_input_files("input[type=file]", {**file, "name": "last.txt"})
    await world.page.sees(".attached li:has-text('last.txt')")
    until.set()
    await world.page.sees(".log .prose:has-text('Said: Two.')", "#composer:placeholder-shown")
    assert await tab.locator(".attached li .name").all_inner_texts() == ["last.txt"]
    await world.page.say("Three.")
    await world.page.sees(".log .bubble:has-text('last.txt')", ".log .prose:has-text('Three.')")
    assert "next.txt" not in await tab.inner_text("main")
    assert not await tab.is_visible(".attached")
    await tab.unroute_all()


async def _keeps_its_name(world: World) -> None:
    """The first message names a conversation, though it lies on another page."""
    await world.hears("name", "The name.", *["More."] * 20)
    await world.shows("name")
    await world.page.sees(".chat-title:text-is('The name.')", ".older:visible")
    assert await world.page.tab.title() == "The name. \u00b7 looopy"
    stale = await world.page.tab.evaluate(LOADED_AGAIN, "name")
    assert stale == [False, False, True]  # the log of another database has the same name


async def _is_not_deleted_while_it_runs(world: World) -> None:
    """The refusal ends nothing: the page sees the turn end. Then the conversation goes."""
    page = world.page
    await world.waits("kept")
    await page.tab.evaluate("location.hash = '#/c/kept/usage'")
    await page.sees(".panel .tiles")
    await page.tab.click(".chat-tools button:text-is('Delete')")
    await page.sees("dialog h2:text-is('Delete the conversation “Wait.”?')")
    await page.is_accessible()
    await page.tab.go_back()
    await page.tab.wait_for_selector("dialog", state="detached")
    await page.sees(".chip.running")
    await page.tab.click(".chat-tools button:text-is('Delete')")
    await page.tab.click("dialog .main")
    await page.sees(".alert:has-text('A turn runs here. Stop it')")
    world.let_go["kept"].set()
    await page.sees(".turn-end.completed", ".chip.ready")
    await page.tab.click(".chat-tools button:text-is('Delete')")
    await page.tab.click("dialog .main")
    await page.sees(".welcome", ".contexts .empty")
    assert not await page.tab.is_visible(".alert")


async def _is_followed_once(world: World) -> None:
    """Somebody sends while the page waits for a server that was away."""
    tab, streams = world.page.tab, []
    tab.on("request", lambda one: streams.append(one.url) if FOLLOWING.search(one.url) else None)
    await world.hears("once", "One.")
    here, until = await world.page.delayed(re.compile(r"/contexts/once$"))
    await tab.evaluate("location.hash = '#/c/once'")
    await here.wait()
    await tab.focus("#composer")
    async with tab.expect_response(TURNS):
        await world.page.say("Two.")
    until.set()
    for said in ("Two.", "Three."):
        await world.page.sees(f".log .prose:has-text('Said: {said}')", ".chip.ready")
        if said == "Two.":
            await world.page.say("Three.")
    assert len(streams) == 1, streams
    await tab.unroute_all()


async def _is_sent_once(world: World) -> None:
    """Enter that is pressed twice, or held down, sends one message of a new conversation."""
    tab, sent = world.page.tab, []
    tab.on("request", lambda one: sent.append(one) if TURNS.search(one.url) else None)
    await tab.evaluate("location.hash = '#/new'")
    await world.page.sees("text=A new conversation. It begins")
    here, until = await world.page.delayed(TURNS)
    await tab.fill("#composer", "Once.")
    await world.page.press("Enter")
    await here.wait()
    await world.page.press("Enter")
    await tab.fill("#composer", "Another.")
    until.set()
    await world.page.sees(".log .prose:has-text('Said: Once.')", ".chip.ready")
    assert await tab.input_value("#composer") == "Another."
    await tab.fill("#composer", "Composed.")
    await tab.eval_on_selector("#composer", ENDS_A_WORD)
    await tab.fill("#composer", "Another.")
    await tab.focus("#composer")
    for _ in range(3):
        await tab.keyboard.down("Enter")
    await tab.keyboard.up("Enter")
    await world.page.sees(".log .prose:has-text('Said: Another.')", ".chip.ready")
    assert [one.post_data_json["message"] for one in sent] == ["Once.", "Another."]
    await tab.unroute_all()


async def _is_loaded_anew(world: World) -> None:
    """After a rewind, while the next turn runs; a request that fails is made again."""
    tab = world.page.tab
    await world.shows("anew", "One." + "\n\nAnd more." * 40, "Two.")
    await world.page.sees(".turn-end >> nth=1", ".chip.ready")
    here, until = await world.page.delayed(MESSAGES)
    async with world.host.agent("anew", AUTH) as agent:
        await agent.rewind(2)
        await here.wait()
        await agent.execute_turn("Three.", AUTH)
    until.set()
    await world.page.sees(".lease:has-text('3 turns')", ".log .prose:has-text('Said: Three.')")
    said = await tab.locator(".log .bubble").all_inner_texts()
    assert [one[:4] for one in said] == ["One.", "Thre"]
    await tab.unroute_all()

    failed: list[Any] = []

    async def fail(route: Any) -> None:
        failed.append(route)
        await (route.abort() if len(failed) == 1 else route.continue_())

    await tab.wait_for_function(SCROLLED_UP)
    await tab.route(MESSAGES, fail)
    async with world.host.agent("anew", AUTH) as agent:
        await agent.rewind(3)
    await tab.wait_for_selector(".log .bubble:has-text('Three.')", state="detached")
    await world.page.sees(".log .bubble:has-text('One.')", ".chip.ready", ".newest:visible")
    assert await tab.eval_on_selector(".scroller", "one => one.scrollTop") == 0
    await tab.unroute_all()


async def _is_opened_at_last(world: World) -> None:
    """The server fails once, and once it dies amid its answer."""
    tab, failed = world.page.tab, []
    failure = {"error": {"code": "internal_error", "message": "the server failed"}}

    async def fail(route: Any) -> None:
        failed.append(route)
        if len(failed) == 1:
            await route.fulfill(status=500, json=failure)
        else:
            await route.continue_()

    await tab.evaluate(CUT_ONCE)
    await tab.route(MESSAGES, fail)
    await world.shows("late", "One.")
    await world.page.sees(".log .prose:has-text('Said: One.')", ".chip.ready")
    assert len(failed) == 3
    assert not await tab.is_visible(".alert")
    await world.hears("late", "Two.")
    await world.page.sees(".log .prose:has-text('Said: Two.')")  # it is followed
    gone = {"error": {"code": "context_not_found", "message": "there is none"}}
    inbox = re.compile(r"/inbox\?")
    await tab.route(inbox, lambda route: route.fulfill(status=404, json=gone))
    await world.hears("gone", "One.")
    await tab.evaluate("location.hash = '#/c/gone'")
    await world.page.sees("text=There is no conversation of this name")
    await tab.unroute(inbox)
    await tab.focus("#composer")
    await world.page.say("Two.")
    await world.page.sees(".log .prose:has-text('Said: Two.')", ".chip.ready")
    await tab.unroute_all()


async def _is_taken_before_the_answer(world: World) -> None:
    """A message that steers is in the log before its request is answered, also a long one."""
    tab = world.page.tab
    for name, said in {"steered": "Hurry.", "long": "Hurry. " + "x" * 20_000}.items():
        await world.waits(name)
        here, until = await world.page.delayed(re.compile(r"/steer$"))
        await tab.fill("#composer", said)
        await world.page.press("Enter")
        await here.wait()
        world.let_go[name].set()
        await world.page.sees(".log .bubble:has-text('Hurry.')", ".turn-end.completed")
        until.set()
        await world.page.sees("#composer:placeholder-shown")
        assert not await tab.is_visible(".queued .bubble")
        await tab.unroute_all()


async def _is_queued_once(world: World) -> None:
    """*Send after*, pressed twice, and again as no answer came."""
    tab, sent = world.page.tab, []
    await world.waits("queued")

    async def lose(route: Any) -> None:
        sent.append(await route.fetch())
        await (route.abort() if len(sent) == 1 else route.fulfill(response=sent[-1]))

    await tab.route(re.compile(r"/follow-up$"), lose)
    await tab.fill("#composer", "Pay 5 dollars.")
    await tab.dblclick(".composer button:text-is('Send after')")
    await world.page.sees(".alert:has-text('The server does not answer')")
    assert not await tab.is_visible(".queued .bubble")
    await tab.dblclick(".composer button:text-is('Send after')")
    await world.page.sees(".queued .bubble:has-text('Pay 5 dollars.')", "#composer:focus")
    assert len(sent) == 2
    world.let_go["queued"].set()
    await world.page.sees(".log .prose:has-text('Said: Pay 5 dollars.')", ".turn-end.completed")
    said = [one.text for one in await world.stores.messages.list("queued")]
    assert said.count("Pay 5 dollars.") == 1, said
    await tab.unroute_all()


async def _forgets_old_calls(world: World) -> None:
    """A turn of thousands of calls keeps the last ones; a message stays with all its results."""
    kept = {}
    for messages, calls in ((2_000, 1), (40, 200), (1, 5_000)):
        kept[messages] = await world.page.tab.evaluate(MANY_CALLS, [messages, calls])
    for _, *of_calls in kept.values():
        assert len(set(of_calls)) == 1, kept
    assert 400 <= kept[2_000][0] <= 500
    assert 1_000 <= kept[40][1] == 200 * kept[40][0] <= 1_500
    assert kept[1][:2] == [1, 5_000]
