"""The page of `looopy serve` in Chromium: what was stored is shown, kept and sent as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.web.page import Page, opened, served_here
from tests.web.served import TOKEN

from looopy import (
    Agent,
    AssistantMessage,
    AuthContext,
    CustomMessage,
    ImageContent,
    Stores,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolContext,
    ToolResultMessage,
    UserMessage,
    open_stores,
    tool,
)
from looopy.auth import AuthRequest
from looopy.server import AgentHost
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Ask, NeedsInput
from looopy.types.state import PendingKind

pytestmark = pytest.mark.long
AUTH = AuthContext("local")
LONG = "\U0001f600" + "m" * 20_000  # the page gets the first 20,000 characters of a text
LINES = "first line\r\nsecond line"
READ = """async (cases) => {
    const {formOf} = await import("/ui/form.js");
    const read = ([schema, value]) => formOf(schema, value, "Arguments").read();
    return JSON.stringify(JSON.parse(cases).map(read));
}"""

REVEAL = """async ([older, closed]) => {
    const [{Chat}, {Conversation}] = await Promise.all(
        ["chat", "conversation"].map((name) => import(`/ui/${name}.js`)),
    );
    const conversation = Object.assign(new Conversation("far"), {older});
    let pages = 0;
    conversation.loadOlder = async (limit) => {
        pages += 1;
        conversation.older = conversation.older > limit ? conversation.older - limit : null;
    };
    if (closed) conversation.close();
    const chat = new Chat(conversation, {});
    return chat.reveal(1).then(() => [pages, ""], (error) => [pages, error.message]);
}"""
FOCUS = """async () => {
    const [{Chat}, {Conversation}] = await Promise.all(
        ["chat", "conversation"].map((name) => import(`/ui/${name}.js`)),
    );
    const record = {status: "busy", pending: []};
    const conversation = Object.assign(new Conversation("live"), {record});
    const chat = new Chat(conversation, {});
    document.body.append(chat.element);
    const find = (what) => chat.element.querySelector(what);
    const kept = [];
    const keeps = (what, change) => {
        find(what).focus();
        change();
        kept.push(document.activeElement === find(what));
    };
    conversation.grow("thinking", "One");
    chat.draw();
    keeps(".live summary", () => { conversation.grow("thinking", " and two"); chat.draw(); });
    kept.push(find(".live .plain").textContent);
    const content = [{type: "toolCall", id: "c1", name: "read", arguments: {a: 1}}];
    conversation.ended({position: 1, turn: 1, message: {role: "assistant", content}});
    const filled = new Promise((done) => find(".call").addEventListener("toggle", done));
    find(".call").open = true;
    await filled;
    const report = (said) => conversation.reported({tool_call_id: "c1", partial_result: said});
    report("Half.");
    keeps(".call pre", () => report("All."));
    kept.push(find(".call .labelled:last-child").textContent);
    chat.element.remove();
    return kept;
}"""
FAR_UP = "This message is more than 5,000 messages further up. “Show earlier messages” leads there."


@tool(needs_approval=True)
async def write(content: str, constructor: str = "none", toString: str = "none") -> str:  # noqa: N803
    """Write a text; some of its arguments have names that each object of JavaScript knows."""
    return json.dumps([content, constructor, toString])


def reply(request: Any) -> Any:
    """Play the model: a message is the text to write."""
    last = request.messages[-1]
    if isinstance(last, UserMessage):
        return tool_call("write", content=last.text)
    return text("Written.")


async def test_an_unchanged_form_approves_the_original_arguments(
    browser: Any, modules: Path
) -> None:
    """Ends of lines, a date of no calendar, and names that each object of JavaScript knows."""

    def build(context_id: str, stores: Stores) -> Agent:
        return Agent(context_id, llm_provider=ScriptedProvider(reply), tools=[write], stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        for name, given in (("same", LINES), ("mixed", "a\rb"), ("edited", LINES)):
            async with host.agent(name, AUTH) as agent:
                await agent.execute_turn(given, AUTH)
            await page.tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
            await page.sees(f".contexts a[aria-current]:has-text('{name}')", ".request .main")
            if name == "edited":
                await page.tab.fill(".request textarea >> nth=0", f"{LONG}one\ntwo")
                given = f"{LONG}one\r\ntwo"  # noqa: PLW2901
            label = "Approve with changes" if name == "edited" else "Approve"
            await page.tab.click(f".request .main:text-is('{label}')")
            await page.sees(".turn-end.completed")
            [said] = [
                m for m in await stores.messages.list(name) if isinstance(m, ToolResultMessage)
            ]
            assert json.loads(said.text.splitlines()[-1]) == [given, "none", "none"]
            assert await page.tab.is_visible(".call :text('edited')") == (name == "edited")
        await page.tab.click(".call summary")
        await _shows_all_of(page, ".call .labelled >> nth=1", LONG, "one", '\\r\\ntwo"\n}')
        await _reads_what_it_began_with(page)


async def _shows_all_of(page: Page, place: str, *parts: str) -> None:
    """It ends as the text does, once somebody asks for more."""
    whole = "".join(parts)
    at = page.tab.locator(place)
    await at.locator("button:has-text('characters are folded')").click()
    await at.locator("button:has-text('characters are folded')").wait_for(state="hidden")
    shown = [one for one in await at.locator(".plain, pre").all_text_contents() if LONG in one]
    assert [one[one.index(LONG) :] for one in shown] == [whole]


async def _reads_what_it_began_with(page: Page) -> None:
    fields: list[tuple[dict[str, Any], Any]] = [
        ({"type": "string", "format": "date"}, "2026-02-30"),
        ({"type": "string"}, "a\rb\r\nc\nd"),
        ({"type": "string"}, ""),
        ({"type": "string", "enum": ["a", "b"]}, "of before"),
        ({"type": "boolean", "default": True}, None),
        ({"type": "integer", "minimum": 5}, 1.5),
    ]
    objects = [({"properties": {"x": schema}}, {"x": value}) for schema, value in fields]
    named = {"valueOf": {"type": "string"}, "constructor": {"type": "array"}}
    objects += [({"properties": named, "required": ["valueOf"]}, {"valueOf": "a", "__proto__": 1})]
    found = await page.tab.evaluate(READ, json.dumps([*fields, *objects]))
    assert json.loads(found) == [value for _, value in [*fields, *objects]]


async def test_long_texts_come_whole_in_pieces(browser: Any, modules: Path) -> None:
    """Wherever they are, counted as the server counts; a request that fails can be repeated."""

    def build(context_id: str, stores: Stores) -> Agent:
        model = ScriptedProvider([text("I see.")])
        return Agent(context_id, llm_provider=model, tools=[write], stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        async with host.agent("long", AUTH) as agent:
            await agent.execute_turn(f"{LONG}said", AUTH)
        image = ImageContent("iVBORw0KGgo=", mime_type="image/png")
        call = ToolCall("c1", "read", {"a/b": f"{LONG}given", "c": 1})
        await stores.messages.append(
            "long",
            [
                CustomMessage("note", f"{LONG}noted"),
                CustomMessage("state", {"is": f"{LONG}kept"}),
                UserMessage([TextContent("Before."), image, TextContent(f"{LONG}beside")]),
                AssistantMessage([ThinkingContent(f"{LONG}thought"), TextContent("So."), call]),
                ToolResultMessage(
                    tool_call_id="c1",
                    tool_name="read",
                    content=[
                        TextContent("Head."),
                        TextContent("m" * 250_000 + "\U0001f600" + "result"),
                    ],
                ),
            ],
        )
        await page.tab.evaluate("location.hash = '#/c/long'")
        messages = ".log .message >> nth="
        await page.sees(f"{messages}5", ".chip.ready")
        for kind in ("note", "state", "Thinking"):
            await page.tab.click(f"summary:text-is('{kind}')")
        await _shows_all_of(page, f"{messages}0", LONG, "said")
        await _shows_all_of(page, f"{messages}2", LONG, "noted")
        await _shows_all_of(page, f"{messages}3", LONG, 'kept"\n}')
        await _shows_all_of(page, f"{messages}4", LONG, "beside")
        await _shows_all_of(page, f"{messages}5 >> .thinking", LONG, "thought")
        await page.tab.click(".call summary")
        await _shows_all_of(page, ".call .labelled >> nth=0", LONG, "given", '",\n  "c": 1\n}')
        await page.tab.set_viewport_size({"width": 320, "height": 640})
        await page.is_accessible()
        wide = "(one) => one.scrollWidth > one.clientWidth"
        assert not await page.tab.eval_on_selector(".scroller", wide)
        await page.tab.set_viewport_size({"width": 1440, "height": 900})
        await _fails_and_comes(page, ".labelled:has(.part-name:text-is('Result'))")
        await _goes_back_whole(page, f"{LONG}said")


async def _fails_and_comes(page: Page, place: str) -> None:
    """The server is away; then a piece comes, and the rest."""
    at = page.tab.locator(place)
    more = at.locator("button:has-text('characters are folded')")
    one = re.compile(r"/messages/\d+$")
    await page.tab.route(one, lambda route: route.abort())
    await more.click()
    await page.sees(f"{place} >> .error:has-text('does not answer')")
    await page.tab.unroute(one)
    await more.click()
    await page.sees(f"{place} >> button:has-text('30,007 of 250,007 characters')")
    assert not await at.locator(".error").is_visible()
    await more.click()
    await more.wait_for(state="hidden")
    texts = await at.locator("pre").all_text_contents()
    assert texts == ["Head.", "m" * 250_000 + "\U0001f600" + "result"]


async def _goes_back_whole(page: Page, said: str) -> None:
    await page.tab.press("button[aria-label='Rewind to before turn 1']", "Enter")
    await page.tab.click("dialog[open] button.main")
    await page.sees(".bar:has-text('was rewound')")
    assert await page.tab.input_value("#composer") == said


async def test_a_conversation_keeps_its_place(browser: Any, modules: Path) -> None:
    """A hit of the search that is a result, far up; drafts, an undo that fails, and the focus."""

    @tool
    async def note() -> str:
        """Note it."""
        return "noted"

    def build(context_id: str, stores: Stores) -> Agent:
        replies = [one for _ in range(45) for one in (tool_call("note"), text("Noted."))]
        model = ScriptedProvider(replies)
        return Agent(context_id, llm_provider=model, tools=[note], stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):
        async with host.agent("notes", AUTH) as agent:
            for i in range(40):
                await agent.execute_turn(f"Note {i}.", AUTH)
        await page.tab.evaluate("location.hash = '#/c/notes/at/3'")
        await page.sees("#message-2.found:has(.call)")
        await page.tab.evaluate("location.hash = '#/c/notes/at/7'")  # it is here
        await page.sees("#message-6.found:has(.call)")
        assert await page.tab.evaluate(REVEAL, [9000, False]) == [0, FAR_UP]
        assert await page.tab.evaluate(REVEAL, [900, False]) == [5, ""]
        assert await page.tab.evaluate(REVEAL, [900, True]) == [0, ""]  # it was left
        await _keeps_drafts(page)
        await _can_still_undo(page, url)
        await _keeps_the_focus(page, host)


async def _keeps_drafts(page: Page) -> None:
    """Rewind puts a message before what was typed, also after one has left the conversation."""
    tab = page.tab

    async def rewind(turn: int) -> None:
        await tab.press(f"button[aria-label='Rewind to before turn {turn}']", "Enter")
        await tab.click("dialog[open] button.main")

    await tab.fill("#composer", "Of mine.")
    await rewind(40)
    await page.sees(".bar:has-text('was rewound')")
    assert await tab.input_value("#composer") == "Note 39.\n\nOf mine."
    here, until = await page.delayed(re.compile(r"/rewind$"))
    await rewind(39)
    await here.wait()
    await tab.evaluate("location.hash = '#/c/other'")
    await page.sees("text=There is no conversation of this name")
    await tab.fill("#composer", "Of another.")
    async with tab.expect_request_finished(lambda one: one.url.endswith("/rewind")):
        until.set()
    await tab.evaluate("location.hash = '#/c/notes'")
    await page.sees(".turn-end:has-text('Turn 38')")
    drafts = "Note 38.\n\nNote 39.\n\nOf mine."
    await tab.wait_for_function(
        "said => document.querySelector('#composer').value === said", arg=drafts
    )
    await tab.evaluate("location.hash = '#/c/other'")
    await page.sees("text=There is no conversation of this name")
    assert await tab.input_value("#composer") == "Of another."


ASK = "import('/ui/api.js').then(({get}) => get('contexts?limit=1')).then(() => null)"
LATER = "Date.now = ((now) => () => now() + 7_200_000)(Date.now)"
SLEPT = f"""() => {{
    {LATER}; // again and again: each answer that comes would tell the time
    const isOver = document.querySelector(".request-body").textContent.includes("not answered");
    const said = document.getElementById("announcer").textContent;
    return isOver && [document.activeElement.className, said];
}}"""


async def test_a_request_expires_by_the_clock_of_the_server(browser: Any, modules: Path) -> None:
    """A machine that slept, one whose clock is two hours fast, and where the focus goes."""

    @tool(needs_approval=True, approval_expires_s=3600)
    async def later() -> str:
        """Do it within an hour."""
        return "in time"

    @tool
    async def push(context: ToolContext) -> str:
        """Ask for a credential."""
        auth = AuthRequest(type="pat", provider="github")
        if "key" not in context.answers:
            raise NeedsInput([Ask("key", PendingKind.AUTH, "A key, please.", auth=auth)])
        return "in time"

    def build(context_id: str, stores: Stores) -> Agent:
        name = context_id.partition("-")[0]
        model = ScriptedProvider([tool_call(name), text("It is done.")])
        return Agent(context_id, llm_provider=model, tools=[later, push], stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, host),
        opened(browser, url, modules) as page,
    ):

        async def asks(name: str) -> None:
            async with host.agent(name, AUTH) as agent:
                await agent.execute_turn("Do it.", AUTH)
            await page.tab.evaluate("name => { location.hash = `#/c/${name}`; }", name)
            await page.sees(f".contexts a[aria-current]:has-text('{name}')", ".request")

        await asks("later")
        await page.tab.fill(".request textarea", "It is due.")
        woken = await page.tab.wait_for_function(SLEPT)
        assert await woken.json_value() == ["request", "The request of later has expired"]
        await page.tab.evaluate(ASK)  # the server says that it did not sleep
        await page.sees(".request time:has-text('expires in 59 min')")
        assert await page.tab.input_value(".request textarea") == "It is due."
        await page.tab.click(".request .main:text-is('Approve')")
        await page.sees(".turn-end.completed")
        await page.tab.add_init_script(LATER)
        await page.tab.reload()
        await asks("later-fast")
        await page.sees(".request time:has-text('expires in 59 min')")
        await page.tab.click(".request .main:text-is('Approve')")
        await page.sees(".turn-end.completed")
        await asks("push-fast")
        await page.tab.fill(".request input", "a secret")
        await page.press("Enter")
        await page.sees(".turn-end.completed")
        results = [
            one.text.splitlines()[-1]
            for name in ("later", "later-fast", "push-fast")
            for one in await stores.messages.list(name)
            if isinstance(one, ToolResultMessage)
        ]
        assert results == ["in time"] * 3


HOSTILE = {
    "a line of a table": "a|b\n-" + " " * 90_000 + "x",
    "the end of addresses": ("https://" + "." * 1985 + "x ") * 45,
}
SLOWEST_MS = 100  # of several tries; what grows with the square takes 200 and more
LAID_OUT = """async (text) => {
    const {markdown} = await import("/ui/markdown.js");
    const times = Array.from({length: 3}, () => {
        const began = performance.now();
        markdown(text);
        return performance.now() - began;
    });
    return Math.min(...times);
}"""
LINKS = """async (text) => {
    const {markdown} = await import("/ui/markdown.js");
    const place = document.createElement("div");
    place.append(...markdown(text));
    return [...place.querySelectorAll("a")].map((one) => one.getAttribute("href"));
}"""


ORDINARY = "❤\ufe0f 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈 葛\U000e0100城"
SEEN = {
    "a\ufe00b\u2062c\u206ad": "a⟨FE00⟩b⟨2062⟩c⟨206A⟩d",
    "❤\ufe0f\ufe0f\U000e0150": "❤\ufe0f⟨FE0F⟩⟨E0150⟩",
    "葛\U000e0100\U000e0101": "葛\U000e0100⟨E0101⟩",
    "می\u200cخواهم\u200b\u200c\u200b": "می\u200cخواهم\u200b⟨200C⟩⟨200B⟩",
    ORDINARY: ORDINARY,
}
SHOWN = "async (text) => (await import('/ui/text.js')).shown(text)"
TOLD = """async () => {
    const [{h}, {markdown}] = await Promise.all(
        ["dom", "markdown"].map((name) => import(`/ui/${name}.js`)),
    );
    const [made] = markdown("[link](https://a.example/\u202egpj)");
    const field = h("input", {"aria-label": "\u202eb", value: "\u202ec"});
    return [made.querySelector("a").title, field.ariaLabel, field.value];
}"""


async def test_hostile_texts_are_laid_out_soon_and_seen(browser: Any, modules: Path) -> None:
    """Texts that make a search go back, and what a person would not see."""

    def build(context_id: str, stores: Stores) -> Agent:
        return Agent(context_id, llm_provider=ScriptedProvider([]), stores=stores)

    async with (
        open_stores("memory:") as stores,
        served_here(build, stores) as (url, _),
        opened(browser, url, modules) as page,
    ):
        for name, said in HOSTILE.items():
            assert await page.tab.evaluate(LAID_OUT, said) < SLOWEST_MS, name
        addresses = "mailto:. https://... http://a.example/b... [a](mailto:)"
        assert await page.tab.evaluate(LINKS, addresses) == ["http://a.example/b"]
        for given, said in SEEN.items():
            assert await page.tab.evaluate(SHOWN, given) == said
        assert await page.tab.evaluate(TOLD) == [
            "https://a.example/⟨202E⟩gpj",
            "⟨202E⟩b",
            "\u202ec",
        ]


async def _can_still_undo(page: Page, url: str) -> None:
    """A rewind whose undoing failed, after something else has happened."""
    tab = page.tab
    await tab.evaluate("location.hash = '#/c/notes'")
    await tab.press("button[aria-label='Rewind to before turn 38']", "Enter")
    await tab.click("dialog[open] button.main")
    undo = re.compile(r"/undo-rewind$")
    await tab.route(undo, lambda route: route.abort())
    await tab.click(".bar button:text-is('Undo')")
    await page.sees(".alert:has-text('does not answer')")
    await tab.unroute(undo)
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        await client.post(f"{url}/contexts/notes/rewind", json={"to": 37})
    await page.sees(".turn-end:has-text('Turn 36')")
    await tab.wait_for_selector(".turn-end:has-text('Turn 37')", state="hidden")
    await tab.click(".bar button:text-is('Undo')")
    await page.sees(".turn-end:has-text('Turn 37')")
    await tab.wait_for_selector(".bar", state="hidden")


async def _keeps_the_focus(page: Page, host: AgentHost) -> None:
    """While a turn runs and ends, and while the model thinks and a tool reports."""
    link = "a[aria-label='Timeline of turn 30']"
    await page.tab.focus(link)
    async with host.agent("notes", AUTH) as agent:
        await agent.execute_turn("Note it.", AUTH)
    await page.sees(".turn-end:has-text('Turn 41')", ".chip.ready", f"{link}:focus")
    assert await page.tab.evaluate(FOCUS) == [True, "One and two", True, "Last reportAll."]
