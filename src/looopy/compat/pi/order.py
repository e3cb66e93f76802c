"""
Where pi's releases differ: when steering is asked for, and what announces prompt and tools.

Up to 0.58.3 pi asks after each tool, and a message skips the calls that have not started. Since
then it asks between turns alone. The newest, 1.6, also keeps a `system` message in the history,
with the prompt and the tools, and announces one whenever they change.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.compat.pi.types import AgentLoopConfig, AgentMessage, AgentTool, GetMessagesFn
from looopy.types.event import AgentEvent, IterationEnd, MessageEnd
from looopy.types.message import AssistantMessage, CustomMessage, ToolResultMessage

SYSTEM = "system"


class Polls:
    """
    Asks an application for steering as often as pi does: our loop asks more often.

    Args:
        ask: The application's function.
    """

    def __init__(self, ask: GetMessagesFn, config: AgentLoopConfig) -> None:
        self._ask = ask
        self._config = config
        self._due = 1

    async def __call__(self) -> Any:
        """The messages of the function where pi would call it; elsewhere an empty list."""
        if self._due <= 0:
            return []
        self._due -= 1
        found = self._ask()
        return await found if inspect.isawaitable(found) else found

    def answered(self, message: AssistantMessage) -> None:
        """Take note of an answer that is complete: without calls its turn is about to end."""
        calls, config = len(message.tool_calls), self._config
        checked = calls if config.order == "0.58" and config.overlaps else 0
        self._due = checked if calls else 1

    def saw(self, event: AgentEvent) -> None:
        """Take note of a result, or of the end of a turn that had calls."""
        after_each_tool = self._config.order == "0.58"
        if isinstance(event, IterationEnd):
            self._due += 1 if after_each_tool else 2
        elif (
            after_each_tool
            and isinstance(event, MessageEnd)
            and isinstance(event.message, ToolResultMessage)
        ):
            self._due = 1 if self._config.overlaps else self._due + 1


def announced(
    history: Sequence[AgentMessage],
    prompts: Sequence[AgentMessage],
    system_prompt: str,
    tools: Sequence[object],
) -> list[AgentMessage]:
    """
    *prompts* with a `system` message before them, if *history* does not tell of prompt and tools.

    Its content is the prompt if that is new; its metadata has `tools_added` and `tools_removed`.
    The model does not see it: the prompt goes to it as ever. Only `AgentTool`s are announced.
    """
    before = [m for m in (*history, *prompts) if isinstance(m, CustomMessage) and m.role == SYSTEM]
    known: dict[str, Any] = {}
    for message in before:
        for tool in message.metadata.get("tools_removed", ()):
            known.pop(tool["name"], None)
        known |= {tool["name"]: tool for tool in message.metadata.get("tools_added", ())}
    now = {tool.name: _declared(tool) for tool in tools if isinstance(tool, AgentTool)}
    changes = {
        "tools_added": [tool for name, tool in now.items() if known.get(name) != tool],
        "tools_removed": [{"name": n} for n, tool in known.items() if now.get(n) != tool],
    }
    said = next((message.text for message in reversed(before) if message.text), "")
    content = "" if said == system_prompt else system_prompt
    metadata = {name: change for name, change in changes.items() if change}
    if not content and not metadata:
        return list(prompts)
    place = next((i for i, one in enumerate(prompts) if one.role != SYSTEM), len(prompts))
    return [*prompts[:place], CustomMessage(SYSTEM, content, metadata), *prompts[place:]]


def _declared(tool: AgentTool) -> Mapping[str, Any]:
    spec = tool.to_tool()
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }
