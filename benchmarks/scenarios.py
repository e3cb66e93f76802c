"""
Run the scenarios S1 to S8 on a subject and a store, each in a process of its own.

Every turn's answer is checked, and the store is read back: `messages_missing` counts lost messages.
CPU is that of this process with all its threads, without that of a Postgres server.
"""

import asyncio
import gc
import math
import resource
import sqlite3
import statistics
import time
from collections.abc import Callable

from benchmarks.subjects import Looopy, OverHTTP, Subject
from benchmarks.workload import ANSWER, jwt, question

Make = Callable[[], Subject]
Figures = dict[str, float]


async def timed(
    subject: Subject, context: str, count: int, *, start: int = 0, limit_s: float = 60.0
) -> tuple[list[float], list[float]]:
    """Seconds of wall and of CPU of each turn; fewer turns when they take too long."""
    wall, cpu = [], []
    until = time.perf_counter() + limit_s
    for number in range(start, start + count):
        began, spent = time.perf_counter(), time.process_time()
        answer = await subject.turn(context, question(number))
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - began)
        assert answer == ANSWER
        if time.perf_counter() > until:
            break
    return wall, cpu


def peak_mib() -> float:
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def text_turns(make: Make, *, tool: bool = False) -> Figures:
    """S1 and S2: 200 turns on one context, or 100 that call a tool."""
    subject = make()
    subject.model.calls_tool = tool
    await subject.open()
    await timed(subject, "warm", 3)
    count, each = (100, 4) if tool else (200, 2)
    wall, cpu = await timed(subject, "chat", count)
    done = len(wall)
    missing = each * done - await subject.count("chat")
    await subject.close()
    return {
        "turns_per_s": done / sum(wall),
        "wall_ms_per_turn": statistics.median(wall) * 1e3,
        "client_cpu_ms_per_turn": sum(cpu) / done * 1e3,
        "growth": statistics.median(cpu[-20:]) / statistics.median(cpu[:20]),
        "messages_missing": missing,
    }


async def tool_turns(make: Make) -> Figures:
    """S2."""
    return await text_turns(make, tool=True)


async def turns_with_jwt(url: str, count: int = 300) -> Figures:
    """S1 with a token of 1,500 characters, in the code of an application and over HTTP."""
    found: Figures = {}
    for kind, where in ((Looopy, ""), (OverHTTP, "_by_http")):
        subject = kind(url)
        await subject.open()
        spent: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * count):  # in turns: the machine is as busy for the one as the other
            token = number % 2 == 1
            subject.credentials = {"token": jwt(number)} if token else {}
            _, cpu = await timed(subject, f"jwt{where}-{token}", 1, start=number)
            spent[token] += cpu
        await subject.close()
        plain, with_jwt = (statistics.median(spent[token]) for token in (False, True))
        found[f"client_cpu_ms_per_turn{where}"] = with_jwt * 1e3
        found[f"cpu_with_jwt_to_without{where}"] = with_jwt / plain
    return found


async def fill(make: Make, count: int) -> Figures:
    """Store messages in the context `old`, for those that open it."""
    subject = make()
    await subject.open()
    await subject.fill("old", count)
    await subject.close()
    return {}


async def resume(make: Make, count: int) -> Figures:
    """S3: open a context with many messages; the model sees them all, or the window."""
    gc.collect()
    subject = make()
    began = time.perf_counter()
    await subject.open()
    await subject.turn("old", question(1))
    first = subject.model.first_call_at or began
    cold_ms = (first - began) * 1e3
    seen = subject.model.seen
    began, spent = time.perf_counter(), time.process_time()
    await subject.turn("old", question(2))
    second_ms, second_cpu_ms = [
        (now - then) * 1e3
        for now, then in ((time.perf_counter(), began), (time.process_time(), spent))
    ]
    peak = peak_mib()
    await subject.close()
    again = make()  # no lazy imports, no first use
    gc.collect()
    began, spent = time.perf_counter(), time.process_time()
    await again.open()
    await again.turn("old", question(3))
    warm_cpu_ms = (time.process_time() - spent) * 1e3
    warm_ms = ((again.model.first_call_at or began) - began) * 1e3
    await again.close()
    return {
        f"resume_first_llm_call@{count}": cold_ms,
        f"warm_resume_first_llm_call@{count}": warm_ms,
        f"warm_resume_turn_cpu@{count}": warm_cpu_ms,
        f"second_turn@{count}": second_ms,
        f"second_turn_cpu@{count}": second_cpu_ms,
        f"model_saw@{count}": seen,
        f"peak_rss@{count}": peak,
    }


def stored_bytes(path: str) -> tuple[int, int]:
    """The used pages of a SQLite file, and the bodies of the messages in it, both in bytes."""
    database = sqlite3.connect(path)
    try:
        pages, free, size = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        ours = database.execute("PRAGMA table_info(looopy_messages)").fetchall()
        table = "looopy_messages" if ours else "said"
        bodies = database.execute(f"SELECT sum(length(CAST(body AS BLOB))) FROM {table}")
        return (pages - free) * size, bodies.fetchone()[0] or 0
    finally:
        database.close()


async def storage(make: Make, path: str, turns: int) -> Figures:
    """S4: what so many turns leave in a SQLite file."""
    subject = make()
    await subject.open()
    empty, _ = stored_bytes(path)
    wall, _ = await timed(subject, "chat", min(200, turns))
    early, _ = stored_bytes(path)
    if turns > 200:
        more, _ = await timed(subject, "chat", turns - 200, start=200, limit_s=600)
        wall += more
    done = len(wall)
    missing = 2 * done - await subject.count("chat")
    await subject.close()
    end, bodies = stored_bytes(path)
    return {
        "turns_done": done,
        "bytes_at_200": early,
        "bytes_per_msg_at_end": (end - empty) / (2 * done),
        "bytes_over_bodies": (end - empty) / bodies,
        "bytes_exponent": (
            math.log((end - empty) / max(1, early - empty)) / math.log(done / 200)
            if done > 200
            else 1.0
        ),
        "messages_missing": missing,
    }


async def concurrent(make: Make, contexts: int = 64, turns: int = 20) -> Figures:
    """S5: many contexts at once."""
    subject = make()
    await subject.open()
    await timed(subject, "warm", 3)
    done = [0] * contexts
    errors = 0

    async def one(number: int) -> None:
        nonlocal errors
        for turn in range(turns):
            try:
                await subject.turn(f"context-{number}", question(turn))
                done[number] += 1
            except Exception:  # noqa: BLE001 - how many is what is asked
                errors += 1

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(one, range(contexts)))
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    kept = sum([await subject.count(f"context-{number}") for number in range(contexts)])
    await subject.close()
    return {
        "turns_per_s": sum(done) / wall,
        "client_cpu_ms_per_turn": cpu / sum(done) * 1e3,
        "errors": errors,
        "messages_missing": 2 * sum(done) - kept,
    }


async def deltas(make: Make, count: int = 5000) -> Figures:
    """S6: one answer in many deltas, to one reader and to three."""
    subject = make()
    await subject.open()
    subject.model.deltas = 50
    await subject.stream("warm", question(0))
    subject.model.deltas = count
    figures: Figures = {}
    for readers in (1, 3):
        runs = []
        for number in range(5):
            gc.collect()
            began, spent = time.perf_counter(), time.process_time()
            got = await subject.stream(f"stream-{readers}-{number}", question(0), readers)
            runs.append((time.process_time() - spent, time.perf_counter() - began, got))
        cpu, wall, got = sorted(runs)[2]
        name = "" if readers == 1 else "_3_readers"
        figures |= {
            f"deltas_per_s{name}": got / wall,
            f"cpu_us_per_delta{name}": cpu / count * 1e6,
            f"deltas_merged{name}": count - got,
        }
    await subject.close()
    return figures


async def two_workers(make: Make, turns: int = 10) -> Figures:
    """S8: two workers take turns on one context at once, and open it anew each time."""
    first, second, third = make(), make(), make()
    await first.open()
    await first.turn("shared", question(0))
    await second.open()
    done, refused = 1, 0

    async def work(worker: Subject, number: int) -> None:
        nonlocal done, refused
        worker.model.latency_s = 0.005
        for turn in range(turns):
            worker.forget("shared")
            try:
                await worker.turn("shared", question(100 * number + turn))
                done += 1
            except Exception:  # noqa: BLE001 - how many is what is asked
                refused += 1

    await asyncio.gather(work(first, 1), work(second, 2))
    await first.close()
    await second.close()
    await third.open()
    missing = 2 * done - await third.count("shared")
    await third.close()
    return {"turns_acknowledged": done, "turns_refused": refused, "messages_missing": missing}
