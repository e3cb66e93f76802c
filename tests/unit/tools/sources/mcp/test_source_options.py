"""Each option of `MCPTools` reaches the server's target or its tools; others fail by name."""

from dataclasses import asdict

import pytest

from looopy.tools import MCPTools
from looopy.tools.sources.mcp.source import MCPOptions
from looopy.tools.sources.mcp.target import Limits, Target

LIMITS = {
    "connect_timeout_s": 1.0,
    "list_timeout_s": 2.0,
    "cache_s": 3.0,
    "max_tools": 4,
    "max_bytes": 5,
    "max_sessions": 6,
}
OF_TOOLS = {"needs_approval": True, "parallel": True, "timeout_s": 7.0, "max_result_bytes": 8}


def test_each_option_goes_where_it_belongs():
    """Limits to the target; the rest is what every tool is made with."""
    assert set(LIMITS) == set(Limits.__annotations__)
    assert {*LIMITS, *OF_TOOLS} == set(MCPOptions.__annotations__)
    source = MCPTools(url="https://mcp.example", **LIMITS, **OF_TOOLS)
    target = asdict(source.target)
    assert {name: target[name] for name in LIMITS} == LIMITS
    assert source._options == OF_TOOLS


def test_a_limit_that_is_not_given_has_the_default_of_the_target():
    """The defaults stand in one place."""
    plain = asdict(MCPTools(url="https://mcp.example").target)
    assert plain == asdict(Target(name="mcp.example", url="https://mcp.example"))


def test_a_wrong_option_is_refused():
    """With the name that was probably meant."""
    with pytest.raises(TypeError, match=r"MCPTools.. got .*'max_tool'; did you mean 'max_tools'"):
        MCPTools(url="https://mcp.example", max_tool=1)
