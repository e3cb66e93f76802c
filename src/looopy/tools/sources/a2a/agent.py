"""
`RemoteAgent`: an agent elsewhere that speaks A2A, as a tool.

The turn's stream shows its output while it works, under a `path`; it is not stored here. Its
outcome is the tool's result. The remote agent remembers: calls from one context are one
conversation there. If it asks a question, the turn ends, and the answer continues its task.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from looopy.auth.redaction import Redactor
from looopy.errors import (
    ConfigurationError,
    InvalidTool,
    LooopyError,
    SignInFailed,
    ToolServerError,
    missing_extra,
)
from looopy.tools.asking import Ask, NeedsInput
from looopy.tools.base import NeedsApproval, Tool, ToolContext, ToolResult
from looopy.tools.call.results import error_text, to_json_text
from looopy.tools.schema import arguments_of
from looopy.tools.sources.headers import HeaderKeys, Headers, origin_of, redactor_of
from looopy.tools.sources.mcp.listing import usable_name
from looopy.tools.sources.server import ServerTools, waiting_for_sign_in, without_tools
from looopy.types.constructors import suggesting
from looopy.types.context import TurnContext
from looopy.types.event import MessageUpdate
from looopy.types.state import PendingKind

_MAX_PROMPT_CHARS = 4000
_MAX_DESCRIPTION_CHARS = 4000
_MAX_ERROR_CHARS = 1000
_MAX_KNOWN = 256  # sets of headers for which a card is cached
_RETRY_S = 10.0  # after a failed request for the card, the next one waits so long
_PARAMETERS = arguments_of(
    prompt={"type": "string", "description": "What to ask of the agent, in full."}
)


@suggesting
class RemoteAgent(ServerTools):
    """
    A source of one tool, `agent__NAME__invoke(prompt)`: an agent that speaks A2A.

    Args:
        url: The address of the agent, or of its card (`.../agent-card.json`).
        name: Part of the tool's name; by default the name on the card.
        description: For the model; by default the description on the card.
        headers: For each request: a mapping, or a function of the turn's `AuthContext` (or of
            `None`), sync or async, that returns one.
        origins: Places where the card may locate the agent, beside the origin of the card itself,
            as in `["https://agents.example"]`. No request goes elsewhere.
        conversation: Names the remote conversation of a call; by default one for each context of
            each user (tenant and actor of the turn's `AuthContext`).
        timeout_s: For one call.
        card_timeout_s: For the card.
        cache_s: How long the card is valid, for turns with the same headers.
        max_bytes: The longest answer that is read.
        needs_approval: See `Tool`.
        parallel: Calls may run beside other parallel tools.
        required: An agent without a readable card fails `start()`, and a turn, with
            `ToolServerError`; otherwise it costs the tool and a warning.

    Attributes:
        name: For messages: *name*, or the host. The card's name is used only in the tool's name.

    Raises:
        ConfigurationError: An option has an invalid value.
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
        if isinstance(origins, str):
            raise ConfigurationError("RemoteAgent: origins takes a list of addresses")
        for option, address in (("url", url), *(("origins", one) for one in origins)):
            if not _is_address(address):
                raise ConfigurationError(f"RemoteAgent: {option} must be an http or https address")
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise ConfigurationError("RemoteAgent: credentials go into headers=, not into url=")
        for key, value in (("card_timeout_s", card_timeout_s), ("max_bytes", max_bytes)):
            if value <= 0:
                raise ConfigurationError(f"RemoteAgent: {key} must be more than 0")
        super().__init__(headers, required=required)
        self.url = url
        self.name = name or str(parts.hostname)
        self.where = f"the remote agent {self.name!r}"  # as a message may name it
        self.card_timeout_s = card_timeout_s
        self.max_bytes = max_bytes
        self.origins = frozenset(origin_of(one) for one in (url, *origins))
        self.conversation = conversation
        self._named = name
        self._description = description
        self._cache_s = cache_s
        self._options: dict[str, Any] = {
            "needs_approval": needs_approval,
            "parallel": parallel,
            "timeout_s": timeout_s,
        }
        self._keys = HeaderKeys()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()  # those used last at the end

    async def _list(
        self, turn: TurnContext | None, warn: Callable[[str], object]
    ) -> Sequence[Tool]:
        known: _Known | None = None
        try:
            headers = await self.headers_for(None if turn is None else turn.auth_context)
            known = self._known_to(headers)
            return [await self._tool(known, headers, patient=turn is None)]
        except LooopyError as error:
            if self._fails(error, turn):
                raise
            kept = known.tool if known is not None else None
            if kept is None:
                warn(without_tools(error, "its tool is not on offer", "agent__"))
                return []
            warn(f"{error}; its tool is as it was")
            return [kept]

    def _known_to(self, headers: Mapping[str, str] | None) -> _Known:
        key = self._keys.key_of(headers)
        known = self._known.setdefault(key, _Known())
        self._known.move_to_end(key)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _tool(
        self, known: _Known, headers: Mapping[str, str] | None, *, patient: bool
    ) -> RemoteAgentTool:
        now = time.monotonic()
        if known.tool is not None and now < known.until:
            return known.tool
        if known.failure is not None and not patient and now < known.retry_at:
            raise copy.copy(known.failure)
        try:
            known.tool = await self._fetch(headers)
        except LooopyError as error:
            # A copy without its traceback, whose frames hold the headers.
            known.failure, known.retry_at = copy.copy(error), time.monotonic() + _RETRY_S
            raise
        known.failure, known.until = None, time.monotonic() + self._cache_s
        return known.tool

    async def _fetch(self, headers: Mapping[str, str] | None) -> RemoteAgentTool:
        sdk = await load_sdk()
        redactor = redactor_of(headers)
        try:
            card = await sdk.fetch_card(self, headers)
            described = [card.description, *(f"- {s.name}: {s.description}" for s in card.skills)]
            return RemoteAgentTool(
                self,
                name=self._tool_name(redactor.text(card.name)),
                description=redactor.text(self._description or "\n".join(described))[
                    :_MAX_DESCRIPTION_CHARS
                ],
                card=card,
                **self._options,
            )
        except Exception as error:  # noqa: BLE001 - whatever its card makes of the SDK
            raise self.failure(error, redactor, "did not show a card that can be read") from None

    def _tool_name(self, said: str) -> str:
        for name in (self._named, said, self.name):
            try:
                return usable_name(f"agent__{usable_name(name or '')[:40]}__invoke")
            except InvalidTool:  # it has no letter or digit that a tool's name may have
                continue
        return "agent__remote__invoke"

    def failure(self, error: Exception, redactor: Redactor, did: str) -> ToolServerError:
        """The `ToolServerError` for *error*: without secrets, at most a few lines long."""
        known = isinstance(error, ToolServerError)
        text = str(error) if known else f"{self.where} {did}: {error_text(error)}"
        text = redactor.text(text)
        if len(text) > _MAX_ERROR_CHARS:
            text = f"{text[:_MAX_ERROR_CHARS]}..."
        facts = error.facts if isinstance(error, ToolServerError) else {"outcome_known": False}
        kind = SignInFailed if isinstance(error, SignInFailed) else ToolServerError
        return kind(text, **{"server": self.name, **facts})

    def __repr__(self) -> str:
        return f"<RemoteAgent {self.name}>"


@dataclass(slots=True)
class _Known:
    """
    The cached tool of an agent, for all turns with the same headers.

    Attributes:
        until: The tool is valid until then; monotonic seconds, as `retry_at`.
        failure: The error of the last request for the card, if it failed.
    """

    tool: RemoteAgentTool | None = None
    until: float = 0.0
    failure: LooopyError | None = None
    retry_at: float = 0.0


class RemoteAgentTool(Tool):
    """The tool: one call is one message to the agent, or one for each answer to its questions."""

    def __init__(self, agent: RemoteAgent, *, card: Any, **options: Any) -> None:
        super().__init__(parameters=_PARAMETERS, effects="external", **options)
        self._agent = agent
        self._card = card

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """
        Send the prompt to the agent, and wait until it is done.

        Raises:
            NeedsInput: The agent asks something, or requests credentials.
            NeedsCredentials: It refuses the headers of the turn; it has not begun to work.
            ToolServerError: The agent cannot be reached, or its outcome is unknown.
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
            blocks = redactor.blocks(outcome.blocks)
        except Exception as error:  # noqa: BLE001 - whatever its answer makes of the SDK
            with waiting_for_sign_in():
                raise agent.failure(error, redactor, "gave an answer that cannot be read") from None
        if outcome.asks:
            raise _question(outcome, asked + 1, redactor.text(outcome.text))
        return ToolResult(
            blocks,
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


def _question(outcome: Any, asked: int, prompt: str) -> NeedsInput:
    kind = PendingKind.AUTH if outcome.wants_credentials else PendingKind.INPUT
    if len(prompt) > _MAX_PROMPT_CHARS:
        prompt = f"{prompt[:_MAX_PROMPT_CHARS]}..."
    state = {"task_id": outcome.task_id, "conversation": outcome.conversation, "asked": asked}
    return NeedsInput([Ask(_key(asked), kind, prompt)], state)


def _is_address(url: str) -> bool:
    try:
        scheme, host, _port = origin_of(url)
    except ValueError:
        return False
    return scheme in ("http", "https") and bool(host)


async def load_sdk() -> Any:
    """Import `sdk.py` in a thread, so that the loop stays free; `MissingExtra` without the SDK."""
    name = "looopy.tools.sources.a2a.sdk"
    try:
        return sys.modules.get(name) or await asyncio.to_thread(importlib.import_module, name)
    except ImportError as error:
        raise missing_extra(f"remote agents need the a2a-sdk package ({error})", "a2a") from None
