"""
Decides if a call may run without asking a person first.

An approval allows one call: this tool, with exactly these arguments, under this schema. looopy
stores a digest of these three and compares it when the call is about to run. If they differ, the
person is asked again. The arguments are what the tool would get. So `before_tool_call` runs
first, and the person sees what would run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from looopy.auth.redaction import Redactor
from looopy.errors import ToolError, ValueRefused
from looopy.loop.given import Resumed
from looopy.loop.parts import Turn
from looopy.tools.base import Tool, ToolContext
from looopy.tools.call.hooks import ToolHooks, ask_hook
from looopy.tools.call.results import Answer, error_text, failure
from looopy.tools.call.run import unusable
from looopy.tools.schema import shorten, validate
from looopy.types.approval import Approve
from looopy.types.message import ToolCall
from looopy.types.storable import dump, repair

_MAX_EDIT_CHARS = 2_000
_MAX_SCHEMA_CHARS = 64 * 1024


@dataclass(frozen=True, slots=True)
class AskFirst:
    """
    The call may not run yet.

    Attributes:
        args: The arguments that the tool would get, without secrets.
        bound: The digest that an approval is bound to.
        changed: True if it was approved with other arguments or as another tool.
        doubt: The reason to ask, if the tool itself needs no approval.
        prompt: The tool's own question, or `None`.
    """

    args: Mapping[str, Any]
    bound: str
    changed: bool = False
    doubt: str | None = None
    prompt: str | None = None


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
    approved = any(resumed.decisions)
    if tool.needs_approval is False and not approved and doubt is None:
        return None
    try:
        if call.invalid_arguments is not None:
            return hooks.after_deciding(failure(unusable(tool.name, call.invalid_arguments)))
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
        if same:
            return hooks.after_deciding(arguments)
        return AskFirst(shown, bound, changed=True, prompt=await _prompt(turn, tool, shown))
    if doubt is None and not await _needed(turn, tool, arguments, context):
        return hooks.after_deciding(arguments)
    return AskFirst(shown, bound, doubt=doubt, prompt=await _prompt(turn, tool, shown))


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


async def _prompt(turn: Turn, tool: Tool, shown: Mapping[str, Any]) -> str | None:
    """The tool's own question, of arguments without secrets; `None` if it has none or fails."""
    own = tool.approval_prompt
    if own is None or isinstance(own, str):
        return own
    said = await ask_hook(
        f"{tool.name}.approval_prompt",
        lambda: own(shown),
        _as_text,
        default=None,
        failed=turn.hook_failed,
    )
    return said or None


def _as_text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(f"approval_prompt returns text, not {type(said).__name__}")
    return repair(said)


def schema_to_edit(tool: Tool, redactor: Redactor) -> Mapping[str, Any] | None:
    """The schema that other arguments must fit; `None` if it cannot be stored with a request."""
    try:
        too_long = len(dump(tool.parameters)) > _MAX_SCHEMA_CHARS
    except ValueRefused:
        return None
    return None if too_long or redactor.shows(tool.parameters) else tool.parameters


def told_with(resumed: Resumed, ran: Mapping[str, Any], redactor: Redactor) -> str | None:
    """The sentence for the model about a call that a person changed or commented, if one did."""
    said = []
    if resumed.held is not None and resumed.held.args is not None:
        said.append(edit_note(redactor.value(ran)))
    notes = (one.note for one in resumed.decisions if isinstance(one, Approve))
    said += [f"The user's note: {redactor.text(note)}" for note in notes if note]
    return "\n".join(said) or None


def edit_note(args: Mapping[str, Any]) -> str:
    """The sentence for the model about a call that ran with other arguments than its own."""
    shown = shorten(json.dumps(args, ensure_ascii=False, default=repr), _MAX_EDIT_CHARS)
    return f"The user approved this call with other arguments, which replace yours: {shown}"


def bound_to(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The digest that binds an approval to *tool* and these arguments."""
    return digest(tool.name, arguments, tool.parameters)


def digest(name: str, arguments: Mapping[str, Any], parameters: Any) -> str:
    """The digest that binds an approval to a tool of this name and schema, and these arguments."""
    exactly = [name, arguments, parameters]
    text = json.dumps(exactly, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
