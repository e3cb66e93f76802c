"""
Events for the reports of a provider: warnings, rate limits, another model.

A turn is not told the same twice: a report is an event only if it is news.
"""

from __future__ import annotations

from typing import TypeAlias

from looopy.loop.parts import Turn
from looopy.types.event import AgentEvent, ModelRerouted, RateLimit, TurnWarning
from looopy.types.request import TOOLS_LEFT_OUT, RateLimits, Report, Reroute

Said: TypeAlias = tuple[str, str] | Report
"""A warning (its code and its sentence), or a report."""


def is_refusal(said: Said) -> bool:
    """True for the report of a call that was refused because of a limit."""
    return isinstance(said, RateLimits) and said.refused


def event_of(turn: Turn, said: Said) -> AgentEvent | None:
    """The event of *said*; `None` if the turn knows it already."""
    make, is_news = turn.out.make, turn.out.is_news
    if isinstance(said, (RateLimits, Reroute)) and (watch := turn.given.watch) is not None:
        watch.reported(said)
    if isinstance(said, RateLimits):
        state = tuple((one.kind, one.limit, one.is_low) for one in said.limits)
        if is_news((said.provider, said.model), state) or said.refused:
            return make(RateLimit, **said._asdict())
        return None
    if isinstance(said, Reroute):
        known = (said.by, said.asked, said.answered)
        return make(ModelRerouted, **said._asdict()) if is_news(known) else None
    code, text = said
    if code == TOOLS_LEFT_OUT and not is_news(text):  # it is the same in each call
        return None
    return make(TurnWarning, code=code, text=text)
