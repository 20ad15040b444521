"""`with tracejudge.trace(...) as t:` and the object `t`."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from tracejudge.model import Document, Feedback, Message, Tool, ToolCall, Usage
from tracejudge.tracing.step import Step, current_step, kind_text


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
