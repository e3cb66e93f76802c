"""Mistakes in stores of an application's own: the order of a step, and whom looopy believes."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_BAD = "tests/contract/own/test_bad_stores.py"
_OVERTAKEN = f"{_BAD}::test_a_step_that_another_process_overtook_is_taken_again"
_LOST = f"{_BAD}::test_a_state_store_whose_answer_was_lost_doubles_nothing"
_LEFT = f"{_BAD}::test_messages_that_a_store_did_not_take_are_appended_later"
_LACKS = f"{_BAD}::test_a_missing_method_of_a_store_is_named"
_SPOILT = f"{_BAD}::test_a_history_that_was_spoilt_is_refused"
_SWAPPED = "message 2 of context 'c' otherwise than it was appended, or in another order"

MUTANTS = [
    mutant(
        "own-messages-before-their-head",
        "a step that does not count has appended its messages",
        "looopy.stores.plain.backend:PlainBackend._write",
        "await self.state.save_head(context_id, document, kept.revision)",
        "if new:\n"
        '    await self.messages.append(context_id, new[0].position, document["unwritten"])\n'
        "await self.state.save_head(context_id, document, kept.revision)",
        _OVERTAKEN,
    ),
    mutant(
        "own-head-without-messages",
        "messages of a killed process are lost",
        "looopy.stores.plain.backend:PlainBackend._write",
        '"unwritten": [one.body for one in new]',
        '"unwritten": []',
        _LEFT,
    ),
    mutant(
        "own-messages-left-by-the-dead",
        "nobody appends what a killed process has left in the head",
        "looopy.stores.plain.messages:OwnMessages.placed",
        "if left and all(hashed in waiting for _, hashed in left):",
        "if not places:",
        _LEFT,
    ),
    mutant(
        "own-append-that-wrote-fails",
        "a turn fails although its messages are there",
        "looopy.stores.plain.messages:OwnMessages.append",
        "failed = error",
        "raise",
        f"{_BAD}::test_a_store_that_raises_after_a_write_doubles_no_message",
    ),
    mutant(
        "own-first-append-unproved",
        "a store that keeps half of each message is found out at the next start",
        "looopy.stores.plain.messages:OwnMessages.append",
        "if failed is None and self._is_proved:",
        "if failed is None:",
        f"{_BAD}::test_a_store_that_keeps_half_a_message_is_refused_at_its_first_append",
    ),
    mutant(
        "own-history-unchecked",
        "the model is sent a history that lacks messages",
        "looopy.stores.plain.messages:OwnMessages._check_all",
        "if len(found) == len(places):",
        "if found or places:",
        f"{_SPOILT}[False-swapped-{_SWAPPED}]",
    ),
    mutant(
        "own-messages-not-looked-at",
        "a store that is emptied under a running agent is not noticed",
        "looopy.stores.plain.composed:ComposedStateStore.claim",
        "looks=True",
        "looks=False",
        f"{_SPOILT}[True-swapped-{_SWAPPED}]",
    ),
    mutant(
        "own-foreign-messages-left-out",
        "two agents with two state stores have two pasts, and say nothing",
        "looopy.stores.plain.messages:OwnMessages._check_known",
        "if is_own:\n    raise wrong",
        "",
        f"{_BAD}::test_two_state_stores_over_one_message_store_are_refused",
    ),
    mutant(
        "own-refused-write-counts",
        "two processes begin the same turn",
        "looopy.stores.plain.state:OwnState.save_head",
        'if not written and not await self._has(key, document["stamp"]):\n    raise Overtaken',
        "",
        _OVERTAKEN,
    ),
    mutant(
        "own-write-that-was-made-is-refused",
        "a step whose answer was lost is taken twice",
        "looopy.stores.plain.state:OwnState.save_head",
        'if not written and not await self._has(key, document["stamp"]):',
        "if not written:",
        f"{_LOST}[False]",
    ),
    mutant(
        "own-answer-of-the-state-lost",
        "a turn fails although its head was written",
        "looopy.stores.plain.state:OwnState.save_head",
        'if not await self._has(key, document["stamp"]):',
        "if True:",
        f"{_LOST}[True]",
    ),
    mutant(
        "own-messages-of-a-later-head",
        "a turn fails because another process has taken one meanwhile",
        "looopy.stores.plain.backend:PlainBackend._bring",
        "if not tries or not await self.state.has_moved(key_of(*key), head):",
        "if True:",
        f"{_BAD}::test_messages_of_a_later_head_are_read_with_that",
    ),
    mutant(
        "own-warning-each-time",
        "an application that makes an agent a request fills its log",
        "looopy.stores.plain.state:OwnState.__init__",
        "if not self.compares and _is_new(store):",
        "if not self.compares:",
        f"{_BAD}::test_a_state_store_without_a_way_to_compare_warns_once",
    ),
    mutant(
        "own-method-missing-later",
        "a store without `append` fails in the first turn",
        "looopy.stores.plain.calls:Calls.__init__",
        "if not any(self.has(name) for name in names):",
        "if not names:",
        _LACKS,
    ),
    mutant(
        "own-clear-missing-later",
        "a context whose messages cannot be removed counts as cleared",
        "looopy.stores.plain.backend:PlainBackend._write",
        'self.messages.calls.require("clear", "clearing a context")',
        "pass",
        _LACKS,
    ),
    mutant(
        "own-clear-of-an-earlier-head",
        "a process that comes late removes the messages of a cleared context's next turn",
        "looopy.stores.plain.backend:PlainBackend._bring",
        "if tries and await self.state.has_moved(key_of(*key), head):",
        "if not tries:",
        f"{_BAD}::test_messages_after_a_clear_survive_a_process_that_saw_only_the_clear",
    ),
    mutant(
        "own-message-without-a-time",
        "messages from before are others at each look, and the store seems to have gone back",
        "looopy.stores.plain.messages:OwnMessages._message",
        'if "timestamp" not in data:',
        "if not data:",
        f"{_SPOILT}[True-<lambda>-item 4 has no `timestamp`]",
    ),
    mutant(
        "own-part-of-the-log-loaded-anew",
        "each step of a long context loads its whole log",
        "looopy.stores.plain.backend:PlainBackend._bring",
        "self._full[key] = full_chapters(chapters, found)",
        "pass",
        f"{_BAD}::test_parts_of_the_log_that_do_not_change_are_loaded_once",
    ),
    mutant(
        "own-object-changed-in-its-place",
        "the model is sent other words than were said",
        "looopy.stores.plain.messages:_is_equal",
        "type(one) is dict and known is not one and known == one",
        "known == one",
        f"{_BAD}::test_an_object_that_the_store_changed_in_its_place_is_refused",
    ),
]
