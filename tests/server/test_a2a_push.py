"""Push notifications of A2A: the official client, a receiver on loopback, and a killed server."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import httpx
import pytest
from a2a.helpers import new_text_message
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from tests.server.loopback import listening
from tests.server.test_a2a_api import ADA, BEN, build, calling, state

from looopy import open_stores
from looopy.errors import ConfigurationError, StoreConflict
from looopy.server import AgentHost, PushNotifications, StaticTokens, a2a_api, create_app
from looopy.server.protocols.a2a.push.configs import TENANT, Config, Configs, Receiver
from looopy.server.protocols.a2a.push.receivers import Failure, Receivers, UnsafeURL
from looopy.server.protocols.a2a.wires import _LOGS_BODIES

KEY = "k" * 32
ON_LOOPBACK = PushNotifications(key=KEY, networks=["127.0.0.0/8"], http=True, pause_s=0.01)


class Hook:
    """A receiver: what it got, and the statuses that it answers with, the last one again."""

    def __init__(self, *answers):
        self.answers = list(answers or (200,))
        self.got = []
        self.news = asyncio.Event()

    async def take(self, request):
        """Answer a request."""
        self.got.append((dict(request.headers), await request.json()))
        self.news.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
        return Response(status_code=answer, headers={"Location": f"{self.url}/elsewhere"})

    async def until(self, count):
        """Wait for so many requests."""
        while len(self.got) < count:
            self.news.clear()
            await self.news.wait()
        return [body for _, body in self.got]


@asynccontextmanager
async def hooked(*answers):
    """A receiver."""
    hook = Hook(*answers)
    paths = [Route(path, hook.take, methods=["POST"]) for path in ("/", "/elsewhere")]
    async with listening(Starlette(routes=paths), timeout_graceful_shutdown=1) as hook.url:
        yield hook


@asynccontextmanager
async def pushing(stores, options=ON_LOOPBACK):
    """The address of a server that sends push notifications."""
    host = AgentHost(build, stores, drain_s=0.01)
    tokens = StaticTokens({ADA: "ada", BEN: "ben"})
    app = create_app(host, authenticate=tokens, protocols=[partial(a2a_api, push=options)])
    async with listening(app, timeout_graceful_shutdown=1) as url:
        yield url


def wanted(hook, **more):
    """The configuration of a message."""
    config = TaskPushNotificationConfig(url=hook.url, **more)
    return SendMessageConfiguration(task_push_notification_config=config)


def states(bodies):
    """What statuses and artifacts bodies tell of."""
    return [
        body["statusUpdate"]["status"]["state"].removeprefix("TASK_STATE_")
        if "statusUpdate" in body
        else body["artifactUpdate"]["artifact"]["artifactId"]
        for body in bodies
    ]


def verbs(caller, task_id, config_id):
    """The four verbs, by name."""
    wire = caller.sdk._transport
    named = {"task_id": task_id, "id": config_id}
    return {
        "create": lambda url, **more: wire.create_task_push_notification_config(
            TaskPushNotificationConfig(**named, url=url, **more)
        ),
        "get": lambda: wire.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(**named)
        ),
        "list": lambda: wire.list_task_push_notification_configs(
            ListTaskPushNotificationConfigsRequest(task_id=task_id)
        ),
        "delete": lambda: wire.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(**named)
        ),
    }


async def until_gone(state, task_id):
    """Wait until there is no configuration of a task."""
    while task_id in str(await state.list()):  # noqa: ASYNC110 - a row has no event
        await asyncio.sleep(0.005)


async def test_push_notifications_arrive_in_order_at_the_receivers_of_the_owner(caplog):
    """
    Over both bindings and in 0.3; statuses and artifacts, a question and its answer, with the
    receiver's token and credentials, which no answer, no log and no row shows.
    """
    caplog.set_level(logging.DEBUG, "looopy")
    secrets = {
        "token": "token-of-the-receiver",
        "authentication": AuthenticationInfo(scheme="Bearer", credentials="key-of-the-receiver"),
    }
    async with (
        open_stores("memory:") as stores,
        pushing(stores) as url,
        calling(url) as mine,
        calling(url, BEN) as theirs,
    ):
        for caller in mine:
            async with hooked() as hook:
                _, task = await caller.say("keep", options=wanted(hook, id="one", **secrets))
                bodies = await hook.until(5)
                *kept, last = states(bodies)
                assert (kept[0], sorted(kept[1:]), last) == (
                    "WORKING", ["big.bin", "notes.txt", "report"], "COMPLETED"
                )  # fmt: skip
                assert {body[kind]["taskId"] for body in bodies for kind in body} == {task.id}
                for headers, _ in hook.got:
                    assert headers["x-a2a-notification-token"] == secrets["token"]
                    assert headers["authorization"] == "Bearer key-of-the-receiver"
                asked = verbs(caller, task.id, "one")
                shown = await asked["get"]()
                assert (shown.url, shown.authentication.scheme) == (hook.url, "Bearer")
                assert not shown.token + shown.authentication.credentials
                assert [one.id for one in (await asked["list"]()).configs] == ["one"]
                for ben in theirs:
                    for name, verb in verbs(ben, task.id, "one").items():
                        with pytest.raises(TaskNotFoundError):
                            await (verb(hook.url) if name == "create" else verb())
                for path, more in (
                    ("/authentication/scheme", auth("a b", "")),
                    ("/authentication/credentials", auth("Bearer", "a\r\nX: 1")),
                    ("/token", {"token": "a\nb"}),
                ):
                    with pytest.raises(InvalidParamsError) as caught:
                        await asked["create"](hook.url, **more)
                    assert path in str(caught.value.data)
                await asked["delete"]()
                with pytest.raises(TaskNotFoundError):
                    await asked["get"]()
                await asked["delete"]()  # as often as one likes

        for name in _LOGS_BODIES:
            caplog.set_level(logging.DEBUG, logger=name)
        async with httpx.AsyncClient(base_url=url) as http:  # bodies that the SDK cannot read
            http.headers.update({"Authorization": f"Bearer {ADA}", "A2A-Version": "1.0"})
            wrong = {"taskId": task.id, "url": 5, "token": [secrets["token"]]}
            old = {"taskId": task.id, "pushNotificationConfig": wrong}
            for method, params in (
                ("CreateTaskPushNotificationConfig", wrong),
                ("tasks/pushNotificationConfig/set", old),
            ):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                assert "error" in (await http.post("/a2a/v1/", json=body)).json()
            path = f"/tasks/{task.id}/pushNotificationConfigs"
            assert (await http.post(path, json=wrong)).status_code == 400

        async with hooked(503, 302, 200) as hook:  # neither is an answer, and one is not followed
            caller = mine[0]
            _, task = await caller.say("ask", options=wanted(hook))
            _, task = await caller.say("Rome", task_id=task.id)
            bodies = await hook.until(6)
            assert states(bodies) == [*["WORKING"] * 3, "INPUT_REQUIRED", "WORKING", "COMPLETED"]
            asked = verbs(caller, task.id, "late")
            await asked["create"](hook.url)  # for a task that is over: how it ended
            assert states((await hook.until(7))[6:]) == ["COMPLETED"]
            named = [one.id for one in (await asked["list"]()).configs]
            assert named == ["late", task.id]  # one without an id has the task's
            for number in range(8):
                await verbs(caller, task.id, str(number))["create"](hook.url)
            with pytest.raises(UnsupportedOperationError, match="are the limit"):
                await verbs(caller, task.id, "eleventh")["create"](hook.url)
        rows = str(await stores.for_tenant(TENANT).state.list())
        logged = [one for one in caplog.records if not one.name.startswith("a2a.client")]
        ours = "".join(caplog.handler.format(one) for one in logged)
        assert "failed: it answered 302" in ours
        assert "Failed to parse request params" in ours
        assert "Failed to validate base JSON-RPC request for v0.3" in ours
        assert rows.count("'url'") == 0 < rows.count("'sealed'")
        for secret in ("token-of-the", "key-of-the"):
            assert secret not in ours + rows


async def test_a_client_of_0_3_gets_whole_tasks_and_an_erased_context_takes_its_receivers_along():
    """As that version sends them, until somebody erases the context."""
    async with (
        open_stores("memory:") as stores,
        pushing(stores) as url,
        hooked() as hook,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        http.headers["Authorization"] = f"Bearer {ADA}"
        message = {"messageId": "m", "role": "user", "kind": "message"}
        message["parts"] = [{"kind": "text", "text": "send"}]
        config = {"pushNotificationConfig": {"url": hook.url, "token": "t"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send"}
        body["params"] = {"message": message, "configuration": config}
        task = (await http.post("/a2a/v1/", json=body)).json()["result"]
        bodies = await hook.until(2)
        assert [one["kind"] for one in bodies] == ["task", "task"]
        assert [one["status"]["state"] for one in bodies] == ["working", "input-required"]
        body["method"] = "tasks/pushNotificationConfig/list"
        body["params"] = {"id": task["id"]}
        [config] = (await http.post("/a2a/v1/", json=body)).json()["result"]
        assert config["pushNotificationConfig"]["url"] == hook.url
        await stores.state.delete(task["contextId"])  # erased, and its configuration with it
        kept = stores.for_tenant(TENANT).state
        await until_gone(kept, config["taskId"])


HOSTILE = [
    "http://hooks.example.org/",
    "ftp://hooks.example.org/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "hooks.example.org",
    "",
    "https://",
    "https:///x",
    "https://ada:secret@93.184.215.14/",
    "https://93.184.215.14@127.0.0.1/",
    "https://93.184.215.14/#there",
    "https://93.184.215.14:0/",
    "https://93.184.215.14:99999/",
    "https://93.184.215.14\\@127.0.0.1/",
    "https://127.0.0.1/\r\nX-More: 1",
    "https://93.184.215.14/ x",
    "https://93.184.215.14/" + "x" * 3000,
    "https://bücher.example/",
    "https://-x.example/",
    "https://nowhere.invalid/",
    "https://localhost/",
    "https://localhost./",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0177.0.0.1/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://100.100.100.200/latest/meta-data",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://192.0.0.192/",
    "https://198.18.0.1/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fec0::1]/",
    "https://[fd00:ec2::254]/",
    "https://[ff02::1]/",
    "https://[::1/",
]


async def test_hostile_receivers_are_refused_and_nothing_is_stored():
    """By name, number or trick; with a message no turn begins. Public ones pass, if allowed."""
    public = Receivers(PushNotifications())
    for fine in ("https://93.184.215.14/x?y=1", "https://93.184.215.14:8443/",
                 "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/", "https://[64:ff9b::808:808]/",
                 "https://[::ffff:8.8.8.8]/"):  # fmt: skip
        await public.check(fine)
    named = Receivers(PushNotifications(receivers=["93.184.215.14", "8.8.8.8:8443"]))
    await named.check("https://93.184.215.14/")
    await named.check("https://8.8.8.8:8443/")
    for other in ("https://8.8.8.8/", "https://9.9.9.9/"):
        with pytest.raises(UnsafeURL, match="sends no notifications to"):
            await named.check(other)

    async with (
        open_stores("memory:") as stores,
        pushing(stores, PushNotifications()) as url,
        calling(url) as [caller, rest],
    ):
        _, task = await caller.say("ask", context_id="c")
        for hostile in HOSTILE:
            with pytest.raises(InvalidParamsError) as caught:
                await verbs(caller, task.id, "x")["create"](hostile)
            if hostile:  # without one, the SDK refuses the request before
                assert caught.value.data == {"code": "unsafe_url", "path": "/url"}
                assert "secret" not in str(caught.value)
        config = TaskPushNotificationConfig(url="https://127.0.0.1/")
        options = SendMessageConfiguration(task_push_notification_config=config)
        message = new_text_message("hi", role=Role.ROLE_USER, context_id="new")
        for one in (caller, rest):
            with pytest.raises(InvalidParamsError) as caught:
                await one.sdk._transport.send_message(
                    SendMessageRequest(message=message, configuration=options)
                )
            path = "/configuration/taskPushNotificationConfig/url"
            assert caught.value.data == {"code": "unsafe_url", "path": path}
        fine = "https://93.184.215.14/"
        for path, more in (
            ("/token", {"token": "t"}),  # there is no key to keep it with
            ("/authentication/credentials", auth("Bearer", "c")),
        ):
            with pytest.raises(InvalidParamsError) as caught:
                await verbs(caller, task.id, "x")["create"](fine, **more)
            assert caught.value.data["path"] == path
        with pytest.raises(InvalidParamsError):
            await verbs(caller, task.id, "a/b")["create"](fine)
        assert [one.context_id for one in await stores.state.list()] == ["c"]
        assert not await stores.for_tenant(TENANT).state.list()


def auth(scheme, credentials):
    """The authentication of a configuration."""
    return {"authentication": AuthenticationInfo(scheme=scheme, credentials=credentials)}


async def test_a_name_that_changes_its_address_is_checked_when_looopy_connects(monkeypatch):
    """The connection goes to the address that was checked, and to no other one."""
    loop = asyncio.get_running_loop()
    answers = [["93.184.215.14"], ["127.0.0.1"], ["93.184.215.14", "10.0.0.1"]]

    async def resolve(_host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in answers.pop(0)]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    receivers = Receivers(PushNotifications(http=True, timeout_s=5))
    async with hooked() as hook:
        place = hook.url.replace("127.0.0.1", "rebound.example")
        await receivers.check(place)
        for _ in range(2):
            with pytest.raises(Failure, match="has no address that may get"):
                await receivers.send(place, [], b"{}")
        assert not hook.got
        answers.append(["127.0.0.1"])
        await Receivers(ON_LOOPBACK).send(place, [], b"{}")
        assert [headers["host"] for headers, _ in hook.got] == [place.removeprefix("http://")]


SERVER = """
import asyncio, sys
from functools import partial

import uvicorn
from looopy import Agent, open_stores
from looopy.server import AgentHost, PushNotifications, StaticTokens, a2a_api, create_app
from looopy.testing import ScriptedProvider, text

def build(context_id, stores):
    return Agent(context_id, llm_provider=ScriptedProvider(lambda _: text("hello")), stores=stores)

async def main(url, descriptor, key, token):
    async with open_stores(url) as stores:
        push = PushNotifications(key=key, networks=["127.0.0.0/8"], http=True)
        tokens = StaticTokens({token: "ada"})
        face = partial(a2a_api, push=push)
        app = create_app(AgentHost(build, stores), authenticate=tokens, protocols=[face])
        await uvicorn.Server(uvicorn.Config(app, fd=int(descriptor), log_level="warning")).serve()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
async def test_a_killed_server_sends_its_outstanding_notifications_after_a_restart(sqlite_file):
    """Killed while a receiver has not answered: the next process begins with that event."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # for both processes
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        said = (f"sqlite:///{sqlite_file}", str(sock.fileno()), KEY, ADA)
        start = partial(
            asyncio.create_subprocess_exec,
            *(sys.executable, "-c", SERVER, *said),
            pass_fds=[sock.fileno()],
        )
        async with hooked(200, None) as hook:
            server = await start()
            async with calling(url, patience_s=300) as [caller, _]:  # while the server starts
                _, task = await caller.say("hi", options=wanted(hook, token="t-of-the-receiver"))
            assert state(task) == "COMPLETED"
            assert states(await hook.until(2)) == ["WORKING", "COMPLETED"]  # and no answer
            server.kill()
            assert await server.wait() == -signal.SIGKILL
            hook.answers = [200]
            server = await start()
            assert states((await hook.until(3))[2:]) == ["COMPLETED"]
            assert hook.got[2][0]["x-a2a-notification-token"] == "t-of-the-receiver"
            server.terminate()
            await server.wait()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request):
    """The URL of empty stores."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{request.getfixturevalue('sqlite_file')}"
        case "postgres":
            return request.getfixturevalue("postgres")
    return "memory:"


async def test_every_store_keeps_configurations(url):
    """Apart from contexts, with their receivers sealed, and for one writer at a time."""
    async with open_stores(url) as stores:
        configs = Configs(stores, KEY)
        receiver = Receiver(url="https://93.184.215.14/", token="t", scheme="Bearer",
                            credentials="c")  # fmt: skip
        made = Config(tenant="acme", context_id="c", made_at="", owner="ada", task_id="task_1_c",
                      config_id="ü", first=1, base="", is_old=False, receiver={},
                      after=0)  # fmt: skip
        one = await configs.save(configs.sealed(made, receiver))
        other = await configs.save(configs.sealed(replace(made, config_id="b"), receiver))
        await configs.save(configs.sealed(replace(made, task_id="task_2_c"), receiver))
        assert await configs.of_task("acme", "task_1_c") == [other, one]
        assert not await configs.of_task("default", "task_1_c")
        assert len([config async for config in configs.all()]) == 3
        assert configs.receiver(one) == receiver
        assert configs.receiver(replace(other, receiver=one.receiver)) is None  # of another place
        assert Configs(stores, "o" * 32).receiver(one) is None
        assert Configs(stores, None).receiver(one) is None
        await configs.save(replace(one, after=1))
        with pytest.raises(StoreConflict):
            await configs.save(replace(one, after=2))
        assert await configs.delete(other)
        assert not await configs.delete(other)
        assert await configs.find("acme", "task_1_c", "b") is None
        assert not await stores.state.list()
        assert "t" not in json.dumps(dict(one.receiver)).split('"')
        assert "Receiver>" in repr(receiver)


def test_options_that_make_no_sense_are_refused():
    """By the name of the option."""
    for name, value in (
        ("key", "short"),
        ("attempts", 0),
        ("timeout_s", True),
        ("networks", ["10.0.0.1/8"]),
        ("networks", "10.0.0.0/8"),
        ("receivers", ["https://example.org"]),
    ):
        with pytest.raises(ConfigurationError, match=name):
            Configs(open_stores("memory:"), PushNotifications(**{name: value}).key)
    assert KEY not in repr(ON_LOOPBACK)
