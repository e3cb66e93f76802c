"""What `maker` gives makes the objects that the class makes, only faster."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from looopy import Agent, AgentLoop, LoopConfig, ModelOptions
from looopy.llm import OpenAIProvider
from looopy.tools import RemoteAgent
from looopy.types import event, message, request
from looopy.types.constructors import amended, maker, quick, suggesting


@dataclass(frozen=True, slots=True)
class Base:
    """A class to derive from."""

    x: int
    y: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Derived(Base):
    """Has slots of its own, and those of its base."""

    z: str = "z"

    def __post_init__(self) -> None:
        object.__setattr__(self, "z", self.z.upper())


CASES = [
    (Base, (1,), {}),
    (Base, (1, [2]), {}),
    (Derived, (1,), {"z": "q"}),
    (request.StreamEvent, ("text_delta", 3, "word"), {}),
    (message.TextContent, ("hi",), {"text_signature": "s"}),
    (message.Usage, (), {"input": 3}),
    (message.UserMessage, ("hi",), {"timestamp": 4}),
    (message.AssistantMessage, ("hi",), {"timestamp": 4, "model": "m"}),
    (message.ToolResultMessage, (), {"tool_call_id": "a", "content": ["b"], "timestamp": 4}),
    (event.MessageUpdate, (), {"context_id": "c", "timestamp": event.utc_now(), "delta": "d"}),
    (
        event.TurnWarning,
        (),
        {"context_id": "c", "timestamp": event.utc_now(), "code": "x", "text": ""},
    ),
]


@pytest.mark.parametrize(("cls", "args", "named"), CASES)
def test_a_made_constructor_equals_that_of_the_class(cls, args, named):
    """Equal, of that class, and as frozen."""
    made, usual = maker(cls)(*args, **named), cls(*args, **named)
    assert made == usual
    assert type(made) is cls
    assert repr(made) == repr(usual)
    assert copy.copy(made) == usual
    name = fields(cls)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, None)
    with pytest.raises(FrozenInstanceError):
        delattr(made, name)


def test_an_object_of_a_made_constructor_can_be_pickled():
    """Nothing of the twin is left."""
    made = maker(message.TextContent)("hi")
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own


@pytest.mark.parametrize("cls", list(dict.fromkeys(case[0] for case in CASES)))
def test_its_parameters_are_those_of_the_class(cls):
    """Names, order, kinds, and which may be left out."""

    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default is inspect.Parameter.empty) for p in found]

    assert parameters(maker(cls)) == parameters(cls)


def test_each_object_has_a_default_of_its_own():
    """A factory is called each time."""
    make = maker(Base)
    assert make(1).y is not make(1).y


def test_post_init_is_called():
    """`__post_init__` sees a frozen object, and may refuse it."""
    assert maker(Derived)(1, z="q").z == "Q"
    assert maker(message.AssistantMessage)("hi").content == (message.TextContent("hi"),)
    with pytest.raises(message.ValueRefused):
        maker(message.CustomMessage)("user")


@pytest.mark.parametrize(("cls", "args", "named"), CASES)
def test_a_copy_has_the_changes_and_is_as_frozen(cls, args, named):
    """What `dataclasses.replace` gives; the one copied stays."""
    known = cls(*args, **named)
    name = fields(cls)[-1].name
    value = "other" if isinstance(getattr(known, name), str) else getattr(known, name)
    made = amended(known, **{name: value})
    assert made == replace(known, **{name: value})
    assert type(made) is cls
    assert made is not known
    assert known == cls(*args, **named)
    assert amended(known) == known
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, value)


def test_a_copy_has_no_other_fields():
    """A name that is none is refused."""
    with pytest.raises(AttributeError):
        amended(Base(1), w=2)


def test_post_init_gets_a_copy():
    """It is called as by `dataclasses.replace`."""
    assert amended(Derived(1), z="q").z == "Q"


@dataclass
class Open:
    """Neither frozen nor slotted."""

    x: int


@dataclass(slots=True)
class Thawed:
    """Slotted alone."""

    x: int


@dataclass(frozen=True, slots=True)
class Own:
    """Fills a field by itself."""

    x: int = field(default=3, init=False)


@pytest.mark.parametrize("cls", [Open, Thawed, Own, int])
def test_another_class_is_refused(cls):
    """What it could not fill faithfully."""
    with pytest.raises(TypeError):
        maker(cls)


def made_often(cls, *args, **named):
    """The last of so many instances that the quick constructor made it."""
    made = cls(*args, **named)
    for _ in range(100):
        made = cls(*args, **named)
    return made


def test_a_quick_class_equals_the_usual_constructor():
    """Before and after it has been made, with defaults, factories and what follows the fields."""

    @quick
    @dataclass(frozen=True, slots=True)
    class Quick:
        x: int
        y: list[int] = field(default_factory=list)
        z: str = field(default="z", kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "z", self.z.upper())

    slow = Quick.__init__
    first, last = Quick(1, z="q"), made_often(Quick, 1, z="q")
    assert Quick.__init__ is not slow
    assert first == last
    assert (last.x, last.y, last.z) == (1, [], "Q")
    assert type(last) is Quick
    assert made_often(Quick, 1).y is not last.y
    assert replace(last, x=2) == Quick(2, z="Q")
    with pytest.raises(FrozenInstanceError):
        last.x = 3
    with pytest.raises(TypeError, match="missing"):
        Quick()
    with pytest.raises(TypeError, match="unexpected"):
        Quick(1, w=2)
    assert list(inspect.signature(Quick).parameters) == ["x", "y", "z"]


def test_a_class_that_derives_from_a_quick_one_is_made_as_ever():
    """Its instances have other slots, or none."""

    @quick
    @dataclass(frozen=True, slots=True)
    class Quick:
        x: int = 1

    class Open(Quick):
        pass

    @dataclass(frozen=True, slots=True)
    class More(Quick):
        y: int = 2

    made_often(Quick)
    loose = made_often(Open, 5)
    assert (type(loose), loose.x) == (Open, 5)
    more = made_often(More, 5, 6)
    assert (type(more), more.x, more.y) == (More, 5, 6)


def test_a_class_that_is_not_frozen_cannot_be_quick():
    """It is said when the constructor is made."""

    @quick
    @dataclass(slots=True)
    class Soft:
        x: int = 1

    with pytest.raises(TypeError, match="is not frozen"):
        made_often(Soft)


MISSPELT = {
    "Agent": (lambda: Agent("ada", llm_provder=None), "llm_provider"),
    "AgentLoop": (lambda: AgentLoop(llm_provder=None), "llm_provider"),
    "LoopConfig": (lambda: LoopConfig(max_iteration=1), "max_iterations"),
    "ModelOptions": (lambda: ModelOptions(temprature=1), "temperature"),
    "OpenAIProvider": (lambda: OpenAIProvider("m", structred_output=True), "structured_output"),
    "RemoteAgent": (lambda: RemoteAgent("http://x", timeout=3), "timeout_s"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_option_raises_with_the_right_one(name):
    """In one line, which names the class that was called."""
    call, meant = MISSPELT[name]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got .*; did you mean '{meant}'\?$"):
        call()


def test_another_error_of_a_suggesting_class_stays_as_it_is():
    """Its own, and that of an option which nobody could have meant."""

    @suggesting
    class Kind:
        def __init__(self, *, number=1):
            self.number = number + 1

    assert Kind(number=2).number == 3
    with pytest.raises(TypeError, match="can only concatenate"):
        Kind(number="x")
    with pytest.raises(TypeError, match=r"^Kind\(\) got an unexpected .*'zzz'$"):
        Kind(zzz=1)
    assert list(inspect.signature(Kind).parameters) == ["number"]
