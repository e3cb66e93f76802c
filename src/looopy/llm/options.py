"""
Options of a call that not every model takes: each is sent, or refused or warned of by its name.

`refused` is the error of an API that has no place for an option. An option without effect on the
meaning of the answer may be left out instead, with a warning whose code is the option's name.
"""

from __future__ import annotations

from looopy.errors import UnsupportedOption
from looopy.types.request import StreamOptions


def refused(option: str, why: str, *, provider: str, model: str) -> UnsupportedOption:
    """The error of an API that has no place for *option*; *why* says the way out, too."""
    text = f"{why} (the option {option!r})" if option not in why else why
    return UnsupportedOption(text, provider=provider, model=model, option=option)


def left_out(options: StreamOptions, option: str, text: str) -> None:
    """Warn that *option* does not go out."""
    if options.warn is not None:
        options.warn(option, text)
