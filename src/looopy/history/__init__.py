"""
The past as the model sees it: which messages, and in which short form.

Pure: no store, no I/O but the model that writes a summary. The view of a turn always equals
`render(folded(history))`, at the cost of what is new. The room may import `llm`, `types` and
`errors`.

- `tokens`, `images`, `files`: how many tokens a message takes. `window`: which messages fit
  (`folded`, `Window`).
- `view`: keeps that choice, rendered, as the history grows (`View`).
- `sent`: remembers how the last request began, and why the next one begins otherwise (`Sent`).
- `summarise`: lets the model write a summary of the older part (`summarise`).
- `open_calls`: finds the calls without a result (`unanswered`, `can_continue`).

Exports nothing itself; `loop` and `agent` import the files. Read `window`, `view`, `summarise`.
"""
