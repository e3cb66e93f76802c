"""
Decides whether a turn is watched, without loading OpenTelemetry.

An application that wants traces or metrics has imported OpenTelemetry's API and set a provider.
Otherwise there is nothing to do, and a turn pays for one look into `sys.modules`.
"""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from looopy.telemetry.options import CHOSEN

if TYPE_CHECKING:
    from looopy.telemetry.content import Redact
    from looopy.telemetry.instruments import Instruments
    from looopy.telemetry.watch import TurnWatch

_logger = logging.getLogger("looopy")
_made: tuple[object, object, Instruments] | None = None
_turn_watch: type[TurnWatch] | None = None  # an import of it in each turn takes 4 us
_of_traces: Any = None  # OpenTelemetry's modules, once they are there
_of_metrics: Any = None


def watch_turn(context_id: str, agent_name: str, redact: Redact) -> TurnWatch | None:
    """
    Watch a turn that was asked for, from now on; `None` without traces and metrics.

    Args:
        redact: Removes the turn's secrets from a JSON value.
    """
    global _turn_watch  # noqa: PLW0603 - loaded once
    instruments = _instruments()
    if instruments is None:
        return None
    if _turn_watch is None:
        from looopy.telemetry.watch import TurnWatch

        _turn_watch = TurnWatch
    content = None
    if CHOSEN.shows_content:
        from looopy.telemetry.content import Content

        content = Content(redact, CHOSEN.redact)
    return _turn_watch(instruments, context_id, agent_name, content)


def note_recovery(context_id: str, turn: int, trace: str | None, started_at: datetime) -> None:
    """
    Record that this process has ended a turn that another one left.

    Args:
        trace: `ContextState.trace`: the place of that turn, if it was traced.
        started_at: The time when it began.
    """
    if (instruments := _instruments()) is not None:
        from looopy.telemetry.watch import record_recovery

        record_recovery(instruments, context_id, turn, trace, started_at)


def _instruments() -> Instruments | None:
    """Those of the providers that are set now; `None` if they cannot be used."""
    if not CHOSEN.enabled:
        return None
    try:
        return _of_providers()
    except Exception:
        CHOSEN.enabled = False
        _logger.exception("the providers of OpenTelemetry cannot be used: telemetry is off")
        return None


def _of_providers() -> Instruments | None:
    """`None` if neither of the providers does anything."""
    global _made, _of_traces, _of_metrics  # noqa: PLW0603 - as OpenTelemetry's providers are
    if _of_traces is None:
        loaded = sys.modules
        if "opentelemetry.trace" not in loaded and "opentelemetry.metrics" not in loaded:
            return None
        from opentelemetry import metrics, trace

        _of_traces, _of_metrics = trace, metrics
    tracers = CHOSEN.tracer_provider or _of_traces.get_tracer_provider()
    meters = CHOSEN.meter_provider or _of_metrics.get_meter_provider()
    if _made is not None and _made[0] is tracers and _made[1] is meters:
        return _made[2]
    if not (_does_something(tracers) or _does_something(meters)):
        return None
    from looopy.telemetry.instruments import Instruments

    found = Instruments(tracers, meters)
    _made = (tracers, meters, found)
    return found


def _does_something(provider: Any) -> bool:
    """True for a provider that is not the API's own placeholder."""
    module = type(provider).__module__
    return not module.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
