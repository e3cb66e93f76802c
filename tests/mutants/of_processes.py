"""Mistakes between processes: what comes in, who is served next, what was asked before."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_LEFT = "tests/agent/sharing/test_leases.py"
_INBOX = "tests/agent/inbox/test_inbox.py"
_LOOPS = "tests/agent/lifecycle/test_event_loops.py"
_KEYS = "tests/agent/sharing/test_idempotency.py"
_LINE = "tests/agent/sharing/test_wait_queue.py"
_WAITING = "tests/agent/lifecycle/test_waiting.py"
_ON_SQLITE = "tests/contract/every_store/test_inbox.py::TestInboxOnSQLite"

MUTANTS = [
    # --- the inbox ---
    mutant(
        "turn-ends-over-news",
        "what was acknowledged while the turn ended is heard by nobody until somebody speaks again",
        "looopy.stores.sql.statements:COMMIT",
        '" AND (:closing = 0 OR inbox_last <= :heard)"',
        "",
        f"{_ON_SQLITE}::test_a_turn_ends_only_when_it_has_heard_everything",
        f"{_INBOX}::test_a_message_before_the_last_commit_continues_the_turn[sqlite]",
    ),
    mutant(
        "delivered-and-kept",
        "a message is said again by the next turn",
        "looopy.stores.sql.commit:commit_steps",
        "if commit.delivered:",
        "if not commit:",
        f"{_ON_SQLITE}::test_a_commit_that_says_messages_takes_them_out",
        f"{_INBOX}::test_a_message_queued_while_idle_is_kept_and_continued[sqlite]",
    ),
    mutant(
        "words-of-another-actor",
        "one user's words are acted upon with another user's rights",
        "looopy.agent.inbox:TurnInbox._look",
        "[e for e in entries if e.actor_id == self._actor_id]",
        "entries",
        f"{_INBOX}::test_only_the_actor_of_the_turn_may_speak_to_it[memory]",
    ),
    mutant(
        "steering-runs-the-rest",
        "the tool that the user wanted to stop runs all the same",
        "looopy.loop.tool_calls:_start",
        "if await _steered(turn):",
        "if False:",
        f"{_INBOX}::test_a_call_whose_commit_reports_steering_is_not_run[memory]",
    ),
    mutant(
        "cancel-comes-too-late",
        "a turn that was asked to stop ends as if nobody had",
        "looopy.loop.turn:_receive",
        "if cancel.reason is not None:",
        "if False:",
        f"{_INBOX}::test_a_cancel_that_is_acknowledged_before_the_end_counts[memory]",
    ),
    mutant(
        "deaf-while-it-waits",
        "cancelling a turn that runs elsewhere waits for its tool",
        "looopy.agent.inbox:TurnInbox._rung",
        "if not inbox or self._ending:",
        "if True:",
        f"{_INBOX}::test_cancelling_reaches_a_turn_that_runs_elsewhere[memory]",
    ),
    # --- names of turns ---
    mutant(
        "key-after-busy",
        "a client that sends its request again is refused because of itself",
        "looopy.agent.claim:Claiming._claim",
        "await self._look_for_key()  # it may be busy with this very request",
        "",
        f"{_KEYS}::test_a_request_that_loses_the_claim_to_its_twin_attaches_to_it[memory]",
    ),
    mutant(
        "key-of-any-input",
        "another request gets the answer to this one",
        "looopy.agent.claim:Claiming._look_for_key",
        "if not self._request.asks_as(input_hash):",
        "if False:",
        f"{_KEYS}::test_another_input_is_refused_and_stores_nothing",
    ),
    mutant(
        "key-is-not-stored",
        "a request that is sent twice runs twice",
        "looopy.stores.sql.commit:claim_steps",
        "if claim.key is not None:",
        "if False:",
        f"{_KEYS}::test_it_is_found_after_a_restart_in_another_process[sqlite]",
    ),
    # --- who is left ---
    mutant(
        "left-at-one-look",
        "a store that stood still costs living owners their turns",
        "looopy.agent.lease:left_in_s",
        "return min(left, life_s * _LOOK_AFTER) if left > 0 else 0.0",
        "return 0.0",
        f"{_LEFT}::test_an_owner_keeps_its_turn_when_the_store_is_back[memory]",
        "tests/unit/agent/test_lease.py::test_an_expired_lease_is_left_after_half_of_its_life",
    ),
    mutant(
        "standing-still-counts",
        "time in which nobody could renew anything is held against the owner",
        "looopy.agent.lease:left_in_s",
        "min(seen.at - last, life_s * _COUNTED_AT_MOST)",
        "(seen.at - last)",
        "tests/unit/agent/test_lease.py::test_time_in_which_the_store_stood_still_hardly_counts",
    ),
    mutant(
        "reading-is-answering",
        "a file that is locked for writing costs a living owner its turn",
        "looopy.agent.lease:left_in_s",
        "await state.renew(record.context_id, 0, life_s)",
        "pass",
        "tests/unit/agent/test_lease.py::"
        "test_a_store_that_answers_and_takes_no_writes_has_not_answered",
    ),
    mutant(
        "renewed-and-left",
        "an owner that renews again and again is taken for dead where the clock jumps",
        "looopy.agent.lease:left_in_s",
        "seen.counted_for(record.lease_until)",
        "seen.counted",
        "tests/unit/agent/test_lease.py::test_a_lease_renewed_meanwhile_is_observed_again",
    ),
    mutant(
        "alive-by-the-clock",
        "an event loop that stands still costs its owner the turn",
        "looopy.agent.lease:left_in_s",
        "if record.lease_live or provably_alive(holder):",
        "if record.lease_live:",
        f"{_LEFT}::test_an_owner_that_is_seen_to_live_is_never_displaced_by_a_clock[memory]",
    ),
    mutant(
        "displaced-though-renewed",
        "an owner that renewed after the last look is displaced all the same",
        "looopy.agent.context:ContextView._close",
        "displace=holder if holder is not None and provably_dead(holder) else None,",
        "displace=holder,",
        f"{_LEFT}::"
        "test_an_owner_that_renews_between_the_last_look_and_the_claim_keeps_its_turn[memory]",
    ),
    mutant(
        "renewed-late-after-a-failure",
        "others look at the lease before its owner has tried again",
        "looopy.agent.lease:Lease._renew",
        "self._timer = self._in(self._ttl_s / _TRIES_PER_TTL)",
        "self._timer = self._in(self._ttl_s / _RENEWALS_PER_TTL)",
        "tests/unit/agent/test_lease.py::test_a_renewal_that_failed_is_tried_again_soon",
    ),
    mutant(
        "retired-and-registered",
        "a turn that its process gave up keeps its context until that process ends",
        "looopy.stores.owner:Owner.retire",
        "register.remove(self.where)",
        "pass",
        "tests/unit/stores/test_owner.py::test_owners_of_another_process_are_distinguished",
    ),
    # --- the queue ---
    mutant(
        "first-come-last-served",
        "whoever asks most often is served, and somebody waits for ever",
        "looopy.stores.sql.statements:CLAIM",
        " AND open_turn IS NULL AND (queued_until IS NULL OR NOT ({_QUEUED}))",
        " AND open_turn IS NULL AND (:ticket IS NULL OR :ticket >= 0)",
        f"{_LINE}::test_a_turn_that_does_not_wait_is_refused_while_others_wait[sqlite]",
        "tests/contract/every_store/test_wait_queue.py::TestWaitQueueOnSQLite::test_tickets_are_served_in_order",
    ),
    mutant(
        "tickets-out-of-order",
        "two turns of one agent wait for each other until they give up",
        "looopy.agent.claim:Claiming._wait_for_own",
        "if before is not None:  # or tickets would not rise in order of arrival",
        "if False:",
        f"{_LINE}::test_tickets_rise_as_turns_arrived[memory]",
    ),
    mutant(
        "dead-hold-the-line",
        "everybody waits for a process that was killed while it waited",
        "looopy.agent.wait_queue:QueuePlace.drop_the_dead",
        "if provably_dead(other.holder):",
        "if False:",
        f"{_LINE}::test_a_dead_waiter_is_passed_over_at_once[memory]",
    ),
    mutant(
        "place-left-behind",
        "one who gave up holds up those behind",
        "looopy.agent.wait_queue:QueuePlace.leave",
        "self._held.close()\nawait self._leave_place()",
        "self._held.close()",
        f"{_LINE}::test_a_waiter_that_gives_up_leaves_the_queue[memory]",
    ),
    mutant(
        "second-turn-without-a-place",
        "who came later, elsewhere, is served before the second turn of an agent",
        "looopy.agent.claim:Claiming._claim",
        "self.placed.set()",
        "",
        f"{_WAITING}::test_a_second_waiting_turn_of_an_agent_comes_before_later_agents",
    ),
    # --- whoever waits ---
    mutant(
        "swallowed-cancellation",
        "a timeout around steer() or save() has no effect, and a task group never ends",
        "looopy.stores.shield:settle",
        "interrupted = exc",
        "pass",
        f"{_WAITING}::test_a_write_beside_a_turn_can_be_cancelled",
    ),
    mutant(
        "a-late-tool-cancels-its-turn",
        "a tool that takes too long to save an artifact ends the whole turn",
        "looopy.agent.artifacts:TurnArtifacts._change",
        "return await self._artifacts.change(self._context_id, request, self._commit)",
        "from looopy.stores.shield import settle\n"
        "return await settle(\n"
        "    self._artifacts.change(self._context_id, request, self._commit),\n"
        "    self._commit.__self__._token.cancel,\n"
        ")",
        f"{_WAITING}::test_a_tool_that_takes_too_long_to_save_ends_alone",
    ),
    mutant(
        "a-fenced-owner-deletes",
        "a process that was stopped and displaced deletes an artifact of the turn that runs now",
        "looopy.agent.artifacts:TurnArtifacts.delete",
        "await self._change(to_delete(artifact_id))",
        "await settle(self._artifacts.delete(self._context_id, artifact_id))",
        "tests/agent/sharing/test_sharing.py::test_an_owner_that_lost_its_lease_deletes_no_artifact",
        "tests/agent/tools/test_artifact_tools.py::test_a_deletion_is_a_step_of_the_turn_with_an_event",
    ),
    mutant(
        "a-deletion-of-nothing-is-stored",
        "subscribers hear of the deletion of an artifact that was never there",
        "looopy.stores.sql.commit:_delete_artifact",
        "if not gone: raise no_artifact(artifact_id)",
        "",
        "tests/contract/every_store/test_journal.py::TestJournalOnSQLite"
        "::test_deleting_no_artifact_commits_nothing",
    ),
    # --- following ---
    mutant(
        "dead-turn-never-ends",
        "who follows a context waits for ever for the end of a turn whose process died",
        "looopy.agent.events:follow",
        "if await end_dead_turn() < after:",
        "if False:",
        "tests/agent/sharing/test_sharing.py::test_following_ends_the_turn_of_a_dead_owner",
    ),
    mutant(
        "head-at-the-first-look",
        "a client that follows from now on misses the turn it asked for",
        "looopy.agent.core:Core.follow",
        "start = known.head()",
        "start = None",
        "tests/agent/sharing/test_sharing.py::test_events_begin_where_they_are_asked_to",
    ),
    mutant(
        "claimed-before-the-head-is-read",
        "a client that follows from now on misses the turn it asked for, if the store is slow",
        "looopy.agent.claim:Claiming._try",
        "await known.heads_read()",
        "pass",
        "tests/agent/sharing/test_sharing.py::test_the_head_is_that_of_the_call_however_late_it_is_read",
    ),
    # --- event loops ---
    mutant(
        "forgotten-for-ever",
        "each asyncio.run() with an agent that was not shut down leaves threads and files behind",
        "looopy.stores.opening:_until_end",
        "await shared.close()",
        "pass",
        f"{_LOOPS}::test_a_forgotten_agent_is_closed_when_its_event_loop_ends",
    ),
    mutant(
        "at-home-anywhere",
        "an agent writes in an event loop that cannot be answered, and raises a raw error",
        "looopy.agent.lifecycle:Lifecycle.check_home",
        "if here is loop and os.getpid() == process: return",
        "if loop or here or process:\n    return",
        f"{_LOOPS}::test_another_event_loop_is_refused_before_anything_is_written[steer]",
    ),
    mutant(
        "stores-anywhere",
        "a write of another event loop is carried out, and its caller gets a raw error",
        "looopy.stores.sql.driver:refuse_strangers",
        "if asyncio.get_running_loop() is not loop:",
        "if False:",
        f"{_LOOPS}::test_stores_are_refused_in_another_event_loop[sqlite]",
    ),
    mutant(
        "one-token-for-all",
        "the deadline of one subscription of a cold loop stops the others",
        "looopy.loop.agent_loop:_flat",
        "replace(context, cancel=own)",
        "context",
        "tests/unit/loop/test_agent_loop.py::test_a_deadline_stops_one_subscription_alone",
    ),
]
