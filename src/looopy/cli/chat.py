"""
`looopy chat`: a conversation in a terminal that continues after any interruption.

The conversation is in a database, where agents of this process run its turns, or on a server; any
number of terminals show it. All that happens comes as events, also the own turns: so a turn of
another terminal or of a page is shown as it runs, and a question that another user answers is
closed here. If the server is killed, the chat waits until it is back, resumes after the last event,
and continues its own turn. While a turn runs, Ctrl-C only asks to cancel it, so the turn ends in
order. With `--message` the chat asks no questions, and the exit status reports the outcome.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from looopy.agent.agent import Agent
from looopy.cli.approvals import ask_about, is_over
from looopy.cli.builtin_tools import BUILTIN_TOOLS, SYSTEM_PROMPT
from looopy.cli.conversations.background import Away, Background, News, show_away
from looopy.cli.conversations.base import LiveConversations
from looopy.cli.conversations.database import AgentConversations
from looopy.cli.conversations.opening import is_server
from looopy.cli.data_folder import default_url, make_data_folder, shown_place
from looopy.cli.event_view import View
from looopy.cli.options import DEFAULT_CONTEXT
from looopy.cli.parent_watch import end_with_parent
from looopy.cli.render import PROMPT, show_history
from looopy.cli.slash_commands import Others, Switch, command_in, run_command
from looopy.cli.terminal import NewsCame, Terminal, edit_lines, one_line
from looopy.errors import (
    AgentBusy,
    CannotContinue,
    ConfigurationError,
    ContextNotFound,
    InputNotFound,
    LooopyError,
    ValueRefused,
)
from looopy.stores.bundle import Stores
from looopy.stores.rows.events import pending_from_json
from looopy.stores.rules import check_context_id
from looopy.types.config import LoopConfig
from looopy.types.event import TurnEnd, TurnStart
from looopy.types.message_json import message_from_json
from looopy.types.state import Outcome, PendingKind

if TYPE_CHECKING:
    from looopy.server.models import Context, PlacedMessage

T = TypeVar("T")
_LOCAL_HISTORY_TOKENS: Final = 2_400  # the embedded model's window also has to hold the rest
_PAST_MESSAGES: Final = 20
_PAGES: Final = 5  # of the newest conversations, in which one without a name is looked for
_CONTINUES: Final = 3  # how often in a row an own turn is continued without a question


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
        context_id: `None`: the default one; on a server the newest of the person's own whose name
            begins with it.
        url: The database or the server; `None`: the database in the data folder.
        token: For a server; `None`: the one of the environment.
        messages: The messages to send, a turn each; empty for a prompt. `-` is standard input.
        as_json: One event a line on standard output, and nothing else.
        agreed: True to download a model without a question.
        tools: Offer the model harmless tools.
        go_on: Continue an interrupted or failed turn without a question.

    Returns:
        The exit status: 0, or 1 if a turn did not complete (for a person at a terminal always 0).

    Raises:
        LooopyError: The conversation could not begin, or a message cannot be stored.
    """
    if context_id is not None:
        check_context_id(context_id)
    if is_server(url) and (model is not None or not tools):
        raise ConfigurationError("--model and --no-tools are not for a server: it has its agents")
    messages = [sys.stdin.read().removesuffix("\n") if m == "-" else m for m in messages]
    terminal = Terminal(quiet_out=as_json or bool(messages))
    if terminal.has_person:
        end_with_parent()
    with Background() as background:
        place: LiveConversations
        if is_server(url):
            place = _on_server(background, str(url), token, terminal)
            context_id = context_id or background.start(_own_default(place)).result()
        else:
            place = _in_database(background, url, terminal, model, agreed=agreed, tools=tools)
        try:
            with terminal.interrupted_by(background.bell):
                return _hold(
                    *(background, place, terminal, context_id or DEFAULT_CONTEXT, messages),
                    as_json=as_json,
                    go_on=go_on,
                )
        finally:
            background.leave()
            background.start(place.aclose()).result()


def _on_server(
    background: Background, url: str, token: str | None, terminal: Terminal
) -> LiveConversations:
    from looopy.cli.conversations.server import FIRST_S, connect

    client = connect(
        url, token, terminal, patience_s=FIRST_S, on_away=lambda e: background.put(Away(e))
    )
    try:
        background.start(client.contexts(limit=1)).result()
    except BaseException:
        background.start(client.aclose()).result()
        raise
    client.patience_s = math.inf
    terminal.notice(f"Server: {client.url}")
    return client


def _in_database(
    background: Background,
    url: str | None,
    terminal: Terminal,
    model: str | None,
    *,
    agreed: bool,
    tools: bool,
) -> LiveConversations:
    model, reason = _choose_model(model)
    place = url or default_url()
    local = model.partition("/")[0] == "local"

    def make(context_id: str, stores: Stores) -> Agent:
        return Agent(
            context_id,
            llm_provider=model,
            tools=BUILTIN_TOOLS if tools else (),
            system_prompt=SYSTEM_PROMPT,
            stores=stores,
            loop_config=LoopConfig(history_tokens=_LOCAL_HISTORY_TOKENS if local else "auto"),
        )

    where = shown_place(place)
    terminal.notice(f"Model: {model}. {reason}")
    if local:
        _fetch_weights(model, terminal, agreed=agreed)
    terminal.notice(f"Database: {where}")
    if url is None:
        make_data_folder()
    with terminal.working("starting"):
        return background.start(AgentConversations.open(place, make)).result()


def _choose_model(named: str | None) -> tuple[str, str]:
    """The model to use, and why; an unusable one is refused before anything is shown."""
    from looopy.llm.resolve import pick_default, resolve_provider

    model, reason = (named, "--model names it.") if named is not None else pick_default(os.environ)
    resolve_provider(model)
    return model, reason


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


def _hold(
    background: Background,
    place: LiveConversations,
    terminal: Terminal,
    context_id: str,
    messages: Sequence[str],
    *,
    as_json: bool,
    go_on: bool,
) -> int:
    if terminal.has_person and not messages:
        edit_lines()
    first, all_completed = True, True
    while True:
        terminal.notice(f"Conversation: {context_id}")
        talk = Talk(background, place, terminal, context_id, as_json=as_json)
        talk.all_completed = all_completed
        talk.open(with_past=not messages and not as_json)
        if first and terminal.has_person and not messages:
            terminal.notice("Ctrl-C cancels an answer, Ctrl-D leaves, /help says more.")
        if messages:
            return talk.recite(messages, go_on=go_on)
        then = talk.converse(go_on=go_on and first)
        if not isinstance(then, Switch):
            return then
        context_id, first, all_completed = then.context_id, False, talk.all_completed


class Talk:
    """
    One conversation, as a person or a script wants its turns.

    Everything is shown by the thread that asks, one after the other, in the order of the news.
    """

    def __init__(
        self,
        background: Background,
        place: LiveConversations,
        terminal: Terminal,
        context_id: str,
        *,
        as_json: bool,
    ) -> None:
        self.context_id = context_id
        self._background = background
        self._place = place
        self._terminal = terminal
        self._as_json = as_json
        self._others = Others(context_id, place, self.call)
        self._view = View(terminal, as_json=as_json)
        self._seq: int | None = None  # of the newest event that was shown; `None`: no context yet
        self._running = False
        self._away = False
        self._mine = False  # the newest turn is this terminal's
        self._outcome: Outcome | None = None
        self._tries = 0
        self._declined: set[str | int] = set()  # requests and turns to be left alone
        self._asked = ""  # the newest request that the person was shown
        self._recites = False
        self.all_completed = True

    def open(self, *, with_past: bool) -> None:
        """Show the past, and follow the rest."""
        self._background.leave()
        try:
            item = self.call(self._place.context(self.context_id))
            past: list[PlacedMessage] = []
            if with_past:
                newest = self._place.newest_messages(self.context_id, _PAST_MESSAGES + 1)
                past = self.call(newest)
        except ContextNotFound:
            self._background.expect(self._place, self.context_id)
            return
        position = past[-1]["position"] if past else 0
        self._view = View(self._terminal, as_json=self._as_json, position=position)
        if past:
            self._terminal.line()
            messages = [message_from_json(one["message"]) for one in past]
            earlier = len(past) > _PAST_MESSAGES
            show_history(self._terminal, messages[-_PAST_MESSAGES:], earlier=earlier)
            self._terminal.line()
        self._running = item["status"] == "busy"
        if self._running:
            self._terminal.notice(
                f"Turn {item['turn_count']} of this conversation runs in another process; wait"
                " until it ends."
            )
        self._follow(item["last_seq"])

    def recite(self, messages: Sequence[str], *, go_on: bool) -> int:
        """
        Send *messages*, a turn each, until one does not complete; ask no questions.

        Raises:
            ValueRefused: A message cannot be stored.
        """
        self._recites = True
        if go_on and not self._continued():
            return 1
        return 0 if all(self._say(message) and self._ended() for message in messages) else 1

    def converse(self, *, go_on: bool) -> int | Switch:
        """Ask for messages until there are no more, or until the person goes elsewhere."""
        terminal = self._terminal
        if go_on:
            self._continued()
        interrupted = False
        while True:
            try:
                if interrupted:
                    terminal.notice("(Ctrl-D leaves)")
                    interrupted = False
                if (item := self._settled()) is not None and self._goes_on(item):
                    continue
                said = terminal.read_message(PROMPT)
                if said is None:
                    return 0 if terminal.has_person or self.all_completed else 1
                if command := command_in(said, by_hand=terminal.has_person):
                    then = run_command(command, self._others, terminal)
                    if then is not None:
                        return then if isinstance(then, Switch) else 0
                elif said.strip():
                    self._say(said)
            except NewsCame:
                continue
            except KeyboardInterrupt:
                if not terminal.has_person:
                    raise
                interrupted = True

    # --- news ----------------------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of *work*; shows meanwhile whatever comes."""
        future = self._background.start(work)
        try:
            while not future.done():
                self._show(self._background.take())
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def _follow(self, after: int) -> None:
        self._seq = after
        self._background.follow(self._place, self.context_id, after)

    def _settled(self) -> Context | None:
        """Show all that happens until no turn runs; the context then, `None` if there is none."""
        with self._terminal.working("working"), self._interrupts_cancel():
            while True:
                while self._running or not self._background.news.empty():
                    self._show(self._background.take())
                if self._seq is None:
                    return None
                item = self.call(self._place.context(self.context_id))
                overtaken = item["last_seq"] < self._seq  # by events that came before the answer
                if overtaken or self._running or not self._background.news.empty():
                    continue
                if item["status"] != "busy" and item["last_seq"] <= self._seq:
                    return item
                self._show(self._background.take())  # more is on its way

    def _show(self, one: News) -> None:
        match one:
            case None:
                return
            case Away():
                self._away = one.error is not None
                show_away(self._terminal, one.error)
                return
            case LooopyError():
                raise one
            case _:
                self._view.show(one)
        if one.path:
            return
        if one.seq is not None:
            self._seq = one.seq
        if isinstance(one, TurnStart):
            self._running = True
        elif isinstance(one, TurnEnd):
            self._running, self._outcome = False, one.outcome
            if one.outcome is not Outcome.INTERRUPTED:
                if self._mine and one.outcome is not Outcome.COMPLETED:
                    self.all_completed = False
                self._mine, self._tries = False, 0

    # --- turns ---------------------------------------------------------------------------------

    def _say(self, text: str) -> bool:
        """Send a message; false if the server refused it, after an error line."""
        if self._terminal.has_person and self._is_asked_meanwhile():
            self._terminal.notice(f"[a question came first, so this was not sent: {text}]")
            return False
        self._view.typed(text)
        if self._begin(text):
            return True
        self._view.not_sent(text)
        self.all_completed = False
        return False

    def _is_asked_meanwhile(self) -> bool:
        """True if a question waits that the person has not seen: the message would drop it."""
        try:
            item = self.call(self._place.context(self.context_id))
        except ContextNotFound:
            return False
        if self._seq is None:
            self._follow(0)
        return any(
            one["request_id"] != self._asked and one["request_id"] not in self._declined
            for one in item["pending"]
        )

    def _begin(
        self, text: str | None, inputs: Mapping[str, Any] | None = None, key: str | None = None
    ) -> bool:
        """Begin a turn; false if the server refused it."""
        begin, mine = self._place.begin_turn, self._mine
        self._mine = True  # its end may be shown before the number of the turn is here
        try:
            with self._terminal.working("sending"), self._interrupts_cancel():
                self.call(begin(self.context_id, text, inputs=inputs, idempotency_key=key))
        except (InputNotFound, CannotContinue, AgentBusy) as error:
            if text is None:  # another terminal was first
                self._terminal.notice(f"[{error}]")
            else:
                self._terminal.error(str(error))
            self._mine = mine
            return False
        except LooopyError as error:
            self._mine = mine
            if self._recites and isinstance(error, (ValueRefused, ConfigurationError)):
                raise
            self._terminal.error(str(error))
            return False
        if self._seq is None:
            self._follow(0)
            self._running = True
        return True

    def _ended(self) -> bool:
        """Show a turn to its end, through interruptions; true if it completed."""
        while (item := self._settled()) is not None and self._continues(item):
            pass
        completed = self._outcome is Outcome.COMPLETED
        self.all_completed = self.all_completed and completed
        return completed

    def _continued(self) -> bool:
        """Continue what stopped; true also when there is nothing to continue."""
        item = self._settled()
        if item is not None and item["pending"]:
            self._terminal.error("a tool call waits for approval: answer it in a terminal first")
            return False
        if item is None or (item["interrupted_turn"] is None and item["status"] != "failed"):
            self._terminal.notice("There is no interrupted turn to continue.")
            return True
        return self._begin(None) and self._ended()

    def _goes_on(self, item: Context) -> bool:
        """True if a turn was begun, because one was interrupted or waits for an answer."""
        return self._continues(item) or self._offers(item) or self._asks(item)

    def _continues(self, item: Context) -> bool:
        """Continue an own turn whose process died, a few times; all terminals send one key."""
        turn = item["interrupted_turn"]
        waits = item["waits_for"] is not None  # until an operator raises a budget
        if turn is None or waits or not self._mine or self._tries >= _CONTINUES:
            return False
        self._tries += 1
        return self._begin(None, key=f"continue-{turn}")

    def _offers(self, item: Context) -> bool:
        """Ask whether to continue a turn that was interrupted, or that failed before this chat."""
        turn, wait = item["interrupted_turn"], item["waits_for"]
        what = "was interrupted." if wait is None else f"waits: {one_line(wait, 500)}"
        if item["status"] == "failed" and self._outcome is None:
            turn, what = item["turn_count"], f"failed: {one_line(item['error'] or '', 300)}"
        if turn is None or turn in self._declined or item["pending"]:
            return False
        if item["needs_auth"]:
            what = "waits for you to sign in."
        self._terminal.notice(f"Turn {turn} {what}")
        try:
            answer = self._terminal.read_line("Continue it? [Y/n] ")
        except KeyboardInterrupt:
            answer = None
        if answer is not None and answer.strip().lower() in ("", "y", "yes"):
            return self._begin(None, key=f"continue-{turn}")
        self._declined.add(turn)
        if answer is not None and answer.strip().lower() not in ("n", "no"):
            return self._say(answer)  # neither yes nor no: it is the next message
        return False

    def _asks(self, item: Context) -> bool:
        """Ask about each call that waits for it; an unanswered one keeps waiting."""
        inputs: dict[str, Any] = {}
        expired = False
        for request in map(pending_from_json, item["pending"]):
            if request.request_id in self._declined:
                continue
            if request.kind is PendingKind.APPROVAL and is_over(request):
                self._terminal.notice(f"{request.tool_name} was not allowed in time.")
                expired = True  # the turn reports it to the model
                continue
            again, self._asked = self._asked == request.request_id, request.request_id
            decision = ask_about(self._terminal, request, again=again)
            if decision is None:
                self._declined.add(request.request_id)
                self._terminal.notice("It keeps waiting; any other message drops it.")
                break
            inputs[request.request_id] = decision
        return bool(inputs or expired) and self._begin(None, inputs)

    @contextmanager
    def _interrupts_cancel(self) -> Iterator[None]:
        """
        Let Ctrl-C cancel the running turn.

        A second one leaves the turn alone, as does the first while the server is away.
        """
        pressed = False

        def press(*_: object) -> None:
            nonlocal pressed
            if pressed or self._away or not self._running:
                raise KeyboardInterrupt
            pressed = True
            self._background.start(_quietly(self._place.cancel(self.context_id)))

        before: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


async def _own_default(place: LiveConversations) -> str:
    """The person's conversation without a name: other people of the server have theirs."""
    after: str | None = None
    for _ in range(_PAGES):
        page = await place.contexts(after=after)
        for item in page["items"]:
            if re.fullmatch(f"{DEFAULT_CONTEXT}(-[0-9a-f]{{8}})?", item["context_id"]):
                return item["context_id"]
        if (after := page["next"]) is None:
            break
    return f"{DEFAULT_CONTEXT}-{secrets.token_hex(4)}"


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Do *work*; if the server refuses it, the turn has ended."""
    with suppress(LooopyError):
        await work
