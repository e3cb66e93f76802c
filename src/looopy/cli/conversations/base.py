"""The port that commands are written on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from looopy.types.event import AgentEvent

if TYPE_CHECKING:
    from looopy.server.models import Context, Hit, Page, PlacedMessage, Turn


@dataclass(frozen=True, slots=True)
class Budgets:
    """
    Sums of accounts, a row for each period; see `server.page.budgets.budget_items`.

    Attributes:
        with_limits: True if the limits are known, so that a row without one has none.
        dead_calls: How many calls without a process still hold a part of what is reserved.
    """

    rows: Sequence[Mapping[str, Any]]
    with_limits: bool
    dead_calls: int = 0


class Conditions(TypedDict, total=False):
    """The conditions of a listing; a place may lack some."""

    status: str | None
    tags: Sequence[str]
    owner: str | None
    metadata: Mapping[str, str | int]
    due: bool


class Conversations(Protocol):
    """
    The conversations of a database, or of one user of a server.

    Items are the JSON objects of the HTTP API. A place that has no such condition or action raises
    `ConfigurationError`, which names the option. An unknown id raises `ContextNotFound`.
    """

    @property
    def where(self) -> str:
        """The place, for the end of a sentence: `in chat.db`, `on https://host`."""
        ...

    @property
    def whose(self) -> str:
        """Empty, or ` of yours` if the place shows only conversations of the caller."""
        ...

    async def contexts(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **conditions: Unpack[Conditions],
    ) -> Page[Context, str]:
        """
        A page of conversations, the last active first.

        Args:
            limit: At most so many; a page may have fewer. `None`: as many as the place likes.
        """
        ...

    async def context(self, context_id: str) -> Context:
        """A conversation as it is now; in a database with its `parent` and its `forks`."""
        ...

    def turns(self, context_id: str) -> AsyncIterator[Turn]:
        """The turns, the oldest first."""
        ...

    def messages(self, context_id: str) -> AsyncIterator[PlacedMessage]:
        """The messages, the oldest first."""
        ...

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        owner: str | None = None,
    ) -> Page[Hit, str]:
        """A page of the messages that have all words of *query*."""
        ...

    async def fork(self, context_id: str, new_context_id: str, *, at: int | None = None) -> Context:
        """
        Make a conversation that begins with the past of another one.

        Raises:
            StoreConflict: One has the new id.
            ValueRefused: *at* is not the end of a turn.
        """
        ...

    async def erase(
        self, context_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Mapping[str, Any]:
        """
        Erase a conversation; the fields of `Erased` that the place knows, `context_ids` at least.

        Raises:
            AgentBusy: A turn runs, and *force* is false.
        """
        ...

    async def erase_person(
        self, person: str, *, force: bool = False, keep_backups: bool = False
    ) -> Mapping[str, Any]:
        """Erase everything of a person; otherwise as `erase`."""
        ...

    async def budgets(
        self, *, owner: str | None, tenant: str | None, day: date | None, factory: str | None
    ) -> Budgets:
        """
        The use of budgets in a day and in its month.

        Args:
            day: `None`: today, in UTC.
            factory: `MODULE:FACTORY` of the application that has the limits.

        Raises:
            FactoryFailed: The factory raised.
        """
        ...


class LiveConversations(Conversations, Protocol):
    """
    Conversations whose turns run: in this process, in others, or on a server.

    A turn continues without readers. Everything that happens comes as events, also of a turn that
    this program began.
    """

    async def newest_messages(self, context_id: str, limit: int) -> list[PlacedMessage]:
        """The newest messages, at most *limit*, the oldest of them first."""
        ...

    async def begin_turn(
        self,
        context_id: str,
        message: str | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """
        Begin a turn, or continue one (without a message); return its number once it is accepted.

        Raises:
            AgentBusy: A turn runs.
            LooopyError: See `Agent.execute_turn`.
        """
        ...

    def events(
        self, context_id: str, *, after: int | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        """The durable events after the `seq` *after* and those to come, with passing ones."""
        ...

    async def cancel(self, context_id: str) -> None:
        """Stop the running turn, in whichever process it runs."""
        ...

    async def aclose(self) -> None:
        """Release the place. Turns of this process stop; others continue."""
        ...
