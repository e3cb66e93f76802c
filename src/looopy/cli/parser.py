"""The parser of arguments, made of the table in `options`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from looopy.cli.options import COMMANDS, PARAMETERS, PLACES, Command, Group

_ENTRY: Final = re.compile(
    r"(?P<flags>--[a-z,-]+)?\s*(?P<optional>\[)?(?P<value>[^\s\]]+)?(?P<many> \.\.\.)?\]?"
    r"(?: = (?P<default>\S+))?(?P<required> required)?"
)
_COUNTS: Final[Mapping[tuple[str | None, str | None], str | None]] = {
    (None, None): None,
    ("[", None): "?",
    (None, " ..."): "+",
    ("[", " ..."): "*",
}
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}
_BYTES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the program; `parse_args` gives the chosen `Command` as `command`."""
    parser = argparse.ArgumentParser(
        prog="looopy",
        description="Conversations with models that outlive their process.",
        epilog="`looopy COMMAND --help` shows the options of a command, and examples.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.set_defaults(command=None)
    _add_commands(parser, COMMANDS, title="commands", metavar="COMMAND")
    return parser


class _Help(argparse.HelpFormatter):
    """Keeps the lines of the paragraph of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        filled = super()._fill_text
        return "\n\n".join(
            p if p.startswith("examples:") else filled(p, width, indent) for p in paragraphs
        )


def _add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, Command | Group], **options: Any
) -> None:
    actions = parser.add_subparsers(**options)
    for name, one in commands.items():
        if isinstance(one, Group):
            about = f"{one.summary[0].upper()}{one.summary[1:]}."
            group = actions.add_parser(name, help=one.summary, description=about)
            _add_commands(group, one.commands, metavar="ACTION", required=True)
        else:
            _add_options(_added(actions, name, one), one)


def _added(actions: Any, name: str, one: Command) -> argparse.ArgumentParser:
    about = one.about or f"{one.summary[0].upper()}{one.summary[1:]}."
    lines = "\n  ".join(one.examples)
    after = "\n\n".join(filter(None, (one.after, f"examples:\n  {lines}")))
    added: argparse.ArgumentParser = actions.add_parser(
        name, help=one.summary, description=about, epilog=after, formatter_class=_Help
    )
    added.set_defaults(command=one)
    return added


def _add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    for entry, about in {**command.options, **PLACES[command.place]}.items():
        if (found := _ENTRY.fullmatch(entry)) is None:
            raise ValueError(f"the table of options has {entry!r}")
        flags, value, default = found["flags"], found["value"] or "", found["default"]
        more: dict[str, Any] = {"help": about or None, "default": default}
        if value.startswith("{"):
            more["choices"] = value[1:-1].split(",")
        elif value:
            more |= {"metavar": value, "type": READERS.get(value, str)}
        if flags is None:
            more["nargs"] = _COUNTS[found["optional"], found["many"]]
            parser.add_argument(PARAMETERS.get(entry, value.lower()), **more)
            continue
        first = flags.partition(",")[0]
        name = PARAMETERS.get(entry, PARAMETERS.get(first, first[2:].replace("-", "_")))
        if not value:
            off = name.startswith("no_")
            more |= {"action": "store_false" if off else "store_true", "default": off}
            name = name.removeprefix("no_")
        elif found["many"]:
            more |= {"action": "append", "default": []}
        elif found["optional"]:
            more |= {"nargs": "?", "const": ""}
        if found["required"]:
            more["required"] = True
        parser.add_argument(*flags.split(","), dest=name, **more)


# --- values ------------------------------------------------------------------------------------


def _message(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the message is empty")
    return text


def _day(text: str) -> Any:
    from datetime import date  # not for `looopy --help`

    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-23") from None


def _age(text: str) -> Any:
    from datetime import timedelta  # as above

    found = re.fullmatch(r"([0-9]{1,6})([hdwy])", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: use 12h, 90d, 8w or 2y")
    return timedelta(hours=int(found[1]) * _HOURS[found[2]])


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?b|)", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: use 1000000, 500MB or 2GB")
    return int(found[1]) * _BYTES[found[2]]


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "N": int,
    "POSITION": int,
    "SEQ": int,
    "SECONDS": float,
    "MESSAGE": _message,
    "DATE": _day,
    "AGE": _age,
    "SIZE": _size,
}
"""The reader of a value, by its name in the table; any other value is a text."""
