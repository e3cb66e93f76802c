"""
`looopy replay`: run a stored turn again, answered from its log, or for real in a fork beside it.

The status is 0 if the replay is the same turn, 1 if something differs, 2 for wrong usage
or if there is no such turn.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from looopy.cli.conversations.database import existing
from looopy.cli.data_folder import default_url
from looopy.cli.factories import load_factory
from looopy.cli.render import counted, json_line
from looopy.cli.terminal import Terminal, one_line, safe_text
from looopy.errors import ConfigurationError, ValueRefused
from looopy.replay import (
    Beside,
    Recording,
    Replayed,
    read_recording,
    replay,
    run_beside,
    scrub,
)
from looopy.replay.beside import built
from looopy.stores.bundle import Stores
from looopy.types.message import AssistantMessage, Message

_DIFFERS: Final = 1
_LEAST_WIDTH: Final = 24
_MOST_CHARS: Final = 2000
_TEST: Final = """\
{path}from {module} import {name}
from looopy.testing.replays import replay_turn  # noqa: F401 - a fixture


def test_{what}(replay_turn):  # noqa: F811
    replay_turn("{file}", {name}).check()
"""
_PATH: Final = """\
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "{folder}"))

# ruff: noqa: E402 - the application is found by the line above
"""


async def replay_turn(
    url: str | None,
    context_id: str,
    turn: int | None,
    *,
    factory: str | None,
    ignore: Collection[str],
    save: str | None,
    scrubbed: bool,
    fork: str | None,
    as_json: bool,
) -> int:
    """
    Replay a turn, print the first difference, and write its recording if asked to.

    Args:
        turn: Its number; `None`: the last one.
        factory: `MODULE:FACTORY` of the application; `None`: only the loop is compared.
        save: The file for the recording; a test is written beside it if there is a factory.
        fork: Run the turn for real in a fork of this name instead; empty: any name.

    Raises:
        ConfigurationError: The factory cannot be used, or the file exists.
        ValueRefused: There is no such conversation or turn, or it cannot be replayed.
    """
    terminal = Terminal(quiet_out=True)
    build = None if factory is None else load_factory(factory)
    target = None if save is None else _free(Path(save))
    if fork is not None and build is None:
        raise ConfigurationError("--fork runs the turn with an agent: pass --agent MODULE:FACTORY")
    async with existing(url or default_url()) as stores:
        recording = await _recording(stores, context_id, turn)
        if fork is not None and build is not None:
            beside = await run_beside(stores, recording, build, context_id=fork or None)
            _show_beside(terminal, beside, as_json=as_json)
            return 0
        kept = scrub(recording) if scrubbed else recording
        agent = None if build is None else await built(build, context_id, stores)
        found = await replay(kept, agent, ignore=ignore)
    if target is not None:
        _save(terminal, target, kept, factory)
    _show(terminal, found, as_json=as_json)
    return 0 if found.difference is None else _DIFFERS


async def _recording(stores: Stores, context_id: str, turn: int | None) -> Recording:
    record = await stores.state.load(context_id)
    if record is None:  # no ContextNotFound: its status, 1, means that something differs
        raise ValueRefused(f"there is no conversation {context_id!r}", path="/context_id")
    return await read_recording(stores, context_id, record.turn_count if turn is None else turn)


def _free(path: Path) -> Path:
    if path.suffix != ".json":
        raise ConfigurationError(f"--save takes a file that ends in .json, not {path}")
    for one in (path, _test_of(path)):
        if one.exists():
            raise ConfigurationError(f"{one} exists: name another file with --save")
    return path


def _test_of(path: Path) -> Path:
    return path.with_name(f"test_{_word(path.stem)}.py")


def _word(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text) or "turn"


def _save(terminal: Terminal, path: Path, recording: Recording, factory: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recording.to_json(), encoding="utf-8")
    terminal.notice(f"The recording is in {path}.")
    if factory is None:
        return
    module, _, name = factory.rpartition(":")
    way = ""
    if module.endswith(".py"):
        application = Path(module).resolve()
        folder = Path(os.path.relpath(application.parent, path.parent.resolve())).as_posix()
        module, way = application.stem, _PATH.format(folder=folder)
    if not all(part.isidentifier() for part in module.split(".")):
        terminal.notice(f"No test is written: {module!r} cannot be imported by this name.")
        return
    name = name.partition(".")[0]
    what = _word(path.stem)
    test = _TEST.format(path=way, module=module, name=name, what=what, file=path.name)
    _test_of(path).write_text(test, encoding="utf-8")
    terminal.notice(f"A test of it is in {_test_of(path)}: run it with pytest.")


def _show(terminal: Terminal, found: Replayed, *, as_json: bool) -> None:
    recording, difference = found.recording, found.difference
    if as_json:
        said = None if difference is None else asdict(difference)
        facts = {
            "context_id": recording.context_id,
            "turn": recording.turn,
            "difference": said,
            "gone": list(found.gone),
            "left_out": list(found.left_out),
        }
        terminal.raw_line(json_line(facts))
        return
    for sentence in found.left_out:
        terminal.notice(f"Not compared: {sentence}.")
    if difference is None:
        messages = counted(len(recording.messages), "message")
        terminal.line(f"Turn {recording.turn} is the same: {messages}, {recording.outcome}.")
    else:
        terminal.line(f"Turn {recording.turn} differs first in {difference}")
    if found.gone:
        terminal.line(f"Tools that are gone: {', '.join(found.gone)}")


def _show_beside(terminal: Terminal, beside: Beside, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "context_id": beside.context_id,
            "then": [_plain(one.message) for one in beside.then.messages],
            "now": [_plain(one.message) for one in beside.now.messages],
        }
        terminal.raw_line(json_line(facts))
        return
    width = max(_LEAST_WIDTH, (shutil.get_terminal_size().columns - 3) // 2)
    for line in columns(beside.then, beside.now, width):
        terminal.line(line)
    terminal.notice(f"The new turn is in the conversation {beside.context_id}.")


def _plain(message: Message) -> dict[str, Any]:
    return {"role": message.role, "text": _said(message)}


def columns(then: Recording, now: Recording, width: int) -> Iterator[str]:
    """The lines of two turns side by side, each *width* characters wide; `|` where they differ."""
    yield f"{'then':<{width}}   now"
    yield f"{'-' * width}   {'-' * width}"
    for one, other in zip_longest(_blocks(then), _blocks(now), fillvalue=""):
        mark = " " if one == other else "|"
        pairs = zip_longest(_wrapped(one, width), _wrapped(other, width), fillvalue="")
        for left, right in pairs:
            yield f"{left:<{width}} {mark} {right}".rstrip()


def _blocks(recording: Recording) -> Iterator[str]:
    for one in recording.messages:
        yield f"{one.message.role}: {_said(one.message)}"
    yield f"{recording.outcome} ({recording.stop_reason})"


def _said(message: Message) -> str:
    calls: Sequence[str] = ()
    if isinstance(message, AssistantMessage):
        calls = [f"[{c.name} {json_line(dict(c.arguments))}]" for c in message.tool_calls]
    return " ".join((message.text[:_MOST_CHARS], *calls)).strip()


def _wrapped(text: str, width: int) -> list[str]:
    lines = [one for line in safe_text(text).splitlines() for one in textwrap.wrap(line, width)]
    return lines or [one_line(text, width)]
