"""
One conversation that outlives its process.

A turn is claimed, run, committed and announced, in this order; no durable event is shown before it
is stored. Any other process may own the context at any time. The room may import every room but
`testing`, `compat`, `cli` and `sync`.

- The public object: `agent` (`Agent`: each method in a few lines). Its parts do the work and share
  a `core` (state and checks): `lifetime` (start, pause, resume, shut down), `dispatch` (begin a
  turn), `queues` (messages for a turn that runs), `history` (read, save and change the
  conversation).
- Below them: `resources` (what an agent opens and closes) and `lifecycle` (the table of statuses
  that allow each method, and the status of one agent).
- One turn: `request` (check the arguments), `turns` (order within this process), `running` (the
  turn from its claim to its end), `claim` (take the context), `plan` (what the turn begins with),
  `commit` (store a group, then show it), `result`.
- Ownership: `lease` (renew a claim; judge if another owner's lease has run out), `wait_queue` (wait
  for a busy context, and keep the place).
- After a crash: `context` (load what is stored; find a dead turn), `dead_turns` (end that turn;
  decide which of its tool calls may run again).
- Watching: `broadcast` (one turn, many views), `stream` (`TurnStream`), `events` (follow the log).
- Money: `ledger` (reserves what a call may use from the day and month of owner and tenant).
- For hosts: `hosted` (the port of an agent for an `AgentHost`, its protocols and a replay).
- Beside a turn: `inbox` (messages and cancel requests from any process, for the running turn),
  `compact`, `artifacts` (the writer that tools use), `buffer` (`auto_save=False`), `state` (counts,
  and the snapshot that callers see), `decisions` (about approvals, as the log has them).

Exports: `Agent` and `TurnStream`, through `looopy`. Read `agent`, `dispatch`, `running`,
`claim`, `commit`, `context`, `dead_turns`.
"""
