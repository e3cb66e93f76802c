"""
pi's `Agent`: its names and its habits, over an agent of ours that keeps everything in stores.

The state is a mirror of the context: messages are added to it as they are committed. Users of pi
change it between runs (`replace_messages`, `append_message`, also the list itself); the next run
first stores these changes. So nothing here blocks, and no message of a run is lost.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from looopy.agent.agent import Agent as OurAgent
from looopy.compat.pi.abort import AbortController
from looopy.compat.pi.errors import AlreadyStreaming, NothingToContinue
from looopy.compat.pi.events import Translator
from looopy.compat.pi.loop import require_tail
from looopy.compat.pi.order import SYSTEM, announced
from looopy.compat.pi.queues import Kind, Queues, check_modes
from looopy.compat.pi.setup import ModelOf, Models, RunOptions, ToolsOf, prompts_of, tool_sources
from looopy.compat.pi.state import AgentState, Listeners, Mirror
from looopy.compat.pi.types import (
    AgentEvent,
    AgentLoopConfig,
    AgentMessage,
    AgentTool,
    ConvertToLlmFn,
    GetApiKeyFn,
    MessageEndEvent,
    Order,
    QueueMode,
    ToolHook,
    TransformContextFn,
)
from looopy.errors import LooopyError
from looopy.llm.provider import LLMProvider, abilities_of
from looopy.loop.incoming import as_user_message
from looopy.stores.bundle import Stores
from looopy.stores.opening import open_stores
from looopy.tools.gather import ToolSource
from looopy.types import event as ours
from looopy.types.config import LoopConfig
from looopy.types.context import AuthContext
from looopy.types.message import ImageContent, UserMessage
from looopy.types.request import ThinkingLevel
from looopy.types.state import Outcome

DEFAULT_MODEL = "anthropic/claude-sonnet-4-5"


class Agent:
    """
    An agent as pi's users know it.

    Args:
        model: A name as `looopy.llm.resolve_provider` takes it, or a provider; pipy's by default.
        stores: Where the conversation is stored: a URL, or open `Stores`. By default in this
            object.
        context_id: Its id there; a new one by default. The messages of an existing context are in
            `state` once `load()` or the first run has read them.
        messages: Earlier messages; added to the context's.
        loop_config: Limits that pi does not have.
        tool_execution: `"parallel"`: tools overlap. By default `"sequential"`; with order 1.6
            `"parallel"`, as in pi.
        order: `"1.6"`: events, steering and system messages as in that release of pi; see
            `looopy.compat.pi.order`.
        stream_fn: pi's stream function, or the module `pipy_ai`: see `looopy.llm.PipyProvider`.

    The others are pi's. `async with`, or `close()`, releases the stores.

    Raises:
        ConfigurationError: An option has an unknown value.
        ValueRefused: The context id is not usable.
    """

    def __init__(
        self,
        model: str | LLMProvider = DEFAULT_MODEL,
        system_prompt: str = "",
        tools: Sequence[AgentTool | ToolSource] | None = None,
        convert_to_llm: ConvertToLlmFn | None = None,
        transform_context: TransformContextFn | None = None,
        get_api_key: GetApiKeyFn | None = None,
        steering_mode: QueueMode = "one-at-a-time",
        follow_up_mode: QueueMode = "one-at-a-time",
        session_id: str | None = None,
        thinking_budgets: Mapping[str, int] | None = None,
        max_retry_delay_ms: int | None = None,
        *,
        thinking_level: ThinkingLevel = ThinkingLevel.OFF,
        messages: Sequence[AgentMessage] = (),
        tool_execution: Literal["sequential", "parallel"] | None = None,
        order: Order = "0.58",
        before_tool_call: ToolHook | None = None,
        after_tool_call: ToolHook | None = None,
        stream_fn: Any = None,
        stores: Stores | str = "memory:",
        context_id: str | None = None,
        loop_config: LoopConfig | None = None,
    ) -> None:
        self._state = AgentState(
            system_prompt, model, thinking_level, list(tools or ()), list(messages)
        )
        self.context_id = context_id or f"pi-{uuid.uuid4().hex}"
        self.session_id = session_id
        self.thinking_budgets = thinking_budgets
        self.max_retry_delay_ms = max_retry_delay_ms
        self.steering_mode: QueueMode = steering_mode
        self.follow_up_mode: QueueMode = follow_up_mode
        self.convert_to_llm = convert_to_llm
        self.transform_context = transform_context
        self.get_api_key = get_api_key
        self.tool_execution: Literal["sequential", "parallel"] | None = tool_execution
        self.order: Order = order
        self._first = self._announced(messages)
        self._state.messages[:0] = self._first
        self.before_tool_call = before_tool_call
        self.after_tool_call = after_tool_call
        self.stream_fn = stream_fn
        self._loop_config = loop_config or LoopConfig()
        self._listeners = Listeners()
        self._queues = Queues(self._post, self._drop)
        self._controller = AbortController()
        self._options = self._asked()
        self._tools: Sequence[ToolSource] = ()  # these also decide about a dead process's calls
        self._models = Models()
        self._translator: Translator | None = None
        self._before: Sequence[AgentMessage] = ()
        self._run: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._loaded = False
        self._auth: AuthContext | None = None  # of the current run
        self.looopy = OurAgent(
            self.context_id,
            llm_provider=ModelOf(lambda: self._options, self._models.find),
            tools=[ToolsOf(lambda: self._tools)],
            system_prompt=lambda _context: self._prompt,
            stores=open_stores("memory:") if stores == "memory:" else stores,
            loop_config=self._loop_config,
            agent_name="pi",
        )
        self._mirror = Mirror(self.looopy)
        self._prompt: str = system_prompt
        self.looopy.subscribe(self._receive)

    # --- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> AgentState:
        """The current state of the agent."""
        return self._state

    @property
    def messages(self) -> list[AgentMessage]:
        """The conversation."""
        return self._state.messages

    @property
    def is_streaming(self) -> bool:
        """True while a run is under way."""
        return self._state.is_streaming

    def set_system_prompt(self, prompt: str) -> None:
        """From the next run on."""
        self._state.system_prompt = prompt

    def set_model(self, model: str | LLMProvider) -> None:
        """From the next run on."""
        self._state.model = model

    def set_thinking_level(self, level: ThinkingLevel) -> None:
        """From the next run on."""
        self._state.thinking_level = level

    def set_tools(self, tools: Sequence[AgentTool | ToolSource]) -> None:
        """From the next run on."""
        self._state.tools = list(tools)

    def set_steering_mode(self, mode: QueueMode) -> None:
        """From the next run on; `ConfigurationError` for an unknown mode."""
        check_modes(mode, self.follow_up_mode)
        self.steering_mode = mode

    def set_follow_up_mode(self, mode: QueueMode) -> None:
        """From the next run on; `ConfigurationError` for an unknown mode."""
        check_modes(self.steering_mode, mode)
        self.follow_up_mode = mode

    def replace_messages(self, messages: Sequence[AgentMessage]) -> None:
        """Make the conversation *messages*; those before are hidden for good by the next run."""
        self._mirror.replaced = True
        self._state.messages = list(messages)

    def append_message(self, message: AgentMessage) -> None:
        """Add *message*; the next run stores it."""
        self._state.messages.append(message)

    def clear_messages(self) -> None:
        """Forget the conversation."""
        self.replace_messages(())

    def reset(self) -> None:
        """Forget conversation, queues and error; model, prompt, tools and listeners stay."""
        self.replace_messages(self._announced(()))
        self.clear_all_queues()
        self._state.rest()
        self._state.error = None

    def subscribe(self, listener: Callable[[AgentEvent], object]) -> Callable[[], None]:
        """
        Call *listener* with every event; returns a function that unsubscribes it.

        It must be quick. If it raises, the error is logged, and neither the other listeners nor the
        run are affected.

        Raises:
            ConfigurationError: It is a coroutine function, which would never be awaited.
        """
        return self._listeners.add(listener)

    # --- queues ----------------------------------------------------------------------------------

    def steer(
        self, message: str | UserMessage, auth_context: AuthContext | None = None
    ) -> asyncio.Task[None] | None:
        """
        Send a message to the current run, before its next model call; without a run, to the next
        one.

        Args:
            auth_context: Ours: of the same actor as the run's; by default the run's own.

        Returns:
            An awaitable that is done when the message is stored; `None` outside an event loop.
        """
        return self._queues.add("steering", as_user_message(message), auth_context)

    def follow_up(
        self, message: str | UserMessage, auth_context: AuthContext | None = None
    ) -> asyncio.Task[None] | None:
        """Queue a message for when the run would end. Otherwise like `steer()`."""
        return self._queues.add("follow_up", as_user_message(message), auth_context)

    def clear_steering_queue(self) -> None:
        """Forget steering that no run has taken."""
        self._queues.clear("steering")

    def clear_follow_up_queue(self) -> None:
        """Forget follow-ups that no run has taken."""
        self._queues.clear("follow_up")

    def clear_all_queues(self) -> None:
        """Forget both."""
        self.clear_steering_queue()
        self.clear_follow_up_queue()

    clear_queues = clear_all_queues

    def has_queued_messages(self) -> bool:
        """True if a message that was queued here waits."""
        return bool(self._queues.of("steering") or self._queues.of("follow_up"))

    # --- runs ------------------------------------------------------------------------------------

    async def prompt(
        self,
        input: str | AgentMessage | Sequence[AgentMessage],
        images: Sequence[ImageContent] | None = None,
        *,
        auth_context: AuthContext | None = None,
    ) -> None:
        """
        Send *input* and run until the final answer; a failure of the run is in `state.error`.

        Cancelling the caller does not stop the run: `abort()` does.

        Args:
            images: Shown with a text.
            auth_context: Ours: for tools and hooks of this run; never stored.

        Raises:
            AlreadyStreaming: A run is under way.
            LooopyError: The run could not begin: an unknown model, a busy context, a value that
                cannot be stored.
        """
        if self._state.is_streaming:
            raise AlreadyStreaming(
                "Already streaming: use steer() or follow_up() to queue a message, or wait"
            )
        before, message = prompts_of(input, images)
        await self._begin(self._drive(before, message, auth_context))

    async def continue_(self, *, auth_context: AuthContext | None = None) -> None:
        """
        Continue: answer the end of the conversation, or else send the queued messages.

        Raises:
            AlreadyStreaming: A run is under way.
            NothingToContinue: The conversation is empty, or the last message is an answer and no
                message is queued, here or in the store.
        """
        if self._state.is_streaming:
            raise AlreadyStreaming("Already streaming: wait before you continue")
        await self._begin(self._drive((), None, auth_context, go_on=True))

    def abort(self) -> None:
        """Stop the run under way, keeping what happened; queues stay. Harmless when idle."""
        self._controller.abort()

    async def wait_for_idle(self) -> None:
        """Wait until no run is under way."""
        while self._run is not None and not self._run.done():
            await asyncio.wait([self._run])

    async def load(self) -> None:
        """
        Read what the context holds into `state.messages`; the first run does so by itself.

        Raises:
            ConfigurationError: The model or the stores cannot be used.
            StoreUnavailable: The database cannot be reached.
        """
        async with self._loading:
            if self._loaded:
                return
            options = self._asked()
            self._tools = tool_sources(self._state.tools, options.config, options.queued)
            await self.looopy.start()
            await self._mirror.read(self._state.messages)
            self._loaded = True
            first, messages, self._first = self._first, self._state.messages, []
            if first and messages and messages[0] is not first[0]:  # the context had messages
                messages[:] = [message for message in messages if message is not first[0]]

    async def close(self) -> None:
        """
        Let a run end, store the queued messages, and release the stores. May be called twice.

        Raises:
            LooopyError: The queued messages could not be stored; the stores are released
                nevertheless.
        """
        await self.wait_for_idle()
        try:
            await self._queues.flush()
        finally:
            await self.looopy.shutdown()
            self._loaded = False
            await self._models.aclose()

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            self.abort()
        await self.close()

    # --- inside ----------------------------------------------------------------------------------

    async def _begin(self, run: Coroutine[Any, Any, None]) -> None:
        """Run in a task of its own, which outlives a cancelled caller."""
        self._state.begin()
        self._controller = AbortController()
        task = self._run = asyncio.get_running_loop().create_task(run, name="looopy pi run")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def _drive(
        self,
        before: Sequence[AgentMessage],
        message: UserMessage | None,
        auth_context: AuthContext | None,
        *,
        go_on: bool = False,
    ) -> None:
        self._translator, self._auth = None, auth_context
        try:
            if go_on:  # before the model is looked at, as in pi
                await self._require_something(auth_context)
            await self._prepare()
            before = [*self._announced((*self._state.messages, *before)), *before]
            if before:
                await self._mirror.append(before)
                self._before = before
            await self._turn(message, auth_context)
            await self._end(auth_context)
        except LooopyError as error:
            if not self._fail(str(error)):
                # A message stored before a run that did not begin still counts.
                for said in self._before:
                    self._mirror.said(said)
                    self._state.messages.append(said)
                self._before = ()
                raise
        finally:
            if self._run is asyncio.current_task():  # and no listener has begun another
                self._auth = None
                self._state.rest()

    def _announced(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """The system message that pi 1.6 adds to *messages*, if it adds one."""
        state = self._state
        if self.order != "1.6":
            return []
        return announced(messages, (), state.system_prompt, state.tools)

    async def _require_something(self, auth_context: AuthContext | None) -> None:
        await self.load()
        queued = self.has_queued_messages() or await self.looopy.has_queued_messages(auth_context)
        if not queued and all(message.role == SYSTEM for message in self._state.messages):
            raise NothingToContinue("No messages to continue from", action="continue")
        if not queued:
            require_tail(self._state.messages)

    async def _turn(self, message: UserMessage | None, auth_context: AuthContext | None) -> None:
        turn = self.looopy.execute_turn(message, auth_context)
        await turn.accepted()
        self._controller.signal.on_abort(turn.cancel)
        await turn

    async def _end(self, auth_context: AuthContext | None) -> None:
        """Run messages that were queued as a turn ended, then report the run's end."""
        translator, signal = self._translator, self._controller.signal
        while translator is not None and (end := translator.held) is not None:
            await self._queues.settle()  # a value that the store refuses does not spoil the answer
            if not signal.aborted and await self.looopy.has_queued_messages(auth_context):
                translator.go_on()
                await self._turn(None, auth_context)
            else:
                translator.held = None
                for said in translator.of(end):
                    self._emit(said)

    def _fail(self, error: str) -> bool:
        """End a run that has begun and cannot continue; true if there was one."""
        self._state.error = error
        if self._translator is None:
            return False
        for event in self._translator.fail(error):
            self._emit(event)
        return True

    async def _prepare(self) -> None:
        """Bring model, tools, messages and queues to where the run finds them."""
        self._options, self._prompt = self._asked(), self._state.system_prompt
        model = self._models.find(self._options.config, has_key=self.get_api_key is not None)
        prepare = abilities_of(model).prepare
        self._tools = tool_sources(self._state.tools, self._options.config, self._queues.settle)
        if prepare is not None:
            await prepare()
        await self.load()
        if await self._mirror.write(self._state.messages):
            self._queues.lost()  # with what was hidden
        await self._queues.flush()
        self.looopy.loop_config = replace(
            self._options.loop_config(),
            queue_mode=self.steering_mode,
            follow_up_mode=self.follow_up_mode,
        )

    def _asked(self) -> RunOptions:
        state = self._state
        check_modes(self.steering_mode, self.follow_up_mode)
        config = AgentLoopConfig(
            model=state.model,
            reasoning=state.thinking_level,
            session_id=self.session_id or self.context_id,
            thinking_budgets=self.thinking_budgets,
            max_retry_delay_ms=self.max_retry_delay_ms,
            tool_execution=self.tool_execution,
            order=self.order,
            before_tool_call=self.before_tool_call,
            after_tool_call=self.after_tool_call,
            stream_fn=self.stream_fn,
            loop=self._loop_config,
        )
        return RunOptions(
            config,
            self._controller.signal,
            self.convert_to_llm,
            self.transform_context,
            self.get_api_key,
            lambda: self._state.messages,
            self._queues.settle,
        )

    async def _post(
        self, kind: Kind, message: UserMessage, auth_context: AuthContext | None
    ) -> None:
        await self.load()
        post = self.looopy.steer if kind == "steering" else self.looopy.follow_up
        await post(message, auth_context or self._auth)

    async def _drop(self, kind: Kind) -> None:
        await self.looopy.clear_queue("steer" if kind == "steering" else "follow_up", self._auth)

    def _receive(self, event: ours.AgentEvent) -> None:
        translator = self._translator
        if isinstance(event, ours.TurnStart) and not event.path:
            before, self._before = self._before, ()
            if translator is None or translator.over:
                translator = self._translator = Translator.of_run(self._options.config, before)
        if translator is None:
            return
        if isinstance(event, ours.TurnEnd) and not event.path and self._goes_on(event):
            translator.held = event
            return
        for said in translator.of(event):
            self._emit(said)

    def _goes_on(self, end: ours.TurnEnd) -> bool:
        """True if a message was queued too late for its turn, but not for pi's run."""
        running = self._run is not None and not self._run.done()
        return running and end.outcome is Outcome.COMPLETED and self.has_queued_messages()

    def _emit(self, event: AgentEvent) -> None:
        translator = self._translator
        self._state.follow(event, None if translator is None else translator.error)
        if isinstance(event, MessageEndEvent):
            self._queues.said(event.message)
            self._mirror.said(event.message)
        self._listeners.tell(event, self.context_id)
