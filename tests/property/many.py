"""
A long search through damaged histories, by hand and in little time.

    python -m tests.property.many 100000 [SEED]

Draws from the strategies of `test_requests_validity` without Hypothesis' search, which is what
takes the time there: each history is summarised here and there, shown through a random window,
written for each provider with random options, and judged by the rules of its server. Prints what
was refused, with the seed that makes it again, and ends with status 1 if anything was.
"""

# ruff: noqa: T201 - a command: its output is its result

from __future__ import annotations

import random
import sys
from typing import Any

from hypothesis.strategies import SearchStrategy
from tests.property.histories import damaged
from tests.property.test_requests_validity import ADD, READERS, limits, options, thoughts_of

from looopy.history.summarise import part_to_cover
from looopy.history.window import folded
from looopy.llm.render import render
from looopy.types.message import Message
from looopy.types.request import LLMRequest
from looopy.types.summary import summary_message

_SUMMED_UP = 0.1  # how often a summary is asked for, by message


class Dice:
    """
    Draws from strategies as a composite's `draw` does.

    Attributes:
        chance: Where each throw comes from.
    """

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)

    def __call__(self, strategy: SearchStrategy[Any]) -> Any:
        kind = type(strategy).__name__
        draw: Any = strategy
        if kind == "LazyStrategy":
            return self(draw.wrapped_strategy)
        if kind == "CompositeStrategy":
            return draw.definition(self, *draw.args, **draw.kwargs)
        if kind == "BuildsStrategy":
            named = {name: self(each) for name, each in draw.kwargs.items()}
            return draw.target(*map(self, draw.args), **named)
        if kind == "OneOfStrategy":
            return self(self.chance.choice(draw.original_strategies))
        if kind == "IntegersStrategy":
            return self.chance.randint(draw.start, draw.end)
        if kind == "BooleansStrategy":
            return self.chance.random() < 0.5
        if kind == "JustStrategy":
            return draw.value
        if kind == "SampledFromStrategy":
            return self.chance.choice(list(draw.elements))
        if kind == "ListStrategy":
            count = self.chance.randint(draw.min_size, draw.max_size)
            return [self(draw.element_strategy) for _ in range(count)]
        raise TypeError(f"no dice for {kind}")


def one(seed: str) -> tuple[bool, list[Any]]:
    """Whether a history of this seed shows anything at all, and what is refused in its request."""
    dice = Dice(seed)
    reader = dice.chance.choice(READERS)
    log, window = dice(damaged(by=reader.maker)), dice(limits)
    log = summarised(log, dice.chance)
    shown = render(
        folded(log, window),
        provider=reader.maker.provider,
        model=reader.maker.model,
        strict=dice.chance.random() < 0.2,
    )
    if not shown:
        return False, []
    tools = (ADD,) if dice.chance.random() < 0.7 else ()
    request = LLMRequest(messages=shown, tools=tools, system_prompt="Be brief.")
    body = reader.write(request, dice(options))
    return True, [(reader.name, why) for why in reader.refuse(body, thoughts_of(log, reader))]


def summarised(log: list[Message], chance: random.Random) -> list[Message]:
    """*log* with summaries of what they can speak for, made somewhere along it; or as it is."""
    made: list[Message] = []
    for message in log:
        made.append(message)
        if chance.random() < _SUMMED_UP:
            turns, split = chance.randint(1, 3), chance.random() < 0.5
            part = part_to_cover(made, keep_turns=turns, split=split)
            if part is not None:
                made.append(summary_message("What was said before.", kept=part.kept))
    return made


def main(count: int, seed: str) -> int:
    """Judge *count* histories that show something."""
    shown = empty = bad = 0
    while shown < count:
        name = f"{seed}/{shown + empty}"
        shows, refused = one(name)
        shown, empty = shown + shows, empty + (not shows)
        if refused:
            bad += 1
            print(f"{name}: {refused[:2]}")
    print(f"{shown} histories, {empty} more without anything to show: {bad} refused")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "0"))
