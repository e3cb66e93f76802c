"""
Packages that load their names on first use (PEP 562), so that importing one does no work.

A package lists its names three times, each for a reader of its own: imports under `TYPE_CHECKING`
for type checkers, `__all__` for people, and the table that it hands to `export` for the running
program. A test compares the three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def export(package: dict[str, Any], modules: Mapping[str, Sequence[str]]) -> None:
    """
    Give *package* the names that *modules* list; each module is imported when a name is first used.

    Args:
        package: The `globals()` of its `__init__`.
        modules: The names by module; `"ToolSpec as Tool"` is one under another name. A module is
            relative to *package* if it begins with a dot.
    """
    package_name = package["__name__"]
    home: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names:
            theirs, _, ours = name.partition(" as ")
            home[ours or theirs] = (module, theirs)

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the package's
        if name not in home:
            raise AttributeError(f"module {package_name!r} has no attribute {name!r}")
        module, theirs = home[name]
        value = package[name] = getattr(import_module(module, package_name), theirs)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - as above
        return sorted({*package, *package["__all__"]})

    package["__getattr__"], package["__dir__"] = __getattr__, __dir__
