"""
The public API used the way users would: checked by mypy, never run.

`assert_type` pins what an editor shows. A call that must not be accepted carries an ignore with its
code: mypy reports it as unused as soon as the call is let through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, assert_type

import looopy.sync
from looopy import (
    Agent,
    AgentEvent,
    AgentLoop,
    AgentState,
    AgentStatus,
    ApprovalDecided,
    Approve,
    Artifact,
    AssistantMessage,
    AuthContext,
    Budget,
    Compaction,
    Deny,
    ExecutedCall,
    Hooks,
    ImageContent,
    IterationResult,
    LoopConfig,
    Message,
    MessageEnd,
    MessageUpdate,
    Outcome,
    PendingKind,
    PendingRequest,
    Plugin,
    PromptPart,
    RetryPolicy,
    StatusChange,
    StopReason,
    Stores,
    TextContent,
    ThinkingLevel,
    Tool,
    ToolCall,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolResult,
    ToolResultMessage,
    TurnContext,
    TurnEnd,
    TurnError,
    TurnResult,
    TurnStart,
    TurnStream,
    Usage,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    event_to_json,
    message_from_json,
    message_to_json,
    open_stores,
    tool,
)
from looopy.auth import AuthRequest, encrypt_credential
from looopy.errors import AgentBusy, LLMError, LooopyError, StoreUnavailable, ValueRefused
from looopy.llm import (
    LLMProvider,
    LLMRequest,
    OpenAIProvider,
    StreamEvent,
    StreamOptions,
    resolve_provider,
)
from looopy.stores import ArtifactStore, MessageStore, SearchHit, StateStore
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import (
    AgentTool,
    ArtifactTools,
    Ask,
    FunctionTool,
    MCPTools,
    NeedsInput,
    RemoteAgent,
    RetryCall,
    Skill,
    Skills,
    client_tool,
    request_input,
)

# --- tools -------------------------------------------------------------------------------------


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effects="idempotent", on_resume="ask", timeout_s=5, is_enabled=lambda: True)
def book(room: int, context: ToolContext, view: str = "sea") -> ToolResult:
    """Book a room."""
    assert_type(context.auth_context, AuthContext | None)
    assert_type(context.idempotency_key, str)
    context.report(0.5)
    return ToolResult([TextContent("booked"), ImageContent("...", mime_type="image/png")])


@tool(effects="none", coerce=True, retries=2, retry_delay_s=1, max_retry_calls=3)
async def find(title: str) -> str:
    raise RetryCall(f"there is no {title}")


@tool(parameters={"type": "object", "properties": {}})
async def classic(tool_call_id: str, params: Mapping[str, Any]) -> str:
    return tool_call_id


def plain(words: str) -> str:
    return words


class Search(Tool):
    def __init__(self) -> None:
        super().__init__(name="search", effects="none", parameters={"type": "object"})

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> list[str]:
        if context.artifacts is not None:
            assert_type(await context.artifacts.save("found.txt", "nothing"), Artifact)
        return [str(arguments)]


class Shelf:
    def list_tools(self) -> Sequence[Tool]:
        return [Search()]


class RemoteShelf:
    async def list_tools(self) -> Sequence[Tool]:
        return [add, book]


async def decorated_functions_stay_functions() -> None:
    assert_type(await add(1, 2), int)
    assert_type(add.parameters, Mapping[str, Any])
    named = tool(plain, name="other")
    assert_type(named("x"), str)
    same: FunctionTool[..., str] = named
    assert_type(same.runs_in_thread, bool)
    await add("one", 2)  # type: ignore[arg-type]  # a tool keeps the types of its function
    tool(plain, effects="sometimes")  # type: ignore[call-overload]  # not one of the three


# --- an agent ----------------------------------------------------------------------------------


async def a_service(url: str, token: str) -> None:
    config = LoopConfig(
        max_iterations=5,
        budget=Budget(tokens=10_000, cost_usd=0.5, context_tokens=100_000, context_s=3600),
        retry=RetryPolicy(attempts=1),
        on_doom_loop="stop",
        thinking_level=ThinkingLevel.LOW,
        thinking_budgets={"low": 4096, ThinkingLevel.HIGH: 20_000},
        hooks=Hooks(get_api_key=lambda _provider, auth: auth and auth.credentials["key"]),
    )
    async with open_stores(url) as stores:
        assert_type(stores, Stores)
        assert_type(stores.for_tenant("acme"), Stores)
        agent = Agent(
            "ada",
            llm_provider="openai/gpt-5-mini",
            tools=[
                add,
                book,
                find,
                classic,
                plain,
                Search(),
                Shelf(),
                RemoteShelf(),
                ArtifactTools(),
            ],
            system_prompt=lambda context: f"You talk in {context.context_id}.",
            stores=stores,
            loop_config=config,
            on_busy="wait",
        )
        await agent.start()
        auth = AuthContext("u1", credentials={"token": token}, expires_at=datetime.now(UTC))
        turn = agent.execute_turn("What is 2 + 3?", auth, metadata={"client": "web"})
        assert_type(turn, TurnStream)
        assert_type(await turn.accepted(), int)
        async for event in turn:
            show(event)
        result = await turn
        assert_type(result, TurnResult)
        assert_type(await agent.clear_queue(), int)
        assert_type(await agent.has_queued_messages(), bool)
        assert_type(await agent.get_messages(after=2, limit=10), list[Message])
        assert_type(await agent.get_artifacts(), list[Artifact])
        assert_type(await agent.refresh(), AgentState)
        assert_type((await agent.search("fox", limit=3)).items, Sequence[SearchHit])
        await agent.save_state({"title": "sums"})
        assert_type(await agent.tag(add=["sums"], remove=["new"]), tuple[str, ...])
        await agent.clear(force=True)
        await agent.pause(cancel=True)
        await agent.resume()
        await agent.shutdown()
    Agent("ada")  # type: ignore[call-arg]  # an agent needs a model
    Agent("ada", llm_provider="local", on_busy="queue")  # type: ignore[arg-type]  # two choices


async def an_agent_for_another(context_id: str, stores: Stores) -> Agent:
    return Agent(context_id, llm_provider="local", stores=stores)


def for_admins(turn: TurnContext) -> bool:
    return turn.auth_context is not None


async def agents_prompts_and_types() -> None:
    helper = Agent("any", llm_provider="local")
    assert_type(helper.as_tool("helper", "Helps.", max_depth=2, output_type=list[int]), AgentTool)
    helper.as_tool(max_depht=2)  # type: ignore[call-arg]  # no such option
    agent = Agent(
        "ada",
        llm_provider="local",
        tools=[
            helper.as_tool(),
            AgentTool(an_agent_for_another, name="other", parallel=True),
            Skills([Skill("tea", "For tea.", "Warm the pot."), Skill("x", "y", lambda: "z")]),
            Plugin("p", tools=[add], prompts=["a", for_prompt], is_enabled=for_admins),
        ],
        system_prompt=["a", for_prompt, PromptPart("b", position="after", order=1, version="2")],
    )
    counts = await agent.execute_turn("hello", output_type=dict[str, int])
    assert_type(counts.output, dict[str, int] | None)
    assert_type(counts.raise_for_outcome().require_output(), dict[str, int])
    assert_type(counts.raise_for_outcome(), TurnResult[dict[str, int]])
    by_schema = await agent.execute_turn("hello", output_type={"type": "string"})
    assert_type(by_schema.output, Any | None)
    assert_type((await agent.execute_turn("hello")).output, Any | None)
    PromptPart("a", position="behind")  # type: ignore[arg-type]  # before or after


def for_prompt(turn: TurnContext) -> str:
    return turn.context_id


async def a_system_prompt_that_awaits(context: TurnContext) -> str:
    await asyncio.sleep(0)
    return context.context_id


async def an_agent_as_context_manager() -> None:
    async with Agent(
        "ada", llm_provider="local", system_prompt=a_system_prompt_that_awaits
    ) as agent:
        assert_type(agent, Agent)
        assert_type(agent.state, AgentState)
        assert_type(agent.state.status, AgentStatus)
        if agent.state.status is AgentStatus.WAITING:
            pending = agent.state.pending
            assert_type(pending, Sequence[PendingRequest])
            yes = {p.request_id: True for p in pending if p.kind is PendingKind.APPROVAL}
            await agent.execute_turn(None, inputs=yes)
        picture = UserMessage([TextContent("What is this?"), ImageContent("...")])
        await agent.execute_turn(picture)
        agent.execute_turn(3)  # type: ignore[call-overload]  # neither text nor a message


# --- events ------------------------------------------------------------------------------------


def show(event: AgentEvent) -> None:
    assert_type(event.seq, int | None)
    assert_type(event.timestamp, datetime)
    if isinstance(event, TurnStart):
        assert_type(event.user_message, UserMessage | None)
    elif isinstance(event, MessageUpdate):
        assert_type(event.delta, str)
    elif isinstance(event, MessageEnd):
        assert_type(event.position, int | None)
        if isinstance(event.message, AssistantMessage):
            assert_type(event.message.tool_calls, list[ToolCall])
            assert_type(event.message.usage, Usage)
    elif isinstance(event, ToolExecutionStart):
        assert_type(event.args, Mapping[str, Any])
    elif isinstance(event, ToolExecutionEnd):
        assert_type(event.result, ToolResultMessage)
    elif isinstance(event, StatusChange):
        assert_type(event.delay_s, float | None)
    elif isinstance(event, TurnError):
        assert_type(event.error, LooopyError | None)
    elif isinstance(event, TurnEnd):
        assert_type(event.outcome, Outcome)
        assert_type(event.stop_reason, StopReason)
    assert_type(event_to_json(event), dict[str, Any])


def show_by_type(event: AgentEvent) -> None:
    if event.type == "turn_end":
        assert_type(event, TurnEnd)
    elif event.type == "message_update":
        assert_type(event, MessageUpdate)


async def other_views(agent: Agent) -> None:
    unsubscribe = agent.subscribe(show)
    assert_type(unsubscribe, Callable[[], None])
    agent.subscribe(lambda event: event.type)
    log = agent.events(after=0)
    assert_type(log, AsyncIterator[AgentEvent])
    turn = agent.execute_turn("Hello.")
    subscription = turn.subscribe(on_next=show, on_error=lambda _: None)
    subscription.dispose()
    turn.cancel()
    both = await asyncio.gather(turn, agent.execute_turn("And you?"))
    assert_type(both, tuple[TurnResult, TurnResult])


# --- results and errors ------------------------------------------------------------------------


def results(result: TurnResult) -> str:
    assert_type(result.iterations, Sequence[IterationResult])
    assert_type(result.iterations[0].calls, Sequence[ExecutedCall])
    assert_type(result.iterations[0].finish_reason, StopReason | None)
    assert_type(result.messages, Sequence[Message])
    assert_type(result.error, LooopyError | None)
    return result.raise_for_outcome().text


async def failures(agent: Agent) -> None:
    try:
        await agent.execute_turn("Hello.")
    except AgentBusy as error:
        assert_type(error.turn, int | None)
    except ValueRefused as error:
        assert_type(error.path, str | None)
    except StoreUnavailable as error:
        assert_type(error.outcome_known, bool)
    except LLMError as error:
        assert_type(error.retryable, bool)
    except LooopyError as error:
        assert_type(error.message, str)


# --- stores, messages --------------------------------------------------------------------------


async def stores_by_themselves() -> None:
    async with open_stores("memory:", tenant="acme") as stores:
        assert_type(stores.messages, MessageStore)
        assert_type(stores.artifacts, ArtifactStore)
        assert_type(stores.state, StateStore)
        assert_type(await stores.messages.append("ada", [UserMessage("hello")]), int)
        loaded = await stores.artifacts.load("ada", "x")
        assert_type(loaded, bytes | dict[str, Any] | list[dict[str, Any]])
        for record in await stores.state.list(limit=10):
            assert_type(record.context_id, str)


def messages(data: Mapping[str, Any]) -> dict[str, Any]:
    message = message_from_json(data)
    assert_type(message, Message)
    return message_to_json(message)


# --- models ------------------------------------------------------------------------------------


class Echo:
    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncIterator[StreamEvent]:
        assert_type(request.messages, Sequence[Message])
        assert_type(options.max_tokens, int | None)
        yield StreamEvent("done", message=AssistantMessage([TextContent("...")]))


def providers() -> list[LLMProvider]:
    scripted = ScriptedProvider(
        [
            text("hi"),
            (text("let me see"), tool_call("add", a=1, b=2)),
            failure(LLMError("no")),
            lambda request: text(str(len(request.messages))),
        ],
        chunk_chars=2,
    )
    assert_type(scripted.requests, list[LLMRequest])
    return [
        Echo(),
        scripted,
        resolve_provider("local"),
        OpenAIProvider("gpt-5-mini", api_key=lambda: "key"),
    ]


# --- a person in the loop ----------------------------------------------------------------------


def is_large(arguments: Mapping[str, Any], context: ToolContext) -> bool:
    return bool(arguments["cents"] > 100 and context.turn)


@tool(
    needs_approval=is_large,
    approval_expires_s=60,
    approval_prompt=lambda arguments: f"Pay {arguments['cents']}?",
)
async def pay(cents: int, context: ToolContext) -> str:
    token = await context.ask("A token?", auth=AuthRequest(type="pat", scopes=["pay"]))
    day = await context.ask("When?", key="day", kind=PendingKind.INPUT, options=["now"])
    if "note" not in context.answers:
        raise NeedsInput([Ask("note", prompt="A note?")], state={"asked": 1})
    return f"{token}{day}{cents}{context.state}"


async def answered(context_id: str) -> None:
    tools = [pay, request_input, client_tool("scan", "Scan.", needs_approval=True)]
    agent = Agent(context_id, llm_provider=Echo(), tools=tools, auth_key=b"x" * 32)
    for request in agent.state.pending:
        assert_type(request, PendingRequest)
        if request.auth is not None:
            assert_type(encrypt_credential("t", request.auth), str)
    await agent.execute_turn(None, inputs={"r": True})
    await agent.execute_turn(None, inputs={"r": Approve(args={"cents": 5}, note="less")})
    await agent.execute_turn(None, inputs={"r": Deny(reason="too much"), "s": False})
    async for event in agent.events(after=0):
        if isinstance(event, ApprovalDecided):
            assert_type(event.decision, Literal["approved", "denied", "expired"])
            assert_type(event.actor_id, str | None)


# --- the blocking face, the bare loop ----------------------------------------------------------


def a_script() -> None:
    with looopy.sync.Agent("ada", llm_provider="local", stores="sqlite:///chat.db") as agent:
        assert_type(agent, looopy.sync.Agent)
        assert_type(agent.execute_turn("Hello."), TurnResult)
        for event in agent.stream_turn("And you?"):
            show(event)
        assert_type(agent.get_messages(after=2, limit=10), list[Message])
        assert_type(agent.compact(keep_turns=2), Compaction | None)
        assert_type(agent.undo_compact(), Compaction | None)
        agent.steer("Stop.", expected_turn=2)
        assert_type(agent.state, AgentState)


async def later() -> list[UserMessage]:
    return [UserMessage("And?")]


async def the_bare_loop(history: list[Message]) -> None:
    async for event in agent_loop(
        "Hello.",
        llm_provider=Echo(),
        messages=history,
        tools=[add],
        get_steering_messages=lambda: None,
        get_follow_up_messages=later,
    ):
        show(event)
    async for event in agent_loop_continue(llm_provider="local", messages=history):
        show(event)
    loop = AgentLoop(Echo(), [plain], LoopConfig())
    loop.execute_turn(history, TurnContext(context_id="x")).subscribe(show)


def bearer(auth_context: AuthContext | None) -> dict[str, str]:
    return {} if auth_context is None else {"Authorization": auth_context.credentials["token"]}


async def later_bearer(auth_context: AuthContext | None) -> dict[str, str]:
    return bearer(auth_context)


async def tools_of_servers() -> None:
    async with MCPTools(command="uvx", args=["mcp-server-time"], env={"A": "b"}) as clock:
        assert_type(await clock.list_tools(), Sequence[Tool])
    crm = MCPTools(url="https://crm.example/mcp", headers=bearer, needs_approval=True)
    booking = RemoteAgent("https://booking.example", headers=later_bearer)
    Agent("ada", llm_provider=Echo(), tools=[clock, crm, booking, add])
