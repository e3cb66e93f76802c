"""The contracts on the defaults of `looopy.stores.defaults`, above the required methods alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.contract import required

from looopy import Agent, LoopConfig
from looopy.errors import ConfigurationError
from looopy.stores import defaults
from looopy.stores.base import ArtifactStore, ContextIndex, Journal, MessageStore, StateStore
from looopy.stores.memory_backend import MemoryBackend
from looopy.testing import ScriptedProvider, text
from looopy.testing import stores as suites
from looopy.testing.contracts.turns import (
    Contract,
    for_each,
    needs_of,
    skip_what_is_left_out,
)
from looopy.testing.stores import (
    ArtifactContentContract,
    ArtifactStoreContract,
    ContextIndexContract,
    JournalContract,
    MessageStoreContract,
    SearchContract,
    StateStoreContract,
)


class OnDefaults:
    """Required methods that the memory has, and defaults."""

    factory = "tests.contract.required:open_required"


class TestMessages(OnDefaults, MessageStoreContract):
    """`list`, `recent`, `count`."""


class TestArtifacts(OnDefaults, ArtifactStoreContract):
    """All of `ArtifactStore`, on four methods."""


class TestArtifactContent(OnDefaults, ArtifactContentContract):
    """As above, in parts."""


class TestState(OnDefaults, StateStoreContract):
    """Without a line."""

    test_note_of_how_an_agent_was_left_ends_with_the_next_turn = None


class TestJournal(OnDefaults, JournalContract):
    """`started_calls`."""


class TestIndex(OnDefaults, ContextIndexContract):
    """`list`."""


class TestSearch(OnDefaults, SearchContract):
    """`search`."""


class OnBasics:
    """As above, without tags: each optional method is that of its base class."""

    factory = "tests.contract.required:open_basic"


class TestIndexWithoutTags(OnBasics, ContextIndexContract):
    """Listing; the tests of tags are left out below."""


RUNNING = {
    "StateStoreContract": 33,
    "ContextIndexContract": 14,
    "ErasureContract": 0,
    "ForkContract": 0,
    "InnerContextContract": 0,
    "WaitQueueContract": 0,
    "RedactionContract": 0,
    "RestoreContract": 0,
    "RetentionContract": 0,
    "SpendingContract": 0,
}
"""Suites with optional methods, and how many of their tests run on a store of defaults."""
for _name, _test in vars(ContextIndexContract).items():
    if hasattr(_test, "needs"):  # a skipped test would say nothing here
        setattr(TestIndexWithoutTags, _name, None)


def test_a_store_of_defaults_skips_only_the_tests_of_missing_methods():
    """Each skipped test names the methods that it needs; a store with all of them skips none."""
    basic, whole = required.open_basic(""), MemoryBackend().stores()
    running, said = {}, set()
    for name in suites.__all__:
        contract = getattr(suites, name)
        tests = [one for key, one in vars(contract).items() if key.startswith("test_")]
        wanted = [needs_of(contract, test) for test in tests]
        running[name] = len(tests)
        for one in wanted:
            skip_what_is_left_out(whole, one)
            try:
                skip_what_is_left_out(basic, one)
            except pytest.skip.Exception as skipped:
                running[name] -= 1
                said.add(str(skipped))
        if not any(wanted):
            assert running.pop(name) == len(tests) > 0
    assert running == RUNNING
    assert "needs stores.contexts.tag, which the store leaves out" in said


async def test_a_test_that_needs_more_is_skipped_by_its_contract():
    """The fixture of all contracts asks for what the class and the test need."""
    stores = required.open_basic("")
    request = SimpleNamespace(
        function=ContextIndexContract.test_by_tags, getfixturevalue={"stores": stores}.get
    )
    look = Contract._skip_what_is_left_out._get_wrapped_function()
    with pytest.raises(pytest.skip.Exception, match=r"needs stores\.contexts\.tag,"):
        look(ContextIndexContract(), request)
    request.function = ContextIndexContract.test_by_owner
    look(ContextIndexContract(), request)


async def test_a_test_of_many_cases_names_the_one_that_fails():
    """Each case has a tenant of its own, and a tuple is several arguments."""
    tried = []

    @for_each([("a", 1), ("b", 2), ("c", 3)])
    async def small(_contract, stores, name, number):
        tried.append((name, stores.tenant))
        assert number < 2

    with pytest.raises(AssertionError) as failed:
        await small(None, MemoryBackend().stores())
    assert failed.value.__notes__ == ["in the case ('b', 2)"]
    assert tried == [("a", "case-0"), ("b", "case-1")]


REFUSED = {
    "fork": ("ada", "b"),
    "rewind": ("ada", 1),
    "undo_rewind": ("ada",),
    "tag": ("ada",),
    "erase": ("ada",),
    "erase_person": ("ada",),
    "retain": (),
    "sizes": (),
    "snapshot": ("ada",),
    "log_page": ("ada",),
    "restore": ([],),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_feature_without_a_default_is_refused_by_name(name):
    """It is not done by halves, and the error names the store."""
    stores = required.required_stores(MemoryBackend())
    index = defaults.BasicContextIndex(stores.messages, stores.state)
    owner = stores.journal if hasattr(stores.journal, name) else index
    with pytest.raises(ConfigurationError, match=f"the store {type(owner).__name__} "):
        await getattr(owner, name)(*REFUSED[name])


def test_there_are_fewer_than_33_required_methods():
    """Each other method of the protocols has a default, or refuses."""
    bases = {
        MessageStore: defaults.BasicMessageStore,
        StateStore: defaults.BasicStateStore,
        Journal: defaults.BasicJournal,
        ContextIndex: defaults.BasicContextIndex,
        ArtifactStore: defaults.BasicArtifactStore,
    }
    wanted = list(required.ROWS)
    for protocol, base in bases.items():
        names = getattr(base, "required", ())
        wanted += names
        for name in vars(protocol):
            if not name.startswith("_") and name not in names:
                assert name == "list" or getattr(base, name) is not getattr(protocol, name)
    assert len(wanted) == 24


def test_a_store_without_a_required_method_is_refused():
    """At once, by its name, not when the first turn calls the method."""

    class Mine(defaults.BasicMessageStore):
        async def append(self, context_id, messages):
            """Keep them."""
            return 0

    with pytest.raises(TypeError, match="Mine has to define records"):
        Mine()


async def test_agents_wait_for_each_other_without_a_line():
    """Three agents on one context take their turns one after the other."""
    stores = required.required_stores(MemoryBackend())
    provider = ScriptedProvider(lambda _: text("hi"))
    agents = [
        Agent(
            "ada",
            llm_provider=provider,
            stores=stores,
            on_busy="wait",
            loop_config=LoopConfig(busy_timeout_s=300),
        )
        for _ in range(3)
    ]
    async with asyncio.TaskGroup() as group:
        for number, agent in enumerate(agents):
            group.create_task(_say(agent, f"message {number}"))
    turns = await stores.journal.turns("ada")
    assert [turn.outcome for turn in turns] == ["completed"] * 3


async def _say(agent, said):
    async with agent:
        await agent.execute_turn(said)
