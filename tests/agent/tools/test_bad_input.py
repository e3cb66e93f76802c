"""
What no model should say and no tool should do: each ends in one stored result for each call, in an
event for it, and in a context that goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.agent.kit import add, assert_answered, assert_whole, collect
from tests.shares import split

from looopy import Hooks, LoopConfig, RetryPolicy, Tool, ToolResult, tool
from looopy.llm.render import NOT_STARTED
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Ask, NeedsInput, ToolContext
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.request import StreamEvent
from looopy.types.state import Outcome

FAST = RetryPolicy(base_s=0)


class Says(ScriptedProvider):
    """A model that answers with these very messages, whatever they are, and then with `fine`."""

    def __init__(self, *messages: AssistantMessage) -> None:
        super().__init__([text("fine")], repeat=True)
        self.messages = list(messages)

    async def stream(self, request, options=None):
        """The next message."""
        if not self.messages:
            async for event in super().stream(request, options):
                yield event
            return
        self.requests.append(request)
        yield StreamEvent("done", message=self.messages.pop(0))


def calls(*asked, stop=StopReason.TOOL_USE):
    """An answer with these calls."""
    return AssistantMessage(asked, stop_reason=stop)


def call(name, call_id="c1", /, **arguments):
    """One call."""
    return ToolCall(call_id, name, arguments)


@pytest.fixture
def ran():
    """What the tool `note` was asked."""
    return []


@pytest.fixture
def note(ran):
    """A tool that remembers."""

    @tool
    def note(n: str = "nothing") -> str:
        """Note something."""
        ran.append(n)
        return f"noted {n}"

    return note


@pytest.fixture
def bad(make_agent, stores):
    """A turn of a context that has to go on afterwards: its results, in order of the calls."""

    async def run(provider, *tools, **limits):
        config = LoopConfig(retry=FAST, **limits)
        agent = await make_agent(provider, tools=tools, stores=stores, loop_config=config)
        stream = agent.execute_turn("go")
        events, result = await collect(stream), await stream
        found = [m for m in result.messages if isinstance(m, ToolResultMessage)]
        announced = [c for m in result.messages if m.role == "assistant" for c in m.tool_calls]
        assert sorted(m.tool_call_id for m in found) == sorted(c.id for c in announced)
        ends = [e for e in events if e.type == "tool_execution_end"]
        assert [e.result for e in ends] == found
        assert sum(e.type == "tool_execution_start" for e in events) == len(found)
        stored = [m for m in await agent.get_messages() if isinstance(m, ToolResultMessage)]
        assert stored == found
        await assert_whole(stores)
        again = await make_agent([text("still here")], tools=tools, stores=stores)
        assert (await again.execute_turn("and now?")).text == "still here"
        await assert_whole(stores)
        return result, [one for i in result.iterations for one in i.tool_results]

    return run


# --- the model ---


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(
    ("sent", "why"),
    [('{"n": "a", ', "not valid JSON"), ('{"n": 9223372036854775808}', "does not fit 64 bits")],
)
async def test_arguments_that_no_store_can_keep_are_shown_back(bad, note, ran, asks, sent, why):
    """With the reason; nobody is asked to approve such a call, and the tool does not run."""
    one = tool(note.function, needs_approval=asks)
    broken = replace(call("note"), invalid_arguments=sent)
    result, [answer] = await bad(Says(calls(broken)), one)
    assert (answer.is_error, ran, result.outcome) == (True, [], Outcome.COMPLETED)
    assert f"Received: {sent}" in answer.text
    assert why in answer.text


async def test_the_result_of_an_unknown_tool_names_the_others(bad, note, ran):
    """Near misses are told what there is."""
    result, answers = await bad(Says(calls(call("notes"), call("rm -rf", "c2"))), note)
    assert [a.is_error for a in answers] == [True, True]
    assert "Did you mean 'note'?" in answers[0].text
    assert (ran, result.text) == ([], "fine")


@pytest.mark.parametrize("name", ["NOTE", " note ", "\tNote\n"])
async def test_a_name_that_can_only_mean_one(bad, note, ran, name):
    """Case and blanks around it are forgiven; the result carries the tool's own name."""
    _, [answer] = await bad(Says(calls(call(name, n="a"))), note)
    assert (answer.tool_name, answer.is_error, ran) == ("note", False, ["a"])


@pytest.mark.parametrize("name", ["fs.note", "fs/note", "note()", "note note", "", "é" * 200])
async def test_a_name_that_no_provider_takes(bad, note, ran, name):
    """It is answered, and what later requests show of it is a name that every provider takes."""
    provider = Says(calls(call(name)))
    _, [answer] = await bad(provider, note)
    assert answer.is_error
    assert "There is no tool named" in answer.text
    assert ran == []
    [shown] = [m for m in provider.requests[-1].messages if m.role == "assistant"]
    [sent] = shown.tool_calls
    assert sent.name
    assert len(sent.name) <= 64
    assert sent.name.replace("-", "_").replace("_", "a").isalnum()
    assert sent.name.isascii()


@pytest.mark.parametrize(
    "ids",
    [["a", "a", "a"], ["", "", ""], [" ", "call", "call_2"], ["a\x00", "a\ufffd", "a"]],
    ids=["the same", "none", "blanks", "the same once stored"],
)
async def test_duplicate_and_blank_call_ids(bad, note, ran, ids):
    """Each call has an id of its own, in the turn, and so its own result."""
    asked = [call("note", given, n=str(i)) for i, given in enumerate(ids)]
    _, answers = await bad(Says(calls(*asked[:2]), calls(asked[2])), note)
    assert [a.text for a in answers] == ["noted 0", "noted 1", "noted 2"]
    assert len({a.tool_call_id for a in answers}) == 3
    assert all(a.tool_call_id.strip() for a in answers)


@pytest.mark.parametrize(
    "content", [(), (TextContent(""),), (TextContent(" \n"),)], ids=["none", "empty", "blank"]
)
async def test_empty_content_is_an_answer(bad, content):
    """An answer that says nothing is an answer; requests do not show it."""
    provider = Says(AssistantMessage(content))
    result, answers = await bad(provider)
    assert (result.outcome, result.text.strip(), answers) == (Outcome.COMPLETED, "", [])


async def test_tool_use_without_a_call_is_an_answer(bad, note):
    """It is not asked for again and again."""
    provider = Says(AssistantMessage("here", stop_reason=StopReason.TOOL_USE))
    result, _ = await bad(provider, note)
    assert (result.text, len(provider.requests)) == ("here", 1)


@pytest.mark.parametrize("stop", [StopReason.LENGTH, StopReason.SENSITIVE])
@pytest.mark.parametrize("arguments", [{}, {"n": "delete all of"}])
async def test_a_call_cut_by_the_length_limit_does_not_run(bad, note, ran, arguments, stop):
    """Whatever had arrived of its arguments reads as if it were all; those before it run."""
    cut = calls(call("note", n="whole"), call("note", "c2", **arguments), stop=stop)
    result, answers = await bad(Says(cut), note)
    assert ran == ["whole"]
    assert [a.is_error for a in answers] == [False, True]
    assert "cut off" in answers[1].text
    assert (result.text, result.outcome) == ("fine", Outcome.COMPLETED)


async def test_a_cut_call_is_not_approved_either(bad, ran):
    """Nobody is asked about half a call."""

    @tool(needs_approval=True)
    def pay(cents: int = 0) -> str:
        """Pay."""
        ran.append(cents)
        return "paid"

    result, [answer] = await bad(Says(calls(call("pay"), stop=StopReason.LENGTH)), pay)
    assert (answer.is_error, ran, result.outcome) == (True, [], Outcome.COMPLETED)


async def test_text_after_the_last_call_makes_the_call_complete(bad, note, ran):
    """Only what came last can be cut."""
    said = AssistantMessage(
        (call("note", n="whole"), TextContent("and th")), stop_reason=StopReason.LENGTH
    )
    await bad(Says(said), note)
    assert ran == ["whole"]


@pytest.mark.parametrize("same_id", split([True], [False]))
async def test_thousands_of_calls_in_one_answer_get_their_errors(
    make_agent, stores, note, ran, same_id
):
    """None runs, each is answered, and the next turn is an ordinary one."""
    many = [call("note", "x" if same_id else f"c{n}", n=str(n)) for n in range(2_000)]
    agent = await make_agent(Says(calls(*many)), tools=[note], stores=stores)
    result = await agent.execute_turn("go")
    assert result.stop_reason is StopReason.MAX_TOOL_CALLS
    assert ran == []
    [only] = result.iterations
    assert len(only.calls) == 2_000
    assert all(one.is_error for one in only.calls)
    assert_answered(await agent.get_messages())
    again = await make_agent([text("still here")], tools=[note], stores=stores)
    assert (await again.execute_turn("and now?")).text == "still here"
    record = await stores.state.load("ada")
    assert (record.open_turn, record.turn_count) == (None, 2)


async def test_nul_in_arguments(bad, note, ran):
    """What no store keeps is replaced before anything runs: what was run is what is on record."""
    result, [answer] = await bad(Says(calls(call("note", n="a\x00\ud800b"))), note)
    assert ran == ["a\ufffd\ufffdb"]
    assert answer.text == "noted a\ufffd\ufffdb"
    assert result.iterations[0].calls[0].arguments == {"n": "a\ufffd\ufffdb"}


# --- the tool ---


class Abort(BaseException):
    """An error that no tool should raise."""


@pytest.mark.parametrize("error", [Abort("out"), SystemExit(3)], ids=["own", "exit"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "thread"])
async def test_a_tool_that_raises_a_base_exception(bad, error, sync):
    """It is a failed call, and neither turn nor process ends."""

    async def leave() -> str:
        """Leave."""
        raise error

    def leave_in_thread() -> str:
        """Leave."""
        raise error

    one = tool(leave_in_thread if sync else leave, name="leave")
    result, answers = await bad(Says(calls(call("leave"))), one)
    assert answers[0].is_error
    assert str(error) in answers[0].text
    assert result.text == "fine"


async def test_a_tool_that_hangs(bad):
    """It is stopped when its time is over."""

    @tool(timeout_s=0.01)
    async def hang() -> None:
        """Hang."""
        await asyncio.Event().wait()

    result, [answer] = await bad(Says(calls(call("hang"))), hang)
    assert answer.is_error
    assert "timed out after 0.01 s and was stopped" in answer.text
    assert result.text == "fine"


async def test_a_tool_that_hangs_and_does_not_let_itself_be_stopped(bad, monkeypatch):
    """It is left behind; what it returns or reports later counts for nothing."""
    monkeypatch.setattr("looopy.loop.tool_tasks._GRACE_S", 0.01)
    release, over, asked = asyncio.Event(), asyncio.Event(), []

    @tool(timeout_s=0.01)
    async def stubborn() -> str:
        """Refuse to stop."""
        try:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return "at last"
        finally:
            over.set()

    hooks = Hooks(after_tool_call=lambda *given: asked.append(given))
    result, [answer] = await bad(Says(calls(call("stubborn"))), stubborn, hooks=hooks)
    assert answer.is_error
    assert "did not stop when it was cancelled" in answer.text
    assert result.text == "fine"
    release.set()
    await over.wait()
    assert asked == []


@pytest.mark.parametrize(
    "value",
    [object(), {1, object()}, lambda: 1, b"\x00\xff", float, {"a": object()}],
    ids=["object", "set", "function", "bytes", "class", "nested"],
)
async def test_a_tool_that_returns_an_unstorable_value_fails(bad, value):
    """An error that says what to return instead."""

    @tool
    def give() -> object:
        """Give something."""
        return value

    result, [answer] = await bad(Says(calls(call("give"))), give)
    assert answer.is_error
    assert "return text" in answer.text
    assert result.text == "fine"


@pytest.mark.parametrize("said", ["x" * (17 << 20), "\x01" * (3 << 20)], ids=["long", "escaped"])
async def test_a_tool_that_returns_more_than_a_store_keeps(bad, said):
    """Its limit lets it through; whether it fits is a matter of the JSON, not of the characters."""

    @tool(max_result_bytes=64 << 20)
    def give() -> str:
        """Give much."""
        return said

    result, [answer] = await bad(Says(calls(call("give"))), give)
    assert answer.is_error
    assert "its result cannot be stored" in answer.text
    assert result.text == "fine"


async def test_a_tool_with_unstorable_details_fails(bad):
    """They are for programs; the result stands."""

    @tool
    def give() -> ToolResult:
        """Give something."""
        return ToolResult("here", details={"secret": object()})

    _, [answer] = await bad(Says(calls(call("give"))), give)
    assert (answer.text, answer.is_error) == ("here", False)


@pytest.mark.parametrize("nested", [False, True])
async def test_a_tool_that_returns_a_coroutine(bad, nested):
    """It is awaited, whatever made it."""

    async def later() -> str:
        return "later"

    class Lazy(Tool):
        async def execute(self, arguments, context):
            return later()

    @tool(name="lazy")
    def lazy():
        """Answer later."""
        return later()

    one = Lazy(name="lazy") if nested else lazy
    _, [answer] = await bad(Says(calls(call("lazy"))), one)
    assert (answer.text, answer.is_error) == ("later", False)


async def test_everything_at_once_leaves_an_order_of_calls(bad, note, ran):
    """Good and bad in one answer: results are in the order of the calls, each its own."""
    asked = [
        call("note", "same", n="1"),
        call("nope", "same"),
        replace(call("note", "same"), invalid_arguments="["),
        call("add", "same", a=1, b=2),
    ]
    result, answers = await bad(Says(calls(*asked)), note, add, max_tool_failures=9)
    assert [a.is_error for a in answers] == [False, True, True, False]
    assert (answers[3].text, ran) == ("3", ["1"])
    assert NOT_STARTED not in [a.text for a in answers]
    assert isinstance(result.messages[0], UserMessage)


async def test_question_with_half_a_character_is_asked(make_agent, stores):
    """It may quote a server that cuts its texts."""

    async def ask() -> str:
        """Ask."""
        raise NeedsInput([Ask("k", prompt="really \ud83d\ude00, \ud83d?")])

    agent = await make_agent([tool_call("ask")], tools=[ask], stores=stores)
    result = await agent.execute_turn("go")
    assert [one.prompt for one in result.pending] == ["really \U0001f600, \ufffd?"]


async def test_artifact_that_is_written_in_pieces_has_whole_characters(bad):
    """The first half waits for the other one; a lone one becomes U+FFFD."""

    async def write(context: ToolContext) -> str:
        """Write."""
        files = context.artifacts
        await files.save("whole.txt", "a\ud83d\ude00\ud83d")
        for name, pieces in {"two.txt": "\ud83d|\ude00!", "end.txt": "a\ud83d"}.items():
            async with files.open(name) as version:
                for piece in pieces.split("|"):
                    await version.append(piece)
        async with files.open("bytes.txt") as version:
            await version.append("a\ud83d")
            await version.append(b"b")
        names = ("whole.txt", "two.txt", "end.txt", "bytes.txt")
        return "|".join([(await files.read(name)).decode() for name in names])

    _, [answer] = await bad(Says(calls(call("write"))), write)
    assert answer.text == "a\U0001f600\ufffd|\U0001f600!|a\ufffd|a\ufffdb"


async def test_report_that_no_frame_can_hold_is_repaired(make_agent):
    """Text as in a result, and words for a value that JSON has no form for."""

    async def odd(context: ToolContext) -> str:
        """Report."""
        for report in ({"caf\udce9": ["\ud83d\ude00"]}, float("nan"), {"x": {1, 2}}, 0.5):
            context.report(report)
        return "done"

    agent = await make_agent([tool_call("odd"), text("ok")], tools=[odd])
    events = [event async for event in agent.execute_turn("go")]
    told = [e for e in events if e.type == "tool_execution_update"]
    assert [(e.partial_result, e.progress) for e in told] == [
        ({"caf\ufffd": ["\U0001f600"]}, None),
        ("<float that cannot be stored>", None),
        ({"x": "<set that cannot be stored>"}, None),
        (None, 0.5),
    ]
