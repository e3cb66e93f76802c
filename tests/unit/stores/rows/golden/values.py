"""One value or more of every kind that a store keeps: each field is set at least once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from looopy.stores.records import (
    ContextRecord,
    ContextState,
    Entry,
    EntryKind,
    InboxHead,
    MessageRecord,
    TurnRecord,
)
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.auth import AuthRequest
from looopy.types.event import (
    ApprovalDecided,
    ArtifactUpdate,
    AuthRequired,
    Compaction,
    HistoryCleared,
    HistoryRewound,
    InputRequired,
    IterationEnd,
    IterationStart,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ServerToolEnd,
    ServerToolStart,
    StatusChange,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnError,
    TurnStart,
    TurnWarning,
    UsageReport,
)
from looopy.types.message import (
    AssistantMessage,
    AudioContent,
    Citation,
    Cost,
    CustomMessage,
    DocumentContent,
    ImageContent,
    ServerToolCall,
    ServerToolResult,
    StopReason,
    TextContent,
    ThinkingContent,
    TokenLogprob,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from looopy.types.state import AgentStatus, HeldCall, Outcome, PendingKind, PendingRequest

AT = datetime(2026, 11, 28, 6, 30, 15, 123457, tzinfo=UTC)
ODD = 'two\nlines, "quoted" \\ é \u2028 😀 \x7f \x01'
JSON = {"n": [1, -2.5, None, True, 10**18], "a/~": {"": ODD, "deep": [[[]], {}]}}
SHA = "ab" * 32

CALL = ToolCall("call_1", "look", JSON, thought_signature="t", invalid_arguments=None)
BROKEN = ToolCall("call_2", "look", {}, invalid_arguments='{"n": ')
COST = Cost(input=0.1, output=2.0, cache_read=1e-7, cache_write=0.25, total=2.3500001)
USAGE = Usage(
    input=10, output=5, cache_read=3, cache_write=2, total_tokens=21, reasoning=4, cost=COST
)
PDF = "JVBERi0="

MESSAGES = {
    "user": UserMessage("How are you?", timestamp=1),
    "user, empty": UserMessage("", timestamp=-5),
    "user, odd text": UserMessage(ODD, timestamp=2**53),
    "user, blocks": UserMessage(
        [
            TextContent("What is this?", text_signature="s"),
            ImageContent("aGk=", mime_type="image/gif"),
            ImageContent(url="https://example.test/a.png"),
            DocumentContent(PDF, name="offer.pdf", cite=True),
            DocumentContent(url="https://example.test/b.txt", mime_type="text/plain"),
            AudioContent("UklGRg==", mime_type="audio/mp3"),
        ],
        timestamp=3,
    ),
    "assistant, bare": AssistantMessage(timestamp=4),
    "assistant": AssistantMessage(
        [
            ThinkingContent("Hm.", thinking_signature="c2ln"),
            ThinkingContent("", thinking_signature="c2ln", redacted=True),
            TextContent(ODD, text_signature="s"),
            CALL,
            BROKEN,
        ],
        api="anthropic-messages",
        provider="anthropic",
        model="m-1",
        usage=USAGE,
        stop_reason=StopReason.TOOL_USE,
        response_id="msg_1",
        timestamp=5,
    ),
    "assistant, failed": AssistantMessage(
        "cut", stop_reason=StopReason.ERROR, error_message="gone", timestamp=6
    ),
    "assistant, sources": AssistantMessage(
        [
            ServerToolCall("srv_1", "web_search", {"q": "x"}, item={"type": "call", "z": [1]}),
            ServerToolResult("srv_1", "web_search", item={"ok": True}),
            TextContent(
                "As said.",
                citations=(
                    Citation(url="https://example.test", title="T", text="said", raw={"a": 1}),
                    Citation(),
                ),
            ),
        ],
        logprobs=(
            TokenLogprob("As", -0.5, (TokenLogprob("As", -0.5), TokenLogprob("So", -9999.0))),
            TokenLogprob(" said", -1),
        ),
        timestamp=7,
    ),
    **{
        f"assistant, {name}": AssistantMessage("x", usage=usage, timestamp=8)
        for name, usage in {
            "no price": Usage(input=1, output=1),
            "a whole price": Usage(input=1, cost=Cost(total=2)),
            "a price of zero": Usage(input=1, cost=Cost()),
            "a part of the price": Usage(input=1, cost=Cost(total=0.5, complete=False)),
            "no part of the price": Usage(input=1, cost=Cost(complete=False)),
        }.items()
    },
    **{
        f"assistant, {reason.value}": AssistantMessage("x", stop_reason=reason, timestamp=9)
        for reason in StopReason
    },
    "result": ToolResultMessage(
        tool_call_id="call_1", tool_name="look", content="found", timestamp=10
    ),
    "result, failed": ToolResultMessage(
        tool_call_id="call_2",
        tool_name="look",
        content=[TextContent("no"), ImageContent("aGk="), DocumentContent(PDF)],
        details=JSON,
        is_error=True,
        timestamp=11,
    ),
    "result, bare": ToolResultMessage(timestamp=12),
    "own role": CustomMessage("note", "hi", timestamp=13),
    "own role, JSON": CustomMessage("note", JSON, {"by": "app"}, timestamp=14),
    "result, other letters": ToolResultMessage(
        tool_call_id="call_1", tool_name="look", content="", details={"ä": {"😀": 1}}, timestamp=15
    ),
}

_ASKED = {"tool_name": "pay", "tool_call_id": "call_1", "turn": 2, "args": JSON}
REQUESTS = {
    "approval": PendingRequest(
        request_id="r1",
        kind=PendingKind.APPROVAL,
        prompt="Pay?",
        schema={"type": "object"},
        options=("yes", {"no": 1}),
        expires_at=AT,
        answered_by="bob",
        **_ASKED,
    ),
    "input": PendingRequest(request_id="r2", kind=PendingKind.INPUT, **_ASKED),
    "client tool": PendingRequest(request_id="r3", kind=PendingKind.CLIENT_TOOL, **_ASKED),
    "key": PendingRequest(
        request_id="r4",
        kind=PendingKind.AUTH,
        auth=AuthRequest(type="api-key", provider="bank", scopes=("read", "pay")),
        **_ASKED,
    ),
    "sign-in": PendingRequest(
        request_id="r5",
        kind=PendingKind.AUTH,
        auth=AuthRequest(
            type="oauth2",
            authorization_endpoint="https://bank.test/authorize",
            client_id="c",
            code_challenge="ch",
            redirect_uri="https://app.test/back",
            key={"kty": "EC"},
            request_id="r5",
            context_id="ada",
        ),
        **_ASKED,
    ),
}
HELD = {
    "held": HeldCall(tool_call_id="call_1", origin=1, asked_in=0),
    "held, everything": HeldCall(
        tool_call_id="call_1",
        origin=1,
        asked_in=2,
        keys={"r2": "k"},
        state=JSON,
        sealed={"r4": "s"},
        bound="d" * 64,
        died=True,
        args={"n": 1},
    ),
}

STATES = {
    "state, nothing": ContextState(),
    "state, sums": ContextState(
        usage=USAGE, run_us=5, sent="rewind 0a1b", trace=f"3 00-{'a' * 32}-{'b' * 16}-01"
    ),
    "state, everything": ContextState(
        pending=tuple(REQUESTS.values()),
        answered=((REQUESTS["input"], JSON), (REQUESTS["approval"], {"approved": True})),
        held=tuple(HELD.values()),
        error=("RateLimited", "too many"),
        resumable=2,
        usage=USAGE,
        output={"type": "object"},
        summary=3,
        charged=Usage(input=1, total_tokens=1),
        run_us=7,
        sent="fork 0a",
        trace=f"3 00-{'a' * 32}-{'b' * 16}-01",
        waits_for="a day's budget (Budget.max_day_tokens)",
        needs_auth=True,
        concluding=True,
        left_as=AgentStatus.PAUSED,
    ),
}

_BASE = {"context_id": "ada", "turn": 2, "iteration": 1, "timestamp": AT, "seq": 7}
_NAMED = {"tool_call_id": "call_1", "tool_name": "look"}
_USER, _SAID = MESSAGES["user"], MESSAGES["assistant"]
_RESULT, _FAILED = MESSAGES["result"], MESSAGES["result, failed"]
EVENTS = {
    "turn_start": TurnStart(**_BASE, user_message=_USER, continues=1, process="web-1"),
    "turn_start, bare": TurnStart(**_BASE),
    "iteration_start": IterationStart(**_BASE),
    "iteration_end": IterationEnd(
        **_BASE, message=_SAID, tool_results=(_RESULT, _FAILED), usage=USAGE
    ),
    "message_start": MessageStart(**_BASE, message=_SAID),
    "message_update": MessageUpdate(**_BASE, delta="Hel", content_index=1),
    "message_end": MessageEnd(
        **_BASE,
        message=_SAID,
        position=4,
        started=AT - timedelta(seconds=2),
        first_delta_s=0.25,
        attempts=3,
        usage=USAGE,
        request="0a1b",
    ),
    "message_end, user": MessageEnd(**_BASE, message=_USER, position=3),
    "tool_execution_start": ToolExecutionStart(**_BASE, **_NAMED, args=JSON),
    "tool_execution_start, edited": ToolExecutionStart(
        **_BASE, **_NAMED, args={"n": 1}, has_effects=True, edited=True
    ),
    "tool_execution_update": ToolExecutionUpdate(
        **_BASE, **_NAMED, partial_result=JSON, progress=0.5
    ),
    "tool_execution_end": ToolExecutionEnd(
        **_BASE,
        **_NAMED,
        result=_FAILED,
        is_error=True,
        started=AT - timedelta(seconds=1),
        duration_s=0.75,
    ),
    "server_tool_start": ServerToolStart(**_BASE, **_NAMED, args=JSON),
    "server_tool_end": ServerToolEnd(**_BASE, **_NAMED, args=JSON, is_error=True),
    "artifact_update": ArtifactUpdate(
        **_BASE,
        artifact_id="report",
        kind=ArtifactKind.FILE,
        version=3,
        append=True,
        last_chunk=False,
        failed=True,
        anew=True,
    ),
    "artifact_update, deleted": ArtifactUpdate(
        **_BASE, artifact_id="report", kind=ArtifactKind.DATASET, version=3, deleted=True
    ),
    "input_required": InputRequired(
        **_BASE, pending=(REQUESTS["approval"], REQUESTS["input"]), reason="budget"
    ),
    "auth_required": AuthRequired(**_BASE, pending=(REQUESTS["key"], REQUESTS["sign-in"])),
    "approval_decided": ApprovalDecided(
        **_BASE,
        **_NAMED,
        request_id="r1",
        decision="approved",
        actor_id="bob",
        args=JSON,
        text="fine",
    ),
    "approval_decided, expired": ApprovalDecided(
        **_BASE, **_NAMED, request_id="r1", decision="expired"
    ),
    "status_change": StatusChange(
        **_BASE,
        status=AgentStatus.BUSY,
        attempt=2,
        delay_s=0.5,
        next_at=_BASE["timestamp"],
        rate_limited=True,
        reason="busy",
    ),
    "usage": UsageReport(**_BASE, usage=USAGE, turn_usage=Usage(input=1)),
    "history_cleared": HistoryCleared(**_BASE, covers=(1, 9)),
    "history_rewound": HistoryRewound(**_BASE, covers=(3, 4), undone=True),
    "compaction": Compaction(
        **_BASE,
        covers=(1, 9),
        position=10,
        tokens_before=900,
        tokens_after=90,
        unread=2,
        undoes=5,
    ),
    "warning": TurnWarning(**_BASE, code="near_limit", text=ODD),
    "error": TurnError(**_BASE, code="doom_loop", text="again and again", fatal=True),
    "turn_end": TurnEnd(
        **_BASE,
        outcome=Outcome.FAILED,
        stop_reason=StopReason.DOOM_LOOP,
        messages=(_USER, _SAID, _FAILED, MESSAGES["own role"]),
        usage=USAGE,
    ),
}
COMMITS = {
    "commit of a whole turn": [
        EVENTS["turn_start"],
        EVENTS["message_end, user"],
        EVENTS["message_end"],
        EVENTS["tool_execution_start"],
        EVENTS["tool_execution_start, edited"],
        EVENTS["tool_execution_end"],
        replace(EVENTS["message_end"], message=_FAILED, attempts=1, request=None, started=None),
        EVENTS["turn_end"],
    ],
    **{
        f"commit of {name}": [event]
        for name, event in EVENTS.items()
        if name.split(",")[0]
        in {
            *("server_tool_start", "server_tool_end", "artifact_update", "input_required"),
            *("auth_required", "approval_decided", "history_cleared", "history_rewound"),
            *("compaction", "error"),
        }
    },
}

TURNS = {
    "turn, open": TurnRecord(
        turn=2, start_seq=5, first_position=3, last_position=2, started_at=AT, process="web-1"
    ),
    "turn": TurnRecord(
        turn=2,
        continues=1,
        actor_id="ada",
        had_auth=True,
        outcome=Outcome.COMPLETED,
        stop_reason=StopReason.STOP,
        start_seq=5,
        end_seq=9,
        first_position=3,
        last_position=6,
        started_at=AT,
        ended_at=AT + timedelta(seconds=3),
        usage=USAGE,
        metadata=JSON,
        process="web-1",
        recovered_by="web-2",
    ),
}
ARTIFACTS = {
    "artifact": Artifact(
        artifact_id="report",
        kind=ArtifactKind.FILE,
        version=1,
        status=ArtifactStatus.BUILDING,
        size=0,
        media_type="text/plain",
        sha256="",
        created_at=AT,
    ),
    "artifact, everything": Artifact(
        artifact_id="rows",
        kind=ArtifactKind.DATASET,
        version=2,
        status=ArtifactStatus.COMPLETE,
        size=20,
        media_type="application/jsonl",
        sha256=SHA,
        created_at=AT,
        turn=2,
        description="Rows.",
        metadata=JSON,
        columns={"n": "integer"},
        rows=3,
    ),
}
ENTRIES = {
    "entry": Entry(number=3, kind=EntryKind.STEER, message=_USER, created_at=AT),
    "entry, actor": Entry(
        number=4,
        kind=EntryKind.FOLLOW_UP,
        message=MESSAGES["user, blocks"],
        actor_id="bob",
        created_at=AT,
    ),
}
CONTEXTS = {
    "context, new": ContextRecord(
        context_id="ada",
        epoch=1,
        turn_count=0,
        last_position=0,
        last_seq=0,
        created_at=AT,
        last_activity=AT,
    ),
    "context": ContextRecord(
        context_id="ada",
        epoch=4,
        turn_count=2,
        last_position=12,
        last_seq=20,
        visible_from=2,
        cleared_seq=3,
        hidden=((4, 5), (8, 9)),
        open_turn=TURNS["turn, open"],
        holder="h",
        lease_live=True,
        lease_until=5.5,
        owner_actor="ada",
        tags=("a", "ä"),
        inbox=InboxHead(last=4, waiting=2, cancel_turn=2),
        state=STATES["state, everything"],
        metadata=JSON,
        version=3,
        created_at=AT,
        last_activity=AT + timedelta(microseconds=1),
    ),
}
PLACED = {
    "placed message": MessageRecord(position=4, turn=2, iteration=1, seq=7, message=_SAID),
}

# Rows of older versions, of other hands and of others' programs: each is read, most with repairs.
ODD_ROWS = {
    "no timestamp, no type of a block": '{"role":"user","content":[{"text":"hi"}],"timestamp":1}',
    "a later version's field": '{"role":"user","content":"hi","timestamp":1,"mood":"good"}',
    "nulls": '{"role":"assistant","content":[{"type":"text","text":null,"text_signature":null}],'
    '"api":null,"usage":null,"stop_reason":null,"error_message":null,"timestamp":3}',
    "text as content": '{"role":"assistant","content":"hi","stop_reason":"stop","timestamp":3}',
    "whole dollars": '{"role":"assistant","content":[],"usage":{"input":1,"cost":{"total":2}},'
    '"stop_reason":"stop","timestamp":3}',
    "numbers as text": '{"role":"assistant","content":[{"type":"text","text":5}],"model":7,'
    '"usage":{"input":"12","output":1.6,"cost":{"total":"0.5"}},"timestamp":"9"}',
    "a dear answer": '{"role":"assistant","content":[],"usage":{"input":-1,"cost":{"total":1e9}},'
    '"stop_reason":5,"timestamp":3}',
    "no such stop": '{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"b"}],'
    '"stop_reason":"tired","timestamp":3}',
    "arguments as text": '{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"b",'
    '"arguments":"{\\"n\\":1}"},{"type":"toolCall","id":"c","name":"b","arguments":"{"},'
    '{"type":"toolCall","id":"d","name":"b","arguments":[1]}],"stop_reason":"toolUse",'
    '"timestamp":3}',
    "strange blocks": '{"role":"user","content":["hi",5,null,{"type":"toolCall"},'
    '{"type":"video"},{"type":"image","data":5}],"timestamp":3}',
    "two sources": '{"role":"user","content":[{"type":"document","data":"JVBERi0=",'
    '"url":"https://example.test"},{"type":"document"},{"type":"audio","data":"A"},5],'
    '"timestamp":3}',
    "odd citations": '{"role":"assistant","content":[{"type":"text","text":"x","citations":'
    '[{"url":5,"raw":1},5,{"title":"t"}]}],"stop_reason":"stop","timestamp":3}',
    "odd logprobs": '{"role":"assistant","content":[],"logprobs":[{"token":"a","logprob":-1},'
    '{"token":5},{"logprob":1},[]],"stop_reason":"stop","timestamp":3}',
    "flags as text": '{"role":"toolResult","tool_call_id":5,"tool_name":"b","content":null,'
    '"is_error":"no","timestamp":3.7}',
    "NaN": '{"role":"toolResult","tool_call_id":"a","tool_name":"b","content":[],'
    '"details":NaN,"timestamp":3}',
    "infinite dollars": '{"role":"assistant","content":[],"usage":{"input":1,"cost":'
    '{"total":Infinity}},"stop_reason":"stop","timestamp":3}',
    "huge numbers": '{"role":"user","content":"x","timestamp":99999999999999999999999999}',
    "half a character": '{"role":"user","content":"\\ud800","timestamp":3}',
    "NUL": '{"role":"user","content":"a\\u0000b","timestamp":3}',
    "a key twice": '{"role":"user","content":"a","content":"b","timestamp":3}',
    "metadata as a list": '{"role":"note","content":5,"metadata":[1],"timestamp":3}',
    "spaces": ' {"role" : "user", "content" : "hi", "timestamp" : 3} ',
    "other words": '{"role":"user","content":"hi","timestamp":true}',
    "no role": '{"content":"hello"}',
    "a number as role": '{"role":5,"content":"hello"}',
    "a list": "[]",
    "null": "null",
    "cut": '{"role":"user","content":"hel',
    "empty": "",
    "two values": "{}{}",
    "quoted wrong": "{'role': 'user'}",
}
ODD_STATES = {
    "empty": "",
    "a list": "[]",
    "one wrong part": '{"resumable":"2","summary":3,"usage":{"input":"4"},"sent":"!","trace":5}',
    "wrong requests": '{"pending":[{"kind":"wish"}],"answered":5,"held":[{}],"error":[]}',
    "wrong output": '{"output":1,"sent":"rewind 0a"}',
    "wrong sums": '{"usage":5,"charged":[],"run_us":true,"waits_for":5,"needs_auth":1}',
    "a later version's part": '{"mood":"good","summary":3}',
}
ODD_EVENTS = {
    "error, cut": ("error", '{"code":'),
    "error, more": ("error", '{"code":"a","text":"b","mood":1}'),
    "artifact_update, kind": ("artifact_update", '{"artifact_id":"a","kind":"box","version":1}'),
    "input_required, old": ("input_required", "{}"),
    "input_required, wrong": ("input_required", '{"pending":[{"kind":"wish"}]}'),
    "history_cleared, old": ("history_cleared", '{"covers":[1,2,3]}'),
    "compaction, old": ("compaction", '{"covers":[1,2],"position":3}'),
    "approval_decided, actor": ("approval_decided", '{"actor_id":5}'),
    "tool_execution_start, wrong": ("tool_execution_start", "[]"),
    "tool_execution_start, unknown": ("tool_execution_start", '{"tool_call_id":"x"}'),
    "a later version's type": ("turn_paused", "{}"),
}
ODD_USAGES = {
    "empty": "",
    "a list": "[]",
    "null": "null",
    "nulls": '{"input":null,"cost":null}',
    "text": '{"input":"3","cost":{"total":"x"}}',
    "below zero": '{"input":-3}',
}
