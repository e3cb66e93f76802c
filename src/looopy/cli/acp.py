"""`looopy acp`: the agents of an application in an editor, by the Agent Client Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from looopy.cli.data_folder import default_url, make_data_folder
from looopy.cli.factories import load_factory
from looopy.cli.stdio import protocol_streams
from looopy.errors import missing_extra
from looopy.stores.opening import open_stores
from looopy.types.context import AuthContext

if TYPE_CHECKING:
    from looopy.server.host import AgentFactory
    from looopy.server.protocols.acp.agent import EditorTools
    from looopy.stores.bundle import Stores


def acp(*, factory: str, url: str | None, actor: str | None, offer_allow: bool = False) -> int:
    """
    Speak the protocol over standard input and output until the client closes its end.

    Args:
        factory: `MODULE:FACTORY` or `file.py:FACTORY`.
        url: The database, or `None` for the one in the data folder.
        actor: The actor of every turn; `None`: no actor.
        offer_allow: Sessions have a mode that approves all calls without asking.

    Returns:
        The exit status, 0.

    Raises:
        LooopyError: The application, or the database, is not usable.
    """
    with protocol_streams() as (reader, writer):
        asyncio.run(_serve(factory, url, actor, reader, writer, offer_allow=offer_allow))
    return 0


async def _serve(
    name: str,
    url: str | None,
    actor: str | None,
    reader: int,
    writer: int,
    *,
    offer_allow: bool,
) -> None:
    try:
        from looopy.server.protocols.acp.agent import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise missing_extra("looopy acp needs the Agent Client Protocol", "acp") from None
    from looopy.server.host import AgentHost

    made = load_factory(name)
    if url is None:
        make_data_folder()
    auth_context = None if actor is None else AuthContext(actor)
    editor_tools: EditorTools | None = None
    if "tools" in inspect.signature(made).parameters:
        made, editor_tools = _with_tools(made)
    async with open_stores(url or default_url()) as stores:
        host = AgentHost(made, stores)
        serving = asyncio.ensure_future(
            serve(
                host,
                reader,
                writer,
                name=name.rpartition(":")[0].removesuffix(".py"),
                auth_context=auth_context,
                editor_tools=editor_tools,
                offer_allow=offer_allow,
            )
        )
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def _with_tools(made: AgentFactory) -> tuple[AgentFactory, EditorTools]:
    """The factory with the tools of the editor's servers, and the place to put these in."""
    tools: EditorTools = {}
    takes_tools: Callable[..., Any] = made

    def factory(context_id: str, stores: Stores) -> Any:
        return takes_tools(context_id, stores, tools=list(tools.get(context_id, ())))

    return factory, tools
