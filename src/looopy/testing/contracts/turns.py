"""
Short ways to write turns into stores, and to check the answers of stores.

For the contracts and the state machines.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import pytest_asyncio

from looopy.errors import ConfigurationError, LooopyError
from looopy.stores.bundle import Stores
from looopy.stores.records import (
    Claim,
    Claimed,
    Commit,
    Committed,
    ContextRecord,
    ContextState,
    InboxNews,
)
from looopy.testing.processes import opened
from looopy.types.event import (
    AgentEvent,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.state import PendingKind, PendingRequest, outcome_of

CONTEXT = "ada"
LONG_S = 3600.0
WHEN = datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC)
AT: dict[str, Any] = {"context_id": CONTEXT, "timestamp": WHEN}
_IN_TURN: dict[str, Any] = {**AT, "iteration": 1}
_DEFAULTS = "looopy.stores.defaults"
T = TypeVar("T")
_Test = Callable[..., Coroutine[Any, Any, None]]


class Contract:
    """
    The base of every contract: its tests get open stores.

    A test is skipped, and says why, if the store has a method that it needs only as the base class
    of `looopy.stores.defaults` has it: as a refusal, or as a line without an order.

    Attributes:
        factory: Opens the store: module and name of a function of a place, such as
            `"my_package.stores:open"`. A class without it has a fixture `stores` instead.
        needs: Optional methods that all tests of the class need, such as `"journal.fork"`.
    """

    pytestmark = pytest.mark.asyncio  # for the mode in which pytest-asyncio wants to be told
    factory: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        """The place of an empty store, for `factory`: a path, unless your class has another one."""
        return str(tmp_path / "store")

    @pytest.fixture(autouse=True)
    def _skip_what_is_left_out(self, request: pytest.FixtureRequest) -> None:
        if wanted := needs_of(type(self), request.function):
            skip_what_is_left_out(request.getfixturevalue("stores"), wanted)

    @pytest_asyncio.fixture
    async def stores(self, place: str) -> AsyncIterator[Stores]:
        """Open stores on an empty database."""
        if not self.factory:
            pytest.fail("give your class the attribute `factory`, or a fixture named `stores`")
        async with opened(self.factory, place) as stores:
            yield stores


def needing(*methods: str) -> Callable[[T], T]:
    """Mark a test that needs these optional methods, as `Contract.needs` does for all of them."""

    def mark(test: T) -> T:
        test.needs = methods  # type: ignore[attr-defined] # a function takes attributes
        return test

    return mark


def for_each(cases: Iterable[Any]) -> Callable[[_Test], _Test]:
    """
    Run a test for each of *cases*, each with a tenant of its own: one test, one empty database.

    A tuple is several arguments. A failure names its case in a note.
    """

    def mark(test: _Test) -> _Test:
        @functools.wraps(test)
        async def run(contract: Contract, stores: Stores) -> None:
            for number, case in enumerate(cases):
                given = case if isinstance(case, tuple) else (case,)
                try:
                    await test(contract, stores.for_tenant(f"case-{number}"), *given)
                except BaseException as error:
                    error.add_note(f"in the case {case!r}")
                    raise

        del run.__dict__["__wrapped__"]  # pytest would ask for the arguments of the test within
        return run

    return mark


def needs_of(contract: type[Contract], test: object) -> Sequence[str]:
    """The optional methods that a test of *contract* needs."""
    return (*contract.needs, *getattr(test, "needs", ()))


def skip_what_is_left_out(stores: Stores, wanted: Sequence[str]) -> None:
    """Skip the test if *stores* have one of these methods only as its base class has it."""
    missing: list[str] = []
    for method in wanted:
        store, _, name = method.partition(".")
        try:
            found = getattr(type(getattr(stores, store)), name)
        except ConfigurationError:  # stores without such a part
            missing.append(f"stores.{method}")
            continue
        if getattr(found, "__module__", None) == _DEFAULTS:
            missing.append(f"stores.{method}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, which the store leaves out")


@contextmanager
def refuses(error: type[BaseException], **facts: Any) -> Iterator[None]:
    """Expect *error*, and *facts* as its attributes."""
    with pytest.raises(error) as refused:
        yield
    assert {name: getattr(refused.value, name) for name in facts} == facts


async def record_of(stores: Stores, context_id: str = CONTEXT) -> ContextRecord:
    """The record of a context, which must exist."""
    found = await stores.state.load(context_id)
    assert found is not None
    return found


def numbers(claimed: Claimed) -> tuple[int, int, int]:
    """Turn, first `seq` and first position of a claim: all but its epoch."""
    return claimed.turn, claimed.first_seq, claimed.first_position


async def at_once(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Run *calls* at the same time; return their results in order."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


def user(text: str) -> UserMessage:
    """A user's message at a fixed time."""
    return UserMessage(text, timestamp=1_795_264_215_123)


def answer(text: str = "", *calls: ToolCall) -> AssistantMessage:
    """A model's answer: text, tool calls, and what it used."""
    blocks: list[TextContent | ToolCall] = [TextContent(text)] if text else []
    return AssistantMessage(
        [*blocks, *calls],
        api="scripted",
        provider="scripted",
        model="scripted-1",
        usage=Usage(input=7, output=3, total_tokens=10),
        stop_reason=StopReason.TOOL_USE if calls else StopReason.STOP,
        timestamp=1_795_264_215_456,
    )


def result(call: ToolCall, text: str) -> ToolResultMessage:
    """The result of *call*."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text),),
        timestamp=1_795_264_215_789,
    )


def opening(
    text: str | None = "hello", *, context_id: str = CONTEXT, continues: int | None = None
) -> list[AgentEvent]:
    """The first events of a turn; without *text* it has no user message."""
    message = None if text is None else user(text)
    place = {**AT, "context_id": context_id}
    start = TurnStart(user_message=message, continues=continues, process="1-a", **place)
    return [start] if message is None else [start, MessageEnd(message=message, **place)]


def a_claim(
    expected_epoch: int = 0, *, context_id: str = CONTEXT, text: str | None = "hello", **others: Any
) -> Claim:
    """A claim that begins a turn with *text*; *others*: see `Claim`."""
    events = () if others.get("recover") else opening(text, context_id=context_id)
    given = {"events": events, "holder": "holder-1", "ttl_s": LONG_S, "process": "1-a", **others}
    return Claim(context_id=context_id, expected_epoch=expected_epoch, **given)


async def begin(stores: Stores, expected_epoch: int | None = None, **others: Any) -> Claimed:
    """Claim a context, by default with its present epoch, and begin a turn; see `a_claim`."""
    if expected_epoch is None:
        record = await stores.state.load(others.get("context_id", CONTEXT))
        expected_epoch = 0 if record is None else record.epoch
    return await stores.state.claim(a_claim(expected_epoch, **others))


def said(message: AssistantMessage, **place: Any) -> MessageEnd:
    """The `message_end` of a model's answer, in the first iteration unless *place* says another."""
    return MessageEnd(
        message=message,
        started=WHEN,
        first_delta_s=0.25,
        attempts=2,
        usage=message.usage,
        **{**_IN_TURN, **place},
    )


def starts(call: ToolCall, **place: Any) -> ToolExecutionStart:
    """The `tool_execution_start` of *call*."""
    return ToolExecutionStart(
        tool_call_id=call.id, tool_name=call.name, args=call.arguments, **{**_IN_TURN, **place}
    )


def finishes(call: ToolCall, text: str, **place: Any) -> list[AgentEvent]:
    """The events after *call* has its result: its `tool_execution_end` and the message."""
    message = result(call, text)
    place = {**_IN_TURN, **place}
    ended = ToolExecutionEnd(
        tool_call_id=call.id,
        tool_name=call.name,
        result=message,
        started=WHEN,
        duration_s=0.125,
        **place,
    )
    return [ended, MessageEnd(message=message, **place)]


def ends(
    stop_reason: StopReason = StopReason.STOP, *, usage: Usage | None = None, **place: Any
) -> TurnEnd:
    """The `turn_end` for *stop_reason*."""
    return TurnEnd(
        outcome=outcome_of(stop_reason),
        stop_reason=stop_reason,
        usage=usage or Usage(),
        **{**AT, **place},
    )


def waiting_for_approval(*, turn: int = 1, expires_at: datetime | None = None) -> ContextState:
    """The state of a context in which a call of `pay` waits for approval."""
    request = PendingRequest(
        request_id="r1",
        kind=PendingKind.APPROVAL,
        tool_name="pay",
        args={},
        tool_call_id="c1",
        turn=turn,
        expires_at=expires_at,
    )
    return ContextState(pending=(request,))


async def commit(
    stores: Stores, claimed: Claimed, events: Sequence[AgentEvent] = (), **others: Any
) -> Committed:
    """Commit *events* under the epoch and the turn of *claimed*; *others*: see `Commit`."""
    given = {"context_id": CONTEXT, "ttl_s": LONG_S, **others}
    return await stores.commit(
        Commit(epoch=claimed.epoch, turn=claimed.turn, events=events, **given)
    )


async def a_turn(stores: Stores, *, text: str = "hello", reply: str = "hi") -> Claimed:
    """A whole turn in two commits: one user message, one answer."""
    claimed = await begin(stores, text=text)
    await commit(stores, claimed, [said(answer(reply)), ends()], release=True)
    return claimed


def plain(value: Any) -> Any:
    """*value* in a form that compares types, tells -0.0 from 0.0, and leaves times out."""
    if isinstance(value, LooopyError):
        return type(value).__name__, value.message, repr(value.facts)
    if isinstance(value, InboxNews):
        return type(value).__name__, plain(value.inbox)
    if isinstance(value, datetime):
        return "a moment"
    if is_dataclass(value):
        content = [(f.name, plain(getattr(value, f.name))) for f in fields(value) if f.compare]
        return type(value).__name__, content
    if isinstance(value, dict):
        return "object", [(k, plain(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return "list", [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(value)
    return type(value).__name__, repr(value)
