"""
Show which modules spend the steps of a turn: a profile that is the same on a busy machine.

    python -m benchmarks.shares                     a tool turn on SQLite
    python -m benchmarks.shares text turn memory    any of `budgets.WORK`, but the import

Steps are counted in all threads; see `counting`. Their C functions' own time (the disk's sync, the
JSON of a long history) is not in them.
"""

import sys

from benchmarks.budgets import WORK, shares

_LEAST = 0.01


def main() -> None:
    """See the module."""
    name = " ".join(sys.argv[1:]) or "tool turn sqlite"
    if name not in WORK or name.startswith("import"):
        raise SystemExit(f"{name!r} is none of {', '.join(WORK[1:])}")
    found = shares(name)
    whole = sum(found.values())
    print(f"{name}: where its steps go")
    for area, count in found.items():
        if count / whole >= _LEAST:
            print(f"{count / whole:6.1%}  {area}")
    small = sum(count for count in found.values() if count / whole < _LEAST)
    print(f"{small / whole:6.1%}  {sum(c / whole < _LEAST for c in found.values())} other modules")


if __name__ == "__main__":
    main()
