"""
Storage of large parts of artifacts: a folder, or an object store.

A part is at most 8 MiB and never changes, so a blob store only has to write, read, list and remove
whole objects. A part is written before the row that names it. Names are random, so no name is ever
used for two contents, and only looopy chooses one.

- `base`: the protocol, and the names.
- `folder`: plain files, synced and renamed into place.
- `objects`: S3, Google Cloud Storage and Azure, over obstore.
- `opening`: from a URL to one of them.
"""

from __future__ import annotations
