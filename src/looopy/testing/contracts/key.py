"""Idempotency keys of turns: part of the contract of stores; see `looopy.testing.stores`."""

from __future__ import annotations

from typing import Any

import pytest

from looopy.errors import AgentBusy, StoreConflict, ValueRefused
from looopy.stores.bundle import Stores
from looopy.stores.records import Claimed
from looopy.testing.contracts.turns import CONTEXT, Contract, at_once, begin, commit, ends, refuses

_LONGEST = 256
_ODD = ("k", " ", "é😀\u2028", "'; --", "K", "k\n", "x" * _LONGEST, "😀" * _LONGEST)
_BAD: tuple[Any, ...] = ("", "x" * (_LONGEST + 1), "nul \0", "lone \ud800", 7)


async def _turn(stores: Stores, key: str | None, **others: Any) -> Claimed:
    """A turn with *key*, from its claim to its end."""
    named: dict[str, Any] = {} if key is None else {"key": key, "input_hash": f"hash of {key}"}
    claimed = await begin(stores, **named, **others)
    context = {"context_id": others["context_id"]} if "context_id" in others else {}
    await commit(stores, claimed, [ends(**context)], release=True, **context)
    return claimed


class KeyContract(Contract):
    """Keys of turns: a second use is refused, and the key leads to the first turn."""

    async def test_a_key_names_its_turn_from_the_claim_on(self, stores: Stores) -> None:
        """The key gives the turn and the hash of its input, during the turn and after it."""
        claimed = await begin(stores, key="first", input_hash="h1")
        assert await stores.journal.turn_of_key(CONTEXT, "first") == (1, "h1")
        await commit(stores, claimed, [ends()], release=True)
        await _turn(stores, None)
        await _turn(stores, "third")
        assert await stores.journal.turn_of_key(CONTEXT, "first") == (1, "h1")
        assert await stores.journal.turn_of_key(CONTEXT, "third") == (3, "hash of third")

    async def test_an_unused_key_names_no_turn(self, stores: Stores) -> None:
        """An invalid key, or a key of an unknown context, names no turn either."""
        await _turn(stores, "k")
        for key in ("other", "k ", *(k for k in _BAD if isinstance(k, str))):
            assert await stores.journal.turn_of_key(CONTEXT, key) is None
        for context_id in ("nobody", "no id"):
            assert await stores.journal.turn_of_key(context_id, "k") is None
        assert [c.context_id for c in await stores.state.list()] == [CONTEXT]

    async def test_odd_keys_are_kept_apart(self, stores: Stores) -> None:
        """Each key is kept as given, up to the longest."""
        for key in _ODD:
            await _turn(stores, key)
        for turn, key in enumerate(_ODD, 1):
            found = await stores.journal.turn_of_key(CONTEXT, key)
            assert found == (turn, f"hash of {key}")

    async def test_an_invalid_key_is_refused(self, stores: Stores) -> None:
        """An invalid key, or a key without a hash, is refused before anything is written."""
        for key in _BAD:
            with refuses(ValueRefused, path="/idempotency_key"):
                await begin(stores, key=key, input_hash="h")
        with pytest.raises(ValueError, match="hash"):
            await begin(stores, key="k")
        assert await stores.state.load(CONTEXT) is None

    async def test_a_key_is_used_once(self, stores: Stores) -> None:
        """A second claim with it is refused, also with the same input; nothing is written."""
        await _turn(stores, "k")
        alone = await stores.state.load(CONTEXT)
        with pytest.raises(StoreConflict):
            await begin(stores, key="k", input_hash="hash of k")
        assert await stores.state.load(CONTEXT) == alone
        (ticket,) = [await stores.state.join_wait_queue(CONTEXT, "holder-1", 60.0)]
        before = await stores.state.load(CONTEXT), await stores.state.wait_queue(CONTEXT)
        for input_hash in ("hash of k", "another"):
            with pytest.raises(StoreConflict):
                await begin(stores, key="k", input_hash=input_hash, ticket=ticket)
        assert (await stores.state.load(CONTEXT), await stores.state.wait_queue(CONTEXT)) == before
        assert await stores.journal.turn_of_key(CONTEXT, "k") == (1, "hash of k")
        await _turn(stores, "other", ticket=ticket)

    async def test_one_of_many_claims_with_one_key_begins_the_turn(self, stores: Stores) -> None:
        """The others are refused, and find its turn by the key."""

        async def attempt(n: int) -> int | None:
            try:
                return (await begin(stores, key="k", input_hash="h", holder=f"h{n}")).turn
            except (AgentBusy, StoreConflict):
                assert await stores.journal.turn_of_key(CONTEXT, "k") == (1, "h")
                return None

        assert [turn for turn in await at_once(*map(attempt, range(12))) if turn] == [1]

    async def test_a_refused_claim_leaves_its_key_free(self, stores: Stores) -> None:
        """A claim that is refused as busy or out of date does not use its key."""
        claimed = await begin(stores)
        for epoch in (claimed.epoch, 0):
            with pytest.raises(AgentBusy):
                await begin(stores, epoch, holder="h2", key="k", input_hash="h")
        await commit(stores, claimed, [ends()], release=True)
        with pytest.raises(StoreConflict):
            await begin(stores, 0, key="k", input_hash="h")
        assert await stores.journal.turn_of_key(CONTEXT, "k") is None
        await _turn(stores, "k")
        assert await stores.journal.turn_of_key(CONTEXT, "k") == (2, "hash of k")

    async def test_keys_live_as_long_as_their_context(self, stores: Stores) -> None:
        """Clearing keeps the keys; deleting the context removes them."""
        await _turn(stores, "k")
        await stores.journal.clear(CONTEXT)
        assert await stores.journal.turn_of_key(CONTEXT, "k") == (1, "hash of k")
        await stores.state.delete(CONTEXT)
        assert await stores.journal.turn_of_key(CONTEXT, "k") is None
        await _turn(stores, "k")

    async def test_a_key_belongs_to_one_context_of_one_tenant(self, stores: Stores) -> None:
        """In another context or for another tenant the key is unknown and free."""
        await _turn(stores, "k")
        other = stores.for_tenant("other")
        assert await other.journal.turn_of_key(CONTEXT, "k") is None
        assert await stores.journal.turn_of_key("beside", "k") is None
        await _turn(other, "k")
        await _turn(stores, "k", context_id="beside")
