"""Folders of skills in the Agent Skills format, and the files that a model may read in them."""

from __future__ import annotations

import os
import sys

import pytest

from looopy import Agent, LoopConfig
from looopy.errors import ConfigurationError, InvalidSkill, MissingExtra
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.tools import Skill, Skills

FORMS = """---
name: fill-forms
description: >
  Fills forms in. Use it for
  PDF files.
license: MIT
metadata:
  author: "somebody"
allowed-tools: Bash(git:*) Read
---

# Forms

Read `references/fields.md` first.
"""


def lay(folder, skill=FORMS):
    """A folder of a skill; the folder."""
    (folder / "references").mkdir(parents=True)
    (folder / "SKILL.md").write_text(skill)
    (folder / "references" / "fields.md").write_text("One field a line.")
    (folder / ".hidden").write_text("no")
    return folder


async def called(skills, *calls):
    """The results of these calls of the tools of *skills*, and the request that they came by."""
    model = ScriptedProvider([calls, text("ok")])
    limits = LoopConfig(max_tool_failures=50)
    async with Agent("ada", llm_provider=model, tools=[skills], loop_config=limits) as agent:
        result = await agent.execute_turn("go")
    return [(one.text, one.is_error) for one in result.iterations[0].tool_results], model


async def test_a_folder_is_a_skill_that_is_loaded_on_demand(tmp_path):
    """The prompt has name and purpose; the instruction is read when it is learned, files after."""
    folder = lay(tmp_path / "skills" / "fill-forms")
    skills = Skills.from_folder(tmp_path / "skills")
    (folder / "SKILL.md").write_text(FORMS.replace("# Forms", "# New forms"))
    (learned, file), model = await called(
        skills,
        tool_call("learn_skill", name="fill-forms"),
        tool_call("read_skill_file", skill="fill-forms", path="references/fields.md"),
    )
    shown = model.requests[0].system_prompt
    assert shown.endswith("- fill-forms: Fills forms in. Use it for PDF files.")
    assert "# Forms" not in shown
    assert learned[0] == (
        "# New forms\n\nRead `references/fields.md` first.\n\n"
        "[Files of this skill, for `read_skill_file`:]\n- references/fields.md"
    )
    assert file == ("One field a line.", False)
    assert len(Skills.from_folder(folder).list_tools()) == 2  # the folder of one skill will do
    assert len(Skills([Skill("plain", "Plain.", "Be plain.")]).list_tools()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes need rights there")
async def test_no_file_outside_the_folder_is_read(tmp_path):
    """Neither by its path nor through a link; a pipe does not hold the reader up."""
    folder = lay(tmp_path / "fill-forms")
    (tmp_path / "secret.txt").write_text("sesame")
    (tmp_path / "fill-forms-2").mkdir()
    (tmp_path / "fill-forms-2" / "secret.txt").write_text("sesame")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "inside").symlink_to(folder / "references")
    (folder / "bytes.bin").write_bytes(b"\xff\x00")
    (folder / "long.txt").write_bytes(b"x" * 1_048_577)
    os.mkfifo(folder / "pipe")
    outside = [
        "../secret.txt",
        "references/../../secret.txt",
        str(tmp_path / "secret.txt"),
        "../fill-forms-2/secret.txt",
        "link.txt",
        "up/secret.txt",
    ]
    wrong = ["circle", "references", "pipe", "nothing", "", "a\0b", "bytes.bin", "long.txt"]
    paths = [*outside, *wrong, "inside/fields.md"]
    results, model = await called(
        Skills([Skill.from_folder(folder)]),
        *(tool_call("read_skill_file", skill="fill-forms", path=path) for path in paths),
        tool_call("learn_skill", name="fill-forms"),
    )
    for path, (said, failed) in zip(paths[:-1], results, strict=False):
        assert failed, path
        assert ("is outside the folder" in said) == (path in outside), (path, said)
    assert results[-2] == ("One field a line.", False)
    assert "sesame" not in repr(model.requests[1].messages)
    listed = results[-1][0].partition(":]\n")[2]
    assert listed.splitlines() == ["- bytes.bin", "- long.txt", "- references/fields.md"]


@pytest.mark.parametrize(
    ("front", "field", "said"),
    [
        ("description: D", "name", "name is missing"),
        ("name: a", "description", "description is missing"),
        ("name: [a]\ndescription: D", "name", "name is not text but list"),
        ("name: 2024-01-01\ndescription: D", "name", "is not text but date"),
        ("name: yes\ndescription: D", "name", "is not text but bool: put it between quotes"),
        ("name: A B\ndescription: D", "name", "lowercase letters"),
        ("name: -a\ndescription: D", "name", "lowercase letters"),
        ("name: a--b\ndescription: D", "name", "lowercase letters"),
        (f"name: {'a' * 65}\ndescription: D", "name", "1 to 64"),
        ("name: a\ndescription: ' '", "description", "has 0 characters"),
        (f"name: a\ndescription: {'d' * 1025}", "description", "has 1,025 characters"),
        ("name: a\ndescription: for: all", None, "is not YAML in line 3"),
        ("- a", None, "has no fields"),
        ("", None, "has no fields"),
        ("name: " + "[" * 4_000, None, "is not YAML"),
        ("name: 2024-02-31", None, "is not YAML"),
        ("name: !!python/object/apply:os.getcwd []", None, "is not YAML in line 2"),
        ("x: " + "y" * 9_000, None, "is longer than"),
    ],
)
def test_a_bad_field_is_named_with_its_file(tmp_path, front, field, said):
    """An error that a program can read too."""
    folder = lay(tmp_path / "a", f"---\n{front}\n---\nDo it.\n")
    with pytest.raises(InvalidSkill) as refused:
        Skills.from_folder(tmp_path)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(folder / "SKILL.md"))
    assert (refused.value.file, refused.value.field) == (str(folder / "SKILL.md"), field)
    assert len(str(refused.value)) < 1000


def test_a_folder_that_is_no_skill_is_refused(tmp_path, caplog):
    """None there, no front matter, no text, a link out, one name twice; another name is a word."""
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(InvalidSkill, match=r"holds no SKILL\.md"):
            Skills.from_folder(path)
    folder = lay(tmp_path / "one" / "a", "Do it.")
    with pytest.raises(InvalidSkill, match="does not begin with a front matter"):
        Skills.from_folder(folder)
    (folder / "SKILL.md").write_bytes(b"\xff")
    with pytest.raises(InvalidSkill, match="is not a text in UTF-8"):
        Skills.from_folder(folder)
    lay(tmp_path / "two" / "b")
    lay(tmp_path / "two" / "c")
    with pytest.raises(ConfigurationError, match="two skills are named 'fill-forms'"):
        Skills.from_folder(tmp_path / "two")
    assert "is in a folder of another name" in caplog.text
    (tmp_path / "one" / "a" / "SKILL.md").unlink()
    (tmp_path / "one" / "d").symlink_to(tmp_path / "two" / "b")
    with pytest.raises(InvalidSkill, match="is a link out of"):
        Skills.from_folder(tmp_path / "one")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        Skill("a", "A.", "Do it.", folder=tmp_path / "gone")


def test_the_error_of_a_missing_extra_names_the_extra(tmp_path, monkeypatch):
    """With the command that does it."""
    lay(tmp_path / "fill-forms")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra) as missing:
        Skills.from_folder(tmp_path)
    assert missing.value.extras == ("skills",)
