"""Run a recorded turn again, answered from the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from looopy.agent.agent import Agent
from looopy.agent.hosted import Making, port_of
from looopy.auth.redaction import Redactor
from looopy.errors import ConfigurationError, LooopyError, ValueRefused
from looopy.history.open_calls import unanswered
from looopy.history.view import View
from looopy.llm.provider import Abilities, abilities_of
from looopy.llm.render import OUTCOME_UNKNOWN
from looopy.loop.given import Given, Resumed, TurnPlan
from looopy.loop.guards import Spent
from looopy.loop.outgoing import Group
from looopy.loop.output import (
    ASK_BY_TOOL,
    how_to_answer,
    output_type_of,
    tries_in,
)
from looopy.loop.prompts import build_prompt
from looopy.loop.turn import run_turn
from looopy.replay.answers import AsSaid, AsThen, Script, answering, stand_in
from looopy.replay.differences import (
    PARTS,
    Difference,
    Played,
    Replayed,
    first_difference,
    tools_of,
)
from looopy.replay.recording import Recording, answers_of, recording_of, results_of
from looopy.tools.base import Tool, ToolProvider
from looopy.tools.call.run import NOT_FOUND
from looopy.tools.gather import gather_tools, prompts_of, wrap_tools
from looopy.types.config import Budget, Hooks, LoopConfig, RetryPolicy
from looopy.types.context import PromptPart, TurnContext
from looopy.types.event import AgentEvent, durable
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from looopy.types.result import FINAL_ANSWER, has_answer
from looopy.types.state import HeldCall, Outcome

_OF_A_LIMIT = frozenset(
    {
        StopReason.BUDGET,
        StopReason.MAX_ITERATIONS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.MAX_TOOL_FAILURES,
        StopReason.DOOM_LOOP,
    }
)


_DIED: Final = Resumed(held=HeldCall(tool_call_id="", origin=0, asked_in=0, died=True))
_UNCOUNTED = frozenset({StopReason.BUDGET, StopReason.MAX_TOOL_FAILURES})


async def replay(
    recording: Recording,
    agent: Agent | None = None,
    *,
    output_type: Any = None,
    ignore: Collection[str] = (),
) -> Replayed:
    """
    Run a recorded turn again, the model and the tools answered from the *recording*.

    The prompt, the tools' schemas, the limits and the loop are today's. Nothing is sent, no
    tool runs, and nothing is stored. Budgets, time limits, hooks and the count of failures do not
    matter, and a summary is the recorded one. There is no caller: functions of the system prompt
    get a `TurnContext` without `auth_context`.

    Args:
        agent: An agent as the application makes it, not started: its prompt, tools, model name and
            `LoopConfig` are compared with the recorded ones. `None`: only the loop is.
        output_type: The one that the turn was given, if it was.
        ignore: Parts of requests that may differ: `"model"`, `"tools"`, `"prompt"`. A prompt with
            the time of day, for example, differs always.

    Raises:
        ConfigurationError: The agent's model or tools cannot be made or listed.
        ValueRefused: The turn is still open, or *ignore* has another name.
    """
    for part in ignore:
        if part not in PARTS:
            raise ValueRefused(f"ignore takes {', '.join(PARTS)}, not {part!r}", path="/ignore")
    if recording.outcome is None:
        raise ValueRefused(
            f"turn {recording.turn} of {recording.context_id!r} is still open: replay it after its"
            " end",
            path="/turn",
        )
    making = None if agent is None else port_of(agent).making
    return await replay_made(recording, making, output_type, ignore)


async def replay_made(
    recording: Recording,
    making: Making | None,
    output_type: Any = None,
    ignore: Collection[str] = (),
) -> Replayed:
    """Like `replay`, which checks its arguments, with the parts of an agent."""
    script = Script(recording)
    sources = [] if making is None else await _listed(making)
    stage = _Stage.of(recording, making, sources, script, output_type)
    if "prompt" in ignore or "prompt" in stage.unknown:
        stage = stage.without_prompt()
    elif (failed := await stage.failure_of_prompt()) is not None:
        stage = stage.without_prompt(f"the system prompt: a replay has no caller, and {failed}")
    events = await stage.play(recording, script)
    now = recording_of(durable(events), before=recording.before)
    cut_off, surplus = script.over.is_set(), script.surplus
    limits = _OF_A_LIMIT if making is None else _UNCOUNTED
    if recording.stop_reason in limits or recording.outcome == "interrupted":
        surplus = None  # it had ended before that call
    uncounted = recording.stop_reason in _UNCOUNTED or recording.was_cut
    played = Played(
        ran=script.ran,
        known=stage.known,
        surplus=surplus,
        cut_off=cut_off,
        unanswered=script.unanswered,
        ended_first=uncounted and now.stop_reason in _OF_A_LIMIT,
    )
    difference: Difference | None
    difference = first_difference(recording, now, played, {*ignore, *stage.unknown})
    return Replayed(
        recording=recording,
        now=now,
        difference=difference,
        gone=_gone(recording, now, stage.known),
        left_out=stage.left_out,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """
    Inputs of a replayed turn, except its recorded answers.

    Attributes:
        known: The names of the tools that the agent has, or that the recording names.
        unknown: Parts of requests that cannot be compared.
        left_out: Sentences about them.
    """

    provider: AsThen
    sources: Sequence[Tool | _AnsweringSource]
    context: TurnContext
    config: LoopConfig
    output_type: Any
    known: Collection[str]
    unknown: Collection[str]
    left_out: Sequence[str]

    @classmethod
    def of(
        cls,
        recording: Recording,
        making: Making | None,
        listed: Sequence[_Listed],
        script: Script,
        output_type: Any,
    ) -> _Stage:
        sources, left_out = list[Tool | _AnsweringSource](), list[str]()
        names = set[str]()
        unknown, chosen = set[str](), list[str]()
        elsewhere, with_prompts = list[str](), list[str]()  # sources of servers
        if making is None:
            unknown = set(PARTS)
            left_out.append("requests: no agent was given to compare them with")
        else:
            for source, tools in listed:
                if tools is None:
                    elsewhere.append(type(source).__name__)
                    if hasattr(source, "system_prompts"):
                        with_prompts.append(type(source).__name__)
                    continue
                chosen += [tool.name for tool in tools if tool.is_enabled is not None]
                names |= {tool.name for tool in tools}
                answered = [answering(tool, script) for tool in tools]
                if isinstance(source, Tool):
                    sources += answered
                else:
                    sources.append(_AnsweringSource(source, answered))
            if elsewhere:
                unknown.add("tools")
                left_out.append(f"tools of {', '.join(elsewhere)}: a replay does not ask for them")
            if with_prompts:
                unknown.add("prompt")
                asked = ", ".join(with_prompts)
                left_out.append(f"the system prompt: a replay does not ask {asked} for its part")
            if chosen:
                unknown.add("tools")
                left_out.append(
                    f"tools of requests: is_enabled of {', '.join(chosen)} may depend on the caller"
                )
        kind = output_type_of(output_type)
        called = _called(recording)
        answers_by_tool = _answers_by_tool(recording)
        called -= {FINAL_ANSWER} if kind is not None else set()  # the loop offers it
        if making is None or elsewhere:
            sources += [stand_in(name, script) for name in sorted(called - names)]
            names |= called
        if kind is None and answers_by_tool:
            raise ValueRefused(
                "the turn had an output_type, which no log keeps: pass it as output_type=",
                path="/output_type",
            )
        return cls(
            provider=AsThen(script, _abilities(recording, making)),
            sources=sources,
            context=TurnContext(
                context_id=recording.context_id,
                turn=recording.turn,
                continues=recording.continues,
                system_prompt="" if making is None else making.system_prompt,
                cancel=script.cancel,
            ),
            config=_config(recording, making),
            output_type=kind,
            known=names,
            unknown=unknown,
            left_out=left_out,
        )

    async def failure_of_prompt(self) -> str | None:
        """Why the system prompt cannot be built; `None`: it can be."""
        context = self.context
        try:
            await build_prompt(
                context.system_prompt, await prompts_of(self.sources, context), context
            )
        except ConfigurationError as error:
            return error.message
        return None

    def without_prompt(self, reason: str | None = None) -> _Stage:
        """The stage with an empty system prompt, which is not compared; *reason* is left out."""
        sources = [
            tool
            for source in self.sources
            for tool in ([source] if isinstance(source, Tool) else source.tools)
        ]
        return replace(
            self,
            sources=sources,
            context=replace(self.context, system_prompt=""),
            unknown={*self.unknown, "prompt"},
            left_out=[*self.left_out, *([reason] if reason else [])],
        )

    async def play(self, recording: Recording, script: Script) -> list[AgentEvent]:
        """Run the turn, and return its events."""
        history = list(recording.before)
        given = Given(
            context=self.context,
            provider=self.provider,
            sources=tuple(self.sources),
            config=self.config,
            redactor=Redactor(),
            view=View(history),
            inbox=AsSaid(script),
            output_type=self.output_type,
            spent=Spent(recording.spent),
            is_replay=True,
        )
        events: list[AgentEvent] = []
        plan = _plan(recording, self.known, self.config)
        script.emitted = -len(plan.prompts)

        async def run() -> None:
            async with aclosing(run_turn(given, plan, None)) as outs:
                async for out in outs:
                    if isinstance(out, Group) and not script.over.is_set():
                        events.extend(out.events)
                        script.note(out.events)

        turn = asyncio.create_task(run(), name="looopy replay")
        over = asyncio.create_task(script.over.wait())
        try:
            await asyncio.wait({turn, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not turn.done():
                turn.cancel()
            with suppress(asyncio.CancelledError):
                await turn
        return events


_Listed: TypeAlias = tuple[Tool | ToolProvider, Sequence[Tool] | None]


async def _listed(making: Making) -> Sequence[_Listed]:
    """
    The sources of an agent, each with its tools; `None` if they may come from a server.

    Raises:
        ConfigurationError: A source failed.
    """
    listed: list[_Listed] = []
    for source in wrap_tools(making.tools):
        if isinstance(source, Tool):
            listed.append((source, [source]))
        elif getattr(source, "is_local", False) is True:
            listed.append((source, await _tools_of(source)))
        else:
            listed.append((source, None))
    return listed


async def _tools_of(source: ToolProvider) -> Sequence[Tool]:
    try:
        return list((await gather_tools([source], disabled=True)).values())
    except LooopyError:
        raise
    except Exception as error:
        name, kind = type(source).__name__, type(error).__name__
        raise ConfigurationError(f"the tools of {name} cannot be listed: {kind}") from error


class _AnsweringSource:
    """A source whose calls get the recorded results; its prompts come from *source*."""

    def __init__(self, source: ToolProvider, tools: Sequence[Tool]) -> None:
        self.tools = tools
        self._source = source

    def list_tools(self) -> Sequence[Tool]:
        """The tools, which do nothing."""
        return self.tools

    async def system_prompts(self, turn: TurnContext) -> Sequence[PromptPart]:
        """The prompts of the source itself."""
        return await prompts_of([self._source], turn)


def _plan(recording: Recording, known: Collection[str], config: LoopConfig) -> TurnPlan:
    """The beginning of the turn: its prompts, and the open calls that it ran first."""
    said = [one for one in recording.prompts if isinstance(one, UserMessage)]
    run = _open_calls(recording, spoken=bool(said))
    ran = any(one.ran or isinstance(one.message, AssistantMessage) for one in recording.messages)
    waits = recording.stop_reason in (StopReason.INPUT_REQUIRED, StopReason.AUTH_REQUIRED)
    dropped = recording.stop_reason is StopReason.CANCELLED and not said and not run
    ends = not ran and not said and (waits or dropped)
    return TurnPlan(
        prompts=tuple(recording.prompts),
        user_message=said[-1] if said else None,
        run=() if ends else run,
        call_turn=recording.continues if run else None,
        resumed={call.id: _DIED for call in run if _lost_its_tool(recording, call, known)},
        ends=recording.stop_reason if ends else None,
        pending=recording.asked if ends else (),
        concluding=_began_concluding(recording, config),
    )


def _began_concluding(recording: Recording, config: LoopConfig) -> bool:
    """True if the turn continued one that had reached its limit, and could only answer."""
    calls, limit = _calls_to_the_limit(recording), config.max_iterations
    if calls is None or recording.continues is None:
        return False
    return not calls or limit is None or calls < limit


def _calls_to_the_limit(recording: Recording) -> int | None:
    """How many answers came before the one at the limit of model calls; `None`: there was none."""
    messages = [one.message for one in recording.messages]
    at_limit = recording.stop_reason is StopReason.MAX_ITERATIONS
    if not (at_limit and has_answer(StopReason.MAX_ITERATIONS, messages)):
        return None
    return len(answers_of(recording)) - 1


def _open_calls(recording: Recording, *, spoken: bool) -> Sequence[ToolCall]:
    """The calls of an earlier turn that it ran; beside a message of a user only some of them."""
    before = [one for one in recording.before if not isinstance(one, UserMessage)]
    given = [one for one in recording.prompts if not isinstance(one, UserMessage)]
    calls = unanswered([*before, *given])
    if not spoken and unanswered([*recording.before, *recording.prompts]):
        return calls
    ran = {one.tool_call_id for one in recording.asked}
    for recorded in recording.messages:
        if isinstance(recorded.message, AssistantMessage):
            break
        if isinstance(recorded.message, ToolResultMessage):
            ran.add(recorded.message.tool_call_id)
    return [call for call in calls if call.id in ran]


def _lost_its_tool(recording: Recording, call: ToolCall, known: Collection[str]) -> bool:
    """True if *call* had begun in a process that died, and its tool was gone afterwards."""
    result = results_of(recording).get(call.id)
    if result is None or result.text != OUTCOME_UNKNOWN or call.name in known:
        return False
    return _did_not_run(recording, result)


def _did_not_run(recording: Recording, result: ToolResultMessage) -> bool:
    """True if looopy wrote *result*, and the turn did not surely run its call."""
    cut = recording.outcome not in (Outcome.COMPLETED, Outcome.INPUT_REQUIRED)
    ran = cut and result.text == OUTCOME_UNKNOWN
    return not ran and isinstance(result.details, Mapping) and "synthetic" in result.details


def _gone(then: Recording, now: Recording, known: Collection[str]) -> Sequence[str]:
    """The tools that *then* had, and that are not *known*."""
    both = zip(answers_of(then), answers_of(now), strict=False)
    if any(tools_of(one.request) == tools_of(other.request) != "" for one, other in both):
        return []  # a name that a model made up is not a tool
    return sorted(_ran(then) - {*known, FINAL_ANSWER})


def _called(recording: Recording) -> set[str]:
    return {name for name, _ in _calls(recording)}


def _answers_by_tool(recording: Recording) -> bool:
    """True if a model gave the answer by the tool that an `output_type` makes."""
    return any(
        call.name == FINAL_ANSWER
        for one in answers_of(recording)
        if isinstance(one.message, AssistantMessage)
        for call in one.message.tool_calls
    )


def _typed_by_tool(recording: Recording) -> bool:
    """True if the model was to answer by that tool, as far as its turn shows."""
    return _answers_by_tool(recording) or any(
        isinstance(one.message, UserMessage) and how_to_answer(one.message.text) == ASK_BY_TOOL
        for one in recording.messages
    )


def _ran(recording: Recording) -> set[str]:
    """The tools that surely existed then: a model also calls tools that do not."""
    began = {one.tool_call_id for one in recording.asked}
    for recorded in recording.messages:
        one = recorded.message
        if recorded.ran and isinstance(one, ToolResultMessage):
            unknown = recording.scrubbed or one.text.startswith(NOT_FOUND)
            if not (one.is_error and (unknown or _did_not_run(recording, one))):
                began.add(one.tool_call_id)
    return {name for name, call_id in _calls(recording) if call_id in began}


def _calls(recording: Recording) -> Iterator[tuple[str, str]]:
    """The name of the tool and the id of each call."""
    asked = [one for one in recording.before if isinstance(one, AssistantMessage)][-1:]
    answers = [one.message for one in answers_of(recording)]
    results = results_of(recording)
    for message in (*asked, *answers):
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                name = results[call.id].tool_name if call.id in results else call.name
                yield name, call.id


def _abilities(recording: Recording, making: Making | None) -> Abilities:
    """Those of the agent's provider, without a key; else the names in the recording."""
    if making is not None:
        try:
            return abilities_of(making.provider())
        except ConfigurationError:
            if not isinstance(making.model, str):
                raise
    for one in answers_of(recording):
        if isinstance(one.message, AssistantMessage):
            name, model = one.message.provider, one.message.model
            by_tool = _typed_by_tool(recording)
            return Abilities(name=name, model=model, structured_output=not by_tool)
    return Abilities()


def _config(recording: Recording, making: Making | None) -> LoopConfig:
    most = 10**9
    if making is None:
        tries, calls = tries_in(recording.error), _calls_to_the_limit(recording)
        config = LoopConfig(
            max_iterations=calls or None,
            on_max_iterations="answer" if calls else "stop",
            max_tool_calls=most,
            max_tool_calls_per_iteration=most,
            doom_loop_threshold=most,
            max_output_retries=most if tries is None else tries - 1,
        )
    else:
        config = making.config
    return replace(
        config,
        max_tool_failures=most,
        hooks=Hooks(),
        budget=Budget(),
        retry=RetryPolicy(attempts=0),
        turn_timeout_s=None,
        tool_timeout_s=None,
        llm_timeout_s=None,
        llm_connect_timeout_s=None,
        llm_idle_timeout_s=None,
        max_result_bytes=2**62,
    )
