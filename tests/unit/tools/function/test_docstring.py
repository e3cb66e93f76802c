"""Docstrings in three styles give the same words."""

from __future__ import annotations

import pytest

from looopy.tools.function.docstring import parse_docstring

GOOGLE = """
    Find a book.

    Looks on every shelf.

    Args:
        title (str): As printed,
            without the subtitle.
        *years: From: to.
        limit:
            How many.

    Returns:
        list: The books.

    Raises:
        KeyError: None.

    Note:
        Slow on Mondays.
    """

NUMPY = """
    Find a book.

    Looks on every shelf.

    Parameters
    ----------
    title : str
        As printed,
        without the subtitle.
    *years
        From: to.
    limit : int, optional
        How many.

    Returns
    -------
    list
        The books.

    Notes
    -----
    Slow on Mondays.
    """

REST = """
    Find a book.

    Looks on every shelf.

    :param str title: As printed,
        without the subtitle.
    :type title: str
    :param years: From: to.
    :param int limit: How many.
    :returns: The books.
    :raises KeyError: None.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_every_style_gives_the_same_parameters(text: str) -> None:
    """Names lose their stars, texts their line breaks."""
    assert parse_docstring(text).parameters == {
        "title": "As printed, without the subtitle.",
        "years": "From: to.",
        "limit": "How many.",
    }


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_the_description_has_no_sections_on_parameters_results_and_errors(text: str) -> None:
    """What the schema says already is left out."""
    description = parse_docstring(text).description
    assert description.startswith("Find a book.\n\nLooks on every shelf.")
    assert "The books" not in description
    assert "KeyError" not in description
    assert "subtitle" not in description


def test_notes_stay_in_the_description() -> None:
    """A note may be what keeps a model from a mistake."""
    assert "Slow on Mondays." in parse_docstring(GOOGLE).description
    assert "Slow on Mondays." in parse_docstring(NUMPY).description


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_no_docstring_is_no_description(text: str | None) -> None:
    """Nothing is made up."""
    assert parse_docstring(text).description == ""
    assert parse_docstring(text).parameters == {}


@pytest.mark.parametrize(
    "text", ["Args:", "Parameters\n----------", ":param:", ":param x:", "Args:\n    no colon here"]
)
def test_an_incomplete_section_is_ignored(text: str) -> None:
    """An empty or odd section describes no parameter."""
    assert parse_docstring(text).parameters == {}


def test_numpy_may_name_several_parameters_at_once() -> None:
    """Both get the text."""
    text = "Add.\n\nParameters\n----------\na, b : int\n    A summand.\n"
    assert parse_docstring(text).parameters == {"a": "A summand.", "b": "A summand."}


@pytest.mark.parametrize("end", ["", "\n        Returns:\n            Something.\n        "])
def test_a_docstring_may_begin_with_its_parameters(end: str) -> None:
    """No line before them shows how deep they lie."""
    items = ["            x: The x", "                of all.", "            y: The y.", ""]
    found = parse_docstring("\n".join(["Args:", *items]) + end)
    assert found.parameters == {"x": "The x of all.", "y": "The y."}
    assert found.description == ""
