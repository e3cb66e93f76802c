"""
OpenAI's own tokenizer, from the package tiktoken, where it is at hand.

tiktoken fetches the vocabulary of a model at its first use and keeps it in a folder. So it is
loaded in a thread, once a process and model, and a failure is remembered: without a network the
history is cut by what the provider reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, Final

from looopy.errors import ConfigurationError

_PIECE: Final = 8_192  # characters: tiktoken takes quadratic time for a word of many
_encodings: dict[str, Future[Any]] = {}
_lock = Lock()


@cache
def is_installed() -> bool:
    """True if the package tiktoken is there."""
    return find_spec("tiktoken") is not None


async def count(model: str, texts: Sequence[str]) -> Sequence[int]:
    """
    Count the tokens of each text.

    Raises:
        ConfigurationError: The vocabulary of *model* is not known, or could not be fetched.
    """
    encoding = await asyncio.shield(asyncio.wrap_future(_encoding(model)))
    return await asyncio.to_thread(lambda: [_count(encoding, text) for text in texts])


def _encoding(model: str) -> Future[Any]:
    """The encoding of *model*, which a thread loads: it must not keep a process from its end."""
    with _lock:
        found = _encodings.get(model)
        if found is None:
            found = _encodings[model] = Future()
            Thread(target=_load, args=(model, found), name="looopy-tiktoken", daemon=True).start()
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
