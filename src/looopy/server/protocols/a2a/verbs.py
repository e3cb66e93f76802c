"""
The verbs of A2A over an `AgentHost`.

Each verb first asks the host if the caller owns the context that the task names; another person's
task looks like one that does not exist. A message begins a turn, answers what a turn asked, or goes
to the turn that runs. A client that leaves cancels nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final
from uuid import UUID

from a2a.server.events import Event
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length

from looopy.agent.hosted import port_of
from looopy.errors import CannotContinue, ContextNotFound, TurnMismatch, ValueRefused
from looopy.loop.incoming import as_user_message
from looopy.server.app_context import AppContext
from looopy.server.codes import code_of
from looopy.server.protocols.a2a import listing, parts
from looopy.server.protocols.a2a.calls import Call
from looopy.server.protocols.a2a.following import Update, ended, ending, updates
from looopy.server.protocols.a2a.push.verbs import PushVerbs
from looopy.server.protocols.a2a.tasks import Chain, TaskReader, place_of
from looopy.server.protocols.repeats import digest
from looopy.stores.rules import check_context_id
from looopy.types.message import UserMessage

_TRIES: Final = 3  # the task may change while a message to it is read
_CANCELLED_WITHIN_S: Final = 10.0  # a tool may hold the turn
_NO_PUSH: Final = "this server sends no push notifications: subscribe to the task, or get it"
_CONFIG: Final = "/configuration/taskPushNotificationConfig"


class Verbs:
    """
    The verbs.

    Args:
        app_context: The host, the limits, and who is asking.
        push: The verbs of push notifications, or `None`.
    """

    def __init__(self, app_context: AppContext, push: PushVerbs | None = None) -> None:
        self.app_context = app_context
        self._push = push
        self._host = app_context.host

    # --- messages --------------------------------------------------------------------------------

    async def send(self, params: SendMessageRequest, call: Call) -> Task | Message:
        """
        Take a message, and answer with its task once it waits or is over.

        A decision about a call in another person's task is answered with a message.
        """
        try:
            reader, first, turn = await self._take(params, call)
        except TaskNotFoundError:
            return await self._decided(params, call)
        if not params.configuration.return_immediately:
            await self._ended(reader, turn, call)
        task = await reader.task(await self._chain(reader, first))
        return apply_history_length(task, params.configuration)

    async def stream(self, params: SendMessageRequest, call: Call) -> AsyncGenerator[Event, None]:
        """Take a message, and show its task as it runs; a decision as `send` does."""
        try:
            reader, first, _ = await self._take(params, call)
        except TaskNotFoundError:
            yield await self._decided(params, call)
            return
        chain = await self._chain(reader, first)
        yield apply_history_length(await reader.task(chain), params.configuration)
        if chain.settled:  # a client waits for the update that ends the stream
            yield await ending(reader, chain)
        else:
            async with aclosing(self._updates(reader, chain, call)) as news:
                async for update in news:
                    yield update

    async def _take(self, params: SendMessageRequest, call: Call) -> tuple[TaskReader, int, int]:
        """Take a message: the reader of its context, its task's first turn, and its own turn."""
        validate_history_length(params.configuration)
        if not params.configuration.HasField("task_push_notification_config"):
            return await self._taken(params.message, call)
        config = params.configuration.task_push_notification_config
        try:
            receiver = await self.push.checked(config, params.message.task_id, call)
        except ValueRefused as error:
            path = f"{_CONFIG}{error.path}"
            raise parts.invalid(error.message, path, code_of(type(error))) from None
        reader, first, turn = await self._taken(params.message, call)
        begun = await reader.turn(turn)
        chain = await self._chain(reader, first)
        after = None if begun is None else begun.start_seq - 1
        await self.push.create(config, receiver, chain, call, after=after)
        return reader, first, turn

    async def _taken(self, message: Message, call: Call) -> tuple[TaskReader, int, int]:
        if message.role != Role.ROLE_USER:
            raise parts.invalid("the role of a message to an agent is ROLE_USER", "/message/role")
        said = parts.read(message, most_bytes=self.app_context.limits.message_bytes)
        if message.task_id:
            return await self._speak(message, said, call)
        context_id = message.context_id or _context_of(message, call)
        try:
            check_context_id(context_id)
            turn = await self._begin(call, context_id, message, _checked(said), {}, create=True)
        except ContextNotFound:
            text = "this context does not exist"
            raise parts.invalid(text, "/message/contextId", "context_not_found") from None
        except ValueRefused as error:
            if error.path != "/context_id":
                raise
            raise parts.invalid(str(error), "/message/contextId", "value_refused") from None
        return self._reader(context_id, call), turn, turn

    async def _speak(
        self, message: Message, said: parts.Said, call: Call
    ) -> tuple[TaskReader, int, int]:
        """Take a message to a task: an answer if it waits, or one for the turn that runs."""
        for _ in range(_TRIES):
            reader, chain = await self._found(message.task_id, call)
            context_id, first = chain.context.context_id, chain.turns[0].turn
            if message.context_id not in ("", context_id):
                raise parts.invalid("the task is in another context", "/message/contextId")
            journal = self._host.stores_for(call.auth).journal
            known = await journal.turn_of_key(context_id, _key(message.message_id))
            if known is not None and any(turn.turn == known[0] for turn in chain.turns):
                return reader, first, known[0]  # sent twice
            try:
                if not chain.settled:
                    await self.app_context.space(call.auth)
                    async with self._host.agent(context_id, call.auth, create=False) as agent:
                        await agent.steer(
                            _checked(said),
                            call.auth,
                            expected_turn=chain.last.turn,
                            idempotency_key=_key(message.message_id),
                        )
                    return reader, first, chain.last.turn
                if chain.over:
                    name = TaskState.Name(chain.state)
                    raise UnsupportedOperationError(
                        f"the task is over ({name}): send the message to its context, without a"
                        " task, to begin another one"
                    )
                inputs: Mapping[str, Any] = {}
                more: UserMessage | None = None
                if chain.pending:
                    inputs, more = parts.answers(chain.pending, said)
                turn = await self._begin(call, context_id, message, more, inputs, create=False)
            except TurnMismatch:
                continue
            return reader, first, turn
        raise UnsupportedOperationError("the task changes too fast: send the message again")

    async def _decided(self, params: SendMessageRequest, call: Call) -> Message:
        """
        Store the decision of a message to another person's task.

        Raises:
            TaskNotFoundError: The caller may decide nothing in it, or the message is more than
                decisions; as for a task that does not exist.
            LooopyError: Same as `AgentHost.decide_all`.
        """
        message, place = params.message, place_of(params.message.task_id)
        brings_more = params.configuration.HasField("task_push_notification_config")
        if place is None or brings_more or message.context_id not in ("", place[0]):
            raise TaskNotFoundError
        context_id, first = place
        reader = self._reader(context_id, call)
        chain = await reader.find(first)
        if chain is None:
            raise TaskNotFoundError
        made = await reader.decided_by(chain, call.auth.actor_id, message.message_id)
        if made:
            ids = [one.request_id for one in made]
            if not await self._host.may_decide(context_id, ids, call.auth):
                raise TaskNotFoundError
        else:
            found = await self._host.requests(call.auth, context_id=context_id)
            said = parts.read(message, most_bytes=self.app_context.limits.message_bytes)
            answers = parts.decisions(found.items if chain.pending else (), said)
            if not answers:
                raise TaskNotFoundError
            facts = {"message_id": message.message_id, "answers": True}
            made = await self._host.decide_all(
                context_id,
                answers,
                call.auth,
                metadata={"a2a": facts},
                admission=self.app_context.turn(call.auth, context_id),
            )
        return reader.decision(chain, made)

    async def _begin(
        self,
        call: Call,
        context_id: str,
        message: Message,
        said: UserMessage | None,
        inputs: Mapping[str, Any],
        *,
        create: bool,
    ) -> int:
        """Begin a turn; return its number once it is stored."""
        facts: dict[str, Any] = {"message_id": message.message_id}
        if said is None:
            facts["answers"] = True
        async with (
            self._host.agent(context_id, call.auth, create=create) as agent,
            self.app_context.turn(call.auth, context_id, _key(message.message_id)),
        ):
            turn = agent.execute_turn(
                said,
                call.auth,
                inputs=inputs or None,
                idempotency_key=_key(message.message_id),
                metadata={"a2a": facts},
            )
            return await turn.accepted()

    async def _ended(self, reader: TaskReader, turn: int, call: Call) -> None:
        found = await reader.turn(turn)
        if found is not None and found.outcome is None:
            await ended(self._host, call.auth, reader, found)

    # --- tasks -----------------------------------------------------------------------------------

    async def get(self, params: GetTaskRequest, call: Call) -> Task:
        """Show a task."""
        validate_history_length(params)
        reader, chain = await self._found(params.id, call)
        history = not (params.HasField("history_length") and params.history_length == 0)
        return apply_history_length(await reader.task(chain, history=history), params)

    async def list(self, params: ListTasksRequest, call: Call) -> ListTasksResponse:
        """List the tasks of a context, or of all contexts of the caller."""
        return await listing.tasks(self._host, params, call, self._reader)

    async def subscribe(
        self, params: SubscribeToTaskRequest, call: Call
    ) -> AsyncGenerator[Event, None]:
        """Show a task that runs or waits, and what happens to it."""
        reader, chain = await self._found(params.id, call)
        if chain.over:
            name = TaskState.Name(chain.state)
            raise UnsupportedOperationError(f"the task is over ({name}): get it instead")
        yield await reader.task(chain)
        async with aclosing(self._updates(reader, chain, call)) as news:
            async for update in news:
                yield update

    async def cancel(self, params: CancelTaskRequest, call: Call) -> Task:
        """Stop a task: the turn that runs, in whatever process, or the question that waits."""
        reader, chain = await self._found(params.id, call)
        first, context_id = chain.turns[0].turn, chain.context.context_id
        if chain.over:
            name = TaskState.Name(chain.state)
            raise TaskNotCancelableError(f"the task is over ({name})")
        if not chain.settled:
            turn = chain.last.turn
            await self._host.stores_for(call.auth).journal.ask_cancel(context_id, turn)
            try:
                async with asyncio.timeout(_CANCELLED_WITHIN_S):
                    await self._ended(reader, turn, call)
            except TimeoutError:
                pass  # it is stored, and the turn ends once its tool lets go
            chain = await self._chain(reader, first)
        if chain.settled and not chain.over:
            async with self._host.agent(context_id, call.auth, create=False) as agent:
                try:
                    await port_of(agent).give_up(call.auth, chain.last.turn)
                except CannotContinue:
                    raise TaskNotCancelableError("the task was answered just now") from None
            chain = await self._chain(reader, first)
        if chain.over and chain.state != TaskState.TASK_STATE_CANCELED:
            name = TaskState.Name(chain.state)
            raise TaskNotCancelableError(f"the task ended just now ({name})")
        return await reader.task(chain)

    # --- push notifications ----------------------------------------------------------------------

    @property
    def push(self) -> PushVerbs:
        """
        The verbs of push notifications.

        Raises:
            PushNotificationNotSupportedError: The server sends none.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError(_NO_PUSH)
        return self._push

    async def create_push(
        self, params: TaskPushNotificationConfig, call: Call
    ) -> TaskPushNotificationConfig:
        """Send the notifications of a task to a receiver."""
        push = self.push
        _, chain = await self._found(params.task_id, call)
        receiver = await push.checked(params, chain.task_id, call)
        return await push.create(params, receiver, chain, call)

    async def get_push(
        self, params: GetTaskPushNotificationConfigRequest, call: Call
    ) -> TaskPushNotificationConfig:
        """Show one receiver of a task."""
        push = self.push
        _, chain = await self._found(params.task_id, call)
        return await push.get(params, chain, call)

    async def list_push(
        self, params: ListTaskPushNotificationConfigsRequest, call: Call
    ) -> ListTaskPushNotificationConfigsResponse:
        """Show the receivers of a task."""
        push = self.push
        _, chain = await self._found(params.task_id, call)
        return await push.list(params, chain, call)

    async def delete_push(
        self, params: DeleteTaskPushNotificationConfigRequest, call: Call
    ) -> None:
        """Send nothing more to a receiver of a task."""
        push = self.push
        _, chain = await self._found(params.task_id, call)
        await push.delete(params, chain, call)

    # --- inside ----------------------------------------------------------------------------------

    def _reader(self, context_id: str, call: Call) -> TaskReader:
        return TaskReader(self._host.stores_for(call.auth), context_id, call.base)

    async def _found(self, task_id: str, call: Call) -> tuple[TaskReader, Chain]:
        """
        The task, if the caller owns its context; a dead process does not keep it working.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        place = place_of(task_id)
        if place is None:
            raise TaskNotFoundError
        context_id, first = place
        try:
            await self._host.authorise(context_id, call.auth)
        except (ContextNotFound, ValueRefused):
            raise TaskNotFoundError from None
        reader = self._reader(context_id, call)
        chain = await self._chain(reader, first)
        if await listing.settle_dead(self._host, chain, call.auth):
            chain = await self._chain(reader, first)
        return reader, chain

    async def _chain(self, reader: TaskReader, first: int) -> Chain:
        found = await reader.find(first)
        if found is None:
            raise TaskNotFoundError
        return found

    def _updates(
        self, reader: TaskReader, chain: Chain, call: Call
    ) -> AsyncGenerator[Update, None]:
        return updates(self._host, call.auth, reader, chain)


def _checked(said: parts.Said) -> UserMessage:
    """
    The message for the model, before an agent is made for it.

    Raises:
        InvalidParamsError: It is empty, or cannot be stored.
    """
    try:
        return as_user_message(said.message(), may_be_none=False)
    except ValueRefused as error:
        raise parts.invalid(str(error), "/message/parts", "value_refused") from None


def _context_of(message: Message, call: Call) -> str:
    """
    The context of a message that names none: the same for a message that comes again.

    Two messages to which a client gives one id, which A2A forbids, have contexts of their own.
    """
    said = message.SerializeToString(deterministic=True).hex()
    return str(UUID(digest(call.auth.tenant_id, call.auth.actor_id, said)))


def _key(message_id: str) -> str:
    """The idempotency key of a message, whatever its id is made of."""
    return f"a2a-{hashlib.sha256(message_id.encode()).hexdigest()}"
