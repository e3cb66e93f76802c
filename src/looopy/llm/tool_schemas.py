"""
Tools in the form that a server takes, and calls of them in the form that the tool takes.

One schema that a server refuses costs the whole request, in every turn. So each is mended for the
dialect of the server: a root with `anyOf` is wrapped in an object, keys that the server does not
take are renamed, an array gets its `items`, a pattern that looks around becomes words of the
description, and older words become today's. The model's calls are mapped back before anyone sees
them, and calls in the history are mapped as the model wrote them. A tool that cannot be mended is
left out, with a warning that has its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from looopy.llm.dialects import Dialect
from looopy.llm.options import left_out
from looopy.llm.strict import looks_around
from looopy.types.json_schema import Schema, modern, rebuilt
from looopy.types.message import AssistantMessage, Message, ToolCall
from looopy.types.request import (
    TOOLS_LEFT_OUT,
    LLMRequest,
    StreamEvent,
    StreamOptions,
    ToolSpec,
)

WRAP: Final = "input"
"""The one property of a wrapped root."""
_CHOICES: Final = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not"})
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_KEY: Final = 64
_MAX_KEPT: Final = 4096
_MAX_NAMES_CHARS: Final = 32_768


@dataclass(frozen=True, slots=True)
class _Fitted:
    """One tool's schema as the server takes it; `given` keeps the identity of the tool's own."""

    given: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    wrapped: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)  # the tool's key -> the server's

    def to_server(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = _renamed(arguments, self.keys)
        return {WRAP: renamed} if self.wrapped else renamed

    def to_tool(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        inner = arguments.get(WRAP)
        if self.wrapped and len(arguments) == 1 and isinstance(inner, Mapping):
            arguments = inner
        found: dict[str, Any] = _renamed(arguments, {new: old for old, new in self.keys.items()})
        return found


class ToolFitter:
    """Fits the tools of requests to one dialect; each schema is mended once."""

    __slots__ = ("_known", "dialect")

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._known: dict[int, _Fitted] = {}

    def fit(self, request: LLMRequest, options: StreamOptions) -> FittedRequest:
        """*request* with tools that the server takes; the same one if it takes them as they are."""
        specs: list[ToolSpec] = []
        lost: list[str] = []
        changed: dict[str, _Fitted] = {}
        for spec in request.tools:
            fitted = self._known.get(id(spec.parameters))
            if fitted is None or fitted.given is not spec.parameters:
                fitted = self._mended(spec.parameters)
            if fitted.schema is None:
                lost.append(spec.name)
            elif fitted.schema is fitted.given:
                specs.append(spec)
            else:
                specs.append(replace(spec, parameters=fitted.schema))
                if fitted.wrapped or fitted.keys:
                    changed[spec.name] = fitted
        most = self.dialect.max_tools
        if most is not None and len(specs) > most:
            # The one that the model has to call comes first.
            specs.sort(key=lambda spec: spec.name != options.tool_choice)
            lost += [spec.name for spec in specs[most:]]
            del specs[most:]
        if lost:
            left_out(options, TOOLS_LEFT_OUT, _lost(lost, len(specs)))
        if changed or lost or any(a is not b for a, b in zip(specs, request.tools, strict=True)):
            messages = _as_sent(request.messages, changed) if changed else request.messages
            request = replace(request, tools=specs, messages=messages)
        return FittedRequest(request, changed)

    def _mended(self, given: Mapping[str, Any]) -> _Fitted:
        if len(self._known) >= _MAX_KEPT:
            self._known.clear()
        try:
            fitted = _fit(given, self.dialect)
        except (TypeError, ValueError, AttributeError, RecursionError):  # it is not a schema
            fitted = _Fitted(given, None)
        self._known[id(given)] = fitted
        return fitted


@dataclass(frozen=True, slots=True)
class FittedRequest:
    """A request for the server, and the way back of its answer."""

    request: LLMRequest
    _changed: Mapping[str, _Fitted]

    def restored(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """The *events* of an answer, their calls with the arguments that the tools take."""
        return [self._restored(event) for event in events] if self._changed else events

    def _restored(self, event: StreamEvent) -> StreamEvent:
        if event.tool_call is not None:
            event = replace(event, tool_call=self._call(event.tool_call))
        if event.message is not None:
            event = replace(event, message=_with_calls(event.message, self._call))
        return event

    def _call(self, call: ToolCall) -> ToolCall:
        fitted = self._changed.get(call.name)
        if fitted is None or call.invalid_arguments is not None:
            return call
        return replace(call, arguments=fitted.to_tool(call.arguments))


def _lost(names: Sequence[str], left: int) -> str:
    text = ", ".join(names)
    if len(text) > _MAX_NAMES_CHARS:
        text = f"{text[:_MAX_NAMES_CHARS]}..."
    return (
        f"the model gets {left} tools; {len(names)} more are left out, because the server takes no"
        f" more tools, or not their schema: {text}"
    )


def _as_sent(messages: Sequence[Message], changed: Mapping[str, _Fitted]) -> Sequence[Message]:
    """*messages* with the calls of *changed* tools as the model wrote them."""

    def call_of(call: ToolCall) -> ToolCall:
        fitted = changed.get(call.name)
        return call if fitted is None else replace(call, arguments=fitted.to_server(call.arguments))

    return [
        _with_calls(one, call_of) if isinstance(one, AssistantMessage) else one for one in messages
    ]


def _with_calls(message: AssistantMessage, call_of: Any) -> AssistantMessage:
    blocks = tuple(call_of(b) if isinstance(b, ToolCall) else b for b in message.content)
    if all(a is b for a, b in zip(blocks, message.content, strict=True)):
        return message
    return replace(message, content=blocks)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """*value* with its keys by *names*, at every level."""
    if not names:
        return value
    if isinstance(value, Mapping):
        return {names.get(key, key): _renamed(one, names) for key, one in value.items()}
    return [_renamed(one, names) for one in value] if isinstance(value, list) else value


def _fit(given: Mapping[str, Any], dialect: Dialect) -> _Fitted:
    schema: Schema = dict(modern(given))
    schema = _without_root_reference(schema)
    if schema.get("type") != "object":
        schema["type"] = "object"
    if not isinstance(schema.get("properties", {}), Mapping):
        raise TypeError
    keys: dict[str, str] = {} if dialect.any_keys else _new_keys(schema)
    schema = rebuilt(schema, _Mender(dialect, keys, schema))
    wrapped = not dialect.choices_at_root and bool(_CHOICES & schema.keys())
    if wrapped:
        schema = _wrapped(schema)
    return _Fitted(given, given if schema == given else schema, wrapped, keys)


def _without_root_reference(schema: Schema) -> Schema:
    """*schema* with the target of its root's `$ref` in the place of it."""
    for _ in range(8):
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            break
        target = _target(ref, schema)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **rest} if isinstance(target, Mapping) else rest
    return schema


def _target(ref: str, root: Mapping[str, Any]) -> Any:
    """The part of *root* that *ref* names; `None` if there is none."""
    node: Any = root
    if not ref.startswith("#"):
        return None
    for step in ref[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _new_keys(schema: Schema) -> dict[str, str]:
    """The names that the server takes for the properties whose names it does not."""
    found: dict[str, None] = {}

    def note(node: Schema) -> Schema:
        for name in ("properties", "dependentRequired", "dependentSchemas"):
            if isinstance(node.get(name), Mapping):
                found.update(dict.fromkeys(map(str, node[name])))
        return node

    rebuilt(schema, note)
    taken = {name for name in found if _is_plain(name)}
    keys: dict[str, str] = {}
    for name in found:
        if name in taken:
            continue
        new = _STRANGE.sub("_", name)[:_MAX_KEY] or "_"
        if new in taken or len(name) > _MAX_KEY:
            digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
            new = f"{new[: _MAX_KEY - 9]}_{digest}"
        taken.add(new)
        keys[name] = new
    return keys


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= _MAX_KEY and _STRANGE.search(name) is None


class _Mender:
    """Mends each schema within a tool's."""

    def __init__(self, dialect: Dialect, keys: Mapping[str, str], root: Schema) -> None:
        self._dialect, self._keys, self._root = dialect, keys, root

    def __call__(self, node: Schema) -> Schema:
        kind = node.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and not isinstance(
            node.get("items"), Mapping
        ):
            node["items"] = {}
        if not self._dialect.lookaround:
            self._into_words(node)
        if self._keys:
            self._rename(node)
        ref = node.get("$ref")
        if isinstance(ref, str) and _target(ref, self._root) is None:  # then it takes any value
            del node["$ref"]
        elif isinstance(ref, str) and self._keys:
            steps = ref.split("/")
            node["$ref"] = "/".join(self._keys.get(step, step) for step in steps)
        return node

    def _into_words(self, node: Schema) -> None:
        said = []
        if looks_around(node.get("pattern")):
            said.append(f"pattern: {node.pop('pattern')}")
        patterns = node.get("patternProperties")
        if isinstance(patterns, Mapping) and any(map(looks_around, patterns)):
            said += [f"keys: {one}" for one in patterns if looks_around(one)]
            rest = {key: one for key, one in patterns.items() if not looks_around(key)}
            node["patternProperties"] = rest
        if said:
            text = node.get("description")
            before = f"{text} " if isinstance(text, str) and text else ""
            node["description"] = f"{before}({', '.join(said)})"

    def _rename(self, node: Schema) -> None:
        keys = self._keys
        for name in ("properties", "dependentRequired", "dependentSchemas"):
            if isinstance(node.get(name), Mapping):
                node[name] = {keys.get(key, key): one for key, one in node[name].items()}
        if isinstance(node.get("required"), list):
            node["required"] = [keys.get(one, one) for one in node["required"]]
        if isinstance(node.get("dependentRequired"), Mapping):
            node["dependentRequired"] = {
                key: [keys.get(one, one) for one in wanted] if isinstance(wanted, list) else wanted
                for key, wanted in node["dependentRequired"].items()
            }


def _wrapped(schema: Schema) -> Schema:
    """An object whose one property is *schema*; definitions stay at the root, for references."""
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}

    def moved(node: Schema) -> Schema:
        ref = node.get("$ref")
        if isinstance(ref, str) and ref.startswith("#") and not ref.startswith("#/$defs/"):
            node["$ref"] = f"#/properties/{WRAP}{ref[1:]}"
        return node

    made: Schema = {
        "type": "object",
        "properties": {WRAP: rebuilt(inner, moved)},
        "required": [WRAP],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        made["$defs"] = {key: rebuilt(one, moved) for key, one in schema["$defs"].items()}
    return made
