"""
What is said to a turn of the bare loop while it runs: asked of two functions of the application.

They are asked as the inbox of an agent is: steering before each model call and before each tool
that has not started, follow-ups where the turn would end. What they hand over is theirs no more, so
the turn says it in any case: one that ends early says it last, unanswered, and its `messages` hold
it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from looopy.checks import as_user_message
from looopy.turn import NoInbox, Queued
from looopy.types.message import CustomMessage, UserMessage

_logger = logging.getLogger("looopy")

Said: TypeAlias = "str | UserMessage | CustomMessage | Sequence[str | UserMessage | CustomMessage]"
GetMessages: TypeAlias = "Callable[[], Said | Awaitable[Said | None] | None]"
"""What brings messages that wait: one, several, or `None` for none. Sync or async."""


class AskedQueues(NoInbox):
    """
    An `Inbox` for the loop that asks functions.

    Args:
        steering: Asked for what is said next; `None`: nothing ever is.
        follow_ups: Asked for what is said once the turn would end.

    Attributes:
        failed: Told the name of a function that failed, and its error.
    """

    def __init__(self, steering: GetMessages | None, follow_ups: GetMessages | None) -> None:
        self._steering = steering
        self._follow_ups = follow_ups
        self.asks_application = self.arrived = steering is not None
        self.failed: Callable[[str, Exception], object] = lambda _name, _error: None

    async def steering(self) -> list[Queued]:
        """What is to be said next."""
        return await self._ask("get_steering_messages", self._steering)

    async def follow_ups(self) -> list[Queued]:
        """What is to be said once the turn would end."""
        return await self._ask("get_follow_up_messages", self._follow_ups)

    async def _ask(self, name: str, function: GetMessages | None) -> list[Queued]:
        if function is None:
            return []
        try:
            said: Any = function()
            if inspect.isawaitable(said):
                said = await said
            if said is None:
                return []
            if isinstance(said, (str, UserMessage, CustomMessage)):
                said = [said]
            return [Queued(_message(one)) for one in said]
        except Exception as error:
            _logger.exception("%s failed", name)
            self.failed(name, error)
            return []


def _message(said: Any) -> UserMessage | CustomMessage:
    return said if isinstance(said, CustomMessage) else as_user_message(said, may_be_none=False)
