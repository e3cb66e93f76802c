"""
Messages that reach a turn while it runs: an `Inbox`, and one that calls functions.

The turn reads steering before each model call and before each tool that has not started, and
follow-ups before it would end. `AskedQueues` calls two functions of the application for both. A
message that they return belongs to the turn. If the turn ends early, it adds the message last,
unanswered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from looopy.errors import ValueRefused
from looopy.tools.call.hooks import HookFailed, ask_hook
from looopy.types.message import CustomMessage, TextContent, UserMessage
from looopy.types.message_check import check_message
from looopy.types.message_json import message_to_json
from looopy.types.storable import SURELY_SHORT, check, check_text


class Queued(NamedTuple):
    """A waiting message, and the number of its inbox entry, if it has one."""

    message: UserMessage | CustomMessage
    number: int | None = None


class Inbox:
    """
    Messages that arrive while a turn runs; this one never gets any.

    A message that is taken and never committed stays in the store.

    Attributes:
        asks_application: True if reading it runs code of the application.
    """

    asks_application = False

    @property
    def arrived(self) -> bool:
        """True if a message may have arrived that was not read yet."""
        return self.asks_application

    @property
    def heard(self) -> int | None:
        """The number of the newest entry that was read; `None` if nothing can arrive."""
        return None

    async def steering(self) -> list[Queued]:
        """Take the messages for the next model call, one or all; [] if there are none."""
        return []

    async def follow_ups(self) -> list[Queued]:
        """Take the messages for the end of the turn."""
        return []

    def refused(self) -> bool:
        """True once if the group just yielded was not committed because of news."""
        return False

    def withdrawn(self) -> Collection[int]:
        """The entries that were withdrawn, so that the last group was not committed; once."""
        return ()


Said: TypeAlias = "str | UserMessage | CustomMessage | Sequence[str | UserMessage | CustomMessage]"
GetMessages: TypeAlias = "Callable[[], Said | Awaitable[Said | None] | None]"
"""Returns waiting messages: one, several, or `None`. Sync or async."""


class AskedQueues(Inbox):
    """
    An `Inbox` for the loop that calls functions.

    Args:
        steering: Called for messages for the next model call; `None`: there are never any.
        follow_ups: Called for messages when the turn would end.

    Attributes:
        failed: Called with the name of a function that failed, and its error.
    """

    def __init__(self, steering: GetMessages | None, follow_ups: GetMessages | None) -> None:
        self._steering = steering
        self._follow_ups = follow_ups
        self.asks_application = steering is not None
        self.failed: HookFailed = lambda _name, _error: None

    async def steering(self) -> list[Queued]:
        """The messages for the next model call."""
        return await self._ask("get_steering_messages", self._steering)

    async def follow_ups(self) -> list[Queued]:
        """The messages for the end of the turn."""
        return await self._ask("get_follow_up_messages", self._follow_ups)

    async def _ask(self, name: str, function: GetMessages | None) -> list[Queued]:
        if function is None:
            return []
        return await ask_hook(name, function, _queued, default=[], failed=self.failed)


def _queued(said: Any) -> list[Queued]:
    if said is None:
        return []
    if isinstance(said, (str, UserMessage, CustomMessage)):
        said = [said]
    return [
        Queued(one if isinstance(one, CustomMessage) else as_user_message(one, may_be_none=False))
        for one in said
    ]


def as_user_message(user_message: str | UserMessage, *, may_be_none: bool = True) -> UserMessage:
    """
    The user's message.

    Args:
        may_be_none: The caller accepts `None` too, as `execute_turn` does; the error names it.

    Raises:
        ValueRefused: The message is empty, of another type, or cannot be stored.
    """
    takes = "user_message takes None," if may_be_none else "a message is"
    if isinstance(user_message, str):
        user_message = UserMessage(user_message)
    elif isinstance(user_message, UserMessage):
        check_message(user_message)
    else:
        raise ValueRefused(
            f"{takes} text or a UserMessage, not {type(user_message).__name__}", path=""
        )
    content = user_message.content
    has_file = not isinstance(content, str) and any(
        not isinstance(block, TextContent) for block in content
    )
    if not user_message.text.strip() and not has_file:
        raise ValueRefused(
            "the message is empty: pass some text" + (", or pass None to continue" * may_be_none),
            path="/content",
        )
    if isinstance(content, str) and len(content) < SURELY_SHORT:  # as most are
        check_text(content, "/content")
    else:
        check(message_to_json(user_message, compact=True))
    return user_message
