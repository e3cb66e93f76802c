"""What a person may answer when the chat asks about a call, and `/help`: without a process."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from looopy import Approve, Deny, PendingKind, PendingRequest
from looopy.cli.chat import Talk
from looopy.cli.conversations.background import Background
from looopy.types.event import TurnEnd
from looopy.types.message import StopReason
from looopy.types.state import Outcome, pending_to_json

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

    def fresh_line(self):
        """Lines are always fresh here."""


class Talker:
    """A place whose one conversation waits for one answer, and then for nothing."""

    whose, where = "", "in a test"

    def __init__(self, *pending):
        self.said = []
        self.pending = [pending_to_json(one) for one in pending]
        self.news = asyncio.Queue()
        self.shown = lambda: True  # whether the chat has taken all events

    async def context(self, _context_id):
        """The conversation, with a durable event for each turn."""
        none = dict.fromkeys(("interrupted_turn", "waits_for", "needs_auth", "error"))
        last = {"turn_count": len(self.said), "last_seq": len(self.said)}
        return {"status": "ready", "pending": self.pending, **none, **last}

    async def newest_messages(self, _context_id, _limit):
        """There are none."""
        return []

    async def begin_turn(self, _context_id, text=None, *, inputs=None, idempotency_key=None):
        """Remember the turn, which ends at once."""
        self.said.append((text, inputs))
        self.pending = []
        turn = len(self.said)
        place = {"context_id": "c", "turn": turn, "seq": turn}
        end = TurnEnd(outcome=Outcome.COMPLETED, stop_reason=StopReason.STOP, **place)
        self.news.put_nowait(end)
        return turn

    async def events(self, _context_id, after=None):
        """The ends of turns."""
        while True:
            yield await self.news.get()


def converse(place, *typed):
    """Type these lines into a chat with the place, until its end."""
    terminal = Terminal(*typed)
    with Background() as background:
        place.shown = background.news.empty
        talk = Talk(background, place, terminal, "c", as_json=False)
        talk.open(with_past=True)
        talk.converse(go_on=False)
        background.leave()
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
    assert ("invalid JSON" in str(shown)) is (len(typed) > 1)
    assert ("/inputs/r1/args/cents" in str(shown) or "args/cents" in str(shown)) is (len(typed) > 1)


def test_an_expired_request_is_settled_without_a_question():
    """The turn tells the model."""
    agent = Talker(replace(ASKED, expires_at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert "pay was not allowed in time." in converse(agent, "hello")
    assert agent.said == [(None, {}), ("hello", None)]


def test_help_is_shown_and_not_sent():
    """The model never sees it."""
    agent = Talker()
    shown = converse(agent, " /help ", "hello")
    assert agent.said == [("hello", None)]
    assert any("Ctrl-D leaves" in line for line in shown)
    assert any("`y REASON`" in line for line in shown)
    assert any(line.startswith("`e {") for line in shown)


class Overtaken(Talker):
    """A place whose answer leaves before the turn has ended, and comes after the event of it."""

    def __init__(self):
        super().__init__()
        self.held, self.given = [], asyncio.Event()

    async def context(self, context_id):
        """The conversation as it was while its turn ran; then as it is."""
        if not self.held:
            return await super().context(context_id)
        self.news.put_nowait(self.held.pop())
        await self.given.wait()
        while not self.shown():  # noqa: ASYNC110 - a queue of another thread
            await asyncio.sleep(0)
        return {**await super().context(context_id), "status": "busy", "last_seq": 0}

    async def begin_turn(self, context_id, text=None, **options):
        """Remember the turn, and hold its end back."""
        turn = await super().begin_turn(context_id, text, **options)
        self.held.append(self.news.get_nowait())
        return turn

    async def events(self, _context_id, after=None):
        """The ends of turns."""
        while True:
            yield await self.news.get()
            self.given.set()


def test_an_answer_that_events_have_overtaken_is_asked_for_again():
    """A context that was busy when the answer left holds up no chat that has seen the end since."""
    place = Overtaken()
    converse(place, "hello", "again")
    assert place.said == [("hello", None), ("again", None)]
