"""
Run one tool call, and answer it in every case.

A model that announced a call must see exactly one result for it, or its provider refuses the
history from then on. So every way in which a call can go wrong ends here as an error result, whose
text names the failure and the remedy: an unknown tool, unreadable or wrong arguments, an exception,
a timeout, a value no model can read, too large a result. The exceptions are cancellation, which
belongs to the caller, and a call that waits: for an answer, or for fresh credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from typing import Any, Final

from looopy.auth.redaction import Redactor
from looopy.errors import InvalidToolArguments, LooopyError, ToolNotFound, ToolTimeout, foreign
from looopy.tools.asking import NeedsCredentials, NeedsInput
from looopy.tools.base import Report, Tool, ToolContext
from looopy.tools.call.hooks import ToolHooks
from looopy.tools.call.results import Answer, error_text, exceeds, failure, to_answer
from looopy.tools.call.retry import RetryCall, call_again, execute
from looopy.tools.schema import MAX_RECEIVED_CHARS, json_type, shorten, validate
from looopy.types.arguments import read_json
from looopy.types.constructors import amended
from looopy.types.message import ToolCall, ToolResultMessage

NOT_FOUND: Final = "There is no tool named"
"""The beginning of the result of a call whose tool does not exist."""

_MAX_LISTED = 50
_MAX_NAME_CHARS = 64
_logger = logging.getLogger("looopy")


def resolve_name(name: str, known: Collection[str]) -> str | None:
    """The member of *known* that a model meant: itself, or the one in another case, or `None`."""
    if name in known:
        return name
    alike = [one for one in known if one.casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


class CallRules:
    """
    Limits and names that all calls of an iteration share.

    Attributes:
        default_timeout_s: Seconds, for a tool that sets none; `None`: no limit.
        max_result_bytes: UTF-8 bytes, for a tool that sets none; the rest is kept as an artifact.
        known: Names on offer, for the message about an unknown tool.
        redactor: Removes secrets from the result, before a long one is cut.
        grace_s: Seconds that a tool has to stop after its signal, before it is left behind.
    """

    __slots__ = ("default_timeout_s", "grace_s", "known", "max_result_bytes", "redactor")

    def __init__(
        self,
        *,
        default_timeout_s: float | None,
        max_result_bytes: int,
        known: Sequence[str],
        redactor: Redactor | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self.default_timeout_s = default_timeout_s
        self.max_result_bytes = max_result_bytes
        self.known = known
        self.redactor = redactor or Redactor()
        self.grace_s = grace_s


async def run_call(
    tool: Tool | None,
    call: ToolCall,
    context: ToolContext,
    rules: CallRules,
    *,
    hooks: ToolHooks | None = None,
    may_call_again: Callable[[Tool], bool] = lambda _tool: True,
    is_cut: bool = False,
    overdue: Callable[[ToolResultMessage], object] | None = None,
) -> ToolResultMessage:
    """
    Run *call* and return its one result; errors are results too.

    Args:
        tool: The result of `resolve_name`; `None`: the tool result reports that the tool does not
            exist.
        call: As announced; the result carries its id.
        context: Passed to the tool. Its `report` may then be called from any thread, and does
            nothing once the call is over.
        hooks: Called before a call runs and after it ran.
        may_call_again: Called if the tool wants the model to try again.
        is_cut: The model's answer broke off in this call: it does not run.
        overdue: Called with the result of a call whose tool has not stopped `grace_s` after its
            signal to stop. The later return value is then ignored.

    Raises:
        asyncio.CancelledError: The caller was cancelled. A sync tool may still be running.
        NeedsInput: The tool asks; the call has no result yet.
        NeedsCredentials: Those of the turn have expired; the tool has not run.
    """
    reporter = _Reporter(context.report)
    context = amended(context, report=reporter)

    def leave_behind(text: str) -> None:
        reporter.close()
        if overdue is not None:
            overdue(_result(tool, call, failure(text)))

    attempt = _Attempt(hooks or ToolHooks(), leave_behind, rules=rules, is_cut=is_cut)
    try:
        answer = await attempt.make(tool, call, context)
    except RetryCall as error:
        why = error_text(error)
        allowed = tool is not None and may_call_again(tool)
        answer = failure(why if tool is None else call_again(tool, why, allowed=allowed))
    except asyncio.CancelledError as stopped:
        if _is_cancelled():
            raise stopped.with_traceback(None)  # noqa: B904 - as below
        # This call was not cancelled: a task that the tool awaited was cancelled from elsewhere.
        answer = failure("The tool failed: something that it waited for was cancelled.")
    except NeedsInput as asks:
        # Its traceback holds frames of the deadline, which holds the task, which holds this.
        raise asks.with_traceback(None)  # noqa: B904 - it is the same one
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # each call is answered
        if isinstance(error, GeneratorExit) and foreign(error) is None:
            raise
        answer = failure(error_text(error))
        if not isinstance(error, LooopyError):  # those are for the model, which can mend the call
            _log_exception(call, context, error)
    finally:
        reporter.close()
    if attempt.ran and not attempt.left_behind:
        with contextlib.suppress(asyncio.CancelledError):  # the tool has run: that counts
            answer = await attempt.hooks.after(call, answer, context)
    redactor = rules.redactor
    limit = (tool.max_result_bytes if tool is not None else None) or rules.max_result_bytes
    blocks = tuple(redactor.blocks(answer.blocks))
    if exceeds(blocks, limit) and not attempt.left_behind:
        from looopy.tools.call.results import shown_and_kept  # most results are short

        blocks = await shown_and_kept(blocks, limit, context)
    return _result(tool, call, Answer(blocks, redactor.value(answer.details), answer.is_error))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


def _log_exception(call: ToolCall, context: ToolContext, error: BaseException) -> None:
    """Show the developer the traceback; the model gets the text alone."""
    place = {"context_id": context.context_id, "turn": context.turn, "tool_call_id": call.id}
    text = "the tool %r raised in context %s, turn %s, call %s"
    _logger.warning(text, call.name, *place.values(), exc_info=error, extra=place)


def _result(tool: Tool | None, call: ToolCall, answer: Answer) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=tool.name if tool is not None else call.name,
        content=answer.blocks,
        details=answer.details,
        is_error=answer.is_error,
    )


class _Attempt:
    """
    One try at a call.

    Attributes:
        ran: True once the tool began to run.
        left_behind: True if its caller no longer waits for it.
    """

    def __init__(
        self,
        hooks: ToolHooks,
        leave_behind: Callable[[str], None],
        *,
        rules: CallRules,
        is_cut: bool,
    ) -> None:
        self.hooks = hooks
        self.ran = False
        self.left_behind = False
        self._leave_behind = leave_behind
        self._rules = rules
        self._is_cut = is_cut

    async def make(self, tool: Tool | None, call: ToolCall, context: ToolContext) -> Answer:
        """Check the call, and run it; any failure is raised."""
        if tool is None:
            text = _not_found(call.name, self._rules.known)
            raise ToolNotFound(text, tool_name=call.name, call_id=call.id)
        if self._is_cut:
            raise InvalidToolArguments(_cut(tool.name), tool_name=tool.name, call_id=call.id)
        if call.invalid_arguments is not None:
            raise InvalidToolArguments(
                unusable(tool.name, call.invalid_arguments),
                tool_name=tool.name,
                call_id=call.id,
            )
        if tool.coerce:
            from looopy.tools.call.coerce import coerce  # most tools do not

            call = dataclasses.replace(call, arguments=dict(coerce(tool, call.arguments)))
        validate(tool, call.arguments)
        if context.auth_context is not None and context.auth_context.expired():
            raise NeedsCredentials
        timeout_s = tool.timeout_s
        if timeout_s is None:
            timeout_s = self._rules.default_timeout_s
        arguments = await self.hooks.before(tool, call, context)
        if isinstance(arguments, Answer):
            return arguments
        self.ran = True
        limit = asyncio.timeout(None)
        watch = self._watch(tool, timeout_s)
        try:
            async with limit:
                if timeout_s is not None:  # in a context of its own, as `_watch`
                    due = asyncio.get_running_loop().time() + timeout_s
                    Context().run(limit.reschedule, due)
                returned = await execute(tool, arguments, context, limit)
        except Exception as error:
            if not limit.expired():  # else it is our timeout, or what the tool made of it
                raise
            text = _timed_out(tool, timeout_s or 0.0, error)
            raise ToolTimeout(text, tool_name=tool.name, call_id=call.id) from error
        finally:
            if watch is not None:
                watch.cancel()
        return to_answer(returned)

    def _watch(self, tool: Tool, timeout_s: float | None) -> asyncio.TimerHandle | None:
        """Abandon the tool when it does not stop in time."""
        if timeout_s is None:
            return None
        # A context of its own: a timer would keep the caller's alive.
        return asyncio.get_running_loop().call_later(
            timeout_s + self._rules.grace_s, self._give_up, tool, timeout_s, context=Context()
        )

    def _give_up(self, tool: Tool, timeout_s: float) -> None:
        self.left_behind = True
        self._leave_behind(
            f"{tool.name!r} timed out after {timeout_s:g} s and did not stop when it was cancelled:"
            " it may still be running, and its outcome is unknown. Check before calling it again."
        )


class _Reporter:
    """`ToolContext.report` of one call: from any thread, never failing, silent once it is over."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def __call__(self, progress: Any) -> None:
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._deliver(progress)
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver, progress)
        except RuntimeError:  # the loop is closed: it has no listeners any more
            self._closed = True

    def _deliver(self, progress: Any) -> None:
        if self._closed:
            return
        try:
            self._report(progress)
        except Exception:
            _logger.exception("showing a tool's progress failed")

    def close(self) -> None:
        self._closed = True


def _not_found(name: str, known: Sequence[str]) -> str:
    import difflib

    text = f"{NOT_FOUND} {shorten(name, _MAX_NAME_CHARS)!r}."
    if not known:
        return f"{text} No tools are available."
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name[:_MAX_NAME_CHARS].casefold(), folded)
    if close:
        text += f" Did you mean {' or '.join(repr(folded[one]) for one in close)}?"
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"{text} Available tools: {', '.join(known[:_MAX_LISTED])}{more}."


def unusable(name: str, received: str) -> str:
    """The text for a model whose arguments are not a JSON object that can be kept."""
    try:
        problem = f"of type {json_type(read_json(received))}"
    except ValueError as error:
        problem = str(error)
    return (
        f"The arguments of {name!r} cannot be used; the tool did not run. They are {problem}.\n"
        f"Received: {shorten(received, MAX_RECEIVED_CHARS)}\n"
        "Call the tool again with one JSON object that fits its schema."
    )


def _cut(name: str) -> str:
    return (
        f"This call of {name!r} was cut off: the answer ended in the middle of it, at its limit of"
        " tokens or at a filter. The tool did not run. Call it again with shorter arguments, or in"
        " several calls."
    )


def _timed_out(tool: Tool, timeout_s: float, error: Exception) -> str:
    from looopy.tools.function.decorator import FunctionTool  # not for agents without functions
    from looopy.tools.function.threads import NOT_STARTED

    notes = getattr(error.__cause__, "__notes__", ())
    if NOT_STARTED in notes:
        return f"{tool.name!r} timed out after {timeout_s:g} s: {NOT_STARTED}."
    if isinstance(tool, FunctionTool) and tool.runs_in_thread:
        return (
            f"{tool.name!r} timed out after {timeout_s:g} s. It cannot be stopped and may still be"
            " running: its outcome is unknown. Check before calling it again."
        )
    return (
        f"{tool.name!r} timed out after {timeout_s:g} s and was stopped; what it had done by then"
        " stays done."
    )
