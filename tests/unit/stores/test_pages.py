"""Pages begin small, and shrink where messages are large."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from looopy import Stores, open_stores
from looopy.stores.pages import Portion, messages_of
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    UserMessage,
)

_LARGE = 4_000_000


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    async with open_stores("memory:") as found:
        yield found


def _rows(most: int, *pages: list[Message]) -> Iterator[int]:
    portion = Portion(most)
    yield portion.rows
    for page in pages:
        portion.took(len(page), page)
        yield portion.rows


def test_pages_of_short_messages_grow_to_the_most() -> None:
    """Also those that hold no message at all, as a gap in a history or other events."""
    short: list[Message] = [UserMessage("a"), CustomMessage("note", {"a": 1}, timestamp=1)] * 8
    assert list(_rows(500, short, [], short, short)) == [16, 64, 256, 500, 500]
    assert list(_rows(5, short[:5])) == [5, 5]


@pytest.mark.parametrize(
    "large",
    [
        UserMessage("x" * _LARGE),
        UserMessage([TextContent("x" * _LARGE), TextContent("")]),
        UserMessage([ImageContent("x" * _LARGE, mime_type="image/png")]),
        AssistantMessage([ThinkingContent("x" * _LARGE), ToolCall("a", "b")]),
    ],
)
def test_pages_of_large_messages_shrink(large: Message) -> None:
    """To a few megabytes, and one message at least."""
    short: Message = UserMessage("a")
    assert list(_rows(500, [large] * 16, [large, short])) == [16, 1, 1]
    assert list(_rows(500, [*[short] * 15, large])) == [16, 15]


async def test_a_history_of_large_messages_is_read_a_few_at_a_time(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, and each once."""
    texts = [f"{n}{'x' * 500_000 * (n < 20)}" for n in range(40)]
    await stores.messages.append("c", [UserMessage(text, timestamp=1) for text in texts])
    asked: list[int] = []
    records = type(stores.messages).records

    async def spied(self: Any, *args: Any, limit: int, **more: Any) -> Any:
        asked.append(limit)
        return await records(self, *args, limit=limit, **more)

    monkeypatch.setattr(type(stores.messages), "records", spied)
    found = [one.message.content async for one in messages_of(stores, "c")]
    assert found == texts
    assert asked == [16, 7, 13, 52, 200]
