"""`looopy contexts delete` and `retain`: erase conversations, and report what is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from looopy.cli.conversations.base import Conversations
from looopy.cli.conversations.database import existing
from looopy.cli.data_folder import default_url
from looopy.cli.render import counted, json_line
from looopy.cli.terminal import Terminal
from looopy.errors import AgentBusy, ConfigurationError, ContextNotFound
from looopy.stores.bundle import Stores
from looopy.stores.rules import check_context_id

_SHOWN = 20
_KINDS = ("turns", "messages", "events", "artifacts", "inbox", "keys", "blobs", "bytes", "backups")


async def delete_contexts(
    place: Conversations,
    terminal: Terminal,
    *,
    context_ids: Sequence[str],
    person: str | None,
    agreed: bool,
    as_json: bool,
    **options: bool,
) -> int:
    """
    Erase conversations, or everything of a person.

    A conversation that does not exist, or is busy, is an error line and the status 1. The others
    are erased all the same, so that a second run ends the work of one that was killed.

    Args:
        options: See `Conversations.erase`.

    Raises:
        ConfigurationError: Neither is named, or both, or there is no person to agree to it.
    """
    for name in context_ids:
        check_context_id(name)
    if bool(context_ids) == (person is not None):
        raise ConfigurationError("name conversations, or a person with --person")
    if person is not None:
        if not (
            agreed or agrees(terminal, f"Erase everything of {person!r} {place.where} for good?")
        ):
            return 1
        _show(terminal, await place.erase_person(person, **options), as_json=as_json)
        return 0
    refused = []
    there = []
    for name in context_ids:
        try:
            there.append((await place.context(name))["context_id"])
        except ContextNotFound:
            refused.append(f"there is no conversation {name!r} {place.where}")
    question = f"Erase {', '.join(there)} {place.where} for good?"
    if there and not (agreed or agrees(terminal, question)):
        return 1
    found: list[Mapping[str, Any]] = []
    try:
        for name in there:
            try:
                found.append(await place.erase(name, **options))
            except AgentBusy:
                refused.append(f"a turn is running in {name!r}: wait for it, or pass --force")
    finally:  # also if the place fails in between: these are gone
        if found:
            _show(terminal, _together(found), as_json=as_json)
    for line in refused:
        terminal.error(line)
    return 1 if refused else 0


async def retain_contexts(
    url: str | None, *, agreed: bool, dry_run: bool, as_json: bool, **limits: Any
) -> int:
    """
    Erase conversations that are too old, or too much.

    Raises:
        ConfigurationError: Neither age nor size is given, or there is no person to agree to it.
    """
    if limits.get("older_than") is None and limits.get("larger_than") is None:
        raise ConfigurationError("name what may go: --older-than AGE, or --larger-than SIZE")
    terminal = Terminal(quiet_out=True)
    async with existing(url or default_url()) as stores:
        if not (dry_run or agreed) and not await _agrees_to(terminal, stores, limits):
            return 1
        found = await stores.contexts.retain(**limits, dry_run=dry_run)
    _show(terminal, asdict(found), as_json=as_json)
    return 0


async def _agrees_to(terminal: Terminal, stores: Stores, limits: Mapping[str, Any]) -> bool:
    would_go = await stores.contexts.retain(**limits, dry_run=True)
    if not would_go.contexts:
        return True
    for line in _lines(asdict(would_go)):
        terminal.notice(line)
    return agrees(terminal, f"Erase {counted(would_go.contexts, 'conversation')} for good?")


def agrees(terminal: Terminal, question: str) -> bool:
    """
    True if the person at the terminal agrees.

    Raises:
        ConfigurationError: There is no person.
    """
    if not terminal.has_person:
        raise ConfigurationError("the question needs a terminal: pass --yes to erase without it")
    said = terminal.read_line(f"{question} [y/N] ") or ""
    if said.strip().lower() in ("y", "yes"):
        return True
    terminal.notice("Nothing was erased.")
    return False


def _together(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    sums = {kind: sum(one[kind] for one in found) for kind in _KINDS if kind in found[0]}
    ids = [name for one in found for name in one["context_ids"]]
    return {**found[-1], **sums, "context_ids": ids}


def _show(terminal: Terminal, found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.raw_line(json_line({"contexts": len(found["context_ids"]), **found}))
        return
    for line in _lines(found):
        terminal.line(line)


def _lines(found: Mapping[str, Any]) -> list[str]:
    """The report for people: the ids, a table, and what is left."""
    ids = found["context_ids"]
    lines = [f"  {name}" for name in ids[:_SHOWN]]
    if len(ids) > _SHOWN:
        lines.append(f"  and {len(ids) - _SHOWN:,} more")
    lines += [f"{kind:<10}{found[kind]:>15,}" for kind in _KINDS if found.get(kind)]
    did = "Would erase" if found.get("dry_run") else "Erased"
    lines.insert(0, f"{did} {counted(len(ids), 'conversation')}{':' if lines else '.'}")
    return [*lines, *(f"kept the backup {copy}" for copy in found.get("backups_left", ()))]
