"""
One turn, from its first event to its last, as an algorithm.

`run_turn` yields single events and commit groups, and its caller commits a group before it pulls
the next one. So an effect in the world always follows its stored intent. The room knows models,
tools and messages; it knows no store, process or lease. It may import `history`, `llm`, `tools`,
`auth`, `types`, `errors` and `_failpoints`.

- Algorithm: `turn`, `iteration` (one model call and its tools), `model_call`, `tool_calls`,
  `tool_tasks` (calls that run now, one after another or in parallel).
- State: `parts` (the turn as it runs), of `given` (what the caller hands over), `progress` (what
  has happened so far) and `outgoing` (events and groups); `guards` (limits of a turn).
- Models and their servers: `metered` (asks the accounts before each call), `server_tools`
  (events about tools that a server runs), `strict_tools` (tools whose schemas it enforces),
  `reports` (rate limits, and answers of another model).
- Input: `incoming` (messages during the turn), `prompts` (the system prompt).
- Output: `output` (a typed answer), `storable` (repairs what a model sent).
- People: `approval` (may this call run unasked), `pending` (calls left open for a person).
- `compaction` (shorten the history inside a turn), `interrupt` (cancel, timeouts),
  `timers` (all turns' timers in one of the event loop).
- `agent_loop`: the same turn without an agent or a store.

Exports: `AgentLoop`, `agent_loop` and `agent_loop_continue`, through `looopy`. Read `turn`,
`parts`, `iteration`, `model_call`, `tool_calls`.
"""
