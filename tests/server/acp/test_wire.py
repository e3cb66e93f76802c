"""Each line gets an answer in the protocol's form, whatever it holds."""

import asyncio
import json
import os

import pytest
from tests.server.acp.kit import line
from tests.server.obedient import build

from looopy import open_stores
from looopy.server import AgentHost
from looopy.server.protocols.acp.agent import serve
from looopy.server.protocols.acp.wire import MAX_DEPTH, Refused, message_in, pointer

DEEP = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    ("sent", "code", "request_id"),
    [
        (b"no json\n", -32700, None),
        (b'{"id": NaN}\n', -32700, None),
        (b"\xff\xfe\n", -32700, None),
        (b"[" * 100_000 + b"\n", -32700, None),
        (b"[]\n", -32600, None),
        (b"5\n", -32600, None),
        (line(id=1), None, 1),
        (line(id=[1], method="initialize"), -32600, None),
        (line(id=True, method="initialize"), -32600, None),
        (line(id=2, method=["x"]), -32600, 2),
        (line(id=3, method="initialize", params=[1]), -32600, 3),
        (line(params={}), -32600, None),
        (b'{"id": 4, "method": "x", "params": {"a": ' + DEEP + b"}}\n", -32600, 4),
    ],
)
def test_a_line_is_a_message_or_has_an_answer(sent, code, request_id):
    """With the id, if the line has one that fits."""
    if code is None:
        assert message_in(sent)["id"] == request_id
        return
    with pytest.raises(Refused) as refused:
        message_in(sent)
    reply = refused.value.reply
    assert (reply["error"]["code"], reply["id"]) == (code, request_id)


def test_meta_of_a_client_replaces_no_parameter():
    """The SDK would pass its keys on as parameters."""
    message = message_in(line(method="x", params={"cwd": "/w", "_meta": {"cwd": "/other"}}))
    assert message["params"] == {"cwd": "/w", "_meta": {"meta": {"cwd": "/other"}}}


@pytest.mark.parametrize(
    ("place", "given", "found"),
    [
        (("prompt", 0, "text", "text"), {"prompt": [{"type": "text"}]}, "/prompt/0/text"),
        (("prompt", 0, "text"), {"prompt": [{"text": 5}]}, "/prompt/0/text"),
        (("sessionId",), {}, "/sessionId"),
        (("servers", 0, "Http", "a/b"), {"servers": [{"a/b": 5}]}, "/servers/0/a~1b"),
        ((), None, ""),
    ],
)
def test_a_place_is_one_of_the_parameters(place, given, found):
    """Without the names of the kinds that were tried."""
    assert pointer(place, given) == found


async def test_a_bad_line_does_not_end_the_connection():
    """Answers come to each, and the next request is served."""
    theirs, to_us = os.pipe()
    from_us, ours = os.pipe()
    async with open_stores("memory:") as stores:
        serving = asyncio.create_task(serve(AgentHost(build, stores), theirs, ours, name="t"))
        with os.fdopen(to_us, "wb", buffering=0) as out, os.fdopen(from_us, "rb") as back:

            async def ask(sent):
                out.write(sent)
                return json.loads(await asyncio.to_thread(back.readline))

            for bad in (b"{\n", b"[]\n", b'{"id": {}, "result": 1}\n'):
                assert "error" in await ask(bad)
            out.write(b"\n" + line(id=99, result=1))  # an answer to nothing
            reply = await ask(line(id="a", method="initialize", params={"protocolVersion": 1}))
            assert reply["result"]["protocolVersion"] == 1
            reply = await ask(line(id="b", method="no/such", params={}))
            assert reply["error"]["code"] == -32601
            prompt = {"sessionId": "s", "prompt": [{"type": "text", "text": 5}]}
            reply = await ask(line(id="c", method="session/prompt", params=prompt))
            assert reply["error"]["data"] == {"code": "value_refused", "path": "/prompt/0/text"}
            assert reply["error"]["message"].startswith("/prompt/0/text: ")
            reply = await ask(line(id="d", method="session/new", params={"mcpServers": []}))
            assert reply["error"]["data"]["path"] == "/cwd"
            big = line(id="e", method="initialize", params={"protocolVersion": 1, "x": "y" * 10**6})
            assert (await ask(big))["result"]
        await serving
    os.close(theirs)
    os.close(ours)
