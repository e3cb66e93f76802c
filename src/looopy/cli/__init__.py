"""
The command line: `looopy chat`, `contexts`, `db`, `serve`, `acp`, `mcp` and `models`.

A command ends with an exit status and, on failure, one line of text. Text of models and tools never
controls the terminal. The room may import every room; no other room imports it.

- `options`: the commands as a table. `parser`: reads arguments by it. `completion`: completes them.
- `main`: runs a command; exit status. `__main__` is for `python -m looopy.cli`.
- `conversations/`: the port of the commands, for a database and for a server.
- `chat`: a conversation in the terminal; `event_view` shows its events.
- For a chat: `slash_commands`, such as /new; the question about a call that waits, in `approvals`;
  the harmless `builtin_tools`; `parent_watch`, which ends a chat whose parent process is gone.
- `contexts`: list, show, search and fork conversations. `erasure`: erase them. `archives`: export
  and import them. `turns`: send, follow, approve and the like on a server.
- `usage`, `budget`: tokens and dollars. `replay`: a stored turn again.
- `db`: migrate or check a database. `models`: which model would answer.
- `serve`: agents over HTTP. `acp`: in editors. `mcp`: as tools. `factories`: the application that a
  user names. `stdio`: standard input and output for a protocol alone.
- `terminal`: input and output, and removal of control characters. `render`: a turn as text.
  `tables`: rows as text and CSV. `data_folder`: the place of the default database.

Exports nothing; the console script calls `main.main`. Read `options`, `main`, `conversations`.
"""
