"""The tree of errors is part of the public surface: shape, facts and pickling are pinned."""

import copy
import pickle

import pytest

from looopy import errors
from looopy.errors import LooopyError

TREE = """
LooopyError
  AgentError
    AccessDenied
    AgentStateError status=None action=None
      AgentBusy turn=None
      AgentNotStarted
      CannotContinue
    Fenced
    HostClosed
    IdempotencyConflict
    InputNotFound request_id=None
      AlreadyAnswered actor_id=None
      InputExpired expired_at=None
    TurnIncomplete outcome=None
    TurnMismatch expected=None actual=None
  ConfigurationError
    FactoryFailed context_id=None
    InvalidSkill file=None field=None
    InvalidTool
    MissingExtra
    MissingKey
    UnknownModel
  LLMError provider=None model=None retryable=False unbilled=False
    ContextOverflow unbilled=True limit_tokens=None
    HistoryRejected unbilled=True position=None
    InvalidLLMResponse
    LLMUnavailable retryable=True
    OutputInvalid tries=0
    RateLimited unbilled=True retryable=True retry_after_s=None
    UnsupportedContent unbilled=True mime_type=None
    UnsupportedOption unbilled=True option=None
  LimitExceeded limit=None value=None
    BudgetExceeded resets_at=None waits=False
  StoreError
    ArchiveRefused member=None line=None path=None
    ArtifactDamaged artifact_id=None version=None expected=None actual=None
    ArtifactNotFound
    ContextNotFound
    SchemaOutOfDate found=None expected=None
    StoreConflict expected=None actual=None artifact_id=None
    StoreUnavailable outcome_known=True
      StorageFull
    ValueRefused path=None
  ToolError tool_name=None call_id=None
    InvalidToolArguments
    ToolDenied
    ToolNotFound
    ToolServerError server=None outcome_known=True
      SignInFailed
    ToolTimeout
"""

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, LooopyError)
]


def _facts(cls):
    """The facts that a class declares itself, with their defaults."""
    return {n: v for n, v in vars(cls).items() if n[0] != "_"} if cls in ALL else {}


def _draw(cls, depth=0):
    facts = "".join(f" {name}={value}" for name, value in _facts(cls).items())
    lines = ["  " * depth + cls.__name__ + facts]
    for child in sorted(cls.__subclasses__(), key=lambda c: c.__name__):
        if child.__module__ == errors.__name__:
            lines += _draw(child, depth + 1)
    return lines


def test_the_tree_is_as_it_is_drawn():
    """Catching wide or narrow keeps meaning what it meant."""
    assert "\n".join(_draw(LooopyError)) == TREE.strip()


def test_the_docstring_names_every_error():
    """The drawing at the top of the module is whole."""
    assert [cls.__name__ for cls in ALL if cls.__name__ not in (errors.__doc__ or "")] == []


@pytest.mark.parametrize("cls", ALL)
def test_an_error_survives_pickling_and_copying(cls):
    """Errors cross process borders with message and facts."""
    error = cls("one sentence", path="/0/content", turn=7)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is cls
        assert str(again) == again.message == "one sentence"
        assert again.facts == {"path": "/0/content", "turn": 7}
        assert (again.path, again.turn) == ("/0/content", 7)


@pytest.mark.parametrize("cls", ALL)
def test_a_fact_that_is_not_given_has_its_declared_default(cls):
    """Every declared fact can be read without asking whether it is there."""
    error = cls("one sentence")
    for base in cls.__mro__:
        for name in _facts(base):
            assert hasattr(error, name)


def test_what_may_help_to_try_again_says_so():
    """`retryable` is true for outages and rate limits, and can be set for one error."""
    assert errors.LLMUnavailable("down").retryable
    assert errors.RateLimited("slow").retryable
    assert not errors.HistoryRejected("no").retryable
    assert not errors.LLMUnavailable("gone", retryable=False).retryable


def test_not_found_is_also_a_key_error_with_a_plain_message():
    """`KeyError` would print the message in quotes."""
    error = errors.ContextNotFound("no context 'ada'")
    assert isinstance(error, KeyError)
    assert str(error) == "no context 'ada'"
