"""
The words for errors on the wire, and the way back: a server writes them, a client reads them.

The code of one of looopy's errors is its name in snake_case.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from looopy import errors
from looopy.errors import LooopyError


def code_of(kind: type[Exception]) -> str:
    """The name of an error in snake_case: `ContextNotFound` is `context_not_found`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()


def error_of(code: str, message: str, **facts: Any) -> LooopyError | None:
    """The error that has this code, with those facts that it declares; `None` for other words."""
    kind = _kinds().get(code)
    if kind is None:
        return None
    return kind(message, **{name: facts[name] for name in facts if hasattr(kind, name)})


@cache
def _kinds() -> dict[str, type[LooopyError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    return {code_of(kind): kind for kind in found if issubclass(kind, LooopyError)}
