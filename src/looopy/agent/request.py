"""
The input of one turn: the `TurnRequest` of a caller, checked before anything is written, and the
`TurnSetup` of the agent.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from looopy.agent.broadcast import Subscribers
from looopy.agent.context import ContextView
from looopy.auth.sealing import KeyRing
from looopy.errors import AccessDenied, ConfigurationError, ValueRefused, how_to_install
from looopy.llm.provider import LLMProvider
from looopy.loop.incoming import as_user_message
from looopy.loop.output import OutputType, output_type_of
from looopy.stores.bundle import Stores
from looopy.stores.rules import check_idempotency_key
from looopy.tools.asking import answered_for
from looopy.tools.gather import ToolSource
from looopy.types.approval import answer_to_json
from looopy.types.config import Budget, LoopConfig
from looopy.types.constructors import quick
from looopy.types.context import AuthContext, SystemPrompt, as_part
from looopy.types.message import UserMessage
from looopy.types.message_json import message_to_json
from looopy.types.result import TurnResult
from looopy.types.state import PendingRequest
from looopy.types.storable import check

if TYPE_CHECKING:
    from looopy.agent.buffer import BufferedTurn


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetup:
    """
    The agent's part in the input of a turn.

    Attributes:
        known: The context as the agent last saw it; the turn keeps it up to date.
        keys: Makes and keeps the keys that credentials are encrypted to.
        auto_compact: Summarise a history that the model would not see whole.
        buffer: Takes the turn instead of the store (`auto_save=False`).
        ended: Called when the turn is over, before its last event is shown.
        watch: Shows the accepted turn of a number, to its end, to the viewers of the turn that
            repeats its request.
        owner_only: Refuse a turn of an actor who does not own the context.
    """

    known: ContextView
    provider: LLMProvider
    sources: Sequence[ToolSource]
    config: LoopConfig
    system_prompt: SystemPrompt
    keys: KeyRing
    auto_compact: bool
    buffer: "list[BufferedTurn] | None"
    subscribers: Subscribers
    ended: Callable[[], object]
    watch: Callable[[int, Any], Awaitable[TurnResult]]
    owner_only: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """
    The input of one call of `execute_turn`.

    Attributes:
        key: The idempotency key, or `None`.
        secret: The ids of the inputs that are credentials, known once the turn is planned.
        drops: The last turn, whose questions this one drops before it ends at once; or `None`.
        decides: The turn stores the decisions among its inputs and ends: see `Agent.decide`.
        answered_by: The actors who gave the inputs, where they are not that of the turn.
        judged: The requests, by id, that its actor, who need not own the context, may decide.
    """

    user_message: UserMessage | None
    inputs: Mapping[str, Any]
    auth_context: AuthContext | None
    metadata: Mapping[str, Any]
    output_type: OutputType | None = None
    on_busy: Literal["reject", "wait"]
    key: str | None = None
    secret: set[str] = field(default_factory=set)
    drops: int | None = None
    decides: bool = False
    judged: Mapping[str, PendingRequest] | None = None
    answered_by: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def checked(
        cls,
        user_message: str | UserMessage | None,
        *,
        inputs: Mapping[str, Any] | None,
        auth_context: AuthContext | None,
        tenant: str,
        metadata: Mapping[str, Any] | None,
        output_type: Any,
        on_busy: Literal["reject", "wait"],
        key: str | None,
    ) -> Self:
        """The caller's input, checked for *tenant*; errors as `Agent.execute_turn`."""
        if user_message is not None:
            user_message = as_user_message(user_message)
        metadata, inputs = check_storable(metadata, "/metadata"), check_inputs(inputs)
        if key is not None:
            check_idempotency_key(key)
        return cls(
            user_message=user_message,
            inputs=inputs,
            metadata=metadata,
            output_type=output_type_of(output_type),
            auth_context=check_auth_context(auth_context, tenant),
            on_busy=on_busy,
            key=key,
            answered_by=answered_for.get(),
        )

    @property
    def input_hash(self) -> str | None:
        """The hash of the whole input, except credentials; `None` without a key."""
        return None if self.key is None else self._hash(self.secret)

    def asks_as(self, input_hash: str | None) -> bool:
        """True if *input_hash* is that of the same input."""
        return input_hash is not None and input_hash == self._hash(secret_inputs(input_hash))

    def _hash(self, secret: Collection[str]) -> str:
        schema = None if self.output_type is None else self.output_type.schema
        return input_hash(self.user_message, self.inputs, self.metadata, schema, secret)

    def has_auth(self) -> bool:
        """True if it has credentials that have not expired."""
        return self.auth_context is not None and not self.auth_context.expired()

    @property
    def actor_id(self) -> str | None:
        """The actor of the turn."""
        return self.auth_context.actor_id if self.auth_context else None


def agent_options(
    *, on_busy: object, tools: object, loop_config: object, system_prompt: object, stores: object
) -> None:
    """Raise `ConfigurationError` for an option of a wrong type; the text says what it takes."""
    if on_busy not in ("reject", "wait"):
        raise ConfigurationError(f"on_busy must be 'reject' or 'wait', not {on_busy!r}")
    if not isinstance(tools, (list, tuple)):
        raise ConfigurationError("tools must be a list of functions or tools, such as [add]")
    if loop_config is not None and not isinstance(loop_config, LoopConfig):
        raise ConfigurationError("loop_config must be a LoopConfig(...)")
    for part in system_prompt if isinstance(system_prompt, (list, tuple)) else [system_prompt]:
        as_part(part)
    if not isinstance(stores, (str, Stores)):
        raise ConfigurationError("stores must be a URL, or what open_stores() gave")


def refuse_unpriced(provider: object, budget: Budget) -> None:
    """Raise `ConfigurationError` for a budget of money if *provider* has no known price."""
    if budget.limits_money and budget.unknown_cost != "ignore":
        raise ConfigurationError(
            f"the budget limits dollars, and the price of {provider!r} is not known: name its"
            ' prices with price_as, count its calls as nothing with Budget(unknown_cost="ignore"),'
            f" or install prices: {how_to_install('prices')}"
        )


def check_storable(values: Mapping[str, Any] | None, path: str) -> dict[str, Any]:
    """A copy of *values*, or `ValueRefused` with a path that begins with *path*."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ValueRefused(
            f"{path[1:]} takes JSON values by name, not {type(values).__name__}", path=path
        )
    kept = dict(values)
    check(kept, path)
    return kept


def check_inputs(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of the answers by `request_id`, or `ValueRefused` if one cannot be stored."""
    if value is None:
        return {}
    shape = "inputs takes the answers by request id, as {request.request_id: True}"
    if not isinstance(value, Mapping):
        raise ValueRefused(f"{shape}, not {type(value).__name__}", path="/inputs")
    for key in value:
        if not isinstance(key, str):
            raise ValueRefused(f"{shape}; a key is no {type(key).__name__}", path="/inputs")
    as_json = {key: answer_to_json(one) for key, one in value.items()}
    return check_storable(as_json, "/inputs")


def check_auth_context(value: AuthContext | None, tenant: str) -> AuthContext | None:
    """The auth context, checked for stores of *tenant*; `ValueRefused` or `AccessDenied`."""
    if value is not None and not isinstance(value, AuthContext):
        raise ValueRefused(
            "auth_context takes an AuthContext(actor_id, credentials={...}), not"
            f" {type(value).__name__}",
            path="/auth_context",
        )
    if value is not None and value.tenant_id not in (None, tenant):
        raise AccessDenied("the auth context belongs to another tenant than these stores")
    return value


def check_at_least_one(value: int, path: str) -> None:
    """Raise `ValueRefused` at *path* unless *value* is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueRefused(f"{path[1:]} takes a whole number of at least 1", path=path)


def input_hash(
    message: UserMessage | None,
    inputs: Mapping[str, Any],
    metadata: Mapping[str, Any],
    output: Mapping[str, Any] | None = None,
    secret: Collection[str] = (),
) -> str:
    """
    Hash the input of a request: equal for two requests exactly if their inputs are the same.

    Args:
        secret: The *inputs* that are credentials. Their ids count, but not their values, which
            could be guessed from a stored hash. The ids follow the hex digits, so that a comparison
            can leave out the same ones.
    """
    said = None if message is None else message_to_json(message, compact=True)
    if said is not None:
        said.pop("timestamp", None)  # a repeated message with another time is still the same
    more = [] if output is None else [output]
    known = {name: None if name in secret else value for name, value in inputs.items()}
    left_out = f" {json.dumps(sorted(secret))}" if secret else ""
    asked = json.dumps([said, known, metadata, *more], sort_keys=True, default=dict) + left_out
    return hashlib.sha256(asked.encode()).hexdigest() + left_out


def secret_inputs(found: str) -> list[str]:
    """The ids whose values were left out of *found*, a result of `input_hash`."""
    _, _, left_out = found.partition(" ")
    ids: list[str] = json.loads(left_out) if left_out else []
    return ids
