"""
T10: messages made of whatever a database, an encoder or a stream changes or chokes on.

Each message is kept exactly as it was or refused, with the path to what was wrong and before
anything is written, together with all that were to be stored with it. Which of the two is known
from what it was made of.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.campaign.places import STORES, place
from tests.campaign.trial import Tally, Trial

from looopy import open_stores
from looopy.errors import ValueRefused
from looopy.stores.bundle import Stores
from looopy.testing import hostile
from looopy.types.message import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    Message,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

_BATCH = 40
_TOO_LARGE = ("one megabyte", "seventeen megabytes", "five thousand digits")
_TEXTS = [text for name, text in hostile.KEPT_TEXT.items() if name not in _TOO_LARGE]
_VALUES = list(hostile.KEPT.values())
_BAD_TEXTS = [text for name, text in hostile.REFUSED_TEXT.items() if name not in _TOO_LARGE]
_BAD_VALUES = [value for name, value in hostile.REFUSED.items() if name not in _TOO_LARGE]
_CHARACTERS = "aB0 \n\t\"'\\/{}[]:,%$\u00e9\u2028\u202e\ufeff\U0001f600\x01\x7f\x85"


class Maker:
    """Makes messages; with `bad` set, the next value of its kind is one to be refused."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.bad: str | None = None

    def text(self) -> str:
        """A string."""
        if self.bad == "text":
            self.bad = None
            return self._rng.choice(_BAD_TEXTS)
        if self._rng.random() < 0.4:
            return self._rng.choice(_TEXTS)
        return "".join(self._rng.choices(_CHARACTERS, k=self._rng.randrange(30)))

    def value(self, depth: int = 0) -> Any:
        """A JSON value."""
        rng = self._rng
        if self.bad == "value":
            self.bad = None
            return rng.choice(_BAD_VALUES)
        kind = rng.random()
        if depth < 3 and kind < 0.25:
            return {f"{self.text()}{n}": self.value(depth + 1) for n in range(rng.randrange(5))}
        if depth < 3 and kind < 0.4:
            return [self.value(depth + 1) for _ in range(rng.randrange(5))]
        if kind < 0.6:
            return self.text()
        if kind < 0.8:
            return rng.choice(_VALUES)
        return rng.choice([rng.uniform(-1e18, 1e18), rng.randrange(-(2**63), 2**63), None, True])

    def values(self) -> dict[str, Any]:
        """A JSON object."""
        return {f"key {n}": self.value() for n in range(self._rng.randrange(1, 4))}

    def message(self) -> Message:
        """A message of any role, with everything that one may hold."""
        rng = self._rng
        stamp = rng.randrange(2**41)
        role = rng.randrange(4)
        if role == 0:
            if rng.random() < 0.5:
                return UserMessage(self.text(), timestamp=stamp)
            blocks = (TextContent(self.text()), ImageContent("aW1n"), TextContent(self.text()))
            return UserMessage(blocks, timestamp=stamp)
        if role == 1:
            return AssistantMessage(
                content=(
                    ThinkingContent(self.text(), thinking_signature=self.text()),
                    TextContent(self.text()),
                    ToolCall(id=self.text(), name=self.text(), arguments=self.values()),
                ),
                api=self.text(),
                provider=self.text(),
                model=self.text(),
                usage=Usage(input=rng.randrange(2**40), output=rng.randrange(9)),
                stop_reason=rng.choice(list(StopReason)),
                error_message=self.text(),
                timestamp=stamp,
            )
        if role == 2:
            return ToolResultMessage(
                tool_call_id=self.text(),
                tool_name=self.text(),
                content=(TextContent(self.text()),),
                details=self.value(),
                is_error=rng.random() < 0.5,
                timestamp=stamp,
            )
        return CustomMessage("note", self.text(), metadata=self.values(), timestamp=stamp)


async def _store(stores: Stores, count: int, seed: int, tally: Tally) -> None:
    rng = random.Random(seed)
    maker = Maker(rng)
    context_id, position = f"values-{secrets.token_hex(4)}", 0
    while tally.runs < count:
        batch = [maker.message() for _ in range(min(_BATCH, count - tally.runs))]
        spoilt = rng.random() < 0.3
        if spoilt:
            maker.bad = rng.choice(["text", "value"])
            while maker.bad is not None:
                batch[rng.randrange(len(batch))] = maker.message()
        tally.runs += len(batch)
        problem = await _kept_or_refused(stores, context_id, position, batch, spoilt=spoilt)
        if problem is not None:
            tally.violations.append(f"seed {seed}, after {tally.runs} messages: {problem}")
            return
        position += 0 if spoilt else len(batch)


async def _kept_or_refused(
    stores: Stores, context_id: str, position: int, batch: Sequence[Message], *, spoilt: bool
) -> str | None:
    """What is wrong with the way in which *batch* was stored."""
    problem = None
    try:
        await stores.messages.append(context_id, batch)
    except ValueRefused as refused:
        if not spoilt:
            problem = f"refused without a reason: {refused}"
        elif not (refused.path or "").startswith("/"):
            problem = f"refused without a place: {refused}"
    else:
        if spoilt:
            problem = f"taken, though it cannot be kept: {batch!r}"[:2000]
    found = await stores.messages.list(context_id, after=position)
    expected = [] if spoilt else list(batch)
    if problem is None and len(found) != len(expected):
        problem = f"{len(found)} messages are stored in place of {len(expected)}"
    for was, now in zip(expected, found, strict=False):
        # By what they look like: equal numbers need not be the same ones.
        if problem is None and repr(was) != repr(now):
            problem = f"{was!r} has become {now!r}"[:2000]
    return problem


def _run(store: str, name: str, count: int, seed: int) -> Tally:
    tally = Tally(name)

    async def fill(url: str) -> None:
        async with open_stores(url) as stores:
            await _store(stores, count, seed, tally)

    if store == "memory":
        asyncio.run(fill("memory:"))
    else:
        with place(store) as url:
            asyncio.run(fill(url))
    return tally


def _trial(store: str) -> Trial:
    name = f"hostile messages, {store}"
    run: Callable[[int, int], Tally] = partial(_run, store, name)
    return Trial(name, 100_000, run)


TRIALS = [_trial(store) for store in ("memory", *STORES)]
