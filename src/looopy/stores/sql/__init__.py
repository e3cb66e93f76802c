"""
The stores on a SQL database: one logic for every dialect, and one driver for each database.

An operation is a generator that yields statements and does no I/O; a driver runs all of it in one
transaction. Every statement names its tenant. The room may import `stores`, `stores.rows`, `types`
and `errors`; SQLAlchemy and alembic are loaded only to make or change a schema.

- `statements`: the text of every statement. `commit`: claim, commit, append, clear.
- The contract, one file each: `messages`, `artifacts`, `state`, `journal`, on `store`, their common
  base.
- `contexts/`: list, search, restore, erase, spend. `fork`: forks and rewinds.
- Rows: `head` (a context without what only its readers want), `turns` (contexts, turns and versions
  of artifacts from their columns).
- `driver`: the protocol that a database implements, in `sqlite/` and `postgres/`. `engine` picks
  the driver. Another database is a folder beside these two, a function in `engine`, and its scheme
  in `stores.opening`.
- `migrate`: runs migrations (`looopy db`). `revision` compares a schema with the needed one;
  `tables` is the schema as SQLAlchemy sees it.

Exports: `SQL*Store`, through `looopy.stores`. Read `driver`, `statements`, `commit`, `journal`.
"""
