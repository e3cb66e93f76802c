"""
One call of a server's tool, from the request to its result or to a question for the user.

A server of 2026 asks in its answer: the call ends, and looopy makes it again with the user's
answer. A server of 2025 asks while the call runs: looopy cancels the call, and makes it from the
beginning once there is an answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from looopy.errors import LooopyError, ToolServerError
from looopy.tools.asking import Ask, NeedsInput
from looopy.tools.base import Report, ToolContext
from looopy.tools.sources.mcp.dialogue import Dialogue, Question
from looopy.tools.sources.mcp.pool import Link

if TYPE_CHECKING:
    from mcp import Client

_MAX_ROUNDS = 32
_REPORTS_PER_S = 20.0
_PAUSE_S = 0.05  # before the next request to a server that only wants more time; doubling
_LONGEST_PAUSE_S = 1.0


class Conversation:
    """One call, with its questions and answers."""

    def __init__(
        self, link: Link, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> None:
        self._link = link
        self._name = name
        self._arguments = dict(arguments)
        self._context = context
        self._progress = _Progress(context.report)
        self._dialogue = Dialogue(context.answers, link.redactor)

    async def hold(self) -> Any:
        """
        The server's answer, a `CallToolResult`.

        Raises:
            NeedsInput: The server asks a question that the user has not answered yet.
            ToolServerError: The server cannot be reached, died, or broke its protocol.
        """
        try:
            return await self._try()
        except _NeverRan:
            return await self._try()

    async def _try(self) -> Any:
        connection, client = await self._link.client()
        from looopy.tools.sources.mcp import sdk

        self._dialogue.begin()
        try:
            if connection.modern or not self._link.target.elicitation:
                return await self._in_rounds(client)
            async with self._link.alone:
                return await self._interrupted(client)
        except LooopyError:
            raise
        except Exception as error:  # noqa: BLE001 - any error that the SDK raises
            if sdk.is_gone(error):
                connection.lost()
            failure = sdk.failure_of(error, self._link.target, self._link.redactor)
            kind = _NeverRan if sdk.is_unknown_session(error) else type(failure)
            raise kind(failure.message, **failure.facts) from None

    async def _in_rounds(self, client: Client) -> Any:
        from looopy.tools.sources.mcp import sdk

        state, said = self._dialogue.resume(self._context.state)
        replies = {question.name: sdk.reply_to(question, value) for question, value in said}
        pause_s = _PAUSE_S
        for _ in range(_MAX_ROUNDS):
            try:
                answer = await self._call(client, replies or None, state)
            except Exception as error:
                if state is not None and sdk.is_forgotten(error):
                    self._dialogue.begin()
                    replies, state = {}, None
                    continue
                self._visit(sdk.urls_in(error))
                raise
            if not sdk.asks(answer):
                return answer
            questions = sdk.questions_in(answer, self._link.target)
            replies, state = self._replies(questions, answer.request_state), answer.request_state
            if not questions:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise ToolServerError(
            f"{self._link.target.where} asks without end", server=self._link.target.name
        )

    def _replies(self, questions: list[Question], state: str | None) -> dict[str, Any]:
        """The replies to the server, if all its questions have been answered."""
        from looopy.tools.sources.mcp import sdk

        found, asks = self._dialogue.find(questions)
        if asks:
            raise NeedsInput(list(asks.values()), self._dialogue.state(state, questions))
        return {one.name: sdk.reply_to(one, found[one.name]) for one in questions}

    def _visit(self, questions: list[Question]) -> None:
        """Ask the user to visit the addresses that a server requires before it runs the call."""
        found, asks = self._dialogue.find(questions)
        if asks:
            raise NeedsInput(list(asks.values()))
        if any(one.answer(found[one.name])[0] == "accept" for one in questions):
            text = f"{self._link.target.where} asks again for what the user has done"
            raise ToolServerError(text, server=self._link.target.name)

    async def _call(self, client: Client, replies: Any, state: str | None) -> Any:
        return await client.session.call_tool(
            self._name,
            self._arguments,
            progress_callback=self._progress,
            input_responses=replies,
            request_state=state,
            allow_input_required=True,
        )

    # --- servers of 2025 -------------------------------------------------------------------------

    async def _interrupted(self, client: Client) -> Any:
        from looopy.tools.sources.mcp import sdk

        asked: asyncio.Future[Ask] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def asking(params: Any) -> Any:
            question = sdk.question_of(params)
            found, asks = self._dialogue.find([question])
            if not asks:
                return sdk.reply_to(question, found[question.name])
            if not asked.done():
                asked.set_result(asks[question.name])
            await over.wait()  # the call is cancelled first, or it would continue with this
            return sdk.no_answer()

        self._link.asking = asking
        call = asyncio.create_task(self._call(client, None, None), name="looopy mcp call")
        try:
            await asyncio.wait({call, asked}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
        except Exception as error:
            self._visit(sdk.urls_in(error))
            raise
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait([call])
            self._link.asking = None
            over.set()
        raise NeedsInput([asked.result()])


class _NeverRan(ToolServerError):
    """Raised if the server has forgotten the connection, and has not read the call."""


class _Progress:
    """Reports a server's progress, at most `_REPORTS_PER_S` times a second."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + 1 / _REPORTS_PER_S
        if not math.isfinite(progress) or (total is not None and not math.isfinite(total)):
            return
        if total and message is None:
            self._report(min(1.0, max(0.0, progress / total)))
        else:
            self._report({"progress": progress, "total": total, "message": message})
