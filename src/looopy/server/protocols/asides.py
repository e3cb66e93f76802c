"""
Events about the model's server as data with names in camelCase, for AG-UI and the AI SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from looopy.types.event import AgentEvent, ModelRerouted, RateLimit, StatusChange


def aside_of(event: AgentEvent) -> tuple[str, Mapping[str, Any]] | None:
    """The name of *event* and its data; `None` for events about other things."""
    match event:
        case StatusChange(attempt=int()):
            return "retry", {
                "attempt": event.attempt,
                "delayS": event.delay_s,
                "nextAt": _text(event.next_at),
                "rateLimited": event.rate_limited,
                "reason": event.reason,
            }
        case RateLimit():
            return "rate-limit", {
                "provider": event.provider,
                "model": event.model,
                "refused": event.refused,
                "retryAt": _text(event.retry_at),
                "limits": [
                    {
                        "kind": one.kind,
                        "left": one.left,
                        "limit": one.limit,
                        "resetsAt": _text(one.resets_at),
                    }
                    for one in event.limits
                ],
            }
        case ModelRerouted():
            return "model-rerouted", {
                "asked": event.asked,
                "answered": event.answered,
                "by": event.by,
                "reason": event.reason,
            }
        case _:
            return None


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
