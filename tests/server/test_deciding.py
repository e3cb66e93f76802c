"""A person decides a call in a conversation of somebody else, and sees the request alone."""

import asyncio
import signal
from contextlib import asynccontextmanager

import pytest
from tests.server.loopback import client_of

from looopy import (
    Agent,
    Approve,
    AuthContext,
    Deny,
    LoopConfig,
    ToolContext,
    open_stores,
    server,
    tool,
)
from looopy._failpoints import arm
from looopy.errors import (
    AlreadyAnswered,
    ContextNotFound,
    FactoryFailed,
    InputExpired,
    InputNotFound,
    ValueRefused,
)
from looopy.server import AgentHost, Client, StaticTokens, create_app
from looopy.server.items import context_to_json
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, wait
from looopy.types.state import Outcome

ADA = AuthContext("ada", credentials={"token": "ada's-token-1"})
BOSS = AuthContext("boss", credentials={"token": "boss's-token-1"}, scopes=["manager"])
EVE = AuthContext("eve", scopes=[])
TOKENS = {"ada": "a" * 20, "boss": "b" * 20, "eve": "e" * 20}


def managers(request, auth):
    """Whoever has the scope decides payments."""
    return request.tool_name == "pay" and "manager" in auth.scopes and request.owner == "ada"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request):
    """A database that several processes use."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres")
    return f"sqlite:///{request.getfixturevalue('sqlite_file')}"


class Office:
    """A factory whose agents pay, and who the calls ran as."""

    def __init__(self, **options):
        self.ran, self.options = [], options

    def __call__(self, context_id, stores):
        @tool(effects="external", needs_approval=True, **self.options)
        async def pay(cents: int, context: ToolContext) -> str:
            """Pay."""
            self.ran.append((context.auth_context.actor_id, dict(context.credentials)))
            return "paid"

        @tool(needs_approval=True)
        async def drop() -> str:
            """Drop."""
            return "dropped"

        def script(request):
            said = request.messages[-1]
            if said.role != "user":
                return text("done")
            if said.text == "both":
                return tool_call("pay", cents=1), tool_call("pay", cents=2)
            return tool_call("drop") if said.text == "drop" else tool_call("pay", cents=5)

        return Agent(
            context_id,
            llm_provider=ScriptedProvider(script),
            tools=[pay, drop],
            stores=stores,
            loop_config=LoopConfig(lease_ttl_s=0.5),
        )


@asynccontextmanager
async def hosting(url="memory:", may_answer=managers, **options):
    """A host, and its office."""
    office = Office(**options)
    async with open_stores(url) as stores, AgentHost(office, stores, may_answer=may_answer) as host:
        yield host, office


async def ask_all(host, context_id="c", said="both", auth=ADA):
    """The ids of the requests that a turn asks."""
    async with host.agent(context_id, auth) as agent:
        return [one.request_id for one in (await agent.execute_turn(said, auth)).pending]


async def ask(host, context_id="c", said="pay the secret invoice", auth=ADA):
    """The id of the one request that a turn asks."""
    [name] = await ask_all(host, context_id, said, auth)
    return name


async def test_a_manager_decides_and_the_call_runs_as_its_owner():
    """The manager finds the request in a listing that has nothing else of the conversation."""
    async with hosting() as (host, office):
        name = await ask(host)
        await ask(host, "other", "drop")
        [request] = (await host.requests(BOSS)).items
        assert (request.context_id, request.request_id, request.owner) == ("c", name, "ada")
        assert (request.tool_name, request.args) == ("pay", {"cents": 5})
        decided = await host.decide("c", name, Approve(note="fine"), BOSS)
        assert (decided.actor_id, decided.decision) == ("boss", "approved")
        assert await host.decide("c", name, Approve(note="fine"), BOSS) == decided
        assert ((await host.requests(BOSS)).items, office.ran) == ([], [])
        record = await host.current("c", ADA)
        assert (record.state.needs_auth, record.owner_actor) == (True, "ada")
        async with host.agent("c", ADA) as agent:
            assert (await agent.execute_turn(None, ADA)).outcome is Outcome.COMPLETED
        assert office.ran == [("ada", {"token": "ada's-token-1"})]
        assert await host.decide("c", name, Approve(note="fine"), BOSS) == decided
        with pytest.raises(AlreadyAnswered, match="by 'boss'"):
            await host.decide("c", name, Deny(), BOSS)


@pytest.mark.parametrize("may_answer", [managers, None])
async def test_an_actor_who_may_not_answer_gets_context_not_found(may_answer):
    """Neither the request nor the conversation; before and after it was decided."""
    async with hosting(may_answer=may_answer) as (host, office):
        name = await ask(host)
        dropping = await ask(host, "other", "drop")
        for turn in range(2):
            strangers = [(EVE, "c", name), (BOSS, "other", dropping), (BOSS, "c", "1-none")]
            strangers += [(EVE, "none", name), (None, "c", name)]
            strangers += [] if may_answer else [(BOSS, "c", name)]
            for auth, context_id, request_id in strangers:
                with pytest.raises(ContextNotFound, match=f"there is no context '{context_id}'"):
                    await host.decide(context_id, request_id, Approve(), auth)
                assert not [r for r in (await host.requests(auth)).items if auth is not BOSS]
            with pytest.raises(ContextNotFound):
                async with host.agent("c", BOSS):
                    pass
            if not turn:
                await host.decide("c", name, Approve(), ADA)  # the owner needs nobody's leave
        assert office.ran == []


async def test_a_request_replaced_during_the_judgement_is_not_decided():
    """A conversation that was made anew has other requests, with ids that come again."""
    judged, go = asyncio.Event(), asyncio.Event()

    async def slowly(request, auth):
        judged.set()
        await go.wait()
        return request.tool_name == "drop"

    async with hosting(may_answer=slowly) as (host, _):
        name = await ask(host, said="drop")
        deciding = asyncio.create_task(host.decide("c", name, Approve(), BOSS))
        await judged.wait()
        await host.erase("c", ADA)
        assert await ask(host) == name
        go.set()
        with pytest.raises(ContextNotFound):
            await host.decide("c", name, Approve(), BOSS)
        with pytest.raises((ContextNotFound, InputNotFound)):
            await deciding
        record = await host.current("c", ADA)
        assert [one.request_id for one in record.state.pending] == [name]


@pytest.mark.parametrize("said", ["yes", 1, None])
async def test_only_true_permits(said):
    """A function that forgets its answer, or returns something else, permits nothing."""
    async with hosting(may_answer=lambda *_: said) as (host, _):
        name = await ask(host)
        assert (await host.requests(BOSS)).items == []
        with pytest.raises(ContextNotFound):
            await host.decide("c", name, Approve(), BOSS)


async def test_a_failing_may_answer_permits_no_decision():
    """It is a failure of the server, in its own words."""

    def fails(request, auth):
        raise ValueError("secret")

    async with hosting(may_answer=fails) as (host, _):
        name = await ask(host)
        for trying in (host.requests(BOSS), host.decide("c", name, Approve(), BOSS)):
            with pytest.raises(FactoryFailed, match="may_answer raised ValueError") as failed:
                await trying
            assert "secret" not in str(failed.value)


async def test_an_expired_request_is_not_listed_and_not_decided():
    """As for the owner."""
    async with hosting(approval_expires_s=0.000_001) as (host, _):
        name = await ask(host)
        assert (await host.requests(BOSS)).items == []
        with pytest.raises(InputExpired):
            await host.decide("c", name, Approve(), BOSS)


async def test_a_decision_holds_in_every_process(sqlite_file):
    """Another host, with an agent of its own that is live on the conversation, sees it."""
    url = f"sqlite:///{sqlite_file}"
    async with hosting(url) as (host, office), hosting(url) as (there, other):
        name = await ask(host)
        ends = await asyncio.gather(
            host.decide("c", name, Approve(), BOSS),
            there.decide("c", name, Deny(), ADA),
            return_exceptions=True,
        )
        assert sorted(type(end).__name__ for end in ends) == ["AlreadyAnswered", "ApprovalDecided"]
        for one in (host, there):
            async with one.agent("c", ADA) as agent:
                await agent.refresh()
                if agent.state.needs_auth:
                    await agent.execute_turn(None, ADA)
        approved = not isinstance(ends[0], Exception)
        assert office.ran + other.ran == [("ada", {"token": "ada's-token-1"})] * approved


async def test_a_listing_leaves_out_requests_of_the_caller():
    """Even if the caller may answer everything: they are in the caller's conversation."""
    async with hosting(may_answer=lambda _request, _auth: True) as (host, _):
        name = await ask(host)
        assert [one.request_id for one in (await host.requests(BOSS)).items] == [name]
        assert list((await host.requests(ADA)).items) == []


async def test_a_listing_has_pages():
    """A page may be short, and nothing is left out or repeated."""
    async with hosting() as (host, _):
        for number in range(7):
            await ask(host, f"c{number}", "drop" if number % 2 else "pay")
        found, after = [], None
        while True:
            page = await host.requests(BOSS, after=after, limit=1)
            found += [one.context_id for one in page.items]
            if (after := page.next) is None:
                break
        assert sorted(found) == ["c0", "c2", "c4", "c6"]
        with pytest.raises(ValueRefused):
            await host.requests(BOSS, limit=0)


async def test_several_requests_are_decided_together_or_not_at_all():
    """Those that the same person has decided in the same way before are left out."""
    async with hosting() as (host, office):
        first, second = await ask_all(host)
        for more in ({"1-none": True}, {second: "perhaps"}):
            with pytest.raises((ContextNotFound, ValueRefused)):
                await host.decide_all("c", {first: True, **more}, BOSS)
        assert len((await host.requests(BOSS)).items) == 2
        decided = await host.decide("c", second, Deny(), BOSS)
        both = await host.decide_all("c", {first: True, second: False}, BOSS)
        assert both == [both[0], decided]
        assert await host.decide_all("c", {first: True, second: False}, BOSS) == both
        for answers in ({first: True, second: True}, {second: True, first: True}):
            with pytest.raises(AlreadyAnswered, match="was denied before by 'boss'"):
                await host.decide_all("c", answers, BOSS)
        async with host.agent("c", ADA) as agent:
            await agent.execute_turn(None, ADA)
        assert [actor for actor, _ in office.ran] == ["ada"]


def test_a_request_is_listed_after_the_process_that_decided_another_was_killed(store_url, tmp_path):
    """Its turn is ended by whoever decides next; nobody has to open the conversation before."""

    async def asking():
        async with hosting(store_url) as (host, _):
            return await ask_all(host)

    async def deciding():
        async with hosting(store_url) as (host, _):
            await host.decide("c", names[0], Approve(), BOSS)

    async def going_on():
        async with hosting(store_url) as (host, office):
            found = ()
            while not found:  # the lease of the dead process has not expired
                found = (await host.requests(BOSS)).items
            assert [one.request_id for one in found] == names[1:]
            record = await host.stores.state.load("c")
            assert record.open_turn is not None
            item = context_to_json(record)
            assert (item["status"], len(item["pending"])) == ("waiting", 1)
            await host.decide("c", names[1], Approve(), BOSS)
            async with host.agent("c", ADA) as agent:
                await agent.execute_turn(None, ADA)
            assert [actor for actor, _ in office.ran] == ["ada", "ada"]

    def killed():
        arm("B3")
        asyncio.run(deciding())

    names = asyncio.run(asking())
    assert wait(fork(killed, tmp_path / "log")) == -signal.SIGKILL
    asyncio.run(going_on())


# --- over HTTP ---------------------------------------------------------------------------------


@asynccontextmanager
async def serving(**options):
    """A function that makes a client of an actor."""
    async with hosting(may_answer=None, **options) as (host, office):
        tokens = {token: {"actor_id": name} for name, token in TOKENS.items()}
        tokens[TOKENS["boss"]] = {"actor_id": "boss", "scopes": ["manager"]}
        app = create_app(host, authenticate=StaticTokens(tokens), may_answer=managers)
        yield lambda name: client_of(app, TOKENS[name]), host, office


async def test_over_http_a_second_person_sees_the_request_alone():
    """Listing, deciding, and 404 for everything else."""
    async with serving() as (client, host, office):
        name = await ask(host)
        async with client("boss") as boss, client("eve") as eve, client("ada") as ada:
            answer = await boss.get("/requests")
            [item] = answer.json()["items"]
            assert item == {
                "context_id": "c",
                "request_id": name,
                "owner": "ada",
                "tool_name": "pay",
                "args": {"cents": 5},
                "prompt": "May pay run with these arguments?",
                "schema": item["schema"],
                "expires_at": None,
            }
            assert "secret invoice" not in answer.text
            said = {"request_id": name, "answer": {"approved": True, "args": {"cents": "x"}}}
            wrong = await boss.post("/contexts/c/decisions", json=said)
            assert (wrong.status_code, wrong.json()["error"]["path"]) == (400, "/answer/args/cents")
            said["answer"] = True
            refused = await eve.post("/contexts/c/decisions", json=said)
            missing = await eve.post("/contexts/none/decisions", json=said)
            assert refused.status_code == missing.status_code == 404
            assert refused.text == missing.text.replace("none", "c")
            made = await boss.post("/contexts/c/decisions", json=said)
            assert (made.status_code, made.json()["event"]["actor_id"]) == (200, "boss")
            assert (await boss.post("/contexts/c/decisions", json=said)).json() == made.json()
            late = await ada.post("/contexts/c/decisions", json={**said, "answer": False})
            assert (late.status_code, late.json()["error"]["code"]) == (409, "already_answered")
            for path in ("", "/messages", "/turns", "/events", "/inbox", "/artifacts"):
                assert (await boss.get(f"/contexts/c{path}")).status_code == 404, path
            for path, body in (("turns", {"message": "hi"}), ("turns", {"inputs": {name: True}})):
                assert (await boss.post(f"/contexts/c/{path}", json=body)).status_code == 404
            item = (await ada.get("/contexts/c")).json()
            assert (item["status"], item["needs_auth"], item["pending"]) == ("waiting", True, [])
            assert (await ada.post("/contexts/c/turns", json={})).status_code == 202
            async with host.agent("c", ADA) as agent:
                await agent.wait_for_idle()
        assert [actor for actor, _ in office.ran] == ["ada"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/request_id"),
        ({"request_id": 1}, "/request_id"),
        ({"request_id": "1-call_1"}, "/answer"),
    ],
)
async def test_a_decision_over_http_names_the_place_of_a_fault(body, path):
    """A missing or wrong field."""
    async with serving() as (client, host, _):
        await ask(host)
        async with client("ada") as ada:
            answer = await ada.post("/contexts/c/decisions", json=body)
        assert (answer.status_code, answer.json()["error"]["path"]) == (400, path)


async def test_the_client_lists_and_decides():
    """With the errors of the library."""
    async with serving() as (client, host, _):
        name = await ask(host)
        async with client("boss") as http, Client("http://localhost", token=TOKENS["boss"]) as boss:
            boss._http = http
            [item] = (await boss.requests())["items"]
            decided = await boss.decide(item["context_id"], name, Deny(reason="no"))
            assert (decided.decision, decided.text) == ("denied", "no")
            with pytest.raises(AlreadyAnswered, match="was denied before by 'boss'"):
                await boss.decide("c", name, Approve())


# --- in the protocols of others ----------------------------------------------------------------


def _run(run_id, **body):
    empty = {"state": {}, "messages": [], "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": "c", "runId": run_id, **empty, **body}


async def _by_ag_ui(ada):
    """A page that opens the thread is interrupted for credentials, and resumes."""
    shown = await ada.post("/ag-ui", json=_run("r1"))
    assert '"interrupts":[{"id":"credentials"' in shown.text
    resume = [{"interruptId": "credentials", "status": "resolved"}]
    return await ada.post("/ag-ui", json=_run("r2", resume=resume))


async def _by_use_chat(ada):
    """The transcript ends with what is missing; the page sends it again."""
    messages = (await ada.get("/api/chat/c")).json()["messages"]
    assert messages[-1]["parts"][-1] == {"type": "data-auth", "id": "auth-2", "data": {"turn": 2}}
    body = {"id": "c", "trigger": "submit-message", "messages": messages}
    return await ada.post("/api/chat", json=body)


async def _by_a2a(ada):
    """The task is AUTH_REQUIRED until a message comes."""
    version = {"A2A-Version": "1.0"}
    [task] = (await ada.get("/tasks", headers=version)).json()["tasks"]
    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    message = {
        "messageId": "m",
        "contextId": "c",
        "taskId": task["id"],
        "role": "ROLE_USER",
        "parts": [{"text": "continue"}],
    }
    return await ada.post("/message:send", json={"message": message}, headers=version)


async def _by_http(ada):
    """The response that asked says so as well."""
    found = (await ada.get("/v1/responses/resp_2_c")).json()
    assert (found["status"], found["incomplete_details"]) == (
        "incomplete",
        {"reason": "auth_required"},
    )
    return await ada.post("/contexts/c/turns", json={}, headers={"Accept": "text/event-stream"})


@pytest.mark.parametrize("goes_on", [_by_ag_ui, _by_use_chat, _by_a2a, _by_http])
async def test_in_every_protocol_the_turn_waits_for_its_owner(goes_on):
    """It shows that it does, and the owner's next request runs the call without a question."""
    async with hosting() as (host, office):
        tokens = {token: {"actor_id": name} for name, token in TOKENS.items()}
        faces = [server.ag_ui_api, server.ai_sdk_api, server.a2a_api, server.responses_api]
        app = create_app(host, authenticate=StaticTokens(tokens), protocols=faces)
        name = await ask(host)
        await host.decide("c", name, Approve(), BOSS)
        async with client_of(app, TOKENS["ada"]) as ada:
            answer = await goes_on(ada)
            assert answer.status_code == 200, answer.text
            item = (await ada.get("/contexts/c")).json()
        assert (item["status"], item["needs_auth"]) == ("ready", False)
        assert [actor for actor, _ in office.ran] == ["ada"]
