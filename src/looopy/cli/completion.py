"""
Completion of commands, options and their values in bash, zsh and fish.

The script of a shell asks the program itself, so it never differs from the program: with
`LOOOPY_COMPLETE` in the environment, `looopy` prints the candidates for the last of its arguments.
Without candidates, the shell completes file names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

VARIABLE: Final = "LOOOPY_COMPLETE"
_SCRIPTS: Final = {
    "bash": """\
_looopy() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}") IFS=$'\\n'
    COMPREPLY=($(LOOOPY_COMPLETE=1 "${COMP_WORDS[0]}" "${words[@]}" 2>/dev/null))
}
complete -o default -F _looopy looopy
""",
    "zsh": """\
_looopy() {
    local -a found
    found=("${(@f)$(LOOOPY_COMPLETE=1 "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
compdef _looopy looopy
""",
    "fish": """\
function __looopy_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (LOOOPY_COMPLETE=1 $words[1] $words[2..] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c looopy -f -a '(__looopy_complete)'
""",
}


def show_script(*, shell: str) -> int:
    """Print the script for a shell."""
    sys.stdout.write(_SCRIPTS[shell])
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words that may stand in the place of the last of *words*; empty for a free value."""
    *before, begun = words or [""]
    waiting: argparse.Action | None = None  # an option without its value
    for word in before:
        option = parser._option_string_actions.get(word)  # noqa: SLF001 - argparse shows it nowhere
        if waiting is None and option is None and (groups := _commands(parser)):
            if word not in groups:
                return []
            parser = groups[word]
        takes = option is not None and option.nargs != 0
        waiting = option if takes and waiting is None else None
    if waiting is not None:
        found = [str(one) for one in waiting.choices or ()]
    elif begun.startswith("-"):
        found = [one for one in parser._option_string_actions if one.startswith("--")]  # noqa: SLF001
    else:
        found = list(_commands(parser)) or [
            str(choice)
            for action in parser._get_positional_actions()  # noqa: SLF001 - as above
            for choice in action.choices or ()
        ]
    return [word for word in found if word.startswith(begun)]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}
