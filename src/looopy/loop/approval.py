"""
Decides if a call may run without asking a person first.

An approval allows one call: this tool, with exactly these arguments, under this schema. looopy
stores a digest of these three and compares it when the call is about to run. If they differ, the
person is asked again. The arguments are those that the tool would get. So `before_tool_call` runs
first, and the person sees what would run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from looopy.errors import ToolError
from looopy.loop.parts import Turn
from looopy.tools.base import Tool, ToolContext
from looopy.tools.call.hooks import ToolHooks, ask_hook
from looopy.tools.call.results import Answer, error_text, failure
from looopy.tools.schema import validate
from looopy.types.message import ToolCall
from looopy.types.storable import dump

_UNFIT = "The tool did not run: its arguments are no JSON object."


@dataclass(frozen=True, slots=True)
class AskFirst:
    """
    The call may not run yet.

    Attributes:
        args: The arguments that the tool would get, without secrets.
        bound: The digest that an approval is bound to.
        changed: True if it was approved with other arguments or as another tool.
        doubt: The reason to ask, if the tool itself needs no approval.
    """

    args: Mapping[str, Any]
    bound: str
    changed: bool = False
    doubt: str | None = None


async def may_run(
    turn: Turn, tool: Tool, call: ToolCall, context: ToolContext, hooks: ToolHooks
) -> ToolHooks | AskFirst | None:
    """
    Decide if *call* runs now.

    Returns:
        The hooks to run it with, which have decided; `None` if there was nothing to decide. They
        refuse a call that must not run as it is, because a second check could decide otherwise and
        run it unasked.

    Raises:
        ValueRefused: A hook has made arguments that cannot be stored in a request.
    """
    resumed, doubt = turn.resumed(call), turn.progress.guards.doubt_about(call)
    approved = any(value is True for request, value in resumed.answered if resumed.is_ours(request))
    if tool.needs_approval is False and not approved and doubt is None:
        return None
    try:
        if call.invalid_arguments is not None:
            return hooks.after_deciding(failure(_UNFIT))
        if tool.coerce:  # as the executor does: arguments that do not fit yet may fit then
            from looopy.tools.call.coerce import coerce  # most tools do not

            call = replace(call, arguments=dict(coerce(tool, call.arguments)))
        validate(tool, call.arguments)
    except ToolError as error:
        return hooks.after_deciding(failure(error_text(error)))
    if tool.needs_approval is False and approved:
        bound = bound_to(tool, call.arguments)
        if resumed.held is None or resumed.held.bound in (None, bound):
            return None
    arguments = await hooks.before(tool, call, context)
    if isinstance(arguments, Answer):
        return hooks.after_deciding(arguments)
    shown = turn.given.redactor.value(arguments)
    dump(shown, "")
    bound = bound_to(tool, shown)
    if approved:
        same = resumed.held is not None and resumed.held.bound == bound
        return hooks.after_deciding(arguments) if same else AskFirst(shown, bound, changed=True)
    if doubt is None and not await _needed(turn, tool, arguments, context):
        return hooks.after_deciding(arguments)
    return AskFirst(shown, bound, doubt=doubt)


async def _needed(
    turn: Turn, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
) -> bool:
    asked = tool.needs_approval
    if isinstance(asked, bool):
        return asked
    return await ask_hook(
        f"{tool.name}.needs_approval",
        lambda: asked(arguments, context),
        bool,
        default=True,  # if the predicate fails, ask the person
        failed=turn.hook_failed,
    )


def bound_to(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The digest that binds an approval to *tool* and these arguments."""
    exactly = [tool.name, arguments, tool.parameters]
    text = json.dumps(exactly, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
