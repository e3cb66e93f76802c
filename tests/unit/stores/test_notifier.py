"""Whom a bell is rung for, without any store."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from looopy.stores.notifier import Bells


def test_a_ring_reaches_the_listeners_of_its_context_and_no_others():
    """Tenant and context have to be the same; what it is about is passed on."""
    bells = Bells()
    heard = []
    with (
        bells.listen("t", "c", lambda inbox: heard.append(("first", inbox))),
        bells.listen("t", "c", lambda inbox: heard.append(("second", inbox))),
        bells.listen("t", "other", lambda inbox: heard.append(("context", inbox))),
        bells.listen("other", "c", lambda inbox: heard.append(("tenant", inbox))),
    ):
        bells.ring("t", "c", inbox=True)
        bells.ring("t", "c", inbox=False)
    assert heard == [("first", True), ("second", True), ("first", False), ("second", False)]


def test_nothing_is_heard_after_the_block():
    """Also when the block ends in an error, and while the same listener is still in another."""
    bells = Bells()
    heard = []
    with bells.listen("t", "c", heard.append):
        with pytest.raises(ValueError, match="inside"), bells.listen("t", "c", heard.append):
            raise ValueError("inside")
        bells.ring("t", "c", inbox=False)
    bells.ring("t", "c", inbox=True)
    bells.ring_all()
    assert heard == [False]
    assert not bells.heard
    assert bells.keys == []


def test_news_that_were_missed_are_rung_for_everybody():
    """As news that may concern the inbox; each listener once."""
    bells = Bells()
    heard = []
    with (
        bells.listen("t", "a", lambda inbox: heard.append(("a", inbox))),
        bells.listen("u", "b", lambda inbox: heard.append(("b", inbox))),
    ):
        assert bells.keys == [("t", "a"), ("u", "b")]
        bells.ring_all()
    assert heard == [("a", True), ("b", True)]


def test_a_listener_may_leave_and_come_while_it_is_rung_for():
    """Who leaves the last is noticed, who comes is not rung for what was before."""
    bells = Bells()
    heard = []

    with ExitStack() as first, ExitStack() as others:

        def leave(_inbox):
            first.close()
            others.enter_context(bells.listen("t", "c", heard.append))

        first.enter_context(bells.listen("t", "c", leave))
        bells.ring("t", "c", inbox=True)
        assert heard == []
        bells.ring("t", "c", inbox=False)
        assert heard == [False]


def test_the_first_listener_and_the_last_are_noticed():
    """By who brings news from elsewhere: once for each context."""
    bells = Bells()
    noticed = []
    bells.noticed = lambda key, here: noticed.append((key, here))
    with (
        bells.listen("t", "c", print),
        bells.listen("t", "c", print),
        bells.listen("t", "d", print),
    ):
        assert noticed == [(("t", "c"), True), (("t", "d"), True)]
    assert noticed[2:] == [(("t", "d"), False), (("t", "c"), False)]


def test_one_who_cannot_be_noticed_is_not_listening():
    """An error while noticing leaves no listener behind."""
    bells = Bells()

    def fail(_key, here):
        if here:
            raise ValueError("no")

    bells.noticed = fail
    with pytest.raises(ValueError, match="no"), bells.listen("t", "c", print):
        pytest.fail("it was entered")
    assert not bells.heard
