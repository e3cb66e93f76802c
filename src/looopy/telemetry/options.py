"""Choices of an application about its telemetry: on or off, with or without content."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from looopy.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS: Final = {"span_only": True, "span_and_event": True, "event_only": False}


@dataclass(slots=True)
class Options:
    """
    The choices of this process; see `configure`.

    Attributes:
        content: `None`: by the environment.
    """

    enabled: bool = True
    content: bool | None = None
    redact: Callable[[str], str] | None = None
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None

    @property
    def shows_content(self) -> bool:
        """True if spans hold messages, arguments and results."""
        if self.content is None:
            said = os.environ.get(CAPTURE)  # each turn asks
            return said is not None and _ON_SPANS.get(said.strip().lower(), False)
        return self.content


CHOSEN: Final = Options()


def configure(
    *,
    enabled: bool = True,
    content: bool | None = None,
    redact: Callable[[str], str] | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """
    Choose, for all agents of this process and the turns that begin from now on.

    Args:
        enabled: False: no turn makes a span or a metric, whatever providers are set.
        content: True: spans also hold messages, system prompts, arguments and results, without the
            credentials of the turn. `None`: only if the environment variable
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is `SPAN_ONLY` or `SPAN_AND_EVENT`.
        redact: Called with each text of the content; its result is shown instead. If it fails, the
            text is left out.
        tracer_provider, meter_provider: Used in place of the ones that OpenTelemetry holds for the
            whole process.

    Raises:
        ConfigurationError: A choice has a wrong type.
    """
    if not isinstance(enabled, bool) or content not in (True, False, None):
        raise ConfigurationError("telemetry: enabled is True or False; content also None")
    if redact is not None and not callable(redact):
        raise ConfigurationError("telemetry: redact takes a function of text that returns text")
    CHOSEN.enabled, CHOSEN.content, CHOSEN.redact = enabled, content, redact
    CHOSEN.tracer_provider, CHOSEN.meter_provider = tracer_provider, meter_provider
