"""
The protocol of the Vercel AI SDK: `useChat` in front of an agent, resumable from the log.

- `parts`: our events as parts of the UI message stream. `transcript`: a context's `UIMessage`s.
- `request`: what the page posts. `chat`: what is done with it. `endpoints`: `ai_sdk_api`.

Read `parts`, `chat`.
"""
