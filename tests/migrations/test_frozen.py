"""
What an earlier version wrote stays readable: databases frozen then, on both engines, opened now.

Every test goes through all revisions, so that a new one is held against the old data by being
there.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from tests.agent.kit import add, assert_answered, assert_valid
from tests.fixtures import frozen
from tests.fixtures.freeze import TENANTS, read

from looopy import Agent, AuthContext, LoopConfig, tool
from looopy.errors import SchemaOutOfDate
from looopy.stores import open_stores
from looopy.stores.spending import Amount, Place, account_of, digest_of
from looopy.stores.sql import migrate
from looopy.testing import ScriptedProvider, text
from looopy.types.state import AgentStatus, Outcome

ROOT = Path(__file__).parents[2]
SCRIPTS = list(
    reversed(list(ScriptDirectory.from_config(Config(ROOT / "alembic.ini")).walk_revisions()))
)
SHORT_LEASE = LoopConfig(lease_ttl_s=1.0)  # a dead owner is looked at for half of it
STEPS = [(script.down_revision, script.revision) for script in SCRIPTS if script.down_revision]


@tool
def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@pytest.fixture(params=frozen.REVISIONS)
def revision(request):
    """Of each database that was frozen."""
    return request.param


@pytest.fixture
def url(empty, revision):
    """A database as it was when it was frozen."""
    frozen.load(revision, empty)
    return empty


async def _upgraded(url):
    await asyncio.to_thread(migrate.upgrade, url)
    return url


def test_each_released_revision_is_frozen():
    """All of them but, until it is released, the newest."""
    revisions = [script.revision for script in SCRIPTS]
    assert revisions[-1] == migrate.HEAD
    assert frozen.REVISIONS[: len(revisions)] == revisions[: len(frozen.REVISIONS)]
    assert len(frozen.REVISIONS) >= len(revisions) - 1


@pytest.mark.parametrize("path", sorted(frozen.FOLDER.glob("*/*.json")))
def test_what_was_read_is_kept_with_a_line_for_each_message(path):
    """So that a change of a stored form can be reviewed as the line that it changes."""
    text = path.read_text(encoding="utf-8")
    assert text == f"{frozen.as_text(json.loads(text))}\n"
    assert 200 < text.count("\n") < 400


def test_an_upgrade_keeps_every_value_of_every_row(url):
    """No row and no byte is lost or changed: what there was is in columns of the same name."""
    before = frozen.dump(url)
    assert sum(map(len, before.values())) > 70
    migrate.upgrade(url)
    after = frozen.dump(url)
    assert frozen.kept(after, before) == frozen.kept(before, before)
    counts = {name: len(rows) for name, rows in before.items()}
    assert {name: len(after[frozen.now(name)]) for name in before} == counts


async def test_everything_reads_as_it_did_then(url, revision):
    """Messages, events, turns, artifacts and what is pending, of two tenants."""
    async with open_stores(await _upgraded(url)) as stores:
        for tenant in TENANTS:
            found = await read(stores.for_tenant(tenant))
            assert_holds(found, frozen.contents(revision, url)[tenant])


def assert_holds(found, then):
    """*found* says what was said *then*, and may say more."""
    if isinstance(then, dict):
        assert set(then) <= set(found)
        for key, value in then.items():
            assert_holds(found[key], value)
    elif isinstance(then, list) and then and isinstance(then[0], list | dict):
        assert len(found) == len(then)
        for one, other in zip(found, then, strict=True):
            assert_holds(one, other)
    else:
        assert found == then


async def test_sums_without_a_dollar_say_now_that_they_have_no_price(empty):
    """Those with dollars count as whole, as they did; a dead call is known by its turn."""
    frozen.load("0010", empty)
    async with open_stores(await _upgraded(empty)) as stores:
        accounts = dict(await stores.spending.accounts(day=date(2026, 11, 24)))
        used = {name: [one.used for one in sums] for name, sums in accounts.items()}
        assert used == {
            account_of("u1"): [Amount(450, 22_500)] * 2,
            account_of("u2"): [Amount(350, 0, 350)] * 2,
        }
        (left,) = await stores.spending.held()
        assert (left.reservation, left.place) == ("left-open", Place(digest_of("open"), 2))
        assert (left.most, left.most.is_priced) == (Amount(900, 45_000), True)


@pytest.mark.parametrize("context_id", ["finished", "kinds", "cleared", "metadata-only", "failed"])
async def test_a_conversation_goes_on_from_then(url, context_id):
    """An agent takes its next turn, and the model is shown a valid history with the past in it."""
    async with open_stores(await _upgraded(url)) as stores:
        record = await stores.state.load(context_id)
        past = await stores.messages.list(context_id)
        model = ScriptedProvider([text("welcome back")])
        async with Agent(context_id, llm_provider=model, tools=[add, pay], stores=stores) as agent:
            done = (await agent.execute_turn("and now?")).raise_for_outcome()
        assert done.turn == record.turn_count + 1
        assert_valid(model.requests[0].messages)
        assert await stores.messages.list(context_id) == [*past, *done.messages]
        events = await stores.journal.events(context_id, after=record.last_seq)
        assert [e.seq for e in events] == [record.last_seq + n for n in range(1, 5)]


async def test_a_turn_that_died_then_is_ended_and_continued_now(url):
    """Its calls get their results, and it goes on where it stopped."""
    async with open_stores(await _upgraded(url)) as stores:
        model = ScriptedProvider([text("done")])
        options = {"tools": [add], "stores": stores, "loop_config": SHORT_LEASE}
        async with Agent("open", llm_provider=model, **options) as agent:
            assert agent.state.interrupted_turn == 2
            done = (await agent.execute_turn(None)).raise_for_outcome()
            assert_answered(await agent.get_messages())
        assert_valid(model.requests[0].messages)
        turns = await stores.journal.turns("open")
        assert [t.outcome for t in turns] == [
            Outcome.COMPLETED,
            Outcome.INTERRUPTED,
            Outcome.COMPLETED,
        ]
        assert (done.turn, turns[-1].continues) == (3, 2)


async def test_what_was_pending_then_can_be_declined_now(url):
    """A request that waits is shown as it was, and superseded by what the user says."""
    async with open_stores(await _upgraded(url)) as stores:
        model = ScriptedProvider([text("as you like")])
        async with Agent("waiting", llm_provider=model, tools=[pay], stores=stores) as agent:
            assert agent.state.status is AgentStatus.WAITING
            assert [p.request_id for p in agent.state.pending] == ["ask-1", "ask-2"]
            assert agent.state.pending[1].options == (1, 2.5, "none")
            (await agent.execute_turn("never mind")).raise_for_outcome()
            assert_answered(await agent.get_messages())


async def test_what_was_sent_then_is_said_now(url, revision):
    """The inbox of a turn that died is delivered, in order, to the turn that comes after it."""
    if revision < "0002":
        pytest.skip("there was no inbox yet")
    async with open_stores(await _upgraded(url)) as stores:
        _, waiting = await stores.journal.inbox("spoken-to")
        assert waiting[0].message.text == "left, please"
        model = ScriptedProvider([text("left it is")], repeat=True)
        options = {"stores": stores, "loop_config": SHORT_LEASE}
        async with Agent("spoken-to", llm_provider=model, **options) as agent:
            await agent.execute_turn("and now?", AuthContext("u1"))
            messages = await agent.get_messages()
        said = [m for m in messages if m in [entry.message for entry in waiting]]
        assert said == [entry.message for entry in waiting]
        assert (await stores.journal.inbox("spoken-to"))[1] == []
        assert await stores.journal.turn_of_key("spoken-to", "order-7") == (1, "a-hash")


async def test_a_turn_that_failed_then_is_continued_now(url):
    """The error is told as it was."""
    async with open_stores(await _upgraded(url)) as stores:
        model = ScriptedProvider([text("here I am")])
        async with Agent("failed", llm_provider=model, stores=stores) as agent:
            assert str((await stores.state.load("failed")).state.error[1]) == "the model is away"
            done = (await agent.execute_turn(None)).raise_for_outcome()
        assert (await stores.journal.turns("failed"))[-1].continues == 1
        assert done.text == "here I am"


@pytest.mark.parametrize(("lower", "upper"), STEPS)
def test_up_and_down_and_up_again_loses_nothing(empty, lower, upper):
    """Each step with rows and their children: down is exactly what was, up again what it made."""
    frozen.load(max(r for r in frozen.REVISIONS if r <= lower), empty)
    migrate.upgrade(empty, lower)
    below, how_below = frozen.dump(empty), frozen.described(empty)
    migrate.upgrade(empty, upper)
    above, how_above = frozen.dump(empty), frozen.described(empty)
    assert above != below
    migrate.downgrade(empty, lower)
    assert frozen.dump(empty) == below
    assert frozen.described(empty) == how_below
    migrate.upgrade(empty, upper)
    assert frozen.dump(empty) == above
    assert frozen.described(empty) == how_above


def test_an_upgraded_schema_is_the_one_that_is_made_from_nothing(url, tmp_path, new_database):
    """It makes no difference how old a database is."""
    migrate.upgrade(url)
    if frozen.engine_of(url) == "sqlite":
        fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    else:
        fresh = new_database()
    migrate.upgrade(fresh)
    assert frozen.described(url) == frozen.described(fresh)


async def test_new_code_migrates_an_old_file_and_refuses_an_old_server(url, revision):
    """SQLite by opening it; Postgres with the command that its administrator runs."""
    if revision == migrate.HEAD:
        pytest.skip("this one is not old")
    if frozen.engine_of(url) == "postgres":
        before = frozen.dump(url)
        with pytest.raises(SchemaOutOfDate, match=r"run `looopy db upgrade --db URL`") as refused:
            async with open_stores(url):
                pass
        assert (refused.value.found, refused.value.expected) == (revision, migrate.HEAD)
        assert frozen.dump(url) == before
    async with open_stores(url, migrate=True) as stores:
        assert len(await stores.state.list()) >= 7
    assert await asyncio.to_thread(migrate.check, url) == (migrate.HEAD, migrate.HEAD)


async def test_old_code_refuses_a_newer_database_clearly(url):
    """It says that the program is too old, and does not advise what cannot help."""
    await _upgraded(url)
    newer = f"{int(migrate.HEAD) + 1:04}"
    _set_revision(url, newer)
    before = frozen.dump(url)
    for options in ({}, {"migrate": False}, {"migrate": True}):
        with pytest.raises(SchemaOutOfDate, match="upgrade looopy") as refused:
            async with open_stores(url, **options):
                pass
        assert "looopy db upgrade" not in str(refused.value)
        assert (refused.value.found, refused.value.expected) == (newer, migrate.HEAD)
    assert frozen.dump(url) == before


def _set_revision(url, revision):
    with frozen.connected(url) as connection:
        connection.execute(f"UPDATE looopy_version SET version_num = '{revision}'")
        connection.commit()


def test_the_check_tells_a_pipeline_what_to_do(empty, revision):
    """0: start; 1: upgrade the database first; 3: this program is too old; 2: nobody answers."""

    def check():
        command = [sys.executable, "-m", "looopy.cli.main", "db", "check", "--db", empty]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = check()
    assert (code, "looopy db upgrade" in said) == (1, True), said
    frozen.load(revision, empty)
    code, said = check()
    if revision != migrate.HEAD:
        assert (code, "looopy db upgrade" in said) == (1, True), said
        table = "alembic_version" if revision < "0003" else "looopy_version"  # see old_names
        assert frozen.dump(empty)[table] == [{"version_num": revision}]
        migrate.upgrade(empty)
        code, said = check()
    assert (code, "is up to date" in said) == (0, True), said
    _set_revision(empty, "9999")
    code, said = check()
    assert (code, "upgrade looopy" in said) == (3, True), said


@pytest.mark.parametrize(
    "url", ["postgresql://nobody@127.0.0.1:1/nothing", "sqlite:///no/such/x.db"]
)
def test_the_check_fails_where_nothing_can_be_asked(url, tmp_path):
    """No server, or a folder that is not there: no pipeline takes that for an empty database."""
    command = [sys.executable, "-m", "looopy.cli.main", "db", "check", "--db", url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if url.startswith("postgresql") else 1), done.stderr
