"""
A request becomes the body of an Anthropic Messages API call.

The API wants user and assistant in turns: neighbouring messages of one role are sent as one, the
results of tools first. Thinking goes back byte for byte to the model that signed it. Up to four
marks select the parts that the API caches: tools, system prompt, and the last two messages of the
user's side. So each request finds what the one before it left there, even if much came in between.
Marks are not part of the cached text; nothing else in the body changes as a history grows.

Pure functions of data: the transport is in `looopy.llm.anthropic.provider`, answers are read by
`looopy.llm.anthropic.events`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from looopy.llm.anthropic.models import Abilities
from looopy.llm.documents import (
    Unreadable,
    document_text,
    image_type,
    plain_type,
    refuse_unreadable,
)
from looopy.llm.options import left_out, refused, strict_parameters
from looopy.llm.render import CUT_OFF, render
from looopy.llm.strict import NotStrict, strict_schema
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    AudioContent,
    Citation,
    DocumentContent,
    Message,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamOptions, ThinkingLevel, ToolSpec

API: Final = "anthropic-messages"
"""The name of this format in messages; pi's."""
PROVIDER: Final = "anthropic"
"""The name of the provider in messages."""
CacheTTL = Literal["5m", "1h"]
THINKING_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens for thinking at each level; `xhigh` has as many as `high`."""
_MIN_BUDGET: Final = 1024  # https://platform.claude.com/docs/en/api/messages: budget_tokens
_MIN_OUTPUT: Final = 1024
_DEFAULT_OUTPUT: Final = 32_000
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF: Final = "application/pdf"
_STRANGE_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_ID: Final = 64
# https://platform.claude.com/docs/en/build-with-claude/preserved-thinking
_DROP_UNBOUND: Final = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
_BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
_SAID_BEFORE: Final = "(The conversation begins before this point.)"
_GO_ON: Final = "Continue."
_NOT_DONE: Final = "(The answer paused here.)"
SERVER_CALL: Final = "_tool_use"
"""The end of the types of calls of the server's own tools, MCP connectors' among them."""
SERVER_RESULT: Final = "_tool_result"
"""The end of the types of their results."""
Wire = dict[str, Any]


def to_body(
    request: LLMRequest,
    options: StreamOptions,
    *,
    model: str,
    abilities: Abilities,
    cache_ttl: CacheTTL | None = "5m",
) -> tuple[Wire, list[int]]:
    """
    Write the body of a streamed request.

    Args:
        request: Its messages are rendered for this provider and *model* once more, because a
            fallback may have rendered them for another. Rendering twice changes nothing.
        options: Those that are `None` or empty, or that *model* would refuse, are not sent.
        model: Its name at the server.
        abilities: The fields that *model* accepts.
        cache_ttl: How long the API keeps the marked parts; `None`: no marks.

    Returns:
        The body, and for each of its messages the position in `request.messages`; -1 for one that
        comes from no message.

    Raises:
        UnsupportedOption: The API has no place for an option.
        UnsupportedContent: The user's newest message has a file that the API has no place for.
    """
    quiet = options.thinking_level == ThinkingLevel.OFF and abilities.bound
    shown = render(request.messages, provider=PROVIDER, model=model)
    messages, sources = _messages(shown, model, thoughts=not quiet)
    _refuse_options(options, model, cited=_set_citations(messages))
    body: Wire = {"model": model, "messages": messages, "stream": True}
    tools = [_tool(spec, model, abilities) for spec in request.tools]
    forced = False
    if tools:
        if options.tool_choice:
            choice = _tool_choice(options.tool_choice)
            forced = choice["type"] in ("any", "tool") and abilities.forced_tools
            if forced or choice["type"] in ("auto", "none"):
                body["tool_choice"] = choice
            elif options.warn is not None:
                options.warn("tool_choice", f"{model} cannot be made to use a tool; it may")
    elif used := _tools_used(messages):
        # A history with tools in it is refused where none are defined.
        tools = [_gone(name) for name in used]
        body["tool_choice"] = {"type": "none"}
    if tools:
        body["tools"] = tools
    if request.system_prompt.strip():
        body["system"] = [{"type": "text", "text": request.system_prompt}]
    thinks = _set_thinking(body, options, abilities, forced=forced)
    _warn_of_thinking(options, model, abilities, thinks=thinks)
    if options.temperature is not None and abilities.temperature and not thinks:
        body["temperature"] = options.temperature
    elif options.temperature is not None:
        when = " when it thinks" if thinks else ""
        left_out(options, "temperature", f"{model} takes no temperature{when}")
    if stops := [stop for stop in options.stop if stop.strip()]:
        body["stop_sequences"] = stops
    if len(stops) < len(options.stop):
        left_out(options, "stop", f"{model} takes no stop sequence of white space alone")
    if options.output_schema is not None and abilities.schemas:
        schema = {"type": "json_schema", "schema": enforced(options.output_schema)}
        body.setdefault("output_config", {})["format"] = schema
    if options.session_id:
        body["metadata"] = {"user_id": _opaque(options.session_id)}
    if cache_ttl is not None:
        _mark(body, cache_ttl, ephemeral=request.ephemeral)
    return body, sources


def _refuse_options(options: StreamOptions, model: str, *, cited: bool) -> None:
    for option, given in (("seed", options.seed), ("logprobs", options.logprobs)):
        if given is not None:
            why = f"Anthropic's API takes no {option}: leave it out"
            raise refused(option, why, provider=PROVIDER, model=model)
    if cited and options.output_schema is not None:
        why = (
            "Anthropic's API gives no citations together with an output schema: leave out"
            " output_type, or DocumentContent.cite"
        )
        raise refused("output_schema", why, provider=PROVIDER, model=model)


def to_headers(body: Wire, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that *body* needs, together with the *headers* of the call, which win."""
    given = {name.lower(): value for name, value in headers.items()}
    if any(name in body for name in ("temperature", "top_p", "top_k")):
        # Later versions of the API have no such fields, whatever the model.
        given.setdefault("anthropic-version", "2023-06-01")
    if "block_binding" in body.get("thinking", {}):
        betas = [beta for beta in (given.get("anthropic-beta"), _BINDING_BETA) if beta]
        given["anthropic-beta"] = ",".join(betas)
    return given


# --- messages ----------------------------------------------------------------------------------


def _messages(
    messages: Sequence[Message], model: str = "", *, thoughts: bool = True
) -> tuple[list[Wire], list[int]]:
    def show(block: UserBlock, position: int) -> Wire:
        try:
            return _shown(block)
        except Unreadable as why:
            text = refuse_unreadable(block, position, messages, why, provider=PROVIDER, model=model)
            return {"type": "text", "text": text}

    sent: list[Wire] = []
    sources: list[int] = []
    for position, message in enumerate(messages):
        role, blocks = "user", []
        if isinstance(message, UserMessage):
            blocks = [show(block, position) for block in _said_by_user(message)]
        elif isinstance(message, ToolResultMessage):
            blocks = [_result(message, [show(block, position) for block in message.content])]
        elif isinstance(message, AssistantMessage) and not _superseded(messages, position):
            role = "assistant"
            blocks = [
                _said(block)
                for block in message.content
                if (thoughts or not isinstance(block, ThinkingContent)) and not _is_note(block)
            ]
        if not blocks:
            continue
        if not sent and role == "assistant":
            sent.append(_user_says(_SAID_BEFORE))
            sources.append(-1)
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
            sources.append(position)
    going_on = bool(messages) and _goes_on(messages[-1])
    begun: set[Any] = set()
    for place, one in enumerate(sent):
        if one["role"] == "assistant":
            _pair_server_tools(one, sent[place + 1 : place + 2], begun, going_on=going_on)
    if not sent or (sent[-1]["role"] == "assistant" and not going_on):
        # Later models refuse to continue prefilled words; and no model answers an empty list.
        sent.append(_user_says(_GO_ON))
        sources.append(-1)
    return sent, sources


def _goes_on(message: Message) -> bool:
    """True for an answer that its server paused: sent back as it is, the server continues it."""
    return (
        isinstance(message, AssistantMessage)
        and message.stop_reason is StopReason.PAUSED
        and any(isinstance(one, (ServerToolCall, ServerToolResult)) for one in message.content)
    )


def _is_note(block: AssistantBlock) -> bool:
    """True for the note in place of a server's block that was too large; the API refuses it."""
    return isinstance(block, (ServerToolCall, ServerToolResult)) and "omitted" in block.item


def _pair_server_tools(
    answer: Wire, following: Sequence[Wire], begun: set[Any], *, going_on: bool
) -> None:
    """
    Take the server's calls without a result, and results without a call, out of *answer*.

    The API refuses them. A pause is between the two, and the user spoke instead of letting the
    server continue, or a window begins there. Results of our own tools may come in between.

    Args:
        begun: The ids of the calls before; *answer*'s are added.
        going_on: The last answer is a paused one, which the server continues.
    """
    blocks = answer["content"]
    is_open = _has_results(following[0]) if following else going_on
    begun |= {block.get("id") for block in blocks if block["type"].endswith(SERVER_CALL)}
    done = {block.get("tool_use_id") for block in blocks}
    kept = [
        block
        for block in blocks
        if (not block["type"].endswith(SERVER_CALL) or is_open or block.get("id") in done)
        and (not block["type"].endswith(SERVER_RESULT) or block.get("tool_use_id") in begun)
    ]
    if len(kept) < len(blocks):
        answer["content"] = kept or [{"type": "text", "text": _NOT_DONE}]


def _superseded(messages: Sequence[Message], position: int) -> bool:
    """
    True for the rest of an answer that broke off and was, or is about to be, repeated.

    The user did not answer it, and beside the new one it would look like one answer.
    """
    message = messages[position]
    if not isinstance(message, AssistantMessage) or message.stop_reason not in CUT_OFF:
        return False
    after = messages[position + 1] if position + 1 < len(messages) else None
    return not message.tool_calls and not isinstance(after, UserMessage)


def _user_says(text: str) -> Wire:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _said_by_user(message: UserMessage) -> Sequence[UserBlock]:
    said = message.content
    return (TextContent(said),) if isinstance(said, str) else said


def _shown(block: UserBlock) -> Wire:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    if isinstance(block, AudioContent):
        raise Unreadable("Anthropic's API takes no audio; send its transcript as text")
    if isinstance(block, DocumentContent):
        return _document(block)
    if block.url is not None and not block.data:
        return {"type": "image", "source": {"type": "url", "url": block.url}}
    kind = image_type(block)
    if kind not in _IMAGES:
        return {"type": "text", "text": f"(an image of the type {kind}, not shown)"}
    source = {"type": "base64", "media_type": kind, "data": block.data}
    return {"type": "image", "source": source}


def _document(block: DocumentContent) -> Wire:
    text = document_text(block)
    if text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": text}
    elif plain_type(block) != _PDF:
        raise Unreadable("Anthropic's API takes PDF and text; convert it to one of them")
    elif block.data:
        source = {"type": "base64", "media_type": _PDF, "data": block.data}
    else:
        source = {"type": "url", "url": block.url or ""}
    wire: Wire = {"type": "document", "source": source}
    if block.cite:
        wire["citations"] = {"enabled": True}
    return wire | {"title": block.name} if block.name else wire


def _set_citations(messages: Sequence[Wire]) -> bool:
    """
    Ask for citations from all documents if one asks; return true if there are any.

    The API takes them for all documents of a request or for none. A citation of a document that the
    request no longer holds goes: its number would mean another one.
    """
    documents = [
        part
        for message in messages
        for block in message["content"]
        for part in (block, *(block.get("content") or ()))
        if isinstance(part, dict) and part.get("type") == "document"
    ]
    cited = any("citations" in document for document in documents)
    for document in documents if cited else ():
        document["citations"] = {"enabled": True}
    for message in messages:
        for block in message["content"] if message["role"] == "assistant" else ():
            if block["type"] == "text" and "citations" in block:
                kept = [c for c in block["citations"] if _number(c) < len(documents)]
                block["citations"] = kept
                if not kept:
                    del block["citations"]
    return cited


def _number(citation: Wire) -> int:
    """The number of the cited document in its request; -1 for another kind of source."""
    number = citation.get("document_index")
    return number if isinstance(number, int) else -1


def _result(message: ToolResultMessage, shown: list[Wire]) -> Wire:
    wire: Wire = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id)}
    if shown:
        wire["content"] = shown
    if message.is_error:
        wire["is_error"] = True
    return wire


def _said(block: AssistantBlock) -> Wire:
    if isinstance(block, TextContent):
        text: Wire = {"type": "text", "text": block.text}
        if block.citations:
            text["citations"] = [_cited(one) for one in block.citations]
        return text
    if isinstance(block, (ServerToolCall, ServerToolResult)):
        return dict(block.item)
    if isinstance(block, ThinkingContent):
        if block.redacted:
            return {"type": "redacted_thinking", "data": block.thinking_signature}
        signature = block.thinking_signature
        return {"type": "thinking", "thinking": block.thinking, "signature": signature}
    return {
        "type": "tool_use",
        "id": _call_id(block.id),
        "name": block.name,
        "input": block.arguments,
    }


def _cited(citation: Citation) -> Wire:
    """A citation as the API takes it back: without the id of the file, which only answers have."""
    return {name: value for name, value in citation.raw.items() if name != "file_id"}


def _call_id(call_id: str) -> str:
    """*call_id*, or a stand-in that is the same each time, where the API would refuse it."""
    if call_id and len(call_id) <= _MAX_ID and not _STRANGE_ID.search(call_id):
        return call_id
    return "h" + hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:39]


# --- tools -------------------------------------------------------------------------------------


def _tool(spec: ToolSpec, model: str, abilities: Abilities) -> Wire:
    wire: Wire = {"name": spec.name, "input_schema": {"type": "object", **spec.parameters}}
    if spec.strict:
        facts = {"provider": PROVIDER, "model": model}
        if not abilities.schemas:
            why = f"{model} takes no strict tools: leave strict_tools out, or call a later model"
            raise refused("strict_tools", why, **facts)
        schema = strict_parameters(spec, every=False, bounds=False, **facts)
        wire |= {"input_schema": schema, "strict": True}
    if spec.description:
        wire["description"] = spec.description
    return wire


def _tools_used(messages: Sequence[Wire]) -> list[str]:
    """The names of the tools that *messages* call, in order of their first call."""
    names = (b["name"] for m in messages for b in m["content"] if b["type"] == "tool_use")
    return list(dict.fromkeys(names))


def _gone(name: str) -> Wire:
    description = "This tool is no longer available."
    return {"name": name, "input_schema": {"type": "object"}, "description": description}


def _tool_choice(choice: str) -> Wire:
    if choice in ("auto", "none"):
        return {"type": choice}
    if choice in ("any", "required"):
        return {"type": "any"}
    return {"type": "tool", "name": choice}


def enforced(schema: Mapping[str, Any]) -> Wire:
    """*schema* as the API takes it: closed, and without the limits that it does not know."""
    try:
        return strict_schema(schema, every=False, bounds=False)
    except NotStrict:  # then the API reports why
        return dict(schema)


# --- thinking ----------------------------------------------------------------------------------


def _set_thinking(
    body: Wire, options: StreamOptions, abilities: Abilities, *, forced: bool
) -> bool:
    """Set how much the model thinks and writes; return true if it was asked to think."""
    level = options.thinking_level
    if level == ThinkingLevel.OFF and abilities.off:
        body["thinking"] = {"type": abilities.off}
    elif abilities.bound:
        # It thinks anyway. Windows, compaction and prompts of each call change what came before.
        body["thinking"] = {"type": "adaptive", "display": "summarized", **_DROP_UNBOUND}
    if level in (None, ThinkingLevel.OFF) or forced or abilities.thinking == "none":
        # A call that has to use a tool leaves no room for thought: the API refuses both at once.
        unasked = abilities.thinking == "adaptive" and level is None
        room = 2 * _DEFAULT_OUTPUT if unasked else _DEFAULT_OUTPUT
        body["max_tokens"] = options.max_tokens or min(room, abilities.max_output)
        return False
    given = options.thinking_budgets or {}
    by_budget = abilities.thinking == "budget" or (abilities.thinking == "either" and bool(given))
    if not by_budget:
        body["max_tokens"] = options.max_tokens or min(2 * _DEFAULT_OUTPUT, abilities.max_output)
        body.setdefault("thinking", {"type": "adaptive", "display": "summarized"})
        body["output_config"] = {"effort": _effort(level, abilities)}
        return True
    wish = given.get(level.value) or _budget(level, given)
    body["max_tokens"] = most = options.max_tokens or min(
        _DEFAULT_OUTPUT + wish, abilities.max_output
    )
    budget = min(max(wish, _MIN_BUDGET), most - _MIN_OUTPUT)
    if budget < _MIN_BUDGET or not _may_begin_to_think(body["messages"]):
        return False
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return True


def _warn_of_thinking(
    options: StreamOptions, model: str, abilities: Abilities, *, thinks: bool
) -> None:
    """Warn if *model* does not think as it was asked to."""
    level = options.thinking_level
    if level == ThinkingLevel.OFF and not abilities.silent:
        left_out(options, "thinking_level", f"{model} always thinks")
    elif level not in (None, ThinkingLevel.OFF) and not thinks:
        left_out(options, "thinking_level", f"{model} does not think in this call")


def _budget(level: ThinkingLevel, given: Mapping[str, int]) -> int:
    if level == ThinkingLevel.XHIGH:
        level = ThinkingLevel.HIGH
    return given.get(level.value) or THINKING_BUDGETS[level.value]


def _effort(level: ThinkingLevel, abilities: Abilities) -> str:
    if level == ThinkingLevel.MINIMAL:
        return "low"
    return level.value if level.value in abilities.efforts else "high"


def _may_begin_to_think(messages: Sequence[Wire]) -> bool:
    """
    True if the API takes a budget for thinking at this point.

    It does not amid an exchange of calls and results that began without thinking, for instance
    after a change of the model: the API wants the answer that the exchange belongs to to begin with
    a thought.
    """
    last = len(messages) - 1
    while last >= 0 and (messages[last]["role"] != "user" or _has_results(messages[last])):
        last -= 1
    if last + 1 >= len(messages):
        return True
    first = messages[last + 1]["content"][0]
    return first["type"] in ("thinking", "redacted_thinking")


def _has_results(message: Wire) -> bool:
    return any(block["type"] == "tool_result" for block in message["content"])


# --- what the API keeps ------------------------------------------------------------------------


def _mark(body: Wire, ttl: CacheTTL, *, ephemeral: bool) -> None:
    mark = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    for part in ("tools", "system"):
        if body.get(part):
            body[part][-1]["cache_control"] = mark
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    if ephemeral:
        said[-1] = said[-1][:-1]
    ends = [blocks[-1] for blocks in said if blocks]
    for block in ends[-2:]:
        block["cache_control"] = mark


def _opaque(session_id: str) -> str:
    """A substitute for *session_id*: the API asks for an id that identifies no person."""
    return hashlib.sha256(session_id.encode(errors="replace")).hexdigest()[:32]
