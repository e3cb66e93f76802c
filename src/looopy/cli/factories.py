"""
The factory that a user names on the command line: `MODULE:FACTORY` or `file.py:FACTORY`.

A factory makes an agent for a context: `factory(context_id, stores)` returns an `Agent` that is not
started. `looopy.server.AgentHost` calls it and checks the result. The current directory is
importable, as with `python -m`. A name that leads nowhere is a `ConfigurationError`, which the
program shows in one line, with the way out.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from looopy.errors import ConfigurationError

if TYPE_CHECKING:
    from looopy.server.host import AgentFactory

_FORM: Final = "name it MODULE:FACTORY or file.py:FACTORY, such as app:build"
_MOST_NAMES = 5


def load_factory(name: str) -> AgentFactory:
    """
    Import the factory that *name* stands for.

    Args:
        name: `MODULE:FACTORY` or `path/to/file.py:FACTORY`; FACTORY may have dots.

    Raises:
        ConfigurationError: The name has another form, its module cannot be imported, or it has no
            such function.
    """
    found = load_function(name)
    _check_parameters(name, found)
    return found


def load_function(name: str) -> Callable[..., Any]:
    """
    Import the function that *name* stands for, or the object that can be called like one.

    Raises:
        ConfigurationError: See `load_factory`.
    """
    where, _, what = name.rpartition(":")
    if not where or not all(part.isidentifier() for part in what.split(".")):
        raise ConfigurationError(f"{name!r} does not name a factory: {_FORM}")
    module = _module(where)
    found: Any = module
    for part in what.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(f"{where} has no {what!r}{_others(module)}")
    if not callable(found):
        raise ConfigurationError(
            f"{name} is not a function: a factory takes (context_id, stores) and returns an Agent"
        )
    return cast("Callable[..., Any]", found)


def _module(where: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if where.endswith(".py"):
        return _imported(where, lambda: _from_file(Path(where)))
    if not all(part.isidentifier() for part in where.split(".")):
        raise ConfigurationError(f"{where!r} is neither a module nor a .py file: {_FORM}")
    return _imported(where, lambda: importlib.import_module(where))


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}: {_FORM}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for the modules beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} cannot be imported: {_FORM}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _imported(where: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except ConfigurationError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {where!r}, seen from {Path.cwd()}: {_FORM}"
            ) from error
        raise ConfigurationError(f"{where} cannot be imported: {error}") from error
    except Exception as error:
        raise ConfigurationError(
            f"{where} cannot be imported: {type(error).__name__}: {error}{_line_of(error)};"
            " LOOOPY_DEBUG=1 shows more"
        ) from error


def _line_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _others(module: ModuleType) -> str:
    """The functions that *module* itself defines, as suggestions for a mistyped name."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return f": it has {', '.join(names[:_MOST_NAMES])}" if names else ", and no function at all"


def _check_parameters(name: str, found: Callable[..., Any]) -> None:
    try:
        inspect.signature(found).bind("context", None)
    except TypeError as error:
        raise ConfigurationError(
            f"{name} cannot be called as factory(context_id, stores): {error}"
        ) from None
    except ValueError:
        return  # a callable without a signature
