"""The tests of the contracts whose values psycopg sends in other forms than asyncpg."""

from __future__ import annotations

from tests.contract.backends import OnPsycopg

from looopy.testing.contracts.artifact import ArtifactContentContract, ArtifactStoreContract
from looopy.testing.contracts.message import MessageStoreContract
from looopy.testing.contracts.state import StateStoreContract
from looopy.testing.contracts.turns import Contract


class TestValues(OnPsycopg, Contract):
    """Text, numbers, objects and bytes, small and large, of messages, artifacts and metadata."""

    test_kinds = MessageStoreContract.test_messages_of_every_kind_are_read_back_equal
    test_signatures = MessageStoreContract.test_signatures_come_back_byte_for_byte
    test_odd_text = MessageStoreContract.test_odd_text_is_kept
    test_refused_text = MessageStoreContract.test_text_that_a_database_refuses_is_refused
    test_odd_values = MessageStoreContract.test_odd_values_are_kept
    test_refused_values = MessageStoreContract.test_values_that_would_change_are_refused
    test_concurrent_appends = (
        MessageStoreContract.test_concurrent_appends_are_kept_whole_and_in_order
    )
    test_cancelled_appends = (
        MessageStoreContract.test_a_cancelled_append_is_kept_whole_or_not_at_all
    )
    test_bytes = ArtifactStoreContract.test_bytes_come_back_equal
    test_data = ArtifactStoreContract.test_odd_data_is_kept
    test_ids = ArtifactStoreContract.test_an_id_is_data_and_never_a_path
    test_sizes = ArtifactContentContract.test_a_file_of_any_size_comes_back_equal
    test_pieces = ArtifactContentContract.test_pieces_of_any_size_become_one_content
    test_datasets = ArtifactContentContract.test_a_dataset_keeps_rows_and_columns
    test_metadata = StateStoreContract.test_odd_metadata_is_kept
    test_tenants = StateStoreContract.test_odd_tenant_names_are_kept_apart
