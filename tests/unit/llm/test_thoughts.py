"""Thoughts in tags are told from text, whole or character by character."""

from __future__ import annotations

import pytest
from tests.shares import split

from looopy.llm.thoughts import THOUGHT_TAGS, TagSplitter


def blocks(chunks, **options):
    """What comes of *chunks*: texts (`T:...`) and thoughts (`>...`), in order."""
    splitter = TagSplitter(**options)
    made = []
    for piece in [*(p for chunk in chunks for p in splitter.feed(chunk)), *splitter.close()]:
        assert piece.text
        mark = "T:" if piece.kind == "text" else ">"
        if piece.first or not made:
            assert piece.first
            made.append(mark + piece.text)
        else:
            assert made[-1].startswith(mark)
            made[-1] += piece.text
    return made


LONG = "x" * 600
CASES = {
    # What has no tags stays as it is.
    "": [],
    "hello": ["T:hello"],
    "  hello  ": ["T:  hello  "],
    " \n ": ["T: \n "],
    "a < b && c > d": ["T:a < b && c > d"],
    "<b>bold</b> <i/>": ["T:<b>bold</b> <i/>"],
    "1 <2 <3": ["T:1 <2 <3"],
    "<": ["T:<"],
    "</": ["T:</"],
    "<<<": ["T:<<<"],
    "line\n\nline\n": ["T:line\n\nline\n"],
    # A pair.
    "<think>a</think>": [">a"],
    "<think>a</think>b": [">a", "T:b"],
    "a<think>b</think>": ["T:a", ">b"],
    "a<think>b</think>c<think>d</think>e": ["T:a", ">b", "T:c", ">d", "T:e"],
    "<think>a</think><analysis>b</analysis>c": [">a", ">b", "T:c"],
    "<THINK>a</Think>b": [">a", "T:b"],
    "<think >a</think >b": [">a", "T:b"],
    "<think>a</think\n>b": [">a", "T:b"],
    "<think></think>b": ["T:b"],
    "<think> \n </think>b": ["T:b"],
    # Attributes.
    '<think type="brief">a</think>b': [">a", "T:b"],
    "<think type='brief' index=3 bare>a</think>b": [">a", "T:b"],
    '<think note="1 > 0">a</think>b': [">a", "T:b"],
    '<think note="</think>">a</think>b': [">a", "T:b"],
    "<think note='say \"no\"'>a</think>b": [">a", "T:b"],
    '<think a="1" a="2">a</think>b': [">a", "T:b"],
    '<think\n  a="1"\n>a</think>b': [">a", "T:b"],
    # Closed in itself, closing nothing, never closed, not a tag after all.
    "a<think/>b": ["T:ab"],
    "a <think note='x' /> b": ["T:a b"],
    "a</think>b": ["T:ab"],
    "</analysis>b": ["T:b"],
    "a<think>b": ["T:a", ">b"],
    "a<think>b</thin": ["T:a", ">b</thin"],
    "a<think>b</think": ["T:a", ">b</think"],
    "a<think": ["T:a<think"],
    'a<think note="x': ['T:a<think note="x'],
    "<thinkers>a": ["T:<thinkers>a"],
    "<thinking2>a": ["T:<thinking2>a"],
    "<think<think>a</think>b": ["T:<think", ">a", "T:b"],
    "< think>a": ["T:< think>a"],
    f"<think {LONG}>a": [f"T:<think {LONG}>a"],
    # Within a thought everything but its own end is thought.
    "<think>a <b>c</b> d</think>e": [">a <b>c</b> d", "T:e"],
    "<think>a<analysis>b</analysis>c</think>d": [">a<analysis>b</analysis>c", "T:d"],
    "<think>a</thinking>b</think>c": [">a</thinking>b", "T:c"],
    "<think>a<think>b</think>c</think>d": [">a<think>b", "T:cd"],
    "<think>`</think>`b": [">`", "T:`b"],
    "<think>a\n```\n</think>b": [">a\n```", "T:b"],
    # Whitespace: kept, but at the edges of tags.
    "<think>\n a  b \n</think>\n\nc": [">a  b", "T:c"],
    "a <think>b</think> c": ["T:a ", ">b", "T:c"],
    "a<think>b</think> c": ["T:a", ">b", "T: c"],
    "a<think>b</think>\n\nc": ["T:a", ">b", "T:\n\nc"],
    "a\n<think>b</think>\nc": ["T:a\n", ">b", "T:c"],
    " <think>a</think> b": [">a", "T:b"],
    "<think>a</think>\n<think>b</think>\nc": [">a", ">b", "T:c"],
    "a<think>b</think> <think>c</think>d": ["T:a", ">b", ">c", "T: d"],
    "a<think>b</think>\n": ["T:a", ">b"],
    # Code is code.
    "```\n<think>a</think>\n```\nb": ["T:```\n<think>a</think>\n```\nb"],
    "```xml\n<think>a</think>\n```\n<think>b</think>c": [
        "T:```xml\n<think>a</think>\n```\n",
        ">b",
        "T:c",
    ],
    "~~~\n<think>a\n```\n~~~\n<think>b</think>": ["T:~~~\n<think>a\n```\n~~~\n", ">b"],
    "````\n```\n<think>\n````\n<think>b</think>": ["T:````\n```\n<think>\n````\n", ">b"],
    "   ```\n<think>\n   ```\n<think>b</think>": ["T:   ```\n<think>\n   ```\n", ">b"],
    "    ```\n<think>b</think>": ["T:    ```\n", ">b"],
    "a ```\n<think>b</think>": ["T:a ```\n", ">b"],
    "```<think>``` <think>b</think>": ["T:```<think>``` ", ">b"],
    "write `<think>` so <think>b</think>": ["T:write `<think>` so ", ">b"],
    "``<think>`</think>`` <think>b</think>": ["T:``<think>`</think>`` ", ">b"],
    "a lone ` here\n<think>b</think>": ["T:a lone ` here\n", ">b"],
    "~ <think>b</think>": ["T:~ ", ">b"],
}


@pytest.mark.parametrize("text", CASES)
def test_a_text_is_split(text):
    """As one piece, as characters, and cut in two at each place."""
    expected = CASES[text]
    assert blocks([text]) == expected
    assert blocks(text) == expected
    for place in range(len(text)):
        assert blocks([text[:place], "", text[place:]]) == expected


@pytest.mark.parametrize("tag", THOUGHT_TAGS)
def test_each_tag_holds_thoughts(tag):
    """The eleven that are known."""
    assert blocks(f"a<{tag}>b</{tag}>c") == ["T:a", ">b", "T:c"]
    assert len(THOUGHT_TAGS) == 11


def test_a_text_may_begin_within_a_thought():
    """As where a prompt ends in the opening tag."""
    assert blocks("a</think>\n\nb<think>c</think>", inside="think") == [">a", "T:b", ">c"]


def test_other_tags_can_be_named():
    """And then only those count."""
    made = blocks("<my-plan>a</MY-plan><think>b</think>", tags=["My-Plan"])
    assert made == [">a", "T:<think>b</think>"]


def test_text_that_cannot_begin_a_tag_is_sent_at_once():
    """Only what may yet be a tag, or space beside one, is held back."""
    splitter = TagSplitter()
    assert [p.text for p in splitter.feed("a word ")] == ["a word "]
    assert splitter.feed("<thi") == []
    assert [p.text for p in splitter.feed("s is none ")] == ["<", "this is none "]
    assert splitter.feed("<think> ") == []
    assert [p.text for p in splitter.feed("deep ")] == ["deep"]
    assert [p.text for p in splitter.feed("in")] == [" in"]


@pytest.mark.parametrize("char", split(["<"], ["`", "~", " ", '"']))
def test_no_run_of_characters_is_read_again_and_again(char):
    """60,000 of them, one by one: a splitter that reads a run anew each time takes minutes."""
    splitter = TagSplitter()
    pieces = [piece for _ in range(60_000) for piece in splitter.feed(char)] + splitter.close()
    assert "".join(piece.text for piece in pieces) == char * 60_000
