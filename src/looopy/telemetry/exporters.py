"""
Providers of OpenTelemetry for a program of looopy's own: `looopy serve`.

An application configures OpenTelemetry as it likes, and looopy takes its providers. A program whose
main function is looopy's has nobody else to do so. It reads the variables that OpenTelemetry
defines, and leaves a provider alone that the application's module has set.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from looopy.errors import MissingExtra
from looopy.telemetry.process import process_name

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CLOSING_S: Final = 3.0  # how long the last spans may take; a collector may be away


def start_exporters() -> Callable[[], None]:
    """
    Set the providers that the environment asks for, and one for Prometheus.

    Spans and metrics go to `OTEL_EXPORTER_OTLP_ENDPOINT`, or to the endpoint of each, over HTTP.
    `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` may be `none`. `OTEL_SDK_DISABLED` turns all
    of it off.

    Returns:
        A function that sends what is left, for at most 3 seconds.

    Raises:
        MissingExtra: An endpoint is set, and the extra `otel` is not installed.
    """
    traces = _endpoint("TRACES")
    pushes = _endpoint("METRICS")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return lambda: None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        if traces or pushes:
            raise MissingExtra(f"{_ENDPOINT} is set, and needs: pip install 'looopy[otel]'")
        return lambda: None
    shutdowns: list[Callable[[], object]] = []
    if traces:
        shutdowns += _set_tracers()
    shutdowns += _set_meters(pushes=pushes)
    return lambda: _close(shutdowns)


def _endpoint(signal: str) -> bool:
    """True if *signal* is to be sent to a collector."""
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() == "none":
        return False
    return bool(
        os.environ.get(_ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    )


def _set_tracers() -> list[Callable[[], object]]:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return []
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return [provider.shutdown]


def _set_meters(*, pushes: bool) -> list[Callable[[], object]]:
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    if not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics"):
        return []
    readers: list[MetricReader] = [PrometheusMetricReader()]
    if pushes:
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    provider = MeterProvider(readers, resource=_resource())
    metrics.set_meter_provider(provider)
    return [provider.shutdown]


def _resource() -> Resource:
    """What `OTEL_RESOURCE_ATTRIBUTES` says, and this process's name unless it gives another."""
    from opentelemetry.sdk.resources import (
        SERVICE_INSTANCE_ID,
        OTELResourceDetector,
        Resource,
    )

    said = OTELResourceDetector().detect().attributes
    return Resource.create({SERVICE_INSTANCE_ID: process_name(), **said})


def _close(shutdowns: list[Callable[[], object]]) -> None:
    """Call all of *shutdowns* in threads of their own, and wait a while for them."""
    threads = [threading.Thread(target=one, daemon=True) for one in shutdowns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_CLOSING_S)
