"""`observe` and `trace`: each call of a function, or block, becomes a trace, or a span of the trace around it."""

import functools
import inspect
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tracejudge.api import _Current, warn_without_init
from tracejudge.content.encode import is_a, is_lazy
from tracejudge.log import report_or_raise
from tracejudge.model import Document, Feedback, Message, Tool, ToolCall, Usage
from tracejudge.tracing.step import Step, current_step, kind_text, meant_kind
from tracejudge.tracing.stream import UNOBSERVED, Stream, async_wrapper, drive

Choice = str | Callable[..., Any] | None
"""The input of a decorated function: a parameter's name, or a function of the same arguments."""
_POSITIONAL = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class Calls:
    """Begins and ends the steps of one function's calls. Never raises after the construction."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None,
        kind: str | None,
        input: Choice,  # noqa: A002 - the argument of `observe`
        output: Callable[[Any], Any] | None,
        fields: dict[str, Any],
    ) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some builtins have no signature
            parameters = []
        self._names = [part.name for part in parameters if part.kind in _POSITIONAL]
        self._rest = next((part.name for part in parameters if part.kind is part.VAR_POSITIONAL), "args")
        self._receiver = self._names[0] if self._names and self._names[0] in {"self", "cls"} else None
        self._input = input
        self._output = output
        self._kind = kind_text(kind)
        name = name or getattr(function, "__qualname__", None) or type(function).__qualname__
        self._fields = {**fields, "name": name}

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        """Begin the step of a call with its input."""
        step = Step(self._fields.copy(), self._kind)
        step.begin()
        if step.needs("input"):
            step.set("input", self._choose_input(args, kwargs))
        return step

    def end(self, step: Step, result: object) -> None:
        """End the step of a call that returned."""
        step.leave()
        if step.needs("output"):
            step.set("output", self._choose_output(result))
        step.end()

    def begin_stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stream:
        """Begin the step of a generator."""
        if _Current.client is None:
            warn_without_init("observe")
            return UNOBSERVED  # type: ignore[no-any-return]
        return Stream(self.begin(args, kwargs), self._choose_output)

    def _choose_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = dict(zip(self._names, args, strict=False))
        if self._receiver is not None:
            arguments.pop(self._receiver, None)
        if len(args) > len(self._names):
            arguments[self._rest] = args[len(self._names) :]
        arguments |= kwargs
        choice = self._input
        try:
            if callable(choice):
                return choice(*args, **kwargs)
            if choice is not None and choice in arguments:
                return arguments[choice]
        except BaseException as error:  # noqa: BLE001 - the host's function; as if nothing was chosen
            report_or_raise(error)
        only = next(iter(arguments.values())) if len(arguments) == 1 else None
        return only if is_a(only, str) else arguments or None

    def _choose_output(self, result: object) -> object:
        try:
            if self._output is not None:
                return self._output(result)
            has_no_output = is_lazy(type(result))
        except BaseException as error:  # noqa: BLE001 - the host's function
            report_or_raise(error)
            return result
        return None if has_no_output else result


_Function = TypeVar("_Function", bound=Callable[..., Any])


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
    """Publish each call of a function or generator, synchronous or not, as one trace.

    Calls of observed functions within it become its spans, across tasks and wherever the context is passed on, but
    not in new threads. A `retriever` or `tool` outside of any trace publishes nothing. The pieces of a stream are
    collected; its trace ends when it is exhausted, closed or dropped. Exceptions are recorded and raised again.
    `current()` returns the open trace.

    Args:
        function: The decorated function, if there are no other arguments.
        name: Name of the operation; by default the function's qualified name.
        kind: Kind of the span: `retriever`, `llm`, `tool` ... The documents that a retriever returns become the
            trace's context, unless that is set.
        input: The parameter that holds the user's query, or a function of the call's arguments that returns it. By
            default a single string as it is, else the arguments as JSON.
        output: Returns the output from the returned value, or the text of each piece of a stream.
        fields: Other fields of the trace, or attributes of the span, the same for each call.
    """
    decorated: object = function
    if decorated is not None and not callable(decorated) and not isinstance(decorated, classmethod | staticmethod):
        raise TypeError('observe takes a function; pass other arguments by name, as observe(name="answer")')
    if (meant := meant_kind(kind)) is not None:
        raise ValueError(f'kind "{kind}" is unknown; did you mean "{meant}"?')
    options = {"name": name, "kind": kind, "input": input, "output": output, "fields": fields}
    return functools.partial(_observed, options) if function is None else _observed(options, function)


def _observed(options: dict[str, Any], function: Any) -> Any:
    if isinstance(function, classmethod | staticmethod):
        return type(function)(_observed(options, function.__func__))
    choice = options["input"]
    if isinstance(choice, str) and choice not in inspect.signature(function).parameters:
        raise TypeError(f"input: {function.__qualname__} has no parameter {choice!r}")
    calls = Calls(function, **options)
    # A wrapper of the function's own kind, so that `inspect` sees no difference.
    if inspect.isasyncgenfunction(function):
        wrapper: Callable[..., Any] = async_wrapper(function, calls.begin_stream)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, calls)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, calls)
    else:
        wrapper = _plain_function(function, calls)
    return functools.wraps(function)(wrapper)


def _plain_function(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Any:
        if _Current.client is None:
            warn_without_init("observe")
            return function(*args, **kwargs)
        step = calls.begin(args, kwargs).enter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            step.leave()
            step.end(error)
            raise
        calls.end(step, result)
        return result

    return observed


def _coroutine(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    async def observed(*args: Any, **kwargs: Any) -> Any:
        if _Current.client is None:
            warn_without_init("observe")
            return await function(*args, **kwargs)
        step = calls.begin(args, kwargs).enter()
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            step.leave()
            step.end(error)
            raise
        calls.end(step, result)
        return result

    return observed


def _generator(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def observed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        if _Current.client is None:
            warn_without_init("observe")
            return (yield from generator)
        return (yield from drive(generator, calls.begin_stream(args, kwargs)))

    return observed


class OpenTrace:
    """An open trace, or a step within one. Setting a field never raises.

    Every field of a trace can be set by its name; other names become tags. On a step within a trace `input` and
    `output` belong to the span, and every other name becomes an attribute of the span.
    """

    if TYPE_CHECKING:
        name: str | None
        kind: str | None
        input: Any
        output: Any
        error: Any
        context: list[Document | str] | None
        messages: list[Message] | None
        tool_calls: list[ToolCall] | None
        tools: list[Tool] | None
        expected_tools: list[ToolCall] | None
        provider: str | None
        model: str | None
        usage: Usage | None
        environment: str | None
        release: str | None
        session_id: str | None
        user_id: str | None
        response_id: str | None
        started_at: float | None
        ended_at: float | None
        expected_response: str | None
        expected_facts: list[str] | None
        guidelines: list[str] | None
        feedback: Feedback | None
        tags: dict[str, str] | None
    else:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return self._step.kind if name == "kind" else self._step.fields.get(name)

        def __setattr__(self, name: str, value: object) -> None:
            self.set(**{name: value})

    _step: Step

    def __init__(self, step: Step) -> None:
        object.__setattr__(self, "_step", step)

    @property
    def trace_id(self) -> str:
        """The id of the trace, for `feedback`."""
        return self._step.trace_id

    @property
    def span_id(self) -> str:
        """The id of this step."""
        return self._step.ids.span_id

    def set(self, /, **fields: Any) -> None:
        """Set several fields at once."""
        if "kind" in fields:
            self._step.kind = kind_text(fields.pop("kind"))
        for name, value in fields.items():
            self._step.set(name, value)

    def __enter__(self) -> "OpenTrace":  # noqa: PYI034 - Python 3.10 has no `Self`
        self._step.begin()
        self._step.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._step.leave()
        # A generator whose consumer needs no more did not fail.
        self._step.end(None if isinstance(error, GeneratorExit) else error)

    async def __aenter__(self) -> "OpenTrace":  # noqa: PYI034 - the same
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def trace(
    *,
    name: str | None = None,
    input: Any = None,  # noqa: A002 - the field's name
    kind: str | None = None,
    **fields: Any,
) -> OpenTrace:
    """Publish a `with` or `async with` block as one trace; within another trace it becomes a span.

    Exceptions are recorded and raised again. A block around the `yield`s of a generator stays current for its
    consumer; `observe` on the generator does not.

    Args:
        name: Name of the operation.
        input: The user's query: a string, or any value with a JSON form.
        kind: Kind of the span: `retriever`, `llm`, `tool` ... The documents in a retriever's output become the
            trace's context, unless that is set.
        fields: Other fields of the trace, or attributes of the span.
    """
    return OpenTrace(Step({**fields, "name": name, "input": input}, kind_text(kind)))


def current() -> OpenTrace:
    """Return the current trace or step, to set fields on it or to read its `trace_id`.

    Outside of a trace, and before `init`, it returns one that is never published, with an empty `trace_id`.
    """
    return OpenTrace(current_step() or Step.detached())
