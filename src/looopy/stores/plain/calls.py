"""Calls the methods of a store of an application's own, and names them in errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from looopy.errors import ConfigurationError, LooopyError, StoreUnavailable


class Calls:
    """
    The methods of one store, by name.

    Args:
        store: The store.
        role: The parameter that it was given as, such as `messages`.
        needs: Methods that it must have; one of several names is a tuple of them.

    Raises:
        ConfigurationError: It lacks one of them.
    """

    def __init__(self, store: object, role: str, *needs: str | tuple[str, ...]) -> None:
        self.store = store
        self.role = role
        self.name = type(store).__name__
        for one in needs:
            names = (one,) if isinstance(one, str) else one
            if not any(self.has(name) for name in names):
                raise ConfigurationError(
                    f"{role}={self.name} has no method `{'` or `'.join(names)}`:"
                    " see `Stores.of` for the methods that a store needs"
                )
        self._thread: ThreadPoolExecutor | None = None

    def has(self, name: str) -> bool:
        """True if the store has the method."""
        return callable(getattr(self.store, name, None))

    def takes(self, name: str, parameter: str) -> bool:
        """True if the method has a parameter of this name."""
        try:
            return parameter in inspect.signature(getattr(self.store, name)).parameters
        except (TypeError, ValueError):
            return False

    def require(self, name: str, what: str) -> None:
        """Raise `ConfigurationError` if the store lacks a method that *what* needs."""
        if not self.has(name):
            raise ConfigurationError(
                f"{what} needs {self.role} with the method `{name}`, which {self.name} lacks;"
                " a store with a journal, such as sqlite:///app.db, has all of them"
            )

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """
        The result of a method.

        Raises:
            StoreUnavailable: It raised; `outcome_known` is false, because it may have written.
        """
        method: Callable[..., Any] = getattr(self.store, name)
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **options)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, f"looopy-{self.role}")
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, lambda: method(*args, **options))
            return await found if inspect.isawaitable(found) else found
        except LooopyError:
            raise
        except Exception as error:
            unavailable = StoreUnavailable(
                f"{self.role}={self.name}: `{name}` raised {type(error).__name__}: {error}"
            )
            unavailable.outcome_known = False
            raise unavailable from error

    def wrong(self, name: str, problem: str) -> StoreUnavailable:
        """The error for a method that returned something else than it must."""
        return StoreUnavailable(f"{self.role}={self.name}: `{name}` {problem}")

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
