"""
A client of the HTTP API: `looopy chat` and `looopy contexts` use it against a server.

    async with Client("http://127.0.0.1:8000", token=token) as client:
        await client.begin_turn("trip", "Hello!")
        async for event in client.events("trip", after=0):
            ...

A connection that breaks is made again. `events` continues after the last `seq` that it has seen,
so each durable event comes exactly once, from any process of the server. A request that may be
repeated is repeated; `begin_turn` always sends a key, so it begins one turn however often it is
sent. It needs the extra `client`.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Self, cast
from urllib.parse import quote, urlsplit

from looopy.errors import (
    ConfigurationError,
    LimitExceeded,
    LooopyError,
    ValueRefused,
    missing_extra,
)
from looopy.server.codes import error_of
from looopy.stores.codec import event_from_json
from looopy.types.approval import Approve, Deny, answer_to_json
from looopy.types.event import AgentEvent, ApprovalDecided
from looopy.types.storable import check

try:
    import httpx
except ModuleNotFoundError as _error:
    raise missing_extra("a client of a server needs httpx", "client") from _error

if TYPE_CHECKING:  # they import the agents, which a client does without
    from looopy.server.models import (
        BudgetOfOwner,
        Context,
        Hit,
        OpenRequest,
        Page,
        PlacedMessage,
        Turn,
    )

_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 90.0  # a turn may wait in the queue for the one that runs
_SILENCE_S: Final = 60.0  # a living server sends a comment every 15 seconds
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_AWAY: Final = frozenset({502, 503, 504})  # the server, or a proxy before it
_FINAL: Final = frozenset({"context_not_found", "unauthorised"})
_BEYOND: Final = 10**15  # no context has so many messages
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class RequestRefused(LooopyError):
    """The server refused a request for a reason that is not an error of the library."""

    status: int = 400
    code: str = "invalid_request"
    path: str | None = None


class ServerUnavailable(LooopyError):
    """The server did not answer. `outcome_known`: false if it may have done what was asked."""

    outcome_known: bool = True


class Client:
    """
    The contexts of one caller on a server.

    Use it in one event loop. `async with` closes it in the end.

    Args:
        url: The address of the server, such as `http://127.0.0.1:8000`.
        token: For `Authorization: Bearer TOKEN`. No error and no representation shows it.
        patience_s: How long a request tries to reach a server that does not answer. A stream of
            events tries for as long as it is read.
        on_away: Called with the error once the server is away, and with `None` once it is back.
        transport: How to reach the server, such as `httpx.ASGITransport(app)` in a test.

    Raises:
        ConfigurationError: The address or the token is unusable.
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience_s: float = 30.0,
        on_away: Callable[[LooopyError | None], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = _checked_url(url)
        self.patience_s = patience_s
        self._on_away = on_away
        self._is_away = False
        headers = {"Accept": "application/json", "User-Agent": "looopy"}
        if token is not None:
            if not token.isascii() or not token.isprintable() or not token or " " in token:
                raise ConfigurationError("a token is ASCII text without spaces")
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            transport=transport,
            verify=self.url.startswith("https"),  # certificates take a while to read
            # A proxy for the network has no business with this machine, nor with its tokens.
            trust_env=urlsplit(self.url).hostname not in _LOCAL,
        )

    # --- reading -------------------------------------------------------------------------------

    async def contexts(
        self,
        *,
        status: str | None = None,
        tags: Sequence[str] = (),
        after: str | None = None,
        limit: int | None = None,
    ) -> Page[Context, str]:
        """A page of the caller's contexts, the last used first."""
        asked = _without_none({"status": status, "after": after, "limit": limit})
        found = await self._ask("GET", "/contexts", params={**asked, "tag": list(tags)})
        return cast("Page[Context, str]", found)

    async def search(
        self,
        query: str,
        *,
        context_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page[Hit, str]:
        """A page of the caller's messages that have all words of *query*."""
        asked = {"query": query, "context_id": context_id, "after": after, "limit": limit}
        return cast(
            "Page[Hit, str]", await self._ask("GET", "/search", params=_without_none(asked))
        )

    async def budget(
        self, *, day: date | None = None, context_id: str | None = None
    ) -> BudgetOfOwner:
        """
        The caller's use of a day's and its month's budget.

        Args:
            day: Today by default, in UTC.
            context_id: The context whose agent has the limits; by default the last active one.
        """
        asked = {"day": None if day is None else day.isoformat(), "context_id": context_id}
        found = await self._ask("GET", "/budget", params=_without_none(asked))
        return cast("BudgetOfOwner", found)

    async def context(self, context_id: str) -> Context:
        """
        A context as it is now.

        Raises:
            ContextNotFound: The caller has no such context.
        """
        return cast("Context", await self._ask("GET", _path(context_id)))

    async def turns(self, context_id: str, *, after: int = 0) -> AsyncIterator[Turn]:
        """The turns after turn *after*, the oldest first."""
        async for item in self._items(f"{_path(context_id)}/turns", after):
            yield cast("Turn", item)

    async def messages(self, context_id: str, *, after: int = 0) -> AsyncIterator[PlacedMessage]:
        """The messages after the position *after*, the oldest first."""
        async for item in self._items(f"{_path(context_id)}/messages", after):
            yield cast("PlacedMessage", item)

    async def newest_messages(self, context_id: str, limit: int) -> list[PlacedMessage]:
        """The newest messages, at most *limit*, the oldest of them first."""
        path = f"{_path(context_id)}/messages"
        page = await self._ask("GET", path, params={"before": _BEYOND, "limit": limit})
        return cast("list[PlacedMessage]", page["items"])

    async def events(
        self, context_id: str, *, after: int | None = None
    ) -> AsyncGenerator[AgentEvent, None]:
        """
        Follow the events of a context, through any number of connections.

        Each durable event comes once. A `MessageStart` of an answer that had begun before means
        that its text comes again from its beginning. Close the generator to leave.

        Args:
            after: Start after this `seq`; 0 for the beginning, `None` for the head.

        Raises:
            ContextNotFound: The caller has no such context, or it was deleted.
            RequestRefused: The server refuses the request, such as for its token.
            ServerUnavailable: The server could not be reached within `patience_s`, at first. Once
                it was reached, this tries until it is back.
        """
        place = (await self.context(context_id))["last_seq"] if after is None else after
        path, pause = f"{_path(context_id)}/events", _Pause()
        reached = False
        while True:
            try:
                async with aclosing(self._stream(path, place)) as frames:
                    async for seq, data in frames:
                        reached = True
                        pause.reset()
                        if data is None or (seq is not None and seq <= place):
                            continue
                        place = place if seq is None else seq
                        if (event := event_from_json(data)) is not None:
                            yield event
            except _Repeatable as error:
                self._tell(error.problem)
                if not reached and pause.waited_s >= self.patience_s:
                    raise error.problem from error.__cause__
            await pause.wait()

    # --- turns ---------------------------------------------------------------------------------

    async def begin_turn(
        self,
        context_id: str,
        message: str | Mapping[str, Any] | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """
        Begin a turn, or continue one; return its number once it is accepted.

        Args:
            message: Text, or `{"content": [...]}`. `None` continues.
            inputs: Answers by request id, such as `Approve()`, `Deny()` or JSON.
            idempotency_key: By default a new one: this request begins one turn, however often it
                is sent.

        Raises:
            AgentBusy: A turn runs.
            LooopyError: Same as `Agent.execute_turn`.
            ServerUnavailable: The server was away for `patience_s`.
        """
        answers = None if inputs is None else {k: answer_to_json(v) for k, v in inputs.items()}
        body = _without_none({"message": message, "inputs": answers, "metadata": metadata})
        key = secrets.token_urlsafe(16) if idempotency_key is None else idempotency_key
        accepted = await self._ask(
            "POST", f"{_path(context_id)}/turns", body, headers={"Idempotency-Key": key}
        )
        return int(accepted["turn"])

    async def requests(self, *, after: str | None = None) -> Page[OpenRequest, str]:
        """A page of the requests in contexts of others that the caller may decide."""
        params = _without_none({"after": after})
        return cast("Page[OpenRequest, str]", await self._ask("GET", "/requests", params=params))

    async def decide(
        self, context_id: str, request_id: str, answer: bool | Approve | Deny
    ) -> ApprovalDecided:
        """
        Decide a call that waits for approval, in a context of the caller or of another person.

        The call waits for its own actor, as after `Agent.decide`, whose errors this raises.
        """
        body = {"request_id": request_id, "answer": answer_to_json(answer)}
        # A decision that comes again is the same one, so it is sent again.
        found = await self._ask("POST", f"{_path(context_id)}/decisions", body, repeats=True)
        return cast("ApprovalDecided", event_from_json(found["event"]))

    async def steer(
        self,
        context_id: str,
        message: str,
        *,
        expected_turn: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """
        Send a message to the running turn, before its next model call.

        Args:
            idempotency_key: As of `Agent.steer`. By default a random one if there is an
                *expected_turn*: then the request is sent again if its answer was lost.
        """
        await self._speak("steer", context_id, message, expected_turn, idempotency_key)

    async def follow_up(
        self,
        context_id: str,
        message: str,
        *,
        expected_turn: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Send a message for the end of the running turn; otherwise as `steer()`."""
        await self._speak("follow-up", context_id, message, expected_turn, idempotency_key)

    async def _speak(
        self, how: str, context_id: str, message: str, expected_turn: int | None, key: str | None
    ) -> None:
        body = _without_none({"message": message, "expected_turn": expected_turn})
        if key is None and expected_turn is not None:
            key = secrets.token_urlsafe(16)
        headers = {} if key is None else {"Idempotency-Key": key}
        await self._ask("POST", f"{_path(context_id)}/{how}", body, headers=headers)

    async def cancel(self, context_id: str) -> None:
        """Stop the running turn."""
        await self._ask("POST", f"{_path(context_id)}/cancel", {})

    # --- the past ------------------------------------------------------------------------------

    async def fork(
        self, context_id: str, new_context_id: str | None = None, *, at: int | None = None
    ) -> Context:
        """Make a context that begins with the past of this one, up to the message at *at*."""
        body = _without_none({"new_context_id": new_context_id, "at": at})
        made = await self._ask("POST", f"{_path(context_id)}/fork", body)
        return cast("Context", made)

    async def rewind(self, context_id: str, to: int) -> None:
        """Hide turn *to* and all after it."""
        await self._ask("POST", f"{_path(context_id)}/rewind", {"to": to})

    async def compact(self, context_id: str, *, keep_turns: int = 1) -> None:
        """Have the model summarise the older part."""
        await self._ask("POST", f"{_path(context_id)}/compact", {"keep_turns": keep_turns})

    async def delete(self, context_id: str, *, force: bool = False) -> None:
        """Erase a context; with *force* also while a turn runs."""
        params = {"force": "true"} if force else {}
        await self._ask("DELETE", _path(context_id), params=params)

    # --- the end -------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connections. Turns continue."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    # --- requests ------------------------------------------------------------------------------

    async def _items(self, path: str, after: int) -> AsyncIterator[dict[str, Any]]:
        place: int | None = after
        while place is not None:
            page = await self._ask("GET", path, params={"after": place})
            for item in page["items"]:
                yield item
            place = page["next"]

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        repeats: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        """The answer to a request, which is sent again while the server is away."""
        if body is not None:
            check(body)  # or it would not be JSON
        may_repeat = repeats or method == "GET" or "Idempotency-Key" in more.get("headers", ())
        pause = _Pause()
        while True:
            try:
                answer = await self._send(method, path, body, **more)
            except _Repeatable as error:
                if not (may_repeat or error.outcome_known):
                    raise error.problem from error.__cause__
                self._tell(error.problem)
                if pause.waited_s >= self.patience_s:
                    raise error.problem from error.__cause__
            else:
                self._tell(None)
                return answer
            await pause.wait()

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, **more: Any
    ) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, self.url + path, json=body, **more)
        except httpx.TransportError as error:
            raise _Repeatable(self._unavailable(error)) from error
        if answer.is_success:
            return _json(answer) if answer.content else {}
        raise self._refusal(answer)

    async def _stream(
        self, path: str, place: int
    ) -> AsyncGenerator[tuple[int | None, dict[str, Any] | None], None]:
        """The events of one connection: the id and the data of each; first two `None`."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(place)}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        try:
            async with self._http.stream(
                "GET", self.url + path, headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    error = self._refusal(answer)
                    if isinstance(error, LimitExceeded):  # a broken stream may count for a moment
                        raise _Repeatable(error)
                    raise error
                self._tell(None)
                yield None, None
                async for name, seq, data in _frames(answer):
                    if name == "problem":
                        raise self._problem(data)
                    yield seq, data
        except httpx.TransportError as error:
            raise _Repeatable(self._unavailable(error)) from error
        # It ended in order: the process drains, or an agent went idle.

    def _refusal(self, answer: httpx.Response) -> Exception:
        """The error for an answer that is not a success."""
        status, said = answer.status_code, None
        try:
            said = answer.json()["error"]
            code, message = str(said["code"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            text = f"{self.url} answered {status}, not in the way of a looopy server"
            if status in _AWAY:
                return _Repeatable(ServerUnavailable(text, outcome_known=False))
            return RequestRefused(text, status=status, code="not_looopy")
        if status in _AWAY:
            problem = ServerUnavailable(message, outcome_known=code == "host_closed")
            return _Repeatable(problem)
        facts = {"path": said.get("path"), "turn": said.get("turn")}
        error = error_of(code, message, **_without_none(facts))
        return error or RequestRefused(message, status=status, code=code, path=facts["path"])

    def _problem(self, data: Any) -> Exception:
        """The error for the frame that ends a stream."""
        said = data.get("error", {})
        code, message = said.get("code", ""), said.get("message", "the stream ended")
        if code in _FINAL:
            return error_of(code, message) or RequestRefused(message, code=code)
        return _Repeatable(ServerUnavailable(message))

    def _unavailable(self, error: httpx.TransportError) -> ServerUnavailable:
        not_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        why = str(error) or type(error).__name__
        text = f"the server at {self.url} does not answer: {why}"
        return ServerUnavailable(text, outcome_known=not_sent)

    def _tell(self, error: LooopyError | None) -> None:
        """Report a change."""
        if self._is_away == (error is not None):
            return
        self._is_away = error is not None
        if self._on_away is not None:
            self._on_away(error)


class _Repeatable(Exception):
    """The server is away: the same request may have another answer soon."""

    def __init__(self, problem: LooopyError) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.outcome_known = getattr(problem, "outcome_known", True)


class _Pause:
    """The pauses between two tries, which become longer."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._next_s = _FIRST_PAUSE_S

    def reset(self) -> None:
        """Begin with a short one again."""
        self.waited_s, self._next_s = 0.0, _FIRST_PAUSE_S

    async def wait(self) -> None:
        """Wait; many clients of one server do not come again in the same moment."""
        pause_s = self._next_s * random.uniform(0.7, 1.3)  # noqa: S311 - no secret
        self._next_s = min(self._next_s * 2, _LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)
        self.waited_s += pause_s


async def _frames(
    answer: httpx.Response,
) -> AsyncIterator[tuple[str, int | None, dict[str, Any]]]:
    """The server-sent events of a stream: name, id and data; a cut one at its end is left out."""
    lines: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line:
            if "data" in lines:
                place = lines.get("id", "")
                seq = int(place) if place.isascii() and place.isdigit() else None
                yield lines.get("event", "message"), seq, json.loads(lines["data"])
            lines = {}
        else:
            name, _, value = line.partition(":")
            lines[name] = value.removeprefix(" ")


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        text = f"{answer.url.copy_with(query=None)} does not answer as a looopy server does"
        raise RequestRefused(text, status=answer.status_code, code="not_looopy")
    return found


def _checked_url(url: str) -> str:
    """The address without a slash at its end."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, good = urlsplit(""), False
    if not good or parts.query or parts.fragment:
        raise ConfigurationError("the address of a server is such as http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("no user or password in the address of a server: pass a token")
    return url.rstrip("/")


def _path(context_id: str) -> str:
    if not isinstance(context_id, str) or not context_id or context_id in (".", ".."):
        raise ValueRefused("the name of a context is a text", path="/context_id")
    return f"/contexts/{quote(context_id, safe='')}"


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}
