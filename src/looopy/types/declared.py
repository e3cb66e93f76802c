"""
Optional attributes that others' classes declare, such as `window_tokens` of a provider.

A class that lacks one is fine, and so is one with attributes of its own. A name that is nearly
right is neither: it would be passed over in silence.
"""

from __future__ import annotations

from collections.abc import Collection

_NEAR = 0.9
_FEW = 3  # letters, of the `_` among them, that a name written in another way may lack


def near_miss(owner: object, known: Collection[str]) -> tuple[str, str] | None:
    """
    Find a public attribute of *owner* that was probably meant to be one of *known*.

    Only names of several words are compared: `close` beside `aclose`, or `models` beside `model`,
    is a name with a meaning of its own. A name that *owner* has itself was not meant by another.

    Returns:
        The wrong name and the right one; `None` if there are none.
    """
    there = {name for name in dir(owner) if name[0] != "_"}
    wanted = [right for right in known if "_" in right and right not in there]
    for name in sorted(there.difference(known)):
        for right in wanted:
            if len(set(right).difference(name)) < _FEW and _is_near(_plain(name), _plain(right)):
                return name, right
    return None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _is_near(one: str, other: str) -> bool:
    if 2 * min(len(one), len(other)) < _NEAR * (len(one) + len(other)):
        return False  # the ratio cannot be higher
    import difflib  # few names have the same letters

    return difflib.SequenceMatcher(None, one, other).ratio() >= _NEAR
