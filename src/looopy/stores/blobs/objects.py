"""
A blob store in the cloud: S3 and what speaks its protocol, Google Cloud Storage, Azure.

obstore does the work: requests, credentials from the usual variables of each cloud, retries. An
object is written by one request, so it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from looopy.errors import ConfigurationError, StoreUnavailable, missing_extra
from looopy.stores.blobs.base import name_of

_RETRIES: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_CLIENT: dict[str, Any] = {"timeout": "60s", "connect_timeout": "10s"}


class ObjectBlobs:
    """
    Objects in a bucket.

    Args:
        store: A store of obstore, such as `obstore.store.S3Store("bucket", prefix="looopy")`.
    """

    def __init__(self, store: Any) -> None:
        import obstore

        self._obstore: Any = obstore
        self._store = store

    @classmethod
    def from_url(cls, url: str) -> ObjectBlobs:
        """
        The bucket, and the prefix in it, that *url* names.

        Args:
            url: Such as `s3://bucket/prefix?region=eu-central-1&endpoint=https://host`. Options are
                those of obstore; credentials belong into variables, such as `AWS_ACCESS_KEY_ID`.

        Raises:
            ConfigurationError: It names no bucket, or has an unknown option.
            MissingExtra: obstore is not installed.
        """
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise missing_extra("artifacts in an object store need obstore", "blobs") from None
        parts = urlsplit(url)
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        plain = options.get("endpoint", "").startswith("http://")
        client = {**_CLIENT, "allow_http": True} if plain else _CLIENT
        bare = parts._replace(query="", fragment="").geturl()
        try:
            options |= {"client_options": client, "retry_config": _RETRIES}
            store: Any = from_url(bare, **options)
        except (BaseError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{parts.scheme}://{parts.hostname or ''} names no usable blob store:"
                f" {type(error).__name__}"
            ) from None
        return cls(store)

    async def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object."""
        with self._trouble():
            await self._obstore.put_async(self._store, path, content, use_multipart=False)

    async def get(self, path: str) -> bytes | None:
        """The content of an object."""
        with self._trouble():
            try:
                found = await self._obstore.get_async(self._store, path)
                return bytes(await found.bytes_async())
            except FileNotFoundError:
                return None

    async def remove(self, path: str) -> None:
        """Remove an object."""
        with self._trouble(), contextlib.suppress(FileNotFoundError):
            await self._obstore.delete_async(self._store, path)

    async def older(self, prefix: str, age_s: float) -> AsyncIterator[str]:
        """Paths of old objects."""
        until = datetime.now(UTC) - timedelta(seconds=age_s)
        with self._trouble():
            async for page in self._obstore.list(self._store, prefix):
                for one in page:
                    if name_of(one["path"]) is not None and one["last_modified"] <= until:
                        yield one["path"]

    def __repr__(self) -> str:
        return f"ObjectBlobs({type(self._store).__name__})"

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            # Its text may hold a signed URL.
            kind = type(error).__name__
            raise StoreUnavailable(f"the blob store did not answer ({kind})") from None
