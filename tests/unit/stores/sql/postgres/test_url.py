"""A Postgres URL: which parts are ours, which are the driver's, what is shown, what is refused."""

import pytest

from looopy.errors import ConfigurationError
from looopy.stores.sql.postgres.url import parse


def test_several_hosts_are_shown_as_they_are_written():
    """And the driver looks for the one that takes writes, unless the URL says otherwise."""
    url = parse("postgresql://me:secret@one:5432,[::1]:5433,three/app")
    assert url.place == "one:5432,[::1]:5433,three/app"
    assert url.dsn.endswith("/app?target_session_attrs=primary")
    given = parse("postgresql://me@/app?host=one,two&target_session_attrs=any")
    assert given.place == "one,two/app"
    assert given.dsn.count("target_session_attrs") == 1
    assert given.dsn.endswith("target_session_attrs=any")
    assert "target_session_attrs" not in parse("postgresql://me@one/app").dsn


@pytest.mark.parametrize("hosts", ["one:two", "one:99999", "one:1:2", "one,two:x", "[::1", "a]:1"])
def test_a_malformed_host_is_refused_without_the_password(hosts):
    """At the call, wherever it stands among others."""
    with pytest.raises(ConfigurationError, match="malformed") as refused:
        parse(f"postgresql://me:secret@{hosts}/app")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("written", ["a+b", "a%20b"])
def test_a_space_may_be_written_in_two_ways(written):
    """The driver gets the one that both of them read."""
    url = parse(f"postgresql://h/d?options=-c+x%3D1&application_name={written}&plus=%2B")
    assert url.dsn.endswith("?options=-c%20x%3D1&application_name=a%20b&plus=%2B")
    assert url.options == "-c x=1"


def test_our_options_do_not_reach_the_driver():
    """They are numbers in their limits, or words."""
    url = parse("postgresql://h/d?pool_size=3&pool_max_idle=0&pool_max_age=60&pooler=session&a=b")
    assert (url.pool_size, url.max_idle_s, url.max_age_s) == (3, float("inf"), 60)
    assert (url.pooler, url.pooled) == ("session", False)
    assert url.dsn == "postgresql://h/d?a=b"


@pytest.mark.parametrize(
    "option", ["pool_size=0", "pool_max_age=-1", "pool_max_idle=x", "pooler=no"]
)
def test_an_option_of_ours_without_such_a_value_is_refused_by_name(option):
    """The error says which values there are."""
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]):
        parse(f"postgresql://h/d?{option}")
