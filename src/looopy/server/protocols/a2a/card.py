"""
The agent's card: its name, address, sign-in and skills.

It is public. So it has no tools: they are in the extended card, for callers who have signed in.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from looopy.agent.hosted import port_of
from looopy.errors import LooopyError
from looopy.server.host import AgentHost
from looopy.tools.base import Tool

_logger = logging.getLogger("looopy")
_IN = ("text/plain", "application/json", "image/png", "image/jpeg", "application/pdf")
_OUT = ("text/plain", "application/json")
_TALK = AgentSkill(
    id="chat",
    name="Conversation",
    description="Answers in a conversation that outlives its process.",
    tags=["chat"],
)


def card(
    base: str, skills: Sequence[AgentSkill], facts: Mapping[str, str], *, push: bool = False
) -> AgentCard:
    """
    The card.

    Args:
        base: The server's address, without a slash at its end.
        skills: Those of the tools. Without any, it has one for the conversation.
        facts: Name, description and version of the agent.
        push: It sends push notifications.
    """
    bearer = HTTPAuthSecurityScheme(scheme="Bearer")
    return AgentCard(
        name=facts["name"],
        description=facts["description"],
        version=facts["version"],
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=protocol)
            for protocol in ("1.0", "0.3")
            for url, binding in ((f"{base}/a2a/v1/", "JSONRPC"), (base, "HTTP+JSON"))
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=push, extended_agent_card=True
        ),
        security_schemes={"bearer": SecurityScheme(http_auth_security_scheme=bearer)},
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
        default_input_modes=_IN,
        default_output_modes=_OUT,
        skills=skills or [_TALK],
    )


async def skills_of(host: AgentHost) -> list[AgentSkill] | None:
    """
    The skills of the agents of *host*, by an agent that is made and not started.

    Returns:
        `None` if its tools could not be listed now.
    """
    try:
        agent = await host.sample(f"card-{secrets.token_urlsafe(12)}")
        tools = await port_of(agent).listed_tools()
    except LooopyError as error:
        _logger.warning("the tools of the agent are not on its card: %s", error)
        return None
    return _skills(tools)


def _skills(tools: Mapping[str, Tool]) -> list[AgentSkill]:
    return [
        AgentSkill(
            id=name,
            name=tool.label or name,
            description=tool.description or name,
            tags=["tool"],
        )
        for name, tool in tools.items()
    ]
