"""Providers of OpenTelemetry that keep what they are given, for one test each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from looopy.telemetry import configure


class Kept:
    """What the agents of a test have reported."""

    def __init__(self, **chosen):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.configure()

    def configure(self, **chosen):
        """Choose, with these providers."""
        configure(tracer_provider=self.tracers, meter_provider=self.meters, **chosen)

    def spans(self, operation=None):
        """The spans that have ended, in that order, or those of one operation."""
        found = self.exporter.get_finished_spans()
        named = "gen_ai.operation.name"
        return [s for s in found if operation is None or s.attributes.get(named) == operation]

    def metrics(self):
        """The sum and count of each metric, by its name and the values of its attributes."""
        found = {}
        data = self.reader.get_metrics_data()
        for scope in (s for r in data.resource_metrics for s in r.scope_metrics):
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    whole = SimpleNamespace(
                        sum=point.sum if value is None else value,
                        count=getattr(point, "count", None),
                        attributes=dict(point.attributes),
                    )
                    found.setdefault(metric.name, []).append(whole)
        return found

    def text(self):
        """All spans and metrics as one text."""
        spans = "".join(span.to_json() for span in self.spans())
        return spans + str(self.metrics())


@pytest.fixture
def kept():
    """The telemetry of one test; off again after it."""
    found = Kept()
    yield found
    configure()
    found.tracers.shutdown()
    found.meters.shutdown()
