"""
Hold a turn to the answer that was asked for: accept what fits, and ask again for what does not.

Asking again is a message of the user's side, stored like any other: a history in which the model
answered twice in a row would be none.
"""

from __future__ import annotations

from looopy.errors import OutputInvalid
from looopy.output import FINAL_ANSWER, OutputRefused, Wanted, is_accepted
from looopy.turn import Queued, Turn
from looopy.types.event import TurnWarning
from looopy.types.message import AssistantMessage, StopReason, UserMessage

CUT = "it was cut off: give a shorter one"


def judge_answer(turn: Turn, assistant: AssistantMessage | None) -> None:
    """End the turn with an answer that fits; else have it go on, while it may."""
    wanted = turn.wanted
    if wanted is None or turn.asked:  # what a person says may change the answer
        return
    if any(is_accepted(result) for result in turn.results):
        turn.stop, turn.error = StopReason.STOP, None
        return
    given = [r for r in turn.results if r.tool_name == FINAL_ANSWER]
    if given and wanted.tool is not None:
        _refuse(turn, wanted, given[-1].text, asks=False)
    elif assistant is not None and turn.stop in (StopReason.STOP, StopReason.LENGTH):
        cut = turn.stop is StopReason.LENGTH
        try:
            wanted.type.read_text(assistant.text)
        except OutputRefused as error:
            _refuse(turn, wanted, CUT if cut else str(error), asks=True)
        else:
            turn.stop = StopReason.STOP


def _refuse(turn: Turn, wanted: Wanted, problem: str, *, asks: bool) -> None:
    wanted.tries += 1
    allowed = turn.config.max_output_retries + 1
    if wanted.tries >= allowed:
        turn.stop = StopReason.ERROR
        turn.error = OutputInvalid(
            f"the model gave no answer that fits output_type in {allowed} tries"
            f" (LoopConfig.max_output_retries). The last time: {problem}",
            tries=wanted.tries,
        )
        return
    text = f"answer {wanted.tries} of {allowed} does not fit output_type: {problem}"
    turn.emit(turn.make(TurnWarning, code="output_invalid", text=text))
    if asks:
        how = "as JSON alone" if wanted.tool is None else f"by calling the tool {FINAL_ANSWER}"
        turn.stop = None
        turn.queued = (
            Queued(UserMessage(f"Your answer does not fit: {problem}\nGive it again, {how}.")),
            *turn.queued,
        )
