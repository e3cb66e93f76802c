"""
Requests as the official SDKs type them: no key that the type lacks, no value of another type.

The fakes judge each request by it. A type of the SDK is a `TypedDict`, and pydantic would allow any
key in one.
"""

from __future__ import annotations

import collections.abc
import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import typing_extensions
from typing_extensions import is_typeddict

_LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)
_SIMPLE = {float: (int, float), int: (int,), str: (str,), bool: (bool,)}
_VENDORS = {
    # Of servers that speak OpenAI's format and are not OpenAI's.
    "extra_content", "reasoning", "reasoning_content", "reasoning_details", "top_k",
    # Of the first version of the Messages API, which a header asks for.
    "temperature", "top_p",
}  # fmt: skip
# An answer goes back without its number: a server that has kept nothing does without.
_NOT_REQUIRED = {"ResponseOutputMessageParam": {"id"}}
_MARKS = (Required, NotRequired, typing_extensions.Required, typing_extensions.NotRequired)


def beyond(body: Any, api: str) -> Sequence[str]:
    """What the newest SDK's type of a request to *api* does not have, but for known exceptions."""
    return faults(body, _type_of(api))


@functools.cache
def _type_of(api: str) -> Any:
    if api == "anthropic":
        from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming

        return MessageCreateParamsStreaming
    if api == "responses":
        from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

        return ResponseCreateParamsStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    return CompletionCreateParamsStreaming


@functools.cache
def _fields(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


@functools.cache
def _required(kind: Any) -> frozenset[str]:
    """Read from the annotations: those of the SDKs are text, which `__required_keys__` ignores."""
    bases = [base for base in getattr(kind, "__orig_bases__", ()) if is_typeddict(base)]
    found = frozenset().union(*(_required(base) for base in bases))
    inherited = {name for base in bases for name in _fields(base)}
    for name, annotation in _fields(kind).items():
        mark = get_origin(annotation)
        if mark in _MARKS[::2] or (kind.__total__ and mark is None and name not in inherited):
            found |= {name}
    return found


@functools.cache
def _unmarked(kind: Any) -> tuple[Any, Any]:
    """The type within marks and annotations, and its origin."""
    origin = get_origin(kind)
    if origin in _MARKS or origin is typing.Annotated:
        return _unmarked(get_args(kind)[0])
    anything = isinstance(kind, typing.TypeVar | typing.ForwardRef) or kind in (Any, object)
    return (Any if anything else kind), origin


def faults(value: Any, kind: Any, path: str = "") -> Sequence[str]:
    """What of *value*, parsed JSON, the type *kind* does not have; empty if it is one."""
    kind, origin = _unmarked(kind)
    if kind is Any:
        return ()
    if origin in (Union, type(int | str)):
        found = []
        for one in get_args(kind):
            found.append(faults(value, one, path))
            if not found[-1]:
                return ()
        return _least(found)
    if origin is Literal:
        return () if value in get_args(kind) else [f"{path}: {value!r:.60} is no {kind}"]
    if is_typeddict(kind):
        return _typed_dict(value, kind, path)
    if kind in _LISTS or origin in _LISTS:
        if not isinstance(value, list):
            return [f"{path}: {value!r:.60} is no list"]
        (inner,) = get_args(kind) or (Any,)
        return [one for i, item in enumerate(value) for one in faults(item, inner, f"{path}/{i}")]
    if kind in (dict, Mapping) or origin in (dict, collections.abc.Mapping):
        inner = (get_args(kind) or (str, Any))[1]
        if not isinstance(value, dict):
            return [f"{path}: {value!r:.60} is no object"]
        return [one for k, v in value.items() for one in faults(v, inner, f"{path}/{k}")]
    if kind in (None, type(None)):
        return () if value is None else [f"{path}: {value!r:.60} is not null"]
    known = _SIMPLE.get(kind, ())  # any other class, a file or a model of the SDK, is no JSON
    right = isinstance(value, known) and (kind is bool or not isinstance(value, bool))
    return () if right else [f"{path}: {value!r:.60} is no {kind}"]


def _least(found: Sequence[Sequence[str]]) -> Sequence[str]:
    """The faults of the kind that comes nearest."""
    return min(found, key=lambda one: (len(one), -max((f.count("/") for f in one), default=0)))


def _typed_dict(value: Any, kind: Any, path: str) -> Sequence[str]:
    if not isinstance(value, dict):
        return [f"{path}: {value!r:.60} is no {kind.__name__}"]
    known = _fields(kind)
    strange = value.keys() - known.keys() - _VENDORS
    found = [f"{path}/{name}: {kind.__name__} lacks it" for name in strange]
    missing = _required(kind) - value.keys() - _NOT_REQUIRED.get(kind.__name__, set())
    found += [f"{path}/{name}: {kind.__name__} requires it" for name in missing]
    for name in value.keys() & known.keys():
        found += faults(value[name], known[name], f"{path}/{name}")
    return found
