"""The page of `looopy serve` in Chromium: what was stored is shown, kept and sent as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.web.page import Page, opened, served_here

from looopy import Agent, AuthContext, Stores, ToolResultMessage, UserMessage, open_stores, tool
from looopy.testing import ScriptedProvider, text, tool_call

AUTH = AuthContext("local")
LINES = "first line\r\nsecond line"
READ = """async (cases) => {
    const {formOf} = await import("/ui/form.js");
    const read = ([schema, value]) => formOf(schema, value, "Arguments").read();
    return JSON.stringify(JSON.parse(cases).map(read));
}"""


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


async def test_what_nobody_changed_is_approved_as_it_is(browser: Any, modules: Path) -> None:
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
                await page.tab.fill(".request textarea >> nth=0", "one\ntwo")
                given = "one\r\ntwo"  # noqa: PLW2901
            label = "Approve with changes" if name == "edited" else "Approve"
            await page.tab.click(f".request .main:text-is('{label}')")
            await page.sees(".turn-end.completed")
            [said] = [
                m for m in await stores.messages.list(name) if isinstance(m, ToolResultMessage)
            ]
            assert json.loads(said.text.splitlines()[-1]) == [given, "none", "none"]
            assert await page.tab.is_visible(".call :text('edited')") == (name == "edited")
        await _reads_what_it_began_with(page)


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
