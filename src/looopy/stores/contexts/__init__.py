"""
Operations on whole contexts, in the form that every backend shares.

A backend's own part of each is under the same name in `memory/` and `sql/contexts/`. The package
imports only `stores`, `stores.rows`, `types` and `errors`.

- Finding: `listing` (contexts, by facts about them), `search` and `words` (messages, by words).
- Reading: `log` (rows as a page of the event log), `snapshot` (all rows of a context, for archives
  and copies), `lines` (its records as JSON, both ways).
- Families: `lineage` (where a fork or a rewind cuts a history), `sub_contexts` (contexts of agents
  that work for a call), `families` (both, in the order in which they may be erased).
- `erasing`: the steps of an erasure. `spending`: budgets of a day and a month,
  and the check that refuses a call.
"""
