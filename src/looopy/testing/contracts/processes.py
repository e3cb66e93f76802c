"""The contract of a store that several processes use at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from looopy.errors import AgentBusy, Fenced, StoreConflict
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed, EntryKind, InboxNews
from looopy.testing.contracts.turns import (
    CONTEXT,
    a_claim,
    answer,
    begin,
    commit,
    ends,
    record_of,
    said,
    user,
)
from looopy.testing.contracts.walk import (
    NAMES,
    ProcessContract,
    difference,
    failing_as,
    same,
    take,
    view,
    views,
)
from looopy.testing.processes import OtherProcess, Processes

_RACES = 10
_TURNS = 6
_SOON_S = 0.002


class ProcessesContract(ProcessContract):
    """Processes that use one context at the same time: one owner, one log, no stale read."""

    async def test_another_process_reads_what_is_acknowledged(self, processes: Processes) -> None:
        """A process that had read the context before reads each step of another one."""
        wanted = await views()
        writer, reader = processes.start(), processes.start()
        for number, name in enumerate(NAMES, start=1):
            reader.run(view, CONTEXT)
            with failing_as(f"a process cannot take the step {name}"):
                writer.run(take, CONTEXT, name)
            found = reader.run(view, CONTEXT)
            if not same(found, wanted[number]):
                pytest.fail(
                    f"another process does not read the acknowledged step {name}:"
                    f"\n{difference(found, wanted[number])}",
                    pytrace=False,
                )

    async def test_one_of_two_processes_wins_a_claim(self, processes: Processes) -> None:
        """Two processes claim a context at the same time: one gets it, the other one is refused."""
        both = (processes.start(), processes.start())
        for number in range(_RACES):
            context_id = f"race-{number}"
            for process in both:
                process.begin(_claim_new, context_id)
            epochs = [process.result() for process in both]
            winners = [epoch for epoch in epochs if epoch is not None]
            if len(winners) != 1:
                pytest.fail(
                    f"{len(winners)} of 2 processes won the claim of one turn: each would run it,"
                    " and one of the two turns is lost",
                    pytrace=False,
                )
            record = both[0].run(record_of, context_id)
            assert (record.epoch, record.turn_count, record.last_position) == (winners[0], 1, 1)

    async def test_the_turns_of_two_processes_are_one_log(self, processes: Processes) -> None:
        """Two processes take turns on one context, and no acknowledged turn is lost or doubled."""
        names = ("first", "second")
        both = [processes.start() for _ in names]
        for process, name in zip(both, names, strict=True):
            process.begin(_take_turns, name, _TURNS)
        acknowledged = [turn for process in both for turn in _result(process)]
        left: list[_Turn] = processes.start().run(_turns_of)
        lost = [turn for turn in acknowledged if turn not in left]
        if lost:
            pytest.fail(
                f"{len(lost)} of {len(acknowledged)} acknowledged turns are lost or changed:"
                f" {lost[:3]}; the context has {left[:3]} …",
                pytrace=False,
            )
        assert len(left) == len(acknowledged), f"turns that no process has taken: {left}"
        assert [turn.turn for turn in left] == list(range(1, len(left) + 1))

    async def test_a_displaced_owner_writes_nothing(self, processes: Processes) -> None:
        """Once another process owns the context, its owner before is fenced, alive or not."""
        first, second = processes.start(), processes.start()
        claimed = first.run(begin, 0, holder="first")
        first.run(commit, claimed, [said(answer("one"))])
        with failing_as("another process cannot displace an owner that it has proved dead"):
            taken = second.run(_recover, claimed.epoch, "first", "second")
        _is_fenced(first, claimed)
        second.run(commit, taken, [said(answer("two")), ends()], release=True)
        _is_fenced(first, claimed)
        # A lease that has expired protects no turn, and needs no proof.
        claimed = first.run(begin, holder="first", ttl_s=0.0)
        taken = second.run(_recover, claimed.epoch, None, "second")
        _is_fenced(first, claimed)
        second.run(commit, taken, [ends()], release=True)
        texts = [turn.texts for turn in processes.start().run(_turns_of)]
        assert texts == [("hello", "one", "two"), ("hello",)]

    async def test_the_turn_of_a_dead_process_is_taken_over(self, processes: Processes) -> None:
        """After kill -9 in a turn, another process ends the turn and begins the next one."""
        first = processes.start()
        claimed = first.run(begin, 0, holder="first")
        first.run(commit, claimed, [said(answer("one"))])
        first.kill()
        second = processes.start()
        if second.run(_claim_new, CONTEXT) is not None:
            pytest.fail("lost: the lease and the turn of the killed process", pytrace=False)
        with failing_as("the turn that a killed process had begun cannot be taken over"):
            taken = second.run(_recover, claimed.epoch, "first", "second")
            second.run(commit, taken, [ends()], release=True)
            second.run(_take_turns, "second", 1)
        texts = [turn.texts for turn in processes.start().run(_turns_of)]
        assert texts == [("hello", "one"), ("second-0", "answer to second-0")]

    async def test_a_message_of_another_process_is_delivered_once(
        self, processes: Processes
    ) -> None:
        """A turn does not end over a message that another process has sent to its inbox."""
        owner, sender = processes.start(), processes.start()
        claimed = owner.run(begin, 0)
        sender.run(_steer)
        try:
            owner.run(commit, claimed, [ends()], heard=0, release=True)
        except InboxNews:
            pass
        else:
            pytest.fail("the turn ended over a message of another process", pytrace=False)
        assert sender.run(_withdraw) == 1
        with pytest.raises(StoreConflict):
            owner.run(commit, claimed, [ends()], delivered=[1], release=True)
        owner.run(commit, claimed, [ends()], release=True)


class _Turn(NamedTuple):
    turn: int
    position: int
    seq: int
    texts: tuple[str, ...]


async def _claim_new(stores: Stores, context_id: str) -> int | None:
    """The epoch of a claim of a context that did not exist, or `None` if it was refused."""
    try:
        return (await stores.state.claim(a_claim(context_id=context_id))).epoch
    except (AgentBusy, StoreConflict):
        return None


async def _take_turns(stores: Stores, name: str, count: int) -> list[_Turn]:
    """Take turns, and try again where another process was first."""
    taken: list[_Turn] = []
    while len(taken) < count:
        text = f"{name}-{len(taken)}"
        try:
            claimed = await begin(stores, text=text, holder=name)
        except (AgentBusy, StoreConflict):
            await asyncio.sleep(_SOON_S)
            continue
        reply = f"answer to {text}"
        await commit(stores, claimed, [said(answer(reply)), ends()], release=True)
        place = (claimed.turn, claimed.first_position, claimed.first_seq)
        taken.append(_Turn(*place, (text, reply)))
    return taken


async def _turns_of(stores: Stores) -> list[_Turn]:
    """The turns of a context, with the texts of their messages."""
    messages = await stores.messages.records(CONTEXT)
    return [
        _Turn(
            one.turn,
            one.first_position,
            one.start_seq,
            tuple(m.message.text for m in messages if m.turn == one.turn),
        )
        for one in await stores.journal.turns(CONTEXT)
    ]


async def _recover(stores: Stores, epoch: int, displace: str | None, holder: str) -> Claimed:
    claim = a_claim(epoch, recover=True, displace=displace, holder=holder)
    return await stores.state.claim(claim)


async def _write_as_owner(stores: Stores, claimed: Claimed) -> list[str]:
    """The writes that succeed under a claim which is over."""
    written = []
    try:
        await commit(stores, claimed, [said(answer("too late"))])
        written.append("a commit")
    except Fenced:
        pass
    if await stores.state.renew(CONTEXT, claimed.epoch, 60.0):
        written.append("a renewal of the lease")
    before = await record_of(stores)
    await stores.state.release(CONTEXT, claimed.epoch)
    if (await record_of(stores)).holder != before.holder:
        written.append("a release of the lease")
    return written


def _is_fenced(process: OtherProcess, claimed: Claimed) -> None:
    written: Sequence[str] = process.run(_write_as_owner, claimed)
    if written:
        pytest.fail(
            f"a displaced owner still writes: {', '.join(written)} succeeded under an old epoch,"
            " so two processes run one turn",
            pytrace=False,
        )


def _result(process: OtherProcess) -> list[_Turn]:
    try:
        found: list[_Turn] = process.result()
    except Exception as error:  # noqa: BLE001 - another author's store may raise anything
        pytest.fail(f"a process cannot take turns beside another one: {error!r}", pytrace=False)
    return found


async def _steer(stores: Stores) -> int:
    return await stores.journal.post(CONTEXT, EntryKind.STEER, user("wait"))


async def _withdraw(stores: Stores) -> int:
    return await stores.journal.withdraw(CONTEXT)
