"""
The conversations of one place: a database, or a server as one of its users sees it.

Each command is written once, on the port `Conversations`, and works on both. `--db` and `--server`
are one option: its address decides.

- `base`: the port. `opening`: the implementation for an address.
- `database`: the conversations in a database, read through its stores, which need no server.
- `server`: the caller's conversations on a server, by its HTTP API alone.
- `background`: a thread for the conversations of a chat, which waits for a person in the main one.

Exports nothing. Read `base`, `server`, `database`.
"""
