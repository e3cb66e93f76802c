"""Traces and metrics of `looopy serve`, as a collector and Prometheus get them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.telemetry.collector import collecting

CANARY = "sk-canary-90ff41a7c2e84d5ab1"
SAID = "the word of a person: marmalade"
SCRAPER = "prometheus-token-of-16"
APP = f"""
import asyncio
from pathlib import Path

from looopy import Agent, AuthContext, tool
from looopy.testing import ScriptedProvider, text, tool_call


def who(request):
    return AuthContext("ada", credentials={{"token": "{CANARY}"}})


@tool(effects="idempotent")
async def wait(note: str) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    raise KeyError("refused {CANARY} {SAID}")


def reply(request):
    called = request.messages[-1].role == "toolResult"
    return text("{SAID}") if called else tool_call("wait", note="{SAID}")


def build(context_id, stores):
    model = ScriptedProvider(reply)
    return Agent(context_id, llm_provider=model, tools=[wait], stores=stores, agent_name="desk")
"""


@contextmanager
def serving(folder, **variables):
    """A process that serves APP, whose tool waits for the file `go`; gives it, and a client."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOOPY_", "OTEL_"))}
    env = kept | variables | {"LOOOPY_METRICS_TOKEN": SCRAPER, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    command = [sys.executable, "-m", "looopy.cli", "serve", "app:build", "--port", "0"]
    command += ["--db", f"sqlite:///{folder}/app.db", "--auth", "app:who", "--log", "json"]
    with subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            place = process.stdout.readline().split()[-1]
            with httpx.Client(base_url=place, timeout=60) as client:
                yield process, client
        finally:
            process.kill()


def attributes(span):
    """The attributes of a span as texts and numbers."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.mark.long
@pytest.mark.skipif(find_spec("rotel") is None, reason="rotel has no wheel for this machine")
def test_a_collector_gets_a_turn_that_was_killed_and_continued(tmp_path):
    """
    The spans of both processes, linked; the metrics, also for Prometheus; no credential and no
    content in any of them.
    """
    (tmp_path / "app.py").write_text(APP)
    with collecting(tmp_path) as (url, sink):
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}

        def ended(name):
            return [span for span in sink.spans() if span.name == name]

        with serving(tmp_path, **told) as (process, client):
            assert client.post("/contexts/c/turns", json={"message": SAID}).status_code == 202
            [first] = sink.wait_for(lambda: ended("chat scripted"))
            process.send_signal(signal.SIGKILL)
            process.wait()
        (tmp_path / "go").touch()
        with serving(tmp_path, **told) as (process, client):
            assert client.post("/contexts/c/turns", json={}).status_code == 202
            [turn] = sink.wait_for(lambda: ended("invoke_agent desk"))
            assert client.get("/metrics").status_code == 401
            scraped = client.get("/metrics", headers={"Authorization": f"Bearer {SCRAPER}"}).text
            runs = client.get("/contexts/c/turns/2/timeline").json()["runs"]
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        sink.wait_for(lambda: "looopy.turns.recovered" in sink.metrics())
        bodies = b"".join(body for _, body in sink.bodies)

    [recovered], [tool] = ended("recover_turn"), ended("execute_tool wait")
    assert recovered.trace_id == first.trace_id != turn.trace_id
    assert recovered.parent_span_id == first.parent_span_id
    assert (turn.links[0].trace_id, turn.links[0].span_id) == (
        first.trace_id,
        first.parent_span_id,
    )
    assert tool.parent_span_id == turn.span_id
    said = attributes(turn)
    assert (said["looopy.turn"], said["looopy.turn.continues"]) == (2, 1)
    assert said["gen_ai.conversation.id"] == attributes(first)["gen_ai.conversation.id"] == "c"
    assert "gen_ai.conversation.id" not in attributes(tool)
    assert attributes(tool)["error.type"] == "tool_error"

    families = {one.name: one for one in text_string_to_metric_families(scraped)}
    assert families["looopy_turns_recovered"].samples[0].value == 1
    assert families["gen_ai_client_token_usage"].type == "histogram"
    assert {"gen_ai.invoke_agent.duration", "looopy.commit.duration"} <= sink.metrics()
    for secret in (CANARY, SAID):
        assert secret.encode() not in bodies
        assert secret not in scraped
    assert b"invoke_agent desk" in bodies
    records = [json.loads(line) for line in log.splitlines()]
    raised = next(one for one in records if "tool_call_id" in one)
    assert (raised["context_id"], raised["turn"], len(raised["trace_id"])) == ("c", 2, 32)
    assert CANARY not in log
    lost, continued = (run["process"] for run in runs)
    assert runs[0]["recovered_by"] == continued
    sent = sink.processes()
    assert [sent[span.span_id] for span in (first, recovered, turn)] == [lost, continued, continued]
    assert lost != continued
    assert {one["process"] for one in records} == {continued}
