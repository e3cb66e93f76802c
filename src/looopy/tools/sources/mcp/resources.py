"""
Resources and prompts of a server: for the application by methods, for the model by two tools.

A resource is content under an address, which the model may read. A prompt is a text that a user
chooses, so it becomes messages for the application and never a tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looopy.auth.redaction import Redactor
from looopy.tools.base import Tool, ToolContext, ToolResult
from looopy.tools.schema import arguments_of
from looopy.tools.sources.mcp.results import blocks_of, resource_block
from looopy.tools.sources.server import waiting_for_sign_in
from looopy.types.context import AuthContext
from looopy.types.message import AssistantMessage, TextContent, UserBlock, UserMessage

_MAX_SHOWN = 200
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPResource:
    """
    A resource that a server offers.

    Attributes:
        uri: Its address. A template's has parts in braces, as in `file:///{path}`: fill them in.
        size_bytes: The server's figure, or `None`.
    """

    uri: str
    name: str
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    size_bytes: int | None = None
    is_template: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPPrompt:
    """
    A prompt that a server offers.

    Attributes:
        arguments: The descriptions of its arguments, by name.
        required: The names of the required ones.
    """

    name: str
    title: str | None = None
    description: str = ""
    arguments: Mapping[str, str]
    required: frozenset[str] = frozenset()


def to_resource(found: Any, redactor: Redactor) -> MCPResource:
    """*found*, a resource of the SDK or a template, in looopy's terms."""
    template = getattr(found, "uri_template", None)
    return MCPResource(
        uri=redactor.text(str(template if template is not None else found.uri)),
        name=redactor.text(found.name),
        title=redactor.text(found.title or "") or None,
        description=redactor.text(found.description or ""),
        mime_type=found.mime_type,
        size_bytes=getattr(found, "size", None),
        is_template=template is not None,
    )


def to_prompt(found: Any, redactor: Redactor) -> MCPPrompt:
    """*found*, a prompt of the SDK, in looopy's terms."""
    arguments = found.arguments or []
    return MCPPrompt(
        name=redactor.text(found.name),
        title=redactor.text(found.title or "") or None,
        description=redactor.text(found.description or ""),
        arguments={one.name: redactor.text(one.description or "") for one in arguments},
        required=frozenset(one.name for one in arguments if one.required),
    )


def to_blocks(contents: Sequence[Any], redactor: Redactor) -> tuple[UserBlock, ...]:
    """The contents of a resource."""
    return tuple(redactor.blocks(tuple(resource_block(one) for one in contents)))


def to_messages(answer: Any, redactor: Redactor) -> tuple[UserMessage | AssistantMessage, ...]:
    """The messages of a prompt; a file of the assistant becomes a note."""
    made: list[UserMessage | AssistantMessage] = []
    for one in answer.messages:
        blocks = redactor.blocks(tuple(blocks_of(one.content)))
        if one.role == "user":
            made.append(UserMessage(blocks))
            continue
        texts = (b if isinstance(b, TextContent) else TextContent("[a file]") for b in blocks)
        made.append(AssistantMessage(tuple(texts)))
    return tuple(made)


class ListResources(Tool):
    """The tool that lists the resources of a server."""

    def __init__(
        self,
        name: str,
        where: str,
        listed: Callable[[AuthContext | None], Awaitable[Sequence[MCPResource]]],
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            description=f"List the resources of {where}, with their addresses.",
            parameters={"type": "object", "properties": {}},
            effects="none",
            **options,
        )
        self._listed = listed

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Return a line for each.

        Raises:
            ToolServerError: The server cannot be reached, or its answer is invalid.
            NeedsCredentials: The user is not signed in.
        """
        del arguments
        with waiting_for_sign_in():
            found = await self._listed(context.auth_context)
        lines = [_line(one) for one in found[:_MAX_SHOWN]]
        if len(found) > _MAX_SHOWN:
            lines.append(f"[{len(found) - _MAX_SHOWN:,} more are not shown]")
        return ToolResult("\n".join(lines) or "There are no resources.")


class ReadResource(Tool):
    """The tool that reads a resource of a server."""

    def __init__(
        self,
        name: str,
        where: str,
        read: Callable[[str, AuthContext | None], Awaitable[tuple[UserBlock, ...]]],
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            description=f"Read a resource of {where}.",
            parameters=arguments_of(uri={"type": "string", "description": "Its address."}),
            effects="none",
            **options,
        )
        self._read = read

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Return its content: text and images, other content as a note.

        Raises:
            ToolServerError: The server has no such resource, or cannot be reached.
            NeedsCredentials: The user is not signed in.
        """
        with waiting_for_sign_in():
            return ToolResult(await self._read(arguments["uri"], context.auth_context))


def _line(one: MCPResource) -> str:
    said = " ".join(one.description.split())[:_MAX_TEXT]
    kind = f", {one.mime_type}" if one.mime_type else ""
    template = ", a template: fill in the braces" if one.is_template else ""
    return f"- {one.uri[:_MAX_TEXT]} ({one.title or one.name}{kind}{template}) {said}".rstrip()
