"""
The order of events, pinned: a turn with thinking, three tools (one fails, one is slow and reports,
one is skipped by steering), a follow-up and usage. Who reads events may rely on every line.
"""

from __future__ import annotations

from tests.agent.kit import assert_whole, boom, collect, look

from looopy import ToolContext, tool
from looopy.llm.accumulate import Accumulator
from looopy.testing import ScriptedProvider
from looopy.types.event import event_to_json
from looopy.types.message import StopReason, Usage

TURN = """\
 1 turn_start              Look around.
   iteration_start         #1
   message_start           user: Look around.
 2 message_end             user: Look around. @1
   message_start           assistant
   message_update          thinking_start
   message_update          thinking_delta
   message_update          thinking_end
   message_update          text_start
   message_update          text_delta 'On it.'
   message_update          text_end
   message_update          toolcall_start
   message_update          toolcall_delta
   message_update          toolcall_start
   message_update          toolcall_delta
   message_update          toolcall_start
   message_update          toolcall_delta
   message_update          toolcall_end
   message_update          toolcall_end
   message_update          toolcall_end
 3 message_end             assistant: On it. @2
 4 tool_execution_start    boom {}
 5 tool_execution_end      boom failed: it broke
   message_start           toolResult: it broke
 6 message_end             toolResult: it broke @3
 7 tool_execution_start    slow {'seconds': 9}
   tool_execution_update   slow progress 0.5
   tool_execution_update   slow {'left': ['the attic']}
 8 tool_execution_end      slow: seen at last
   message_start           toolResult: seen at last
 9 message_end             toolResult: seen at last @4
   tool_execution_start    look {}
10 tool_execution_end      look failed: Skipped due to queued user message.
   message_start           toolResult: Skipped due to queued user message.
11 message_end             toolResult: Skipped due to queued user message. @5
   usage                   13 tokens, 13 in the turn
   iteration_end           #1, 3 results
   iteration_start         #2
   message_start           user: Enough.
12 message_end             user: Enough. @6
   message_start           assistant
   message_update          text_start
   message_update          text_delta 'Nothing '
   message_update          text_delta 'there.'
   message_update          text_end
13 message_end             assistant: Nothing there. @7
   usage                   5 tokens, 18 in the turn
   iteration_end           #2, 0 results
   iteration_start         #3
   message_start           user: And outside?
14 message_end             user: And outside? @8
   message_start           assistant
   message_update          text_start
   message_update          text_delta 'A garden.'
   message_update          text_end
15 message_end             assistant: A garden. @9
   usage                   2 tokens, 20 in the turn
   iteration_end           #3, 0 results
16 turn_end                completed, stop, 9 messages, 20 tokens
"""


class Model(ScriptedProvider):
    """A model that thinks, calls three tools, and then answers twice."""

    def __init__(self) -> None:
        super().__init__([])
        self.turns = iter([self._first, self._second, self._third])

    async def stream(self, request, options=None):
        """The next of its three answers."""
        answer = Accumulator(api="scripted", provider="scripted", model="m")
        for event in answer.start():
            yield event
        stop, tokens = StopReason.STOP, 0
        for piece in next(self.turns)(answer):
            if isinstance(piece, tuple) and piece and isinstance(piece[0], StopReason):
                stop, tokens = piece
                continue
            for event in piece:
                yield event
        for event in answer.done(stop, Usage(output=tokens, total_tokens=tokens)):
            yield event

    @staticmethod
    def _first(answer):
        yield answer.thinking_delta("Three rooms.", signature="sig")
        yield answer.text_delta("On it.")
        for index, (name, arguments) in enumerate(
            [("boom", "{}"), ("slow", '{"seconds": 9}'), ("look", "{}")]
        ):
            yield answer.tool_call(index, call_id=f"c{index}", name=name)
            yield answer.tool_call(index, arguments_delta=arguments)
        yield StopReason.TOOL_USE, 13

    @staticmethod
    def _second(answer):
        yield answer.text_delta("Nothing ")
        yield answer.text_delta("there.")
        yield StopReason.STOP, 5

    @staticmethod
    def _third(answer):
        yield answer.text_delta("A garden.")
        yield StopReason.STOP, 2


def line(event) -> str:
    """One event as a person reads it: its number if it is stored, its type, what it says."""
    number = "  " if event.seq is None else f"{event.seq:2}"
    return f"{number} {event.type:<23} {told(event)}".rstrip()


def told(event) -> str:
    """What an event says beside its type."""
    match event.type:
        case "turn_start":
            return event.user_message.text
        case "iteration_start":
            return f"#{event.iteration}"
        case "iteration_end":
            return f"#{event.iteration}, {len(event.tool_results)} results"
        case "message_start" | "message_end":
            message = event.message
            place = f" @{event.position}" if event.type == "message_end" else ""
            return f"{message.role}: {message.text}{place}" if message.text else message.role
        case "message_update":
            return f"{event.event.type} {event.delta!r}" if event.delta else event.event.type
        case "tool_execution_start":
            return f"{event.tool_name} {event.args}"
        case "tool_execution_update":
            shown = event.partial_result if event.progress is None else f"progress {event.progress}"
            return f"{event.tool_name} {shown}"
        case "tool_execution_end":
            failed = " failed" if event.is_error else ""
            return f"{event.tool_name}{failed}: {event.result.text}"
        case "usage":
            both = event.usage.total_tokens, event.turn_usage.total_tokens
            return f"{both[0]} tokens, {both[1]} in the turn"
        case "turn_end":
            total = event.usage.total_tokens
            how = f"{event.outcome}, {event.stop_reason}"
            return f"{how}, {len(event.messages)} messages, {total} tokens"
    return ""


async def test_the_order_of_events_is_pinned(make_agent, stores):
    """Line by line; the stored ones are the same, read back."""

    @tool
    async def slow(seconds: int, context: ToolContext) -> str:
        """Look for long."""
        context.report(0.5)
        context.report({"left": ["the attic"]})
        await agent.follow_up("And outside?")
        await agent.steer("Enough.")
        return "seen at last"

    agent = await make_agent(Model(), tools=[boom, slow, look], stores=stores)
    events = await collect(agent.execute_turn("Look around."))
    assert "".join(line(event) + "\n" for event in events) == TURN
    durable = [event for event in events if event.seq is not None]
    stored = await stores.journal.events("ada")
    assert [line(event) for event in stored] == [line(event) for event in durable]
    assert [event_to_json(event)["type"] for event in events] == [event.type for event in events]
    await assert_whole(stores)
