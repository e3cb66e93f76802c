"""The tracer and the metrics of one pair of providers, made once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from opentelemetry.context import Context, set_value
from opentelemetry.metrics import Observation

from looopy.telemetry import names

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

    from looopy.types.message import Usage

# The bounds that the conventions recommend, and for times of ours the same from a millisecond on.
_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
_TURN_SECONDS: Final = tuple(0.1 * 2**n for n in range(13))
_SHORT_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TOKENS: Final = tuple(4**n for n in range(14))
_NAME: Final = "looopy"
NO_SPAN: Final = set_value("looopy", "no span", Context())
"""
For measurements, which are recorded later: an exemplar would be of whatever turn runs then.

It is not empty, because the SDK takes an empty context for none, and then the current one.
"""
_AT_ONCE: Final = 64
Record: TypeAlias = Callable[[Any, Any, Context], None]


class ModelCall(NamedTuple):
    """The measurements of a model call: its usage, if there is an answer, and times in seconds."""

    usage: Usage | None
    took: float
    first_chunk: float | None
    error: str | None


class Instruments:
    """
    Counts and times, by the conventions' names.

    No attribute grows without bound: contexts, turns, owners and calls are on spans alone.

    Measurements wait in a queue, and are recorded together: many in a row take half the time of as
    many in between the steps of a turn. A collection records them first, so it lacks none. For the
    same reason, a model call is one entry of the queue.
    """

    def __init__(self, tracers: TracerProvider, meters: MeterProvider) -> None:
        of_looopy = version(_NAME)
        self.tracer = tracers.get_tracer(_NAME, of_looopy)
        meter = meters.get_meter(_NAME, of_looopy)
        self.chat_s = _seconds(meter, names.CHAT_DURATION, "Duration of a model call", _SECONDS)
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            description="Tokens of a model call",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        text = "From the request to the first piece of the answer"
        self.first_chunk_s = _seconds(meter, names.CHAT_FIRST_CHUNK, text, _SECONDS)
        self.turn_s = _seconds(meter, names.TURN_DURATION, "Duration of a turn", _TURN_SECONDS)
        self.tool_s = _seconds(meter, names.TOOL_DURATION, "Duration of a tool call", _SECONDS)
        text = "Duration of a commit of a turn"
        self.commit_s = _seconds(meter, names.COMMIT_DURATION, text, _SHORT_SECONDS)
        text = "From the call to the claim of the context, the wait in the queue included"
        self.lease_s = _seconds(meter, names.LEASE_WAIT, text, _SHORT_SECONDS)
        self._late: deque[tuple[Record, Any, Mapping[str, Any] | None]] = deque()
        # Held by the thread that records. Only a collection waits for it: a turn leaves its entries
        # to the thread that records, which may be its own (garbage collection ends an abandoned
        # turn anywhere) or a collector's.
        self._recording = Lock()
        # Counted in a dictionary, and read when a reader collects: a turn changes them four times.
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._unpriced: Counter[tuple[tuple[str, Any], ...]] = Counter()
        meter.create_observable_up_down_counter(
            names.TURNS_WAITING,
            [self._collected],
            unit="{turn}",
            description="Turns that wait for their context",
        )
        meter.create_observable_up_down_counter(
            names.TURNS_RUNNING,
            [lambda _: _by_agent(self.running)],
            unit="{turn}",
            description="Turns that run in this process",
        )
        self.recovered = meter.create_counter(
            names.TURNS_RECOVERED,
            unit="{turn}",
            description="Turns of a process that died, ended by this one",
        )
        self.cost = meter.create_counter(
            names.COST, unit="{usd}", description="Dollars, where the price is known"
        )
        meter.create_observable_counter(
            names.COST_UNKNOWN,
            [lambda _: [Observation(n, dict(place)) for place, n in [*self._unpriced.items()]]],
            unit="{call}",
            description="Model calls with an unknown price, which the cost leaves out",
        )

    def later(self, record: Record, value: Any, place: Mapping[str, Any] | None) -> None:
        """
        Call *record* at the next collection, or before.

        Args:
            record: A method of an instrument, or of this.
            place: The attributes, which never change again; `None` if there are none.
        """
        late = self._late
        late.append((record, value, place))
        if len(late) >= _AT_ONCE and self._recording.acquire(blocking=False):
            try:
                self._record_all()
            finally:
                self._recording.release()

    def model_call(self, call: ModelCall, place: Mapping[str, Any], context: Context) -> None:
        """Record the measurements of a model call."""
        usage, took, first_chunk, error = call
        if usage is not None:
            self.usage(usage, place, context)
        if first_chunk is not None:
            self.first_chunk_s.record(first_chunk, place, context)
        self.chat_s.record(took, with_error(place, error), context)

    def usage(self, usage: Usage, place: Mapping[str, Any], context: Context) -> None:
        """Record the tokens and the cost of a model call."""
        record = self.tokens.record
        record(input_tokens(usage), {**place, names.TOKEN_TYPE: "input"}, context)
        record(usage.output, {**place, names.TOKEN_TYPE: "output"}, context)
        if usage.cost is not None and usage.cost.total > 0:
            self.cost.add(usage.cost.total, place, context)
        if not usage.is_priced:
            self._unpriced[tuple(place.items())] += 1

    def _record_all(self) -> None:
        late = self._late
        while late:
            record, value, place = late.popleft()
            record(value, place, NO_SPAN)

    def _collected(self, _: CallbackOptions) -> Iterable[Observation]:
        """The turns that wait. The SDK calls this first when it collects, so nothing is missing."""
        with self._recording:
            self._record_all()
        return _by_agent(self.waiting)


def _by_agent(turns: Counter[str]) -> list[Observation]:
    return [Observation(n, {names.AGENT_NAME: name}) for name, n in [*turns.items()]]


def input_tokens(usage: Usage) -> int:
    """All input, as the conventions count it: with the tokens of the cache."""
    return usage.input + usage.cache_read + usage.cache_write


def with_error(place: Mapping[str, Any], error: str | None) -> Mapping[str, Any]:
    """The attributes with the kind of an error, if there is one."""
    return place if error is None else {**place, names.ERROR_TYPE: error}


def _seconds(meter: Meter, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(
        name, unit="s", description=text, explicit_bucket_boundaries_advisory=bounds
    )
