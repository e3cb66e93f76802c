"""`StateStore` on SQL: the row of a context, and who may write to it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from looopy.stores.base import StateStore
from looopy.stores.contexts.log import read_rows
from looopy.stores.records import Claim, Claimed, ContextRecord, Waiter
from looopy.stores.rows import events as rows
from looopy.stores.rules import (
    WAIT,
    busy,
    check_context_id,
    check_lease,
    check_left_as,
    check_queue_place,
    check_ttl,
    metadata_changed,
    no_context,
)
from looopy.stores.sql import statements as s
from looopy.stores.sql.artifacts import drop_blobs
from looopy.stores.sql.commit import claim_steps, create, drop_place, encode_claim
from looopy.stores.sql.contexts.listing import SQLContextIndex
from looopy.stores.sql.driver import Query, Steps
from looopy.stores.sql.head import peek
from looopy.stores.sql.journal import SQLJournal
from looopy.stores.sql.store import SQLStore, after_id, as_us, bounded, can_exist, one_step
from looopy.stores.sql.turns import context_record
from looopy.types.state import AgentStatus
from looopy.types.storable import check_after_name, check_limit, check_number, dump

if TYPE_CHECKING:
    from looopy.stores.sql.contexts.spending import SQLSpending


class SQLStateStore(SQLStore, StateStore):
    """See `StateStore` for the contract."""

    def make_journal(self) -> SQLJournal:
        """The journal that goes with this store."""
        return SQLJournal(self.backend, self.tenant)

    def make_contexts(self) -> SQLContextIndex:
        """The index that goes with this store."""
        return SQLContextIndex(self.backend, self.tenant)

    def make_spending(self) -> SQLSpending:
        """The accounts that go with this store."""
        from looopy.stores.sql.contexts.spending import SQLSpending  # most turns have no account

        return SQLSpending(self.backend, self.tenant)

    async def load(self, context_id: str) -> ContextRecord | None:
        found = await self._ask(s.LOAD_CONTEXT, context_id)
        return context_record(found[0]) if found else None

    async def save(self, context_id: str, metadata: Mapping[str, Any], *, version: int) -> int:
        check_context_id(context_id)
        check_number(version, "/version", "pass the version of its record, or 0 for a new one")
        text = dump(dict(metadata), "/metadata")
        params = self.params(context_id, metadata=text, version=bounded(version))

        def work() -> Steps[int]:
            if version == 0:
                yield from create(params)
            saved = yield Query(s.SAVE_METADATA, params)
            if not saved:
                head = yield from peek(params)
                raise metadata_changed(version, head.version if head else 0)
            yield Query(s.UNINDEX, params)
            return int(saved[0][0])

        return await self.write(work, context_id)

    async def list(self, *, after: str = "", limit: int = 100) -> list[ContextRecord]:
        check_after_name(after)
        check_limit(limit, optional=False)
        params = {"tenant": self.tenant, "after_id": after_id(after), "limit": bounded(limit)}
        work = partial(one_step, Query(s.LIST_CONTEXTS, params, alone=True))
        return await read_rows(await self.backend.run(work, write=False), context_record)

    async def delete(self, context_id: str) -> None:
        if not can_exist(context_id):
            raise no_context(context_id)

        has_blobs = self.backend.blobs is not None
        work = partial(_delete_steps, self.params(context_id), blobs=has_blobs)
        freed = await self.write(work, context_id, inbox=True, removes=True)
        self.backend.notifier.note_removal(self.tenant, context_id)
        await drop_blobs(self.backend, self.tenant, freed)

    async def claim(self, claim: Claim) -> Claimed:
        check_context_id(claim.context_id)
        given = encode_claim(self.params(claim.context_id), claim)
        return await self.write(partial(claim_steps, given), claim.context_id)

    async def renew(self, context_id: str, epoch: int, ttl_s: float) -> bool:
        check_lease(epoch, ttl_s)
        params = self.params(context_id, epoch=bounded(epoch), ttl_us=as_us(ttl_s))
        if not can_exist(context_id):
            return False
        # No ring: other processes assume a renewed lease anyway.
        work = partial(one_step, Query(s.RENEW, params))
        return bool(await self.backend.run(work, write=True))

    async def release(self, context_id: str, epoch: int) -> None:
        check_lease(epoch)
        params = self.params(context_id, epoch=bounded(epoch))
        if can_exist(context_id):
            await self.write(partial(one_step, Query(s.RELEASE, params)), context_id, inbox=True)

    async def leave(self, context_id: str, epoch: int, status: AgentStatus) -> None:
        check_left_as(epoch, status)
        key = self.params(context_id)

        def work() -> Steps[None]:
            head = yield from peek(key, lock=True)
            if head is not None and head.epoch == epoch and head.open_turn is None:
                yield Query(s.LEAVE, {**key, "state": rows.state_left_as(head.state, status)})

        if can_exist(context_id):
            await self.write(work, context_id)

    # --- the queue: places, each with the time until which it is kept ---

    # The context's row has the latest of these times, so a claim reads the places only if the queue
    # may have any. Each operation locks that row first, so the places that it reads are not stale.

    async def join_wait_queue(self, context_id: str, holder: str, ttl_s: float) -> int:
        check_context_id(context_id)
        check_ttl(ttl_s)
        params = self.params(context_id, holder=holder, ttl_us=as_us(ttl_s))

        def work() -> Steps[int]:
            while not (taken := (yield Query(s.TAKE_TICKET, params))):
                yield from create(params)
            ticket = int(taken[0][0])
            yield Query(s.DROP_DEAD_PLACES, params)
            yield Query(s.ADD_PLACE, {**params, "ticket": ticket})
            yield Query(s.MEASURE_LINE, params)
            return ticket

        return await self.write(work, context_id)

    async def keep_place(self, context_id: str, ticket: int, ttl_s: float) -> bool:
        check_queue_place(ticket, ttl_s)
        params = self.params(context_id, ticket=bounded(ticket), ttl_us=as_us(ttl_s))

        def work() -> Steps[bool]:
            yield from peek(params, lock=True)
            if not (yield Query(s.KEEP_PLACE, params)):
                return False
            yield Query(s.MEASURE_LINE, params)
            return True

        # As with a lease that is renewed.
        return can_exist(context_id) and await self.backend.run(work, write=True)

    async def leave_wait_queue(self, context_id: str, ticket: int) -> None:
        check_queue_place(ticket)
        params = self.params(context_id, ticket=bounded(ticket))

        def work() -> Steps[None]:
            yield from peek(params, lock=True)
            yield from drop_place(params)

        if can_exist(context_id):
            await self.write(work, context_id, inbox=True)

    async def wait_queue(self, context_id: str) -> Sequence[Waiter]:
        found = await self._ask(s.LIST_LINE, context_id)
        return [Waiter(ticket=t, holder=holder, alive=bool(alive)) for t, holder, alive in found]


def _delete_steps(key: Mapping[str, Any], *, blobs: bool) -> Steps[list[str]]:
    """Delete a context and its inner contexts; the names of blobs that may be free now."""
    going: list[Mapping[str, Any]] = []
    names = [key["context"]]
    for name in names:
        one = {**key, "context": name}
        head = yield from peek(one, lock=True)
        if head is not None:  # or an inner context has just been erased
            if head.open_turn is not None and head.lease_live:
                raise busy(head.open_turn, WAIT)
            going.append(one)
            names += [inner for (inner,) in (yield Query(s.INNER_OF, one))]
        elif not going:
            raise no_context(name)
    freed: list[str] = []
    for one in reversed(going):
        if blobs:
            freed += (name for (name,) in (yield Query(s.LIST_BLOBS, one)))
        yield Query(s.UNLINK_FORKS, one)
        yield Query(s.DELETE_CONTEXT, one)
    return freed
