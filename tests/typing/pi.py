"""
The names of pi used the way pi's users would: checked by mypy, never run.

As `api.py`: `assert_type` pins what an editor shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

from looopy import Message, Stores
from looopy.compat.pi import (
    AbortController,
    AbortSignal,
    Agent,
    AgentEvent,
    AgentLoopConfig,
    AgentState,
    AgentTool,
    AgentToolResult,
    AgentToolUpdateCallback,
    AssistantMessage,
    ImageContent,
    MessageUpdateEvent,
    Session,
    TextContent,
    ThinkingLevel,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    read_session,
    tool,
    write_session,
)
from looopy.llm import LLMProvider, PipyProvider


@tool(name="greet", description="Greet", parameters={"type": "object"}, effects="none")
async def greet(
    tool_call_id: str,
    params: dict[str, Any],
    signal: AbortSignal | None,
    on_update: AgentToolUpdateCallback | None,
) -> AgentToolResult:
    if on_update is not None:
        on_update(AgentToolResult([TextContent("half")]))
    if signal is not None:
        signal.throw_if_aborted()
    return AgentToolResult(content=[TextContent("hi"), ImageContent("")], details={"x": 1})


class Shout(AgentTool):
    name = "shout"

    async def execute(
        self,
        tool_call_id: str,
        params: dict[str, Any],
        signal: AbortSignal | None = None,
        on_update: AgentToolUpdateCallback | None = None,
    ) -> AgentToolResult:
        return AgentToolResult()


def show(event: AgentEvent) -> None:
    if isinstance(event, MessageUpdateEvent):
        assert_type(event.message, AssistantMessage)


async def an_agent(stores: Stores, pipy: Any) -> None:
    assert_type(greet, AgentTool)
    agent = Agent("openai/gpt-5-mini", "Be brief.", [greet, Shout()])
    other = Agent(model=PipyProvider("m", pipy), stores=stores, context_id="ada", stream_fn=pipy)
    agent.set_thinking_level(ThinkingLevel.HIGH)
    agent.set_tools([greet])
    assert_type(agent.subscribe(show), Callable[[], None])
    agent.steer("now")
    await agent.prompt("hi", [ImageContent("")])
    await agent.prompt([UserMessage("a"), UserMessage("b")])
    await agent.continue_()
    agent.abort()
    assert_type(agent.state, AgentState)
    assert_type(agent.state.messages, list[Message])
    assert_type(agent.state.stream_message, AssistantMessage | None)
    async with other:
        await other.wait_for_idle()


async def the_loop(provider: LLMProvider, history: list[Message]) -> None:
    config = AgentLoopConfig(model=provider, reasoning=ThinkingLevel.LOW)
    signal = AbortController().signal
    async for event in agent_loop([UserMessage("hi")], config=config, signal=signal, tools=[greet]):
        show(event)
    async for event in agent_loop_continue(
        messages=history, config=config, get_steering_messages=lambda: [UserMessage("x")]
    ):
        show(event)


def sessions(history: list[Message]) -> None:
    session = read_session("s.jsonl")
    assert_type(session, Session)
    assert_type(session.messages, list[Message])
    assert_type(write_session(None, session.extended(history)), Session)
