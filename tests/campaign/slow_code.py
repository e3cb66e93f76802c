"""
Slow code of the application: a process is killed while it waits for that, once a tool has run.

Wherever a turn runs code that is not ours, it may wait for any time: a remote source lists its
tools, an approval's predicate looks something up, a hook asks a service. The tool that has run by
then must not run again, whatever its `on_resume` says, and the next process has its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.life import FileLedger
from tests.campaign.places import STORES, broken, lines_of, place, wrong
from tests.campaign.trial import Tally, Trial

from looopy import (
    Agent,
    Hooks,
    LoopConfig,
    Outcome,
    Plugin,
    ToolContext,
    ToolResultMessage,
    tool,
)
from looopy.loop.outgoing import Outgoing
from looopy.testing import ScriptedProvider, text, tool_call
from looopy.testing.children import fork, run, wait

_MOST_TURNS = 4  # that the next process needs at most: to go on, and to be answered


class Application:
    """
    An agent's application with slow code in one place.

    Args:
        where: One of `PLACES`.
        effect: Called with the idempotency key of each call of a tool that has an effect.
        wait: Awaited in that place each time it is reached, or
        block: called there, if it cannot wait.
    """

    def __init__(
        self,
        where: str,
        effect: Callable[[str], object],
        wait: Callable[[], Awaitable[object]],
        block: Callable[[], object],
    ) -> None:
        @tool(effects="external", on_resume="rerun")
        async def pay(context: ToolContext) -> str:
            """Have an effect."""
            effect(context.idempotency_key)
            return "paid"

        @tool(effects="none")
        async def look() -> str:
            """Have none."""
            return "seen"

        self._calls: tuple[Any, ...] = (tool_call("pay"),)
        self._wait, self._block = wait, block
        self._pay, self._look = pay, look
        self.tools: list[Any] = [pay, look]
        self.options: dict[str, Any] = {}
        self._hooks: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self._streams_slowly = False
        PLACES[where](self)

    def agent(self, stores: Any, context_id: str = "ada") -> Agent:
        """An agent of this application."""
        provider = _Provider(self._wait if self._streams_slowly else None, self._calls)
        config = LoopConfig(hooks=Hooks(**self._hooks), **self._config)
        return Agent(
            context_id,
            llm_provider=provider,
            tools=self.tools,
            stores=stores,
            loop_config=config,
            **self.options,
        )

    # --- sources of tools ---

    def _source(self) -> Any:
        wait, look = self._wait, self._look

        class Remote:
            async def list_tools(self) -> list[Any]:
                await wait()
                return [look]

        return Remote()

    def list_tools(self) -> None:
        """A source that waits for a server."""
        self.tools = [self._pay, self._source()]

    def list_for(self) -> None:
        """A source that waits for a server, asked with the turn."""
        wait, look = self._wait, self._look

        class Remote:
            async def list_tools(self) -> list[Any]:
                return [look]

            async def list_for(self, _turn: Any, _warn: Any) -> list[Any]:
                await wait()
                return [look]

        self.tools = [self._pay, Remote()]

    def list_tools_at_once(self) -> None:
        """A source that holds the process up."""
        block, look = self._block, self._look

        class Local:
            def list_tools(self) -> list[Any]:
                block()
                return [look]

        self.tools = [self._pay, Local()]

    def in_a_plugin(self) -> None:
        """A source of a plugin."""
        self.tools = [self._pay, Plugin("remote", tools=[self._source()])]

    def is_enabled(self) -> None:
        """The switch of a tool."""
        self._look.is_enabled = self._said
        self.tools = [self._pay, self._look]

    def is_enabled_of_a_plugin(self) -> None:
        """The switch of a plugin."""
        self.tools = [self._pay, Plugin("local", tools=[self._look], is_enabled=self._said)]

    def _said(self, _turn: Any) -> bool:
        self._block()
        return True

    # --- before the next call ---

    def needs_approval(self) -> None:
        """The predicate of the next call."""

        async def judge(_arguments: Any, _context: Any) -> bool:
            await self._wait()
            return False

        self._look.needs_approval = judge
        self._calls = (tool_call("pay"), tool_call("look"))

    def before_tool_call(self) -> None:
        """The hook of the next call, which may need an approval."""
        self._look.needs_approval = lambda _arguments, _context: False
        self._calls = (tool_call("pay"), tool_call("look"))
        self._hooks["before_tool_call"] = self._before_look

    async def _before_look(self, call: Any, _context: Any) -> None:
        if call.name == "look":
            await self._wait()

    def before_a_doubted_call(self) -> None:
        """The hook of the next call, about which a person is asked because it goes in circles."""
        asked = []

        async def before(call: Any, _context: Any) -> None:
            asked.append(call.id)
            if len(asked) == len(self._calls):
                await self._wait()

        self._calls = (tool_call("pay"),) * 3
        self._config["on_doom_loop"] = "ask"
        self._hooks["before_tool_call"] = before

    # --- before the model is asked again ---

    def system_prompt(self) -> None:
        """A function that makes the prompt."""
        self.options["system_prompt"] = self._prompt

    def prompt_of_a_plugin(self) -> None:
        """A part of the prompt that a plugin brings."""
        self.tools = [self._pay, Plugin("words", prompts=[self._prompt])]

    async def _prompt(self, _turn: Any) -> str:
        await self._wait()
        return "Be kind."

    def transform_context(self) -> None:
        """The hook that sees the history."""
        self._hooks["transform_context"] = self._same

    def convert_to_llm(self) -> None:
        """The hook that sees what is sent."""
        self._hooks["convert_to_llm"] = self._same

    async def _same(self, messages: Any) -> Any:
        await self._wait()
        return messages

    def get_api_key(self) -> None:
        """The hook that is asked for a key."""

        async def key(_provider: str, _auth: Any) -> str:
            await self._wait()
            return "a key of no use"

        self._hooks["get_api_key"] = key

    def stream(self) -> None:
        """The provider's own code."""
        self._streams_slowly = True


PLACES: dict[str, Callable[[Application], None]] = {
    name: getattr(Application, name)
    for name in (
        "list_tools",
        "list_for",
        "list_tools_at_once",
        "in_a_plugin",
        "is_enabled",
        "is_enabled_of_a_plugin",
        "needs_approval",
        "before_tool_call",
        "before_a_doubted_call",
        "system_prompt",
        "prompt_of_a_plugin",
        "transform_context",
        "convert_to_llm",
        "get_api_key",
        "stream",
    )
}
"""Where a turn awaits code of the application."""


class _Provider(ScriptedProvider):
    """Asks for the calls until they are answered, then says so."""

    def __init__(
        self, wait: Callable[[], Awaitable[object]] | None, calls: tuple[Any, ...]
    ) -> None:
        super().__init__(self._reply)
        self._wait, self._wanted = wait, calls

    def _reply(self, request: Any) -> Any:
        done = any(isinstance(m, ToolResultMessage) for m in request.messages)
        return text("done") if done else self._wanted

    async def stream(self, request: Any, options: Any) -> Any:
        if self._wait is not None:
            await self._wait()
        async for event in super().stream(request, options):
            yield event


async def _until_killed(url: str, context_id: str, where: str, path: Path) -> None:
    """Run a turn that hangs in that place once the tool has run."""
    ledger, paid = FileLedger(path), []

    def effect(key: str) -> None:
        ledger.write("effect", key=key)
        paid.append(key)

    async def hang() -> None:
        if paid:
            ledger.write("waiting")
            await asyncio.Event().wait()

    def block() -> None:
        if paid:
            ledger.write("waiting")
            time.sleep(3600)

    agent = Application(where, effect, hang, block).agent(url, context_id)
    await agent.start()
    await agent.execute_turn("go")


async def _go_on(url: str, context_id: str, where: str, path: Path) -> None:
    """Go on in the next process, where that code is quick."""
    ledger = FileLedger(path)
    quick = partial(asyncio.sleep, 0)
    application = Application(
        where, lambda key: ledger.write("effect", key=key), quick, lambda: None
    )
    async with application.agent(url, context_id) as agent:
        outcome = None
        for _ in range(_MOST_TURNS):
            if outcome is Outcome.COMPLETED:
                break
            inputs = {one.request_id: True for one in agent.state.pending}
            outcome = (await agent.execute_turn(None, inputs=inputs)).outcome
        results = [
            one.text
            for one in await agent.get_messages()
            if isinstance(one, ToolResultMessage) and one.tool_name == "pay"
        ]
    ledger.write("over", outcome=outcome, results=results)


def kill_in(url: str, context_id: str, where: str, folder: Path) -> list[str]:
    """Kill a process that waits in that place, go on in another one, and say what is wrong."""
    path, log = folder / "ledger", folder / "log"
    status = wait(
        fork(lambda: asyncio.run(_until_killed(url, context_id, where, path)), log),
        kill_after_s=0,
        once=lambda: any(line["kind"] == "waiting" for line in lines_of(path)),
    )
    if status != -signal.SIGKILL:
        return [f"{where}: it never came there ({status}): {log.read_text()[-800:]}"]
    try:
        run(lambda: asyncio.run(_go_on(url, context_id, where, path)), log)
    except (RuntimeError, TimeoutError) as error:
        return [f"{where}: the next process failed: {str(error)[-800:]}"]
    lines = lines_of(path)
    effects = Counter(line["key"] for line in lines if line["kind"] == "effect")
    problems = [f"{where}: {key} ran {n} times" for key, n in effects.items() if n != 1]
    over = lines[-1]
    if over["outcome"] != Outcome.COMPLETED or set(over["results"]) != {"paid"}:
        problems.append(f"{where}: it went on to {over}")
    return problems


def _trial(store: str, full: int) -> Trial:
    name = f"slow code, {store}"

    def body(count: int, seed: int) -> Tally:
        tally, names = Tally(name), list(PLACES)
        with place(store) as url:
            for number in range(seed, seed + count):
                with tempfile.TemporaryDirectory(prefix="looopy-slow-code-") as folder:
                    where = names[number % len(names)]
                    problems = kill_in(url, f"slow-{number}", where, Path(folder))
                tally.runs += 1
                tally.violations += [f"seed {number}: {problem}" for problem in problems]
        return tally

    return Trial(name, full, body)


def without_saving_first() -> contextlib.AbstractContextManager[None]:
    """Ask for tools and for approvals while the result of the last tool waits."""
    return broken(Outgoing, "unsaved", lambda _: property(lambda _: False, lambda _, __: None))


TRIALS = [_trial(store, 150) for store in STORES]
WRONG = [wrong(TRIALS[0], "results wait", without_saving_first)]
