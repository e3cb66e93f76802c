"""The contract of a `MessageStore`; see `looopy.testing.stores`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from looopy.errors import AgentBusy, StoreConflict, StoreUnavailable, ValueRefused
from looopy.stores.bundle import Stores
from looopy.testing import hostile
from looopy.testing.contracts.turns import (
    CONTEXT,
    Contract,
    a_turn,
    answer,
    at_once,
    begin,
    commit,
    ends,
    for_each,
    record_of,
    refuses,
    result,
    said,
    user,
)
from looopy.types.message import (
    AudioContent,
    CustomMessage,
    DocumentContent,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

_WRITERS = 32
_CALL = ToolCall("call-1", "add", {"a": 1, "b": [2.5, None, "x"]}, thought_signature="sig")
_EVERY_KIND: tuple[Message, ...] = (
    user("text"),
    UserMessage([TextContent("look"), ImageContent("aGk=", mime_type="image/webp")], timestamp=5),
    UserMessage(
        [
            ImageContent(url="https://example.test/cat.png"),
            DocumentContent("JVBERi0=", name="offer.pdf"),
            DocumentContent(url="https://example.test/offer.pdf"),
            AudioContent("UklGRg==", mime_type="audio/mpeg"),
        ],
        timestamp=5,
    ),
    answer("", _CALL),
    answer("plain"),
    result(_CALL, "3"),
    ToolResultMessage(
        tool_call_id="c", tool_name="t", details={"k": [1]}, is_error=True, timestamp=6
    ),
    CustomMessage("note", {"any": ["thing", 1]}, {"by": "app"}, timestamp=7),
)


class MessageStoreContract(Contract):
    """Positions, order, atomicity, and equality after reading."""

    async def test_messages_of_every_kind_are_read_back_equal(self, stores: Stores) -> None:
        """Messages are read as they were appended, field for field."""
        assert await stores.messages.append(CONTEXT, _EVERY_KIND) == len(_EVERY_KIND)
        assert await stores.messages.list(CONTEXT) == list(_EVERY_KIND)

    async def test_signatures_come_back_byte_for_byte(self, stores: Stores) -> None:
        """Opaque blocks are replayed to a provider, so not one character may change."""
        signature = "Eq\u00e9+/=\n\\u0041\U0001f600"
        thought = ThinkingContent("hm", thinking_signature=signature)
        hidden = ThinkingContent(thinking_signature=signature, redacted=True)
        message = answer("")
        said = TextContent("x", text_signature=signature)
        message = type(message)([thought, hidden, said], timestamp=1)
        await stores.messages.append(CONTEXT, [message])
        assert await stores.messages.list(CONTEXT) == [message]

    async def test_positions_start_at_1_and_have_no_gaps(self, stores: Stores) -> None:
        """`append` returns the position of the last message; records carry each one's place."""
        assert await stores.messages.append(CONTEXT, [user("a")]) == 1
        assert await stores.messages.append(CONTEXT, [user("b"), user("c")]) == 3
        found = await stores.messages.records(CONTEXT)
        assert [r.position for r in found] == [1, 2, 3]
        assert [r.seq for r in found] == [1, 2, 3]
        assert {(r.turn, r.iteration) for r in found} == {(0, 0)}

    async def test_appending_nothing_writes_nothing(self, stores: Stores) -> None:
        """An empty append makes no context, and returns the last position of an existing one."""
        assert await stores.messages.append(CONTEXT, []) == 0
        assert await stores.state.load(CONTEXT) is None
        await stores.messages.append(CONTEXT, [user("a")])
        before = await stores.state.load(CONTEXT)
        assert await stores.messages.append(CONTEXT, ()) == 1
        assert await stores.state.load(CONTEXT) == before

    async def test_an_unknown_context_has_no_messages(self, stores: Stores) -> None:
        """Reading an unknown context is not an error, and creates nothing."""
        for context_id in ("nobody", "not an id", ""):
            assert await stores.messages.list(context_id) == []
            assert await stores.messages.records(context_id) == []
            assert await stores.messages.recent(context_id, limit=3) == []
            assert await stores.messages.count(context_id) == 0
        assert await stores.state.list() == []

    async def test_a_range_is_read_after_a_position_up_to_a_limit(self, stores: Stores) -> None:
        """`after` is exclusive; a limit cuts at the newer end; a range beyond the end is empty."""
        said_so = [user(str(n)) for n in range(1, 8)]
        await stores.messages.append(CONTEXT, said_so)
        assert await stores.messages.list(CONTEXT, after=2, limit=3) == said_so[2:5]
        assert await stores.messages.list(CONTEXT, after=5) == said_so[5:]
        assert await stores.messages.list(CONTEXT, after=-3, limit=2) == said_so[:2]
        assert await stores.messages.list(CONTEXT, limit=0) == []
        assert await stores.messages.list(CONTEXT, after=7) == []
        assert await stores.messages.list(CONTEXT, after=2**70) == []
        assert await stores.messages.list(CONTEXT, limit=2**70) == said_so

    async def test_the_newest_are_read_oldest_first(self, stores: Stores) -> None:
        """`recent` cuts at the older end."""
        said_so = [user(str(n)) for n in range(1, 6)]
        await stores.messages.append(CONTEXT, said_so)
        found = await stores.messages.recent(CONTEXT, limit=2)
        assert [(r.position, r.message) for r in found] == [(4, said_so[3]), (5, said_so[4])]
        assert len(await stores.messages.recent(CONTEXT, limit=99)) == 5
        assert await stores.messages.recent(CONTEXT, limit=0) == []
        assert await stores.messages.count(CONTEXT) == 5

    @for_each([-1, -(2**70), 1.5, True, "5"])
    async def test_an_invalid_limit_is_refused(self, stores: Stores, limit: Any) -> None:
        """Every store refuses it, for an unknown context too."""
        await stores.messages.append(CONTEXT, [user("a"), user("b")])
        for context_id in (CONTEXT, "unknown"):
            for asked in (
                stores.messages.list(context_id, limit=limit),
                stores.messages.records(context_id, limit=limit),
                stores.messages.recent(context_id, limit=limit),
            ):
                with refuses(ValueRefused, path="/limit"):
                    await asked

    async def test_messages_of_a_turn_carry_its_number(self, stores: Stores) -> None:
        """A record has the turn and the iteration of its message, and its place in the log."""
        await a_turn(stores, text="q", reply="a")
        found = await stores.messages.records(CONTEXT)
        assert [(r.position, r.turn, r.iteration, r.seq) for r in found] == [
            (1, 1, 0, 2),  # after the turn_start
            (2, 1, 1, 3),
        ]

    async def test_an_append_refuses_a_claim_that_has_not_seen_it(self, stores: Stores) -> None:
        """The append raises the epoch: a claim with the earlier one is refused."""
        await stores.messages.append(CONTEXT, [user("one")])
        known = await record_of(stores)
        await stores.messages.append(CONTEXT, [user("two")])
        with pytest.raises(StoreConflict):
            await begin(stores, known.epoch)
        found = await record_of(stores)
        assert found.epoch > known.epoch
        await begin(stores, found.epoch)

    async def test_appending_while_a_turn_is_open_is_refused(self, stores: Stores) -> None:
        """A turn owns the end of its context; the refusal names it."""
        claimed = await begin(stores)
        with refuses(AgentBusy, turn=claimed.turn):
            await stores.messages.append(CONTEXT, [user("me too")])
        assert await stores.messages.count(CONTEXT) == 1
        await commit(stores, claimed, [said(answer("x")), ends()], release=True)
        assert await stores.messages.append(CONTEXT, [user("now")]) == 3

    async def test_one_bad_message_refuses_them_all(self, stores: Stores) -> None:
        """No message is written; the path names the invalid one."""
        await stores.messages.append(CONTEXT, [user("first")])
        with refuses(ValueRefused, path="/1/content"):
            await stores.messages.append(CONTEXT, [user("fine"), user("a\0b")])
        assert await stores.messages.list(CONTEXT) == [user("first")]

    async def test_a_refused_first_message_creates_no_context(self, stores: Stores) -> None:
        """The error comes before anything is written."""
        with pytest.raises(ValueRefused):
            await stores.messages.append(CONTEXT, [user("\ud800")])
        assert await stores.state.load(CONTEXT) is None

    @for_each(["", " ", "a b", "a/b", "a\n", "é", "\ud800", "x" * 129])
    async def test_a_context_needs_a_usable_id(self, stores: Stores, context_id: str) -> None:
        """Ids end up in URLs and logs: the set of characters is small."""
        with refuses(ValueRefused, path="/context_id"):
            await stores.messages.append(context_id, [user("a")])

    async def test_an_appended_message_is_kept_as_a_value(self, stores: Stores) -> None:
        """A store keeps values, not objects."""
        arguments: dict[str, Any] = {"a": 1}
        await stores.messages.append(CONTEXT, [answer("", ToolCall("c", "t", arguments))])
        arguments["a"] = 2
        first = (await stores.messages.list(CONTEXT))[0]
        assert first == answer("", ToolCall("c", "t", {"a": 1}))

    async def test_concurrent_appends_are_kept_whole_and_in_order(self, stores: Stores) -> None:
        """Many writers at once: no gap, nothing lost or doubled, each append in one piece."""

        async def write(n: int) -> int:
            return await stores.messages.append(CONTEXT, [user(f"{n}.0"), user(f"{n}.1")])

        ends_at = await at_once(*map(write, range(_WRITERS)))
        found = await stores.messages.records(CONTEXT)
        assert [r.position for r in found] == list(range(1, 2 * _WRITERS + 1))
        assert [r.seq for r in found] == [r.position for r in found]
        for n, end in enumerate(ends_at):
            assert [r.message for r in found[end - 2 : end]] == [user(f"{n}.0"), user(f"{n}.1")]

    async def test_a_cancelled_append_is_kept_whole_or_not_at_all(self, stores: Stores) -> None:
        """A cancelled caller leaves no partial append and does not block the next writer."""
        for _ in range(5):
            task = asyncio.create_task(stores.messages.append(CONTEXT, [user("x"), user("y")]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        last = await stores.messages.append(CONTEXT, [user("z")])
        found = await stores.messages.list(CONTEXT)
        assert len(found) == last
        assert found == [user("x"), user("y")] * (last // 2) + [user("z")]

    async def test_another_tenant_sees_nothing(self, stores: Stores) -> None:
        """The same id is another context for each tenant."""
        other = stores.for_tenant("other")
        await stores.messages.append(CONTEXT, [user("mine"), user("mine too")])
        assert await other.messages.list(CONTEXT) == []
        assert await other.messages.append(CONTEXT, [user("theirs")]) == 1
        assert await stores.messages.count(CONTEXT) == 2
        assert await other.messages.list(CONTEXT) == [user("theirs")]

    async def test_cleared_messages_are_not_readable(self, stores: Stores) -> None:
        """After `clear` no method shows them, and positions continue."""
        await stores.messages.append(CONTEXT, [user("a"), user("b")])
        await stores.journal.clear(CONTEXT)
        assert await stores.messages.list(CONTEXT) == []
        assert await stores.messages.list(CONTEXT, include_hidden=True) == []
        assert await stores.messages.recent(CONTEXT, limit=9) == []
        assert await stores.messages.count(CONTEXT) == 0
        assert await stores.messages.append(CONTEXT, [user("c")]) == 3
        assert [r.position for r in await stores.messages.records(CONTEXT)] == [3]
        assert [r.position for r in await stores.messages.recent(CONTEXT, limit=9)] == [3]
        assert await stores.messages.count(CONTEXT) == 1

    async def test_closed_stores_refuse_calls_until_reopened(self, stores: Stores) -> None:
        """Use after closing raises `StoreUnavailable`; reopened stores still have the data."""
        await stores.messages.append(CONTEXT, [user("a")])
        await stores.__aexit__(None, None, None)
        with pytest.raises(StoreUnavailable):
            await stores.messages.list(CONTEXT)
        with pytest.raises(StoreUnavailable):
            await stores.messages.append(CONTEXT, [user("b")])
        await stores.__aenter__()
        assert await stores.messages.list(CONTEXT) == [user("a")]

    @for_each(hostile.KEPT_TEXT)
    async def test_odd_text_is_kept(self, stores: Stores, name: str) -> None:
        """Every field for text keeps it, character for character."""
        text = hostile.KEPT_TEXT[name]
        messages: list[Message] = [
            user(text),
            UserMessage([TextContent(text, text_signature=text)], timestamp=1),
            answer("", ToolCall(text, text, {text: text}, invalid_arguments=text)),
            result(ToolCall(text, text), text),
        ]
        await stores.messages.append(CONTEXT, messages)
        assert await stores.messages.list(CONTEXT) == messages

    async def test_texts_of_10_megabytes_are_kept(self, stores: Stores) -> None:
        """Escapes take more room as JSON, and letters of other scripts in UTF-8."""
        texts = ("\x1b[31mred words\n" * 670_000, "\u00e9\u6f22\U0001f9ff" * 1_111_112)
        for after, text in enumerate(texts):
            await stores.messages.append(CONTEXT, [user(text)])
            [found] = await stores.messages.list(CONTEXT, after=after)
            assert isinstance(found, UserMessage)
            assert len(text.encode()) >= 10_000_000
            assert found.content == text  # compared first: no report should show it

    @for_each(hostile.REFUSED_TEXT)
    async def test_text_that_a_database_refuses_is_refused(self, stores: Stores, name: str) -> None:
        """The error has the text's path, and nothing is written."""
        text = hostile.REFUSED_TEXT[name]
        for message in (user(text), answer(text), result(ToolCall("c", "t"), text)):
            with pytest.raises(ValueRefused) as refused:
                await stores.messages.append(CONTEXT, [message])
            assert (refused.value.path or "").startswith("/0")
        assert await stores.state.load(CONTEXT) is None

    @for_each(hostile.KEPT)
    async def test_odd_values_are_kept(self, stores: Stores, name: str) -> None:
        """Numbers, key order and depth survive in arguments, details and metadata."""
        value = hostile.KEPT[name]
        messages: list[Message] = [
            answer("", ToolCall("c", "t", {"v": value})),
            ToolResultMessage(tool_call_id="c", tool_name="t", details=value, timestamp=1),
            CustomMessage("note", value, {"v": value}, timestamp=1),
        ]
        await stores.messages.append(CONTEXT, messages)
        found = await stores.messages.list(CONTEXT)
        assert found == messages
        kept = found[1].details if isinstance(found[1], ToolResultMessage) else None
        assert json.dumps(kept) == json.dumps(
            value
        )  # distinguishes -0.0 from 0.0, 1.0 from 1, and key orders

    @for_each(hostile.REFUSED)
    async def test_values_that_would_change_are_refused(self, stores: Stores, name: str) -> None:
        """The error has the value's path, and nothing is written."""
        value = hostile.REFUSED[name]
        messages: list[Message] = [
            answer("", ToolCall("c", "t", {"v": value})),
            ToolResultMessage(tool_call_id="c", tool_name="t", details=value, timestamp=1),
            CustomMessage("note", value, timestamp=1),
        ]
        for message in messages:
            with pytest.raises(ValueRefused) as refused:
                await stores.messages.append(CONTEXT, [message])
            assert (refused.value.path or "").startswith("/0/content") or (
                refused.value.path or ""
            ).startswith("/0/details")
        assert await stores.state.load(CONTEXT) is None
