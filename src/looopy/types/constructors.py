"""
Makes frozen objects in a fraction of the time that their constructor takes.

A frozen dataclass fills its fields by `object.__setattr__`, one call each, after a call of the
class, which is itself slow with keywords. That matters because a turn makes an event for each
delta, and a history has ten thousand messages. The function that `maker` returns is called like the
class: it fills an unfrozen twin with the same slots, as any object is filled, and changes the
twin's class before it returns it. `amended` copies an object in this way, and `quick` lets the
class itself fill its instances so.

The functions are compiled from text, with `exec`, like the ones of `dataclasses`: a function that
looped over fields would be slower than the usual constructor. They are made of the names of fields
and of nothing else.

`suggesting` is for the classes that people call with many options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
_OFTEN = 8  # instances after which a constructor is made; a program that takes one turn needs few


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """
    A function that makes instances of *cls*, a frozen and slotted dataclass.

    It has the parameters, defaults and results of *cls*; `__post_init__` is called.

    Raises:
        TypeError: *cls* is not such a class, or has fields that no parameter fills.
    """
    kind = cast("Any", cls)
    filled, known = _look_into(kind)
    parameters = _parameters(filled, known)
    make = _function(kind, parameters, [(f.name, _value(f)) for f in filled], known)
    return cast("Callable[P, T]", make)


def amended(known: T, /, **changes: Any) -> T:
    """
    A copy of *known*, a frozen and slotted dataclass, with *changes*, as by `dataclasses.replace`.

    Raises:
        AttributeError: There is no such field.
        TypeError: As for `maker`.
    """
    kind = known.__class__
    copy = _copies.get(kind)
    if copy is None:
        filled, names = _look_into(kind)
        copies = [(field.name, f"_old.{field.name}") for field in filled]
        more = "    for _name in _changes: _set(_made, _name, _changes[_name])"
        names["_set"] = setattr
        copy = _copies[kind] = _function(kind, "_old, _changes", copies, names, more)
    return cast("T", copy(known, changes))


_set = object.__setattr__


def quick(cls: type[T]) -> type[T]:
    """
    A decorator of a frozen and slotted dataclass: a constructor that takes half the time.

    Signature and effect equal the usual constructor's, which serves the first few instances: making
    the other takes as long as some hundred of them, so it is not made at import. Classes that
    derive from *cls* are left as they are.
    """
    kind = cast("Any", cls)
    usual, left = kind.__init__, _OFTEN

    @wraps(usual)
    def construct(self: Any, /, *args: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:  # two threads may count at once
            kind.__init__ = wraps(usual)(_constructor(kind))
        usual(self, *args, **named)

    kind.__init__ = construct
    return cls


def suggesting(cls: type[T]) -> type[T]:
    """A decorator of a class whose error about an unknown option names the one that was meant."""
    kind = cast("Any", cls)
    usual = kind.__init__

    @wraps(usual)
    def construct(self: Any, /, *args: Any, **named: Any) -> None:
        try:
            usual(self, *args, **named)
        except TypeError:
            import inspect  # only a mistake needs it

            said = unknown_option(kind.__name__, named, inspect.signature(usual).parameters)
            if said is None:
                raise
            raise TypeError(said) from None

    kind.__init__ = construct
    return cls


def unknown_option(function: str, options: Collection[str], known: Collection[str]) -> str | None:
    """The error about the first of *options* that is not *known*; `None` if all are."""
    for name in options:
        if name not in known:
            import difflib  # only a mistake needs it

            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            return f"{function}() got an unexpected keyword argument {name!r}{meant}"
    return None


def _constructor(kind: Any) -> Callable[..., None]:
    filled, names = _look_into(kind)
    names["_set"] = _set
    lines = [
        f"def make(self, {_parameters(filled, names)}):",
        "    if self.__class__ is not _cls:  # of a class that derives from it, with other slots",
        *(f"        _set(self, {f.name!r}, {_value(f)})" for f in filled),
        "    else:",
        "        _set(self, '__class__', _twin)",
        *(f"        self.{f.name} = {_value(f)}" for f in filled),
        "        self.__class__ = _cls",
        *(["    self.__post_init__()"] if hasattr(kind, "__post_init__") else []),
    ]
    return _compiled(lines, names)


_copies: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


def _look_into(kind: Any) -> tuple[tuple[Field[Any], ...], dict[str, Any]]:
    """The fields of a class, and the names for a function that makes one."""
    try:
        slots, frozen = kind.__dict__["__slots__"], kind.__dataclass_params__.frozen
    except (KeyError, AttributeError):
        raise TypeError(f"{kind!r} is not a dataclass with slots") from None
    filled = fields(kind)
    if not frozen or not all(field.init for field in filled):
        raise TypeError(f"{kind!r} is not frozen, or fills fields by itself")
    # In place of what the class, or one it derives from, has to stay frozen.
    thaw = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    unset = {"__init__": object.__init__}
    generic = {k: v for k, v in kind.__dict__.items() if k == "__orig_bases__"}
    twin = type(
        f"_{kind.__name__}", kind.__bases__, {"__slots__": slots, **generic, **thaw, **unset}
    )
    return filled, {"_cls": kind, "_twin": twin, "_MISSING": MISSING}


def _function(
    kind: Any, parameters: str, values: list[tuple[str, str]], known: dict[str, Any], more: str = ""
) -> Callable[..., Any]:
    """The function that fills a twin with *values*, and then does *more* with it."""
    lines = [
        f"def make({parameters}):",
        "    _made = _twin()",
        *(f"    _made.{name} = {value}" for name, value in values),
        *([more] if more else []),
        "    _made.__class__ = _cls",
        *(["    _made.__post_init__()"] if hasattr(kind, "__post_init__") else []),
        "    return _made",
    ]
    return _compiled(lines, known)


def _compiled(lines: list[str], known: dict[str, Any]) -> Callable[..., Any]:
    exec("\n".join(lines), known)  # noqa: S102 - made of the names of fields and nothing else
    made: Callable[..., Any] = known["make"]
    return made


def _parameters(filled: tuple[Field[Any], ...], known: dict[str, Any]) -> str:
    ordered = [_parameter(field, known) for field in filled if not field.kw_only]
    named = [_parameter(field, known) for field in filled if field.kw_only]
    return ", ".join([*ordered, *(["*"] if named else []), *named])


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
