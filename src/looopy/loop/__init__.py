"""
One turn, from its first event to its last, as an algorithm.

It knows models, tools and messages; it knows no store, no process, no lease. `turn.run_turn` yields
events and commit groups; the caller commits a group before it pulls the next one.

Exports: `turn.run_turn`, `agent_loop.AgentLoop`, `agent_loop.agent_loop`. It may import `history`,
`llm`, `tools`, `auth`, `types` and `errors`. Read `turn`, `iteration`, `model_call`, `tool_calls`,
`progress`.
"""
