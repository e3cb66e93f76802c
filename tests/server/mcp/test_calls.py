"""A call of the tool is a turn; a person may have to answer, and another call continues it."""

import asyncio
import contextlib

import pytest
from mcp.types import ElicitResult
from tests.server.obedient import build

from looopy import AuthContext, open_stores
from looopy.server import AgentHost
from looopy.server.protocols.mcp.calls import KEY
from looopy.server.protocols.mcp.serving import Offer, make_server
from mcp import Client, MCPError

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
ALLOW = ElicitResult(action="accept", content={"approve": True, "note": "fine"})
DECLINE, CANCEL = ElicitResult(action="decline"), ElicitResult(action="cancel")


class Person:
    """Answers forms in turn, and keeps them."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, _, params):
        self.asked.append(params)
        return self.answers.pop(0)


@pytest.fixture
async def stores():
    """Empty stores."""
    async with open_stores("memory:") as opened:
        yield opened


@contextlib.asynccontextmanager
async def connected(stores, era="auto", person=None, actor=None):
    """A client of a server in this process."""
    async with AgentHost(build, stores) as host:
        server = make_server({"ask": Offer(host, "Ask it.")}, name="test", auth_context=actor)
        async with Client(server, elicitation_callback=person, mode=era) as client:
            yield client


def said(result):
    """The structured part of a result that is no failure."""
    assert not result.is_error, result
    return result.structured_content


@ERAS
async def test_a_conversation_is_continued_by_its_context_id(stores, era):
    """At any server of the same stores; progress names it, and the steps."""
    steps = []

    async def note(progress, _total, message):
        steps.append((progress, message))

    async with connected(stores, era) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.description) == ("ask", "Ask it.")
        result = await client.call_tool("ask", {"prompt": "read"}, progress_callback=note)
        context_id = said(result)["context_id"]
        assert result.content[0].text == said(result)["text"] == "Result: src/a.py:7"
        assert context_id in result.content[1].text
    assert [number for number, _ in steps] == [1.0, 2.0, 3.0]
    assert [text for _, text in steps] == [
        f"context_id: {context_id}",
        "turn 1",
        'read_file {"path": "src/a.py", "line": 7}',
    ]
    async with connected(stores, era) as client:
        again = said(await client.call_tool("ask", {"prompt": "hi", "context_id": context_id}))
        assert (again["turn"], again["outcome"]) == (2, "completed")


@ERAS
async def test_a_wait_for_the_model_is_progress(stores, era):
    """A client that waits for the result sees why."""
    steps = []

    async def note(_progress, _total, message):
        steps.append(message)

    async with connected(stores, era) as client:
        await client.call_tool("ask", {"prompt": "busy"}, progress_callback=note)
    assert steps[2:] == ["The model is busy. Trying again in 1 s."] * 3


@ERAS
async def test_a_person_answers_by_forms(stores, era):
    """An approval and a question, within one call each."""
    right = ElicitResult(action="accept", content={"value": "right"})
    person = Person(ALLOW, DECLINE, right)
    async with connected(stores, era, person) as client:
        paid = said(await client.call_tool("ask", {"prompt": "pay", "context_id": "c"}))
        assert (paid["turn"], paid["outcome"]) == (2, "completed")
        denied = said(await client.call_tool("ask", {"prompt": "pay", "context_id": "c"}))
        assert "denied this call" in denied["text"]
        chosen = said(await client.call_tool("ask", {"prompt": "choose", "context_id": "c"}))
        assert chosen["text"] == "Result: right"
    allow, _, choose = person.asked
    assert '"cents": 500' in allow.message
    assert allow.requested_schema["required"] == ["approve"]
    assert choose.requested_schema["properties"]["value"]["enum"] == ["left", "right"]


@ERAS
async def test_an_approval_waits_for_a_client_that_can_ask(stores, era):
    """Another one gets told so; after a restart, a call without a prompt asks."""
    async with connected(stores, era) as client:
        waiting = said(await client.call_tool("ask", {"prompt": "pay", "context_id": "c"}))
        assert waiting["outcome"] == "input_required"
        assert [request["tool_name"] for request in waiting["pending"]] == ["pay"]
        assert "Answer elsewhere, then call again without a prompt" in waiting["text"]
        again = said(await client.call_tool("ask", {"context_id": "c"}))
        assert (again["turn"], again["outcome"]) == (1, "input_required")
    async with connected(stores, era, Person(CANCEL, ALLOW)) as client:
        assert said(await client.call_tool("ask", {"context_id": "c"}))["pending"]
        paid = said(await client.call_tool("ask", {"context_id": "c"}))
        assert (paid["turn"], paid["outcome"]) == (2, "completed")


async def test_a_question_is_answered_by_the_next_prompt(stores):
    """A client that shows no forms has a person, too."""
    async with connected(stores) as client:
        asked = said(await client.call_tool("ask", {"prompt": "choose", "context_id": "c"}))
        assert "Which?" in asked["text"]
        chosen = said(await client.call_tool("ask", {"prompt": "LEFT", "context_id": "c"}))
        assert chosen["text"] == "Result: left"


@ERAS
async def test_cancelling_a_call_cancels_the_turn(stores, era, tmp_path, monkeypatch):
    """The connection and the conversation stay."""
    monkeypatch.setenv("LOOOPY_TEST_FOLDER", str(tmp_path))
    reported = asyncio.Event()

    async def note(_progress, _total, message):
        if "50%" in message:
            reported.set()

    async with connected(stores, era) as client, build("c", stores) as other:
        arguments = {"prompt": "wait", "context_id": "c"}
        call = asyncio.create_task(client.call_tool("ask", arguments, progress_callback=note))
        await reported.wait()
        events = other.events(after=0)
        call.cancel()
        async for event in events:
            if event.type == "turn_end":
                assert event.outcome == "cancelled"
                break
        await asyncio.gather(call, return_exceptions=True)
        assert said(await client.call_tool("ask", {"prompt": "hi", "context_id": "c"}))["turn"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "path"),
    [
        ({}, "value_refused", "/prompt"),
        ({"prompt": ""}, "value_refused", "/prompt"),
        ({"prompt": 5}, "value_refused", "/prompt"),
        ({"prompt": "x", "context_id": "a b"}, "value_refused", "/context_id"),
        ({"prompt": "x", "more": 1}, "value_refused", ""),
        ({"context_id": "unknown"}, "context_not_found", None),
        ({"prompt": "x", "context_id": "bens"}, "context_not_found", None),
        ({"prompt": "fail"}, "error", None),
    ],
)
async def test_a_bad_call_gets_an_error_result_with_the_reason(stores, arguments, code, path):
    """The model of the client sees it; nothing is stored."""
    async with build("bens", stores) as other:
        await other.execute_turn("mine", AuthContext("ben"))
    async with connected(stores, actor=AuthContext("ada")) as client:
        result = await client.call_tool("ask", arguments)
        assert result.is_error
        error = result.structured_content["error"]
        assert (error["code"], error.get("path")) == (code, path)
        with pytest.raises(MCPError):
            await client.call_tool("unknown", {})


@ERAS
async def test_a_call_that_is_made_again_with_its_key_is_one_turn(stores, era):
    """Also if it names no conversation, and if it asked a person; another prompt is refused."""
    meta = {KEY: "k-1"}
    async with connected(stores, era, Person(ALLOW)) as client:
        first = await client.call_tool("ask", {"prompt": "pay"}, meta=meta)
        for _ in range(2):
            again = await client.call_tool("ask", {"prompt": "pay"}, meta=meta)
            assert said(again) == said(first) | {"turn": said(again)["turn"]}
            assert again.content == first.content
        other = await client.call_tool("ask", {"prompt": "read"}, meta=meta)
        assert other.structured_content["error"]["code"] == "idempotency_conflict"
        without = await client.call_tool("ask", {"prompt": "read"})
        assert said(without)["context_id"] != said(first)["context_id"]
    assert (await stores.state.load(said(first)["context_id"])).turn_count == said(first)["turn"]


async def test_answers_that_come_again_show_the_turn_that_they_continued(stores):
    """A client of the 2026 protocol sends them with the call."""
    async with connected(stores, "auto", Person()) as client:
        call = client.session.call_tool
        asked = await call("ask", {"prompt": "pay"}, allow_input_required=True)
        more = {"request_state": asked.request_state}
        more["input_responses"] = dict.fromkeys(asked.input_requests, ALLOW)
        first, again = [await call("ask", {"prompt": "pay"}, **more) for _ in range(2)]
        assert said(again) == said(first)
        assert said(first)["outcome"] == "completed"
