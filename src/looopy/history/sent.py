"""
The beginning of the last request, and why the next request begins otherwise.

A provider's prompt cache holds while each request extends the one before it. looopy sees to that;
where it cannot, the application should know the cause. So each request leaves a short text, which
is stored with the turn: digests of the parts that come first, and where the history begins. The
next request is compared with it, in any process. While the parts are the same objects, as from call
to call, no digest is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from looopy.history.tokens import Scale
from looopy.types.message import Message
from looopy.types.request import LLMRequest, ToolSpec

_CAUSES: Final = ("the model", "the tools", "the prompt", "the summary", "the window")
_CUTS: Final = ("rewind", "fork")  # written by the stores: `ContextState.sent`
_BYTES: Final = 4  # of a digest: one change in four thousand million goes unnoticed
_MOST_SCHEMAS: Final = 1024
# By the id of a schema, because an agent that is opened for each turn has the tools of the one
# before. The schema is kept, so that no other one has its id.
_schemas: dict[int, tuple[Mapping[str, Any], str]] = {}


class Sent:
    """
    The beginning of the last request of a context, and the scale of its tokens.

    Attributes:
        scale: See there. It belongs to the model of the last request.
    """

    __slots__ = ("_cut", "_head", "_model", "_parts", "_told", "scale")

    def __init__(self) -> None:
        self._cut = ""
        self._head: str | None = None
        self._model: tuple[str, str] | None = None
        self._parts: tuple[Any, ...] = ()
        self._told: tuple[int, str | None] | None = None
        self.scale = Scale()

    @property
    def text(self) -> str | None:
        """The beginning, as it is stored; `None` before the first request."""
        if self._head is None:
            return None
        scale = self.scale
        head = f"{self._cut} {self._head}" if self._cut else self._head
        return head if scale.used == scale.wanted == 100 else f"{head} {scale}"

    @property
    def begin(self) -> int:
        """How many messages of the log came before the first one that it showed; 0 if unknown."""
        word = (self._head or "").rpartition(" ")[2]
        return int(word) if word.isdecimal() else 0

    def digest(self, turn: int) -> str | None:
        """The digests of model, tools and prompt, unless the same *turn* already has them."""
        told, self._told = self._told, (turn, self._head)
        if self._head is None or self._told == told:
            return None
        return " ".join(self._head.split(" ", 3)[:3])

    def resume(self, text: str | None) -> None:
        """Continue from the stored *text*, which another process may have written."""
        if text != self.text:
            words = [] if text is None else text.split()
            self._cut = words.pop(0) if words and words[0] in _CUTS else ""
            self._head = " ".join(words[: len(_CAUSES)]) if words else None
            self._parts, self._model = (), None
            self.scale = Scale.read(" ".join(words[len(_CAUSES) :]))

    def to(self, provider: str, model: str) -> None:
        """Set the model of the next request: another model has another scale."""
        if self._model == (provider, model):
            return
        self._model = (provider, model)
        if self._head is not None and not self._head.startswith(_digest(f"{provider}/{model}")):
            self.scale = Scale()

    def changes(
        self, request: LLMRequest, provider: str, summary: Message | None, begin: int
    ) -> Sequence[str]:
        """
        Take the next *request*.

        Args:
            provider: The name of its provider.
            summary: The message that it begins with, if that is a summary.
            begin: How many messages of the log come before the first one that it shows.

        Returns:
            The parts that changed since the last request: each is a reason why a prompt cache does
            not hold; [] for the first request.
        """
        parts = (provider, request.model, request.tools, request.system_prompt, summary, begin)
        if parts == self._parts:
            return ()
        before, self._parts = self._head, parts
        said = "" if summary is None else summary.text
        self._head = f"{digests_of(request, provider)} {_digest(said)} {begin}"
        if before is None:
            return ()
        pairs = zip(_CAUSES, self._head.split(), before.split(), strict=False)
        causes = [cause for cause, now, then in pairs if now != then]
        if "the window" in causes:
            causes.pop()
            if "the summary" not in causes:
                causes.append(f"the {self._cut or 'window'}")
        self._cut = ""
        return causes


def digests_of(request: LLMRequest, provider: str) -> str:
    """The digests of the model, the tools and the prompt of a *request*."""
    tools = "".join(map(_tool, request.tools))
    return " ".join(map(_digest, (f"{provider}/{request.model}", tools, request.system_prompt)))


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=_BYTES).hexdigest() if text else "-"


def _tool(spec: ToolSpec) -> str:
    """The name and the description of a tool, and the digest of its schema."""
    schema = spec.parameters
    known = _schemas.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_schemas) >= _MOST_SCHEMAS:
            _schemas.clear()
        known = _schemas[id(schema)] = schema, _digest(repr(schema))
    return f"{spec.name}\n{spec.description}\n{known[1]}\n"
