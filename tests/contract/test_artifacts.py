"""The contract of artifacts, on each backend."""

from __future__ import annotations

import pytest

from looopy.testing.contracts.artifact import ArtifactStoreContract


class TestArtifactsInMemory(ArtifactStoreContract):
    """In dictionaries."""

    @pytest.fixture
    async def stores(self, memory_stores):
        """Open and empty."""
        return memory_stores


class TestArtifactsOnSQLite(ArtifactStoreContract):
    """In a file."""

    @pytest.fixture
    async def stores(self, sqlite_stores):
        """Open and empty."""
        return sqlite_stores


class TestArtifactsOnAsyncpg(ArtifactStoreContract):
    """On Postgres, over asyncpg."""

    @pytest.fixture
    async def stores(self, asyncpg_stores):
        """Open and empty."""
        return asyncpg_stores


class TestArtifactsOnPsycopg(ArtifactStoreContract):
    """On Postgres, over psycopg."""

    @pytest.fixture
    async def stores(self, psycopg_stores):
        """Open and empty."""
        return psycopg_stores
