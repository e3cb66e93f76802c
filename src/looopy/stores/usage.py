"""
Sums of tokens and dollars over the contexts of a tenant: by context, owner, model and day.

Everything is read page by page through the stores' own methods. An answer of a model names its
model and its time. The rest of a turn's usage (calls that failed or were cut short, summaries,
messages that were cleared) counts on the day of the turn, without a model. The rest of a context's
usage, beyond its turns, has no day either. So all sums add up to the contexts' own.

An inner context, of an agent that works for a call, is a context like any other. The part that its
outer one was charged is not counted a second time. A fork counts what it used itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Final, Literal, TypeAlias

from looopy.errors import LimitExceeded, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.pages import messages_of, turns_of
from looopy.stores.records import ContextRecord
from looopy.types.message import NO_USAGE, TOKENS, AssistantMessage, Cost, Usage

Dimension: TypeAlias = Literal["context", "owner", "model", "day"]
DIMENSIONS: Final[Sequence[Dimension]] = ("context", "owner", "model", "day")
MOST_ROWS: Final = 100_000
_PAGE: Final = 200
_LEAST_DOLLARS: Final = 1e-9  # differences of sums below this are errors of rounding


@dataclass(frozen=True, slots=True)
class Key:
    """
    The place of a sum; `None` for a dimension that is summed over, or that is not known.

    `model` is `provider/model`.
    """

    context: str | None = None
    owner: str | None = None
    model: str | None = None
    day: date | None = None


@dataclass(slots=True)
class Sum:
    """The model calls that gave an answer, and the usage of all."""

    calls: int = 0
    usage: Usage = NO_USAGE


async def sum_usage(
    stores: Stores,
    *,
    by: Sequence[Dimension] = ("model",),
    owner: str | None = None,
    since: date | None = None,
    until: date | None = None,
) -> dict[Key, Sum]:
    """
    Sum what the contexts of a tenant have used.

    Args:
        by: A sum for each combination of these; empty: one sum of all.
        owner: Only contexts of this owner.
        since, until: Only usage of these days (UTC), both included. Usage without a day is then
            left out.

    Raises:
        ValueRefused: *by* has a name that is not a dimension, or *until* is before *since*.
        LimitExceeded: There would be more than 100,000 sums.
        StoreUnavailable: The store did not answer.
    """
    for name in by:
        if name not in DIMENSIONS:
            known = ", ".join(DIMENSIONS)
            raise ValueRefused(f"usage is summed by {known}, not by {name!r}", path="/by")
    if since is not None and until is not None and until < since:
        raise ValueRefused(f"until {until} is before since {since}: no day is both", path="/until")
    sums: dict[Key, Sum] = {}
    async for key, calls, usage in _parts(stores, owner, since):
        if (since or until) and not (
            key.day is not None and (since or key.day) <= key.day <= (until or key.day)
        ):
            continue
        place = Key(**{f.name: getattr(key, f.name) for f in fields(Key) if f.name in by})
        found = sums.get(place)
        if found is None:
            if len(sums) == MOST_ROWS:
                raise LimitExceeded(
                    f"there are more than {MOST_ROWS:,} sums: sum by less, or choose an owner or"
                    " days",
                    limit="rows",
                    value=MOST_ROWS,
                )
            found = sums[place] = Sum()
        found.calls += calls
        found.usage += usage
    return sums


async def _parts(
    stores: Stores, owner: str | None, since: date | None
) -> AsyncIterator[tuple[Key, int, Usage]]:
    """Each answer, and each rest, with its whole place."""
    after = ""
    while page := await stores.state.list(after=after, limit=_PAGE):
        after = page[-1].context_id
        for record in page:
            theirs = owner is None or record.owner_actor == owner
            late = since is None or record.last_activity.astimezone(UTC).date() >= since
            if theirs and late and (record.open_turn or _is_some(record.state.usage)):
                async for part in _of_context(stores, record):
                    yield part


async def _of_context(
    stores: Stores, record: ContextRecord
) -> AsyncIterator[tuple[Key, int, Usage]]:
    name, owner = record.context_id, record.owner_actor
    parent = (await stores.journal.lineage(name)).parent
    copied = 0 if parent is None else parent.at
    answers = _answers(stores, name, copied)
    left = await anext(answers, None)
    rest = record.state.usage
    async for turn in turns_of(stores, name):
        if turn.last_position <= copied and turn.first_position <= copied:
            continue  # of the context that this one was forked from
        of_turn = turn.usage
        rest = _beyond(rest, turn.usage)
        while left is not None and left[0] <= turn.turn:
            _, message = left
            day = datetime.fromtimestamp(message.timestamp / 1000, UTC).date()
            model = f"{message.provider}/{message.model}" if message.model else None
            yield Key(name, owner, model, day), 1, message.usage
            of_turn = _beyond(of_turn, message.usage)
            left = await anext(answers, None)
        if _is_some(of_turn):
            yield Key(name, owner, None, turn.started_at.astimezone(UTC).date()), 0, of_turn
    if _is_some(rest):
        yield Key(name, owner), 0, rest


async def _answers(
    stores: Stores, context_id: str, after: int
) -> AsyncIterator[tuple[int, AssistantMessage]]:
    """The answers that cost something, each with its turn; also rewound ones."""
    async for record in messages_of(stores, context_id, after, include_hidden=True):
        message = record.message
        if isinstance(message, AssistantMessage) and _is_some(message.usage):
            yield record.turn, message


def _beyond(usage: Usage, part: Usage) -> Usage:
    """*usage* without *part*; never less than 0."""
    tokens = {name: max(0, getattr(usage, name) - getattr(part, name)) for name in TOKENS}
    if usage.cost is None or part.cost is None:
        return Usage(**tokens, cost=usage.cost)
    total = usage.cost.total - part.cost.total
    complete = usage.cost.complete or not part.cost.complete
    cost = Cost(total=total if total > _LEAST_DOLLARS else 0.0, complete=complete)
    return Usage(**tokens, cost=cost)


def _is_some(usage: Usage) -> bool:
    dollars = usage.cost is not None and usage.cost.total > 0
    return dollars or any(getattr(usage, name) for name in TOKENS)
