"""
Checks if a value answers a request, before anything is stored.

The answer does not come from the model, so nothing is coerced or repaired, and a refusal names the
place in the input.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.errors import ValueRefused
from looopy.tools.schema import PathPart, misfits, shorten
from looopy.types.approval import EXPIRED, Approve, decision_of
from looopy.types.state import PendingKind, PendingRequest

MAX_ANSWER_BYTES = 1024 * 1024
MAX_CREDENTIAL_BYTES = 64 * 1024
_MAX_SHOWN = 20
_COMPACT_JWE = r"([A-Za-z0-9_-]+)(\.[A-Za-z0-9_-]*)(\.[A-Za-z0-9_-]+){3}"


def check_answer(request: PendingRequest, value: Any, *, opened: bool = False) -> None:
    """
    Check that *value* answers *request*.

    Args:
        opened: True for the decrypted credential; an encrypted one cannot be checked.

    Raises:
        ValueRefused: It does not; `path` points into the inputs, as `/inputs/REQUEST_ID/...`. The
            error shows nothing of a credential.
    """
    if request.auth is not None and not opened and not _is_encrypted(value):
        raise refused(
            request,
            (),
            "these credentials are not encrypted: looopy.auth.encrypt_credential makes of them and"
            " PendingRequest.auth what is sent (a compact JWE)",
        )
    secret = request.kind is PendingKind.AUTH
    limit = MAX_CREDENTIAL_BYTES if secret else MAX_ANSWER_BYTES
    size = len(_canonical(value).encode())
    if size > limit:
        raise refused(request, (), f"it has {size:,} bytes as JSON, and at most {limit:,} fit")
    if request.kind is PendingKind.APPROVAL:
        _check_decision(request, value)
        return
    if request.auth is not None and not opened:
        return
    try:
        if request.schema is not None:
            for path, line in misfits(request.schema, value):
                raise refused(request, path, line)
        if request.options:
            _check_options(request, value)
    except ValueRefused:
        if not secret:
            raise
        raise refused(request, (), "the credential does not fit what was asked for") from None


def _check_decision(request: PendingRequest, value: Any) -> None:
    """Check an answer to an approval, and the arguments in it."""
    decision = decision_of(value)
    if decision is None or value == EXPIRED:
        raise refused(
            request,
            (),
            "an approval takes True, False, Approve(args=..., note=...) or Deny(reason=...); as"
            ' JSON: {"approved": true, "args": {...}, "note": "..."} or {"approved": false,'
            ' "reason": "..."}',
        )
    if not isinstance(decision, Approve) or decision.args is None:
        return
    if request.schema is None:
        raise refused(
            request, ("args",), "this call runs with the arguments that were shown, or not at all"
        )
    for path, line in misfits(request.schema, dict(decision.args)):
        raise refused(request, ("args", *path), line)


def _is_encrypted(value: Any) -> bool:
    """True if *value* is a compact JWE (RFC 7516, section 7.1), readable or not."""
    found = re.fullmatch(_COMPACT_JWE, value) if isinstance(value, str) else None
    if found is None:
        return False
    try:
        header = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "enc" in header


def _check_options(request: PendingRequest, value: Any) -> None:
    """With a schema of a list, each item is one of the options; else the value itself."""
    options = {_canonical(option) for option in request.options}
    several = request.schema is not None and isinstance(value, (list, tuple))
    for path, one in [((i,), item) for i, item in enumerate(value)] if several else [((), value)]:
        if _canonical(one) not in options:
            shown = ", ".join(shorten(_canonical(o)) for o in request.options[:_MAX_SHOWN])
            raise refused(request, path, f"must be one of {shown}, not {shorten(_canonical(one))}")


def _canonical(value: Any) -> str:
    """A key that two values share exactly if they are the same JSON: 1 is not true."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict)


def refused(request: PendingRequest, path: Sequence[PathPart], why: str) -> ValueRefused:
    """The refusal of an answer to *request*, at *path* within it."""
    parts = (str(part) for part in ("inputs", request.request_id, *path))
    place = "/".join(part.replace("~", "~0").replace("/", "~1") for part in parts)  # RFC 6901, 3
    return ValueRefused(f"{place}: {why}", path=f"/{place}")


def is_tool_result(value: Any) -> bool:
    """True if a client's answer is a tool result: `is_error`, `content` and `details`."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("is_error"), bool)
        and value.keys() <= {"content", "details", "is_error"}
    )
