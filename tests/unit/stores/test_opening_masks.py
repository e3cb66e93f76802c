"""A URL that is shown: without what lets somebody in, and else as it was given."""

from __future__ import annotations

import pytest

from looopy.errors import ConfigurationError
from looopy.stores.opening import mask, open_stores

SECRET = "s3cret-0123"


NAMES = ["password", "passwd", "secret", "token", "PASSWORD", "sslpassword"]


@pytest.mark.parametrize("name", NAMES)
def test_no_option_that_is_a_secret_is_shown(name):
    """Wherever it stands, and whatever stands behind it."""
    for url in (
        f"postgresql://h/db?{name}={SECRET}",
        f"postgresql://h/db?a=1&{name}={SECRET}&b=2",
        f"postgresql://h/db?{name}={SECRET}#frag",
    ):
        shown = mask(url)
        assert SECRET not in shown
        assert shown == url.replace(SECRET, "***")


@pytest.mark.parametrize("behind", ["", "@x", "/x", ":x", "?x"])
def test_no_password_is_shown_however_it_is_written(behind):
    """Also one that has not been encoded, and makes another URL of it."""
    assert mask(f"postgresql://u:{SECRET}{behind}@h/db") == "postgresql://u:***@h/db"


def test_other_parts_of_a_url_are_shown():
    """Host, user, database and the other options help to find the mistake."""
    url = "postgresql://u@h:5432/db?sslmode=require&tokens=3"
    assert mask(url) == url


def test_an_error_about_a_url_shows_no_secret():
    """It quotes the URL that names no store."""
    with pytest.raises(ConfigurationError) as caught:
        open_stores(f"mysql://u:{SECRET}@h/db?token={SECRET}")
    assert SECRET not in str(caught.value)
