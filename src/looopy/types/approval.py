"""
The answers to a request for approval, beside `True` and `False`.

A client that speaks JSON sends the same as an object: `{"approved": true, "args": {...}, "note":
"..."}` or `{"approved": false, "reason": "..."}`. looopy stores this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

EXPIRED: Final = {"approved": False, "expired": True}
"""The stored answer to a request that was not answered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """
    The call may run.

    Attributes:
        args: The arguments to run it with, all of them, in place of those in `PendingRequest.args`.
            They must fit `PendingRequest.schema`. `None`: the shown arguments.
        note: A sentence for the model, which sees it with the result.
    """

    args: Mapping[str, Any] | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """
    The call must not run. False in a condition, as `False` is.

    Attributes:
        reason: A sentence for the model, which sees it as the result.
    """

    reason: str | None = None

    def __bool__(self) -> bool:
        return False


def answer_to_json(answer: Any) -> Any:
    """An answer as JSON: `True` or `False` if it says no more; any other value as it is."""
    if not isinstance(answer, (Approve, Deny)):
        return answer
    approved = isinstance(answer, Approve)
    said = {f.name: getattr(answer, f.name) for f in fields(answer)}
    given = {name: value for name, value in said.items() if value is not None}
    return {"approved": approved, **given} if given else approved


def decision_of(answer: Any) -> Approve | Deny | None:
    """The decision in the JSON form of an answer; `None` if it is not a decision."""
    if isinstance(answer, bool):
        return Approve() if answer else Deny()
    if not isinstance(answer, Mapping) or not isinstance(answer.get("approved"), bool):
        return None
    if answer == EXPIRED:
        return Deny()
    kind: type[Approve | Deny] = Approve if answer["approved"] else Deny
    said = {name: value for name, value in answer.items() if name != "approved"}
    if not said.keys() <= {f.name for f in fields(kind)}:
        return None
    for name, value in said.items():
        if value is not None and not isinstance(value, Mapping if name == "args" else str):
            return None
    return kind(**said)
