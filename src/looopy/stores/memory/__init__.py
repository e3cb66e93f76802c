"""
All stores in dictionaries: the specification by example, for tests and for agents that may forget.

Every other backend behaves like this one, errors and order included, but nothing here survives the
process. Each method does its work between two awaits, so it is atomic. The room may import
`stores`, `stores.rows`, `types` and `errors`; it knows no other backend.

- `stores`: the message and state stores, which decide what may be written. `journal`: the commits
  of a turn, the event log and the inbox.
- `context`: the rows of one context, and the steps that change them. `log`: a page of its events.
  `artifacts`: versions and their parts. `accounts`: who owns what is spent.
- Whole contexts, as `looopy.stores.contexts` has them: `contexts` (to list them), `search`,
  `erasing`, `fork`, `restore`, `spending`.

Exports: `InMemory*Store`, through `looopy.stores`; its `MemoryBackend` is in `memory_backend`. Read
`stores`, `context`, `journal`, `log`.
"""
