"""
A skill in a folder, in the Agent Skills format: `SKILL.md`, and files that it refers to.

`SKILL.md` begins with a front matter in YAML, between two lines of `---`, with at least `name` and
`description`. The rest is the instruction. The model may read the other files, and no file outside
the folder: neither by `..`, nor by an absolute path, nor through a symbolic link.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looopy.errors import InvalidSkill, ToolError, missing_extra

SKILL_FILE = "SKILL.md"
_MAX_FRONT_CHARS = 8 * 1024  # it is parsed at once
_MAX_FILE_BYTES = 1024 * 1024
_MAX_FILES = 100
_MAX_ENTRIES = 5000  # of the folder, hidden ones included
_MAX_DESCRIPTION = 1024  # as the format has it, and the name below
_NAME = re.compile(r"(?!.*--)[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_logger = logging.getLogger("looopy")


@dataclass(frozen=True, slots=True)
class SkillFile:
    """The content of a `SKILL.md`: the fields that looopy reads, and the instruction."""

    name: str
    description: str
    instruction: str


def skill_folders(path: Path) -> list[Path]:
    """The folders of skills at *path*: itself, or those in it, by name; or `InvalidSkill`."""
    try:
        found = _folders(path)
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise InvalidSkill(text, file=str(path)) from None
    if not found:
        text = f"{path} holds no {SKILL_FILE}, and no folder with one"
        raise InvalidSkill(text, file=str(path))
    return found


def read_skill(folder: Path) -> SkillFile:
    """
    Read the `SKILL.md` in *folder*, a path without links.

    Raises:
        InvalidSkill: The file cannot be read, or a field is missing or invalid.
        MissingExtra: PyYAML is not installed.
    """
    file = folder / SKILL_FILE
    try:
        front, instruction = _split(read_within(folder, SKILL_FILE))
    except ToolError as error:
        raise InvalidSkill(f"{file}: {error}", file=str(file)) from None
    if front is None:
        text = f"{file} does not begin with a front matter: a line ---, fields, and a line ---"
        raise InvalidSkill(text, file=str(file))
    fields = _fields(front, file)
    name = _field(fields, "name", file)
    if not _NAME.fullmatch(name):
        text = "is not 1 to 64 lowercase letters, digits and single hyphens between them"
        raise _invalid(file, "name", f"{text}: {name[:80]!r}")
    description = " ".join(_field(fields, "description", file).split())
    if not 0 < len(description) <= _MAX_DESCRIPTION:
        text = f"has {len(description):,} characters, and takes 1 to {_MAX_DESCRIPTION:,}"
        raise _invalid(file, "description", text)
    if name != folder.name:
        _logger.warning("%s: the skill %r is in a folder of another name", file, name)
    return SkillFile(name, description, instruction)


def read_instruction(folder: Path) -> str:
    """The instruction of the skill in *folder*, as it is now; or `ToolError`."""
    return _split(read_within(folder, SKILL_FILE))[1]


def list_files(folder: Path) -> list[str]:
    """The files of a skill beside `SKILL.md`, sorted, without hidden ones and without links."""
    found = (name for name in _walk(folder) if name != SKILL_FILE)
    return sorted(name for name, _ in zip(found, range(_MAX_FILES), strict=False))


def read_within(folder: Path, path: str) -> str:
    """
    The text of a file in *folder*, a path without links.

    Raises:
        ToolError: The path leads out of the folder, or to something that is not a file of text.
    """
    try:
        target = (folder / path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there, a null character, a circle of links
        raise ToolError(f"there is no file {path[:200]!r}") from None
    if not target.is_relative_to(folder):  # after links and `..`
        raise ToolError(f"{path[:200]!r} is outside the folder of the skill")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(target, flags | getattr(os, "O_BINARY", 0))
        with os.fdopen(file, "rb") as reader:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ToolError(f"{path[:200]!r} is not a file")
            data = reader.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"{path[:200]!r} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ToolError(f"{path[:200]!r} is longer than {_MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolError(f"{path[:200]!r} is not a text in UTF-8") from None


def _folders(path: Path) -> list[Path]:
    if (path / SKILL_FILE).is_file():
        return [path.resolve()]
    found: list[Path] = []
    root = path.resolve()
    for one in sorted(root.iterdir()) if root.is_dir() else ():
        if not (one / SKILL_FILE).is_file():
            continue
        if not one.resolve().is_relative_to(root):
            text = f"{one} is a link out of {root}: pass the folder that it points to by itself"
            raise InvalidSkill(text, file=str(one))
        found.append(one.resolve())
    return found


def _walk(folder: Path) -> Iterator[str]:
    seen = 0
    for where, folders, files in os.walk(folder):  # does not follow links
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for one in sorted(files):
            seen += 1
            if seen > _MAX_ENTRIES:
                return
            file = Path(where, one)
            if not one.startswith(".") and file.is_file() and not file.is_symlink():
                yield file.relative_to(folder).as_posix()


def _split(text: str) -> tuple[str | None, str]:
    """The front matter, if the text begins with one, and the rest."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return None, text.strip()
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "".join(lines[1:number]), "".join(lines[number + 1 :]).strip()
    return None, text.strip()


def _fields(front: str, file: Path) -> Mapping[Any, Any]:
    try:
        import yaml  # type: ignore[import-untyped]  # it has no stubs
    except ImportError:
        raise missing_extra("folders of skills need the PyYAML package", "skills") from None
    if len(front) > _MAX_FRONT_CHARS:
        text = f"{file}: its front matter is longer than {_MAX_FRONT_CHARS:,} characters"
        raise InvalidSkill(text, file=str(file))
    try:
        fields = yaml.safe_load(front)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: February 31st
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 2}"  # after the first ---
        problem = getattr(error, "problem", None) or str(error)
        text = f"{file}: its front matter is not YAML{where}: {problem[:200]}"
        raise InvalidSkill(text, file=str(file)) from None
    if not isinstance(fields, Mapping):
        raise InvalidSkill(f"{file}: its front matter has no fields", file=str(file))
    return fields


def _field(fields: Mapping[Any, Any], name: str, file: Path) -> str:
    value = fields.get(name)
    if value is None:
        raise _invalid(file, name, "is missing")
    if not isinstance(value, str):
        kind = type(value).__name__
        raise _invalid(file, name, f"is not text but {kind}: put it between quotes")
    return value


def _invalid(file: Path, field: str, text: str) -> InvalidSkill:
    return InvalidSkill(f"{file}: {field} {text}", file=str(file), field=field)
