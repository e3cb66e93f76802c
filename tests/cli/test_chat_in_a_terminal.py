"""`looopy chat` in a terminal: a prompt, keys, questions."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
from tests.cli.conftest import PATIENCE_S
from tests.killed import killed_in_a_tool
from tests.shares import split
from tests.wire.fake_openai import HOLD, Answer, chunk, refuses

from looopy import Agent, Tool
from looopy.testing import ScriptedProvider

if os.name != "posix":
    pytest.skip("pseudo-terminals are POSIX's", allow_module_level=True)

PASTE = "\x1b[200~{}\x1b[201~"
CTRL_C, CTRL_D = "\x03", "\x04"


async def _leave(session):
    session.press(CTRL_D)
    assert await session.status() == 0


async def test_a_conversation_has_a_prompt_and_ends_with_ctrl_d(looopy):
    """The model, the database and the way out are told first."""
    session = await looopy.at_terminal("chat")
    await session.see("Model: openai/fake.")
    await session.see(f"Database: {looopy.database}")
    await session.see("> ")
    session.press("hello\r")
    await session.see("You said: hello\n")
    await session.see("> ")
    await _leave(session)


async def test_an_answer_is_shown_as_it_comes(looopy, model):
    """The first words stand on the screen while the model still thinks."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "so far, "}), HOLD]))
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("so far, ")
    await session.process_killed()


async def test_a_long_wait_for_the_model_names_its_end(looopy, model):
    """In seconds, and as the time of day, for a reader who looks away meanwhile."""
    busy = refuses(429, "slow down", headers={"retry-after": "40"}, type="requests")
    model.answers.insert(0, busy)
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("asks to wait (HTTP 429): slow down]")
    await session.see("[trying again in 41 s, at ")
    session.press(CTRL_C)
    await session.see("> ")
    await _leave(session)


@pytest.mark.long
async def test_pasted_lines_are_one_message(looopy, model):
    """At the prompt, beside typed words, and while an answer comes; with and without Enter."""
    pytest.importorskip("readline")
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("see " + PASTE.format("one\rtwo\r\rthree") + " end\r")
    await session.see("You said: see one\ntwo\n\nthree end\n")
    session.press("wait 0.5\r")
    await session.see("[wait seconds=0.5 ...")
    session.press(PASTE.format("four\rfive"))
    await session.see("The tool said: Waited 0.5 seconds.\n")
    await session.see("> four")
    await session.see("five")
    session.press(" six\r")
    await session.see("You said: four\nfive six\n")
    session.press("wait 0.5\r")
    await session.see("[wait seconds=0.5 ...")
    session.press(PASTE.format("seven\reight") + "\r")
    await session.see("You said: seven\neight\n")
    await _leave(session)
    said = [one["content"] for one in model.received[-1].body["messages"] if one["role"] == "user"]
    wanted = ["see one\ntwo\n\nthree end", "wait 0.5", "four\nfive six", "wait 0.5"]
    assert said == [*wanted, "seven\neight"]


@pytest.mark.long
async def test_a_message_has_several_lines(looopy):
    """By Alt-Enter, and by a backslash at the end of a line; a command is one line."""
    pytest.importorskip("readline")
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("one\x1b\rtwo\r")
    await session.see("You said: one\ntwo\n")
    session.press("three\\\r")
    await session.see(". ")
    session.press("four\\\r")
    await session.see(". ")
    session.press("five\r")
    await session.see("You said: three\nfour\nfive\n")
    session.press(PASTE.format("/list\rof things") + "\r")
    await session.see("You said: /list\nof things\n")
    await _leave(session)


BEFORE_THE_PROMPT = """
import select, sys
from looopy.cli.terminal import _input, edit_lines
edit_lines()
print("no prompt yet", flush=True)
select.select([sys.stdin], [], [])
try:
    _input("> ")
except EOFError:
    print("the end")
"""


@pytest.mark.long
async def test_ctrl_d_pressed_just_before_the_prompt_leaves(looopy):
    """Setting the mode of the terminal, as readline does, makes a null of a Ctrl-D in its queue."""
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit has no macros")
    session = await looopy.at_terminal(program=(sys.executable, "-c", BEFORE_THE_PROMPT))
    await session.see("no prompt yet")
    session.press(CTRL_D)
    await session.see("the end")
    assert await session.status() == 0


BY_KEY = """
import select, sys, termios
from looopy.cli.terminal import _typed_ahead
before, by_key = termios.tcgetattr(0), termios.tcgetattr(0)
by_key[0] &= ~termios.ICRNL
by_key[3] &= ~(termios.ICANON | termios.ECHO)
termios.tcsetattr(0, termios.TCSANOW, by_key)
print("by key", flush=True)
select.select([sys.stdin], [], [])
termios.tcsetattr(0, termios.TCSANOW, before)
try:
    while True:
        print(repr(_typed_ahead()))
except EOFError:
    print("the end")
"""


@pytest.mark.long
async def test_lines_typed_while_readline_leaves_are_lines(looopy):
    """In its mode of the terminal, Enter is another character, and no key ends what is read."""
    session = await looopy.at_terminal(program=(sys.executable, "-c", BY_KEY))
    await session.see("by key\n")
    session.press(f"one\rtwo\r{CTRL_D}")
    await session.see("'one\\n'\n'two\\n'\nthe end\n")
    assert await session.status() == 0


async def test_text_typed_during_an_answer_is_kept(looopy):
    """The line is the next message; Ctrl-D behind it leaves after its answer."""
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("wait 0.5\r")
    await session.see("[wait seconds=0.5 ...")
    session.press(f"again\r{CTRL_D}")
    await session.see("The tool said: Waited 0.5 seconds.\n")
    await session.see("> again\nYou said: again\n")
    assert await session.status() == 0


@pytest.mark.long
async def test_a_silent_model_leaves_no_blank_screen(looopy, model):
    """The chat shows that it works, and for how long; the first word takes the place of that."""
    gate = asyncio.Event()
    model.answers.insert(0, Answer(pieces=[chunk({"content": "late"}), HOLD], gate=gate))
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("[working ... ")
    gate.set()
    await session.see("\r" + " " * len("[working ... 1 s]"))
    await session.see("\rlate")
    await session.process_killed()


async def test_a_chat_ends_when_its_parent_is_killed(looopy, model):
    """As `uv run` is one: the turn is left to the next chat, not run behind the shell's back."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "so far"}), HOLD]))
    lives = looopy.home / "lives"
    os.mkfifo(lives)
    reader = os.fdopen(os.open(lives, os.O_RDONLY | os.O_NONBLOCK), "rb")
    chat = f"{sys.executable} -m looopy.cli chat"
    session = await looopy.at_terminal(
        *("sh", "-c", f"sh -c 'echo pid $$.; {chat}; :' 9>{lives}; read line"), program=()
    )
    await session.see("pid ")
    await session.see(".")
    parent = int(session.shown.partition("pid ")[2].partition(".")[0])
    await session.see("> ")
    session.press("hello\r")
    await session.see("so far")
    os.kill(parent, signal.SIGKILL)
    os.set_blocking(reader.fileno(), True)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(reader.read) == b""  # no process holds its other end
    reader.close()
    ended = await looopy("chat", "--continue", "--message", "more")
    assert ended.out == "You said: hello\nYou said: more\n"
    await session.process_killed()


async def test_ctrl_c_cancels_the_turn_and_keeps_the_prompt(looopy, model):
    """While the model answers; what it had said stays, and the next message is answered."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "so far"}), HOLD]))
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("so far")
    session.press(CTRL_C)
    await session.see("[turn 1 was cancelled]")
    await session.see("> ")
    session.press("again\r")
    await session.see("You said: again")
    await session.see("> ")
    await _leave(session)
    assert (await looopy("contexts", "show", "chat")).out.count("cancelled") == 1


@pytest.mark.long
async def test_ctrl_c_stops_a_running_tool(looopy):
    """A wait of ten minutes ends at once."""
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("wait 600\r")
    await session.see("[wait seconds=600.0 ...")
    session.press(CTRL_C)
    await session.see("stopped after")
    await session.see("[turn 1 was cancelled]")
    await session.see("> ")
    await _leave(session)


@pytest.mark.long
async def test_ctrl_c_at_the_prompt_drops_the_line(looopy, model):
    """What was typed is gone, the program is not, and it says how to leave."""
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("never said")
    await session.see("never said")
    session.press(CTRL_C)
    await session.see("(Ctrl-D leaves)")
    await session.see("> ")
    session.press("hello\r")
    await session.see("You said: hello")
    await session.see("> ")
    await _leave(session)
    assert "never said" not in str(model.received[0].body)


@pytest.mark.long
async def test_an_empty_line_is_not_sent(looopy, model):
    """The prompt comes again, and the model is not asked."""
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("\r")
    await session.see("\n> ")  # the first prompt is drawn twice
    session.press("hello\r")
    await session.see("You said: hello")
    await session.see("> ")
    await _leave(session)
    assert len(model.received) == 1


@pytest.mark.long
async def test_a_failed_turn_keeps_the_prompt_and_is_offered_again(looopy, model):
    """Its reason is shown; on return it can be continued."""
    model.answers.insert(0, refuses(400, "not now", type="invalid_request_error"))
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("error: openai refused the request")
    await session.see("> ")
    await _leave(session)
    session = await looopy.at_terminal("chat")
    await session.see("Turn 1 failed: openai refused the request")
    await session.see("Continue it? [Y/n] ")
    session.press("\r")
    await session.see("You said: hello")
    await session.see("> ")
    await _leave(session)


async def _killed_in_a_wait(looopy, seconds):
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("calculate 6*7\r")
    await session.see("The tool said: 42")
    await session.see("> ")
    session.press(f"wait {seconds}\r")
    await session.see("[wait seconds=")
    await session.process_killed()


async def test_history_is_shown_and_an_interrupted_turn_continued(looopy):
    """After `kill -9` in a tool: what was said, what was running, a question, and its answer."""
    await _killed_in_a_wait(looopy, 1)
    session = await looopy.at_terminal("chat")
    await session.see("> calculate 6*7\n")
    await session.see('[calculate expression="6*7" ... done: 42]')
    await session.see("The tool said: 42\n")
    await session.see("> wait 1\n")
    await session.see("[wait seconds=1.0 ... has no result yet]")
    await session.see("Turn 2 was interrupted.")
    await session.see("Continue it? [Y/n] ")
    session.press("y\r")
    await session.see("[wait seconds=1.0 ... done in 1.")
    await session.see("The tool said: Waited 1 seconds.")
    await session.see("> ")
    await _leave(session)


async def test_two_terminals_on_a_database_show_each_others_turns(looopy):
    """Each message and its answer, once; then both write into one conversation."""
    one, other = [await looopy.at_terminal("chat", "trip") for _ in range(2)]
    for session in (one, other):
        await session.see("> ")
    one.press("hello\r")
    await one.see("You said: hello\n")
    await other.see("> hello\n")
    await other.see("You said: hello\n")
    other.press("again\r")
    await other.see("You said: again\n")
    await one.see("> again\n")
    await one.see("You said: again\n")
    for session in (one, other):
        await session.see("> ")
        await _leave(session)
    assert (await looopy("contexts", "list")).out.startswith("trip  ready  2 turns")


UNSEEN = """
from looopy.stores import owner

owner._host = lambda: ""
"""


@pytest.mark.long
async def test_a_turn_of_an_invisible_process_is_waited_for(looopy):
    """Between containers and off Linux only the lease tells that it was killed: then a question."""
    app_context = looopy.home / "app_context"
    app_context.mkdir()
    (app_context / "sitecustomize.py").write_text(UNSEEN)
    looopy.env["PYTHONPATH"] = os.pathsep.join([str(app_context), looopy.env.get("PYTHONPATH", "")])
    looopy.program = (sys.executable, "-m", "looopy.cli")  # it customizes the start
    await _killed_in_a_wait(looopy, 1)
    session = await looopy.at_terminal("chat")
    await session.see("Turn 2 of this conversation runs in another process")
    await session.see("[turn 2 was interrupted]")
    await session.see("Turn 2 was interrupted.")
    await session.see("Continue it? [Y/n] ")
    session.press("y\r")
    await session.see("The tool said: Waited 1 seconds.")
    await session.see("> ")
    await _leave(session)


@pytest.mark.parametrize("says", split(["n\r"], [""]), ids=["no", "a message"])
async def test_an_interrupted_turn_may_be_left(looopy, says):
    """By a no, after which there is a prompt, or by another message: nobody's words are lost."""
    await _killed_in_a_wait(looopy, 600)
    session = await looopy.at_terminal("chat")
    await session.see("Continue it? [Y/n] ")
    if says:
        session.press(says)
        await session.see("> ")
    session.press("hello\r")
    await session.see("You said: hello")
    await session.see("> ")
    await _leave(session)


@pytest.fixture
async def waiting(looopy, preloaded):
    """A tool ran when its process died, and may only run again if a person says so."""
    looopy.database.parent.mkdir()
    url = f"sqlite:///{looopy.database}"
    deploy = {"name": "deploy", "effects": "external", "on_resume": "ask"}
    target = {"target": "moon\x1b[2J\u202e"}
    await killed_in_a_tool(preloaded, url, "chat", actor=None, arguments=target, **deploy)
    model, tools = ScriptedProvider([]), [Tool(**deploy)]
    async with Agent("chat", llm_provider=model, tools=tools, stores=url) as agent:
        assert agent.state.pending


@pytest.mark.parametrize(
    ("answer", "told"), split([("y", "may have run")], [("n", "did not allow")])
)
@pytest.mark.usefixtures("waiting")
async def test_a_call_that_waits_for_approval_is_asked_about(looopy, model, answer, told):
    """With all its arguments, made harmless; the answer reaches the model as the call's result."""
    session = await looopy.at_terminal("chat")
    await session.see("may have had its effect")
    await session.see('"target": "moon\\u001b[2J\ufffd"')
    await session.see("Allow it? [y/n] ")
    session.press("perhaps\r")
    await session.see("perhaps\n")  # the question is drawn twice
    await session.see("Allow it? [y/n] ")
    session.press(f"{answer}\r")
    await session.see("The tool said: ")
    await session.see("> ")
    await _leave(session)
    assert told in model.received[-1].body["messages"][-1]["content"]


@pytest.mark.usefixtures("waiting")
async def test_an_approval_may_be_left_for_later(looopy, model):
    """
    Ctrl-D answers nothing: the call goes on waiting.

    Nor do keys that were pressed before the question: they come back at the next prompts.
    """
    session = await looopy.at_terminal("chat")
    session.press("y\rye")
    await session.see("(Typed before this question, so it does not answer it: y)")
    await session.see("(Typed before this question, so it does not answer it: ye)")
    await session.see("Allow it? [y/n] ")
    session.press(CTRL_D)
    await session.see("It keeps waiting; any other message drops it.")
    await session.see("> y")
    session.press(CTRL_C)
    await session.see("> ye")
    session.press(CTRL_C)
    await session.see("> ")
    await _leave(session)
    assert model.received == []
    assert "waiting" in (await looopy("contexts", "list")).out


async def test_hostile_text_reaches_no_terminal_as_a_command(looopy, model):
    """Apart from our own colours and the line editor's, there is no control sequence."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "\x1b]52;c;AA\x07\x9b2J!"}), HOLD]))
    session = await looopy.at_terminal("chat")
    await session.see("> ")
    session.press("hello\r")
    await session.see("!")
    assert "␛]52;c;AA␇\ufffd2J!" in session.shown
    assert "\x1b" not in session.shown
    await session.process_killed()


@pytest.mark.parametrize(("variable", "coloured"), split([("NO_COLOR", False)], [("", True)]))
async def test_colours_are_for_terminals_that_want_them(looopy, variable, coloured):
    """`NO_COLOR` turns them off."""
    if variable:
        looopy.env[variable] = "1"
    session = await looopy.at_terminal("chat", "--message", "calculate 6*7")
    assert await session.status() == 0
    assert ("\x1b[2m" in session.raw) is coloured


async def test_lines_from_a_pipe_are_sent_one_by_one(looopy):
    """Without a terminal there is no prompt, and the end of the input is the end."""
    ended = await looopy("chat", stdin="one\n\ntwo\n")
    assert ended.status == 0
    assert "You said: one\nYou said: two\n" in ended.out
    assert "> " not in ended.out


async def test_a_failed_turn_of_a_pipe_sets_the_status(looopy, model):
    """All lines are said; one that was not answered makes the status 1."""
    model.answers.insert(0, refuses(400, "no", type="invalid_request_error"))
    ended = await looopy("chat", stdin="one\ntwo\n")
    assert ended.status == 1
    assert "You said: one\n\ntwo" in ended.out  # an unknown server gets neighbours as one message
