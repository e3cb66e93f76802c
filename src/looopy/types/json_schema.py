"""
JSON Schemas of others, in the words of draft 2020-12.

Servers of tools send schemas of every draft and of OpenAPI. A validator and a model provider read
today's alone, so older words become today's. `rebuilt` is the walk that knows where in a schema
another schema stands: a property may be called `pattern` or `items`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]
_ONE: Final = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED: Final = (
    *("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
    "dependencies",
)
MAX_LEVELS: Final = 60
"""Deeper than that, a schema takes any value: no model writes such arguments."""


def rebuilt(node: Any, change: Callable[[Schema], Schema], depth: int = 0) -> Any:
    """*node* with each schema in it as *change* returns it, the inner ones first."""
    if not isinstance(node, Mapping):
        return node
    if depth > MAX_LEVELS:
        return {}
    made: Schema = dict(node)
    for name in _NAMED:
        if isinstance(inner := made.get(name), Mapping):
            made[name] = {key: rebuilt(one, change, depth + 1) for key, one in inner.items()}
    for name in _LISTS:
        if isinstance(inner := made.get(name), list):
            made[name] = [rebuilt(one, change, depth + 1) for one in inner]
    for name in _ONE:
        if isinstance(made.get(name), Mapping):
            made[name] = rebuilt(made[name], change, depth + 1)
    return change(made)


def modern(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """*schema* in the words of draft 2020-12; the same object if it has no older word."""
    made: Schema = rebuilt(schema, _today)
    if "definitions" in made and "$defs" not in made:
        made["$defs"] = made.pop("definitions")
        made = rebuilt(made, _to_defs)
    if "2020-12" not in str(made.get("$schema", "2020-12")):
        del made["$schema"]
    return schema if made == schema else made


def _today(node: Schema) -> Schema:
    for bound, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(bound), bool) and node.pop(bound) and plain in node:
            node[bound] = node.pop(plain)
    if isinstance(node.get("items"), list):  # a tuple, as it was before 2020-12
        node["prefixItems"] = node.pop("items")
        rest = node.pop("additionalItems", None)
        if rest is not None:
            node["items"] = rest
    if isinstance(node.get("dependencies"), Mapping):
        for key, wanted in node.pop("dependencies").items():
            name = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
            node[name] = {**node.get(name, {}), key: wanted}
    if isinstance(node.get("required"), bool):  # draft 3, of a property
        del node["required"]
    if isinstance(node.get("id"), str):
        del node["id"]
    if "divisibleBy" in node:
        node.setdefault("multipleOf", node.pop("divisibleBy"))
    if node.get("type") == "any":
        del node["type"]
    if node.pop("nullable", False) is True:  # OpenAPI 3.0
        if isinstance(node.get("type"), str):
            node["type"] = [node["type"], "null"]
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
    return node


def _to_defs(node: Schema) -> Schema:
    ref = node.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/definitions/"):
        node["$ref"] = ref.replace("#/definitions/", "#/$defs/", 1)
    return node


def without_keyword(node: Any, path: Sequence[str | int], *, named: bool = False) -> Any:
    """
    *node* without the keyword that the steps of *path* lead to; a schema there takes any value.

    Args:
        path: Within *node*; not empty.
        named: *node* is no schema: its keys are names, such as those of properties.
    """
    step, *rest = path
    inner = node.get(step) if isinstance(node, Mapping) else None
    if named and rest and isinstance(inner, Mapping):
        return {**node, step: without_keyword(inner, rest)}
    if named and not isinstance(inner, (Mapping, bool)):
        return {**node, step: {}}
    if rest and not named and isinstance(inner, Mapping) and step in (*_NAMED, *_ONE):
        return {**node, step: without_keyword(inner, rest, named=step in _NAMED)}
    if len(rest) > 1 and isinstance(inner, list) and step in _LISTS:
        place, *deeper = rest
        changed = [
            without_keyword(one, deeper) if i == place else one for i, one in enumerate(inner)
        ]
        return {**node, step: changed}
    return {key: value for key, value in node.items() if key != step}
