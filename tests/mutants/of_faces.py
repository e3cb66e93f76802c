"""Mistakes at the edges: the face with pi's names, its sessions, a user's own pipy-ai."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_OF_AGENT = "tests/compat/test_pi_agent.py"
_OF_QUEUES = "tests/compat/test_pi_queues.py"
_OF_LOOP = "tests/compat/test_pi_loop.py"
_OF_SESSIONS = "tests/compat/test_pi_sessions.py"
_OF_PIPY = "tests/unit/llm/test_pipy.py"

MUTANTS = [
    mutant(
        "pi-waiter-takes-the-run-along",
        "a web framework that cancels who waits ends the run in the middle",
        "looopy.compat.pi.agent:Agent._begin",
        "await asyncio.shield(task)",
        "await task",
        f"{_OF_AGENT}::test_cancelling_a_waiter_does_not_stop_the_run",
    ),
    mutant(
        "pi-queue-not-stored-first",
        "what was queued comes behind the answer that it was meant for",
        "looopy.compat.pi.agent:Agent._prepare",
        " # with what was hidden\n        await self._queues.flush()",
        "",
        f"{_OF_AGENT}::test_two_steers_are_two_rounds",
    ),
    mutant(
        "pi-queue-overtakes",
        "two messages are stored in another order than they were said",
        "looopy.compat.pi.queues:_after",
        "if before is not None and not before.done(): await asyncio.wait([before])",
        "",
        f"{_OF_AGENT}::test_queued_messages_are_stored_in_order",
    ),
    mutant(
        "pi-closed-with-writes-under-way",
        "what was queued just before the end is lost",
        "looopy.compat.pi.agent:Agent.close",
        "await self._queues.flush()",
        "pass",
        f"{_OF_QUEUES}::test_the_last_queued_message_outlives_the_agent",
    ),
    mutant(
        "pi-queued-at-the-end-waits",
        "what a listener says to the answer is not answered in the run",
        "looopy.compat.pi.agent:Agent._receive",
        "translator.held = event\nreturn",
        "pass",
        f"{_OF_QUEUES}::test_a_message_queued_by_a_listener_at_the_end_joins_the_run",
    ),
    mutant(
        "pi-replaced-is-only-appended",
        "the model is still shown what was replaced",
        "looopy.compat.pi.state:Mirror.write",
        "await self._agent.clear()",
        "",
        f"{_OF_AGENT}::test_a_list_of_messages_that_was_changed_reaches_the_context",
    ),
    mutant(
        "pi-second-start-of-one-message",
        "a message that is asked for again seems to be two",
        "looopy.compat.pi.events:Translator._message_start",
        "if self._open:  # the call is being made again\n    return",
        "",
        f"{_OF_LOOP}::test_there_are_ten_kinds_of_events",
    ),
    mutant(
        "pi-prompts-missing-at-the-end",
        "who keeps the messages of `agent_end` loses what was said first",
        "looopy.compat.pi.events:Translator.of",
        "self._added.append(said.message)",
        "self._added[:] = [said.message]",
        f"{_OF_AGENT}::test_a_prompt_is_text_with_images_a_message_or_several",
    ),
    mutant(
        "pi-tool-is-not-told-to-stop",
        "a tool goes on after the abort",
        "looopy.compat.pi.setup:_PiTool.execute",
        "leave = context.cancel.on_cancel(controller.abort)",
        "leave = context.cancel.on_cancel(lambda: None)",
        f"{_OF_AGENT}::test_a_message_after_an_abort_is_answered",
    ),
    mutant(
        "pi-session-keys-of-arguments",
        "the blocks of pi's messages lose their signatures and types",
        "looopy.compat.pi.wire:_renamed",
        "[_with_keys(block, rename) for block in content]",
        "list(content)",
        f"{_OF_SESSIONS}::test_messages_of_pi_are_ours_field_for_field",
    ),
    mutant(
        "pi-session-parent-from-nowhere",
        "a torn file is read as a shorter conversation",
        "looopy.compat.pi.sessions:_entry",
        "if parent_id is not None and parent_id not in ids:",
        "if parent_id is not None and not ids:",
        f"{_OF_SESSIONS}::test_a_bad_line_is_named_with_its_number",
    ),
    mutant(
        "pipy-stream-left-open",
        "an answer that nobody reads is paid for to its end",
        "looopy.llm.pipy:PipyProvider.stream",
        "if close is not None: await close()",
        "del close",
        f"{_OF_PIPY}::test_leaving_a_stream_closes_the_modules",
    ),
    mutant(
        "pipy-failure-taken-for-an-answer",
        "an aborted answer ends the turn as if it stood",
        "looopy.llm.pipy:PipyProvider._event",
        'if kind == "done" and told is not None and message.stop_reason not in _FAILED:',
        'if kind == "done" and told is not None:',
        f"{_OF_PIPY}::test_an_answer_that_is_done_and_failed_has_failed",
    ),
    mutant(
        "last-report-lost",
        "the end of a call comes before what its tool reported last",
        "looopy.loop.tool_tasks:ToolTaskGroup._run_and_tell",
        "if call.id in self._reporting:",
        "if call.id in ():",
        "tests/agent/streams/test_last_reports.py::test_every_report_comes_before_the_end_of_its_call",
    ),
    mutant(
        "refused-without-looking",
        "what another process left cannot be continued by an agent that knew the context before",
        "looopy.agent.claim:Claiming._claim",
        "if fresh:\n"
        "    first = await who_was_first(known.stores.journal, known.context_id, error)\n"
        "    if first is None:\n"
        "        raise\n"
        "    raise first from None\n"
        "known.stale = True  # another process may have left something to continue",
        "raise",
        "tests/agent/recovery/test_left_by_others.py::test_a_message_appended_from_outside_can_be_answered",
    ),
]
