"""
Finds out if a write happened whose connection broke before its answer arrived.

A write of several statements is a transaction with a number, and the server knows the outcome of
that number. A write of one statement is over before its number can be read. It leaves a
mark of its own in the row of its context instead, `contexts.last_write`, and the driver reads the
row. Two things make that certain:

- The write is no longer on its way. A statement may have reached the server, or the network, and be
  carried out later. So the driver first ends its session and waits until it is gone: a session that
  has ended commits nothing more.
- No other write has replaced the mark. Under one epoch only its owner writes, one write after the
  other. If the epoch has moved on, the row of the turn decides: a turn is opened by one claim, and
  closed once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from looopy.stores.rules import next_epoch
from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows
from looopy.stores.sql.postgres.errors import Trouble, translate
from looopy.stores.sql.postgres.one_statement import Folded
from looopy.stores.sql.postgres.pool import Pool, Session
from looopy.stores.sql.postgres.wire import LIFE, Backend
from looopy.types.state import Outcome

T = TypeVar("T")
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.2
_random = random.SystemRandom()


class _Unknown(Exception):
    """The rows decide neither way."""


class _Later(Exception):
    """It may be known after a while."""


async def _find_out(
    pool: Pool, place: str, deadline: float, look: Callable[[Session], Awaitable[T]]
) -> T:
    """The answer of *look*, given connections until it knows; or `StoreUnavailable`."""
    trouble = Trouble(None, lost=True)
    pause_s = _SHORTEST_PAUSE_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            async with pool.session(until=deadline) as opened:
                return await look(opened)
        except _Unknown:
            break
        except _Later:
            pass
        except Trouble as again:
            trouble = again
            if trouble.stale:  # the next one may be fresh
                continue
        await asyncio.sleep(_random.uniform(0.0, pause_s))
        pause_s = min(4 * pause_s, _LONGEST_PAUSE_S)
    raise translate(trouble, place, outcome_known=False) from None


# --- a transaction ---

_STATUS = f"SELECT pg_xact_status(CAST(:xid AS text)::xid8), {LIFE}"
# Our own session, left by a broken connection: the server has not noticed the break yet.
_END_IT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE backend_xid::text::bigint = :xid % 4294967296 AND pid <> pg_backend_pid()"
)


async def fate_of_transaction(pool: Pool, place: str, mark: str, deadline: float) -> bool:
    """True if the transaction of *mark* was committed; `StoreUnavailable` if that stays unknown."""
    xid, _, life = mark.partition(" ")
    which = {"xid": int(xid)}
    waited = False

    async def look(opened: Session) -> bool:
        nonlocal waited
        try:
            ((status, now),) = await opened.ask_alone(Query(_STATUS, which))
        except Trouble as trouble:
            if trouble.sqlstate == "22023":  # not given out yet, in a new life
                return False
            raise
        if status == "aborted":
            return False
        if now != life:
            # In progress: the number belongs to another transaction by now, so ours did not reach
            # the disk. Committed: it may be ours or another one.
            if status == "in progress":
                return False
            raise _Unknown
        if status == "committed":
            return True
        if waited:
            await opened.ask_alone(Query(_END_IT, which))
        waited = True
        raise _Later

    return await _find_out(pool, place, deadline, look)


# --- one statement ---

_SESSION = "pid = :pid AND (EXTRACT(EPOCH FROM backend_start) * 1000000)::bigint = :since"
# A standby knows nothing of the sessions of its primary, and may lag behind it.
_MAY_COME = (
    "SELECT pg_is_in_recovery() OR EXISTS (SELECT 1 FROM pg_stat_activity"  # noqa: S608 - constants
    f" WHERE {_SESSION})"
)
_END_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"  # noqa: S608 - constants
    f" WHERE {_SESSION} AND pid <> pg_backend_pid()"
)
_FACTS = (
    "SELECT c.epoch, c.last_write, c.turn_count, c.last_seq, c.last_position, c.inbox_last,"
    " c.inbox_waiting, c.cancel_turn, t.outcome, t.stop_reason, t.started_at, t.ended_at,"
    " t.end_seq, t.last_position FROM looopy_contexts c LEFT JOIN looopy_turns t"
    " ON t.tenant_id = c.tenant_id AND t.context_id = c.context_id AND t.{column} = :which"
    " WHERE c.tenant_id = :tenant AND c.context_id = :context"
)


class _Facts(NamedTuple):
    """A context and the turn that a write is about, as they are now."""

    epoch: int
    last_write: int | None
    turn_count: int
    last_seq: int
    last_position: int
    inbox_last: int
    inbox_waiting: int
    cancel_turn: int | None
    outcome: str | None
    stop_reason: str | None
    started_at: int | None  # `None`: there is no such turn
    ended_at: int | None
    end_seq: int
    turn_last_position: int

    @property
    def inbox(self) -> tuple[Any, ...]:
        """Its columns, as a claim and a commit return them."""
        return (self.inbox_last, self.inbox_waiting, self.cancel_turn)


async def fate_of_statement(
    pool: Pool, place: str, write: Folded, backend: Backend, deadline: float
) -> Rows | None:
    """
    The result of *write* if it was carried out in the session *backend*; `None` if it was not.

    News of the inbox are current ones.

    Raises:
        StoreUnavailable: The server did not answer in time, or cannot know: another owner has
            written since.
    """
    session = backend._asdict()
    waited = False

    async def look(opened: Session) -> Rows | None:
        nonlocal waited
        ((may_come,),) = await opened.ask_alone(Query(_MAY_COME, session))
        if may_come:
            if waited:
                await opened.ask_alone(Query(_END_SESSION, session))
            waited = True
            raise _Later
        # In a statement of its own: it has to see what was committed before the session was gone.
        found = await opened.ask_alone(_question(write))
        facts = _Facts(*found[0]) if found else None
        judge = _claimed if write.fence.sql == s.CLAIM else _committed
        row = judge(write, facts)
        return None if row is None else [row]

    return await _find_out(pool, place, deadline, look)


def _question(write: Folded) -> Query:
    params = write.fence.params
    key = {"tenant": params["tenant"], "context": params["context"]}
    if write.fence.sql == s.CLAIM:
        return Query(_FACTS.format(column="epoch"), {**key, "which": _made(write)})
    closing = write.part(s.CLOSE_TURN)
    turn = 0 if closing is None else closing["turn"]
    return Query(_FACTS.format(column="turn"), {**key, "which": turn})


def _made(claim: Folded) -> int:
    """The epoch that a claim makes."""
    params = claim.fence.params
    return next_epoch(params["expected"], params["chance"])


def _claimed(claim: Folded, facts: _Facts | None) -> tuple[Any, ...] | None:
    """The row that a claim returned; `None`: it took nothing."""
    if facts is None or facts.epoch == claim.fence.params["expected"]:
        return None
    if facts.epoch == _made(claim):
        if facts.last_write != claim.mark:  # another's
            return None
        numbers = (facts.epoch, facts.turn_count, facts.last_seq, facts.last_position)
        return (*numbers, *facts.inbox)
    # Our turn would be displaced by now, and so interrupted.
    opening = claim.part(s.OPEN_TURN)
    if opening is None or facts.started_at != opening["started_at"]:
        return None
    if facts.outcome not in (None, Outcome.INTERRUPTED.value):
        return None
    raise _Unknown


def _committed(commit: Folded, facts: _Facts | None) -> tuple[Any, ...] | None:
    """The row that a commit returned; `None`: it wrote nothing."""
    if facts is None:
        raise _Unknown
    if facts.epoch == commit.fence.params["epoch"]:
        if facts.last_write != commit.mark:
            return None
        return (facts.last_seq, facts.last_position, *facts.inbox)
    closing = commit.part(s.CLOSE_TURN)
    if closing is None or facts.started_at is None:
        raise _Unknown
    ours = (closing["outcome"], closing["stop_reason"], closing["ended_at"])
    if (facts.outcome, facts.stop_reason, facts.ended_at) != ours:
        return None  # it is still open, or was closed elsewhere
    last_seq = facts.end_seq - closing["end_seq"].offset
    return (last_seq, facts.turn_last_position - closing["last_position"].offset, *facts.inbox)
