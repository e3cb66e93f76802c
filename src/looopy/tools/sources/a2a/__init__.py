"""
Agents elsewhere, that speak A2A, as tools: `RemoteAgent` is a source of one tool.

`agent.py` is what a user makes; `sdk.py` alone knows the official SDK, and is loaded when an agent
is reached for.
"""

from __future__ import annotations

from looopy.tools.sources.a2a.agent import RemoteAgent

__all__ = ["RemoteAgent"]
