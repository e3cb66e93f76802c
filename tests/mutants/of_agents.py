"""Mistakes where agents work for agents, in the answer's type, and in what the model is told."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, mutant

_AS_TOOLS = "tests/agent/tools/test_agents_as_tools.py"
_KILLED = (
    "tests/agent/tools/test_agents_as_tools_killed.py"
    "::test_a_call_that_is_killed_anywhere_is_gone_on_with"
)
_OUTPUT = "tests/agent/models/test_structured_output.py"
_PROMPTS = "tests/agent/history/test_prompts.py"

MUTANTS = [
    # --- unknown prices ---
    mutant(
        "budget-without-a-price",
        "an agent starts whose budget of money is never reached",
        "looopy.agent.resources:Resources.open",
        "refuse_unpriced(self.provider, config.budget)",
        "pass",
        "tests/wire/test_costs.py::test_no_agent_starts_whose_budget_would_be_ignored",
    ),
    mutant(
        "unpriced-calls-go-on",
        "a turn calls a model without a price again and again under a budget of money",
        "looopy.loop.guards:Guards._used_up",
        "if (unpriced := self.unpriced()) is not None: return unpriced",
        "",
        "tests/agent/turns/test_budgets.py::test_a_call_without_a_known_price_is_the_last_of_its_turn",
    ),
    mutant(
        "unknown-added-as-zero",
        "a sum looks whole although some of it has no price",
        "looopy.types.message:_sum_of_costs",
        "return None if known is None else replace(known, complete=False)",
        "return known",
        "tests/unit/types/test_message.py::test_a_sum_of_usage_marks_an_unknown_cost",
    ),
    # --- an agent as a tool ---
    Mutant(
        "inner-context-by-chance",
        "a call that is run again begins a new conversation, and books twice",
        (
            Edit(
                "looopy.tools.sources.agents:AgentTool._context_id",
                "digest = hashlib.sha256(call.encode())",
                "digest = hashlib.sha256(repr(object()).encode() + str(id(context)).encode())",
            ),
            Edit(
                "looopy.tools.sources.agents:AgentTool._linked",
                "return str(found)",
                "return None",
            ),
        ),
        (f"{_KILLED}[B9-plain]",),
    ),
    mutant(
        "inner-turns-without-keys",
        "a turn that was accepted before the crash is asked for again",
        "looopy.tools.sources.agents:_InnerRun.run",
        "idempotency_key=str(number),",
        "idempotency_key=None,",
        f"{_KILLED}[B9-plain]",
    ),
    mutant(
        "inner-turn-not-gone-on-with",
        "an agent that was killed at work has worked for nothing",
        "looopy.tools.sources.agents:_InnerRun._goes_on",
        "if result.outcome in (Outcome.INTERRUPTED, Outcome.AUTH_REQUIRED): return True",
        "",
        f"{_KILLED}[B8-plain]",
    ),
    mutant(
        "inner-context-of-an-earlier-life",
        "a context made anew is answered by what was said to the deleted one",
        "looopy.tools.sources.agents:AgentTool._context_id",
        "call = json.dumps([context.idempotency_key, self.name, made])",
        "call = json.dumps([context.idempotency_key, self.name])",
        f"{_AS_TOOLS}::test_a_recreated_context_has_no_inner_contexts_of_the_old_one",
    ),
    mutant(
        "inner-failure-is-an-answer",
        "the outer model believes an agent that has failed",
        "looopy.tools.sources.agents:_InnerRun._wrong",
        "if result.outcome is Outcome.FAILED:",
        "if False:",
        f"{_AS_TOOLS}::test_a_failed_agent_is_a_failed_call",
    ),
    mutant(
        "inner-turn-outlives-the-call",
        "a user cancels, and the agent works on and pays",
        "looopy.tools.sources.agents:_InnerRun._watch",
        "stream.cancel()",
        "",
        f"{_AS_TOOLS}::test_cancelling_the_turn_cancels_the_agent",
    ),
    mutant(
        "agents-without-end",
        "an agent that calls itself does so until the money is gone",
        "looopy.tools.sources.agents:AgentTool.execute",
        "if len(chain) >= self._max_depth:",
        "if len(chain) > self._max_depth:",
        f"{_AS_TOOLS}::test_the_agent_of_an_agent_has_an_end",
    ),
    mutant(
        "inner-usage-is-free",
        "a budget is kept to by whoever has others do the work",
        "looopy.tools.sources.agents:_InnerRun._count",
        "self._context.charge(result.usage)",
        "pass",
        f"{_AS_TOOLS}::test_the_agent_uses_up_the_budget_of_the_turn",
    ),
    mutant(
        "approval-of-something-else",
        "a person allows the outer call and never saw what would be paid",
        "looopy.tools.sources.agents:_InnerRun._ask",
        "args=request.args if of_a_call else None",
        "args=None",
        f"{_AS_TOOLS}::test_an_approval_of_the_agents_call_is_asked_as_it_is",
    ),
    mutant(
        "credentials-opened-by-the-wrong-one",
        "a credential for an agent's agent is asked for again and again",
        "looopy.agent.plan:_asks_for_another",
        "return request.auth is not None and request.auth.context_id not in (None, context_id)",
        "return False",
        f"{_AS_TOOLS}::test_credentials_reach_the_agents_call_alone",
    ),
    mutant(
        "shown-events-keep-their-numbers",
        "a client that follows by number goes on at a place of another log",
        "looopy.loop.tool_tasks:_elsewhere",
        ', "seq": None}',
        "}",
        "tests/agent/streams/test_shown_events.py::test_shown_events_have_a_path_and_no_number",
    ),
    mutant(
        "another-turn-ends-this-one",
        "a turn is over for its viewers when an agent that works for it is done",
        "looopy.agent.running:RunningTurn._drive",
        "self.broadcast.push(out)",
        "log._announce(Group((out,)), (), 0, 0)",
        "tests/agent/streams/test_shown_events.py::test_shown_events_have_a_path_and_no_number",
    ),
    # --- an answer in a type ---
    mutant(
        "any-answer-fits",
        "a program is given what it cannot use, and no error",
        "looopy.loop.iteration:_refuse",
        "if tries >= allowed:",
        "if False:",
        f"{_OUTPUT}::test_a_turn_without_a_fitting_answer_fails",
    ),
    mutant(
        "type-forgotten-by-a-crash",
        "a turn that is gone on with answers in any form",
        "looopy.agent.dead_turns:dead_end",
        "left, usage",
        "left, output=None, usage",
        f"{_OUTPUT}::test_a_killed_turn_is_still_asked",
    ),
    mutant(
        "type-of-an-earlier-turn",
        "a new question is answered in the form of an old one",
        "looopy.agent.claim:Claiming._output",
        "return state.output if goes_on else None",
        "return state.output",
        f"{_OUTPUT}::test_a_continued_turn_gives_the_type_that_is_passed",
    ),
    mutant(
        "key-blind-to-the-type",
        "a request for another type is given a view of the first",
        "looopy.agent.request:input_hash",
        "more = [] if output is None else [output]",
        "more = []",
        f"{_OUTPUT}::test_a_view_of_an_accepted_turn_has_its_output",
    ),
    # --- what the model is told ---
    mutant(
        "clock-before-the-history",
        "every call pays for the whole history, as no cache finds its beginning",
        "looopy.llm.anthropic.format:_mark",
        "if ephemeral:",
        "if False:",
        f"{_PROMPTS}::test_prompt_parts_after_the_history_keep_the_request_valid",
    ),
    mutant(
        "plugin-always-on",
        "a tool for some is offered to all",
        "looopy.tools.sources.plugin:Plugin.list_for",
        "if not is_enabled(self.is_enabled, turn): return () return list(",
        "return list(",
        f"{_PROMPTS}::test_a_plugin_comes_and_goes_as_one",
    ),
]
