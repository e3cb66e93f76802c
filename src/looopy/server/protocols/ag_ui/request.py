"""The input of a run, read by the models of `ag-ui-protocol` and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from looopy.errors import ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.stores.rules import check_context_id
from looopy.types.message import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    UserBlock,
    UserMessage,
)
from looopy.types.storable import escape

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

_MOST_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class Resumed:
    """
    An answer to an interrupt.

    Attributes:
        path: Where it stands in the body.
        cancelled: The person gives no answer; `payload` is `None` then.
    """

    path: str
    request_id: str
    payload: Any
    cancelled: bool

    @property
    def decision(self) -> Any:
        """The answer, as one to a request for approval."""
        return not self.cancelled if self.payload is None else self.payload


@dataclass(frozen=True, slots=True)
class RunRequest:
    """
    The input of a run.

    Attributes:
        message: The user's message, if the last message is one.
        message_id: Its id.
        path: Where it stands.
        bare: The page sent no message: it wants to see the context.
        results: The results of the page's own tools, by the id of the call.
        calls: The ids of the calls that the page has.
        metadata: For the turn: what tools and prompts may read of the page.
        again: The page wants another answer to its last message: `forwardedProps.looopy.again`.
        force: Even if tools with effects run again: `forwardedProps.looopy.force`.
    """

    thread_id: str
    run_id: str
    message: UserMessage | None = None
    message_id: str = ""
    path: str = ""
    bare: bool = False
    resume: Sequence[Resumed] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    calls: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False
    force: bool = False

    @property
    def decisions(self) -> Mapping[str, Any]:
        """The answers in `resume` as decisions by request id; empty if the run brings more."""
        if self.message is not None or self.results:
            return {}
        return {one.request_id: one.decision for one in self.resume}


def read_run(body: Any) -> RunRequest:
    """
    The input of a run in the JSON value *body*.

    Raises:
        ValueRefused: It is malformed; `path` is a JSON pointer to the place.
    """
    found = _validated(body)
    try:
        check_context_id(found.thread_id)
    except ValueRefused as error:
        raise _refused("/threadId", str(error)) from None
    _check_id(found.run_id, "/runId")
    message, message_id, path = None, "", ""
    if found.messages and found.messages[-1].role == "user":
        last, path = found.messages[-1], f"/messages/{len(found.messages) - 1}"
        message_id = last.id
        _check_id(message_id, f"{path}/id")
        message = _message(last.content, f"{path}/content")
    again, force = _asked(found.forwarded_props)
    if again and message is None:
        text = "the message that is to be answered again must be the last one"
        raise _refused("/forwardedProps/looopy/again", text)
    return RunRequest(
        thread_id=found.thread_id,
        run_id=found.run_id,
        message=message,
        message_id=message_id,
        path=path,
        bare=not found.messages,
        resume=[
            Resumed(
                f"/resume/{number}/interruptId",
                entry.interrupt_id,
                None if entry.status == "cancelled" else entry.payload,
                entry.status == "cancelled",
            )
            for number, entry in enumerate(found.resume or ())
        ],
        results=_results(found),
        calls=frozenset(_calls(found)),
        metadata=_metadata(found, message_id),
        again=again,
        force=force,
    )


def _asked(props: Any) -> tuple[bool, bool]:
    """The words for looopy in `forwardedProps`: `again` and `force`."""
    own = props.get("looopy", {}) if isinstance(props, Mapping) else {}
    if not isinstance(own, Mapping):
        raise _refused("/forwardedProps/looopy", "must be an object")
    again, force = own.get("again", False), own.get("force", False)
    for name, value in (("again", again), ("force", force)):
        if not isinstance(value, bool):
            raise _refused(f"/forwardedProps/looopy/{name}", "must be true or false")
    return again, force


def _validated(body: Any) -> RunAgentInput:
    from ag_ui.core import RunAgentInput
    from pydantic import ValidationError

    if not isinstance(body, Mapping):
        raise _refused("", "the body must be a JSON object")
    try:
        return RunAgentInput.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        # If several types are allowed, each reports an error: the deepest one is the most exact.
        place, text = max(
            ((_pointer(one["loc"], body), one["msg"]) for one in found),
            key=lambda one: one[0].count("/"),
        )
        raise _refused(place, text) from None


def _pointer(place: Sequence[str | int], body: Any) -> str:
    """
    The JSON pointer to a *place* as pydantic names it.

    It also names the alternatives that it tried, which are not steps in the body. Its last step may
    be a field that is missing.
    """
    steps: list[str] = []
    here = body
    for number, step in enumerate(place):
        if isinstance(here, Mapping) and isinstance(step, str):
            last = number == len(place) - 1
            if step not in here and not last:
                continue
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            continue
        steps.append(escape(str(step)))
    return "".join(f"/{step}" for step in steps)


def _message(content: Any, path: str) -> UserMessage:
    blocks: str | list[UserBlock] = content
    if not isinstance(content, str):
        blocks = [_block(part, f"{path}/{number}") for number, part in enumerate(content)]
    try:
        return as_user_message(UserMessage(blocks), may_be_none=False)
    except ValueRefused as error:
        raise _refused(path, str(error)) from None


def _block(part: Any, path: str) -> UserBlock:
    if part.type == "text":
        return TextContent(part.text)
    source = part.source
    if source.type == "file" or part.type == "video":
        what = "a file that a provider keeps" if source.type == "file" else "a video"
        raise _refused(path, f"{what} cannot be stored: send its data or its URL")
    data, url = (source.value, None) if source.type == "data" else ("", source.value)
    if url is not None and not url.startswith(("https://", "http://")):
        raise _refused(f"{path}/source/value", "must begin with https://")
    if part.type == "image":
        return ImageContent(data, mime_type=source.mime_type or "image/png", url=url)
    if part.type == "audio":
        if url is not None:
            raise _refused(f"{path}/source", "audio must be sent as data")
        return AudioContent(data, mime_type=source.mime_type)
    return DocumentContent(data, mime_type=source.mime_type or "application/pdf", url=url)


def _results(found: RunAgentInput) -> dict[str, Any]:
    """The results of tools in the messages; results of the page's own tools answer their calls."""
    results: dict[str, Any] = {}
    for message in found.messages:
        if message.role != "tool":
            continue
        content: Any = message.content
        if not isinstance(content, str):
            content = [part.model_dump(mode="json", by_alias=True) for part in content]
        if message.error is not None:
            content = {"is_error": True, "content": message.error or content}
        results[message.tool_call_id] = content
    return results


def _calls(found: RunAgentInput) -> Iterator[str]:
    for message in found.messages:
        if message.role == "assistant":
            yield from (call.id for call in message.tool_calls or ())
        elif message.role == "tool":
            yield message.tool_call_id


def _metadata(found: RunAgentInput, message_id: str) -> dict[str, Any]:
    said = {
        "run_id": found.run_id,
        "message_id": message_id,
        "state": found.state,
        "context": _json(found.context),
        "forwarded_props": found.forwarded_props,
        "tools": _json(found.tools),
    }
    kept = {name: value for name, value in said.items() if value not in (None, "", [], {})}
    return {"ag_ui": kept} if kept else {}


def _json(models: Sequence[Any] | None) -> list[Any]:
    return [model.model_dump(mode="json", by_alias=True) for model in models or ()]


def _check_id(value: str, path: str) -> None:
    if not 0 < len(value) <= _MOST_ID_CHARS:
        raise _refused(path, f"must have 1 to {_MOST_ID_CHARS} characters")


def _refused(path: str, text: str) -> ValueRefused:
    return ValueRefused(f"{path}: {text}" if path else text, path=path)
