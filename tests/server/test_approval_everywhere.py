"""An approval that is given in one face is gone in all others, in the order of events."""

import asyncio
import random
from types import SimpleNamespace

import httpx
from tests.campaign import protocols as faces
from tests.server.loopback import listening

from looopy import open_stores
from looopy.server import Client
from looopy.types.approval import Approve
from looopy.types.event import event_to_json


class Program(faces.Face):
    """A program, or the command line, with a client of ours."""

    name = "Client"

    async def see_closed(self, client, request, seen):
        async with Client(self.server.place, token=faces._TOKEN) as program:
            async for event in program.events("c", after=0):
                if faces._asks(event_to_json(event), request):
                    seen()
                elif faces._decides(event_to_json(event), request):
                    return

    async def approve(self, client, request):
        async with Client(self.server.place, token=faces._TOKEN) as program:
            await program.begin_turn("c", inputs={request["request_id"]: Approve()})


async def test_an_approval_that_one_face_gives_is_gone_in_every_other_one(sqlite_file):
    """At once where one asks; by an event, on a connection made before, where one is told."""
    url = f"sqlite:///{sqlite_file}"
    async with open_stores(url) as stores, listening(faces._app(stores, 0.0)) as place:
        server = SimpleNamespace(url=url, place=place, pace_s=0.0)
        asked = [faces.Chat, faces.Runs, faces.Responses]
        asked = [kind(server, random, 0) for kind in asked]
        told = [faces.Events, Program, faces.Tasks, faces.Sessions]
        told = [kind(server, random, 0) for kind in told]
        headers = {"Authorization": f"Bearer {faces._TOKEN}"}
        async with httpx.AsyncClient(base_url=place, headers=headers, timeout=60) as client:
            await client.post("/contexts/c/turns", json={"message": "Go."})
            for giving in (*told, *asked):
                while not (waits := (await client.get("/contexts/c")).json()["pending"]):
                    pass  # another turn runs
                [request] = waits
                for face in asked:
                    assert await face.asks(client, request), face.name
                seen = {face: asyncio.Event() for face in told if face is not giving}
                seeing = {
                    face: asyncio.create_task(face.see_closed(client, request, seen[face].set))
                    for face in seen
                }
                await asyncio.gather(*(one.wait() for one in seen.values()))
                assert not any(task.done() for task in seeing.values())
                await giving.approve(client, request)
                for face in asked:
                    assert not await face.asks(client, request), face.name
                await asyncio.gather(*seeing.values())
