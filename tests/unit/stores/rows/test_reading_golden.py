"""Rows that were stored before a change of the codec are read and written as they were then."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from unittest import mock

import pytest
from tests.unit.stores.rows.golden import make, values

ODD = {name for _, name, _ in make.odd()}
KEPT = [json.loads(line) for line in make.PATH.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(autouse=True)
def clock():
    """A message without a time is of now."""
    with mock.patch("looopy.types.message_json.now_ms", return_value=7):
        yield


@pytest.mark.parametrize("kind", make.READERS)
def test_kept_rows_read_equal(kind):
    """Each text of this kind, those of older versions and damaged ones too."""
    kept = {(name, text): found for of, name, text, found in KEPT if of == kind}
    assert kept
    assert {key: make.READERS[kind](key[1]) for key in kept} == kept


def same(text):
    """The text of equal JSON, with its members in the same order: a row is a part of some texts."""
    data = json.loads(text)
    if isinstance(data, list):
        data = [same(one) if str(one)[:1] in ("{", "[") else one for one in data]
    return json.dumps(data)


def test_values_are_written_as_the_kept_rows():
    """Member for member; only a number may be spelled in another way, such as 1e-7 and 1e-07."""
    texts = {(kind, name): same(text) for kind, name, text, _ in KEPT if name not in ODD}
    written = {(kind, name): same(text) for kind, name, text in make.written()}
    assert written == texts


def test_each_field_is_in_a_kept_row():
    """A field that a codec forgets is missed; one that is added gets a value here."""
    text = "\n".join(found for _, _, _, found in KEPT)
    kinds = {one for one in vars(values).values() if is_dataclass(one) and isinstance(one, type)}
    in_memory = {"event", "partial", "error", "has_effects", "path"}  # of events
    missed = {
        f"{kind.__name__}.{one.name}"
        for kind in kinds
        for one in fields(kind)
        if f"{one.name}=" not in text and one.name not in in_memory
    }
    assert not missed
