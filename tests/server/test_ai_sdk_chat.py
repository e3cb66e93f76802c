"""A chat of the AI SDK in front of a host: what the page posts, and the answers that it gets."""

from __future__ import annotations

import asyncio
import base64
import copy
from typing import Any

import pytest

from looopy import Agent, AuthContext, open_stores, tool
from looopy.errors import CannotContinue, ContextNotFound, InputNotFound, ValueRefused
from looopy.server import AgentHost
from looopy.server.problems import Problem
from looopy.server.protocols.ai_sdk.chat import Chat
from looopy.server.protocols.ai_sdk.parts import Parts
from looopy.server.protocols.ai_sdk.request import read_request
from looopy.server.protocols.ai_sdk.transcript import Answer
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.tools import client_tool

ADA = AuthContext("ada")


class Page:
    """Posts what `useChat` posts, and keeps its messages."""

    def __init__(self, chat: Chat, context_id: str = "trip") -> None:
        self.chat = chat
        self.id = context_id
        self.messages: list[Any] = []

    async def post(self, **more: Any) -> Any:
        """Post the messages; the last one is the answer then."""
        request = read_request({"id": self.id, "messages": self.messages, **more})
        return self.take(await self.chat.post(request, ADA))

    def take(self, parts: Any) -> Any:
        return self._fold(parts)

    async def _fold(self, parts: Any) -> Any:
        last = self.messages[-1] if self.messages else None
        answer = Answer(Parts())
        if last is not None and last["role"] == "assistant":
            answer.message = last
        else:
            self.messages.append(answer.message)
        self.stream = [part async for part in parts]
        for part in self.stream:
            answer.add(part)
        return answer.message

    async def say(self, said: str, message_id: str, **more: Any) -> Any:
        parts = [{"type": "text", "text": said}]
        self.messages.append({"id": message_id, "role": "user", "parts": parts})
        return await (await self.post(**more))


async def shown(chat: Chat) -> Any:
    """The messages that a page gets when it loads."""
    messages, before = await chat.messages("trip", ADA)
    assert before is None
    return messages


def texts(message: Any) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def user(message_id: str, said: str) -> Any:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": said}]}


HANGING = asyncio.Event()


@tool
async def hang() -> str:
    """Begin, and never end."""
    HANGING.set()
    await asyncio.Event().wait()
    return "never"


@tool(needs_approval=True)
def pay(eur: int) -> str:
    """Pay."""
    return f"paid {eur}"


@pytest.fixture
async def made():
    """A function that makes a chat whose model plays a script, with its provider."""
    hosts = []
    async with open_stores("memory:") as stores:

        def make(*replies: Any, **options: Any) -> tuple[Chat, ScriptedProvider]:
            provider = ScriptedProvider(replies, **options)

            def build(context_id: str, stores: Any) -> Agent:
                tools = [pay, hang, client_tool("locate", "Where is the user?")]
                return Agent(context_id, llm_provider=provider, tools=tools, stores=stores)

            hosts.append(AgentHost(build, stores))
            return Chat(hosts[-1]), provider

        yield make
        for host in hosts:
            await host.drain(0.01)


async def test_a_conversation_with_an_approval_is_one_answer_and_its_transcript(made):
    """The page's messages are those that a page that loads gets."""
    chat, _ = made((text("Paying."), tool_call("pay", eur=5)), text("Done."), text("Bye."))
    page = Page(chat)
    answer = await page.say("Pay 5.", "u-1")
    part = answer["parts"][-1]
    assert part["state"] == "approval-requested"
    part |= {"state": "approval-responded"}
    part["approval"] |= {"approved": True}
    answer = await (await page.post(messageId=answer["id"]))
    assert texts(answer) == "Paying.Done."
    assert answer["parts"][2]["output"] == "paid 5"
    await page.say("Thanks.", "u-2")
    loaded = await shown(chat)
    assert [m["role"] for m in loaded] == ["user", "assistant", "user", "assistant"]
    assert loaded[1] == page.messages[1]
    assert loaded[3] == page.messages[3]


async def test_a_tool_of_the_page_answers_by_its_output(made):
    """`addToolOutput` answers the call, and a failure of the page is one of the tool."""
    chat, provider = made(tool_call("locate"), text("Rome."), tool_call("locate"), text("Oh."))
    page = Page(chat)
    answer = await page.say("Where am I?", "u-1")
    answer["parts"][-1] |= {"state": "output-available", "output": {"city": "Rome"}}
    answer = await (await page.post())
    assert texts(answer) == "Rome."
    assert '"Rome"' in provider.requests[1].messages[-1].text
    answer = await page.say("And now?", "u-2")
    answer["parts"][-1] |= {"state": "output-error", "errorText": "no GPS"}
    await (await page.post())
    result = provider.requests[3].messages[-1]
    assert (result.text, result.is_error) == ("no GPS", True)


async def test_a_message_that_is_posted_twice_runs_one_turn(made):
    """A request that is repeated gets the answer of its turn, while it runs and afterwards."""
    chat, provider = made(text("Only once."), chunk_chars=2, delay_s=0.001)
    page, again = Page(chat), Page(chat)
    page.messages = [{"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "Hi."}]}]
    again.messages = list(page.messages)
    one = await page.post()
    two = await again.post(messageId="u-1")
    assert texts(await one) == texts(await two) == "Only once."
    again.messages.pop()
    assert texts(await (await again.post())) == "Only once."
    assert len(provider.requests) == 1


async def test_an_edited_or_regenerated_message_takes_the_place_of_the_old_one(made):
    """By the page's own id and by that of the transcript, as often as one likes."""
    chat, provider = made(*[text(f"{n}.") for n in range(6)])
    page = Page(chat)
    await page.say("A", "u-1")
    await page.say("B", "u-2")
    page.messages.pop()
    assert texts(await (await page.post(trigger="regenerate-message"))) == "2."
    del page.messages[2:]
    assert texts(await page.say("B, but better", "u-2", messageId="u-2")) == "3."
    del page.messages[2:]
    assert texts(await page.say("B, at its best", "u-2", messageId="u-2")) == "4."
    page.messages = (await shown(chat))[:1]
    first = page.messages.pop()["id"]
    assert texts(await page.say("A!", first, messageId=first)) == "5."
    loaded = await shown(chat)
    assert [texts(m) for m in loaded] == ["A!", "5."]
    assert [m.text for m in provider.requests[-1].messages] == ["A!"]


async def test_a_late_copy_of_any_request_shows_what_that_request_began(made):
    """A message, an edit, and an answer to an approval, with others behind them by now."""
    replies = [tool_call("pay", eur=5), text("Paid."), text("1."), text("2."), text("3.")]
    chat, provider = made(*replies)
    page = Page(chat)
    posted: list[Any] = []

    async def post(*wanted: Any, **more: Any) -> None:
        posted.append((wanted, {"id": "trip", "messages": copy.deepcopy(page.messages), **more}))
        answer = await (await page.post(**more))
        assert (answer["id"], texts(answer)) == wanted

    page.messages = [user("u-1", "Pay 5.")]
    await post("turn-1", "")
    part = page.messages[-1]["parts"][-1]
    part |= {"state": "approval-responded", "approval": part["approval"] | {"approved": True}}
    await post("turn-1", "Paid.")
    page.messages.append(user("u-2", "B"))
    await post("turn-3", "1.")
    page.messages[2:] = [user("u-2", "C")]
    await post("turn-4", "2.", messageId="u-2")
    page.messages.append(user("u-3", "D"))
    await post("turn-5", "3.")
    before = await chat.host.stores.journal.events("trip")
    for (answered, said), body in posted:
        late = Page(chat)
        late.messages = body["messages"]
        answer = await late.take(await chat.post(read_request(body), ADA))
        assert answer["id"] == answered
        assert texts(answer) == (said or "Paid.")
    assert await chat.host.stores.journal.events("trip") == before
    assert len(provider.requests) == len(replies)


async def test_a_message_whose_tool_acted_is_regenerated_only_with_force(made):
    """A turn that failed is continued instead; so no tool runs twice."""
    broken = failure(RuntimeError("the model is gone"))
    replies = [tool_call("pay", eur=5), broken, text("Paid."), tool_call("pay", eur=5)]
    chat, provider = made(*replies)
    page = Page(chat)
    answer = await page.say("Pay 5.", "u-1")
    part = answer["parts"][-1]
    part |= {"state": "approval-responded", "approval": part["approval"] | {"approved": True}}
    await (await page.post())
    assert page.stream[-1]["finishReason"] == "error"
    page.messages.pop()
    regenerate = {"trigger": "regenerate-message", "messageId": "turn-1"}
    answer = await (await page.post(**regenerate))
    assert (texts(answer), answer["parts"][1]["output"]) == ("Paid.", "paid 5")
    assert page.stream[-1]["finishReason"] == "stop"
    page.messages.pop()
    with pytest.raises(Problem, match="the tool pay ran for this request") as refused:
        await page.post(**regenerate)
    assert (refused.value.status, refused.value.code) == (409, "effects_repeated")
    assert refused.value.path == "/trigger"
    assert len(provider.requests) == 3
    answer = await (await page.post(**regenerate, force=True))
    assert (answer["id"], answer["parts"][-1]["state"]) == ("turn-4", "approval-requested")


async def test_a_page_that_was_cut_off_gets_the_result_of_the_call_that_died(made):
    """The continued answer ends the tool part that the page still shows as running."""
    chat, _ = made(tool_call("hang"))
    page = Page(chat)
    page.messages = [user("u-1", "Hang.")]
    parts = await chat.post(read_request({"id": "trip", "messages": page.messages}), ADA)
    answer = Answer(Parts())
    async for part in parts:
        answer.add(part)
        if part["type"] == "tool-input-available":
            break
    await HANGING.wait()
    await parts.aclose()
    assert await chat.host.drain(0.01) == 1
    page.messages.append(answer.message)
    page.chat, _ = made(text("I do not know."))
    answer = await (await page.post(messageId="turn-1"))
    assert [part.get("state") for part in answer["parts"]] == [None, "output-error", None, "done"]
    assert "outcome of this call is unknown" in answer["parts"][1]["errorText"]
    assert (await shown(page.chat))[1]["parts"] == answer["parts"]


async def test_a_page_that_comes_back_in_the_middle_sees_all_of_the_answer(made):
    """The stream replays the whole answer, an approval before it included."""
    chat, _ = made(
        tool_call("pay", eur=5), text("It was paid at last."), chunk_chars=2, delay_s=0.001
    )
    page = Page(chat)
    answer = await page.say("Pay 5.", "u-1")
    assert await chat.resume("trip", ADA) is None
    part = answer["parts"][-1] | {"state": "approval-responded"}
    part["approval"] = part["approval"] | {"approved": True}
    answer["parts"][-1] = part
    parts = await chat.post(read_request({"id": "trip", "messages": page.messages}), ADA)
    async for one in parts:
        if one["type"] == "text-delta":
            break
    await parts.aclose()  # the page is closed
    back = Page(chat)
    resumed = await chat.resume("trip", ADA)
    assert resumed is not None
    await back.take(resumed)
    assert texts(back.messages[0]) == "It was paid at last."
    assert back.messages == (await shown(chat))[1:]
    assert await chat.resume("trip", ADA) is None


async def test_stop_cancels_the_turn_and_the_page_may_go_on(made):
    """`stop()` in the page closes the connection alone, so there is an endpoint for it."""
    chat, _ = made(text("A very long answer. " * 50), text("Yes?"), chunk_chars=4, delay_s=0.001)
    page = Page(chat)
    page.messages = [{"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "Go."}]}]
    parts = await chat.post(read_request({"id": "trip", "messages": page.messages}), ADA)
    async for part in parts:
        if part["type"] == "text-delta":
            await chat.stop("trip", ADA)
    assert part == {"type": "abort", "reason": "cancelled"}
    await chat.stop("trip", ADA)
    assert texts(await page.say("Hello?", "u-2")) == "Yes?"


async def test_a_turn_that_was_cut_continues_when_the_page_asks_again(made):
    """By its message, or by an answer of which the page has seen no result."""
    chat, _ = made(text("Lost. " * 99), tool_call("pay", eur=5), text("Lost. " * 99), **SLOW)
    page = Page(chat)
    page.messages = [{"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "Pay 5."}]}]
    await cut(chat, page)
    chat, _ = made(tool_call("pay", eur=5), text("Lost. " * 99), **SLOW)
    page.chat = chat
    answer = await (await page.post())
    assert page.stream[0]["messageId"] == "turn-1"
    answer["parts"][-1] |= {"state": "approval-responded"}
    answer["parts"][-1]["approval"] |= {"approved": True}
    await cut(chat, page)
    chat, _ = made(text("Paid."))
    page.chat = chat
    assert texts(await (await page.post())) == "Paid."
    assert [message["id"] for message in await shown(chat)] == [
        "message-1",
        "turn-1",
    ]


SLOW = {"chunk_chars": 2, "delay_s": 0.001}


async def cut(chat: Chat, page: Page) -> None:
    """Post, and end the host in the middle of the answer."""
    parts = await chat.post(read_request({"id": page.id, "messages": page.messages}), ADA)
    async for part in parts:
        if part["type"] == "text-delta":
            break
    await parts.aclose()
    assert await chat.host.drain(0.01) == 1


async def test_a_message_with_answers_begins_an_answer_of_its_own(made):
    """What it answers belongs to the older message; a repeated request shows the new one."""
    chat, provider = made((text("May I?"), tool_call("pay", eur=5)), text("Done."))
    page = Page(chat)
    answer = await page.say("Pay 5.", "u-1")
    request = answer["parts"][-1]["approval"]["id"]
    assert texts(await page.say("And say so.", "u-2", inputs={request: True})) == "Done."
    page.messages.pop()
    again = await (await page.post())
    assert (again["id"], texts(again)) == ("turn-2", "Done.")
    loaded = await shown(chat)
    assert [message["id"] for message in loaded] == ["message-1", "turn-1", "message-3", "turn-2"]
    assert loaded[1]["parts"][-1]["output"] == "paid 5"
    assert len(provider.requests) == 2


async def test_only_a_message_that_began_a_turn_is_edited(made):
    """An older one with the same words is answered anew; one that came in between is a new one."""
    chat, provider = made(*[text(f"{n}.") for n in range(6)])
    page = Page(chat)
    await page.say("A", "u-1")
    await page.say("B", "u-2")
    del page.messages[1:]
    assert texts(await (await page.post(messageId="u-1"))) == "2."
    page.messages[0]["parts"][0]["text"] = "what the page has of it"
    page.messages.pop()
    assert texts(await (await page.post(trigger="regenerate-message"))) == "3."
    assert [m.text for m in provider.requests[-1].messages] == ["A"]
    async with chat.host.agent("trip", ADA) as agent:
        await agent.steer("Wait!", ADA)
        await agent.execute_turn("C", ADA)
        places = {m.text: n for n, m in enumerate(await agent.get_messages(include_hidden=True), 1)}
    edit = {"id": f"message-{places['Wait!']}", "role": "user"}
    page.messages = [{**edit, "parts": [{"type": "text", "text": "Go on!"}]}]
    assert texts(await (await page.post())) == "5."
    assert "C" in [m.text for m in provider.requests[-1].messages]


@pytest.mark.parametrize("odd", ["message-0", "message-999999999999999", "message-٣", "u-1@1"])
async def test_an_id_of_no_message_is_that_of_a_new_one(odd, made):
    """Also in a context that was cleared, whose turns are still counted."""
    chat, provider = made(*[text(f"{n}.") for n in range(4)])
    page = Page(chat)
    await page.say("A", "u-1")
    assert texts(await page.say("B", odd)) == "1."
    async with chat.host.agent("trip", ADA) as agent:
        await agent.clear()
    page.messages = []
    assert texts(await page.say("C", "u-3")) == "2."
    assert [texts(message) for message in await shown(chat)] == ["C", "2."]
    assert await chat.resume("trip", ADA) is None
    assert len(provider.requests) == 3


async def test_answers_without_a_request_are_refused_with_their_place(made):
    """Nothing is stored; an approval of somebody else's context is no approval here."""
    chat, provider = made(tool_call("pay", eur=5), text("Never."))
    page = Page(chat)
    answer = await page.say("Pay 5.", "u-1")
    foreign = dict(answer["parts"][-1], state="approval-responded", toolCallId="x")
    foreign["approval"] = {"id": "9-call_7", "approved": True}
    before = await chat.host.stores.journal.events("trip")
    answer["parts"].append(foreign)
    with pytest.raises(InputNotFound, match=r"^/messages/1/parts/2/approval/id: no request"):
        await page.post()
    answer["parts"].pop()
    with pytest.raises(InputNotFound):
        await page.post(inputs={"9-call_7": True})
    with pytest.raises(CannotContinue):
        await page.post()
    other = AuthContext("ben")
    for verb in (chat.messages, chat.resume, chat.stop):
        with pytest.raises(ContextNotFound):
            await verb("trip", other)
    with pytest.raises(ContextNotFound):
        await chat.post(read_request({"id": "trip", "messages": page.messages}), other)
    assert await chat.host.stores.journal.events("trip") == before
    assert len(provider.requests) == 1


async def test_a_long_conversation_is_loaded_in_pages(made):
    """Each begins with a message of the user; together they are all of it, in order, once."""
    replies: list[Any] = [text(f"{n}. " * 40) for n in range(10)]
    replies[4:6] = [tool_call("pay", eur=5), text("Paid. " * 40), tool_call("pay", eur=6)]
    chat, _ = made(*replies)
    page = Page(chat)
    for number in range(9):
        answer = await page.say(f"{number}? " * 40, f"u-{number}")
        if number == 4:
            part = answer["parts"][-1]
            approval = part["approval"] | {"approved": True}
            part |= {"state": "approval-responded", "approval": approval}
            await (await page.post())
    everything = await shown(chat)
    assert "output-error" in str(everything)  # the call that nobody answered
    for most in range(1, 4000, 300):
        small = Chat(chat.host, page_bytes=most)
        pages, before = [], None
        while not pages or before is not None:
            found, before = await small.messages("trip", ADA, before=before)
            assert found[0]["role"] == "user"
            pages.insert(0, found)
        assert [message for found in pages for message in found] == everything
    assert len(pages) > 1


USER = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi."}]}


def _part(**part: Any) -> dict[str, Any]:
    return {"id": "t", "messages": [USER, {**USER, "parts": [part]}]}


def _tool(**part: Any) -> dict[str, Any]:
    part = {"type": "tool-pay", "toolCallId": "c", "state": "approval-responded", **part}
    return {"id": "t", "messages": [{"id": "a", "role": "assistant", "parts": [part]}]}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        ({"messages": [USER]}, "/id"),
        ({"id": "a b", "messages": [USER]}, "/id"),
        ({"id": "t", "messages": []}, "/messages"),
        ({"id": "t", "messages": [1]}, "/messages/0"),
        ({"id": "t", "messages": [USER], "trigger": "explode"}, "/trigger"),
        ({"id": "t", "messages": [USER], "trigger": []}, "/trigger"),
        ({"id": "t", "messages": [USER], "inputs": []}, "/inputs"),
        ({"id": "t", "message": {**USER, "id": "x" * 201}}, "/message/id"),
        ({"id": "t", "messages": [{**USER, "role": "system"}]}, "/messages/0/role"),
        ({"id": "t", "messages": [{**USER, "parts": {}}]}, "/messages/0/parts"),
        ({"id": "t", "messages": [{**USER, "parts": []}]}, "/messages/0/parts"),
        (_part(type="tool-pay"), "/messages/1/parts/0/type"),
        (_part(type="text", text=5), "/messages/1/parts/0/text"),
        (_part(type="file", mediaType="image/png", url="file:///etc/x"), "/messages/1/parts/0/url"),
        (_part(type="file", mediaType="audio/wav", url="https://a/b"), "/messages/1/parts/0/url"),
        (_part(type="file", url="https://a/b"), "/messages/1/parts/0/mediaType"),
        (_tool(type="shell"), "/messages/0/parts/0/type"),
        (_tool(toolCallId=None), "/messages/0/parts/0/toolCallId"),
        (_tool(approval=7), "/messages/0/parts/0/approval"),
        (_tool(approval={"id": 7}), "/messages/0/parts/0/approval/id"),
        (_tool(approval={"id": "1"}), "/messages/0/parts/0/approval/approved"),
        (
            _tool(approval={"id": "1", "approved": True, "reason": []}),
            "/messages/0/parts/0/approval/reason",
        ),
        (_tool(state="output-error"), "/messages/0/parts/0/errorText"),
    ],
)
def test_a_malformed_request_is_refused_with_the_place(body, path):
    """The path is a JSON pointer, and the message begins with it."""
    with pytest.raises(ValueRefused) as refused:
        read_request(body)
    assert refused.value.path == path
    assert str(refused.value).startswith(path)


def test_files_of_the_page_become_blocks():
    """A picture, a document and a recording; data parts are the page's own."""
    pixel = "data:image/png;base64,aGk="
    parts = [
        {"type": "file", "mediaType": "image/png", "url": pixel},
        {"type": "file", "mediaType": "application/pdf", "url": "https://a/b.pdf", "filename": "b"},
        {"type": "file", "mediaType": "audio/wav", "url": "data:audio/wav;base64,aGk="},
        {"type": "data-mine", "data": 1},
        {"type": "text", "text": "See."},
    ]
    message = read_request({"id": "t", "messages": [{**USER, "parts": parts}]}).message
    assert [block.type for block in message.content] == ["image", "document", "audio", "text"]
    assert (message.content[0].data, message.content[1].name) == ("aGk=", "b")


@pytest.mark.parametrize(
    ("name", "data", "media"),
    [
        ("Makefile", b"all:\n", "text/plain"),
        ("a.pdf", b"%PDF", "application/pdf"),
        (None, b"\xff\xfe", "application/octet-stream"),
    ],
)
def test_a_file_without_a_media_type_gets_one(name, data, media):
    """It comes with an empty type: the name tells it, or the content."""
    url = f"data:;base64,{base64.b64encode(data).decode()}"
    part = {"type": "file", "mediaType": "", "url": url} | ({"filename": name} if name else {})
    asked = read_request({"id": "c", "message": {"id": "m", "role": "user", "parts": [part]}})
    [file] = asked.message.content
    assert (file.mime_type, base64.b64decode(file.data)) == (media, data)
