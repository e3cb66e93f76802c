"""
Fold a claim, or a commit of a turn, into one statement.

Such an operation updates the row of its context and then writes rows under the numbers that the
update returned. Asked one by one, each statement is a round trip. But what is done with the numbers
is only addition, so the operation's generator can be run on numbers that are not known yet: it is
sent symbols, and what it yields then are the same statements with `symbol + 3` in the place of a
number. Those become parts of one statement that the server fills in:

    WITH f AS (UPDATE looopy_contexts ... RETURNING ...),
    q1 AS (INSERT INTO looopy_messages ... SELECT ... FROM f) SELECT * FROM f

A stale epoch updates nothing, so every part writes nothing. The answer is what the generator
returns when it is run again on the real numbers. An operation that does more than add, or writes
more rows than fit well, is not folded; nor is one that the update refuses, because the reason is
found by looking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from looopy.stores.sql import statements as s
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.postgres.wire import MARK

T = TypeVar("T")
_FENCES = {s.CLAIM, s.COMMIT}
_PARTS = {
    *(s.OPEN_TURN, s.ADD_MESSAGE, s.ADD_EVENT, s.CLOSE_TURN, s.ADD_KEY, s.TAKE_ENTRY),
    s.UNINDEX,
}
# These write a row, or the operation is refused.
_MUST = {s.CLOSE_TURN, s.ADD_KEY, s.TAKE_ENTRY}
_MOST_PARTS = 13
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_SHARED = ("tenant", "context")
NOT_CLOSED = "22012"
"""
The SQLSTATE (division by zero) when a part wrote no row that has to: the turn to be closed is not
open, the key is taken, or the message has left the inbox.
"""


class _Symbol:
    """The column number `column` of what the update returns, plus `offset`. Never changed."""

    __slots__ = ("column", "offset")

    def __init__(self, column: int, offset: int = 0) -> None:
        self.column = column
        self.offset = offset

    def __add__(self, other: int) -> _Symbol:
        return _Symbol(self.column, self.offset + other)

    def __sub__(self, other: int) -> _Symbol:
        return _Symbol(self.column, self.offset - other)


class Folded(NamedTuple):
    """
    An operation as one statement.

    `mark`: the value by which the row of its context shows that this was the last write, if the
    statement is a transaction of its own; `None` if it is part of a transaction, and returns the
    mark of that one.
    """

    query: Query
    mark: int | None
    fence: Query
    parts: list[Query]

    def part(self, sql: str) -> Mapping[str, Any] | None:
        """The parameters of its first part that is *sql*, with symbols for some numbers."""
        return next((part.params for part in self.parts if part.sql == sql), None)


def fold(work: Callable[[], Steps[Any]], mark: int | None = None) -> Folded | None:
    """*work* as one statement, or `None` if it cannot be folded; *mark*: see `Folded`."""
    steps = work()
    first = next(steps)
    parts: list[Query] = []
    try:
        if first.sql not in _FENCES:
            return None
        query = steps.send([_symbols(first.sql)])
        while query.sql in _PARTS and len(parts) < _MOST_PARTS:
            parts.append(query)
            query = steps.send([(1,)])
    except StopIteration:
        return _folded(first, parts, mark)
    except TypeError:  # it does more with a number than to add to it
        return None
    finally:
        steps.close()
    return None


def answer_of(work: Callable[[], Steps[T]], rows: Rows) -> T:
    """The answer of *work* if its update returned *rows* and everything after it was done."""
    steps = work()
    given = [rows[0][: _width(next(steps).sql)]]
    try:
        while True:
            steps.send(given)
            given = [(1,)]
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _folded(fence: Query, parts: list[Query], mark: int | None) -> Folded:
    params: dict[str, Any] = {**fence.params, "write": mark}
    shape: list[tuple[str, tuple[tuple[str, int], ...]]] = []
    for number, part in enumerate(parts):
        symbols: list[tuple[str, int]] = []
        given = part.params
        for name, mine in _own(part.sql, number):
            value = given[name]
            if type(value) is _Symbol:
                symbols.append((name, value.column))
                value = value.offset
            params[mine] = value
        shape.append((part.sql, tuple(symbols)))
    text = _text(fence.sql, tuple(shape), in_transaction=mark is None)
    return Folded(Query(text, params), mark, fence, parts)


@cache
def _width(fence: str) -> int:
    """How many columns it returns."""
    return fence.rpartition(" RETURNING ")[2].count(",") + 1


@cache
def _symbols(fence: str) -> tuple[_Symbol, ...]:
    """A row of its result, before it is known."""
    return tuple(_Symbol(n) for n in range(_width(fence)))


@cache
def _own(sql: str, part: int) -> tuple[tuple[str, str], ...]:
    """The parameters that only a part has, and their names in the whole."""
    names = dict.fromkeys(_NAME.findall(sql))
    return tuple((name, _numbered(name, part)) for name in names if name not in _SHARED)


def _numbered(name: str, part: int) -> str:
    return f"{name}_q{part}"


@cache
def _text(
    fence: str,
    shape: tuple[tuple[str, tuple[tuple[str, int], ...]], ...],
    *,
    in_transaction: bool,
) -> str:
    returned = ", ".join(f"f{n}" for n in range(_width(fence)))
    if in_transaction:  # which began with a look at the schema
        withs = [f"f ({returned}, mark) AS ({fence}, {MARK})"]
    else:
        fence = fence.replace(" RETURNING ", f" AND {s.at_head()} RETURNING ")
        withs = [f"f ({returned}) AS ({fence})"]
    checks = ""
    for number, (sql, symbols) in enumerate(shape):
        part = _part(sql, number, dict(symbols))
        withs.append(f"q{number} AS ({part})")
        if sql in _MUST:
            checks += f", 1 / (SELECT COUNT(*) FROM q{number})"  # noqa: S608 - constants
    if in_transaction:
        checks += ", mark"
    return f"WITH {', '.join(withs)} SELECT {returned}{checks} FROM f"  # noqa: S608 - constants


def _part(sql: str, number: int, symbols: Mapping[str, int]) -> str:
    """
    A statement that takes its symbols from the update, and its other values from parameters.

    The text is changed, not made twice: each of `_PARTS` is written with its own WHERE or VALUES as
    the first one, which the tests of every folded operation hold it to, on a server.
    """
    if sql.startswith("UPDATE"):
        text = sql.replace(" WHERE ", " FROM f WHERE ", 1)
    elif sql.startswith("DELETE"):
        text = sql.replace(" WHERE ", " USING f WHERE ", 1)
    else:
        head, _, tail = sql.partition(" VALUES (")
        values, _, tail = tail.partition(")")
        text = f"{head} SELECT {values} FROM f{tail}"  # noqa: S608 - constants

    def rename(found: re.Match[str]) -> str:
        name = found[1]
        if name in _SHARED:
            return found[0]
        mine = f":{_numbered(name, number)}"
        return f"(f{symbols[name]} + {mine})" if name in symbols else mine

    return _NAME.sub(rename, text)
