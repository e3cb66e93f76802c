"""Each verb of each face, as somebody else: the answer for a context that is not there."""

import asyncio
import importlib.util
import re
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace

import httpx
from starlette.routing import Route
from tests.server.test_api import ADA, BEN, EVE
from tests.server.test_quotas import FACES, RUN

import looopy.server
from looopy import Agent, AuthContext, open_stores, tool
from looopy.server import AgentHost, mcp_api
from looopy.server.app import create_app
from looopy.server.gate.auth import StaticTokens
from looopy.testing import ScriptedProvider, text, tool_call

EVERY_FACE = [*FACES, mcp_api]
HERS, RUNS, UNKNOWN = "hers-1", "runs-1", "nope-1"
REQUEST = "1-call_1"  # what waits in hers


def told(**more):
    """A message of A2A."""
    return {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "Hi."}], **more}


def told_03(**more):
    """A message of A2A 0.3 over REST."""
    return {"messageId": "m2", "role": "ROLE_USER", "content": [{"text": "Hi."}], **more}


def rpc(method, version="1.0", **params):
    """A call over JSON-RPC."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return ("/a2a/v1", body, {"A2A-Version": version})


def calls(name):
    """The calls over JSON-RPC that name a context or a task."""
    task = f"task_1_{name}"
    old = {"kind": "message", "role": "user", "messageId": "m2"} | {
        "parts": [{"kind": "text", "text": "Hi."}]
    }
    push = {"url": "https://example.org/push"}
    return [
        rpc("SendMessage", message=told(taskId=task)),
        rpc("SendStreamingMessage", message=told(taskId=task)),
        rpc("GetTask", id=task),
        rpc("CancelTask", id=task),
        rpc("SubscribeToTask", id=task),
        rpc("ListTasks", contextId=name),
        rpc("CreateTaskPushNotificationConfig", taskId=task, **push),
        rpc("ListTaskPushNotificationConfigs", taskId=task),
        rpc("GetTaskPushNotificationConfig", taskId=task, id="p"),
        rpc("DeleteTaskPushNotificationConfig", taskId=task, id="p"),
        rpc("message/send", "0.3", message={**old, "taskId": task}),
        rpc("message/stream", "0.3", message={**old, "taskId": task}),
        rpc("tasks/get", "0.3", id=task),
        rpc("tasks/cancel", "0.3", id=task),
        rpc("tasks/resubscribe", "0.3", id=task),
        rpc("tasks/pushNotificationConfig/set", "0.3", taskId=task, pushNotificationConfig=push),
        rpc("tasks/pushNotificationConfig/get", "0.3", id=task),
        rpc("tasks/pushNotificationConfig/list", "0.3", id=task),
        rpc("tasks/pushNotificationConfig/delete", "0.3", id=task, pushNotificationConfigId="p"),
    ]


def posted(path, *bodies, **headers):
    """Requests with these bodies."""
    return [(path, body, headers) for body in bodies]


def got(*paths):
    """Requests without a body."""
    return [(path, None, {}) for path in paths]


def chat(name, **more):
    """A request of the AI SDK that makes no context."""
    part = {"type": "text", "text": "Hi."}
    said = {"role": "user", "id": "m2", "parts": [part]}
    return {"id": name, "messages": [said], "trigger": "regenerate-message", **more}


def answered(name):
    """A request of the AI SDK that answers what waits."""
    approval = {"id": "r", "approved": True}
    part = {"type": "tool-wait", "toolCallId": "t", "state": "approval-responded"} | {
        "approval": approval
    }
    said = {"role": "assistant", "id": "m3", "parts": [part]}
    return {"id": name, "messages": [said]}


def run(name, **more):
    """A run of AG-UI."""
    return {**RUN, "threadId": name, "messages": [], "forwardedProps": None, **more}


RESUMED = [{"interruptId": "r", "status": "resolved", "payload": True}]
# By method and path of a route: requests that name a context, and make none if it is not there.
TABLE = {
    "GET /contexts/{context_id}": lambda c: got(f"/contexts/{c}"),
    "DELETE /contexts/{context_id}": lambda c: got(f"/contexts/{c}", f"/contexts/{c}?force=true"),
    "GET /contexts/{context_id}/events": lambda c: [
        *got(f"/contexts/{c}/events", f"/contexts/{c}/events?after=1&format=compact"),
        (f"/contexts/{c}/events", None, {"Last-Event-ID": "1"}),
        (f"/contexts/{c}/events", None, {"Last-Event-ID": "999"}),
    ],
    "GET /contexts/{context_id}/messages": lambda c: got(
        f"/contexts/{c}/messages", f"/contexts/{c}/messages?include_hidden=true&after=1"
    ),
    "GET /contexts/{context_id}/messages/{position}": lambda c: got(f"/contexts/{c}/messages/1"),
    "GET /contexts/{context_id}/turns/{turn}/timeline": lambda c: got(
        f"/contexts/{c}/turns/1/timeline"
    ),
    "POST /contexts/{context_id}/turns/{turn}/replay": lambda c: posted(
        f"/contexts/{c}/turns/1/replay", {}, {"ignore": ["prompt"]}
    ),
    "POST /contexts/{context_id}/turns/{turn}/run-beside": lambda c: (
        posted(f"/contexts/{c}/turns/1/run-beside", {}, {"message": "Hi."})
        + posted(f"/contexts/{c}/turns/1/run-beside", {}, **{"Idempotency-Key": "k"})
    ),
    "GET /search": lambda c: got(f"/search?query=a&context_id={c}"),
    "GET /budget": lambda c: got(
        f"/budget?context_id={c}", f"/budget?context_id={c}&day=2026-11-23"
    ),
    "POST /contexts/{context_id}/undo-rewind": lambda c: posted(f"/contexts/{c}/undo-rewind", {}),
    "GET /contexts/{context_id}/turns": lambda c: got(f"/contexts/{c}/turns"),
    "GET /contexts/{context_id}/inbox": lambda c: got(f"/contexts/{c}/inbox"),
    "POST /contexts/{context_id}/turns": lambda c: (
        posted(f"/contexts/{c}/turns", {}, {"inputs": {"r": True}})
        + posted(f"/contexts/{c}/turns", {}, Accept="text/event-stream")
    ),
    "GET /contexts/{context_id}/artifacts": lambda c: got(f"/contexts/{c}/artifacts"),
    "GET /contexts/{context_id}/artifacts/{artifact_id:path}": lambda c: got(
        f"/contexts/{c}/artifacts/art",
        f"/contexts/{c}/artifacts/art?version=1",
        f"/contexts/{c}/artifacts/nothing",
    ),
    "POST /contexts/{context_id}/steer": lambda c: (
        posted(f"/contexts/{c}/steer", {"message": "Hi."}, {"message": "Hi.", "expected_turn": 1})
        + posted(
            f"/contexts/{c}/steer",
            {"message": "Hi.", "expected_turn": 1},
            **{"Idempotency-Key": "s"},
        )
    ),
    "POST /contexts/{context_id}/follow-up": lambda c: posted(
        f"/contexts/{c}/follow-up", {"message": "Hi."}
    ),
    "POST /contexts/{context_id}/cancel": lambda c: posted(f"/contexts/{c}/cancel", {}),
    "POST /contexts/{context_id}/decisions": lambda c: posted(
        f"/contexts/{c}/decisions",
        {"request_id": REQUEST, "answer": True},
        {"request_id": REQUEST, "answer": False},
        {"request_id": "nothing", "answer": True},
    ),
    "POST /contexts/{context_id}/fork": lambda c: posted(
        f"/contexts/{c}/fork", {"new_context_id": "mine"}, {"new_context_id": "mine", "at": 1}
    ),
    "POST /contexts/{context_id}/rewind": lambda c: posted(f"/contexts/{c}/rewind", {"to": 1}),
    "POST /contexts/{context_id}/compact": lambda c: posted(
        f"/contexts/{c}/compact", {}, {"keep_turns": 0}
    ),
    "POST /api/chat": lambda c: posted("/api/chat", chat(c), answered(c)),
    "GET /api/chat/{context_id}": lambda c: got(f"/api/chat/{c}"),
    "GET /api/chat/{context_id}/stream": lambda c: got(f"/api/chat/{c}/stream"),
    "POST /api/chat/{context_id}/stop": lambda c: posted(f"/api/chat/{c}/stop", {}),
    "POST /ag-ui": lambda c: posted("/ag-ui", run(c), run(c, resume=RESUMED)),
    "POST /v1/responses": lambda c: posted(
        "/v1/responses",
        {"model": "looopy", "input": "Hi.", "previous_response_id": f"resp_1_{c}"},
        {"model": "looopy", "input": "Hi.", "previous_response_id": f"resp_9_{c}"},
        {"model": "looopy", "conversation": c},
    ),
    "GET /v1/responses/{response_id}": lambda c: got(
        f"/v1/responses/resp_1_{c}", f"/v1/responses/resp_1_{c}?stream=true"
    ),
    "DELETE /v1/responses/{response_id}": lambda c: got(f"/v1/responses/resp_1_{c}"),
    "GET /v1/responses/{response_id}/input_items": lambda c: got(
        f"/v1/responses/resp_1_{c}/input_items"
    ),
    "GET /v1/conversations/{conversation_id}": lambda c: got(f"/v1/conversations/{c}"),
    "DELETE /v1/conversations/{conversation_id}": lambda c: got(f"/v1/conversations/{c}"),
    "GET /v1/conversations/{conversation_id}/items": lambda c: got(
        f"/v1/conversations/{c}/items",
        f"/v1/conversations/{c}/items?order=asc&limit=1",
        f"/v1/conversations/{c}/items?after=msg_1_in_{c}",
    ),
    "POST /v1/responses/{response_id}/cancel": lambda c: posted(
        f"/v1/responses/resp_1_{c}/cancel", {}
    ),
    "POST /a2a/v1": calls,
    "POST /a2a/v1/": lambda c: [("/a2a/v1/", *more) for _, *more in calls(c)],
    "POST /message:send": lambda c: posted(
        "/message:send", {"message": told(taskId=f"task_1_{c}")}
    ),
    "POST /message:stream": lambda c: posted(
        "/message:stream", {"message": told(taskId=f"task_1_{c}")}
    ),
    "GET /tasks": lambda c: got(f"/tasks?contextId={c}", f"/tasks?contextId={c}&historyLength=9"),
    "GET /tasks/{id}": lambda c: got(f"/tasks/task_1_{c}"),
    "POST /tasks/{id}:cancel": lambda c: posted(f"/tasks/task_1_{c}:cancel", {}),
    "GET /tasks/{id}:subscribe": lambda c: got(f"/tasks/task_1_{c}:subscribe"),
    "POST /tasks/{id}:subscribe": lambda c: posted(f"/tasks/task_1_{c}:subscribe", {}),
    **{
        f"{method} {old}/tasks/{{id}}/pushNotificationConfigs{more}": (
            lambda c, method=method, old=old, more=more: [
                (
                    f"{old}/tasks/task_1_{c}/pushNotificationConfigs"
                    + more.replace("{push_id}", "p"),
                    {"url": "https://example.org/push"} if method == "POST" else None,
                    {},
                )
            ]
        )
        for old in ("", "/v1")
        for method, more in (
            *(("POST", ""), ("GET", ""), ("GET", "/{push_id}")),
            *([("DELETE", "/{push_id}")] if not old else []),
        )
    },
    "POST /v1/message:send": lambda c: posted(
        "/v1/message:send", {"message": told_03(taskId=f"task_1_{c}")}
    ),
    "POST /v1/message:stream": lambda c: posted(
        "/v1/message:stream", {"message": told_03(taskId=f"task_1_{c}")}
    ),
    "GET /v1/tasks/{id}": lambda c: got(f"/v1/tasks/task_1_{c}"),
    "POST /v1/tasks/{id}:cancel": lambda c: posted(f"/v1/tasks/task_1_{c}:cancel", {}),
    "GET /v1/tasks/{id}:subscribe": lambda c: got(f"/v1/tasks/task_1_{c}:subscribe"),
    "POST /v1/tasks/{id}:subscribe": lambda c: posted(f"/v1/tasks/task_1_{c}:subscribe", {}),
}
# Routes that name no context, and say the same to everybody.
PUBLIC = {
    *("GET /healthz", "GET /readyz", "GET /openapi.json"),
    *("GET /.well-known/agent-card.json", "GET /extendedAgentCard", "GET /v1/card"),
}
# Those whose calls need a session of their protocol: the module that tests them as a stranger.
ELSEWHERE = {
    f"{method} /mcp": "tests.server.mcp.test_streamable" for method in ("GET", "POST", "DELETE")
}
# Routes that name no context, and say the same to every caller.
ALIKE = {
    "GET /v1/models": "/v1/models",
    "GET /v1/models/{model:path}": "/v1/models/looopy",
    "POST /v1/conversations": "/v1/conversations",
}
# The caller's own contexts.
LISTS = {"GET /contexts": "/contexts", "GET /tasks": "/tasks", "GET /requests": "/requests"}
# Requests that would make a context: that of another actor is refused as one that cannot be made.
MAKING = [
    ("/contexts/{}/turns", lambda _: {"message": "Hi."}),
    ("/api/chat", lambda c: chat(c, trigger="submit-message")),
    ("/ag-ui", lambda c: run(c, messages=[{"role": "user", "id": "m", "content": "Hi."}])),
    ("/v1/responses", lambda c: {"model": "looopy", "input": "Hi.", "conversation": c}),
    ("/v1/responses", lambda c: {"model": "looopy", "input": "Hi.", "conversation": {"id": c}}),
    ("/message:send", lambda c: {"message": told(contextId=c)}),
    ("/message:stream", lambda c: {"message": told(contextId=c)}),
    ("/a2a/v1", lambda c: rpc("SendMessage", message=told(contextId=c))[1]),
]


@asynccontextmanager
async def serving():
    """Ada has a context that waits for her, with an artifact, and one whose turn runs."""
    go = asyncio.Event()

    @tool(effects="idempotent")
    async def wait() -> str:
        await go.wait()
        return "done"

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    def build(context_id, stores):
        name = {HERS: "send", RUNS: "wait"}.get(context_id)
        script = [tool_call(name)] if name else []
        model = ScriptedProvider([*script, *[text("Hello.")] * 9])
        return Agent(context_id, llm_provider=model, stores=stores, tools=[wait, send])

    tokens = StaticTokens({ADA: "ada", BEN: "ben", EVE: {"actor_id": "ada", "tenant_id": "other"}})

    def may_answer(request, auth):
        """The actor of this name may, and another tenant has one, too."""
        return auth.actor_id == "ada"

    async with (
        open_stores("memory:") as stores,
        AgentHost(build, stores, may_answer=may_answer) as host,
    ):
        app = create_app(host, authenticate=tokens, protocols=EVERY_FACE)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            world = SimpleNamespace(client=client, host=host, stores=stores, app=app)
            ada = AuthContext("ada")
            for name, said in ((HERS, "A secret."), (RUNS, "Another secret.")):
                async with host.agent(name, ada) as agent:
                    turn = agent.execute_turn(said, ada)
                    await turn.accepted()
                    if name == HERS:
                        [request] = (await turn).pending
                        assert request.request_id == REQUEST
            await stores.artifacts.save(HERS, "art", b"secret")
            try:
                yield world
            finally:
                go.set()


async def ask(world, method, request, token):
    """Status, headers and body of the answer; a stream that would not end is an error."""
    path, body, headers = request
    version = {} if path.startswith("/v1/") else {"A2A-Version": "1.0"}
    async with asyncio.timeout(60):
        answer = await world.client.request(
            method,
            path,
            json=body,
            headers={"Authorization": f"Bearer {token}", **version, **headers},
        )
    return answer.status_code, dict(answer.headers), answer.text


def stored(world, tenant="default"):
    """All that a tenant has stored, as text; a lease is renewed all the time."""
    contexts = world.stores.state.backend.contexts.items()
    kept = sorted((key, one) for key, one in contexts if key[0] == tenant)
    return re.sub(r"lease_until=[\d.]+", "", repr(kept))


async def test_the_context_of_another_actor_is_not_found():
    """For each verb, another actor and another tenant: the answer to the byte, and what is kept."""
    async with serving() as world:
        for route, requests in TABLE.items():
            method = route.partition(" ")[0]
            before = stored(world), stored(world, "other")
            for token in (BEN, EVE):
                for place, unknown in enumerate(requests(UNKNOWN)):
                    status, headers, body = await ask(world, method, unknown, token)
                    assert status < 500, (route, body)
                    for name in (HERS, RUNS) if token == BEN else (HERS,):
                        found = await ask(world, method, requests(name)[place], token)
                        told = body.replace(UNKNOWN, name)
                        assert found == (status, headers, told), (route, unknown)
                        assert "secret" not in found[2]
            assert (stored(world), stored(world, "other")) == before, route
            assert {key[1] for key in world.host._kept} == {HERS, RUNS}, route
        for path in LISTS.values():
            for token in (BEN, EVE):
                assert HERS not in (await ask(world, "GET", (path, None, {}), token))[2]


async def test_a_request_that_creates_a_context_gets_no_context_of_another_actor():
    """Within the tenant it is refused; another tenant gets one of its own of the same name."""
    async with serving() as world:
        before = stored(world)
        for path, body in MAKING:
            for name in (HERS, RUNS):
                request = (path.format(name), body(name), {})
                status, _, said = await ask(world, "POST", request, BEN)
                known = (400, 404) if path.startswith(("/message", "/a2a")) else (404,)
                assert status in known or (path, status) == ("/a2a/v1", 200), (path, said)
                assert "error" in said or path == "/api/chat", path
                assert stored(world) == before, path
                status, _, said = await ask(world, "POST", request, EVE)
                assert status < 500, (path, said)
                assert "secret" not in said
                assert stored(world) == before, path


async def test_each_request_of_the_table_does_something_for_the_owner():
    """Or the table would test the spelling of its requests."""
    refused = {}
    async with serving() as shared:
        for route, requests in TABLE.items():
            method = route.partition(" ")[0]
            for place, request in enumerate(requests(HERS)):
                if "stream" in request[0] or "ubscribe" in str(request) or "events" in request[0]:
                    continue  # it would not end
                if "otification" in str(request):
                    continue  # refused to everybody
                async with nullcontext(shared) if method == "GET" else serving() as world:
                    unknown = await ask(world, method, requests(UNKNOWN)[place], ADA)
                    mine = await ask(world, method, request, ADA)
                    if mine[2].replace(HERS, UNKNOWN) == unknown[2]:
                        refused[route, place] = mine
    assert refused == {}


async def test_every_route_is_in_the_table():
    """A new route of a face needs a row, or a reason."""
    async with serving() as world:
        routes = [route for route in world.app.routes if isinstance(route, Route)]
        assert len(routes) == len(world.app.routes)
        there = {
            f"{method} {route.path}" for route in routes for method in route.methods - {"HEAD"}
        }
    others = there ^ {*TABLE, *PUBLIC, *ALIKE, *LISTS, *ELSEWHERE}
    assert not others, "each route needs requests in TABLE, or a reason beside it"
    for module in ELSEWHERE.values():
        assert importlib.util.find_spec(module) is not None


def test_every_face_is_in_the_table():
    """Those that `looopy.server` exports, and `looopy serve` mounts."""
    faces = {name for name in dir(looopy.server) if name.endswith("_api")}
    assert faces == {face.__name__ for face in EVERY_FACE}
