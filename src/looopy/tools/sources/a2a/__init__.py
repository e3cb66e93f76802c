"""
Agents elsewhere that speak A2A: `RemoteAgent` is a source of one tool.

Calls from one context are one conversation at the remote agent, and its question becomes a question
to the user. Its output is shown in the stream of the turn; only its result is stored. The room may
import `tools`, `tools.call`, `tools.sources`, `auth`, `types` and `errors`.

- `agent`: `RemoteAgent` and its tool; finds the task to continue.
- `sdk`: the one file that imports the official SDK, loaded at the first contact.

Exports: `RemoteAgent`. Read `agent`, `sdk`.
"""

from __future__ import annotations

from looopy.tools.sources.a2a.agent import RemoteAgent

__all__ = ["RemoteAgent"]
