"""`looopy contexts delete` and `retain`: erase conversations, and say what is gone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from looopy.cli.contexts import existing
from looopy.cli.paths import default_url, shown_place
from looopy.cli.render import counted, json_line
from looopy.cli.terminal import Terminal
from looopy.errors import AgentBusy, ConfigurationError
from looopy.stores.bundle import Stores
from looopy.stores.contexts.erasing import Erased
from looopy.stores.rules import check_context_id

_SHOWN = 20
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_KINDS = ("turns", "messages", "events", "artifacts", "inbox", "keys", "blobs", "bytes", "backups")


@dataclass(frozen=True)
class _Given:
    """The options of `delete`."""

    url: str
    force: bool
    keep_backups: bool
    agreed: bool
    as_json: bool

    @property
    def options(self) -> dict[str, Any]:
        """Those of the stores."""
        return {"force": self.force, "keep_backups": self.keep_backups}

    def may_erase(self, terminal: Terminal, what: str) -> bool:
        """True if the user has agreed, or agrees now."""
        question = f"Erase {what} in {shown_place(self.url)} for good?"
        return self.agreed or agrees(terminal, question)


def age(text: str) -> timedelta:
    """A time span from text such as `90d`, or `ArgumentTypeError`."""
    found = re.fullmatch(r"([0-9]{1,6})([hdwy])", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: use 12h, 90d, 8w or 2y")
    return timedelta(hours=int(found[1]) * _HOURS[found[2]])


def size(text: str) -> int:
    """A number of bytes from text such as `500MB`, or `ArgumentTypeError`."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?b|)", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: use 1000000, 500MB or 2GB")
    return int(found[1]) * _BYTES[found[2] if found[2] != "b" else ""]


async def delete_contexts(
    url: str | None,
    context_ids: Sequence[str],
    person: str | None,
    *,
    force: bool,
    keep_backups: bool,
    agreed: bool,
    as_json: bool,
) -> int:
    """
    Erase conversations, or everything of a person.

    A conversation that does not exist, or is busy, is an error line and the status 1. The others
    are erased all the same, so that a second run ends the work of one that was killed.

    Raises:
        ConfigurationError: Neither is named, or both, or nobody can agree to it.
    """
    for name in context_ids:
        check_context_id(name)
    if bool(context_ids) == (person is not None):
        raise ConfigurationError("name conversations, or a person with --person")
    given = _Given(url or default_url(), force, keep_backups, agreed, as_json)
    return await (
        _delete_named(given, context_ids) if person is None else _delete_person(given, person)
    )


async def retain_contexts(
    url: str | None, *, agreed: bool, dry_run: bool, as_json: bool, **limits: Any
) -> int:
    """
    Erase conversations that are too old, or too much.

    Raises:
        ConfigurationError: Neither age nor size is given, or nobody can agree to it.
    """
    if limits.get("older_than") is None and limits.get("larger_than") is None:
        raise ConfigurationError("say what may go: --older-than AGE, or --larger-than SIZE")
    terminal = Terminal(quiet_out=True)
    async with existing(url or default_url()) as stores:
        if not (dry_run or agreed) and not await _agrees_to(terminal, stores, limits):
            return 1
        found = await stores.contexts.retain(**limits, dry_run=dry_run)
    _tell(terminal, found, as_json=as_json)
    return 0


async def _delete_person(given: _Given, person: str) -> int:
    terminal = Terminal(quiet_out=True)
    async with existing(given.url) as stores:
        if not given.may_erase(terminal, f"everything of {person!r}"):
            return 1
        try:
            found = await stores.contexts.erase_person(person, **given.options)
        except AgentBusy as error:
            said = error.message.replace("force=True", "--force")
            raise AgentBusy(said, turn=error.turn) from None
    _tell(terminal, found, as_json=given.as_json)
    return 0


async def _delete_named(given: _Given, names: Sequence[str]) -> int:
    terminal = Terminal(quiet_out=True)
    found: list[Erased] = []
    async with existing(given.url) as stores:
        there = [name for name in names if await stores.state.load(name) is not None]
        place = shown_place(given.url)
        missing = [name for name in names if name not in there]
        refused = [f"there is no conversation {name!r} in {place}" for name in missing]
        if there and not given.may_erase(terminal, ", ".join(there)):
            return 1
        try:
            for name in there:
                try:
                    found.append(await stores.contexts.erase(name, **given.options))
                except AgentBusy:
                    refused.append(f"a turn is running in {name!r}: wait for it, or pass --force")
        finally:  # also if the store fails in between: these are gone
            if found:
                _tell(terminal, _together(found), as_json=given.as_json)
    for line in refused:
        terminal.error(line)
    return 1 if refused else 0


async def _agrees_to(terminal: Terminal, stores: Stores, limits: Mapping[str, Any]) -> bool:
    would_go = await stores.contexts.retain(**limits, dry_run=True)
    if not would_go.contexts:
        return True
    for line in _lines(would_go):
        terminal.notice(line)
    return agrees(terminal, f"Erase {counted(would_go.contexts, 'conversation')} for good?")


def agrees(terminal: Terminal, question: str) -> bool:
    """
    True if the person at the terminal says yes.

    Raises:
        ConfigurationError: There is no person.
    """
    if not terminal.has_person:
        raise ConfigurationError("nobody is there to agree: pass --yes to erase without a question")
    said = terminal.read_line(f"{question} [y/N] ") or ""
    if said.strip().lower() in ("y", "yes"):
        return True
    terminal.notice("Nothing was erased.")
    return False


def _together(found: Sequence[Erased]) -> Erased:
    told = [asdict(one) for one in found]
    sums: dict[str, Any] = {kind: sum(one[kind] for one in told) for kind in _KINDS}
    return Erased(
        **sums,
        context_ids=tuple(name for one in found for name in one.context_ids),
        backups_left=found[-1].backups_left if found else (),
    )


def _tell(terminal: Terminal, found: Erased, *, as_json: bool) -> None:
    if as_json:
        terminal.raw_line(json_line({"contexts": found.contexts, **asdict(found)}))
        return
    for line in _lines(found):
        terminal.line(line)


def _lines(found: Erased) -> list[str]:
    """The report for people: the ids, a table, and what is left."""
    lines = [f"  {name}" for name in found.context_ids[:_SHOWN]]
    if found.contexts > _SHOWN:
        lines.append(f"  and {found.contexts - _SHOWN:,} more")
    told = asdict(found)
    lines += [f"{kind:<10}{told[kind]:>15,}" for kind in _KINDS if told[kind]]
    did = "Would erase" if found.dry_run else "Erased"
    lines.insert(0, f"{did} {counted(found.contexts, 'conversation')}{':' if lines else '.'}")
    return [*lines, *(f"kept the backup {copy}" for copy in found.backups_left)]
