"""
One conversation that outlives its process.

A turn is claimed, run, committed and announced, in this order. Other processes may own the context
at any time: `context` holds what this process knows of it, `claim` makes it ours, `closing` ends
the turn that a dead process left open.

Exports: `agent.Agent` and `stream.TurnStream`. Most files carry the name of the public method that
they implement: `events`, `compact`, `inbox`, `artifacts`, `lifecycle`, `buffer`
(`auto_save=False`). It may import every room but `server`, `testing`, `compat` and `cli`. Read
`agent`, `running`, `claim`, `context`.
"""
