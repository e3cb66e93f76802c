"""Mistakes in what pages see: the AI SDK's stream and AG-UI."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_GROWING = "tests/unit/server/protocols/test_deltas.py"
_PARTS = "tests/unit/server/protocols/ai_sdk/test_parts.py"
_CHAT = "tests/server/test_ai_sdk_chat.py"
_RUNS = "tests/server/test_ag_ui_runs.py"

MUTANTS = [
    mutant(
        "web-late-viewer-sees-text-twice",
        "the message so far is ahead of the deltas that wait, whose text comes again",
        "looopy.server.protocols.deltas:GrowingAnswer.more",
        "yield from self._grow(kind, number, number, text[seen:])",
        "yield from self._grow(kind, number, number, text)",
        f"{_GROWING}::test_a_late_and_slow_viewer_gets_each_character_once",
    ),
    mutant(
        "web-merged-thinking-lost",
        "a slow reader loses the thinking of the deltas that were merged",
        "looopy.server.protocols.deltas:GrowingAnswer.more",
        "self._by_snapshot = True  # merged",
        "pass  # merged",
        f"{_GROWING}::test_merged_thinking_is_read_from_the_message_so_far",
    ),
    mutant(
        "web-result-without-its-call",
        "the AI SDK's client breaks the stream off at a call that it does not have",
        "looopy.server.protocols.ai_sdk.parts:Parts._result",
        "if call_id not in self._calls:",
        "if False:",
        f"{_PARTS}::test_a_viewer_without_the_call_is_not_sent_its_result",
    ),
    mutant(
        "web-stream-of-a-cleared-turn-stays-open",
        "a page waits for ever for the end of a turn that was cleared",
        "looopy.server.protocols.ai_sdk.parts:Parts._aside",
        "self.ended = True",
        "pass",
        f"{_PARTS}::test_a_history_that_is_cleared_ends_the_stream",
    ),
    mutant(
        "web-foreign-approval-continues",
        "an answer to a request that was never made begins a turn",
        "looopy.server.protocols.ai_sdk.chat:Chat._continue",
        "if others and known is None:",
        "if False:",
        f"{_CHAT}::test_answers_without_a_request_are_refused_with_their_place",
    ),
    mutant(
        "web-answer-given-before-is-refused",
        "a page that repeats a decision is told that there is no such request",
        "looopy.server.protocols.ai_sdk.chat:_check_decided",
        "isinstance(event, ApprovalDecided) and event.request_id in left",
        "False",
        "tests/server/test_deciding_in_protocols.py"
        "::test_an_owners_decision_that_comes_again_is_the_same_and_another_is_refused[UseChat]",
    ),
    mutant(
        "web-edit-appends",
        "an edited message is said behind the one that it replaces",
        "looopy.server.protocols.ai_sdk.chat:Chat._repeat",
        "await agent.rewind(last.turn.turn)",
        "pass",
        f"{_CHAT}::test_an_edited_or_regenerated_message_takes_the_place_of_the_old_one",
    ),
    mutant(
        "web-late-copy-rewinds",
        "a late copy of an older message is taken for an edit",
        "looopy.server.protocols.ai_sdk.chat:Chat._repeat",
        "shown = same[-1] if same else None",
        "shown = None",
        f"{_CHAT}::test_a_late_copy_of_any_request_shows_what_that_request_began",
    ),
    mutant(
        "web-again-runs-tools-again",
        "another answer to a message runs its tools again, unasked",
        "looopy.server.protocols.repeats:check_again",
        "if tool is not None:",
        "if False:",
        f"{_CHAT}::test_a_message_whose_tool_acted_is_regenerated_only_with_force",
        f"{_RUNS}::test_a_run_with_effects_is_not_done_again_unless_it_is_forced",
    ),
    mutant(
        "web-cut-off-page-misses-the-result",
        "a page whose server died shows its call as running for ever",
        "looopy.server.protocols.ai_sdk.chat:Chat._missed",
        "if root is None or not request.open:",
        "if True:",
        f"{_CHAT}::test_a_page_that_was_cut_off_gets_the_result_of_the_call_that_died",
    ),
    mutant(
        "web-run-posted-twice-runs-twice",
        "a run that is repeated waits, or begins another turn",
        "looopy.server.protocols.ag_ui.runs:Runs._repeated",
        "return same[-1].turn",
        "return None",
        f"{_RUNS}::test_a_run_that_is_posted_twice_is_one_turn",
    ),
    mutant(
        "web-snapshot-ahead-of-its-run",
        "a page that reads late has a result in the snapshot, and then again",
        "looopy.server.protocols.ag_ui.runs:Runs._log",
        "if log.seq == upto: return log",
        "pass",
        f"{_RUNS}::test_a_slow_page_gets_no_message_twice",
    ),
    mutant(
        "web-run-ends-without-its-answer",
        "a page waits for ever for the answer of a turn that ended as its run began",
        "looopy.server.protocols.ag_ui.runs:Runs._attached",
        "if record is None or (record.end_seq or 0) > log.seq:",
        "if False:",
        f"{_RUNS}::test_a_turn_that_ends_while_its_run_begins_is_shown_to_its_end",
    ),
    mutant(
        "web-page-misses-a-new-question",
        "a page that opens as a turn asks has nothing to approve",
        "looopy.server.protocols.ag_ui.runs:Runs._run",
        "if running is None and state.status is AgentStatus.BUSY:",
        "if False:",
        f"{_RUNS}::test_a_page_that_opens_as_a_turn_asks_sees_the_interrupt",
    ),
    mutant(
        "web-cut-off-answer-fails-its-task",
        "a caller's only way on is a new message, which drops the call that somebody has allowed",
        "looopy.server.protocols.a2a.tasks:asks",
        "return cut_off or turn.outcome in _WAITING",
        "return turn.outcome in _WAITING",
        "tests/server/test_deciding_in_protocols.py::"
        "test_task_waits_after_the_process_of_a_decision_died",
    ),
    mutant(
        "web-asking-task-is-shown-cancelled",
        "a caller gives up a task that asks, because its context was read too early",
        "looopy.server.protocols.a2a.tasks:TaskReader.find",
        "if not found.torn:",
        "if True:",
        "tests/server/test_a2a_tasks.py::test_a_task_that_asks_while_it_is_read_waits",
    ),
    mutant(
        "a2a-message-sent-again-is-another-task",
        "a message that names no context begins a task each time it is sent",
        "looopy.server.protocols.a2a.verbs:_context_of",
        "said = message.SerializeToString(deterministic=True).hex()",
        "said = str(id(message))",
        "tests/server/test_a2a_api.py::test_a_conversation_of_tasks",
    ),
    mutant(
        "mcp-call-made-again-runs-again",
        "the key of a call that names no conversation is of no use",
        "looopy.server.protocols.mcp.calls:Call._new_name",
        "if key is None:",
        "if True:",
        "tests/server/mcp/test_calls.py::test_a_call_that_is_made_again_with_its_key_is_one_turn",
    ),
    mutant(
        "mcp-answers-that-come-again-fail",
        "a client that sends its answers again gets an error instead of the result",
        "looopy.server.protocols.mcp.calls:_key_of",
        "if params.request_state is not None:",
        "if False:",
        "tests/server/mcp/test_calls.py"
        "::test_answers_that_come_again_show_the_turn_that_they_continued",
    ),
    mutant(
        "responses-yes-is-heard-once",
        "a request that is the same as one that was answered shows that answer",
        "looopy.server.protocols.responses.attempts:Delivered.has",
        "return (tenant, context_id, turn) in self._known",
        "return False",
        "tests/server/test_responses_api.py::test_yes_twice_is_two_turns",
    ),
    mutant(
        "web-page-begins-in-an-answer",
        "a page of a long chat begins with an answer whose question is on no page",
        "looopy.server.protocols.chains:_begins",
        "if await message_of(stores, context_id, turn) is not None:",
        "if True:",
        f"{_CHAT}::test_a_long_conversation_is_loaded_in_pages",
    ),
    mutant(
        "web-snapshot-of-everything",
        "a snapshot of a long thread is longer than AG-UI's client takes",
        "looopy.server.protocols.ag_ui.endpoints:_snapshot",
        'json_items(reversed(out["messages"]), most)',
        'json_items(reversed(out["messages"]))',
        f"{_RUNS}::test_a_snapshot_of_a_long_thread_has_its_newest_messages",
    ),
]
