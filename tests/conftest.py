"""Postgres for the tests that ask for it: one server a run, started when the first one does."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import pytest
from tests.postgres import Server, ask

from looopy.stores.sql import migrate


@pytest.fixture(scope="session")
def postgres_server():
    """A function from the name of a database to its URL, on the server of this run."""
    if given := os.environ.get("LOOOPY_TEST_PG"):
        yield lambda database: urlunsplit(urlsplit(given)._replace(path=f"/{database}"))
        return
    server = Server()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@pytest.fixture(scope="session")
def new_database(postgres_server: Callable[[str], str]):
    """A function that makes a database and returns its URL; all of them go at the end."""
    names: list[str] = []
    admin = postgres_server("postgres")

    def make(template: str = "template0") -> str:
        names.append(f"looopy_{secrets.token_hex(6)}")
        ask(admin, f"CREATE DATABASE {names[-1]} TEMPLATE {template}")
        return postgres_server(names[-1])

    yield make
    for name in names:
        ask(admin, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_at_head(new_database):
    """The URL of a database that is at the head; tests take turns in it."""
    url = new_database()
    migrate.upgrade(url)
    return url


@pytest.fixture
def postgres(postgres_at_head: str) -> str:
    """The URL of a database at the head, without rows."""
    ask(postgres_at_head, "DELETE FROM contexts")
    return postgres_at_head


@pytest.fixture
def fresh_postgres(new_database) -> str:
    """The URL of a database without a schema, of the test's own."""
    return new_database()
