"""The commands of a chat: other conversations without leaving it."""

import pytest

from looopy import Agent, open_stores
from looopy.cli.conversations.background import Background
from looopy.cli.conversations.database import AgentConversations
from looopy.cli.slash_commands import Command, Leave, Others, Switch, command_in, run_command
from looopy.testing import ScriptedProvider, text
from looopy.types.event import TurnEnd


class Shown:
    """A terminal that keeps what it is told."""

    def __init__(self):
        self.notices, self.errors = [], []
        self.notice, self.error = self.notices.append, self.errors.append


@pytest.mark.parametrize(
    ("line", "by_hand", "command"),
    [
        ("/help", True, Command("help", "")),
        ("/NEW  the name ", True, Command("new", "the name")),
        ("/lst", True, Command("lst", "")),
        ("/lst", False, None),
        ("/exit", False, Command("exit", "")),
        ("/etc is a folder", True, None),
        ("/etc/passwd", True, None),
        (" /help ", False, Command("help", "")),
        (" /lst", True, None),
        ("what is /help", True, None),
        ("/", True, None),
    ],
)
def test_a_line_is_a_command_or_a_message(line, by_hand, command):
    """A path and a sentence are messages."""
    assert command_in(line, by_hand=by_hand) == command


def test_commands_lead_to_other_conversations(tmp_path):
    """A name that is taken, unknown or unusable leaves the chat where it is."""
    url = f"sqlite:///{tmp_path}/chat.db"
    shown = Shown()
    script = ScriptedProvider([text("One.")])

    def make(context_id, stores):
        return Agent(context_id, llm_provider=script, stores=stores)

    with Background() as background:

        def call(work):
            return background.start(work).result()

        def run(line):
            others = Others("first", place, call)
            return run_command(command_in(line, by_hand=True), others, shown)

        place = call(AgentConversations.open(url, make))
        assert run("/fork") is None
        assert "no message yet" in shown.errors.pop()
        call(place.begin_turn("first", "hello"))
        background.follow(place, "first", 0)
        while not isinstance(background.take(), TurnEnd):
            pass
        assert run("/fork copy") == Switch("copy")
        assert run("/fork copy") is None
        assert run("/new copy") is None
        assert run("/open nowhere") is None
        assert run("/open") is None
        assert run("/new a b") is None
        assert len(shown.errors) == 5
        assert run("/open copy") == Switch("copy")
        assert run("/new other") == Switch("other")
        assert run("/new").context_id.startswith("first-")
        assert run("/list") is None
        assert [line.split()[0] for line in shown.notices] == ["copy", "first"]
        assert run("/nwe") is None
        assert "no command /nwe" in shown.notices[2]
        assert run("/exit") == Leave()
        call(place.aclose())
    assert script.requests


async def test_a_chat_continues_in_another_conversation(looopy):
    """Its past is shown first, and the next message belongs to it."""
    lines = ["hello", "/fork copy", "more", "/new other", "alone", "/open chat", "again", "/exit"]
    ended = await looopy("chat", stdin="\n".join([*lines, "never said"]) + "\n")
    assert ended.status == 0
    assert "never said" not in ended.out
    async with open_stores(f"sqlite:///{looopy.database}") as stores:
        turns = {
            name: [m.text for m in await stores.messages.list(name) if m.role == "user"]
            for name in ("chat", "copy", "other")
        }
    assert turns == {"chat": ["hello", "again"], "copy": ["hello", "more"], "other": ["alone"]}
