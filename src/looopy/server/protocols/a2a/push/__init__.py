"""
Push notifications of A2A: what happens to a task, as POST requests to receivers that callers name.

The event log has what to send, and a stored configuration how far that has come. So every
durable event of a task arrives at least once and in order, also after a restart, and no turn waits
for a receiver. An address that a caller names is foreign: it is checked, and so is the address that
a connection really goes to.

- `options`: what the application allows; `looopy.server` exports its `PushNotifications`.
- `receivers`: addresses, and the connection to them. `configs`: the stored configurations.
- `verbs`: create, get, list and delete. `notices`: events as updates. `delivery`: sends them.

Only `verbs` and `notices` know the SDK of A2A: a server that starts and has nothing to send does
not load it. Read `options`, `configs`, `delivery`, `receivers`.
"""
