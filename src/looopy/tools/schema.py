"""
Checks a call's arguments against the tool's schema, and explains a mismatch so that a model can act
on it.

The schema is the contract that the model saw, so it alone decides and nothing is coerced. A refusal
lists one `path: problem` a line, with the allowed values and the missing properties, and ends with
the received arguments: a model that reads it can send the call again without guessing. Schemas are
compiled once a tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from looopy.errors import InvalidTool, InvalidToolArguments
from looopy.types.json_schema import modern, without_keyword

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_RECEIVED_CHARS = 500
MAX_LEVELS = 60
_MAX_LINES = 10
_MAX_DROPPED = 64
_MAX_VALUE_CHARS = 100
_CACHE = "_looopy_validator"

PathPart = str | int


class Described(Protocol):
    """A tool, as far as its arguments are concerned."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of its arguments."""
        ...


def arguments_of(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of arguments that are all required: the schema of each by its name."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def check_schema(parameters: Mapping[str, Any]) -> None:
    """
    Make sure that *parameters* is a JSON Schema.

    References to other documents are refused, not fetched.

    Raises:
        InvalidTool: It is not; the message names the place.
    """
    _compile(parameters)


def usable_schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The *parameters* of a server's tool in today's words, without keywords that are invalid.

    Such a keyword narrows the arguments: without it the server itself refuses a wrong value.

    Raises:
        InvalidTool: What is left is not a JSON Schema; the message names the place.
    """
    import jsonschema_rs

    schema = modern(parameters)
    for _ in range(_MAX_DROPPED):
        try:
            jsonschema_rs.validator_for(dict(schema), retriever=_refuse_to_fetch)
        except jsonschema_rs.ValidationError as error:
            if not error.instance_path or error.instance_path == ["type"]:
                break
            schema = without_keyword(schema, error.instance_path)
        except ValueError:
            break
        else:
            return schema
    check_schema(schema)
    return schema


def validate(tool: Described, arguments: Mapping[str, Any]) -> None:
    """
    Compare *arguments* with the schema of *tool*.

    Raises:
        InvalidToolArguments: They do not fit; the message is for the model.
        InvalidTool: The schema itself is invalid.
    """
    if lines := _lines(validator_of(tool), tool.parameters, dict(arguments)):
        raise refusal(tool.name, lines, arguments)


def problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """A `path: problem` for each reason why *value* does not fit *schema*; or `InvalidTool`."""
    return _lines(_compile(schema), schema, value)


def _lines(validator: Validator, schema: Mapping[str, Any], value: Any) -> list[str]:
    try:
        errors = list(validator.iter_errors(value))
    except ValueError as error:  # too deep, a lone surrogate, a value that JSON does not know
        return [f"{show_path(())}: cannot be read as JSON: {error}"]
    return list(dict.fromkeys(line for error in errors for line in _explain(error, schema)))


def misfits(schema: Mapping[str, Any], value: Any) -> list[tuple[Sequence[PathPart], str]]:
    """Place and problem of each reason why *value* does not fit *schema*; or `InvalidTool`."""
    validator = _compile(schema)
    try:
        errors = list(validator.iter_errors(value))
    except ValueError as unreadable:
        return [((), f"cannot be read as JSON: {unreadable}")]
    found: list[tuple[Sequence[PathPart], str]] = []
    for error in errors:
        path: list[PathPart] = list(error.instance_path)
        kind: Any = error.kind
        if kind.name == "required":
            path.append(kind.property)
        place = f"{show_path(path)}: "
        lines = (line.removeprefix(place) for line in _explain(error, schema))
        found += [(path, line.removeprefix("(arguments): ")) for line in lines]
    return found


def refusal(tool_name: str, lines: Sequence[str], received: Any) -> InvalidToolArguments:
    """The error for the refused *received*: *lines* are `path: problem`, at least one."""
    shown = [f"- {line}" for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"- and {len(lines) - _MAX_LINES} more")
    return InvalidToolArguments(
        f"The arguments of {tool_name!r} do not fit its schema; the tool did not run.\n"
        + "\n".join(shown)
        + f"\nReceived: {shorten(received, MAX_RECEIVED_CHARS)}\n"
        "Correct these and call the tool again.",
        tool_name=tool_name,
    )


def show_path(parts: Sequence[PathPart]) -> str:
    """A place in the arguments as a model would write it: `items[0].name`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "(arguments)"


def shorten(value: Any, limit: int = _MAX_VALUE_CHARS) -> str:
    """*value* as JSON text, cut to *limit* characters with a marker; a string is itself."""
    try:
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
    except (ValueError, TypeError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text) - limit:,} more characters)"


def validator_of(tool: Described) -> Validator:
    """The compiled schema of *tool*; `InvalidTool` if it is invalid."""
    # Kept in the tool itself, so that it lives as long: subclasses may be unhashable or frozen.
    schema, validator = vars(tool).get(_CACHE, (None, None))
    if validator is None or schema is not tool.parameters:
        validator = _compile(tool.parameters)
        vars(tool)[_CACHE] = (tool.parameters, validator)
    return validator  # type: ignore[no-any-return]  # vars() is untyped


def _compile(parameters: Mapping[str, Any]) -> Validator:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(dict(parameters), retriever=_refuse_to_fetch)
    except jsonschema_rs.ValidationError as error:
        where = show_path(error.instance_path)
        raise InvalidTool(
            f"parameters is not a valid JSON Schema: {where}: {shorten(error.message, 300)}"
        ) from None
    except ValueError as error:
        raise InvalidTool(f"parameters is not a valid JSON Schema: {error}") from None


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is another document; put it under $defs")


def _explain(error: ValidationError, schema: Mapping[str, Any]) -> list[str]:
    path: list[PathPart] = list(error.instance_path)
    kind: Any = error.kind
    where = show_path(path)
    match kind.name:
        case "required":
            return [f"{show_path([*path, kind.property])}: required but missing"]
        case "additionalProperties" | "unevaluatedProperties":
            known = _properties_at(schema, error.schema_path)
            hint = f"; known fields: {', '.join(known)}" if known else ""
            return [f"{show_path([*path, name])}: unknown field{hint}" for name in kind.unexpected]
        case "type":
            return [f"{where}: must be {_or(kind.types)}, not {_received(error.instance)}"]
        case "enum":
            allowed = ", ".join(_quote(option) for option in kind.options)
            return [f"{where}: must be one of {allowed}; not {_received(error.instance)}"]
        case "const":
            return [
                f"{where}: must be {_quote(kind.expected_value)}, not {_received(error.instance)}"
            ]
        case "anyOf" | "oneOfNotValid" | "oneOf":
            return _explain_choice(error, kind.context, schema)
        case _:
            return [f"{where}: {shorten(error.message, 300)}"]


def _explain_choice(
    error: ValidationError, branches: Sequence[Sequence[ValidationError]], schema: Mapping[str, Any]
) -> list[str]:
    """Explain the alternative that the value was meant for; if that is unclear, name them all."""
    here = list(error.instance_path)
    types: list[str] = []
    meant: list[Sequence[ValidationError]] = []
    for branch in branches:
        refused = [e for e in branch if e.kind.name == "type" and list(e.instance_path) == here]
        types += [name for e in refused for name in getattr(e.kind, "types", ())]
        if not refused:
            meant.append(branch)
    if not all(branches):  # more than one alternative of a oneOf fits
        return [f"{show_path(here)}: {shorten(error.message, 300)}"]
    if meant:
        # A wrong constant is a wrong tag; of the rest, the one with the fewest mistakes is likely.
        best = min(meant, key=lambda one: (any(e.kind.name == "const" for e in one), len(one)))
        return [line for e in best for line in _explain(e, schema)]
    allowed = _or(list(dict.fromkeys(types)))
    return [f"{show_path(here)}: must be {allowed}, not {_received(error.instance)}"]


def _properties_at(schema: Mapping[str, Any], schema_path: Sequence[PathPart]) -> list[str]:
    node: Any = schema
    try:
        for part in schema_path[:-1]:
            node = node[part]
        return list(node["properties"])
    except (KeyError, IndexError, TypeError):  # no properties here, or reached by a reference
        return []


def _received(value: Any) -> str:
    return f"{_quote(value)} ({json_type(value)})"


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value
    return shorten(text)


def json_type(value: Any) -> str:
    """The name that JSON Schema has for the type of *value*."""
    if value is None:
        return "null"
    for kind, name in (
        (bool, "boolean"),
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (Mapping, "object"),
    ):
        if isinstance(value, kind):
            return name
    return "array"


def _or(names: Sequence[str]) -> str:
    return " or ".join(names)


def without_nulls(schema: Mapping[str, Any], value: Any) -> Any:
    """
    *value* without the nulls of properties that *schema* neither requires nor allows to be null.

    A strict schema requires every property, so a model writes null for one that it would leave out.
    """
    return _without_nulls(schema, value, schema, 0)


def _without_nulls(node: Any, value: Any, root: Mapping[str, Any], depth: int) -> Any:
    node = _target(node, root)
    if not isinstance(node, Mapping) or depth > MAX_LEVELS:
        return value
    for choices in ("anyOf", "oneOf", "allOf"):
        for one in node.get(choices) or ():
            value = _without_nulls(one, value, root, depth + 1)
    if isinstance(value, Mapping) and isinstance(properties := node.get("properties"), Mapping):
        required = node.get("required") or ()
        return {
            name: _without_nulls(properties.get(name), one, root, depth + 1)
            for name, one in value.items()
            if one is not None
            or name in required
            or name not in properties
            or _takes_null(properties[name], root, 0)
        }
    if isinstance(value, list) and (items := node.get("items")):
        return [_without_nulls(items, one, root, depth + 1) for one in value]
    return value


def _takes_null(node: Any, root: Mapping[str, Any], depth: int) -> bool:
    node = _target(node, root)
    if not isinstance(node, Mapping) or depth > MAX_LEVELS:
        return True
    choices = [*(node.get("anyOf") or ()), *(node.get("oneOf") or ()), *(node.get("allOf") or ())]
    if choices:
        return any(_takes_null(one, root, depth + 1) for one in choices)
    kind = node.get("type")
    if "enum" in node:
        return None in node["enum"]
    if "const" in node:
        return node["const"] is None
    return kind is None or kind == "null" or (isinstance(kind, list) and "null" in kind)


def _target(node: Any, root: Mapping[str, Any]) -> Any:
    """*node*, or the schema that it refers to."""
    for _ in range(MAX_LEVELS):
        ref = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(ref, str) or not ref.startswith("#"):
            return node
        node = root
        for step in ref[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, Mapping) else None
    return None
