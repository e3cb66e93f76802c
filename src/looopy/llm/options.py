"""
Options of a call that not every model takes: each is sent, or refused or warned of by its name.

`refused` is the error of an API that has no place for an option. An option without effect on the
meaning of the answer may be left out instead, with a warning whose code is the option's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looopy.errors import UnsupportedOption
from looopy.llm.strict import NotStrict, strict_schema
from looopy.types.request import StreamOptions, ToolSpec


def refused(option: str, why: str, *, provider: str, model: str) -> UnsupportedOption:
    """The error of an API that has no place for *option*; *why* includes the way out."""
    text = f"{why} (the option {option!r})" if option not in why else why
    return UnsupportedOption(text, provider=provider, model=model, option=option)


def left_out(options: StreamOptions, option: str, text: str) -> None:
    """Warn that *option* does not go out."""
    if options.warn is not None:
        options.warn(option, text)


def strict_parameters(
    spec: ToolSpec, *, provider: str, model: str, every: bool = True, bounds: bool = True
) -> Mapping[str, Any]:
    """The parameters of a tool as `strict_schema` makes them, or `UnsupportedOption`."""
    try:
        return strict_schema(spec.parameters, every=every, bounds=bounds)
    except NotStrict as why:
        text = (
            f"the schema of the tool {spec.name!r} cannot be made strict: {why}. Name the"
            " properties and types of that place, or list the other tools in strict_tools"
        )
        raise refused("strict_tools", text, provider=provider, model=model) from None
