"""Mistakes in what goes to Anthropic's API and what is made of its answers."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_KEYS = "tests/wire/test_keys.py"
_FAILURES = "tests/unit/llm/test_failures.py"
_EACH = "tests/wire/test_each_wire.py"
_WIRE = "tests/wire/test_anthropic_wire.py"
_REQUESTS = "tests/wire/test_anthropic_requests.py"
_AGENT = "tests/wire/test_anthropic_agent.py"
_SPLICES = "tests/property/test_splices.py"
_PROPERTY = "tests/property/test_requests_validity.py"

MUTANTS = [
    # --- hostile words ---
    mutant(
        "whole-body-matched",
        "patterns are given whatever amount a server sends",
        "looopy.llm.failures:failure_of",
        "text = redact(_text_of(error, body), secrets, most=_MAX_READ)",
        "text = redact(_text_of(error, body), secrets)",
        f"{_FAILURES}::test_only_the_beginning_of_a_body_is_matched",
    ),
    mutant(
        "half-a-key-at-the-cut",
        "the beginning of a key is shown where a long body is cut",
        "looopy.llm.failures:redact",
        "return redactor.split(text[:most])[0]",
        "return redactor.text(text[:most])",
        f"{_FAILURES}::test_a_key_cut_at_the_end_of_the_body_is_not_shown",
    ),
    mutant(
        "runs-read-anew",
        "a run of backticks that comes in pieces is read from its beginning for each",
        "looopy.llm.thoughts:_LONGEST_RUN",
        "_LONGEST_RUN: Final = 512",
        "_LONGEST_RUN: Final = 10**9",
        "tests/unit/llm/test_thoughts.py::test_no_run_of_characters_is_read_again_and_again",
    ),
    # --- two answers in one stream ---
    mutant(
        "second-start-is-read-on",
        "a gateway that begins an answer again makes a tool run for both",
        "looopy.llm.anthropic.events:EventReader.feed",
        "if self._kinds or self.finished:",
        "if self.finished:",
        f"{_SPLICES}::test_second_start_amid_blocks_breaks_the_stream_whatever_their_numbers",
    ),
    mutant(
        "second-id-is-read-on",
        "a gateway that begins an answer again makes a tool run for both",
        "looopy.llm.openai.chat:_Splices.found",
        "return changed and (self._repeats or (spoke and ended))",
        "return changed and spoke and ended",
        f"{_SPLICES}::test_second_answer_among_chunks_breaks_the_stream",
    ),
    mutant(
        "ids-of-chunks-break-answers",
        "no answer of a server that gives each chunk an id of its own is taken",
        "looopy.llm.openai.chat:_Splices.found",
        "return changed and (self._repeats or (spoke and ended))",
        "return changed",
        f"{_SPLICES}::test_odd_ids_and_roles_are_one_answer",
    ),
    # --- thoughts ---
    mutant(
        "redaction-forgotten",
        "a thought that the provider withheld comes back as another kind, and is refused",
        "looopy.types.message_fields",
        """"redacted": _ours(_FLAG, default=False),""",
        "",
        f"{_AGENT}::test_thoughts_survive_a_restart_byte_for_byte",
    ),
    mutant(
        "thoughts-run-together",
        "two signed thoughts become one that nobody signed",
        "looopy.llm.anthropic.events:EventReader._end",
        "return self._answer.end_block()",
        "return ()",
        f"{_WIRE}::test_all_kinds_of_blocks_come_in_order",
        f"{_REQUESTS}::test_thinking_goes_back_byte_for_byte",
    ),
    mutant(
        "thinking-amid-calls",
        "a change of the level or the model within a turn is refused by the API",
        "looopy.llm.anthropic.format:_set_thinking",
        'if budget < _MIN_BUDGET or not _may_begin_to_think(body["messages"]):',
        "if budget < _MIN_BUDGET:",
        f"{_REQUESTS}::test_thinking_does_not_begin_amid_calls_that_began_without",
        f"{_AGENT}::test_a_refused_history_is_tried_once_without_thoughts",
        f"{_PROPERTY}::test_any_log_goes_out_valid",
    ),
    mutant(
        "budget-above-max-tokens",
        "every request with a small max_tokens and a level of thinking is refused",
        "looopy.llm.anthropic.format:_set_thinking",
        "budget = min(max(wish, _MIN_BUDGET), most - _MIN_OUTPUT)",
        "budget = max(wish, _MIN_BUDGET)",
        f"{_REQUESTS}::test_thinking_is_a_part_of_max_tokens",
    ),
    mutant(
        "bound-thoughts-not-dropped",
        "with the latest models a window or a prompt of the day ends the conversation",
        "looopy.llm.anthropic.format:_set_thinking",
        "elif abilities.bound:",
        "elif False:",
        f"{_REQUESTS}::test_thoughts_may_be_left_out_where_their_past_was_changed",
    ),
    # --- messages ---
    mutant(
        "roles-do-not-alternate",
        "two messages of the user in a row are refused by strict servers",
        "looopy.llm.anthropic.format:_messages",
        'if sent and sent[-1]["role"] == role:',
        "if False:",
        f"{_REQUESTS}::test_user_and_assistant_take_turns",
        f"{_PROPERTY}::test_any_log_goes_out_valid",
    ),
    mutant(
        "assistant-speaks-last",
        "going on after a cancelled answer is refused by the later models",
        "looopy.llm.anthropic.format:_messages",
        'if not sent or (sent[-1]["role"] == "assistant" and not going_on):',
        "if not sent:",
        f"{_REQUESTS}::test_user_and_assistant_take_turns",
        f"{_PROPERTY}::test_any_log_goes_out_valid",
    ),
    mutant(
        "broken-answer-beside-the-new-one",
        "the model sees half an answer and the whole one as if both were one",
        "looopy.llm.anthropic.format:_superseded",
        "return not message.tool_calls and not isinstance(after, UserMessage)",
        "return False and after is None",
        f"{_REQUESTS}::test_an_aborted_answer_is_sent_only_with_its_next_message",
    ),
    mutant(
        "tools-used-but-not-defined",
        "an agent without tools cannot go on with a conversation that had some",
        "looopy.llm.anthropic.format:to_body",
        "elif used := _tools_used(messages):",
        "elif used := _tools_used([]):",
        f"{_REQUESTS}::test_a_history_with_tools_goes_out_without_tools",
        f"{_PROPERTY}::test_any_log_goes_out_valid",
    ),
    # --- the cache ---
    mutant(
        "one-mark-only",
        "after many tool results the API finds nothing of what it kept",
        "looopy.llm.anthropic.format:_mark",
        "for block in ends[-2:]:",
        "for block in ends[-1:]:",
        f"{_REQUESTS}::test_tools_prompt_and_the_last_two_messages_are_marked_for_the_cache",
    ),
    mutant(
        "cached-tokens-not-counted",
        "a turn seems to cost a tenth of what it does",
        "looopy.llm.anthropic.events:EventReader._count",
        'cache_write=counts.get("cache_creation_input_tokens", 0),',
        "",
        "tests/wire/test_answers.py::test_an_answer_becomes_a_message",
        f"{_AGENT}::test_usage_of_a_turn_has_the_tokens_of_the_cache",
    ),
    # --- the call ---
    mutant(
        "cut-answer-taken-for-whole",
        "half an answer, or half of its calls, counts as the answer",
        "looopy.llm.anthropic.events:EventReader.end",
        "if self._stop is None:",
        "if False:",
        f"{_EACH}::test_an_answer_without_its_end_is_an_error",
    ),
    mutant(
        "sdk-retries-in-secret",
        "a refused call is made three times, with waits that nobody sees",
        "looopy.llm.sdk:SDKProvider._new_client",
        "max_retries=0,",
        "max_retries=1,",
        f"{_EACH}::test_a_rate_limit_has_the_delay",
    ),
    mutant(
        "silence-without-end",
        "a stalled answer holds the turn until its last minute",
        "looopy.llm.sdk:SDKProvider._patience_s",
        "return call.idle_s if call.begun else call.idle_s * _FIRST_EVENT_FACTOR",
        "return math.inf",
        f"{_AGENT}::test_a_passing_failure_is_tried_again",
    ),
    mutant(
        "key-for-another-server",
        "a server named by hand is sent the key that was meant for Anthropic",
        "looopy.llm.anthropic.provider:AnthropicProvider.__init__",
        'key_variable="" if base_url or client else KEY_VARIABLE,',
        'key_variable="" if client else KEY_VARIABLE,',
        f"{_EACH}::test_the_key_of_the_environment_is_not_sent_to_another_server",
    ),
    mutant(
        "key-for-an-own-client",
        "a client that brings its key is sent the environment's, which is another server's",
        "looopy.llm.openai.provider:OpenAIProvider.__init__",
        '("" if base_url or client else "OPENAI_API_KEY")',
        '("" if base_url else "OPENAI_API_KEY")',
        f"{_KEYS}::test_a_client_of_ones_own_gets_no_key_of_the_environment",
    ),
    mutant(
        "key-where-each-call-brings-one",
        "a call that was to bring its own key is made with whatever the environment holds",
        "looopy.llm.sdk:SDKProvider._key",
        "elif self._api_key is None:",
        "elif not self._api_key:",
        f"{_KEYS}::test_where_every_call_brings_its_key_none_is_taken_from_the_environment",
    ),
    mutant(
        "context-named-in-the-open",
        "the name of a context, often a person's, goes to the provider",
        "looopy.llm.anthropic.format:to_body",
        'body["metadata"] = {"user_id": _opaque(options.session_id)}',
        'body["metadata"] = {"user_id": options.session_id}',
        f"{_REQUESTS}::test_the_context_is_sent_as_an_opaque_id",
    ),
]
