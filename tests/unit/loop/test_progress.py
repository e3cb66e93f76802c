"""Why a turn ends: one place says so, one takes it back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import looopy.loop
from looopy.errors import LooopyError
from looopy.llm.provider import abilities_of
from looopy.loop.guards import Guards
from looopy.loop.incoming import Queued
from looopy.loop.progress import Progress
from looopy.testing import ScriptedProvider
from looopy.types.config import LoopConfig
from looopy.types.message import StopReason, ToolCall, UserMessage

LOOP = Path(looopy.loop.__file__).parent
SAID = [Queued(UserMessage("more"))]


def progress(**fields):
    """A turn that has only begun."""
    return Progress(Guards(LoopConfig()), abilities_of(ScriptedProvider([])), **fields)


def _written(tree):
    """The attributes that a module assigns, as (class and method, attribute)."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(scope):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    yield scope.name, node.attr


def test_one_method_ends_a_turn_and_one_takes_that_back():
    """Whoever looks for the reason of an end finds the callers of two methods."""
    writers = {
        (path.stem, function)
        for path in LOOP.glob("*.py")
        for function, name in _written(ast.parse(path.read_text(encoding="utf-8")))
        if name in ("stop", "error")
    }
    assert writers == {("progress", "end"), ("progress", "go_on")}


def test_the_last_end_counts_with_its_error():
    """An error of an end that was overruled is not told."""
    turn = progress()
    error = LooopyError("broke")
    turn.end(StopReason.ERROR, error)
    assert (turn.stop, turn.error) == (StopReason.ERROR, error)
    turn.end(StopReason.CANCELLED)
    assert (turn.stop, turn.error) == (StopReason.CANCELLED, None)
    turn.go_on()
    assert (turn.stop, turn.error) == (None, None)


@pytest.mark.parametrize("reason", StopReason)
def test_only_a_final_answer_lets_queued_messages_in(reason):
    """A turn that failed, waits or was stopped ends all the same."""
    turn = progress()
    turn.end(reason)
    assert not turn.put_off
    turn.queued = SAID
    assert turn.put_off is (reason in (StopReason.STOP, StopReason.LENGTH))


def test_the_ids_of_open_calls_are_taken():
    """A call of the model that has the id of one is told apart from it."""
    turn = progress(open_calls=[ToolCall("c", "act")])
    assert [turn.own_call_id(wanted) for wanted in ("c", "c_2", "c", "")] == [
        "c_2", "c_2_2", "c_3", "call",
    ]  # fmt: skip
