"""
The question about a tool call that waits for approval, as a person at a terminal is asked.

The call is shown with all of its arguments, because who approves has to see what is approved.
"""

from __future__ import annotations

import json

from looopy.cli.terminal import Terminal
from looopy.errors import ValueRefused
from looopy.tools.answering import check_answer
from looopy.types.approval import Approve, Deny, answer_to_json
from looopy.types.event import utc_now
from looopy.types.state import PendingKind, PendingRequest


def is_over(request: PendingRequest) -> bool:
    """True if *request* can no longer be answered."""
    return request.expires_at is not None and request.expires_at <= utc_now()


def ask_about(
    terminal: Terminal, request: PendingRequest, *, again: bool = False
) -> Approve | Deny | None:
    """
    The decision of the person at the terminal about a call that waits for it.

    `None`: the person does not decide now, or *request* is a question of another kind.

    Args:
        again: The person sees the question, whose prompt was interrupted.

    Raises:
        NewsCame: See `Terminal.interrupted_by`.
    """
    if not again:
        terminal.notice(request.prompt or f"{request.tool_name} waits for an answer.")
    if request.kind is not PendingKind.APPROVAL:
        return None
    if not again:
        # All of it: who approves has to see what is approved.
        args = json.dumps(dict(request.args), ensure_ascii=False, indent=2, default=str)
        terminal.notice(f"{request.tool_name} {args}")
        terminal.notice("A reason may follow y or n. e {...} allows it with other arguments.")
    while True:
        try:
            answer = terminal.read_line("Allow it? [y/n] ", anew=not again)
        except KeyboardInterrupt:
            return None
        if answer is None:
            return None
        word, _, more = answer.strip().partition(" ")
        if word.lower() in ("y", "yes"):
            return Approve(note=more.strip() or None)
        if word.lower() in ("n", "no"):
            return Deny(reason=more.strip() or None)
        if word.lower() in ("e", "edit"):
            try:
                edited = Approve(args=json.loads(more))
                check_answer(request, answer_to_json(edited))
            except ValueError as error:
                terminal.error(f"invalid JSON: {error}")
            except ValueRefused as error:
                terminal.error(str(error))
            else:
                return edited
