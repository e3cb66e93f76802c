"""
Replay each turn that the tests of `tests/agent` store.

    python -m tests.campaign.replays                      all of tests/agent
    python -m tests.campaign.replays tests/agent/turns    some of it

The tests break, cancel and race turns in every way that their authors thought of, and none of them
knows of this: a turn is read from its store when it ends, and replayed after its test. Turns that
another process broke off are read when the next turn of their context ends.

Each turn is replayed without an agent, with the agent that ran it, and with the contents of its
recording replaced: these must be the same. Then its prompt has one more sentence, and one value of
its recording is falsified (see `_FALSE`): both must be named as the first difference.

`MEANT` lists the tests whose turns rightly differ, each with its difference, which must occur.

The status is 1 if a verdict is another one, if a test fails, or if all of tests/agent had fewer
than 1,000 turns.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import looopy.replay.running as replaying
from looopy.agent.running import RunningTurn
from looopy.errors import StoreError, ValueRefused
from looopy.replay.recording import Recording, answers_of, read_recording
from looopy.replay.scrubbing import scrub
from looopy.stores.bundle import Stores
from looopy.tools.base import Tool
from looopy.types.message import AssistantMessage, StopReason, ToolResultMessage

_FILE = "LOOOPY_REPLAYS"
_LEAST = 1000
_EARLIER = 3  # turns before each one that are read, too, if nobody has
_PATIENCE_S = 60.0  # much, for a busy machine
_NOT_READ = "not read"
_WITH, _WITHOUT, _SCRUBBED = "with the agent", "without an agent", "without its contents"
_PROMPT = "the system prompt of the request differs from what was recorded"


@dataclasses.dataclass(frozen=True)
class Meant:
    """
    A test with turns that rightly differ when they are replayed.

    Attributes:
        test: The test, without its parameters.
        says: A part of each difference.
        why: A reason for people.
        who: The replays that differ.
    """

    test: str
    says: str
    why: str
    who: str = _WITH


MEANT = (
    Meant(
        "tests/agent/history/test_prompts.py::test_a_prompt_is_built_for_each_model_call",
        f"iteration 1: {_PROMPT}",
        "its prompt counts the model calls, and no number comes again",
    ),
    Meant(
        "tests/agent/history/test_cache_broken.py::test_changed_tools_prompt_and_model_are_named",
        f"iteration 1: {_PROMPT}",
        "it changes its prompt after the turn",
    ),
    Meant(
        "tests/agent/history/test_prompts.py::test_a_part_that_hangs_can_be_cancelled",
        "TimeoutError",
        "a function of its prompt never returns, and a replay calls it",
    ),
    Meant(
        "tests/agent/turns/test_budgets.py::test_no_turn_reads_those_before_it",
        "the model is called 1 times, and was called 0",
        "it writes a turn that has no answer",
        _WITHOUT,
    ),
    Meant(
        "tests/agent/history/test_prompts.py::test_parts_come_in_their_order",
        f"iteration 1: {_PROMPT}",
        "its prompt names the context, and a recording without contents does not",
        _SCRUBBED,
    ),
)


@dataclasses.dataclass
class _Turn:
    """A turn to replay; `making` is `None` if nobody knows the agent that ran it."""

    recording: Recording
    making: replaying.Making | None
    output_type: Any


_turns: list[_Turn] = []
_seen: set[tuple[str, int]] = set()
_process = os.getpid()


def pytest_configure() -> None:
    """Read turns from now on; pytest calls it for `-p tests.campaign.replays`."""
    run = RunningTurn.run

    async def read(turn: RunningTurn, before: Any) -> Any:
        result = await run(turn, before)
        if turn.setup.buffer is None and turn._log is not None and os.getpid() == _process:
            await _read(turn)
        return result

    RunningTurn.run = read  # type: ignore[method-assign]  # for this run alone


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Replay the turns of a test when it is over."""
    _turns.clear()
    _seen.clear()
    result = yield
    loop = asyncio.new_event_loop()
    try:
        for turn in _turns:
            loop.run_until_complete(_replay(item.nodeid, turn))
    finally:
        loop.close()
    return result


async def _read(turn: RunningTurn) -> None:
    setup, number = turn.setup, turn.turn
    making = replaying.Making(
        model=setup.provider,
        tools=tuple(setup.sources),
        system_prompt=setup.system_prompt,
        config=setup.config,
        auto_compact=setup.auto_compact,
    )
    context_id, stores = setup.known.context_id, _bare(setup.known.stores)
    kind = None if turn._log is None else turn._log.output_type
    _seen.add((context_id, number))
    try:
        _turns.append(_Turn(await read_recording(stores, context_id, number), making, kind))
        for earlier in range(max(1, number - _EARLIER), number):
            if (context_id, earlier) not in _seen:
                _seen.add((context_id, earlier))
                _turns.append(_Turn(await read_recording(stores, context_id, earlier), None, None))
    except (StoreError, ValueRefused, asyncio.CancelledError) as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        _note(test, _NOT_READ, type(error).__name__, named=True)


def _bare(stores: Stores) -> Stores:
    """*stores* without the spies that count their calls or make them fail."""
    parts = []
    for part in (stores.messages, stores.artifacts, stores.state, stores.journal):
        while type(part).__name__ == "_Proxy":
            part = part._inner  # type: ignore[attr-defined]  # noqa: PLW2901 - the spy's
        parts.append(part)
    return Stores(*parts, tenant=stores.tenant)


async def _replay(test: str, turn: _Turn) -> None:
    said = await _difference(turn, turn.recording, None)
    _note(test, _WITHOUT, said, named=said == "")
    if turn.making is None:
        return
    said = await _difference(turn, turn.recording, turn.making)
    _note(test, _WITH, said, named=said == "")
    if said:
        return  # a second difference is not looked for
    if turn.output_type is None:  # else the substitutes do not fit the type
        kept = Recording.from_json(scrub(turn.recording).to_json())
        said = await _difference(turn, kept, turn.making)
        _note(test, _SCRUBBED, said, named=said == "")
    if _knows_prompt(turn.recording, turn.making):
        making = dataclasses.replace(turn.making, system_prompt=_longer(turn.making.system_prompt))
        said = await _difference(turn, turn.recording, making)
        _note(test, "with another prompt", said, named=_PROMPT in said)
    number = zlib.crc32(f"{test} {turn.recording.turn}".encode())
    for i in range(len(_FALSE)):
        falsify = _FALSE[(number + i) % len(_FALSE)]
        made = falsify(turn)
        if made is not None:
            recording, kinds = made
            said = await _difference(turn, recording, turn.making)
            _note(test, f"falsified, {falsify.__name__[1:]}", said, named=said.startswith(kinds))
            return


async def _difference(turn: _Turn, recording: Recording, made: replaying.Making | None) -> str:
    """The first difference, or why there is no replay; empty: there is no difference."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await replaying.replay_made(recording, made, turn.output_type)
    except Exception as error:  # noqa: BLE001 - a finding
        return f"{type(error).__name__}: {error}"
    if found.difference is not None:
        return f"{found.difference.kind}, {found.difference}"
    return f"no difference, but without {', '.join(found.gone)}" if found.gone else ""


def _knows_prompt(recording: Recording, making: replaying.Making) -> bool:
    """True if the digest of the prompt is stored, and no source of tools adds to the prompt."""
    own = all(isinstance(one, Tool) for one in making.tools)
    return own and any(one.request for one in answers_of(recording))


def _longer(prompt: Any) -> Any:
    """*prompt* and one sentence more."""
    parts = [prompt] if isinstance(prompt, str) or callable(prompt) else prompt
    return [*parts, "Be brief."]


# Falsified recordings: each function returns one, and the beginnings of what must be said of it;
# `None` if the turn has no such part.
False_ = tuple[Recording, str | tuple[str, ...]]


def _lost_answer(turn: _Turn) -> False_ | None:
    """The last answer is lost: the model is called once more."""
    recording = turn.recording
    if not _complete(recording):
        return None
    return dataclasses.replace(recording, messages=recording.messages[:-1]), "request, the model is"


def _added_answer(turn: _Turn) -> False_ | None:
    """An answer is added that nobody asked for."""
    recording = turn.recording
    if not _complete(recording):
        return None
    messages = [*recording.messages, recording.messages[-1]]
    return dataclasses.replace(recording, messages=messages), "end, iteration"


def _other_end(turn: _Turn) -> False_ | None:
    """The turn ended by a filter."""
    if not _complete(turn.recording):
        return None
    end = StopReason.CONTENT_FILTER
    return dataclasses.replace(turn.recording, stop_reason=end), "end, the turn ends otherwise"


def _lost_result(turn: _Turn) -> False_ | None:
    """The last result of a turn is lost; one of an open call may have been given later."""
    recording = turn.recording
    asked = {
        call.id
        for one in recording.messages
        if isinstance(one.message, AssistantMessage)
        for call in one.message.tool_calls
    }
    places = [
        i
        for i, one in enumerate(recording.messages)
        if isinstance(one.message, ToolResultMessage) and one.message.tool_call_id in asked
    ]
    if not places or not _complete(recording):
        return None
    messages = list(recording.messages)
    del messages[places[-1]]
    return dataclasses.replace(recording, messages=messages), ("result, ", "message, ")


def _unfit_arguments(turn: _Turn) -> False_ | None:
    """A call that gave a result lacks its arguments."""
    recording = turn.recording
    needing = {
        one.name
        for one in (() if turn.making is None else turn.making.tools)
        if isinstance(one, Tool) and one.parameters.get("required")
    }
    gave = {
        one.message.tool_call_id
        for one in recording.messages
        if one.ran and isinstance(one.message, ToolResultMessage) and not one.message.is_error
    }
    for i, one in enumerate(recording.messages):
        if isinstance(one.message, AssistantMessage):
            for call in one.message.tool_calls:
                if call.name in needing and call.id in gave and call.arguments:
                    content = [
                        dataclasses.replace(block, arguments={}) if block is call else block
                        for block in one.message.content
                    ]
                    message = dataclasses.replace(one.message, content=tuple(content))
                    messages = list(recording.messages)
                    messages[i] = dataclasses.replace(one, message=message)
                    said = f"arguments, iteration {one.iteration}: {call.name!r} no longer takes"
                    return dataclasses.replace(recording, messages=messages), said
    return None


_FALSE = (_unfit_arguments, _lost_result, _other_end, _lost_answer, _added_answer)


def _complete(recording: Recording) -> bool:
    """True if an answer ended the turn."""
    last = recording.messages[-1].message if recording.messages else None
    return recording.stop_reason is StopReason.STOP and isinstance(last, AssistantMessage)


def _note(test: str, who: str, said: str, *, named: bool) -> None:
    """Write a verdict down; *named*: it is the right one."""
    facts = {"test": test, "who": who, "said": said, "named": named}
    with Path(os.environ[_FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def main(paths: list[str]) -> int:
    """Run the tests with this plugin, and count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "replays.jsonl"
        file.touch()
        os.environ[_FILE] = str(file)
        failed = pytest.main(
            ["-q", "-m", "", "-p", "tests.campaign.replays", *(paths or ["tests/agent"])]
        )
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    said, status = judged(found, MEANT, whole=not paths)
    print("\n".join(said))
    return int(bool(status or failed))


def judged(
    found: Sequence[Mapping[str, Any]], meant: Sequence[Meant], *, whole: bool
) -> tuple[list[str], int]:
    """
    The lines to print, and the status.

    Args:
        found: The verdicts: see `_note`.
        whole: All tests ran, so those that are meant to differ did, too.
    """
    kinds: collections.Counter[str] = collections.Counter()
    shown: dict[tuple[str, str], str] = {}
    ran, differed = set[str](), set[Meant]()
    for one in found:
        test, who, text = one["test"].partition("[")[0], one["who"], one["said"]
        plain = who in (_WITH, _WITHOUT, _SCRUBBED)
        ran.add(test)
        expected = [m for m in meant if (m.test, m.who) == (test, who) and m.says in text]
        if one["named"]:
            kinds[f"{who}: {'the same' if plain else text if who == _NOT_READ else 'named'}"] += 1
        elif expected:
            differed.update(expected)
            kinds[f"{who}: another, as it is meant"] += 1
        else:
            kinds[f"{who}: {'another' if plain else 'NOT named'}"] += 1
            shown.setdefault((test, who), f"\n{one['test']}, {who}\n{text or 'no difference'}")
    lines = [f"{count:7,} {kind}" for kind, count in sorted(kinds.items())]
    lines += shown.values()
    stale = [one for one in meant if one not in differed and (whole or one.test in ran)]
    lines += [f"\n{one.test}, {one.who}\nno turn differs as MEANT says" for one in stale]
    same = kinds[f"{_WITH}: the same"]
    few = whole and same < _LEAST
    if few:
        lines.append(f"\n{same:,} turns are the same, and {_LEAST:,} are wanted")
    return lines, int(bool(shown or stale or few))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
