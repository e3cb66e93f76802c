"""`@tool`: what a model is shown of a function, and what the function receives."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import functools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from looopy import agent_loop, testing
from looopy.errors import InvalidTool
from looopy.tools import FunctionTool, Tool, ToolResult, gather_tools, tool
from looopy.tools import __all__ as exported
from looopy.types.message import ToolResultMessage

if TYPE_CHECKING:
    from decimal import Decimal

    from looopy.tools import ToolContext  # for type checkers only, as linters want it

Run = Callable[..., Awaitable[ToolResultMessage]]


class Unit(enum.Enum):
    """A unit of temperature."""

    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(BaseModel):
    """Where."""

    city: str
    zip_code: int | None = None


@dataclass
class Box:
    """How large."""

    width: int
    height: int = 1


class Recorder:
    """Keeps the arguments it was called with."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def __call__(self, **arguments: Any) -> str:
        self.seen = arguments
        return "ok"


def properties(made: Tool) -> dict[str, Any]:
    """The fields of a tool's schema."""
    return dict(made.parameters["properties"])


def test_name_description_and_schema_come_from_the_function() -> None:
    """The three things that a model is shown need no second writing."""

    @tool
    async def add(a: int, b: int = 2) -> int:
        """
        Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    assert add.name == "add"
    assert add.description == "Add two numbers."
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "integer", "description": "The second.", "default": 2},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    """The schema is closed all the same."""

    @tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.description == ""


async def test_a_tool_can_be_called_by_hand() -> None:
    """The decorated name is still the function."""

    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    @tool(label="Minus")
    def subtract(a: int, b: int) -> int:
        return a - b

    assert await add(1, 2) == 3
    assert await add(a=1, b=2) == 3
    assert subtract(3, b=1) == 2
    assert subtract.label == "Minus"


async def test_arguments_arrive_as_the_annotated_types(run: Run) -> None:
    """Models, enums, dataclasses and dates are objects, nested ones too."""
    seen: dict[str, Any] = {}

    @tool
    def record(
        place: Place,
        unit: Unit,
        box: Box,
        when: dt.datetime,
        day: dt.date,
        places: list[Place],
        sizes: dict[str, float],
        pair: tuple[int, str],
        tags: set[str],
        mode: Literal["fast", "slow"],
        either: int | str,
    ) -> str:
        seen.update(locals())
        return "ok"

    result = await run(
        record,
        {
            "place": {"city": "Bern"},
            "unit": "c",
            "box": {"width": 2},
            "when": "2024-05-01T10:00:00+02:00",
            "day": "2024-05-01",
            "places": [{"city": "Ulm", "zip_code": 1}],
            "sizes": {"a": 1.5},
            "pair": [1, "x"],
            "tags": ["a", "b"],
            "mode": "fast",
            "either": "7",
        },
    )
    assert not result.is_error, result.text
    assert seen["place"] == Place(city="Bern")
    assert seen["unit"] is Unit.CELSIUS
    assert seen["box"] == Box(2, 1)
    assert seen["when"] == dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)
    assert seen["day"] == dt.date(2024, 5, 1)
    assert seen["places"] == [Place(city="Ulm", zip_code=1)]
    assert seen["sizes"] == {"a": 1.5}
    assert seen["pair"] == (1, "x")
    assert seen["tags"] == {"a", "b"}
    assert seen["mode"] == "fast"
    assert seen["either"] == "7"


async def test_a_strict_model_takes_dates_and_enums_from_json(run: Run) -> None:
    """JSON has no dates, so even a strict model must take a string for one."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        when: dt.date
        unit: Unit

    @tool
    def record(value: Strict) -> str:
        return f"{value.when.year} {value.unit.name}"

    result = await run(record, {"value": {"when": "2024-05-01", "unit": "f"}})
    assert result.text == "2024 FAHRENHEIT"


async def test_a_missing_argument_with_a_default_is_left_to_python(run: Run) -> None:
    """The default object itself is used, also one that JSON cannot say."""
    sentinel = object()

    @tool
    def check(a: int = 4, b: Any = sentinel, c: Place | None = None, d: Unit = Unit.CELSIUS) -> str:
        return f"{a} {b is sentinel} {c} {d}"

    assert (await run(check)).text == "4 True None Unit.CELSIUS"
    fields = properties(check)
    assert fields["a"]["default"] == 4
    assert "default" not in fields["b"]
    assert fields["c"]["default"] is None
    assert fields["d"]["default"] == "c"
    assert "required" not in check.parameters


async def test_an_optional_without_default_is_required_and_may_be_null(run: Run) -> None:
    """`X | None` says what is allowed, not whether it may be missing."""

    @tool
    def check(a: Union[int, None]) -> str:  # noqa: UP007
        return repr(a)

    assert check.parameters["required"] == ["a"]
    assert (await run(check, {"a": None})).text == "None"
    assert (await run(check, {})).is_error


async def test_constraints_and_descriptions_of_annotated_are_kept(run: Run) -> None:
    """What the annotation says wins over the docstring."""

    @tool
    def check(
        a: Annotated[int, Field(ge=0, description="From the annotation.")],
        b: Annotated[list[str], Field(min_length=1)],
        c: int = Field(5, le=9),
    ) -> str:
        """
        Check.

        Args:
            a: From the docstring.
            b: Names.
        """
        return f"{a} {b} {c}"

    fields = properties(check)
    assert fields["a"] == {"type": "integer", "minimum": 0, "description": "From the annotation."}
    assert fields["b"]["minItems"] == 1
    assert fields["b"]["description"] == "Names."
    assert fields["c"] == {"type": "integer", "maximum": 9, "default": 5}
    assert (await run(check, {"a": 0, "b": ["x"]})).text == "0 ['x'] 5"
    assert (await run(check, {"a": -1, "b": ["x"]})).is_error
    assert (await run(check, {"a": 0, "b": [], "c": 10})).is_error


async def test_a_parameter_may_have_any_name(run: Run) -> None:
    """Names that mean something to pydantic or JSON Schema mean nothing here."""

    @tool
    def check(title: str, schema: int, _private: int, model_config: int, json: int) -> str:
        return f"{title} {schema} {_private} {model_config} {json}"

    names = ["title", "schema", "_private", "model_config", "json"]
    assert list(properties(check)) == names
    given = dict.fromkeys(names, 1) | {"title": "T"}
    assert (await run(check, given)).text == "T 1 1 1 1"


def test_titles_are_dropped_but_fields_named_title_are_not() -> None:
    """Titles repeat names and cost tokens."""

    class Book(BaseModel):
        title: str = Field(title="The title")

    @tool
    def keep(book: Book) -> None: ...

    assert keep.parameters["$defs"]["Book"] == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }


async def test_unknown_fields_are_refused_at_every_depth(run: Run) -> None:
    """A field that would be dropped silently is a mistake of the model's."""

    @tool
    def keep(place: Place) -> str:
        return "ran"

    outer = await run(keep, {"place": {"city": "x"}, "extra": 1})
    inner = await run(keep, {"place": {"city": "x", "country": "y"}})
    assert outer.is_error
    assert "extra: unknown field; known fields: place" in outer.text
    assert inner.is_error
    assert "place.country: unknown field; known fields: city, zip_code" in inner.text


async def test_a_model_that_allows_extra_fields_keeps_them(run: Run) -> None:
    """What a model says of itself stands."""

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    @tool
    def keep(value: Open) -> str:
        return str(value.model_extra)

    assert (await run(keep, {"value": {"a": 1, "b": 2}})).text == "{'b': 2}"


async def test_a_parameter_without_annotation_takes_any_json_value(run: Run) -> None:
    """Nothing is known of it, so nothing is refused."""

    @tool
    def keep(value, other=1):  # type: ignore[no-untyped-def]  # untyped on purpose
        return [value, other]

    assert properties(keep) == {"value": {}, "other": {"default": 1}}
    assert (await run(keep, {"value": {"a": [None]}})).text == '[{"a": [null]}, 1]'


@pytest.mark.parametrize("optional", [False, True])
async def test_the_context_is_injected_and_not_shown(
    run: Run, make_context: Callable[..., ToolContext], optional: bool
) -> None:
    """A parameter annotated `ToolContext` belongs to the loop."""
    if optional:

        @tool
        def where(a: int, context: ToolContext | None = None) -> str:
            assert context is not None
            return f"{a} {context.context_id} {context.idempotency_key}"
    else:

        @tool
        def where(context: ToolContext, a: int) -> str:
            return f"{a} {context.context_id} {context.idempotency_key}"

    assert list(properties(where)) == ["a"]
    assert (await run(where, {"a": 1}, context=make_context())).text == "1 ada ada/3/call-1"
    assert (await run(where, {"a": 1, "context": {}})).is_error


async def test_keyword_only_parameters_are_filled(run: Run) -> None:
    """Arguments come by name anyway."""

    @tool
    def show(a: int, *, b: int, context: ToolContext) -> str:
        return f"{a} {b} {context.turn}"

    assert (await run(show, {"a": 1, "b": 2})).text == "1 2 3"


async def test_bound_methods_partials_and_callable_objects_are_tools(run: Run) -> None:
    """Whatever can be called by name will do."""

    class Shelf:
        def __init__(self) -> None:
            self.books = ["Emma"]

        def find(self, title: str) -> bool:
            """Find a book."""
            return title in self.books

        async def __call__(self, title: str) -> str:
            """Add a book."""
            self.books.append(title)
            return "added"

    def power(base: int, exponent: int, *, unit: str = "") -> str:
        """Raise a number."""
        return f"{base**exponent}{unit}"

    shelf = Shelf()
    find, add = tool(shelf.find), tool(shelf)
    square = tool(functools.partial(power, exponent=2), name="square")
    assert (find.name, find.description, list(properties(find))) == (
        "find",
        "Find a book.",
        ["title"],
    )
    assert (add.name, add.description, list(properties(add))) == ("Shelf", "Add a book.", ["title"])
    assert square.description == "Raise a number."
    assert (await run(add, {"title": "Persuasion"})).text == "added"
    assert (await run(find, {"title": "Persuasion"})).text == "true"
    assert (await run(square, {"base": 3, "unit": "m"})).text == "9m"


async def test_arguments_of_a_partial_are_hidden_from_the_model(run: Run) -> None:
    """A key bound beforehand is neither shown nor open to change."""

    def search(query: str, api_key: str) -> str:
        return f"{query} {api_key}"

    bound = tool(functools.partial(search, api_key="s3cret"))
    assert list(properties(bound)) == ["query"]
    assert "s3cret" not in str(bound.parameters)
    assert (await run(bound, {"query": "q"})).text == "q s3cret"
    assert (await run(bound, {"query": "q", "api_key": "other"})).is_error


async def test_a_decorated_function_keeps_its_signature(run: Run) -> None:
    """`functools.wraps` is followed, whether wrapper and function are sync or async."""

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @traced
    async def double(a: int) -> int:
        """Double it."""
        await asyncio.sleep(0)
        return a * 2

    assert double.description == "Double it."
    assert (await run(double, {"a": 4})).text == "8"


async def test_a_lambda_needs_a_name(run: Run) -> None:
    """It has none of its own."""
    with pytest.raises(InvalidTool, match="lambda has no name"):
        tool(lambda a: a)
    assert (await run(tool(lambda a: a, name="same"), {"a": 1})).text == "1"


async def test_sync_functions_run_in_a_thread_of_ours_and_async_ones_on_the_loop(run: Run) -> None:
    """A function that blocks must not stop the event loop, nor fill the default executor."""

    @tool
    def blocking() -> str:
        return threading.current_thread().name

    @tool
    async def quick() -> str:
        return threading.current_thread().name

    assert (await run(blocking)).text.startswith("looopy-tool-")
    assert (await run(quick)).text == "MainThread"
    assert blocking.runs_in_thread
    assert not quick.runs_in_thread


def test_options_reach_the_tool() -> None:
    """Each of them, as given."""

    def never() -> bool:
        return False

    @tool(
        name="n",
        description="d",
        label="l",
        timeout_s=2,
        parallel=True,
        effects="idempotent",
        on_resume="ask",
        is_enabled=never,
        max_result_bytes=7,
    )
    def any_name() -> None: ...

    assert isinstance(any_name, FunctionTool)
    assert (any_name.name, any_name.description, any_name.label) == ("n", "d", "l")
    assert (any_name.timeout_s, any_name.parallel, any_name.max_result_bytes) == (2, True, 7)
    assert (any_name.effects, any_name.on_resume) == ("idempotent", "ask")
    assert any_name.is_enabled is never


def star(*args: int) -> None:
    """Take any number."""


def double_star(**kwargs: int) -> None:
    """Take any name."""


def positional(a: int, /) -> None:
    """Take no name."""


def unresolvable(a: Decimal) -> None:
    """Name a type that exists for type checkers only."""


def unspeakable(ok: int, callback: Callable[[], None]) -> None:
    """Take what JSON cannot say."""


def unknown_class(ok: int, place: threading.Lock) -> None:
    """Take what pydantic does not know."""


def generator() -> Any:
    """Yield."""
    yield 1


class Holder:
    """Has a method."""

    def method(self, a: int) -> None:
        """Need an instance."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (star, ["star()", "*args", "one list or dict"]),
        (double_star, ["double_star()", "**kwargs", "one list or dict"]),
        (positional, ["positional()", "'a'", "remove the '/'"]),
        (unresolvable, ["unresolvable()", "'a'", "Decimal", "import"]),
        (unspeakable, ["unspeakable()", "'callback'", "use plain types"]),
        (unknown_class, ["unknown_class()", "'place'", "use plain types"]),
        (generator, ["generator()", "yields", "ToolContext.report()"]),
        (Holder.method, ["method()", "'self'", "bound method"]),
        (Holder, ["Holder", "is a class"]),
        ("add", ["takes a function", "by name"]),
    ],
)
def test_a_function_that_no_model_can_call_is_refused_with_the_way_out(
    function: Any, words: list[str]
) -> None:
    """The message names the function, the parameter and what to do."""
    with pytest.raises(InvalidTool) as caught:
        tool(function)
    for word in words:
        assert word in str(caught.value)


def test_a_tool_is_not_made_a_tool_twice() -> None:
    """Options given to the second would be lost on the first."""

    @tool
    def once() -> None: ...

    with pytest.raises(InvalidTool, match="takes a function"):
        tool(once)


def test_a_return_annotation_need_not_resolve() -> None:
    """The model never sees it."""

    @tool
    def make(a: int) -> Decimal:
        raise NotImplementedError

    assert list(properties(make)) == ["a"]


async def test_a_validator_of_the_type_refuses_with_a_message_for_the_model(run: Run) -> None:
    """What a schema cannot say is still refused before the function runs."""

    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    recorder = Recorder()

    @tool
    def keep(numbers: list[Annotated[int, AfterValidator(even)]]) -> str:
        return recorder(numbers=numbers)

    result = await run(keep, {"numbers": [2, 3]})
    assert result.is_error
    assert "numbers[1]: Value error, must be even" in result.text
    assert recorder.seen == {}
    assert (await run(keep, {"numbers": [2]})).text == "ok"


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


async def test_the_classic_form_receives_id_arguments_signal_and_update(
    run: Run, make_context: Callable[..., ToolContext]
) -> None:
    """The four that pi's tools take, in that order."""
    shown: list[Any] = []
    context = make_context(report=shown.append)

    @tool(name="classic", description="Old school.", parameters=SCHEMA)
    async def execute(
        tool_call_id: str, params: dict[str, Any], signal: Any = None, on_update: Any = None
    ) -> ToolResult:
        on_update(ToolResult("half", details={"done": 0.5}))
        on_update(0.9)
        return ToolResult(f"{tool_call_id} {params} {signal is context.cancel}")

    result = await run(execute, {"a": 1}, context=context)
    assert result.text == "call-1 {'a': 1} True"
    assert shown == [{"text": "half", "details": {"done": 0.5}}, 0.9]
    assert execute.parameters == SCHEMA
    assert (await run(execute, {"a": "1"})).is_error


async def test_the_classic_form_tolerates_fewer_parameters_and_other_names(run: Run) -> None:
    """A function takes as many of the four as it names."""

    def named(params: dict[str, Any]) -> Any:
        return params["a"]

    def alone(arguments: dict[str, Any]) -> Any:
        return arguments["a"]

    def two(call: str, arguments: dict[str, Any]) -> Any:
        return f"{call} {arguments['a']}"

    def swapped(params: dict[str, Any], tool_call_id: str) -> Any:
        return f"{tool_call_id} {params['a']}"

    def injected(context: ToolContext, tool_call_id: str, params: dict[str, Any]) -> Any:
        return f"{tool_call_id} {params['a']} {context.turn}"

    def keyword(params: dict[str, Any], *, signal: Any) -> Any:
        return f"{params['a']} {signal.cancelled}"

    def everything(*args: Any) -> Any:
        return f"{args[0]} {args[1]['a']} {len(args)}"

    def nothing() -> Any:
        return "nothing"

    expected: dict[Callable[..., Any], str] = {
        named: "1",
        alone: "1",
        two: "call-1 1",
        swapped: "call-1 1",
        injected: "call-1 1 3",
        keyword: "1 False",
        everything: "call-1 1 4",
        nothing: "nothing",
    }
    for function, text in expected.items():
        result = await run(tool(function, parameters=SCHEMA), {"a": 1})
        assert result.text == text, function.__name__


def test_the_classic_form_refuses_parameters_that_it_cannot_fill() -> None:
    """A fifth parameter would never get a value."""

    def five(a: int, b: int, c: int, d: int, e: int) -> None: ...

    def keyword(params: dict[str, Any], *, city: str) -> None: ...

    with pytest.raises(InvalidTool, match="tool_call_id, params, signal, on_update"):
        tool(five, parameters=SCHEMA)
    with pytest.raises(InvalidTool, match="cannot take city"):
        tool(keyword, parameters=SCHEMA)
    with pytest.raises(InvalidTool, match="not a valid JSON Schema"):
        tool(
            lambda p: p, name="x", parameters={"type": "object", "properties": {"a": {"type": "x"}}}
        )


async def test_gather_tools_takes_plain_functions() -> None:
    """A function in `tools=[...]` is decorated on the way."""

    def ping() -> str:
        """Answer."""
        return "pong"

    gathered = await gather_tools([ping])
    assert gathered["ping"].description == "Answer."


def test_every_exported_name_exists() -> None:
    """`__all__` is sorted and true."""
    import looopy.tools

    assert sorted(exported, key=lambda n: (n.casefold(), n)) == exported
    assert all(getattr(looopy.tools, name) is not None for name in exported)
    assert set(exported) <= set(dir(looopy.tools))
    with pytest.raises(AttributeError):
        _ = looopy.tools.nothing


def test_a_type_without_schema_is_refused_in_one_sentence():
    """What pydantic advises its own users is left out."""

    def odd(a: open) -> str:
        """Be odd."""

    with pytest.raises(InvalidTool, match="the type of 'a' cannot be sent as JSON") as refused:
        tool(odd)
    assert "\n" not in str(refused.value)
    assert "arbitrary_types_allowed" not in str(refused.value)


async def test_a_literal_may_name_members_of_an_enum(run: Run) -> None:
    """A model sends their values, wherever in the annotation they are named."""
    got: list[Any] = []

    @tool
    def measure(
        unit: Literal[Unit.CELSIUS],
        either: Literal[Unit.CELSIUS, "k"] | None = None,
        several: list[Literal[Unit.FAHRENHEIT]] = [],  # noqa: B006 - as users write it
    ) -> str:
        """Measure."""
        got.append((unit, either, several))
        return "ok"

    assert measure.parameters["properties"]["unit"] == {"const": "c", "type": "string"}
    assert (await run(measure, {"unit": "c", "either": "c", "several": ["f"]})).text == "ok"
    assert (await run(measure, {"unit": "c", "either": "k"})).text == "ok"
    assert got == [
        (Unit.CELSIUS, Unit.CELSIUS, [Unit.FAHRENHEIT]),
        (Unit.CELSIUS, "k", []),
    ]
    assert (await run(measure, {"unit": "f"})).is_error


@pytest.mark.parametrize("kind", [type, type[int], list[type[int]], type[int] | None])
def test_a_class_as_a_parameter_is_refused_at_once(kind: Any) -> None:
    """A model cannot send one; the message names the parameter and a way out."""

    def make(kind_: Any = None) -> str:
        return ""

    make.__annotations__["kind_"] = kind
    with pytest.raises(InvalidTool, match=r"'kind_' .* cannot send a class: take its name"):
        tool(make, description="Make.")


@pytest.mark.parametrize(("extra", "is_error"), [("refuse", True), ("ignore", False)])
async def test_extra_arguments_are_refused_or_left_out(extra, is_error):
    """The function never gets them; a missing one is an error in both cases."""

    @tool(extra=extra)
    async def double(x: int) -> int:
        return 2 * x

    calls = [testing.tool_call("double", x=2, y=3), testing.tool_call("double", y=3)]
    model = testing.ScriptedProvider([*calls, testing.text("done")])
    run = agent_loop("go", llm_provider=model, tools=[double])
    (end,) = [event async for event in run if event.type == "turn_end"]
    more, missing = [m for m in end.messages if isinstance(m, ToolResultMessage)]
    assert (more.is_error, missing.is_error) == (is_error, True)
    assert is_error or more.text == "4"


@pytest.mark.parametrize("options", [{"extra": "drop"}, {"extra": "ignore", "parameters": {}}])
def test_an_unknown_or_idle_extra_is_refused(options):
    """A schema of one's own says itself what it allows."""
    with pytest.raises(InvalidTool, match="extra is 'refuse' or 'ignore'"):
        tool(lambda x: x, name="f", **options)
