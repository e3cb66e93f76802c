"""The documents of contexts in a state store of an application's own, or in this process."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from looopy.errors import StoreUnavailable
from looopy.stores.plain.calls import Calls
from looopy.stores.plain.documents import chapter_key

_logger = logging.getLogger("looopy")
_warned: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_new(store: object) -> bool:
    """True at the first call with a store; always for one that has no weak reference or hash."""
    try:
        known = store in _warned
        _warned.add(store)
    except TypeError:
        return True
    return not known


class Overtaken(Exception):
    """Another process has changed the context meanwhile; nothing counts of what was written."""


class OwnState:
    """
    A state store of an application's own.

    Raises:
        ConfigurationError: It lacks a method that it needs.
    """

    def __init__(self, store: object) -> None:
        self.calls = Calls(store, "state", "load", "save")
        self.compares = self.calls.has("compare_and_set")
        if not self.compares and _is_new(store):
            _logger.warning(
                "%s has no method `compare_and_set`: two processes that use one context at the same"
                " time may both begin a turn, and one of them fails later",
                self.calls.name,
            )

    async def document(self, key: str) -> Mapping[str, Any] | None:
        """
        The document under a key, or `None`.

        Raises:
            StoreUnavailable: The store failed, or returned something else.
        """
        found = await self.calls("load", key)
        if found is not None and not isinstance(found, Mapping):
            dumped = getattr(found, "model_dump", None)
            found = dumped() if callable(dumped) else found
        if found is None or isinstance(found, Mapping):
            return found
        raise self.calls.wrong(
            "load", f"returned {type(found).__name__} for {key!r}, not a mapping"
        )

    async def chapters(
        self, key: str, places: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], Mapping[str, Any]] | None:
        """Chapters of the log by number and epoch; `None` if one of them is gone."""
        found = {}
        for place in places:
            chapter = await self.document(chapter_key(key, *place))
            if chapter is None:
                return None
            found[place] = chapter
        return found

    async def save_head(self, key: str, document: dict[str, Any], revision: int) -> None:
        """
        Replace the head of this *revision*, as far as the store can compare.

        Raises:
            Overtaken: It has another revision.
            StoreUnavailable: The store failed, or returned something else.
        """
        try:
            written = await self._replace(key, document, revision)
        except StoreUnavailable:
            if not await self._has(key, document["stamp"]):
                raise
            return  # only its answer was lost
        if not written and not await self._has(key, document["stamp"]):
            raise Overtaken

    async def _replace(self, key: str, document: dict[str, Any], revision: int) -> bool:
        if not self.compares:
            await self.calls("save", key, document)
            return True
        written = await self.calls("compare_and_set", key, document, revision)
        if not isinstance(written, bool):
            raise self.calls.wrong(
                "compare_and_set", f"returned {type(written).__name__}, not whether it wrote"
            )
        return written

    async def _has(self, key: str, stamp: str) -> bool:
        found = await self.document(key)
        return found is not None and found.get("stamp") == stamp

    async def has_moved(self, key: str, head: Mapping[str, Any]) -> bool:
        """True if the head of a context is no longer *head*."""
        return not await self._has(key, head["stamp"])

    async def remove(self, key: str) -> None:
        """Remove a document that is no longer needed, if the store can."""
        if self.calls.has("delete"):
            await self.calls("delete", key)


class InProcess:
    """A state store in this process, for an application that keeps messages alone."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def load(self, key: str) -> Any:
        """See `PlainStateStore`."""
        text = self._texts.get(key)
        return None if text is None else json.loads(text)

    async def save(self, key: str, document: Mapping[str, Any]) -> None:
        """See `PlainStateStore`."""
        self._texts[key] = json.dumps(document)

    async def compare_and_set(self, key: str, document: Mapping[str, Any], revision: int) -> bool:
        """See `PlainStateStore`."""
        found = await self.load(key)
        if (found["revision"] if found else 0) != revision:
            return False
        await self.save(key, document)
        return True

    async def delete(self, key: str) -> None:
        """See `PlainStateStore`."""
        self._texts.pop(key, None)

    async def list(self) -> Any:
        """See `PlainStateStore`."""
        return list(self._texts)
