"""
Many conversations in one process, and the ways to reach them from outside.

A host keeps one live agent per context, decides who may use it, and lets running turns end when the
process stops. The protocols are thin layers above it. The room may import every room but `testing`,
`compat`, `sync` and `cli`; host and feed need no web framework.

- Agents: `host` (one live agent per context), `feed` (the events of one context, stored and
  passing, for any number of readers), `deciding` (`may_answer`: approvals that another person than
  the owner may decide).
- HTTP: `app` (the ASGI application), `api` (its paths, in one table), `app_context` (what they
  share), `models` (the JSON objects of requests and answers), `items` (makes them of records),
  `openapi` (describes table and models), `sse` (event streams), `download` (artifacts), `problems`
  and `codes` (errors on the wire), `metrics`.
- `gate/`: who may come in, and how much of the server a caller may take.
- `protocols/`: A2A, ACP, AG-UI, the AI SDK, MCP and OpenAI's Responses API.
- `page/`: the page at `/ui`, and the parts of the HTTP API that only the page needs.
- `client`: a client of the HTTP API, which the command line uses.

Exports: `AgentHost`, `create_app` with its arguments, the protocols, and `Client` with its errors.
Read `host`, `feed`, `app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from looopy.types.lazy import export as _export

if TYPE_CHECKING:
    from looopy.server.app import create_app as create_app
    from looopy.server.client import Client as Client
    from looopy.server.client import RequestRefused as RequestRefused
    from looopy.server.client import ServerUnavailable as ServerUnavailable
    from looopy.server.deciding import OpenRequest as OpenRequest
    from looopy.server.deciding import RequestPage as RequestPage
    from looopy.server.gate.auth import LocalToken as LocalToken
    from looopy.server.gate.auth import StaticTokens as StaticTokens
    from looopy.server.gate.limits import Limits as Limits
    from looopy.server.host import AgentHost as AgentHost
    from looopy.server.page.routes import ui_page as ui_page
    from looopy.server.protocols.a2a.push.options import PushNotifications as PushNotifications
    from looopy.server.protocols.a2a.routes import a2a_api as a2a_api
    from looopy.server.protocols.ag_ui.endpoints import ag_ui_api as ag_ui_api
    from looopy.server.protocols.ag_ui.page_tools import PageTools as PageTools
    from looopy.server.protocols.ai_sdk.endpoints import ai_sdk_api as ai_sdk_api
    from looopy.server.protocols.mcp.routes import mcp_api as mcp_api
    from looopy.server.protocols.responses.routes import responses_api as responses_api

_export(
    globals(),
    {
        ".protocols.a2a.push.options": ("PushNotifications",),
        ".protocols.a2a.routes": ("a2a_api",),
        ".protocols.ag_ui.endpoints": ("ag_ui_api",),
        ".protocols.ag_ui.page_tools": ("PageTools",),
        ".protocols.ai_sdk.endpoints": ("ai_sdk_api",),
        ".app": ("create_app",),
        ".gate.auth": ("LocalToken", "StaticTokens"),
        ".client": ("Client", "RequestRefused", "ServerUnavailable"),
        ".deciding": ("OpenRequest", "RequestPage"),
        ".host": ("AgentHost",),
        ".gate.limits": ("Limits",),
        ".protocols.mcp.routes": ("mcp_api",),
        ".protocols.responses.routes": ("responses_api",),
        ".page.routes": ("ui_page",),
    },
)
