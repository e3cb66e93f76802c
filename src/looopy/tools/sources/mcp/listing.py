"""
The tools that a server offers, in a form that every model provider accepts.

A server may choose any names for its tools, send an invalid schema, or list the same tool twice.
looopy repairs what it can (a name with a dot, a schema without a type). It leaves out the rest, and
the list of problems has it. One bad tool never costs the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looopy.auth.redaction import Redactor
from looopy.errors import InvalidTool
from looopy.tools.base import Effects
from looopy.tools.call.results import error_text
from looopy.tools.schema import usable_schema

MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 8 * 1024
_MAX_SCHEMA_CHARS = 64 * 1024
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One tool of a server. `remote_name` is the server's, `name` the model's."""

    name: str
    remote_name: str
    label: str | None
    description: str
    parameters: Mapping[str, Any]
    effects: Effects


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools that a server offers, and the problems of its list, one sentence each."""

    offers: Sequence[Offer] = ()
    problems: Sequence[str] = ()


def read_listing(
    tools: Sequence[Any],
    *,
    prefix: str = "",
    only: Collection[str] | None = None,
    trust_annotations: bool = True,
    problems: Sequence[str] = (),
    redactor: Redactor | None = None,
) -> Listing:
    """
    Read a server's list.

    Args:
        tools: The SDK's objects.
        prefix: Put before each name.
        only: The server's names of the tools to offer; `None`: all.
        trust_annotations: Believe the server that a tool only reads, or may be repeated.
        problems: Problems found earlier.
        redactor: Knows the secrets that the server was given, which the server may repeat in its
            names and descriptions.
    """
    redactor = redactor or Redactor()
    offers: dict[str, Offer] = {}
    found = list(problems)
    for tool in tools:
        if only is not None and tool.name not in only:
            continue
        try:
            offer = _offer(tool, prefix, redactor, trust_annotations=trust_annotations)
        except Exception as error:  # noqa: BLE001 - a schema too deep to be read, say
            name = _shown(redactor.text(tool.name))
            found.append(f"its tool {name} was left out: {error_text(error)}")
            continue
        if offer.name.casefold() in offers:
            name = _shown(redactor.text(tool.name))
            found.append(f"its tool {name} was left out: another has that name")
            continue
        offers[offer.name.casefold()] = offer
    if only is not None:
        there = {tool.name for tool in tools}
        found += [f"it has no tool {_shown(name)}" for name in only if name not in there]
    return Listing(tuple(offers.values()), tuple(map(redactor.text, found)))


def usable_name(name: str) -> str:
    """
    *name* as a model may call it: other characters become `_`, and a long one is cut with a digest.

    Raises:
        InvalidTool: No usable character is left.
    """
    usable = _UNUSABLE.sub("_", name)
    if not usable.strip("_"):
        raise InvalidTool("its name has no usable character")
    if len(usable) <= MAX_NAME_CHARS:
        return usable
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{usable[: MAX_NAME_CHARS - 9]}_{digest}"


def object_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """*schema* as one of type object, and true if it claimed another type."""
    kept = dict(schema)
    lied = kept.get("type", "object") != "object"
    kept["type"] = "object"
    if not isinstance(kept.get("properties"), dict):
        lied = lied or "properties" in kept
        kept["properties"] = {}
    return kept, lied


def _offer(tool: Any, prefix: str, redactor: Redactor, *, trust_annotations: bool) -> Offer:
    schema = redactor.value(tool.input_schema)
    if len(json.dumps(schema)) > _MAX_SCHEMA_CHARS:
        raise InvalidTool(f"its schema is longer than {_MAX_SCHEMA_CHARS:,} characters")
    schema = usable_schema(schema)
    return Offer(
        name=usable_name(f"{prefix}{redactor.text(tool.name)}"),
        remote_name=tool.name,
        label=redactor.text(tool.title or getattr(tool.annotations, "title", None) or "") or None,
        description=_description(redactor.text(tool.description or "")),
        parameters=schema,
        effects=_effects(tool.annotations) if trust_annotations else "external",
    )


def _description(text: str) -> str:
    if len(text) <= _MAX_DESCRIPTION_CHARS:
        return text
    return f"{text[:_MAX_DESCRIPTION_CHARS]}\n[the rest of the description was left out]"


def _effects(annotations: Any) -> Effects:
    if annotations is None:
        return "external"
    if annotations.read_only_hint:
        return "none"
    return "idempotent" if annotations.idempotent_hint else "external"


def _shown(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}...")
