"""
T26: a thousand turns in eight processes, paid for from one owner's budget of a day.

The model takes a short time and uses any amount that it may. Some calls are refused, some break off
in the middle, some never say what they used, and some are cut off by the user. Each process notes
when a call begins and ends, with what it really used, and what the accounts were asked and have
answered. Four things are judged by these notes:

- No call begins without a reservation of its own, or uses more than that.
- At no moment what was used and what running calls may use is more than the limit.
- At no moment the accounts hold less than that: nothing that was spent is forgotten.
- In the end they hold exactly what their answers add up to, and nothing is reserved.

The processes are killed, or lose their server, in two of the trials. What a process did not hear
about counts as it happened or as if it had not; the sums must lie in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.databases import DRIVERS
from tests.campaign.life import FileLedger
from tests.campaign.places import STORES, broken, lines_of, place, plain, rows_of, wrong
from tests.campaign.trial import Tally, Trial
from tests.postgres import Server, as_driver, ask

from looopy import Agent, AuthContext, Budget, LoopConfig, Outcome, UserMessage, open_stores
from looopy._failpoints import arm
from looopy.errors import (
    BudgetExceeded,
    CannotContinue,
    LLMError,
    RateLimited,
    StoreError,
    StoreUnavailable,
    TurnIncomplete,
)
from looopy.llm.accumulate import Accumulator
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import NOTHING, Amount, account_of, digest_of
from looopy.stores.sql import migrate
from looopy.stores.sql.contexts import spending
from looopy.stores.sql.contexts.spending import SQLSpending
from looopy.stores.sql.postgres.driver import PATIENCE_S, PostgresDriver
from looopy.testing.children import Patience, fork, run
from looopy.types.config import RetryPolicy
from looopy.types.message import StopReason, Usage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions

_OWNER = "u1"
_PROCESSES = 8
_MAX_TOKENS = 100
_ENOUGH = 40  # tokens a turn, in a budget that does not suffice for all of them
_PLENTY = 100_000  # tokens a turn
_LONGEST_S = 0.05  # of a model call
_LONGEST_BESIDE_S = 0.6  # of one while the server comes and goes
_ROOM_S = 5.0  # how long a turn waits for room
_ROOM_OF_DEAD_S = 0.5  # and where dead processes keep some of it
_CANCELLED = 0.04  # of the turns, at any moment
_PATIENCE_S = 600.0
_LOOK_S = 0.005
_TRIES = 60
_AGAIN_S = 0.1
_TURNS_A_KILL = 20
_TURNS_A_STOP = 60
_LOAD_S = 0.8
_AWAY_S = 0.4
_LINE_BYTES = 100  # about what a process notes of one thing
_LINES_A_TURN = 8
_FAILPOINTS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B13", "B14", "R1", "R2", "R3")
_END_SOME = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.3"
)

# --- a process ---


@dataclass(frozen=True)
class Share:
    """
    What one process does: a turn on each of its contexts, all at once.

    Attributes:
        limit: Tokens of the owner's day.
        gate: Shared by all processes that begin together; `None`: it begins when it can.
        twice: Continue what can be, and then say something new in each context.
    """

    number: int
    url: str
    contexts: Sequence[str]
    ledger: Path
    seed: int
    limit: int
    longest_s: float = _LONGEST_S
    room_s: float = _ROOM_S
    gate: mmap.mmap | None = None
    failpoint: str | None = None
    twice: bool = False


class Notes(FileLedger):
    """A ledger with the time of each line, by the one clock of the machine."""

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line."""
        super().write(kind, t=time.monotonic_ns(), **facts)


class NotedSpending(SQLSpending):
    """Accounts that note what they are asked and what they answer."""

    notes: Notes

    async def reserve(self, reservation: str, most: Amount, *args: Any, **named: Any) -> None:
        self.notes.write("ask", of=reservation, at=named["place"].context, most=most.tokens)
        try:
            await super().reserve(reservation, most, *args, **named)
        except BudgetExceeded:
            self.notes.write("refused", of=reservation)
            raise
        except StoreError:
            self.notes.write("unknown", of=reservation)
            raise
        self.notes.write("held", of=reservation)

    async def settle(self, reservation: str, used: Amount) -> bool:
        self.notes.write("settle", of=reservation, used=used.tokens)
        found = await super().settle(reservation, used)
        self.notes.write("settled", of=reservation, found=found)
        return found


class Model:
    """Answers after a while, with a use that depends on chance; see above."""

    name = model = "spender"

    def __init__(self, share: Share, notes: Notes) -> None:
        self._notes = notes
        self._longest_s = share.longest_s
        self._rng = random.Random(share.seed)
        self._calls = 0
        self.hangs: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncIterator[StreamEvent]:
        """Make one call; see `LLMProvider.stream`."""
        said = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
        context, rng = said.partition(" ")[0], self._rng
        self._calls += 1
        call = f"{os.getpid()}-{self._calls}"
        kinds = ("done", "limited", "broken", "silent", "hangs")
        kind = rng.choices(kinds, (70, 12, 8, 4, 6))[0]
        asked = sum(len(m.text) for m in request.messages) // 4
        used = Usage(input=asked, output=rng.randint(1, options.max_tokens or 1))
        used = replace(used, total_tokens=used.input + used.output)
        answer = Accumulator(api="spender", provider=self.name, model=self.model)
        over = False

        def end(how: str, real: int) -> None:
            self._notes.write("end", call=call, how=how, real=real)

        self._notes.write("begin", call=call, context=context)
        try:
            for event in answer.start():
                yield event
            await asyncio.sleep(rng.random() * self._longest_s)
            if kind == "limited":
                over = True
                end("known", 0)
                for event in answer.error(RateLimited("later", retry_after_s=0.01)):
                    yield event
                return
            for event in answer.text_delta("an answer"):
                yield event
            if kind == "hangs":
                self.hangs[context].set()
                await asyncio.sleep(_PATIENCE_S)
            if kind == "broken":
                over = True
                end("unknown", used.total_tokens)
                for event in answer.error(LLMError("broken off", retryable=True)):
                    yield event
                return
            over = True
            end("unknown" if kind == "silent" else "known", used.total_tokens)
            for event in answer.done(StopReason.STOP, Usage() if kind == "silent" else used):
                yield event
        finally:
            if not over:
                end("unknown", used.total_tokens)


async def _spend(share: Share) -> None:
    """Take the turns of a share."""
    notes = Notes(share.ledger)
    rng = random.Random(share.seed)
    model = Model(share, notes)
    async with _opened(share.url) as stores:
        _note_spending(stores, notes)
        agents = [_agent(share, name, model, stores) for name in share.contexts]
        if share.gate is not None:
            share.gate[share.number] = 1
            while not all(share.gate[:_PROCESSES]):  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.001)
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(_use(share, agent, model, notes, random.Random(rng.random())))


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Stores]:
    """Stores on a database whose server may be away for a moment."""
    for left in reversed(range(_TRIES)):
        stores = open_stores(url)
        try:
            await stores.__aenter__()
        except StoreUnavailable:
            if not left:
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            break
    try:
        yield stores
    finally:
        await stores.__aexit__(None, None, None)


def _note_spending(stores: Stores, notes: Notes) -> None:
    state: Any = stores.state
    noted = NotedSpending(state.backend, stores.tenant)
    noted.notes = notes
    state.make_spending = lambda: noted


def _agent(share: Share, context_id: str, model: Model, stores: Stores) -> Agent:
    asks = int(digest_of(context_id), 16) % 2
    return Agent(
        context_id,
        llm_provider=model,
        stores=stores,
        loop_config=LoopConfig(
            max_tokens=_MAX_TOKENS,
            budget=Budget(owner_day_tokens=share.limit, tenant_month_tokens=2 * share.limit),
            on_budget="ask" if asks else "stop",
            busy_timeout_s=share.room_s,
            retry=RetryPolicy(attempts=20, base_s=0.01, cap_s=0.05),
        ),
        on_busy="wait",
    )


async def _use(share: Share, agent: Agent, model: Model, notes: Notes, rng: random.Random) -> None:
    """Say something in a context, or continue what was said there; try again without a store."""
    new = f"{agent.context_id} {'x' * rng.randrange(200)}"
    chance = 0.0 if share.twice else _CANCELLED
    for _ in range(_TRIES):
        try:
            if agent.state.status == "terminated" or not agent.state.created_at:
                await agent.start()
            if agent.state.turn_count:
                with contextlib.suppress(CannotContinue):
                    await _turn(agent, None, model, notes, rng, chance)
            if share.twice or not agent.state.turn_count:
                await _turn(agent, new, model, notes, rng, chance)
            await agent.shutdown()
        except TurnIncomplete:  # cancelled before it was stored
            return
        except StoreUnavailable as error:
            notes.write("unavailable", known=error.outcome_known)
            await asyncio.sleep(_AGAIN_S)
        else:
            return
    notes.write("wrong", why=f"{agent.context_id} was not served")


async def _turn(
    agent: Agent,
    said: str | None,
    model: Model,
    notes: Notes,
    rng: random.Random,
    chance: float = 0.0,
) -> None:
    """Take a turn, and cancel it if its model hangs, or at any moment by *chance*."""
    model.hangs[agent.context_id].clear()
    cancels = rng.random() < chance
    view = agent.execute_turn(said, auth_context=AuthContext(actor_id=_OWNER))

    async def cancel() -> None:
        if cancels:
            await asyncio.sleep(rng.random() * 2 * model._longest_s)
        else:
            await model.hangs[agent.context_id].wait()
        view.cancel()

    cancelling = asyncio.create_task(cancel())
    try:
        result = await view
    finally:
        cancelling.cancel()
    if isinstance(result.error, StoreUnavailable):  # it is continued
        raise result.error
    notes.write(
        "result",
        context=agent.context_id,
        outcome=result.outcome.value,
        reason=str(result.stop_reason and result.stop_reason.value),
        cut=cancels or model.hangs[agent.context_id].is_set(),
        error=repr(result.error),
    )


async def _observe(url: str, ledger: Path, over: mmap.mmap) -> None:
    """Look at the accounts, again and again."""
    notes = Notes(ledger)
    async with _opened(url) as stores:
        while not over[0]:
            began = time.monotonic_ns()
            try:
                found = await stores.spending.spent(account_of(_OWNER))
            except StoreUnavailable:
                found = []
            for one in found:
                used, reserved = one.used.tokens, one.reserved.tokens
                notes.write("seen", since=began, used=used, reserved=reserved)
            await asyncio.sleep(_LOOK_S)


# --- the judge ---


@dataclass
class Call:
    """One call of the model."""

    most: int
    began: int
    ended: int | None = None
    back: int = 0  # what its end gives back at most

    def counts(self, at: int) -> int:
        """What it counts at least, at a time after its beginning."""
        return self.most - (self.back if self.ended is not None and self.ended <= at else 0)


@dataclass
class Books:
    """What the notes of all processes add up to."""

    problems: list[str] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)  # of each reservation
    asked: dict[str, str] = field(default_factory=dict)  # how its last try ended
    used: dict[str, int] = field(default_factory=dict)  # what it was to be settled at
    found: dict[str, bool] = field(default_factory=dict)  # that it was, or was not there
    real: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unavailable: int = 0  # how often a turn was told that the store is
    waiting: list[str] = field(default_factory=list)  # contexts whose last turn had no room
    sights: int = 0
    limit: int = 0
    out: int = 0  # what calls have used, and may use
    highest: int = 0
    _held: dict[str, str] = field(default_factory=dict)  # by place: a reservation for its next call
    _places: dict[str, str] = field(default_factory=dict)  # by reservation
    _last: dict[str, str] = field(default_factory=dict)  # by place: how its last try ended
    _ended: dict[str, str] = field(default_factory=dict)  # by context: how its last turn ended

    def add(self, lines: Iterable[dict[str, Any]], limit: int) -> None:
        """Go through the lines of all processes of a phase, in the order of time."""
        self.limit = limit
        self._held.clear()
        self._last.clear()
        self._ended.clear()
        found = sorted(lines, key=lambda line: line["t"])
        for line in found:
            kind = line["kind"]
            if kind in ("ask", "refused", "unknown", "held", "settle", "settled"):
                self._account(kind, line)
            elif kind == "begin":
                self._begin(line)
            elif kind == "end" and line["call"] in self.calls:
                self._end(line)
            elif kind == "result":
                self._result(line)
            elif kind == "unavailable":
                self.unavailable += 1
            elif kind == "wrong":
                self.problems.append(line["why"])
        self.waiting = [context for context, how in self._ended.items() if how == "budget"]
        for line in found:
            if line["kind"] == "seen":
                self._seen(line)

    def _account(self, kind: str, line: dict[str, Any]) -> None:
        name = line["of"]
        if kind == "settle":
            self.used[name] = line["used"]
        elif kind == "settled":
            self.found[name] = line["found"]
        else:
            if kind == "ask":
                self.most[name] = line["most"]
                self._places[name] = line["at"]
            self.asked[name] = self._last[self._places[name]] = kind
            if kind == "held":
                self._held[self._places[name]] = name

    def _begin(self, line: dict[str, Any]) -> None:
        name = self._held.pop(digest_of(line["context"]), None)
        if name is None:
            self.problems.append(f"a call without a reservation: {line}")
            return
        call = self.calls[line["call"]] = Call(self.most[name], line["t"])
        self.out += call.most
        self.highest = max(self.highest, self.out)
        if self.out > self.limit:
            self.problems.append(f"{self.out} are used or may be, of {self.limit}: {line}")

    def _end(self, line: dict[str, Any]) -> None:
        call = self.calls[line["call"]]
        self.real += line["real"]
        if line["real"] > call.most:
            self.problems.append(f"a call used more than the {call.most} reserved: {line}")
        call.ended = line["t"]
        call.back = call.most - line["real"] if line["how"] == "known" else 0
        self.out -= call.back

    def _result(self, line: dict[str, Any]) -> None:
        outcome, reason = line["outcome"], line["reason"]
        no_room = outcome == Outcome.INPUT_REQUIRED or (outcome, reason) == ("failed", "budget")
        how = self._ended[line["context"]] = "budget" if no_room else outcome
        self.outcomes[how] += 1
        if no_room and self._last.get(digest_of(line["context"])) != "refused":
            self.problems.append(f"a turn was told of a budget that did not refuse it: {line}")
        fine = how in ("budget", "completed") or (outcome == "cancelled" and line["cut"])
        if not fine:
            self.problems.append(f"a turn ended as {line}")

    def _seen(self, line: dict[str, Any]) -> None:
        self.sights += 1
        there = line["used"] + line["reserved"]
        begun = [call for call in self.calls.values() if call.began < line["since"]]
        least = sum(call.counts(line["t"]) for call in begun)
        if there > self.limit:
            self.problems.append(f"the accounts hold more than {self.limit}: {line}")
        if there < least:
            self.problems.append(f"the accounts forgot some of {least}: {line}")

    def bounds(self) -> tuple[int, int]:
        """What the accounts hold at least and at most, by what they answered."""
        low = high = 0
        for name, most in self.most.items():
            asked, used = self.asked[name], self.used.get(name)
            least, greatest = (0 if asked != "held" else most), (0 if asked == "refused" else most)
            if used is not None and asked != "refused":
                least = min(least, used)
                if name in self.found:  # if it was not there, an earlier try had settled it
                    least = greatest = used
            low, high = low + least, high + greatest
        return low, high

    def least(self) -> int:
        """What the calls count at least, by themselves."""
        return sum(call.counts(call.ended or 0) for call in self.calls.values())

    def close(self, url: str, *, exact: bool, settled: bool) -> None:
        """
        Compare with the rows of the accounts.

        Args:
            exact: Every process lived, and heard all answers.
            settled: No reservation may be left.
        """
        rows = rows_of(
            url, "SELECT account, sum(tokens), sum(held_tokens) FROM looopy_spending GROUP BY 1"
        )
        low, high = self.bounds()
        low = max(low, self.least())
        if len(rows) != 2:
            self.problems.append(f"there are {len(rows)} accounts")
        for account, used, reserved in rows:
            there = int(used) + int(reserved)
            if not low <= there <= high or (exact and not low == there == high):
                self.problems.append(f"{account} holds {there}, not {low} to {high}")
            if settled and reserved:
                self.problems.append(f"{account} has {reserved} reserved in the end")
        left = rows_of(url, "SELECT count(*) FROM looopy_reservations")[0][0]
        if settled and left:
            self.problems.append(f"{left} reservations are left")


# --- the trials ---


@dataclass
class Run:
    """One database, its processes, and the one that looks on."""

    url: str
    folder: Path
    seed: int
    turns: int
    limit: int
    books: Books = field(default_factory=Books)
    kills: int = 0
    phases: int = 0

    def shares(self, **facts: Any) -> list[Share]:
        """The shares of all processes, in a new phase."""
        self.phases += 1
        rng = random.Random(self.seed * 100 + self.phases)
        names = [f"c{n}" for n in range(self.turns)]
        return [
            Share(
                number=n,
                url=self.url,
                contexts=names[n::_PROCESSES],
                ledger=self._ledger(f"{n}"),
                seed=rng.randrange(2**32),
                **{"limit": self.limit, **facts},
            )
            for n in range(_PROCESSES)
        ]

    def _ledger(self, name: str) -> Path:
        return self.folder / f"ledger-{self.phases}-{name}"

    def phase(
        self,
        shares: Sequence[Share],
        *,
        ends: Iterator[Share | float] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Run *shares* at the same time, to their end, and add what they noted.

        Args:
            ends: How the next process ends: a failpoint, or the share of its work after which it is
                killed. Its work goes on in another one then.
            meanwhile: Called again and again while they run.
        """
        over = mmap.mmap(-1, mmap.PAGESIZE)
        ledgers: list[Path] = [self._ledger("seen")]
        body = partial(_observe, self.url, ledgers[0], over)
        watcher = fork(lambda: asyncio.run(body()), self.folder / "log-seen")
        living: dict[int, tuple[Share, int | None]] = {}

        def begin(share: Share) -> None:
            end = next(ends, None) if ends is not None else None
            share = replace(share, failpoint=end if isinstance(end, str) else None)
            amount = len(share.contexts) * _LINES_A_TURN * _LINE_BYTES
            size = int(end * amount) if isinstance(end, float) else None
            ledgers.append(share.ledger)
            log = share.ledger.with_suffix(".log")
            living[fork(partial(_begin, share), log)] = share, size

        patience = Patience(_PATIENCE_S)
        try:
            for share in shares:
                begin(share)
            while living:
                meanwhile()
                late = patience.is_over()
                for pid, (share, size) in list(living.items()):
                    if late or (size is not None and _size(share.ledger) >= size):
                        os.kill(pid, signal.SIGKILL)
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if not found:
                        continue
                    del living[pid]
                    code = os.waitstatus_to_exitcode(status)
                    if code == -signal.SIGKILL and ends is not None and not late:
                        self.kills += 1
                        path = self._ledger(f"{share.number}-{self.kills}")
                        begin(replace(share, ledger=path, seed=share.seed + 1))
                    elif code:
                        log = share.ledger.with_suffix(".log").read_text()
                        self.books.problems.append(f"a process ended with {code}: {log[-1500:]}")
                time.sleep(0.001)
        finally:
            over[0] = 1
            for pid in (*living, watcher):
                if pid != watcher:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.books.add((line for path in ledgers for line in _lines(path)), shares[0].limit)


def _begin(share: Share) -> None:
    arm(share.failpoint)
    asyncio.run(_spend(share))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lines(path: Path) -> list[dict[str, Any]]:
    return lines_of(path)


@contextlib.contextmanager
def _judged(tally: Tally, url: str, seed: int, turns: int, limit: int) -> Iterator[Run]:
    """A run on *url*, whose problems are put into *tally*; one across midnight proves nothing."""
    day = time.gmtime().tm_yday
    with tempfile.TemporaryDirectory(prefix="looopy-budgets-") as kept:
        made = Run(url, Path(kept), seed, turns, limit)
        yield made
        tally.runs += turns
        if time.gmtime().tm_yday != day:
            tally.missed += turns
            return
        books = made.books
        tally.violations += [f"seed {seed}, {turns} turns: {p}" for p in books.problems]
        low, high = books.bounds()
        told = ", ".join(f"{n} {how}" for how, n in sorted(books.outcomes.items()))
        tally.notes.append(
            f"{told}; {len(books.calls)} calls, {made.kills} kills; {books.real} used of {limit},"
            f" counted as {low} to {high}; {books.sights} looks,"
            f" {books.unavailable} unavailable"
        )


def _together(store: str, turns: int, seed: int) -> Tally:
    """A budget for some of the turns, and then more, for those that wait."""
    tally = Tally(f"turns on one budget, {store}")
    with (
        place(store) as url,
        _judged(tally, url, seed, turns, _limit(turns)) as made,
    ):
        made.phase(made.shares(gate=mmap.mmap(-1, mmap.PAGESIZE)))
        made.books.close(url, exact=True, settled=True)
        waiting = set(made.books.waiting)
        if not waiting:
            made.books.problems.append("the budget was enough for all")
        more = [
            replace(share, contexts=[c for c in share.contexts if c in waiting])
            for share in made.shares(limit=turns * _PLENTY)
        ]
        made.phase(more)
        made.books.close(url, exact=True, settled=True)
        if made.books.waiting:
            made.books.problems.append(f"these wait, with enough for all: {made.books.waiting}")
    return tally


def _limit(turns: int) -> int:
    return turns * _ENOUGH + 2 * _MAX_TOKENS


def _killed(store: str, turns: int, seed: int) -> Tally:
    """Kills at any moment and at the boundaries of a turn; others continue the turns."""
    tally = Tally(f"kills on one budget, {store}")
    rng = random.Random(seed)
    kills = max(2, turns // _TURNS_A_KILL)

    def ends() -> Iterator[Any]:
        for _ in range(kills):
            if rng.random() < 0.5:
                yield rng.random()
            else:
                yield f"{rng.choice(_FAILPOINTS)}:{rng.randint(1, max(1, turns // 16))}"

    with (
        place(store) as url,
        _judged(tally, url, seed, turns, _limit(turns)) as made,
    ):
        made.phase(made.shares(room_s=_ROOM_OF_DEAD_S), ends=ends())
        made.books.close(url, exact=False, settled=False)
        made.phase(made.shares(limit=turns * _PLENTY, twice=True))
        made.books.close(url, exact=False, settled=True)
        if made.books.waiting:
            made.books.problems.append(f"these wait, with enough for all: {made.books.waiting}")
        if not made.kills:
            tally.missed += turns
    return tally


def _without_server(turns: int, seed: int) -> Tally:
    """Stop the server at once and start it again, and cut connections, while turns run."""
    tally = Tally("stops of the server on one budget")
    rng = random.Random(seed)
    server = Server("synchronous_commit=on")
    stops = ended = 0
    longest_s = until = 0.0

    def disturb() -> None:
        nonlocal stops, ended, until, longest_s
        if time.monotonic() < until:
            return
        if rng.random() < 0.5:
            ended += len(ask(server.url("app"), _END_SOME))
        elif stops < max(1, turns // _TURNS_A_STOP):
            stops += 1
            began = time.monotonic()
            server.stop(signal.SIGQUIT)
            time.sleep(rng.random() * _AWAY_S)
            server.start()
            longest_s = max(longest_s, time.monotonic() - began)
        until = time.monotonic() + rng.random() * _LOAD_S

    try:
        server.start()
        ask(server.url("postgres"), "CREATE DATABASE app")
        with tempfile.TemporaryDirectory() as folder:
            run(partial(migrate.upgrade, server.url("app")), Path(folder) / "log")
        url = as_driver(server.url("app"), DRIVERS[0])
        with _judged(tally, url, seed, turns, _limit(turns)) as made:
            shares = [
                replace(one, url=as_driver(plain(one.url), DRIVERS[one.number % 2]))
                for one in made.shares(longest_s=_LONGEST_BESIDE_S)
            ]
            until = time.monotonic() + rng.random() * _LOAD_S
            made.phase(shares, meanwhile=disturb)
            short = longest_s < PATIENCE_S / 2  # then everything is settled all the same
            made.books.close(url, exact=short, settled=short)
            made.phase(made.shares(limit=turns * _PLENTY, twice=True))
            made.books.close(url, exact=False, settled=True)
        tally.notes.append(f"{stops} stops, {longest_s:.1f} s at most; {ended} connections ended")
    finally:
        server.remove()
    return tally


TRIALS = [
    *(Trial(f"turns on one budget, {one}", 1000, partial(_together, one)) for one in STORES),
    *(Trial(f"kills on one budget, {one}", 1000, partial(_killed, one)) for one in STORES),
    Trial("stops of the server on one budget", 1000, _without_server),
]


@contextlib.contextmanager
def _unlimited() -> Iterator[None]:
    """Reserve without looking at the limit."""
    with broken(spending, "check_room", lambda _: lambda *_args: None):
        yield


@contextlib.contextmanager
def _twice() -> Iterator[None]:
    """Give back what is left of a reservation, and once more."""

    def twice(exchange: Any) -> Any:
        def change(*args: Any) -> Any:
            yield from exchange(*args)
            yield from exchange(*args[:2], NOTHING)

        return change

    with broken(spending, "_exchange", twice):
        yield


@contextlib.contextmanager
def _free_kills() -> Iterator[None]:
    """Give back what a dead process had reserved."""

    def free(exchange: Any) -> Any:
        return lambda key, row, used: exchange(key, row, NOTHING if "place" in key else used)

    with broken(spending, "_exchange", free):
        yield


@contextlib.contextmanager
def _open() -> Iterator[None]:
    """Make the call if the accounts cannot be read."""

    def open_(reserve: Any) -> Any:
        async def attempt(*args: Any, **named: Any) -> None:
            with contextlib.suppress(StoreUnavailable):
                await reserve(*args, **named)

        return attempt

    impatient = {"bring_to_head": None, "patience_s": 0.0}
    with (
        broken(SQLSpending, "reserve", open_),
        broken(PostgresDriver.__init__, "__kwdefaults__", lambda _: impatient),
    ):
        yield


WRONG = [
    wrong(TRIALS[0], "no comparison", _unlimited),
    wrong(TRIALS[0], "refunds twice", _twice),
    wrong(TRIALS[len(STORES)], "refunds the dead", _free_kills),
    wrong(TRIALS[-1], "goes on without the store", _open),
]
