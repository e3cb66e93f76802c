"""
The chat-completions format, both ways: a request becomes a body, chunks become stream events.

OpenAI's format is spoken by many servers, each with deviations: usage late, never, or in every
chunk; thinking under three names; every tool call as number 0; a reason to finish that does not fit
the content. Requests keep to the fields that all of them take; the reader allows for all
deviations. Pure functions of data: the transport is in `looopy.llm.openai.provider`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from looopy.errors import LLMUnavailable
from looopy.llm.dialects import PLAIN, Dialect
from looopy.llm.documents import (
    AUDIO_FORMATS,
    Unreadable,
    as_text,
    data_url,
    document_text,
    file_name,
    plain_type,
    refuse_unreadable,
)
from looopy.llm.openai.form import NO_EFFORT, REASONING, call_id_for, in_turns, mark
from looopy.llm.openai.vendor import (
    UNSIGNED,
    Vendor,
    add_detail,
    packed,
    unpacked,
    wants_signatures,
)
from looopy.llm.options import left_out, strict_parameters
from looopy.llm.reader import AnswerReader
from looopy.llm.strict import NotStrict, strict_schema
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    Cost,
    DocumentContent,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserBlock,
    UserMessage,
)
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ThinkingLevel, ToolSpec

API = "openai-completions"
"""The name of this format in messages; pi's."""
_THINKING_FIELDS = (REASONING, "reasoning", "reasoning_text")
_STOP_REASONS = {
    "stop": StopReason.STOP,
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.SENSITIVE,
    "sensitive": StopReason.SENSITIVE,
    # Gemini's, which some gateways hand on.
    **dict.fromkeys(
        ("safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"),
        StopReason.SENSITIVE,
    ),
}
_BROKEN_OFF = frozenset({"error", "network_error"})
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
TOOL_CHOICES = frozenset({"auto", "none", "required"})


def to_body(
    request: LLMRequest,
    options: StreamOptions,
    *,
    provider: str,
    model: str,
    official: bool,
    vendor: Vendor = "",
    dialect: Dialect = PLAIN,
) -> tuple[dict[str, Any], list[int]]:
    """
    Write the body of a streamed request.

    Args:
        request: Its messages are valid for a provider; custom roles are left out.
        options: Those that are `None` or empty are not sent.
        provider: Thinking is sent back only to the provider it came from.
        model: Its name at the server.
        official: The server is OpenAI's own or Azure's, which know fields that others refuse.
        vendor: The server's, if it has fields of its own.
        dialect: The rules of the server and the model.

    Returns:
        The body, and for each of its messages the position in `request.messages`; -1 for one that
        comes from no message, such as the system prompt.

    Raises:
        UnsupportedContent: The user's newest message has a file that the format has no place for.
        UnsupportedOption: The schema of a strict tool has no strict form.
    """
    signed = wants_signatures(vendor, model)
    parts = _Parts(request.messages, provider, model, vendor)
    messages, sources = _messages(request, provider, vendor, parts, dialect, signed=signed)
    if dialect.alternates or dialect.answers_tools:
        messages, sources = in_turns(messages, sources, dialect)
    if dialect.cache_marks:
        mark(messages, ephemeral=request.ephemeral)
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if request.tools:
        body["tools"] = [_tool(spec, provider, model) for spec in request.tools]
        if options.tool_choice:
            body["tool_choice"] = _tool_choice(options.tool_choice)
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.max_tokens is not None:
        body["max_completion_tokens" if official else "max_tokens"] = options.max_tokens
    if options.stop:
        body["stop"] = list(options.stop)
    if options.seed is not None:
        body["seed"] = options.seed
    if options.logprobs is not None:
        body["logprobs"] = True
        # Without an alternative llama.cpp sends none at all.
        if top := options.logprobs if official else max(1, options.logprobs):
            body["top_logprobs"] = top
    body.update(_thinking(options, official=official, vendor=vendor))
    if options.output_schema is not None:
        grammar = not official and vendor in ("", "ollama")
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": named_schema(options.output_schema, lengths=grammar),
        }
    if options.session_id and official:
        body["prompt_cache_key"] = opaque(options.session_id)
    return body, sources


def _messages(
    request: LLMRequest,
    provider: str,
    vendor: Vendor,
    parts: _Parts,
    dialect: Dialect,
    *,
    signed: bool,
) -> tuple[list[dict[str, Any]], list[int]]:
    sent: list[dict[str, Any]] = []
    sources: list[int] = []
    if request.system_prompt:
        sent.append({"role": "system", "content": request.system_prompt})
        sources.append(-1)
    loop_begins = _last_user(request.messages)
    files: list[UserBlock] = []
    files_of = 0
    for position, message in enumerate(request.messages):
        if files and not isinstance(message, ToolResultMessage):
            sent.append(_attached(files, files_of, parts))
            sources.append(files_of)
            files = []
        wire: dict[str, Any] | None = None
        if isinstance(message, UserMessage):
            wire = _user(message, position, parts)
        elif isinstance(message, AssistantMessage):
            own = message.provider == provider
            recent = position > loop_begins
            wire = _assistant(message, vendor, dialect, own=own, recent=recent)
            if signed and wire is not None:
                _sign(wire)
        elif isinstance(message, ToolResultMessage):
            wire = _tool_result(message, dialect)
            files += [b for b in message.content if not isinstance(b, TextContent)]
            files_of = position
        if wire is not None:
            sent.append(wire)
            sources.append(position)
    if files:
        sent.append(_attached(files, files_of, parts))
        sources.append(files_of)
    return sent, sources


def _last_user(messages: Sequence[Message]) -> int:
    return next(
        (i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], UserMessage)), -1
    )


def _user(message: UserMessage, position: int, parts: _Parts) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "user", "content": message.content}
    if all(isinstance(b, TextContent) for b in message.content):
        return {"role": "user", "content": message.text}
    return {"role": "user", "content": [parts.of(b, position) for b in message.content]}


class _Parts:
    """Writes the blocks of users and tools; a file that has no place is refused or named."""

    __slots__ = ("_messages", "_model", "_provider", "_vendor")

    def __init__(
        self, messages: Sequence[Message], provider: str, model: str, vendor: Vendor
    ) -> None:
        self._messages = messages
        self._provider = provider
        self._model = model
        self._vendor: Vendor = vendor

    def of(self, block: UserBlock, position: int) -> dict[str, Any]:
        """*block* of the message at *position* as a part of a message's content."""
        if isinstance(block, TextContent):
            return {"type": "text", "text": block.text}
        try:
            return _file_part(block, self._vendor)
        except Unreadable as why:
            text = refuse_unreadable(
                block,
                position,
                self._messages,
                why,
                provider=self._provider,
                model=self._model,
            )
            return {"type": "text", "text": text}


def _file_part(
    block: ImageContent | DocumentContent | AudioContent, vendor: Vendor
) -> dict[str, Any]:
    if isinstance(block, ImageContent):
        url = block.url if block.url is not None and not block.data else data_url(block)
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(block, AudioContent):
        audio = {"data": block.data, "format": audio_format(block)}
        return {"type": "input_audio", "input_audio": audio}
    text = document_text(block)
    if text is not None:
        return {"type": "text", "text": as_text(block, text)}
    if block.data:
        source = data_url(block)
    elif vendor == "openrouter":
        source = block.url or ""
    else:
        raise Unreadable(
            "chat completions take no URL of a document; give its data, or call the model through"
            " the Responses API, as openai-responses/..."
        )
    return {"type": "file", "file": {"filename": file_name(block), "file_data": source}}


def audio_format(block: AudioContent) -> str:
    """The name of a recording's format; raises `Unreadable` if the API does not take it."""
    found = AUDIO_FORMATS.get(plain_type(block))
    if found is None:
        raise Unreadable(f"it takes {', '.join(sorted(set(AUDIO_FORMATS.values())))}")
    return found


def _attached(files: Sequence[UserBlock], position: int, parts: _Parts) -> dict[str, Any]:
    """Files of tool results: the format has no place for them but a message of the user."""
    images = all(isinstance(b, ImageContent) for b in files)
    kind = "image" if images else "file"
    note = {"type": "text", "text": f"Attached {kind}(s) from tool result:"}
    return {"role": "user", "content": [note, *(parts.of(b, position) for b in files)]}


def _assistant(
    message: AssistantMessage, vendor: Vendor, dialect: Dialect, *, own: bool, recent: bool
) -> dict[str, Any] | None:
    wire: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    calls = message.tool_calls
    if calls:
        wire["tool_calls"] = [_call(call, dialect) for call in calls]
    returned = dialect.reasoning == "all" or (dialect.reasoning == "calls" and bool(calls))
    if own:
        _add_signed(wire, message, vendor, thinking=recent and bool(calls) and not returned)
    if returned:
        thought = message.thinking_text if own else ""
        wire[REASONING] = thought or dialect.no_reasoning
    return wire if calls or wire["content"] else None


def _call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    return {
        "id": call_id_for(call.id, dialect),
        "type": "function",
        "function": {
            "name": plain_name(call.name),
            "arguments": json.dumps(call.arguments, ensure_ascii=False),
        },
    }


def _add_signed(
    wire: dict[str, Any], message: AssistantMessage, vendor: Vendor, *, thinking: bool
) -> None:
    """Add what the vendor wants back as it came: signatures, reasoning, and recent *thinking*."""
    calls = iter(wire.get("tool_calls", ()))
    for block in message.content:
        fields: dict[str, Any] = {}
        if isinstance(block, ThinkingContent):
            fields = unpacked(block.thinking_signature)
            # Otherwise the signature is the name of the field that the thinking came in.
            if thinking and block.thinking_signature in _THINKING_FIELDS:
                key = str(block.thinking_signature)
                wire[key] = wire.get(key, "") + block.thinking
        elif isinstance(block, ToolCall):
            call, fields = next(calls), unpacked(block.thought_signature)
            if "extra_content" in fields:
                call["extra_content"] = fields["extra_content"]
            elif block.thought_signature and not fields and vendor == "google":
                call["extra_content"] = {"google": {"thought_signature": block.thought_signature}}
        elif isinstance(block, TextContent):
            fields = unpacked(block.text_signature)
            if "extra_content" in fields:
                wire["extra_content"] = fields["extra_content"]
        if details := fields.get("reasoning_details"):
            wire["reasoning_details"] = [*wire.get("reasoning_details", ()), *details]


def _sign(wire: dict[str, Any]) -> None:
    """Mark calls of another model, which bear no signature, so that Gemini takes them."""
    calls = wire.get("tool_calls")
    if calls and not any("extra_content" in call for call in calls):
        calls[0]["extra_content"] = UNSIGNED


def _tool_result(message: ToolResultMessage, dialect: Dialect) -> dict[str, Any]:
    files = [b for b in message.content if not isinstance(b, TextContent)]
    kind = "image" if all(isinstance(b, ImageContent) for b in files) else "file"
    return {
        "role": "tool",
        "tool_call_id": call_id_for(message.tool_call_id, dialect),
        "content": message.text or (f"(see attached {kind})" if files else "(no output)"),
    }


def _tool(spec: ToolSpec, provider: str, model: str) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }
    if spec.strict:
        function["parameters"] = strict_parameters(spec, provider=provider, model=model)
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: str) -> Any:
    if choice in TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _thinking(options: StreamOptions, *, official: bool, vendor: Vendor) -> dict[str, Any]:
    level = effort_of(options, official=official, vendor=vendor)
    if level is None:
        return {}
    budget = (options.thinking_budgets or {}).get(level)
    if vendor == "openrouter":
        if budget is not None:  # the one server that takes a number
            return {"reasoning": {"max_tokens": budget}}
        if level == NO_EFFORT:
            return {"reasoning": {"effort": level}}
    return {"reasoning_effort": level}


def effort_of(options: StreamOptions, *, official: bool, vendor: Vendor = "") -> str | None:
    """The effort of thinking; `None`: the model's own choice."""
    level = options.thinking_level
    if level is None:
        return None
    if level == ThinkingLevel.OFF:
        if official or vendor in ("openrouter", "ollama"):
            return NO_EFFORT
        # Elsewhere the word is refused.
        left_out(options, "thinking_level", "this server has no option to leave thinking out")
        return None
    if level == ThinkingLevel.XHIGH and not official:
        left_out(options, "thinking_level", "this server takes no effort 'xhigh': 'high'")
        level = ThinkingLevel.HIGH
    return level.value


def named_schema(schema: Mapping[str, Any], *, lengths: bool = False) -> dict[str, Any]:
    """*schema* as both formats take it: with a name, and in its strict form if it has one."""
    name = plain_name(str(schema.get("title") or "output"))
    try:
        made = strict_schema(schema, lengths=lengths)
        return {"name": name, "schema": made, "strict": True}
    except NotStrict:
        return {"name": name, "schema": dict(schema), "strict": False}


def plain_name(name: str) -> str:
    """A name that servers take: a model may have called a tool by one that they would refuse."""
    return _NO_NAME.sub("_", name)[:_MAX_NAME] or "unknown"


def without(body: dict[str, Any], part: str, instead: str = "") -> dict[str, Any]:
    """
    *body* without a *part* that the server refused.

    Args:
        part: A field's name, or `effort:` and the effort that was refused.
        instead: The other name of the field, or the effort that the server takes.
    """
    name, _, value = part.partition(":")
    field = "reasoning_effort" if name == "effort" else name
    if field not in body or (value and body[field] != value):
        return body
    rest = {key: found for key, found in body.items() if key != field}
    if instead:
        rest |= {field: instead} if value else {instead: body[field]}
    return rest


def opaque(session_id: str) -> str:
    """A substitute for *session_id*, which often names a person: always the same digest."""
    return hashlib.sha256(session_id.encode(errors="replace")).hexdigest()[:32]


class _Splices:
    """
    Finds the chunks of a second answer in the stream of the first.

    A gateway that loses its server begins the answer again, often in the same stream. Chunks of a
    second answer have another id, and begin with a role alone. Both are signs only at a server that
    keeps to them: some send another id with each chunk, or none; some send the role with each.
    """

    __slots__ = ("_ids", "_last", "_one_role", "_repeats", "_spoken")

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids
        self._last = ""
        self._repeats = False  # two chunks in a row had one id
        self._spoken: dict[str, None] = {}  # the ids of chunks with content
        self._one_role: bool | None = None  # the answer began with a role alone, and that was all

    def found(self, chunk_id: Any, *, spoke: bool, role: bool, ended: bool) -> bool:
        """
        True if a chunk belongs to a second answer.

        Args:
            chunk_id: The chunk's.
            spoke: It had content.
            role: It had a role.
            ended: The answer had a reason to finish before it.
        """
        if self._one_role is None and (role or spoke):
            self._one_role = role and not spoke
        elif role and spoke:
            self._one_role = False
        if role and not spoke and self._one_role and self._spoken:
            return True
        chunk_id = chunk_id if isinstance(chunk_id, str) and self._ids else ""
        self._repeats = self._repeats or (bool(chunk_id) and chunk_id == self._last)
        self._last = chunk_id
        if spoke:
            self._spoken[chunk_id] = None
        # Content under more than two ids: each chunk has its own.
        changed = len(self._spoken) == 2 and "" not in self._spoken
        return changed and (self._repeats or (spoke and ended))


@dataclass(slots=True, eq=False, repr=False)
class ChunkReader(AnswerReader):
    """
    Reads one answer's chunks.

    Args:
        sources: Like `to_body` returns it.
        ids: The ids of chunks are the server's.
        apart: The server counts thoughts apart from the tokens of its answer.
    """

    _: KW_ONLY
    ids: InitVar[bool] = True
    apart: bool = False
    _finish: str | None = field(init=False, default=None)
    _usage: Usage | None = field(init=False, default=None)
    # A vendor's fields for the next request: OpenRouter's reasoning, Google's signature of a text.
    _details: list[dict[str, Any]] = field(init=False, default_factory=list)
    _extra: dict[str, Any] | None = field(init=False, default=None)
    _splices: _Splices = field(init=False)

    def __post_init__(self, ids: bool) -> None:
        self._splices = _Splices(ids=ids)

    @property
    def finished(self) -> bool:
        """True once the server gave a reason to finish: only usage may still come."""
        return self._finish is not None

    @property
    def complete(self) -> bool:
        """True if nothing more is expected."""
        return self.finished and self._usage is not None

    def feed(self, data: str) -> list[StreamEvent]:
        """Read one chunk, or a whole answer that does not stream; `LLMError` for any other."""
        chunk = self._parsed(data)
        if isinstance(chunk, dict) and chunk.get("error"):
            raise self._reported(chunk)
        if isinstance(chunk, dict) and self._answer.response_id is None:
            self._named(chunk.get("id"))
            self._by(chunk.get("model"))
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        usage = chunk.get("usage") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            if not isinstance(usage, dict) and not isinstance(chunk, dict):
                raise self._invalid("an invalid chunk")
            choices = []
        events: list[StreamEvent] = []
        role, ended = False, self.finished
        for choice in choices:
            if not isinstance(choice, dict):
                raise self._invalid("a choice that is not an object")
            if choice.get("index", 0) in (0, None):
                usage = usage or choice.get("usage")
                delta = self._read_choice(choice, events)
                role = bool(delta.get("role")) and not (usage or choice.get("finish_reason"))
        chunk_id = chunk.get("id") if isinstance(chunk, dict) else None
        if self._splices.found(chunk_id, spoke=bool(events), role=role, ended=ended):
            raise self._spliced()
        if isinstance(usage, dict):
            self._usage = read_usage(usage, apart=self.apart)
            self._answer.usage = self._usage
        return events

    def end(self, *, said_done: bool) -> tuple[StreamEvent, ...]:
        """
        End the stream, *said_done* by `[DONE]`; `LLMUnavailable` without a sign that all is there.
        """
        if not self.finished and not said_done:
            raise self._broke_off()
        if self._finish in _BROKEN_OFF:
            raise LLMUnavailable(
                f"{self._answer.provider} ended the answer with finish_reason {self._finish!r}",
                provider=self._answer.provider,
                model=self._answer.model,
            )
        if self._details:
            signature = packed(reasoning_details=self._details)
            self._answer.sign_last(signature, "thinking", "toolcall", "text")
        if self._extra:
            self._answer.sign_last(packed(extra_content=self._extra), "text")
        reason = _STOP_REASONS.get((self._finish or "stop").lower(), StopReason.STOP)
        return self._ended(self._answer.done(reason), self._finish)

    def _read_choice(self, choice: dict[str, Any], events: list[StreamEvent]) -> Mapping[str, Any]:
        """Add the *events* of a choice; return its delta."""
        delta = choice.get("delta") or self._whole(choice.get("message")) or {}
        if not isinstance(delta, dict):
            raise self._invalid("a delta that is not an object")
        for name in _THINKING_FIELDS:
            thinking = delta.get(name)
            if thinking and isinstance(thinking, str):
                events += self._answer.thinking_delta(thinking, signature=name)
                break
        details = delta.get("reasoning_details")
        for piece in details if isinstance(details, list) else ():
            if isinstance(piece, dict):
                add_detail(self._details, piece)
        self._read_content(delta.get("content"), events, thought=self._read_extra(delta))
        annotations = delta.get("annotations")
        for one in annotations if isinstance(annotations, list) else ():
            if isinstance(one, dict):
                events += self._answer.cite(citation_of(one))
        weighed = choice.get("logprobs")
        if isinstance(weighed, dict):
            self._weigh(weighed.get("content"))
            self._weigh(weighed.get("refusal"))
        if isinstance(refusal := delta.get("refusal"), str):
            events += self._answer.text_delta(refusal)
        found = delta.get("tool_calls")
        calls = [found] if isinstance(found, dict) else found if isinstance(found, list) else []
        for place, call in enumerate(calls):
            if isinstance(call, dict):
                if len(calls) > 1 and call.get("index") is None:
                    call = {**call, "index": place}  # noqa: PLW2901 - with the number that it has
                events += self._read_call(call)
        if finish := choice.get("finish_reason"):
            self._finish = str(finish)
        return delta

    def _whole(self, message: Any) -> Any:
        """A whole *message*, without the parts that some servers repeat at the end of a stream."""
        if not isinstance(message, dict) or not self._answer.has_content:
            return message
        calls = None if self._answer.has_calls else message.get("tool_calls")
        text = None if self._answer.text else message.get("content")
        return {"content": text, "tool_calls": calls}

    def _read_extra(self, delta: Mapping[str, Any]) -> bool:
        """Keep Google's signature of a text; return true if the text is a thought."""
        extra = delta.get("extra_content")
        if not isinstance(extra, dict):
            return False
        parts = [part for part in extra.values() if isinstance(part, dict)]
        if any("thought_signature" in part for part in parts):
            self._extra = extra
        return any(part.get("thought") is True for part in parts)

    def _read_content(self, content: Any, events: list[StreamEvent], *, thought: bool) -> None:
        if isinstance(content, str) and thought:
            events += self._answer.thinking_delta(content)
        elif isinstance(content, str):
            events += self._answer.text_delta(content)
        elif isinstance(content, list):  # Mistral: a list of parts, thinking among them
            for part in content:
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    events += self._answer.text_delta(part["text"])
                elif isinstance(part, dict) and isinstance(part.get("thinking"), list):
                    for inner in part["thinking"]:
                        if isinstance(inner, dict) and isinstance(inner.get("text"), str):
                            events += self._answer.thinking_delta(inner["text"])

    def _read_call(self, call: dict[str, Any]) -> tuple[StreamEvent, ...]:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        extra = call.get("extra_content")
        signature = packed(extra_content=extra) if isinstance(extra, dict) and extra else ""
        place, call_id, name = call.get("index"), call.get("id"), function.get("name")
        return self._tool_call(place, call_id, name, arguments, signature)


def read_usage(data: Mapping[str, Any], *, apart: bool = False) -> Usage:
    """
    Read a usage object. Its `prompt_tokens` include what the cache served; `input` does not.

    Args:
        apart: The server counts thoughts in `total_tokens`, not in `completion_tokens`.
    """
    details = data.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    prompt = count(data, "prompt_tokens")
    output = count(data, "completion_tokens")
    cached = count(details, "cached_tokens") or count(data, "prompt_cache_hit_tokens")
    written = count(details, "cache_write_tokens")
    total = count(data, "total_tokens")
    reasoning = reasoning_in(data.get("completion_tokens_details"))
    rest = thoughts_beside(total - prompt - output, reasoning, apart=apart)
    output += rest
    return Usage(
        input=max(0, prompt - cached - written),
        output=output,
        cache_read=cached,
        cache_write=written,
        total_tokens=total or prompt + output,
        cost=_told_cost(data.get("cost")),
        reasoning=min(output, max(reasoning, rest)),
    )


def thoughts_beside(rest: int, reasoning: int, *, apart: bool = False) -> int:
    """
    The thoughts that a server has not counted as output; 0 if its output includes them.

    Args:
        rest: The part of its total that is neither input nor output.
        reasoning: Its number of thoughts; 0 if it reports none.
        apart: It is known to count so. At another server only equal numbers show it.
    """
    return rest if rest > 0 and (apart or rest == reasoning) else 0


def reasoning_in(details: Any) -> int:
    """The tokens of thought in the details of an output."""
    return count(details, "reasoning_tokens") if isinstance(details, Mapping) else 0


def citation_of(annotation: Mapping[str, Any]) -> Citation:
    """An annotation of either format as a citation."""
    inner = annotation.get(str(annotation.get("type")))  # chat completions wrap it
    said = inner if isinstance(inner, Mapping) else annotation
    found = {name: said.get(name) for name in ("url", "title", "filename", "content")}
    texts = {name: text for name, text in found.items() if isinstance(text, str) and text}
    return Citation(
        url=texts.get("url"),
        title=texts.get("title") or texts.get("filename"),
        text=texts.get("content"),
        raw=dict(annotation),
    )


def _told_cost(dollars: Any) -> Cost | None:
    """The cost that the server reports, as OpenRouter does."""
    known = isinstance(dollars, (int, float)) and not isinstance(dollars, bool) and dollars >= 0
    return Cost(total=float(dollars)) if known and dollars < 2**53 else None


def count(data: Mapping[str, Any], name: str) -> int:
    """A number of tokens; 0 for any other value."""
    value = data.get(name)
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**53 else 0
