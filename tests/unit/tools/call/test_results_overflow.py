"""More than the model is shown: the beginning, and where the whole is."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from looopy.tools import ToolContext, tool
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.event import utc_now
from looopy.types.message import ImageContent, TextContent, ToolResultMessage

Run = Callable[..., Awaitable[ToolResultMessage]]
MakeContext = Callable[..., ToolContext]
TEXT = "text/plain; charset=utf-8"


class Shelf:
    """An `ArtifactWriter` in a list."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.saved: list[tuple[str, Any, str | None]] = []
        self.error = error

    async def save(
        self, artifact_id: str, content: Any, *, kind: Any = None, media_type: Any = None
    ) -> Artifact:
        """Keep it."""
        assert kind is None
        if self.error is not None:
            raise self.error
        self.saved.append((artifact_id, content, media_type))
        return Artifact(
            artifact_id=artifact_id,
            kind=ArtifactKind.FILE,
            version=7,
            status=ArtifactStatus.COMPLETE,
            size=len(content),
            media_type="",
            sha256="",
            created_at=utc_now(),
        )

    async def load(self, artifact_id: str, version: int | None = None) -> Any:
        """Not asked for."""
        raise NotImplementedError

    async def list(self) -> list[Artifact]:
        """Not asked for."""
        raise NotImplementedError

    async def delete(self, artifact_id: str) -> None:
        """Not asked for."""
        raise NotImplementedError


async def test_the_whole_is_kept_and_named(run: Run, make_context: MakeContext) -> None:
    """In the turn's artifacts, by turn and call; the model sees the beginning and both sizes."""
    shelf = Shelf()
    one = tool(lambda: "é" * 50, name="long")
    result = await run(one, context=make_context(artifacts=shelf), max_result_bytes=21)
    assert shelf.saved == [("results/3/call-1", ("é" * 50).encode(), TEXT)]
    assert [block.text for block in result.content] == [
        "é" * 10 + "\n[80 of 100 bytes were left out]",
        "[All of it is kept: artifact 'results/3/call-1', version 7.]",
    ]
    assert not result.is_error


async def test_a_result_that_fits_is_not_kept(run: Run, make_context: MakeContext) -> None:
    """At the limit, and where there is nowhere to keep it."""
    shelf = Shelf()
    one = tool(lambda: "x" * 20, name="long")
    result = await run(one, context=make_context(artifacts=shelf), max_result_bytes=20)
    assert (result.text, shelf.saved) == ("x" * 20, [])
    result = await run(one, max_result_bytes=19)
    assert result.text == "x" * 19 + "\n[1 of 20 bytes were left out]"


async def test_images_are_kept_as_they_are(run: Run, make_context: MakeContext) -> None:
    """Each in an artifact of its own, beside the text."""
    shelf = Shelf()
    pixels = base64.b64encode(b"\x00" * 30).decode()
    blocks = [TextContent("a"), ImageContent(pixels, mime_type="image/png"), TextContent("b")]
    result = await run(
        tool(lambda: blocks, name="draw"),
        context=make_context(artifacts=shelf),
        max_result_bytes=10,
    )
    assert shelf.saved == [
        ("results/3/call-1", b"a\nb", TEXT),
        ("results/3/call-1/image-1", b"\x00" * 30, "image/png"),
    ]
    assert "image-1', version 7" in result.text
    assert "left out: too large" in result.text


@pytest.mark.parametrize("error", [RuntimeError("the disk is full"), ValueError("no such name")])
async def test_a_store_that_fails_costs_no_result(
    run: Run, make_context: MakeContext, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cut, says so, and promises nothing."""
    result = await run(
        tool(lambda: "x" * 30, name="long"),
        context=make_context(artifacts=Shelf(error)),
        max_result_bytes=10,
    )
    assert result.text == "x" * 10 + "\n[20 of 30 bytes were left out]"
    assert "could not be kept" in caplog.text


async def test_a_strange_call_id_makes_a_plain_name(run: Run, make_context: MakeContext) -> None:
    """Whatever the model called its call."""
    shelf = Shelf()
    context = make_context(artifacts=shelf, tool_call_id="a/../b c\n" * 100)
    await run(tool(lambda: "x" * 30, name="long"), context=context, max_result_bytes=10)
    [(name, _, _)] = shelf.saved
    assert name.startswith("results/3/a_.._b_c_")
    assert len(name) < 120


async def test_a_result_of_any_length_is_kept_as_one_artifact(
    run: Run, make_context: MakeContext
) -> None:
    """All of it, under one name."""
    shelf = Shelf()
    whole = "a" + "é" * (5 * 1024 * 1024)
    context = make_context(artifacts=shelf)
    result = await run(tool(lambda: whole, name="long"), context=context, max_result_bytes=10)
    [(name, kept, _)] = shelf.saved
    assert (name, kept.decode() == whole) == ("results/3/call-1", True)
    assert "[All of it is kept: artifact 'results/3/call-1', version 7.]" in result.text
