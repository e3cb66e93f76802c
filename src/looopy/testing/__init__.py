"""
The test kit, for users of looopy and for looopy itself; no other room imports it.

It replays scripted models, breaks stores on purpose, and shows authors of a store whether it keeps
every promise. The room imports `stores`, `llm`, `types`, `errors`, `_failpoints`, and in some
files pytest or Hypothesis. Names are loaded on first use, so the scripted provider works in a base
install.

- `llm`: a model that plays a script. `faults`: stores that fail on demand, and failpoints.
- `contracts/`: the contract of each store as tests; `stores` is where to import them from.
- `plain_stores`: the same for stores of `Stores.of`, which have a few methods each.
- `processes`: other processes on one store, to race and to kill; `children`: how they are forked.
- `replays`: a fixture that makes a test of a recorded turn.
- `machines`: Hypothesis compares a store with the stores in memory. `hostile`: values that some
  database or encoder changes.

Exports: the names in `__all__`, in `looopy.testing.stores`, in `looopy.testing.plain_stores` and in
`looopy.testing.faults`. Read `llm`, `stores`, `contracts/message`, `machines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.testing.faults import SpyStores as SpyStores
    from looopy.testing.llm import ScriptedProvider as ScriptedProvider
    from looopy.testing.llm import failure as failure
    from looopy.testing.llm import text as text
    from looopy.testing.llm import tool_call as tool_call

_export(
    globals(),
    {
        ".faults": ("SpyStores",),
        ".llm": ("ScriptedProvider", "failure", "text", "tool_call"),
    },
)
