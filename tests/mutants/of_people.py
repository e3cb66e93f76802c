"""Mistakes around a person who is asked: approvals, questions, credentials."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_APPROVALS = "tests/agent/questions/test_approvals.py"
_ASKING = "tests/agent/questions/test_asking.py"
_CREDENTIALS = "tests/agent/credentials/test_credentials.py"
_SECOND = "tests/agent/questions/test_second_person.py"
_FORGED = "tests/agent/recovery/test_forged_archives.py"
_SEALING = "tests/unit/auth/test_sealing.py"
_PROTOCOLS = "tests/server/test_deciding_in_protocols.py"

MUTANTS = [
    mutant(
        "an-approved-call-runs-as-the-approver",
        "a manager who approves an employee's payment pays it",
        "looopy.agent.plan:Situation.is_of",
        "self.last is None or self.is_anonymous or self.last.actor_id == actor_id",
        "True",
        f"{_SECOND}::test_an_approved_call_runs_as_the_actor_of_its_turn",
        f"{_SECOND}::test_a_denied_call_is_answered_in_its_actors_turn",
        f"{_SECOND}::test_a_credential_of_another_actor_is_refused",
    ),
    mutant(
        "an-anonymous-call-borrows-an-identity",
        "the call of a turn without an identity gets that of the person who approved it",
        "looopy.agent.claim:Claiming._claim",
        "if plan.anonymous:",
        "if False:",
        f"{_SECOND}::test_an_anonymous_turns_call_runs_without_the_approvers_credentials",
        f"{_SECOND}::test_a_decision_for_an_anonymous_turn_lends_no_identity",
    ),
    mutant(
        "a-second-decision-counts",
        "of two people who decide differently, nobody learns who was first",
        "looopy.agent.decisions:repeated",
        "said == (made.decision, made.args, made.text, made.actor_id)",
        "True",
        f"{_SECOND}::test_a_decision_counts_once",
    ),
    mutant(
        "another-request-of-the-same-id",
        "a person approves one call, and another one runs, which came under its id meanwhile",
        "looopy.agent.plan:_refuse_answers",
        "judged is not None and request != judged",
        "False",
        "tests/server/test_deciding.py::test_a_request_replaced_during_the_judgement_is_not_decided",
    ),
    mutant(
        "an-archive-brings-its-own-approval",
        "a user writes an approval into an archive, and the call runs",
        "looopy.stores.archive.reading:Checked.restored",
        "asking_again(self._context.record.state, self._context.record.turn_count)",
        "self._context.record.state",
        f"{_FORGED}::test_a_decision_of_an_archive_lets_no_call_run",
        f"{_FORGED}::test_each_copy_of_an_answered_call_asks",
    ),
    mutant(
        "approved-as-something-else",
        "a yes to one payment lets another one through",
        "looopy.loop.approval:may_run",
        "resumed.held is not None and resumed.held.bound == bound",
        "resumed.held is not None",
        f"{_APPROVALS}::test_an_approval_of_another_schema_does_not_count",
        f"{_APPROVALS}::test_other_arguments_than_the_approved_ones_never_run",
    ),
    mutant(
        "what-cannot-be-judged-runs",
        "a broken predicate opens what it was to guard",
        "looopy.loop.approval:_needed",
        "default=True",
        "default=False",
        f"{_APPROVALS}::test_a_predicate_chooses_the_calls_that_need_approval",
    ),
    mutant(
        "a-late-yes-counts",
        "an approval from another time runs what nobody wants any more",
        "looopy.agent.plan:_expired",
        "request.expires_at <= datetime.now(UTC)",
        "request.expires_at is None",
        f"{_APPROVALS}::test_an_expired_approval_is_not_there",
    ),
    mutant(
        "an-answer-dies-with-its-turn",
        "a person has answered, and is asked again after a crash",
        "looopy.agent.plan:_answer",
        "state=begun",
        "state=fresh",
        f"{_ASKING}::test_an_accepted_answer_survives_its_turn",
    ),
    mutant(
        "asking-counts-as-a-start",
        "a call that only asked is given up as of unknown outcome",
        "looopy.agent.context:ContextView._find_open_calls",
        "if turn > asked.get(call_id, 0)}",
        "if turn > 0}",
        f"{_ASKING}::test_an_accepted_answer_survives_its_turn",
    ),
    mutant(
        "asked-at-the-end-of-the-turn",
        "a crash beside a slow tool costs the question",
        "looopy.loop.tool_calls:run_tools",
        "(_answer_done(turn, tasks, rest) or turn.out.asks) and tasks",
        "_answer_done(turn, tasks, rest) and tasks",
        f"{_ASKING}::test_a_request_beside_a_slow_call_is_stored_at_once",
    ),
    mutant(
        "a-compaction-takes-the-open-call",
        "the answer is stored, and the model never sees it",
        "looopy.agent.compact:condense",
        "max(keep_turns, _questions_of_open(known))",
        "keep_turns",
        f"{_ASKING}::test_a_call_waits_beside_a_compaction",
    ),
    mutant(
        "a-question-that-a-tool-can-catch",
        "a tool that never fails never asks",
        "looopy.tools.asking:NeedsInput",
        "class NeedsInput(BaseException)",
        "class NeedsInput(Exception)",
        "tests/agent/questions/test_request_input.py"
        "::test_a_tool_that_catches_its_failures_does_not_catch_its_question",
    ),
    mutant(
        "a-credential-is-no-secret",
        "what a user has encrypted stands in the history",
        "looopy.agent.running:RunningTurn._run",
        "self.redactor.add(resumed.opened)",
        "pass",
        f"{_CREDENTIALS}::test_a_credential_reaches_the_call_and_nothing_else",
    ),
    mutant(
        "credentials-in-plain-are-stored",
        "a backup has the passwords of whoever was asked",
        "looopy.agent.plan:Answers.stored",
        "if not in_plain(request) and request.request_id",
        "if request.request_id",
        f"{_CREDENTIALS}::test_credentials_in_plain_are_used_and_never_stored",
    ),
    mutant(
        "what-nobody-can-open-is-kept",
        "credentials lie in the store that no process has any use for",
        "looopy.agent.plan:Answers.stored",
        " and request.request_id not in self.lost",
        "",
        f"{_CREDENTIALS}::test_a_credential_that_cannot_be_decrypted_is_not_stored",
    ),
    mutant(
        "credentials-beside-a-key",
        "a password is guessed from the hash that is stored",
        "looopy.agent.claim:Claiming._plan",
        "request.secret.update(asked & request.inputs.keys())",
        "pass",
        f"{_CREDENTIALS}::test_a_key_names_a_turn_without_its_credentials",
    ),
    mutant(
        "the-private-key-beside-what-it-opens",
        "who reads the database reads the credentials",
        "looopy.auth.sealing:KeyRing.issue",
        "jose.encrypt(header, json.dumps(private), self._wrapping_key(jose))",
        "json.dumps(private)",
        f"{_CREDENTIALS}::test_the_private_key_is_stored_encrypted_alone",
    ),
    mutant(
        "one-credential-for-any-request",
        "what was given to one tool serves another",
        "looopy.auth.sealing:check_claims",
        'if claims.get("request_id") != request_id:',
        'if claims.get("request_id") is None:',
        f"{_SEALING}::test_claims_that_do_not_hold_are_refused",
        f"{_CREDENTIALS}::test_a_credential_encrypted_for_another_request_is_refused",
    ),
    mutant(
        "everybody-decides",
        "whoever knows the id of a request decides it in a conversation of somebody else",
        "looopy.server.deciding:requests_named",
        "if not await _may(may_answer, _opened(request, record), auth):\n    return None",
        "pass",
        f"{_PROTOCOLS}::test_an_actor_who_may_not_decide_gets_the_answer_for_an_unknown_context",
    ),
    mutant(
        "decision-beside-a-text",
        "a message in a conversation of somebody else counts as a decision",
        "looopy.server.protocols.ag_ui.request:RunRequest.decisions",
        "if self.message is not None or self.results:\n    return {}",
        "pass",
        f"{_PROTOCOLS}::test_an_actor_who_may_not_decide_gets_the_answer_for_an_unknown_context",
    ),
]
