"""
Skills: instructions that the model loads when it needs them.

A system prompt with every instruction is long and expensive, and the model obeys it less. So the
prompt gives only names and purposes, and the model loads a skill by `learn_skill(name)`. The
instruction is the result of that call: it stays in the history, as durable as the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from looopy.errors import ConfigurationError, ToolError
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.call.run import resolve_name
from looopy.tools.function.threads import tool_threads
from looopy.tools.schema import arguments_of
from looopy.types.context import PromptPart, TurnContext

Instruction: TypeAlias = str | Callable[[], str | Awaitable[str]]
_MAX_NAME = 64
_INTRODUCTION = (
    "You have skills: instructions for certain tasks. Before you begin a task that one of them is"
    " for, call `{tool}` with its name and do as it says."
)


@dataclass(frozen=True, slots=True)
class Skill:
    """
    One skill.

    Args:
        name: The name for the model; 1 to 64 characters in one line.
        description: The tasks it is for, in one line.
        instruction: Text, or a function (sync or async) that loads it when the model learns the
            skill.

    Raises:
        ConfigurationError: An invalid name or instruction.
    """

    name: str
    description: str
    instruction: Instruction

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and 0 < len(self.name) <= _MAX_NAME
        if not named or self.name != " ".join(self.name.split()):
            raise ConfigurationError(
                f"skill name {self.name!r} is not usable: 1 to {_MAX_NAME} characters in one line"
            )
        if not isinstance(self.instruction, str) and not callable(self.instruction):
            raise ConfigurationError(
                f"skill {self.name!r}: instruction must be text, or a function that loads it"
            )

    async def load(self) -> str:
        """
        Return the instruction.

        Raises:
            ToolError: The function did not return text.
            Exception: The function's own.
        """
        if isinstance(self.instruction, str):
            return self.instruction
        if inspect.iscoroutinefunction(self.instruction):
            text: Any = await self.instruction()
        else:  # it may read a file
            text = await tool_threads().run(self.instruction)
            text = await text if inspect.isawaitable(text) else text
        if not isinstance(text, str):
            raise ToolError(f"the instruction of the skill {self.name!r} is no text")
        return text


class Skills:
    """
    A source of tools that teaches skills: pass it in `tools`.

    Args:
        skills: In the order in which the model sees them.
        tool_name: The name of the tool that loads a skill.
        introduction: The text before their list in the system prompt, in which `{tool}` is the
            tool's name; `None`: the system prompt does not mention them.

    Raises:
        ConfigurationError: The list is empty, or two skills share a name (case aside).
    """

    def __init__(
        self,
        skills: Sequence[Skill],
        *,
        tool_name: str = "learn_skill",
        introduction: str | None = _INTRODUCTION,
    ) -> None:
        given: object = skills
        listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
        if not listed or not all(isinstance(one, Skill) for one in skills):
            raise ConfigurationError(
                "Skills takes a list, as in Skills([Skill(name, description, instruction)])"
            )
        if not skills:
            raise ConfigurationError("Skills takes at least one Skill")
        self._skills: dict[str, Skill] = {}
        folded: set[str] = set()
        for skill in skills:
            if skill.name.casefold() in folded:
                raise ConfigurationError(f"two skills are named {skill.name!r}: rename one")
            folded.add(skill.name.casefold())
            self._skills[skill.name] = skill
        self._tool = _LearnSkill(tool_name, self._skills)
        self._introduction = introduction

    def list_tools(self) -> Sequence[Tool]:
        """The tool that loads a skill."""
        return (self._tool,)

    def system_prompts(self, _turn: TurnContext) -> Sequence[PromptPart]:
        """The part of the system prompt that lists them."""
        if self._introduction is None:
            return ()
        lines = [
            f"- {one.name}: {' '.join(one.description.split())}" for one in self._skills.values()
        ]
        text = "\n".join([self._introduction.replace("{tool}", self._tool.name), *lines])
        return (PromptPart(text, name="skills"),)


class _LearnSkill(Tool):
    """Loads a skill by its name."""

    def __init__(self, name: str, skills: Mapping[str, Skill]) -> None:
        super().__init__(
            name=name,
            description="Learn a skill: the result is the instruction to follow.",
            parameters=arguments_of(name={"type": "string", "description": "Of the skill."}),
            parallel=True,
            effects="none",
        )
        self._skills = skills

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Return the instruction.

        Raises:
            ToolError: No skill has this name.
        """
        del context
        name = resolve_name(arguments["name"], self._skills)
        if name is None:
            known = ", ".join(self._skills)
            raise ToolError(f"There is no skill {arguments['name']!r}. There are: {known}.")
        return ToolResult(await self._skills[name].load(), details={"skill": name})
