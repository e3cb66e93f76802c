"""The endpoint of AG-UI, as a protocol of the server: `protocols=[ag_ui_api]`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib.util import find_spec

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from looopy.errors import LooopyError, missing_extra
from looopy.server.app_context import AppContext
from looopy.server.gate.expiry import while_valid
from looopy.server.problems import problem_of
from looopy.server.protocols.ag_ui.events import SNAPSHOT, Out
from looopy.server.protocols.ag_ui.request import read_run
from looopy.server.protocols.ag_ui.runs import Runs
from looopy.server.sse import EventStream, json_bytes, json_items

if find_spec("ag_ui") is None:
    raise missing_extra("AG-UI needs its package", "ag-ui")


def ag_ui_api(app_context: AppContext) -> Sequence[BaseRoute]:
    """The route of AG-UI: `POST /ag-ui`. The `thread_id` of a run is the context."""
    limits = app_context.limits
    runs = Runs(app_context.host, limits.page_bytes)

    async def run(request: Request) -> Response:
        auth = await app_context.identify(request)
        asked = read_run(await app_context.read_json(request))
        app_context.check_size(asked.message, f"{asked.path}/content")
        async with app_context.turn(auth, asked.thread_id):
            outs = await runs.run(asked, auth)
        return EventStream(app_context, auth, _lines(while_valid(outs, auth), limits.page_bytes))

    return [Route("/ag-ui", run, methods=["POST"])]


async def _lines(outs: AsyncGenerator[Out, None], most: int) -> AsyncGenerator[bytes, None]:
    """The lines of a run; an error that ends it is its last event."""
    try:
        async with aclosing(outs):
            async for out in outs:
                yield await _snapshot(out, most) if out["type"] == SNAPSHOT else _line(out)
    except LooopyError as error:
        problem = problem_of(error)
        yield _line({"type": "RUN_ERROR", "message": problem.message, "code": problem.code})


async def _snapshot(out: Out, most: int) -> bytes:
    """The line with the newest messages that fit: AG-UI's client refuses one of 10 MiB."""
    items = await json_items(reversed(out["messages"]), most)
    head = json_bytes({"type": SNAPSHOT, **{k: v for k, v in out.items() if k != "messages"}})
    return b"".join([b"data: ", head[:-1], b',"messages":[', b",".join(items[::-1]), b"]}\n\n"])


def _line(out: Out) -> bytes:
    return b"data: " + json_bytes(out) + b"\n\n"
