"""`@tracejudge.observe`: what a function does becomes a trace, or a span of the trace it is called in."""

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, TypeVar, overload

from tracejudge.api import _Current
from tracejudge.arguments import Choice
from tracejudge.calls import Calls, Observation
from tracejudge.streams import async_wrapper, drive

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Wrap = Callable[[Callable[..., Any], Calls], Callable[..., Any]]


@overload
def observe(function: _Function, /) -> _Function: ...


@overload
def observe(
    *,
    name: str | None = None,
    kind: str | None = None,
    input: Choice = None,
    output: Callable[[Any], Any] | None = None,
    **fields: Any,
) -> Callable[[_Function], _Function]: ...


def observe(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    kind: str | None = None,
    input: Choice = None,  # noqa: A002 - the field's name
    output: Callable[[Any], Any] | None = None,
    **fields: Any,
) -> Any:
    """Publish each call of a function, a generator or their asynchronous kin as one trace.

    Calls of observed functions within it become its spans, across tasks and wherever the context goes along (not
    into new threads). A `retriever` or `tool` outside of any trace publishes nothing. A stream's pieces are collected,
    and its trace ends when it is exhausted, closed or dropped.
    Exceptions are recorded and go on. `current()` gives the open trace.

    Args:
        function: What is decorated, when there is nothing else to say.
        name: The operation; by default the function's qualified name.
        kind: What sort of step it is when it is a span: `retriever`, `llm`, `tool` ... The documents a retriever
            returns become the trace's context, unless that is set.
        input: The parameter that holds the user's query, or a function of the call's arguments that gives it. By
            default a single string as it stands, else the arguments as JSON.
        output: Gives the answer from the returned value, or the text from each piece of a stream.
        fields: Other fields of the trace, or attributes of the span, the same for each call.
    """
    _refuse_other(function)
    observation = Observation(name=name, kind=kind, input=input, output=output, fields=fields)
    return functools.partial(_observed, observation) if function is None else _observed(observation, function)


def _refuse_other(function: object) -> None:
    if function is not None and not callable(function) and not isinstance(function, classmethod | staticmethod):
        raise TypeError('observe takes a function; other things go by name, as observe(name="answer")')


def _observed(observation: Observation, function: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        return type(function)(_observed(observation, function.__func__))
    if isinstance(observation.input, str) and observation.input not in inspect.signature(function).parameters:
        raise TypeError(f"input: {function.__qualname__} has no parameter {observation.input!r}")
    wrapper = _wrap_of(function)(function, Calls(observation, function))
    return functools.wraps(function)(wrapper)


def _wrap_of(function: Callable[..., Any]) -> _Wrap:
    """Choose the wrapper of the function's own sort, so that it stays what it is for who asks `inspect`."""
    if inspect.isasyncgenfunction(function):
        return _async_generator
    if inspect.isgeneratorfunction(function):
        return _generator
    if inspect.iscoroutinefunction(function):
        return _coroutine
    return _plain_function


def _plain_function(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Any:
        if _Current.client is None:
            return function(*args, **kwargs)
        step = calls.begin(args, kwargs)
        step.enter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            step.leave()
            step.end(error)
            raise
        step.leave()
        calls.end(step, result)
        return result

    return observed


def _coroutine(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    async def observed(*args: Any, **kwargs: Any) -> Any:
        if _Current.client is None:
            return await function(*args, **kwargs)
        step = calls.begin(args, kwargs)
        step.enter()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            step.leave()
            step.end(error)
            raise
        step.leave()
        calls.end(step, result)
        return result

    return observed


def _generator(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        if _Current.client is None:
            return (yield from generator)
        return (yield from drive(generator, calls.begin_stream(args, kwargs)))

    return observed


def _async_generator(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    return async_wrapper(function, calls.begin_stream)
