"""Responses over real sockets: to readers that do not read, and to bodies that nobody reads."""

import asyncio
import gc
import json
import socket

import pytest
from tests.server.test_connections import HEAD, asked, served
from tests.server.test_wire import World, serving, until

from looopy import AuthContext
from looopy.server import Limits
from looopy.server.gate.flow import PIECE, Flow, Unread
from looopy.testing import text

JSON = b"Content-Type: application/json\r\n"
LIMIT = 1024 * 1024
LARGE = 3_000_000


def sent_and_read(address, head, body):
    """Send all of a request, as a simple client does, and only then read all of the answer."""
    with socket.create_connection(address, timeout=60) as sock:
        sock.sendall(head + b"\r\n")
        sock.sendall(body)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def post(path=b"/contexts/c/turns", more=HEAD + JSON):
    """The head of a request, without its length."""
    return b"POST %s HTTP/1.1\r\nConnection: close\r\n%s" % (path, more)


CASES = {
    "one byte over": (post(), LIMIT + 1, 413, "too_large"),
    "far over": (post(), LARGE, 413, "too_large"),
    "no credentials": (post(more=b"Host: localhost\r\n" + JSON), LARGE, 401, "unauthorised"),
    "another type": (post(more=HEAD + b"Content-Type: text/plain\r\n"), LARGE, 415, None),
    "another host": (post(more=b"Host: evil.example\r\n" + JSON), LARGE, 421, "unknown_host"),
    "another origin": (post(more=HEAD + b"Origin: http://evil.example\r\n"), LARGE, 403, None),
    "no route": (post(b"/nothing"), LARGE, 404, "not_found"),
    "another method": (post(b"/contexts"), LARGE, 405, None),
    "another length": (post(b"/contexts/%63/turns?a=1"), LARGE, 413, "too_large"),
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_the_answer_to_an_unread_body_arrives(case, chunked):
    """A client that sends all of its body first gets the answer, and no reset."""
    head, size, status, code = CASES[case]
    async with serving(World(), limits=Limits(body_bytes=LIMIT)) as (client, _):
        address = (client.base_url.host, client.base_url.port)
        body = b"x" * size
        if chunked:
            head += b"Transfer-Encoding: chunked\r\n"
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
        else:
            head += b"Content-Length: %d\r\n" % size
        answer = await asyncio.to_thread(sent_and_read, address, head, body)
        first, _, rest = answer.partition(b"\r\n")
        assert int(first.split()[1]) == status
        said = json.loads(rest.partition(b"\r\n\r\n")[2])
        assert code in (None, said["error"]["code"])


async def test_a_connection_serves_the_next_request_after_an_unread_body():
    """Its rest is not taken for the next request."""
    async with serving(World()) as (client, _):
        address = (client.base_url.host, client.base_url.port)
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(2):
            writer.write(b"POST /nothing HTTP/1.1\r\n%sContent-Length: 99999\r\n\r\n" % HEAD)
            writer.write(b"x" * 99_999)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["error"]["code"] == "not_found"
        writer.close()


async def test_a_client_that_waits_to_be_asked_for_its_body_gets_the_answer_at_once():
    """`Expect: 100-continue`: there is no body to wait for."""
    async with serving(World(), limits=Limits(body_bytes=LIMIT)) as (client, _):
        address = (client.base_url.host, client.base_url.port)
        head = post() + b"Expect: 100-continue\r\nContent-Length: 5000000\r\n"
        answer = await asyncio.to_thread(sent_and_read, address, head, b"")
        assert answer.startswith(b"HTTP/1.1 413")


async def unread(address, path):
    """A request whose answer is not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)  # noqa: FBT003 - it takes no name
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, address)
    await loop.sock_sendall(sock, b"GET %s HTTP/1.1\r\n%s\r\n" % (path, HEAD))
    return sock


async def test_unread_responses_of_one_actor_are_limited():
    """429 for another large one; small ones are answered, and all of them once there is room."""
    world = World([lambda _: text("x" * 6_000_000)], chunk_chars=None)
    limits = Limits(unread_bytes_per_actor=13_000_000)
    async with serving(world, limits=limits) as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        async with host.agent("c", AuthContext("ada")) as agent:
            await agent.wait_for_idle()
        counted = host_unread(client)
        address = (client.base_url.host, client.base_url.port)
        readers = [await unread(address, b"/contexts/c/messages") for _ in range(2)]
        await until(lambda: sum(counted().values()) > 12_000_000)
        answer = await client.get("/contexts/c/messages")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "limit_exceeded")
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await client.get("/contexts/c")).status_code == 200
        for one in readers:
            one.close()
        await until(lambda: not counted())
        answer = await client.get("/contexts/c/messages")
        assert answer.status_code == 200
        assert len(answer.content) > 6_000_000


async def test_a_response_that_alone_is_over_the_limit_is_sent():
    """Otherwise nobody could ever have it."""
    world = World([lambda _: text("x" * 1_000_000)], chunk_chars=None)
    async with serving(world, limits=Limits(unread_bytes_per_actor=1)) as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        async with host.agent("c", AuthContext("ada")) as agent:
            await agent.wait_for_idle()
        assert (await client.get("/contexts/c/messages")).status_code == 200


async def test_a_download_waits_for_the_other_downloads_of_its_actor():
    """It begins once another one ends."""
    limits = Limits(unread_bytes_per_actor=5_000_000)
    async with serving(World(), limits=limits) as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        await host.stores.artifacts.save("c", "a", b"x" * 4_000_000)
        counted = host_unread(client)
        address = (client.base_url.host, client.base_url.port)
        first = await unread(address, b"/contexts/c/artifacts/a")
        await until(lambda: sum(counted().values()) == 4_000_000)
        waiting = asyncio.create_task(client.get("/contexts/c/artifacts/a"))
        unread_now = client.app.state.context.unread
        await until(lambda: unread_now._freed._waiters)
        assert sum(counted().values()) == 4_000_000
        first.close()
        assert len((await waiting).content) == 4_000_000


async def test_a_download_that_was_cut_off_gives_its_room_back_at_once():
    """Also if Python collects no garbage meanwhile: others of its actor wait for the room."""
    limits = Limits(unread_bytes_per_actor=5_000_000, send_s=0.2)
    async with serving(World(), limits=limits) as (client, host):
        await client.post("/contexts/c/turns", json={"message": "Hi."})
        await host.stores.artifacts.save("c", "a", b"x" * 4_000_000)
        counted = host_unread(client)
        gc.disable()
        try:
            sock = await unread(
                (client.base_url.host, client.base_url.port), b"/contexts/c/artifacts/a"
            )
            await until(lambda: sum(counted().values()) == 4_000_000)
            await until(lambda: not sum(counted().values()))
            sock.close()
        finally:
            gc.enable()


async def test_a_heartbeat_does_not_come_within_a_frame():
    """A long frame goes out in pieces, and whatever else is sent meanwhile comes after it."""
    long, sent = b"x" * (3 * PIECE + 1), []

    async def send(message):
        sent.append(message.get("body", b""))
        await asyncio.sleep(0)

    async def stream(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = {"type": "http.response.body", "more_body": True}
        await asyncio.gather(*(send(more | {"body": one}) for one in (long, b"ping")))
        await send({"type": "http.response.body", "body": b""})

    await Flow(stream, send_s=60, unread=Unread(1))({"type": "http", "headers": []}, None, send)
    assert max(map(len, sent)) == PIECE
    assert b"".join(sent) == long + b"ping"


async def test_an_abandoned_response_is_no_error_in_the_log(caplog):
    """The server resets the connection of a reader that stands still, and says nothing of it."""
    world = World([lambda _: text("x" * 3_000_000)], chunk_chars=None)
    async with served(Limits(send_s=0.2), world) as (address, connections, host):
        body = b'{"message":"Hi."}'
        head = b"POST /contexts/c/turns HTTP/1.1\r\n" + HEAD + JSON
        assert await asked(address, head + b"Content-Length: 17\r\n\r\n" + body) == 202
        await until(lambda: not host._kept["default", "c"].agent._core.turns)
        for path in (b"/contexts/c/messages", b"/contexts/c/events?after=0"):
            sock = await unread(address, path)
            await until(lambda: len(connections._open) == 1)
            await until(lambda: not connections._open)
            sock.close()
        assert not [one for one in caplog.records if one.levelname in ("ERROR", "WARNING")]


def host_unread(client):
    """The bytes that wait for their readers, by caller."""
    unread_now = client.app.state.context.unread
    return lambda: dict(unread_now._held)
