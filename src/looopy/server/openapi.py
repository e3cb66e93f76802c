"""
The description of the HTTP API, as OpenAPI 3.1: `GET /openapi.json`.

The protocols describe themselves elsewhere: OpenAI's API, A2A, AG-UI and the AI SDK have their own
specifications.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, get_args

import looopy
from looopy.replay.differences import PARTS, Kind
from looopy.server.gate.limits import Limits
from looopy.server.page.clip import LEAST
from looopy.server.page.compact import CHOICES
from looopy.types.artifact import ArtifactKind, ArtifactStatus
from looopy.types.message import StopReason
from looopy.types.state import AgentStatus, Outcome, PendingKind

Json: TypeAlias = dict[str, Any]

_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer", "minimum": 0}
_DOLLARS: Final[Json] = {"type": "number", "minimum": 0}
_OBJECT: Final[Json] = {"type": "object", "additionalProperties": True}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}
_CONTEXT_ID: Final[Json] = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}
_EVENT_STREAM: Final = "text/event-stream"


def _maybe(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _said(schema: Json, description: str) -> Json:
    return {**_maybe(schema), "description": description}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_HIDDEN: Final[Json] = {"type": "boolean", "description": "A rewind has hidden it."}
_PROCESSES: Final[Mapping[str, Json]] = {
    "process": _said(_TEXT, "The process that ran it: its name in the log and in traces."),
    "recovered_by": _said(_TEXT, "The process that found its own one dead, and ended it."),
}


def _closed(properties: Mapping[str, Json], *required: str) -> Json:
    """The schema of a body: an unknown field is refused."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _open(properties: Mapping[str, Json]) -> Json:
    """The schema of an answer: a later version may add fields."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _page(name: str, after: Json) -> Json:
    return _open({"items": {"type": "array", "items": _ref(name)}, "next": _maybe(after)})


def _schemas(limits: Limits) -> Json:
    usage_names = ("input", "output", "cache_read", "cache_write", "total_tokens")
    return {
        "Problem": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {
                        "code": {**_TEXT, "description": "A word for programs."},
                        "message": _TEXT,
                        "path": {**_TEXT, "description": "JSON pointer into the body."},
                        "turn": {**_NUMBER, "description": "The running turn in the way."},
                    },
                    "required": ["code", "message"],
                }
            },
            "required": ["error"],
        },
        "UserMessage": {
            "description": f"At most {limits.message_bytes:,} bytes of text.",
            "anyOf": [
                {"type": "string", "minLength": 1},
                _closed(
                    {"content": {"anyOf": [_TEXT, {"type": "array", "items": _OBJECT}]}},
                    "content",
                ),
            ],
        },
        "Usage": {"type": "object", "properties": dict.fromkeys(usage_names, _NUMBER)},
        "PendingRequest": _open(
            {
                "request_id": _TEXT,
                "kind": {"enum": [one.value for one in PendingKind]},
                "tool_name": _TEXT,
                "args": _OBJECT,
                "tool_call_id": _TEXT,
                "turn": _NUMBER,
                "prompt": _TEXT,
                "schema": _maybe(_OBJECT),
                "options": {"type": "array"},
                "expires_at": _maybe(_TIME),
            }
        ),
        "OpenRequest": _open(
            {
                "context_id": _CONTEXT_ID,
                "request_id": _TEXT,
                "owner": _said(_TEXT, "The actor for whom the call would run."),
                "tool_name": _TEXT,
                "args": _OBJECT,
                "prompt": _TEXT,
                "schema": _maybe(_OBJECT),
                "expires_at": _maybe(_TIME),
            }
        ),
        "OpenRequestPage": _page("OpenRequest", _TEXT),
        "Decision": _open({"event": _OBJECT}),
        "Context": _open(
            {
                "context_id": _CONTEXT_ID,
                "status": {"enum": [one.value for one in AgentStatus]},
                "turn_count": _NUMBER,
                "interrupted_turn": _maybe(_NUMBER),
                "pending": {"type": "array", "items": _ref("PendingRequest")},
                "error": _maybe(_TEXT),
                "waits_for": _maybe(_TEXT),
                "waits_for_limit": _maybe(_TEXT),
                "needs_auth": {
                    "type": "boolean",
                    "description": "The turn waits for credentials of its actor.",
                },
                "created_at": _TIME,
                "last_activity": _TIME,
                "usage": _ref("Usage"),
                "metadata": _OBJECT,
                "tags": {"type": "array", "items": _TEXT},
                "last_seq": _NUMBER,
                "last_position": _NUMBER,
                "hidden_messages": {**_NUMBER, "description": "How many a rewind has hidden."},
                "lease": _maybe(_ref("Lease")),
            }
        ),
        "Lease": _open(
            {
                "turn": _NUMBER,
                "process": _maybe(_NUMBER),
                "here": {"type": "boolean", "description": "The process that answers holds it."},
                "live": {"type": "boolean"},
                "cancelling": {"type": "boolean"},
            }
        ),
        "Hit": _open(
            {
                "context_id": _CONTEXT_ID,
                "position": _NUMBER,
                "turn": _NUMBER,
                "role": _TEXT,
                "snippet": _TEXT,
                "matches": {
                    "type": "array",
                    "items": {"type": "array", "prefixItems": [_NUMBER, _NUMBER]},
                    "description": "Beginning and end of each match in the snippet.",
                },
            }
        ),
        "Span": _open(
            {
                "kind": {"enum": ["model", "tool", "server_tool"]},
                "name": _TEXT,
                "iteration": _NUMBER,
                "started": _TIME,
                "ended": _maybe(_TIME),
            }
        ),
        "Mark": _open(
            {
                "kind": {"enum": ["approval", "asks", "artifact", "budget", "error", "message"]},
                "name": _TEXT,
                "at": _TIME,
            }
        ),
        "Run": _open(
            {
                "turn": _NUMBER,
                "continues": _maybe(_NUMBER),
                "outcome": _maybe({"enum": [one.value for one in Outcome]}),
                "stop_reason": _maybe({"enum": [one.value for one in StopReason]}),
                "actor_id": _maybe(_TEXT),
                "hidden": _HIDDEN,
                **_PROCESSES,
                "started": _TIME,
                "ended": _maybe(_TIME),
                "last_sign": {
                    **_maybe(_TIME),
                    "description": "The newest thing that a process stored before it died.",
                },
                "usage": _ref("Usage"),
                "spans": {"type": "array", "items": _ref("Span")},
                "marks": {"type": "array", "items": _ref("Mark")},
                "left_out": {**_NUMBER, "description": "Spans beyond the limit of a timeline."},
                "marks_left_out": {**_NUMBER, "description": "Marks beyond it."},
                "model_calls": {**_NUMBER, "description": "With those that are left out."},
            }
        ),
        "Timeline": _open(
            {
                "turn": _NUMBER,
                "runs": {"type": "array", "items": _ref("Run")},
                "complete": {"type": "boolean"},
            }
        ),
        "Turn": _open(
            {
                "turn": _NUMBER,
                "outcome": _maybe({"enum": [one.value for one in Outcome]}),
                "stop_reason": _maybe({"enum": [one.value for one in StopReason]}),
                "continues": _maybe(_NUMBER),
                "actor_id": _maybe(_TEXT),
                "started_at": _TIME,
                "ended_at": _maybe(_TIME),
                "usage": _ref("Usage"),
                **_PROCESSES,
                "hidden": _HIDDEN,
                "metadata": _OBJECT,
            }
        ),
        "WaitingMessage": _open(
            {
                "number": _NUMBER,
                "kind": {"enum": ["steer", "follow_up"]},
                "message": _OBJECT,
                "created_at": _TEXT,
            }
        ),
        "PlacedMessage": _open(
            {
                "position": _NUMBER,
                "turn": _NUMBER,
                "seq": {**_NUMBER, "description": "Of its `message_end` in the log."},
                "message": {**_OBJECT, "description": "Roles, blocks: docs/agent.md."},
            }
        ),
        "Artifact": _open(
            {
                "artifact_id": _TEXT,
                "kind": {"enum": [one.value for one in ArtifactKind]},
                "version": _NUMBER,
                "status": {"enum": [one.value for one in ArtifactStatus]},
                "size": _NUMBER,
                "media_type": _TEXT,
                "sha256": _maybe(_TEXT),
                "created_at": _TIME,
                "turn": _maybe(_NUMBER),
                "description": _maybe(_TEXT),
                "metadata": _OBJECT,
                "columns": _maybe(_OBJECT),
                "rows": _maybe(_NUMBER),
            }
        ),
        "Replay": _open(
            {
                "turn": _NUMBER,
                "outcome": _maybe({"enum": [one.value for one in Outcome]}),
                "stop_reason": _maybe({"enum": [one.value for one in StopReason]}),
                "after": {**_NUMBER, "description": "Behind this position its messages begin."},
                "messages": {**_NUMBER, "description": "Those that the turn has added."},
                "difference": {
                    **_maybe(_ref("Difference")),
                    "description": "The first one; null: the turn is the same.",
                },
                "gone": {
                    "type": "array",
                    "items": _TEXT,
                    "description": "Tools that the turn ran, and the agent no longer has.",
                },
                "left_out": {
                    "type": "array",
                    "items": _TEXT,
                    "description": "Sentences about the parts that were not compared.",
                },
            }
        ),
        "Difference": _open(
            {
                "kind": {"enum": list(get_args(Kind))},
                "text": _TEXT,
                "iteration": {**_NUMBER, "description": "From 1; 0: at the end of the turn."},
                "then": _TEXT,
                "now": _TEXT,
                "tool_call_id": _maybe(_TEXT),
            }
        ),
        "BudgetOfOwner": _open(
            {"owner": _TEXT, "items": {"type": "array", "items": _ref("BudgetItem")}}
        ),
        "BudgetItem": _open(
            {
                "period": {"enum": ["day", "month"]},
                "since": _TIME,
                "until": _TIME,
                "tokens": _NUMBER,
                "cost_usd": _said(_DOLLARS, "The known part; null if no part is known."),
                "cost_complete": {"type": "boolean"},
                "reserved_tokens": {**_NUMBER, "description": "The most that running calls use."},
                "reserved_cost_usd": _maybe(_DOLLARS),
                "reserved_cost_complete": {"type": "boolean"},
                "limit_tokens": _maybe(_NUMBER),
                "limit_cost_usd": _maybe(_DOLLARS),
            }
        ),
        "Event": {**_OBJECT, "description": "One event: docs/events.md."},
        "Accepted": _open({"context_id": _CONTEXT_ID, "turn": _NUMBER}),
        "ContextPage": _page("Context", _TEXT),
        "TurnPage": _page("Turn", _NUMBER),
        "MessagePage": _page("PlacedMessage", _NUMBER),
        "InboxPage": _page("WaitingMessage", _NUMBER),
        "ArtifactPage": _page("Artifact", _TEXT),
        "HitPage": _page("Hit", _TEXT),
    }


def _query(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _in_path(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _header(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _operation(
    summary: str,
    status: int,
    answer: Json | None,
    *,
    kind: str = "application/json",
    body: Json | None = None,
    parameters: list[Json] | None = None,
    also: Mapping[str, Json] | None = None,
    others: Mapping[str, str] | None = None,
) -> Json:
    content = {kind: {"schema": answer}, **(also or {})} if answer is not None else None
    done: Json = {"description": summary}
    if content is not None:
        done["content"] = content
    made: Json = {
        "summary": summary,
        "responses": {
            str(status): done,
            **{code: {"description": text} for code, text in (others or {}).items()},
            "default": {
                "description": "The request was refused.",
                "content": {"application/json": {"schema": _ref("Problem")}},
            },
        },
    }
    if parameters:
        made["parameters"] = parameters
    if body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return made


def description(limits: Limits) -> Json:
    """The OpenAPI description of the HTTP API with *limits*."""
    limit = {"type": "integer", "minimum": 1, "maximum": limits.page}
    size = _query("limit", limit, "Items of the page.")
    by_number = [_query("after", _NUMBER, "`next` of the page before."), size]
    by_name = [_query("after", _TEXT, "`next` of the page before."), size]
    message = {"message": _ref("UserMessage")}
    stream = {_EVENT_STREAM: {"schema": _TEXT}}
    key = _header(
        "Idempotency-Key", {**_TEXT, "minLength": 1, "maxLength": 256}, "Names this request."
    )
    told = _closed({**message, "expected_turn": _maybe(_NUMBER)}, "message")
    turn_body = {"inputs": _OBJECT, "metadata": _OBJECT}
    place = [
        _header("Last-Event-ID", _NUMBER, "The `seq` behind which to begin; wins over `after`."),
        _query("after", _NUMBER, "The `seq` behind which to begin; without one, at the head."),
    ]
    clip = _query(
        "clip",
        {"type": "integer", "minimum": LEAST},
        "Cut longer texts; `clipped` has the whole lengths, by JSON pointer.",
    )
    form = [
        _query("format", {"enum": ["full", "compact"]}, "Each event whole, or each fact once."),
        _query(
            "include",
            {"type": "array", "items": {"enum": sorted(CHOICES)}},
            "With `format=compact`: send these as well.",
        ),
        {**clip, "description": f"With `format=compact`: {clip['description']}"},
    ]
    one = "/contexts/{context_id}"
    listing = [
        _query("status", {"enum": [s.value for s in AgentStatus]}, "Contexts of this status."),
        _query("tag", {"type": "array", "items": _TEXT}, "Contexts that have all of these tags."),
        *by_name,
    ]
    operations: dict[str, Json] = {
        "/contexts": {
            "get": _operation(
                "The caller's contexts, the last used first.",
                200,
                _ref("ContextPage"),
                parameters=[
                    *listing,
                    _query("title", {"type": "boolean"}, "With the beginning of each, as `title`."),
                ],
            )
        },
        "/search": {
            "get": _operation(
                "The messages of the caller's contexts that have all words of a query.",
                200,
                _ref("HitPage"),
                parameters=[
                    _query("query", _TEXT, 'Words, `"a phrase"`, or `beginn*`.'),
                    _query("context_id", _CONTEXT_ID, "Only in this context."),
                    *by_name,
                ],
            )
        },
        "/budget": {
            "get": _operation(
                "What the caller has used of a day's and its month's budget, and the limits of it."
                " Only periods that a budget limits have an item.",
                200,
                _ref("BudgetOfOwner"),
                parameters=[
                    _query("day", {**_TEXT, "format": "date"}, "Today by default, in UTC."),
                    _query("context_id", _CONTEXT_ID, "The context whose agent has the limits."),
                ],
            )
        },
        "/requests": {
            "get": _operation(
                "The requests for approval in contexts of others that the caller may decide.",
                200,
                _ref("OpenRequestPage"),
                parameters=by_name,
            )
        },
        f"{one}/decisions": {
            "post": _operation(
                "Decide a call that waits for approval, in a context of the caller or of somebody"
                " else. Then it waits for its own actor: an empty turn of that actor runs it.",
                200,
                _ref("Decision"),
                body=_closed({"request_id": _TEXT, "answer": {}}, "request_id", "answer"),
            )
        },
        one: {
            "get": _operation("A context.", 200, _ref("Context")),
            "delete": _operation(
                "Erase a context for good.",
                204,
                None,
                parameters=[_query("force", {"type": "boolean"}, "Also while a turn runs.")],
            ),
        },
        f"{one}/turns": {
            "get": _operation("The turns.", 200, _ref("TurnPage"), parameters=by_number),
            "post": _operation(
                "Begin a turn; without a message, continue. `Accept: text/event-stream` streams"
                " it with status 200.",
                202,
                _ref("Accepted"),
                body=_closed({"message": _maybe(_ref("UserMessage")), **turn_body}),
                parameters=[key, *form],
            ),
        },
        f"{one}/events": {
            "get": _operation(
                "Follow the events: `id` is the `seq` of a durable event, `event` its type.",
                200,
                _TEXT,
                kind=_EVENT_STREAM,
                parameters=[*place, *form],
            )
        },
        f"{one}/messages": {
            "get": _operation(
                "The messages, the oldest first.",
                200,
                _ref("MessagePage"),
                parameters=[
                    *by_number,
                    _query("before", _NUMBER, "The newest ones below this position instead."),
                    _query("include_hidden", {"type": "boolean"}, "Those too that were rewound."),
                    clip,
                ],
            )
        },
        f"{one}/messages/{{position}}": {
            "parameters": [_in_path("position", _NUMBER)],
            "get": _operation("A message, whole.", 200, _ref("PlacedMessage")),
        },
        f"{one}/turns/{{turn}}/timeline": {
            "parameters": [_in_path("turn", _NUMBER)],
            "get": _operation(
                "The runs of a turn, with the times of its model calls and tools.",
                200,
                _ref("Timeline"),
            ),
        },
        f"{one}/turns/{{turn}}/replay": {
            "parameters": [_in_path("turn", _NUMBER)],
            "post": _operation(
                "Run an ended turn again, answered from its log, with the prompt, the tools and the"
                " limits of the present agent. Calls no model and no tool, and stores nothing.",
                200,
                _ref("Replay"),
                body=_closed({"ignore": _maybe({"type": "array", "items": {"enum": list(PARTS)}})}),
            ),
        },
        f"{one}/turns/{{turn}}/run-beside": {
            "parameters": [_in_path("turn", _NUMBER)],
            "post": _operation(
                "Run the message of a turn again, or another one instead, in a fork that begins"
                " where the turn began. Calls the model and the tools of the present agent.",
                202,
                _ref("Accepted"),
                body=_closed({"message": _maybe(_ref("UserMessage"))}),
                parameters=[key],
            ),
        },
        f"{one}/artifacts": {
            "get": _operation(
                "The newest version of each artifact.",
                200,
                _ref("ArtifactPage"),
                parameters=by_name,
            )
        },
        f"{one}/artifacts/{{artifact_id}}": {
            "parameters": [_in_path("artifact_id", _TEXT)],
            "get": _operation(
                "Download an artifact.",
                200,
                {"type": "string", "format": "binary"},
                kind="application/octet-stream",
                also={"application/json": {"schema": _ref("Artifact")}},
                parameters=[
                    _query("version", _NUMBER, "Another version than the newest complete one."),
                    _query("describe", {"type": "boolean"}, "As in a list, without the content."),
                    _header("Range", _TEXT, "One range of bytes, such as `bytes=100-`."),
                    _header("If-Range", _TEXT, "The `ETag` of the content that is continued."),
                    _header("If-None-Match", _TEXT, "The `ETag` of the content that is there."),
                ],
                others={
                    "206": "The range that was asked for.",
                    "304": "The content is the one that the client has.",
                    "416": "The range begins behind the end of the content.",
                },
            ),
        },
        f"{one}/inbox": {
            "get": _operation(
                "Messages of the caller that no turn has taken yet.",
                200,
                _ref("InboxPage"),
                parameters=by_number,
            ),
        },
        f"{one}/steer": {
            "post": _operation(
                "Send a message to the running turn, before its next model call.",
                202,
                _ref("Accepted"),
                body=told,
                parameters=[key],
            )
        },
        f"{one}/follow-up": {
            "post": _operation(
                "Send a message for the end of the running turn.",
                202,
                _ref("Accepted"),
                body=told,
                parameters=[key],
            )
        },
        f"{one}/cancel": {
            "post": _operation("Stop the running turn.", 202, _ref("Accepted"), body=_closed({}))
        },
        f"{one}/fork": {
            "post": _operation(
                "Make a context that begins with the past of this one.",
                201,
                _ref("Context"),
                body=_closed({"new_context_id": _maybe(_CONTEXT_ID), "at": _maybe(_NUMBER)}),
            )
        },
        f"{one}/rewind": {
            "post": _operation(
                "Hide a turn and all after it.",
                200,
                _open({"event": _ref("Event")}),
                body=_closed({"to": {"type": "integer", "minimum": 1}}, "to"),
            )
        },
        f"{one}/undo-rewind": {
            "post": _operation(
                "Show again what the newest rewind hid.",
                200,
                _open({"event": _ref("Event")}),
                body=_closed({}),
            )
        },
        f"{one}/compact": {
            "post": _operation(
                "Have the model summarise the older part.",
                200,
                _open({"event": _maybe(_ref("Event"))}),
                body=_closed({"keep_turns": _maybe(_NUMBER)}),
            )
        },
    }
    for path, item in operations.items():
        if path.startswith(one):
            item["parameters"] = [_in_path("context_id", _CONTEXT_ID), *item.get("parameters", [])]
    turns = operations[f"{one}/turns"]["post"]
    turns["responses"]["200"] = {"description": "The events of the turn.", "content": stream}
    return {
        "openapi": "3.1.0",
        "info": {"title": "looopy", "version": looopy.__version__},
        "security": [{"bearer": []}],
        "x-looopy-limits": {
            name: getattr(limits, name) for name in ("body_bytes", "message_bytes", "page")
        },
        "paths": operations,
        "components": {
            "schemas": _schemas(limits),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
