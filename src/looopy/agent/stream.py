"""
`TurnStream`: the view of a turn that an agent runs.

It is hot: the turn runs with or without subscribers. `loop.agent_loop.cold` is the form of the
stateless loop: there, subscribing runs the turn and disposing cancels it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from reactivex import Observable
from reactivex.abc import DisposableBase, ObserverBase, SchedulerBase
from reactivex.disposable import Disposable

from looopy.agent.broadcast import Broadcast
from looopy.types.event import AgentEvent
from looopy.types.result import OutputT, TurnResult

_OF_RESULT = frozenset(one.name for one in fields(TurnResult)) | {"raise_for_outcome"}


class TurnStream(Observable[AgentEvent], Awaitable[TurnResult[OutputT]], Generic[OutputT]):
    """
    A view of a turn that runs with or without viewers.

    It is an Observable (`subscribe`, and every operator of reactivex), an async iterable of events,
    and awaitable for the `TurnResult`. The turn does not depend on its subscribers: there may be
    none, two or late ones. Leaving detaches, `cancel()` cancels. Every view begins at `turn_start`.

    Errors of the store (`AgentBusy` elsewhere, `Fenced`, `StoreUnavailable`) come from awaiting,
    iterating, `accepted()` and `on_error`. A failure inside the turn is an event, and the stream
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
        """Raise `TypeError`: an Observable would iterate without end and block the event loop."""
        raise TypeError(
            "a TurnStream is read with `async for`; blocking code uses"
            " looopy.sync.Agent.stream_turn()"
        )

    def __await__(self) -> Generator[Any, None, TurnResult[OutputT]]:  # type: ignore[override]  # narrower
        return self._broadcast.result().__await__()

    if not TYPE_CHECKING:  # a type checker reports missing attributes itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise `AttributeError`: the stream has no attributes of the result."""
            more = f": await it first, as in `(await turn).{name}`" if name in _OF_RESULT else ""
            raise AttributeError(f"a TurnStream has no {name!r}{more}", name=name, obj=self)

    async def accepted(self) -> int:
        """Wait until the user message is stored, and return the number of the turn."""
        return await self._broadcast.accepted()

    def cancel(self) -> None:
        """
        Request that the turn stop; it ends as `cancelled`, and keeps its results so far. Has no
        effect once the turn is over.
        """
        self._cancel()
