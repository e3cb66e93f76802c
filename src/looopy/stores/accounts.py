"""
The accounts of a tenant for operators: their owners, and the calls that hold reservations.

The store knows accounts and contexts by digests alone; the names come from existing contexts. A
reservation whose process died stays until its conversation continues, or until its period
ends. `release_call` gives it back by hand, once no process can settle it. If a process does so
after all, the call counts in full; see `Spending.release`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from looopy.errors import AgentBusy, StoreConflict
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import Held, account_of, digest_of
from looopy.stores.owner import provably_alive, provably_dead
from looopy.stores.records import ContextRecord
from looopy.types.state import Outcome

CallStatus: TypeAlias = Literal["runs", "dead", "unclear", "ended", "unknown"]
"""
How the call of a reservation stands:

- `runs`: its turn runs.
- `dead`: the process of its turn died.
- `unclear`: its turn is open and its lease has expired, but its process may be alive.
- `ended`: its turn ended by itself. Its process may still settle it, or summarise.
- `unknown`: its context is not in these stores.
"""
_PAGE: Final = 200
_YOUNG: Final = timedelta(minutes=15)  # a model call takes 10 minutes at most, by default


@dataclass(frozen=True, slots=True)
class HeldCall:
    """
    A reservation, with the conversation that made it.

    Attributes:
        context_id: `None` if its context is not in these stores.
        owner: The owner of the context.
        status: See `CallStatus`.
    """

    held: Held
    context_id: str | None
    owner: str | None
    status: CallStatus

    @property
    def is_stuck(self) -> bool:
        """True if it may be released: no process can be expected to settle it."""
        old = datetime.now(UTC) - self.held.since > _YOUNG
        return self.status == "dead" or (self.status in ("ended", "unknown") and old)


async def held_calls(stores: Stores) -> list[HeldCall]:
    """
    The calls that hold something in an account, the oldest first.

    Raises:
        ConfigurationError: These stores keep no accounts.
    """
    found: list[Held] = []
    while page := await stores.spending.held(
        after=found[-1].reservation if found else "", limit=_PAGE
    ):
        found += page
    return await _placed(stores, sorted(found, key=lambda one: one.since))


async def release_call(stores: Stores, reservation: str) -> HeldCall:
    """
    Give back what a dead call holds: an operator has seen at the provider that it used nothing.

    Returns:
        The call as it was.

    Raises:
        AgentBusy: The call may still run, or its process may still settle it.
        StoreConflict: The reservation holds nothing: it was settled or released before.
    """
    for call in await held_calls(stores):
        if call.held.reservation == reservation:
            break
    else:
        raise _holds_nothing(reservation)
    if not call.is_stuck:
        raise AgentBusy(_why_not(call), turn=call.held.place.turn)
    if not await stores.spending.release(reservation):
        raise _holds_nothing(reservation)
    return call


async def owners_of(stores: Stores, accounts: Sequence[str]) -> dict[str, ContextRecord]:
    """
    The owners after accounts: for each one that has a context here, the last active of these.

    Args:
        accounts: See `account_of`.
    """
    found: dict[str, ContextRecord] = {}
    wanted = set(accounts)
    async for record in _contexts(stores):
        account = account_of(record.owner_actor)
        known = found.get(account)
        if account in wanted and (known is None or known.last_activity < record.last_activity):
            found[account] = record
    return found


async def _placed(stores: Stores, all_held: Sequence[Held]) -> list[HeldCall]:
    missing = {one.place.context for one in all_held}
    contexts: dict[str, ContextRecord] = {}
    if missing:
        async for record in _contexts(stores):
            if (digest := digest_of(record.context_id)) in missing:
                contexts[digest] = record
                missing.remove(digest)
            if not missing:
                break
    calls = []
    for held in all_held:
        found = contexts.get(held.place.context)
        if found is None:
            calls.append(HeldCall(held, None, None, "unknown"))
            continue
        status = await _status(stores, held, found)
        calls.append(HeldCall(held, found.context_id, found.owner_actor, status))
    return calls


async def _contexts(stores: Stores) -> AsyncIterator[ContextRecord]:
    after = ""
    while page := await stores.state.list(after=after, limit=_PAGE):
        after = page[-1].context_id
        for record in page:
            yield record


async def _status(stores: Stores, held: Held, record: ContextRecord) -> CallStatus:
    turn = held.place.turn
    if record.open_turn is not None and record.open_turn.turn == turn:
        holder = record.holder
        if holder is not None and provably_dead(holder):
            return "dead"
        lives = record.lease_live or (holder is not None and provably_alive(holder))
        return "runs" if lives else "unclear"
    for one in await stores.journal.turns(record.context_id, after=turn - 1, limit=1):
        died = one.turn == turn and one.outcome is Outcome.INTERRUPTED
        if died and one.ended_at is not None and held.since <= one.ended_at:
            return "dead"
    return "ended"  # or it summarises after its turn has died


def _why_not(call: HeldCall) -> str:
    turn, name = call.held.place.turn, call.context_id
    if call.status == "runs":
        return f"turn {turn} of {name!r} runs: cancel it, or wait for its end"
    if call.status == "unclear":
        return (
            f"nothing proves that the process of turn {turn} of {name!r} has died: open the"
            " conversation in an application that may continue it, which ends the turn"
        )
    return (
        f"this call was begun less than {_YOUNG // timedelta(minutes=1)} minutes ago, and may still"
        " be settled: try again then"
    )


def _holds_nothing(reservation: str) -> StoreConflict:
    return StoreConflict(
        f"no call holds anything under {reservation!r}: it was settled or released, or the name is"
        " another one's"
    )
