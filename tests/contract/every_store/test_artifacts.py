"""The contract of artifacts, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopg, OnSQLite

from looopy.testing.contracts.artifact import ArtifactStoreContract


class TestArtifactsInMemory(InMemory, ArtifactStoreContract):
    """In dictionaries."""


class TestArtifactsOnSQLite(OnSQLite, ArtifactStoreContract):
    """In a file."""


class TestArtifactsOnAsyncpg(OnAsyncpg, ArtifactStoreContract):
    """On Postgres, over asyncpg."""


class TestArtifactsOnPsycopg(OnPsycopg, ArtifactStoreContract):
    """On Postgres, over psycopg."""
