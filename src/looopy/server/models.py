"""
The JSON objects of the HTTP API, each written once: items of answers, and the types of fields.

`items` makes answers by it, `gate.fields` checks requests by it, `openapi` describes it, and a type
checker knows it in the client. A note of `Annotated` is a description, or a keyword of JSON Schema
with its value. The bodies and queries of requests stand beside their handlers, in `api`.
"""

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

from looopy.replay.differences import Difference
from looopy.stores.records import EntryKind
from looopy.types.artifact import ArtifactKind, ArtifactStatus
from looopy.types.message import StopReason
from looopy.types.state import AgentStatus, Outcome, PendingKind

Item = TypeVar("Item")
Place = TypeVar("Place")
Number: TypeAlias = Annotated[int, ("minimum", 0)]
Dollars: TypeAlias = Annotated[float, ("minimum", 0)]
Time: TypeAlias = Annotated[str, ("format", "date-time")]
Limit: TypeAlias = Annotated[int, ("minimum", 1), "Items of the page."]
ContextId: TypeAlias = Annotated[str, ("pattern", "^[A-Za-z0-9._:-]{1,128}$")]
Object: TypeAlias = dict[str, Any]
Clip: TypeAlias = Annotated[  # so that names and words for programs stay whole
    int, ("minimum", 100), "Cut longer texts; `clipped` has the whole lengths, by JSON pointer."
]
Event: TypeAlias = Annotated[Object, "One event: docs/events.md."]
Hidden: TypeAlias = Annotated[bool, "A rewind has hidden it."]
Process: TypeAlias = Annotated[str | None, "The process that ran it: its name in the log."]
Recovery: TypeAlias = Annotated[
    str | None, "The process that found its own one dead, and ended it."
]


class Page(TypedDict, Generic[Item, Place]):
    """A page of a list; `next` is the `after` of the next page, or null."""

    items: list[Item]
    next: Place | None


class Content(TypedDict):
    """The text or the blocks of a message; a block is as in docs/agent.md."""

    content: str | list[Object]


UserMessage: TypeAlias = Annotated[
    Annotated[str, ("minLength", 1)] | Content,
    "Its text has at most `x-looopy-limits.message_bytes` bytes.",
]


class Fault(TypedDict):
    """The reason why a request was refused."""

    code: Annotated[str, "A word for programs."]
    message: str
    path: NotRequired[Annotated[str, "JSON pointer into the body."]]
    turn: NotRequired[Annotated[Number, "The running turn in the way."]]


class Problem(TypedDict):
    """The answer to a request that was refused."""

    error: Fault


class Cost(TypedDict):
    """US dollars."""

    input: Dollars
    output: Dollars
    cache_read: Dollars
    cache_write: Dollars
    total: Dollars
    complete: NotRequired[Annotated[bool, "False if the price of a part is unknown."]]


class Usage(TypedDict):
    """Tokens of model calls."""

    input: Number
    output: Number
    cache_read: Number
    cache_write: Number
    total_tokens: Number
    reasoning: NotRequired[Annotated[Number, "The part of `output` that was thinking."]]
    cost: Annotated[Cost | None, "Null if the price is unknown."]


class PendingRequest(TypedDict):
    """A request that a turn waits for."""

    request_id: str
    kind: PendingKind
    tool_name: str
    args: Object
    tool_call_id: str
    turn: Number
    prompt: str
    schema: Annotated[Object | None, "JSON Schema of the answer."]
    options: list[Any]
    expires_at: Time | None
    auth: NotRequired[Annotated[Object, "The credentials that it asks for."]]
    answered_by: NotRequired[Annotated[str, "Another actor, who has answered it."]]


class OpenRequest(TypedDict):
    """A request for approval in a context of another actor."""

    context_id: ContextId
    request_id: str
    owner: Annotated[str | None, "The actor for whom the call would run."]
    tool_name: str
    args: Object
    prompt: str
    schema: Annotated[Object | None, "JSON Schema of the arguments, if they may be replaced."]
    expires_at: Time | None


class Lease(TypedDict):
    """The process that holds a context for its running turn."""

    turn: Number
    process: Number | None
    here: Annotated[bool, "The process that answers holds it."]
    live: bool
    cancelling: bool


class Context(TypedDict):
    """A context without its messages."""

    context_id: ContextId
    status: AgentStatus
    turn_count: Number
    interrupted_turn: Annotated[Number | None, "The turn that a turn without a message continues."]
    pending: list[PendingRequest]
    error: str | None
    waits_for: Annotated[str | None, "The budget without room, as a sentence."]
    waits_for_limit: Annotated[str | None, "The budget without room, by its name."]
    needs_auth: Annotated[bool, "The turn waits for credentials of its actor."]
    left_as: Annotated[AgentStatus | None, "How an agent left it, if no turn has begun since."]
    created_at: Time
    last_activity: Time
    usage: Usage
    metadata: Object
    tags: list[str]
    last_seq: Annotated[Number, "The newest event."]
    last_position: Annotated[Number, "The newest message."]
    hidden_messages: Annotated[Number, "How many a rewind has hidden."]
    lease: Lease | None
    title: NotRequired[Annotated[str | None, "The beginning of it, with `title=true`."]]


class Accepted(TypedDict):
    """A turn that was accepted."""

    context_id: ContextId
    turn: Number


class EventStored(TypedDict):
    """The event that a request has stored."""

    event: Event


class Compacted(TypedDict):
    """The event of a compaction; null if there was nothing to summarise."""

    event: Event | None


class Turn(TypedDict):
    """A turn without its messages."""

    turn: Number
    outcome: Outcome | None
    stop_reason: StopReason | None
    continues: Number | None
    actor_id: str | None
    started_at: Time
    ended_at: Time | None
    usage: Usage
    process: Process
    recovered_by: Recovery
    hidden: Hidden
    metadata: Object


class PlacedMessage(TypedDict):
    """A message with its place."""

    position: Number
    turn: Number
    seq: Annotated[Number, "Of its `message_end` in the log."]
    message: Annotated[Object, "Roles, blocks: docs/agent.md."]
    clipped: NotRequired[Annotated[Object, "Whole lengths of texts that `clip` has cut."]]


class WaitingMessage(TypedDict):
    """A message that no turn has taken yet."""

    number: Number
    kind: EntryKind
    message: Object
    created_at: Time


class Hit(TypedDict):
    """A message that a search found."""

    context_id: ContextId
    position: Number
    turn: Number
    role: str
    snippet: str
    matches: Annotated[list[list[Number]], "Beginning and end of each match in the snippet."]


class Artifact(TypedDict):
    """A version of an artifact, without its content."""

    artifact_id: str
    kind: ArtifactKind
    version: Number
    status: ArtifactStatus
    size: Number
    media_type: str
    sha256: str
    created_at: Time
    turn: Number
    description: str | None
    metadata: Object
    columns: Annotated[Object | None, "Types by name, of a dataset."]
    rows: Number


class Span(TypedDict):
    """A model call or a call of a tool."""

    kind: Literal["model", "tool", "server_tool"]
    name: str
    iteration: Number
    started: Time
    ended: Time | None
    tool_call_id: NotRequired[str]
    is_error: NotRequired[bool]
    unknown: NotRequired[Annotated[bool, "Its process died before its result was stored."]]
    attempts: NotRequired[Number]
    first_delta_s: NotRequired[float | None]
    tokens: NotRequired[Number]
    stop_reason: NotRequired[StopReason]


class Mark(TypedDict):
    """A moment of a run."""

    kind: Literal["approval", "asks", "artifact", "budget", "error", "message"]
    name: str
    at: Time
    text: NotRequired[str]
    decision: NotRequired[str]
    actor_id: NotRequired[str]
    version: NotRequired[Number]


class Run(TypedDict):
    """A turn of the log, in one process."""

    turn: Number
    continues: Number | None
    outcome: Outcome | None
    stop_reason: StopReason | None
    actor_id: str | None
    hidden: Hidden
    process: Process
    recovered_by: Recovery
    started: Time
    ended: Time | None
    last_sign: Annotated[Time | None, "The newest thing that a process stored before it died."]
    usage: Usage
    spans: list[Span]
    marks: list[Mark]
    left_out: Annotated[Number, "Spans beyond the limit of a timeline."]
    marks_left_out: Annotated[Number, "Marks beyond it."]
    model_calls: Annotated[Number, "With those that are left out."]


class Timeline(TypedDict):
    """The runs of a turn, the oldest first."""

    turn: Number
    runs: list[Run]
    complete: Annotated[bool, "False if the turn has more events than were read."]


class Replay(TypedDict):
    """A turn beside what it would be today."""

    turn: Number
    outcome: Outcome | None
    stop_reason: StopReason | None
    after: Annotated[Number, "The position after which its messages begin."]
    messages: Annotated[Number, "How many messages the turn has added."]
    difference: Annotated[Difference | None, "The first one; null: the turn is the same."]
    gone: Annotated[list[str], "Tools that the turn ran, and the agent no longer has."]
    left_out: Annotated[list[str], "Sentences about the parts that were not compared."]


class BudgetItem(TypedDict):
    """A day or a month of an account; a limit of null is none."""

    period: Literal["day", "month"]
    since: Time
    until: Time
    tokens: Number
    cost_usd: Annotated[Dollars | None, "The known part; null if no part is known."]
    cost_complete: bool
    reserved_tokens: Annotated[Number, "The most that running calls use."]
    reserved_cost_usd: Dollars | None
    reserved_cost_complete: bool
    limit_tokens: Number | None
    limit_cost_usd: Dollars | None


class BudgetOfOwner(TypedDict):
    """The use of an owner's budget: an item for each period that it limits."""

    owner: str
    items: list[BudgetItem]
