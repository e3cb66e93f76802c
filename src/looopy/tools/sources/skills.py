"""
Skills: instructions that the model loads when it needs them.

A system prompt with every instruction is long and expensive, and the model obeys it less. So the
prompt gives only names and purposes, and the model loads a skill by `learn_skill(name)`. The
instruction is the result of that call: it stays in the history, as durable as the rest.

A skill may have a folder, whose files the model reads by `read_skill_file(skill, path)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from looopy.errors import ConfigurationError, ToolError
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.call.run import resolve_name
from looopy.tools.function.threads import tool_threads
from looopy.tools.schema import arguments_of
from looopy.tools.sources.skill_folder import (
    list_files,
    read_instruction,
    read_skill,
    read_within,
    skill_folders,
)
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
        folder: Its folder, whose files the model may read too.

    Raises:
        ConfigurationError: An invalid name or instruction, or *folder* is not a folder.
    """

    name: str
    description: str
    instruction: Instruction
    folder: str | Path | None = None

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """
        Read the skill in the folder *path*, which holds a `SKILL.md` (Agent Skills format).

        The instruction is read again each time the model learns the skill.

        Raises:
            InvalidSkill: There is no such file, or a field is missing or invalid.
            MissingExtra: PyYAML is not installed.
        """
        folder = Path(path).resolve()
        read = read_skill(folder)
        load = functools.partial(read_instruction, folder)
        return cls(read.name, read.description, load, folder)

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
        if self.folder is not None:
            folder = Path(self.folder).resolve()
            if not folder.is_dir():
                raise ConfigurationError(f"skill {self.name!r}: folder {folder} is not a folder")
            object.__setattr__(self, "folder", folder)

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
            raise ToolError(f"the instruction of the skill {self.name!r} is not text")
        return text


class Skills:
    """
    A source of tools that teaches skills: pass it in `tools`.

    Args:
        skills: In the order in which the model sees them.
        tool_name: The name of the tool that loads a skill.
        introduction: The text before their list in the system prompt, in which `{tool}` is the
            tool's name; `None`: the system prompt does not mention them.
        file_tool_name: The name of the tool that reads a file of a skill; it is offered if one of
            the skills has a folder.

    Raises:
        ConfigurationError: The list is empty, or two skills share a name (case aside).
    """

    is_local: Final = True

    def __init__(
        self,
        skills: Sequence[Skill],
        *,
        tool_name: str = "learn_skill",
        introduction: str | None = _INTRODUCTION,
        file_tool_name: str = "read_skill_file",
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
        self._tool = _LearnSkill(tool_name, self._skills, file_tool_name)
        self._tools: tuple[Tool, ...] = (self._tool,)
        if any(skill.folder is not None for skill in skills):
            self._tools += (_ReadSkillFile(file_tool_name, self._skills),)
        self._introduction = introduction

    @classmethod
    def from_folder(cls, path: str | Path, **options: Any) -> Self:
        """
        Read the skills in the folder *path*: its own `SKILL.md`, or one in each of its folders.

        Args:
            path: Of a skill in the Agent Skills format, or of a folder of such folders.
            **options: Those of `Skills`.

        Raises:
            InvalidSkill: There is no `SKILL.md`, or a field in one is missing or invalid.
            ConfigurationError: Two skills share a name.
            MissingExtra: PyYAML is not installed.
        """
        return cls([Skill.from_folder(one) for one in skill_folders(Path(path))], **options)

    def list_tools(self) -> Sequence[Tool]:
        """The tool that loads a skill, and the one that reads a file, if a skill has a folder."""
        return self._tools

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

    def __init__(self, name: str, skills: Mapping[str, Skill], file_tool_name: str) -> None:
        super().__init__(
            name=name,
            description="Learn a skill: the result is the instruction to follow.",
            parameters=arguments_of(name={"type": "string", "description": "Of the skill."}),
            parallel=True,
            effects="none",
        )
        self._skills = skills
        self._file_tool_name = file_tool_name

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Return the instruction.

        Raises:
            ToolError: No skill has this name.
        """
        del context
        skill = _known(arguments["name"], self._skills)
        text, folder = await skill.load(), skill.folder
        files = [] if folder is None else await tool_threads().run(lambda: list_files(Path(folder)))
        if files:
            lines = "\n".join(f"- {one}" for one in files)
            text = f"{text}\n\n[Files of this skill, for `{self._file_tool_name}`:]\n{lines}"
        return ToolResult(text, details={"skill": skill.name})


class _ReadSkillFile(Tool):
    """Reads a file in the folder of a skill."""

    def __init__(self, name: str, skills: Mapping[str, Skill]) -> None:
        super().__init__(
            name=name,
            description="Read a file of a skill, by its path in the folder of the skill.",
            parameters=arguments_of(
                skill={"type": "string", "description": "Its name."},
                path={"type": "string", "description": "As in `references/forms.md`."},
            ),
            parallel=True,
            effects="none",
        )
        self._skills = skills

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Return the text of the file.

        Raises:
            ToolError: No skill has this name, or its folder has no such file of text.
        """
        del context
        skill, path = _known(arguments["skill"], self._skills), arguments["path"]
        folder = skill.folder
        if folder is None:
            raise ToolError(f"The skill {skill.name!r} has no files.")
        text = await tool_threads().run(lambda: read_within(Path(folder), path))
        return ToolResult(text, details={"skill": skill.name, "path": path})


def _known(said: str, skills: Mapping[str, Skill]) -> Skill:
    name = resolve_name(said, skills)
    if name is None:
        raise ToolError(f"There is no skill {said!r}. There are: {', '.join(skills)}.")
    return skills[name]
