"""
Many conversations in one process, and the ways to reach them from outside.

A host keeps one live agent per context, decides who may use it, and lets running turns end when the
process stops. The protocols are thin faces above it. The room may import every room but `testing`,
`compat`, `sync` and `cli`; host and feed need no web framework.

- `host`: `AgentHost`, for applications with handlers of their own and for all faces.
- `deciding`: requests for approval that another person than the owner may decide.
- `feed`: the events of one context, stored and passing ones, for any number of readers.
- `flow`: every response in pieces, with deadlines. `connections`: those of `looopy serve`.
- `expiry`: the end of a stream whose credentials expire. `download`: artifacts.
- `responses/`: OpenAI's Responses API.
- `ag_ui/`: AG-UI, the protocol of CopilotKit and others.
- `ai_sdk/`: the AI SDK's UI message stream. `growing`: the text of an answer. `chains`: its turns.
- `acp/`: the Agent Client Protocol of editors. `mcp/`: agents as tools of an MCP server. `stdio`:
  lines for both. `spoken`: answers to questions in words.
- `a2a/`: A2A, by which agents call agents.
- `repeats`: what a request does that comes again, for all of them.
- `client`: a client of the HTTP API, which the command line uses.
- `ui/`: the page at `/ui`, for people. `timeline`, `replays`, `clip`: parts of the HTTP API that it
  needs.

Exports: `AgentHost`, `create_app` with what it takes, the faces, and `Client` with its errors. Read
`host`, `feed`, `app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.server.a2a.push.options import PushNotifications as PushNotifications
    from looopy.server.a2a.routes import a2a_api as a2a_api
    from looopy.server.ag_ui.endpoints import ag_ui_api as ag_ui_api
    from looopy.server.ag_ui.page_tools import PageTools as PageTools
    from looopy.server.ai_sdk.endpoints import ai_sdk_api as ai_sdk_api
    from looopy.server.app import create_app as create_app
    from looopy.server.auth import LocalToken as LocalToken
    from looopy.server.auth import StaticTokens as StaticTokens
    from looopy.server.client import Client as Client
    from looopy.server.client import RequestRefused as RequestRefused
    from looopy.server.client import ServerUnavailable as ServerUnavailable
    from looopy.server.deciding import OpenRequest as OpenRequest
    from looopy.server.deciding import RequestPage as RequestPage
    from looopy.server.host import AgentHost as AgentHost
    from looopy.server.limits import Limits as Limits
    from looopy.server.mcp.routes import mcp_api as mcp_api
    from looopy.server.responses.routes import responses_api as responses_api
    from looopy.server.ui.routes import ui_page as ui_page

_export(
    globals(),
    {
        ".a2a.push.options": ("PushNotifications",),
        ".a2a.routes": ("a2a_api",),
        ".ag_ui.endpoints": ("ag_ui_api",),
        ".ag_ui.page_tools": ("PageTools",),
        ".ai_sdk.endpoints": ("ai_sdk_api",),
        ".app": ("create_app",),
        ".auth": ("LocalToken", "StaticTokens"),
        ".client": ("Client", "RequestRefused", "ServerUnavailable"),
        ".deciding": ("OpenRequest", "RequestPage"),
        ".host": ("AgentHost",),
        ".limits": ("Limits",),
        ".mcp.routes": ("mcp_api",),
        ".responses.routes": ("responses_api",),
        ".ui.routes": ("ui_page",),
    },
)
