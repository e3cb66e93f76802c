"""Whom a bell is rung for, without any store."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from looopy.stores.notifier import Notifier


def test_a_ring_reaches_the_listeners_of_its_context_and_no_others():
    """Tenant and context have to be the same; what it is about is passed on."""
    notifier = Notifier()
    heard = []
    with (
        notifier.listen("t", "c", lambda inbox: heard.append(("first", inbox))),
        notifier.listen("t", "c", lambda inbox: heard.append(("second", inbox))),
        notifier.listen("t", "other", lambda inbox: heard.append(("context", inbox))),
        notifier.listen("other", "c", lambda inbox: heard.append(("tenant", inbox))),
    ):
        notifier.notify("t", "c", inbox=True)
        notifier.notify("t", "c", inbox=False)
    assert heard == [("first", True), ("second", True), ("first", False), ("second", False)]


def test_a_listener_is_not_called_after_its_block():
    """Also when the block ends in an error, and while the same listener is still in another."""
    notifier = Notifier()
    heard = []
    with notifier.listen("t", "c", heard.append):
        with pytest.raises(ValueError, match="inside"), notifier.listen("t", "c", heard.append):
            raise ValueError("inside")
        notifier.notify("t", "c", inbox=False)
    notifier.notify("t", "c", inbox=True)
    notifier.notify_all()
    assert heard == [False]
    assert not notifier.has_listeners
    assert notifier.keys == []


def test_news_that_were_missed_are_rung_for_everybody():
    """As news that may concern the inbox; each listener once."""
    notifier = Notifier()
    heard = []
    with (
        notifier.listen("t", "a", lambda inbox: heard.append(("a", inbox))),
        notifier.listen("u", "b", lambda inbox: heard.append(("b", inbox))),
    ):
        assert notifier.keys == [("t", "a"), ("u", "b")]
        notifier.notify_all()
    assert heard == [("a", True), ("b", True)]


def test_a_listener_may_leave_and_come_while_it_is_rung_for():
    """Who leaves the last is noticed, who comes is not rung for what was before."""
    notifier = Notifier()
    heard = []

    with ExitStack() as first, ExitStack() as others:

        def leave(_inbox):
            first.close()
            others.enter_context(notifier.listen("t", "c", heard.append))

        first.enter_context(notifier.listen("t", "c", leave))
        notifier.notify("t", "c", inbox=True)
        assert heard == []
        notifier.notify("t", "c", inbox=False)
        assert heard == [False]


def test_the_first_listener_and_the_last_are_noticed():
    """By who brings news from elsewhere: once for each context."""
    notifier = Notifier()
    noticed = []
    notifier.noticed = lambda key, here: noticed.append((key, here))
    with (
        notifier.listen("t", "c", print),
        notifier.listen("t", "c", print),
        notifier.listen("t", "d", print),
    ):
        assert noticed == [(("t", "c"), True), (("t", "d"), True)]
    assert noticed[2:] == [(("t", "d"), False), (("t", "c"), False)]


def test_a_listener_whose_notice_failed_is_removed():
    """An error while noticing leaves no listener behind."""
    notifier = Notifier()

    def fail(_key, here):
        if here:
            raise ValueError("no")

    notifier.noticed = fail
    with pytest.raises(ValueError, match="no"), notifier.listen("t", "c", print):
        pytest.fail("it was entered")
    assert not notifier.has_listeners
