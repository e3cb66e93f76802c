"""
The test kit, for users of looopy and for looopy itself; nothing else in the library imports it.

Names are loaded when they are used: the scripted provider works in a base install, while the store
contracts and state machines need pytest and Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looopy.testing.faults import SpyStores
    from looopy.testing.llm import ScriptedProvider, failure, text, tool_call

_HOME = {
    "ScriptedProvider": "looopy.testing.llm",
    "SpyStores": "looopy.testing.faults",
    "failure": "looopy.testing.llm",
    "text": "looopy.testing.llm",
    "tool_call": "looopy.testing.llm",
}

__all__ = ["failure", "ScriptedProvider", "SpyStores", "text", "tool_call"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
