"""The table of commands: its functions, its examples, and completion in real shells."""

import argparse
import importlib
import inspect
import shlex
import shutil
import subprocess
import sys

import pytest

from looopy.cli.completion import candidates
from looopy.cli.main import main
from looopy.cli.options import COMMANDS, Command
from looopy.cli.parser import make_parser


def commands(parser):
    """Each command with its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from commands(one)
    if isinstance(command := parser.get_default("command"), Command):
        yield command, parser


def test_each_command_calls_its_function_with_each_option():
    """A function without a parameter of the name would fail when the command runs."""
    found = list(commands(make_parser()))
    assert len(found) == 33
    for command, parser in found:
        module, _, name = command.run.partition(".")
        function = getattr(importlib.import_module(f"looopy.cli.{module}"), name)
        given = {action.dest for action in parser._actions} - {"help"}
        before = ()
        if command.place in ("any", "server"):
            given, before = given - {"url", "token"}, (None, None)
        inspect.signature(function).bind(*before, **dict.fromkeys(given))


def test_each_example_is_a_command_line_of_its_command():
    """Every command has one, and the parser takes each."""
    for command, _ in commands(make_parser()):
        assert command.examples
        for line in command.examples:
            words = shlex.split(line, comments=True)
            if words[0] == "eval":
                words = shlex.split(words[1][2:-1])
            end = next((i for i, word in enumerate(words) if word in ("<", ">")), len(words))
            assert words[0] == "looopy"
            assert make_parser().parse_args(words[1:end]).command is command


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("con", ["contexts"]),
        ("contexts de", ["delete", "deny"]),
        ("contexts list --st", ["--status"]),
        ("contexts list --status ", ["ready", "busy", "waiting", "failed"]),
        ("contexts list --status busy --js", ["--json"]),
        ("contexts list --owner contexts --due --s", ["--status", "--server"]),
        ("contexts show ", []),
        ("contexts export --to ", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("nothing ", []),
        ("", list(COMMANDS)),
    ],
)
def test_the_last_word_is_completed(typed, words):
    """By a command, an option, or a value of an option; a free value is left to the shell."""
    assert candidates(make_parser(), typed.split(" ")) == words


IN_BASH = """
eval "$({looopy} completion bash)"
COMP_WORDS=(./looopy contexts list --st); COMP_CWORD=3
_looopy; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
IN_ZSH = """
compdef() {{ }}
compadd() {{ print -l -- "${{(@P)2}}" }}
eval "$({looopy} completion zsh)"
words=(./looopy contexts list --st); CURRENT=4; _looopy
"""
IN_FISH = """
{looopy} completion fish | source
complete -C './looopy contexts list --st'
"""


@pytest.mark.parametrize(
    ("shell", "options", "script"),
    [("bash", [], IN_BASH), ("zsh", ["-f"], IN_ZSH), ("fish", ["--no-config"], IN_FISH)],
)
def test_a_shell_completes_an_option(tmp_path, shell, options, script):
    """By the script that `looopy completion` prints for it."""
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    looopy = tmp_path / "looopy"
    looopy.write_text(f'#!/bin/sh\nexec {sys.executable} -m looopy.cli "$@"\n')
    looopy.chmod(0o755)
    lines = script.format(looopy="./looopy")
    done = subprocess.run(
        [program, *options, "-c", lines], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "--status\n", done.stderr


def test_an_unknown_shell_is_refused(capsys):
    """With the shells that have a script."""
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "choose from" in capsys.readouterr().err
