"""Mistakes in calling models: waiting, counting, falling back, reading what they say."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_CALL = "src/looopy/loop/model_call.py"
_CHAIN = "src/looopy/llm/fallback.py"
_RESPONSES = "src/looopy/llm/openai/responses_format.py"
_TAGS = "src/looopy/llm/thoughts.py"
_CALLS = "tests/agent/test_model_calls.py"
_FALLBACK = "tests/agent/test_fallback.py"
_WIRE = "tests/wire/test_responses_wire.py"

MUTANTS = [
    # --- waiting ---
    mutant(
        "too-early",
        "who comes in the second that a server rounded away is turned away again",
        "src/looopy/llm/retry.py",
        "        return max(0.0, asked + margin)\n",
        "        return max(0.0, asked)\n",
        "tests/unit/llm/test_retry.py::test_a_rounded_delay_gets_a_second_more",
    ),
    mutant(
        "silence-ends-the-turn",
        "a provider that stalls once cancels the turn, where another try would have answered",
        _CALL,
        "        if late is None:\n",
        "        if late is None or True:\n",
        f"{_CALLS}::test_a_provider_that_never_looks_at_the_time_is_given_up",
    ),
    # --- counting ---
    mutant(
        "failed-attempts-are-free",
        "a budget of money lets retries through that were paid for",
        _CALL,
        "            turn.use(attempt.final.message.usage)\n",
        "            pass\n",
        f"{_CALLS}::test_what_a_failed_attempt_used_counts",
        f"{_CALLS}::test_a_budget_of_money_counts_failed_attempts",
    ),
    mutant(
        "cancelled-calls-are-free",
        "what a cancelled call had used is in no sum",
        _CALL,
        "        turn.use(partial.usage)\n",
        "        pass\n",
        f"{_CALLS}::test_a_cancelled_turn_counts_what_it_used_so_far",
    ),
    mutant(
        "cache-at-full-price",
        "what was written to the cache is told as plain input",
        "src/looopy/llm/prices.py",
        "            saved = priced.input(read=0, written=written) - whole.input_price\n",
        "            saved = priced.input(read=0, written=0) - whole.input_price\n",
        "tests/unit/llm/test_prices.py::test_what_is_written_to_a_cache_has_its_own_price",
    ),
    # --- a window that is full ---
    mutant(
        "relief-again-and-again",
        "a turn compacts for ever when that does not help",
        _CALL,
        "    relief, turn.relief = turn.relief, None\n",
        "    relief = turn.relief\n",
        f"{_CALLS}::test_a_second_overflow_of_a_turn_fails_it",
    ),
    mutant(
        "rate-limit-is-an-overflow",
        "a server that slows us down within a stream makes the agent forget its history",
        "src/looopy/llm/failures.py",
        "        or (status is None and _SLOW_DOWN.search(evidence))\n",
        "",
        "tests/unit/llm/test_failures.py"
        "::test_a_server_that_slows_us_down_within_a_stream_is_no_overflow",
    ),
    # --- the Responses API ---
    mutant(
        "reasoning-without-its-content",
        "the server looks for it in a store that keeps nothing, and refuses the request",
        _RESPONSES,
        '    return item | {"encrypted_content": encrypted}\n',
        "    return item\n",
        f"{_WIRE}::test_a_conversation_is_replayed_as_it_was",
        f"{_WIRE}::test_a_turn_with_tools_keeps_its_reasoning",
    ),
    mutant(
        "reasoning-for-strangers",
        "a history that goes on with another provider is refused",
        _RESPONSES,
        "            own = message.provider == provider and message.api == API\n",
        "            own = message.api == API\n",
        f"{_WIRE}::test_reasoning_of_another_provider_is_not_replayed",
    ),
    mutant(
        "arguments-twice",
        "a call that comes whole amid another loses its arguments",
        "src/looopy/llm/openai/responses_events.py",
        "        shown = place in self._shown\n",
        "        shown = bool(self._shown)\n",
        f"{_WIRE}::test_a_call_that_comes_whole_amid_another_is_whole",
    ),
    # --- several providers ---
    mutant(
        "two-models-in-one-answer",
        "half an answer of one model is continued by another",
        _CHAIN,
        "                    if isinstance(error, LLMError) and mendable and not shown:\n",
        "                    if isinstance(error, LLMError) and mendable:\n",
        f"{_FALLBACK}::test_half_an_answer_is_not_continued_by_another",
    ),
    mutant(
        "anybodys-key",
        "the key of one provider is sent to another",
        _CHAIN,
        '        key = None if key_of is None else await key_of(getattr(provider, "name", ""))\n',
        "        key = options.api_key\n",
        f"{_FALLBACK}::test_each_is_called_with_its_own_key",
    ),
    mutant(
        "nobody-tries-again",
        "a provider whose trial was cancelled is left out for good",
        _CHAIN,
        "                breaker.leave()\n",
        "                pass\n",
        f"{_FALLBACK}::test_a_cancelled_trial_leaves_room_for_another",
    ),
    mutant(
        "left-out-for-good-days",
        "failures of a week add up, whatever went well in between",
        _CHAIN,
        "                    breaker.succeeded()\n",
        "                    pass\n",
        f"{_FALLBACK}::test_one_that_answers_in_between_is_not_left_out",
    ),
    # --- thoughts in tags ---
    mutant(
        "cut-tags-are-text",
        "a thought is shown to the reader where the stream was cut within its tag",
        _TAGS,
        "        if (begun or short) and len(rest) < _LONGEST_TAG and not final:\n",
        "        if begun and len(rest) < _LONGEST_TAG and not final:\n",
        "tests/unit/llm/test_thoughts.py::test_a_text_is_split",
        "tests/property/test_tag_splitter.py::test_the_split_does_not_depend_on_the_cuts",
    ),
    mutant(
        "words-run-together",
        "the space between two words is lost with the thought between them",
        _TAGS,
        "            alone = self._tagged and (not self._last or self._last.isspace())\n",
        "            alone = self._tagged\n",
        "tests/unit/llm/test_thoughts.py::test_a_text_is_split",
    ),
]
