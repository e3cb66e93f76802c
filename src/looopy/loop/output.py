"""
The type of a turn's answer: a Python type or a JSON Schema that the model must follow.

A JSON Schema describes the type to the model, and pydantic reads the answer back. So every type
that pydantic's `TypeAdapter` takes is allowed. A model gets the schema in one of two ways:

- A provider that supports output schemas (`structured_output`) gets the schema, and the text of its
  answer is read.
- Any other provider gets a tool, `final_answer`, and the tool's arguments are the answer. Its
  history, with calls of other tools, stays valid for every provider.

In both, looopy shows the model the problems of an answer that does not fit, and the model tries
again (`LoopConfig.max_output_retries`).

The output is read from the turn's messages. So a turn that is only watched, or that another process
continued, has the same output.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from looopy.errors import ConfigurationError, InvalidTool, LooopyError, ValueRefused
from looopy.llm.provider import Abilities
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.schema import check_schema, problems, show_path, without_nulls
from looopy.types.message import AssistantMessage, Message
from looopy.types.result import FINAL_ANSWER, is_accepted
from looopy.types.storable import dump

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ACCEPTED = "The answer was accepted."
INSTRUCTION = (
    f"When you have the answer, call the tool `{FINAL_ANSWER}` with it, alone and once. Only what"
    " that call says is read as your answer; other tools may be called before."
)
UNFIT = "Your answer does not fit: "
"""The beginning of looopy's message to a model whose answer does not fit; the problem follows."""
ASK_BY_TOOL = f"Give it again, by calling the tool {FINAL_ANSWER}."
"""The end of that message."""
ASK_FOR_JSON = "Give it again, as JSON alone."
"""The same for a provider that supports output schemas."""
_GAVE_NONE = "the model gave no answer that fits output_type in {} tries"
_WRAPPED = "answer"
_MAX_PROBLEMS = 10


class OutputRefused(Exception):
    """The answer does not fit; the text is for the model. Never raised to a user."""


@dataclass(frozen=True, slots=True)
class OutputType:
    """
    The type of an answer.

    Attributes:
        schema: JSON Schema of the answer.
        sent: The schema for the model, which is always an object. An answer of another type is its
            one property `answer`.
    """

    schema: Mapping[str, Any]
    sent: Mapping[str, Any]
    _adapter: TypeAdapter[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def wrapped(self) -> bool:
        """True if `sent` has the answer as a property."""
        return self.sent is not self.schema

    def read_text(self, text: str) -> Any:
        """Read the answer from a model's text, or raise `OutputRefused`."""
        try:
            data = json.loads(_unfenced(text), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise OutputRefused(f"it is not JSON: {error}") from None
        return self.read(data)

    def read(self, data: Any) -> Any:
        """Read the answer from *data*, a value that `sent` describes, or raise `OutputRefused`."""
        data = without_nulls(self.sent, data)
        if self.wrapped:
            if not isinstance(data, Mapping) or _WRAPPED not in data:
                raise OutputRefused(f"it is not an object with the property {_WRAPPED!r}")
            data = data[_WRAPPED]
        if self._adapter is None:
            found = problems(self.schema, data)
            if found:
                raise OutputRefused(_listed(found))
            return data
        return _validated(self._adapter, data)


def output_type_of(value: Any) -> OutputType | None:
    """
    The `OutputType` for `execute_turn(output_type=value)`; `None` for `None`.

    Args:
        value: A type that pydantic's `TypeAdapter` takes, or a mapping: a JSON Schema.

    Raises:
        ConfigurationError: The type has no JSON Schema, or the mapping is not a valid one.
    """
    if value is None or isinstance(value, OutputType):
        return value
    if isinstance(value, Mapping):
        schema, adapter = dict(value), None
        try:
            check_schema(schema)
        except InvalidTool as error:
            text = error.message.removeprefix("parameters ")
            raise ConfigurationError(f"output_type {text}") from None
    else:
        schema, adapter = _described(value)
    try:
        dump(schema, "/output_type")
    except ValueRefused as error:
        raise ConfigurationError(f"output_type: {error.message}") from None
    return OutputType(schema, _as_object(schema), adapter)


def _described(value: Any) -> tuple[dict[str, Any], TypeAdapter[Any]]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    text = "it is a function"  # pydantic would describe the arguments of a function
    if not inspect.isroutine(value):
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(value)
            return adapter.json_schema(), adapter
        except PydanticUserError as error:
            text = str(error).partition("\n")[0]
    raise ConfigurationError(
        f"output_type={value!r} cannot be described to a model ({text}): pass a pydantic model, a"
        " dataclass, a TypedDict or a JSON Schema"
    )


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* with an object at its root, as all providers require."""
    if schema.get("type") == "object":
        return schema
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
    }
    if "title" in inner:
        outer["title"] = inner["title"]
    if "$defs" in schema:
        outer["$defs"] = schema["$defs"]
    return outer


def _validated(adapter: TypeAdapter[Any], data: Any) -> Any:
    from pydantic import ValidationError

    try:
        # As JSON, not as objects: then a strict model takes a date from a string too.
        return adapter.validate_json(json.dumps(data))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [f"{show_path(one['loc'])}: {one['msg']}" for one in found]
    raise OutputRefused(_listed(lines))


def _listed(lines: Sequence[str]) -> str:
    more = len(lines) - _MAX_PROBLEMS
    rest = [f"- and {more} more"] if more > 0 else []
    text = "\n".join([*(f"- {line}" for line in lines[:_MAX_PROBLEMS]), *rest])
    return text.replace("(arguments)", "(answer)")


def _unfenced(text: str) -> str:
    """*text* without the fence of a code block, which models often put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3]
    return text


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


class FinalAnswer(Tool):
    """The tool whose arguments are the answer, if the provider does not support output schemas."""

    def __init__(self, wanted: OutputType) -> None:
        super().__init__(
            name=FINAL_ANSWER,
            description="Give the final answer, once you have it.",
            parameters=wanted.sent,
            effects="none",
        )
        self._wanted = wanted

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Accept the answer; `LooopyError` if it does not fit, though the schema allowed it."""
        del context
        try:
            self._wanted.read(dict(arguments))
        except OutputRefused as error:
            raise LooopyError(
                f"The answer does not fit:\n{error}\nCorrect this and call {FINAL_ANSWER} again."
            ) from None
        return ToolResult(ACCEPTED, details={"output": dict(arguments)})


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    The type of one turn's answer, and the way to get it.

    Attributes:
        tool: The tool that takes the answer; `None` if the provider gets the schema.
    """

    type: OutputType
    tool: FinalAnswer | None

    @classmethod
    def of(cls, output_type: OutputType | None, abilities: Abilities) -> Wanted | None:
        """Choose the way: the schema, if the provider keeps to it."""
        if output_type is None:
            return None
        native = abilities.structured_output
        if native and abilities.enforces is not None:
            native = abilities.enforces(output_type.sent)
        return cls(output_type, None if native else FinalAnswer(output_type))

    @property
    def option(self) -> Mapping[str, Any] | None:
        """`StreamOptions.output_schema`."""
        return self.type.sent if self.tool is None else None

    def offered(self, tools: dict[str, Tool]) -> dict[str, Tool]:
        """*tools*, and the tool that takes the answer; `InvalidTool` if another has its name."""
        if self.tool is None:
            return tools
        if any(name.casefold() == FINAL_ANSWER for name in tools):
            raise InvalidTool(
                f"a tool is named {FINAL_ANSWER!r}, which is how output_type asks for an answer:"
                " rename yours"
            )
        return {**tools, FINAL_ANSWER: self.tool}


def output_in(wanted: OutputType, messages: Sequence[Message]) -> Any:
    """The answer at the end of a turn's *messages*; `None` if there is no valid one."""
    for message in reversed(messages):
        if is_accepted(message):
            try:
                return wanted.read(message.details["output"])  # type: ignore[union-attr]  # a result
            except (OutputRefused, KeyError, TypeError):  # details may be too large to be kept
                continue
        if isinstance(message, AssistantMessage):
            calls = [call for call in message.tool_calls if call.name.casefold() == FINAL_ANSWER]
            try:
                if calls:
                    return wanted.read(calls[0].arguments)
                return wanted.read_text(message.text)
            except OutputRefused:
                return None
    return None


def gave_none(tries: int) -> str:
    """The beginning of the error of a turn without an answer that fits."""
    return _GAVE_NONE.format(tries)


def tries_in(error: str | None) -> int | None:
    """The number of tries in such an error; `None`: it is another one."""
    found = re.match(_GAVE_NONE.format(r"(\d+)"), error or "")
    return None if found is None else int(found[1])


def how_to_answer(text: str) -> str | None:
    """The end of *text*, a message about an answer that does not fit; `None`: it is another one."""
    how = text.rpartition("\n")[2]
    return how if text.startswith(UNFIT) and how in (ASK_BY_TOOL, ASK_FOR_JSON) else None
