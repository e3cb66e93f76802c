"""The Responses API as the official SDK sees it, over a real connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel
from starlette.requests import Request
from tests.killed import killed_in_a_tool
from tests.preloaded import Preloaded
from tests.server.loopback import listening

from looopy import Agent, AuthContext, Stores, TurnContext, open_stores, tool
from looopy.errors import ConfigurationError
from looopy.server import PageTools
from looopy.server.app import create_app
from looopy.server.app_context import AppContext
from looopy.server.host import AgentHost
from looopy.server.protocols.responses.attempts import Attempt
from looopy.server.protocols.responses.request import Asked
from looopy.server.protocols.responses.routes import responses_api
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="none")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(needs_approval=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def _reply(request: Any) -> Any:
    """What the model says: it does what its last message asks for."""
    last = request.messages[-1]
    if last.role == "toolResult":
        return text(f"Result: {last.text}")
    said = last.text
    if said == "add":
        return tool_call("add", a=1, b=2)
    if said == "send":
        return tool_call("send", to="Ada")
    if said == "count":
        return text(" ".join(str(n) for n in range(500)))
    if said == "json":
        return text('{"city": "Turin"}')
    heard = [m.text for m in request.messages if m.role == "user"]
    return text(f"I heard {heard}")


def _who(request: Request) -> AuthContext | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    return AuthContext(token) if token in ("ada", "ben") else None


@asynccontextmanager
async def _served(stores: Stores) -> AsyncIterator[str]:
    def build(context_id: str, stores: Stores) -> Agent:
        model = ScriptedProvider(_reply, chunk_chars=8, delay_s=0.001)
        return Agent(context_id, llm_provider=model, tools=[add, send], stores=stores)

    async with (
        AgentHost(build, stores) as host,
        listening(create_app(host, authenticate=_who, protocols=[responses_api])) as url,
    ):
        yield f"{url}/v1"


@asynccontextmanager
async def _client(who: str = "ada") -> AsyncIterator[AsyncOpenAI]:
    async with open_stores("memory:") as stores, _calling(stores, who) as client:
        yield client


@asynccontextmanager
async def _calling(stores: Stores, who: str = "ada") -> AsyncIterator[AsyncOpenAI]:
    async with (
        _served(stores) as url,
        AsyncOpenAI(base_url=url, api_key=who, max_retries=0) as client,
    ):
        yield client


async def test_a_conversation_by_its_responses() -> None:
    """`previous_response_id` continues the conversation; a retrieved response is the same."""
    async with _client() as client:
        first = await client.responses.create(model="looopy", input="I am Ada.")
        assert first.output_text == "I heard ['I am Ada.']"
        assert first.status == "completed"
        second = await client.responses.create(
            model="looopy", input="Who am I?", previous_response_id=first.id
        )
        assert second.output_text == "I heard ['I am Ada.', 'Who am I?']"
        assert second.conversation == first.conversation
        again = await client.responses.retrieve(second.id)
        assert again == second
        assert [one.id async for one in client.models.list()] == ["looopy"]


async def test_continuing_an_older_response_forks_the_conversation() -> None:
    """The newer response stays as it was; a request that is refused leaves no fork."""
    async with open_stores("memory:") as stores, _calling(stores) as client:
        first = await client.responses.create(model="looopy", input="one", conversation="c")
        second = await client.responses.create(model="looopy", input="two", conversation="c")
        with pytest.raises(openai.BadRequestError, match="not a tool of this agent: add, send"):
            await client.responses.create(
                model="looopy",
                input="three",
                previous_response_id=first.id,
                tool_choice={"type": "function", "name": "fly"},
            )
        assert len((await stores.contexts.list()).items) == 1
        other = await client.responses.create(
            model="looopy",
            input="three",
            previous_response_id=first.id,
            tool_choice={"type": "function", "name": "add"},
        )
        assert other.output_text == "I heard ['one', 'three']"
        assert other.conversation != first.conversation
        assert (await client.responses.retrieve(second.id)).output_text == "I heard ['one', 'two']"


async def test_a_stream_equals_the_stored_response() -> None:
    """While the turn runs, and again from the log."""
    async with _client() as client:
        async with client.responses.stream(model="looopy", input="add") as stream:
            said = [one.delta async for one in stream if one.type == "response.output_text.delta"]
            whole = await stream.get_final_response()
        assert "".join(said) == "Result: 3" == whole.output_text
        assert len(said) > 1
        kept = await client.responses.retrieve(whole.id)
        assert kept.output_text == "Result: 3"
        assert [item.type for item in kept.output] == ["mcp_call", "message"]
        replayed = await client.responses.retrieve(whole.id, stream=True)
        events = [event async for event in replayed]
        assert events[-1].type == "response.completed"
        assert events[-1].response == kept


async def test_a_broken_stream_resumes_after_its_last_number() -> None:
    """While the turn runs, and when it is over: no letter twice, none lost."""
    async with _client() as client:
        stream = await client.responses.create(
            model="looopy", input="count", conversation="c", stream=True
        )
        said, last = "", -1
        while True:
            async for event in stream:
                last = event.sequence_number
                if event.type == "response.output_text.delta":
                    said += event.delta
                    if len(said) % 7 == 0 and len(said) < 1500:
                        break  # the connection breaks
                if event.type == "response.completed":
                    assert said == event.response.output_text
                    return
            await stream.close()
            stream = await client.responses.retrieve("resp_1_c", stream=True, starting_after=last)


async def test_a_response_has_the_metadata_and_the_background_of_its_request() -> None:
    """At once, when it is retrieved, and cancelled."""
    async with _client() as client:
        begun = await client.responses.create(
            model="looopy", input="count", background=True, metadata={"order": "17"}
        )
        again = await client.responses.retrieve(begun.id)
        cancelled = await client.responses.cancel(begun.id)
        for one in (begun, again, cancelled):
            assert (one.background, one.metadata) == (True, {"order": "17"})
        plain = await client.responses.create(model="looopy", input="hi")
        assert (plain.background, plain.metadata) == (False, {})


async def test_a_model_is_found_by_its_name() -> None:
    """And no other."""
    async with _client() as client:
        assert (await client.models.retrieve("looopy")).id == "looopy"
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.models.retrieve("gpt-5")


async def test_a_response_is_deleted_with_the_conversation_that_it_is_all_of() -> None:
    """One among others is refused, since the later ones rest on it."""
    async with open_stores("memory:") as stores, _calling(stores) as client:
        alone = await client.responses.create(model="looopy", input="hi")
        await client.responses.delete(alone.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(alone.id)
        first = await client.responses.create(model="looopy", input="hi", conversation="c")
        await client.responses.create(model="looopy", input="ho", conversation="c")
        with pytest.raises(openai.ConflictError, match="delete the conversation c"):
            await client.responses.delete(first.id)
        assert (await client.conversations.delete("c")).deleted
        assert not (await stores.contexts.list()).items


async def test_a_conversation_and_its_items() -> None:
    """By the SDK's paging, in both orders; a hidden turn is left out."""
    async with open_stores("memory:") as stores, _calling(stores) as client:
        begun = await client.conversations.create()
        said = ["one", "add", "send"]
        for text_of_it in said:
            await client.responses.create(model="looopy", input=text_of_it, conversation=begun.id)
        assert (await client.conversations.retrieve(begun.id)).id == begun.id
        shown: list[list[str]] = []
        for order in ("asc", "desc"):
            found = client.conversations.items.list(begun.id, order=order, limit=2)  # type: ignore[arg-type] # a literal
            shown.append([item.type async for item in found])
        of_one, of_add = ["message", "message"], ["message", "mcp_call", "message"]
        assert shown[0] == [*of_one, *of_add, "message", "mcp_approval_request"]
        assert shown[1] == shown[0][::-1]
        [asked] = (await client.responses.input_items.list(f"resp_2_{begun.id}")).data
        assert asked.content[0].text == "add"  # type: ignore[union-attr] # a union of all items
        async with Agent(begun.id, llm_provider=ScriptedProvider([]), stores=stores) as agent:
            await agent.rewind(2)
        left = client.conversations.items.list(begun.id, order="asc")
        assert [item.type async for item in left] == of_one
        with pytest.raises(openai.BadRequestError, match="no such item"):
            await client.conversations.items.list(begun.id, after="msg_99999999999_0_x")


async def test_a_conversation_is_begun_without_a_body_however_it_is_announced() -> None:
    """By no header, a length of 0, or no chunks; a body is still checked."""

    async def chunks(*found: bytes) -> AsyncIterator[bytes]:
        for one in found:
            yield one

    async with (
        open_stores("memory:") as stores,
        _served(stores) as url,
        httpx.AsyncClient(headers={"Authorization": "Bearer ada"}) as client,
    ):
        place = f"{url}/conversations"
        for content in (None, b"", chunks(), chunks(b"{", b"}")):
            kind = {"Content-Type": "application/json"} if content else {}
            begun = await client.post(place, content=content, headers=kind)
            assert begun.json()["object"] == "conversation", begun.text
        refused = await client.post(place, content=chunks(b"{}"))
        assert refused.status_code == 415
        long = chunks(*[b" " * 1_000_000] * 2)
        assert (await client.post(place, content=long)).status_code == 413


async def test_hints_that_change_no_answer_are_ignored_by_name() -> None:
    """Agents of the SDK send some of them with each request."""
    async with _client() as client:
        done = await client.responses.create(
            model="looopy",
            input="hi",
            include=["reasoning.encrypted_content"],
            prompt_cache_key="k",
            safety_identifier="u",
            text={"verbosity": "medium"},
            service_tier="flex",
            truncation="auto",
            top_p=1,
        )
        assert done.status == "completed"


async def test_a_client_sends_the_instructions_and_tools_that_the_owner_allows() -> None:
    """Its instructions reach the prompt, and its tools the model; their calls wait for it."""

    def prompt(turn: TurnContext) -> str:
        return str(turn.metadata["responses"].get("instructions", "none"))

    model = ScriptedProvider([tool_call("where"), text("In Turin.")])

    def build(context_id: str, stores: Stores) -> Agent:
        tools = [PageTools()]
        return Agent(
            context_id, llm_provider=model, stores=stores, tools=tools, system_prompt=prompt
        )

    def api(app_context: AppContext) -> Any:
        return responses_api(app_context, allow=["instructions", "tools"])

    where = {"type": "function", "name": "where", "parameters": {"type": "object"}}
    brought: dict[str, Any] = {"tools": [where], "instructions": "Be brief."}
    async with (
        open_stores("memory:") as stores,
        AgentHost(build, stores) as host,
        listening(create_app(host, authenticate=_who, protocols=[api])) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="ada", max_retries=0) as client,
    ):
        asked = await client.responses.create(model="looopy", input="Where am I?", **brought)
        [call] = asked.output
        assert call.type == "function_call"
        told = await client.responses.create(
            model="looopy",
            previous_response_id=asked.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Turin"}],
            **brought,
        )
        assert told.output_text == "In Turin."
        with pytest.raises(openai.BadRequestError, match="functions that the client runs"):
            await client.responses.create(model="looopy", input="x", tools=[{"type": "web_search"}])
    assert [r.system_prompt for r in model.requests] == ["Be brief."] * 2
    assert [tool.name for tool in model.requests[0].tools] == ["where"]
    with pytest.raises(ConfigurationError, match="instructions and tools, not 'prompt'"):
        responses_api(Mock(), allow=["prompt"])


async def test_an_approval_over_the_api() -> None:
    """An `mcp_approval_response` answers it."""
    async with _client() as client:
        asked = await client.responses.create(model="looopy", input="send")
        [question] = asked.output
        assert question.type == "mcp_approval_request"
        done = await client.responses.create(
            model="looopy",
            previous_response_id=asked.id,
            input=[
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": question.id,
                    "approve": True,
                }
            ],
        )
        assert done.output_text == "Result: sent to Ada"


async def test_a_response_in_the_background_is_streamed_later_and_cancelled() -> None:
    """It has what was said until then."""
    async with _client() as client:
        begun = await client.responses.create(model="looopy", input="count", background=True)
        assert begun.status == "in_progress"
        stream = await client.responses.retrieve(begun.id, stream=True)
        said = ""
        async for event in stream:
            if event.type == "response.output_text.delta":
                said += event.delta
                if len(said) > 40:
                    break
        cancelled = await client.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert cancelled.output_text.startswith(said)
        assert len(cancelled.output_text) < 1000


async def test_a_client_that_leaves_does_not_stop_the_turn() -> None:
    """The next one gets all of it."""
    async with _client() as client:
        stream = await client.responses.create(
            model="looopy", input="count", conversation="c", stream=True
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        last = [event async for event in await client.responses.retrieve("resp_1_c", stream=True)]
        assert last[-1].type == "response.completed"
        assert last[-1].response.output_text.endswith("499")


class City(BaseModel):
    """A city."""

    city: str


async def test_a_parsed_answer_fits_its_type() -> None:
    """The SDK's schema becomes the `output_type`."""
    async with _client() as client:
        found = await client.responses.parse(model="looopy", input="json", text_format=City)
        assert found.output_parsed == City(city="Turin")


@pytest.mark.parametrize("place", ["conversation", "nothing", "fork"])
async def test_a_request_that_is_sent_twice_runs_once(place: str) -> None:
    """By `Idempotency-Key`, wherever it begins; another input under it is refused."""
    async with _client() as client:
        more: dict[str, Any] = {"conversation": "c"} if place == "conversation" else {}
        if place == "fork":
            first = await client.responses.create(model="looopy", input="hi", conversation="c")
            await client.responses.create(model="looopy", input="ho", conversation="c")
            more = {"previous_response_id": first.id}

        async def ask(said: str) -> Response:
            headers = {"Idempotency-Key": "k"}
            return await client.responses.create(
                model="looopy", input=said, extra_headers=headers, **more
            )

        assert await ask("hi") == await ask("hi")
        with pytest.raises(openai.UnprocessableEntityError, match="idempotency key"):
            await ask("ho")


async def test_yes_twice_is_two_turns() -> None:
    """Also if the SDK repeats the second by itself: the response of the first was delivered."""
    async with _client() as client:
        for count, headers in enumerate(({}, {}, {"x-stainless-retry-count": "1"}), 1):
            done = await client.responses.create(
                model="looopy", input="yes", conversation="c", extra_headers=headers
            )
            assert done.output_text == f"I heard {['yes'] * count}"


async def test_the_digest_of_a_request_does_not_depend_on_its_answers() -> None:
    """An answer to a call may be a credential, which could be guessed from what is stored."""
    answer = {"type": "function_call_output", "call_id": "c", "output": "a secret"}
    asked = Asked(
        model="m", message=None, inputs={}, context_id=None, after_turn=None,
        options=None, output_type=None,
    )  # fmt: skip
    request = Request({"type": "http", "headers": []})
    kept = [
        Attempt(request, {"input": [answer | {"output": said}]}, asked, AuthContext("ada")).metadata
        for said in ("a secret", "another")
    ]
    assert kept[0] == kept[1]
    other = {"input": [answer | {"call_id": "d"}]}
    assert Attempt(request, other, asked, AuthContext("ada")).metadata != kept[0]


BAD: list[tuple[dict[str, Any], int, str | None]] = [
    ({"model": "gpt"}, 404, "model"),
    ({"input": []}, 400, "input"),
    ({"input": [{"role": "assistant", "content": "no"}]}, 400, "input[0].role"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        400,
        "input[0].content[0]",
    ),
    ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, 400, "input[0].type"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools"),
    ({"store": False}, 400, "store"),
    ({"instructions": "Be brief."}, 400, "instructions"),
    ({"extra_body": {"colour": "red"}}, 400, "colour"),
    ({"metadata": {"responses": "mine"}}, 400, "metadata.responses"),
    ({"temperature": -1}, 400, None),
    ({"previous_response_id": "resp_x"}, 400, "previous_response_id"),
    ({"previous_response_id": "resp_1_nobody"}, 404, None),
    ({"conversation": "c", "previous_response_id": "resp_1_c"}, 400, "conversation"),
    ({"conversation": "a/b"}, 400, "conversation"),
    ({"text": {"format": {"type": "json_object"}}}, 400, "text.format.type"),
    ({"text": {"format": "text"}}, 400, "text.format"),
    ({"text": "short"}, 400, "text"),
    ({"text": {"verbosity": "low"}}, 400, "text.verbosity"),
    ({"tool_choice": {"type": "function", "name": "fly"}}, 400, "tool_choice"),
    ({"tool_choice": "fly"}, 400, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "final_answer"}}, 400, "tool_choice"),
]


async def test_a_bad_request_is_refused_with_its_place_and_stores_no_turn() -> None:
    """In the API's form of errors."""
    async with open_stores("memory:") as stores, _calling(stores) as client:
        for given, status, param in BAD:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.responses.create(**{"model": "looopy", "input": "hi", **given})
            assert (caught.value.status_code, caught.value.param) == (status, param), given
        assert not (await stores.contexts.list()).items


async def test_the_response_of_another_looks_like_none() -> None:
    """On every verb."""
    async with open_stores("memory:") as stores, _served(stores) as url:
        async with AsyncOpenAI(base_url=url, api_key="ada", max_retries=0) as ada:
            kept = await ada.responses.create(model="looopy", input="secret", conversation="c")
        async with AsyncOpenAI(base_url=url, api_key="ben", max_retries=0) as ben:
            for tried in (
                ben.responses.retrieve(kept.id),
                ben.responses.cancel(kept.id),
                ben.responses.delete(kept.id),
                ben.responses.input_items.list(kept.id),
                ben.conversations.retrieve("c"),
                ben.conversations.delete("c"),
                ben.conversations.items.list("c"),
                ben.responses.create(model="looopy", input="x", previous_response_id=kept.id),
                ben.responses.create(model="looopy", input="x", conversation="c"),
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    await tried
                assert "secret" not in json.dumps(caught.value.body)
        async with AsyncOpenAI(base_url=url, api_key="eve", max_retries=0) as eve:
            with pytest.raises(openai.AuthenticationError):
                await eve.responses.retrieve(kept.id)


async def test_a_response_that_a_dead_process_left_is_continued(
    preloaded: Preloaded, tmp_path: Path
) -> None:
    """It is incomplete at the first look, and not in progress for ever."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    call = {"name": "add", "effects": "idempotent", "arguments": {"a": 1, "b": 2}}
    await killed_in_a_tool(preloaded, url, **call)
    async with (
        open_stores(url) as stores,
        _served(stores) as address,
        AsyncOpenAI(base_url=address, api_key="ada", max_retries=0) as client,
    ):
        left = await client.responses.retrieve("resp_1_c")
        assert left.status == "incomplete"
        assert [item.type for item in left.output] == ["mcp_call"]
        done = await client.responses.create(model="looopy", previous_response_id="resp_1_c")
        assert done.status == "completed"
        assert done.output_text == "Result: 3"
