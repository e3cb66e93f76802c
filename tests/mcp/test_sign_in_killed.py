"""A call that its server refused for a bad sign-in is still open in another process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from pathlib import Path

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken
from tests.agent.kit import assert_whole
from tests.mcp.sign_in import Tokens, provider_of

import looopy.tools.sources.mcp.sdk  # noqa: F401 - before the forks
from looopy import Agent, AuthContext, open_stores
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait
from looopy.tools import MCPTools
from looopy.types.message import ToolResultMessage

HOWS = ("oauth", "headers")
PAY = tool_call("crm_pay", amount=7)


class Place:
    """A folder of files that all processes share: the tokens that are let in, and what was paid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'db'}"
        self.log = folder / "log"
        self.good, self.paid, self.told = (folder / name for name in ("good", "paid", "told"))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    async def verify_token(self, token: str) -> AccessToken | None:
        """Let those in whose token is good now."""
        known = self.good.read_text() == token
        return AccessToken(token=token, client_id="looopy", scopes=[]) if known else None

    def serve(self) -> None:
        """The official SDK's server, behind its own check of bearer tokens."""
        logging.disable()
        auth = AuthSettings(
            issuer_url=self.address,
            resource_server_url=f"{self.address}/mcp",
            validate_token_resource=False,
        )
        server = MCPServer("crm", token_verifier=self, auth=auth)

        @server.tool()
        def pay(amount: int) -> str:
            """Pay, and write it down."""
            with self.paid.open("a") as file:
                file.write(f"{amount}\n")
            return f"paid {amount}"

        config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
        uvicorn.Server(config).run([self.listening])

    def source(self, how: str) -> MCPTools:
        """Its tools, for a user whose token the turn brings."""
        url = f"{self.address}/mcp"
        if how == "headers":
            return MCPTools(url=url, name="crm", prefix="crm_", headers=_bearer)
        return MCPTools(
            url=url, name="crm", prefix="crm_", auth=lambda who: _sign_in(url, who), origins=[url]
        )


def _bearer(who):
    return {"Authorization": f"Bearer {who.credentials['token']}"}


def _sign_in(url, who):
    kept = Tokens()
    kept.tokens = OAuthToken(access_token=who.credentials["token"])
    return provider_of(url, tokens=kept, signs_in=False)


def _user(token):
    return AuthContext("ada", credentials={"token": token})


async def _begins(place: Place) -> None:
    """The token is good for the list of tools, and no longer for the call; then a kill."""
    told = []
    for how in HOWS:
        place.good.write_text("good-token")

        def ask(_request):
            place.good.write_text("none")
            return PAY

        model = ScriptedProvider([ask])
        agent = Agent(how, llm_provider=model, tools=[place.source(how)], stores=place.url)
        await agent.start()
        ended = await agent.execute_turn("go", _user("good-token"))
        told.append([ended.outcome, len(ended.pending)])
    place.told.write_text(json.dumps(told))
    os.kill(os.getpid(), signal.SIGKILL)


async def _continues(place: Place) -> None:
    """The same token, twice; then one that is good."""
    told = []
    for how in HOWS:
        model = ScriptedProvider([text("done")])
        agent = Agent(how, llm_provider=model, tools=[place.source(how)], stores=place.url)
        async with agent:
            for _ in range(2):
                turn = agent.execute_turn(None, _user("good-token"))
                warned = [event.text async for event in turn if event.type == "warning"]
                told.append([(await turn).outcome, len(await agent.get_messages()), warned])
            fresh = "good-token" if how == "oauth" else "better-token"  # it is good again
            place.good.write_text(fresh)
            ended = await agent.execute_turn(None, _user(fresh))
            place.good.write_text("none")
            told.append([ended.outcome, ended.text])
    place.told.write_text(json.dumps(told))


async def _judge(place: Place) -> None:
    async with open_stores(place.url) as stores:
        for how in HOWS:
            await assert_whole(stores, how)
            said = await stores.messages.list(how)
            assert [m.text for m in said if isinstance(m, ToolResultMessage)] == ["paid 7"]
            assert "-token" not in repr(await stores.journal.events(how))


def test_a_refused_call_waits_for_a_sign_in_in_another_process(tmp_path):
    """That process cannot list the tool; the call runs once, when the server lets the user in."""
    place = Place(tmp_path)
    place.good.write_text("")
    server = fork(place.serve, place.log)
    try:
        life = fork(lambda: asyncio.run(_begins(place)), place.log)
        assert wait(life) == -signal.SIGKILL, place.log.read_text()
        assert json.loads(place.told.read_text()) == [["auth_required", 0]] * 2
        run(lambda: asyncio.run(_continues(place)), place.log)
    finally:
        os.kill(server, signal.SIGKILL)
        wait(server)
        place.listening.close()
    told = json.loads(place.told.read_text())
    for outcome, messages, warned in [*told[:2], *told[3:5]]:
        assert (outcome, messages) == ("auth_required", 2)
        assert "'crm' did not let the user sign in" in warned[0]
        assert "'crm_pay' stays open: sign the user in" in warned[1]
    assert told[2] == told[5] == ["completed", "done"]
    assert place.paid.read_text() == "7\n" * 2
    asyncio.run(_judge(place))
