"""What a person may answer when the chat asks about a call, and `/help`: without a process."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from looopy import AgentState, AgentStatus, Approve, Deny, PendingKind, PendingRequest
from looopy.cli.chat import Conversation

ASKED = PendingRequest(
    request_id="r1",
    kind=PendingKind.APPROVAL,
    tool_name="pay",
    args={"cents": 900},
    tool_call_id="c1",
    turn=1,
    prompt="May pay run?",
    schema={"type": "object", "properties": {"cents": {"type": "integer"}}},
)


class Terminal:
    """Reads from a list, and remembers what it showed."""

    has_person = False

    def __init__(self, *typed):
        self.typed = list(typed)
        self.shown = []

    def read_line(self, _prompt, *, anew=False):
        """The next line; none at the end."""
        return self.typed.pop(0) if self.typed else None

    read_message = read_line

    def working(self, _what):
        """Show nothing in the meantime."""
        return contextlib.nullcontext()

    def notice(self, text):
        """Show a line."""
        self.shown.append(text)

    error = notice


class Talker:
    """An agent that waits for one answer, and then for nothing."""

    def __init__(self, *pending):
        self.said = []
        self.state = AgentState(
            status=AgentStatus.WAITING if pending else AgentStatus.READY, pending=pending
        )

    def stream_turn(self, text, inputs=None):
        """Remember the turn."""
        self.said.append((text, inputs))
        self.state = AgentState(status=AgentStatus.READY)
        return []

    def cancel(self):
        """Do nothing."""


def converse(agent, *typed):
    """Type these lines into a chat with the agent, until its end."""
    terminal = Terminal(*typed)
    Conversation(agent, "memory:", terminal, None).converse(failure=None, go_on=False)
    return terminal.shown


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        (["y"], Approve()),
        (["Yes half is enough"], Approve(note="half is enough")),
        (["n"], Deny()),
        (["no  too much "], Deny(reason="too much")),
        (['e {"cents": 5}'], Approve(args={"cents": 5})),
        (["e {", 'e {"cents": "x"}', "perhaps", "y"], Approve()),
    ],
)
def test_a_reason_or_other_arguments_may_follow(typed, decision):
    """What does not fit is said, and asked about again."""
    agent = Talker(ASKED)
    shown = converse(agent, *typed)
    assert agent.said == [(None, {"r1": decision})]
    assert ("no JSON" in str(shown)) is (len(typed) > 1)
    assert ("/inputs/r1/args/cents" in str(shown) or "args/cents" in str(shown)) is (len(typed) > 1)


def test_an_expired_request_is_settled_without_a_question():
    """The turn tells the model."""
    agent = Talker(replace(ASKED, expires_at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert "Nobody allowed pay in time." in converse(agent, "hello")
    assert agent.said == [(None, {}), ("hello", None)]


def test_help_is_shown_and_not_sent():
    """The model never sees it."""
    agent = Talker()
    shown = converse(agent, " /help ", "hello")
    assert agent.said == [("hello", None)]
    assert any("Ctrl-D leaves" in line for line in shown)
    assert any("`y REASON`" in line for line in shown)
    assert any(line.startswith("`e {") for line in shown)
