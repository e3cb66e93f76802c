"""The parts of the HTTP API that the page needs, and the page's own files, in this process."""

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import pairwise

from tests.server.loopback import client_of
from tests.web.cases import QUICK, Thinker

from looopy import Agent, ToolContext, open_stores, tool
from looopy.server import AgentHost, create_app, ui_page
from looopy.server.gate.auth import StaticTokens
from looopy.server.page import timeline
from looopy.stores.defaults import BasicContextIndex
from looopy.telemetry import process_name
from looopy.testing import ScriptedProvider, text, tool_call

ADA, BEN = "a" * 20, "b" * 20


@asynccontextmanager
async def serving(build, stores):
    """A client of one host on *stores*; the host lets no turn end when it closes."""
    async with AgentHost(build, stores, drain_s=0.01) as host:
        tokens = StaticTokens({ADA: "ada", BEN: "ben"})
        app = create_app(host, authenticate=tokens, protocols=[ui_page])
        async with client_of(app, ADA) as client:
            yield client, host


async def streamed(client, path, **body):
    """The frames of a turn: name and data."""
    accept = {"Accept": "text/event-stream"}
    answer = await client.post(path, json=body, headers=accept)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        lines = dict(line.split(":", 1) for line in block.splitlines())
        found.append((lines.get("event", "").strip(), json.loads(lines["data"])))
    return found


async def test_a_page_finds_lists_and_reads_without_reading_everything():
    """Titles, search, the newest messages first, long texts cut, and one message whole."""

    @tool(effects="none")
    def dump() -> str:
        return "x" * 5000

    replies = [tool_call("dump"), text("A zebra.")] + [text(f"No. {i}") for i in range(9)]
    model = ScriptedProvider(replies)

    def build(context_id, stores):
        return Agent(context_id, llm_provider=model, stores=stores, tools=[dump])

    async with open_stores("memory:") as stores, serving(build, stores) as (client, _):
        await streamed(client, "/contexts/c/turns", message="Show\n me " + "all " * 40)
        for i in range(9):
            await streamed(client, "/contexts/c/turns", message=f"Question {i}")
        [item] = (await client.get("/contexts?title=true")).json()["items"]
        assert item["title"].startswith("Show me all all")
        assert len(item["title"]) == 80
        assert (item["last_position"], item["lease"]) == (22, None)
        [hit] = (await client.get("/search?query=zebra")).json()["items"]
        assert (hit["context_id"], hit["position"], hit["matches"]) == ("c", 4, [[2, 7]])
        assert (await client.get("/search?query=")).json()["error"]["path"] == "/query"
        other = {"Authorization": f"Bearer {BEN}"}
        assert (await client.get("/search?query=zebra", headers=other)).json()["items"] == []

        below, seen = 23, []
        while below is not None:
            page = (await client.get(f"/contexts/c/messages?before={below}&limit=5")).json()
            places = [one["position"] for one in page["items"]]
            assert places == sorted(places)
            seen, below = places + seen, page["next"]
        assert seen == list(range(1, 23))
        await client.post("/contexts/c/rewind", json={"to": 8})
        page = (await client.get("/contexts/c/messages?before=23&limit=3")).json()
        assert [one["position"] for one in page["items"]] == [14, 15, 16]
        assert (await client.get("/contexts/c")).json()["hidden_messages"] == 6
        turns = (await client.get("/contexts/c/turns")).json()["items"]
        assert [one["turn"] for one in turns if one["hidden"]] == [8, 9, 10]
        for turn in (7, 8):
            found = (await client.get(f"/contexts/c/turns/{turn}/timeline")).json()
            assert [run["hidden"] for run in found["runs"]] == [turn == 8]
        await client.post("/contexts/c/undo-rewind", json={})
        assert (await client.get("/contexts/c")).json()["hidden_messages"] == 0
        page = (await client.get("/contexts/c/messages?before=99999&limit=1")).json()
        assert [one["position"] for one in page["items"]] == [22]

        page = (await client.get("/contexts/c/messages?clip=100")).json()
        [cut] = [one for one in page["items"] if "clipped" in one][1:]
        assert cut["clipped"] == {"/content/0/text": 5000}
        assert cut["message"]["content"][0]["text"] == "x" * 100
        whole = (await client.get(f"/contexts/c/messages/{cut['position']}")).json()
        assert whole["message"]["content"][0]["text"] == "x" * 5000
        [event] = await stores.journal.events("c", after=cut["seq"] - 1, limit=1)
        assert (event.type, event.position) == ("message_end", cut["position"])
        for path in ("messages/99", "messages/0", "turns/99/timeline"):
            assert (await client.get(f"/contexts/c/{path}")).status_code == 404, path
        for query in ("clip=99", "clip=x", "before=-1"):
            assert (await client.get(f"/contexts/c/messages?{query}")).status_code == 400, query
        for path in ("messages/1", "turns/1/timeline"):
            assert (await client.get(f"/contexts/c/{path}", headers=other)).status_code == 404


async def test_the_compact_stream_includes_the_fields_a_page_requests():
    """Thinking as it grows, reports and retries; each only if it is asked for."""

    @tool(effects="none")
    def look(context: ToolContext) -> str:
        context.report("half")
        return "y" * 900

    def build(context_id, stores):
        scripted = ScriptedProvider([tool_call("look"), text("Done.")])
        model = Thinker() if "thinks" in context_id else scripted
        return Agent(context_id, llm_provider=model, stores=stores, tools=[look], loop_config=QUICK)

    include = "include=status_change&include=tool_execution_update&include=thinking"
    async with open_stores("memory:") as stores, serving(build, stores) as (client, _):
        seen = await streamed(
            client, f"/contexts/thinks/turns?format=compact&{include}", message="Hi."
        )
        names = [name for name, _ in seen]
        retry = names.index("status_change")
        assert seen[retry][1]["attempt"] == 2
        for part in (seen[:retry], seen[retry:]):  # before the call broke off, and after
            thought = [data for name, data in part if name == "thinking"]
            assert "".join(thought) == "hm hm."
        assert "".join(data for name, data in seen[retry:] if not name) == "Hello there 🦜."
        path = f"/contexts/tool/turns?format=compact&clip=100&{include}"
        seen = await streamed(client, path, message="Look.")
        assert "tool_execution_update" in [name for name, _ in seen]
        [cut] = [data for _, data in seen if "clipped" in data]
        assert cut["clipped"] == {"/message/content/0/text": 900}
        for context in ("thinks2", "tool2"):
            path = f"/contexts/{context}/turns?format=compact"
            seen = await streamed(client, path, message="Again.")
            unasked = {"status_change", "tool_execution_update", "thinking"}
            assert not unasked & {name for name, _ in seen}
            assert not any("clipped" in data for _, data in seen)
        answer = await client.get("/contexts/tool/events?format=compact&include=usage")
        assert answer.json()["error"]["path"] == "/include"


async def test_the_timeline_shows_each_run_of_a_turn_that_was_cut_twice(monkeypatch):
    """Its runs, the last sign of each lost one, its calls, and the approval between two runs."""
    began, waits = asyncio.Event(), True

    @tool(effects="idempotent", on_resume="rerun")
    async def fetch() -> str:
        began.set()
        if waits:
            await asyncio.Event().wait()
        return "fetched"

    @tool(needs_approval=True)
    def pay(eur: int) -> str:
        return f"paid {eur}"

    def reply(request):
        results = [m.tool_name for m in request.messages if m.role == "toolResult"]
        if not results:
            return tool_call("fetch")
        return text("Done.") if "pay" in results else tool_call("pay", eur=5)

    def build(context_id, stores):
        model = ScriptedProvider(reply)
        return Agent(context_id, llm_provider=model, stores=stores, tools=[fetch, pay])

    async with open_stores("memory:") as stores:
        for body in ({"message": "Go."}, {}):
            began.clear()
            async with serving(build, stores) as (client, _):
                await client.post("/contexts/c/turns", json=body)
                await began.wait()
                lease = (await client.get("/contexts/c")).json()["lease"]
                assert lease["turn"] == (1 if body else 2)
                assert (lease["process"], lease["here"], lease["live"]) == (os.getpid(), True, True)
        waits = False
        async with serving(build, stores) as (client, _):
            await streamed(client, "/contexts/c/turns")
            [request] = (await client.get("/contexts/c")).json()["pending"]
            answer = {"approved": True, "args": {"eur": 4}, "note": "less"}
            await streamed(client, "/contexts/c/turns", inputs={request["request_id"]: answer})
            await streamed(client, "/contexts/c/turns", message="Another.")
            found = (await client.get("/contexts/c/turns/3/timeline")).json()
            with monkeypatch.context() as patch:
                patch.setattr(timeline, "_PAGE_BYTES", 1)  # one message in each page
                patch.delattr(type(stores.journal), "events")
                assert (await client.get("/contexts/c/turns/3/timeline")).json() == found
            with monkeypatch.context() as patch:
                patch.setattr(type(stores.contexts), "log_page", BasicContextIndex.log_page)
                assert (await client.get("/contexts/c/turns/3/timeline")).json() == found
            monkeypatch.setattr(timeline, "_MOST_SPANS", 2)
            short = (await client.get("/contexts/c/turns/3/timeline")).json()["runs"]
    assert [len(run["spans"]) for run in short] == [2, 0, 0, 0]
    for name, counts in (("left_out", [0, 1, 2, 2]), ("marks_left_out", [0, 0, 1, 1])):
        assert [run[name] for run in short] == counts
    assert [run["model_calls"] for run in short] == [1, 0, 1, 1]
    runs = found["runs"]
    outcomes = ["interrupted", "interrupted", "input_required", "completed"]
    assert [run["outcome"] for run in runs] == outcomes
    assert [run["turn"] for run in runs] == [1, 2, 3, 4]
    spans = [[(one["kind"], one["name"]) for one in run["spans"]] for run in runs]
    model = ("model", "scripted")
    fetched, paid = ("tool", "fetch"), ("tool", "pay")
    assert spans == [[model, fetched], [fetched], [fetched, model], [paid, model]]
    assert [run["spans"][-1]["ended"] for run in runs[:2]] == [None, None]
    assert {run["process"] for run in runs} == {process_name()}
    assert [run["recovered_by"] for run in runs] == [process_name(), process_name(), None, None]
    for run, following in pairwise(runs):
        assert (run["last_sign"] is not None) == (run["outcome"] == "interrupted")
        assert run["last_sign"] is None or run["last_sign"] < run["ended"]
        last = run["last_sign"] or run["ended"]
        assert run["started"] <= run["spans"][-1]["started"] <= last
        assert last <= run["ended"] <= following["started"]
    assert [(one["kind"], one["name"]) for one in runs[2]["marks"]] == [("asks", "pay")]
    [decided] = runs[3]["marks"]
    assert (decided["decision"], decided["actor_id"], decided["text"]) == (
        "approved",
        "ada",
        "less",
    )
    assert (found["complete"], runs[3]["left_out"]) == (True, 0)


async def test_the_page_comes_under_a_policy_that_runs_only_its_own_files():
    """No inline script, no other origin, and no module that reads text as markup."""
    async with open_stores("memory:") as stores, serving(lambda *_: None, stores) as (client, _):
        client.headers.pop("Authorization")
        page = await client.get("/ui")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "connect-src 'self'" in policy
        assert "unsafe" not in policy
        assert (page.status_code, page.headers["referrer-policy"]) == (200, "no-referrer")
        assert re.findall(r"<script[^>]*>(.)", page.text) == ["<"]
        assert re.findall(r"\b(?:on\w+|style)=", page.text) == []
        shown = files("looopy.server.page") / "static"
        for file in shown.iterdir():
            answer = await client.get(f"/ui/{file.name}")
            assert answer.status_code == 200, file.name
            sinks = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc"
            assert not re.search(sinks, answer.text), file.name
            assert not re.search(r"(?:src|href)=.https?:|@import|url\(.?http", answer.text), (
                file.name
            )
        assert answer.headers["content-security-policy"] == policy
        for path in ("/ui/", "/ui/none.js", "/ui/..%2Froutes.py"):
            assert (await client.get(path)).status_code == 404, path
