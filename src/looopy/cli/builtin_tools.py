"""
A few harmless tools, so that a first conversation can show what a tool call is.

They change nothing: one waits, one returns the time, one calculates. Their schemas are small and
hold no examples, because the embedded model copies them into its calls.
"""

from __future__ import annotations

import ast
import asyncio
import math
import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from looopy.tools.base import Tool, ToolContext
from looopy.tools.function.decorator import tool

SYSTEM_PROMPT: Final = (
    "You are looopy, a friendly assistant in a terminal. Answer briefly, in plain text. Call a tool"
    " only when the user asks for what it does, and then answer with its result."
)

Number: TypeAlias = int | float

_LONGEST_WAIT_S: Final = 600
_REPORTS: Final = 5
_MAX_CHARS: Final = 200
_MAX_BITS: Final = 4096


# Waiting again does no harm, but its start is to be on record, so that a resume shows it.
@tool(effects="idempotent", timeout_s=_LONGEST_WAIT_S + 20)
async def wait(seconds: float, context: ToolContext) -> str:
    """Wait for so many seconds, at most 600."""
    if not 0 <= seconds <= _LONGEST_WAIT_S:
        raise ValueError(f"seconds must be from 0 to {_LONGEST_WAIT_S}")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for part in range(1, _REPORTS + 1):
        await asyncio.sleep(max(0.0, begun + seconds * part / _REPORTS - loop.time()))
        if seconds >= _REPORTS and part < _REPORTS:
            context.report(part / _REPORTS)
    return f"Waited {seconds:g} seconds."


@tool(effects="none")
async def current_time(time_zone: str = "") -> str:
    """
    Tell the date and the time.

    Args:
        time_zone: IANA name, Region/City; this computer's own when empty.
    """
    if time_zone.strip().lower() in ("", "local"):
        now = datetime.now().astimezone()
    else:
        try:
            now = datetime.now(ZoneInfo(time_zone.strip()))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {time_zone!r}: use Region/City") from None
    return f"{now:%A, %Y-%m-%d %H:%M:%S %Z (UTC%z)}"


@tool(effects="none")
async def calculate(expression: str) -> str:
    """
    Calculate an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % **, parentheses, sqrt abs round min max pi e.
    """
    value = evaluate(expression)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


BUILTIN_TOOLS: Final[Sequence[Tool]] = (wait, current_time, calculate)


# --- arithmetic --------------------------------------------------------------------------------


def evaluate(expression: str) -> Number:
    """
    The value of *expression*. It understands only arithmetic, and limits the size of every result.

    Raises:
        ValueError: It is not arithmetic, or has no finite value; the text is for the model.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"an expression has at most {_MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("this is not an arithmetic expression") from None
    try:
        return _value(tree.body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def _value(node: ast.expr) -> Number:
    result: object
    match node:
        case ast.Constant(value=int() | float() as result) if not isinstance(result, bool):
            pass
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            result = _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            result = _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            result = _call(name, [_value(arg) for arg in args])
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError("use ** for powers")
        case _:
            raise ValueError("only numbers, + - * / // % **, parentheses and " + _KNOWN)
    return _checked(result)


def _checked(result: object) -> Number:
    if isinstance(result, int):
        if result.bit_length() > _MAX_BITS:
            raise OverflowError
        return result
    if isinstance(result, float) and math.isfinite(result):
        return result
    raise ValueError("the result is not a real number")


def _power(base: Number, exponent: Number) -> object:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(exponent) * int(base).bit_length() > _MAX_BITS:
        raise OverflowError
    return base**exponent


def _call(name: str, args: Sequence[Number]) -> object:
    try:
        return _FUNCTIONS[name](*args)
    except TypeError:
        raise ValueError(f"{name} does not take {len(args)} values") from None


def _round(value: Number, digits: int = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 15:
        raise ValueError("round takes at most 15 digits")
    return round(value, digits) if digits else round(value)


_CONSTANTS: Final[dict[str, Number]] = {"pi": math.pi, "e": math.e}
_UNARY: Final[dict[type, Callable[[Number], Number]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_BINARY: Final[dict[type, Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "sqrt": math.sqrt,
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
}
_KNOWN: Final = " ".join([*_FUNCTIONS, *_CONSTANTS])
