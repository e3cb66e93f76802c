"""
Which messages the model sees.

Pure: no store, no I/O but the model that writes a summary. What a turn asks of this room always
equals `render(folded(history))`, at the cost of what is new.

Exports: `window.folded` and `window.Window` (which messages fit), `view.View` (the same kept as the
history grows), `summarise.summarise` (a summary of the older part), `open_calls` (calls without a
result). It knows `llm`, `types` and `errors`. Read `window`, `view`, `summarise`.
"""
