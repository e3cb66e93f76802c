"""Create, get, list and delete the configurations of a task, each for the owner of its context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import TaskNotFoundError

from looopy.errors import StoreConflict, ValueRefused
from looopy.server.host import AgentHost
from looopy.server.problems import Problem
from looopy.server.protocols.a2a.calls import Call
from looopy.server.protocols.a2a.push.configs import Config, Receiver
from looopy.server.protocols.a2a.push.delivery import Deliveries
from looopy.server.protocols.a2a.tasks import Chain

_TRIES: Final = 3
_MOST_CHARS: Final = 4096
_ID: Final = re.compile(r"[!-.0-~]{1,256}")  # visible ASCII without a slash: it is in a path
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")  # of a header
_SCHEME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")


class PushVerbs:
    """
    The verbs. Each takes a task that the caller was found to own.

    Args:
        deliveries: Send what the configurations ask for.
    """

    def __init__(self, host: AgentHost, deliveries: Deliveries) -> None:
        self._host = host
        self._deliveries = deliveries
        self._configs = deliveries.configs

    async def checked(
        self, config: TaskPushNotificationConfig, task_id: str, call: Call
    ) -> Receiver:
        """
        The receiver that a caller names, if it is allowed. Nothing is stored.

        Args:
            task_id: Its task, or an empty text for one that is about to begin.

        Raises:
            ValueRefused: It is not, or its id, token or credentials cannot be used.
            Problem: 409; the task has too many.
        """
        if config.id and not _ID.fullmatch(config.id):
            raise _refused("an id is 1 to 256 visible ASCII characters without a slash", "/id")
        _check_value(config.token, "/token")
        sent = config.authentication
        if config.HasField("authentication"):
            if not _SCHEME.fullmatch(sent.scheme):
                raise _refused("a scheme is a word such as Bearer", "/authentication/scheme")
            _check_value(sent.credentials, "/authentication/credentials")
        receiver = Receiver(
            url=config.url, token=config.token, scheme=sent.scheme, credentials=sent.credentials
        )
        self._configs.check(receiver)
        await self._deliveries.receivers.check(config.url)
        if task_id:
            there = await self._configs.of_task(self._tenant(call), task_id)
            self._check_room(there, config.id or task_id)
        return receiver

    async def create(
        self,
        config: TaskPushNotificationConfig,
        receiver: Receiver,
        chain: Chain,
        call: Call,
        *,
        after: int | None = None,
    ) -> TaskPushNotificationConfig:
        """
        Store a configuration, or replace the one of its id, and send from now on.

        Args:
            receiver: The result of `checked`.
            after: Send what comes after this `seq`. `None`: what happens from now on, and the
                status of a task that waits or is over.

        Raises:
            Problem: 409; the task has too many.
        """
        config = normalize_push_notification_config(chain.task_id, config)
        tenant = self._tenant(call)
        for tries_left in reversed(range(_TRIES)):
            there = await self._configs.of_task(tenant, chain.task_id)
            old = self._check_room(there, config.id)
            made = Config(
                tenant=tenant,
                context_id=chain.context.context_id,
                made_at=chain.context.created_at.isoformat(),
                owner=call.auth.actor_id,
                task_id=chain.task_id,
                config_id=config.id,
                first=chain.turns[0].turn,
                base=call.base,
                is_old=call.is_old,
                receiver={},
                after=_present(chain) if after is None else after,
            )
            if old is not None:  # nothing is lost between the two
                made = replace(made, after=old.after, version=old.version)
            try:
                made = await self._configs.save(self._configs.sealed(made, receiver))
            except StoreConflict:
                if not tries_left:
                    raise
                continue
            self._deliveries.watch(made)
            break
        return _shown(config.id, chain.task_id, receiver)

    def _check_room(self, there: Sequence[Config], config_id: str) -> Config | None:
        """The configuration with this id, or `None` if there is room for it."""
        old = next((one for one in there if one.config_id == config_id), None)
        most = self._deliveries.options.per_task
        if old is None and len(there) >= most:
            text = f"{most} push notification configs of one task are the limit: delete one"
            raise Problem(text, status=409, code="limit_exceeded")
        return old

    async def get(
        self, params: GetTaskPushNotificationConfigRequest, chain: Chain, call: Call
    ) -> TaskPushNotificationConfig:
        """
        Show one.

        Raises:
            TaskNotFoundError: The task has none of this id.
        """
        found = await self._find(chain, params.id, call)
        return self._show(found)

    async def list(
        self, params: ListTaskPushNotificationConfigsRequest, chain: Chain, call: Call
    ) -> ListTaskPushNotificationConfigsResponse:
        """Show all of a task, on one page: a task has few."""
        if params.page_token:
            raise _refused("all configs are on the first page", "/pageToken")
        found = await self._configs.of_task(self._tenant(call), chain.task_id)
        mine = [self._show(one) for one in found if one.is_for(chain.context)]
        return ListTaskPushNotificationConfigsResponse(configs=mine)

    async def delete(
        self, params: DeleteTaskPushNotificationConfigRequest, chain: Chain, call: Call
    ) -> None:
        """Delete one, and send no more to it. One that does not exist is deleted already."""
        found = await self._configs.find(self._tenant(call), chain.task_id, params.id)
        if found is not None and found.is_for(chain.context):
            await self._configs.delete(found)

    async def _find(self, chain: Chain, config_id: str, call: Call) -> Config:
        found = await self._configs.find(self._tenant(call), chain.task_id, config_id)
        if found is None or not found.is_for(chain.context):
            raise TaskNotFoundError("the task has no push notification config of this id")
        return found

    def _show(self, config: Config) -> TaskPushNotificationConfig:
        receiver = self._configs.receiver(config) or Receiver(url="")
        return _shown(config.config_id, config.task_id, receiver)

    def _tenant(self, call: Call) -> str:
        return self._host.stores_for(call.auth).tenant


def _present(chain: Chain) -> int:
    """The place in the log from which a new receiver gets events."""
    if chain.settled and chain.last.end_seq is not None:
        return chain.last.end_seq - 1
    return chain.context.last_seq


def _shown(config_id: str, task_id: str, receiver: Receiver) -> TaskPushNotificationConfig:
    """A configuration as callers see it: token and credentials are written and never read."""
    shown = TaskPushNotificationConfig(id=config_id, task_id=task_id, url=receiver.url)
    if receiver.scheme:
        shown.authentication.CopyFrom(AuthenticationInfo(scheme=receiver.scheme))
    return shown


def _check_value(text: str, path: str) -> None:
    if text and (len(text) > _MOST_CHARS or not _VALUE.fullmatch(text)):
        raise _refused(f"it takes up to {_MOST_CHARS:,} visible ASCII characters", path)


def _refused(text: str, path: str) -> ValueRefused:
    return ValueRefused(text, path=path)
