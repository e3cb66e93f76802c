"""`looopy models`: which model would answer and why, its prices, and which ones can be fetched."""

from __future__ import annotations

import os
from importlib.util import find_spec

from looopy.cli.terminal import Terminal
from looopy.errors import how_to_install
from looopy.llm.local import catalogue, is_cached
from looopy.llm.local.catalogue import human_size
from looopy.llm.price_list import price_list
from looopy.llm.resolve import FORMS, pick_default


def list_models() -> int:
    """Print the choice, the age of the prices, and the list of embedded models."""
    terminal = Terminal()
    model, reason = pick_default(os.environ)
    terminal.line(f"Without --model: {model}. {reason}")
    terminal.line(f"Any model is named like: {', '.join(FORMS)}")
    terminal.line(f"Prices: {_prices()}")
    terminal.line("Embedded models:")
    for known in catalogue():
        where = "here" if is_cached(known) else f"{human_size(known.size_bytes)} to fetch"
        about = f"{known.title}, {known.licence}, {where}: {known.note}"
        terminal.line(f"  local/{known.name}  {about}")
    return 0


def _prices() -> str:
    used = price_list()
    if used is None and find_spec("genai_prices") is None:
        return f"unknown, and so are costs: {how_to_install('prices')}"
    if used is None:
        return "unknown, and so are costs: genai-prices cannot be used; see the log"
    if not used.is_old:
        return str(used)
    way = "fetch it again" if used.source == "fetched" else "upgrade genai-prices"
    return f"{used}. They are old: {way}"
