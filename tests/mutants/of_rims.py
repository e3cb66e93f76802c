"""Mistakes that an independent list found and no test had noticed; and their neighbours."""

from __future__ import annotations

from tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "lease-never-let-go",
        "a store is asked to renew, for ever, the lease of each turn that is over",
        "looopy.agent.commit:TurnLog.close",
        "if self._lease is not None: self._lease.let_go()",
        "",
        "tests/agent/sharing/test_sharing.py::test_after_a_turn_its_lease_is_renewed_no_more",
    ),
    mutant(
        "artifact-beside-commit",
        "events are announced out of order, and a client that follows by number misses one",
        "looopy.agent.commit:TurnLog._change_artifact",
        "await self._writing.take(_nobody)",
        "self._writing = WriteLock()\n"
        "await self._writing.take(_nobody)",
        "tests/agent/tools/test_artifact_tools.py"
        "::test_an_artifact_waits_for_a_commit_of_its_turn_that_is_under_way",
    ),
    mutant(
        "store-error-unredacted",
        "a token stands in the stored state when a store's error repeats it",
        "looopy.agent.commit:TurnLog.fail",
        "error = self._redactor.error(error)",
        "",
        "tests/agent/credentials/test_secrets.py"
        "::test_an_error_of_the_store_that_repeats_a_credential_shows_none",
    ),
    mutant(
        "forgiven-comes-back",
        "an agent that was started again after a failure stores it all the same",
        "looopy.agent.buffer:_save_first",
        "state=turn.state if len(turns) > 1 else known.state,  # its error may be cleared",
        "state=turn.state,",
        "tests/agent/turns/test_buffered.py::test_a_failure_that_was_forgiven_is_not_stored",
    ),
    mutant(
        "no-second-poll",
        "where no bell rings, a request to stop is heard for one poll and never again",
        "looopy.agent.inbox:TurnInbox._peek",
        "self.told(head)\n"
        "self._later()",
        "self.told(head)",
        "tests/unit/agent/test_inbox.py::test_it_looks_again_and_again_though_no_bell_rings",
    ),
    mutant(
        "one-hiccup-loses-lease",
        "one renewal that the store did not answer cancels the turn",
        "looopy.agent.lease:Lease._renew",
        "self._timer = self._in(self._ttl_s / _TRIES_PER_TTL)\n"
        "return",
        "self._lost()\n"
        "return",
        "tests/unit/agent/test_lease_renewal.py::test_a_renewal_that_the_store_did_not_answer_is_made_again",
    ),
    mutant(
        "artifacts-of-all-turns",
        "a repeated request shows the files of other turns as its own",
        "looopy.agent.events:_result",
        "tally.artifacts = [a for a in await stores.artifacts.list(context_id) if a.turn == turn]",
        "tally.artifacts = await stores.artifacts.list(context_id)",
        "tests/agent/sharing/test_idempotency.py"
        "::test_the_result_of_an_old_turn_has_the_artifacts_of_that_turn",
    ),
    mutant(
        "lower-case-percent",
        "a secret that a program percent-encoded in small letters is stored",
        "looopy.auth.secret_forms:_percent_encoded",
        "return found | {_small_digits(one) for one in found}",
        "return found",
        "tests/unit/auth/test_redaction.py"
        "::test_percent_encoding_is_found_in_capitals_and_in_small_letters",
    ),
    mutant(
        "failed-end-usage-lost",
        "what a turn used is not counted when its store ends it",
        "looopy.agent.dead_turns:_end",
        "usage=sum((m.usage for m in added if isinstance(m, AssistantMessage)), Usage()),",
        "usage=Usage(),",
        "tests/unit/agent/test_dead_turns.py::test_a_turn_whose_store_failed_reports_what_its_calls_used",
    ),
    mutant(
        "answers-lost-by-failure",
        "a person has to answer again what a failed turn did not come to",
        "looopy.agent.state:state_after",
        "answered=[(r, value) for r, value in begun.answered if r.tool_call_id not in done],",
        "",
        "tests/unit/agent/test_dead_turns.py::test_an_answer_whose_call_did_not_run_outlives_a_failure",
    ),
    mutant(
        "patience-not-closed",
        "a tool slower than the model's idle limit ends the turn",
        "looopy.loop.model_call:_listen",
        "patience.close()",
        "",
        "tests/agent/models/test_model_calls.py::test_a_tool_may_take_longer_than_a_model",
    ),
    mutant(
        "pending-while-running",
        "a person is asked for an answer that nobody can take yet",
        "looopy.agent.state:snapshot",
        "pending=tuple(record.state.pending) if record.open_turn is None else (),",
        "pending=tuple(record.state.pending),",
        "tests/unit/agent/test_state.py::test_while_a_turn_runs_nothing_can_be_answered",
    ),
    mutant(
        "token-in-url-shown",
        "an error shows the token of a database URL",
        "looopy.stores.opening:_OPTION",
        "((?:password|passwd|secret|token)=)",
        "((?:password|passwd)=)",
        "tests/unit/stores/test_opening_masks.py::test_no_option_that_is_a_secret_is_shown",
    ),
    mutant(
        "sync-failure-is-certain",
        "a write is told as not made, and a crash brings it back",
        "looopy.stores.sql.sqlite.driver:_commit",
        "return sqlite.translate(error, path, outcome_known=not unsure)",
        "return sqlite.translate(error, path)",
        "tests/unit/stores/sql/sqlite/test_connection_commit.py"
        "::test_only_of_a_failed_sync_is_the_outcome_not_known",
    ),
    mutant(
        "cache-writes-fit",
        "a prompt that was cut is answered without a word, if the cache was written",
        "looopy.llm.overflow:silent_overflow",
        "sent = usage.input + usage.cache_read + usage.cache_write",
        "sent = usage.input + usage.cache_read",
        "tests/unit/llm/test_overflow.py::test_each_part_of_a_prompt_takes_room",
    ),
    mutant(
        "trickle-prolongs",
        "a server that sends comments behind its answer holds the turn for ever",
        "looopy.llm.sdk:SDKProvider._pieces",
        "until = min(until, patient_until) if stands else patient_until",
        "until = patient_until",
        "tests/wire/test_timeouts.py::test_what_trickles_behind_an_answer_does_not_prolong_it",
    ),
    mutant(
        "key-in-transport-error",
        "an API key with a line break is stored in the error that it causes",
        "looopy.llm.sdk:SDKProvider._failure",
        "reason = redact(_innermost(error), (call.key,))",
        "reason = _innermost(error)",
        "tests/wire/test_keys.py::test_an_error_of_the_connection_that_repeats_the_key_shows_none",
    ),
    mutant(
        "key-in-stream-error",
        "an API key is stored with the error of a server that repeats it",
        "looopy.llm.reader:AnswerReader._reported",
        "secrets=self.secrets,",
        "",
        "tests/wire/test_keys.py::test_an_error_within_an_answer_that_repeats_the_key_shows_none",
    ),
    mutant(
        "retries-unlimited-wait",
        "the tenth try of a tool waits for an hour",
        "looopy.tools.call.retry:execute",
        "await asyncio.sleep(min(tool.retry_delay_s * 2 ** (tried - 1), _LONGEST_S))",
        "await asyncio.sleep(tool.retry_delay_s * 2 ** (tried - 1))",
        "tests/unit/tools/call/test_retry.py::test_the_wait_between_tries_doubles_up_to_ten_seconds",
    ),
    mutant(
        "withdrawn-counts",
        "each call that is given up in time costs a thread for ever",
        "looopy.tools.function.threads:ToolThreads._withdraw",
        "self._open -= 1\n"
        "return True",
        "return True",
        "tests/unit/tools/function/test_threads.py"
        "::test_a_call_that_was_withdrawn_leaves_its_thread_to_the_next",
    ),
    mutant(
        "credential-in-refusal",
        "a credential of a wrong shape is shown in the error",
        "looopy.tools.answering:check_answer",
        "if not secret: raise",
        "if True:\n"
        "    raise",
        "tests/unit/tools/test_answering.py::test_a_credential_that_is_refused_is_not_shown",
    ),
    mutant(
        "charged-twice",
        "a turn is stopped by a budget that an earlier turn had used up",
        "looopy.tools.sources.agents:_InnerRun._count",
        "if anew: self._context.charge(result.usage)",
        "self._context.charge(result.usage)",
        "tests/agent/tools/test_agents_as_tools.py::test_what_the_agent_used_is_charged_once",
    ),
]
