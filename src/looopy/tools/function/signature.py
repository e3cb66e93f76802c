"""
Reads the signature of a Python function once, as a JSON Schema and a decoder.

pydantic knows every annotation in both directions and supplies both: the schema that the model
sees, and the objects that the function receives (models, enums, dataclasses and dates, not
dictionaries and strings). The parameters become a `TypedDict` rather than a model, because a
parameter may have any name. A default is shown in the schema but filled in by Python itself, by
leaving the argument out.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from looopy.errors import InvalidTool
from looopy.tools.base import ToolContext
from looopy.tools.schema import refusal, show_path

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from looopy.tools.function.docstring import Docstring

_CHILDREN = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "contains",
)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")


@dataclass(frozen=True, slots=True)
class Signature:
    """
    A function as a tool sees it.

    Attributes:
        name: The function's own; of a callable object, its class's.
        doc: The docstring, taken apart.
        context_names: Parameters that receive the `ToolContext`.
        is_async: Calling it gives a coroutine at once; otherwise it may block: it belongs in a
            thread.
    """

    name: str
    doc: Docstring
    parameters: Mapping[str, inspect.Parameter]
    annotations: Mapping[str, Any]
    context_names: tuple[str, ...]
    is_async: bool


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """`outer` is what a call meets first, `inner` what was written; `bound`: filled by partials."""

    outer: Callable[..., Any]
    inner: Callable[..., Any]
    name: str
    doc: str | None
    bound: frozenset[str]


def read_signature(function: Callable[..., Any], namespace: Mapping[str, Any]) -> Signature:
    """
    Read *function*: plain, async, bound, partial or an object with `__call__`.

    Args:
        function: The callable; its arguments are passed by keyword.
        namespace: Local names that its annotations may use beside its module's.

    Raises:
        InvalidTool: It is a class or a generator, or an annotation cannot be resolved.
    """
    from looopy.tools.function.docstring import parse_docstring  # its patterns take long to compile

    unpacked = _unpack(function)
    name, outer, bound = unpacked.name, unpacked.outer, unpacked.bound
    if inspect.isclass(outer):
        raise InvalidTool(f"{name} is a class: pass a function, or an object that can be called")
    if inspect.isgeneratorfunction(outer) or inspect.isasyncgenfunction(outer):
        raise InvalidTool(
            f"tool function {name}() yields: return one value, and show progress with"
            " ToolContext.report()"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidTool(f"the signature of {name}() cannot be read: wrap it in a def") from error
    parameters = {key: value for key, value in signature.parameters.items() if key not in bound}
    annotations = {
        key: _resolve(name, value, unpacked.inner, namespace) for key, value in parameters.items()
    }
    return Signature(
        name=name,
        doc=parse_docstring(unpacked.doc),
        parameters=parameters,
        annotations=annotations,
        context_names=tuple(key for key, kind in annotations.items() if _is_context(kind)),
        is_async=inspect.iscoroutinefunction(outer),
    )


class Decoder:
    """
    Convert JSON arguments to the types of the function's annotations.

    Args:
        signature: The signature of the function; its context parameters are left out.
        ignores_extra: Arguments that the function does not have are allowed, and left out.

    Raises:
        InvalidTool: A parameter that no model can send, or a type that JSON cannot express.
    """

    def __init__(self, signature: Signature, *, ignores_extra: bool = False) -> None:
        fields = {}
        for key, parameter in signature.parameters.items():
            if key not in signature.context_names:
                _check_kind(signature.name, parameter)
                fields[key] = _field(parameter, signature)
        self._adapter, schema = _adapter_of(signature.name, fields)
        self.schema: dict[str, Any] = _tidy(schema)
        self._known = fields.keys() if ignores_extra else None
        if ignores_extra:
            del self.schema["additionalProperties"]

    def decode(self, tool_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """
        The arguments as objects, by parameter name; those with a default may be missing.

        Raises:
            InvalidToolArguments: A value that the schema allows is refused by its type.
        """
        from pydantic import ValidationError

        if self._known is not None:
            arguments = {key: value for key, value in arguments.items() if key in self._known}
        try:
            # As JSON, not as objects: then a strict model takes a date from a string too.
            text = json.dumps(dict(arguments), allow_nan=False)
            return dict(self._adapter.validate_json(text))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            lines = [f"{show_path(one['loc'])}: {one['msg']}" for one in problems]
        except (ValueError, RecursionError) as error:
            lines = [f"(arguments): cannot be read as JSON: {error}"]
        raise refusal(tool_name, lines, arguments)


def _unpack(function: Callable[..., Any]) -> _Unpacked:
    """Look below partials, methods, callable objects and wrappers."""
    bound: frozenset[str] = frozenset()
    outer: Any = None
    inner: Any = function
    name, doc = "", None
    while True:
        if isinstance(inner, functools.partial):
            bound |= inner.keywords.keys()
            inner = inner.func
        elif inspect.ismethod(inner):
            inner = inner.__func__
        elif hasattr(inner, "__wrapped__"):
            outer = outer or inner
            inner = inner.__wrapped__
        elif inspect.isroutine(inner) or inspect.isclass(inner):
            name, doc = name or inner.__name__, inspect.getdoc(inner) or doc
            return _Unpacked(outer or inner, inner, name, doc, bound)
        else:
            name, doc = name or type(inner).__name__, doc or inspect.getdoc(type(inner))
            inner = type(inner).__call__


def _resolve(
    name: str,
    parameter: inspect.Parameter,
    inner: Callable[..., Any],
    namespace: Mapping[str, Any],
) -> Any:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    module = getattr(inner, "__globals__", {})
    # ToolContext is often imported for type checkers only.
    names = {"ToolContext": ToolContext} | module | dict(namespace)
    holder = types.SimpleNamespace(__annotations__={parameter.name: annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidTool(
            f"tool function {name}(): the annotation of {parameter.name!r}, {annotation!r}, cannot"
            f" be resolved ({error}): import or define it where the module can see it when it runs"
        ) from error


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Annotated, Union, types.UnionType):
        return any(_is_context(part) for part in get_args(annotation))
    return annotation is ToolContext


def _check_kind(name: str, parameter: inspect.Parameter) -> None:
    where = f"tool function {name}(): parameter {parameter.name!r}"
    kind = parameter.kind
    if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        stars = "*" if kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise InvalidTool(
            f"tool function {name}(): a model cannot fill {stars}{parameter.name}: name each"
            " parameter, or take one list or dict"
        )
    if kind is inspect.Parameter.POSITIONAL_ONLY:
        raise InvalidTool(f"{where} is positional-only, and arguments come by name: remove the '/'")
    unannotated = parameter.annotation is inspect.Parameter.empty
    if unannotated and parameter.name in {"self", "cls"}:
        raise InvalidTool(f"{where} cannot come from a model: make a tool of the bound method")


def _sendable(signature: Signature, key: str, annotation: Any) -> Any:
    """
    *annotation* with every `Literal` of enum members as one that takes their values from a model.

    Raises:
        InvalidTool: A part of it is a class itself, which JSON cannot hold.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is type or origin is type:
        raise InvalidTool(
            f"tool function {signature.name}(): {key!r} is annotated {annotation!r}, and a model"
            " cannot send a class: take its name, as in Literal['int', 'str']"
        )
    if origin is Literal:
        return _literal(annotation, args)
    if origin is Annotated:
        base = _sendable(signature, key, annotation.__origin__)
        return annotation if base is annotation.__origin__ else Annotated[base, *args[1:]]
    parts = [part if isinstance(part, list) else _sendable(signature, key, part) for part in args]
    if origin is None or all(map(operator.is_, parts, args)):
        return annotation
    if origin is types.UnionType:
        return functools.reduce(operator.or_, parts)
    return origin[tuple(parts)]


def _literal(annotation: Any, args: tuple[Any, ...]) -> Any:
    members = [one for one in args if isinstance(one, enum.Enum)]
    if not members:
        return annotation
    from pydantic import BeforeValidator

    def member_of(value: Any) -> Any:
        same = (m for m in members if type(m.value) is type(value) and m.value == value)
        return next(same, value)

    return Annotated[annotation, BeforeValidator(member_of)]


def _field(parameter: inspect.Parameter, signature: Signature) -> Any:
    from typing import NotRequired, Required

    from pydantic import Field
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    annotation = _sendable(signature, parameter.name, signature.annotations[parameter.name])
    base, own = annotation, ()
    if get_origin(annotation) is Annotated:
        base, own = annotation.__origin__, annotation.__metadata__
    description = signature.doc.parameters.get(parameter.name)
    default = parameter.default
    if default is inspect.Parameter.empty:
        # The annotation's own facts come last, and win over the docstring.
        return Required[Annotated[base, Field(description=description), *own]]
    if isinstance(default, FieldInfo):  # x: int = Field(5, ge=0)
        return Required[Annotated[base, Field(description=description), *own, default]]
    extra: dict[str, Any] | None
    try:
        extra = {"default": to_jsonable_python(default, inf_nan_mode="strings")}
    except (PydanticSerializationError, ValueError):  # a sentinel: the model need not see it
        extra = None
    hint = Field(description=description, json_schema_extra=extra)
    return NotRequired[Annotated[base, hint, *own]]


def _adapter_of(
    name: str, fields: Mapping[str, Any], *, blame: bool = True
) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    from pydantic import PydanticUserError, TypeAdapter
    from typing_extensions import TypedDict

    make: Any = TypedDict  # a type checker wants the fields written out
    arguments = make("arguments", dict(fields))
    arguments.__pydantic_config__ = {"extra": "forbid"}
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(arguments)
        return adapter, adapter.json_schema()
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        if blame:
            _blame(name, fields)
        reason = str(error).splitlines()[0]
        raise InvalidTool(f"tool function {name}(): it has no JSON Schema: {reason}") from error


def _blame(name: str, fields: Mapping[str, Any]) -> None:
    """Raise for the one parameter that has no schema, so that its name is in the message."""
    for key, annotation in fields.items():
        try:
            _adapter_of(name, {key: annotation}, blame=False)
        except InvalidTool as error:
            # pydantic's first sentence names the problem, the rest is advice for pydantic itself.
            why = str(error.__cause__).partition("\n")[0].partition(". ")[0]
            raise InvalidTool(
                f"tool function {name}(): the type of {key!r} cannot be sent as JSON ({why}):"
                " use plain types, dataclasses or pydantic models"
            ) from error


def _tidy(node: Any) -> Any:
    """Drop titles, which repeat names, and close every object that lists its fields."""
    if not isinstance(node, dict):
        return node
    tidy = {key: value for key, value in node.items() if key != "title"}
    for key in _CHILDREN:
        if key in tidy:
            tidy[key] = _tidy(tidy[key])
    for key in _LISTS:
        if key in tidy:
            tidy[key] = [_tidy(item) for item in tidy[key]]
    for key in _MAPS:
        if key in tidy:
            tidy[key] = {name: _tidy(item) for name, item in tidy[key].items()}
    if tidy.get("type") == "object" and "properties" in tidy:
        tidy.setdefault("additionalProperties", False)
    return tidy
