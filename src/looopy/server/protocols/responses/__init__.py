"""
OpenAI's Responses API: any client of that API talks to a durable agent.

A conversation is a context, and a response is one turn of it. A client therefore loses nothing when
the server dies: it retrieves the response, or continues after it.

- `items`: a turn as a response, live or from the log. `request`: what a client sends.
- `attempts`: requests that the SDKs repeat by themselves.
- `routes`: the paths under `/v1`; `conversations`: paths of conversations. `looopy.server` exports
  `responses_api` of `routes`.
"""
