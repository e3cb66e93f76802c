"""
The vendors whose servers speak OpenAI's formats with fields of their own, known by their address.

A server at any other address gets only the fields that all of them take.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

Vendor: TypeAlias = Literal["openai", "google", "openrouter", "ollama", ""]

_HOSTS: Final[tuple[tuple[str, Vendor], ...]] = (
    ("api.openai.com", "openai"),  # and its regions, such as eu.api.openai.com
    ("openai.azure.com", "openai"),
    ("openai.azure.us", "openai"),
    ("cognitiveservices.azure.com", "openai"),
    ("services.ai.azure.com", "openai"),
    ("generativelanguage.googleapis.com", "google"),
    ("aiplatform.googleapis.com", "google"),
    ("openrouter.ai", "openrouter"),
)
_REGIONAL: Final = re.compile(r"[a-z0-9-]+-aiplatform\.googleapis\.com")
_NAMES: Final[dict[str, Vendor]] = {
    "azure": "openai",
    "gemini": "google",
    "openrouter": "openrouter",
    "ollama": "ollama",
}
_GEMINI: Final = re.compile(r"gemini-(\d+)")
# https://ai.google.dev/gemini-api/docs/thought-signatures: for calls that Gemini did not make
UNSIGNED: Final = {"google": {"thought_signature": "skip_thought_signature_validator"}}


@lru_cache(maxsize=256)
def vendor_of(url: str, name: str) -> Vendor:
    """The vendor of the server at *url*, or else the one in the provider's *name*."""
    host = urlsplit(url).hostname or ""
    if _REGIONAL.fullmatch(host):
        return "google"
    for known, vendor in _HOSTS:
        if host == known or host.endswith(f".{known}"):
            return vendor
    return _NAMES.get(name, "")


def wants_signatures(vendor: Vendor, model: str) -> bool:
    """True if the server refuses a tool call that comes back without its thought signature."""
    if vendor != "google" or "gemini" not in model:
        return False
    version = _GEMINI.search(model)
    return version is None or int(version[1]) >= 3


def packed(**fields: Any) -> str:
    """Fields of a vendor as the signature of a block: opaque to other code."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def unpacked(signature: str | None) -> dict[str, Any]:
    """The fields in a signature that `packed` made, or that pi made; empty for any other."""
    if not signature or not signature.startswith("{"):
        return {}
    try:
        fields = json.loads(signature)
    except ValueError:
        return {}
    if not isinstance(fields, dict):
        return {}
    if str(fields.get("type")).startswith("reasoning."):  # pi: one detail of OpenRouter's
        return {"reasoning_details": [fields]}
    return fields


def add_detail(details: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """
    Add a *piece* of OpenRouter's reasoning details to the earlier ones.

    Pieces of one detail have its type and number; texts grow, other fields come once.
    """
    same = (d for d in reversed(details) if d.get("type") == piece.get("type"))
    found = next((d for d in same if d.get("index") == piece.get("index")), None)
    if found is None:
        details.append(dict(piece))
        return
    for name, value in piece.items():
        if name in ("text", "summary", "data") and isinstance(value, str):
            before = found.get(name)
            found[name] = before + value if isinstance(before, str) else value
        elif value is not None:
            found[name] = value
