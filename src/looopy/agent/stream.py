"""
Between async generators and Observables: the one module that knows both.

`cold` makes an Observable of a generator: subscribing runs it, disposing cancels it. That is the
face of the stateless loop. `TurnStream` is hot: a view of a turn that an agent runs whether anybody
looks or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from reactivex import Observable
from reactivex.abc import DisposableBase, ObserverBase, SchedulerBase
from reactivex.disposable import Disposable

from looopy.agent.broadcast import Broadcast
from looopy.types.event import AgentEvent
from looopy.types.result import TurnResult

_OF_RESULT = frozenset(one.name for one in fields(TurnResult)) | {"raise_for_outcome"}


class TurnStream(Observable[AgentEvent], Awaitable[TurnResult]):
    """
    A view of a turn that runs whether anybody looks or not.

    It is an Observable (`subscribe`, and every operator of reactivex), an async iterable of events,
    and awaitable for the `TurnResult`. None, two or late subscribers make no difference to the
    turn; leaving detaches, `cancel()` cancels. Every view begins at `turn_start`.

    Errors of the store (`AgentBusy` elsewhere, `Fenced`, `StoreUnavailable`) come from awaiting,
    iterating, `accepted()` and `on_error`; a failure inside the turn is an event, and the stream
    completes.
    """

    def __init__(self, broadcast: Broadcast, cancel: Callable[[], object]) -> None:
        def subscribe(
            observer: ObserverBase[AgentEvent], _scheduler: SchedulerBase | None = None
        ) -> DisposableBase:
            return Disposable(broadcast.observe(observer))

        super().__init__(subscribe)
        self._broadcast = broadcast
        self._cancel = cancel

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self._broadcast.read()

    def __iter__(self) -> NoReturn:
        """
        Refuse `for`: an Observable would answer it without end, and the loop would stand still.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a TurnStream is read with `async for`; blocking code uses"
            " looopy.sync.Agent.stream_turn()"
        )

    def __await__(self) -> Generator[Any, None, TurnResult]:  # type: ignore[override]  # narrower
        return self._broadcast.result().__await__()

    if not TYPE_CHECKING:  # a type checker refuses what is missing by itself

        def __getattr__(self, name: str) -> NoReturn:
            """
            Refuse what the result has, and the stream has not.

            Raises:
                AttributeError: Always.
            """
            more = f": await it first, as in `(await turn).{name}`" if name in _OF_RESULT else ""
            raise AttributeError(f"a TurnStream has no {name!r}{more}", name=name, obj=self)

    async def accepted(self) -> int:
        """
        Wait until the user message is safe.

        Returns:
            The number of the turn.
        """
        return await self._broadcast.accepted()

    def cancel(self) -> None:
        """
        Ask the turn to stop; it ends as `cancelled`, keeping what happened. Harmless when it is
        over.
        """
        self._cancel()
