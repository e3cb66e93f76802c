"""`StateStore` on SQL: the row of a context, and who may write to it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from looopy.errors import AgentBusy, StoreConflict
from looopy.stores.log import read_rows
from looopy.stores.records import Claim, Claimed, ContextRecord, InboxHead, TurnRecord, Waiter
from looopy.stores.rows import events as rows
from looopy.stores.rows.meta import from_us
from looopy.stores.rules import busy_message, check_context_id, no_context
from looopy.stores.sql import statements as s
from looopy.stores.sql.commit import claim_steps, encode_claim, peek
from looopy.stores.sql.driver import Query, Rows, Steps
from looopy.stores.sql.journal import SQLJournal, turn_record
from looopy.stores.sql.line import join_steps, keep_steps, leave_steps, read_line
from looopy.stores.sql.store import SQLStore, as_us, bounded, can_exist
from looopy.types.storable import check_limit, dump

_OWN_COLUMNS = 19


class SQLStateStore(SQLStore):
    """See `StateStore` for the contract."""

    def make_journal(self) -> SQLJournal:
        """The journal that goes with this store."""
        return SQLJournal(self.backend, self.tenant)

    async def load(self, context_id: str) -> ContextRecord | None:
        """The context, or `None`."""

        def work() -> Steps[ContextRecord | None]:
            found = yield Query(s.LOAD_CONTEXT, self.params(context_id), alone=True)
            return _context_record(found[0]) if found else None

        return await self.backend.run(work, write=False) if can_exist(context_id) else None

    async def save(self, context_id: str, metadata: Mapping[str, Any], *, version: int) -> int:
        """Replace the metadata."""
        check_context_id(context_id)
        text = dump(dict(metadata), "/metadata")
        params = self.params(context_id, metadata=text, version=bounded(version))

        def work() -> Steps[int]:
            if version == 0:
                yield Query(s.CREATE, params)
            saved = yield Query(s.SAVE_METADATA, params)
            if not saved:
                head = yield from peek(params)
                raise StoreConflict(
                    "another writer has changed the metadata: load it again",
                    expected=version,
                    actual=head.version if head else 0,
                )
            return int(saved[0][0])

        return await self.write(work, context_id)

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        """Contexts by id."""
        check_limit(limit)
        # Ids are ASCII letters and less: any other character sorts after them, also one that no
        # database takes, as DEL does. A text with a leading NUL sorts as if the NUL were missing.
        start = "".join(c if c.isascii() else "\x7f" for c in after.partition("\0")[0])
        params = {"tenant": self.tenant, "after_id": start, "limit": bounded(limit)}

        def work() -> Steps[Rows]:
            return (yield Query(s.LIST_CONTEXTS, params, alone=True))

        return await read_rows(await self.backend.run(work, write=False), _context_record)

    async def delete(self, context_id: str) -> None:
        """Remove a context with everything in it."""
        if not can_exist(context_id):
            raise no_context(context_id)

        def work() -> Steps[None]:
            head = yield from peek(self.params(context_id), lock=True)
            if head is None:
                raise no_context(context_id)
            if head.open_turn is not None and head.lease_live:
                raise AgentBusy(busy_message(head.open_turn), turn=head.open_turn)
            yield Query(s.DELETE_CONTEXT, self.params(context_id))

        await self.write(work, context_id, inbox=True)

    async def claim(self, claim: Claim) -> Claimed:
        """Own a context for a turn."""
        check_context_id(claim.context_id)
        given = encode_claim(self.params(claim.context_id), claim)
        return await self.write(partial(claim_steps, given), claim.context_id)

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        """Prolong the lease."""
        params = self.params(context_id, epoch=bounded(epoch), ttl_us=as_us(ttl_s))

        def work() -> Steps[bool]:
            return bool((yield Query(s.RENEW, params)))

        # No ring: other processes assume a renewed lease anyway.
        return can_exist(context_id) and await self.backend.run(work, write=True)

    async def release(self, context_id: str, epoch: int) -> None:
        """Give the lease back."""
        params = self.params(context_id, epoch=bounded(epoch))

        def work() -> Steps[None]:
            yield Query(s.RELEASE, params)

        if can_exist(context_id):
            await self.write(work, context_id, inbox=True)

    # --- the line ---

    async def join_line(self, context_id: str, holder: str, ttl_s: float) -> int:
        """Take a place at the end."""
        check_context_id(context_id)
        params = self.params(context_id, holder=holder, ttl_us=as_us(ttl_s))
        return await self.write(partial(join_steps, params), context_id)

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        """Keep a place for longer."""
        params = self.params(context_id, ticket=bounded(ticket), ttl_us=as_us(ttl_s))
        # As with a lease that is renewed.
        work = partial(keep_steps, params)
        return can_exist(context_id) and await self.backend.run(work, write=True)

    async def leave_line(self, context_id: str, ticket: int) -> None:
        """Give a place up."""
        work = partial(leave_steps, self.params(context_id, ticket=bounded(ticket)))
        if can_exist(context_id):
            await self.write(work, context_id, inbox=True)

    async def line(self, context_id: str) -> Sequence[Waiter]:
        """The waiters, first come first."""
        work = partial(read_line, self.params(context_id))
        return await self.backend.run(work, write=False) if can_exist(context_id) else []


def _context_record(row: Sequence[Any]) -> ContextRecord:
    """A context from the columns of `statements.LOAD_CONTEXT`."""
    (
        context_id,
        epoch,
        turn_count,
        last_position,
        last_seq,
        visible_from,
        cleared_seq,
        holder,
        lease_live,
        lease_until,
        owner_actor,
        state,
        metadata,
        version,
        created_at,
        last_activity,
        inbox_last,
        inbox_waiting,
        cancel_turn,
    ) = row[:_OWN_COLUMNS]
    open_turn: TurnRecord | None = None
    if row[_OWN_COLUMNS] is not None:
        open_turn = turn_record(row[_OWN_COLUMNS:])
    return ContextRecord(
        context_id=context_id,
        epoch=epoch,
        turn_count=turn_count,
        last_position=last_position,
        last_seq=last_seq,
        visible_from=visible_from,
        cleared_seq=cleared_seq,
        open_turn=open_turn,
        holder=holder,
        lease_live=bool(lease_live),
        lease_until=lease_until or 0,
        owner_actor=owner_actor,
        inbox=InboxHead(last=inbox_last, waiting=inbox_waiting, cancel_turn=cancel_turn),
        state=rows.decode_state(state, context_id),
        metadata=rows.decode_object(metadata, f"the metadata of context {context_id}"),
        version=version,
        created_at=from_us(created_at),
        last_activity=from_us(last_activity),
    )
