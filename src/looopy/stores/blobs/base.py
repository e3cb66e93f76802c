"""
The contract of a blob store, and the names of what is in it.

A name is `TENANT/AB/AB....-RANDOM`: a hash of the tenant's name, the SHA-256 of the content, and 64
random bits. Rows keep the last part of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator
from typing import Protocol

from looopy.errors import StoreUnavailable

UNFINISHED = ".tmp"
"""The end of a name while its object is written, where that takes several steps."""
_NAME = r"([0-9a-f]{2})[0-9a-f]{62}-[0-9a-f]{16}"


class Blobs(Protocol):
    """Keeps objects of up to 8 MiB under names from `new_name`, for any number of processes."""

    async def put(self, path: str, content: bytes | memoryview) -> None:
        """
        Write an object; once this returns, it survives a killed process and a power cut.

        Raises:
            StorageFull: Nothing was kept.
            StoreUnavailable: The store did not answer. Part of the object may remain, under a name
                that is never used again.
        """
        ...

    async def get(self, path: str) -> bytes | None:
        """The content of an object; `None` if it does not exist."""
        ...

    async def remove(self, path: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        ...

    def older(self, prefix: str, age_s: float) -> AsyncIterator[str]:
        """
        Paths of the objects below *prefix* that were written *age_s* seconds ago, or earlier.

        Paths of ours, and of unfinished writes. Others are left out.
        """
        ...


def room_of(tenant: str) -> str:
    """The prefix of all paths of a tenant."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def new_name(sha256: str) -> str:
    """A name for an object with this content; never used before."""
    return f"{sha256}-{os.urandom(8).hex()}"


def path_of(tenant: str, name: str) -> str:
    """
    The path of the object *name*, as a row has it.

    Raises:
        StoreUnavailable: The row was altered: this is not a name of ours, and might lead anywhere.
    """
    found = re.fullmatch(_NAME, name)
    if found is None:
        raise StoreUnavailable("the name of a blob was altered in the database")
    return f"{room_of(tenant)}/{found[1]}/{name}"


def name_of(path: str) -> str | None:
    """The name in the path of an object, finished or not; `None` for any other path."""
    name = path.rpartition("/")[2].removesuffix(UNFINISHED)
    return name if re.fullmatch(_NAME, name) else None
