"""
What a server asks the user in one call, and what it is answered.

A question ends the turn, and the call is made again once it is answered, in whichever process. A
server of 2026 then goes on where it was, from a state that it had us keep; one that has forgotten
that state, and one of 2025, which keeps none, begin anew. So each question is known by what it
says and how often it was said in this call: whoever asks the same again is given the answer that
is there, and the user is asked nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from looopy.auth.redaction import Redactor
from looopy.errors import InvalidTool
from looopy.tools.asking import MAX_STATE_CHARS, Ask
from looopy.tools.schema import check_schema

MAX_QUESTIONS = 16
_MAX_PROMPT_CHARS = 4000
_ROOM = 8 * 1024  # of the state, for all but the server's
Action = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One question of a server.

    Attributes:
        name: What the server knows it by, or "".
        schema: Of the form to fill in.
        url: Where the user has to go instead.
    """

    name: str = ""
    message: str = ""
    schema: Mapping[str, Any] | None = None
    url: str | None = None

    @property
    def digest(self) -> str:
        """What it says, in short."""
        said = json.dumps([self.name, self.message, self.schema, self.url], sort_keys=True)
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def fields(self) -> list[str]:
        """Of the form, by name."""
        properties = (self.schema or {}).get("properties")
        return list(properties) if isinstance(properties, Mapping) else []

    @property
    def _alone(self) -> list[str]:
        """The type of the only field of a form, whose value can be given without its name."""
        properties = (self.schema or {}).get("properties", {}) if len(self.fields) == 1 else {}
        kinds = [one.get("type") for one in properties.values() if isinstance(one, Mapping)]
        return [kind for kind in kinds if kind in ("string", "integer", "number", "array")]

    def ask(self, key: str, redactor: Redactor) -> Ask:
        """The request to the user: the form, `False` to decline it, `None` to cancel."""
        prompt = self.message if self.url is None else f"{self.message}\n{self.url}"
        schema: dict[str, Any] = {"type": ["boolean", "null"]}
        if self.url is None:
            schema = {**(self.schema or {}), "type": ["object", "boolean", "null", *self._alone]}
        try:
            check_schema(schema)
        except InvalidTool:
            schema = {}
        if len(prompt) > _MAX_PROMPT_CHARS:
            prompt = f"{prompt[:_MAX_PROMPT_CHARS]}..."
        return Ask(key, prompt=redactor.text(prompt), schema=schema)

    def answer(self, value: Any) -> tuple[Action, dict[str, Any] | None]:
        """What *value*, given by the user, tells the server: an action, and the form's content."""
        fields = self.fields
        if value is None or value is False:
            return ("cancel" if value is None else "decline"), None
        if isinstance(value, Mapping):
            return "accept", dict(value)
        if self.url is not None:
            return "accept", None
        # One field can be answered without its name; `True` alone says yes to a form without any.
        return "accept", {fields[0]: value} if len(fields) == 1 else {}


class Dialogue:
    """
    The questions and answers of one call, over all its runs.

    Args:
        answers: What the user has answered so far, by key.
    """

    def __init__(self, answers: Mapping[str, Any], redactor: Redactor) -> None:
        self._answers = answers
        self._redactor = redactor
        self._counts: Counter[str] = Counter()

    def resume(self, state: Any) -> tuple[str | None, list[tuple[Question, Any]]]:
        """
        Go on from *state*: the server's own state, and its questions with what was answered.
        """
        if not isinstance(state, Mapping) or "asked" not in state:
            return None, []
        replies: list[tuple[Question, Any]] = []
        for name, (key, fields, url) in state["asked"].items():
            if key not in self._answers:
                return None, []
            schema: dict[str, Any] = {"properties": {field: {} for field in fields}}
            replies.append((Question(name=name, schema=schema, url=url), self._answers[key]))
        self._counts = Counter(state["counts"])
        return state["request_state"], replies

    def begin(self) -> None:
        """Begin anew: the server knows nothing any more."""
        self._counts.clear()

    def find(self, questions: Sequence[Question]) -> tuple[dict[str, Any], dict[str, Ask]]:
        """What is answered of *questions*, by name, and what the user has to be asked."""
        found: dict[str, Any] = {}
        asks: dict[str, Ask] = {}
        for question in questions:
            self._counts[question.digest] += 1
            key = f"{question.digest}.{self._counts[question.digest]}"
            if key in self._answers:
                found[question.name] = self._answers[key]
            else:
                asks[question.name] = question.ask(key, self._redactor)
        return found, asks

    def state(
        self, request_state: str | None, questions: Sequence[Question]
    ) -> dict[str, Any] | None:
        """What to keep until the answer comes; `None`, to begin anew then, if it is too much."""
        if len(request_state or "") > MAX_STATE_CHARS - _ROOM:
            return None
        asked = {
            one.name: [f"{one.digest}.{self._counts[one.digest]}", one.fields, one.url]
            for one in questions
        }
        return {"request_state": request_state, "asked": asked, "counts": dict(self._counts)}
