"""What a log becomes on its way to a provider, case by case."""

from __future__ import annotations

import pytest

import looopy.llm
from looopy.llm.render import (
    CANCELLED,
    NOT_STARTED,
    OUTCOME_UNKNOWN,
    render,
    synthetic_result,
)
from looopy.types.message import (
    AssistantBlock,
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

ASK = UserMessage("what is 2 + 3?", timestamp=1)
NEXT = UserMessage("and 4 + 5?", timestamp=9)
CLAUDE = {"provider": "anthropic", "model": "claude-sonnet-4-5"}


def said(*blocks: AssistantBlock | str, stop: StopReason = StopReason.STOP) -> AssistantMessage:
    content = tuple(TextContent(b) if isinstance(b, str) else b for b in blocks)
    return AssistantMessage(content, **CLAUDE, stop_reason=stop, timestamp=2)


def call(call_id: str = "c1", **extra: str) -> ToolCall:
    return ToolCall(call_id, "add", {"a": 2, "b": 3}, **extra)


def done(text: str = "5", call_id: str = "c1") -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id, tool_name="add", content=(TextContent(text),), timestamp=3
    )


def missing(text: str = OUTCOME_UNKNOWN, call_id: str = "c1") -> ToolResultMessage:
    return synthetic_result(call(call_id), text, timestamp=2)


def signed(thinking: str = "hm", signature: str = "opaque") -> ThinkingContent:
    return ThinkingContent(thinking, thinking_signature=signature)


def test_the_package_exports_the_function_also_after_its_module_was_imported() -> None:
    """`looopy.llm.render` is the function, though a module has the same name."""
    assert looopy.llm.render is render


def test_an_empty_log_renders_empty() -> None:
    """Nothing is made up."""
    assert render([]) == []


def test_a_missing_result_is_rendered_as_an_unknown_outcome() -> None:
    """The call may have run: the model is told to look before it tries again."""
    assert render([ASK, said(call()), NEXT]) == [ASK, said(call()), missing(), NEXT]


def test_a_missing_result_is_marked_and_dated_like_its_call() -> None:
    """Rendered twice it is the same bytes, so that a prompt cache still fits."""
    result = render([ASK, said(call())])[-1]
    assert isinstance(result, ToolResultMessage)
    assert (result.is_error, result.details, result.timestamp) == (True, {"synthetic": True}, 2)
    assert render([ASK, said(call())])[-1] == result


def test_a_call_with_arguments_that_were_no_json_was_not_started() -> None:
    """Its arguments were cut off or broken, so nothing can have run."""
    broken = call(invalid_arguments='{"a": ')
    rendered = render([ASK, said(broken, stop=StopReason.LENGTH), NEXT])
    assert rendered[2] == synthetic_result(broken, NOT_STARTED, timestamp=2)


def test_the_three_facts_differ() -> None:
    """What was not run, what may have run and what was refused are told apart."""
    assert len({NOT_STARTED, OUTCOME_UNKNOWN, CANCELLED}) == 3


def test_a_result_that_came_after_the_next_question_moves_up_to_its_call() -> None:
    """A user who spoke while the tool ran does not hide what it found."""
    log: list[Message] = [ASK, said(call()), NEXT, done()]
    assert render(log) == [ASK, said(call()), done(), NEXT]


def test_results_stand_in_the_order_of_the_calls() -> None:
    """Parallel tools finish in any order."""
    both = said(call("c1"), call("c2"))
    log = [ASK, both, done("two", "c2"), done("one", "c1")]
    assert render(log) == [ASK, both, done("one", "c1"), done("two", "c2")]


def test_the_first_of_two_results_is_rendered() -> None:
    """What was committed first is what happened."""
    log = [ASK, said(call()), done("5"), done("6"), NEXT]
    assert render(log) == [ASK, said(call()), done("5"), NEXT]


def test_a_result_without_a_call_is_left_out() -> None:
    """A call is never made up for it."""
    assert render([ASK, done(), NEXT]) == [ASK, NEXT]


def test_a_result_in_front_of_its_call_is_left_out() -> None:
    """It belongs to an older call of the same id that a window cut off."""
    assert render([done("old"), ASK, said(call())]) == [ASK, said(call()), missing()]


def test_an_id_that_repeats_in_a_later_turn_has_its_own_result() -> None:
    """Models that count their calls from one in each answer are not mixed up."""
    log = [ASK, said(call()), done("5"), said("5"), NEXT, said(call()), done("9")]
    assert render(log) == log


def test_a_late_result_of_a_repeated_id_goes_to_the_newest_call() -> None:
    """An older call of that id that was never answered gets no result of another."""
    log = [ASK, said(call()), NEXT, said(call()), done("9"), done("again")]
    assert render(log) == [ASK, said(call()), missing(), NEXT, said(call()), done("9")]


def test_for_anthropic_an_id_that_repeats_becomes_unique_on_both_sides() -> None:
    """It refuses a request in which two calls share an id, however far apart."""
    log = [ASK, said(call()), done("5"), NEXT, said(call()), done("9")]
    rendered = render(log, **CLAUDE)
    assert rendered[:4] == log[:4]
    assert rendered[4:] == [said(call("c1-2")), done("9", "c1-2")]


def test_blank_and_double_ids_of_one_message_become_unique_on_both_sides() -> None:
    """Their results are taken in the order of the calls."""
    log = [
        ASK,
        said(call(""), call("c1"), call("c1"), call("")),
        *(done("1", ""), done("2"), done("3"), done("4", "")),
    ]
    rendered = render(log)
    assert rendered[1] == said(call("call-1"), call("c1"), call("c1-2"), call("call-2"))
    assert [(r.tool_call_id, r.text) for r in rendered[2:] if isinstance(r, ToolResultMessage)] == [
        ("call-1", "1"),
        ("c1", "2"),
        ("c1-2", "3"),
        ("call-2", "4"),
    ]


def test_ids_of_another_provider_become_short_and_plain() -> None:
    """Length and alphabet differ between providers; two long ids stay two."""
    ids = ["x|" * 40 + "1", "x|" * 40 + "2"]
    log = [ASK, said(*map(call, ids)), done("1", ids[0]), done("2", ids[1])]
    rendered = render(log, provider="openai", model="gpt")
    assert isinstance(rendered[1], AssistantMessage)
    first, second = (c.id for c in rendered[1].tool_calls)
    assert first != second
    assert max(len(first), len(second)) == 40
    assert (first + second).replace("_", "").replace("-", "").isalnum()
    assert rendered[2:] == [done("1", first), done("2", second)]


@pytest.mark.parametrize(
    ("made_up", "shown"),
    [("functions.add", "functions_add"), ("", "unnamed"), ("n" * 70, "n" * 64), ("add-2", "add-2")],
)
def test_a_name_that_no_tool_can_have_becomes_one(made_up: str, shown: str) -> None:
    """A model's invention, answered by an error result, must not spoil every later request."""
    log = [ASK, said(ToolCall("c1", made_up)), done("no such tool")]
    assert render(log) == [ASK, said(ToolCall("c1", shown)), done("no such tool")]


def test_an_aborted_answer_keeps_its_text_and_loses_its_calls_and_unsigned_thinking() -> None:
    """What the user saw stays; what had not come to its end goes."""
    for stop in (StopReason.ERROR, StopReason.ABORTED):
        partial = said(ThinkingContent("hal"), "the sum is", call(), stop=stop)
        assert render([ASK, partial, NEXT]) == [ASK, said("the sum is", stop=stop), NEXT]


def test_an_aborted_answer_without_content_is_omitted() -> None:
    """Also where it held signed thinking, which leads to nothing."""
    for blocks in ([], [call()], [ThinkingContent("hal")], [signed()], [" "], [signed(), call()]):
        partial = said(*blocks, stop=StopReason.ABORTED)
        assert render([ASK, partial, NEXT]) == [ASK, NEXT]


def test_an_aborted_answer_keeps_a_call_that_has_a_result() -> None:
    """It ran, and the model must know; the others of the message never did."""
    partial = said("let me", call("c1"), call("c2"), stop=StopReason.ABORTED)
    kept = said("let me", call("c1"), stop=StopReason.ABORTED)
    assert render([ASK, partial, done(), NEXT]) == [ASK, kept, done(), NEXT]
    assert render([ASK, partial, NEXT, done()]) == [ASK, kept, done(), NEXT]


def test_signed_thinking_of_an_aborted_answer_stays_in_front_of_its_text() -> None:
    """It was complete when the stream ended."""
    partial = said(signed(), "the sum", stop=StopReason.ABORTED)
    assert render([ASK, partial, NEXT], **CLAUDE) == [ASK, partial, NEXT]


def test_messages_of_other_roles_are_left_out() -> None:
    """They are for the application."""
    assert render([ASK, CustomMessage("note", "hidden"), said("5")]) == [ASK, said("5")]


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_empty_messages_are_omitted(blank: str) -> None:
    """No empty text, no message without content, no image without data."""
    log = [
        UserMessage(blank, timestamp=1),
        UserMessage((TextContent(blank), ImageContent("")), timestamp=1),
        UserMessage((), timestamp=1),
        UserMessage((TextContent(blank), TextContent("2 + 3?")), timestamp=1),
        said(blank),
        said(),
        said(blank, "5", blank),
        NEXT,
    ]
    assert render(log) == [UserMessage((TextContent("2 + 3?"),), timestamp=1), said("5"), NEXT]


def test_an_empty_result_stays_because_its_call_needs_it() -> None:
    """Only its empty texts go."""
    empty = ToolResultMessage(tool_call_id="c1", tool_name="add", timestamp=3)
    assert render([ASK, said(call()), done("")]) == [ASK, said(call()), empty]
    assert render([ASK, said(call()), empty]) == [ASK, said(call()), empty]


def test_an_image_is_something_to_say() -> None:
    """A user message may be a picture alone."""
    picture = UserMessage((ImageContent("aW1n"),), timestamp=1)
    assert render([picture]) == [picture]


def test_only_the_last_answer_loses_its_trailing_space() -> None:
    """Where the model is to go on writing it would be refused; elsewhere it is kept as it is."""
    assert render([ASK, said("5 \n")]) == [ASK, said("5")]
    log = [ASK, said("5 \n"), NEXT]
    assert render(log) == log


def test_signed_thinking_goes_back_to_the_model_that_made_it() -> None:
    """Unchanged, redacted or not; a dated name is the same model."""
    log = [ASK, said(signed(""), signed(), call()), done()]
    assert render(log, **CLAUDE) == log
    assert render(log, provider="anthropic", model="claude-sonnet-4-5-20250929") == log
    assert render(log, provider="anthropic") == log
    assert render(log) == log
    assert all(a is b for a, b in zip(render(log, **CLAUDE), log, strict=True))


@pytest.mark.parametrize(
    ("provider", "model"), [("anthropic", "claude-opus-4-1"), ("openai", "claude-sonnet-4-5")]
)
def test_for_another_model_everything_signed_is_dropped_whole(provider: str, model: str) -> None:
    """Thinking goes; text and calls stay and lose their signatures."""
    log = [
        ASK,
        said(signed(), TextContent("so", text_signature="t"), call(thought_signature="g")),
        done(),
    ]
    assert render(log, provider=provider, model=model) == [ASK, said("so", call()), done()]


def test_unsigned_thinking_goes_when_the_reader_is_known() -> None:
    """A provider would ask for the signature; nobody knows what an unknown reader wants."""
    log = [ASK, said(ThinkingContent("hm"), "5"), NEXT]
    assert render(log, **CLAUDE) == [ASK, said("5"), NEXT]
    assert render(log) == log
    assert render([ASK, said(ThinkingContent(""), "5"), NEXT]) == [ASK, said("5"), NEXT]


def test_thinking_without_an_answer_is_omitted() -> None:
    """It may not stand alone, nor at the end of a message."""
    assert render([ASK, said(signed()), NEXT], **CLAUDE) == [ASK, NEXT]
    assert render([ASK, said("5", signed()), NEXT], **CLAUDE) == [ASK, said("5"), NEXT]


def test_neighbours_of_one_role_are_joined_on_request() -> None:
    """Texts become one text; with blocks they become blocks."""
    blocks = UserMessage((ImageContent("aW1n"),), timestamp=9)
    log = [ASK, NEXT, blocks, said("one"), said("two", call()), done()]
    assert render(log, merge_same_role=True) == [
        UserMessage(
            (TextContent("what is 2 + 3?\n\nand 4 + 5?"), ImageContent("aW1n")), timestamp=1
        ),
        said("one", "two", call()),
        done(),
    ]
    assert render(log) == log


def test_messages_are_not_joined_across_tool_groups_or_signed_blocks() -> None:
    """Results keep their call; signed blocks keep their message."""
    log = [ASK, said(call()), done(), said("5"), said(signed(), "more"), NEXT]
    assert render(log, merge_same_role=True, **CLAUDE) == log


def test_the_strict_rendering_has_no_thinking_and_no_neighbours_of_one_role() -> None:
    """The second try after a refusal gives up whatever may have caused it."""
    log = [
        *(ASK, NEXT),
        said(signed(), "one"),
        said(TextContent("two", text_signature="t"), call("a|b"), call("c1")),
        *(done("1", "a|b"), done("2")),
        *(said(call()), done("3")),
    ]
    rendered = render(log, strict=True)
    roles = ["user", "assistant", "toolResult", "toolResult", "assistant", "toolResult"]
    assert [m.role for m in rendered] == roles
    assert isinstance(rendered[1], AssistantMessage)
    assert rendered[1].text == "one\ntwo"
    assert rendered[1].thinking_text == ""
    assert [r.text for r in rendered if isinstance(r, ToolResultMessage)] == ["1", "2", "3"]
    ids = [c.id for m in rendered if isinstance(m, AssistantMessage) for c in m.tool_calls]
    assert len(set(ids)) == 3
    assert "|" not in "".join(ids)


def test_the_log_is_never_edited() -> None:
    """It is evidence: what comes out of a repair are new messages in a new list."""
    log = [UserMessage(""), ASK, said("", call()), NEXT, done()]
    before = list(log)
    render(log, strict=True)
    assert log == before
