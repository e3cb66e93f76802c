"""
SQLite: one file, one writer at a time, no server.

A commit has reached the disk when it returns. Cancelling a caller neither interrupts a statement
nor leaves a transaction open. The room may import `stores`, `stores.sql`, `errors` and
`_failpoints`, but not `stores.sql.migrate`: the driver is handed the function that brings a schema
to its head.

- `driver`: runs operations on the threads of its connections, and commits waiting writes together.
- `connection`: opens a file, sets its options, and translates its errors.
- `room`: a removal on a full disk frees the space that `reserve` keeps, and deletes in small steps.
- `gaps`: overwrites what SQLite leaves in pages beside their rows, after something was deleted.
- `statements`: replacements for `stores.sql.statements`, because rows are under a number.
- `schema`: makes an empty file's schema from `fresh.sql`, without alembic. `migrate` changes the
  schema of a file that has one, and `backups` copies the file first.

Read `connection`, `driver`, `room`, `statements`, `schema`, `migrate`.
"""
