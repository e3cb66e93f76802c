"""The ways out that errors of stores name: each is one that its caller has."""

from __future__ import annotations

import pytest

from looopy.errors import AgentBusy, ValueRefused
from looopy.stores import open_stores
from looopy.testing.contracts.turns import CONTEXT, begin, user


async def test_the_error_of_a_busy_context_names_the_options_of_the_caller():
    """Only an erasure and a clear end the turn; only a claim waits for it by itself."""
    async with open_stores("memory:") as stores:
        claimed = await begin(stores, actor_id="ann")
        for words, work in (
            ("force=True", stores.contexts.erase(CONTEXT)),
            ("force=True", stores.contexts.erase_person("ann")),
            ("force=True", stores.journal.clear(CONTEXT)),
            ("try again", stores.state.delete(CONTEXT)),
            ("try again", stores.journal.rewind(CONTEXT, 1)),
            ("try again", stores.messages.append(CONTEXT, [user("hi")])),
            ("on_busy='wait'", begin(stores, claimed.epoch)),
        ):
            with pytest.raises(AgentBusy) as busy:
                await work
            assert words in str(busy.value)
            assert ("on_busy" in str(busy.value)) is (words == "on_busy='wait'")


async def test_the_error_of_several_busy_contexts_has_their_number():
    """One of them is named as itself, and several by their number and one of their names."""
    async with open_stores("memory:") as stores:
        await begin(stores, actor_id="ann")
        with pytest.raises(AgentBusy, match=f"running on context '{CONTEXT}', in which"):
            await stores.contexts.erase_person("ann")
        await begin(stores, context_id="other", actor_id="ann")
        with pytest.raises(AgentBusy, match=f"running on 2 contexts, such as '{CONTEXT}', in"):
            await stores.contexts.erase_person("ann")


async def test_a_cell_that_is_no_integer_is_refused_in_english():
    """By its place, and with the type that is needed."""
    async with open_stores("memory:") as stores:
        with pytest.raises(ValueRefused, match=r"/content/0/n: .* is an integer, or null"):
            await stores.artifacts.save(CONTEXT, "x", [{"n": "1"}], columns={"n": "integer"})
