"""Whatever a tool returns or raises becomes text and images."""

from __future__ import annotations

import datetime as dt
import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from looopy.errors import RateLimited
from looopy.tools.base import ToolResult
from looopy.tools.call.results import error_text, limit_blocks, to_answer
from looopy.types.message import AudioContent, DocumentContent, ImageContent, TextContent


class Colour(enum.StrEnum):
    """An enum that is a string."""

    RED = "red"


class Model(BaseModel):
    """A pydantic model."""

    when: dt.date
    name: str = "ü"


@dataclass
class Point:
    """A dataclass."""

    x: int
    inner: Model | None = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hello", "hello"),
        (Colour.RED, "red"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        ([], "[]"),
        ([1, "ü"], '[1, "ü"]'),
        ({"a": {"b": None}}, '{"a": {"b": null}}'),
        ((1, 2), "[1, 2]"),
        (Model(when=dt.date(2024, 5, 1)), '{"when":"2024-05-01","name":"ü"}'),
        (Point(1), '{"x":1,"inner":null}'),
        ([Point(1)], '[{"x":1,"inner":null}]'),
        ({"at": dt.datetime(2024, 5, 1, tzinfo=dt.UTC)}, '{"at":"2024-05-01T00:00:00Z"}'),
        (Path("a"), '"a"'),
        (UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        ({"n": float("nan"), "i": float("inf")}, '{"n":"NaN","i":"Infinity"}'),
    ],
)
def test_plain_returns_are_wrapped(value: Any, text: str) -> None:
    """Text as it is, all else as JSON."""
    answer = to_answer(value)
    assert answer.blocks == (TextContent(text),)
    (block,) = answer.blocks
    assert isinstance(block, TextContent)
    assert type(block.text) is str
    assert not answer.is_error


def test_blocks_are_kept_in_order() -> None:
    """Text and images may be mixed, plain strings among them."""
    image = ImageContent("aGk=", mime_type="image/jpeg")
    assert to_answer(image).blocks == (image,)
    assert to_answer([TextContent("a"), image, "b"]).blocks == (
        TextContent("a"),
        image,
        TextContent("b"),
    )


def test_a_tool_result_keeps_details_and_error() -> None:
    """The long form says everything."""
    answer = to_answer(ToolResult("no", details={"code": 7}, is_error=True))
    assert (answer.blocks, answer.details, answer.is_error) == (
        (TextContent("no"),),
        {"code": 7},
        True,
    )
    assert to_answer(ToolResult([TextContent("a")])).blocks == (TextContent("a"),)


@pytest.mark.parametrize("value", ["", ToolResult(), ToolResult([]), ToolResult("")])
def test_empty_text_is_no_block(value: Any) -> None:
    """Some providers refuse an empty block."""
    assert to_answer(value).blocks == ()


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_refused_with_the_way_out(value: Any) -> None:
    """A model reads no bytes; an artifact keeps them."""
    with pytest.raises(TypeError, match=r"artifacts\.save"):
        to_answer(value)


def test_a_result_outside_json_is_refused() -> None:
    """With the type in the message."""
    with pytest.raises(TypeError, match="returned a object that cannot be written as JSON"):
        to_answer(object())
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises((TypeError, ValueError)):
        to_answer(circle)


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad city"), "bad city"),
        (ValueError(), "ValueError"),
        (ValueError("  "), "ValueError"),
        (KeyError("city"), "KeyError: 'city'"),
        (RateLimited("slow down"), "slow down"),
        (_Silent(), "_Silent (its message cannot be shown)"),
        (
            ExceptionGroup("two", [ValueError("a"), ExceptionGroup("one", [KeyError("b")])]),
            "two (2 sub-exceptions): a; one (1 sub-exception): KeyError: 'b'",
        ),
        (SystemExit(3), "3"),
    ],
)
def test_an_error_is_its_text(error: BaseException, text: str) -> None:
    """Or its class, if it has none; a group is what its members say."""
    assert error_text(error) == text


def test_a_result_that_fits_is_unchanged() -> None:
    """The limit itself still fits, counted in bytes."""
    blocks = (TextContent("ü" * 5), TextContent("x"))
    assert limit_blocks(blocks, 11) == blocks


def test_text_is_cut_between_characters_and_marked() -> None:
    """Half a character would be no UTF-8."""
    (block,) = limit_blocks((TextContent("€€€€"),), 7)
    assert block == TextContent("€€\n[6 of 12 bytes were left out]")


def test_blocks_after_the_limit_are_marked_too() -> None:
    """The model must know that there was more."""
    blocks = limit_blocks((TextContent("a" * 8), TextContent("b" * 8), TextContent("c" * 8)), 12)
    assert blocks == (
        TextContent("a" * 8),
        TextContent("bbbb\n[4 of 8 bytes were left out]"),
        TextContent("\n[8 of 8 bytes were left out]"),
    )


def test_an_image_is_whole_or_left_out() -> None:
    """Half an image is none."""
    blocks = limit_blocks((ImageContent("A" * 5000), TextContent("caption")), 100)
    assert blocks == (
        TextContent("[an image of 5,000 bytes was left out: too large]"),
        TextContent("caption"),
    )


def test_a_file_of_a_tool_reaches_the_model_or_is_named() -> None:
    """Valid ones are blocks; one without data, or with half a base64 text, is a mistake."""
    pdf = DocumentContent("JVBERi0=", name="offer.pdf")
    assert to_answer(pdf).blocks == (pdf,)
    assert to_answer(["see", pdf]).blocks == (TextContent("see"), pdf)
    for broken in (DocumentContent(), AudioContent("UklGR"), ImageContent(url="file:///a")):
        with pytest.raises(TypeError, match="which no model can read"):
            to_answer(broken)
    large = DocumentContent("A" * 5000)
    assert limit_blocks((large,), 100) == (
        TextContent("[a document of 5,000 bytes was left out: too large]"),
    )


def test_lone_surrogates_are_measured_not_refused() -> None:
    """They are repaired later, by whoever stores them."""
    (block,) = limit_blocks((TextContent("\ud800" * 4),), 6)
    assert isinstance(block, TextContent)
    assert block.text.startswith("\ud800\ud800\n[6 of 12")


def test_json_text_is_json() -> None:
    """What is not a string can be read back."""
    value = {"a": [1, None, {"ü": True}]}
    (block,) = to_answer(value).blocks
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == value
