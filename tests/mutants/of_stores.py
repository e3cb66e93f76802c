"""Mistakes in the stores: the fence, the numbers, the tenant, the lease, and durability itself."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, mutant

_REDACTED = "tests/contract/every_store/test_erasure.py::TestRedactionInMemory"
_FORKS = "tests/contract/every_store/test_forks.py::TestForksOnSQLite"
_JOURNAL = "tests/contract/every_store/test_journal.py"
_TYPES = "tests/property/test_wrong_types.py"
_DAMAGED = "tests/contract/every_store/test_damaged_rows.py"
_STATE = "tests/contract/every_store/test_state.py"
_ORDER = "tests/contract/postgres/test_order.py"
_SERVER = "tests/contract/postgres/test_server.py"
_SILENCE = "tests/contract/postgres/test_silence.py"
_POOL = "tests/contract/postgres/test_pool.py"
_POOLER = "tests/contract/postgres/test_pooler.py"
_CUTS = "tests/contract/postgres/test_cuts.py"
_RLS = "tests/contract/postgres/test_row_level_security.py"
_FILE = "tests/contract/sqlite/test_file.py"
_ERASURE = "tests/contract/every_store/test_erasure.py"
_INNER = "tests/contract/every_store/test_inner_contexts.py"
_SEARCH = "tests/contract/every_store/test_search.py"
_ARCHIVES = "tests/contract/every_store/test_archives.py::TestRestoringOnSQLite"
_HOSTILE = "tests/unit/stores/archive/test_reading_hostile.py"
_IN_FILE = "tests/contract/sqlite/test_numbers.py"
_SPENDING = "tests/contract/every_store/test_spending.py::TestSpendingOnSQLite"

MUTANTS = [
    # --- wrong types, and damaged rows ---
    mutant(
        "wrong-type-of-a-caller",
        "a message is stored that nobody can read again",
        "looopy.stores.rows.writing:message_text",
        "check_message(message, path)",
        "",
        f"{_TYPES}::test_each_wrong_value_in_each_field[appended]",
    ),
    mutant(
        "wrong-type-of-a-model",
        "what a model answers is stored as it came",
        "looopy.types.message_check:mended_answer",
        "if _is_plain_answer(answer):",
        "if isinstance(answer, AssistantMessage):",
        f"{_TYPES}::test_what_a_model_means_is_kept_where_its_type_is_wrong",
    ),
    mutant(
        "damaged-row-stops-a-read",
        "one bad row makes every read of its context raise",
        "looopy.stores.rows.reading:read_message",
        "return _salvaged(body, position, error)",
        "raise",
        f"{_DAMAGED}::test_a_row_that_is_no_message_stands_as_damaged",
    ),
    mutant(
        "damaged-state-stops-a-list",
        "one bad row makes the list of its tenant raise",
        "looopy.stores.rows.events:decode_state",
        "damage = failure",
        "raise",
        f"{_DAMAGED}::test_a_damaged_state_hides_no_context",
    ),
    mutant(
        "damaged-start-runs-again",
        "a tool runs a second time because the row of its start is damaged",
        "looopy.agent.context:Known._find_open_calls",
        "c.id in started or ANY_CALL in started",
        "c.id in started",
        f"{_DAMAGED}::test_a_call_whose_start_cannot_be_read_counts_as_started",
    ),
    # --- the fence ---
    mutant(
        "commit-without-fence",
        "an owner that lost its context writes into the turn of the next one",
        "looopy.stores.sql.statements:COMMIT",
        ' WHERE {_THIS} AND epoch = :epoch AND holder IS NOT NULL" " AND (:closing',
        ' WHERE {_THIS} AND holder IS NOT NULL"\n'
        '" AND (:closing',
        f"{_JOURNAL}::TestJournalOnSQLite::test_a_fenced_commit_writes_nothing",
        f"{_JOURNAL}::TestJournalOnAsyncpg::test_a_fenced_commit_writes_nothing",
        "tests/agent/sharing/test_sharing.py::test_an_owner_that_comes_back_in_anothers_turn_is_fenced",
    ),
    mutant(
        "memory-without-fence",
        "the specification by example allows what the databases refuse",
        "looopy.stores.memory.journal:InMemoryJournal.commit",
        "context.epoch != commit.epoch",
        "context.epoch < commit.epoch",
        f"{_JOURNAL}::TestJournalInMemory::test_a_fenced_commit_writes_nothing",
    ),
    mutant(
        "renew-without-epoch",
        "an owner that lost its context prolongs the lease of the next one",
        "looopy.stores.sql.statements:RENEW",
        '" AND epoch = :epoch AND holder IS NOT NULL RETURNING epoch"',
        '" AND holder IS NOT NULL RETURNING epoch"',
        f"{_STATE}::TestStateOnSQLite::test_renewing_prolongs_the_lease_of_its_epoch",
        f"{_STATE}::TestStateOnPsycopg::test_renewing_prolongs_the_lease_of_its_epoch",
    ),
    mutant(
        "release-without-epoch",
        "an owner that lost its context frees the lease of the next one",
        "looopy.stores.sql.statements:RELEASE",
        'RELEASE = f"UPDATE looopy_contexts SET holder = NULL WHERE {_THIS} AND epoch = :epoch"',
        'RELEASE = f"UPDATE looopy_contexts SET holder = NULL WHERE {_THIS}"',
        f"{_STATE}::TestStateOnSQLite::test_releasing_frees_the_lease_of_its_epoch",
    ),
    mutant(
        "recovery-without-fence",
        "whoever recovers a turn does not keep its slow owner from writing on",
        "looopy.stores.sql.statements:RECOVER",
        'RECOVER = ( "UPDATE looopy_contexts SET epoch = epoch + 1, holder = :holder,',
        "RECOVER = (\n"
        '    "UPDATE looopy_contexts SET epoch = epoch + 0, holder = :holder,',
        f"{_STATE}::TestStateOnSQLite::test_an_open_turn_must_be_recovered_first",
    ),
    mutant(
        "epochs-begin-again",
        "an owner that was stopped for long writes into a new context of the deleted one's name",
        "looopy.stores.rules:first_epoch",
        'return 1 + int.from_bytes(os.urandom(6), "big")',
        "return 1",
        "tests/contract/every_store/test_lives.py",
    ),
    mutant(
        "clear-without-fence",
        "a turn that runs brings back what an acknowledged clear() had hidden",
        "looopy.stores.sql.statements:CLEAR",
        'f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = NULL, open_turn = NULL,',
        '"UPDATE looopy_contexts SET holder = NULL, open_turn = NULL,',
        f"{_JOURNAL}::TestJournalOnSQLite::test_clearing_by_force_ends_and_fences_the_turn",
    ),
    Mutant(
        "check-then-write",
        "two that look at the same time both find the context free",
        (
            Edit(
                "looopy.stores.sql.commit:claim_steps",
                "while not (taken := (yield Query(statement, given.params))): yield from"
                " _make_claimable(given)",
                "yield from _make_claimable(given)\n"
                "taken = yield Query(statement, given.params)",
            ),
            Edit(
                "looopy.stores.sql.statements:CLAIM",
                " WHERE {_TAKEABLE} AND open_turn IS NULL AND (line_until",
                " WHERE {_THIS} AND (line_until",
            ),
        ),
        (f"{_ORDER}::test_of_two_processes_that_claim_at_once_one_wins",),
    ),
    # --- numbers ---
    mutant(
        "numbers-by-the-largest-row",
        "events that are no messages share their numbers with those that follow",
        "looopy.stores.sql.statements:COMMIT",
        'COMMIT = ( "UPDATE looopy_contexts SET last_seq = last_seq + :seqs,',
        "COMMIT = (\n"
        '    "UPDATE looopy_contexts SET last_seq = (SELECT COALESCE(MAX(m.seq), 0) FROM'
        " looopy_messages m WHERE m.tenant_id = :tenant AND m.context_id = :context) + :seqs,",
        f"{_JOURNAL}::TestJournalOnSQLite::test_every_durable_event_is_replayed_as_committed",
        f"{_JOURNAL}::TestJournalOnAsyncpg::test_every_durable_event_is_replayed_as_committed",
    ),
    mutant(
        "numbers-by-the-clock",
        "a follower that asks for what came after N misses what was stored late",
        "looopy.stores.sql.commit:insert_rows",
        '"seq": numbers.first_seq + event.seq_offset, "iteration": event',
        '"seq": event.created_us,\n'
        '"iteration": event',
        f"{_JOURNAL}::TestJournalOnSQLite::test_every_durable_event_is_replayed_as_committed",
    ),
    # --- who it belongs to ---
    Mutant(
        "read-without-tenant",
        "another tenant reads the conversation",
        (
            Edit(
                "looopy.stores.sql.statements:_RECORDS",
                'seq, body FROM looopy_messages WHERE {_THIS} AND position >"',
                'seq, body FROM looopy_messages WHERE context_id = :context AND position >"',
            ),
            Edit(
                "looopy.stores.sql.statements:_RECORDS",
                'contexts c WHERE c.tenant_id = :tenant AND c.context_id = :context" "',
                'contexts c WHERE c.context_id = :context" "',
            ),
        ),
        (
            "tests/contract/every_store/test_messages.py::TestMessagesOnAsyncpg::test_another_tenant_sees_nothing",
        ),
    ),
    mutant(
        "number-without-tenant",
        "in a file, another tenant reads and writes the conversation of the same name",
        "looopy.stores.sql.sqlite.statements:_OWNER",
        '"c.tenant_id = :tenant AND c.context_id = :context"',
        '"c.context_id = :context"',
        "tests/contract/every_store/test_messages.py::TestMessagesOnSQLite::test_another_tenant_sees_nothing",
    ),
    mutant(
        "key-of-any-place",
        "a turn that there cannot be is one of the context with the next number",
        "looopy.stores.sql.sqlite.statements:_given",
        'return f"CASE WHEN {name} BETWEEN 0 AND {LAST_PLACE} THEN {_at(name)} END"',
        "return _at(name)",
        f"{_IN_FILE}::test_a_turn_that_there_cannot_be_is_not_closed",
    ),
    mutant(
        "key-from-any-place",
        "who reads from before the beginning is shown the context with the number before",
        "looopy.stores.sql.sqlite.statements:_after",
        "MIN(MAX({', '.join(places or (':after',))}, 0), {LAST_PLACE})",
        "{', '.join(places or (':after',))}",
        f"{_JOURNAL}::TestJournalOnSQLite::test_a_place_that_no_row_can_have_is_nobodys",
    ),
    mutant(
        "rows-outlive-their-context",
        "whoever is given the number of a deleted context has its history",
        "migrations.versions.0001_initial:_make_rows_under_numbers",
        "{' '.join(deletes)}",
        "{' '.join(deletes[::2])}",
        f"{_IN_FILE}::test_the_rows_of_a_context_go_with_it",
        f"{_IN_FILE}::test_who_is_given_the_number_of_a_deleted_context_finds_nothing",
    ),
    mutant(
        "numbers-without-end",
        "the message after the last place is one of the context with the next number",
        "migrations.versions.0001_initial:_LAST_COUNT",
        "_LAST_COUNT = 2**32 - 2**16 - 1",
        "_LAST_COUNT = 2**62",
        f"{_IN_FILE}::test_a_context_without_room_says_so_and_stores_nothing",
    ),
    mutant(
        "write-without-tenant",
        "another tenant changes what belongs to this one",
        "looopy.stores.sql.statements:SAVE_METADATA",
        'SAVE_METADATA = ( f"UPDATE looopy_contexts SET metadata = :metadata, version = version'
        ' + 1 WHERE {_THIS}"',
        "SAVE_METADATA = (\n"
        '    "UPDATE looopy_contexts SET metadata = :metadata, version = version + 1 WHERE'
        ' context_id = :context"',
        f"{_STATE}::TestStateOnSQLite::test_another_tenant_can_neither_see_nor_touch",
    ),
    mutant(
        "any-tenant-may-act",
        "a request with another tenant's identity is served",
        "looopy.agent.request:check_auth_context",
        "value.tenant_id not in (None, tenant)",
        "not value.tenant_id and not tenant",
        "tests/agent/failures/test_misuse.py::test_another_tenants_credentials_are_refused",
    ),
    mutant(
        "displaced-by-whoever-names-nobody",
        "`if owner and ...`: who has proved nobody dead takes over from the living",
        "looopy.stores.sql.statements:_TAKEABLE",
        "OR holder = :displace)",
        "OR :displace IS NULL OR holder = :displace)",
        f"{_STATE}::TestStateOnSQLite::test_a_live_lease_is_refused_naming_its_turn",
        f"{_STATE}::TestStateOnAsyncpg::test_a_live_lease_is_refused_naming_its_turn",
    ),
    # --- the lease ---
    mutant(
        "lease-without-end",
        "the turn of a process on a host that is gone can never be taken over",
        "looopy.stores.sql.statements:_live",
        'return f"({until} > now_us() AND {until} <= now_us() + {_LONGEST_US})"',
        'return f"({until} > 0)"',
        f"{_STATE}::TestStateOnSQLite::test_an_open_turn_must_be_recovered_first",
        f"{_STATE}::TestStateOnPsycopg::test_an_open_turn_must_be_recovered_first",
    ),
    Mutant(
        "lease-by-the-clients-clock",
        "a host whose clock is wrong takes over from the living, or keeps what it lost",
        (
            Edit(
                "looopy.stores.sql.commit:encode_claim",
                '"ttl_us": as_us(claim.ttl_s),',
                '"ttl_us": time.time_ns() // 1000 + as_us(claim.ttl_s),',
            ),
            Edit(
                "looopy.stores.sql.statements:CLAIM",
                'CLAIM = ( f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = :holder,'
                " lease_until = now_us() + :ttl_us,",
                "CLAIM = (\n"
                '    f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, holder = :holder, lease_until ='
                " :ttl_us,",
            ),
        ),
        (f"{_ORDER}::test_a_lease_ends_by_the_clock_of_the_server",),
    ),
    mutant(
        "process-id-alone",
        "a process that was given the id of a dead one keeps its context for good",
        "looopy.stores.owner:_proof",
        'if state in ("Z", "X") or began != start:',
        'if state in ("Z", "X"):',
        "tests/unit/stores/test_owner.py::test_another_process_under_the_same_id_is_no_sign_of_life",
    ),
    # --- durability ---
    Mutant(
        "synchronous-normal",
        "a power cut takes turns that were acknowledged",
        (
            Edit(
                "looopy.stores.sql.sqlite.connection:_make_settings",
                '"PRAGMA synchronous = FULL"',
                '"PRAGMA synchronous = NORMAL"',
            ),
            Edit(
                "looopy.stores.sql.sqlite.connection:SETTINGS",
                '"synchronous": 2,',
                '"synchronous": 1,',
            ),
        ),
        (f"{_FILE}::test_each_connection_has_the_settings_the_promises_rest_on",),
    ),
    Mutant(
        "foreign-keys-off",
        "rows outlive the context they belong to",
        (
            Edit(
                "looopy.stores.sql.sqlite.connection:_make_settings",
                '"PRAGMA foreign_keys = ON"',
                '"PRAGMA foreign_keys = OFF"',
            ),
            Edit(
                "looopy.stores.sql.sqlite.connection:SETTINGS",
                '"foreign_keys": 1,',
                '"foreign_keys": 0,',
            ),
        ),
        (
            f"{_FILE}::test_each_connection_has_the_settings_the_promises_rest_on",
            f"{_STATE}::TestStateOnSQLite::test_deleting_leaves_nothing_behind",
        ),
    ),
    Mutant(
        "begin-late",
        "of processes that write to one file at once most are told that it is locked",
        (
            Edit(
                "looopy.stores.sql.sqlite.driver:_write_together",
                'connection.execute("BEGIN IMMEDIATE"), patience_s) for job in jobs:',
                'connection.execute("BEGIN"), patience_s)\n'
                "for job in jobs:",
            ),
            Edit(
                "looopy.stores.sql.sqlite.driver:_write_alone",
                'connection.execute("BEGIN IMMEDIATE"), patience_s) job.result',
                'connection.execute("BEGIN"), patience_s)\n'
                "job.result",
            ),
        ),
        (f"{_FILE}::test_a_write_has_the_file_before_it_reads",),
    ),
    mutant(
        "commits-to-a-file-that-is-gone",
        "turns complete that no next process will find",
        "looopy.stores.sql.sqlite.connection:Connection.check_files",
        'return StoreUnavailable( f"{name} {became}',
        "return None and StoreUnavailable(\n"
        '    f"{name} {became}',
        f"{_FILE}::test_nothing_is_acknowledged_into_a_file_that_is_gone",
        f"{_FILE}::test_every_turn_on_a_file_that_is_gone_fails",
    ),
    mutant(
        "looks-at-the-database-alone",
        "turns are acknowledged into a log that nobody else can read",
        "looopy.stores.sql.sqlite.connection:Connection.check_files",
        "[stat(database)[1:3], stat(log)[1:3], stat(shared)[1:3]] == self._ids:",
        "stat(database)[1:3] == self._ids[0]:",
        f"{_FILE}::test_nothing_is_acknowledged_into_a_file_that_is_gone",
        f"{_FILE}::test_what_was_acknowledged_is_saved_from_a_log_that_is_gone",
    ),
    mutant(
        "not-looked-at-after-the-commit",
        "a commit is acknowledged that a file took with it",
        "looopy.stores.sql.sqlite.driver:_commit",
        "if (gone := connection.check_files(outcome_known=False)) is not None:\n"
        "    connection.save_log()\n"
        "return gone",
        "return None",
        f"{_FILE}::test_a_file_that_goes_during_the_commit_has_no_acknowledged_commit",
    ),
    mutant(
        "a-log-of-others-is-moved",
        "whoever opened another file beside the same log loses what it stored",
        "looopy.stores.sql.sqlite.connection:Connection.save_log",
        "if (database, shared) == (self._ids[0], self._ids[2]):",
        "if True:",
        f"{_FILE}::test_a_log_is_left_to_those_who_have_it_with_another_file",
    ),
    mutant(
        "a-lost-log-is-not-saved",
        "what was acknowledged is gone with a log that was removed",
        "looopy.stores.sql.sqlite.driver:_commit",
        "_roll_back(connection)\n"
        "connection.save_log()",
        "_roll_back(connection)",
        f"{_FILE}::test_what_was_acknowledged_is_saved_from_a_log_that_is_gone",
    ),
    mutant(
        "reads-from-a-file-that-is-gone",
        "an agent shows a history that is in no file any more",
        "looopy.stores.sql.sqlite.driver:_read",
        "if (gone := connection.check_files()) is not None:\n"
        "    for job in jobs:",
        "if (gone := None) is not None:\n"
        "    for job in jobs:",
        f"{_FILE}::test_nothing_is_acknowledged_into_a_file_that_is_gone",
    ),
    mutant(
        "a-file-for-everybody",
        "other users of the machine read every conversation",
        "looopy.stores.sql.sqlite.connection:make_file",
        "os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)",
        "os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)",
        f"{_FILE}::test_a_new_file_and_its_log_are_readable_by_their_owner_alone",
        f"{_FILE}::test_a_file_is_private_before_anything_is_in_it",
    ),
    mutant(
        "a-backup-for-everybody",
        "a migration leaves a copy that has another mode than its file",
        "looopy.stores.sql.sqlite.backups:back_up",
        "shutil.copymode(path, unfinished)",
        "unfinished.chmod(0o644)",
        "tests/migrations/test_sqlite.py::test_a_copy_may_be_read_by_those_who_may_read_the_file",
    ),
    Mutant(
        "freed-pages-keep-their-text",
        "what was deleted is still in the file",
        (
            Edit(
                "looopy.stores.sql.sqlite.connection:_make_settings",
                '"PRAGMA secure_delete = ON"',
                '"PRAGMA secure_delete = OFF"',
            ),
            Edit(
                "looopy.stores.sql.sqlite.connection:SETTINGS",
                '"secure_delete": 1,',
                '"secure_delete": 0,',
            ),
        ),
        (f"{_FILE}::test_what_was_deleted_is_in_none_of_the_files",),
    ),
    mutant(
        "the-log-keeps-what-was-deleted",
        "what was deleted is still in the file beside it",
        "looopy.stores.sql.sqlite.driver:_drive",
        "if query.sql in ERASING:",
        "if query.sql == b'':",
        f"{_FILE}::test_what_was_deleted_is_in_none_of_the_files",
        f"{_FILE}::test_what_a_reader_still_sees_is_removed_when_it_has_read",
    ),
    mutant(
        "the-log-is-emptied-once",
        "what was deleted while somebody read stays in the log",
        "looopy.stores.sql.sqlite.driver:_Worker._serve",
        "self._to_empty = not connection.empty_log(wait=erased or not going_on)",
        "connection.empty_log(wait=erased or not going_on)",
        f"{_FILE}::test_what_a_reader_still_sees_is_removed_when_it_has_read",
    ),
    mutant(
        "cleared-messages-are-kept",
        "what a user cleared can be read in the database for ever",
        "looopy.stores.sql.commit:clear_steps",
        "yield Query(s.FORGET_MESSAGES, key)",
        "",
        f"{_JOURNAL}::TestJournalOnSQLite::test_nothing_said_is_kept_after_clearing",
        f"{_JOURNAL}::TestJournalOnAsyncpg::test_nothing_said_is_kept_after_clearing",
    ),
    mutant(
        "cleared-events-are-kept",
        "calls and requests that a user cleared can be read in the database for ever",
        "looopy.stores.sql.commit:clear_steps",
        'yield Query(s.FORGET_EVENTS, {**key, "seq": seq})',
        "",
        f"{_JOURNAL}::TestJournalOnSQLite::test_nothing_said_is_kept_after_clearing",
    ),
    mutant(
        "all-turns-for-the-open-one",
        "opening a context reads each turn it ever had, until Postgres has analysed its tables",
        "looopy.stores.sql.statements:LOAD_CONTEXT",
        "open_turn=_OPEN_TURN)",
        "open_turn='c.open_turn')",
        "tests/contract/postgres/test_plans.py::test_rows_are_joined_by_the_whole_of_their_key",
    ),
    mutant(
        "decodes-on-the-loop",
        "whoever reads a long history stops every other task of the process meanwhile",
        "looopy.stores.log:off_loop",
        "if little:",
        "if True:",
        "tests/unit/stores/test_log.py"
        "::test_many_messages_are_decoded_in_small_parts_beside_the_loop",
    ),
    mutant(
        "collects-while-it-reads",
        "a read of a long history stops every thread for as long as garbage is collected",
        "looopy.stores.log:_Collections.put_off",
        "gc.freeze()",
        "pass",
        "tests/unit/stores/test_log.py::test_a_long_list_is_read_without_full_collections",
    ),
    mutant(
        "thaws-what-others-froze",
        "a read of a long history undoes gc.freeze() of the application",
        "looopy.stores.log:_Collections.put_off",
        "and gc.get_freeze_count() < _FROZEN_AT_START",
        "",
        "tests/unit/stores/test_log.py::test_what_an_application_froze_stays_frozen",
    ),
    mutant(
        "a-statement-for-each-message",
        "a page of a thousand events costs hundreds of round trips",
        "looopy.stores.sql.journal:_ranges",
        "if found and position - found[-1][1] <= _NEAR:",
        "if False:",
        "tests/unit/stores/test_log.py"
        "::test_a_page_of_events_costs_the_same_statements_whatever_it_holds",
    ),
    mutant(
        "told-before-the-commit",
        "an answer is handed out before it is on the disk",
        "looopy.stores.sql.sqlite.driver:_write_together",
        "failed = _commit(connection, path, patience_s)\n"
        "for job in jobs:\n"
        "    job.error = job.error or failed",
        "_commit(connection, path, patience_s)",
        f"{_FILE}::test_a_commit_that_fails_is_told_to_all_who_shared_it",
    ),
    # --- a commit whose answer was lost ---
    mutant(
        "blind-retry",
        "what was stored already is stored twice, or refused as another's",
        "looopy.stores.sql.postgres.driver:PostgresDriver._write_in_transaction",
        "if not await fate_of_transaction(pool, self._url.place, mark, until):",
        "if True:",
        f"{_SERVER}::test_a_commit_that_is_cut_is_made_exactly_once",
    ),
    mutant(
        "blind-failure",
        "a turn that was stored is reported as failed",
        "looopy.stores.sql.postgres.driver:PostgresDriver._write_in_transaction",
        "if not await fate_of_transaction(pool, self._url.place, mark, until):",
        "raise translate(Trouble(None, lost=True), self._url.place)\n"
        "if True:",
        f"{_SERVER}::test_a_commit_that_is_cut_is_made_exactly_once",
    ),
    mutant(
        "blind-success",
        "a turn that was lost is reported as stored",
        "looopy.stores.sql.postgres.driver:PostgresDriver._write_in_transaction",
        "if not await fate_of_transaction(pool, self._url.place, mark, until):",
        "if False:",
        f"{_SERVER}::test_a_commit_that_is_cut_is_made_exactly_once",
    ),
    mutant(
        "read-back-too-early",
        "a write that is still on its way is made twice",
        "looopy.stores.sql.postgres.outcome:fate_of_statement.look",
        "if may_come:",
        "if False:",
        f"{_CUTS}::test_a_write_that_waits_for_a_row_is_ended_before_it_is_made_again",
        f"{_CUTS}::test_a_write_that_comes_late_is_not_carried_out",
    ),
    mutant(
        "mark-of-anybody",
        "a commit that never arrived is told as stored",
        "looopy.stores.sql.postgres.outcome:_committed",
        "if facts.last_write != commit.mark:",
        "if facts.last_write is None:",
        f"{_SERVER}::test_a_commit_that_is_cut_is_made_exactly_once",
    ),
    mutant(
        "end-of-anybody",
        "a turn that another process closed is told as ended here",
        "looopy.stores.sql.postgres.outcome:_committed",
        "if (facts.outcome, facts.stop_reason, facts.ended_at) != ours:",
        "if facts.outcome is None:",
        f"{_CUTS}::test_an_end_that_was_cut_is_known_when_others_have_gone_on",
    ),
    # --- an answer that never comes ---
    mutant(
        "endless-wait",
        "a turn waits for ever for a server that has fallen silent",
        "looopy.stores.sql.postgres.watch:Watch._look",
        "self._cut()",
        "pass",
        f"{_SILENCE}::test_a_connection_that_is_silent_when_it_begins_to_listen_is_replaced",
    ),
    mutant(
        "endless-wait-of-psycopg",
        "with psycopg, whoever waits for a server that has fallen silent waits for ever",
        "looopy.stores.sql.postgres.wire:_Psycopg._cut",
        "same.shutdown(socket.SHUT_RDWR)",
        "pass",
        f"{_SILENCE}::test_a_connection_that_is_silent_when_it_begins_to_listen_is_replaced",
    ),
    mutant(
        "silent-ones-kept",
        "each idle connection is found out to be silent by another long wait",
        "looopy.stores.sql.postgres.pool:Pool.drop",
        "await self._forget_idle()",
        "pass",
        f"{_SILENCE}::test_a_silent_connection_takes_the_idle_ones_with_it",
    ),
    mutant(
        "blamed-while-asleep",
        "a process that stood still cuts connections whose answers have arrived",
        "looopy.stores.sql.postgres.watch:Watch._look",
        "if now - timer.when() > _LATE_S:",
        "if False:",
        f"{_SILENCE}::test_an_answer_that_came_while_this_process_stood_still_counts",
    ),
    mutant(
        "no-second-try",
        "a write fails although the server answers and nothing was written",
        "looopy.stores.sql.postgres.driver:PostgresDriver._try",
        "deadline = max(deadline, _now() + self._patience_s)",
        "pass",
        f"{_SILENCE}::test_a_commit_whose_reply_never_comes_is_made_exactly_once",
    ),
    mutant(
        "one-lock-for-all-urls",
        "a server that does not answer keeps agents on other URLs waiting",
        "looopy.stores.opening:_shared_here",
        "async with shared.lock:",
        "async with entries.setdefault('', _Shared()).lock:",
        "tests/unit/stores/test_opening_shared.py"
        "::test_a_server_that_does_not_answer_keeps_no_other_url_waiting",
    ),
    # --- Postgres alone ---
    mutant(
        "plans-of-empty-tables",
        "statements read all of a table that was empty when they were planned",
        "looopy.stores.sql.postgres.pool:_PLANS",
        '"enable_seqscan": "off",',
        "",
        "tests/contract/postgres/test_plans.py::test_no_statement_reads_all_of_a_table",
    ),
    mutant(
        "turns-fail-at-the-limit",
        "turns fail where the server has no connection left, though others end soon",
        "looopy.stores.sql.postgres.pool:Pool.take",
        "if trouble.sqlstate != TOO_MANY:",
        "if True:",
        f"{_POOL}::test_at_the_limit_of_the_server_one_waits_for_those_of_the_pool",
    ),
    mutant(
        "a-pool-that-only-grows",
        "the connections of a busy hour stay for ever",
        "looopy.stores.sql.postgres.pool:Pool._reap",
        "if due > now:",
        "if True:",
        f"{_POOL}::test_connections_that_nobody_uses_are_closed",
    ),
    mutant(
        "ageless",
        "a connection that is always in use is never replaced",
        "looopy.stores.sql.postgres.pool:Pool.give",
        "if now >= wire.retire_at:",
        "if False:",
        f"{_POOL}::test_a_connection_that_is_always_in_use_is_replaced_when_it_is_old",
    ),
    mutant(
        "settings-left-on-a-pooler",
        "what looopy sets for itself stays on connections that others share",
        "looopy.stores.sql.postgres.pool:_note",
        "if own is None:",
        "if False:",
        f"{_POOLER}::test_a_pooler_that_the_url_does_not_name_is_refused_by_name",
    ),
    mutant(
        "no-canary",
        "a pooler that the URL does not name is found by the failing turns",
        "looopy.stores.sql.postgres.pool:set_up",
        'ours = {"ours": int(url.pooler is not None)}',
        'ours = {"ours": 1}',
        f"{_POOLER}::test_a_pooler_that_the_url_does_not_name_is_refused_by_name",
    ),
    mutant(
        "fold-without-check",
        "the end of a turn that was ended by another is told as stored",
        "looopy.stores.sql.postgres.one_statement:_text",
        "if sql in _MUST:",
        "if sql in ():",
        f"{_SERVER}::test_a_turn_that_is_not_open_is_not_closed_by_one_statement_either",
    ),
    mutant(
        "no-line-of-writes",
        "writes of one context are made in any order, each holding a connection meanwhile",
        "looopy.stores.sql.postgres.driver:PostgresDriver._carry_out",
        "line = self._line(work, ring)",
        "line = _Line()",
        f"{_ORDER}::test_writes_of_one_context_wait_in_line_without_a_connection",
    ),
    mutant(
        "bodies-as-jsonb",
        "what is read is not what was stored: keys are sorted, numbers rewritten",
        "looopy.stores.sql.postgres.wire:_type",
        'if name in TEXTS: return "text"',
        'if name in ("body", "metadata", "data"):\n'
        '    return "text::jsonb::text"\n'
        "if name in TEXTS:\n"
        '    return "text"',
        "tests/contract/every_store/test_messages.py::TestMessagesOnAsyncpg::test_odd_values_are_kept",
        "tests/contract/every_store/test_messages.py::TestMessagesOnPsycopg::test_odd_values_are_kept",
    ),
    mutant(
        "clock-of-the-transaction",
        "a lease that was waited for begins in the past",
        "looopy.stores.sql.postgres.wire:_NOW_US",
        "FROM clock_timestamp()) * 1000000",
        "FROM now()) * 1000000",
        f"{_ORDER}::test_a_lease_that_was_waited_for_begins_when_it_is_given",
    ),
    # --- migrations ---
    mutant(
        "migration-without-lock",
        "of two processes that start at once one fails",
        "looopy.stores.sql.postgres.migrate:_alone",
        'connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")',
        'connection.exec_driver_sql("SELECT 1")',
        "tests/migrations/test_postgres.py::test_a_migration_waits_for_the_one_that_runs",
    ),
    mutant(
        "migration-in-everybodys-way",
        "a migration waits behind one open reader, and every turn behind the migration",
        "looopy.stores.sql.postgres.migrate:_wait_for_locks",
        "{max(int(longest_s * 1000), 1)}",
        "0",
        "tests/migrations/test_postgres.py::"
        "test_a_migration_behind_a_reader_lets_the_others_pass[asyncpg]",
    ),
    mutant(
        "migration-that-asks-as-it-goes",
        "a migration waits for each table anew while it keeps the ones before from everybody",
        "looopy.stores.sql.postgres.migrate:_take_tables",
        'f"LOCK TABLE {quote(name)} IN ACCESS EXCLUSIVE MODE"',
        '"SELECT 1"',
        "tests/migrations/test_postgres.py::test_a_migration_gives_up_when_somebody_never_ends",
    ),
    mutant(
        "rows-vanish-when-secured",
        "a process that is connected while tenants are secured takes each context for a new one",
        "looopy.stores.sql.postgres.rls:_CONDITION",
        'f" ELSE CAST(CAST(\'{_UNSAID}\' || COALESCE({_SAID}, \'\') AS integer) AS text) END"',
        '" END"',
        f"{_RLS}::test_it_can_be_turned_on_under_a_running_application",
        f"{_RLS}::test_without_a_tenant_nothing_is_visible",
    ),
    mutant(
        "read-only-is-overruled",
        "a database that its administrator has frozen is written to",
        "looopy.stores.sql.postgres.driver:_BEGIN_WRITE",
        '"BEGIN ISOLATION LEVEL READ COMMITTED"',
        '"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"',
        f"{_SERVER}::test_a_database_that_is_set_to_be_read_only_is_not_written_to",
    ),
    mutant(
        "the-applications-revision-is-ours",
        "looopy refuses a shared database for the tables of the application",
        "looopy.stores.sql.revision:FIND_BEFORE",
        "WHERE c.visible_from < 0)",
        "WHERE 1 < 0)",
        "tests/migrations/test_before.py::test_tables_that_differ_are_an_applications",
    ),
    mutant(
        "a-clones-database-is-of-a-newer-version",
        "the owner of a clone's database is told to upgrade, which cannot help",
        "looopy.stores.sql.revision:out_of_date",
        "if found in BEFORE:",
        "if False:",
        "tests/migrations/test_before.py::"
        "test_each_schema_of_a_clone_is_refused_with_the_way_out",
    ),
    mutant(
        "all-tables-go-without-a-question",
        "a slip on the command line drops every conversation of a server",
        "looopy.cli.db:downgrade",
        "if not (agreed or agrees(Terminal(), question)):",
        "if False:",
        "tests/cli/test_contexts_and_db.py::test_dropping_all_tables_is_agreed_to_first",
    ),
    mutant(
        "altered-bytes-are-served",
        "a file that somebody changed in the folder of artifacts is returned as what was saved",
        "looopy.stores.artifacts.parts:Parts._part",
        "if piece is not None and actual == part.sha256:",
        "if piece is not None:",
        "tests/contract/sqlite/test_blobs.py::test_altered_bytes_are_named_and_never_returned",
    ),
    mutant(
        "a-damaged-part-is-shared",
        "saving a file again does not mend it, because the new version names the damaged part",
        "looopy.stores.artifacts.parts:Parts._store",
        "if there is not None and await digest_of(there) == digest:",
        "if there is not None:",
        "tests/contract/sqlite/test_blobs.py::test_saving_again_heals_what_was_damaged",
    ),
    mutant(
        "a-shared-name-is-not-held",
        "a version names a part that a deletion has removed a moment before",
        "looopy.stores.sql.commit:add_parts",
        "if not (yield Query(s.HOLD_BLOB if part.shared else s.TAKE_UPLOAD, blob)):",
        "if not part.shared and not (yield Query(s.TAKE_UPLOAD, blob)):",
        "tests/contract/sqlite/test_blobs.py::"
        "test_a_shared_name_that_is_gone_is_written_again",
    ),
    mutant(
        "a-late-commit-names-its-part",
        "a version names a part that was collected while its writer stood still",
        "looopy.stores.sql.commit:add_parts",
        "if not (yield Query(s.HOLD_BLOB if part.shared else s.TAKE_UPLOAD, blob)):",
        "if part.shared and not (yield Query(s.HOLD_BLOB, blob)):",
        "tests/contract/every_store/test_collecting.py::"
        "test_no_order_of_a_save_and_collect_loses_what_was_acknowledged",
    ),
    mutant(
        "collect-eats-an-upload",
        "`collect` removes the bytes of a save that is on its way",
        "looopy.stores.sql.artifacts:SQLArtifactRows.end_uploads",
        "if not held and lasts and not provably_dead(holder):",
        "if False:",
        "tests/contract/every_store/test_collecting.py::"
        "test_no_order_of_a_save_and_collect_loses_what_was_acknowledged",
    ),
    # --- archives ---
    mutant(
        "an-archive-is-not-compared",
        "an artifact or a message is imported that somebody altered on the way",
        "looopy.stores.archive.container:Member.check",
        'if digest.hexdigest() != said.get("sha256"):',
        "if False:",
        f"{_HOSTILE}::test_an_altered_text_is_found_by_its_hash",
    ),
    mutant(
        "an-archive-names-its-owner",
        "whoever sends an archive gives contexts to other people",
        "looopy.stores.archive.importing:_check_actors",
        "if actor != owner:",
        "if owner is not None and actor != owner:",
        f"{_HOSTILE}::test_owners_are_kept_only_if_the_importer_says_so",
    ),
    mutant(
        "members-share-their-bytes",
        "a small archive holds gigabytes",
        "looopy.stores.archive.container:Reader.__init__",
        "if info.header_offset < taken or start + info.file_size > end:",
        "if start + info.file_size > end:",
        f"{_HOSTILE}::test_members_that_share_bytes_are_refused",
    ),
    mutant(
        "an-export-has-what-came-later",
        "an archive holds a piece of an artifact that its own line does not know",
        "looopy.stores.archive.writing:_Export._content",
        "await asyncio.to_thread(writer.write, piece[:left])",
        "await asyncio.to_thread(writer.write, piece)",
        f"{_ARCHIVES}::test_turns_that_run_meanwhile_are_not_in_it",
    ),
    mutant(
        "an-export-misses-a-clear",
        "half of a context is exported as if it were all of it",
        "looopy.stores.archive.writing:_Export._check_still_there",
        "(now.created_at, now.cleared_seq) != (before.created_at, before.cleared_seq)",
        "now.created_at != before.created_at",
        f"{_ARCHIVES}::test_a_context_that_is_cleared_at_the_end_is_not_exported",
    ),
    mutant(
        "a-restored-turn-lost-its-message",
        "an imported turn_start no longer says what the user asked",
        "looopy.stores.archive.writing:_Log._notice",
        "self.user_positions[event.turn] = event.position",
        "pass",
        f"{_ARCHIVES}::test_a_restored_context_is_what_it_was",
    ),
    mutant(
        "two-appends-overwrite",
        "of two pieces that two processes append at once, one is lost",
        "looopy.stores.sql.statements:GROW_ARTIFACT",
        '" AND size = :size_before AND',
        '" AND',
        "tests/contract/every_store/test_artifacts.py::TestArtifactsOnSQLite::"
        "test_writers_that_share_no_object_lose_no_piece",
    ),
    mutant(
        "alembic-compares-everything",
        "a check of our schema complains of an application's tables",
        "looopy.stores.sql.revision:_is_ours",
        'return kind != "table" or (name is not None and name.startswith(PREFIX))',
        "return True",
        "tests/migrations/test_shared.py::test_our_check_does_not_see_theirs",
    ),
    mutant(
        "migration-of-a-file-without-lock",
        "the same on one file",
        "looopy.stores.sql.sqlite.migrate:_begin_exclusive",
        'connection.exec_driver_sql("BEGIN EXCLUSIVE")',
        'connection.exec_driver_sql("BEGIN")',
        "tests/migrations/test_sqlite.py::test_others_are_kept_out_from_before_the_version_is_read",
    ),
    # --- what may be stored ---
    mutant(
        "an-actor-passes-the-gate",
        "one database keeps a turn's actor, and another fails with an error of its driver",
        "looopy.stores.rules:check_claim",
        "check_actor(claim.actor_id)",
        "",
        f"{_STATE}::TestStateOnSQLite::test_an_invalid_actor_claims_nothing",
        f"{_STATE}::TestStateInMemory::test_an_invalid_actor_claims_nothing",
    ),
    mutant(
        "a-limit-below-nothing",
        "one store answers all but the last, and another nothing",
        "looopy.types.storable:check_limit",
        "isinstance(limit, bool) or limit < 0",
        "isinstance(limit, bool)",
        "tests/contract/every_store/test_messages.py::TestMessagesInMemory::"
        "test_a_limit_that_is_no_count_is_refused",
        f"{_JOURNAL}::TestJournalOnSQLite::test_a_limit_that_is_no_count_is_refused",
    ),
    mutant(
        "nul-passes-the-gate",
        "the same message is kept by one database and refused by another",
        "looopy.types.storable:check_text",
        'if "\\0" in value:',
        'if value == "\\0":',
        "tests/unit/types/test_storable.py::test_what_a_backend_would_change_is_refused_with_its_place",
        "tests/contract/every_store/test_messages.py::TestMessagesOnAsyncpg::"
        "test_text_that_a_database_refuses_is_refused",
    ),
    mutant(
        "nul-passes-in-messages",
        "a message that was put together at once is kept by one database and refused by another",
        "looopy.stores.rows.writing:_is_kept",
        'if len(text) > MAX_BODY_BYTES or "\\\\u0000" in text:',
        "if len(text) > MAX_BODY_BYTES:",
        "tests/unit/stores/rows/test_writing.py::test_the_edges_are_those_of_the_general_way",
    ),
    # --- searching ---
    mutant(
        "search-adds-what-has-gone",
        "a search that reads while a context is cleared writes the deleted words back",
        "looopy.stores.sql.search:_add",
        "held[0][:2] != (unread.created_at, unread.visible_from)",
        "not held[0][:2]",
        f"{_SEARCH}::test_no_word_is_added_of_a_message_that_has_just_gone[sqlite-clear]",
    ),
    mutant(
        "clear-keeps-the-words",
        "the words of a cleared conversation stay in the file",
        "looopy.stores.sql.commit:clear_steps",
        "yield Query(s.FORGET_WORDS, key)",
        "",
        f"{_SEARCH}::test_deleted_words_are_in_none_of_the_files[clear]",
    ),
    mutant(
        "search-forgets-its-batch",
        "the messages of a batch are never found, because the next search begins behind them",
        "looopy.stores.sql.search:_add",
        'yield Query(s.ADD_WORDS, {**key, "words": words})',
        "pass",
        f"{_SEARCH}::TestSearchOnSQLite::test_each_search_knows_every_commit_before_it",
    ),
    mutant(
        "search-continues-in-any-context",
        "the `next` of somebody else's page shows an owner messages of theirs",
        "looopy.stores.sql.search:SQLSearcher._is_of",
        "owner is None or found[0][3] == owner",
        "True",
        f"{_SEARCH}::TestSearchOnSQLite::test_by_owner",
    ),
    mutant(
        "search-takes-words-for-a-phrase",
        "a phrase is found wherever its words are",
        "looopy.stores.search:_places",
        "and _ends_with(term, there[place + last].word)",
        "",
        f"{_SEARCH}::TestSearchInMemory::test_words_phrases_and_beginnings",
    ),
    # --- forks ---
    mutant(
        "a-fork-knows-the-future",
        "a fork has artifacts that its parent saved after the place where it was made",
        "looopy.stores.sql.statements:COPY_ARTIFACTS",
        " AND a.turn <= :turn /* FOR KEY SHARE */",
        " /* FOR KEY SHARE */",
        f"{_FORKS}::test_artifacts_are_those_of_the_place",
    ),
    mutant(
        "a-fork-loses-the-parts",
        "a large file of a branch cannot be read",
        "looopy.stores.sql.fork:fork_steps",
        ", s.COPY_PARTS)",
        ")",
        f"{_FORKS}::test_large_artifacts_are_read_through_a_fork",
    ),
    mutant(
        "a-stranger-is-the-parent",
        "whoever has the name of a deleted conversation counts as the parent of its branches",
        "looopy.stores.sql.state:_delete_steps",
        "yield Query(s.UNLINK_FORKS, one)",
        "",
        f"{_FORKS}::test_a_parent_that_goes_leaves_its_forks_whole",
    ),
    mutant(
        "a-fork-reads-what-is-going",
        "a branch lacks what its parent's deletion removed while it was made",
        "looopy.stores.sql.statements:PEEK_HELD",
        'f"{PEEK} /* FOR KEY SHARE */"',
        'f"{PEEK} "',
        "tests/contract/postgres/test_forks_at_once.py",
    ),
    mutant(
        "rewound-is-shown",
        "an edited question is followed by the old one and its answer",
        "looopy.stores.sql.fork:read_shown",
        "gaps = () if hidden else merged(decode_rewound(head.rewound))",
        "gaps = ()",
        f"{_FORKS}::test_a_rewound_tail_is_hidden_and_kept",
    ),
    mutant(
        "a-rewind-fences-nobody",
        "a turn goes on in what another process has rewound",
        "looopy.stores.sql.statements:REWIND",
        'f"UPDATE looopy_contexts SET {_NEXT_EPOCH}, last_seq',
        'f"UPDATE looopy_contexts SET last_seq',
        f"{_FORKS}::test_a_rewind_fences_what_was_read_before",
    ),
    mutant(
        "cut-within-a-turn",
        "a branch begins between a call and its result",
        "looopy.stores.past:cut_after",
        "raise within_turn(at, begun)",
        "return Cut(at, seq - 1, turn)",
        f"{_FORKS}::test_within_a_turn_nothing_is_cut",
    ),
    # --- erasing ---
    mutant(
        "retention-forgets-who-waits",
        "a conversation that waits for an approval is gone when it comes",
        "looopy.stores.erasing:Retention._stays",
        "(one.waits and not self._waiting)",
        "False",
        f"{_ERASURE}::TestRetentionInMemory::test_a_pending_request_is_kept_unless_told",
    ),
    mutant(
        "a-link-to-a-context-of-others",
        "somebody who chose the id of an inner context loses everything with the outer one",
        "looopy.stores.sql.contexts:_enclose_steps",
        "if made:",
        "if True:",
        f"{_INNER}::TestInnerContextsOnSQLite::test_a_context_that_exists_is_left_alone",
    ),
    mutant(
        "an-outer-context-goes-first",
        "an erasure that is killed leaves words that no later erasure finds",
        "looopy.stores.sql.erasing:erase_steps",
        "if inner := (yield Query(s.INNER_OF, key)):",
        "if inner := ():",
        f"{_INNER}::test_a_call_that_begins_on_the_way_is_found[sqlite]",
    ),
    mutant(
        "an-archive-links-to-anybody",
        "the next call of a victim continues in a context that a stranger imported",
        "looopy.stores.archive.reading:Checked.restored",
        "link = None if outer is None else link._replace(context_id=outer)",
        "link = link._replace(context_id=outer or link.context_id)",
        f"{_INNER}::TestInnerContextsInMemory::test_an_archive_links_to_nobody_else",
    ),
    mutant(
        "an-erasure-leaves-the-log",
        "a report says that all is gone, and the text is in the log beside the file",
        "looopy.stores.sql.sqlite.driver:SQLiteDriver.scrub",
        "self._writer is None or self._writer.log_is_empty",
        "True",
        f"{_ERASURE}::test_it_is_not_done_while_the_log_holds_a_part",
    ),
    mutant(
        "a-summary-keeps-a-guest",
        "the summary of a conversation still tells what an erased person said",
        "looopy.stores.rows.redaction:Summaries.redacted",
        "if not tells:",
        "if True:",
        f"{_REDACTED}::test_a_later_summary_is_emptied",
    ),
    mutant(
        "hidden-words-empty-a-summary",
        "erasing somebody whose turns were rewound empties a summary of others",
        "looopy.stores.rows.redaction:Summaries.redacted",
        "for low, high in self._rewound if high < position",
        "for low, high in self._rewound if False",
        f"{_REDACTED}::test_turns_of_others_with_the_same_numbers_stay",
    ),
    mutant(
        "tokens-of-the-erased",
        "the tokens of an answer to an erased person stay, with their probabilities",
        "looopy.stores.rows.redaction:_redacted",
        "error_message=None if message.error_message is None else ERASED,",
        "error_message=None if message.error_message is None else ERASED,"
        " logprobs=message.logprobs,",
        f"{_REDACTED}::test_no_part_of_an_answer_repeats_them",
    ),
    mutant(
        "an-id-is-theirs-for-ever",
        "erasing somebody drops a request of the owner whose call has the same id",
        "looopy.stores.rows.redaction:Messages.redacted",
        "self._end(call.id, seq)",
        "",
        f"{_REDACTED}::test_turns_of_others_with_the_same_numbers_stay",
    ),
    mutant(
        "everybody-answers-again",
        "erasing somebody asks the owner again what the owner has answered",
        "looopy.stores.rows.redaction:redacted_state",
        "return any(turn > one.turn for turn in turns)",
        "return True",
        f"{_REDACTED}::test_an_answer_of_others_stays_and_theirs_is_asked_again",
    ),
    # --- accounts ---
    mutant(
        "accounts-without-a-limit",
        "calls that begin at the same time spend more than the budget together",
        "looopy.stores.sql.spending:_reserve",
        "check_room(allowance, period, most, used, held.minus(most))",
        "",
        f"{_SPENDING}::test_calls_at_once_get_no_more_than_the_limit",
    ),
    mutant(
        "accounts-settle-twice",
        "a settlement that is repeated after a lost answer gives back twice",
        "looopy.stores.sql.statements:TAKE_RESERVATION",
        '"DELETE FROM looopy_reservations WHERE tenant_id = :tenant AND reservation = :reservation"'
        '\nf"{_RESERVED}"',
        '"SELECT tokens, nanos, charges FROM looopy_reservations"'
        '\n" WHERE tenant_id = :tenant AND reservation = :reservation"',
        f"{_SPENDING}::test_a_reservation_is_made_once_and_settled_once",
    ),
    mutant(
        "accounts-refund-the-dead",
        "a process that is killed again and again spends without a limit",
        "looopy.stores.sql.spending:_reserve",
        "_exchange(key, row, Amount(*row[:3]))",
        "_exchange(key, row, NOTHING)",
        f"{_SPENDING}::test_calls_that_died_leave_no_room_to_a_later_turn",
    ),
    mutant(
        "accounts-forget-the-released",
        "a call that an operator took for dead spends without being counted",
        "looopy.stores.sql.spending:_release",
        "yield Query(s.EMPTY_RESERVATION, key)",
        "yield Query(s.TAKE_RESERVATION, key)",
        f"{_SPENDING}::test_what_a_call_holds_is_released_and_the_call_still_counts",
    ),
]
