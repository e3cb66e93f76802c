"""
The contract of a provider, which answers an `LLMRequest`, and what a provider declares beside it.

A provider needs one method. The loop knows nothing of transports, credentials or wire formats; a
provider knows nothing of turns, tools that run, or stores. `abilities_of` is the only reader of the
optional attributes; other code does not ask a provider whether it has one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from looopy.errors import ConfigurationError
from looopy.types.constructors import quick
from looopy.types.message import Usage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """
    The optional attributes of a provider, as they were when they were read.

    Attributes:
        name: Such as `"openai"`. Errors and messages name it, and `Hooks.get_api_key` gets it.
        model: The default model's name.
        window_tokens: Size of the model's context window; `None`: unknown. The history is cut to
            fit it.
        structured_output: The provider keeps to `StreamOptions.output_schema`, beside tools too.
        enforces: Returns true for an output schema that it keeps to; `None`: any. Asked only if
            `structured_output` is true.
        knows_cost: The price of a call is known; `None`: unknown. With `False`,
            an agent that has a budget of money does not start.
        cost_of: Returns a `Usage` of a call to a model with its cost, or unchanged if the price is
            unknown. The model's name `""` means the default model. A budget of money for a day or
            month needs it, to reserve the most that a call may cost.
        asks_for_keys: The provider calls several others. It gets `StreamOptions.key_of` rather than
            a key.
        count_tokens: Counts the tokens of each of several texts, as the model's own tokenizer does.
            The history is then cut by them. A method that fails is not called again, and the
            history is cut by what the provider reports.
        prepare: Loads what takes time before the first call. An agent awaits it in `start()`, and
            reads the abilities after it. Before `count_tokens` a turn awaits it again, so it is
            quick when nothing is left to load.
        aclose: Frees connections and child processes.
    """

    name: str = ""
    model: str = ""
    window_tokens: int | None = None
    structured_output: bool = False
    enforces: Callable[[Mapping[str, Any]], bool] | None = None
    knows_cost: bool | None = None
    cost_of: Callable[[Usage, str], Usage] | None = None
    asks_for_keys: bool = False
    count_tokens: Callable[[Sequence[str]], Awaitable[Sequence[int]]] | None = None
    prepare: Callable[[], Awaitable[object]] | None = None
    aclose: Callable[[], Awaitable[object]] | None = None


@runtime_checkable
class LLMProvider(Protocol):
    """
    Something that answers requests with a stream of events.

    Contract:
        - `stream` never raises for a failed request: the last event is `done` or `error`, and
          carries the final message (on `error` with stop reason `error`, the partial content kept).
          The `error` event's `error` is an `LLMError`; its `retryable` is true if another try may
          help.
        - Cancelling the task that reads the stream, or closing the iterator, closes the connection.
        - A provider holds no state between calls, so one may serve many agents at once.
        - The SDK's own retries are off: the loop retries, visibly.

    A provider may declare more by optional attributes: `name`, `model`, `window_tokens`,
    `structured_output`, `enforces()`, `knows_cost`, `cost_of()`, `asks_for_keys`,
    `count_tokens()`, `prepare()` and `aclose()`. `Abilities` describes each. `abilities_of` reads
    them when an agent starts and when a turn begins. A value of a wrong type and a name close to
    one of these (`window_token`) raise a `ConfigurationError`; other attributes are the provider's
    own.
    """

    def stream(self, request: LLMRequest, options: StreamOptions) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events."""
        ...


def abilities_of(provider: object) -> Abilities:
    """
    Read the optional attributes of *provider*; one that is missing or `None` has its default.

    Raises:
        ConfigurationError: One has a value of a wrong type; the message names it.
    """
    found: dict[str, Any] = {}
    for name in _ABILITIES:
        value = getattr(provider, name, None)
        if value is not None:
            found[name] = value
    for name, value in found.items():
        if not isinstance(value, _ABILITIES[name][0]):
            raise _wrong(provider, name, value)
    window = found.get("window_tokens")
    if window is not None and (window is True or window < 1):
        raise _wrong(provider, "window_tokens", window)
    return Abilities(**found)


def check_abilities(provider: object) -> None:
    """
    Refuse a provider that would lose an ability by a mistake in its declaration.

    Raises:
        ConfigurationError: An attribute has a value of a wrong type, or is nearly named like an
            ability; the message names both.
    """
    from looopy.types.declared import near_miss  # only a custom provider needs it

    if found := near_miss(provider, _ABILITIES):
        wrong, right = found
        raise ConfigurationError(
            f"the provider {type(provider).__name__} has {wrong!r}, which looopy does not read:"
            f" did you mean {right!r}?"
        )
    abilities_of(provider)


def _wrong(provider: object, name: str, value: object) -> ConfigurationError:
    kind = type(value).__name__
    shown = f"{kind} {value}" if isinstance(value, (int, float)) else kind
    return ConfigurationError(
        f"the provider {type(provider).__name__} declares {name} as {shown}:"
        f" it must be {_ABILITIES[name][1]}"
    )


_FLAG = "True or False"
_METHOD = "an async method"
_ABILITIES: dict[str, tuple[Any, str]] = {  # the type of each, and the words for it
    "name": (str, "text"),
    "model": (str, "text"),
    "window_tokens": (int, "a whole number of at least 1, or None"),
    "structured_output": (bool, _FLAG),
    "enforces": (Callable, "a method"),
    "knows_cost": (bool, "True, False or None"),
    "cost_of": (Callable, "a method"),
    "asks_for_keys": (bool, _FLAG),
    "count_tokens": (Callable, _METHOD),
    "prepare": (Callable, _METHOD),
    "aclose": (Callable, _METHOD),
}
