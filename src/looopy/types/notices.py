"""
Sentences for a person about a model that keeps the turn waiting, or is another one.

Protocols without an event for it send these sentences. They name no code, class or option.
"""

from looopy.types.event import AgentEvent, ModelRerouted, RateLimit, StatusChange


def notice_of(event: AgentEvent) -> str | None:
    """The sentence about *event*: "The model is busy. Trying again in 12 s."; `None` for others."""
    match event:
        case StatusChange(attempt=int(), delay_s=delay_s, rate_limited=busy):
            why = "The model is busy." if busy else "The model did not answer."
            return f"{why} Trying again{_in(delay_s or 0.0)}."
        case ModelRerouted(asked=asked, answered=answered):
            return f"{answered} answers instead of {asked}."
        case RateLimit(refused=False, limits=limits):
            low = next((one for one in limits if one.is_low), None)
            if low is None:
                return None
            of = "" if low.limit is None else f" of {low.limit:,}"
            kind = low.kind.replace("_", " ")
            return f"The model may soon be busy: {low.left:,}{of} {kind} are left."
        case _:
            return None


def _in(seconds: float) -> str:
    """Whole seconds, rounded up: a person should not wait longer than the sentence says."""
    whole = -int(-seconds // 1)
    return f" in {whole} s" if whole else ""
