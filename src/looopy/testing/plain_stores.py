"""
Test suites of the stores that `Stores.of` takes; derive a test class from each that you need.

A fixture `store` gives an empty store. The suites need pytest, and pytest-asyncio in either mode.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from looopy.types.message import (
    AssistantMessage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.message_json import message_from_json, message_to_json

__all__ = ["PlainArtifactStoreContract", "PlainMessageStoreContract", "PlainStateStoreContract"]

_SAID = (
    UserMessage("Hello! \u00e9 \U0001f600 \u2028"),
    AssistantMessage(
        [
            ThinkingContent("Hm.", thinking_signature="s"),
            TextContent("Let me see."),
            ToolCall(id="call_1", name="look", arguments={"at": [1, 2.5, None, "x"]}),
        ],
        model="m",
        provider="p",
        usage=Usage(input=3, output=5, total_tokens=8),
        stop_reason=StopReason.TOOL_USE,
    ),
    ToolResultMessage(
        tool_call_id="call_1", tool_name="look", content=[TextContent("nothing")], is_error=True
    ),
)


async def _called(store: object, name: str, *args: Any, **options: Any) -> Any:
    found = getattr(store, name)(*args, **options)
    return await found if inspect.isawaitable(found) else found


class PlainMessageStoreContract:
    """The behaviour that an agent needs of a message store."""

    async def _append(self, store: Any, context_id: str, position: int, *messages: Any) -> None:
        takes = "position" in inspect.signature(store.append).parameters
        more = {"position": position} if takes else {}
        await _called(store, "append", context_id, messages, **more)

    async def _listed(self, store: Any, context_id: str) -> list[Any]:
        found = await _called(store, "list" if hasattr(store, "list") else "get_all", context_id)
        plain = [one.model_dump() if hasattr(one, "model_dump") else one for one in found]
        return [message_from_json(one) if isinstance(one, dict) else one for one in plain]

    @pytest.mark.asyncio
    async def test_messages_come_back_whole_and_in_order(self, store: Any) -> None:
        """Every field of each, over several calls."""
        assert await self._listed(store, "c") == []
        await self._append(store, "c", 1, *_SAID)
        await self._append(store, "c", 4, _SAID[0])
        found = await self._listed(store, "c")
        assert [message_to_json(one) for one in found] == [
            message_to_json(one) for one in (*_SAID, _SAID[0])
        ]

    @pytest.mark.asyncio
    async def test_contexts_are_kept_apart(self, store: Any) -> None:
        """Also those whose ids begin alike, and those of another tenant."""
        for n, name in enumerate(("c", "c2", "acme/c", "C")):
            await self._append(store, name, 1, UserMessage(str(n)))
        for n, name in enumerate(("c", "c2", "acme/c", "C")):
            assert [one.text for one in await self._listed(store, name)] == [str(n)]

    @pytest.mark.asyncio
    async def test_a_cleared_context_is_empty(self, store: Any) -> None:
        """Twice is no error, and others keep theirs."""
        if not hasattr(store, "clear"):
            pytest.skip("the store has no `clear`")
        await self._append(store, "c", 1, *_SAID)
        await self._append(store, "other", 1, *_SAID)
        for _ in range(2):
            await _called(store, "clear", "c")
        assert await self._listed(store, "c") == []
        assert len(await self._listed(store, "other")) == len(_SAID)
        await self._append(store, "c", 4, _SAID[0])
        assert len(await self._listed(store, "c")) == 1


class PlainArtifactStoreContract:
    """The behaviour that an agent needs of an artifact store."""

    @pytest.mark.asyncio
    async def test_content_comes_back_and_is_replaced(self, store: Any) -> None:
        """All bytes, under each name of each context."""
        content = bytes(range(256)) * 300
        for context_id in ("c", "acme/c"):
            for name in ("report@1", "report@2", "a b/\u00e9@1"):
                await _called(store, "save", context_id, name, b"before")
                await _called(store, "save", context_id, name, content + name.encode())
        for context_id in ("c", "acme/c"):
            for name in ("report@1", "report@2", "a b/\u00e9@1"):
                found = await _called(store, "load", context_id, name)
                assert bytes(found) == content + name.encode()


class PlainStateStoreContract:
    """The behaviour that an agent needs of a state store."""

    @pytest.mark.asyncio
    async def test_a_document_comes_back_and_is_replaced(self, store: Any) -> None:
        """Equal, with every kind of value of JSON; keys are kept apart."""
        keys = ("c", "c#log/0-12", "acme/c", "c#artifact/a%20b@1")
        for n, key in enumerate(keys):
            assert await _called(store, "load", key) is None
            await _called(store, "save", key, {"revision": 1})
            document = {"revision": 2, "n": n, "x": [None, True, 2**53 - 1, 0.5, "\u00e9", {}]}
            await _called(store, "save", key, document)
            assert dict(await _called(store, "load", key)) == document
        assert (await _called(store, "load", "c"))["n"] == 0
        if hasattr(store, "list"):
            assert set(await _called(store, "list")) >= set(keys)
        if hasattr(store, "delete"):
            for _ in range(2):
                await _called(store, "delete", "c")
            assert await _called(store, "load", "c") is None
            assert (await _called(store, "load", "acme/c"))["n"] == 2

    @pytest.mark.asyncio
    async def test_one_of_several_that_compare_wins(self, store: Any) -> None:
        """With a document or without one; the others write nothing."""
        if not hasattr(store, "compare_and_set"):
            pytest.skip("the store has no `compare_and_set`")
        for revision in (0, 1, 2):
            documents = [{"revision": revision + 1, "by": n} for n in range(4)]
            won = await asyncio.gather(
                *(_called(store, "compare_and_set", "c", one, revision) for one in documents)
            )
            assert sorted(won) == [False, False, False, True]
            assert dict(await _called(store, "load", "c")) == documents[won.index(True)]
        assert await _called(store, "compare_and_set", "c", {"revision": 9}, 8) is False
        assert (await _called(store, "load", "c"))["revision"] == 3
