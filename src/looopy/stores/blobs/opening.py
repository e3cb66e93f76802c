"""From a path or URL to a blob store."""

from __future__ import annotations

from pathlib import Path

from looopy.errors import ConfigurationError
from looopy.stores.blobs.base import Blobs
from looopy.stores.blobs.folder import FolderBlobs


def open_blobs(place: str | Blobs) -> Blobs:
    """
    The blob store that *place* names; one that is given as an object is returned.

    Args:
        place: The path of a folder, or `s3://`, `gs://` or `az://`.

    Raises:
        ConfigurationError: It names no blob store.
        MissingExtra: Its library is not installed.
    """
    if not isinstance(place, str):
        return place
    scheme, colon, rest = place.partition("://")
    if not colon:
        return FolderBlobs(Path(place).absolute())
    if scheme == "file":
        return FolderBlobs(Path(rest).absolute())
    if scheme in ("s3", "gs", "az"):
        from looopy.stores.blobs.objects import ObjectBlobs  # obstore, an extra

        return ObjectBlobs.from_url(place)
    raise ConfigurationError(
        f"{scheme}:// names no blob store: use a folder, s3://, gs:// or az://"
    )
