"""
Packages that load their names on first use (PEP 562), so that importing one does no work.

A package lists its names twice, each time for a reader of its own: imports under `TYPE_CHECKING`
for type checkers (`import X as X` says that X is public), and the table that it hands to `export`
for the running program. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any


def export(package: dict[str, Any], modules: Mapping[str, Sequence[str]]) -> None:
    """
    Give *package* the names that *modules* list, and an `__all__` of them.

    Each module is imported when one of its names is first used.

    Args:
        package: The `globals()` of its `__init__`.
        modules: The names by module, which is relative to *package* if it begins with a dot.
    """
    package_name = package["__name__"]
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the package's
        if name not in home:
            raise AttributeError(f"module {package_name!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(home[name], package_name), name)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - as above
        return sorted({*package, *home})

    package["__all__"] = sorted(home, key=str.casefold)
    package["__getattr__"], package["__dir__"] = __getattr__, __dir__
