"""
Contexts as one file: a ZIP archive that any backend writes and any backend reads.

An archive holds whole contexts: messages, events, turns, state, tags, inbox, and all versions of
artifacts with their bytes. It never holds leases, idempotency keys or a tenant. The same contexts
make the same bytes, wherever they are stored. The room works through `Stores` and knows no backend;
it may import `stores`, `types` and `errors`.

- `format`: the names of the members; `contexts/lines.py` has their lines as JSON, both ways.
- `container`: the ZIP itself: members are stored, not compressed, so none is larger than the file.
- `writing`: `export_contexts` and `export_to_file`. `reading`: the checks of an archive.
- `importing`: `import_contexts`, which restores all contexts of an archive at once, or none.

Exports: those three functions, `ArchiveReport` and `Signature`, through `looopy.stores`. Read
`format`, `writing`, `reading`. Decision 35 has the reasons for a ZIP.
"""
