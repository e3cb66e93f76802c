"""
The CPU time of a turn with telemetry, over that of one without.

Rounds with and without alternate, so that the machine's other work falls on both. The figures are
medians, of the times and of the ratios of rounds side by side. With telemetry, spans go to a
collector in a process of its own, by OpenTelemetry's batches over HTTP. All threads count. A scrape
of the metrics comes by the clock, not by the turn, so it is measured apart.

Spans go by OpenTelemetry's exporter, as from `looopy serve`. The last figure
is OpenTelemetry's own share: its SDK called by hand beside a turn without telemetry, with as many
spans, attributes and measurements, and its exporter.

A turn of kind `stream` is one as users have it: OpenAI's SDK reads an answer of 40 pieces from a
server on loopback, which sends them one by one. For `wire`, it sends all of them at once.
`stream-tool` and `wire-tool` begin with a call of a tool. In `text` and `tool` a script stands in
for the model: the worst case.

    python -m benchmarks.telemetry              some minutes
    python -m benchmarks.telemetry --rounds 4   fewer
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, set_span_in_context
from prometheus_client import REGISTRY, generate_latest

from looopy import Agent, tool
from looopy.llm import OpenAIProvider
from looopy.llm.provider import LLMProvider
from looopy.telemetry import configure
from looopy.testing import ScriptedProvider, text, tool_call

KINDS = ["stream", "stream-tool", "wire", "wire-tool", "text", "tool"]
TURNS = 128  # 256 spans: OpenTelemetry sends up to 512 in one request
SINK = """
import json, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
def chunk(**more):
    one = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    return b"data: " + json.dumps(one | more).encode() + bytes([10, 10])
def piece(delta, finish=None):
    return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])
USED = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
PIECES = [piece({"content": "It is three. "}) for _ in range(40)] + [piece({}, "stop")]
END = chunk(usage=USED) + b"data: [DONE]" + bytes([10, 10])
PIECES.append(END)
ADD = {"name": "add", "arguments": json.dumps({"a": 1, "b": 2})}
CALL = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": ADD}]}
CALLS = [piece(CALL), piece({}, "tool_calls"), END]
class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        if "chat" in self.path:
            asked = json.loads(body)["messages"][-1]["role"] == "user"
            pieces = CALLS if "-tool" in self.path and asked else PIECES
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(sum(map(len, pieces))))
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                if "stream" in self.path:
                    self.wfile.flush()
                    time.sleep(0.001)
            return
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""
ANSWER = "It is three. " * 40  # in pieces of 12 characters, as models send them


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def script(kind: str) -> list:
    """The replies of one turn."""
    return [tool_call("add", a=1, b=2), text(ANSWER)] if kind == "tool" else [text(ANSWER)]


class ByHand:
    """The spans and measurements of a turn, by the shortest calls that OpenTelemetry's SDK has."""

    def __init__(self, tracers: TracerProvider, meters: MeterProvider) -> None:
        self.tracer = tracers.get_tracer("by hand")
        meter = meters.get_meter("by hand")
        bounds = tuple(0.01 * 2**n for n in range(13))
        self.histograms = [
            meter.create_histogram(f"h{n}", explicit_bucket_boundaries_advisory=bounds)
            for n in range(7)
        ]

    def turn(self, tools: int) -> None:
        """One turn with *tools* tool calls, each before a model call of its own."""
        span = self.tracer.start_span("invoke_agent a", attributes=dict(BEGUN))
        within = set_span_in_context(span)
        attach(within)
        for number in range(1 + 2 * tools):
            kind = SpanKind.INTERNAL if number % 2 else SpanKind.CLIENT
            inner = self.tracer.start_span("chat m", within, kind, dict(CALLED))
            attach(set_span_in_context(inner, within))
            if number % 2 == 0:
                inner.set_attributes(dict(ANSWERED))
            inner.end()
            attach(within)
        span.set_attributes(dict(ENDED))
        span.end()
        for number, place in enumerate(PLACES):
            for _ in range(1 + tools if number > 1 else 1):
                self.histograms[number].record(0.5, dict(place), NO_CONTEXT)


NO_CONTEXT = Context()
BEGUN = {"operation": "invoke_agent", "agent": "agent", "conversation": "context"}
CALLED = {"operation": "chat", "provider": "openai", "model": "m", "conversation": "context"}
ANSWERED = {"in": 100, "out": 40, "reasons": ("stop",), "model.2": "m", "id": "c", "first": 0.5}
ENDED = {"turn": 1, "outcome": "completed", "iterations": 1, "in": 100, "out": 40}
ENDED |= {"provider": "openai", "model": "m"}
_MODEL = {"operation": "chat", "provider": "openai", "model": "m"}
PLACES = (
    {"agent": "agent"},
    {"agent": "agent", "provider": "openai", "model": "m", "outcome": "completed"},
    {},
    _MODEL,
    _MODEL,
    {**_MODEL, "token": "input"},
    {**_MODEL, "token": "output"},
)


async def round_of(
    kind: str, url: str, name: str, end: Callable[[], object], port: str = "", beside: Any = None
) -> float:
    """CPU milliseconds of a turn, over `TURNS` turns of a new context, with `end()` after them."""
    model: LLMProvider = ScriptedProvider(script(kind), repeat=True, chunk_chars=12)
    if kind.startswith(("stream", "wire")):
        model = OpenAIProvider("m", base_url=f"http://127.0.0.1:{port}/{kind}", api_key="k")
    async with Agent(name, llm_provider=model, tools=[add], stores=url) as agent:
        await agent.execute_turn("Warm up.")
        end()
        began = time.process_time()
        for _ in range(TURNS):
            await agent.execute_turn("What is 1 + 2?")
            if beside is not None:
                beside.turn(int(kind.endswith("tool")))
        end()
        return (time.process_time() - began) / TURNS * 1000


async def compare(kind: str, backend: str, port: str, rounds: int) -> None:
    """Print the figures and their ratios, for one kind of turn on one backend."""
    tracers = TracerProvider()
    sender = OTLPSpanExporter(f"http://127.0.0.1:{port}/v1/traces")
    tracers.add_span_processor(BatchSpanProcessor(sender))
    meters = MeterProvider([PrometheusMetricReader()])
    by_hand = ByHand(tracers, meters)
    plain: list[float] = []
    watched: list[float] = []
    bare: list[float] = []

    with tempfile.TemporaryDirectory() as folder:
        url = "memory:" if backend == "memory" else f"sqlite:///{Path(folder) / 'b.db'}"
        for number in range(rounds):
            configure(enabled=False)
            plain.append(await round_of(kind, url, f"off-{number}", lambda: None, port))
            configure(tracer_provider=tracers, meter_provider=meters)
            end = tracers.force_flush
            watched.append(await round_of(kind, url, f"on-{number}", end, port))
            configure(enabled=False)
            bare.append(await round_of(kind, url, f"hand-{number}", end, port, by_hand))
    configure()
    began = time.process_time()
    generate_latest(REGISTRY)
    scraped = (time.process_time() - began) * 1000
    meters.shutdown()
    tracers.shutdown()
    off = median(plain)
    print(
        f"{kind:11} {backend:7} off {off:.3f} ms, on {over(watched, plain)},"
        f" OpenTelemetry by hand {over(bare, plain)}; a scrape {scraped:.1f} ms",
        flush=True,
    )


def over(some: list[float], plain: list[float]) -> str:
    """The time of rounds, and by how much it exceeds that of the rounds beside them."""
    ratios = [one / off - 1 for one, off in zip(some, plain, strict=True)]
    return f"{median(some):.3f} ms ({median(ratios):+.1%})"


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--backends", nargs="+", default=["sqlite", "memory"])
    given = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True) as sink:
        try:
            port = sink.stdout.readline().strip()
            for backend in given.backends:
                for kind in given.kinds:
                    asyncio.run(compare(kind, backend, port, given.rounds))
        finally:
            sink.kill()


if __name__ == "__main__":
    main()
