"""Options of a URL: those that hosting services print work with both drivers, or are named."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from tests.postgres import as_driver, ask

from looopy import open_stores
from looopy.errors import ConfigurationError
from looopy.stores.sql import migrate


@pytest.fixture(params=["postgresql", "postgresql+asyncpg", "postgresql+psycopg"])
def scheme(request):
    """How the URL begins: one that names no driver, and one for each."""
    return request.param


@pytest.fixture
def with_options(postgres, scheme):
    """A URL of an empty database at the head, with these options."""

    def make(options):
        mark = "&" if "?" in postgres else "?"
        return postgres.replace("postgresql", scheme, 1) + mark + options

    return make


@pytest.mark.parametrize(
    "options",
    [
        "sslmode=prefer&channel_binding=prefer",
        "sslmode=disable&gssencmode=disable",
        "sslmode=prefer&gssencmode=prefer&sslsni=1",
        "pgbouncer=true&connection_limit=1",
        "pgbouncer=false&supa=base-pooler.x&workaround=supabase-pooler.vercel",
        "schema=public&connection_limit=3",
        "ssl=false",
        "uselibpqcompat=true&sslmode=prefer",
        "client_encoding=utf8",
        "statement_timeout=20000&search_path=public",
        "options=-c%20statement_timeout%3D20000&application_name=shop",
    ],
)
async def test_options_that_hosting_services_print_open_the_database(with_options, options):
    """Whichever driver the URL names, or none."""
    async with open_stores(with_options(options)) as stores:
        assert await stores.state.list() == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("pool_timeout=5", "pool_timeout"),
        ("sslmod=require", "sslmod"),
        ("statement_timeout=soon", "statement_timeout"),
        ("options=endpoint%3Dep-cool-dawn", "options"),
        ("sslmode=no-verify", "sslmode"),
        ("pgbouncer=yes", "pgbouncer"),
        ("ssl=maybe", "ssl"),
        ("connection_limit=none", "pool_size"),
        ("client_encoding=latin1", "client_encoding"),
        ("schema=tenants&pgbouncer=true", "schema"),
    ],
)
async def test_an_option_that_cannot_be_kept_is_named(with_options, options, name):
    """Without the rest of the URL."""
    url = with_options(options).replace("postgres@", "postgres:hunter2@")
    with pytest.raises(ConfigurationError, match=rf"\boption {name} of") as refused:
        async with open_stores(url):
            pass
    assert "hunter2" not in str(refused.value)


async def test_a_binding_that_is_required_is_kept_or_refused(with_options, scheme):
    """By asyncpg: a URL that names no driver uses psycopg, which then insists on it."""
    with pytest.raises(ConfigurationError, match="channel_binding") as refused:
        # This server trusts everybody, so it asks for no password that a channel could be bound to.
        async with open_stores(with_options("sslmode=disable&channel_binding=require")):
            pass
    says = "postgresql+psycopg://" in str(refused.value)
    assert says == (scheme == "postgresql+asyncpg")


async def test_a_schema_of_the_url_has_the_tables(new_database, scheme):
    """Prisma's word for it; its name may need quotes."""
    url = new_database()
    ask(url, 'CREATE SCHEMA "Tables of ours"')
    theirs = url.replace("postgresql", scheme, 1)
    theirs += ("&" if "?" in url else "?") + "schema=Tables%20of%20ours"
    async with open_stores(theirs, migrate=True) as stores:
        await stores.artifacts.save("ada", "notes", b"x")
    where = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'looopy_%%'"
    assert ask(url, where, "public") == [(0,)]
    assert ask(url, 'SELECT count(*) FROM "Tables of ours".looopy_artifacts') == [(1,)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_database_that_lacks_characters_is_refused_at_opening(
    postgres_server, encoding, driver
):
    """Before it is migrated, and not at the first emoji of an answer that was paid for."""
    admin, name = postgres_server("postgres"), f"looopy_{secrets.token_hex(6)}"
    ask(admin, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    try:
        url = as_driver(postgres_server(name), driver)
        with pytest.raises(ConfigurationError, match=f"as {encoding}.*ENCODING 'UTF8'"):
            async with open_stores(url, migrate=True):
                pass
        with pytest.raises(ConfigurationError, match=encoding):
            await asyncio.to_thread(migrate.upgrade, url)
        assert ask(postgres_server(name), "SELECT to_regclass('looopy_version')") == [(None,)]
    finally:
        ask(admin, f"DROP DATABASE {name} WITH (FORCE)")
