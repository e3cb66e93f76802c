"""A mistake in calling is refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from looopy import Agent, AuthContext, tool
from looopy.errors import (
    AccessDenied,
    ConfigurationError,
    InputNotFound,
    InvalidTool,
    StoreUnavailable,
    ValueRefused,
)
from looopy.stores.sql.sqlite.connection import connect
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import MCPTools, Skill, Skills, Tool, ToolContext

SKILL = Skill("cook", "For soup.", "Boil it.")


def agent(**options):
    """One that says `fine`."""
    return Agent("ada", **{"llm_provider": ScriptedProvider([text("fine")]), **options})


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    return str(await context.ask("Which one?"))


class Look(Tool):
    """A tool by class."""


class Source:
    """A source of tools by class."""

    def list_tools(self):
        """None."""
        return ()


def test_an_option_that_does_not_exist_is_named():
    """With the class that the user wrote."""
    with pytest.raises(TypeError, match=r"^Agent\(\) got an .* argument 'model'"):
        agent(model="x")
    with pytest.raises(TypeError, match=r"^Agent\.__init__\(\) missing .*'llm_provider'"):
        Agent("ada")


@pytest.mark.parametrize(
    ("url", "says"), [("sqlite:///no/x.db", "sqlite:////no/x.db"), ("sqlite:////no/x.db", "")]
)
def test_a_folder_that_is_none_may_be_a_slash_too_few(url, says):
    """Only where the path is relative."""
    with pytest.raises(StoreUnavailable, match=r"the folder .* does not exist") as refused:
        connect(Path(url.removeprefix("sqlite:///")))
    assert ("four slashes" in str(refused.value)) is bool(says)
    assert says in str(refused.value)


async def test_the_wrong_use_of_a_view_raises_with_the_right_one():
    """`with`, and the fields of a result that was not awaited."""
    with pytest.raises(TypeError, match=r"async with.*looopy\.sync"):
        agent().__enter__()
    async with agent() as one:
        turn = one.execute_turn("hi")
        with pytest.raises(AttributeError, match=r"\(await turn\)\.text"):
            _ = turn.text
        with pytest.raises(AttributeError, match=r"no 'txt'$"):
            _ = turn.txt
        assert (await turn).text == "fine"


@pytest.mark.parametrize("inputs", [[True], {7: True}, "yes", {None: 1}], ids=repr)
async def test_inputs_are_answers_by_request_id(inputs):
    """Anything else is refused with the shape."""
    async with agent() as one:
        with pytest.raises(ValueRefused, match=r"request\.request_id: True") as refused:
            one.execute_turn(None, inputs=inputs)
    assert refused.value.path == "/inputs"


async def test_an_id_that_is_not_pending_is_refused_with_those_that_are():
    """At most ten."""
    calls = [tool_call("ask")]
    async with agent(llm_provider=ScriptedProvider(calls), tools=[ask]) as one:
        [request] = (await one.execute_turn("hi")).pending
        with pytest.raises(InputNotFound, match=f"pending: '{request.request_id}'$"):
            await one.execute_turn(None, inputs={"no": True})


async def test_saying_something_in_the_wrong_way_names_the_right_one():
    """To a context of somebody, and in another type than text."""
    async with agent() as one:
        await one.execute_turn("hi", AuthContext("ada"))
        with pytest.raises(AccessDenied, match="pass an auth_context of the same actor"):
            await one.steer("quick")
        with pytest.raises(ValueRefused, match=r"^a message is text or a UserMessage, not dict"):
            await one.steer({"text": "quick"})
        with pytest.raises(ValueRefused, match=r"pass some text$"):
            await one.steer(" ")


@pytest.mark.parametrize(
    "skills", [{"cook": SKILL}, "./skills", SKILL, [SKILL, "x"], 7], ids=lambda one: str(type(one))
)
def test_skills_are_a_list(skills):
    """Of skills."""
    with pytest.raises(ConfigurationError, match=r"Skills\(\[Skill\("):
        Skills(skills)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Look, r"tools=\[Look\(\.\.\.\)\]"),
        (Source, r"tools=\[Source\(\.\.\.\)\]"),
        (agent(), r"pass agent\.as_tool\(\)"),
        (agent().as_tool, r"pass agent\.as_tool\(\)"),
    ],
    ids=["class of a tool", "class of a source", "agent", "uncalled"],
)
async def test_a_function_that_is_not_a_tool_is_refused_with_the_way_out(source, says):
    """At the start."""
    with pytest.raises(InvalidTool, match=says):
        await agent(tools=[source]).start()


@pytest.mark.parametrize("command", [["uvx", "mcp-server-time"], "uvx mcp-server-time"], ids=repr)
def test_a_command_is_a_program_without_arguments(command, tmp_path):
    """But a program may have spaces in its name."""
    with pytest.raises(ConfigurationError, match="go into args="):
        MCPTools(command=command)
    spaced = tmp_path / "my server"
    spaced.touch()
    assert MCPTools(command=str(spaced)).target.command == str(spaced)


class Seat(BaseModel):
    """Where somebody sits."""

    row: int


async def test_a_question_takes_a_pydantic_model_for_a_schema():
    """The answer fits it, and is plain JSON."""

    @tool
    async def seat(context: ToolContext) -> str:
        """Choose a seat."""
        return repr(await context.ask("Where?", schema=Seat))

    says = ScriptedProvider([tool_call("seat"), text("fine")])
    async with agent(llm_provider=says, tools=[seat]) as one:
        [request] = (await one.execute_turn("hi")).pending
        assert request.schema["required"] == ["row"]
        with pytest.raises(ValueRefused):
            await one.execute_turn(None, inputs={request.request_id: {"row": "x"}})
        result = await one.execute_turn(None, inputs={request.request_id: {"row": 7}})
    assert result.messages[0].text == "{'row': 7}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "choice"}, "'approval', 'input', 'auth', 'client_tool'"),
        ({"schema": int}, "or a pydantic model"),
        ({"schema": "string"}, "or a pydantic model"),
    ],
    ids=repr,
)
async def test_a_request_outside_a_turn_raises_for_the_developer(options, says, caplog):
    """Not to the model alone, which cannot help it."""

    @tool
    async def seat(context: ToolContext) -> str:
        """Choose a seat."""
        return repr(await context.ask("Where?", **options))

    says_all = ScriptedProvider([tool_call("seat"), text("fine")])
    async with agent(llm_provider=says_all, tools=[seat]) as one:
        result = await one.execute_turn("hi")
    assert says in result.iterations[0].tool_results[0].text
    [record] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert says in record.getMessage()


async def test_a_tool_that_is_not_async_cannot_ask(caplog):
    """It is said, not a coroutine given that nobody awaits."""

    @tool
    def seat(context: ToolContext) -> str:
        """Choose a seat."""
        return f"seat {context.ask('Where?')}"

    says = ScriptedProvider([tool_call("seat"), text("fine")])
    async with agent(llm_provider=says, tools=[seat]) as one:
        result = await one.execute_turn("hi")
    assert "must be `async def`" in result.iterations[0].tool_results[0].text
    assert "must be `async def`" in caplog.text
