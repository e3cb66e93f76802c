"""
A2A, by which agents call agents: version 1.0, and 0.3 for older clients, over one `AgentHost`.

The official SDK does the wires. The tasks are a view of the event log: any process shows them, they
survive a restart, and a task of a dead process is not left working.

- `routes`: the paths; `looopy.server` exports its `a2a_api`. `wires`: who is asking and what they
  sent, before the SDK sees it. `calls`: a request on its way, and its errors.
- `verbs`: what a client asks for; `handler` shows it to the SDK. `following`: a task as it runs.
  `listing`: the tasks of a caller.
- `push/`: what happens to a task, as requests to receivers that callers name.
- `tasks`: turns as a task. `parts`: our content as A2A's, and back. `card`: the agent's card.
"""
