"""Misuse of pi's interface: ours by kind, and also pi's, so that old `except` clauses hold."""

from __future__ import annotations

from looopy.errors import AgentBusy, CannotContinue


class AlreadyStreaming(AgentBusy, RuntimeError):
    """The agent is answering: `steer()`, `follow_up()`, or wait."""


class NothingToContinue(CannotContinue, ValueError):
    """There is nothing to answer."""
