"""
The abilities of each of Anthropic's models, as far as its name shows them.

Models of one API differ in the fields they refuse: early ones do not think, later ones think by a
budget of tokens, the latest decide for themselves, want neither budget nor temperature, and cannot
be made to use a tool. The API refuses a whole request for one such field, so it is left out. An
unknown name gets the abilities of most models.
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
_NEVER_SILENT: Final = ("fable", "mythos")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """
    The abilities of a model.

    Attributes:
        max_output: Tokens of one answer, thinking included, at most.
        window_tokens: The size of the model's window; `None`: unknown.
        thinking: How its thinking is set: not at all, by a budget of tokens, by itself
            (`adaptive`), or by either.
        off: The field that stops a model from thinking by default; `None`: not needed, or not
            possible.
        silent: True if it answers without thinking where it is asked to.
        bound: Its thoughts are bound to everything before them: after a change there they are
            refused, unless the API is asked to leave them out.
        efforts: The efforts that adaptive thinking takes, least first.
        forced_tools: True if it can be made to use a tool.
        temperature: True if it may be set.
        schemas: True if the answer can be bound to a JSON Schema.
    """

    max_output: int = 8192
    window_tokens: int | None = None
    thinking: Literal["none", "budget", "either", "adaptive"] = "budget"
    off: Literal["disabled", "between_tools"] | None = None
    silent: bool = True
    bound: bool = False
    efforts: tuple[str, ...] = _EFFORTS
    forced_tools: bool = True
    temperature: bool = True
    schemas: bool = False


def abilities_of(model: str) -> Abilities:
    """The abilities of *model*; for an unknown name, the abilities of most models of the format."""
    name = model.lower()
    found = _NAME.search(name)
    line = _LINE.search(name)
    of_line = line["line"] if line else ""
    if found is None and of_line not in _NEVER_SILENT:
        return Abilities()
    version = (int(found["major"]), int(found["minor"] or 0)) if found else (5, 0)
    return _of(of_line, version)


def _of(line: str, version: tuple[int, int]) -> Abilities:
    # https://platform.claude.com/docs/en/about-claude/models/overview, and each model's own page
    if version < (3, 7):
        most = 8192 if version >= (3, 5) else 4096
        return Abilities(max_output=most, window_tokens=200_000, thinking="none")
    if version < (4, 6):
        most = 32_000 if line == "opus" and version < (4, 5) else 64_000
        schemas = version >= (4, 5) or (line == "opus" and version >= (4, 1))
        return Abilities(max_output=most, window_tokens=200_000, schemas=schemas)
    if version < (4, 7):
        return Abilities(
            max_output=128_000, window_tokens=1_000_000, thinking="either", schemas=True
        )
    return Abilities(
        max_output=128_000,
        window_tokens=1_000_000,
        thinking="adaptive",
        off=_off(line, version),
        silent=line not in _NEVER_SILENT and not (line == "opus" and version >= (5, 5)),
        bound=version >= (5, 1),
        efforts=(*_EFFORTS, "xhigh"),
        forced_tools=version < (5, 1),
        temperature=False,
        schemas=True,
    )


def _off(line: str, version: tuple[int, int]) -> Literal["disabled", "between_tools"] | None:
    if version < (5, 0) or line in _NEVER_SILENT or (line == "opus" and version >= (5, 5)):
        return None
    return "between_tools" if line == "sonnet" and version >= (5, 5) else "disabled"
