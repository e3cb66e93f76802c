"""
The conversations in a database, read through its stores, page by page.

No database is made, and only a fork, an erasure and a turn change one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from datetime import date
from typing import Any, Final, Self, Unpack, cast

from looopy.agent.agent import Agent
from looopy.cli.conversations.base import Budgets, Conditions
from looopy.cli.data_folder import shown_place
from looopy.cli.factories import load_factory
from looopy.errors import AgentBusy, ConfigurationError, ContextNotFound, StoreUnavailable
from looopy.server.feed import Feed
from looopy.server.host import AgentHost
from looopy.server.items import context_to_json, item, placed_to_json, turn_to_json
from looopy.server.models import Context, Hit, Page, PlacedMessage, Turn
from looopy.server.page.budgets import budget_items, limits_in
from looopy.stores.accounts import held_calls, owners_of
from looopy.stores.bundle import Stores
from looopy.stores.contexts.spending import TENANT, Spent, account_of
from looopy.stores.opening import open_stores
from looopy.stores.pages import messages_of, turns_of
from looopy.stores.records import ContextRecord
from looopy.types.context import AuthContext
from looopy.types.event import AgentEvent

_PAGE: Final = 200
_LOOK_S: Final = 2.0


def exists(url: str) -> bool:
    """True if there may be something to read: an existing file, or a server, which knows better."""
    from looopy.stores.sql.sqlite.connection import sqlite_path

    if url.startswith("sqlite"):
        return sqlite_path(url).exists()
    return not url.startswith("memory:")


@asynccontextmanager
async def existing(url: str) -> AsyncIterator[Stores]:
    """The stores of a database that is there; none is made or changed."""
    if url.startswith("memory:"):
        raise ConfigurationError("name a database that is kept: --db sqlite:///path/to/file.db")
    if not exists(url):
        raise ConfigurationError(
            f"there is no database at {shown_place(url)}: `looopy chat` makes one, --db names"
            " another"
        )
    async with open_stores(url, migrate=False) as stores:
        yield stores


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[StoredConversations]:
    """The conversations of the database at *url*, which has to exist."""
    async with existing(url) as stores:
        yield StoredConversations(stores, url)


class StoredConversations:
    """
    All conversations of a database, of every owner; see `Conversations`.

    Args:
        url: The address of *stores*.
    """

    whose = ""

    def __init__(self, stores: Stores, url: str) -> None:
        self._stores = stores
        self.where = f"in {shown_place(url)}"

    async def contexts(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **conditions: Unpack[Conditions],
    ) -> Page[Context, str]:
        """See `Conversations`."""
        most = _PAGE if limit is None else min(_PAGE, limit)
        page = await self._stores.contexts.list(**conditions, after=after, limit=most)
        return {"items": [_item(record) for record in page.items], "next": page.next}

    async def context(self, context_id: str) -> Context:
        """See `Conversations`."""
        record = await self._stores.state.load(context_id)
        if record is None:
            raise ContextNotFound(f"there is no conversation {context_id!r} {self.where}")
        lineage = await self._stores.journal.lineage(context_id)
        parent = lineage.parent
        relatives = {
            "parent": parent and {"context_id": parent.context_id, "at": parent.at},
            "forks": [{"context_id": fork.context_id, "at": fork.at} for fork in lineage.forks],
        }
        return cast("Context", {**_item(record), **relatives})

    async def turns(self, context_id: str) -> AsyncIterator[Turn]:
        """See `Conversations`."""
        record = await self._stores.state.load(context_id)
        async for turn in turns_of(self._stores, context_id):
            yield turn_to_json(turn, record.hidden if record else ())

    async def messages(self, context_id: str) -> AsyncIterator[PlacedMessage]:
        """See `Conversations`."""
        async for message in messages_of(self._stores, context_id):
            yield placed_to_json(message)

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        owner: str | None = None,
    ) -> Page[Hit, str]:
        """See `Conversations`."""
        page = await self._stores.contexts.search(
            query, context_id=context_id, owner=owner, after=after, limit=limit or _PAGE
        )
        return {"items": [item(Hit, one) for one in page.items], "next": page.next}

    async def fork(self, context_id: str, new_context_id: str, *, at: int | None = None) -> Context:
        """See `Conversations`."""
        return _item(await self._stores.journal.fork(context_id, new_context_id, at=at))

    async def erase(
        self, context_id: str, *, force: bool = False, keep_backups: bool = False
    ) -> Mapping[str, Any]:
        """See `Conversations`."""
        erase = self._stores.contexts.erase
        return asdict(await erase(context_id, force=force, keep_backups=keep_backups))

    async def erase_person(
        self, person: str, *, force: bool = False, keep_backups: bool = False
    ) -> Mapping[str, Any]:
        """See `Conversations`."""
        erase = self._stores.contexts.erase_person
        try:
            return asdict(await erase(person, force=force, keep_backups=keep_backups))
        except AgentBusy as error:
            said = error.message.replace("force=True", "--force")
            raise AgentBusy(said, turn=error.turn) from None

    # --- budgets -------------------------------------------------------------------------------

    async def budgets(
        self, *, owner: str | None, tenant: str | None, day: date | None, factory: str | None
    ) -> Budgets:
        """See `Conversations`."""
        stores = self._stores if tenant is None else self._stores.for_tenant(tenant)
        host = None if factory is None else AgentHost(load_factory(factory), stores)
        accounts = await _accounts(stores, owner, day)
        contexts = await _newest_of(stores, list(accounts), owner)
        rows = []
        for account, sums in accounts.items():
            limits = {}
            if host is not None and (record := _configured(contexts, account)) is not None:
                auth = AuthContext(record.owner_actor) if record.owner_actor else None
                agent = await host.sample(record.context_id, auth)
                limits = limits_in(agent, record.owner_actor, account)
            who = _who(account, contexts.get(account), owner)
            rows += [{**who, **item} for item in budget_items(sums, limits, day)]
        dead = [call for call in await held_calls(stores) if call.is_stuck]
        return Budgets(sorted(rows, key=_order), host is not None, len(dead))


class AgentConversations(StoredConversations):
    """
    Conversations of a database, with an agent for each in this process; see `LiveConversations`.

    Args:
        make: Makes the agent of a conversation, on these stores.
    """

    def __init__(self, stores: Stores, url: str, make: Callable[[str, Stores], Agent]) -> None:
        super().__init__(stores, url)
        self._make = make
        self._agents: dict[str, tuple[Agent, Feed]] = {}
        self._making = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, make: Callable[[str, Stores], Agent]) -> Self:
        """Open the database at *url*, which is made and migrated if necessary."""
        return cls(await open_stores(url).__aenter__(), url, make)

    async def context(self, context_id: str) -> Context:
        """See `Conversations`. Ends a turn that a dead process left, as each start of an agent."""
        record = await self._stores.state.load(context_id)
        if record is not None and record.open_turn is not None:
            await (await self._agent(context_id))[0].refresh()
        return await super().context(context_id)

    async def newest_messages(self, context_id: str, limit: int) -> list[PlacedMessage]:
        """See `LiveConversations`."""
        recent = await self._stores.messages.recent(context_id, limit=limit)
        return [placed_to_json(one) for one in recent]

    async def begin_turn(
        self,
        context_id: str,
        message: str | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """See `LiveConversations`."""
        agent, _ = await self._agent(context_id)
        turn = agent.execute_turn(message, inputs=inputs, idempotency_key=idempotency_key)
        return await turn.accepted()

    async def events(
        self, context_id: str, *, after: int | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        """See `LiveConversations`."""
        agent, feed = await self._agent(context_id)
        looking = asyncio.create_task(_end_dead_turns(agent))
        try:
            async with aclosing(feed.follow(after)) as events:
                async for event in events:
                    if event.turn:  # others are about the agent, which a person does not know
                        yield event
        finally:
            looking.cancel()

    async def cancel(self, context_id: str) -> None:
        """See `LiveConversations`."""
        await (await self._agent(context_id))[0].cancel()

    async def aclose(self) -> None:
        """See `LiveConversations`."""
        for agent, feed in self._agents.values():
            await feed.close()
            await agent.shutdown(cancel=True)
        await self._stores.__aexit__(None, None, None)

    async def _agent(self, context_id: str) -> tuple[Agent, Feed]:
        async with self._making:  # events and a turn need the same agent
            if context_id not in self._agents:
                agent = self._make(context_id, self._stores)
                await agent.start()
                self._agents[context_id] = agent, Feed(agent, self._stores)
            return self._agents[context_id]


async def _end_dead_turns(agent: Agent) -> None:
    """End the turn of a process that is gone where only its lease shows that, as off Linux."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with suppress(StoreUnavailable):  # its events end with the same error
            await agent.refresh()


def _item(record: ContextRecord) -> Context:
    return cast("Context", {**context_to_json(record), "owner": record.owner_actor})


async def _accounts(
    stores: Stores, owner: str | None, day: date | None
) -> dict[str, Sequence[Spent]]:
    if owner is not None:
        account = account_of(owner)
        return {account: await stores.spending.spent(account, day=day)}
    found: dict[str, Sequence[Spent]] = {}
    while page := await stores.spending.accounts(
        day=day, after=max(found, default=""), limit=_PAGE
    ):
        found.update(page)
    return found


async def _newest_of(
    stores: Stores, accounts: Sequence[str], owner: str | None
) -> dict[str, ContextRecord]:
    """The last active context of each account that has one."""
    if owner is None:
        return await owners_of(stores, accounts)
    page = await stores.contexts.list(owner=owner, limit=1)
    return {account_of(owner): record for record in page.items}


def _configured(contexts: Mapping[str, ContextRecord], account: str) -> ContextRecord | None:
    """The context whose agent has the limits of an account."""
    if account != TENANT:
        return contexts.get(account)
    return max(contexts.values(), key=lambda one: one.last_activity, default=None)


def _who(account: str, record: ContextRecord | None, asked: str | None) -> dict[str, str | None]:
    kind = "tenant" if account == TENANT else "owner"
    if account == account_of(None):
        kind = "no owner"
    owner = asked if record is None else record.owner_actor
    return {"account": kind, "owner": owner, "account_id": account}


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The tenant first, then owners by name; those without a name come last."""
    return row["account"] != "tenant", row["owner"] is None, row["owner"] or row["account_id"]
