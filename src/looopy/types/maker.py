"""
Makes frozen objects in a fraction of the time that their constructor takes.

A frozen dataclass fills its fields by `object.__setattr__`, one call each, after a call of the
class, which is itself slow with keywords. That is nothing for an object now and then; but a turn
makes an event for each delta, and a history is read by the ten thousand messages. The function that
`maker` gives is called like the class: it fills an unfrozen twin with the same slots, as any object
is filled, and turns that into one of the class before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """
    A function that makes instances of *cls*, a frozen and slotted dataclass.

    Its parameters, defaults and results are those of *cls*; `__post_init__` is called.

    Raises:
        TypeError: *cls* is no such class, or has fields that no parameter fills.
    """
    kind = cast("Any", cls)
    try:
        slots, frozen = kind.__dict__["__slots__"], kind.__dataclass_params__.frozen
    except (KeyError, AttributeError):
        raise TypeError(f"{cls!r} is not a dataclass with slots") from None
    filled = fields(kind)
    if not frozen or not all(field.init for field in filled):
        raise TypeError(f"{cls!r} is not frozen, or fills fields by itself")
    # In place of what the class, or one it derives from, has to stay frozen.
    thaw = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    unset = {"__init__": object.__init__}
    twin = type(f"_{kind.__name__}", kind.__bases__, {"__slots__": slots, **thaw, **unset})
    known: dict[str, Any] = {"_cls": kind, "_twin": twin, "_MISSING": MISSING}
    ordered = [_parameter(field, known) for field in filled if not field.kw_only]
    named = [_parameter(field, known) for field in filled if field.kw_only]
    lines = [
        f"def make({', '.join([*ordered, *(['*'] if named else []), *named])}):",
        "    _made = _twin()",
        *(f"    _made.{field.name} = {_value(field)}" for field in filled),
        "    _made.__class__ = _cls",
        *(["    _made.__post_init__()"] if hasattr(kind, "__post_init__") else []),
        "    return _made",
    ]
    exec("\n".join(lines), known)  # noqa: S102 - made of the names of fields and nothing else
    return cast("Callable[P, T]", known["make"])


def _parameter(field: Field[Any], known: dict[str, Any]) -> str:
    if field.default_factory is not MISSING:
        known[f"_new_{field.name}"] = field.default_factory
        return f"{field.name}=_MISSING"
    if field.default is not MISSING:
        known[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    return field.name


def _value(field: Field[Any]) -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"_new_{field.name}() if {field.name} is _MISSING else {field.name}"
