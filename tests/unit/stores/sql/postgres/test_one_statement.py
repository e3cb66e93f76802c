"""An operation in one statement writes what the same operation writes in several."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looopy.stores.records import Commit, ContextState, EntryKind
from looopy.stores.sql.commit import claim_steps, commit_steps, encode_claim, encode_commit
from looopy.stores.sql.engine import bind
from looopy.stores.sql.postgres.driver import PostgresDriver
from looopy.stores.sql.postgres.one_statement import answer_of, fold
from looopy.stores.sql.postgres.url import parse
from looopy.stores.sql.postgres.wire import MARK
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_claim,
    answer,
    ends,
    finishes,
    said,
    starts,
    user,
)
from looopy.types.message import ToolCall

_KEY = {"tenant": "default", "context": CONTEXT}
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_CALL = ToolCall("c1", "add", {"a": 1})


def _claim(**others):
    return partial(claim_steps, encode_claim(_KEY, a_claim(0, **others)))


def _commit(*events, **others):
    given = Commit(context_id=CONTEXT, epoch=5, turn=3, events=events, **others)
    return partial(commit_steps, encode_commit(_KEY, given))


OPERATIONS = {
    "a claim": _claim(),
    "a claim with all there is": _claim(
        key="k", input_hash="h", delivered=(4, 7), actor_id="u", state=ContextState()
    ),
    "an answer with calls": _commit(said(answer("", _CALL)), starts(_CALL)),
    "a result": _commit(*finishes(_CALL, "2"), assistant_position=9),
    "the end": _commit(said(answer("hi")), ends(), release=True, heard=2),
    "one that delivers": _commit(said(answer("hi")), delivered=(1,)),
}


def _one_by_one(work, row):
    """What *work* asks when its update returns *row*, and its answer."""
    steps, asked, given = work(), [], None
    try:
        while True:
            asked.append(steps.send(given))
            given = [row] if len(asked) == 1 else [(1,)]
    except StopIteration as stop:
        return asked, stop.value


@pytest.mark.parametrize("work", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("mark", [None, 77], ids=["in a transaction", "alone"])
@given(row=st.tuples(*[st.integers(-(2**40), 2**40)] * 7))
def test_a_folded_operation_writes_the_rows_of_its_steps(work, mark, row):
    """Each parameter of each part, once the server has added what the update returned."""
    width = next(work()).sql.rpartition(" RETURNING ")[2].count(",") + 1
    row = row[:width]
    asked, told = _one_by_one(work, row)
    write = fold(work, mark)
    assert write is not None
    folded = write.query
    assert (MARK in folded.sql) == (mark is None)
    assert folded.sql.count(" AS (") == len(asked)
    for name in _NAME.findall(asked[0].sql):
        given = mark if name == "write" else asked[0].params[name]
        assert folded.params[name] == given
    used = set(_NAME.findall(asked[0].sql))
    for number, step in enumerate(asked[1:]):
        for name in _NAME.findall(step.sql):
            mine = name if name in _KEY else f"{name}_q{number}"
            found = folded.params[mine]
            if added := re.search(rf"\(f(\d+) \+ :{mine}\)", folded.sql):
                found += row[int(added[1])]
            assert found == step.params[name], mine
            used.add(mine)
    assert set(_NAME.findall(folded.sql.replace(MARK, ""))) == used
    assert answer_of(work, [(*row, "mark")]) == told


def test_folded_operations_do_not_change_shared_rows():
    """The row before it is known is made once for all of them."""
    texts = [fold(work).query for work in OPERATIONS.values() for _ in range(2)]
    assert texts[0::2] == texts[1::2]


# --- whose line a write stands in ---


class _Spy:
    """Takes every write of the stores, and says which line it would wait in, with its bell."""

    def __init__(self, driver):
        self.driver, self.notifier, self.seen = driver, driver.notifier, []
        self.blobs = None

    async def run(self, work, *, write, ring=None, removes=False):
        if write and ring is not None:
            line = self.driver._line(work, ring)
            assert line is self.driver._line(work, None), work
            self.seen.append(work)
        raise InterruptedError  # nothing is done


async def test_a_notification_has_the_sequence_of_the_separate_statements():
    """For each write, with what rings and without: else two of them could pass each other."""
    spy = _Spy(PostgresDriver(parse("postgresql://127.0.0.1:1/none")))
    stores = bind(spy, "somebody")
    writes = [
        stores.messages.append(CONTEXT, [user("a")]),
        stores.artifacts.save(CONTEXT, "a", b"x"),
        stores.artifacts.delete(CONTEXT, "a"),
        stores.state.save(CONTEXT, {}, version=0),
        stores.state.delete(CONTEXT),
        stores.state.claim(a_claim(0)),
        stores.state.release(CONTEXT, 1),
        stores.state.join_wait_queue(CONTEXT, "h", 1.0),
        stores.state.leave_wait_queue(CONTEXT, 1),
        stores.journal.commit(
            Commit(context_id=CONTEXT, epoch=1, turn=1, events=[said(answer("a"))])
        ),
        stores.journal.clear(CONTEXT),
        stores.journal.post(CONTEXT, EntryKind.STEER, user("a")),
        stores.journal.ask_cancel(CONTEXT),
    ]
    for write in writes:
        with pytest.raises(InterruptedError):
            await write
    assert len(spy.seen) == len(writes)
