"""`before_tool_call`, `after_tool_call`: what the application makes of a call and its result."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import assert_whole

from looopy import AuthContext, Hooks, LoopConfig, ToolResult, tool
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools.call.hooks import BLOCKED, UNJUDGED
from looopy.types.message import ToolResultMessage
from looopy.types.state import Outcome


class Desk:
    """A tool that remembers what it was asked, and an agent with hooks around it."""

    def __init__(self, make_agent, stores):
        self.asked: list[dict] = []
        self._make_agent, self._stores = make_agent, stores

    async def ask(self, *calls, auth=None, **hooks):
        """Run a turn with these calls; its results, and the codes of its warnings."""

        @tool
        def send(to: str, copies: int = 1) -> str:
            """Send something."""
            self.asked.append({"to": to, "copies": copies})
            if to == "nobody":
                raise ValueError("there is nobody")
            return f"sent to {to}"

        self.agent = agent = await self._make_agent(
            ScriptedProvider([calls or tool_call("send", to="ada"), text("ok")]),
            tools=[send],
            stores=self._stores,
            loop_config=LoopConfig(hooks=Hooks(**hooks)),
        )
        events = []
        stream = agent.execute_turn("go", auth)
        stream.subscribe(events.append)
        result = await stream
        assert result.outcome is Outcome.COMPLETED
        await assert_whole(self._stores)
        found = [m for m in result.messages if isinstance(m, ToolResultMessage)]
        return found, [e.text for e in events if e.type == "warning" and e.code == "hook_failed"]


@pytest.fixture
def desk(make_agent, memory_stores):
    """See `Desk`."""
    return Desk(make_agent, memory_stores)


async def test_a_hook_that_returns_none_has_no_effect(desk):
    """Both are told the call; the second one its result, and both the context of the tool."""
    seen = []

    def before(call, context):
        seen.append(("before", call.name, call.arguments, context.auth_context.actor_id))

    async def after(call, result, context):
        seen.append(("after", call.id, result.content[0].text, result.is_error, context.turn))

    auth = AuthContext("ada")
    (result,), failed = await desk.ask(auth=auth, before_tool_call=before, after_tool_call=after)
    assert (result.text, result.is_error, failed) == ("sent to ada", False, [])
    assert seen == [
        ("before", "send", {"to": "ada"}, "ada"),
        ("after", "call_1", "sent to ada", False, 1),
    ]


@pytest.mark.parametrize(
    ("said", "text_", "is_error"),
    [
        (False, BLOCKED, True),
        ("not on a Sunday", "not on a Sunday", True),
        ("", BLOCKED, True),
        (ToolResult("sent before"), "sent before", False),
    ],
)
async def test_a_call_is_blocked_or_answered_instead(desk, said, text_, is_error):
    """The tool does not run, and the hook behind it is not asked."""
    after = []
    (result,), failed = await desk.ask(
        before_tool_call=lambda _call, _context: said,
        after_tool_call=lambda *given: after.append(given),
    )
    assert (result.text, result.is_error) == (text_, is_error)
    assert (desk.asked, after, failed) == ([], [], [])


async def test_a_call_runs_with_other_arguments(desk):
    """The tool gets those of the hook; the log keeps what the model asked for."""

    async def before(call, _context):
        return {**call.arguments, "to": "bob"}

    (result,), _ = await desk.ask(before_tool_call=before)
    assert result.text == "sent to bob"
    assert desk.asked == [{"to": "bob", "copies": 1}]
    messages = await desk.agent.get_messages()
    assert messages[1].tool_calls[0].arguments == {"to": "ada"}


@pytest.mark.parametrize("said", [{"to": 3}, {}, 7, ["bob"]])
async def test_an_invalid_return_value_of_a_hook_blocks_the_call(desk, said):
    """Arguments that do not fit, or something else: reported, and nothing runs."""
    (result,), failed = await desk.ask(before_tool_call=lambda _call, _context: said)
    assert (result.text, result.is_error) == (UNJUDGED, True)
    assert desk.asked == []
    assert len(failed) == 1
    assert failed[0].startswith("before_tool_call: ")


async def test_a_failing_before_hook_blocks_the_call(desk):
    """It may be what guards the tool."""

    def before(_call, _context):
        raise RuntimeError("the rules are not to be read")

    (result,), failed = await desk.ask(before_tool_call=before)
    assert (result.text, desk.asked) == (UNJUDGED, [])
    assert failed == ["before_tool_call: RuntimeError"]


async def test_a_result_is_changed_field_by_field(desk):
    """What is not named stays."""
    (result,), _ = await desk.ask(after_tool_call=lambda *_: {"details": {"cost": 3}})
    assert (result.text, result.details, result.is_error) == ("sent to ada", {"cost": 3}, False)
    (result,), _ = await desk.ask(after_tool_call=lambda *_: {"content": "done", "is_error": True})
    assert (result.text, result.details, result.is_error) == ("done", None, True)
    (result,), _ = await desk.ask(after_tool_call=lambda *_: ToolResult("else"))
    assert result.text == "else"


async def test_a_failure_can_be_explained(desk):
    """The hook is asked for a call that failed, too."""
    (result,), _ = await desk.ask(
        tool_call("send", to="nobody"),
        after_tool_call=lambda _call, result, _context: (
            {"content": "try bob", "is_error": False} if result.is_error else None
        ),
    )
    assert (result.text, result.is_error) == ("try bob", False)


@pytest.mark.parametrize("said", [{"text": "no such field"}, 7, {"content": b"bytes"}])
async def test_a_hook_that_fails_after_a_call_leaves_its_result(desk, said):
    """What the tool did is done."""
    (result,), failed = await desk.ask(after_tool_call=lambda *_: said)
    assert result.text == "sent to ada"
    assert failed == ["after_tool_call: TypeError"]


async def test_a_call_that_did_not_run_asks_no_hook(desk):
    """No such tool, and arguments that do not fit."""
    asked = []

    def hook(*given):
        asked.append(given)

    found, _ = await desk.ask(
        tool_call("unknown"), tool_call("send", to=3), before_tool_call=hook, after_tool_call=hook
    )
    assert [m.is_error for m in found] == [True, True]
    assert asked == []


async def test_secrets_that_a_hook_adds_are_kept_out(desk):
    """What comes from a hook is redacted as what comes from a tool."""
    auth = AuthContext("ada", credentials={"key": "very-secret-key"})
    (result,), _ = await desk.ask(
        auth=auth, after_tool_call=lambda *_: {"details": {"with": "very-secret-key"}}
    )
    assert result.details == {"with": "[redacted]"}


async def test_a_tool_that_has_run_is_answered_though_its_hook_is_cut_short(desk, make_agent):
    """The turn is cancelled while the hook thinks: the result counts as it was."""
    entered = asyncio.Event()

    async def after(*_):
        entered.set()
        await asyncio.Event().wait()

    @tool
    def send() -> str:
        """Send something."""
        return "sent"

    agent = await make_agent(
        [tool_call("send")],
        tools=[send],
        stores=desk._stores,
        loop_config=LoopConfig(hooks=Hooks(after_tool_call=after)),
    )
    stream = agent.execute_turn("go")
    await entered.wait()
    stream.cancel()
    result = await stream
    assert result.outcome is Outcome.CANCELLED
    assert [m.text for m in result.messages if isinstance(m, ToolResultMessage)] == ["sent"]
