"""
Long texts cut short for a client that shows them: `?clip=`, with the whole length beside each.

A page cannot lay out ten megabytes of a tool's result, and its reader did not ask for them. The
whole message stays one request away.
"""

from __future__ import annotations

from typing import Any


def clip(value: Any, most: int) -> tuple[Any, dict[str, int]]:
    """*value* with texts of at most *most* characters, and by JSON pointer the whole lengths."""
    cut: dict[str, int] = {}
    return _clipped(value, most, "", cut), cut


def _clipped(value: Any, most: int, path: str, cut: dict[str, int]) -> Any:
    if isinstance(value, str):
        if len(value) <= most:
            return value
        cut[path] = len(value)
        return value[:most]
    if isinstance(value, dict):
        return {
            name: inner
            if name == "data" and "mime_type" in value  # half a picture is not a picture
            else _clipped(inner, most, f"{path}/{_escaped(name)}", cut)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_clipped(inner, most, f"{path}/{i}", cut) for i, inner in enumerate(value)]
    return value


def _escaped(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
