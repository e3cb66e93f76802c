"""
`@tool`: a Python function becomes a tool that a model may call.

The function stays callable: calling the tool directly calls it. Its signature is read once, at
decoration, so that a mistake shows at import and not in the middle of a turn. An async function
runs on the event loop, any other in a thread of ours (`looopy.tools.function.threads`), because it
may block.

With `parameters=` the function has the classic form: it receives the call's id and the arguments as
a dictionary, and optionally a signal to stop and a callback for progress.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from looopy.errors import InvalidTool
from looopy.tools.base import Tool, ToolContext, ToolOptions, ToolResult, refuse_unknown
from looopy.tools.function.signature import Decoder, Signature, read_signature
from looopy.tools.function.threads import tool_threads
from looopy.tools.schema import check_schema

P = ParamSpec("P")
R = TypeVar("R")
_OWN = ("name", "description", "parameters", "extra")
_CLASSIC = ("tool_call_id", "params", "signal", "on_update")
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FunctionTool(Tool, Generic[P, R]):
    """
    A tool made of a function; `tool` makes it.

    Attributes:
        function: The function itself; calling the tool calls it.
        runs_in_thread: The function is not async, so it runs in a thread and cannot be stopped.
    """

    def __init__(
        self,
        function: Callable[P, R],
        signature: Signature,
        *,
        parameters: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        ignores_extra: bool = False,
    ) -> None:
        self.function = function
        self.runs_in_thread = not signature.is_async
        if parameters is None:
            decoder = Decoder(signature, ignores_extra=ignores_extra)
            super().__init__(parameters=decoder.schema, **options)
            self._bind = functools.partial(_bind_typed, decoder, self.name, signature.context_names)
        else:
            _check_classic(signature)
            super().__init__(parameters=parameters, **options)
            check_schema(self.parameters)
            self._bind = functools.partial(_bind_classic, signature)
        self.__name__ = self.name
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        return self.function(*args, **kwargs)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """
        Call the function with *arguments* converted to the types of its annotations.

        Raises:
            InvalidToolArguments: The types refuse what the schema allowed.
            Exception: The function's own.
        """
        positional, named = self._bind(arguments, context)
        call = functools.partial(self.function, *positional, **named)
        result: Any = await tool_threads().run(call) if self.runs_in_thread else call()
        # A function that is not async may still return something to await.
        return await result if inspect.isawaitable(result) else result


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    extra: Literal["refuse", "ignore"] = "refuse",
    **options: Unpack[ToolOptions],
) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    extra: Literal["refuse", "ignore"] = "refuse",
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    extra: Literal["refuse", "ignore"] = "refuse",
    **options: Unpack[ToolOptions],
) -> Any:
    """
    Make a tool of a function: `@tool`, `@tool(timeout_s=5)` or `tool(function, name="f")`.

    Name, description and schema come from signature, annotations and docstring (Google, numpy or
    reST). A parameter annotated `ToolContext` receives the context of the call and is not shown to
    the model. The function may return text, any JSON value, pydantic models, dataclasses,
    `TextContent`, `ImageContent`, `DocumentContent`, `AudioContent` or a list of them, or a
    `ToolResult`; raising makes an error result.

    Args:
        function: Sync or async; bound methods, partials and callable objects too.
        name: The function's own by default.
        description: The docstring, without its sections on parameters and results, by default.
        parameters: JSON Schema. The function is then called in the classic form, as
            `(tool_call_id, params, signal, on_update)`, with as many of these as it takes.
        extra: `"ignore"` leaves out arguments that the function does not have; by default the model
            gets an error, and corrects the call.
        **options: See `Tool` for each:

            - `label`: For people.
            - `timeout_s`: Seconds. A sync function that exceeds it is abandoned, not stopped.
            - `parallel`: May run beside other parallel tools.
            - `effects`: The effect of repeating a call.
            - `on_resume`: The handling of a call whose process died while it ran.
            - `needs_approval`: A person allows each call before it runs.
            - `approval_expires_s`: Seconds that a person has for the answer.
            - `approval_prompt`: The question to that person, or a function that makes it.
            - `is_enabled`: Offered to the model only if this returns true.
            - `max_result_bytes`: UTF-8 bytes of a result that the model sees.
            - `coerce`: Read `"5"` as 5 if the schema wants a number, and the like.
            - `retries`: How often a call is repeated after a temporary failure.
            - `retry_delay_s`: Seconds before the first of these.
            - `max_retry_calls`: How often in a turn `RetryCall` asks the model to call again.

    Raises:
        InvalidTool: The function cannot be offered to a model; the message names the parameter and
            the remedy.
        TypeError: There is no such option.
    """
    refuse_unknown("tool", options, (*_OWN, *ToolOptions.__annotations__))
    if extra not in ("refuse", "ignore") or (extra == "ignore" and parameters is not None):
        raise InvalidTool(
            "extra is 'refuse' or 'ignore', and goes with annotations: a schema in parameters= says"
            " itself which arguments it allows"
        )

    def make(function: Callable[..., Any], namespace: Mapping[str, Any]) -> FunctionTool[..., Any]:
        if isinstance(function, Tool) or not callable(function):
            raise InvalidTool(
                f"tool() takes a function, not {function!r}; options are passed by name"
            )
        signature = read_signature(function, namespace)
        if name is None and signature.name == "<lambda>":
            raise InvalidTool("a lambda has no name: pass one, as in tool(function, name='double')")
        return FunctionTool(
            function,
            signature,
            parameters=parameters,
            ignores_extra=extra == "ignore",
            options={
                "name": signature.name if name is None else name,
                "description": signature.doc.description if description is None else description,
                **options,
            },
        )

    # Annotations that are strings may name what is local to the caller; its frame is the only way.
    if function is not None:
        return make(function, sys._getframe(1).f_locals)  # noqa: SLF001
    return lambda function: make(function, sys._getframe(1).f_locals)  # noqa: SLF001


def _bind_typed(
    decoder: Decoder,
    name: str,
    context_names: tuple[str, ...],
    arguments: Mapping[str, Any],
    context: ToolContext,
) -> tuple[list[Any], dict[str, Any]]:
    return [], decoder.decode(name, arguments) | dict.fromkeys(context_names, context)


def _check_classic(signature: Signature) -> None:
    needed = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.name not in signature.context_names
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and not (parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name in _CLASSIC)
    ]
    keyword = [n for n in needed if signature.parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
    if len(needed) > len(_CLASSIC) or keyword:
        raise InvalidTool(
            f"tool function {signature.name}(): with parameters= it is called as"
            f" ({', '.join(_CLASSIC)}), and cannot take {', '.join(keyword or needed)}: take these,"
            " or leave parameters= out"
        )


def _bind_classic(
    signature: Signature, arguments: Mapping[str, Any], context: ToolContext
) -> tuple[list[Any], dict[str, Any]]:
    values = {
        "tool_call_id": context.tool_call_id,
        "params": dict(arguments),
        "signal": context.cancel,
        "on_update": functools.partial(_report_update, context),
    }
    own = [p for p in signature.parameters.values() if p.name not in signature.context_names]
    places = [p.name for p in own if p.kind in _BY_POSITION]
    if len(places) == 1 and places[0] not in values:  # a lone parameter means the arguments
        order = ["params"]
    else:
        order = places if all(place in values for place in places) else list(values)
    left = iter(order)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        is_context = parameter.name in signature.context_names
        if parameter.kind in _BY_POSITION and is_context:
            positional.append(context)
        elif parameter.kind in _BY_POSITION and (key := next(left, None)):
            positional.append(values[key])
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [values[key] for key in values if key not in order[: len(places)]]
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and is_context:
            named[parameter.name] = context
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name in values:
            named[parameter.name] = values[parameter.name]
    return positional, named


def _report_update(context: ToolContext, update: Any) -> None:
    """Show a partial result; progress is JSON, so a `ToolResult` becomes its text and details."""
    if isinstance(update, ToolResult):
        blocks = update.content
        text = (
            blocks
            if isinstance(blocks, str)
            else "\n".join(getattr(block, "text", "") for block in blocks)
        )
        update = {"text": text, "details": update.details}
    context.report(update)
