"""
The command line: `looopy chat`, `contexts`, `db`, `serve`, `acp`, `mcp` and `models`.

A command ends with an exit status and, on failure, one line of text. Text of models and tools never
controls the terminal. The room may import every room; no other room imports it.

- `main`: arguments, commands, exit status. `__main__` runs it as `python -m looopy.cli`.
- `chat`: a conversation in the terminal, with the harmless tools of `tools` and the `commands` of
  a person, such as `/new`.
- `asking`: the question about a call that waits for approval.
- `contexts`: list and show stored conversations. `erasing`: delete them. `archives`: export and
  import them. `replay`: run a stored turn again. `remote/`: conversations of a server, and a chat
  on it.
- `usage`, `budget`: what was used, and what may be.
- `db`: migrate or check a database. `models`: which model would answer.
- `acp`: agents in editors. `mcp`: agents as tools. `factories`: the application that a user names.
- `protocol`: standard input and output for a protocol alone.
- `terminal`: input and output, and removal of control characters. `render`: a turn as text.
  `tables`: rows for people and as CSV. `parent`: the end of a chat whose parent is gone.
- `paths`: where the default database lies.

Exports nothing; the console script calls `main.main`. Read `main`, `chat`, `render`, `terminal`.
"""
