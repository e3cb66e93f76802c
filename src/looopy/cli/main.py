"""
The program `looopy`: reads its arguments, runs one command, turns errors into a line and a status.

Each command is imported only when it runs, so that `looopy --help` loads next to nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from looopy.cli.options import Command
from looopy.cli.parser import make_parser

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the program.

    Args:
        argv: The arguments; by default the process's own.

    Returns:
        0 when all went well; 1 for a turn that did not complete, or an unknown conversation; 2 for
        wrong usage or configuration; 130 when Ctrl-C ended the program.
    """
    from looopy.cli.terminal import prepare_streams

    prepare_streams()
    parser = make_parser()
    if os.environ.get("LOOOPY_COMPLETE"):
        from looopy.cli.completion import candidates

        sys.stdout.writelines(f"{one}\n" for one in candidates(parser, argv or sys.argv[1:]))
        return 0
    options = vars(parser.parse_args(argv))
    if options.pop("version"):
        return _version()
    command: Command | None = options.pop("command")
    if command is None:
        parser.print_help()
        return USAGE
    debug = os.environ.get("LOOOPY_DEBUG", "") not in ("", "0")
    _prepare_logs(debug)
    try:
        status = _run(command, options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a line, not a traceback
        return _fail(error, debug)


def _run(command: Command, options: dict[str, Any]) -> int:
    """Run a command; each of *options* has the name of a parameter of its function."""
    from looopy.cli.conversations.opening import check_place, open_conversations

    check_place(command.place, options.get("url"), options.get("token"))
    module, _, name = command.run.partition(".")
    function = getattr(importlib.import_module(f"looopy.cli.{module}"), name)
    if command.place not in ("any", "server"):
        ended = function(**options)
        if isinstance(ended, int):
            return ended
    else:
        from looopy.cli.terminal import Terminal

        async def work() -> int:
            terminal = Terminal(quiet_out=True)
            url, token = options.pop("url"), options.pop("token")
            async with open_conversations(url, token, terminal) as place:
                status: int = await function(place, terminal, **options)
                return status

        ended = work()
    import asyncio  # not for `looopy --version`

    status: int = asyncio.run(ended)
    return status


def _version() -> int:
    from importlib.metadata import version

    from looopy.cli.terminal import Terminal

    Terminal().line(f"looopy {version('looopy')}")
    return 0


# --- how it ends -------------------------------------------------------------------------------


def _prepare_logs(debug: bool) -> None:
    """Let only errors of our own reach the terminal, unless the user asks for more."""
    import logging

    if debug:
        from looopy.cli.terminal import log_lines

        log_lines(logging.INFO, logging.BASIC_FORMAT)
    else:
        logging.getLogger().addHandler(logging.NullHandler())


def _fail(error: Exception, debug: bool) -> int:
    from looopy.cli.terminal import Terminal
    from looopy.errors import (
        ConfigurationError,
        LooopyError,
        SchemaOutOfDate,
        StoreUnavailable,
        ValueRefused,
    )

    if debug:
        import traceback

        traceback.print_exception(error)
    terminal = Terminal(quiet_out=True)
    if not isinstance(error, LooopyError):
        terminal.error(
            f"{type(error).__name__}: {error} - a mistake in looopy; LOOOPY_DEBUG=1 shows more"
        )
        return FAILED
    terminal.error(str(error))
    ours = (ConfigurationError, SchemaOutOfDate, StoreUnavailable, ValueRefused)
    return USAGE if isinstance(error, ours) else FAILED


def _forget_stdout() -> None:
    """Close standard output after its reader has gone, so that the rest is dropped, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
