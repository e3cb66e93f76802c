"""`looopy mcp`: the agents of an application as tools of an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections.abc import Sequence

from looopy.cli.data_folder import default_url, make_data_folder
from looopy.cli.factories import load_factory
from looopy.cli.stdio import protocol_streams
from looopy.errors import ConfigurationError, missing_extra
from looopy.stores.opening import open_stores
from looopy.types.context import AuthContext

_ONE_TOOL = "ask"


def mcp(
    *,
    factories: Sequence[str],
    url: str | None,
    actor: str | None,
    name: str | None,
    description: str | None,
) -> int:
    """
    Speak MCP over standard input and output until the client closes its end.

    Args:
        factories: `MODULE:FACTORY` or `file.py:FACTORY`, a tool each.
        url: The database, or `None` for the one in the data folder.
        actor: Actor of every turn; `None`: no particular one.
        name: The name of the one tool; `ask` by default. Several have their functions' names.
        description: For the model of the client; by default the docstring of the factory.

    Returns:
        The exit status, 0.

    Raises:
        LooopyError: The application, or the database, is not usable.
    """
    if len(factories) > 1 and (name or description):
        raise ConfigurationError("--name and --description are for one factory, not for several")
    with protocol_streams() as (reader, writer):
        asyncio.run(_serve(factories, url, actor, name, description, reader, writer))
    return 0


async def _serve(
    names: Sequence[str],
    url: str | None,
    actor: str | None,
    name: str | None,
    description: str | None,
    reader: int,
    writer: int,
) -> None:
    try:
        from looopy.server.protocols.mcp.serving import DESCRIPTION, Offer, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise missing_extra("looopy mcp needs the SDK of MCP", "mcp") from None
    from looopy.server.host import AgentHost

    made = [load_factory(one) for one in names]
    tools = [name or _ONE_TOOL] if len(names) == 1 else [one.rpartition(":")[2] for one in names]
    if len(set(tools)) < len(tools):
        raise ConfigurationError(f"two factories have the same name, in {', '.join(names)}")
    if url is None:
        make_data_folder()
    async with open_stores(url or default_url()) as stores:
        offers = {
            tool.replace(".", "_"): Offer(
                AgentHost(one, stores), description or inspect.getdoc(one) or DESCRIPTION
            )
            for tool, one in zip(tools, made, strict=True)
        }
        serving = asyncio.ensure_future(
            serve(
                offers,
                reader,
                writer,
                name="looopy",
                auth_context=None if actor is None else AuthContext(actor),
            )
        )
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
