"""Servers of `servers.py` and `by_hand.py` as processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from looopy.tools import MCPTools

SERVERS = str(Path(__file__).with_name("servers.py"))
BY_HAND = str(Path(__file__).with_name("by_hand.py"))


def started(behaviour: str = "workshop", **options: Any) -> MCPTools:
    """The tools of a server that behaves so; the first use starts it."""
    script = SERVERS if behaviour == "workshop" else BY_HAND
    return MCPTools(command=sys.executable, args=[script, behaviour], name="workshop", **options)
