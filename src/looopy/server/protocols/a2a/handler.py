"""
The SDK's side of the verbs: each with the call in place of the SDK's context, and errors of A2A.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.proto_utils import validate_proto_required_fields

from looopy.server.app_context import AppContext
from looopy.server.gate.expiry import while_valid
from looopy.server.protocols.a2a.calls import Call
from looopy.server.protocols.a2a.push.verbs import PushVerbs
from looopy.server.protocols.a2a.verbs import Verbs

_R = TypeVar("_R")
_P = TypeVar("_P", bound=Any)


class Handler(RequestHandler):
    """
    The verbs, as the SDK calls them.

    Args:
        app_context: The host, the limits, and who is asking.
        extended: Makes the card for a caller who signed in.
        push: The verbs of push notifications, or `None`.
    """

    def __init__(
        self,
        app_context: AppContext,
        extended: Callable[[GetExtendedAgentCardRequest, Call], Awaitable[AgentCard]],
        push: PushVerbs | None = None,
    ) -> None:
        self._app_context = app_context
        self._extended = extended
        self._verbs = Verbs(app_context, push)

    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Task | Message:
        """See `Verbs.send`."""
        return await _answer(self._verbs.send, params, context)

    def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """See `Verbs.stream`."""
        return self._stream(self._verbs.stream, params, context)

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """See `Verbs.get`."""
        return await _answer(self._verbs.get, params, context)

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """See `Verbs.list`."""
        return await _answer(self._verbs.list, params, context)

    def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """See `Verbs.subscribe`."""
        return self._stream(self._verbs.subscribe, params, context)

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """See `Verbs.cancel`."""
        return await _answer(self._verbs.cancel, params, context)

    # --- push notifications ----------------------------------------------------------------------

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """See `Verbs.create_push`."""
        return await _answer(self._verbs.create_push, params, context)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """See `Verbs.get_push`."""
        return await _answer(self._verbs.get_push, params, context)

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """See `Verbs.list_push`."""
        return await _answer(self._verbs.list_push, params, context)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """See `Verbs.delete_push`."""
        return await _answer(self._verbs.delete_push, params, context)

    # --- the card --------------------------------------------------------------------------------

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Show the card with the tools."""
        return await _answer(self._extended, params, context)

    # --- inside ----------------------------------------------------------------------------------

    def _stream(
        self,
        verb: Callable[[_P, Call], AsyncGenerator[Event, None]],
        params: _P,
        context: ServerCallContext,
    ) -> AsyncGenerator[Event, None]:
        """The events of a verb, counted as a stream, and closed with their call."""
        call = Call.of(context)

        async def shown() -> AsyncGenerator[Event, None]:
            with call.errors():
                validate_proto_required_fields(params)
                with self._app_context.stream(call.auth):
                    async with aclosing(while_valid(verb(params, call), call.auth)) as events:
                        async for event in events:
                            yield event

        events = shown()
        call.closes(events)
        return events


async def _answer(
    verb: Callable[[_P, Call], Awaitable[_R]], params: _P, context: ServerCallContext
) -> _R:
    call = Call.of(context)
    with call.errors():
        validate_proto_required_fields(params)
        return await verb(params, call)
