"""
The embedded model as a provider like every other.

The child process speaks the same wire format as hosted models, so the call itself, its streaming,
its errors and its cancelling are `OpenAIProvider`'s. This module adds the steps before and after:
weights and a living child, a prompt in the form that small models understand, and an answer in JSON
that becomes text or a tool call again.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from looopy.errors import (
    ConfigurationError,
    LLMError,
    LLMUnavailable,
    LooopyError,
)
from looopy.llm.accumulate import Accumulator
from looopy.llm.documents import warn_of_citations, without_files
from looopy.llm.local.call import Call
from looopy.llm.local.catalogue import DEFAULT, Download, LocalModel, find_model, is_cached
from looopy.llm.local.child import (
    Child,
    ChildConfig,
    SharedChild,
    acquire,
    in_thread,
    missing_runtime,
    release,
)
from looopy.llm.local.processor import check_processor, physical_cores
from looopy.llm.local.progress import Progress
from looopy.llm.local.protocol import build_prompt, check_strict
from looopy.llm.local.weights import fetch
from looopy.llm.logprobs import wanted
from looopy.llm.options import left_out, refused
from looopy.types.constructors import suggesting
from looopy.types.message import NO_COST, Usage
from looopy.types.request import LLMRequest, StreamEvent, StreamOptions, ThinkingLevel

if TYPE_CHECKING:
    from looopy.llm.openai.provider import OpenAIProvider

Consent: TypeAlias = Callable[[Download], bool]

_IDLE_TIMEOUT_S = 600  # a full window takes minutes to read on a slow computer
_DEATH_S = 1.0  # a child ends right after its last byte


def _free(usage: Usage, at_ms: int = 0) -> Usage:  # noqa: ARG001 - at any time
    """A model on this machine costs nothing."""
    return replace(usage, cost=NO_COST)


@suggesting
class LocalProvider:
    """
    A small language model in a child process on this computer: no key, no server, no network.

    Good for short chats and simple, single tool calls in English, and for trying things out. It
    makes mistakes that hosted models do not; require approval for every tool whose effects matter.

    Args:
        model: A name from `catalogue()`, `"default"`, or the path of a `.gguf` file.
        n_ctx: The window in tokens; more takes more memory.
        threads: How many; by default one for each core while reading, and one less while writing.
        consent: Called before anything is downloaded, in a thread of its own; by default a question
            on the terminal, which `LOOOPY_YES=1` answers beforehand.
        progress: Shows the download; by default on the standard error stream.

    Raises:
        UnknownModel: *model* is neither in the catalogue nor a path.
    """

    name = "local"
    knows_cost = True
    structured_output = True  # its grammar

    def __init__(
        self,
        model: str | Path = DEFAULT,
        *,
        n_ctx: int = 4096,
        threads: int | None = None,
        consent: Consent | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._known: LocalModel | None = None
        if _is_path(model):
            self._path = Path(model).expanduser().absolute()
            self.model = self._path.stem
        else:
            self._known = find_model(str(model))
            self._path = self._known.path
            self.model = self._known.name
        self.n_ctx = self.window_tokens = n_ctx
        self._threads = threads
        self._consent = consent
        self._progress = progress
        self._shared: SharedChild | None = None
        self._let_go: weakref.finalize[..., LocalProvider] | None = None
        self._known_caller: tuple[Child, OpenAIProvider] | None = None

    def cost_of(self, usage: Usage, model: str = "") -> Usage:  # noqa: ARG002 - there is one
        """*usage*, which is free."""
        return _free(usage)

    async def prepare(self) -> None:
        """
        Make the model ready to answer: fetch its weights if they are missing, start the child, and
        load the client.

        Every call does this by itself; doing it first shows problems early.

        Raises:
            ConfigurationError: Something is missing: the message names it and the remedy.
            LLMUnavailable: The child ended while it started.
        """
        child, address = await self._serving()
        await self._caller(child, address).prepare()

    async def stream(
        self, request: LLMRequest, options: StreamOptions
    ) -> AsyncIterator[StreamEvent]:
        """Make one model call and yield its events; see `LLMProvider`."""
        answer = Accumulator(
            api="openai-completions", provider=self.name, model=self.model, price=_free
        )
        answer.logprobs = wanted(options)
        try:
            self._check(request, options)
            warn_of_citations(options, request.messages, f"{self.name}/{self.model}")
            messages = without_files(
                request.messages, provider=self.name, model=self.model, images=False
            )
            request = replace(request, messages=messages)
            check_strict(request, provider=self.name, model=self.model)
            child, address = await self._serving()
        except LooopyError as error:
            for event in (*answer.start(), *answer.error(self._as_llm_error(error))):
                yield event
            return
        caller = self._caller(child, address)
        for loose in (False, True):
            if loose and any(tool.strict for tool in request.tools):
                left_out(options, "strict_tools", "no grammar can be made of the tools' schemas")
            call = Call(answer, build_prompt(request, options, loose=loose), options)
            async with aclosing(call.events(caller)) as events:
                async for event in events:
                    yield await self._explained(event, answer, child)
            if answer.finished:
                return

    async def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """
        Count the tokens of each text with the model's own tokenizer, in the child.

        Raises:
            LLMUnavailable: The child does not serve yet; `prepare` starts it.
            Exception: The child did not answer.
        """
        if self._shared is None:
            raise LLMUnavailable("the local model has not been prepared", provider=self.name)
        child, address = await self._serving()
        caller = self._caller(child, address)
        counted: list[int] = []
        for text in texts:
            answer = await caller.post(f"{address}/tokenize", {"content": text})
            counted.append(len(answer["tokens"]))
        return counted

    async def aclose(self) -> None:
        """Release the child, which ends with its last user. The next use starts it again."""
        known, self._known_caller = self._known_caller, None
        if known is not None:
            await known[1].aclose()
        if self._let_go is not None:
            child = self._let_go()
            self._let_go = self._shared = None
            if child is not None:
                await child.ended()

    async def _serving(self) -> tuple[Child, str]:
        if self._shared is None:
            _check_installed()
            await self._have_weights()
            cores = physical_cores()
            config = ChildConfig(
                path=self._path,
                name=self.model,
                n_ctx=self.n_ctx,
                # Each token waits for the slowest thread, so a core that another process uses
                # costs more than it brings: one is left to the others.
                threads=self._threads or max(1, cores - 1),
                prompt_threads=self._threads or cores,
            )
            if self._shared is None:  # another task may have come this far while we waited
                self._shared = acquire(config)
                self._let_go = weakref.finalize(self, release, self._shared)
        child = self._shared.living()
        return child, await child.address()

    async def _have_weights(self) -> None:
        if self._known is None:
            _check_gguf(self._path)
            return
        check_processor()
        name = self._known.name
        if is_cached(name):
            return
        stop = threading.Event()
        try:
            await in_thread(lambda: fetch(name, self._consent, self._progress, stop=stop))
        finally:
            stop.set()  # when we are cancelled, so is the download

    def _check(self, request: LLMRequest, options: StreamOptions) -> None:
        """Refuse another model, and warn of the options that do not go to the child."""
        if request.model not in ("", self.model):
            why = f"the embedded model is {self.model!r}: name another one by 'local/...'"
            raise refused("model", why, provider=self.name, model=self.model)
        if options.thinking_level not in (None, ThinkingLevel.OFF):
            left_out(options, "thinking_level", f"{self.name}/{self.model} does not think")
        if options.headers:
            left_out(options, "headers", f"{self.name}/{self.model} is sent no headers")

    def _caller(self, child: Child, address: str) -> OpenAIProvider:
        """The client for *child*, kept for its connections."""
        known = self._known_caller
        if known is not None and known[0] is child:
            return known[1]
        from looopy.llm.openai.provider import OpenAIProvider

        caller = OpenAIProvider(
            self.model,
            base_url=f"{address}/v1",
            api_key=child.key,
            name=self.name,
            idle_timeout_s=_IDLE_TIMEOUT_S,
        )
        # The client of a child that died has no connections left to close.
        self._known_caller = (child, caller)
        return caller

    async def _explained(
        self, event: StreamEvent, answer: Accumulator, child: Child
    ) -> StreamEvent:
        """Report it when an error means that the child died."""
        if event.type != "error" or not isinstance(event.error, LLMUnavailable):
            return event
        code = await child.exit_code_within(_DEATH_S)
        if code is None:
            return event
        error = LLMUnavailable(
            f"the local model's process ended in the middle of a call (exit code {code}); the "
            "next call starts it again",
            provider=self.name,
            model=self.model,
            retryable=True,
        )
        error.__cause__ = event.error
        return answer.error(error)[-1]

    def _as_llm_error(self, error: LooopyError) -> LLMError:
        if isinstance(error, LLMError):
            return error
        wrapped = LLMError(str(error), provider=self.name, model=self.model, retryable=False)
        wrapped.__cause__ = error
        return wrapped

    def __repr__(self) -> str:
        return f"<LocalProvider {self.model}>"


def _is_path(model: str | Path) -> bool:
    return isinstance(model, Path) or model.endswith(".gguf") or "/" in model or "\\" in model


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigurationError(f"the local model's file cannot be read: {error}") from error
    if magic != b"GGUF":
        raise ConfigurationError(f"{str(path)!r} is not a GGUF file: the local model needs one")


def _check_installed() -> None:
    if not sys.executable:
        raise ConfigurationError(
            "the local model needs a Python interpreter to start (sys.executable is empty)"
        )
    if any(importlib.util.find_spec(name) is None for name in ("openai", "xllamacpp")):
        raise missing_runtime()
