"""`MessageStore` on SQL: ranges of the primary key, decoded where they are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from looopy.stores.base import MessageStore
from looopy.stores.contexts.log import read_records
from looopy.stores.records import MessageRecord
from looopy.stores.rows import events as rows
from looopy.stores.rules import check_context_id
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import append_steps
from looopy.stores.sql.driver import Steps
from looopy.stores.sql.fork import count_shown, read_shown
from looopy.stores.sql.head import peek
from looopy.stores.sql.store import SQLStore, bounded, can_exist
from looopy.types.message import Message
from looopy.types.storable import check_after, check_limit


class SQLMessageStore(SQLStore, MessageStore):
    """See `MessageStore` for the contract."""

    async def append(self, context_id: str, messages: Sequence[Message]) -> int:
        check_context_id(context_id)
        encoded = rows.message_rows(messages)
        work = partial(append_steps, self.params(context_id), encoded)
        if not encoded.messages:
            return await self.backend.run(work, write=False)
        return await self.write(work, context_id)

    async def records(
        self,
        context_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        include_hidden: bool = False,
    ) -> list[MessageRecord]:
        check_after(after)
        start = bounded(after)
        return await self._read(
            s.LIST_RECORDS, context_id, after=start, limit=limit, hidden=include_hidden
        )

    async def recent(self, context_id: str, *, limit: int) -> list[MessageRecord]:
        check_limit(limit, optional=False)
        return await self._read(s.LIST_NEWEST, context_id, limit=limit)

    async def count(self, context_id: str, *, include_hidden: bool = False) -> int:
        def work() -> Steps[int]:
            head = yield from peek(self.params(context_id))
            return 0 if head is None else count_shown(head, hidden=include_hidden)

        return await self.backend.run(work, write=False) if can_exist(context_id) else 0

    async def _read(
        self,
        statement: str,
        context_id: str,
        *,
        after: int | None = None,
        limit: int | None,
        hidden: bool = False,
    ) -> list[MessageRecord]:
        check_limit(limit)
        bounds: dict[str, Any] = {"after": after, "limit": bounded(limit)}
        found: Any = await self._ask(statement, context_id, **bounds)
        if not found and limit != 0:  # or it hides a part
            look = partial(read_shown, statement=statement, **bounds, hidden=hidden)
            found = await self._look(look, context_id)
        return await read_records(found, tuple)
