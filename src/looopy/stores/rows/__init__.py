"""
A message, an event or a context's state as a row: text that every backend stores alike.

Each body is stored once: an event that mirrors a message is that message's row. A damaged or old
row never stops a read. The room may import `types`, `errors`, `stores.records` and, with the first
message, pydantic-core; it knows no database.

- `events`: the events of a commit become rows, and rows become events again; also the columns of a
  turn and of a context's state.
- `writing`: the text of a message. `reading`: messages from that text, and repair of damaged ones.
- `schema`: the compiled code that reads and writes nearly all messages for these two.
- `redaction`: any of these without the words of a person who was erased.
- `meta`: the column `meta` of a message's row, with the times of its events.

Exports nothing itself; the backends import the files. Read `events`, `writing`, `reading`, `meta`.
"""
