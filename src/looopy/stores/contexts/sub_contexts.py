"""
Inner contexts, of agents that work for a call of another context's turn.

The link between the two is a record of the store. It is made together with the inner context, under
the epoch of the outer one, and goes with the inner context; no caller can write it. So an erasure
may follow it. An inner context may be the outer one of others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from looopy.errors import ValueRefused
from looopy.stores.rules import check_context_id

_KEY = re.compile(r"[0-9a-f]{32}")


class InnerOf(NamedTuple):
    """
    The call that an inner context works for.

    Attributes:
        context_id: Of the outer context.
        call: The key of the call: 32 hexadecimal digits, which name its turn, its id and the tool.
    """

    context_id: str
    call: str


def check_link(context_id: str, outer: str, call: str) -> None:
    """Check the arguments of `ContextIndex.enclose`, or raise `ValueRefused`."""
    check_context_id(context_id)
    check_context_id(outer)
    if not isinstance(call, str) or not _KEY.fullmatch(call):
        raise ValueRefused("the key of a call is 32 hexadecimal digits", path="/call")
    if outer == context_id:
        raise ValueRefused("a context is not inside of itself", path="/outer")


def linked_in(links: Mapping[str, InnerOf]) -> str | None:
    """The first context whose link leads to itself, or equals another one's, if there is one."""
    calls: set[InnerOf] = set()
    ends: set[str] = set()  # contexts whose links lead to an end
    for name, link in links.items():
        if link in calls:
            return name
        calls.add(link)
        way = {name}
        outer = link.context_id
        while outer in links and outer not in ends:
            if outer in way:
                return name
            way.add(outer)
            outer = links[outer].context_id
        ends |= way
    return None
