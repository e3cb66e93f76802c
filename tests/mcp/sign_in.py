"""A server behind a sign-in: an authorization server by hand, which may be hostile."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata


class Office:
    """
    Guards a server, and signs users in.

    Attributes:
        url: The address of the authorization server; by default the server's own.
        says: Replaces the answer at a path: bytes, or a status with a location.
        seen: Each request: its path, and its `Authorization`.
        tokens: The tokens that are let in.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.url = ""
        self.here = ""
        self.says: dict[str, Any] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.bodies: list[str] = []
        self.tokens: set[str] = set()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        path, sender = scope["path"], headers.get("authorization")
        self.here = f"http://{headers['host']}"
        self.seen.append((path, sender))
        if path == "/mcp" and (sender or "").removeprefix("Bearer ") in self.tokens:
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, said, extra = self._answer(path, body)
        kind = [(b"content-type", b"application/json"), *extra]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": said})

    def _answer(self, path, body):
        said = self.says.get(path)
        if isinstance(said, tuple):
            return said[0], b"{}", [(b"location", said[1].encode())]
        if said is None:
            said = self._usual(path, body)
        if path == "/mcp":
            at = f'Bearer resource_metadata="{self.here}/prm"'
            return 401, b"{}", [(b"www-authenticate", at.encode())]
        return (
            (404 if said is None else 200),
            said if isinstance(said, bytes) else json.dumps(said).encode(),
            [],
        )

    def _usual(self, path, body):
        issuer = self.url or self.here
        if path == "/prm":
            return {"resource": f"{self.here}/mcp", "authorization_servers": [issuer]}
        if path == "/.well-known/oauth-authorization-server":
            return {
                "issuer": self.here,
                "authorization_endpoint": f"{self.here}/authorize",
                "token_endpoint": f"{self.here}/token",
                "registration_endpoint": f"{self.here}/register",
                "response_types_supported": ["code"],
            }
        if path == "/register":
            return {**json.loads(body), "client_id": "looopy", "token_endpoint_auth_method": "none"}
        if path == "/token":
            asked = {key: value[0] for key, value in parse_qs(body.decode()).items()}
            self.bodies.append(body.decode())
            token = f"token-for-{asked.get('code')}"
            self.tokens.add(token)
            return {"access_token": token, "token_type": "Bearer", "refresh_token": "refresh-me-7"}
        return None


class Tokens:
    """Where an application keeps the tokens of a user; none of our stores."""

    def __init__(self) -> None:
        self.tokens = None
        self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


def provider_of(url, name="ada", tokens=None, *, signs_in=True):
    """The SDK's provider; the user says yes at once, as *name*."""
    went: list[str] = []

    async def go(address):
        went.append(address)

    async def come_back():
        state = parse_qs(urlsplit(went[-1]).query)["state"][0]
        return AuthorizationCodeResult(code=f"{name}-code", state=state)

    metadata = OAuthClientMetadata(client_name="test", redirect_uris=["http://localhost/back"])
    return OAuthClientProvider(
        url,
        metadata,
        tokens or Tokens(),
        redirect_handler=go if signs_in else None,
        callback_handler=come_back if signs_in else None,
    )


class OldServer:
    """A server of the HTTP transport of 2024, by hand; the tool `fall` is refused."""

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        if scope["path"] == "/sse" and scope["method"] == "GET":
            await self._stream(receive, send)
            return
        body = (await receive()).get("body", b"")
        status = 405 if scope["path"] == "/sse" else 500 if b'"fall"' in body else 202
        if status == 202:
            message = json.loads(body)
            self._said.put_nowait((message.get("id"), self._answer(message["method"])))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, receive, send):
        self._said = asyncio.Queue()
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await self._event(send, "endpoint", "/messages?session_id=1")
        gone = asyncio.create_task(receive_end(receive))
        while not gone.done():
            said = asyncio.create_task(self._said.get())
            await asyncio.wait({gone, said}, return_when=asyncio.FIRST_COMPLETED)
            if not said.done():
                said.cancel()
                break
            number, result = said.result()
            if number is not None:
                answer = {"jsonrpc": "2.0", "id": number, "result": result}
                await self._event(send, "message", json.dumps(answer))
        gone.cancel()

    async def _event(self, send, kind, data):
        event = f"event: {kind}\r\ndata: {data}\r\n\r\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})

    def _answer(self, method):
        if method == "initialize":
            return {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        if method == "tools/list":
            schema = {"type": "object"}
            return {"tools": [{"name": name, "inputSchema": schema} for name in ("say", "fall")]}
        return {"content": [{"type": "text", "text": "fine"}]}


async def receive_end(receive):
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
