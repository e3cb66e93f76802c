"""
Artifacts above the rows: how content is checked, cut into parts, hashed and read again.

The content of a version is its parts, in order, followed by its tail. The tail is at most 64 KiB
and is in the version's row; a part is at most 8 MiB and is in the blob store, or in the
database if that has no blob store. So an append costs what it adds, and no step holds more than a
part of a large artifact in memory. A part is written before the commit with the row that names it.
Each part is read whole and compared with its hash before a byte of it is returned.

All changes of one artifact wait in one line, in order of arrival.

The folder knows the other shared modules of `stores`, and `stores/blobs`; it exports nothing here.

- `requests`: checks what a caller wants. `changes`: makes a change of it, for a commit.
- `parts`: the parts of a content, and the orphans among them. `rows`: what a backend supplies.
- `store`: `Artifacts`, the `ArtifactStore` that all backends of ours share.
- `basic`: rows of a backend that lists its versions, such as the memory.
- `staged`: rows whose changes wait for a commit (`auto_save=False`).

Read `requests`, `rows`, `store`, `changes`, `parts`.
"""
