"""`looopy chat --message`: turns without a person, told apart by streams and exit status."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import unicodedata

import pytest
from tests.cli.conftest import calls, streams
from tests.wire.fake_openai import HOLD, Answer, chunk, refuses, says

HOSTILE = "\x1b]52;c;AAAA\x07 \x1b[2J \x9b31m \u202eabc\u2066 \x7f\x08"


async def test_a_first_message_is_answered(looopy):
    """The answer alone is on standard output; model, reason and database are told beside it."""
    ended = await looopy("chat", "--message", "hello")
    assert (ended.status, ended.out) == (0, "You said: hello\n")
    assert "Model: openai/fake. OPENAI_BASE_URL points to http://127.0.0.1" in ended.err
    assert f"Database: {looopy.database}" in ended.err


async def test_the_default_database_belongs_to_the_user_alone(looopy):
    """Its folder is made when it is needed, and closed to others."""
    await looopy("chat", "--message", "hello")
    assert stat.S_IMODE(looopy.database.parent.stat().st_mode) == 0o700


async def test_a_tool_call_is_shown_with_arguments_result_and_duration(looopy):
    """One line tells what was called, how long it took and what came of it."""
    ended = await looopy("chat", "--message", "calculate 6*7")
    line, answer = ended.out.splitlines()
    assert line.startswith('[calculate expression="6*7" ... done in 0.')
    assert line.endswith(" s: 42]")
    assert answer == "The tool said: 42"


async def test_messages_are_turns_of_one_conversation(looopy, model):
    """The model is shown what was said before, in this run and in earlier ones."""
    assert (await looopy("chat", "--message", "one", "--message", "two")).status == 0
    assert (await looopy("chat", "--message", "three")).status == 0
    said = [m["content"] for m in model.received[-1].body["messages"] if m["role"] == "user"]
    assert said == ["one", "two", "three"]


async def test_conversations_are_kept_apart_by_their_id(looopy, model):
    """Another id is another history."""
    await looopy("chat", "ada", "--message", "one")
    await looopy("chat", "bob", "--message", "two")
    assert [m["role"] for m in model.received[-1].body["messages"]] == ["system", "user"]


async def test_a_dash_reads_the_message_from_standard_input(looopy):
    """So that a message may be long and have lines."""
    ended = await looopy("chat", "--message", "-", stdin="two\nlines\n")
    assert ended.out == "You said: two\nlines\n"


async def test_no_tools_means_that_none_are_offered(looopy, model):
    """The model is not told of any."""
    await looopy("chat", "--no-tools", "--message", "hello")
    assert "tools" not in model.received[0].body


async def test_a_failed_turn_ends_a_script(looopy, model):
    """Its reason is one line on standard error, and later messages are not said."""
    model.answers.insert(0, refuses(400, "too\nbad \x1b[31m", type="invalid_request_error"))
    ended = await looopy("chat", "--message", "one", "--message", "two")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.splitlines()[-1].startswith("error: openai refused the request")
    assert "\x1b" not in ended.err
    assert len(model.received) == 1


async def test_a_failed_turn_can_be_continued(looopy, model):
    """`--continue` asks the model again without a new message."""
    model.answers.insert(0, refuses(400, "not now", type="invalid_request_error"))
    assert (await looopy("chat", "--message", "one")).status == 1
    ended = await looopy("chat", "--continue", "--message", "two")
    assert (ended.status, ended.out) == (0, "You said: one\nYou said: two\n")


async def test_continuing_a_finished_conversation_succeeds(looopy):
    """A script may always pass `--continue`."""
    ended = await looopy("chat", "--continue", "--message", "one")
    assert (ended.status, ended.out) == (0, "You said: one\n")
    assert "no interrupted turn" in ended.err


async def test_a_chat_killed_in_a_slow_tool_continues_in_the_next_process(looopy, model):
    """The call that was running runs again; what came before stays, and is not asked for again."""
    pipe = asyncio.subprocess.PIPE
    said = ("--json", "--message", "calculate 6*7", "--message", "wait 4")
    process = await looopy.start("chat", *said, stdout=pipe, stderr=subprocess.DEVNULL)
    async for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "tool_execution_start" and event["tool_name"] == "wait":
            break
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    asked = len(model.received)
    ended = await looopy("chat", "--json", "--continue", "--message", "hello")
    assert ended.status == 0
    starts = [e for e in ended.events if e["type"] == "turn_start"]
    ran = [e["tool_name"] for e in ended.events if e["type"] == "tool_execution_end"]
    texts = [e["delta"] for e in ended.events if e["type"] == "message_update"]
    assert [(s["turn"], s["continues"]) for s in starts] == [(3, 2), (4, None)]
    assert ran == ["wait"]
    assert "".join(texts) == "The tool said: Waited 4 seconds.You said: hello"
    assert len(model.received) == asked + 2


async def test_a_script_without_continue_sends_its_message(looopy, model):
    """The interrupted call is answered for the model, and the conversation goes on."""
    pipe = asyncio.subprocess.PIPE
    said = ("--json", "--message", "wait 600")
    process = await looopy.start("chat", *said, stdout=pipe, stderr=subprocess.DEVNULL)
    async for line in process.stdout:
        if json.loads(line)["type"] == "tool_execution_start":
            break
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    ended = await looopy("chat", "--message", "hello")
    assert (ended.status, ended.out) == (0, "You said: hello\n")
    roles = [m["role"] for m in model.received[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_ctrl_c_in_a_script_cancels_the_turn(looopy, model):
    """What the model had said is shown, the turn ends as cancelled, and the status says so."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "so far"}), HOLD]))
    pipe = asyncio.subprocess.PIPE
    process = await looopy.start("chat", "--json", "--message", "hi", stdout=pipe, stderr=pipe)
    events = []
    async for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "message_update":
            process.send_signal(signal.SIGINT)
            break
    rest, _ = await process.communicate()
    events += [json.loads(line) for line in rest.splitlines()]
    assert process.returncode == 1
    assert events[-1]["type"] == "turn_end"
    assert events[-1]["outcome"] == "cancelled"


async def test_a_turn_elsewhere_refuses_a_message_here(looopy, model):
    """The message is not stored, and the reason names the turn."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "so far"}), HOLD]))
    pipe = asyncio.subprocess.PIPE
    process = await looopy.start("chat", "--json", "--message", "hi", stdout=pipe, stderr=pipe)
    async for line in process.stdout:
        if json.loads(line)["type"] == "message_update":
            break
    ended = await looopy("chat", "--message", "me too")
    assert (ended.status, ended.out) == (1, "")
    assert "Turn 1 of this conversation runs in another process" in ended.err
    assert "turn 1 is running" in ended.err.splitlines()[-1]
    process.kill()
    await process.communicate()


# --- JSON --------------------------------------------------------------------------------------


async def test_json_output_is_one_event_a_line(looopy):
    """Deltas are there, the order is the turn's, and all is ASCII without control characters."""
    ended = await looopy("chat", "--json", "--message", "calculate 2+2", "--message", HOSTILE)
    assert ended.status == 0
    assert ended.out.isascii()
    assert ended.out.replace("\n", "").isprintable()
    types = [event["type"] for event in ended.events]
    assert types[0] == "turn_start"
    assert types.count("turn_end") == 2
    assert types[-1] == "turn_end"
    assert {"message_update", "tool_execution_start", "tool_execution_end"} <= set(types)
    last = [e for e in ended.events if e["turn"] == 2]
    deltas = "".join(e.get("delta", "") for e in last)
    assert deltas == f"You said: {HOSTILE}"


# --- hostile text ------------------------------------------------------------------------------


def _obeyed(text):
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Cf")]


async def test_an_answer_reaches_no_terminal_as_a_command(looopy, model):
    """Also when a sequence is cut between two deltas, and when it is shown again later."""
    name = {"index": 0, "id": "c1", "type": "function"}
    name["function"] = {"name": "x\x1b[31m", "arguments": json.dumps({"\x1b[1m": HOSTILE})}
    model.answers[:0] = [
        streams("\x1b", "[2J\x9b", *HOSTILE),
        Answer(pieces=[*calls("x").pieces[:0], chunk({"tool_calls": [name]}), *streams().pieces]),
        says(HOSTILE),
    ]
    shown = await looopy("chat", "--message", "one", "--message", HOSTILE)
    again = await looopy("chat", stdin="bye\n")
    stored = await looopy("contexts", "show", "chat")
    for ended in (shown, again, stored):
        assert ended.status == 0, ended.err
        assert "AAAA" in ended.out
        assert _obeyed(ended.out + ended.err) == []


async def test_piped_output_has_no_colours(looopy):
    """What is no terminal gets text alone."""
    ended = await looopy("chat", "--message", "calculate 1+1")
    assert "\x1b" not in ended.out + ended.err


# --- bad input ---------------------------------------------------------------------------------


def _is_short(ended):
    lines = ended.err.splitlines()
    said = lines[next(i for i, line in enumerate(lines) if "error:" in line) :]
    return len(said) <= 2 and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--model", "nobody/knows"], "no provider knows"),
        (["--model", "gpt-5-mini"], "did you mean 'openai/gpt-5-mini'"),
        (["bad id"], "context id 'bad id' is not usable"),
        (["\x1b[2J"], "is not usable"),
        (["--db", "chat.db"], "names no store"),
        (["--db", "sqlite:////nowhere/at/all/x.db"], "does not exist"),
        (["--message", " "], "the message is empty"),
    ],
)
async def test_wrong_usage_prints_two_lines_and_makes_no_file(looopy, model, args, why):
    """Status 2, the way out in the message, no traceback, no database."""
    ended = await looopy("chat", *args, "--message", "hello")
    assert (ended.status, ended.out) == (2, "")
    assert why in ended.err
    assert _is_short(ended)
    assert "\x1b" not in ended.err
    assert not looopy.database.exists()
    assert model.received == []


async def test_a_missing_key_names_its_variable(looopy):
    """Nothing is made before the model can be used."""
    del looopy.env["OPENAI_API_KEY"], looopy.env["OPENAI_BASE_URL"]
    ended = await looopy("chat", "--model", "openai/gpt-5-mini", "--message", "hello")
    assert ended.status == 2
    assert "set OPENAI_API_KEY" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not looopy.database.exists()


async def test_a_traceback_is_printed_only_on_request(looopy):
    """`LOOOPY_DEBUG=1` shows where an error came from, before its line."""
    looopy.env["LOOOPY_DEBUG"] = "1"
    ended = await looopy("chat", "--model", "nobody/knows", "--message", "hello")
    assert ended.status == 2
    assert ended.err.startswith("Traceback")
    assert ended.err.splitlines()[-1].startswith("error: no provider knows")


async def test_a_data_folder_that_cannot_be_made_is_reported(looopy):
    """With the variable that mends it."""
    (looopy.home / "data").write_text("in the way")
    ended = await looopy("chat", "--message", "hello")
    assert ended.status == 2
    assert "set LOOOPY_DATA" in ended.err
    assert _is_short(ended)


async def test_a_damaged_database_is_left_as_it_is(looopy):
    """The error says what to do, and nothing is written into the file."""
    broken = looopy.home / "broken.db"
    broken.write_bytes(b"this is no database, " * 300)
    before = broken.read_bytes()
    ended = await looopy("chat", "--db", f"sqlite:///{broken}", "--message", "hello")
    assert ended.status == 2
    assert "is damaged, or is not an SQLite database" in ended.err
    assert _is_short(ended)
    assert broken.read_bytes() == before


async def test_a_database_of_a_newer_version_is_refused(looopy):
    """Both schemas are named, and nothing is said to the model."""
    await looopy("chat", "--message", "hello")
    with sqlite3.connect(looopy.database) as database:
        database.execute("UPDATE looopy_version SET version_num = '9999'")
    database.close()
    ended = await looopy("chat", "--message", "again")
    assert (ended.status, ended.out) == (2, "")
    assert "9999" in ended.err
    assert _is_short(ended)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"x" * 17_000_000, "17,000,0"),
        (b"a\xffb", "lone surrogate"),
        (b"a\0b", "NUL"),
        (b" \n", "the message is empty"),
    ],
)
async def test_a_message_that_cannot_be_stored_is_refused_whole(looopy, model, text, why):
    """Nothing of it reaches the database or the model."""
    ended = await looopy("chat", "--message", "-", stdin=text)
    assert (ended.status, ended.out) == (2, "")
    assert why in ended.err
    assert _is_short(ended)
    assert model.received == []
    listed = json.loads((await looopy("contexts", "list", "--json")).out)
    assert listed["items"] == []


async def test_a_reader_that_leaves_ends_the_program_quietly(looopy, model):
    """No traceback, no message, and a status that is not success."""
    model.answers.insert(0, Answer(pieces=[chunk({"content": "x" * 500_000}), HOLD]))
    pipe = asyncio.subprocess.PIPE
    process = await looopy.start("chat", "--message", "hi", stdout=pipe, stderr=pipe)
    assert await process.stdout.read(10)
    process.transports["stdout"].close()
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert b"rror" not in err


# --- loading -----------------------------------------------------------------------------------


def test_help_imports_few_modules():
    """`looopy --help` is quick because it imports neither asyncio nor any library."""
    code = (
        "import sys\nfrom looopy.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "chat" in done.stdout
    loaded = set(done.stderr.split())
    heavy = {
        "asyncio",
        "pydantic",
        "sqlalchemy",
        "alembic",
        "openai",
        "reactivex",
        "looopy.agent.agent",
    }
    assert loaded & heavy == set()
