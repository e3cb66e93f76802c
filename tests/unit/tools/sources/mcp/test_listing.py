"""What a server lists, as tools: it may not show the secrets that it was given."""

from __future__ import annotations

from types import SimpleNamespace

from looopy.tools.sources.headers import HeaderKeys, redactor_of
from looopy.tools.sources.mcp.listing import read_listing

TOKEN = "token-of-alice-1"
REDACTOR = redactor_of({"Authorization": f"Bearer {TOKEN}"})


def listed(name="look", **changes):
    """A tool as the SDK gives it."""
    parts = {
        "name": name,
        "title": None,
        "description": "",
        "annotations": None,
        "input_schema": {"type": "object", "properties": {}},
        **changes,
    }
    return SimpleNamespace(**parts)


def test_no_part_of_a_listing_shows_a_secret_of_the_server():
    """Names, labels, descriptions, schemas, and what is said of a tool that was left out."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": TOKEN}}}
    tools = [
        listed(title=f"for {TOKEN}", description=f"you are {TOKEN}", input_schema=schema),
        listed(name=f"x_{TOKEN}"),
        listed(name=f"x_{TOKEN}"),
        listed(name=TOKEN + "y" * 100, input_schema={"type": 5}),
    ]
    listing = read_listing(tools, problems=[f"cursor {TOKEN}"], redactor=REDACTOR)
    assert [one.name for one in listing.offers] == ["look", "x__redacted_"]
    assert len(listing.problems) == 3
    assert listing.offers[1].remote_name == f"x_{TOKEN}"  # what the server is called with
    shown = [(o.name, o.label, o.description, o.parameters) for o in listing.offers]
    assert "alice" not in f"{shown} {listing.problems}"


def test_a_schema_that_cannot_be_read_costs_one_tool():
    """However deep it is."""
    deep = {}
    for _ in range(100_000):
        deep = {"properties": deep}
    listing = read_listing([listed(input_schema=deep), listed("other")])
    assert [one.name for one in listing.offers] == ["other"]
    assert "its tool 'look' was left out" in listing.problems[0]


def test_odd_keyword_of_a_schema_costs_no_tool():
    """A word of an older draft, or a pattern of JavaScript that our validator does not know."""
    odd = {"minimum": 0, "exclusiveMinimum": True}, {"pattern": r"^[\w-\.]+$"}
    schemas = [{"type": "object", "properties": {"a": one}} for one in odd]
    listing = read_listing([listed(f"t{i}", input_schema=s) for i, s in enumerate(schemas)])
    assert listing.problems == ()
    assert [one.parameters["properties"]["a"] for one in listing.offers] == [
        {"exclusiveMinimum": 0},
        {},
    ]


def test_the_key_of_headers_does_not_contain_them():
    """Order and case of names do not count; another value, or another source, is another key."""
    keys = HeaderKeys()
    one = keys.key_of({"Authorization": TOKEN, "X": "1"})
    assert keys.key_of({"x": "1", "authorization": TOKEN}) == one
    assert keys.key_of({"x": "1", "authorization": f"{TOKEN}2"}) != one
    assert keys.key_of(None) not in (one, keys.key_of({}))
    assert HeaderKeys().key_of({"Authorization": TOKEN, "X": "1"}) != one
    assert TOKEN.encode() not in one
