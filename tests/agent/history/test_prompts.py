"""System prompts in parts, and what brings them: built for each model call, stored nowhere."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.agent.kit import add, assert_valid, assert_whole
from tests.property.strict import check_anthropic, check_openai

from looopy import Agent, Plugin, PromptPart, ToolContext, TurnContext, agent_loop, tool
from looopy.errors import ConfigurationError, InvalidTool
from looopy.llm.anthropic.format import to_body
from looopy.llm.anthropic.models import Abilities
from looopy.loop.prompts import AFTER
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Skill, Skills
from looopy.types.message import ToolResultMessage, UserMessage
from looopy.types.request import LLMRequest, StreamOptions
from looopy.types.state import Outcome


async def test_parts_come_in_their_order(make_agent, memory_stores):
    """Lower numbers first, equal ones as they were given; text and functions are parts as well."""

    async def of_turn(context: TurnContext) -> str:
        return f"turn {context.turn}"

    agent = await make_agent(
        [text("hi"), text("ho")],
        system_prompt=[
            PromptPart("late", order=5),
            "first",
            of_turn,
            PromptPart("early", order=-1),
            PromptPart("", name="empty"),
            PromptPart(lambda context: context.context_id),
        ],
        stores=memory_stores,
    )
    await agent.execute_turn("hello")
    await agent.execute_turn("hello")
    prompts = [request.system_prompt for request in agent._core.resources.provider.requests]
    assert prompts == [f"early\n\nfirst\n\nturn {n}\n\nada\n\nlate" for n in (1, 2)]
    assert [m.text for m in await agent.get_messages()] == ["hello", "hi", "hello", "ho"]


async def test_a_prompt_is_built_for_each_model_call(make_agent, memory_stores):
    """Not once a turn, and none of it is stored."""
    calls = iter(range(10))
    parts = [
        PromptPart(lambda _: f"before {next(calls)}"),
        PromptPart(lambda _: f"after {next(calls)}", "after"),
    ]
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("3")],
        tools=[add],
        system_prompt=parts,
        stores=memory_stores,
    )
    await agent.execute_turn("go")
    first, second = agent._core.resources.provider.requests
    assert (first.system_prompt, second.system_prompt) == ("before 0", "before 2")
    assert first.messages[-1].text == f"go\n{AFTER}after 1"
    assert second.messages[-1].text == f"{AFTER}after 3"
    stored = repr(await memory_stores.journal.events("ada"))
    assert "before 0" not in stored
    assert "after" not in "".join(m.text for m in await agent.get_messages())
    await assert_whole(memory_stores)


async def test_prompt_parts_after_the_history_keep_the_request_valid(make_agent):
    """Behind results as words of the user's side, within the message where the user spoke last."""
    agent = await make_agent(
        [tool_call("add", a=1, b=2), text("3"), text("4")],
        tools=[add],
        system_prompt=["Be brief.", PromptPart("It is noon.", "after")],
    )
    await agent.execute_turn("go")
    await agent.execute_turn("on")
    requests = agent._core.resources.provider.requests
    for request in requests:
        assert request.ephemeral
        assert_valid(request.messages)
        assert check_openai(request.messages, alternating=True) == []
        body, _ = to_body(request, StreamOptions(), model="m", abilities=Abilities())
        assert check_anthropic(body["messages"]) == []
        assert body["messages"][-1]["content"][-1]["text"].endswith("It is noon.")
        assert "cache_control" not in body["messages"][-1]["content"][-1]
        assert "cache_control" in body["messages"][-1]["content"][-2]
    assert isinstance(requests[1].messages[-2], ToolResultMessage)
    # What a later request begins with is what an earlier one sent: caches of prefixes live.
    sent = [
        to_body(r, StreamOptions(), model="m", abilities=Abilities(), cache_ttl=None)[0]
        for r in requests
    ]
    flat = [[block for m in body["messages"] for block in m["content"]] for body in sent]
    for earlier, later in itertools.pairwise(flat):
        assert later[: len(earlier) - 1] == earlier[:-1]
    assert {body["system"][0]["text"] for body in sent} == {"Be brief."}


async def test_a_request_without_such_parts_is_as_it_was():
    """The cache's mark stands at the end."""
    request = LLMRequest(messages=[UserMessage("a")])
    assert not request.ephemeral
    body, _ = to_body(request, StreamOptions(), model="m", abilities=Abilities())
    assert "cache_control" in body["messages"][-1]["content"][-1]
    alone = LLMRequest(messages=[UserMessage("a")], ephemeral=True)
    to_body(alone, StreamOptions(), model="m", abilities=Abilities())


async def test_named_parts_can_be_traced(make_agent):
    """The provider is told which parts a request was made of; the model is not."""
    agent = await make_agent(
        [text("hi")],
        system_prompt=[
            "plain",
            PromptPart(lambda _: "hello", name="greeting", version="2", metadata={"team": "a"}),
            PromptPart("", name="left out"),
            PromptPart("now", "after", name="clock"),
        ],
    )
    await agent.execute_turn("go")
    (request,) = agent._core.resources.provider.requests
    traced = [(p.name, p.version, p.text, dict(p.metadata)) for p in request.prompts]
    assert traced == [("greeting", "2", "hello", {"team": "a"}), ("clock", None, "now", {})]
    assert "greeting" not in request.system_prompt


@pytest.mark.parametrize("position", ["before", "after"])
async def test_a_failing_part_fails_the_turn(make_agent, position):
    """It names the part, and not what the part looked at."""

    async def broken(_context) -> str:
        raise KeyError("tok-4711")

    part = PromptPart(broken, position, name="weather")
    agent = await make_agent([text("hi")], system_prompt=[part])
    result = await agent.execute_turn("go")
    assert result.outcome is Outcome.FAILED
    assert isinstance(result.error, ConfigurationError)
    assert "'weather' failed with KeyError" in str(result.error)
    assert "tok-4711" not in str(result.error)
    agent = await make_agent([text("hi")], system_prompt=[lambda _: 5], context_id="ben")
    assert "must return text" in str((await agent.execute_turn("go")).error)


async def test_a_part_that_hangs_can_be_cancelled(make_agent):
    """As any step of a turn."""
    entered = asyncio.Event()

    async def hangs(_context) -> str:
        entered.set()
        await asyncio.Event().wait()
        return ""

    agent = await make_agent([], system_prompt=[PromptPart(hangs)])
    stream = agent.execute_turn("go")
    await entered.wait()
    stream.cancel()
    assert (await stream).outcome is Outcome.CANCELLED


@pytest.mark.parametrize("prompt", [5, None, [5], ["a", None], {"a": "b"}])
def test_an_invalid_prompt_is_refused(prompt):
    """When the agent is made."""
    with pytest.raises(ConfigurationError, match="system_prompt"):
        Agent("ada", llm_provider=ScriptedProvider([]), system_prompt=prompt)


@pytest.mark.parametrize(
    "options", [{"text": 5}, {"text": "a", "position": "behind"}, {"text": "a", "order": "1"}]
)
def test_a_part_checks_its_options(options):
    """When it is made."""
    with pytest.raises(ConfigurationError, match="PromptPart"):
        PromptPart(**options)


async def test_a_bare_loop_takes_parts_too():
    """As an agent does."""
    provider = ScriptedProvider([text("hi")])
    prompt = [PromptPart("b", order=1), "a"]
    async for _ in agent_loop("go", llm_provider=provider, system_prompt=prompt):
        pass
    assert provider.requests[0].system_prompt == "a\n\nb"


# --- skills ------------------------------------------------------------------------------------


async def load_knots() -> str:
    """Load it from somewhere."""
    return "Left over right, then right over left."


KNOTS = Skill("tie knots", "For all that has to do\nwith ropes.", load_knots)
TEA = Skill("Tea", "For making tea.", "Warm the pot first.")
SONG = Skill("song", "For singing.", lambda: "La la.")


async def test_a_learned_skill_stays_in_the_history(make_agent, stores):
    """Also for a process that knows nothing of skills."""
    agent = await make_agent(
        [tool_call("learn_skill", name="tie knots"), text("Tied.")],
        tools=[Skills([KNOTS, TEA])],
        system_prompt="Be brief.",
        stores=stores,
    )
    result = await agent.execute_turn("Tie a knot!")
    request = agent._core.resources.provider.requests[0]
    assert request.system_prompt.startswith("Be brief.\n\nYou have skills")
    assert "`learn_skill`" in request.system_prompt
    assert request.system_prompt.endswith(
        "- tie knots: For all that has to do with ropes.\n- Tea: For making tea."
    )
    assert [part.name for part in request.prompts] == ["skills"]
    learned = result.iterations[0].tool_results[0]
    assert learned.text == "Left over right, then right over left."
    assert learned.details == {"skill": "tie knots"}
    await agent.shutdown()
    later = await make_agent([text("ok")], stores=stores)
    await later.execute_turn("And again?")
    assert learned.text in [m.text for m in later._core.resources.provider.requests[0].messages]
    assert later._core.resources.provider.requests[0].system_prompt == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tea", "Warm the pot first."),
        ("song", "La la."),
        ("dance", "There is no skill 'dance'. There are: tie knots, Tea, song."),
    ],
)
async def test_a_skill_is_known_by_its_name(make_agent, name, says):
    """Case aside; an unknown one lists those there are."""
    agent = await make_agent(
        [tool_call("learn_skill", name=name), text("ok")], tools=[Skills([KNOTS, TEA, SONG])]
    )
    result = (await agent.execute_turn("go")).iterations[0].tool_results[0]
    assert (result.text, result.is_error) == (says, name == "dance")


async def test_a_skill_that_cannot_be_loaded_is_a_failed_call(make_agent):
    """And one that is no text."""

    def gone() -> str:
        raise OSError("no such file")

    skills = Skills([Skill("a", "A.", gone), Skill("b", "B.", lambda: 5)])
    calls = (tool_call("learn_skill", name="a"), tool_call("learn_skill", name="b"))
    agent = await make_agent([calls, text("ok")], tools=[skills])
    results = (await agent.execute_turn("go")).iterations[0].tool_results
    assert [r.is_error for r in results] == [True, True]
    assert results[0].text == "no such file"
    assert "is not text" in results[1].text


def test_skills_that_will_not_do_are_refused():
    """Two of one name, none, a name in two lines, an instruction that is none."""
    with pytest.raises(ConfigurationError, match="two skills are named 'tea'"):
        Skills([TEA, Skill("tea", "Else.", "Else.")])
    with pytest.raises(ConfigurationError, match="two skills are named 'Tea'"):
        Skills([Skill("tea", "Else.", "Else."), TEA])
    with pytest.raises(ConfigurationError, match="at least one"):
        Skills([])
    for name in ("", "two\nlines", " a", "x" * 65, 5):
        with pytest.raises(ConfigurationError, match="skill name"):
            Skill(name, "", "")
    with pytest.raises(ConfigurationError, match="instruction"):
        Skill("a", "", 5)


async def test_skills_may_go_by_other_words(make_agent):
    """Two sources need two tools; the prompt may be left to the application."""
    more = Skills([SONG], tool_name="learn_song", introduction=None)
    agent = await make_agent([text("ok")], tools=[Skills([TEA]), more])
    await agent.execute_turn("go")
    request = agent._core.resources.provider.requests[0]
    assert [spec.name for spec in request.tools] == ["learn_skill", "learn_song"]
    assert "song" not in request.system_prompt
    with pytest.raises(InvalidTool):
        await make_agent([], tools=[Skills([TEA]), Skills([SONG])], context_id="ben")


# --- plugins -----------------------------------------------------------------------------------


@tool
def reset() -> str:
    """Reset."""
    return "reset"


def is_admin(context: TurnContext) -> bool:
    """Whether the turn says so."""
    return bool(context.metadata.get("admin"))


async def test_a_plugin_comes_and_goes_as_one(make_agent):
    """Tools, words and what it brings from its own sources."""
    plugin = Plugin(
        "admin",
        tools=[reset, Skills([TEA])],
        prompts=[PromptPart("You may reset.", order=1), lambda c: f"Turn {c.turn}."],
        is_enabled=is_admin,
    )
    agent = await make_agent([text("a"), text("b")], tools=[add, plugin], system_prompt="Hi.")
    await agent.execute_turn("go")
    await agent.execute_turn("go", metadata={"admin": True})
    off, on = agent._core.resources.provider.requests
    assert ([t.name for t in off.tools], off.system_prompt) == (["add"], "Hi.")
    assert [t.name for t in on.tools] == ["add", "reset", "learn_skill"]
    assert on.system_prompt.startswith("Hi.\n\nTurn 2.\n\nYou have skills")
    assert on.system_prompt.endswith("You may reset.")


async def test_a_plugin_is_asked_for_each_model_call(make_agent):
    """What it was switched off for meanwhile is gone within the turn."""
    on = [True]

    @tool
    def off(context: ToolContext) -> str:
        """Switch it off."""
        on[0] = False
        return f"off in {context.context_id}"

    plugin = Plugin("p", tools=[off], prompts=["On."], is_enabled=lambda: on[0])
    agent = await make_agent([tool_call("off"), tool_call("off"), text("ok")], tools=[plugin])
    result = await agent.execute_turn("go")
    texts = [i.tool_results[0].text for i in result.iterations[:2]]
    assert texts[0] == "off in ada"
    assert "There is no tool named 'off'" in texts[1]
    prompts = [request.system_prompt for request in agent._core.resources.provider.requests]
    assert prompts == ["On.", "", ""]


async def test_colliding_names_are_refused_at_start(make_agent):
    """Also those of a plugin that is off, and of two plugins."""
    one = Plugin("one", tools=[reset], is_enabled=is_admin)
    with pytest.raises(InvalidTool, match="two tools are named 'reset'"):
        await make_agent([], tools=[reset, one])
    with pytest.raises(InvalidTool, match="two tools are named 'reset'"):
        await make_agent([], tools=[one, Plugin("two", tools=[reset])])


async def test_a_plugin_acquires_and_releases_its_sources(make_agent):
    """From the start of an agent to its shutdown."""
    held = []

    class Source:
        def list_tools(self):
            return ()

        def acquire(self):
            held.append(1)

        async def release(self):
            held.pop()

    plugin = Plugin("p", tools=[Source()])
    agent = await make_agent([], tools=[plugin])
    other = await make_agent([], tools=[plugin], context_id="ben")
    assert len(held) == 2
    await agent.shutdown()
    await other.shutdown()
    assert held == []


async def test_any_source_of_tools_may_bring_prompts(make_agent):
    """`system_prompts` is all it takes; one that fails, fails the turn."""

    class Source:
        broken = False

        def list_tools(self):
            return ()

        def system_prompts(self, turn):
            if self.broken:
                raise OSError("tok-4711")
            return [f"of {turn.context_id}"]

    source = Source()
    agent = await make_agent([text("a")], tools=[source])
    await agent.execute_turn("go")
    assert agent._core.resources.provider.requests[0].system_prompt == "of ada"
    source.broken = True
    error = (await agent.execute_turn("go")).error
    assert isinstance(error, ConfigurationError)
    assert "prompts of Source failed with OSError" in str(error)
    assert "4711" not in str(error)


def test_a_plugin_that_will_not_do_is_refused():
    """When it is made."""
    with pytest.raises(ConfigurationError, match="name"):
        Plugin("")
    with pytest.raises(ConfigurationError, match="list"):
        Plugin("p", prompts="text")
    with pytest.raises(ConfigurationError, match="system_prompt"):
        Plugin("p", prompts=[5])
    with pytest.raises(InvalidTool):
        Plugin("p", tools=[5])
    assert repr(Plugin("p")) == "<Plugin p>"
