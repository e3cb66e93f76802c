"""
Reading a local model's JSON answer while it grows: our reader beside `pydantic_core.from_json`.

    python -m benchmarks.partial_json

A reply comes in deltas of four characters. CPU of all deltas, the best of several runs; all of them
read the same text and take turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from pydantic_core import from_json

from looopy.llm.local.jsonstream import AnswerReader

_SENTENCE = 'A "reply" of a model, in lines:\n\u00fc, \U0001f600 and a tab\t. '
_SIZES = (400, 4_000, 40_000)
_DELTA = 4
_RUNS = 5


class Reparsing:
    """The same reader, which parses all that came at each delta."""

    def __init__(self) -> None:
        self._so_far = ""
        self._shown = 0

    def feed(self, piece: str) -> str:
        """The part of the reply that *piece* adds."""
        self._so_far += piece
        value = from_json(self._so_far, allow_partial="trailing-strings")
        reply = value.get("reply", "")
        shown, self._shown = self._shown, len(reply)
        return str(reply[shown:])


def _spent(make: Callable[[], Reparsing | AnswerReader], text: str, reply: str) -> float:
    reader = make()
    began = time.process_time()
    shown = "".join(reader.feed(text[at : at + _DELTA]) for at in range(0, len(text), _DELTA))
    spent = time.process_time() - began
    assert shown == reply
    return spent * 1e3


def main() -> None:
    """See the module."""
    print("characters     ours   from_json")
    for size in _SIZES:
        reply = (_SENTENCE * (size // len(_SENTENCE) + 1))[:size]
        text = json.dumps({"reply": reply})
        spent: dict[type, list[float]] = {AnswerReader: [], Reparsing: []}
        for _ in range(_RUNS):
            for make, found in spent.items():
                found.append(_spent(make, text, reply))
        ours, theirs = (min(found) for found in spent.values())
        print(f"{size:>10,} {ours:>5.1f} ms {theirs:>8.1f} ms")


if __name__ == "__main__":
    main()
