"""
The questions of a server to the user in one call, and their answers.

A question ends the turn. Once it is answered, looopy makes the call again, in any process. A server
of 2026 then continues from a state that it gave looopy to keep. A server that has forgotten that
state, and one of 2025, which has no such state, start the call again.

So the key of a question is its text and how often the server asked it in this call. A server that
repeats a question gets the stored answer, and the user answers each question once.
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
_ROOM = 8 * 1024  # of the state, reserved for everything but the server's part
Action = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One question of a server.

    Attributes:
        name: The server's name for it, or "".
        schema: The schema of the form to fill in.
        url: The address to visit instead.
    """

    name: str = ""
    message: str = ""
    schema: Mapping[str, Any] | None = None
    url: str | None = None

    @property
    def digest(self) -> str:
        """A digest of its content."""
        said = json.dumps([self.name, self.message, self.schema, self.url], sort_keys=True)
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def fields(self) -> list[str]:
        """The names of the form's fields."""
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
        """The reply to the server for the user's *value*: an action, and the form's content."""
        fields = self.fields
        if value is None or value is False:
            return ("cancel" if value is None else "decline"), None
        if isinstance(value, Mapping):
            return "accept", dict(value)
        if self.url is not None:
            return "accept", None
        # One field can be answered without its name; `True` alone accepts a form without fields.
        return "accept", {fields[0]: value} if len(fields) == 1 else {}


class Dialogue:
    """
    The questions and answers of one call, over all its runs.

    Args:
        answers: The user's answers so far, by key.
    """

    def __init__(self, answers: Mapping[str, Any], redactor: Redactor) -> None:
        self._answers = answers
        self._redactor = redactor
        self._counts: Counter[str] = Counter()

    def resume(self, state: Any) -> tuple[str | None, list[tuple[Question, Any]]]:
        """The server's own state in *state*, and its questions with their answers."""
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
        """Start again, with a server that knows nothing of the call."""
        self._counts.clear()

    def find(self, questions: Sequence[Question]) -> tuple[dict[str, Any], dict[str, Ask]]:
        """The existing answers to *questions*, and the questions to the user, both by name."""
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
        """The state to keep until the answer comes; `None`, to start again, if too large."""
        if len(request_state or "") > MAX_STATE_CHARS - _ROOM:
            return None
        asked = {
            one.name: [f"{one.digest}.{self._counts[one.digest]}", one.fields, one.url]
            for one in questions
        }
        return {"request_state": request_state, "asked": asked, "counts": dict(self._counts)}
