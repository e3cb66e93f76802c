"""
`looopy chat`: a conversation in a terminal that continues after any interruption.

It is the blocking `looopy.sync.Agent` with a prompt. While a turn runs, Ctrl-C only asks to cancel
it, so the turn ends in order, its last events are shown, and the prompt returns. With `--message`
it asks no questions, and the exit status reports the outcome.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from looopy.cli.approvals import ask_about, is_over
from looopy.cli.builtin_tools import BUILTIN_TOOLS, SYSTEM_PROMPT
from looopy.cli.conversations.database import exists
from looopy.cli.conversations.opening import is_server
from looopy.cli.data_folder import default_url, make_data_folder, shown_place
from looopy.cli.options import DEFAULT_CONTEXT
from looopy.cli.parent_watch import end_with_parent
from looopy.cli.render import PROMPT, JsonRenderer, Renderer, TextRenderer, show_history
from looopy.cli.slash_commands import Stored, Switch, command_in, run_command
from looopy.cli.terminal import Terminal, edit_lines, one_line
from looopy.errors import CannotContinue, ConfigurationError, LooopyError, ValueRefused
from looopy.stores.opening import open_stores
from looopy.stores.owner import provably_alive
from looopy.sync import Agent
from looopy.types.approval import Approve, Deny
from looopy.types.config import LoopConfig
from looopy.types.event import TurnEnd
from looopy.types.message import Message
from looopy.types.state import AgentStatus, Outcome, PendingKind

_LOCAL_HISTORY_TOKENS = 2_400  # the embedded model's window also has to hold tools and the answer
_PAST_MESSAGES = 20
_LEFT_WITHIN_S = 2 * LoopConfig().lease_ttl_s  # its rest, then half of one: see agent/lease.py
_LOOK_S = 2.0


def chat(
    *,
    context_id: str | None,
    url: str | None,
    token: str | None,
    model: str | None,
    messages: Sequence[str],
    as_json: bool,
    agreed: bool,
    tools: bool,
    go_on: bool,
) -> int:
    """
    Hold a conversation.

    Args:
        url: The database, or `None` for the one in the data folder.
        messages: The messages to send, a turn each; empty for a prompt. `-` is standard input.
        as_json: One event a line on standard output, and nothing else.
        agreed: True to download without asking.
        go_on: Continue an interrupted turn without asking.

    Returns:
        The exit status: 0, or 1 if a turn did not complete (for a person at a terminal always 0).

    Raises:
        LooopyError: The conversation could not begin, or a message cannot be stored.
    """
    if is_server(url):
        from looopy.cli import server_chat

        return server_chat.chat(
            context_id=context_id,
            url=str(url),
            token=token,
            model=model,
            messages=messages,
            as_json=as_json,
            tools=tools,
            go_on=go_on,
        )
    messages = [sys.stdin.read().removesuffix("\n") if m == "-" else m for m in messages]
    terminal = Terminal(quiet_out=as_json or bool(messages))
    if terminal.has_person:
        end_with_parent()
    context_id = context_id or DEFAULT_CONTEXT
    model, reason = _choose_model(model)
    place = url or default_url()
    local = model.partition("/")[0] == "local"

    def make_agent(name: str) -> Agent:
        return Agent(
            name,
            llm_provider=model,
            tools=BUILTIN_TOOLS if tools else (),
            system_prompt=SYSTEM_PROMPT,
            stores=place,
            loop_config=LoopConfig(history_tokens=_LOCAL_HISTORY_TOKENS if local else "auto"),
        )

    agent = make_agent(context_id)
    terminal.notice(f"Model: {model}. {reason}")
    if local:
        _fetch_weights(model, terminal, agreed=agreed)
    terminal.notice(f"Database: {shown_place(place)}")
    terminal.notice(f"Conversation: {context_id}")
    if url is None:
        make_data_folder()
    renderer = (JsonRenderer if as_json else TextRenderer)(terminal)
    conversation = Conversation(agent, place, terminal, renderer)
    if messages:
        with _started(agent, terminal):
            return conversation.recite(messages, go_on=go_on)
    while True:
        past = asyncio.run(read_past(place, agent.context_id, _PAST_MESSAGES + 1))
        if past.messages and not as_json:
            terminal.line()
            earlier = len(past.messages) > _PAST_MESSAGES
            show_history(terminal, past.messages[-_PAST_MESSAGES:], earlier=earlier)
            terminal.line()
        with _started(agent, terminal):
            then = conversation.converse(failure=past.failure, go_on=go_on)
        if not isinstance(then, Switch):
            return then
        agent, go_on = make_agent(then.context_id), False
        terminal.notice(f"Conversation: {agent.context_id}")
        conversation = conversation.in_place_of(agent)


@dataclass(frozen=True, slots=True)
class Past:
    """The newest messages of a context, oldest first, and why its last turn failed, if it did."""

    messages: Sequence[Message] = ()
    failure: str | None = None


async def read_past(url: str, context_id: str, limit: int) -> Past:
    """The newest messages, at most *limit*; makes no database."""
    if not exists(url):
        return Past()
    async with open_stores(url) as stores:
        record = await stores.state.load(context_id)
        if record is None:
            return Past()
        recent = await stores.messages.recent(context_id, limit=limit)
        failure = record.state.error[1] if record.state.error is not None else None
        return Past([r.message for r in recent], failure)


async def owner_is_seen(url: str, context_id: str) -> bool:
    """True if the owner of a context is seen to run on this host."""
    async with open_stores(url) as stores:
        record = await stores.state.load(context_id)
        return record is not None and record.holder is not None and provably_alive(record.holder)


def _choose_model(named: str | None) -> tuple[str, str]:
    """The model to use, and why; an unusable one is refused before anything is shown."""
    from looopy.llm.resolve import pick_default, resolve_provider

    model, reason = (named, "--model names it.") if named is not None else pick_default(os.environ)
    resolve_provider(model)
    return model, reason


def _started(agent: Agent, terminal: Terminal) -> Agent:
    with terminal.working("starting"):
        agent.start()
    return agent


def _fetch_weights(model: str, terminal: Terminal, *, agreed: bool) -> None:
    """
    Have the embedded model's weights here, before anything else begins.

    In the main thread, where a question can be answered and Ctrl-C stops the download.
    """
    from importlib.util import find_spec

    from looopy.llm.local import catalogue, fetch, is_cached
    from looopy.llm.local.processor import check_processor

    name = model.partition("/")[2] or "default"
    known = next((one for one in catalogue() if name in (one.name, "default")), None)
    if known is None or find_spec("xllamacpp") is None:
        return  # a file, or not installed: the provider deals with it
    if not is_cached(known):
        check_processor()
        fetch(known, (lambda _: True) if agreed else None)  # says what the model is
    else:
        terminal.notice(f"{known.title}, {known.note}. It starts in some seconds.")


class Conversation:
    """
    Turns of one started agent, one after the other, as a person or a script wants them.

    Args:
        place: The URL of the database.
    """

    def __init__(self, agent: Agent, place: str, terminal: Terminal, renderer: Renderer) -> None:
        self._agent = agent
        self._place = place
        self._terminal = terminal
        self._renderer = renderer
        self._all_completed = True
        self._follows = False  # the person came from another conversation

    def in_place_of(self, agent: Agent) -> Conversation:
        """The next conversation of the same person, with *agent*."""
        following = Conversation(agent, self._place, self._terminal, self._renderer)
        following._all_completed = self._all_completed
        following._follows = True
        return following

    def recite(self, messages: Sequence[str], *, go_on: bool) -> int:
        """
        Send *messages*, a turn each, until one does not complete; ask no questions.

        Raises:
            ValueRefused: A message cannot be stored.
        """
        self._wait_if_busy(may_be_left=go_on)
        if go_on and not self._go_on():
            return 1
        return 0 if all(self._turn(message) for message in messages) else 1

    def converse(self, *, failure: str | None, go_on: bool) -> int | Switch:
        """
        Ask for messages until there are no more, or until the person goes elsewhere.

        Args:
            failure: Why the last turn failed, if it did.
            go_on: Continue what stopped without asking.
        """
        terminal = self._terminal
        if terminal.has_person and not self._follows:
            edit_lines()
            terminal.notice("Ctrl-C cancels an answer, Ctrl-D leaves, /help says more.")
        self._wait_if_busy(may_be_left=True)
        said = None
        if go_on:
            self._go_on()
        else:
            said = self._offer_to_go_on(failure)
        self._ask_for_approvals()
        interrupted = False
        while True:
            try:
                if interrupted:
                    terminal.notice("(Ctrl-D leaves)")
                    interrupted = False
                said = said if said is not None else terminal.read_message(PROMPT)
                if said is None:
                    return self._status()
                if command := command_in(said, by_hand=terminal.has_person):
                    then = run_command(command, Stored(self._agent, self._place), terminal)
                    if then is not None:
                        return then if isinstance(then, Switch) else self._status()
                elif said.strip():
                    self._try(said)
                    self._ask_for_approvals()
            except KeyboardInterrupt:
                if not terminal.has_person:
                    raise
                interrupted = True
            said = None

    def _status(self) -> int:
        return 0 if self._terminal.has_person or self._all_completed else 1

    # --- what an earlier process left --------------------------------------------------------

    def _wait_if_busy(self, *, may_be_left: bool) -> None:
        """
        Say that a turn runs elsewhere.

        Its process may be gone where this one cannot see it: in another container, or off Linux.
        Then only its lease tells, so with *may_be_left* this waits until a living owner would have
        renewed it. Ctrl-C ends the waiting.
        """
        agent, terminal = self._agent, self._terminal
        if agent.state.status is not AgentStatus.BUSY:
            return
        terminal.notice(
            f"Turn {agent.state.turn_count} of this conversation runs in another process; wait"
            " until it ends."
        )
        if not may_be_left or asyncio.run(owner_is_seen(self._place, agent.context_id)):
            return
        terminal.notice("If that process is gone, the turn can soon be continued.")
        ends = time.monotonic() + _LEFT_WITHIN_S
        try:
            while agent.state.status is AgentStatus.BUSY and (left := ends - time.monotonic()) > 0:
                terminal.notice(f"{left:.0f} seconds ...")
                time.sleep(min(left, _LOOK_S))
                agent.refresh()
        except KeyboardInterrupt:
            terminal.notice("(not waiting any longer)")

    def _go_on(self) -> bool:
        """Continue what stopped; true also when there is nothing to continue."""
        state = self._agent.state
        if state.interrupted_turn is None:
            if not state.pending:
                self._terminal.notice("There is no interrupted turn to continue.")
                return True
            self._terminal.error("a tool call waits for approval: answer it in a terminal first")
            return False
        return self._try(None)

    def _offer_to_go_on(self, failure: str | None) -> str | None:
        """Ask whether to continue; what is neither yes nor no is the next thing to say."""
        turn = self._agent.state.interrupted_turn
        if turn is None or self._agent.state.pending:
            return None
        what = "was interrupted." if failure is None else f"failed: {one_line(failure, 300)}"
        if (wait := self._agent.state.waits_for) is not None:
            what = f"waits: {one_line(wait, 500)}"
        if self._agent.state.needs_auth:
            what = "waits for credentials."
        self._terminal.notice(f"Turn {turn} {what}")
        try:
            answer = self._terminal.read_line("Continue it? [Y/n] ")
        except KeyboardInterrupt:
            return None
        if answer is None or answer.strip().lower() in ("n", "no"):
            return None
        if answer.strip().lower() not in ("", "y", "yes"):
            return answer
        self._try(None)
        return None

    def _ask_for_approvals(self) -> None:
        """Ask about each call that waits for it; an unanswered one keeps waiting."""
        inputs: dict[str, Approve | Deny] = {}
        expired = False
        for request in self._agent.state.pending:
            if request.kind is PendingKind.APPROVAL and is_over(request):
                self._terminal.notice(f"Nobody allowed {request.tool_name} in time.")
                expired = True  # the turn tells the model
                continue
            decision = ask_about(self._terminal, request)
            if decision is None:
                self._terminal.notice("It keeps waiting; any other message drops it.")
                break
            inputs[request.request_id] = decision
        if inputs or expired:
            self._try(None, inputs)

    # --- a turn ------------------------------------------------------------------------------

    def _try(self, text: str | None, inputs: Mapping[str, Any] | None = None) -> bool:
        """A turn whose failure to begin is shown and leaves the prompt."""
        try:
            return self._turn(text, inputs)
        except (ValueRefused, ConfigurationError) as error:
            self._terminal.error(str(error))
            self._all_completed = False
            return False

    def _turn(self, text: str | None, inputs: Mapping[str, Any] | None = None) -> bool:
        """Run a turn and show it; whether it completed."""
        outcome = None
        try:
            with self._terminal.working("working"), _interrupts_cancel(self._agent) as check:
                events = self._agent.stream_turn(text, inputs=inputs)
                check()
                for event in events:
                    self._renderer.show(event)
                    if isinstance(event, TurnEnd):
                        outcome = event.outcome
        except (ValueRefused, ConfigurationError):
            raise
        except CannotContinue as error:
            self._terminal.notice(str(error))
            return True
        except LooopyError as error:
            self._terminal.error(str(error))
        completed = outcome is Outcome.COMPLETED
        self._all_completed = self._all_completed and completed
        return completed


@contextmanager
def _interrupts_cancel(agent: Agent) -> Iterator[Callable[[], None]]:
    """
    Let Ctrl-C cancel the turn: a thread asks the agent, which may take a moment.

    Call the function that this yields once the turn has begun: the key may have come before it.
    """
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        pressed = True
        threading.Thread(target=agent.cancel, daemon=True).start()

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: agent.cancel() if pressed else None
    finally:
        signal.signal(signal.SIGINT, before)
