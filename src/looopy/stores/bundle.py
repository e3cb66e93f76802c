"""
The stores of one tenant as one object.

`Stores` bundles the three stores with their journal. It is an async context manager, and nothing is
opened before it is entered. `looopy.stores.opening` makes one of a URL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self

from looopy.errors import ConfigurationError
from looopy.stores.base import (
    ArtifactStore,
    ContextIndex,
    Journal,
    MessageStore,
    PlainArtifactStore,
    PlainMessageStore,
    PlainStateStore,
    Spending,
    StagedArtifactStore,
    StateStore,
)
from looopy.stores.records import Commit, Committed
from looopy.types.storable import check_name

_logger = logging.getLogger("looopy")


class Lifetime(Protocol):
    """Connections that several `Stores` may share."""

    async def open(self) -> None:
        """Connect; may be called again after `close`."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then disconnect."""
        ...


class Stores:
    """
    The three stores of one tenant, and their journal.

    Args:
        messages: The message store. All four are of the same backend.
        artifacts: The artifact store.
        state: The state store.
        journal: The journal; `None` asks the state store for it.
        contexts: Lists contexts; `None` asks the state store for it.
        tenant: The owner of these contexts.
        lifetime: Opened by `async with`; `None` for stores that need no opening.
        bind: Makes the same stores for another tenant.

    Attributes:
        outlasts: True if the stores themselves wait for a claim or a commit to its end. Journal and
            state store declare it by an attribute of this name; `False` by default.

    Raises:
        ConfigurationError: The three have no common journal, so a step of a turn could not be one
            commit; the journal belongs to another backend; or `outlasts` is not `True` or `False`.
    """

    def __init__(
        self,
        messages: MessageStore,
        artifacts: ArtifactStore,
        state: StateStore,
        journal: Journal | None = None,
        *,
        contexts: ContextIndex | None = None,
        tenant: str = "default",
        lifetime: Lifetime | None = None,
        bind: Callable[[str], Stores] | None = None,
    ) -> None:
        self.messages = messages
        self.artifacts = artifacts
        self.state = state
        self.journal = journal or _common_journal(messages, artifacts, state)
        _check_together(self.journal, messages=messages, artifacts=artifacts)
        self._contexts = contexts
        self._spending: Spending | None = None
        self.tenant = tenant
        self.outlasts = _outlasts(self.journal) and _outlasts(state)
        self._lifetime = lifetime
        self._bind = bind

    @classmethod
    def of(
        cls,
        messages: PlainMessageStore,
        artifacts: PlainArtifactStore | None = None,
        state: PlainStateStore | None = None,
        *,
        tenant: str = "default",
    ) -> Stores:
        """
        Stores of an application's own, each with two or three methods, as the stores of agents.

        Args:
            messages: Keeps the messages.
            artifacts: Keeps the contents of artifacts; `None`: the state store does.
            state: Keeps everything else as documents. `None`: this process does. After its end,
                messages are all that is left of a context.
            tenant: The owner of these contexts.

        Raises:
            ConfigurationError: A store lacks a method that it needs. So does later everything that
                needs a journal: forks, tags, erasing, archives, and budgets of a day or month.
        """
        from looopy.stores.plain.backend import PlainBackend
        from looopy.stores.plain.composed import composed

        backend = PlainBackend(messages, artifacts, state)

        def bind(tenant: str) -> Stores:
            made = composed(backend, tenant)
            return cls(*made, tenant=tenant, lifetime=backend, bind=bind)

        return bind(tenant)

    @property
    def contexts(self) -> ContextIndex:
        """
        The index of the contexts: listing them by owner, status, tags and more.

        Raises:
            ConfigurationError: These stores have none.
        """
        if self._contexts is None:
            make: Callable[[], ContextIndex] | None = getattr(self.state, "make_contexts", None)
            if make is None:
                raise ConfigurationError(
                    f"the store {type(self.state).__name__} lists contexts by id alone:"
                    " state.list()"
                )
            self._contexts = make()
        return self._contexts

    @property
    def spending(self) -> Spending:
        """
        The accounts of owners and the tenant in days and months, for budgets that limit them.

        Raises:
            ConfigurationError: These stores keep no accounts.
        """
        if self._spending is None:
            make: Callable[[], Spending] | None = getattr(self.state, "make_spending", None)
            if make is None:
                raise ConfigurationError(
                    f"the store {type(self.state).__name__} keeps no accounts: it takes no budget"
                    " of a day or month"
                )
            self._spending = make()
        return self._spending

    def commit(self, commit: Commit) -> Coroutine[Any, Any, Committed]:
        """Apply one step of a turn, whole or not at all; see `Journal.commit`."""
        return self.journal.commit(commit)

    def stage_artifacts(self) -> StagedArtifactStore | None:
        """The artifact store for staged changes; `None` if it has no `stage` method."""
        stage: Callable[[], StagedArtifactStore] | None = getattr(self.artifacts, "stage", None)
        return None if stage is None else stage()

    def for_tenant(self, tenant: str) -> Stores:
        """
        The same stores, bound to another tenant; they live as long as those they were made from.

        Raises:
            ConfigurationError: The tenant has no usable name, or these stores cannot be bound
                again.
        """
        check_tenant(tenant)
        if self._bind is None:
            raise ConfigurationError("these stores were made for one tenant: open them by URL")
        return self._bind(tenant)

    async def __aenter__(self) -> Self:
        if self._lifetime is not None:
            await self._lifetime.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lifetime is not None:
            await self._lifetime.close()

    def __repr__(self) -> str:
        return f"<Stores tenant={self.tenant!r} {type(self.messages).__name__}>"


def _outlasts(store: object) -> bool:
    declared: object = getattr(store, "outlasts", False)
    if not isinstance(declared, bool):
        raise ConfigurationError(
            f"the store {type(store).__name__} declares outlasts as {type(declared).__name__}:"
            " it must be True or False"
        )
    return declared


def _common_journal(messages: object, artifacts: object, state: object) -> Journal:
    backends = {id(getattr(store, "backend", store)) for store in (messages, artifacts, state)}
    make: Callable[[], Journal] | None = getattr(state, "make_journal", None)
    if make is None or len(backends) != 1:
        raise ConfigurationError(
            "the three stores must share one backend, such as one MemoryBackend or one database:"
            " otherwise a step of a turn could be kept by halves; Stores.of(messages, artifacts,"
            " state) takes stores of your own that know nothing of each other"
        )
    return make()


def _check_together(journal: object, **stores: object) -> None:
    """Refuse stores that the journal would never write to."""
    theirs = getattr(journal, "backend", None)
    for name, store in stores.items():
        if theirs is not None and getattr(store, "backend", None) is not theirs:
            raise ConfigurationError(
                f"{name}={type(store).__name__} is of another backend than the journal"
                f" {type(journal).__name__}, which alone writes a turn: the store would stay empty;"
                " Stores.of(messages, artifacts, state) writes to stores of your own"
            )


def check_tenant(tenant: str) -> None:
    """Refuse a tenant without a usable name: 1 to 512 bytes of text that can be stored."""
    if not isinstance(tenant, str) or not tenant:
        raise ConfigurationError("a tenant needs a name: a non-empty string")
    check_name(tenant, "a tenant's name", "/tenant")
