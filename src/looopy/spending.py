"""
What the turns of a context have used, for the budgets that span them.

Tokens, cost and time are sums in the state of the context: each turn adds its own at its end, so no
turn reads those before it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from looopy.loop.guards import Spent
from looopy.stores.records import ContextState
from looopy.stores.stores import Stores
from looopy.types.config import Budget

_PAGE = 100
_US = timedelta(microseconds=1)


def spent_before(state: ContextState) -> Spent:
    """What was used before a turn that begins with *state*, also by what its tools called."""
    return Spent(state.usage + state.charged, (state.run_us or 0) / 1e6)


def run_us_after(state: ContextState, started_at: datetime, ended_at: datetime) -> int | None:
    """*state*'s sum of time with that of one more turn; `None` where it is not counted."""
    return None if state.run_us is None else state.run_us + (ended_at - started_at) // _US


async def counted(
    stores: Stores, context_id: str, turn: int, state: ContextState, budget: Budget
) -> ContextState:
    """
    *state* with the time that turns before *turn* have run.

    Where it was never counted, as by a version that kept no sum, the turns are read once, when a
    budget asks for it; from then on the sum is kept.

    Raises:
        StoreUnavailable: It did not answer.
    """
    if state.run_us is not None or (turn > 1 and budget.context_s is None):
        return state
    run_us, after = 0, 0
    while after < turn - 1:
        turns = await stores.journal.turns(context_id, after=after, limit=_PAGE)
        if not turns:
            break
        over = [(one.ended_at, one.started_at) for one in turns if one.ended_at is not None]
        run_us += sum((end - start) // _US for end, start in over)
        after = turns[-1].turn
    return replace(state, run_us=run_us)
