"""`looopy contexts` and `looopy chat` as clients of a server that is a process, and is killed."""

import io
import json
import re
import socket

from tests.cli.conftest import TOKEN

from looopy.cli.conversations.server import token_for
from looopy.cli.event_view import View
from looopy.cli.main import main
from looopy.cli.terminal import Terminal
from looopy.types.event import (
    ApprovalDecided,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TurnEnd,
    TurnStart,
)
from looopy.types.message import AssistantMessage, StopReason, UserMessage
from looopy.types.state import Outcome

APP = """
import asyncio
from pathlib import Path

from looopy import Agent, Budget, LoopConfig, tool
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="idempotent")
async def wait() -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "waited"


@tool(needs_approval=True)
def pay() -> str:
    return "paid"


def obey(request):
    said = request.messages[-1]
    if said.role == "toolResult":
        return text("It says: " + " ".join(said.text.split()))
    return tool_call(said.text) if said.text in ("wait", "pay") else text(f"You said: {said.text}")


def build(context_id, stores):
    tokens = 5 if context_id == "poor" else 1_000_000
    config = LoopConfig(
        budget=Budget(owner_day_tokens=tokens), max_tokens=100, on_budget="ask"
    )
    model = ScriptedProvider(obey)
    return Agent(
        context_id, llm_provider=model, tools=[wait, pay], stores=stores, loop_config=config
    )
"""
C = {"context_id": "c", "turn": 1}


def shown(*events, typed=(), position=0):
    """The text of these events on a terminal."""
    out = io.StringIO()
    view = View(Terminal(out=out, err=out), position=position)
    for text in typed:
        view.typed(text)
    for event in events:
        view.show(event)
    return out.getvalue()


def starts():
    """The start of an answer."""
    return MessageStart(message=AssistantMessage(""), **C)


def grows(*deltas):
    """Its pieces."""
    return [MessageUpdate(delta=delta, **C) for delta in deltas]


def ends(text, position=2):
    """Its end."""
    return MessageEnd(message=AssistantMessage(text), position=position, **C)


def test_an_answer_sent_twice_is_printed_once():
    """Only its rest is printed, wherever the connection was cut; another answer begins a line."""
    begun = [starts(), *grows("One, ", "two")]
    assert shown(
        *begun, starts(), *grows("One, two, "), *grows("three"), ends("One, two, three")
    ) == ("One, two, three\n")
    assert shown(*begun, ends("One, two, three")) == "One, two, three\n"
    assert shown(*begun, starts(), *grows("On", "e, two, three"), ends("One, two, three")) == (
        "One, two, three\n"
    )
    other = shown(*begun, starts(), *grows("Uno"), ends("Uno"))
    assert other == "One, two\n[the answer begins again]\nUno\n"
    cut = TurnEnd(outcome=Outcome.INTERRUPTED, stop_reason=StopReason.ABORTED, **C)
    again = shown(*begun, cut, TurnStart(**C), ends("One, two"))
    assert again == "One, two\n[turn 1 was interrupted]\nOne, two\n"


def test_messages_and_decisions_of_others_are_shown_and_obeyed_by_no_terminal():
    """Own messages and old ones are on the screen already."""
    said = MessageEnd(message=UserMessage("\x1b[2Jhi"), position=1, **C)
    assert shown(said) == "> \u241b[2Jhi\n"
    assert shown(said, typed=["\x1b[2Jhi"]) == shown(said, position=1) == ""
    assert shown(ends("Old."), position=2) == ""
    decided = ApprovalDecided(
        request_id="r",
        tool_call_id="c",
        tool_name="pay",
        decision="denied",
        actor_id="ben\x07",
        text="no\nway \u202e",
        **C,
    )
    assert shown(decided) == "[pay was denied by ben\u2407: no way \ufffd]\n"


def test_a_token_of_this_machine_stays_on_it():
    """The option wins over `LOOOPY_TOKEN`; that of `looopy serve` is for loopback alone."""
    local = {"LOOOPY_UI_TOKEN": "ui"}
    assert token_for("http://127.0.0.1:1", None, local) == "ui"
    assert token_for("https://example.org", None, local) is None
    assert token_for("https://example.org", None, {**local, "LOOOPY_TOKEN": "mine"}) == "mine"
    assert token_for("http://[::1]:1", "given", {"LOOOPY_TOKEN": "mine"}) == "given"


def test_contexts_of_a_server_are_used_from_the_command_line(
    serving, tmp_path, capsys, monkeypatch
):
    """Each command against one server: its output, and its exit status."""
    monkeypatch.setenv("LOOOPY_TOKEN", TOKEN)

    def run(*command, status=0):
        assert main(["contexts", *command, "--server", str(client.base_url)]) == status
        return capsys.readouterr()

    with serving(app=APP) as (_, client):
        assert "no conversations of yours" in run("list").err
        for command in (("send", "poor", "Hi"), ("continue", "poor")):
            waits = run(*command, status=1).err
            assert waits.count("Budget.owner_day_tokens") == 1
            assert re.search(r"^\[turn \d waits: ", waits, re.MULTILINE)
        run("delete", "poor", "--yes")
        assert run("send", "trip", "Hi \x1b[31m").out == "You said: Hi \u241b[31m\n"
        assert "pay {} waits for an answer: " in run("send", "trip", "pay", status=1).err
        assert run("show", "trip").out.splitlines()[1].startswith("pay waits for an answer: ")
        assert "'other'" in run("approve", "trip", "other", status=1).err
        approved = run("approve", "trip", "--note", "fine").out
        assert approved.splitlines()[-1] == "It says: The user's note: fine paid"
        assert "nothing waits" in run("deny", "trip", status=1).err
        lines = run("follow", "trip", "--after", "0", "--until-end", "--json").out.splitlines()
        places = [event["seq"] for event in map(json.loads, lines) if event.get("seq")]
        assert places == list(range(1, len(places) + 1))
        followed = run("follow", "trip", "--after", "0", "--until-end").out
        assert "> pay\n" in followed
        assert "[pay was approved by local: fine]\n" in followed
        assert run("send", "trip", "wait", "--no-wait").out == "turn 4\n"
        assert run("cancel", "trip").out == ""
        assert "was cancelled" in run("follow", "trip", "--after", "20", "--until-end").out
        for command in (("list",), ("show", "trip"), ("search", "pay")):
            shown = run(*command).out
            assert main(["contexts", *command, "--db", f"sqlite:///{tmp_path}/app.db"]) == 0
            assert capsys.readouterr().out == shown
        assert run("fork", "trip", "copy").out.startswith("copy  ready")
        listed = json.loads(run("list", "--json", "--limit", "1").out)
        assert [item["context_id"] for item in listed["items"]] == ["copy"]
        assert json.loads(run("show", "copy", "--json").out)["messages"][0]["position"] == 1
        assert "copy 3 user: pay\n" in run("search", "pay").out
        gone = run("delete", "copy", "nowhere", "--yes", status=1)
        assert gone.out == "Erased 1 conversation:\n  copy\n"
        assert "no conversation 'nowhere'" in gone.err
        assert run("list").out.split()[0] == "trip"
        assert "valid credentials" in run("list", "--token", "w" * 20, status=1).err
        assert "for a database" in run("list", "--owner", "ada", status=2).err
    with socket.socket() as taken:  # by nobody else, and it does not listen
        taken.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["contexts", "list", "--server", away]) == 1
        assert "does not answer" in capsys.readouterr().err
    assert main(["contexts", "retain", "--older-than", "1d", "--db", "http://localhost:1"]) == 2
    assert main(["contexts", "cancel", "trip", "--server", "sqlite:///app.db"]) == 2
    assert main(["chat", "--model", "local", "--server", "http://localhost:1"]) == 2
    said = capsys.readouterr()
    assert said.err.count("error: ") == 3
    assert TOKEN not in said.err + said.out


PEOPLE = """
from looopy.server import StaticTokens

authenticate = StaticTokens({name * 20: {"actor_id": name} for name in ("a", "b", "e")})


def may_answer(request, auth):
    return request.tool_name == "pay" and auth.actor_id == "b"
"""


def test_a_second_person_decides_from_the_command_line(serving, capsys):
    """`requests`, `approve` and `deny`, in a conversation that this person may not look at."""

    def run(who, *command, status=0):
        place = ["--server", str(client.base_url), "--token", who * 20]
        assert main(["contexts", *command, *place]) == status
        return capsys.readouterr()

    options = ("--auth", "app:authenticate", "--may-answer", "app:may_answer")
    with serving(*options, app=APP + PEOPLE) as (_, client):
        for context_id in ("trip", "walk"):
            run("a", "send", context_id, "pay", status=1)
        asked = run("b", "requests").out.splitlines()
        assert re.fullmatch(r"walk  1-call_\w+  of a", asked[0])
        assert asked[1:3] == ["  May pay run with these arguments?", "  pay {}"]
        listed = json.loads(run("b", "requests", "--json").out)["items"]
        assert [item["context_id"] for item in listed] == ["walk", "trip"]
        assert run("e", "requests").out == ""
        for command in ("approve", "deny"):
            assert "nothing waits" in run("e", command, "trip", status=1).err
            refused = run("e", command, "trip", listed[0]["request_id"], status=1).err
            assert "there is no context 'trip'" in refused
        assert "there is no context" in run("b", "show", "trip", status=1).err
        decided = run("b", "approve", "trip").out
        assert decided == "pay was approved; it waits for its owner now\n"
        denied = json.loads(run("b", "deny", "walk", "--json").out)
        assert (denied["decision"], denied["actor_id"]) == ("denied", "b")
        assert "by 'b'" in run("a", "deny", "trip", listed[1]["request_id"], status=1).err
        listed = run("a", "list", "--status", "waiting").out
        assert "trip  turn 1 waits for credentials of its owner" in listed
        assert run("a", "continue", "trip").out.splitlines()[-1] == "It says: paid"


def test_each_person_has_a_conversation_without_a_name(serving, capsys):
    """And finds it again; a name that somebody else has taken is nobody's way in."""

    def say(who, text):
        place = ["--server", str(client.base_url), "--token", who * 20]
        assert main(["chat", *place, "--message", text]) == 0
        return re.search(r"Conversation: (chat-[0-9a-f]{8})", capsys.readouterr().err)[1]

    with serving("--auth", "app:authenticate", app=APP + PEOPLE) as (_, client):
        names = [say(who, "Hi") for who in ("a", "b", "a", "b")]
    assert names[:2] == names[2:]
    assert len(set(names)) == 2


async def test_a_terminal_that_came_before_the_first_message_follows(looopy, serving):
    """It shows what another one says, and asks; an answer that it gives is no message."""
    looopy.env["LOOOPY_TOKEN"] = TOKEN
    with serving(app=APP) as (_, client):
        command = ("chat", "trip", "--server", str(client.base_url))
        one, other = [await looopy.at_terminal(*command) for _ in range(2)]
        for terminal in (one, other):
            await terminal.see("> ")
        one.press("\x1b[200~so\nit is\x1b[201~\n")
        for terminal in (one, other):
            await terminal.see("You said: so\nit is\n")
        one.press("pay\n")
        await other.see("> pay")
        await other.see("Allow it? [y/n] ")
        other.press("y\n")
        for terminal in (one, other):
            await terminal.see("It says: paid")
        for terminal in (one, other):
            terminal.press("/exit\n")
            assert await terminal.status() == 0


async def test_two_terminals_on_a_conversation_outlive_their_server(looopy, serving, tmp_path):
    """Both show each turn; a question that one answers closes in the other; a kill ends neither."""
    looopy.env["LOOOPY_TOKEN"] = TOKEN
    with serving(app=APP) as (server, client):
        command = ("chat", "trip", "--server", str(client.base_url))
        client.post("/contexts/trip/turns", json={"message": "Hello!"})
        one, other = [await looopy.at_terminal(*command) for _ in range(2)]
        for terminal in (one, other):
            await terminal.see("You said: Hello!")
            await terminal.see("> ")
        one.press("pay\n")
        await other.see("> pay")
        await other.see("Allow it? [y/n] ")
        await one.see("Allow it? [y/n] ")
        other.press("y\n")
        for terminal in (one, other):
            await terminal.see("[pay was approved by local]")
            await terminal.see("It says: paid")
            await terminal.see("> ")
        one.press("wait\n")
        for terminal in (one, other):
            await terminal.see("[wait ...")
        server.kill()
        for terminal in (one, other):
            await terminal.see("[the server does not answer; trying again]")
        port = str(client.base_url.port)
    (tmp_path / "go").touch()
    with serving("--port", port, app=APP) as (second, client):
        for terminal in (one, other):
            await terminal.see("[the server is back]")
            await terminal.see("[turn 4 was interrupted]")
            await terminal.see(f"[process {server.pid}-")
            await terminal.see("is gone]")
            await terminal.see(f"[turn 5 continues turn 4 in process {second.pid}-")
            await terminal.see("It says: waited")
            await terminal.see("> ")
        turns = client.get("/contexts/trip/turns").json()["items"]
        show = (await looopy("contexts", "show", "trip", "--server", str(client.base_url))).out
        assert f"process {turns[3]['process']}  taken over by {turns[4]['process']}\n" in show
        assert f"process {turns[4]['process']}\n" in show
        budget = await looopy("budget", "show", "--server", str(client.base_url))
        head, used = budget.out.splitlines()
        assert head.split()[:5] == ["account", "period", "tokens", "reserved", "limit"]
        assert (used.split()[:2], used.split()[5]) == (["local", "day"], "1,000,000")
        other.press("/new else\n")
        await other.see("Conversation: else")
        other.press("so\n")
        await other.see("You said: so")
        other.press("/fork copy\n")
        await other.see("Conversation: copy")
        other.press("/list\n")
        await other.see("trip  ready  5 turns")
        for terminal in (one, other):
            terminal.press("/exit\n")
            assert await terminal.status() == 0
