"""Mistakes around a tool call: cut, coerced, repeated, too long; and around what is queued."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_BAD = "tests/agent/tools/test_bad_input.py"
_OPTIONS = "tests/agent/tools/test_tool_options.py"
_DOOM = "tests/agent/models/test_doom_loop.py"
_QUEUES = "tests/agent/inbox/test_queues.py"
_CARDS = "tests/remote/test_cards.py"

MUTANTS = [
    mutant(
        "half-a-call-runs",
        "a tool deletes everything, because the words that said what were cut off",
        "looopy.loop.iteration:_cut_call_of",
        "return last.id if is_cut and isinstance(last, ToolCall) else None",
        "return None",
        f"{_BAD}::test_a_call_cut_by_the_length_limit_does_not_run",
    ),
    mutant(
        "blank-call-id",
        "a provider refuses the history from then on",
        "looopy.loop.progress:Progress.own_call_id",
        'wanted = wanted if wanted.strip() else "call"',
        "pass",
        f"{_BAD}::test_duplicate_and_blank_call_ids",
    ),
    mutant(
        "late-result-counts",
        "a hook is asked about a call that was given up long ago",
        "looopy.tools.call.run:run_call",
        "if attempt.ran and not attempt.left_behind:",
        "if attempt.ran:",
        f"{_BAD}::test_a_tool_that_hangs_and_does_not_let_itself_be_stopped",
    ),
    mutant(
        "coerced-past-approval",
        "what nobody approved is paid, because the model wrote a number as text",
        "looopy.loop.approval:may_run",
        "if tool.coerce:",
        "if False:",
        f"{_OPTIONS}::test_coerced_arguments_are_approved_first",
    ),
    mutant(
        "effects-tried-again",
        "a payment is made twice, because the connection broke behind it",
        "looopy.tools.base:Tool.__init__",
        'if retries and effects == "external":',
        "if False:",
        "tests/unit/tools/call/test_retry.py::test_options_that_make_no_sense_are_refused",
    ),
    mutant(
        "asking-again-is-a-failure",
        "a turn ends because a tool helped the model to get it right",
        "looopy.loop.guards:Guards.may_call_again",
        "self._excused.add(call.id)",
        "pass",
        f"{_OPTIONS}::test_calling_again_is_asked_for_a_few_times_and_is_no_failure",
    ),
    mutant(
        "rest-thrown-away",
        "the end of a long result is nowhere",
        "looopy.tools.call.results:shown_and_kept",
        "if context.artifacts is not None:",
        "if False:",
        f"{_OPTIONS}::test_the_rest_of_a_long_result_is_an_artifact",
    ),
    mutant(
        "one-slips-through",
        "of five equal calls one is asked about, and the others run",
        "looopy.loop.guards:Guards._doom_loop",
        "if self._warned and not stops and not asks:",
        "if self._warned and not stops:",
        f"{_DOOM}::test_each_call_of_a_loop_in_one_answer_is_asked_about",
    ),
    mutant(
        "said-though-taken-back",
        "the model is told what the user took back in time",
        "looopy.loop.parts:Turn.unsay",
        "self.progress.queued = [one for one in said if one.number not in gone]",
        "self.progress.queued = [one._replace(number=None) for one in said]",
        f"{_QUEUES}::test_what_is_cleared_at_the_commit_that_says_it_is_not_said",
    ),
    mutant(
        "model-asked-for-nothing",
        "a model call is paid for a message that was taken back",
        "looopy.loop.iteration:_say",
        "if said:\n    turn.progress.go_on()",
        "turn.progress.go_on()",
        f"{_QUEUES}::test_a_turn_that_went_on_for_what_is_cleared_ends_without_asking_the_model",
    ),
    mutant(
        "handed-over-and-lost",
        "what the user said to a turn that is cancelled is gone",
        "looopy.loop.turn:_close",
        "progress.queued = [one for one in progress.queued if one.number is None]",
        "progress.queued = []",
        "tests/unit/loop/test_incoming.py::test_what_was_handed_over_is_said_though_the_turn_ends",
    ),
    mutant(
        "budget-of-one-turn",
        "a context spends its budget again with every turn",
        "looopy.agent.state:spent_before",
        "return Spent(state.usage + state.charged, (state.run_us or 0) / 1e6)",
        "return Spent()",
        "tests/agent/turns/test_budgets.py::test_a_budget_of_the_context_outlives_its_agents",
    ),
    mutant(
        "one-card-for-all",
        "Bob is offered what an agent showed to Alice",
        "looopy.tools.sources.a2a.agent:RemoteAgent._known_to",
        "key = self._keys.key_of(headers)",
        'key = b""',
        f"{_CARDS}::test_a_card_is_for_those_who_fetched_it",
        f"{_CARDS}::test_a_failure_is_for_those_who_met_it",
    ),
    mutant(
        "card-breaks-the-turn",
        "an agent elsewhere stops every turn with a port of 99999 in its card",
        "looopy.tools.sources.a2a.sdk:_choose",
        "except ValueError:  # not an address: the interface is ignored",
        "except KeyError:",
        f"{_CARDS}::test_an_address_that_is_none_is_passed_over",
    ),
    mutant(
        "deep-card-breaks-the-turn",
        "an agent elsewhere stops every turn with deep JSON",
        "looopy.tools.sources.a2a.agent:RemoteAgent._fetch",
        "except Exception as error:  # noqa: BLE001 - whatever its card makes of the SDK",
        "except MemoryError as error:",
        f"{_CARDS}::test_whatever_the_sdk_raises_costs_the_tool",
    ),
    mutant(
        "card-shows-a-token",
        "the model reads a token that the agent elsewhere repeated",
        "looopy.tools.sources.a2a.agent:RemoteAgent._fetch",
        'description=redactor.text(self._description or "\\n".join(described))[',
        'description=(self._description or "\\n".join(described))[',
        f"{_CARDS}::test_a_card_that_repeats_a_token_does_not_show_it",
    ),
    mutant(
        "failure-keeps-headers",
        "a token outlives its turn in the traceback of an error that is kept",
        "looopy.tools.sources.a2a.agent:RemoteAgent._tool",
        "known.failure, known.retry_at = copy.copy(error), time.monotonic() + _RETRY_S",
        "known.failure, known.retry_at = error, time.monotonic() + _RETRY_S",
        f"{_CARDS}::test_a_failure_that_is_kept_holds_no_credentials",
    ),
    mutant(
        "mcp-failure-keeps-headers",
        "a token outlives its turn in the traceback of an error that is kept",
        "looopy.tools.sources.mcp.pool:Link._note",
        "self._failed = (time.monotonic() + _RETRY_S, copy.copy(error))",
        "self._failed = (time.monotonic() + _RETRY_S, error)",
        "tests/mcp/test_http.py::test_a_failure_that_is_kept_holds_no_credentials",
    ),
    mutant(
        "listing-shows-a-token",
        "the model reads a token that an MCP server repeated",
        "looopy.tools.sources.mcp.listing:_offer",
        'description=_description(redactor.text(tool.description or "")),',
        'description=_description(tool.description or ""),',
        "tests/unit/tools/sources/mcp/test_listing.py::test_no_part_of_a_listing_shows_a_secret_of_the_server",
    ),
]
