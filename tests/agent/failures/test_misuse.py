"""What is not allowed says so at once, by its own error, and changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.kit import Gate, add, assert_whole

from looopy import Agent, AuthContext, UserMessage, tool
from looopy.errors import (
    AccessDenied,
    AgentBusy,
    AgentNotStarted,
    AgentStateError,
    CannotContinue,
    ConfigurationError,
    InputNotFound,
    InvalidTool,
    StoreUnavailable,
    UnknownModel,
    ValueRefused,
)
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.types.config import LoopConfig
from looopy.types.state import AgentStatus


@pytest.mark.parametrize("context_id", ["", " ", "a b", "a/b", "ä", "x" * 129, "a\x00", None, 7])
def test_a_bad_context_id_is_refused_by_the_constructor(context_id):
    """Before any I/O."""
    with pytest.raises(ValueRefused):
        Agent(context_id, llm_provider=ScriptedProvider([]))


@pytest.mark.parametrize("context_id", ["a", "x" * 128, "User-1:chat_2.b"])
def test_a_good_context_id_is_taken(context_id):
    """Letters, digits and four signs, up to 128 of them."""
    assert Agent(context_id, llm_provider=ScriptedProvider([])).context_id == context_id


def test_a_wrong_choice_of_on_busy_is_refused_by_the_constructor():
    """There are two."""
    with pytest.raises(ConfigurationError, match="on_busy"):
        Agent("ada", llm_provider=ScriptedProvider([]), on_busy="queue")


def test_the_constructor_does_no_io(sqlite_file):
    """No file, no row, no event loop; the status is created."""
    fresh = sqlite_file.parent / "never.db"
    agent = Agent("ada", llm_provider="no/such/model", stores=f"sqlite:///{fresh}")
    assert agent.state.status is AgentStatus.CREATED
    assert agent.state.turn_count == 0
    assert not fresh.exists()
    assert "ada" in repr(agent)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"llm_provider": "nosuchmodel"}, UnknownModel),
        ({"stores": "mysql://localhost/x"}, ConfigurationError),
        ({"tools": [add, add]}, InvalidTool),
        ({"tools": [7]}, InvalidTool),
    ],
    ids=["model", "stores", "two tools of one name", "no tool"],
)
async def test_a_missing_configuration_is_refused_at_start(options, error):
    """And the agent can be started no more than before: it is as if it never tried."""
    agent = Agent("ada", **{"llm_provider": ScriptedProvider([]), **options})
    for _ in range(2):
        with pytest.raises(error):
            await agent.start()
        assert agent.state.status is AgentStatus.CREATED
    with pytest.raises(AgentNotStarted):
        agent.execute_turn("hi")


async def test_a_store_that_cannot_be_opened_fails_the_start(tmp_path):
    """And a later start may succeed."""
    folder = tmp_path / "missing"
    agent = Agent(
        "ada", llm_provider=ScriptedProvider([text("hi")]), stores=f"sqlite:///{folder}/x.db"
    )
    with pytest.raises(StoreUnavailable):
        await agent.start()
    assert agent.state.status is AgentStatus.CREATED
    folder.mkdir()
    async with agent:
        assert (await agent.execute_turn("hello")).text == "hi"


async def test_a_turn_needs_a_started_agent(make_agent, stores):
    """Before start and after shutdown: `AgentNotStarted`, naming status and action."""
    agent = await make_agent([text("hi")], stores=stores, start=False)
    for status in ("created", "shutdown"):
        with pytest.raises(AgentNotStarted) as caught:
            agent.execute_turn("hello")
        assert caught.value.status == status
        assert caught.value.action == "execute_turn"
        assert "start()" in str(caught.value)
        await agent.shutdown()
    assert await stores.state.load("ada") is None


async def test_a_paused_agent_refuses_turns(make_agent, stores):
    """`AgentStateError` that says what to do; nothing is stored."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.pause()
    with pytest.raises(AgentStateError, match="resume") as caught:
        agent.execute_turn("hello")
    assert not isinstance(caught.value, AgentNotStarted)
    assert (caught.value.status, caught.value.action) == ("paused", "execute_turn")
    assert await stores.state.load("ada") is None


async def test_without_an_event_loop_the_error_names_the_blocking_face(make_agent, memory_stores):
    """A call from plain code is told of `looopy.sync`."""
    agent = await make_agent([text("hi")], stores=memory_stores)
    with pytest.raises(AgentStateError, match=r"looopy\.sync"):
        await asyncio.get_running_loop().run_in_executor(None, agent.execute_turn, "hello")


async def test_a_second_turn_is_refused_while_one_runs(make_agent, stores):
    """`AgentBusy` at the call, naming the running turn; that one is not touched."""
    gate = Gate()
    agent = await make_agent(
        [text("one"), tool_call("gate"), text("two")], tools=[gate.tool], stores=stores
    )
    await agent.execute_turn("a")
    stream = agent.execute_turn("b")
    with pytest.raises(AgentBusy):
        agent.execute_turn("too early")
    await gate.entered.wait()
    with pytest.raises(AgentBusy) as caught:
        agent.execute_turn("c")
    assert caught.value.turn == 2
    assert (caught.value.status, caught.value.action) == ("busy", "execute_turn")
    with pytest.raises(AgentBusy) as caught:
        agent.execute_turn(None)
    gate.open.set()
    assert (await stream).text == "two"
    assert agent.state.turn_count == 2
    await assert_whole(stores)


@pytest.mark.parametrize("message", ["", " \n\t ", UserMessage(""), UserMessage([])])
async def test_an_empty_message_is_refused(make_agent, stores, message):
    """At the call, with the path; nothing is stored and the agent stays ready."""
    agent = await make_agent([text("hi")], stores=stores)
    with pytest.raises(ValueRefused) as caught:
        agent.execute_turn(message)
    assert caught.value.path == "/content"
    assert agent.state.status is AgentStatus.READY
    assert await stores.state.load("ada") is None


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("a\x00b", "/content"),
        ("a\ud800b", "/content"),
        (UserMessage("\udfff!"), "/content"),
        (42, ""),
        (["hi"], ""),
    ],
    ids=["NUL", "surrogate", "surrogate in a message", "number", "list"],
)
async def test_a_message_that_cannot_be_stored_is_refused_with_its_path(
    make_agent, stores, message, path
):
    """At the call; nothing is stored."""
    agent = await make_agent([text("hi")], stores=stores)
    with pytest.raises(ValueRefused) as caught:
        agent.execute_turn(message)
    assert caught.value.path == path
    assert await stores.state.load("ada") is None


async def test_metadata_and_inputs_that_cannot_be_stored_are_refused(make_agent, stores):
    """At the call, with the path into what was given."""
    agent = await make_agent([text("hi")], stores=stores)
    with pytest.raises(ValueRefused) as caught:
        agent.execute_turn("hi", metadata={"a": {"b": "\x00"}})
    assert caught.value.path == "/metadata/a/b"
    with pytest.raises(ValueRefused) as caught:
        agent.execute_turn(None, inputs={"r1": {"x": float("nan")}})
    assert caught.value.path == "/inputs/r1/x"
    with pytest.raises(ValueRefused) as caught:
        await agent.save_state({"x": object()})
    assert caught.value.path == "/metadata/x"
    assert await stores.state.load("ada") is None
    assert agent.state.metadata == {}


async def test_another_tenants_credentials_are_refused(make_agent, stores):
    """`AccessDenied` at the call; the same tenant or none is fine."""
    agent = await make_agent([text("1"), text("2")], stores=stores)
    with pytest.raises(AccessDenied):
        agent.execute_turn("hi", AuthContext("u1", tenant_id="other"))
    assert await stores.state.load("ada") is None
    await agent.execute_turn("hi", AuthContext("u1", tenant_id="default"))
    await agent.execute_turn("hi", AuthContext("u1"))


async def test_there_must_be_something_to_continue(make_agent, stores):
    """`CannotContinue` from the stream: on nothing, and behind an answer; nothing is stored."""
    agent = await make_agent([text("hi")], stores=stores)
    with pytest.raises(CannotContinue):
        await agent.execute_turn(None)
    assert await stores.state.load("ada") is None
    await agent.execute_turn("hello")
    with pytest.raises(CannotContinue) as caught:
        await agent.execute_turn(None)
    assert caught.value.action == "continue"
    assert agent.state.status is AgentStatus.READY
    assert agent.state.turn_count == 1


async def test_an_unknown_input_is_refused(make_agent, stores):
    """`InputNotFound` names it; nothing is stored."""
    agent = await make_agent([text("hi")], stores=stores)
    with pytest.raises(InputNotFound) as caught:
        await agent.execute_turn(None, inputs={"nobody-asked": True})
    assert caught.value.request_id == "nobody-asked"
    assert await stores.state.load("ada") is None


@pytest.mark.parametrize("method", ["pause", "resume", "clear", "save_state", "get_messages"])
async def test_a_method_that_needs_a_started_agent_raises(make_agent, memory_stores, method):
    """`AgentNotStarted` with status and action, before start and after shutdown."""
    agent = await make_agent([], stores=memory_stores, start=False)
    for status in ("created", "shutdown"):
        with pytest.raises(AgentNotStarted) as caught:
            await getattr(agent, method)()
        assert caught.value.status == status
        assert caught.value.action == method
        await agent.shutdown()


async def test_a_turn_that_waits_for_its_own_agent_gives_up_in_time(make_agent, memory_stores):
    """`busy_timeout_s` counts for turns of the same agent too."""
    gate = Gate()
    agent = await make_agent(
        [tool_call("gate"), text("one")],
        tools=[gate.tool],
        stores=memory_stores,
        on_busy="wait",
        loop_config=LoopConfig(busy_timeout_s=0.01),
    )
    first = agent.execute_turn("a")
    await gate.entered.wait()
    with pytest.raises(AgentBusy) as caught:
        await agent.execute_turn("b")
    assert caught.value.turn == 1
    gate.open.set()
    assert (await first).text == "one"
    assert agent.state.status is AgentStatus.READY


async def test_turns_that_wait_run_in_order_of_arrival(make_agent, stores):
    """Each is whole before the next begins."""
    agent = await make_agent(
        ScriptedProvider(lambda request: text(f"re {request.messages[-1].text}")),
        stores=stores,
        on_busy="wait",
    )
    results = await asyncio.gather(*(agent.execute_turn(f"{i}") for i in range(8)))
    assert [r.turn for r in results] == list(range(1, 9))
    assert [m.text for m in await agent.get_messages()] == [
        said for i in range(8) for said in (f"{i}", f"re {i}")
    ]
    assert agent.state.status is AgentStatus.READY
    await assert_whole(stores)


async def test_the_agent_is_busy_until_the_last_waiting_turn_has_ended(make_agent, memory_stores):
    """Between two turns that wait it does not claim to be ready."""
    agent = await make_agent([text("1"), text("2")], stores=memory_stores, on_busy="wait")
    seen = []
    agent.subscribe(lambda e: seen.append(agent.state.status) if e.type == "turn_end" else None)
    agent.execute_turn("a")
    agent.execute_turn("b")
    await agent.wait_for_idle()
    assert seen == [AgentStatus.BUSY, AgentStatus.READY]


async def test_a_tool_that_does_not_exist_any_more_is_no_reason_not_to_start(
    make_agent, memory_stores
):
    """A tool provider is asked anew for each iteration."""

    class Shrinking:
        """Offers its tools once."""

        def __init__(self):
            self.asked = 0

        def list_tools(self):
            """Tools the first time, then none."""
            self.asked += 1
            return [add] if self.asked <= 2 else []

    @tool
    def other() -> str:
        """Another."""
        return "x"

    provider = ScriptedProvider([tool_call("add", a=1, b=2), text("3")])
    agent = await make_agent(provider, tools=[Shrinking(), other], stores=memory_stores)
    await agent.execute_turn("go")
    assert [t.name for t in provider.requests[0].tools] == ["add", "other"]
    assert [t.name for t in provider.requests[1].tools] == ["other"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": add}, "tools must be a list"),
        ({"tools": None}, "tools must be a list"),
        ({"loop_config": {"max_iterations": 3}}, "LoopConfig"),
        ({"system_prompt": 5}, "system_prompt must be text"),
        ({"stores": 5}, "stores must be a URL"),
    ],
)
def test_options_of_the_wrong_type_are_named_at_once(options, said):
    """Constructing checks: nothing of the wrong type gets further in."""
    with pytest.raises(ConfigurationError, match=said):
        Agent("ada", llm_provider=ScriptedProvider([]), **options)


async def test_credentials_that_are_no_auth_context_are_refused_at_the_call(make_agent):
    """The likeliest slip of a service; nothing was begun, and no secret is in the error."""
    agent = await make_agent([text("hi")])
    with pytest.raises(ValueRefused, match="AuthContext") as refused:
        agent.execute_turn("hello", {"token": "s3cret"})
    assert refused.value.path == "/auth_context"
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="secrets by name"):
        AuthContext("u1", credentials="s3cret")
    assert (await agent.execute_turn("hello")).text == "hi"


async def test_a_forgotten_async_for_raises_with_the_way_out(make_agent):
    """An Observable would iterate without end and stop the event loop."""
    agent = await make_agent([text("hi")])
    stream = agent.execute_turn("hello")
    with pytest.raises(TypeError, match="async for"):
        iter(stream)
    assert (await stream).text == "hi"


async def test_a_coroutine_function_is_no_subscriber(make_agent):
    """It would be called and never awaited."""

    async def callback(_event):
        pass

    agent = await make_agent([])
    with pytest.raises(ConfigurationError, match="plain function"):
        agent.subscribe(callback)


async def test_the_state_outlives_the_shutdown(make_agent, stores):
    """What a program prints at its end is what was."""
    agent = await make_agent([text("hi")], stores=stores)
    await agent.execute_turn("hello")
    before = agent.state
    await agent.shutdown()
    assert agent.state.status is AgentStatus.SHUTDOWN
    assert (agent.state.turn_count, agent.state.usage) == (1, before.usage)


async def test_a_system_prompt_that_fails_is_named_without_its_words(make_agent):
    """The words may hold what the function looked at."""

    def prompt(_context):
        raise KeyError("s3cret")

    agent = await make_agent([text("hi")], system_prompt=prompt)
    result = await agent.execute_turn("hello")
    assert str(result.error) == "the system prompt's function failed with KeyError"
