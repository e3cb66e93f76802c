"""
Sentences for a person about a model that keeps the turn waiting.

Protocols without an event for it send these sentences. They name no code, class or option.
"""

from looopy.types.event import AgentEvent, StatusChange


def notice_of(event: AgentEvent) -> str | None:
    """The sentence about *event*: "The model is busy. Trying again in 12 s."; `None` for others."""
    match event:
        case StatusChange(attempt=int(), delay_s=delay_s, rate_limited=busy):
            why = "The model is busy." if busy else "The model did not answer."
            return f"{why} Trying again{_in(delay_s or 0.0)}."
        case _:
            return None


def _in(seconds: float) -> str:
    """Whole seconds, rounded up: a person should not wait longer than the sentence says."""
    whole = -int(-seconds // 1)
    return f" in {whole} s" if whole else ""
