"""The options of a tool are listed once for type checkers; each reaches the tool, others fail."""

import inspect

import pytest

from looopy.tools import Tool, ToolOptions, tool


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


VALUES = {
    "label": "Sum",
    "timeout_s": 5.0,
    "parallel": True,
    "effects": "none",
    "on_resume": "ask",
    "needs_approval": True,
    "approval_expires_s": 60.0,
    "approval_prompt": "Add them?",
    "is_enabled": lambda: True,
    "max_result_bytes": 100,
    "coerce": True,
    "retries": 1,
    "retry_delay_s": 2.0,
    "max_retry_calls": 3,
}


def test_the_list_of_options_equals_the_parameters_of_tool():
    """By name and by type, beside the three that describe it to the model."""
    taken = inspect.signature(Tool.__init__).parameters
    told = {n: p.annotation for n, p in taken.items() if n != "self"}
    own = {"name", "description", "parameters"}
    assert {n: kind for n, kind in told.items() if n not in own} == {
        name: getattr(kind, "__forward_arg__", kind)  # evaluated, unless an alias is a string
        for name, kind in ToolOptions.__annotations__.items()
    }


def test_each_option_of_the_decorator_reaches_the_tool():
    """With and without a function at hand."""
    assert set(VALUES) == set(ToolOptions.__annotations__)
    for made in (tool(add, **VALUES), tool(**VALUES)(add)):
        assert {name: getattr(made, name) for name in VALUES} == VALUES


@pytest.mark.parametrize(
    ("wrong", "meant"), [("timeout", "timeout_s"), ("retry", "retries"), ("descripton", None)]
)
def test_a_wrong_option_is_refused_where_it_is_written(wrong, meant):
    """Before there is a function, and with the name that was probably meant."""
    right = f"; did you mean '{meant or 'description'}'"
    with pytest.raises(TypeError, match=f"tool.. got an unexpected keyword .*'{wrong}'{right}"):
        tool(**{wrong: 5})
    with pytest.raises(TypeError, match=f"'{wrong}'"):
        tool(add, **{wrong: 5})
    with pytest.raises(TypeError, match=r"'qqq'$"):
        tool(qqq=1)


def test_help_lists_every_option():
    """The signature says `**options`, so the docstring has them."""
    for name in VALUES:
        assert f"`{name}`:" in tool.__doc__
