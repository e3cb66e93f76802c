"""`looopy serve`: the agents of an application over HTTP, over every protocol that is installed."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Final

from looopy.cli.data_folder import default_url, make_data_folder, shown_place
from looopy.cli.factories import load_factory, load_function
from looopy.cli.terminal import Terminal, log_lines
from looopy.errors import ConfigurationError, MissingExtra, missing_extra
from looopy.stores.opening import open_stores
from looopy.telemetry.exporters import start_exporters
from looopy.telemetry.logs import log_json_lines
from looopy.telemetry.process import process_name

if TYPE_CHECKING:
    from types import FrameType

    from starlette.applications import Starlette
    from starlette.routing import BaseRoute

    from looopy.server.app_context import AppContext, Routes
    from looopy.server.gate.auth import StaticTokens
    from looopy.server.gate.limits import Limits
    from looopy.server.host import AgentHost
    from looopy.server.protocols.a2a.push.options import PushNotifications

PUSH_KEY: Final = "LOOOPY_PUSH_KEY"
METRICS_TOKEN: Final = "LOOOPY_METRICS_TOKEN"  # noqa: S105 - the name of a variable
_CLOSING_S = 5.0  # how long responses may take to end once the turns have ended
_RESERVE_S = 4.0  # of the time to drain, for the end of turns that are cut, and of responses
_CUT_S = 1.0  # how long a turn that is cut may take to let go, at least
_LAST_S = 0.5  # how long responses may take to end, and connections to close, at least
_CUT = 1  # the exit status
_CTRL_C = 130


async def serve(
    *,
    factory: str,
    url: str | None,
    host: str,
    port: int,
    auth: str | None,
    may_answer: str | None = None,
    names: Sequence[str],
    origins: Sequence[str],
    limits: Sequence[str],
    drain_s: float,
    push: Sequence[str] = (),
    protocols: str | None = None,
    log: str = "text",
) -> int:
    """
    Serve until SIGTERM or Ctrl-C; then let running turns end.

    Args:
        factory: `MODULE:FACTORY` or `file.py:FACTORY`.
        url: The database, or `None` for the one in the data folder.
        host: The address to listen at. `port`: 0 is any free one.
        auth: `MODULE:FUNCTION`, which identifies the sender of a request; `None`: one person on
            this machine, by the token that is printed.
        may_answer: `MODULE:FUNCTION`, which decides who may answer in conversations of others.
        names: The names that requests may use for this server, besides loopback names.
        origins: The origins of web pages that may use it.
        limits: `NAME=NUMBER`, the fields of `Limits` that differ from their defaults.
        push: The hosts that push notifications of A2A may go to; `*` for any public one.
        protocols: The names of protocols to serve, with commas between; `None`: all installed ones.
        drain_s: How long the end may take, and running turns may continue almost as long.
        log: `text` or `json`, for the log on standard error.

    Returns:
        The exit status: 0, 1 if a turn was cut at the end, 130 after Ctrl-C.

    Raises:
        LooopyError: The application, the address or the database is not usable.
    """
    try:
        from looopy.server.app import create_app
        from looopy.server.gate.auth import LocalToken
        from looopy.server.gate.connections import raise_file_limit
        from looopy.server.gate.guard import LOOPBACK
    except ModuleNotFoundError as error:
        raise missing_extra(f"looopy serve needs {error.name}", "server") from error
    from looopy.server.host import AgentHost

    public = not _is_loopback(host)
    if public and auth is None:
        raise ConfigurationError(
            f"{host} can be reached from other machines: name a function with --auth, or listen at"
            " 127.0.0.1"
        )
    if public and not names:
        raise ConfigurationError(
            f"name the hosts by which requests may reach {host}: --allow-host api.example.org, or"
            " --allow-host '*' for any"
        )
    bounds, readers = _limits(limits), _readers()
    named = _protocols(protocols, push)
    made = load_factory(factory)
    authenticate = LocalToken() if auth is None else load_function(auth)
    judge = None if may_answer is None else load_function(may_answer)
    terminal = Terminal(quiet_out=True)
    if log == "json":
        level = min(logging.getLogger().level, logging.WARNING)
        log_json_lines(level=level or logging.WARNING)
    elif logging.getLogger().level > logging.INFO:
        log_lines(logging.WARNING, "%(levelname)s %(message)s")
    close_exporters = start_exporters()
    notifications = _notifications(push)
    files = raise_file_limit()
    listening = _listen(host, port)
    if url is None:
        make_data_folder()
    async with open_stores(url or default_url()) as stores:
        agents = AgentHost(made, stores, drain_s=drain_s, may_answer=judge)
        app = create_app(
            agents,
            authenticate=authenticate,
            limits=bounds,
            protocols=_routes_of(notifications, named),
            http_api=named is None or "http" in named,
            hosts=(*LOOPBACK, *names),
            origins=origins,
            metrics=readers,
        )
        shown = f"[{host}]" if ":" in host else host
        place = f"http://{shown}:{listening.getsockname()[1]}"
        terminal.line(f"serving {factory} at {place}")
        terminal.line(f"contexts: {shown_place(url or default_url())}")
        token = authenticate.token if isinstance(authenticate, LocalToken) else None
        if token is not None:
            terminal.line(f"token: {token}")
        if named is None or "page" in named:
            terminal.line(f"page: {place}/ui" + ("" if token is None else f"#token={token}"))
        terminal.line(f"process: {process_name()}")
        try:
            return await _run(app, agents, listening, files)
        finally:
            await asyncio.to_thread(close_exporters)


async def _run(app: Starlette, agents: AgentHost, listening: socket.socket, files: int) -> int:
    import uvicorn
    from sse_starlette.sse import AppStatus

    from looopy.server.gate.connections import ServerConfig

    loop, context = asyncio.get_running_loop(), copy_context()

    class Server(uvicorn.Server):
        """
        Lets turns end at the first signal, and ends at once at the second.

        The process ends within the time to drain, whatever holds a turn or a response: SIGKILL
        follows a SIGTERM.
        """

        ending: asyncio.Task[None] | None = None
        status = 0

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the base's
            """Take a signal."""
            # A signal interrupts any task, perhaps a tool; the end is no part of its call.
            loop.call_soon_threadsafe(self.end, sig, context=context)

        def end(self, sig: int) -> None:
            """Begin to end, or end at once."""
            if self.ending is not None:
                self.force_exit = self.should_exit = True
                return
            self.status = _CTRL_C if sig == signal.SIGINT else 0
            self.ending = loop.create_task(self.drain())

        async def drain(self) -> None:
            """Let the turns end, then the responses."""
            reserve = min(_RESERVE_S, agents.drain_s / 4)
            ends = loop.time() + agents.drain_s - reserve / 2
            try:
                if await agents.drain(agents.drain_s - reserve, cut_s=max(_CUT_S, reserve / 3)):
                    self.status = _CUT
                now = loop.time()
                ends = max(min(ends, now + _CLOSING_S), now + _LAST_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(ends):
                        while app.state.context.open_streams:  # noqa: ASYNC110 - a server ends once
                            await asyncio.sleep(0.02)
            finally:
                AppStatus.should_exit = True  # ends the streams of all protocols
                self.should_exit = True
                left = max(_LAST_S, ends - loop.time())
                config.timeout_graceful_shutdown = left  # type: ignore[assignment] # not whole

    config = ServerConfig(app, app.state.context.limits, files=files)
    server = Server(config)
    await server.serve([listening])
    if not server.started:
        raise ConfigurationError("the application could not be started")
    return server.status


def _limits(said: Sequence[str]) -> Limits:
    from looopy.server.gate.limits import Limits

    known = {field.name: field for field in fields(Limits)}
    given: dict[str, float] = {}
    for one in said:
        name, _, number = one.partition("=")
        if name not in known:
            names = ", ".join(known)
            raise ConfigurationError(f"--limit {one}: there is no limit {name!r}, only {names}")
        try:
            given[name] = float(number) if name.endswith("_s") else int(number)
        except ValueError:
            raise ConfigurationError(
                f"--limit {one}: write {name}=NUMBER, such as {name}={known[name].default or 60}"
            ) from None
    return Limits(**given)  # type: ignore[arg-type] # it checks them itself


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ConfigurationError(f"{port} is not a port: use 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {why}") from error


def _notifications(hosts: Sequence[str]) -> PushNotifications | None:
    """Push notifications of A2A, with the key of the environment; `None` without hosts."""
    if not hosts:
        return None
    from looopy.server import PushNotifications

    key = os.environ.get(PUSH_KEY) or None
    return PushNotifications(key=key, receivers=None if "*" in hosts else list(hosts))


def _protocols(names: str | None, push: Sequence[str]) -> Collection[str] | None:
    """
    The protocols of `--protocols`, checked.

    Raises:
        ConfigurationError: One is unknown, or needs another one.
    """
    if names is None:
        return None
    known = {"http", "page", *_apis()}
    named = {name.strip() for name in names.split(",")}
    if unknown := sorted(named - known):
        text = f"--protocols has no {unknown[0]!r}: it takes {', '.join(sorted(known))}"
        raise ConfigurationError(text)
    if "page" in named and "http" not in named:
        raise ConfigurationError("the page needs the HTTP API: --protocols page,http")
    if push and "a2a" not in named:
        raise ConfigurationError("--push is about A2A, which --protocols leaves out")
    return named


def _apis() -> Mapping[str, str]:
    """The routes of each protocol that `looopy.server` exports, by the name of the protocol."""
    from looopy import server

    protocols = [name for name in dir(server) if name.endswith("_api")]
    return {name.removesuffix("_api").replace("_", "-"): name for name in protocols}


def _routes_of(push: PushNotifications | None, named: Collection[str] | None) -> list[Routes]:
    """
    The page, and the protocols that are *named*; `None` for all.

    A protocol whose extra is not installed has no routes, unless an option is about it.
    """
    from looopy import server

    def optional(name: str, app_context: AppContext) -> Sequence[BaseRoute]:
        if name == "a2a_api" and push is not None:
            return server.a2a_api(app_context, push=push)
        try:
            routes: Routes = getattr(server, name)
            return routes(app_context)
        except (ModuleNotFoundError, MissingExtra):
            if named is not None:
                raise
            return ()

    protocols = _apis()
    apis = [
        partial(optional, protocols[name]) for name in protocols if named is None or name in named
    ]
    return [server.ui_page, *apis] if named is None or "page" in named else [*apis]


def _readers() -> StaticTokens | None:
    """Those who may read `/metrics`, by a token of the environment."""
    from looopy.server.gate.auth import StaticTokens

    token = os.environ.get(METRICS_TOKEN)
    try:
        return StaticTokens({token: "metrics"}) if token else None
    except ConfigurationError as error:
        raise ConfigurationError(f"{METRICS_TOKEN}: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
