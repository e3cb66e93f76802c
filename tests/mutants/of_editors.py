"""Mistakes of the protocols over standard input and output: editors (ACP), and MCP."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_SESSION = "tests/server/acp/test_session.py"
_OVER_STDIO = "tests/server/test_over_stdio.py"

MUTANTS = [
    mutant(
        "acp-question-outlives-its-answer",
        "an editor still asks about a call that somebody has approved elsewhere",
        "looopy.server.protocols.acp.session:Session._decide",
        "if moved.done():",
        "if False:",
        f"{_SESSION}::test_an_approval_that_is_given_elsewhere_closes_the_question",
    ),
    mutant(
        "acp-prompt-waits-for-what-was-replayed",
        "a session that is loaded while its turn ends never answers the prompt",
        "looopy.server.protocols.acp.session:Session.begin",
        "self._renewed = True\nawait self._catch_up()",
        "pass",
        f"{_SESSION}::test_a_load_at_the_end_of_a_turn_keeps_the_prompt",
    ),
    mutant(
        "mcp-lost-client-cancels-the-turn",
        "a turn that could be continued is cancelled, because the client or the process ends",
        "looopy.server.protocols.mcp.serving:serve",
        "closing = True  # before the calls are cancelled: their turns may end",
        "pass",
        f"{_OVER_STDIO}::test_the_end_of_a_connection_cancels_no_turn",
    ),
    mutant(
        "spoken-approval",
        "the model of an MCP client approves a call by saying yes",
        "looopy.server.protocols.text_answers:answer_in",
        "asked[0].kind is not PendingKind.INPUT",
        "False",
        "tests/server/acp/test_prompts.py::test_words_are_an_answer_if_they_fit_the_question",
    ),
]
