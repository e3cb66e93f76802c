"""The address of an MCP server, and its limits of time and size."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict
from urllib.parse import SplitResult, urlsplit

from looopy.auth.redaction import Redactor
from looopy.errors import ConfigurationError
from looopy.tools.sources.headers import origin_of, redactor_of


class Limits(TypedDict, total=False):
    """How long and how much of a server looopy accepts; `Target` has the defaults."""

    connect_timeout_s: float
    list_timeout_s: float
    cache_s: float
    max_tools: int
    max_bytes: int
    max_sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    One server, and its limits. Its `repr` shows no environment, which may hold secrets.

    Attributes:
        max_bytes: The longest message of the server.
        max_tools: The longest list.
        max_sessions: Connections with different credentials at a time.
        elicitation: The server may ask the user.
        origins: Where a sign-in may lead, beside the server's own origin.

    Raises:
        ConfigurationError: Not exactly one of *command* and *url*, or an invalid option.
    """

    name: str = ""  # by default the command or the host
    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    url: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 30.0
    list_timeout_s: float = 30.0
    cache_s: float = 300.0
    max_bytes: int = 16 * 1024 * 1024
    max_tools: int = 256
    max_sessions: int = 8
    protocol: Literal["auto", "legacy", "sse"] = "auto"
    elicitation: bool = True
    origins: Collection[str] = ()

    def __post_init__(self) -> None:
        command, url, args = self.command, self.url, self.args
        if (command is None) == (url is None):
            raise ConfigurationError(
                "MCPTools takes command=, which starts a server, or url=, where one listens"
            )
        if command is not None and not _is_program(command, self.cwd):
            raise ConfigurationError(
                "MCPTools: command= is the program alone, and its arguments go into args=, as in"
                ' command="uvx", args=["mcp-server-time"]'
            )
        if self.protocol not in ("auto", "legacy", "sse"):
            raise ConfigurationError("MCPTools: protocol must be 'auto', 'legacy' or 'sse'")
        if self.protocol == "sse" and url is None:
            raise ConfigurationError("MCPTools: protocol='sse' goes with url=")
        if isinstance(self.origins, str):
            raise ConfigurationError("MCPTools: origins takes a list of addresses")
        if not all(isinstance(one, str) and _address(one) for one in self.origins):
            raise ConfigurationError("MCPTools: origins takes http or https addresses")
        for key in (*Limits.__annotations__, "elicitation"):
            value = getattr(self, key)
            if not isinstance(value, (int, float)) or (key != "elicitation" and value <= 0):
                raise ConfigurationError(f"MCPTools: {key} must be more than 0")
        default = Path(command).stem if command is not None else ""
        if url is not None:
            if args or self.env or self.cwd:
                raise ConfigurationError(
                    "MCPTools: args, env and cwd go with command=, not with url="
                )
            parts = _address(url)
            if parts is None:
                raise ConfigurationError("MCPTools: url must be an http or https address")
            if parts.username or parts.password:
                raise ConfigurationError("MCPTools: credentials go into headers=, not into url=")
            default = str(parts.hostname)
        if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
            raise ConfigurationError("MCPTools: args must be a list of texts")
        if not all(isinstance(text, str) for pair in self.env.items() for text in pair):
            raise ConfigurationError("MCPTools: env takes texts by name")
        object.__setattr__(self, "name", self.name or default)
        object.__setattr__(self, "args", tuple(args))
        object.__setattr__(self, "env", dict(self.env))

    @property
    def where(self) -> str:
        """The server as a message may name it."""
        return f"the MCP server {self.name!r}"

    @property
    def legacy(self) -> bool:
        """True if the server knows the protocol of 2025 only: the newer one is not tried."""
        return self.protocol != "auto"

    def allows(self, url: str) -> bool:
        """True if a request of a sign-in may go to *url*."""
        places = {origin_of(one) for one in (self.url, *self.origins) if one is not None}
        return origin_of(url) in places

    def redactor(self, headers: Mapping[str, str] | None = None) -> Redactor:
        """A redactor of the secrets that this server was given, found by their names."""
        return redactor_of(self.env, headers)


def _address(url: str) -> SplitResult | None:
    """The parts of an http address; `None` for anything else, such as one with port 99999."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _is_program(command: object, cwd: str | Path | None) -> bool:
    """True if *command* may be a program: text, and with spaces the name of a file."""
    if not isinstance(command, str):
        return False
    many = len(command.split()) > 1
    return not many or Path(cwd or ".", command).exists() or shutil.which(command) is not None
