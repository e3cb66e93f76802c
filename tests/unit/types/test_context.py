"""What a turn is given: credentials that cannot leak, limits that hold, a stop that is seen."""

import copy
import dataclasses
import json
import logging
import pickle
import traceback
from datetime import UTC, datetime, timedelta

import pytest

from looopy.errors import ConfigurationError
from looopy.types.config import Budget, LoopConfig, RetryPolicy
from looopy.types.context import AuthContext, CancelToken, TurnContext

SECRET = "canary-4f1d9c"


@pytest.fixture
def auth():
    return AuthContext("u1", "acme", {"token": SECRET}, scopes=("read", SECRET))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_credentials_refuse_to_be_pickled(auth, protocol):
    """No protocol writes them, alone or inside a turn's context."""
    for value in (auth, [auth], TurnContext(context_id="ada", auth_context=auth)):
        with pytest.raises(TypeError, match="never copied or stored"):
            pickle.dumps(value, protocol)


@pytest.mark.parametrize(
    "leak",
    [
        copy.copy,
        copy.deepcopy,
        lambda auth: auth.__getstate__(),
        lambda auth: dataclasses.asdict(TurnContext(context_id="ada", auth_context=auth)),
        lambda auth: dataclasses.astuple(TurnContext(context_id="ada", auth_context=auth)),
        dataclasses.asdict,
        json.dumps,
        vars,
        dict,
        list,
    ],
)
def test_credentials_refuse_to_be_copied_or_serialised(auth, leak):
    """Each generic way to another representation raises, and its error shows nothing."""
    with pytest.raises(TypeError) as caught:
        leak(auth)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("show", [repr, str, format, "{0} {0!r}".format])
def test_credentials_do_not_show(auth, show):
    """Neither credentials nor scopes are in any text made of it, or of the turn that holds it."""
    assert SECRET not in show(auth)
    assert SECRET not in show(TurnContext(context_id="ada", auth_context=auth))


def test_credentials_do_not_reach_a_log(auth, caplog):
    """Logging it at any level writes the name of the actor only."""
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("looopy.test").debug("turn for %s %r", auth, [auth])
    assert "u1" in caplog.text
    assert SECRET not in caplog.text


def test_credentials_cannot_be_added_to_later(auth):
    """There is no `__dict__` where something could hide, and no shared dictionary."""
    with pytest.raises(AttributeError):
        auth.extra = 1
    given = {"token": "a"}
    held = AuthContext("u1", credentials=given)
    given["token"] = "b"
    assert held.credentials["token"] == "a"


def test_an_expiry_is_aware_and_is_kept():
    """A naive moment is refused; at the moment itself the credentials have expired."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigurationError, match="timezone-aware"):
        AuthContext("u1", expires_at=moment.replace(tzinfo=None))
    auth = AuthContext("u1", expires_at=moment)
    assert auth.expired(moment)
    assert not auth.expired(moment - timedelta(microseconds=1))
    assert not AuthContext("u1").expired()


@pytest.mark.parametrize("actor_id", ["", None, 7, "a\0b", "\ud800", "x" * 513, "漢" * 171])
def test_an_actor_has_a_name(actor_id):
    """Nobody is no actor, nor is one whom no store could keep."""
    with pytest.raises(ConfigurationError, match="actor_id"):
        AuthContext(actor_id)


def test_a_stop_is_seen_once_by_everyone():
    """The first reason stands, a late callback runs at once, a failing one harms no other."""
    token, seen = CancelToken(), []
    token.on_cancel(lambda: seen.append("first"))
    token.on_cancel(lambda: 1 / 0)
    gone = token.on_cancel(lambda: seen.append("unsubscribed"))
    token.on_cancel(lambda: seen.append("last"))
    gone()
    gone()
    assert not token.cancelled
    token.cancel("enough")
    token.cancel("again")
    token.on_cancel(lambda: seen.append("late"))
    assert seen == ["first", "last", "late"]
    assert token.reason == "enough"


COUNTS = (
    "max_tool_calls",
    "max_tool_calls_per_iteration",
    "max_tool_failures",
    "doom_loop_threshold",
    "max_result_bytes",
)
NAN = float("nan")
BAD = [
    *[(name, value) for name in COUNTS for value in (0, -1, 2.5, True, None, "3")],
    *[
        (name, value)
        for name in ("tool_timeout_s", "llm_timeout_s", "turn_timeout_s")
        for value in (0, -1.0, NAN, float("inf"), "60", True)
    ],
    *[("lease_ttl_s", value) for value in (0, -1, NAN, None, "10", float("inf"))],
    *[("busy_timeout_s", value) for value in (-1, NAN, None, "30")],
    *[("max_iterations", value) for value in (0, -1, 2.5, True, "3")],
    *[("max_messages", value) for value in (0, -5, 2.5, True, "all")],
    *[("history_tokens", value) for value in (0, -5, 2.5, True, "all")],
    *[("max_tokens", value) for value in (0, -5, 2.5, True)],
    *[("temperature", value) for value in (-0.1, NAN, "hot")],
    ("on_doom_loop", "explode"),
    ("thinking_level", "loud"),
    ("on_max_iterations", "wait"),
    *[
        ("thinking_budgets", value)
        for value in (
            5000,
            {"loud": 5000},
            {"off": 5000},
            {"low": 1023},
            {"low": 2e3},
            {"low": True},
        )
    ],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_limit_out_of_its_range_is_refused_by_name(name, value):
    """A limit that would not limit is an error where it is written, not in the middle of a turn."""
    with pytest.raises(ConfigurationError, match=rf"LoopConfig\.{name}\b"):
        LoopConfig(**{name: value})


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (RetryPolicy, "attempts", -1),
        (RetryPolicy, "attempts", 1.5),
        (RetryPolicy, "base_s", -1),
        (RetryPolicy, "cap_s", NAN),
        (RetryPolicy, "max_server_delay_s", -1),
        (Budget, "tokens", -1),
        (Budget, "tokens", 1.5),
        (Budget, "cost_usd", NAN),
        (Budget, "cost_usd", -0.5),
    ],
)
def test_a_bad_retry_or_budget_is_refused_by_name(part, name, value):
    """The parts of the configuration are checked as the whole is."""
    with pytest.raises(ConfigurationError, match=rf"{part.__name__}\.{name}\b"):
        part(**{name: value})


def test_the_limits_of_the_ranges_are_allowed():
    """One, nothing and no limit are choices."""
    LoopConfig(
        **dict.fromkeys(COUNTS, 1),
        tool_timeout_s=None,
        llm_timeout_s=0.001,
        turn_timeout_s=None,
        max_messages=None,
        history_tokens=None,
        busy_timeout_s=0,
        temperature=0,
        max_tokens=1,
        thinking_level="high",
        thinking_budgets={"minimal": 1024, "xhigh": 99_999},
        retry=RetryPolicy(attempts=0, base_s=0, cap_s=0, max_server_delay_s=0),
        budget=Budget(tokens=0, cost_usd=0),
    )


def test_the_defaults_are_the_documented_ones():
    """What a turn may do when nobody says otherwise."""
    config = LoopConfig()
    assert (config.max_iterations, config.max_tool_calls) == (25, 64)
    assert (config.max_tool_calls_per_iteration, config.max_tool_failures) == (16, 3)
    assert (config.tool_timeout_s, config.turn_timeout_s) == (60, 1800)
    assert (config.lease_ttl_s, config.busy_timeout_s) == (10, 30)
    assert config.max_result_bytes == 1024 * 1024
    assert config.retry == RetryPolicy(attempts=3, base_s=2, cap_s=30, max_server_delay_s=60)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_iterations = 1
