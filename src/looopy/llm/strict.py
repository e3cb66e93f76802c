"""
JSON Schemas in the strict form that a server enforces while the model writes.

Strict form closes every object, and OpenAI requires every property: one that may be left out may
then be null, and `looopy.tools.schema.without_nulls` leaves it out again. Keywords that only narrow
become words of the description, as looopy checks each answer itself. A schema that only an open
form can express has no strict one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

# https://platform.openai.com/docs/guides/structured-outputs, Supported schemas
# https://platform.claude.com/docs/en/build-with-claude/structured-outputs, JSON Schema limitations
_KEPT: Final = frozenset({"type", "enum", "const", "description", "title"})
_BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems", "pattern"}
)
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_WORDS: Final = frozenset({"minLength", "maxLength", "uniqueItems", "format", *_BOUNDS})
_IGNORED: Final = frozenset(
    {"default", "examples", "deprecated", "discriminator", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs", "definitions", "$ref", "anyOf", "oneOf", "allOf"}
    | {"properties", "required", "additionalProperties", "items"}
)
_NULL: Final[Schema] = {"type": "null"}
_LOOKS_AROUND: Final = re.compile(r"\(\?<?[=!]")
_MAX_LEVELS: Final = 60
_LONGEST: Final = 1000  # a text in a grammar: llama.cpp refuses 2,000 repetitions


def looks_around(pattern: object) -> bool:
    """True if *pattern* looks ahead or behind, which not every engine does."""
    return isinstance(pattern, str) and _LOOKS_AROUND.search(pattern) is not None


class NotStrict(Exception):
    """The schema has no strict form; the text names place and reason. Never raised to a user."""


def strict_schema(
    schema: Mapping[str, Any], *, every: bool = True, bounds: bool = True, lengths: bool = False
) -> Schema:
    """
    The strict form of *schema*, whose root is an object.

    Args:
        every: Require every property; otherwise only what *schema* requires.
        bounds: The server takes limits of numbers, lengths of lists, and patterns. Otherwise they
            become words, and a schema that refers to itself has no strict form.
        lengths: The server takes lengths of texts, as those do that make a grammar of the schema.

    Raises:
        NotStrict: *schema* has none.
    """
    maker = _Strict(every=every, bounds=bounds, lengths=lengths)
    made = maker.of(schema, "", 0)
    if made.get("type") != "object":
        raise NotStrict("its root is not an object")
    for name in ("$defs", "definitions"):
        if isinstance(defs := schema.get(name), Mapping):
            made[name] = {key: maker.of(one, f"/{name}/{key}", 1) for key, one in defs.items()}
    if not bounds and _refers_to_itself(made):
        raise NotStrict("it refers to itself")
    return made


def has_strict(schema: Mapping[str, Any], *, every: bool = True, bounds: bool = True) -> bool:
    """True if `strict_schema` makes a strict form of *schema*."""
    try:
        strict_schema(schema, every=every, bounds=bounds)
    except NotStrict:
        return False
    return True


class _Strict:
    def __init__(self, *, every: bool, bounds: bool, lengths: bool) -> None:
        self._every = every
        self._kept = _KEPT | _BOUNDS if bounds else _KEPT
        self._lengths = lengths

    def of(self, node: Any, path: str, depth: int) -> Schema:
        where = path or "its root"
        if not isinstance(node, Mapping) or depth > _MAX_LEVELS:
            raise NotStrict(f"{where} takes any value")
        if "$ref" in node:  # nothing may stand beside it
            return {"$ref": node["$ref"]}
        strange = node.keys() - self._kept - _WORDS - _IGNORED
        if strange:
            raise NotStrict(f"{where} has {min(strange)!r}")
        made: Schema = {name: value for name, value in node.items() if name in self._kept}
        if looks_around(made.get("pattern")):  # no server takes it
            del made["pattern"]
        longest = node.get("maxLength", 0)
        if self._lengths and isinstance(longest, int) and longest <= _LONGEST:
            made |= {name: node[name] for name in ("minLength", "maxLength") if name in node}
        for choices in ("anyOf", "oneOf"):
            if choices in node:
                found = [self.of(one, f"{path}/{choices}", depth + 1) for one in node[choices]]
                made["anyOf"] = found
        if "allOf" in node:
            if len(node["allOf"]) != 1:
                raise NotStrict(f"{where} has 'allOf'")
            made = {**self.of(node["allOf"][0], f"{path}/allOf", depth + 1), **made}
            made = {"$ref": made["$ref"]} if "$ref" in made else made
        elif made.get("type") == "object" or "properties" in node:
            self._object(made, node, path, depth)
        elif made.get("type") == "array":
            made["items"] = self.of(node.get("items"), f"{path}/items", depth + 1)
        elif not made.keys() & {"type", "enum", "const", "anyOf"}:
            raise NotStrict(f"{where} takes any value")
        if node.get("format") in _FORMATS:
            made["format"] = node["format"]
        said = [f"{k}: {node[k]}" for k in node if k in _WORDS and k not in made]
        if said and "$ref" not in made:
            made["description"] = f"{made.get('description', '')} ({', '.join(said)})".strip()
        return made

    def _object(self, made: Schema, node: Mapping[str, Any], path: str, depth: int) -> None:
        properties, rest = node.get("properties"), node.get("additionalProperties")
        if not isinstance(properties, Mapping):
            properties = {}
            if rest is not False:
                raise NotStrict(f"{path or 'its root'} is an object with any properties")
        if rest is True or isinstance(rest, Mapping):
            raise NotStrict(f"{path or 'its root'} takes more properties than it names")
        required = node.get("required") or ()
        found = {}
        for name, one in properties.items():
            found[name] = self.of(one, f"{path}/{name}", depth + 1)
            if self._every and name not in required:
                found[name] = _or_null(found[name])
        made["type"], made["properties"] = "object", found
        made["required"] = [*found] if self._every else [n for n in found if n in required]
        made["additionalProperties"] = False


def _or_null(schema: Schema) -> Schema:
    if any(one == _NULL for one in schema.get("anyOf", ())):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and not schema.keys() & {"enum", "const"}:
        return schema if kind == "null" else {**schema, "type": [kind, "null"]}
    if isinstance(kind, list) and not schema.keys() & {"enum", "const"}:
        return schema if "null" in kind else {**schema, "type": [*kind, "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], _NULL]}
    return {"anyOf": [schema, _NULL]}


def _refers_to_itself(schema: Schema) -> bool:
    defs = {
        f"#/{name}/{key}": one
        for name in ("$defs", "definitions")
        for key, one in schema.get(name, {}).items()
    }
    to = {name: _refs(one) for name, one in defs.items()}
    for begin, first in to.items():
        seen: set[str] = set()
        ahead = set(first)
        while ahead:
            if begin in ahead:
                return True
            seen |= ahead
            ahead = {r for one in ahead for r in to.get(one, ())} - seen
    return "#" in _refs(schema)


def _refs(node: Any) -> set[str]:
    if isinstance(node, Mapping):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_refs(one) for one in node.values()))
    return set().union(*(_refs(one) for one in node)) if isinstance(node, list) else set()
