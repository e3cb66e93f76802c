"""
Turn a tool's JSON Schema into one that a grammar can be made of.

A grammar decides the next letter, so it knows types, keys and choices, and little else. All other
keywords are left out here: every keyword of JSON Schema only narrows, so without it the grammar
allows more, and the arguments are validated against the real schema afterwards in any case.
References are replaced by their targets. A schema that is too large or refers to itself without end
becomes any JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_MAX_NODES = 500
_MAX_DEPTH = 20
_MAX_ITEMS = 50
_LONGEST_TEXT = 500
_MAX_INT = 2**53
_FORMATS = ("date", "time", "date-time", "uuid")


def for_grammar(schema: Mapping[str, Any]) -> Schema:
    """
    The part of *schema*, of type object, that a grammar can hold a model to.

    Descriptions are kept, so that the result can also be shown to the model.
    """
    try:
        simple = _Simplifier(schema).walk(schema, (), 0)
    except _TooLargeError:
        return dict(ANY_OBJECT)
    return simple if simple.get("type") == "object" else dict(ANY_OBJECT)


class _TooLargeError(Exception):
    pass


class _Simplifier:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def walk(self, node: Any, refs: tuple[str, ...], depth: int) -> Schema:
        """Simplify *node*; the empty schema allows anything. *refs* are being put in place."""
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise _TooLargeError
        if not isinstance(node, Mapping):
            return {}
        simple = self._shape(node, refs, depth + 1)
        description = node.get("description")
        if isinstance(description, str) and simple:
            simple["description"] = description
        return simple

    def _shape(self, node: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> Schema:
        if isinstance(ref := node.get("$ref"), str):
            # A schema that refers to itself is unrolled once and then open.
            return {} if ref in refs else self.walk(self._resolve(ref), (*refs, ref), depth)
        if "const" in node:
            return {"const": node["const"]}
        if isinstance(node.get("enum"), Sequence) and node["enum"]:
            return {"enum": list(node["enum"])}
        for key in ("anyOf", "oneOf"):
            if isinstance(node.get(key), Sequence):
                return _any_of([self.walk(one, refs, depth) for one in node[key]])
        if isinstance(every := node.get("allOf"), Sequence):
            return self.walk(every[0], refs, depth) if len(every) == 1 else {}
        kind = node.get("type")
        if isinstance(kind, Sequence) and not isinstance(kind, str):
            return _any_of([self._typed({**node, "type": one}, refs, depth) for one in kind])
        return self._typed(node, refs, depth)

    def _typed(self, node: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> Schema:
        kind = node.get("type")
        if kind == "object" or (kind is None and "properties" in node):
            return self._object(node, refs, depth)
        if kind == "array":
            return self._array(node, refs, depth)
        if kind == "integer":
            bounds = {k: node[k] for k in ("minimum", "maximum") if _is_small_int(node.get(k))}
            for key, by in (("minimum", 1), ("maximum", -1)):
                beyond = f"exclusive{key.capitalize()}"
                if _is_small_int(node.get(beyond)):
                    bounds.setdefault(key, node[beyond] + by)
            return {"type": "integer", **bounds}
        if kind == "string":
            known = node.get("format") in _FORMATS
            longest = node.get("maxLength")
            bounds = {}
            if isinstance(longest, int) and longest <= _LONGEST_TEXT:
                bounds = {"maxLength": longest}
            return {"type": "string", **({"format": node["format"]} if known else bounds)}
        return {"type": kind} if kind in ("number", "boolean", "null") else {}

    def _object(self, node: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> Schema:
        properties = node.get("properties")
        rest = node.get("additionalProperties")
        simple: Schema = {"type": "object"}
        if isinstance(properties, Mapping):
            simple["properties"] = {k: self.walk(v, refs, depth) for k, v in properties.items()}
            required = node.get("required")
            if isinstance(required, Sequence):
                simple["required"] = [name for name in required if name in properties]
            # Extra keys may be allowed, but small models would only make them up.
            simple["additionalProperties"] = False
        if isinstance(rest, Mapping):
            simple["additionalProperties"] = self.walk(rest, refs, depth) or True
        return simple

    def _array(self, node: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> Schema:
        simple: Schema = {"type": "array", "items": self.walk(node.get("items"), refs, depth)}
        for key in ("minItems", "maxItems"):
            if _is_small_int(node.get(key)) and 0 <= node[key] <= _MAX_ITEMS:
                simple[key] = node[key]
        return simple

    def _resolve(self, ref: str) -> Any:
        at: Any = self._root
        if not ref.startswith("#"):
            return {}
        for step in ref[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(at, Mapping) or key not in at:
                return {}
            at = at[key]
        return at


def _any_of(choices: list[Schema]) -> Schema:
    return {"anyOf": choices} if choices and all(choices) else {}


def _is_small_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INT
