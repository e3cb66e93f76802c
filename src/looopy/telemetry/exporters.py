"""
Providers of OpenTelemetry for a program of looopy's own: `looopy serve`.

An application configures OpenTelemetry as it likes, and looopy takes its providers. A program whose
main function is looopy's has to do so itself. It reads the variables that OpenTelemetry
defines, and leaves a provider alone that the application's module has set.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, missing_extra
from looopy.telemetry.process import process_name

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from requests import Session

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CLOSING_S: Final = 3.0  # how long the last spans may take; a collector may be away
_MOST_ANSWER: Final = 64 * 1024  # bytes of a collector's answer, which OpenTelemetry reads whole


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
        ConfigurationError: An endpoint is not an http or https URL.
    """
    traces = _endpoint("TRACES")
    pushes = _endpoint("METRICS")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return lambda: None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        if traces or pushes:
            raise missing_extra(f"{_ENDPOINT} is set, and needs OpenTelemetry's SDK", "otel")
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
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", _ENDPOINT):
        if url := os.environ.get(name):
            _check_url(name, url)
            return True
    return False


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(c.isspace() for c in url):
        raise ConfigurationError(
            f"{name} is the URL of a collector, such as http://127.0.0.1:4318, not {url!r}"
        )


def _set_tracers() -> list[Callable[[], object]]:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return []
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(session=_session("TRACES"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
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
        exporter = OTLPMetricExporter(session=_session("METRICS"))
        readers.append(PeriodicExportingMetricReader(exporter))
    provider = MeterProvider(readers, resource=_resource(), shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return [provider.shutdown]


def _session(signal: str) -> Session | None:
    """Connections that read a collector's answer up to a limit; `None`: the environment's own."""
    from requests import Session

    own = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"
    if any(os.environ.get(own.format(one)) for one in ("", f"{signal}_")):
        return None
    session = Session()
    session.hooks["response"] = [_cut]
    return session


def _cut(response: Any, **_: object) -> None:
    raw = response.raw
    response.raw = io.BytesIO(raw.read(_MOST_ANSWER, decode_content=True))
    raw.close()


def _resource() -> Resource:
    """Attributes of `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, or else our own names."""
    from opentelemetry.sdk.resources import (
        SERVICE_INSTANCE_ID,
        SERVICE_NAME,
        OTELResourceDetector,
        Resource,
    )

    said = OTELResourceDetector().detect().attributes
    return Resource.create({SERVICE_NAME: "looopy", SERVICE_INSTANCE_ID: process_name(), **said})


def _close(shutdowns: list[Callable[[], object]]) -> None:
    """Call all of *shutdowns* in threads of their own, and wait a while for them."""
    threads = [threading.Thread(target=one, daemon=True) for one in shutdowns]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _CLOSING_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
