"""Mistakes in replays: a difference that no change has made, or a change that is not seen."""

from tests.mutants.mutant import mutant

_TESTS = "tests/replay/test_replays.py"
_STORY = f"{_TESTS}::test_a_turn_is_the_same_when_it_is_replayed"
_TYPED = f"{_TESTS}::test_a_refused_answer_is_refused_again"
_DIED = f"{_TESTS}::test_a_call_that_died_is_replayed_although_its_tool_is_gone"
_UNKNOWN = f"{_TESTS}::test_an_unknown_tool_whose_call_was_cancelled_is_no_tool_that_is_gone"

MUTANTS = [
    mutant(
        "replay-two-questions-are-one-approval",
        "a tool that asks two people waits for one of them when its turn is replayed",
        "looopy.replay.answers:approvals_of",
        "and asked[one.tool_call_id] == 1",
        "",
        f"{_STORY}[asked twice]",
    ),
    mutant(
        "replay-cut-at-the-first-call",
        "results behind a cancelled call are lost when its turn is replayed",
        "looopy.replay.answers:Script.ends_here",
        "return self.reached and not any(",
        "return self.reached or not any(",
        f"{_STORY}[cancelled after the second]",
    ),
    mutant(
        "replay-guesses-effects",
        "without an agent, a cancelled call with effects looks like one without",
        "looopy.replay.answers:_Answering._says",
        "self._known and",
        "not self._known or",
        f"{_STORY}[cancelled without effects]",
    ),
    mutant(
        "replay-cut-begins-the-next-call",
        "without an agent, a call that had not begun looks as if it had been running",
        "looopy.replay.answers:_Answering.execute",
        "try:\n"
        "await script.stop()",
        "try:\n"
        "    script.cut()",
        f"{_STORY}[cancelled before the third]",
    ),
    mutant(
        "replay-does-not-count-tries",
        "without an agent, a turn goes on where its answers had been refused too often",
        "looopy.replay.running:_config",
        "most if tries is None else tries - 1",
        "most",
        _TYPED,
    ),
    mutant(
        "replay-asks-for-json",
        "without an agent, a model that was to call a tool is told to write JSON",
        "looopy.replay.running:_typed_by_tool",
        "how_to_answer(one.message.text) == ASK_BY_TOOL",
        "False",
        f"{_TYPED}[False]",
    ),
    mutant(
        "replay-scrubs-the-tries",
        "a recording without contents loses how often its answers were refused",
        "looopy.replay.scrubbing:_error",
        "if tries is not None:",
        "if False:",
        _TYPED,
    ),
    mutant(
        "replay-scrubs-our-words",
        "a recording without contents differs where an answer had been refused",
        "looopy.replay.differences:_same",
        "if how is not None:",
        "if False:",
        _TYPED,
    ),
    mutant(
        "replay-asks-what-the-next-process-asked",
        "a turn that died waits when it is replayed",
        "looopy.replay.answers:asked_by",
        "() if recording.outcome is Outcome.INTERRUPTED else recording.asked",
        "recording.asked",
        _DIED,
    ),
    mutant(
        "replay-blames-a-tool-that-was-gone",
        "the agent that had lost a tool then is told that it is gone now",
        "looopy.replay.running:_lost_its_tool",
        "return _did_not_run(recording, result)",
        "return False",
        _DIED,
    ),
    mutant(
        "replay-blames-an-unknown-tool",
        "a tool that never was is gone, because its call was cancelled",
        "looopy.replay.differences:_was_cut_before",
        "one.text in CUT_OFF and then.was_cut",
        "False",
        _UNKNOWN,
    ),
    mutant(
        "replay-blames-arguments-that-were-not-read",
        "arguments that do not fit are a difference, although too many failures had ended the turn",
        "looopy.replay.differences:_was_cut_before",
        "one.text == NOT_STARTED or",
        "",
        f"{_TESTS}::test_a_call_behind_too_many_failures_is_not_judged",
    ),
    mutant(
        "replay-trusts-unknown-tools",
        "a tool that is gone is not named, because its call was cancelled",
        "looopy.replay.differences:first_difference",
        "if tools_agree and",
        "if",
        _UNKNOWN,
    ),
    mutant(
        "replay-lists-unknown-tools-as-gone",
        "a name that a model made up is listed as a tool that is gone",
        "looopy.replay.running:_ran",
        "(unknown or _did_not_run(recording, one))",
        "unknown",
        _UNKNOWN,
    ),
    mutant(
        "replay-lists-tools-that-never-were",
        "a name that a model made up is listed, although the tools are the same",
        "looopy.replay.running:_gone",
        'tools_of(one.request) == tools_of(other.request) != ""',
        "False",
        _UNKNOWN,
    ),
    mutant(
        "replay-scrubs-why-an-answer-ended",
        "a recording without contents differs if its turn was cancelled amid an answer",
        "looopy.replay.scrubbing:_OURS",
        ", CUT_SHORT",
        "",
        f"{_STORY}[cancelled amid words]",
    ),
    mutant(
        "replay-overlooks-a-lost-result",
        "a call that runs and did not run then is no difference",
        "looopy.replay.differences:_rest",
        "if played.unanswered is not None and then.outcome in _ANSWER_ALL:",
        "if False:",
        f"{_TESTS}::test_a_lost_result_is_seen",
    ),
    mutant(
        "replay-overlooks-messages-behind-a-cut",
        "a recording may have any messages behind the place where its process died",
        "looopy.replay.differences:_rest",
        "played.cut_off and all(_tells_of_a_cut(one.message) for one in more[len(less) :])",
        "played.cut_off",
        f"{_TESTS}::test_messages_behind_a_cut_are_seen",
    ),
    mutant(
        "replay-blames-the-next-limit",
        "a turn that failures ended differs, because the next limit ends its replay",
        "looopy.replay.running:replay_made",
        "uncounted and now.stop_reason in _OF_A_LIMIT",
        "False",
        f"{_TESTS}::test_a_turn_that_ended_just_before_a_limit_is_the_same",
    ),
]
