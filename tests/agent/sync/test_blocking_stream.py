"""`looopy.sync.Agent.stream_turn`: the view begins with the turn, not with its first reader."""

import threading

import pytest

from looopy.errors import ValueRefused
from looopy.sync import Agent
from looopy.testing import ScriptedProvider, text
from looopy.types.event import MessageUpdate, TurnEnd


def test_a_late_reader_of_stream_turn_sees_every_delta():
    """Iterating begins when the turn is already over, and nothing is missing."""
    over = threading.Event()
    provider = ScriptedProvider([text("abcdefgh")], chunk_chars=1)
    with Agent("ada", llm_provider=provider) as agent:
        agent.subscribe(lambda event: over.set() if isinstance(event, TurnEnd) else None)
        events = agent.stream_turn("hi")
        assert over.wait(20)
        deltas = [e.delta for e in events if isinstance(e, MessageUpdate) and e.delta]
    assert deltas == list("abcdefgh")


def test_stream_turn_refuses_misuse_at_the_call():
    """What is known before the turn is raised before anything is iterated."""
    with (
        Agent("ada", llm_provider=ScriptedProvider([])) as agent,
        pytest.raises(ValueRefused, match="empty"),
    ):
        agent.stream_turn(" ")
