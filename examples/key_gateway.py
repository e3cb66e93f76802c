"""
Keep the keys of models on one machine: agents elsewhere have a token each, and no key.

An agent needs the address and its token: `OpenAIProvider("gpt-5-mini",
base_url="http://127.0.0.1:8000/openai", api_key=TOKEN)`, or `AnthropicProvider` and `/anthropic`.
"""

import json
import os
import time
from collections import defaultdict
from hashlib import sha256

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

OPENAI = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
ANTHROPIC = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
BEARER = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}"}
X_API_KEY = {"x-api-key": os.environ.get("ANTHROPIC_API_KEY", "")}
CALLS = {  # a token reaches these calls, and no files or batches
    "/openai/chat/completions": (f"{OPENAI}/chat/completions", BEARER),
    "/openai/responses": (f"{OPENAI}/responses", BEARER),
    "/anthropic/v1/messages": (f"{ANTHROPIC}/v1/messages", X_API_KEY),
}
LIMITS = json.loads(os.environ["TOKENS"])  # {SHA-256 of a token: calls a minute}
PASSED = ("accept", "anthropic-beta", "anthropic-version", "content-type")
made: dict[str, list[float]] = defaultdict(list)
http = httpx.AsyncClient(timeout=600)


async def forward(request: Request) -> Response:
    """Send a call on with the key in place of the token, and stream the answer back."""
    token = request.headers.get("x-api-key") or request.headers.get("authorization", "")[7:]
    client, now = sha256(token.encode()).hexdigest(), time.monotonic()
    if client not in LIMITS:
        return JSONResponse({"error": {"message": "unknown token"}}, 401)
    recent = made[client] = [one for one in made[client] if one > now - 60]
    if len(recent) >= LIMITS[client]:
        wait = {"retry-after": str(int(recent[0] + 61 - now))}
        return JSONResponse({"error": {"message": "too many calls"}}, 429, wait)
    recent.append(now)
    url, key = CALLS[request.url.path]
    headers = {n: request.headers[n] for n in PASSED if n in request.headers} | key
    call = http.build_request("POST", url, headers=headers, content=await request.body())
    answer = await http.send(call, stream=True)
    kept = {n: answer.headers[n] for n in ("content-type", "retry-after") if n in answer.headers}
    body, close = answer.aiter_bytes(), BackgroundTask(answer.aclose)
    return StreamingResponse(body, answer.status_code, kept, background=close)


app = Starlette(routes=[Route(path, forward, methods=["POST"]) for path in CALLS])
if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
