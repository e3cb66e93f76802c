"""
`docs/cli.md`, made of the help texts of the program.

`python tests/docs/cli_page.py` writes it again; a test compares the two.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
COLUMNS = 100

HEAD = """\
<!-- Made by `python tests/docs/cli_page.py`; a test compares it with the program. -->
# Command line

The program `looopy` talks to models and maintains databases. Without `--db` it uses a file of your
own, in the folder that your system has for such data. `chat`, `contexts` and `budget show` work on
a [server](server.md#from-a-terminal) as well: `--server http://HOST:PORT`.

The exit status is 0 on success; 1 if a turn did not complete or something was not found; 2 for
wrong usage or configuration; and 130 if Ctrl-C ended the program. With `--json`, standard output
holds only JSON.

| variable | |
| --- | --- |
| `LOOOPY_MODEL` | the model; [see also](models.md#which-one-looopy-chat-takes) |
| `LOOOPY_DATA` | the folder of the default database |
| `LOOOPY_CACHE` | the folder of the embedded model's weights |
| `LOOOPY_YES` | `1` agrees to the download of the weights |
| `LOOOPY_UI_TOKEN` | the token of `looopy serve`, from 16 characters; otherwise it is random |
| `LOOOPY_PUSH_KEY` | encrypts the receivers of [push notifications](a2a.md#push-notifications) |
| `LOOOPY_AUTH_KEY` | the application's secret, for [signed archives](archives.md#signed-archives) |
| `LOOOPY_METRICS_TOKEN` | the token for [`/metrics`](telemetry.md#prometheus) |
| `LOOOPY_TOKEN` | the token for `--server`; `LOOOPY_UI_TOKEN` does for one on this machine |
| `LOOOPY_COMPLETE` | set by the [completion](#looopy-completion) of a shell |
| `LOOOPY_DEBUG` | `1` shows tracebacks and logs |
"""


def page() -> str:
    """The whole page."""
    from looopy.cli.parser import make_parser

    parts = [HEAD]
    with mock.patch.dict("os.environ", {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}):
        for parser in _with_commands(make_parser()):
            level = "##" if parser.prog == "looopy" or parser.prog.count(" ") == 1 else "###"
            help_text = parser.format_help().strip()
            parts.append(f"{level} `{parser.prog}`\n\n```text\n{help_text}\n```\n")
    return "\n".join(parts)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _with_commands(command)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
