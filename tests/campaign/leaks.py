"""
Forty secrets in every place that credentials have, and every failure that might tell one of them.

A run makes one turn in which something of the application says a secret: a tool, a hook, a server,
a store, while it works, fails, is cancelled, is too slow, is fenced. Afterwards everything that a
turn leaves behind is searched: the events and the result as they are shown, written and pickled,
what the model was sent, the errors with all that is chained to them and with the locals of our own
frames, every record of every logger at DEBUG, stderr, and at the end every byte of the database.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import io
import json
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, SecretBytes, SecretStr
from tests.campaign.databases import new_sqlite, postgres
from tests.campaign.trial import Tally, Trial
from tests.postgres import GUARDED, ask
from tests.wire.fake_openai import Answer, FakeOpenAI, event, refuses, says

import looopy
from looopy import (
    Agent,
    AuthContext,
    LoopConfig,
    RetryPolicy,
    ToolContext,
    ToolResult,
    errors,
    tool,
)
from looopy.auth.redaction import Redactor, _live
from looopy.llm import OpenAIProvider
from looopy.stores.bundle import Stores
from looopy.stores.opening import open_stores
from looopy.testing import ScriptedProvider, failure, text, tool_call
from looopy.testing.children import fork, wait
from looopy.testing.faults import SpyStores
from looopy.types.config import Hooks
from looopy.types.event import event_to_json
from looopy.types.message_json import message_to_json

_SLOTS = 40
_URL, _PROVIDER, _HOOK = 37, 38, 39  # of the store, of the provider, of the hook; others are given
_OURS = str(Path(looopy.__file__).parent)


def _core(n: int) -> str:
    return f"cnry{n:02d}x7Qf3{n * 7919:06d}"


def canary(n: int) -> str:
    """Secret number *n*; every fourth has characters that each format writes in its own way."""
    return f'/+"{_core(n)}\\é=' if n % 4 == 3 and n < _URL else _core(n)


def traces(n: int) -> list[str]:
    """What every form of secret *n* has in it."""
    core = _core(n)
    found = [core, core.encode().hex(), core.encode().hex().upper()]
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + core.encode() + b"\0" * 3).decode()
        found.append(whole[4 : 4 + 4 * ((len(core) - 4) // 3)])
    return found


_TRACES = [trace for n in range(_SLOTS) for trace in traces(n)]


class _Account(BaseModel):
    password: SecretStr


@dataclass
class _Grant:
    token: str


def credentials() -> dict[str, Any]:
    """Credentials with a secret in every kind of slot."""
    c = [canary(n) for n in range(_SLOTS)]
    return {
        "plain": c[0],
        "header": f"Bearer {c[1]}",
        "dsn": f"postgresql://user:{c[2]}@host/db",
        "nested": {"a": {"b": [c[3], (c[4], {"d": c[5]})]}},
        "set": {c[6]},
        "frozen": frozenset({c[7]}),
        "bytes": c[8].encode(),
        "bytearray": bytearray(c[9].encode()),
        "list of bytes": [c[10].encode(), memoryview(c[11].encode())],
        "SecretStr": SecretStr(c[12]),
        "SecretBytes": SecretBytes(c[13].encode()),
        "model": _Account(password=SecretStr(c[14])),
        "dataclass": _Grant(c[15]),
        "newline": f"{c[16]}\n",
        **{f"slot {n}": c[n] for n in range(17, _URL)},
    }


class _Records(logging.Handler):
    """Everything that any logger says, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line, its traceback, and what a collector would take of the record."""
        rest = {k: v for k, v in vars(record).items() if k not in ("exc_info", "msg", "args")}
        self.lines.append(f"{self.format(record)} {record.msg!r} {record.args!r} {rest!r}")


_LOUD = ("", "looopy", "sqlalchemy", "asyncpg", "psycopg", "aiosqlite", "openai", "httpx", "httpx2")


@contextlib.contextmanager
def _listening() -> Iterator[tuple[_Records, io.StringIO]]:
    records, stderr = _Records(), io.StringIO()
    before = {name: logging.getLogger(name).level for name in _LOUD}
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(records)
    try:
        with contextlib.redirect_stderr(stderr), warnings.catch_warnings():
            warnings.simplefilter("always")
            yield records, stderr
    finally:
        logging.getLogger().removeHandler(records)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class Run:
    """One turn in which a secret is said."""

    def __init__(self, stores: Stores, context_id: str, rng: random.Random) -> None:
        self.stores = stores
        self.context_id = context_id
        self.rng = rng
        self.told = 0  # secrets that were said
        self.seen: list[tuple[str, str]] = []  # name of a sink, and what it got
        self.objects: list[Any] = []

    def say(self, n: int | None = None) -> str:
        """A sentence with one of the secrets in one of its forms."""
        self.told += 1
        secret = canary(self.rng.randrange(_URL) if n is None else n)
        data = f"u:{secret}".encode()[self.rng.randrange(3) :]
        form = self.rng.choice(
            [
                secret,
                secret.encode().hex(),
                base64.b64encode(data).decode(),
                base64.urlsafe_b64encode(data).decode().rstrip("="),
                quote(secret, safe=""),
                json.dumps({"k": secret}),
                repr(secret.encode()),
            ]
        )
        return f"refused: {form} (key)"

    def failing(self) -> BaseException:
        """An error of any class of ours or Python's that says a secret, or is caused by one."""
        kind = self.rng.choice(_ERRORS)
        if self.rng.random() < 0.3:
            error = _made(kind, "no luck")
            error.__cause__ = ValueError(self.say())
            return error
        if issubclass(kind, errors.LooopyError) and self.rng.random() < 0.3:
            return kind("no luck", headers={"authorization": [self.say()]})
        error = _made(kind, self.say())
        if self.rng.random() < 0.3:
            error.add_note(self.say())
        return error

    def see(self, sink: str, value: object) -> None:
        """Keep *value* as all that can be made of it."""
        self.objects.append(value)
        self.seen += [(sink, repr(value)), (sink, str(value)), (sink, _deep(value))]
        with contextlib.suppress(Exception):
            self.seen.append((sink, pickle.dumps(value).decode("latin-1")))
        if isinstance(value, BaseException):
            self.seen.append((f"{sink}'s traceback", "".join(traceback.format_exception(value))))
            self.seen += [(f"{sink}'s frames", line) for line in _locals(value)]

    async def turn(
        self,
        provider: Any = None,
        *tools: Any,
        auth: bool = True,
        act: Callable[[Agent, Any], Awaitable[None]] | None = None,
        stores: Stores | None = None,
        hooks: Hooks | None = None,
        system_prompt: Any = "",
        subscriber: Callable[[Any], None] | None = None,
        **config: Any,
    ) -> None:
        """Run it, and keep what comes of it."""
        if provider is None:
            provider = ScriptedProvider([tool_call("leak"), text("done")])
        agent = Agent(
            self.context_id,
            llm_provider=provider,
            tools=list(tools),
            stores=stores or self.stores,
            system_prompt=system_prompt,
            loop_config=LoopConfig(
                retry=RetryPolicy(attempts=1, base_s=0), hooks=hooks or Hooks(), **config
            ),
        )
        agent.subscribe(partial(self.see, "event to the agent"))
        await agent.start()
        try:
            given = AuthContext("u1", credentials=credentials()) if auth else None
            stream = agent.execute_turn("go", given)
            if subscriber is not None:
                stream.subscribe(subscriber)
            if act is not None:
                await act(agent, stream)
            try:
                deltas = ""
                async for shown in stream:
                    self.see("event", shown)
                    self.see("event in JSON", _json(shown))
                    if shown.type == "message_update":
                        deltas += shown.delta or (shown.event.delta if shown.event else "")
                        self.see("partial", (shown.partial.text, shown.partial.snapshot()))
                self.see("deltas", deltas)
                result = await stream
                self.see("result", result)
                if result.error is not None:
                    self.see("error of the result", result.error)
            except Exception as error:  # noqa: BLE001 - whatever comes is searched
                self.see("error of the stream", error)
            self.see("state", agent.state)
            self.see("agent", (agent, stream))
            for message in await agent.get_messages():
                self.see("message", message_to_json(message))
            for request in getattr(provider, "requests", []):
                self.see("what the model was sent", request.messages)
        finally:
            await agent.shutdown(cancel=True)

    def found(self) -> list[str]:
        """Sinks in which a secret is."""
        return sorted({sink for sink, shown in self.seen if leaked(shown)})


def leaked(shown: str) -> bool:
    """Whether a secret is in *shown*."""
    return any(trace in shown for trace in _TRACES)


def _json(shown: Any) -> str:
    return json.dumps(event_to_json(shown), ensure_ascii=False, default=repr)


def _deep(value: Any) -> str:
    """Fields that no `repr` shows."""
    parts = []
    if hasattr(value, "__dataclass_fields__"):
        parts = [repr(getattr(value, f.name)) for f in fields(value)]
    with contextlib.suppress(TypeError):
        parts.append(repr(vars(value)))
    return " ".join(parts)


def _locals(error: BaseException) -> list[str]:
    """The locals of our frames in the tracebacks of all that *error* is chained to."""
    found, links = [], [error]
    while links:
        link = links.pop()
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if frame.f_code.co_filename.startswith(_OURS):
                found.append(repr(frame.f_locals))
        links += [one for one in (link.__cause__, link.__context__) if one is not None]
    return found


def _made(kind: type[BaseException], said: str) -> BaseException:
    return kind(said)


def _errors() -> list[type[BaseException]]:
    """Every class of ours, and each of Python's that takes one text and is a tool's to raise."""
    ours = [e for e in vars(errors).values() if isinstance(e, type)]
    found = [e for e in ours if issubclass(e, errors.LooopyError)]
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning):
            if kind in (StopIteration, StopAsyncIteration):
                continue  # in a coroutine Python makes other errors of them
            with contextlib.suppress(TypeError):
                kind("x")
                found.append(kind)
    return found


_ERRORS = _errors()


# --- what says a secret --------------------------------------------------------------------------


async def _tool_raises(run: Run) -> None:
    error = run.failing()

    @tool
    async def leak() -> str:
        """Fail."""
        raise error

    await run.turn(None, leak)


async def _thread_raises(run: Run) -> None:
    error = run.failing()

    @tool
    def leak() -> str:
        """Fail in a thread."""
        raise error

    await run.turn(None, leak)


async def _tool_returns(run: Run) -> None:
    said = run.say()
    value = run.rng.choice(
        [
            said,
            {"headers": {said: [said]}},
            [said, 1, None],
            ToolResult(content="fine", details={"debug": [said, {"deep": said}]}),
            ToolResult(content=said, is_error=True, details=said),
            _Grant(said),
        ]
    )

    @tool
    async def leak() -> Any:
        """Say it."""
        return value

    await run.turn(None, leak)


async def _result_is_cut(run: Run) -> None:
    run.told += 1
    secret = canary(run.rng.choice((0, 17, 20)))
    before = run.rng.randrange(40, 60)

    @tool(max_result_bytes=before + run.rng.randrange(8, len(secret)))
    async def leak() -> str:
        """Say more than fits: what is left may end within the secret."""
        return "x" * before + secret + "y" * 100

    await run.turn(None, leak)
    for message in run.objects:
        run.seen += [("a cut result", canary(0))] if f"x{secret[:8]}" in repr(message) else []


async def _progress(run: Run) -> None:
    said = run.say()
    value = run.rng.choice([said, {"at": said}, [said], _Grant(said), said.encode(), (1, said)])

    @tool
    async def leak(context: ToolContext) -> str:
        """Report it."""
        context.report(value)
        await asyncio.sleep(0)
        context.report({"again": value})
        return "done"

    await run.turn(None, leak)


async def _artifact(run: Run) -> None:
    said = canary(run.rng.choice((0, 17, 20)))
    run.told += 1
    place = run.rng.randrange(5)

    @tool
    async def leak(context: ToolContext) -> str:
        """Save it."""
        name = said if place == 0 else "a.txt"
        kind = f"text/{said}" if place == 1 else "text/plain"
        content: Any = {2: said.encode(), 3: f"a {said}", 4: {"k": [said]}}.get(place, "fine")
        await context.artifacts.save(name, content, media_type=kind)
        return "saved"

    await run.turn(None, leak)


async def _hook_raises(run: Run) -> None:
    error = run.failing()
    name = run.rng.choice(("transform_context", "convert_to_llm", "get_api_key"))

    def hook(*_: Any) -> Any:
        raise error

    await run.turn(ScriptedProvider([text("hi")]), hooks=Hooks(**{name: hook}))


async def _prompt_raises(run: Run) -> None:
    error = run.failing()

    async def prompt(_: Any) -> str:
        raise error

    await run.turn(ScriptedProvider([text("hi")]), system_prompt=prompt)


async def _hook_brings_key(run: Run) -> None:
    said = run.say(_HOOK)

    @tool
    async def leak() -> str:
        """Say the key of the call."""
        return said

    key: Any = canary(_HOOK)
    hook = run.rng.choice((lambda *_: key, lambda *_: SecretStr(key)))
    await run.turn(None, leak, auth=run.rng.random() < 0.5, hooks=Hooks(get_api_key=hook))


async def _model_says(run: Run) -> None:
    said = run.say()
    model = ScriptedProvider(
        [(text(said), tool_call("leak", q=said, more={"k": [said]})), text(said)],
        chunk_chars=run.rng.randrange(1, 9),
    )

    @tool
    async def leak(q: str, more: dict[str, Any]) -> str:
        """Take it."""
        return f"{q} {more}"

    await run.turn(model, leak)


async def _model_fails(run: Run) -> None:
    errors_of_models = [e for e in _ERRORS if issubclass(e, errors.LLMError)]
    error = run.rng.choice(errors_of_models)(run.say(), retryable=run.rng.random() < 0.5)
    if run.rng.random() < 0.5:
        error.__cause__ = ValueError(run.say())
    lines = [(text(f"so far {run.say()}"), failure(error))] * 3
    await run.turn(ScriptedProvider(lines, chunk_chars=3))


async def _provider_raises(run: Run) -> None:
    error = run.failing()

    class Broken:
        name = model = "broken"

        async def stream(self, *_: Any) -> AsyncIterator[Any]:
            raise error
            yield

    await run.turn(Broken())


async def _cancelled(run: Run) -> None:
    said, error = run.say(), run.failing()
    entered = asyncio.Event()
    ends = run.rng.randrange(3)

    @tool
    async def leak(context: ToolContext) -> str:
        """Be cancelled, and say it then."""

        def on_cancel() -> None:
            raise error

        context.cancel.on_cancel(on_cancel)
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends == 0:
                return said
            if ends == 1:
                raise error from None
            raise
        return ""

    async def act(_: Agent, stream: Any) -> None:
        await entered.wait()
        stream.cancel()

    await run.turn(None, leak, act=act)


async def _cancelled_in_the_middle(run: Run) -> None:
    run.told += 1
    secret = canary(0)
    cut = run.rng.randrange(8, len(secret))

    class Halting:
        name = model = "halting"

        async def stream(self, request: Any, options: Any = None) -> AsyncIterator[Any]:
            inner = ScriptedProvider([text(f"it is {secret}")], chunk_chars=1)
            async for piece in inner.stream(request, options):
                if len(piece.partial.text if piece.partial else "") > cut + 6:
                    waits.set()
                    await asyncio.Event().wait()
                yield piece

    waits = asyncio.Event()

    async def act(_: Agent, stream: Any) -> None:
        await waits.wait()
        stream.cancel()

    await run.turn(Halting(), act=act)
    for value in run.objects:
        run.seen += [("a cut answer", canary(0))] if secret[:8] in repr(value) else []


async def _too_slow(run: Run) -> None:
    said, error = run.say(), run.failing()
    raises, whole = run.rng.random() < 0.5, run.rng.random() < 0.5

    @tool(timeout_s=None if whole else 0.01)
    async def leak() -> str:
        """Be too slow, and say it when stopped."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise error from None
        return said

    await run.turn(None, leak, **({"turn_timeout_s": 0.02} if whole else {}))


async def _fenced(run: Run) -> None:
    error = run.failing()

    @tool
    async def leak() -> str:
        """Lose the context, and say it."""
        await run.stores.journal.clear(run.context_id, force=True)
        raise error

    await run.turn(None, leak)


async def _store_fails(run: Run) -> None:
    error = run.failing()
    where = run.rng.choice(("claim", "commit", "load"))
    armed, left = False, run.rng.choice((1, 99))  # once: the turn can still be closed
    spy = SpyStores(run.stores)

    def hook(name: str, _: Any) -> None:
        nonlocal left
        if armed and left and name == where:
            left -= 1
            raise error

    spy.hook = hook

    @tool
    async def leak() -> str:
        """Work."""
        return "fine"

    async def act(*_: Any) -> None:
        nonlocal armed
        armed = True
        for _round in range(40):  # as long as an agent may try again
            await asyncio.sleep(0)

    await run.turn(None, leak, act=act, stores=spy.stores)


async def _source_fails(run: Run) -> None:
    error = run.failing()

    class Source:
        broken = False

        async def list_tools(self) -> list[Any]:
            if self.broken:
                raise error
            return []

    source = Source()

    async def act(*_: Any) -> None:
        source.broken = True

    await run.turn(ScriptedProvider([text("hi")]), source, act=act)


async def _subscriber_raises(run: Run) -> None:
    error = run.failing()

    def fail(_: Any) -> None:
        raise error

    await run.turn(ScriptedProvider([text("hi")]), subscriber=fail)


async def _server_echoes(run: Run) -> None:
    by_hook = run.rng.random() < 0.5
    said = run.say(_HOOK if by_hook else _PROVIDER)
    status = run.rng.choice((400, 401, 403, 404, 413, 429, 500, 503))
    chunk = Answer(pieces=[event({"error": {"message": said, "code": said}})])
    page = Answer(pieces=[f"<html>{said}</html>".encode()], content_type="text/html")
    words = Answer(pieces=[said.encode()], status=status, content_type="text/plain")
    answer = run.rng.choice((refuses(status, said, code=said, param=said), chunk, page, words))
    async with FakeOpenAI(*[answer] * 4, says("late")) as server:
        provider = OpenAIProvider("m", api_key=canary(_PROVIDER), base_url=server.url)
        run.see("provider", (provider, repr(provider)))
        hooks = Hooks(get_api_key=lambda *_: canary(_HOOK)) if by_hook else Hooks()
        try:
            await run.turn(provider, hooks=hooks, auth=run.rng.random() < 0.5)
        finally:
            await provider.aclose()


_SCENES: dict[str, Callable[[Run], Awaitable[None]]] = {
    "a tool raises": _tool_raises,
    "a tool raises in a thread": _thread_raises,
    "a tool returns it": _tool_returns,
    "a long result is cut": _result_is_cut,
    "a tool reports it": _progress,
    "a tool saves it": _artifact,
    "a hook raises": _hook_raises,
    "the system prompt raises": _prompt_raises,
    "a tool says the key of the call": _hook_brings_key,
    "the model says it": _model_says,
    "the model fails": _model_fails,
    "the provider raises": _provider_raises,
    "cancelled in a tool": _cancelled,
    "cancelled in the middle of it": _cancelled_in_the_middle,
    "too slow": _too_slow,
    "fenced": _fenced,
    "a store fails": _store_fails,
    "a source of tools fails": _source_fails,
    "a subscriber raises": _subscriber_raises,
    "a server echoes its key": _server_echoes,
}


# --- trials --------------------------------------------------------------------------------------


def _url(kind: str, folder: Path) -> str:
    """Where the stores are; that of Postgres holds a password which is one of the secrets."""
    if kind == "sqlite":
        return new_sqlite(folder)
    admin = postgres("psycopg").replace("+psycopg", "")
    ask(admin, f"DO $$ BEGIN CREATE ROLE {GUARDED} LOGIN; EXCEPTION WHEN OTHERS THEN END $$")
    ask(admin, f"ALTER ROLE {GUARDED} PASSWORD '{canary(_URL)}'")
    ask(admin, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    url = postgres(kind)
    return url.replace("//postgres@", f"//{GUARDED}:{canary(_URL)}@")


def _stored(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Everything that the database has kept, by file or table."""
    if kind == "sqlite":
        for path in folder.iterdir():
            yield path.name, path.read_bytes().decode("latin-1")
        return
    admin = postgres("psycopg").replace("+psycopg", "")
    tables = ask(admin, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for (table,) in tables:
        for row in ask(admin, f'SELECT t::text FROM "{table}" t'):
            yield f"table {table}", str(row)


async def _wrong_urls(run: Run, url: str) -> None:
    """A store that cannot be opened, whose URL holds the password."""
    for wrong in (
        url.replace(canary(_URL), canary(_URL)[::-1]) if "@" in url else f"{url}?password=x",
        url.replace("/app?", "/none?"),
        f"postgresql://u:{canary(_URL)}@127.0.0.1:1/none?connect_timeout=1",
        f"postgresql://u:{canary(_URL)}@host:port/none",
        f"mysql://u:{canary(_URL)}@host/none",
    ):
        run.told += 1
        agent = Agent("ada", llm_provider=ScriptedProvider([text("hi")]), stores=wrong)
        run.seen.append(("agent", repr(agent)))
        try:
            await agent.start()
        except errors.LooopyError as error:
            # Not the locals: who opens stores has their URL in his hands.
            lines = "".join(traceback.format_exception(error))
            shown = f"{lines} {error!r} {vars(error)} {pickle.dumps(error)!r}"
            run.seen.append(("error of start()", shown.replace(canary(_URL)[::-1], canary(_URL))))
        finally:
            await agent.shutdown()


async def _runs(kind: str, count: int, seed: int, tally: Tally) -> None:
    names = list(_SCENES)
    with (
        tempfile.TemporaryDirectory() as folder,
        _listening() as (records, stderr),
    ):
        url = _url(kind, Path(folder))
        async with open_stores(url) as stores:
            for k in range(count):
                name = names[(seed + k) % len(names)]
                _live.clear()  # of the run before, which had the same secrets
                run = Run(stores, f"c-{seed}-{k}", random.Random(seed + k))
                await _SCENES[name](run)
                run.seen += [("the log", line) for line in records.lines]
                run.seen.append(("stderr", stderr.getvalue()))
                run.seen.append(("stores", repr(stores)))
                _count(tally, run, f"seed {seed + k}: {name}")
                records.lines.clear()
                stderr.truncate(0)
            run = Run(stores, "", random.Random(seed))
            if kind != "sqlite":
                await _wrong_urls(run, url)
                run.seen += [("the log", line) for line in records.lines]
                _count(tally, run, f"seed {seed}: stores that cannot be opened")
            kept = [sink for sink, shown in _stored(kind, Path(folder)) if leaked(shown)]
        kept += [sink for sink, shown in _stored(kind, Path(folder)) if leaked(shown)]
        tally.violations += [f"seed {seed}: a secret is in {sink}" for sink in sorted(set(kept))]


def _count(tally: Tally, run: Run, what: str) -> None:
    tally.runs += 1
    tally.missed += not run.told
    tally.violations += [f"{what}: a secret is in {sink}" for sink in run.found()]


def by_store(kind: str, count: int, seed: int) -> Tally:
    """Runs in this process, on SQLite or on Postgres with one of `DRIVERS`."""
    tally = Tally(f"secrets, {kind}")
    asyncio.run(_runs(kind, count, seed, tally))
    return tally


def _without_redactor(kind: str, count: int, seed: int) -> Tally:
    """The same where nothing is a secret."""
    kept = Redactor.add
    Redactor.add = lambda *_: None  # type: ignore[method-assign]  # broken on purpose
    try:
        return by_store(kind, count, seed)
    finally:
        Redactor.add = kept  # type: ignore[method-assign]  # and mended


def _hangs(log: Path) -> bool:
    return log.exists() and b"running\n" in log.read_bytes()


def _says_and_hangs(n: int, url: str) -> None:
    """Say secret *n* in an answer, a report and an error, on a stderr at DEBUG; then never end."""
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - as long as the process
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)

    @tool
    async def first(context: ToolContext) -> str:
        """Fail and say it."""
        context.report(canary(n))
        raise ValueError(canary(n))

    @tool(effects="idempotent")
    async def second() -> str:
        """Never end."""
        os.write(1, b"running\n")
        await asyncio.Event().wait()
        raise AssertionError("it ended")

    async def main() -> None:
        replies = [(text(f"I {canary(n)}"), tool_call("first"), tool_call("second"))]
        provider = ScriptedProvider(replies)
        async with Agent("ada", llm_provider=provider, tools=[first, second], stores=url) as agent:
            await agent.execute_turn("go", AuthContext("u1", credentials=credentials()))

    asyncio.run(main())


async def _recovered(url: str, n: int, run: Run) -> None:
    async with open_stores(url) as stores:
        run.stores = stores

        @tool(effects="idempotent")
        async def second() -> str:
            """Say it, now that there is another process."""
            run.told += 1
            return canary(n)

        provider = ScriptedProvider([text("done")])
        agent = Agent("ada", llm_provider=provider, tools=[second], stores=stores)
        agent.subscribe(partial(run.see, "event"))
        await agent.start()
        auth = AuthContext("u1", credentials=credentials())
        run.see("result", await agent.execute_turn(None, auth))
        for request in provider.requests:
            run.see("what the model was sent", request.messages)
        await agent.shutdown()


def killed(count: int, seed: int) -> Tally:
    """Runs whose process is killed in a tool, and which another goes on with."""
    tally = Tally("secrets in killed turns, sqlite")
    for k in range(count):
        n = (seed + k) % _URL
        with tempfile.TemporaryDirectory() as name, _listening() as (records, stderr):
            folder = Path(name)
            url, log = new_sqlite(folder), folder / "stderr"
            child = fork(partial(_says_and_hangs, n, url), log)
            died = wait(child, kill_after_s=0, once=partial(_hangs, log))
            run = Run(None, "ada", random.Random(seed + k))  # type: ignore[arg-type]  # opened later
            run.seen += [
                (f"{sink} of the dead", shown) for sink, shown in _stored("sqlite", folder)
            ]
            if died == -signal.SIGKILL:
                asyncio.run(_recovered(url, n, run))
            run.seen += _stored("sqlite", folder)
            run.seen += [("the log", line) for line in records.lines]
            run.seen.append(("stderr", stderr.getvalue()))
            _count(tally, run, f"seed {seed + k}: killed in a tool")
    return tally


TRIALS = [
    *(Trial(f"secrets, {k}", 400, partial(by_store, k)) for k in ("sqlite", "asyncpg", "psycopg")),
    Trial("secrets in killed turns, sqlite", 20, killed),
]

WRONG = [Trial("no redactor, sqlite", 40, partial(_without_redactor, "sqlite"))]
