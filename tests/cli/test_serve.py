"""`looopy serve`, as a person runs it: two processes on one database, one of which is killed."""

import json
import signal
import socket
from contextlib import suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.cli.conftest import WAITING

from looopy.cli.main import main
from looopy.cli.serve import PUSH_KEY, _notifications

LIMITS = {
    "streams=": "write streams=NUMBER, such as streams=2000",
    "running_turns_per_tenant=many": "running_turns_per_tenant=60",
    "stream=2": "there is no limit 'stream', only body_bytes, ",
    "page=0": "Limits.page takes a number above 0",
}


@pytest.mark.parametrize("said", LIMITS)
def test_an_invalid_limit_is_reported_at_the_start(said, capsys):
    """Before anything is opened; a right one takes part in the same check."""
    assert main(["serve", "app:build", "--limit", "body_s=2.5", "--limit", said]) == 2
    assert LIMITS[said] in capsys.readouterr().err


def test_a_short_metrics_token_is_named_at_the_start(capsys, monkeypatch):
    """The error says which variable, before anything is opened."""
    monkeypatch.setenv("LOOOPY_METRICS_TOKEN", "short")
    assert main(["serve", "app:build"]) == 2
    assert "LOOOPY_METRICS_TOKEN: a token has at least 16" in capsys.readouterr().err


def frames(response):
    """The frames of a stream: id, name, data."""
    lines = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            lines[name] = value
        elif "event" in lines:
            yield lines.get("id"), lines["event"], json.loads(lines["data"])
            lines = {}


def test_a_killed_server_loses_no_turn_and_another_one_continues_it(serving, tmp_path):
    """Who listens to the other process sees the end, continues by `{}`, and misses no event."""
    with serving() as (one, here), serving() as (other, there):
        body = {"message": "Please wait."}
        assert here.post("/contexts/trip/turns", json=body).json()["turn"] == 1
        seen = []
        with there.stream("GET", "/contexts/trip/events?after=0") as stream:
            for place, name, data in frames(stream):
                seen.append((place, name))
                if name == "tool_execution_start":
                    one.kill()
                if name == "turn_end":
                    assert data["outcome"] == "interrupted"
                    break
        state = there.get("/contexts/trip").json()
        assert (state["status"], state["interrupted_turn"]) == ("ready", 1)
        (tmp_path / "go").touch()
        assert there.post("/contexts/trip/turns", json={}).json()["turn"] == 2
        assert there.get("/v1/models").status_code == 200  # a face
        last = {"Last-Event-ID": seen[-1][0]}
        with there.stream("GET", "/contexts/trip/events", headers=last) as stream:
            for place, name, data in frames(stream):
                seen.append((place, name))
                if name == "turn_end":
                    assert data["outcome"] == "completed"
                    break
        places = [int(place) for place, _ in seen if place]
        assert places == list(range(1, len(places) + 1))
        said = there.get("/contexts/trip/messages").json()["items"][-1]["message"]
        assert said["content"][0]["text"] == "Done."
        other.send_signal(signal.SIGTERM)
        assert other.wait() == 0
        assert other.stderr.read() == ""


@pytest.mark.long
def test_a_client_of_one_server_sees_the_turns_of_another_one_on_postgres(
    serving, tmp_path, postgres
):
    """Each durable event once and in order, also of a turn whose server is killed on the way."""
    go, path = tmp_path / "go", "/contexts/trip"
    go.touch()
    more = ("--db", postgres)
    with serving(*more) as (one, here), serving(*more) as (_, there):
        here.post(f"{path}/turns", json={"message": "First."})
        seen, ends = [], []
        with there.stream("GET", f"{path}/events?after=0") as stream:
            for place, name, data in frames(stream):
                if place:
                    seen.append((int(place), data))
                if name == "turn_end":
                    ends.append((data["turn"], data["outcome"]))
                    if len(ends) == 1:
                        here.post(f"{path}/turns", json={"message": "Second."})
                    elif len(ends) == 2:
                        go.unlink()
                        here.post(f"{path}/turns", json={"message": "Third."})
                    elif len(ends) == 3:
                        go.touch()
                        there.post(f"{path}/turns", json={})
                    else:
                        break
                if name == "tool_execution_start" and data["turn"] == 3:
                    one.kill()
        done = "completed"
        assert ends == [(1, done), (2, done), (3, "interrupted"), (4, done)]
        assert [place for place, _ in seen] == list(range(1, len(seen) + 1))
        assert there.get(path).json()["last_seq"] == len(seen)
        said = [data["message"] for _, data in seen if data["type"] == "message_end"]
        stored = [item["message"] for item in there.get(f"{path}/messages").json()["items"]]
        assert said == stored


def test_the_end_waits_for_a_turn_or_cuts_it(serving, tmp_path):
    """A turn that takes longer is cut: exit status 1, and the next process continues it."""
    body, accept = {"message": "Please wait."}, {"Accept": "text/event-stream"}
    with serving("--drain", "0.1") as (process, client):
        with (
            suppress(httpx.RemoteProtocolError),  # so little time may cut the response, too
            client.stream("POST", "/contexts/c/turns", json=body, headers=accept) as stream,
        ):
            for _, name, _ in frames(stream):
                if name == "tool_execution_start":
                    process.send_signal(signal.SIGTERM)
                    break  # nobody waits for a stream that is cut: it may lack its end
        assert process.wait() == 1
    (tmp_path / "go").touch()
    with serving("--push", "*") as (process, client):
        card = client.get("/.well-known/agent-card.json").json()
        assert card["capabilities"]["pushNotifications"]
        turns = client.get("/contexts/c/turns").json()["items"]
        assert [turn["outcome"] for turn in turns] == ["interrupted"]
        with client.stream("POST", "/contexts/c/turns", json={}, headers=accept) as stream:
            assert [data for _, _, data in frames(stream)][-1]["outcome"] == "completed"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_stream_has_the_end_of_its_turn_before_the_process_ends(serving, tmp_path):
    """The turn ends within the time to drain: the exit status is 0, and no frame is lost."""
    app = WAITING.replace('text("Done.")', 'text("Done." * 200_000)')
    body, accept = {"message": "Please wait."}, {"Accept": "text/event-stream"}
    with serving("--drain", "60", app=app) as (process, client):
        with client.stream("POST", "/contexts/c/turns", json=body, headers=accept) as stream:
            for _, name, data in frames(stream):
                last = name, data.get("outcome")
                if name == "tool_execution_start":
                    process.send_signal(signal.SIGTERM)
                    while client.get("/readyz").status_code == 200:
                        pass  # it has not begun to drain
                    (tmp_path / "go").touch()
            assert last == ("turn_end", "completed")
        assert process.wait() == 0


PATHS = {
    "http": ("GET", "/contexts"),
    "page": ("GET", "/ui"),
    "a2a": ("GET", "/.well-known/agent-card.json"),
    "ag-ui": ("POST", "/ag-ui"),
    "ai-sdk": ("POST", "/api/chat"),
    "mcp": ("POST", "/mcp"),
    "responses": ("GET", "/v1/models"),
}


@pytest.mark.parametrize("names", [None, "http, page", "a2a,mcp", "ag-ui,ai-sdk,responses", "http"])
def test_a_protocol_that_is_left_out_is_not_there(names, tmp_path, monkeypatch):
    """Its paths are 404, as if there were no such thing; the probes stay."""
    served: list[Starlette] = []

    async def serves(app: Starlette, _host: object, listening: socket.socket, *_: object) -> int:
        listening.close()
        served.append(app)
        return 0

    monkeypatch.setattr("looopy.cli.serve._run", serves)
    (tmp_path / "app.py").write_text(WAITING)
    command = ["serve", f"{tmp_path}/app.py:build", "--db", f"sqlite:///{tmp_path}/app.db"]
    assert main([*command, "--port", "0", *(["--protocols", names] if names else [])]) == 0
    named = PATHS if names is None else [name.strip() for name in names.split(",")]
    with TestClient(served[0], "http://localhost") as client:
        there = [
            name
            for name, (method, path) in PATHS.items()
            if client.request(method, path).status_code != 404
        ]
        assert there == [name for name in PATHS if name in named]
        assert (client.get("/openapi.json").status_code == 200) == ("http" in named)
        assert client.get("/healthz").status_code == 200


def test_push_names_the_hosts_that_may_receive(monkeypatch):
    """Without it there are no notifications; the key comes from the environment alone."""
    monkeypatch.setenv(PUSH_KEY, "k" * 32)
    assert _notifications([]) is None
    some, every = _notifications(["a.example", "b.example:8443"]), _notifications(["*"])
    assert (some.receivers, some.key) == (["a.example", "b.example:8443"], "k" * 32)
    assert every.receivers is None
    monkeypatch.setenv(PUSH_KEY, "")
    assert _notifications(["*"]).key is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "::"], "name a function with --auth"),
        (["--host", "::", "--auth", "json:loads"], "--allow-host"),
        (["--auth", "json:nothing"], "has no 'nothing'"),
        (["--port", "99999"], "0 to 65535"),
        (["--push", "https://example.org"], "takes hosts"),
        (["--protocols", "a2a,soap"], "has no 'soap': it takes a2a, ag-ui, ai-sdk, http, mcp, "),
        (["--protocols", "a2a,page"], "the page needs the HTTP API"),
        (["--protocols", "http", "--push", "*"], "--push is about A2A"),
        (["--host", "127.0.0.0.1"], "name a function with --auth"),
        (["--host", "::1%none"], "cannot listen"),
        (["--host", "no.such.host.invalid", "--auth", "json:loads"], "--allow-host"),
    ],
)
def test_a_server_that_would_be_open_does_not_start(arguments, says, tmp_path, capsys, monkeypatch):
    """Usage is exit status 2, in one line, before anything listens."""

    async def serves(*_: object) -> int:
        return 0  # a server would stay, and the test with it

    monkeypatch.setattr("looopy.cli.serve._run", serves)
    (tmp_path / "app.py").write_text(WAITING)
    command = ["serve", f"{tmp_path}/app.py:build", "--db", f"sqlite:///{tmp_path}/app.db"]
    assert main([*command, *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
