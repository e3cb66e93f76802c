"""
Builds the request's text beside the conversation: the system prompt, and the text after the
history.

Parts come from the agent and from its sources of tools (skills, plugins: every source with
`system_prompts`). They are built again for each model call. Parts before the history are the system
prompt. Parts after it are the end of the request, on the user's side, because every provider
accepts text only there: after results of tools, or within the user's last message. So nothing
before them changes, and prompt caches stay valid.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from looopy.errors import ConfigurationError
from looopy.tools.gather import _failed
from looopy.types.constructors import quick
from looopy.types.context import PromptPart, SystemPrompt, TurnContext, as_part
from looopy.types.message import AssistantMessage, Message, StopReason, TextContent, UserMessage

_logger = logging.getLogger("looopy")
AFTER = "[From the application, not from the user]\n"
_CONCLUDE = (
    "The limit of {} for this turn is reached. No {} can be called any more. Answer now with what"
    " is known so far, and name what is missing."
)


@quick
@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """
    The prompt texts of one call.

    Attributes:
        parts: With their texts as they are sent; [] for a prompt that is one text.
    """

    before: str = ""
    after: str = ""
    parts: Sequence[PromptPart] = ()

    def concluding(self, limit: int | None, tool: str | None) -> BuiltPrompt:
        """
        These texts, and the request to answer without tools, with its reason.

        Args:
            limit: How many model calls the turn might make; `None`: unknown here.
            tool: The name of the one tool that takes the answer, if there is one.
        """
        calls = "model calls" if limit is None else f"{limit} model calls"
        said = _CONCLUDE.format(calls, "tool" if tool is None else f"tool but `{tool}`")
        return replace(self, after=f"{self.after}\n\n{said}".lstrip())

    def behind(self, messages: Sequence[Message]) -> Sequence[Message]:
        """*messages*, followed by the text after the history; not amid a paused answer."""
        if not self.after:
            return messages
        last = messages[-1] if messages else None
        if isinstance(last, AssistantMessage) and last.stop_reason is StopReason.PAUSED:
            return messages
        said = TextContent(f"{AFTER}{self.after}")
        if not isinstance(last, UserMessage):
            return [*messages, UserMessage((said,), timestamp=last.timestamp if last else 0)]
        content = (TextContent(last.content),) if isinstance(last.content, str) else last.content
        return [*messages[:-1], replace(last, content=(*content, said))]


async def build_prompt(
    prompt: SystemPrompt, brought: Sequence[PromptPart], context: TurnContext
) -> BuiltPrompt:
    """
    Build the texts of all parts, in order.

    Args:
        brought: The parts of the sources of tools.

    Raises:
        ConfigurationError: A function failed, or did not return text.
    """
    own = [prompt] if isinstance(prompt, str) or callable(prompt) else prompt
    built: list[PromptPart] = []
    for part in sorted([*map(as_part, own), *brought], key=lambda one: one.order):
        text = await _text(part, context)
        if text:
            built.append(replace(part, text=text))
    before, after = (
        "\n\n".join(str(one.text) for one in built if one.position == position)
        for position in ("before", "after")
    )
    return BuiltPrompt(before, after, [one for one in built if _says_more(one)])


async def _text(part: PromptPart, context: TurnContext) -> str:
    if isinstance(part.text, str):
        return part.text
    what = "the system prompt's function"
    if part.name is not None:
        what = f"the function of the system prompt's part {part.name!r}"
    try:
        value: Any = part.text(context)
        text = await value if inspect.isawaitable(value) else value
    except Exception as error:
        raise _failed(what, error) from error
    if not isinstance(text, str):
        raise ConfigurationError(f"{what} must return text")
    return text


def _says_more(part: PromptPart) -> bool:
    return part.name is not None or part.version is not None or bool(part.metadata)
