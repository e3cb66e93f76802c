"""
One call of a tool: check the arguments, ask the hooks, run it, make one result.

Every failure becomes an error result that the model sees; only cancellation and a
call that waits for a person pass through. The room may import `tools`, `tools.function`, `auth`,
`types` and `errors`. `loop.tool_tasks` decides when a call runs and in parallel to which.

- `run`: the call from its name to its result, with its time limit.
- `coerce`: repairs simple values, if the tool asks for it. `hooks`: the application's
  `before_tool_call` and `after_tool_call`. `retry`: another try after a short failure.
- `results`: a returned value or an exception becomes content, cut to the tool's limit.

Exports: `RetryCall`, through `looopy.tools`. Read `run`, `results`, `hooks`, `coerce`, `retry`.
"""
