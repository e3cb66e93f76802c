"""The suites for stores of an application's own, on those of the tests."""

from __future__ import annotations

import pytest
from tests.own_stores import Contents, Documents, JsonLines, StateTable, Table

from looopy.stores.plain.state import InProcess as DocumentsInMemory
from looopy.testing import plain_stores as suites


class TestJsonLines(suites.PlainMessageStoreContract):
    """Messages as lines of a file."""

    @pytest.fixture
    def store(self, tmp_path):
        """Empty."""
        return JsonLines(tmp_path)


class TestTable(suites.PlainMessageStoreContract):
    """Messages in a table."""

    @pytest.fixture
    def store(self, tmp_path):
        """Empty."""
        return Table(f"sqlite:///{tmp_path}/own.db")


class TestContents(suites.PlainArtifactStoreContract):
    """Contents as files."""

    @pytest.fixture
    def store(self, tmp_path):
        """Empty."""
        return Contents(tmp_path)


class TestDocuments(suites.PlainStateStoreContract):
    """Documents as files."""

    @pytest.fixture
    def store(self, tmp_path):
        """Empty."""
        return Documents(tmp_path)


class TestDocumentsInMemory(suites.PlainStateStoreContract):
    """Documents of an agent without a state store."""

    @pytest.fixture
    def store(self):
        """Empty."""
        return DocumentsInMemory()


class TestStateTable(suites.PlainStateStoreContract):
    """Documents in a table."""

    @pytest.fixture
    def store(self, tmp_path):
        """Empty."""
        return StateTable(f"sqlite:///{tmp_path}/own.db")
