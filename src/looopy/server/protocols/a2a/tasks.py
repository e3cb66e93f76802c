"""
Turns as tasks: a task is one turn, and each turn that answers what the one before it asked.

Nothing is stored for a task. Its id names the context and the first turn, so any process finds it.
Its state is the end of its last turn. If a person sends another message instead of an answer, or
clears the history, the question is gone, and its task is cancelled.

A turn that took an answer may die before it runs the call that was answered. Its task then waits
for a message, which continues it. If it had failed, the only way on would be a new message to the
context, and that would drop the answered call, perhaps the decision of another person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from a2a.types import Artifact as A2AArtifact
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus

from looopy.errors import ArtifactNotFound
from looopy.server.protocols.a2a.parts import data_part, file_part, parts_of, text_part
from looopy.stores.bundle import Stores
from looopy.stores.records import ContextRecord, MessageRecord, TurnRecord
from looopy.tools.call.results import to_json_text
from looopy.types.artifact import Artifact, ArtifactKind, ArtifactStatus
from looopy.types.event import ApprovalDecided, TurnError, event_to_json
from looopy.types.message import AssistantMessage, StopReason, UserMessage
from looopy.types.state import Outcome, PendingKind, PendingRequest, pending_to_json

_WAITING: Final = frozenset({Outcome.INPUT_REQUIRED, Outcome.AUTH_REQUIRED})
_STATES: Final = {
    Outcome.COMPLETED: TaskState.TASK_STATE_COMPLETED,
    Outcome.FAILED: TaskState.TASK_STATE_FAILED,
    Outcome.INTERRUPTED: TaskState.TASK_STATE_FAILED,
    Outcome.CANCELLED: TaskState.TASK_STATE_CANCELED,
    Outcome.INPUT_REQUIRED: TaskState.TASK_STATE_INPUT_REQUIRED,
    Outcome.AUTH_REQUIRED: TaskState.TASK_STATE_AUTH_REQUIRED,
}
WAITS: Final = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
INLINE_BYTES: Final = 64 * 1024  # of an artifact; a larger one is fetched by its URL
_INLINE_IN_ALL: Final = 16  # artifacts of that size in one task
_FEW: Final = 3  # turns: the one before a task, and most tasks
_PAGE: Final = 50
_LAST_EVENTS: Final = 4  # among which the reason of a failure is
_INTERRUPTED: Final = (
    "The process of this task ended. Send a message to its context to continue the work."
)
_NO_CREDENTIALS: Final = "Send a message with fresh credentials to continue."
_CUT_OFF: Final = (
    "The process of this task ended before it acted on an answer. Send a message to the task to"
    " continue."
)
_DROPPED: Final = "There was no answer: the conversation continued without it."


def task_id_of(context_id: str, turn: int) -> str:
    """The id of the task whose first turn this is; `place_of` reads it."""
    return f"task_{turn}_{context_id.replace(':', '~')}"  # a colon ends an id in A2A's paths


def place_of(task_id: str) -> tuple[str, int] | None:
    """The context and the first turn that an id names; `None` for any other text."""
    kind, _, rest = task_id.partition("_")
    number, _, name = rest.partition("_")
    if kind != "task" or not number.isascii() or not number.isdecimal() or len(number) > 18:
        return None
    context_id, turn = name.replace("~", ":"), int(number)
    return (context_id, turn) if turn and task_id_of(context_id, turn) == task_id else None


def asks(turn: TurnRecord) -> bool:
    """True if the end of *turn* leaves its task to its caller: a question, or a lost answer."""
    cut_off = turn.outcome is Outcome.INTERRUPTED and turn.continues is not None
    return cut_off or turn.outcome in _WAITING


def answers_before(turn: TurnRecord, before: TurnRecord | None) -> bool:
    """True if *turn* belongs to the task of the turn before it."""
    return turn.continues is not None and before is not None and asks(before)


@dataclass(frozen=True, slots=True)
class Chain:
    """
    The turns of one task, oldest first, and their context as it was before they were read.
    """

    context: ContextRecord
    turns: Sequence[TurnRecord]

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return task_id_of(self.context.context_id, self.turns[0].turn)

    @property
    def last(self) -> TurnRecord:
        """The newest turn."""
        return self.turns[-1]

    @property
    def torn(self) -> bool:
        """True if it continued after the context was read, which lacks what it waits for now."""
        last, running = self.last, self.context.open_turn
        ended = running is not None and running.turn == last.turn and self.settled
        return ended or last.turn > self.context.turn_count

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        if asks(self.last) and not self._waits():
            return TaskState.TASK_STATE_CANCELED
        return _state_after(self.last)

    @property
    def settled(self) -> bool:
        """True unless it works."""
        return self.last.outcome is not None

    @property
    def over(self) -> bool:
        """True if it neither works nor waits."""
        return self.settled and self.state not in WAITS

    @property
    def pending(self) -> Sequence[PendingRequest]:
        """The requests that wait for an answer."""
        return self.context.state.pending if self.state in WAITS else ()

    @property
    def changed_at(self) -> datetime:
        """When its state changed last."""
        return self.last.ended_at or self.last.started_at

    def _waits(self) -> bool:
        """True if what the last turn asked can still be answered."""
        if self.context.turn_count != self.last.turn:
            return False
        state = self.context.state
        goes_on = self.last.outcome is not Outcome.INPUT_REQUIRED and state.resumable is not None
        return bool(state.pending) or goes_on or state.waits_for is not None


class TaskReader:
    """
    Reads the tasks of one context out of its stores.

    Args:
        base: The server's address, without a slash at its end; for the URLs of large artifacts.
    """

    def __init__(self, stores: Stores, context_id: str, base: str) -> None:
        self._stores = stores
        self.context_id = context_id
        self._base = base

    async def find(self, first: int) -> Chain | None:
        """The task whose first turn this is; `None` if there is none."""
        while True:
            record = await self._stores.state.load(self.context_id)
            if record is None or first > record.turn_count:
                return None
            turns = await self._turns(first)
            if not turns:
                return None
            found = Chain(record, turns)
            if not found.torn:
                return found

    async def _turns(self, first: int) -> list[TurnRecord]:
        """The turns of the task whose first one this is, as far as they are stored."""
        chain: list[TurnRecord] = []
        before: TurnRecord | None = None
        after, limit = max(first - 2, 0), _FEW
        while True:
            found = await self._stores.journal.turns(self.context_id, after=after, limit=limit)
            for turn in found:
                if turn.turn >= first:
                    if answers_before(turn, before) != bool(chain):
                        return chain
                    chain.append(turn)
                before, after = turn, turn.turn
            if len(found) < limit:
                return chain
            limit = _PAGE

    async def turn(self, number: int) -> TurnRecord | None:
        """A turn; `None` if there is none."""
        found = await self._stores.journal.turns(self.context_id, after=number - 1, limit=1)
        return found[0] if found and found[0].turn == number else None

    async def task(
        self,
        chain: Chain,
        *,
        history: bool = True,
        artifacts: bool = True,
        inline: int = _INLINE_IN_ALL * INLINE_BYTES,
    ) -> Task:
        """
        The task of *chain*.

        Args:
            inline: So many bytes of its artifacts are in it; the others come as URLs.
        """
        task = Task(id=chain.task_id, context_id=self.context_id)
        task.status.CopyFrom(await self.status(chain))
        if history:
            task.history.extend(await self._history(chain, task.status.message.message_id))
        if artifacts:
            task.artifacts.extend(await self._artifacts(chain, inline))
        return task

    async def status(self, chain: Chain) -> TaskStatus:
        """The status of *chain*, with the agent's text."""
        status = TaskStatus(state=chain.state)
        status.timestamp.FromDatetime(chain.changed_at)
        message = await self._said(chain)
        if message is not None:
            status.message.CopyFrom(message)
        return status

    def began(self, turn: TurnRecord) -> TaskStatus:
        """The status that the beginning of *turn* gave its task."""
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        status.timestamp.FromDatetime(turn.started_at)
        return status

    def notice(self, chain: Chain, text: str, moment: datetime) -> TaskStatus:
        """The status of a task that works, with a sentence of looopy's own."""
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        status.timestamp.FromDatetime(moment)
        place = f"{chain.last.turn}.notice.{int(moment.timestamp() * 1000)}"
        status.message.CopyFrom(self._agent(chain, place, [text_part(text)]))
        return status

    async def ended(self, chain: Chain, turn: TurnRecord) -> TaskStatus:
        """The status that the end of *turn* gave its task; if it asked, only that it did."""
        waits = asks(turn) and (turn is not chain.last or chain.state not in WAITS)
        if not waits:
            until = [one for one in chain.turns if one.turn <= turn.turn]
            return await self.status(Chain(chain.context, until))
        status = TaskStatus(state=_state_after(turn))
        status.timestamp.FromDatetime(turn.ended_at or turn.started_at)
        found = await self._answer(turn)
        if found is not None:
            said = self._agent(chain, f"{turn.turn}.end", _answered(found))
            status.message.CopyFrom(said)
        return status

    async def decided_by(
        self, chain: Chain, actor_id: str, message_id: str
    ) -> Sequence[ApprovalDecided]:
        """The decisions of an actor who owns no turn of the task, in a message of this id."""
        for turn in chain.turns:
            if turn.actor_id == actor_id and _sent_as(turn) == message_id:
                events = self._stores.journal.events
                found = await events(self.context_id, after=turn.start_seq, limit=_PAGE)
                return [
                    one
                    for one in found
                    if isinstance(one, ApprovalDecided) and one.turn == turn.turn
                ]
        return ()

    def decision(self, chain: Chain, made: Sequence[ApprovalDecided]) -> Message:
        """The answer to a person who has decided calls of another person's task."""
        said = "\n".join(f"{one.tool_name}: {one.decision}" for one in made)
        waits = "The call waits for the owner of the task."
        facts = data_part({"decisions": [event_to_json(one) for one in made]})
        place = f"{made[-1].turn}.decision"
        return self._agent(chain, place, [text_part(f"{said}\n\n{waits}"), facts])

    async def artifact(self, artifact_id: str, version: int | None = None) -> A2AArtifact | None:
        """An artifact; `None` if it is gone."""
        try:
            found = await self._stores.artifacts.get(self.context_id, artifact_id, version)
            return await self._as_artifact(found, INLINE_BYTES)
        except ArtifactNotFound:
            return None

    # --- the agent's text ------------------------------------------------------------------------

    async def _said(self, chain: Chain) -> Message | None:
        last, outcome = chain.last, chain.last.outcome
        end = f"{last.turn}.end"
        if chain.state in WAITS:
            return self._agent(chain, end, await self._question(chain))
        if asks(last):
            return self._agent(chain, end, [text_part(_DROPPED)])
        if outcome is Outcome.INTERRUPTED:
            return self._agent(chain, end, [text_part(_INTERRUPTED)])
        if outcome is Outcome.FAILED:
            return self._agent(chain, end, [text_part(await self._failure(last))])
        if outcome is None:
            return None
        found = await self._answer(last)
        if found is None:
            return None
        message = self._agent(chain, f"{found.turn}.{found.iteration}", _answered(found))
        if last.stop_reason not in (None, StopReason.STOP):
            message.metadata.update({"stop_reason": last.stop_reason.value})
        return message

    async def _question(self, chain: Chain) -> list[Part]:
        """The agent's words and the questions in one text; then the requests, as data."""
        found = await self._answer(chain.last)
        said = [found.message.text] if found and isinstance(found.message, AssistantMessage) else []
        if chain.context.state.waits_for is not None:
            said += [chain.context.state.waits_for, "Send a message to continue once it is raised."]
            return [text_part("\n\n".join(said))]
        if not chain.pending:
            cut_off = chain.last.outcome is Outcome.INTERRUPTED
            said.append(_CUT_OFF if cut_off else _NO_CREDENTIALS)
            return [text_part("\n\n".join(said))]
        said.append("\n".join(_prompt(request) for request in chain.pending))
        asked = [
            {key: value for key, value in pending_to_json(one).items() if value is not None}
            for one in chain.pending
        ]
        requests = [{**one, "args": dict(one["args"])} for one in asked]
        return [text_part("\n\n".join(said)), data_part({"requests": requests})]

    async def _failure(self, turn: TurnRecord) -> str:
        end = turn.end_seq or turn.start_seq
        after = max(turn.start_seq, end - _LAST_EVENTS)
        events = await self._stores.journal.events(self.context_id, after=after, limit=end - after)
        said = [one.text for one in events if isinstance(one, TurnError) and one.turn == turn.turn]
        return said[-1] if said else "The task failed."

    async def _answer(self, turn: TurnRecord) -> MessageRecord | None:
        """The last message of the turn with text of the agent."""
        for after in (turn.last_position - 1, turn.first_position - 1):
            if after < turn.first_position - 1 or turn.last_position < turn.first_position:
                continue
            found = await self._records(after, turn.last_position)
            for record in reversed(found):
                if isinstance(record.message, AssistantMessage) and record.message.text:
                    return record
        return None

    async def _records(self, after: int, upto: int) -> list[MessageRecord]:
        found = await self._stores.messages.records(
            self.context_id, after=after, limit=max(upto - after, 0)
        )
        return [record for record in found if record.position <= upto]

    def _agent(self, chain: Chain, place: str, parts: Sequence[Part]) -> Message:
        return Message(
            message_id=f"{chain.task_id}.{place}",
            context_id=self.context_id,
            task_id=chain.task_id,
            role=Role.ROLE_AGENT,
            parts=parts,
        )

    # --- history ---------------------------------------------------------------------------------

    async def _history(self, chain: Chain, shown: str) -> list[Message]:
        """The messages of the task, except the one with the id *shown*."""
        first, last = chain.turns[0].first_position, chain.last.last_position
        if chain.last.outcome is None:
            last = max(last, chain.context.last_position)
        said: list[Message] = []
        mine = {turn.turn: _message_id(turn) for turn in chain.turns}
        for record in await self._records(first - 1, last):
            message = record.message
            if record.turn not in mine:
                continue
            if isinstance(message, UserMessage):
                name = mine[record.turn] or f"{chain.task_id}.p{record.position}"
                mine[record.turn] = None  # the others of this turn came while it ran
                said.append(
                    Message(
                        message_id=name,
                        context_id=self.context_id,
                        task_id=chain.task_id,
                        role=Role.ROLE_USER,
                        parts=parts_of(message),
                    )
                )
            elif isinstance(message, AssistantMessage) and message.text:
                made = self._agent(chain, f"{record.turn}.{record.iteration}", _answered(record))
                if made.message_id != shown:
                    said.append(made)
        return said

    # --- artifacts -------------------------------------------------------------------------------

    async def _artifacts(self, chain: Chain, inline: int) -> list[A2AArtifact]:
        store = self._stores.artifacts
        turn = chain.last.turn if len(chain.turns) == 1 else None
        found = await store.list(self.context_id, turn=turn, status=ArtifactStatus.COMPLETE)
        turns = {one.turn for one in chain.turns}
        made = []
        for artifact in found:
            if artifact.turn in turns:
                try:
                    made.append(await self._as_artifact(artifact, inline))
                except ArtifactNotFound:
                    continue  # deleted in the meantime
                inline -= artifact.size if made[-1].parts[0].WhichOneof("content") != "url" else 0
        return made

    async def _as_artifact(self, artifact: Artifact, inline: int) -> A2AArtifact:
        made = A2AArtifact(artifact_id=artifact.artifact_id, name=artifact.artifact_id)
        if artifact.description:
            made.description = artifact.description
        made.metadata.update({"version": artifact.version, "kind": artifact.kind.value})
        made.parts.append(await self._content(artifact, inline))
        return made

    async def _content(self, artifact: Artifact, inline: int) -> Part:
        name = artifact.artifact_id
        if artifact.size > min(inline, INLINE_BYTES):
            url = (
                f"{self._base}/contexts/{quote(self.context_id, safe='')}"
                f"/artifacts/{quote(name, safe='')}?version={artifact.version}"
            )
            return Part(url=url, filename=name, media_type=artifact.media_type)
        loaded = await self._stores.artifacts.load(self.context_id, name, artifact.version)
        if isinstance(loaded, bytes):
            return file_part(loaded, name, artifact.media_type)
        if artifact.kind is ArtifactKind.DATASET:
            loaded = {"rows": loaded, "columns": dict(artifact.columns or {})}
        return data_part(loaded)


def _state_after(turn: TurnRecord) -> TaskState:
    """The state that *turn* gives its task, unless what it asked is gone."""
    if turn.outcome is None:
        return TaskState.TASK_STATE_WORKING
    waits = turn.outcome is Outcome.INTERRUPTED and asks(turn)
    return TaskState.TASK_STATE_INPUT_REQUIRED if waits else _STATES[turn.outcome]


def _answered(record: MessageRecord) -> list[Part]:
    message = record.message
    return [text_part(message.text)] if isinstance(message, AssistantMessage) else []


def _prompt(request: PendingRequest) -> str:
    """One line for the person who answers."""
    if request.kind is not PendingKind.APPROVAL:
        return request.prompt or f"{request.tool_name} needs an answer."
    shown = f"{request.tool_name}({to_json_text(request.args)})"
    return f"{request.prompt or 'May it run?'} {shown} - say approve or deny."


def _message_id(turn: TurnRecord) -> str | None:
    """The id that the client gave the first message of a turn; `None` if that only answers."""
    said = turn.metadata.get("a2a")
    return None if isinstance(said, Mapping) and said.get("answers") else _sent_as(turn)


def _sent_as(turn: TurnRecord) -> str | None:
    """The id of the message that began a turn or answered in it."""
    said = turn.metadata.get("a2a")
    name = said.get("message_id") if isinstance(said, Mapping) else None
    return name if isinstance(name, str) and name else None
