"""Mistakes in calling models: waiting, counting, falling back, reading what they say."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_CALLS = "tests/agent/models/test_model_calls.py"
_FALLBACK = "tests/agent/models/test_fallback.py"
_WIRE = "tests/wire/test_responses_wire.py"

MUTANTS = [
    # --- waiting ---
    mutant(
        "too-early",
        "who comes in the second that a server rounded away is turned away again",
        "looopy.llm.retry:delay_before",
        "return max(0.0, asked + margin)",
        "return max(0.0, asked)",
        "tests/unit/llm/test_retry.py::test_a_rounded_delay_gets_a_second_more",
    ),
    mutant(
        "silence-ends-the-turn",
        "a provider that stalls once cancels the turn, where another try would have answered",
        "looopy.loop.model_call:_listen",
        "if late is None:",
        "if late is None or True:",
        f"{_CALLS}::test_a_provider_that_never_looks_at_the_time_is_given_up",
    ),
    # --- counting ---
    mutant(
        "failed-attempts-are-free",
        "a budget of money lets retries through that were paid for",
        "looopy.loop.model_call:call_model",
        "turn.progress.use(attempt.final.message.usage)",
        "pass",
        f"{_CALLS}::test_usage_of_a_failed_attempt_counts",
        f"{_CALLS}::test_a_budget_of_money_counts_failed_attempts",
    ),
    mutant(
        "cancelled-calls-are-free",
        "what a cancelled call had used is in no sum",
        "looopy.loop.model_call:keep_partial",
        "turn.progress.use(partial.usage)",
        "pass",
        f"{_CALLS}::test_a_cancelled_turn_counts_what_it_used_so_far",
    ),
    mutant(
        "cache-at-full-price",
        "what was written to the cache is told as plain input",
        "looopy.llm.prices:_cost",
        "saved = priced.input(read=0, written=written) - whole.input_price",
        "saved = priced.input(read=0, written=0) - whole.input_price",
        "tests/unit/llm/test_prices.py::test_cache_writes_have_their_own_price",
    ),
    mutant(
        "price-of-another-hour",
        "a call that began at a dear hour and ended at a cheap one costs half",
        "looopy.llm.accumulate:Accumulator._message",
        "self._price(self.usage, self.timestamp)",
        "self._price(self.usage, now_ms())",
        "tests/wire/test_costs.py::test_a_stored_call_keeps_the_price_of_its_time",
    ),
    # --- a window that is full ---
    mutant(
        "relief-again-and-again",
        "a turn compacts for ever when that does not help",
        "looopy.loop.model_call:_relieved",
        "turn.progress.relieved = True",
        "pass",
        f"{_CALLS}::test_a_second_overflow_of_a_turn_fails_it",
    ),
    mutant(
        "rate-limit-is-an-overflow",
        "a server that slows us down within a stream makes the agent forget its history",
        "looopy.llm.failures:failure_of",
        "or (status is None and _SLOW_DOWN.search(evidence))",
        "",
        "tests/unit/llm/test_failures.py"
        "::test_a_server_that_slows_us_down_within_a_stream_is_no_overflow",
    ),
    # --- the Responses API ---
    mutant(
        "reasoning-without-its-content",
        "the server looks for it in a store that keeps nothing, and refuses the request",
        "looopy.llm.openai.responses_format:_reasoning",
        'return item | {"encrypted_content": encrypted}',
        "return item",
        f"{_WIRE}::test_a_conversation_is_replayed_as_it_was",
        f"{_WIRE}::test_a_turn_with_tools_keeps_its_reasoning",
    ),
    mutant(
        "reasoning-for-strangers",
        "a history that goes on with another provider is refused",
        "looopy.llm.openai.responses_format:_input",
        "own = message.provider == provider and message.api == API",
        "own = message.api == API",
        f"{_WIRE}::test_reasoning_of_another_provider_is_not_replayed",
    ),
    mutant(
        "arguments-twice",
        "a call that comes whole amid another loses its arguments",
        "looopy.llm.openai.responses_events:EventReader._whole",
        "shown = place in self._shown",
        "shown = bool(self._shown)",
        "tests/wire/test_answers.py::test_an_answer_becomes_a_message",
    ),
    # --- several providers ---
    mutant(
        "two-models-in-one-answer",
        "half an answer of one model is continued by another",
        "looopy.llm.fallback:_Chain.ask",
        "if isinstance(error, LLMError) and mendable and not shown:",
        "if isinstance(error, LLMError) and mendable:",
        f"{_FALLBACK}::test_half_an_answer_is_not_continued_by_another",
    ),
    mutant(
        "anybodys-key",
        "the key of one provider is sent to another",
        "looopy.llm.fallback:_Chain._options_of",
        "key = None if key_of is None else await key_of(its.name)",
        "key = options.api_key",
        f"{_FALLBACK}::test_each_is_called_with_its_own_key",
    ),
    mutant(
        "nobody-tries-again",
        "a provider whose trial was cancelled is left out for good",
        "looopy.llm.fallback:FallbackProvider.stream",
        "breaker.leave()",
        "pass",
        f"{_FALLBACK}::test_a_cancelled_trial_leaves_room_for_another",
    ),
    mutant(
        "left-out-for-good-days",
        "failures of a week add up, whatever went well in between",
        "looopy.llm.fallback:_Chain.ask",
        "breaker.succeeded()",
        "pass",
        f"{_FALLBACK}::test_a_model_that_answers_in_between_is_not_skipped",
    ),
    # --- thoughts in tags ---
    mutant(
        "cut-tags-are-text",
        "a thought is shown to the reader where the stream was cut within its tag",
        "looopy.llm.thoughts:TagSplitter._angle",
        "if (begun or short) and len(rest) < _LONGEST_TAG and not final:",
        "if begun and len(rest) < _LONGEST_TAG and not final:",
        "tests/unit/llm/test_thoughts.py::test_a_text_is_split",
        "tests/property/test_tag_splitter.py::test_the_split_does_not_depend_on_the_cuts",
    ),
    mutant(
        "words-run-together",
        "the space between two words is lost with the thought between them",
        "looopy.llm.thoughts:TagSplitter._say",
        "alone = self._tagged and (not self._last or self._last.isspace())",
        "alone = self._tagged",
        "tests/unit/llm/test_thoughts.py::test_a_text_is_split",
    ),
]
