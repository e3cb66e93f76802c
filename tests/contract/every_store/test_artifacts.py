"""The contract of artifacts, on each backend."""

from __future__ import annotations

from tests.contract.backends import InMemory, OnAsyncpg, OnPsycopgAlways, OnSQLite

from looopy.testing.contracts.artifact import ArtifactContentContract, ArtifactStoreContract


class TestArtifactsInMemory(InMemory, ArtifactStoreContract, ArtifactContentContract):
    """In dictionaries."""


class TestArtifactsOnSQLite(OnSQLite, ArtifactStoreContract, ArtifactContentContract):
    """In a file."""


class TestArtifactsOnAsyncpg(OnAsyncpg, ArtifactStoreContract, ArtifactContentContract):
    """On Postgres, over asyncpg."""


class TestArtifactsOnPsycopg(OnPsycopgAlways, ArtifactStoreContract, ArtifactContentContract):
    """On Postgres, over psycopg."""
