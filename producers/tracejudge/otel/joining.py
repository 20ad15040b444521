"""Joining the spans of one OpenTelemetry trace into the fields of one published trace.

Nothing here imports OpenTelemetry: the gateway joins spans that arrive as OTLP.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from tracejudge.dialects import RawSpan, Reading, is_content, names, read
from tracejudge.dialects.reading import Call, Role, ToolResult
from tracejudge.dialects.values import clean, plain, structure_of
from tracejudge.model import Document, JSONValue, Message, Span, ToolCall, Usage

_COMPOSED: Final = frozenset({Role.AGENT, Role.CHAIN})
_OWN_ANSWERS: Final = frozenset({Role.AGENT, Role.TOOL, Role.RETRIEVER, Role.RERANKER})


class SpanGroup(Struct, frozen=True):
    """The spans of one trace in the order they ended, and the local root; None if it did not end."""

    root: RawSpan | None
    spans: tuple[RawSpan, ...]


class Step(Struct, frozen=True):
    """A span and what was read from it."""

    span: RawSpan
    reading: Reading

    @property
    def is_composed(self) -> bool:
        """Whether it is an agent or a chain."""
        return self.reading.role in _COMPOSED


class TraceSteps:
    """The steps of a trace in the order they ended, without evaluators, guardrails and the spans below them."""

    def __init__(self, group: SpanGroup) -> None:
        self._steps = {span.span_id: Step(span, read(span)) for span in group.spans}
        self.root = None if group.root is None else self._steps.get(group.root.span_id)
        kept = [
            step
            for step in self._steps.values()
            if not any(near.reading.role is Role.JUDGE for near in (step, *self.above(step)))
        ]
        self.steps = sorted(kept, key=lambda step: step.span.ended_at or 0.0)

    def of_role(self, *roles: Role) -> list[Step]:
        """Return the steps of these roles in the order they ended."""
        return [step for step in self.steps if step.reading.role in roles]

    def above(self, step: Step) -> Iterator[Step]:
        """Yield the parent of a step, its parent, and so on to the top."""
        for _ in range(1_000):  # parents may form a circle
            parent = self._steps.get(step.span.parent_id or "")
            if parent is None or parent is step:
                return
            yield parent
            step = parent

    def is_within_any(self, step: Step, ids: set[str]) -> bool:
        """Return whether a step is below one of these spans."""
        return any(parent.span.span_id in ids for parent in self.above(step))

    def model_calls(self) -> list[Step]:
        """Return the last call of a model and the calls within which it is, the innermost first.

        A library that calls a model through another one has a span of both.
        """
        calls = self.of_role(Role.LLM)
        if not calls:
            return []
        # The outer call ends last; what tools and agents below it call is not its answer.
        chain = [calls[-1]]
        while inner := [step for step in calls if self._is_same_call(step, chain[0])]:
            chain.insert(0, inner[-1])
        return chain

    def _is_same_call(self, step: Step, outer: Step) -> bool:
        if any(parent is step for parent in self.above(outer)):  # parents form a circle
            return False
        for parent in self.above(step):
            if parent is outer:
                return True
            if parent.reading.role in _OWN_ANSWERS:
                break
        return False

    def is_same_tool_call(self, step: Step, done: Call) -> bool:
        """Return whether a call is within a span of the same call, as where two instrumentations write one each."""
        outer = next((parent for parent in self.above(step) if parent.reading.role in _OWN_ANSWERS), None)
        return outer is not None and outer.reading.tool is not None and outer.reading.tool.name == done.name

    def request(self, call: Step | None) -> Step | None:
        """Return the topmost agent or chain around the last call that has an input or output of its own.

        Without a call of a model it is the topmost agent or chain with an output.
        """
        if call is not None:
            around = [step for step in self.above(call) if step.is_composed]
            return next((step for step in reversed(around) if step.reading.input or step.reading.output), None)
        # Not a part of a step that has an input and returns objects alone, as the building of an index does.
        outputs = [
            step
            for step in self.steps
            if step.is_composed
            and step.reading.output
            and not any(
                parent.reading.input and not parent.reading.output for parent in self.above(step) if parent.is_composed
            )
        ]
        return min(outputs, key=lambda step: (len(list(self.above(step))), -(step.span.ended_at or 0.0)), default=None)


def retrieved_context(steps: TraceSteps, judged: Step) -> list[Document]:
    """Return the documents retrieved before the judged step ended, anywhere in the trace, each once.

    Its id, score and source may be those of another retrieval: an outer one may keep the text alone.
    """
    ended_at = judged.span.ended_at or float("inf")
    began = [
        step
        for step in steps.of_role(Role.RETRIEVER, Role.RERANKER, Role.TOOL)
        if step.reading.documents and (step.span.started_at or 0.0) <= ended_at
    ]
    # A retriever made of retrievers is one retrieval, the outer one's.
    ids = {step.span.span_id for step in began if step.reading.role is not Role.TOOL}
    documents: list[Document] = []
    for step in began:
        reading = step.reading
        if steps.is_within_any(step, ids):
            continue
        if reading.role is Role.RERANKER:
            # Its choice replaces the documents it was given: all so far, if it does not say which.
            texts = {document.text for document in reading.reranked}
            rest = [document for document in documents if document.text not in texts] if texts else []
            documents = [*reading.documents, *rest]
        else:
            documents += reading.documents
    by_text: dict[str, Document] = {}
    for document in (*documents, *(document for step in began for document in step.reading.documents)):
        if document.text not in by_text or by_text[document.text] == Document(document.text):
            by_text[document.text] = document
    return [by_text[text] for text in dict.fromkeys(document.text for document in documents)]


def collect_tool_calls(steps: TraceSteps, output: str | None = None) -> list[ToolCall]:
    """List the tool calls in order; a call requested by a model and executed by a span is one.

    A call that passes on the output gives the answer, if it was not executed, or is the last one, which checks it.
    """
    given = plain(structure_of(output))
    executed: set[str] = set()
    seen: set[str] = set()  # ids, and names with arguments
    calls: dict[str, Call] = {}
    results: dict[str, ToolResult] = {}
    for step in steps.of_role(Role.LLM, Role.AGENT):
        reading = step.reading
        for call in (*reading.input.calls, *reading.output.calls):
            # Later calls of a model repeat earlier ones, and the answer or its repetition may be without ids.
            key = f"call {call.name} {_json(call.arguments)}"
            if call.id is None:
                if key not in seen:
                    calls[key] = call
            elif call.id not in seen:
                is_answer = key in calls and calls[key].id is None
                calls[key if is_answer else call.id] = call
                seen.add(call.id)
            seen.add(key)
        results.update((result.id, result) for result in reading.input.results if result.id is not None)
    for step in steps.of_role(Role.TOOL):
        done = step.reading.tool
        if done is not None and not steps.is_same_tool_call(step, done):
            by_id = next((key for key, call in calls.items() if call.id is not None and call.id == done.id), None)
            # Some give a call another id than the model did.
            key = by_id or next(
                (key for key, call in calls.items() if key not in executed and _is_same(call, done)),
                f"span {step.span.span_id}",
            )
            executed.add(key)
            requested = calls.get(key, done)
            call_id = requested.id or done.id
            calls[key] = Call(requested.name, requested.arguments, call_id, done.result, step.reading.error)
    published: list[ToolCall] = []
    for key, call in calls.items():
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        is_answer = arguments == given or [*arguments.values()] == [given]
        if is_answer and (key not in executed or key == next(reversed(calls))):
            continue
        told = results.get(call.id or "")
        result = call.result if call.result is not None or told is None else told.result
        published.append(ToolCall(call.name, call.arguments, result, call.error))
    return published


def _is_same(requested: Call, done: Call) -> bool:
    return requested.name == done.name and done.arguments in (None, requested.arguments)


def build_span(span: RawSpan, reading: Reading) -> Span:
    """Build the published span of a step."""
    # Content is removed from the attributes: it is in inputs and outputs.
    kept = [key for key in span.attributes if not is_content(key)][:128]
    attributes = {clean(key): value for key in kept if (value := plain(span.attributes[key])) is not None}
    if reading.tool is not None:
        inputs = reading.tool.arguments
    else:
        # Of a conversation only the query: the history is in the trace.
        inputs = reading.input.raw if reading.input.query is None else reading.input.query
    return Span(
        span_id=span.span_id,
        name=clean(span.name),
        parent_id=span.parent_id,
        kind=span.kind if reading.role is None else reading.role.value,
        started_at=span.started_at,
        ended_at=span.ended_at,
        status=span.status,
        inputs=inputs,
        outputs=_outputs(reading),
        attributes=attributes or None,
    )


def _outputs(reading: Reading) -> JSONValue:
    """Return the output of a step, or its error if it failed without one."""
    if reading.tool is not None:
        return reading.error if reading.tool.result is None else reading.tool.result
    if reading.role in {Role.RETRIEVER, Role.RERANKER}:
        return [_given(asdict(document)) for document in reading.documents] or reading.error
    if reading.output.text is not None:
        return reading.output.text
    if reading.output.calls:
        return [{"name": call.name, "arguments": call.arguments} for call in reading.output.calls]
    return reading.error if reading.output.raw is None else reading.output.raw


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [])}


def join(group: SpanGroup) -> dict[str, Any] | None:
    """Return the fields of a trace; None if no model was called and nothing has an output.

    The last call of a model is judged; of nested ones the innermost answers and the outermost asks. The input and
    output of an agent or chain around it replace the call's, because they are what the user saw. `span_id` is the span
    of the judged output.
    """
    steps = TraceSteps(group)
    calls = steps.model_calls()
    call = next(reversed(calls), None)
    request = steps.request(call)
    requests = [] if request is None else [request]
    sources = [*requests, *calls]
    if not sources:
        return None
    output, judged = _output(sources)
    query = _query([*requests, *reversed(calls)])
    nearest_first = [*calls, *requests]
    root = steps.root
    ordered = sorted(steps.steps, key=lambda step: step.span.started_at or 0.0)
    # A field that any span may have: the call first, then the request, then those around them, then all others.
    nearest = [*nearest_first, *(parent for step in sources for parent in steps.above(step)), *steps.steps]
    return _given(
        {
            "trace_id": judged.span.trace_id,
            "span_id": judged.span.span_id,
            "name": clean((root or judged).span.name) or None,
            "output": output or "",
            "input": query,
            "messages": _history(nearest_first, query),
            "context": retrieved_context(steps, judged),
            "tool_calls": collect_tool_calls(steps, output),
            "spans": [build_span(step.span, step.reading) for step in ordered],
            "usage": _usage(steps, request, call),
            "started_at": judged.span.started_at,
            "ended_at": judged.span.ended_at,
            "error": judged.reading.error or (None if output or root is None else root.reading.error),
            # That of the call with the answer first: one around or within it may know the requested one alone.
            "model": _first(sorted(nearest_first, key=lambda step: not step.reading.output), "model"),
            "provider": _first(nearest_first, "provider"),
            "response_id": _first(nearest_first, "response_id"),
            "session_id": _first(nearest, "session_id"),
            "user_id": _first(nearest, "user_id"),
        }
    )


def _history(nearest_first: list[Step], query: str | None) -> list[Message]:
    """Return the messages before the query: of the judged call, or of a step above it that knows more turns."""
    turns_of: list[list[Message]] = []
    for step in nearest_first:
        messages = [*step.reading.input.history]
        if query is None or query not in (step.reading.input.query or ""):
            # A later call of an agent may have the query among the messages before: the last one that is the same.
            # Within the call's own query, as in the prompts of CrewAI, it is asked there, and those before are others.
            places = [place for place, turn in enumerate(messages) if (turn.role, turn.content) == ("user", query)]
            messages = messages[: places[-1]] if places else messages
        turns_of.append(messages)
    turns = (messages for messages in turns_of if any(turn.role not in {"system", "developer"} for turn in messages))
    return next(turns, None) or next((messages for messages in turns_of if messages), [])


def _output(sources: list[Step]) -> tuple[str | None, Step]:
    """Return the first text, else the first structure, and its step; the call if there is neither.

    A model that calls the tool `final_result` of Pydantic AI gives its typed answer.
    """
    errors = [step.reading.error for step in sources if step.reading.error is not None]
    for step in sources:
        text = step.reading.output.text
        # A step that failed may return the error of a call within it.
        if text is not None and (step.reading.error is None or not any(text in error for error in errors)):
            return text, step
    for step in sources:
        if step.reading.output.raw is not None:
            return _json(step.reading.output.raw), step
    for step in sources:
        result = next((call for call in step.reading.output.calls if call.name == names.PA_RESULT), None)
        if result is not None:
            return _json(result.arguments), step
    return None, sources[-1]


def _query(sources: list[Step]) -> str | None:
    inputs = [step.reading.input for step in sources]
    query = next((read.query for read in inputs if read.query is not None), None)
    if query is not None:
        return query
    raw = next((read.raw for read in inputs if read.raw is not None), None)
    return None if raw is None else _json(raw)


def _usage(steps: TraceSteps, request: Step | None, call: Step | None) -> Usage | None:
    """Count the tokens of all calls within the request, or of the call alone; a call within a call counts once."""
    if request is None:
        return None if call is None else call.reading.usage
    calls = [(step, usage) for step in steps.of_role(Role.LLM) if (usage := step.reading.usage) is not None]
    ids = {step.span.span_id for step, _ in calls}
    within = [(step, usage) for step, usage in calls if any(around is request for around in (step, *steps.above(step)))]
    used = [usage for step, usage in within if not steps.is_within_any(step, ids)]
    if not used:
        return request.reading.usage
    return Usage(sum(usage.input_tokens for usage in used), sum(usage.output_tokens for usage in used))


def _first(steps: Iterable[Step], name: str) -> str | None:
    return next((value for step in steps if (value := getattr(step.reading, name)) is not None), None)


def _json(value: JSONValue) -> str:
    return msgspec.json.encode(value).decode()
