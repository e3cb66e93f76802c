"""
OpenAI's own tokenizer, from the package tiktoken, where it is at hand.

tiktoken fetches the vocabulary of a model at its first use and keeps it in a folder. So it is
loaded in a thread, once a process and model. The first turns wait a few seconds for it, and later
ones only if it is there. A failure is remembered: without a network the history is cut by what the
provider reports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, Final, NamedTuple

from looopy.errors import ConfigurationError

_PIECE: Final = 8_192  # characters: tiktoken takes quadratic time for a word of many
_PATIENCE_S: Final = 5.0  # with a vocabulary, from its first use
_lock = Lock()


class _Encoding(NamedTuple):
    """The encoding of a model, which a thread loads, and how long to wait for it."""

    loaded: Future[Any]
    until: float


_encodings: dict[str, _Encoding] = {}


@cache
def is_installed() -> bool:
    """True if the package tiktoken is there."""
    return find_spec("tiktoken") is not None


def is_missing(model: str) -> bool:
    """True if the vocabulary of *model* could not be loaded, or not in time so far."""
    found = _encodings.get(model)
    if found is None:
        return False
    if found.loaded.done():
        return found.loaded.exception() is not None
    return time.monotonic() > found.until


async def count(model: str, texts: Sequence[str]) -> Sequence[int]:
    """
    Count the tokens of each text.

    Raises:
        ConfigurationError: The vocabulary of *model* is not known, could not be fetched, or takes
            too long.
    """
    encoding = await _loaded(model)
    return await asyncio.to_thread(lambda: [_count(encoding, text) for text in texts])


async def _loaded(model: str) -> Any:
    found = _encoding(model)
    if found.loaded.done():
        return found.loaded.result()
    try:
        async with asyncio.timeout(max(0.0, found.until - time.monotonic())):
            return await asyncio.shield(asyncio.wrap_future(found.loaded))
    except TimeoutError:
        raise ConfigurationError(
            f"tiktoken is still loading the vocabulary of {model}: check the network, or set"
            " TIKTOKEN_CACHE_DIR to a folder that has it"
        ) from None


def _encoding(model: str) -> _Encoding:
    """The encoding of *model*. Its thread is a daemon: it must not keep a process from its end."""
    with _lock:
        found = _encodings.get(model)
        if found is None:
            found = _encodings[model] = _Encoding(Future(), time.monotonic() + _PATIENCE_S)
            args = (model, found.loaded)
            Thread(target=_load, args=args, name="looopy-tiktoken", daemon=True).start()
    return found


def _load(model: str, into: Future[Any]) -> None:
    try:
        import tiktoken

        into.set_result(tiktoken.encoding_for_model(model))
    except BaseException as error:  # noqa: BLE001 - whatever it is, tokens are estimated
        failed = ConfigurationError(
            f"tiktoken has no vocabulary for {model}: {type(error).__name__}: {error}"
        )
        into.set_exception(failed)


def _count(encoding: Any, text: str) -> int:
    pieces = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))
    return sum(len(encoding.encode_ordinary(piece)) for piece in pieces)
