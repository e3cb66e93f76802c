"""The README's code runs as it is written, with a scripted model in the place of a real one."""

import ast
import asyncio
import re
from pathlib import Path

from looopy.testing import ScriptedProvider, text, tool_call

README = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
SCRIPT, SERVICE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _compiled(code, **replaced):
    """*code* with each key replaced by its value, exactly once."""
    for old, new in replaced.values():
        assert code.count(old) == 1, f"{old} is not in the example once"
        code = code.replace(old, new)
    return compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _chat(url, replies, lines):
    """Run the script once; what it printed, and what the model was sent."""
    provider, said, typed = ScriptedProvider(replies), [], iter([*lines, ""])
    code = _compiled(
        SCRIPT,
        model=('llm_provider="local"', "llm_provider=provider"),
        url=("sqlite:///chat.db", url),
    )
    names = {"provider": provider, "input": lambda _: next(typed), "print": said.append}
    exec(code, names)  # noqa: S102 - our own README
    return said, provider.requests


def test_the_script_remembers_after_a_restart(tmp_path):
    """Its second run sends what was said in the first."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    assert _chat(url, [text("Hello Ada.")], ["I am Ada."])[0] == ["Hello Ada."]
    said, requests = _chat(url, [text("You are Ada.")], ["Who am I?"])
    assert said == ["You are Ada."]
    assert [message.text for message in requests[0].messages] == [
        "I am Ada.",
        "Hello Ada.",
        "Who am I?",
    ]


def test_the_service_streams_and_calls_its_tool(tmp_path):
    """The text comes in pieces, after the tool has added."""
    provider = ScriptedProvider([tool_call("add", a=2, b=3), text("It is 5.")], chunk_chars=2)
    pieces = []
    code = _compiled(
        SERVICE,
        model=('llm_provider="openai/gpt-4.1-mini"', "llm_provider=provider"),
        url=("sqlite:///app.db", f"sqlite:///{tmp_path / 'app.db'}"),
    )
    names = {"provider": provider, "print": lambda piece, **_: pieces.append(piece)}
    asyncio.run(eval(code, names))  # noqa: S307 - our own README
    assert "".join(pieces) == "It is 5."
    assert len([piece for piece in pieces if piece]) > 1
    assert provider.requests[1].messages[-1].text == "5"


def test_the_whole_point_fits_on_a_screen():
    """An agent that survives a restart takes fewer than 25 lines."""
    assert len(SCRIPT.splitlines()) < 25
    assert len(SERVICE.splitlines()) < 25
