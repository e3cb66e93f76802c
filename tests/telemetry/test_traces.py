"""Spans and metrics of turns, by the GenAI conventions."""

from __future__ import annotations

import asyncio
import gc
import socketserver
import threading
import weakref

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import StatusCode

import looopy
from looopy import (
    Agent,
    AuthContext,
    Budget,
    LoopConfig,
    RetryPolicy,
    ToolContext,
    open_stores,
    tool,
)
from looopy.errors import AgentBusy, ConfigurationError, LLMUnavailable
from looopy.llm import RateLimits, RateQuota, Reroute
from looopy.telemetry import configure, names
from looopy.telemetry.instruments import Instruments
from looopy.testing import ScriptedProvider, failure, text, tool_call

CANARY = "sk-canary-1d20c9e04b7f4c21aa"
SAID = "marmalade is confidential"
ADA = AuthContext("ada", credentials={"token": CANARY})


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def kinds(span):
    """The parts of a span that say what it is."""
    return span.name, span.attributes.get("error.type"), span.status.status_code


def test_the_names_are_those_of_the_conventions():
    """Each name of OpenTelemetry is in the installed conventions; all others are ours."""
    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    values = {v for n, v in vars(names).items() if n.isupper() and "." in str(v)}
    ours = {value for value in values if value.startswith("looopy.")}
    newer = {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}
    assert values - ours - newer <= known
    assert {names.INVOKE_AGENT, names.CHAT, names.EXECUTE_TOOL} <= {
        one.value for one in gen_ai_attributes.GenAiOperationNameValues
    }


async def test_a_turn_is_one_trace(kept):
    """Each attempt of a model call and each tool call has a span in that of the turn."""
    model = ScriptedProvider(
        [failure(LLMUnavailable(SAID)), (tool_call("add", a=1, b=2), tool_call("ad")), text("3")]
    )
    config = LoopConfig(retry=RetryPolicy(base_s=0), temperature=0.5)
    options = {"tools": [add], "agent_name": "desk", "loop_config": config}
    async with Agent("trip", llm_provider=model, **options) as agent:
        result = await agent.execute_turn(SAID, ADA)
    assert [kinds(span) for span in kept.spans()] == [
        ("chat scripted", "LLMUnavailable", StatusCode.ERROR),
        ("chat scripted", None, StatusCode.UNSET),
        ("execute_tool add", None, StatusCode.UNSET),
        ("execute_tool _OTHER", "tool_error", StatusCode.ERROR),
        ("chat scripted", None, StatusCode.UNSET),
        ("invoke_agent desk", None, StatusCode.UNSET),
    ]
    *inner, turn = kept.spans()
    assert {span.parent.span_id for span in inner} == {turn.context.span_id}
    assert turn.parent is None
    assert turn.attributes["looopy.turn.iterations"] == 2
    assert turn.attributes["looopy.turn.input_tokens"] == result.usage.input
    assert "gen_ai.usage.input_tokens" not in turn.attributes  # viewers would add it to the chats'
    chat = kept.spans("chat")[-1]
    assert chat.attributes["gen_ai.conversation.id"] == "trip"
    assert chat.attributes["gen_ai.request.temperature"] == 0.5
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    costs = [name for span in kept.spans() for name in span.attributes if "cost" in name]
    assert costs == []  # the price is not known, which is not zero
    for secret in (CANARY, SAID, "trip"):
        assert secret not in str(kept.metrics())
    assert CANARY not in kept.text()
    assert SAID not in kept.text()

    metrics = kept.metrics()
    used = {one.attributes["gen_ai.token.type"]: one.sum for one in metrics[names.TOKEN_USAGE]}
    assert used == {"input": result.usage.input, "output": result.usage.output}
    assert sum(one.count for one in metrics[names.COMMIT_DURATION]) == 4
    assert [one.count for one in metrics[names.LEASE_WAIT]] == [1]
    assert {one.attributes["gen_ai.tool.name"] for one in metrics[names.TOOL_DURATION]} == {
        *("add", "_OTHER")  # a name that a model invents is in no metric
    }
    assert [one.sum for one in metrics[names.TURNS_RUNNING]] == [0]
    assert [one.sum for one in metrics[names.TURNS_WAITING]] == [0]
    assert "looopy.cost.usd" not in metrics
    assert metrics["looopy.cost.unknown"][0].sum == 3  # the failed call used tokens, too


async def test_a_chat_has_the_limits_and_the_model_of_its_server(kept):
    """As far as a provider reports them; the next call has its own."""

    class Reporting(ScriptedProvider):
        async def stream(self, request, options=None):
            if len(self.requests) == 0:
                limit = RateQuota(kind="input_tokens", left=3, limit=60)
                options.report(RateLimits(provider="p", model="m", limits=[limit]))
                options.report(Reroute(asked="p/m", answered="p/vendor/n", by="server"))
            async for event in super().stream(request, options):
                yield event

    model = Reporting([tool_call("add", a=1, b=2), text("3")])
    async with Agent("trip", llm_provider=model, tools=[add]) as agent:
        await agent.execute_turn("go", ADA)
    first, second = (span.attributes for span in kept.spans("chat"))
    assert first["looopy.rate_limit.input_tokens.left"] == 3
    assert first["looopy.rate_limit.input_tokens.limit"] == 60
    assert first["gen_ai.response.model"] == "vendor/n"
    assert first["looopy.rerouted_by"] == "server"
    assert second["gen_ai.response.model"] == "scripted"
    assert not [name for name in second if "rate_limit" in name or "rerouted" in name]


async def test_a_call_without_room_in_a_budget_was_not_cancelled(kept):
    """Its span says why it was not made."""
    budget = Budget(owner_day_tokens=10)
    config = LoopConfig(budget=budget, max_tokens=100, on_budget="ask")
    async with Agent("trip", llm_provider=ScriptedProvider([]), loop_config=config) as agent:
        await agent.execute_turn("go", ADA)
    assert [kinds(span)[:2] for span in kept.spans()] == [
        ("chat scripted", "BudgetExceeded"),
        ("invoke_agent agent", None),
    ]


async def test_content_is_shown_when_asked_for_and_without_secrets(kept, monkeypatch):
    """The environment or the application asks; credentials are redacted, and more if it says."""

    @tool
    def look(key: str) -> str:
        """Look."""
        return f"the key {key} opens {CANARY}"

    async def turn(name):
        model = ScriptedProvider([tool_call("look", key="k-1"), text("Done.")])
        agent = Agent(name, llm_provider=model, tools=[look], system_prompt="Be brief.")
        async with agent:
            await agent.execute_turn(f"{SAID} {CANARY}", ADA)
        found, _ = kept.text(), kept.exporter.clear()
        return found

    variable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert SAID not in await turn("off")
    monkeypatch.setenv(variable, "SPAN_ONLY")
    shown = await turn("by-the-environment")
    assert CANARY not in shown
    for said in (SAID, "Be brief.", "the key k-1 opens [redacted]", "tool_call_response"):
        assert said in shown
    monkeypatch.setenv(variable, "NO_CONTENT")
    kept.configure(content=True, redact=lambda one: one.replace("marmalade", "jam"))
    shown = await turn("by-the-application")
    assert "jam is confidential" in shown
    assert "marmalade" not in shown
    kept.configure(content=True, redact=int)
    shown = await turn("by-a-function-that-fails")
    assert "confidential" not in shown
    assert "Be brief." not in shown
    for wrong in ({"enabled": "no"}, {"content": "yes"}, {"redact": "all"}):
        with pytest.raises(ConfigurationError):
            configure(**wrong)


async def test_a_continued_turn_is_linked_to_the_one_before(kept):
    """By its place in the store: another agent continues it, in a trace of its own."""

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        return await context.ask("Go?")

    script = [tool_call("ask"), text("Gone.")]
    async with open_stores("memory:") as stores:
        async with Agent(
            "a", llm_provider=ScriptedProvider(script[:1]), tools=[ask], stores=stores
        ) as one:
            await one.execute_turn("go")
            [pending] = one.state.pending
        async with Agent(
            "a", llm_provider=ScriptedProvider(script[1:]), tools=[ask], stores=stores
        ) as two:
            await two.execute_turn(inputs={pending.request_id: "yes"})
            await two.refresh()
    first, second = kept.spans("invoke_agent")
    [link] = second.links
    assert link.context.span_id == first.context.span_id
    assert link.context.trace_id == first.context.trace_id != second.context.trace_id
    assert first.links == ()
    waiting, answered = kept.spans("execute_tool")
    assert waiting.attributes["looopy.tool.waits"]
    assert kinds(waiting)[1:] == kinds(answered)[1:] == (None, StatusCode.UNSET)


async def test_views_and_refused_turns_leave_no_open_span(kept):
    """A repeated request has no span; a refused one has its error; no gauge stays up."""
    gate = asyncio.Event()

    async def slow(_request):
        await gate.wait()
        return text("hi")

    async with (
        open_stores("memory:") as stores,
        Agent("a", llm_provider=ScriptedProvider(slow), stores=stores) as agent,
    ):
        other = Agent("a", llm_provider=ScriptedProvider([]), stores=stores)
        await other.start()
        turn = agent.execute_turn("hi", idempotency_key="k")
        await turn.accepted()
        view = other.execute_turn("hi", idempotency_key="k")
        assert await view.accepted() == 1
        with pytest.raises(AgentBusy):
            await other.execute_turn("no")
        [running] = kept.metrics()[names.TURNS_RUNNING]
        assert running.sum == 1
        gate.set()
        await asyncio.gather(turn, view)
        await other.shutdown()
        gate.clear()
        turn = agent.execute_turn("stop")
        await turn.accepted()
        turn.cancel()
        await turn
    assert [kinds(span)[:2] for span in kept.spans()] == [
        ("invoke_agent agent", "AgentBusy"),
        ("chat scripted", None),
        ("invoke_agent agent", None),
        ("chat scripted", "cancelled"),
        ("invoke_agent agent", None),
    ]
    assert kept.spans()[-1].attributes["looopy.turn.outcome"] == "cancelled"
    metrics = kept.metrics()
    assert [one.sum for one in metrics[names.TURNS_RUNNING]] == [0]
    assert [one.sum for one in metrics[names.TURNS_WAITING]] == [0]


async def test_an_inner_agent_is_within_its_call(kept):
    """Its turn's span lies in the span of the tool call, and so does one of the tool's own."""

    @tool
    async def own() -> str:
        """Make a span."""
        with kept.tracers.get_tracer("app").start_as_current_span("own"):
            return "done"

    inner = Agent("i", llm_provider=ScriptedProvider([text("inside")]), agent_name="inner")
    model = ScriptedProvider([(tool_call("inner", prompt="x"), tool_call("own")), text("done")])
    tools = [inner.as_tool("inner", "Works."), own]
    async with Agent("o", llm_provider=model, tools=tools) as agent:
        await agent.execute_turn("go")
    by_name = {span.name: span for span in kept.spans()}
    for child, parent in (
        ("invoke_agent inner", "execute_tool inner"),
        ("own", "execute_tool own"),
    ):
        assert by_name[child].parent.span_id == by_name[parent].context.span_id


class Broken(SpanProcessor):
    """A processor that fails, as one of an application may."""

    def on_start(self, span, parent_context=None):
        """Fail at the first model call."""
        if span.name.startswith("chat"):
            raise RuntimeError("no disk")


async def test_the_turn_continues_if_telemetry_fails(kept, caplog):
    """The turn goes on unwatched; the failure is logged once, and no gauge stays up."""
    kept.tracers.add_span_processor(Broken())
    model = ScriptedProvider([tool_call("add", a=1, b=2), text("3")])
    async with Agent("a", llm_provider=model, tools=[add]) as agent:
        assert (await agent.execute_turn("hi")).text == "3"
    logged = [one for one in caplog.records if one.name == "looopy"]
    assert len(logged) == 1
    assert [one.sum for one in kept.metrics()[names.TURNS_RUNNING]] == [0]
    configure(tracer_provider=object())
    async with Agent("b", llm_provider=ScriptedProvider([text("4"), text("5")])) as agent:
        assert (await agent.execute_turn("hi")).text == "4"
        assert (await agent.execute_turn("hi")).text == "5"
    assert "telemetry is off" in caplog.text


class Seen(SpanProcessor):
    """Notes each span, without keeping it."""

    def __init__(self):
        self.spans = []

    def on_start(self, span, parent_context=None):
        """Note it."""
        self.spans.append(weakref.ref(span))


async def test_the_spans_of_a_turn_go_with_it(kept):
    """They wait for no garbage collection, which costs more than the spans do."""
    kept.tracers.add_span_processor(seen := Seen())
    # The event loop keeps a cancelled timer, and its context, while an earlier one lives.
    alive = asyncio.get_running_loop().call_later(1, print)
    gc.disable()
    try:
        model = ScriptedProvider([tool_call("add", a=1, b=2), text("3"), text("4")])
        async with Agent("a", llm_provider=model, tools=[add]) as agent:
            await agent.execute_turn("hi")
            first = [*seen.spans]
            await agent.execute_turn("hi")
        assert [span() for span in first] == [None] * 4
    finally:
        gc.enable()
        alive.cancel()


def test_measurements_wait_for_a_collection_but_not_in_any_number(kept):
    """They are recorded together, and a collection lacks none of them."""
    recorded = []
    instruments = Instruments(kept.tracers, kept.meters)
    for number in range(100):
        instruments.later(lambda value, *_: recorded.append(value), number, {})
        instruments.later(instruments.turn_s.record, number, {})
    assert 64 < len(recorded) < 100
    [turns] = kept.metrics()[names.TURN_DURATION]
    assert (turns.count, turns.sum) == (100, sum(range(100)))
    assert recorded == [*range(100)]


class Waited:
    """A lock that tells when somebody waits for it."""

    def __init__(self):
        self._lock, self.waited = threading.Lock(), threading.Event()

    def acquire(self, *, blocking):
        """Take it if it is free."""
        assert not blocking
        return self._lock.acquire(blocking=False)

    def release(self):
        """Let go of it."""
        self._lock.release()

    def __enter__(self):
        """Wait for it."""
        self.waited.set()
        self._lock.acquire()

    def __exit__(self, *_):
        """Let go of it."""
        self._lock.release()


def test_a_collection_waits_for_records_of_other_threads(kept):
    """It would else lack the one that the thread has taken from the queue."""
    instruments = Instruments(kept.tracers, kept.meters)
    instruments._recording = lock = Waited()
    recording, go_on, collected = threading.Event(), threading.Event(), []

    def slow(*measured):
        recording.set()
        go_on.wait()
        instruments.turn_s.record(*measured)

    def measure():
        instruments.later(slow, 1.0, {})
        for _ in range(63):
            instruments.later(instruments.turn_s.record, 1.0, {})

    tasks = (measure, lambda: collected.append(kept.metrics()))
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread, begun in zip(threads, (recording, lock.waited), strict=True):
        thread.start()
        begun.wait()
    go_on.set()
    for thread in threads:
        thread.join()
    [turns] = collected[0][names.TURN_DURATION]
    assert turns.count == 64


def test_a_turn_waits_for_no_collection(kept):
    """A collector's thread that records takes the turn's measurements, too."""
    instruments = Instruments(kept.tracers, kept.meters)
    recording, go_on = threading.Event(), threading.Event()

    def slow(*_):
        recording.set()
        go_on.wait()

    instruments.later(slow, 1.0, {})
    collector = threading.Thread(target=kept.metrics, daemon=True)
    collector.start()
    recording.wait()
    for _ in range(100):
        instruments.later(instruments.turn_s.record, 1.0, {})
    go_on.set()
    collector.join()
    [turns] = kept.metrics()[names.TURN_DURATION]
    assert turns.count == 100


def test_a_turn_may_end_while_its_thread_records_measurements(kept):
    """The garbage collection may end a turn that was abandoned at any point."""
    instruments = Instruments(kept.tracers, kept.meters)

    def collect_garbage(*_):
        for _ in range(64):
            instruments.later(instruments.turn_s.record, 1.0, {})

    def measure():
        for _ in range(64):
            instruments.later(collect_garbage, 0, None)

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    thread.join()
    [turns] = kept.metrics()[names.TURN_DURATION]
    assert turns.count == 64 * 64


def test_no_measurement_is_an_example_of_another_turn(kept):
    """It is recorded later, when any span may be the current one."""
    instruments = Instruments(kept.tracers, kept.meters)
    with instruments.tracer.start_as_current_span("another turn"):
        for _ in range(64):
            instruments.later(instruments.turn_s.record, 1.0, {})
        [whole] = kept.reader.get_metrics_data().resource_metrics
    [scoped] = whole.scope_metrics
    points = {m.name: m.data.data_points for m in scoped.metrics}[names.TURN_DURATION]
    assert [(point.count, list(point.exemplars)) for point in points] == [(64, [])]
    assert (scoped.scope.name, scoped.scope.version) == ("looopy", looopy.__version__)


class Watched(OTLPSpanExporter):
    """Keeps the threads that wait for the collector."""

    def __init__(self, url):
        super().__init__(url)
        self.threads = set()

    def export(self, spans):
        """Note the thread."""
        self.threads.add(threading.get_ident())
        return super().export(spans)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"\x00\xff\r\n"])
async def test_no_turn_waits_for_a_collector(kept, answer):
    """It hangs, breaks off, or answers nonsense: the turn has ended before the answer."""
    asked, release = threading.Event(), threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        """Takes a request, and answers once the test is over."""

        def handle(self):
            """Wait, then answer."""
            self.request.recv(65536)
            asked.set()
            release.wait()
            if answer is not None:
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        exporter = Watched(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        kept.tracers.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1))
        model = ScriptedProvider([text("1"), text("2")])
        async with Agent("a", llm_provider=model) as agent:
            await agent.execute_turn("hi")
            await asyncio.to_thread(asked.wait)
            assert (await agent.execute_turn("hi")).text == "2"
            assert threading.get_ident() not in exporter.threads
        exporter.shutdown()
        release.set()
        server.shutdown()


async def test_a_turn_without_telemetry_reports_no_span(kept):
    """`configure(enabled=False)` turns it off; providers alone turn it on."""
    for enabled in (False, True):
        kept.configure(enabled=enabled)
        async with Agent("a", llm_provider=ScriptedProvider([text("hi")])) as agent:
            await agent.execute_turn("hi")
        assert bool(kept.spans()) is enabled
