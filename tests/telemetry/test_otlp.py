"""The exporter that writes usual spans itself: a collector sees no difference."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as UsualSpanExporter,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from looopy.telemetry import otlp
from looopy.telemetry.otlp import OTLPSpanExporter, encoded

RESOURCES = [Resource({"service.name": "a"}), Resource({"service.name": "b"}, "https://s/1")]
SCOPES = [InstrumentationScope("looopy", "1"), InstrumentationScope("http", "", "https://s/2")]
TEXTS = st.text(max_size=20) | st.text("ab\u20ac", min_size=100, max_size=300)
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
PLAIN = TEXTS | st.booleans() | INTS | st.floats(allow_nan=False)
VALUES = PLAIN | st.lists(PLAIN, max_size=3).map(tuple)
KEYS = st.text(min_size=1, max_size=140)
TIMES = st.integers(0, 2**64 - 1) | st.none()


def contexts_of(states):
    """A strategy for places in traces, with such states."""
    return st.builds(
        SpanContext,
        st.integers(1, 2**128 - 1),
        st.integers(1, 2**64 - 1),
        st.booleans(),
        st.just(TraceFlags(1)),
        states,
    )


STATUSES = [Status(), Status(StatusCode.ERROR), Status(StatusCode.ERROR, "why")]


def spans_of(contexts, values, links, statuses):
    """A strategy for spans with such parts."""
    return st.builds(
        ReadableSpan,
        name=TEXTS,
        context=contexts,
        parent=st.none() | contexts,
        resource=st.sampled_from(RESOURCES),
        attributes=st.none() | st.dictionaries(KEYS, values, max_size=6),
        links=links,
        kind=st.sampled_from(SpanKind),
        status=statuses,
        start_time=TIMES,
        end_time=TIMES,
        instrumentation_scope=st.sampled_from(SCOPES),
    )


PLACES = contexts_of(st.just(None))
USUAL = spans_of(PLACES, VALUES, st.just(()), st.just(Status()))
STRANGE = contexts_of(st.none() | st.just(TraceState([("a", "b")])))
RARE = spans_of(
    STRANGE,
    VALUES | st.binary(max_size=3) | st.none(),
    st.lists(STRANGE.map(Link), max_size=1),
    st.sampled_from(STATUSES),
)


def sorted_spans(body):
    """Each span of a request as text, with its resource and scope: their order means nothing."""
    return sorted(
        f"{whole.resource} {whole.schema_url} {scoped.scope} {scoped.schema_url} {span}"
        for whole in ExportTraceServiceRequest.FromString(body).resource_spans
        for scoped in whole.scope_spans
        for span in scoped.spans
    )


@given(st.lists(USUAL | RARE, max_size=5))
def test_spans_are_written_as_opentelemetry_writes_them(spans):
    """In all their parts: the encoder of OpenTelemetry is the judge."""
    assert sorted_spans(encoded(spans)) == sorted_spans(encode_spans(spans).SerializeToString())


def usual(**more):
    """A span as looopy makes most of them."""
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    facts = {"attributes": {"model": "m", "tokens": 3, "first_s": 0.5, "reasons": ("stop",)}}
    facts |= {"context": context, "resource": RESOURCES[0], "instrumentation_scope": SCOPES[0]}
    return ReadableSpan("chat m", **facts | more)


def test_a_usual_span_is_not_written_by_opentelemetry(monkeypatch):
    """Else its time is not saved. A rare one is, and so is all that spans have in common."""
    seen = []
    known = otlp.encode_spans
    monkeypatch.setattr(otlp, "encode_spans", lambda spans: seen.append(spans) or known(spans))
    encoded([usual(), usual(), usual()])
    assert len(seen) == 1
    encoded([usual(), usual(status=Status(StatusCode.ERROR))])
    assert len(seen) == 3


class Answering:
    """Stands for the connection to a collector."""

    def __init__(self, *, success):
        self.success, self.sent = success, []

    def export(self, body):
        """Keep what is sent."""
        self.sent.append(body)
        return self


@pytest.mark.parametrize(("success", "result"), [(True, "SUCCESS"), (False, "FAILURE")])
def test_a_collector_gets_the_bytes_and_its_answer_counts(success, result):
    """The way to it is that of OpenTelemetry's exporter."""
    exporter = OTLPSpanExporter("http://127.0.0.1:9/v1/traces")
    exporter._client = answering = Answering(success=success)
    assert exporter.export([usual()]) is SpanExportResult[result]
    assert answering.sent == [encoded([usual()])]


@pytest.mark.parametrize("case", ["shut down", "too large", "own metrics", "another release"])
def test_what_is_out_of_the_ordinary_is_left_to_opentelemetry(case, monkeypatch, caplog):
    """It warns, counts or sends by a way of its own."""
    calls = []
    monkeypatch.setattr(UsualSpanExporter, "export", lambda _, spans: calls.append(spans))
    exporter = OTLPSpanExporter("http://127.0.0.1:9/v1/traces", max_request_size=1000)
    exporter._client = answering = Answering(success=True)
    spans = [usual()]
    match case:
        case "shut down":
            exporter._shutdown = True
        case "too large":
            spans = [usual() for _ in range(20)]
        case "own metrics":
            monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", " True ")
        case _:
            del exporter._client
    with caplog.at_level(logging.ERROR):
        exporter.export(spans)
    assert (calls, answering.sent, caplog.records) == ([spans], [], [])
