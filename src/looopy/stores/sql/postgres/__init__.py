"""
Postgres: a driver over asyncpg or psycopg, with a pool of its own.

An operation is one transaction, and often one round trip. If the connection breaks, the driver
repeats what was not written, and finds out whether a lost commit happened. The room may import
`stores`, `stores.sql`, `types`, `errors` and `_failpoints`, but not `stores.sql.migrate`: the
driver is handed the function that brings a schema to its head.

- `driver`: runs operations, and repeats them. `one_statement`: a claim or a commit as one.
- `pool` keeps connections, `wire` is one connection of either library, `url` reads the URL, `watch`
  cuts a connection that is silent too long.
- `errors`: an SQLSTATE becomes one of looopy's errors. `outcome`: did a write survive its lost
  answer?
- `notify`: news of commits to other processes. `rls`: row-level security for the tenants.
- `migrate`: one migration as one transaction, under a lock.

Read `url`, `wire`, `pool`, `driver`, `one_statement`, `outcome`.
"""
