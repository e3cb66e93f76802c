"""Estimates beside what two vocabularies count: cl100k_base, and that of Qwen 2.5."""

from __future__ import annotations

import base64
import json
import random

import pytest

from looopy.history.images import image_tokens
from looopy.history.tokens import estimate_tokens, text_tokens
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    DocumentContent,
    ImageContent,
    ToolCall,
    UserMessage,
)

_chance = random.Random(3)
_ROWS = [{"id": i, "name": f"user {i}", "tags": ["a", "blue"], "active": True} for i in range(80)]


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("The stores look for such bytes now and then by themselves. " * 20, (241, 241)),
        (
            "Künftig müssen die Behörden in neun Monaten entscheiden; sonst gilt er als genehmigt.",
            (25, 25),
        ),
        (
            "Теперь ведомства обязаны принимать решение в течение девяти месяцев.",
            (33, 18),
        ),
        ("今后，主管部门必须在九个月内作出决定，否则申请将被视为已获批准。", (40, 18)),
        ("今後、当局は九か月以内に決定を下さなければならず、そうでなければ承認される。", (42, 24)),
        ("앞으로 당국은 아홉 달 안에 결정을 내려야 하며, 그렇지 않으면 승인된다.", (38, 27)),
        ("😀🎉🚀👍🍕" * 20, (280, 100)),
        (base64.b64encode(_chance.randbytes(6000)).decode(), (5727, 5920)),
        (_chance.randbytes(3000).hex(), (3405, 5292)),
        (json.dumps(_ROWS), (2241, 2381)),
    ],
    ids=[
        *("english", "german", "russian", "chinese", "japanese", "korean"),
        *("emoji", "base64", "hex", "json"),
    ],
)
def test_an_estimate_is_close_to_the_count_of_models(text: str, counted: tuple[int, int]) -> None:
    """Not a third below the smaller count, and not a third above the larger one."""
    assert min(counted) * 2 / 3 <= text_tokens(text) <= max(counted) * 4 / 3


def test_a_long_text_is_weighed_by_samples() -> None:
    """The same each time, and near the whole where the text is of one kind."""
    text = "政府星期三通过了一项法律草案" * 20_000
    assert text_tokens(text) == text_tokens(text) == len(text)
    words = "a few words, " * 30_000
    assert abs(text_tokens(words) - len(words) * 0.265) < len(words) / 100


def test_a_lone_surrogate_is_counted() -> None:
    """A history may have been written by anybody."""
    assert text_tokens("\ud800" * 100) > 0


def test_arguments_are_counted_as_the_model_wrote_them() -> None:
    """Not as escapes of six characters each."""
    call = ToolCall("c", "say", {"text": "今后" * 100})
    assert 200 <= estimate_tokens(AssistantMessage((call,))) <= 230


def _png(width: int, height: int) -> bytes:
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + size + b"\x08\x02\x00\x00\x00" + bytes(2000)


def _jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + (20_002).to_bytes(2, "big") + bytes(20_000)
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8" + exif + b"\xff\xc0\x00\x11\x08" + size + bytes(2000)


def _gif(width: int, height: int) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + bytes(200)


def _webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + size + bytes(200)


@pytest.mark.parametrize("write", [_png, _jpeg, _gif, _webp])
@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(64, 64, 255), (1024, 1024, 1398), (512, 2048, 819), (8000, 8000, 1600)],
)
def test_an_image_counts_by_its_size(write, width, height, tokens) -> None:
    """In each format that models take."""
    data = base64.b64encode(write(width, height)).decode()
    assert abs(image_tokens(data) - tokens) <= 5
    said = UserMessage((ImageContent(data),))
    assert estimate_tokens(said) == 4 + image_tokens(data)


def _wav(seconds: int) -> str:
    rate = (16_000).to_bytes(4, "little")
    head = b"RIFF\0\0\0\0WAVEfmt " + bytes(12) + rate + bytes(12)
    return base64.b64encode(head + bytes(16_000 * seconds)).decode()


@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        (DocumentContent(base64.b64encode(b"/Type /Page/Type/Page /Type/Pages").decode()), 4000),
        (DocumentContent(base64.b64encode(b"%PDF" + bytes(120_000)).decode()), 6000),
        (DocumentContent(base64.b64encode(b"a" * 400).decode(), mime_type="text/plain"), 100),
        (DocumentContent(url="https://a.test/b.pdf"), 20_000),
        (AudioContent(_wav(10)), 320),
        (AudioContent(_wav(8), mime_type="audio/mpeg"), 512),
        (ImageContent(url="https://a.test/b.png"), 1200),
    ],
)
def test_a_file_counts_by_its_pages_its_text_or_its_length(file, tokens) -> None:
    """Pages of a PDF, text of a text, seconds of a recording; a flat figure if it is elsewhere."""
    assert abs(estimate_tokens(UserMessage((file,))) - 4 - tokens) <= 5


@pytest.mark.parametrize("data", ["", "aW1n", "%%%%", "iVBORw0KGgo", "/9j/" + "A" * 100])
def test_an_image_that_cannot_be_read_has_a_flat_figure(data: str) -> None:
    """Cut off, empty, or no image at all."""
    assert image_tokens(data) == 1200
