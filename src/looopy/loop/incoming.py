"""
Messages that reach a turn while it runs: the `Inbox` protocol, and an inbox that asks functions.

Steering is read before each model call and before each tool that has not started, follow-ups where
the turn would end. `AskedQueues` asks two functions of the application for both. A message that
they hand over belongs to the turn: a turn that ends early says it last, unanswered.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from looopy.errors import ValueRefused
from looopy.types.message import CustomMessage, ImageContent, UserMessage
from looopy.types.message_json import message_to_json
from looopy.types.shapes import check_message
from looopy.types.storable import SURELY_SHORT, check, check_text


class Queued(NamedTuple):
    """A message that waits to be said, and the inbox entry it is, if it is one."""

    message: UserMessage | CustomMessage
    number: int | None = None


class Inbox(Protocol):
    """
    What comes in while a turn runs. What is taken and never committed is still in the store.

    Attributes:
        asks_application: Whether looking runs code of the application.
        arrived: Whether something may have come in that nobody has looked at.
        heard: The newest entry that was looked at; `None` where nothing can come in.
    """

    asks_application: bool

    @property
    def arrived(self) -> bool:
        """See above."""
        ...

    @property
    def heard(self) -> int | None:
        """See above."""
        ...

    async def steering(self) -> list[Queued]:
        """Take what is to be said next, one message or all; [] when there is none."""
        ...

    async def follow_ups(self) -> list[Queued]:
        """Take what is to be said once the turn would end."""
        ...

    def refused(self) -> bool:
        """Whether the group just yielded was not committed, because of news. Asked once."""
        ...

    def withdrawn(self) -> Collection[int]:
        """
        Entries of the group just yielded that were withdrawn; it was then not committed. Asked
        once.
        """
        ...


class NoInbox:
    """Of a turn that nobody can say anything to."""

    asks_application = False
    arrived = False
    heard: int | None = None

    async def steering(self) -> list[Queued]:
        """Nothing."""
        return []

    async def follow_ups(self) -> list[Queued]:
        """Nothing."""
        return []

    def refused(self) -> bool:
        """Never."""
        return False

    def withdrawn(self) -> Collection[int]:
        """None."""
        return ()


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


def as_user_message(value: str | UserMessage, *, may_be_none: bool = True) -> UserMessage:
    """
    The user's message.

    Args:
        may_be_none: The caller takes `None` too, as `execute_turn` does: what is said in a refusal.

    Raises:
        ValueRefused: It is empty, of another type, or cannot be stored.
    """
    takes = "user_message takes None," if may_be_none else "a message is"
    message = UserMessage(value) if isinstance(value, str) else value
    if not isinstance(message, UserMessage):
        raise ValueRefused(f"{takes} text or a UserMessage, not {type(value).__name__}", path="")
    if message is value:
        check_message(message)
    has_image = not isinstance(message.content, str) and any(
        isinstance(block, ImageContent) for block in message.content
    )
    if not message.text.strip() and not has_image:
        raise ValueRefused(
            "the message is empty: say something" + (", or pass None to continue" * may_be_none),
            path="/content",
        )
    content = message.content
    if isinstance(content, str) and len(content) < SURELY_SHORT:  # as most are
        check_text(content, "/content")
    else:
        check(message_to_json(message, compact=True))
    return message
