"""
AG-UI 1.0, the protocol of CopilotKit and others: `thread_id` is the context.

- `events`: our events as AG-UI's. `messages`: a context's messages, for a snapshot.
- `request`: the input of a run. `runs`: what is done with it. `endpoints`: `ag_ui_api`.
- `page_tools`: the tools that the page brings with a run.

Read `events`, `runs`.
"""
