"""
The agent of the protocol: its methods, each a few lines over a host and its sessions.

A session is a context; its id is the context's. The host makes the agents, and keeps one as long as
its session is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias, cast
from uuid import uuid4

from acp import PROTOCOL_VERSION, RequestError, schema
from acp.agent.connection import AgentSideConnection

from looopy.errors import ValueRefused
from looopy.server.host import AgentHost
from looopy.server.protocols.acp.errors import NOT_FOUND, answers
from looopy.server.protocols.acp.prompts import Block
from looopy.server.protocols.acp.servers import Server, tools_of
from looopy.server.protocols.acp.session import ALLOW, ASK, Client, Session, title_in
from looopy.server.protocols.acp.wire import Wire
from looopy.stores.records import ContextRecord
from looopy.tools.gather import ToolSource
from looopy.types.context import AuthContext
from looopy.types.message import UserMessage

_PAGE: Final = 50
_LONGEST_INDEXED: Final = 150  # a longer directory is compared here, not by the store
_LEAVE_S: Final = 5.0
_MODES: Final = (
    schema.SessionMode(id=ASK, name="Ask", description="Ask about each call that needs approval"),
    schema.SessionMode(
        id=ALLOW, name="Allow", description="Allow calls that need approval without asking"
    ),
)
EditorTools: TypeAlias = dict[str, Sequence[ToolSource]]
"""The tools of the editor's own servers, by session; the factory takes its context's."""


async def serve(
    host: AgentHost,
    reader: int,
    writer: int,
    *,
    name: str,
    auth_context: AuthContext | None = None,
    editor_tools: EditorTools | None = None,
    offer_allow: bool = False,
) -> None:
    """
    Speak the protocol over two file descriptors until the client closes its end.

    Turns that run then may end within some seconds; others are left as interrupted.

    Args:
        name: How the agent calls itself.
        auth_context: Actor of every turn.
        editor_tools: Filled before an agent is made; `None`: the factory takes no such tools.
        offer_allow: Sessions have a mode that approves all calls without asking.
    """
    wire = Wire(reader, writer)
    agent = ProtocolAgent(
        host,
        name=name,
        auth_context=auth_context,
        editor_tools=editor_tools,
        offer_allow=offer_allow,
    )
    connection = AgentSideConnection(
        cast("Any", agent),  # it has what the SDK looks for, and calls no more
        wire,
        listening=False,
        use_unstable_protocol=True,  # session/resume, close and fork, which the SDK calls so
    )
    try:
        await connection.listen()
    finally:
        await asyncio.shield(connection.close())
        await agent.close()
        await host.drain(_LEAVE_S)


class ProtocolAgent:
    """
    The methods that a client calls.

    Args:
        name: How the agent calls itself.
        auth_context: Actor of every turn; `None`: no particular one.
        editor_tools, offer_allow: See `serve`.
    """

    def __init__(
        self,
        host: AgentHost,
        *,
        name: str,
        auth_context: AuthContext | None = None,
        editor_tools: EditorTools | None = None,
        offer_allow: bool = False,
    ) -> None:
        self._host = host
        self._offer_allow = offer_allow
        self._forms = False  # the client shows them
        self._editor_tools = editor_tools
        self._name = name
        self._auth = auth_context
        self._client: Client | None = None
        self._sessions: dict[str, tuple[Session, AsyncExitStack]] = {}
        self._opening = asyncio.Lock()
        self._introducing: set[asyncio.Task[None]] = set()

    def on_connect(self, client: Any) -> None:
        """Take the connection over which the client is reached."""
        self._client = client

    async def close(self) -> None:
        """Close all sessions; their turns continue."""
        for session_id in list(self._sessions):
            await self._close(session_id)

    # --- the connection --------------------------------------------------------------------------

    async def initialize(
        self,
        protocol_version: int,  # noqa: ARG002 - there is one version: the client decides
        client_capabilities: schema.ClientCapabilities | None = None,
        client_info: schema.Implementation | None = None,  # noqa: ARG002 - as above
        **_: Any,
    ) -> schema.InitializeResponse:
        """Report the abilities of this agent."""
        from importlib.metadata import version

        shown = None if client_capabilities is None else client_capabilities.elicitation
        self._forms = shown is not None and shown.form is not None
        with_servers = self._editor_tools is not None
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(name=self._name, version=version("looopy")),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(
                    image=True, audio=True, embedded_context=True
                ),
                mcp_capabilities=schema.McpCapabilities(http=with_servers, sse=with_servers),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    fork=schema.SessionForkCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **_: Any) -> schema.AuthenticateResponse:
        """
        Refuse: the agent's keys belong to its process.

        Raises:
            RequestError: Always; `initialize` offers no method.
        """
        raise RequestError.invalid_params(
            {
                "code": "value_refused",
                "path": "/methodId",
                "message": f"there is no method {method_id!r}: no authentication is needed",
            }
        )

    # --- sessions --------------------------------------------------------------------------------

    @answers
    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Server] | None = None,
        **_: Any,
    ) -> schema.NewSessionResponse:
        """Begin a conversation; its first prompt stores it."""
        _check_directory(cwd)
        session = await self._open(
            uuid4().hex, cwd, additional_directories, mcp_servers, create=True
        )
        await session.begin(replay=False)
        self._introduce(session)
        return schema.NewSessionResponse(session_id=session.session_id, modes=self._modes(session))

    @answers
    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[Server] | None = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> schema.LoadSessionResponse:
        """Open a stored conversation and replay it; report what can be continued."""
        _check_directory(cwd)
        session = await self._open(
            session_id, cwd, additional_directories, mcp_servers, create=False
        )
        await session.begin(replay=True)
        await session.show_left()
        self._introduce(session)
        return schema.LoadSessionResponse(modes=self._modes(session), field_meta=session.left())

    @answers
    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Server] | None = None,
        **_: Any,
    ) -> schema.ResumeSessionResponse:
        """Open a stored conversation without replaying it."""
        _check_directory(cwd)
        session = await self._open(
            session_id, cwd, additional_directories, mcp_servers, create=False
        )
        await session.begin(replay=False)
        await session.show_left()
        self._introduce(session)
        return schema.ResumeSessionResponse(modes=self._modes(session), field_meta=session.left())

    @answers
    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Server] | None = None,
        **_: Any,
    ) -> schema.ForkSessionResponse:
        """Begin a conversation with the past of another one."""
        _check_directory(cwd)
        forked = uuid4().hex
        async with self._host.agent(session_id, self._auth, create=False) as agent:
            await agent.fork(forked)
        session = await self._open(forked, cwd, additional_directories, mcp_servers, create=False)
        await session.begin(replay=False)
        self._introduce(session)
        return schema.ForkSessionResponse(session_id=forked, modes=self._modes(session))

    @answers
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        """List the stored conversations, the last active first."""
        indexed = cwd is not None and len(cwd) <= _LONGEST_INDEXED
        stores = self._host.stores_for(self._auth)
        try:
            page = await stores.contexts.list(
                owner=None if self._auth is None else self._auth.actor_id,
                metadata={"cwd": cwd} if indexed else None,
                after=cursor,
                limit=_PAGE,
            )
        except ValueRefused as error:
            if error.path != "/after":
                raise
            text = "cursor takes the nextCursor of an answer to the same request"
            raise ValueRefused(text, path="/cursor") from None
        found = []
        for record in page.items:
            of_others = self._auth is None and record.owner_actor is not None
            elsewhere = cwd is not None and record.metadata.get("cwd") != cwd
            if record.turn_count and not of_others and not elsewhere:
                found.append(await self._info(record))
        return schema.ListSessionsResponse(sessions=found, next_cursor=page.next)

    async def _info(self, record: ContextRecord) -> schema.SessionInfo:
        messages = self._host.stores_for(self._auth).messages
        first = await messages.list(record.context_id, limit=1)
        said = first[0] if first else None
        where = record.metadata.get("cwd")
        return schema.SessionInfo(
            session_id=record.context_id,
            cwd=where if isinstance(where, str) else str(Path.cwd()),
            title=title_in(said) if isinstance(said, UserMessage) else None,
            updated_at=record.last_activity.isoformat(),
        )

    @answers
    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse:
        """Cancel the running prompt, and free the session; it can be loaded again."""
        await self._session(session_id).cancel()
        await self._close(session_id)
        return schema.CloseSessionResponse()

    # --- modes -----------------------------------------------------------------------------------

    def _modes(self, session: Session) -> schema.SessionModeState | None:
        if not self._offer_allow:
            return None
        return schema.SessionModeState(current_mode_id=session.mode, available_modes=list(_MODES))

    @answers
    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> schema.SetSessionModeResponse:
        """Choose if the person is asked about calls that need approval, from the next call on."""
        session = self._session(session_id)
        known = [mode.id for mode in _MODES] if self._offer_allow else []
        if mode_id not in known:
            text = f"modeId takes one of {', '.join(known)}" if known else "there are no modes"
            raise ValueRefused(text, path="/modeId")
        session.mode = mode_id
        return schema.SetSessionModeResponse()

    # --- prompts ---------------------------------------------------------------------------------

    @answers
    async def prompt(self, session_id: str, prompt: list[Block], **_: Any) -> schema.PromptResponse:
        """Run a turn; `/continue` or an empty prompt continues what an earlier one left."""
        return await self._session(session_id).prompt(prompt)

    @answers
    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the running prompt, which then answers."""
        await self._session(session_id).cancel()

    # --- helpers ---------------------------------------------------------------------------------

    def _session(self, session_id: str) -> Session:
        found = self._sessions.get(session_id)
        if found is None:
            raise RequestError(
                NOT_FOUND,
                f"the session {session_id!r} is not open: call session/load first",
                {"code": "context_not_found", "path": "/sessionId"},
            )
        return found[0]

    async def _open(
        self,
        session_id: str,
        cwd: str,
        roots: list[str] | None,
        servers: list[Server] | None,
        *,
        create: bool,
    ) -> Session:
        """The session, which may be open already."""
        if self._client is None:
            raise RequestError.internal_error({"code": "internal_error"})
        async with self._opening:
            if session_id in self._sessions:
                session = self._sessions[session_id][0]
                session.cwd, session.roots = cwd, tuple(roots or ())
                return session
            if self._editor_tools is not None:
                self._editor_tools[session_id] = tools_of(servers or (), cwd)
            held = AsyncExitStack()
            entering = self._host.agent(session_id, self._auth, create=create)
            agent = await held.enter_async_context(entering)
            session = Session(
                agent,
                self._host.stores_for(self._auth),
                self._client,
                cwd=cwd,
                roots=roots or (),
                auth_context=self._auth,
                forms=self._forms,
            )
            self._sessions[session_id] = session, held
            return session

    async def _close(self, session_id: str) -> None:
        session, held = self._sessions.pop(session_id)
        if self._editor_tools is not None:
            self._editor_tools.pop(session_id, None)
        await session.close()
        await held.aclose()

    def _introduce(self, session: Session) -> None:
        """After the response: before it, a client does not know the session."""
        task = asyncio.create_task(session.introduce())
        self._introducing.add(task)
        task.add_done_callback(self._introducing.discard)


def _check_directory(cwd: str) -> None:
    if not PurePath(cwd).is_absolute():
        raise ValueRefused("cwd takes an absolute path", path="/cwd")
