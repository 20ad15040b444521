"""`with tracejudge.trace(...) as t:` and what `t` can do."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tracejudge.model import Document, Feedback, Message, ToolCall, Usage
from tracejudge.recording import Step, current_step, kind_text


class OpenTrace:
    """A trace while it is open, or a step within it. Setting anything never raises.

    Every field of a trace can be set by its name. On a step within a trace `input` and `output` are the span's,
    and all else becomes an attribute of the span; on the trace itself, names it has no field for become tags.
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
        """The id of this step in the trace."""
        return self._step.ids.span_id

    def set(self, /, **fields: Any) -> None:
        """Set several fields at once."""
        if "kind" in fields:
            self._step.kind = kind_text(fields.pop("kind"))
        for name, value in fields.items():
            self._step.set(name, value)

    def __enter__(self) -> Self:
        self._step.begin()
        self._step.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._step.leave()
        # A generator that its consumer had enough of did not fail.
        self._step.end(None if isinstance(error, GeneratorExit) else error)

    async def __aenter__(self) -> Self:
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
    """Publish what a `with` or `async with` block does as one trace; within another trace it becomes a span.

    Exceptions are recorded and go on. A block that spans the `yield`s of a generator stays current for whoever
    consumes it; `observe` on the generator does not.

    Args:
        name: The operation.
        input: The user's query: a string, or anything that can be written as JSON.
        kind: What sort of step it is when it is a span: `retriever`, `llm`, `tool` ... What a retriever's output
            lists becomes the trace's context, unless that is set.
        fields: Other fields of the trace, or attributes of the span.
    """
    return OpenTrace(Step({**fields, "name": name, "input": input}, kind_text(kind)))


def current() -> OpenTrace:
    """Give the trace or step this code runs in, to set fields on it or to take its `trace_id`.

    Where there is none, or before `init`, it gives one that is published nowhere, whose `trace_id` is empty.
    """
    return OpenTrace(current_step() or Step.nowhere())
