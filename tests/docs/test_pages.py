"""
The code of the documentation runs as it is written.

The blocks of a page run in order, in one namespace and one event loop, in an empty folder. Where a
page names a model, a scripted one takes its place. HTML comments, which a reader does not see, say
what a block needs:

    <!-- model: text("hi"), tool_call("add", a=1, b=2) -->   what the model says from here on
    <!-- typed: "first line", "" -->                         what `input()` returns from here on
    <!-- fragment -->                                        the next block is compiled, not run
    <!-- file: trip.py -->                                   likewise: a test of its own runs it

A block marked `text` right behind one of Python is what that one prints.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

from looopy import errors
from looopy.testing import ScriptedProvider, failure, text, tool_call

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if "```python\n" in path.read_text("utf-8"))
_PIECE = re.compile(
    r"^<!-- (?P<directive>model|typed|fragment|file)(?:: (?P<value>.*?))? -->$"
    r"|^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MODEL = re.compile(r'(?:(?<=llm_provider=)|(?<=Agent\(model=))"[^"]*"')


async def silence(_):
    """A reply that never comes."""
    await asyncio.Event().wait()


def blocks(page):
    """The blocks that run of *page*: the number of lines before each, and its code."""
    is_fragment = False
    for piece in _PIECE.finditer(page):
        if piece["language"] == "python" and not is_fragment:
            yield page.count("\n", 0, piece.start("code")), piece["code"]
        is_fragment = piece["directive"] in ("fragment", "file")


_WORDS = {
    "silence": silence,
    "text": text,
    "tool_call": tool_call,
    "failure": failure,
    **vars(errors),
}


def _values(source):
    """The values of a directive, as a list."""
    return list(eval(f"({source},)", dict(_WORDS)))  # noqa: S307 - our own documentation


class _Page:
    """A page as it runs: what its blocks share, and what the directives have said so far."""

    def __init__(self, path):
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.names = {"__name__": "page", "input": self._typed}
        self.typed, self.ran, self.fragment = [], 0, False
        self._say([lambda _: text("Yes.")], repeat=True)

    def _say(self, replies, **options):
        self.names["_model"] = ScriptedProvider(replies, chunk_chars=4, **options)

    def _typed(self, prompt=""):
        return self.typed.pop(0)

    def run(self):
        with asyncio.Runner() as runner:
            printed = end = None
            for piece in _PIECE.finditer(self.text):
                if piece["directive"]:
                    self._obey(piece["directive"], piece["value"])
                elif piece["language"] == "python":
                    printed, end = self._run(piece, runner), piece.end()
                elif piece["language"] == "text" and not self.text[end : piece.start()].strip():
                    assert printed.rstrip() == piece["code"].rstrip(), self._where(piece)
                    printed = None

    def _obey(self, directive, value):
        if directive == "model":
            self._say(_values(value))
        elif directive == "typed":
            self.typed = _values(value)
        else:
            self.fragment = True

    def _where(self, piece):
        return f"{self.path.name}:{self.text.count(chr(10), 0, piece.start()) + 1}"

    def _run(self, piece, runner):
        """Run one block; what it printed."""
        source = "\n" * self.text.count("\n", 0, piece.start("code"))  # for tracebacks
        source += _MODEL.sub("_model", piece["code"])
        code = compile(source, self.path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if self.fragment:
            self.fragment = False
            return None
        self.ran += 1
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(_awaited(code, self.names))
            else:
                exec(code, self.names)  # noqa: S102 - our own documentation
        return out.getvalue()


async def _awaited(code, names):
    await eval(code, names)  # noqa: S307 - our own documentation


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_code_of_a_page_runs_and_prints_what_it_says(path, tmp_path, monkeypatch):
    """Every block, in the order in which a reader meets it."""
    monkeypatch.chdir(tmp_path)
    page = _Page(path)
    page.run()
    assert page.ran
