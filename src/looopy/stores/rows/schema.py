"""
The reader and the writer of usual messages in compiled code, made from the table of fields.

pydantic-core reads and writes the dataclasses as they are, in a fifth of the time that the general
way takes (`message_json`). It refuses to read a row that is not quite of the shape which is written
here; that row goes the general way, which decides. It writes only what was checked: its own checks
pass over `None`, and over a number that equals the default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from looopy.types.message import Cost, Message, StopReason, Usage
from looopy.types.message_fields import BLOCKS_OF, FIELDS, ROLES, Field, default_of

if TYPE_CHECKING:
    from pydantic_core.core_schema import CoreSchema


@cache
def reader() -> Callable[[str], Message]:
    """A function that reads a row's text; raises `ValueError` for any but a usual message."""
    from pydantic_core import SchemaValidator, core_schema  # imported with the first message

    kinds = {role: _dataclass(kind, "reads") for role, kind in ROLES.items()}
    validator = SchemaValidator(core_schema.tagged_union_schema(kinds, "role"))
    return validator.validate_json


@cache
def writer(kind: type) -> Callable[[Any], bytes]:
    """A function that writes values of *kind*: messages or usage whose types are right."""
    from pydantic_core import SchemaSerializer

    write = SchemaSerializer(_dataclass(kind, "writes")).to_json
    return partial(write, exclude_defaults=True)


def _dataclass(kind: type, way: str) -> CoreSchema:
    """The schema of a class, to read it or to write it."""
    from pydantic_core import core_schema

    found, names = [], []
    word = "role" if kind in BLOCKS_OF else "type"
    if way == "writes" and hasattr(kind, word):
        found.append(core_schema.dataclass_field(word, core_schema.str_schema()))
        names.append(word)
    for name, field in FIELDS[kind].items():
        schema = _schema(kind, field, way)
        # A row has the time of its message: a message without one is of now.
        if name != "timestamp" and (way == "reads" or field.left_out != "never"):
            default = field.default if field.left_out != "never" else default_of(kind, name)
            given: dict[str, Any] = {"default": default}
            if default == {}:
                given = {"default_factory": dict}
            schema = core_schema.with_default_schema(schema, **given)
        found.append(core_schema.dataclass_field(name, schema))
        names.append(name)
    arguments = core_schema.dataclass_args_schema(kind.__name__, found)
    after = way == "reads" and hasattr(kind, "__post_init__")
    return core_schema.dataclass_schema(kind, arguments, names, post_init=after, slots=True)


def _schema(kind: type, field: Field, way: str) -> CoreSchema:
    from pydantic_core import core_schema as of

    word = field.kind.reads if way == "reads" else field.kind.writes
    if word in ("blocks", "text or blocks"):
        blocks = {one.type: _dataclass(one, way) for one in BLOCKS_OF[kind]}
        item: CoreSchema = of.tagged_union_schema(blocks, "type")
        if way == "writes":
            item = of.union_schema(list(blocks.values()))
        found = of.tuple_variable_schema(item)
        return found if word == "blocks" else of.union_schema([of.str_schema(strict=True), found])
    match word:
        case "text":
            return of.str_schema(strict=True)
        case "text?":
            return of.nullable_schema(of.str_schema(strict=True))
        case "whole":
            return of.int_schema(strict=True)
        case "number":
            return of.float_schema(strict=True, allow_inf_nan=False)
        case "flag":
            return of.bool_schema(strict=True)
        case "object":
            return of.dict_schema(of.str_schema(), of.any_schema())
        case "any":
            return of.any_schema()
        case "stop":
            return of.enum_schema(StopReason, list(StopReason), sub_type="str")
        case "usage":
            return _dataclass(Usage, way)
        case "cost":
            return of.nullable_schema(_dataclass(Cost, way))
        case _:
            return of.literal_schema([object()])  # no value but the default
