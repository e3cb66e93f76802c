"""Mistakes in a turn: the order of saving and telling, cancelling, recovery, secrets."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, mutant

_TURNS = "tests/agent/turns/test_turns.py"
_WITHIN = "tests/agent/lifecycle/test_from_within.py"
_CONTINUING = "tests/agent/recovery/test_continuing.py"
_UNDO = "tests/agent/history/test_undo_compact.py"
_EXPIRED = "tests/agent/credentials/test_expired_credentials.py"
_SLOW_CODE = "tests/agent/failures/test_slow_code.py"
_SYNC = "tests/agent/sync/test_sync.py"
_FOREIGN = "tests/agent/failures/test_foreign_exceptions.py"
_COMPACTION = "tests/agent/history/test_compaction.py"
_WENT_BACK = "tests/agent/recovery/test_stores_that_went_back.py"

MUTANTS = [
    # --- beside another, and within ---
    mutant(
        "saved-by-two-at-once",
        "a turn that two save at the same time is lost",
        "looopy.agent.history:History.save",
        'async with core.saving.held(): known = core.require("save_state")',
        "if True:\n"
        '    known = core.require("save_state")',
        "tests/agent/turns/test_buffered.py::"
        "test_a_save_beside_another_waits_for_it[memory-shutdown]",
    ),
    mutant(
        "open-while-views-end",
        "a turn runs on after the agent was shut down",
        "looopy.agent.lifetime:Lifetime.shutdown",
        "await core.turns.detach()",
        "core.lifecycle.leaving = None\n"
        "await core.turns.detach()",
        f"{_WITHIN}::test_no_turn_slips_in_while_a_shutdown_ends_views[memory]",
    ),
    mutant(
        "waits-for-itself",
        "a tool that shuts its agent down hangs, and the turn with it",
        "looopy.agent.core:Core.refuse_inside",
        "turn = self.turns.around()",
        "turn = None if self.turns.running else self.turns.around()",
        f"{_WITHIN}::test_a_tool_cannot_wait_for_the_end_of_its_own_turn[pause-direct]",
    ),
    mutant(
        "refused-while-it-starts-again",
        "a turn is refused because the agent is told what it knows",
        "looopy.agent.lifecycle:Lifecycle.with_turn",
        "if not self.rereading:  # else the turn waits for the reading",
        "if True:",
        f"{_WITHIN}::test_a_turn_waits_for_an_agent_that_is_started_again[memory-False]",
    ),
    mutant(
        "begun-before-it-is-noted",
        "an agent on a loop with eager tasks stays busy for ever",
        "looopy.agent.turns:Turns._supervise",
        "await asyncio.sleep(0)",
        "pass",
        f"{_WITHIN}::test_an_agent_is_ready_after_a_turn_whose_task_begins_at_once",
    ),
    mutant(
        "asked-though-it-does-not-fit",
        "a context is lost for ever to the arguments of one call",
        "looopy.agent.context:ContextView._close",
        "except ValueRefused: if not (ask and left.pending):",
        "except ValueRefused:\n"
        "    if True:",
        "tests/agent/recovery/test_left_by_others.py::"
        "test_a_call_too_large_to_ask_about_is_answered[memory-0]",
    ),
    # --- to the end ---
    mutant(
        "cut-short-behind-another-write",
        "an event loop that stops takes a finished tool's result with it",
        "looopy.stores.shield:WriteLock.take",
        "await settle_write(self._wait(), cancelled, outlasts=True)",
        "await self._wait()",
        "tests/unit/stores/test_shield.py::"
        "test_waiting_for_an_earlier_write_is_not_cut_short",
        "tests/agent/turns/test_cancelling.py::"
        "test_an_event_loop_that_stops_loses_no_result_behind_an_artifact",
    ),
    # --- secrets ---
    mutant(
        "mime-type-unsearched",
        "a credential in the media type of an image is stored, shown and sent to the model",
        "looopy.auth.redaction:Redactor.block",
        "names = (f.name for f in fields(block))",
        'names = ("data",)',
        "tests/agent/credentials/test_secrets.py::test_no_field_that_a_model_or_a_tool_fills_shows_a_secret",
    ),
    mutant(
        "secrets-in-go-json",
        "a credential with an ampersand is shown as Go writes it",
        "looopy.auth.secret_forms:_escapes",
        "for unit in _pairs(units)",
        "for unit in (0,)",
        "tests/unit/auth/test_redaction.py::test_every_form_of_a_secret_is_found",
    ),
    mutant(
        "secrets-in-html",
        "a credential with a quote is shown within a page",
        "looopy.auth.secret_forms:_entities",
        'return {f"&{name};" for name in names}',
        "return set()",
        "tests/unit/auth/test_redaction.py::test_every_form_of_a_secret_is_found",
    ),
    mutant(
        "secrets-in-spaced-hex",
        "a credential is shown that a program dumped byte by byte",
        "looopy.auth.secret_forms:_in_hex",
        '.replace("x", before),), lowered)',
        '.replace("x", before),))',
        "tests/unit/auth/test_redaction.py::test_every_form_of_a_secret_is_found",
    ),
    mutant(
        "beginning-of-base32-shown",
        "a stream shows the beginning of an encoded credential before it is known to be one",
        "looopy.auth.secret_forms:Secret.begun_in",
        "found += [head for head in heads if head.startswith((low[-1], low[-2:]))]",
        "pass",
        "tests/unit/auth/test_redaction.py::test_any_form_that_is_cut_into_deltas_is_found",
    ),
    mutant(
        "unseen-deltas-unsearched",
        "a view that begins in the middle of a credential shows the rest of it",
        "looopy.loop.model_call:_shown",
        "deltas.skip(piece)",
        "pass",
        "tests/agent/credentials/test_secrets.py"
        "::test_view_that_begins_in_the_middle_of_a_secret_shows_no_part_of_it",
    ),
    mutant(
        "question-unsearched",
        "a credential in what a tool asks for is stored with the question",
        "looopy.loop.pending:hold",
        "tool_name=ask.tool_name, args=ask.args, auth=",
        "args=ask.args,\n"
        "auth=",
        "tests/agent/credentials/test_secrets.py::test_no_part_of_a_question_shows_a_secret",
    ),
    # --- save, then tell ---
    mutant(
        "saved-at-the-end",
        "a crash takes the whole turn, with the effects of its tools",
        "looopy.agent.commit:TurnLog.commit",
        "group = self._placed(group)",
        "if not isinstance(group.events[-1], TurnEnd):\n"
        "    self.__dict__.setdefault('late', []).extend(group.events)\n"
        "    return\n"
        "group = self._placed(\n"
        "    replace(group, events=(*self.__dict__.get('late', ()), *group.events))\n"
        ")",
        f"{_TURNS}::test_the_start_of_a_tool_is_stored_before_the_tool_runs",
    ),
    mutant(
        "results-wait-for-a-source",
        "a tool that has finished runs again, as its process died while a server listed its tools",
        "looopy.loop.iteration:run_iteration",
        "if out.unsaved:  # else it closes later: the number of commits is the same",
        "if False:",
        f"{_SLOW_CODE}::test_a_result_is_stored_before_code_of_the_application_runs",
    ),
    mutant(
        "results-wait-for-a-predicate",
        "a tool that has finished runs again, as its process died while the next call was judged",
        "looopy.loop.tool_calls:_begin",
        "if turn.out.unsaved and (asks or turn.given.inbox.asks_application):",
        "if turn.out.unsaved and turn.given.inbox.asks_application:",
        f"{_SLOW_CODE}::test_a_result_is_stored_before_code_of_the_application_runs",
    ),
    mutant(
        "results-come-while-a-predicate-is-asked",
        "what a parallel tool returned is lost, as its process died while the next call was judged",
        "looopy.loop.tool_calls:_begin",
        "if asks and tasks:",
        "if False:",
        f"{_SLOW_CODE}::test_no_predicate_is_asked_while_a_tool_runs",
    ),
    mutant(
        "a-commit-for-each-result",
        "every turn with two calls pays for a commit that keeps nothing more",
        "looopy.loop.tool_calls:_begin",
        "if turn.out.unsaved and (asks or turn.given.inbox.asks_application):",
        "if turn.out.unsaved:",
        f"{_TURNS}::test_a_turn_costs_few_commits",
    ),
    Mutant(
        "told-before-it-is-stored",
        "a client has seen what a crash takes back",
        (
            Edit(
                "looopy.agent.commit:TurnLog.commit",
                "try: done = await self._settle(",
                "seq = self._known.record.last_seq + 1 if self._known.record else 1\n"
                "self._announce(group, stored, seq, self._known.last_position + 1, state)\n"
                "try:\n"
                "    done = await self._settle(",
            ),
            Edit(
                "looopy.agent.commit:TurnLog.commit",
                "self._announce(group, stored, done.first_seq, done.first_position, state)",
                "",
            ),
        ),
        (f"{_TURNS}::test_a_durable_event_is_seen_only_after_its_commit",),
    ),
    mutant(
        "tool-before-its-start",
        "a tool had its effect, and nothing says that it ever began",
        "looopy.loop.tool_calls:run_tools",
        "if saves_first or rest.begun:",
        "if saves_first:",
        f"{_TURNS}::test_the_start_of_a_tool_is_stored_before_the_tool_runs",
    ),
    Mutant(
        "deltas-are-stored",
        "a turn costs a write for every piece of its answer",
        (
            Edit(
                "looopy.types.event:MessageUpdate.type",
                'type: ClassVar[Literal["message_update"]] = "message_update"',
                'type: ClassVar[Literal["message_update"]] = "message_update"\n'
                "durable: ClassVar[bool] = True",
            ),
            Edit(
                "looopy.agent.running:RunningTurn._drive",
                "if not isinstance(out, Group): self.broadcast.push(out)",
                "if not isinstance(out, Group):\n"
                "    await log.commit(Group((out,)))",
            ),
        ),
        (f"{_TURNS}::test_a_turn_costs_few_commits",),
    ),
    # --- cancelling ---
    mutant(
        "plain-await",
        "whoever is cancelled during a commit does not know whether it was made",
        "looopy.stores.shield:settle",
        "await asyncio.shield(task)",
        "await task",
        "tests/agent/turns/test_cancelling.py::test_a_task_cancelled_during_a_commit_waits_for_its_outcome",
        "tests/campaign/test_cancel.py::test_a_turn_may_be_cancelled_at_every_suspension[memory-task.cancel()]",
    ),
    mutant(
        "an-answer-is-cancelled",
        "whoever is cancelled during a commit does not know whether it was made",
        "looopy.stores.shield:_Uncut.cancel",
        "return False",
        "return self.get_loop.__self__.cancel(msg)",
        "tests/unit/stores/test_shield.py::test_a_cancellation_ends_with_the_outcome_of_the_write",
        "tests/unit/stores/test_shield.py::"
        "test_a_write_may_let_others_go_on_and_wait_for_several_things",
        "tests/unit/stores/test_shield.py::test_the_end_of_the_event_loop_waits_for_a_write",
    ),
    mutant(
        "a-statement-is-cancelled",
        "a caller that goes away leaves its write half made, and the row locked",
        "looopy.stores.sql.postgres.driver:PostgresDriver.run",
        "return await answer",
        "return await task",
        "tests/contract/postgres/test_server.py::"
        "test_a_cancelled_caller_leaves_a_write_to_be_carried_out",
    ),
    mutant(
        "a-lost-store-is-a-failed-turn",
        "a step that may have been stored is answered a second time",
        "looopy.agent.running:RunningTurn._drive",
        "except (Fenced, StoreUnavailable):",
        "except Fenced:",
        "tests/agent/failures/test_failures.py::test_a_step_that_cannot_be_stored_fails_the_turn_in_order",
    ),
    # --- what an agent knows ---
    mutant(
        "cleared-history-is-kept",
        "the model is shown what the user had cleared",
        "looopy.agent.context:ContextView._read",
        "self.forget()  # at once:",
        "# at once:",
        "tests/agent/sharing/test_sharing.py::test_what_was_cleared_is_forgotten_though_reading_failed",
    ),
    mutant(
        "stale-knowledge-is-used",
        "a call that a dead process left open is overlooked",
        "looopy.agent.context:ContextView.refresh",
        "self.stale = True  # until all of it is read: the store may fail in between",
        "self.stale = False",
        f"{_CONTINUING}::test_a_reading_that_fails_half_way_is_made_again",
    ),
    # --- recovery ---
    mutant(
        "every-call-runs-again",
        "a payment that may have been made is made again",
        "looopy.agent.dead_turns:close_dead_turn",
        'tool is not None and (not open_call.started or tool.on_resume == "rerun")',
        'tool is not None and (not open_call.started or tool.on_resume != "ask")',
        f"{_CONTINUING}::test_continuing_runs_what_may_run_again_and_never_what_may_not",
        "tests/unit/agent/test_plan.py::test_a_dead_turn_is_closed_as_its_tools_say",
    ),
    mutant(
        "a-denial-is-not-heard",
        "what a person has forbidden is run",
        "looopy.agent.plan:_answer",
        "if isinstance(decision_of(value), Deny) and _is_ours(",
        "if value is None and _is_ours(",
        f"{_CONTINUING}::test_an_approval_is_carried_out",
    ),
    mutant(
        "old-credentials",
        "a turn goes on with an identity that nobody has shown again",
        "looopy.agent.request:TurnRequest.has_auth",
        "return self.auth_context is not None and not self.auth_context.expired()",
        "return self.auth_context is None or not self.auth_context.expired()",
        f"{_CONTINUING}::test_a_turn_with_credentials_goes_on_only_with_fresh_ones",
        "tests/unit/agent/test_plan.py::test_what_had_credentials_needs_fresh_ones",
    ),
    mutant(
        "a-text-stands-in-for-credentials",
        "an approved call runs without the credentials it had, because a text came with the answer",
        "looopy.agent.plan:_planned",
        "if plan.run and _had_auth(situation) and not has_auth():",
        "if plan.run and _had_auth(situation) and not has_auth() and user_message is None:",
        f"{_EXPIRED}::test_an_answer_beside_a_text_needs_fresh_credentials_too",
    ),
    mutant(
        "calls-without-credentials-are-lost",
        "a turn whose credentials expired goes on, and fresh ones cannot carry out what it left",
        "looopy.loop.tool_calls:_deal_with",
        "hold_for_credentials(turn, call)",
        "skip_calls(turn, [call], NOT_STARTED)",
        f"{_EXPIRED}::test_the_turn_ends_with_its_calls_left_open",
        f"{_EXPIRED}::test_fresh_credentials_go_on_with_exactly_those_calls",
    ),
    mutant(
        "an-announced-call-counts-as-run",
        "a call that never ran is of unknown outcome, as its credentials expired at its start",
        "looopy.loop.pending:hold",
        "_leave(turn, Asked(call, kept, (), answered))",
        "hold_for_credentials(turn, call)",
        f"{_EXPIRED}::test_a_call_that_was_announced_and_not_run_is_not_of_unknown_outcome",
    ),
    mutant(
        "an-inner-turn-swallows-it",
        "an agent that works as a tool fails where fresh credentials would have gone on",
        "looopy.tools.sources.agents:_InnerRun.run",
        "raise NeedsCredentials",
        "return self._answer(result)",
        "tests/agent/tools/test_agents_as_tools.py"
        "::test_credentials_that_expire_inside_end_the_outer_turn_too",
    ),
    mutant(
        "expired-ones-in-memory",
        "a turn of auto_save=False goes on with an identity that nobody has shown again",
        "looopy.agent.commit:TurnLog._finish",
        "had_auth=self._buffer[-1].had_auth,",
        "had_auth=False,",
        f"{_EXPIRED}::test_a_turn_that_is_saved_later_waits_as_well",
    ),
    # --- budgets of a context ---
    mutant(
        "each-turn-reads-those-before",
        "a budget of time costs a turn the more, the longer the conversation is",
        "looopy.agent.state:counted",
        "if state.run_us is not None or (turn > 1 and budget.context_s is None):",
        "if turn > 1 and budget.context_s is None:",
        "tests/agent/turns/test_budgets.py::test_no_turn_reads_those_before_it",
    ),
    mutant(
        "charges-are-forgotten",
        "a budget of the context lets through what tools have used in earlier turns",
        "looopy.agent.state:spent_before",
        "return Spent(state.usage + state.charged, ",
        "return Spent(state.usage, ",
        "tests/agent/turns/test_budgets.py::test_what_tools_charge_counts_for_the_context",
    ),
    mutant(
        "a-dead-turn-took-no-time",
        "a budget of time lets a context through whose turns die",
        "looopy.agent.dead_turns:dead_end",
        "run_us=run_us_after(left, turn.started_at, end.timestamp),",
        "run_us=left.run_us,",
        "tests/agent/sharing/test_sharing.py::test_a_turn_that_died_counts_for_the_budgets",
    ),
    # --- who watches ---
    mutant(
        "a-stuck-reader-copies-all",
        "a reader that does not read makes each delta of a long answer dearer than the one before",
        "looopy.agent.broadcast:_Deltas.add",
        "while len(pieces) > 1 and len(pieces[-1]) >= len(pieces[-2]):",
        "while len(pieces) > 1:",
        "tests/unit/agent/test_stream.py::test_a_reader_that_is_stuck_costs_little_for_each_delta",
    ),
    # --- what the model is sent ---
    mutant(
        "a-missing-result-is-left-out",
        "the provider refuses the history from then on",
        "looopy.llm.render:Rendering._settle",
        "settled.append(synthetic_result(item, text, timestamp=owner.timestamp))",
        "assert text",
        "tests/unit/llm/test_render.py::test_a_missing_result_says_that_the_outcome_is_unknown",
    ),
    mutant(
        "every-result-counts",
        "a call with two results makes the history one that is refused",
        "looopy.llm.render:Rendering._answer",
        "place = places.pop(0)",
        "place = places[0]",
        "tests/unit/llm/test_render.py::test_of_two_results_the_first_counts",
    ),
    mutant(
        "a-late-result-is-overlooked",
        "the model goes on being told that a call has no result",
        "looopy.llm.render:Rendering._answer",
        "if place < self._settled_items:",
        "if place < 0:",
        "tests/property/test_view.py::test_a_rendering_is_the_same_however_it_was_fed",
        "tests/property/test_view.py::test_a_log_that_grows_is_shown_as_from_scratch",
    ),
    mutant(
        "a-kept-request-changes",
        "a provider that keeps a request finds other messages in it later",
        "looopy.llm.render:Rendering._answer",
        "self._settled, self._settled_items = [], 0",
        "self._settled.clear()\n"
        "self._settled_items = 0",
        "tests/property/test_view.py::test_a_log_that_grows_is_shown_as_from_scratch",
    ),
    mutant(
        "a-cut-parts-a-call-from-its-result",
        "the model does not see the result of a call that it made",
        "looopy.history.window:Window.cut",
        "if self._torn[i] < first:",
        "if first:",
        "tests/property/test_view.py::test_a_window_cuts_where_the_whole_would_be_cut",
    ),
    mutant(
        "a-measurement-moves-the-window",
        "each measurement of tokens moves the window, which costs the provider's prompt cache",
        "looopy.history.view:View._rescales",
        "if cut <= before:",
        "if False:",
        "tests/unit/history/test_view.py::test_a_measurement_alone_moves_no_window",
    ),
    mutant(
        "the-scale-stays-at-home",
        "another process cuts the history elsewhere, because it does not know the measured tokens",
        "looopy.history.sent:Sent.resume",
        'Scale.read(" ".join(words[len(_CAUSES) :]))',
        "Scale()",
        "tests/agent/history/test_scale.py::test_another_process_cuts_at_the_same_place",
    ),
    mutant(
        "a-counted-log-is-read-by-estimate",
        "an agent that is opened anew reads too little, where the tokenizer counts less",
        "looopy.agent.context:ContextView._limits",
        "LEAST_COUNTED if self.counted",
        "100 if self.counted",
        "tests/agent/history/test_counted.py::test_an_agent_for_each_turn_cuts_at_the_same_place",
    ),
    mutant(
        "an-artifact-does-not-wait",
        "an artifact of a turn with auto_save=False is stored though the turn never is",
        "looopy.agent.commit:TurnLog.artifacts",
        "known.staged = known.staged or self._stores.stage_artifacts()",
        "pass",
        "tests/agent/tools/test_buffered_artifacts.py::"
        "test_nothing_is_stored_before_the_save_and_all_by_it",
    ),
    mutant(
        "half-of-the-artifacts-are-stored",
        "a commit that is refused in memory leaves artifacts behind",
        "looopy.stores.memory.context:change_artifacts",
        "context.artifacts.update(before)",
        "pass",
        "tests/contract/every_store/test_journal.py::TestJournalInMemory::"
        "test_several_artifacts_are_changed_in_one_commit",
    ),
    mutant(
        "what-was-not-stored-is-shown",
        "the model sees messages that are not in the history, or not in this order",
        "looopy.agent.context:ContextView._append",
        "self.view.drop()",
        "pass",
        "tests/property/test_view.py::test_what_an_agent_knows_is_shown_as_from_scratch",
    ),
    mutant(
        "another-model-is-sent-the-same",
        "signatures of one model are sent to another, which refuses the history",
        "looopy.history.view:View.of",
        "or self._for != reader",
        "",
        "tests/property/test_view.py::test_another_reader_or_other_limits_are_answered_anew",
    ),
    # --- secrets ---
    mutant(
        "nothing-is-redacted",
        "a token that a tool repeats is stored, shown and sent to the model",
        "looopy.agent.running:RunningTurn.__init__",
        "self.redactor = Redactor(request.auth_context)",
        "self.redactor = Redactor()",
        "tests/agent/credentials/test_secrets.py",
    ),
    # --- inbox and keys ---
    mutant(
        "the-end-overtakes-the-news",
        "what was said and acknowledged in time is not answered",
        "looopy.stores.sql.statements:COMMIT",
        '" AND (:closing = 0 OR inbox_last <= :heard)"',
        "",
        "tests/agent/inbox/test_inbox.py::test_what_comes_in_before_the_last_commit_makes_the_turn_go_on",
    ),
    # --- summaries ---
    mutant(
        "cleared-comes-back",
        "a summary that was being written brings back what was cleared meanwhile",
        "looopy.agent.compact:condense",
        "now is None or (now.visible_from, now.created_at, now.hidden) != born",
        "now is None",
        "tests/agent/history/test_compaction.py::test_what_was_cleared_meanwhile_is_not_brought_back",
    ),
    mutant(
        "summary-forgotten",
        "an agent that is opened far behind a summary shows the model nothing of it",
        "looopy.agent.context:ContextView._read_anew",
        "if summary is not None and records and",
        "if False and records and",
        "tests/agent/history/test_compaction.py::test_a_summary_far_behind_the_window_is_found",
    ),
    mutant(
        "memory-ahead-of-the-store",
        "after a failover, an agent answers from a history that no store has",
        "looopy.agent.context:ContextView._read",
        "if again is not None and again.message == known and not behind:",
        "if again is not None and not behind:",
        f"{_WENT_BACK}::test_a_lost_turn_is_reported_once_and_later_turns_are_seen[sqlite-1]",
    ),
    mutant(
        "reader-of-two-histories",
        "after a failover, a reader continues behind events that the store has lost",
        "looopy.agent.events:follow",
        "if (found[0].type, found[0].timestamp) != (last.type, last.timestamp):",
        "if found[0].type != last.type:",
        f"{_WENT_BACK}::test_a_reader_of_events_ends_with_an_error[sqlite-1]",
    ),
    mutant(
        "feed-ahead-of-the-store",
        "after a failover, readers get nothing until the numbers have caught up",
        "looopy.server.feed:Feed._show",
        "if seq is not None and self._shown is not None and seq <= self._shown:",
        "if False:",
        "tests/server/test_feed.py::test_a_reader_ends_when_the_agent_continues_from_an_earlier_state",
    ),
    mutant(
        "loss-of-a-shorter-history-untold",
        "a failover loses acknowledged turns, and nobody is told",
        "looopy.agent.context:ContextView._went_back",
        "or record.last_seq < before.last_seq",
        "",
        f"{_WENT_BACK}::test_a_lost_failure_is_reported[sqlite]",
    ),
    mutant(
        "summary-of-the-past",
        "a summary is appended though turns came meanwhile, and hides them",
        "looopy.stores.sql.commit:compact_steps",
        "if head.epoch != new.epoch:",
        "if False:",
        "tests/agent/history/test_compaction.py::test_turns_that_came_meanwhile_are_still_shown",
    ),
    mutant(
        "parted-by-a-summary",
        "a call and its result are parted by the place where a history is summarised",
        "looopy.history.window:safe_cuts",
        "return scan.users, scan.groups",
        "return scan.users, [group + 1 for group in scan.groups]",
        "tests/property/test_compaction.py::test_a_turn_that_is_parted_keeps_each_result_beside_its_call",
    ),
    mutant(
        "cut-counted-from-what-was-read",
        "the prompt cache is lost at each turn, where an agent is opened for each request",
        "looopy.agent.context:ContextView._add",
        "self.view.offset = self._count_to(end) - len(self._places)",
        "self.view.offset = 0",
        "tests/agent/history/test_prompt_cache.py::test_an_agent_for_each_turn_sends_what_one_that_lives_sends",
    ),
    mutant(
        "a-rewind-moves-the-cut",
        "each rewind is reported as a lost prompt cache, although what is before it is repeated",
        "looopy.agent.context:ContextView._count_to",
        "counted(shown(1, position, self._hidden)) if self._hidden else position",
        "position",
        "tests/agent/history/test_cache_broken.py::test_a_rewind_and_a_fork_are_named_where_the_window_goes_back",
    ),
    mutant(
        "let-go-moves-the-cut",
        "the prompt cache is lost whenever a long-lived agent lets go of old messages",
        "looopy.agent.context:ContextView._trim",
        "self.view.offset = self._count_to(self._position) - len(self._places)\n"
        "self.view.drop()",
        "self.view.drop()",
        "tests/agent/history/test_prompt_cache.py::test_a_history_that_was_let_go_is_cut_where_it_was",
    ),
    mutant(
        "a-hook-of-compact-is-not-called",
        "an application that keeps a fact in each summary loses it when it compacts by itself",
        "looopy.agent.compact:condense",
        "if config.hooks.on_compact is not None:",
        "if False:",
        f"{_UNDO}::test_a_hook_sees_what_goes_and_may_reword_it",
    ),
    mutant(
        "covered-and-kept",
        "messages that the model still sees are listed as summarised",
        "looopy.agent.compact:covered",
        "end = before(at - 1, kept_by(summary), record.hidden)",
        "end = at - 1",
        f"{_UNDO}::test_what_went_into_a_summary_can_be_read",
    ),
    mutant(
        "a-cut-by-an-old-record",
        "a summary covers less than it speaks for when a turn began between two reads",
        "looopy.agent.compact:condense",
        "seen = known.position_at(len(known.history) - 1)",
        "seen = record.last_position",
        f"{_UNDO}::test_a_turn_between_two_reads_moves_no_cut",
    ),
    mutant(
        "window-without-offset",
        "the prompt cache is lost at each turn, where an agent is opened for each request",
        "looopy.history.view:View._begin",
        "Window(limits, self.offset + self._start)",
        "Window(limits)",
        "tests/unit/history/test_view.py::test_a_view_of_the_end_cuts_where_the_whole_is_cut",
    ),
    mutant(
        "summary-of-what-is-in-memory",
        "a fresh agent's summary forgets most of the conversation, and says that it covers all",
        "looopy.history.summarise:read_part",
        "if full or not await backlog.more():",
        "if True:",
        f"{_COMPACTION}::test_an_agent_made_anew_summarises_all_there_is",
        f"{_COMPACTION}::test_auto_compact_that_is_switched_on_late_reads_what_came_before",
    ),
    mutant(
        "forgotten-without-a-word",
        "nobody learns how many messages a summary says nothing about",
        "looopy.history.summarise:summarise",
        "unread = part.before + left_out",
        "unread = left_out",
        f"{_COMPACTION}::test_messages_that_no_summary_speaks_for_are_counted",
    ),
    mutant(
        "read-back-past-clear",
        "a summary brings back what was cleared",
        "looopy.agent.context:LogReader.__init__",
        "begin = known.record.visible_from if known.record is not None else 1",
        "begin = 1",
        f"{_COMPACTION}::test_a_history_that_was_cleared_is_not_read_back",
    ),
    mutant(
        "read-back-past-a-summary",
        "what an earlier summary speaks for is summarised again",
        "looopy.agent.context:LogReader.__init__",
        "begin = max(begin, kept_after + 1)",
        "pass",
        f"{_COMPACTION}::test_a_second_summary_reads_back_to_the_first",
    ),
    # --- what is no Exception ---
    mutant(
        "cancelled-by-nobody",
        "a task of the application that was cancelled ends the turn as if the user had",
        "looopy.errors:foreign",
        "if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancelling:",
        "if isinstance(error, asyncio.CancelledError):",
        f"{_FOREIGN}::test_any_exception_ends_the_turn_for_its_waiters",
    ),
    mutant(
        "odd-exception-leaves-a-turn-open",
        "a turn whose source of tools raises no Exception stays open for ever",
        "looopy.loop.turn:run_turn",
        "except BaseException as exc:  # none leaves a turn open",
        "except (Exception, asyncio.CancelledError) as exc:",
        f"{_FOREIGN}::test_an_exit_of_the_program_ends_the_turn_first",
    ),
    mutant(
        "generator-exit-leaves-a-turn-open",
        "a turn whose code raises GeneratorExit stays open until another process ends it",
        "looopy.loop.turn:run_turn",
        "if shows and isinstance(exc, GeneratorExit):",
        "if isinstance(exc, GeneratorExit):",
        f"{_FOREIGN}::test_a_type_of_the_output_that_raises_ends_the_turn",
    ),
    mutant(
        "subscriber-breaks-the-turn",
        "a subscriber that looks at a cancelled task breaks the turn it looks at",
        "looopy.agent.broadcast:guarded",
        "except BaseException as error:  # not a cancellation: nothing is awaited here",
        "except Exception as error:",
        f"{_FOREIGN}::test_any_exception_ends_the_turn_for_its_waiters",
    ),
    mutant(
        "loop-ends-with-the-main-thread",
        "a worker's turn is cancelled because the main thread had nothing left to do",
        "looopy.sync:_LoopThread._stop",
        "while workers := [t for t in threading.enumerate() if self._may_call(t)]:",
        "while workers := []:",
        f"{_SYNC}::test_a_worker_may_go_on_when_the_main_thread_has_ended",
    ),
    mutant(
        "stream-without-an-end",
        "a thread that iterates over a turn waits for ever when the loop ends",
        "looopy.sync:Agent.stream_turn.pump",
        "arrived.put(AgentStateError(_ENDED))",
        "",
        f"{_SYNC}::test_who_reads_a_stream_is_told_that_the_loop_ends",
    ),
]
