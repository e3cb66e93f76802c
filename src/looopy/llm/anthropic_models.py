"""
What each of Anthropic's models takes, as far as its name says.

Models of one API differ in what they refuse: early ones do not think, later ones think by a budget
of tokens, the latest decide for themselves and want neither budget nor temperature. A request that
has one field too many is refused whole, so a field that a model would refuse is left out. A name
that says nothing gets what most take.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

# Both orders of line and version: claude-sonnet-4-5-20250929, claude-3-5-haiku-latest; a cloud's
# prefix and suffix (us.anthropic.claude-opus-4-6-v1:0) do not matter.
_NAME: Final = re.compile(
    r"claude-(?:(?P<line>[a-z]+)-)?(?P<major>\d)(?:[.-](?P<minor>\d)(?!\d))?(?!\d)"
)
_LINE: Final = re.compile(r"claude-(?:[\d.-]*-)?(?P<line>opus|sonnet|haiku|fable|mythos)")
_EFFORTS: Final = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """
    What a model takes.

    Attributes:
        max_output: Tokens of one answer, thinking included, at most.
        window_tokens: What the model's window holds; `None`: not known.
        thinking: How it is told to think: not at all, by a budget of tokens, by itself
            (`adaptive`), or by either.
        thinks_unasked: It thinks unless told not to.
        may_stop_thinking: It can be told not to.
        efforts: The efforts that adaptive thinking takes, least first.
        temperature: Whether it may be set.
        schemas: Whether the answer can be bound to a JSON Schema.
    """

    max_output: int = 8192
    window_tokens: int | None = None
    thinking: Literal["none", "budget", "either", "adaptive"] = "budget"
    thinks_unasked: bool = False
    may_stop_thinking: bool = True
    efforts: tuple[str, ...] = _EFFORTS
    temperature: bool = True
    schemas: bool = False


def abilities_of(model: str) -> Abilities:
    """What *model* takes; of a name that is not known, what most models of the format take."""
    name = model.lower()
    found = _NAME.search(name)
    line = _LINE.search(name)
    of_line = line["line"] if line else ""
    if found is None and of_line not in ("fable", "mythos"):
        return Abilities()
    version = (int(found["major"]), int(found["minor"] or 0)) if found else (5, 0)
    return _of(of_line, version)


def _of(line: str, version: tuple[int, int]) -> Abilities:
    window = 200_000
    if version < (3, 7):
        most = 8192 if version >= (3, 5) else 4096
        return Abilities(max_output=most, window_tokens=window, thinking="none")
    if version < (4, 6):
        most = 32_000 if line == "opus" and version < (4, 5) else 64_000
        schemas = version >= (4, 5) or (line == "opus" and version >= (4, 1))
        return Abilities(max_output=most, window_tokens=window, schemas=schemas)
    most = 128_000 if line == "opus" else 64_000
    if version < (4, 7):
        return Abilities(max_output=most, window_tokens=window, thinking="either", schemas=True)
    return Abilities(
        max_output=most,
        window_tokens=window,
        thinking="adaptive",
        thinks_unasked=version >= (5, 0),
        may_stop_thinking=line not in ("fable", "mythos"),
        efforts=(*_EFFORTS, "xhigh"),
        temperature=False,
        schemas=True,
    )
