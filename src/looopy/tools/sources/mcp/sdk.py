"""
The official MCP SDK in looopy's terms; loaded when a server is connected.

With `transports.py`, the only file that imports the SDK.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp.shared.exceptions import UrlElicitationRequiredError
from pydantic import ValidationError

from looopy.auth.redaction import Redactor
from looopy.errors import SignInFailed, ToolServerError
from looopy.tools.sources.mcp.dialogue import MAX_QUESTIONS, Question
from looopy.tools.sources.mcp.target import Target
from looopy.tools.sources.mcp.transports import (
    CONNECTION_CLOSED,
    CredentialsNow,
    Failure,
    HttpFailure,
    Watch,
    open_streams,
)
from mcp import Client, MCPError, types

_MAX_PAGES = 100
_MAX_LISTED = 1000  # resources, and prompts


@asynccontextmanager
async def open_client(
    target: Target, watch: Watch, credentials: CredentialsNow
) -> AsyncIterator[Client]:
    """
    A client after its handshake; enter and leave it in one task.

    Args:
        credentials: Called at each HTTP request.
    """

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            watch.changed()

    async def on_elicit(_context: Any, params: Any) -> Any:
        assert watch.elicit is not None  # noqa: S101 - the callback is set only then
        return await watch.elicit(params)

    client = Client(
        open_streams(target, watch, credentials),
        mode="legacy" if target.legacy else "auto",
        message_handler=on_message,
        elicitation_callback=cast("Any", on_elicit) if watch.elicit is not None else None,
        client_info=types.Implementation(name="looopy", version="1"),
        cache=None,
    )
    async with client:
        yield client


def is_modern(client: Client) -> bool:
    """True if questions come as results of a call, and not while it runs."""
    return client.session.discover_result is not None


async def list_all(client: Client, target: Target) -> list[Any]:
    """
    Every page of the list of tools, up to the limits.

    Raises:
        MCPError: The server answered with an error, or is gone.
        ValidationError: The server's answer is not a list of tools.
    """
    if client.server_capabilities.tools is None:
        return []
    return await _pages(client.session.list_tools, "tools", target.max_tools)


def has_resources(client: Client) -> bool:
    """True if the server offers resources."""
    return client.server_capabilities.resources is not None


async def list_resources(client: Client) -> list[Any]:
    """The resources of a server, then its templates; raises as `list_all` does."""
    if not has_resources(client):
        return []
    found = await _pages(client.session.list_resources, "resources", _MAX_LISTED)
    try:
        more = client.session.list_resource_templates
        return found + await _pages(more, "resource_templates", _MAX_LISTED)
    except MCPError as error:
        if error.code != types.METHOD_NOT_FOUND:
            raise
        return found


async def read_resource(client: Client, uri: str) -> list[Any]:
    """The contents under an address; raises as `list_all` does."""
    return list((await client.session.read_resource(uri)).contents)


async def list_prompts(client: Client) -> list[Any]:
    """The prompts of a server; raises as `list_all` does."""
    if client.server_capabilities.prompts is None:
        return []
    return await _pages(client.session.list_prompts, "prompts", _MAX_LISTED)


async def get_prompt(client: Client, name: str, arguments: Mapping[str, str]) -> Any:
    """One prompt, filled in; raises as `list_all` does."""
    return await client.session.get_prompt(name, dict(arguments))


async def _pages(ask: Callable[..., Any], name: str, most: int) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        page = await ask(params=params)
        found += getattr(page, name)
        cursor = page.next_cursor
        if cursor is None or len(found) > most:
            break
    return found


async def listen_for_changes(client: Client, changed: Callable[[], object]) -> None:
    """Call *changed* each time a server of 2026 reports that its tools have changed."""
    tools = client.server_capabilities.tools
    if not is_modern(client) or tools is None or not tools.list_changed:
        return
    with contextlib.suppress(MCPError, RuntimeError, TimeoutError):
        async with client.listen(tools_list_changed=True) as subscription:
            async for _ in subscription:
                changed()


# --- questions ----------------------------------------------------------------------------------


def asks(answer: Any) -> bool:
    """True if a server's answer is not a result yet."""
    return isinstance(answer, types.InputRequiredResult)


def questions_in(answer: types.InputRequiredResult, target: Target) -> list[Question]:
    """
    The questions that a server needs answered before it continues.

    Raises:
        ToolServerError: The server requests something that looopy does not offer, or too much.
    """
    requests = answer.input_requests or {}
    if len(requests) > MAX_QUESTIONS:
        text = f"{target.where} asks {len(requests):,} questions at once: at most {MAX_QUESTIONS}"
        raise ToolServerError(text, server=target.name)
    found: list[Question] = []
    for name, request in requests.items():
        if not isinstance(request, types.ElicitRequest) or not target.elicitation:
            text = f"{target.where} asks for {request.method}, which it was not offered"
            raise ToolServerError(text, server=target.name)
        found.append(question_of(request.params, name))
    return found


def question_of(params: Any, name: str = "") -> Question:
    """One question: a form to fill in, or an address to visit."""
    if isinstance(params, types.ElicitRequestURLParams):
        return Question(name=name, message=params.message, url=params.url)
    return Question(name=name, message=params.message, schema=params.requested_schema)


def urls_in(error: BaseException) -> list[Question]:
    """The addresses that the user has to visit first, if *error* lists any."""
    if not isinstance(error, MCPError) or error.code != types.URL_ELICITATION_REQUIRED:
        return []
    try:
        return [
            question_of(one)
            for one in UrlElicitationRequiredError.from_error(error.error).elicitations
        ]
    except ValidationError:
        return []


def reply_to(question: Question, value: Any) -> types.ElicitResult:
    """The user's answer in the server's form; an answer that fits no form cancels."""
    action, content = question.answer(value)
    try:
        return types.ElicitResult(action=action, content=content)
    except ValidationError:
        return no_answer()


def no_answer() -> types.ElicitResult:
    """The reply to a question that no user can answer."""
    return types.ElicitResult(action="cancel")


def is_forgotten(error: BaseException) -> bool:
    """True if *error* may mean that a server no longer knows its own state."""
    return isinstance(error, MCPError) and error.code in (
        types.INVALID_PARAMS,
        types.INVALID_REQUEST,
    )


# --- failures -----------------------------------------------------------------------------------


def failure_of(error: BaseException, target: Target, redactor: Redactor) -> ToolServerError:
    """The `ToolServerError` for *error* of a request that was sent; shows no secret."""
    known, kind = False, ToolServerError
    if (failure := _failure_in(error)) is not None:
        text, known = failure.text, failure.known
        kind = SignInFailed if failure.sign_in else kind
    elif _is_closed(error):
        text = "ended, or closed the connection"
    elif isinstance(error, MCPError):
        text, known = f"answered with an error: {error.message} ({error.code})", True
    elif isinstance(error, ValidationError):
        text = "answered with something that is not an MCP answer"
    elif isinstance(error, TimeoutError):
        text = "did not answer in time"
    else:
        text = f"failed: {str(error) or type(error).__name__}"
    text = redactor.text(f"{target.where} {text}")
    return kind(text, server=target.name, outcome_known=known)


def is_sign_in(error: BaseException) -> bool:
    """True if *error* means that the user is not signed in, and cannot be."""
    failure = _failure_in(error)
    return failure is not None and failure.sign_in


def is_gone(error: BaseException) -> bool:
    """True if *error* means that the connection is over."""
    return _is_closed(error) or is_unknown_session(error)


def is_unknown_session(error: BaseException) -> bool:
    """True if a server over HTTP has forgotten the connection, and has not read the call."""
    failure = _failure_in(error)
    return failure is not None and failure.forgotten


def _failure_in(error: BaseException) -> Failure | None:
    if isinstance(error, HttpFailure):
        return error.failure
    data = error.data if isinstance(error, MCPError) else None
    return data if isinstance(data, Failure) else None


def _is_closed(error: BaseException) -> bool:
    """True if the SDK made *error* because the connection has ended."""
    # One of the server with this code has a `Failure`.
    return (
        isinstance(error, MCPError)
        and error.code == CONNECTION_CLOSED
        and _failure_in(error) is None
    )
