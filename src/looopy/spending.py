"""What the turns of a context have used, for the budgets that span them."""

from __future__ import annotations

from looopy.guards import Spent
from looopy.stores.records import ContextState
from looopy.stores.stores import Stores
from looopy.types.context import Budget

_PAGE = 100


async def spent_before(
    stores: Stores, context_id: str, turn: int, state: ContextState, budget: Budget
) -> Spent:
    """
    What was used before *turn*. Tokens and cost are kept with the context; the time of its turns is
    read only where a budget asks for it.

    Raises:
        StoreUnavailable: It did not answer.
    """
    if budget.context_s is None:
        return Spent(state.usage)
    seconds, after = 0.0, 0
    while after < turn - 1:
        turns = await stores.journal.turns(context_id, after=after, limit=_PAGE)
        if not turns:
            break
        over = [(one.ended_at, one.started_at) for one in turns if one.ended_at is not None]
        seconds += sum((end - start).total_seconds() for end, start in over)
        after = turns[-1].turn
    return Spent(state.usage, seconds)
