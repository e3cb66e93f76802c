"""The reference is complete: its tables name what the code has, and nothing else."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest

import looopy.sync
from looopy import Agent, AgentEvent, AgentState, LoopConfig, StopReason, ToolContext, TurnResult
from looopy import errors as errors_module
from looopy.errors import LooopyError
from looopy.tools import Tool
from looopy.types.event import Event
from looopy.types.state import AgentStatus, PendingRequest, outcome_of

DOCS = Path(__file__).parent.parent.parent / "docs"


def _rows(page, heading):
    """The cells of the first table below *heading*, row by row, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, found, below = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    lines = below[below.index("\n| ") :].strip().splitlines()
    table = lines[: next((i for i, line in enumerate(lines) if line[:1] != "|"), len(lines))]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[2:]]


def _names(cell):
    """Words in backticks that are names."""
    return set(re.findall(r"`(\w+)`", cell)) - {"None", "True", "False"}


def _fields(kind):
    names = {field.name for field in dataclasses.fields(kind)}
    return {name for name in names if not name.startswith("_")}


def _properties(kind):
    return {name for name, value in vars(kind).items() if isinstance(value, property)}


def _methods(kind):
    own = {name: value for base in kind.__mro__[:-1] for name, value in vars(base).items()}
    return {name for name, value in own.items() if not name.startswith("_") and value}


def test_every_event_is_listed_with_its_fields():
    """Name, class, fields of its own, and whether it is stored."""
    rows = {row[0].strip("`"): row for row in _rows("events.md", "## All of them")}
    kinds = {kind.type: kind for kind in typing.get_args(AgentEvent)}
    assert rows.keys() == kinds.keys()
    common = _fields(Event)
    types = {kind.__name__ for kind in kinds.values()} | {"ToolResultMessage"}
    for name, (_, kind, fields, durable) in rows.items():
        assert kind == f"`{kinds[name].__name__}`"
        assert _names(fields) - types == _fields(kinds[name]) - common | _properties(kinds[name]), (
            name
        )
        expected = "yes" if kinds[name].durable else "no"
        assert durable == ("if it has effects" if name == "tool_execution_start" else expected)
    assert {row[0].strip("`") for row in _rows("events.md", "## What every event has")} == (
        common | {"type"}
    )


def test_every_stop_reason_is_listed_with_its_outcome():
    """Those that end a turn; a model's own are left out."""
    listed = {
        name: row[1].strip("`")
        for row in _rows("events.md", "## How a turn ends")
        for name in _names(row[0])
    }
    of_models = {StopReason.TOOL_USE, StopReason.ABORTED, StopReason.SENSITIVE, StopReason.PAUSED}
    assert listed == {
        reason.value: outcome_of(reason).value for reason in StopReason if reason not in of_models
    }


def test_every_error_is_listed_below_its_group():
    """In the order of the tree, with the attributes that it declares."""
    rows = _rows("errors.md", "## The tree")
    listed = [row[0].strip("*`") for row in rows]
    kinds = {
        name: kind
        for name, kind in vars(errors_module).items()
        if isinstance(kind, type) and issubclass(kind, LooopyError)
    }
    assert listed == list(kinds)
    group = LooopyError
    for name, attributes, _ in rows[1:]:
        kind = kinds[name.strip("*`")]
        if name.startswith("**"):
            group = kind
            assert kind.__base__ is LooopyError
        assert issubclass(kind, group)
        own = {name for name in vars(kind) if name[0] != "_"} - {"retryable", "unbilled"}
        assert own <= _names(attributes) or kind is errors_module.LLMError, name


def test_errors_marked_as_not_raised_are_not_raised():
    """The page says *not raised yet* of those errors that no code makes, groups aside."""
    kinds = {
        name: kind
        for name, kind in vars(errors_module).items()
        if isinstance(kind, type) and issubclass(kind, LooopyError)
    }
    source = Path(inspect.getfile(errors_module)).parent
    made = {
        name
        for path in source.rglob("*.py")
        if path.name != "errors.py"
        for name in re.findall(r"\b[A-Z]\w+(?=\()|(?<=\bkind=)[A-Z]\w+", path.read_text("utf-8"))
    }
    never = [name for name, kind in kinds.items() if name not in made and not kind.__subclasses__()]
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` .*not raised yet", page, re.MULTILINE) == never
    assert page.count("not raised yet") == len(never)


def test_every_method_of_the_agent_is_listed_with_its_parameters():
    """As one calls it, and none that is not there."""
    listed = {}
    for call, _ in _rows("agent.md", "## `Agent`"):
        found = re.fullmatch(r"`(?:await )?(\w+)(?:\((.*)\))?`", call)
        listed[found[1]] = found[2] or ""
    assert listed.keys() == _methods(Agent)
    for name, parameters in listed.items():
        method = getattr(Agent, name)
        if not callable(method):
            continue
        wanted = [
            ("*" if p.kind is p.KEYWORD_ONLY else "", p.name, p.default)
            for p in list(inspect.signature(method).parameters.values())[1:]
        ]
        shown = inspect.signature(eval(f"lambda {parameters}: 0"))  # noqa: S307 - our own page
        assert wanted == [
            ("*" if p.kind is p.KEYWORD_ONLY else "", p.name, p.default)
            for p in shown.parameters.values()
        ], name


def test_every_option_of_the_agent_is_shown():
    """With its default, but for the model and the tools."""
    page = (DOCS / "agent.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^    (\w+)=(.*?),  +#", page, re.MULTILINE))
    parameters = inspect.signature(Agent.__init__).parameters
    options = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert shown.keys() == options.keys()
    for name in options.keys() - {"llm_provider", "tools"}:
        assert eval(shown[name]) == options[name], name  # noqa: S307 - our own page


@pytest.mark.parametrize(
    ("page", "heading", "expected"),
    [
        ("agent.md", "## `TurnResult`", _fields(TurnResult) | {"raise_for_outcome", "answered"}),
        ("agent.md", "## `AgentState`", _fields(AgentState)),
        ("tools.md", "## The context of a call", _fields(ToolContext) | {"ask", "credentials"}),
        ("tools.md", "## Options", set(inspect.signature(Tool).parameters)),
    ],
)
def test_the_fields_of_a_table_are_those_of_the_code(page, heading, expected):
    """The first column names each once."""
    names = [name for row in _rows(page, heading) for name in re.findall(r"`(\w+)[^`]*`", row[0])]
    assert len(names) == len(set(names))
    assert set(names) == expected


def test_every_limit_is_listed_with_its_default():
    """The table of `LoopConfig` is its definition."""
    rows = _rows("agent.md", "## `LoopConfig`")
    config = LoopConfig()
    assert [(name.strip("`"), default.strip("`")) for name, default, _ in rows] == [
        (field.name, repr(getattr(config, field.name))) for field in dataclasses.fields(LoopConfig)
    ]


def test_statuses_and_requests_are_named_in_full():
    """Each status of an agent, each field of a pending request."""
    page = (DOCS / "agent.md").read_text(encoding="utf-8")
    (statuses,) = [row[1] for row in _rows("agent.md", "## `AgentState`") if row[0] == "`status`"]
    assert _names(statuses) == {status.value for status in AgentStatus}
    request = page[page.index("A `PendingRequest` has") : page.index("[Human in the loop](human")]
    assert _names(request) - {"PendingRequest"} == _fields(PendingRequest)


def test_the_blocking_agent_has_the_same_methods():
    """What it lacks needs `await`; what it has besides is said on the page."""
    lacking = _methods(Agent) - _methods(looopy.sync.Agent)
    assert lacking == {"events", "wait_for_idle"}
    assert _methods(looopy.sync.Agent) - _methods(Agent) == {"stream_turn", "context_id"}
