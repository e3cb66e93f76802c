"""Each example runs as a user would run it: in a process of its own, without a key or a network."""

import asyncio
import contextlib
import http.client
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi import HTTPException

import looopy.sync
from looopy.testing import ScriptedProvider, text

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(name="ran")
def _ran(preloaded, tmp_path):
    """A function from an example to what it printed, as lines; it may write no error."""

    def run(name, *args):
        env = {key: value for key, value in os.environ.items() if not key.startswith("LOOOPY_")}
        env |= {"TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"}
        with preloaded.popen(args, env, tmp_path, str(EXAMPLES / name)) as child:
            lines = child.stdout.read().splitlines()
            assert (child.stderr.read(), child.wait()) == ("", 0)
        return lines

    return run


def _started(name, *args, cwd, typed=""):
    """The same of a process that Python starts, which is given a text as its input."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOOOPY_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *args],
        cwd=cwd,
        env=env | {"TMPDIR": str(cwd)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def test_a_killed_turn_continues_and_charges_once(ran):
    """What had finished is not run again; what may run again does, with the same key."""
    died, interrupted, answer, *world = ran("resume_after_restart.py")
    assert died == "the first process ended with -9"
    assert interrupted == "turn 1 was interrupted"
    assert answer == "All done."
    assert world == [
        "charging 90, key trip-1/1/call_1",
        "booking room 7, key trip-1/1/call_2",
        "booking room 7, key trip-1/1/call_2",
    ]


def test_an_approval_is_answered_by_another_process(ran):
    """What was shown is what runs, once."""
    assert ran("approval_next_day.py") == [
        "input_required",
        "May pay run with these arguments? {'invoice': '2024-17', 'cents': 90000}",
        "waiting",
        "paid 900.00 for 2024-17",
        "Invoice 2024-17 is paid.",
    ]


def test_stores_of_ones_own_keep_the_past_of_an_agent(ran):
    """A file, a table, and a store that can compare."""
    assert ran("messages_in_a_file.py") == [
        "I see 1 messages.",
        "I see 3 messages.",
        "4 lines",
    ]
    assert ran("messages_in_your_table.py") == ["['user', 'assistant']"]
    assert ran("stores_in_redis.py") == [
        "1 turns, 2 messages",
        "2 turns, 4 messages",
    ]


def test_a_stream_shows_pieces_and_tools_in_order(ran):
    """Text, tool, progress, result, text, end."""
    lines = ran("streaming.py")
    assert lines == [
        "Let me| look.| |",
        "[search {'words': 'durable'}]",
        "[50%]",
        "[3 books match 'durable']",
        "There |are th|ree bo|oks ab|out it|.|",
        lines[5],
        "2 model calls",
    ]
    assert lines[5].startswith("completed, ")


def test_a_question_of_an_mcp_server_is_asked_of_the_user(ran):
    """Its tools are called, its question ends the turn, and the answer goes on."""
    assert ran("mcp_tools.py") == [
        "rooms 3 and 7",
        "input_required - In whose name?",
        "room 7 is booked for Ada - Room 7 is yours.",
    ]


def test_each_policy_has_its_documented_effect(ran):
    """One runs again, one waits for a person, one tells that the outcome is unknown."""
    rerun, ask, fail = ran("tools_and_resume.py")
    assert rerun == "rerun (0 to approve): ran to its end"
    assert ask == "ask (1 to approve): ran to its end"
    assert fail.startswith("fail (0 to approve): The outcome of this call is unknown.")


def test_a_chat_without_async_remembers_after_a_restart(tmp_path):
    """The second process counts what was said in the first."""
    first = _started("blocking_chat.py", "chat.db", cwd=tmp_path, typed="one\ntwo\n\n")
    assert first == ["0 turns so far", "> You said 1 things.", "> You said 2 things.", "> "]
    second = _started("blocking_chat.py", "chat.db", cwd=tmp_path, typed="three\n")
    assert second == ["2 turns so far", "> You said 3 things.", "> "]


def test_an_agent_that_was_killed_at_work_books_once(ran):
    """The second process finds what the inner agent had done, and goes on from there."""
    lines = ran("agent_as_tool.py")
    assert lines.count("booking NJ 295") == 1
    assert lines[-4:] == [
        "agent:clerk toolResult paid",
        "agent:clerk assistant All booked.",
        "toolResult All booked.",
        "assistant Off you go!",
    ]


def test_an_answer_that_breaks_a_rule_is_given_again(ran):
    """The type's rule is told to the model, and the second answer is the output."""
    warning, plan = ran("structured_output.py")
    assert warning.startswith("answer 1 of 3 does not fit output_type: ")
    assert plan == "3 nights in Rome, with ['Pantheon']"


def test_only_the_url_differs_between_stores(ran, postgres):
    """Memory, SQLite and Postgres answer alike."""
    lines = [line.partition(": ") for line in ran("same_agent_by_url.py", postgres)]
    assert [scheme for scheme, _, _ in lines[::2]] == ["memory", "sqlite", "postgresql"]
    said = [rest for _, _, rest in lines]
    assert said[:2] == said[2:4] == said[4:]
    assert said[1] == "turn 2, ['I am Ada.', 'Who am I?']: I was shown 3 messages."


def test_a_turn_is_steered_and_asked_on_while_it_runs(ran):
    """Calls that have not begun give way, and the last question is answered in the same turn."""
    skipped = "Skipped due to queued user message."
    assert ran("steering.py") == [
        "user: Read the first three pages to me.",
        "page 1: what page 1 says",
        f"page 2: {skipped}",
        f"page 3: {skipped}",
        "user: The first page is enough.",
        "model: Page 1 says what it says.",
        "user: And who wrote it?",
        "model: Nobody knows.",
        "3 model calls, one turn",
    ]


@contextlib.contextmanager
def _serve(name, cwd):
    """Run the example as a server; gives its port, and interrupts it at the end."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LOOOPY_")}
    env["PORT"] = "0"
    command = [sys.executable, "-W", "error", EXAMPLES / name]
    with subprocess.Popen(command, cwd=cwd, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = ""
            while (found := re.search(r"http://127\.0\.0\.1:(\d+)", said)) is None:
                said = server.stderr.readline()
                assert said, "the server ended before it began"
            yield int(found[1])
        finally:
            server.send_signal(signal.SIGINT)
            said = server.stderr.read()
    assert "Traceback" not in said


def _post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": "Bearer secret-of-ada", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    return connection, connection.getresponse()


def test_a_client_that_goes_away_harms_no_turn(tmp_path):
    """One leaves at the first event, one stays: both have their answer, and no token is stored."""
    with _serve("fastapi_stream.py", cwd=tmp_path) as port:
        gone, response = _post(port, "/contexts/gone/turns", "Who am I?")
        first = json.loads(response.readline().removeprefix(b"data: "))
        assert first["type"] == "turn_start"
        response.close()
        gone.close()
        stays, response = _post(port, "/contexts/stays/turns", "Who am I?")
        events = [json.loads(line[6:]) for line in response if line.strip()]
        stays.close()
        assert (events[-1]["type"], events[-1]["outcome"]) == ("turn_end", "completed")
        assert any(event["type"] == "message_update" and event["delta"] for event in events)
    assert b"secret-of-ada" not in b"".join(p.read_bytes() for p in tmp_path.glob("contexts.db*"))
    for name in ("gone", "stays"):
        with looopy.sync.Agent(
            name, llm_provider=ScriptedProvider([]), stores=f"sqlite:///{tmp_path}/contexts.db"
        ) as agent:
            assert agent.get_messages()[-1].text == "a token of 20 characters"
            assert agent.state.interrupted_turn is None


async def test_a_service_refuses_a_second_turn_while_one_runs(tmp_path, monkeypatch):
    """409 while a turn runs; 422 for an unusable id. The end waits for the turn."""
    monkeypatch.syspath_prepend(EXAMPLES)
    service = importlib.import_module("fastapi_stream")
    monkeypatch.delitem(sys.modules, "fastapi_stream")
    go = asyncio.Event()

    async def late(_):
        await go.wait()
        return text("Done.")

    monkeypatch.setattr(service, "model", ScriptedProvider(late))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'contexts.db'}")

    async def refused(context_id):
        with pytest.raises(HTTPException) as raised:
            await service.say(context_id, "Hello?", "Bearer secret")
        return raised.value.status_code, raised.value.detail.partition(":")[0]

    async with service.lifespan(service.app):
        host = service.app.state.host
        try:
            stream = await service.say("ada", "Hello!", "Bearer secret")
            assert await refused("ada") == (409, "a turn of this agent is running")
            assert await refused("a b") == (422, "context id 'a b' is not usable")
        finally:
            go.set()  # or the end would wait for the turns
        lines = [line async for line in stream.body_iterator]
        assert '"outcome": "completed"' in lines[-1]
    assert host.agent_count == 0


def test_a_mounted_api_knows_who_is_signed_in(tmp_path):
    """A key of the request begins the turn; a stranger finds nothing, and no key is stored."""
    with _serve("starlette_app.py", cwd=tmp_path) as port, httpx.Client(timeout=60) as client:
        ada, bob = {"X-Session": "key-of-ada"}, {"X-Session": "key-of-bob"}
        url = client.get(f"http://127.0.0.1:{port}/").json()["agents"] + "/mine"
        accept = {**ada, "Accept": "text/event-stream"}
        said = client.post(f"{url}/turns", json={"message": "Who am I?"}, headers=accept)
        assert "signed in with a key of 10 characters" in said.text
        assert client.get(url, headers=ada).json()["status"] == "ready"
        assert client.get(url, headers=bob).status_code == 404
        assert client.get(url).status_code == 401
    assert b"key-of-ada" not in b"".join(p.read_bytes() for p in tmp_path.glob("contexts.db*"))


def test_the_assistant_to_serve_obeys_its_words(ran):
    """It says what was said, and asks before it pays."""
    assert ran("assistant.py") == ["You said: Hello!", "input_required"]


def test_a_provider_needs_only_stream(ran):
    """Its failure is tried again, visibly, and its text is the answer."""
    assert ran("own_provider.py") == ["attempt 2: waking up", "hello out there"]


def test_operators_of_reactivex_work_on_a_turn(ran):
    """Two subscriptions and a waiter see one turn."""
    lines = ran("subscribe_rx.py")
    assert [line for line in lines if line.startswith("stored")] == [
        "stored 1 user",
        "stored 2 assistant",
        "stored 3 toolResult",
        "stored 4 assistant",
    ]
    assert lines[3:6] == ["delta  'The sum of t'", "delta  'wo and three'", "delta  ' is five.'"]
    assert lines[-2:] == ["over", "completed"]


def test_a_stranger_finds_each_example_in_the_list():
    """Each with a line of its own, and none that is not there."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \| \S", page, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_is_run_here(path):
    """It fits on a screen, takes any model, and some test above runs it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    own = path.name in {"own_provider.py", "key_gateway.py"}  # they are a model themselves
    tests = [Path(__file__), EXAMPLES.parent / "tests" / "wire" / "test_keys.py"]
    run = rf'(\b(ran|_started|_serve)\(|EXAMPLES / )"{path.name}"'
    assert any(re.search(run, test.read_text(encoding="utf-8")) for test in tests)
    assert own or any('os.environ.get("LOOOPY_MODEL")' in line for line in lines)
