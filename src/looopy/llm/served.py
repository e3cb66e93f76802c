"""
An answer of another model than the one that was asked, by the name in the server's answer.

A server may answer with a model of its own choice: a router such as OpenRouter, a gateway with
fallbacks, a local server that has one model for every name. The full name of the asked model is
not another one: `gpt-4o` is answered as `gpt-4o-2024-08-06`. So two names are of one model if the
longer one begins with the shorter, and the rest is a date or a revision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from looopy.llm.failures import redact
from looopy.types.request import Report, Reroute

_REVISION: Final = re.compile(
    r"(?:-(?:\d{4}-\d\d-\d\d|\d\d-\d\d|\d\d-\d{4}|\d{3,8}|v\d+(?:-\d+)?|latest))*"
)
_LATEST: Final = re.compile(r"-latest$")
# Of a place, not of a model: a path, the region and vendor at Amazon Bedrock, a file's kind, and
# how OpenRouter routes a call.
_PLACE: Final = re.compile(r"^.*/|^(?:[a-z]+\.)*anthropic\.|\.gguf$")
_ROUTE: Final = re.compile(r":(?:free|nitro|floor|online|extended|exacto|beta)$")
_NAME: Final = re.compile(r"[\w.:/@+ -]{1,200}")


def is_other(asked: str, answered: str) -> bool:
    """True if *answered* names another model than *asked*."""
    shorter, longer = sorted((_bare(asked), _bare(answered)), key=len)
    rest = longer.removeprefix(shorter)
    return not (longer.startswith(shorter) and _REVISION.fullmatch(rest))


def report_other(
    report: Callable[[Report], None] | None,
    *,
    provider: str,
    asked: str,
    answered: str,
    secrets: Sequence[str] = (),
) -> None:
    """Call *report* if the server's answer names another model than *asked*."""
    if report is None or answered == asked or not _NAME.fullmatch(answered):
        return
    if is_other(asked, answered):
        name = redact(answered, secrets)
        report(Reroute(asked=f"{provider}/{asked}", answered=f"{provider}/{name}", by="server"))


def _bare(name: str) -> str:
    bare = _PLACE.sub("", _ROUTE.sub("", name.lower()))
    return _LATEST.sub("", re.sub(r"[@:]", "-", bare))
