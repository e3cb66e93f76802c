"""The program as a person or a script runs it: a child process, and a model on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest
from tests.preloaded import Process, environment, own_terminal
from tests.wire.fake_openai import DONE, USAGE, Answer, FakeOpenAI, chunk, says

PATIENCE_S = 40
TOKEN = "t" * 24
WAITING = """
import asyncio
from pathlib import Path

from looopy import Agent, tool
from looopy.testing import ScriptedProvider, text, tool_call


@tool(effects="idempotent")
async def wait() -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "waited"


def reply(request):
    called = request.messages[-1].role == "toolResult"
    return text("Done.") if called else tool_call("wait")


def build(context_id, stores):
    model = ScriptedProvider(reply)
    return Agent(context_id, llm_provider=model, tools=[wait], stores=stores)
"""
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?2004[hl]\r?)")


def calls(name, **args):
    """An answer that asks for a tool."""
    call = {"index": 0, "id": "c1", "type": "function"}
    call["function"] = {"name": name, "arguments": json.dumps(args)}
    pieces = [chunk({"tool_calls": [call]}), chunk(finish="tool_calls"), chunk(usage=USAGE), DONE]
    return Answer(pieces=pieces)


def streams(*deltas):
    """An answer of these pieces of text, as they are."""
    return Answer(pieces=[*(chunk({"content": d}) for d in deltas), chunk(finish="stop"), DONE])


def obeys(received):
    """A model that does what it is told, `wait 5` or `calculate 6*7`; else it repeats it."""
    last = received.body["messages"][-1]
    said = last["content"]
    if last["role"] == "tool":
        return says(f"The tool said: {said}")
    if said.startswith("wait "):
        return calls("wait", seconds=float(said.removeprefix("wait ")))
    if said.startswith("calculate "):
        return calls("calculate", expression=said.removeprefix("calculate "))
    return says(f"You said: {said}")


@dataclass
class Ended:
    """What a run came to."""

    status: int
    out: str
    err: str

    @property
    def events(self):
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Program:
    """Runs `looopy` with a home of its own."""

    def __init__(self, home, server, preloaded):
        self.home = home
        self.server = server
        self._preloaded = preloaded
        self.env = {
            **environment(),
            "HOME": str(home),
            "LOOOPY_DATA": str(home / "data"),
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "key",
            "OPENAI_MODEL": "fake",
            "TERM": "xterm-256color",
        }
        self.program = None  # of the test's own, if the start of Python matters
        self.running = []

    @property
    def database(self):
        """The default database."""
        return self.home / "data" / "looopy.db"

    async def start(self, *args, program=None, **options):
        """Start it, or another *program*, and come back at once; it dies with the test."""
        program = self.program if program is None else program
        if program is None:
            process = await self._preloaded.start(args, self.env, self.home, **options)
        else:
            process = await asyncio.create_subprocess_exec(
                *(*program, *args), env=self.env, cwd=self.home, start_new_session=True, **options
            )
        self.running.append(process)
        return process

    async def __call__(self, *args, stdin=""):
        """Run it to its end."""
        pipe = asyncio.subprocess.PIPE
        process = await self.start(*args, stdin=pipe, stdout=pipe, stderr=pipe)
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(data)
        return Ended(process.returncode, out.decode(), err.decode())

    async def at_terminal(self, *args, **options):
        """Run it in a terminal."""
        import pty

        master, slave = pty.openpty()
        options |= {"stdin": slave, "stdout": slave, "stderr": slave}
        if self.program is not None or "program" in options:
            options["preexec_fn"] = own_terminal
        process = await self.start(*args, **options)
        os.close(slave)
        return Session(process, master)

    async def end(self):
        """Leave no process behind."""
        for process in self.running:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if isinstance(process, Process):
                process.close()
        await asyncio.sleep(0)


class Session:
    """A program in a terminal: what it shows, and keys to press."""

    def __init__(self, process, master):
        self.process = process
        self._master = master
        self._shown = ""
        self._bytes = b""
        self._more = asyncio.Event()
        self._over = False
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self):
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return
        except OSError:  # the other end is closed
            data = b""
        if data:
            self._bytes += data
        else:
            self._over = True
            asyncio.get_running_loop().remove_reader(self._master)
        self._more.set()

    @property
    def raw(self):
        """Everything since it was started, as it came."""
        return self._bytes.decode(errors="replace").replace("\r\n", "\n")

    @property
    def shown(self):
        """Everything since it was started, without colours and the line editor's own sequences."""
        return OURS.sub("", self.raw)

    def press(self, keys):
        """Type."""
        os.write(self._master, keys.encode())

    async def see(self, text):
        """Wait until *text* is shown, after what was seen before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while text not in self.shown[len(self._shown) :] and not self._over:
                    self._more.clear()
                    await self._more.wait()
        assert text in self.shown[len(self._shown) :], f"{text!r} never came:\n{self.shown}"
        seen = self.shown.index(text, len(self._shown)) + len(text)
        self._shown = self.shown[:seen]

    async def process_killed(self):
        """Kill it, as nothing in it can prevent."""
        self.process.kill()
        assert await self.status() == -signal.SIGKILL

    async def status(self):
        """Wait until it ends; its exit status."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._over:
                self._more.clear()
                await self._more.wait()
            await self.process.wait()
        os.close(self._master)
        return self.process.returncode


@pytest.fixture
async def model():
    """A model on loopback that obeys; a test may put other answers first."""
    async with FakeOpenAI(*[obeys] * 50) as server:
        yield server


@pytest.fixture
async def looopy(tmp_path, model, preloaded):
    """The program, in a home of its own, with the model on loopback."""
    program = Program(tmp_path, model, preloaded)
    yield program
    await program.end()


@pytest.fixture
def serving(preloaded, tmp_path):
    """A function that serves an app, by default of `WAITING`: the process, and a client."""

    @contextmanager
    def serve(*more, app=WAITING):
        (tmp_path / "app.py").write_text(app)
        command = ["serve", "app:build", "--port", "0", "--db", f"sqlite:///{tmp_path}/app.db"]
        env = environment() | {"LOOOPY_UI_TOKEN": TOKEN}
        with preloaded.popen([*command, *more], env, tmp_path) as process:
            place = process.stdout.readline().split()[-1]
            assert process.stdout.readline().startswith("contexts:")
            local = "--auth" not in more
            assert not local or process.stdout.readline() == f"token: {TOKEN}\n"
            token = f"#token={TOKEN}" if local else ""
            assert process.stdout.readline() == f"page: {place}/ui{token}\n"
            headers = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=place, headers=headers, timeout=60) as client:
                yield process, client

    return serve
