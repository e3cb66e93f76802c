"""
`RemoteAgent`: an agent that speaks A2A, wherever it is, as a tool.

What it says while it works is shown in the turn's stream, under a `path`, and stored nowhere here;
what it comes to is the tool's result. It remembers: calls from one context are one conversation
there. A question of its ends the turn, and the answer goes on with its task.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from looopy.errors import ConfigurationError, LooopyError, MissingExtra, ToolServerError
from looopy.tools.asking import Ask, NeedsInput
from looopy.tools.headers import Headers, make_headers, redactor_of
from looopy.tools.mcp.listing import usable_name
from looopy.tools.provider import NeedsApproval, Tool, ToolContext, ToolResult
from looopy.tools.results import to_json_text
from looopy.types.context import AuthContext, TurnContext
from looopy.types.event import MessageUpdate
from looopy.types.state import PendingKind

if TYPE_CHECKING:
    from looopy.tools.remote.sdk import Outcome

_MAX_PROMPT_CHARS = 4000
_MAX_DESCRIPTION_CHARS = 4000
_RETRY_S = 10.0  # a card that could not be had is asked for again after this
_PARAMETERS = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "What to ask of the agent, in full."}
    },
    "required": ["prompt"],
    "additionalProperties": False,
}


class RemoteAgent:
    """
    A source of one tool, `agent__NAME__invoke(prompt)`: an agent that speaks A2A.

    Args:
        url: Of the agent, or of its card (`.../agent-card.json`).
        name: In the tool's name; what the card says by default.
        description: For the model; what the card says by default.
        headers: For each request: a mapping, or a function of the turn's `AuthContext` (or of
            `None`), sync or async, that gives one.
        origins: Where the card may say that the agent is, beside where the card itself is, as in
            `["https://agents.example"]`. Nothing is sent elsewhere.
        conversation: Names the remote conversation of a call; by default one for each context of
            each user (tenant and actor of the turn's `AuthContext`).
        timeout_s: For one call.
        card_timeout_s: For the card.
        cache_s: How long the card counts.
        max_bytes: Longest answer that is read.
        needs_approval: See `Tool`.
        parallel: Calls may run beside other parallel tools.
        required: An agent whose card cannot be had fails `start()`, and a turn, with
            `ToolServerError`; otherwise it costs the tool and a warning.

    Raises:
        ConfigurationError: An option is not one of its values.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        description: str | None = None,
        headers: Headers | None = None,
        origins: Collection[str] = (),
        conversation: Callable[[ToolContext], str] | None = None,
        timeout_s: float = 300.0,
        card_timeout_s: float = 10.0,
        cache_s: float = 300.0,
        max_bytes: int = 16 * 1024 * 1024,
        needs_approval: NeedsApproval = False,
        parallel: bool = False,
        required: bool = False,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("RemoteAgent: url must be an http or https address")
        if parts.username or parts.password:
            raise ConfigurationError("RemoteAgent: credentials go into headers=, not into url=")
        if isinstance(origins, str):
            raise ConfigurationError("RemoteAgent: origins takes a list of addresses")
        for key, value in (("card_timeout_s", card_timeout_s), ("max_bytes", max_bytes)):
            if value <= 0:
                raise ConfigurationError(f"RemoteAgent: {key} must be more than 0")
        self.url = url
        self.name = name or parts.hostname
        self.card_timeout_s = card_timeout_s
        self.max_bytes = max_bytes
        self.origins = frozenset(origin_of(one) for one in (url, *origins))
        self.conversation = conversation
        self._named = name
        self._description = description
        self._headers = headers
        self._cache_s = cache_s
        self._required = required
        self._options: dict[str, Any] = {
            "needs_approval": needs_approval,
            "parallel": parallel,
            "timeout_s": timeout_s,
        }
        self._tool: tuple[float, RemoteAgentTool] | None = None
        self._failed: tuple[float, LooopyError] | None = None

    @property
    def where(self) -> str:
        """The agent as a message may name it."""
        return f"the remote agent {self.name!r}"

    async def list_tools(self) -> Sequence[Tool]:
        """
        The tool, outside a turn, as when an agent starts: none where *headers* is a function.

        Raises:
            ConfigurationError: The SDK is not installed.
            ToolServerError: A *required* agent cannot be reached.
        """
        if callable(self._headers):
            return []
        return await self._list(None, lambda _text: None, patient=True)

    async def list_for(self, turn: TurnContext, warn: Callable[[str], object]) -> Sequence[Tool]:
        """The tool on offer in *turn*; what keeps it away is told to *warn*."""
        return await self._list(turn.auth_context, warn, patient=False)

    async def _list(
        self, auth_context: AuthContext | None, warn: Callable[[str], object], *, patient: bool
    ) -> Sequence[Tool]:
        now = time.monotonic()
        if self._tool is not None and now < self._tool[0]:
            return [self._tool[1]]
        try:
            if self._failed is not None and not patient and now < self._failed[0]:
                raise self._failed[1]
            tool = await self._fetch(auth_context)
        except LooopyError as error:
            self._failed = (time.monotonic() + _RETRY_S, error)
            if self._required or (patient and isinstance(error, ConfigurationError)):
                raise
            warn(f"{error}; its tool is {'as it was' if self._tool else 'not on offer'}")
            return [] if self._tool is None else [self._tool[1]]
        self._failed, self._tool = None, (time.monotonic() + self._cache_s, tool)
        return [tool]

    async def _fetch(self, auth_context: AuthContext | None) -> RemoteAgentTool:
        sdk = await load_sdk()
        headers = await self.headers_for(auth_context)
        card = await sdk.fetch_card(self, headers)
        self.name = self._named or card.name or self.name
        described = [card.description, *(f"- {s.name}: {s.description}" for s in card.skills)]
        return RemoteAgentTool(
            self,
            name=usable_name(f"agent__{usable_name(self.name)[:40]}__invoke"),
            description=(self._description or "\n".join(described))[:_MAX_DESCRIPTION_CHARS],
            card=card,
            **self._options,
        )

    async def headers_for(self, auth_context: AuthContext | None) -> Mapping[str, str] | None:
        """
        The headers of a turn, made for this moment.

        Raises:
            ToolServerError: The function that makes them failed.
        """
        return await make_headers(self._headers, auth_context, where=self.where, server=self.name)

    def __repr__(self) -> str:
        return f"<RemoteAgent {self.name}>"


class RemoteAgentTool(Tool):
    """The tool: one call is one message to the agent, or one for each answer to its questions."""

    def __init__(self, agent: RemoteAgent, *, card: Any, **options: Any) -> None:
        super().__init__(parameters=_PARAMETERS, effects="external", **options)
        self._agent = agent
        self._card = card

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Ask the agent, and wait until it is done.

        Raises:
            NeedsInput: The agent asks something, or for credentials.
            ToolServerError: It cannot be reached, or its outcome is unknown.
        """
        sdk = await load_sdk()
        agent, state = self._agent, context.state or {}
        headers = await agent.headers_for(context.auth_context)
        redactor = redactor_of(headers)
        asked = int(state.get("asked", 0))
        text = arguments["prompt"]
        if asked:
            value = context.answers.get(_key(asked), "")
            text = value if isinstance(value, str) else to_json_text(value)
        request = sdk.Request(
            text=text,
            message_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{context.idempotency_key}/{asked}")),
            conversation=state.get("conversation") or self._conversation(context),
            task_id=state.get("task_id"),
        )

        def say(delta: str) -> None:
            context.show(MessageUpdate(context_id=request.conversation, delta=redactor.text(delta)))

        try:
            outcome = await sdk.converse(agent, self._card, headers, request, say)
        except ToolServerError as error:
            raise ToolServerError(redactor.text(error.message), **error.facts) from None
        if outcome.asks:
            raise _question(outcome, asked + 1, redactor.text(outcome.text))
        return ToolResult(
            redactor.blocks(outcome.blocks),
            details={"task_id": outcome.task_id, "state": outcome.state},
            is_error=outcome.failed,
        )

    def _conversation(self, context: ToolContext) -> str:
        if self._agent.conversation is not None:
            return self._agent.conversation(context)
        auth = context.auth_context
        who = (auth.tenant_id or "", auth.actor_id) if auth is not None else ("", "")
        name = "\n".join([self._agent.url, *who, context.context_id])
        return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def _key(asked: int) -> str:
    return f"question {asked}"


def _question(outcome: Outcome, asked: int, prompt: str) -> NeedsInput:
    kind = PendingKind.AUTH if outcome.wants_credentials else PendingKind.INPUT
    if len(prompt) > _MAX_PROMPT_CHARS:
        prompt = f"{prompt[:_MAX_PROMPT_CHARS]}..."
    state = {"task_id": outcome.task_id, "conversation": outcome.conversation, "asked": asked}
    return NeedsInput([Ask(_key(asked), kind, prompt)], state)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of *url*, as they are compared."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


async def load_sdk() -> Any:
    """
    `sdk.py`, loaded beside what else goes on.

    Raises:
        MissingExtra: The SDK is not installed.
    """
    name = "looopy.tools.remote.sdk"
    try:
        return sys.modules.get(name) or await asyncio.to_thread(importlib.import_module, name)
    except ImportError as error:
        raise MissingExtra(
            f"remote agents need the a2a-sdk package: pip install 'looopy[a2a]' ({error})"
        ) from None
