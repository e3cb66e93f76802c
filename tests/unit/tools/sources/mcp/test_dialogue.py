"""What an MCP server asks, and what the answers mean to it; without a server."""

from __future__ import annotations

import pytest

from looopy.auth.redaction import Redactor
from looopy.tools.sources.mcp.dialogue import Dialogue, Question

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WIDE = {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "string"}}}


@pytest.mark.parametrize(
    ("question", "value", "action", "content"),
    [
        (Question(schema=FORM), {"city": "Rome"}, "accept", {"city": "Rome"}),
        (Question(schema=FORM), "Rome", "accept", {"city": "Rome"}),
        (Question(schema=WIDE), True, "accept", {}),
        (Question(schema=FORM), False, "decline", None),
        (Question(schema=FORM), None, "cancel", None),
        (Question(url="https://x.invalid"), True, "accept", None),
        (Question(url="https://x.invalid"), False, "decline", None),
        (Question(schema=None), True, "accept", {}),
    ],
)
def test_an_answer_means_one_of_three_things(question, value, action, content):
    """Accepted with what was filled in, declined, or cancelled."""
    assert question.answer(value) == (action, content)


def test_the_person_may_fill_in_or_refuse():
    """The schema of the request takes the form, the value of its only field, `False` and `None`."""
    import jsonschema_rs

    schema = Question(message="Which?", schema=FORM).ask("k", Redactor()).schema
    for value, fits in (
        ({"city": "x"}, True),
        ("x", True),
        (False, True),
        (None, True),
        (7, False),
    ):
        assert jsonschema_rs.is_valid(schema, value) is fits
    assert not jsonschema_rs.is_valid(schema, {})


def test_a_question_is_made_fit_to_be_asked():
    """A long one is cut, a form that is none left out, an address shown, a secret hidden."""
    redactor = Redactor()
    redactor.add("secret-of-ada")
    long = Question(message="?" * 10_000).ask("k", redactor)
    assert len(long.prompt) < 5000
    assert Question(schema={"properties": 7}).ask("k", redactor).schema == {}
    visit = Question(message="Sign in, secret-of-ada", url="https://x.invalid").ask("k", redactor)
    assert visit.prompt == "Sign in, [redacted]\nhttps://x.invalid"


def test_a_question_is_known_by_its_words_and_its_turn():
    """The same words twice are two questions; an answer is found again, and only by its own."""
    question, other = Question(name="q", message="A?"), Question(name="q", message="B?")
    first = Dialogue({}, Redactor())
    _, asks = first.find([question])
    key = asks["q"].key
    again = Dialogue({key: "yes"}, Redactor())
    assert again.find([question]) == ({"q": "yes"}, {})
    assert again.find([other])[0] == {}
    found, asks = again.find([question])
    assert (found, asks["q"].key != key) == ({}, True)
    again.begin()
    assert again.find([question])[0] == {"q": "yes"}


def test_a_server_resumes_from_its_state():
    """With the answers to what it asked last; without one of them it begins anew."""
    question = Question(name="q", message="Which?", schema=FORM)
    asked = Dialogue({}, Redactor())
    _, asks = asked.find([question])
    state = asked.state("the server's", [question])
    request_state, replies = Dialogue({asks["q"].key: "Rome"}, Redactor()).resume(state)
    assert request_state == "the server's"
    [(same, value)] = replies
    assert same.answer(value) == ("accept", {"city": "Rome"})
    assert Dialogue({}, Redactor()).resume(state) == (None, [])
    assert Dialogue({}, Redactor()).resume(None) == (None, [])


def test_a_state_that_is_too_large_is_not_kept():
    """The server is called from the beginning then, and told what was answered."""
    question = Question(name="q", message="Which?")
    dialogue = Dialogue({}, Redactor())
    dialogue.find([question])
    assert dialogue.state("x" * 70_000, [question]) is None
