"""What a tool may be told to do: coerce, try again, keep what is too much, be there or not."""

from __future__ import annotations

import pytest
from tests.agent.kit import add, assert_whole, collect

from looopy import AuthContext, LoopConfig, tool
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import RetryCall
from looopy.types.message import StopReason, ToolResultMessage
from looopy.types.state import Outcome


def results(result):
    """The results of a turn's calls."""
    return [m for m in result.messages if isinstance(m, ToolResultMessage)]


async def test_the_rest_of_a_long_result_is_an_artifact(make_agent, stores):
    """Saved before the result, by the turn; without secrets; the model reads where it is."""
    secret = "s3cret-token-of-ada"
    auth = AuthContext("ada", credentials={"token": secret})

    @tool(effects="none")
    def dump() -> str:
        """Return a lot."""
        return "0123456789" * 10 + secret

    provider = ScriptedProvider([tool_call("dump"), text("ok")])
    agent = await make_agent(
        provider, tools=[dump], stores=stores, loop_config=LoopConfig(max_result_bytes=30)
    )
    stream = agent.execute_turn("go", auth)
    events, result = await collect(stream), await stream
    [kept] = await agent.get_artifacts()
    assert (kept.artifact_id, kept.version, kept.turn) == ("results/1/call_1", 1, 1)
    content = (await stores.artifacts.load("ada", kept.artifact_id)).decode()
    assert content.startswith("0123456789" * 10)
    assert secret not in content
    [answer] = results(result)
    assert answer.text.startswith("0123456789" * 3 + "\n[")
    assert "artifact 'results/1/call_1', version 1" in answer.text
    assert answer in provider.requests[-1].messages
    assert list(result.artifacts) == [kept]
    order = [e.type for e in events if e.type in ("artifact_update", "tool_execution_end")]
    assert order == ["artifact_update", "tool_execution_end"]
    await assert_whole(stores)


async def test_fifty_megabytes_cost_no_turn(make_agent, stores):
    """The model sees a megabyte, the rest waits in an artifact."""
    whole = "x" * (50 * 1024 * 1024)

    @tool(effects="none")
    def dump() -> str:
        """Return far too much."""
        return whole

    provider = ScriptedProvider([tool_call("dump"), text("ok"), text("still here")])
    agent = await make_agent(provider, tools=[dump], stores=stores)
    result = await agent.execute_turn("go")
    [answer] = results(result)
    assert (result.outcome, answer.is_error) == (Outcome.COMPLETED, False)
    assert len(answer.text) < 1024 * 1024 + 1000
    [kept] = await agent.get_artifacts()
    assert kept.size == len(whole)
    assert await stores.artifacts.load("ada", kept.artifact_id) == whole.encode()
    assert "[All of it is kept: artifact 'results/1/call_1', version 1.]" in answer.text
    assert (await agent.execute_turn("and now?")).text == "still here"
    await assert_whole(stores)


async def test_calling_again_is_asked_for_a_few_times_and_is_no_failure(make_agent, stores):
    """Beyond `max_retry_calls` the model is told to stop, and failures count again."""

    @tool(max_retry_calls=3)
    def search(query: str) -> str:
        """Search."""
        if query != "right":
            raise RetryCall(f"nothing matches {query!r}")
        return "found"

    calls = [tool_call("search", query=f"q{n}") for n in range(4)]
    agent = await make_agent(
        [*calls, tool_call("search", query="right"), text("ok")],
        tools=[search],
        stores=stores,
        loop_config=LoopConfig(max_tool_failures=2),
    )
    result = await agent.execute_turn("go")
    texts = [m.text for m in results(result)]
    assert [t.endswith("Correct this and call 'search' again.") for t in texts[:3]] == [True] * 3
    assert "do not call it again" in texts[3]
    assert (texts[4], result.outcome) == ("found", Outcome.COMPLETED)
    replies = [tool_call("search", query=f"r{n}") for n in range(5)]
    agent._core.resources.provider = ScriptedProvider(replies)
    again = await agent.execute_turn("again")  # counted anew: three are allowed, two are failures
    assert again.stop_reason is StopReason.MAX_TOOL_FAILURES
    assert len(results(again)) == 5
    await assert_whole(stores)


async def test_is_enabled_hides_a_tool_by_turn(make_agent, memory_stores):
    """`is_enabled` is asked with the turn; one that fails hides its tool, with a warning."""

    @tool(
        is_enabled=lambda turn: (
            turn.auth_context is not None and "admin" in turn.auth_context.scopes
        )
    )
    def delete() -> str:
        """Delete everything."""
        return "deleted"

    @tool(is_enabled=lambda: 1 / 0 > 0)
    def broken() -> str:
        """Never there."""
        return "?"

    provider = ScriptedProvider([text("1"), tool_call("delete"), text("2"), text("3")])
    agent = await make_agent(provider, tools=[add, delete, broken], stores=memory_stores)
    admin, user = AuthContext("ada", scopes=("admin",)), AuthContext("ada")
    stream = agent.execute_turn("go", admin)
    warnings = [e for e in await collect(stream) if e.type == "warning"]
    assert [(w.code, "ZeroDivisionError" in w.text) for w in warnings] == [
        ("tools_unavailable", True)
    ]
    result = await agent.execute_turn("go", user)
    offered = [sorted(spec.name for spec in request.tools) for request in provider.requests]
    assert offered == [["add", "delete"], ["add"], ["add"]]
    [answer] = results(result)
    assert "There is no tool named 'delete'" in answer.text


async def test_coercing_is_up_to_the_tool(make_agent, stores):
    """The log keeps what the model wrote."""

    @tool(coerce=True)
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    agent = await make_agent(
        [(tool_call("double", n="21"), tool_call("add", a="1", b=2)), text("ok")],
        tools=[double, add],
        stores=stores,
    )
    result = await agent.execute_turn("go")
    good, bad = results(result)
    assert (good.text, good.is_error, bad.is_error) == ("42", False, True)
    assert result.iterations[0].calls[0].arguments == {"n": "21"}


@pytest.mark.parametrize("kind", [ConnectionError, TimeoutError])
async def test_a_call_to_an_unavailable_service_is_made_again(make_agent, stores, kind):
    """The call is made again; who watches sees it."""
    tries = []

    @tool(effects="none", retries=2, retry_delay_s=0)
    async def look() -> str:
        """Look something up."""
        tries.append(1)
        if len(tries) < 3:
            raise kind("away")
        return "here"

    agent = await make_agent([tool_call("look"), text("ok")], tools=[look], stores=stores)
    stream = agent.execute_turn("go")
    events, result = await collect(stream), await stream
    assert [m.text for m in results(result)] == ["here"]
    updates = [e.partial_result for e in events if e.type == "tool_execution_update"]
    assert updates == [{"retry": n, "of": 2, "reason": "away"} for n in (1, 2)]
    await assert_whole(stores)


async def test_coerced_arguments_are_approved_first(make_agent, stores):
    """What a person is asked about is what would run, and nothing runs before the answer."""
    ran = []

    @tool(coerce=True, needs_approval=True)
    def pay(cents: int) -> str:
        """Pay."""
        ran.append(cents)
        return "paid"

    agent = await make_agent(
        [tool_call("pay", cents="900"), text("ok")], tools=[pay], stores=stores
    )
    result = await agent.execute_turn("go")
    assert (result.outcome, ran) == (Outcome.INPUT_REQUIRED, [])
    [asked] = result.pending
    assert asked.args == {"cents": 900}
    await agent.execute_turn(None, inputs={asked.request_id: True})
    assert ran == [900]
    await assert_whole(stores)
