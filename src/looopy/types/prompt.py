"""Parts of a system prompt: texts with a place, built for each model call and never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from looopy.errors import ConfigurationError

if TYPE_CHECKING:
    from looopy.types.context import TurnContext

PromptText: TypeAlias = "str | Callable[[TurnContext], str | Awaitable[str]]"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """
    One part of a system prompt.

    Args:
        text: Text, or a function (sync or async) of the `TurnContext`, asked for each model call.
            Empty: the part is left out.
        position: `"before"` the history, in the system prompt; or `"after"` it, at the end of the
            request: for what changes from call to call, which would cost the prompt cache all that
            comes behind it.
        order: Parts with a lower number come earlier; equal ones stay in their order.
        name: For traces; with `version` and `metadata` in `LLMRequest.prompts`.
        version: Which one of that name.
        metadata: For the provider and for traces; the model never sees it.

    Raises:
        ConfigurationError: An option is not one of its values.
    """

    text: PromptText
    position: Literal["before", "after"] = "before"
    order: int = 0
    name: str | None = None
    version: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) and not callable(self.text):
            raise ConfigurationError("PromptPart takes text, or a function that returns it")
        if self.position not in ("before", "after"):
            raise ConfigurationError(
                f"PromptPart.position must be 'before' or 'after', not {self.position!r}"
            )
        if not isinstance(self.order, int) or isinstance(self.order, bool):
            raise ConfigurationError("PromptPart.order must be a whole number")
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigurationError("PromptPart.name takes text, or None")
        if self.version is not None and not isinstance(self.version, str):
            raise ConfigurationError("PromptPart.version takes text, or None")
        if type(self.metadata) is not dict and not isinstance(self.metadata, Mapping):
            raise ConfigurationError("PromptPart.metadata takes values by name")


def as_part(given: object) -> PromptPart:
    """
    *given* as a part: a part, text, or a function that returns text.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(given, PromptPart):
        return given
    if isinstance(given, str):
        return PromptPart(given)
    if callable(given):
        return PromptPart(cast("PromptText", given))
    raise ConfigurationError(
        "system_prompt must be text, a function that returns it, or a list of these and of"
        f" PromptParts, not {type(given).__name__}"
    )
