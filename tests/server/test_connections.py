"""Connections of `looopy serve`: clients that stand still, too many of them, gone peers."""

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import uvicorn
from tests.server.test_wire import TOKEN, World, until

from looopy import open_stores
from looopy.server import AgentHost, Limits, StaticTokens, create_app
from looopy.server.gate.connections import ServerConfig
from looopy.testing import text

HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def served(limits, world=None, files=65_536):
    """A server as `looopy serve` configures it: its address, its connections, its host."""
    world = world or World()
    async with open_stores("memory:") as stores:
        host = AgentHost(world.build, stores)
        app = create_app(host, authenticate=StaticTokens({TOKEN: "ada"}), limits=limits)
        config = ServerConfig(app, limits, files=files, log_level="error")
        server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield listening.getsockname()[:2], config.connections, host
        finally:
            world.go.set()  # a host waits for the turns that run
            await host.aclose()
            server.force_exit = server.should_exit = True
            await running


async def opened(address, sent=b""):
    """A connection over which this much was sent."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    return reader, writer


async def asked(address, sent=PROBE):
    """The status of the answer to a request."""
    reader, writer = await opened(address, sent)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def closed(reader):
    """All that comes until the server closes the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /contexts/c/turns HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        PROBE[:-2],
        PROBE + PROBE[:-2],
    ],
    ids=["nothing", "half a header", "no end", "the second request"],
)
async def test_a_header_that_does_not_arrive_in_time_closes_the_connection(sent):
    """Whatever came before it; a client that sends on, byte by byte, has no more time."""
    async with served(Limits(header_s=0.3)) as (address, _, _):
        reader, writer = await opened(address, sent)

        async def drip():
            while not writer.is_closing():
                writer.write(b"a" if sent else b"")
                await asyncio.sleep(0)

        dripping = asyncio.create_task(drip())
        try:
            await closed(reader)
        finally:
            dripping.cancel()
            writer.close()
        assert await asked(address) == 200


async def test_the_rest_of_a_body_that_was_refused_has_a_deadline():
    """A client without credentials cannot keep a connection by a body that never ends."""
    async with served(Limits(header_s=0.3)) as (address, _, _):
        body = b"POST /contexts/c/turns HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
        reader, writer = await opened(address, body + b"Expect: 100-continue\r\n\r\n")
        assert b"401" in await reader.readline()
        writer.write(b"x")
        await closed(reader)
        writer.close()


async def test_a_connection_that_waits_makes_room():
    """In all and by address: the one that has waited longest; requests are answered throughout."""
    for limits in (Limits(connections=3), Limits(connections_per_address=3)):
        async with served(limits) as (address, connections, _):
            waiting = [await opened(address, b"GET /") for _ in range(3)]
            await until(lambda: len(connections._open) == 3)
            assert await asked(address) == 200
            assert await closed(waiting[0][0]) == b""
            assert await asked(address) == 200
            for _, writer in waiting:
                writer.close()


async def test_a_connection_is_refused_if_all_others_are_at_work():
    """503, with the name of the limit; once one ends, the next is served."""
    for limits in (Limits(connections=2), Limits(connections_per_address=2)):
        async with served(limits) as (address, _, _):
            stream = b"POST /contexts/c/turns HTTP/1.1\r\n%sContent-Length: 17\r\n" % HEAD
            stream += b"Content-Type: application/json\r\nAccept: text/event-stream\r\n\r\n"
            stream += b'{"message":"Hi."}'
            working = [await opened(address, stream.replace(b"/c/", b"/c%d/" % n)) for n in (1, 2)]
            for reader, _ in working:
                assert b"200" in await reader.readline()
            reader, writer = await opened(address, PROBE)
            refused = await closed(reader)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"connections" in refused
            writer.close()
            working[0][1].transport.abort()
            while await asked(address) == 503:
                pass
            working[1][1].close()


async def test_few_files_limit_the_connections():
    """The database and the calls to models need some, so the process never runs out of them."""
    async with served(Limits(), files=256) as (address, connections, _):
        waiting = [await opened(address, b"GET /") for _ in range(300)]
        assert await asked(address) == 200
        assert len(connections._open) <= 256 - 64 - 32
        for _, writer in waiting:
            writer.close()


async def test_the_kernel_notices_a_peer_that_is_gone():
    """Without traffic by keep-alive probes, with traffic by data that nobody acknowledges."""
    async with served(Limits(send_s=7)) as (address, connections, _):
        _, writer = await opened(address)
        await until(lambda: connections._open)
        [one] = connections._open
        sock = one.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        writer.close()


@pytest.mark.parametrize("size", [70_000, 3_000_000])
async def test_a_reader_that_does_not_read_is_disconnected(size):
    """A page of messages, however much of it waits: the connection is given up."""
    world = World([lambda _: text("x" * size)], chunk_chars=None)
    async with served(Limits(send_s=0.3), world) as (address, connections, host):
        body = b'{"message":"Hi."}'
        post = b"POST /contexts/c/turns HTTP/1.1\r\n%sContent-Type: application/json\r\n" % HEAD
        assert await asked(address, post + b"Content-Length: %d\r\n\r\n" % len(body) + body) == 202
        await until(lambda: not host._kept["default", "c"].agent._core.turns)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)  # noqa: FBT003 - it takes no name
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, address)
        await loop.sock_sendall(sock, b"GET /contexts/c/messages HTTP/1.1\r\n" + HEAD + b"\r\n")
        await until(lambda: len(connections._open) == 1)
        await until(lambda: not connections._open)
        sock.close()


def test_the_limit_of_files_is_raised():
    """As far as the system allows; `serve` starts with what a shell gives it."""
    pytest.importorskip("resource")
    code = (
        "import resource as r; hard = r.getrlimit(r.RLIMIT_NOFILE)[1];"
        "r.setrlimit(r.RLIMIT_NOFILE, (200, hard));"
        "from looopy.server.gate.connections import raise_file_limit;"
        "n = raise_file_limit(); print(n, r.getrlimit(r.RLIMIT_NOFILE)[0], hard)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found, soft, hard = map(int, out.stdout.split())
    assert found == soft == (65_536 if hard == -1 else min(hard, 65_536))
