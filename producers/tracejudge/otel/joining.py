"""Joining the spans of one OpenTelemetry trace into the fields of one published trace.

Nothing here imports OpenTelemetry: the gateway joins spans that arrive as OTLP.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from tracejudge.dialects import Dialects, RawSpan, Reading, builtin, names
from tracejudge.dialects.names import Call, Role, ToolResult
from tracejudge.dialects.values import clean, plain, structure_of
from tracejudge.model import Document, JSONValue, Message, Span, ToolCall, Usage

_COMPOSED: Final = frozenset({Role.AGENT, Role.CHAIN})
_MAX_OPERATIONS: Final = 64
# How a text begins that is a call or a structure, as an instrumentation wrote it.
_RECORD: Final = re.compile(r"""\s*([\[{]|\(['"]|\w+ ?[=(])""")
_WORD_BEGIN: Final = re.compile(r"(?:^|\W)$")
_PART_BEGIN: Final = re.compile(r"(?:^|[\"'`:>\n])\s*$")
_PART_END: Final = re.compile(r"(?<=[.?!])|[ \t]*(?:[^\w\s]|\n|$)")
_MAX_QUOTED: Final = 200
_MAX_PLACES: Final = 100
_FINAL: Final = frozenset({names.FINAL_RESULT, "final_answer"})
"""Tools by which a model gives its answer: of Pydantic AI and of smolagents."""
_CHECKED: Final = "Successfully validated "
"""How the result of a tool begins that Strands has check a typed result."""
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

    def __init__(self, group: SpanGroup, dialects: Dialects) -> None:
        self._steps = {span.span_id: Step(span, dialects.read(span)) for span in group.spans}
        self.root = None if group.root is None else self._steps.get(group.root.span_id)
        kept: Iterable[Step] = self._steps.values()
        judges = {key for key, step in self._steps.items() if step.reading.role is Role.JUDGE}
        if judges:
            kept = [
                step for key, step in self._steps.items() if key not in judges and not self.is_within_any(step, judges)
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
        """Return the call of a model that answers and the calls within which it is, the innermost first."""
        # A library that calls a model through another one has a span of both.
        calls = self.of_role(Role.LLM)
        if not calls:
            return []
        # The outer call ends last; what tools and agents below it call is not its answer.
        chain = [self._answering(calls)]
        while inner := [step for step in calls if self._is_same_call(step, chain[0])]:
            chain.insert(0, inner[-1])
        return chain

    def _answering(self, calls: list[Step]) -> Step:
        """Return the call that answers: the last one, unless it is about an answer that was given before."""
        # A title, a summary or a check of the answer quotes the question of an earlier operation together with its
        # answer. An operation is the topmost agent or chain around a call that has an output of its own, else the call.
        operations: dict[str, tuple[Step, Step]] = {}
        for call in calls[-_MAX_OPERATIONS:]:
            request = self.request(call)
            operation = call if request is None or not request.reading.output else request
            operations.pop(operation.span.span_id, None)
            operations[operation.span.span_id] = operation, call
        *earlier, (last, answering) = operations.values()
        query = last.reading.input.query or ""
        for operation, call in reversed(earlier):
            asked, answer = operation.reading.input.query, operation.reading.output.text
            if asked is None or asked == query or not _stands(asked, query):
                continue
            # Of an agent the question alone, for a call outside of any: a model's call may be a step towards a later
            # answer, and what an agent is asked later may be the user's next question.
            is_alone = operation.is_composed and not last.is_composed and _stands(asked, query, _PART_BEGIN)
            if is_alone or (answer and _stands(answer[:_MAX_QUOTED], query.replace(asked, "\n"))):
                return call
        return answering

    def _is_same_call(self, step: Step, outer: Step) -> bool:
        if any(parent is step for parent in self.above(outer)):  # parents form a circle
            return False
        for parent in self.above(step):
            if parent is outer:
                return True
            if parent.reading.role in _OWN_ANSWERS:
                break
        return False

    def request(self, call: Step | None) -> Step | None:
        """Return the topmost agent or chain around the last call that has an input or output of its own."""
        # Without a call of a model it is the topmost agent or chain with an output, or one that failed.
        if call is not None:
            around = [step for step in self.above(call) if step.is_composed]
            return next((step for step in reversed(around) if step.reading.input or step.reading.output), None)
        # Not a part of a step that has an input and returns objects alone, as the building of an index does.
        outputs = [
            step
            for step in self.steps
            if step.is_composed
            and (step.reading.output or step.reading.error)
            and not any(
                parent.reading.input and not parent.reading.output for parent in self.above(step) if parent.is_composed
            )
        ]
        return min(outputs, key=lambda step: (len(list(self.above(step))), -(step.span.ended_at or 0.0)), default=None)


def retrieved_context(steps: TraceSteps, judged: Step) -> list[Document]:
    """Return the documents retrieved before the judged step ended, anywhere in the trace, each once."""
    # Its id, score and source may be those of another retrieval: an outer one may keep the text alone.
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
    """List the tool calls in order; a call requested by a model and executed by a span is one."""
    # A call whose arguments are the output is a typed result, unless a tool returned something else.
    calls, results = _requested_calls(steps)
    open_calls = dict.fromkeys(calls)
    executed = [
        (step, done)
        for step in steps.of_role(Role.TOOL)
        if (done := step.reading.tool) is not None
        # Two instrumentations may write a span of the same call.
        and not any((outer := above.reading.tool) is not None and _is_same(outer, done) for above in steps.above(step))
    ]
    # The id decides, then the arguments, since some give a call another id than the model did; then the name and the
    # order, since some write arguments in a form of their own.
    for is_same in (_has_same_id, _has_same_arguments, _has_same_name):
        rest = []
        for step, done in executed:
            place = next((key for key in calls if key in open_calls and is_same(calls[key], done)), None)
            if place is None:
                rest.append((step, done))
                continue
            del open_calls[place]
            call = calls[place]
            calls[place] = Call(call.name, call.arguments, call.id or done.id, done.result, step.reading.error)
        executed = rest
    calls |= {f"span {step.span.span_id}": replace(done, error=step.reading.error) for step, done in executed}
    published: list[ToolCall] = []
    for key, call in calls.items():
        passed = results.get(call.id or "")
        result = call.result if call.result is not None or passed is None else passed.result
        # A tool that checks a typed result is the last one.
        if not _is_answer(call, output, is_open=key in open_calls or key == next(reversed(calls))):
            published.append(ToolCall(call.name, call.arguments, result, call.error))
    return published


def _requested_calls(steps: TraceSteps) -> tuple[dict[str, Call], dict[str, ToolResult]]:
    """Return the calls that models requested, each once, and the results that were passed to them, by id."""
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
    return calls, results


def _has_same_id(requested: Call, done: Call) -> bool:
    return done.id is not None and requested.id == done.id


def _has_same_arguments(requested: Call, done: Call) -> bool:
    return requested.name == done.name and requested.arguments == done.arguments


def _is_same(outer: Call, inner: Call) -> bool:
    """Return whether the span of a call within one of the same tool is of that call: a tool may call itself."""
    one, two = (call.arguments if isinstance(call.arguments, dict) else {} for call in (outer, inner))
    differs = any(str(one[name]) != str(two[name]) for name in one.keys() & two.keys())
    return outer.name == inner.name and not differs


def _has_same_name(requested: Call, done: Call) -> bool:
    has_ids = done.id is not None and requested.id is not None
    return requested.name == done.name and (not has_ids or done.arguments is None)


def _is_answer(call: Call, output: str | None, *, is_open: bool) -> bool:
    """Return whether a call gives the answer: its arguments, or the only one, are the output."""
    structure = plain(structure_of(output))
    arguments = [call.arguments]
    if isinstance(call.arguments, dict) and len(call.arguments) == 1:
        arguments += call.arguments.values()
    result = structure_of(call.result)
    is_open = is_open and (result in (None, "", structure) or str(result).startswith(_CHECKED))
    may_answer = call.name in _FINAL or (isinstance(structure, dict) and is_open)
    return may_answer and bool(output) and structure in arguments


def build_span(step: Step, dialects: Dialects) -> Span:
    """Build the published span of a step."""
    span, reading = step.span, step.reading
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
        attributes=dialects.attributes_to_publish(span) or None,
    )


def _outputs(reading: Reading) -> JSONValue:
    """Return the output of a step, or its error if it failed without one."""
    if reading.tool is not None:
        return reading.error if reading.tool.result is None else reading.tool.result
    if reading.role in {Role.RETRIEVER, Role.RERANKER}:
        return [_without_empty(asdict(document)) for document in reading.documents] or reading.error
    if reading.output.text is not None:
        return reading.output.text
    if reading.output.calls:
        return [{"name": call.name, "arguments": call.arguments} for call in reading.output.calls]
    return reading.error if reading.output.raw is None else reading.output.raw


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [])}


def join(group: SpanGroup, dialects: Dialects | None = None) -> dict[str, Any] | None:
    """Return the fields of a trace; None if no model was called and nothing has an output."""
    # The last call of a model is judged; of nested ones the innermost answers and the outermost asks. The input and
    # output of an agent or chain around it replace the call's, because they are what the user saw. `span_id` is the
    # span of the judged output.
    dialects = dialects or builtin()
    steps = TraceSteps(group, dialects)
    calls = steps.model_calls()
    call = next(reversed(calls), None)
    request = steps.request(call)
    requests = [] if request is None else [request]
    sources = [*requests, *calls]
    if not sources:
        return None
    output, judged = _output(sources)
    query = _query([*requests, *reversed(calls)], _first_question(steps, request))
    nearest_first = [*calls, *requests]
    root = steps.root
    ordered = sorted(steps.steps, key=lambda step: step.span.started_at or 0.0)
    # A field that any span may have: the outermost span first, since libraries make ids of their own, then all others.
    around = [*reversed(list(steps.above(sources[-1]))), *requests, *reversed(calls), *steps.steps]
    return _without_empty(
        {
            "trace_id": judged.span.trace_id,
            "span_id": judged.span.span_id,
            "name": clean((root or judged).span.name) or None,
            "output": output or "",
            "input": query,
            "messages": _history(nearest_first, query),
            "context": retrieved_context(steps, judged),
            "tool_calls": collect_tool_calls(steps, output),
            # A later call may offer others; of one name the first definition counts.
            "tools": [*{tool.name: tool for step in reversed(steps.steps) for tool in step.reading.tools}.values()],
            "spans": [build_span(step, dialects) for step in ordered],
            "usage": _usage(steps, request, call),
            "started_at": judged.span.started_at,
            "ended_at": judged.span.ended_at,
            "error": judged.reading.error or (None if output or root is None else root.reading.error),
            # That of the call with the answer first: one around or within it may know the requested one alone.
            "model": _first(sorted(nearest_first, key=lambda step: not step.reading.output), "model"),
            "provider": _first(nearest_first, "provider"),
            "response_id": _first(nearest_first, "response_id"),
            "session_id": _first(around, "session_id"),
            "user_id": _first(around, "user_id"),
            "tags": [tag for step in reversed(around) for tag in step.reading.tags],  # of one name the last counts
        }
    )


def has_no_content(fields: Mapping[str, Any]) -> bool:
    """Return whether a joined trace holds nothing that was said."""
    return not any(fields.get(name) for name in ("input", "output", "messages", "tool_calls", "context", "error"))


def _history(nearest_first: list[Step], query: str | None) -> list[Message]:
    """Return the messages before the query: of the judged call, or of a step above it that knows more turns."""
    turns_of: list[list[Message]] = []
    for step in nearest_first:
        messages = [*step.reading.input.history]
        if query is None or not _stands(query, step.reading.input.query or ""):
            # A later call of an agent may have the query among the messages before: the last one that is the same.
            # Within the call's own query, as in the prompts of CrewAI, it is asked there, and those before are others.
            places = [place for place, turn in enumerate(messages) if (turn.role, turn.content) == ("user", query)]
            messages = messages[: places[-1]] if places else messages
        turns_of.append(messages)
    turns = (messages for messages in turns_of if any(turn.role not in {"system", "developer"} for turn in messages))
    return next(turns, None) or next((messages for messages in turns_of if messages), [])


def _output(sources: list[Step]) -> tuple[str | None, Step]:
    """Return the first text, else the first structure, and its step; the call if there is neither."""
    # A structure with a text that may be the answer is returned as a whole, unless the text is a model's answer. A
    # model that calls the tool `final_result` of Pydantic AI gives its typed answer.
    texts = {step.reading.output.text for step in sources}
    errors = [step.reading.error for step in sources if step.reading.error is not None]
    sources = [step for step in sources if not _returns_error(step, errors)] or sources[-1:]
    for step in sources:
        output = step.reading.output
        if output.text is not None:
            return output.text, step
        if output.field is not None:
            return (output.field if output.field in texts else _json(output.raw)), step
    for step in sources:
        if step.reading.output and step.reading.output.raw is not None:
            return _json(step.reading.output.raw), step
    for step in sources:
        result = next((call for call in step.reading.output.calls if call.name == names.FINAL_RESULT), None)
        if result is not None:
            return _json(result.arguments), step
    return None, sources[-1]


def _returns_error(step: Step, errors: list[str]) -> bool:
    text = step.reading.output.text or step.reading.output.field
    return step.reading.error is not None and text is not None and any(text in error for error in errors)


def _stands(text: str, within: str, begin: re.Pattern[str] = _WORD_BEGIN) -> bool:
    """Return whether a text stands within another one as a part of its own, which does not go on behind it."""
    place = within.find(text)
    for _ in range(_MAX_PLACES):
        if place < 0:
            break
        is_begun = begin.search(within[max(0, place - 9) : place])
        if is_begun and (len(text) == _MAX_QUOTED or _PART_END.match(within, place + len(text))):
            return True
        place = within.find(text, place + 1)
    return False


def _first_question(steps: TraceSteps, request: Step | None) -> str | None:
    """Return the user's message of the first call of a model within an agent or chain."""
    within = [step for step in steps.of_role(Role.LLM) if any(above is request for above in steps.above(step))]
    first = min(within, key=lambda step: step.span.started_at or 0.0, default=None)
    return None if first is None else first.reading.input.query


def _query(sources: list[Step], asked: str | None) -> str | None:
    """Return the first query, else the first input as it is."""
    # Where an input is the record of a call that contains the question of the first call of a model, that is the query.
    for step in sources:
        query, raw = step.reading.input.query, step.reading.input.raw
        record = raw if isinstance(raw, str) else _json(raw) if query is None and raw is not None else query or ""
        is_record = step.is_composed and (query is None or _RECORD.match(query) is not None)
        forms = (asked, _json(asked)[1:-1], repr(asked)[1:-1]) if asked and is_record else ()
        if any(f"{mark}{form}{mark}" in record for form in forms for mark in "\"'"):
            return asked
        if query is not None:
            return query
    raws = (step.reading.input.raw for step in sources)
    return next((_json(raw) for raw in raws if raw is not None and not _is_unreadable(raw)), None)


def _is_unreadable(raw: JSONValue) -> bool:
    """Return whether an input is JSON that was cut off, or messages of a form that is not known."""
    items = raw.get("messages") if isinstance(raw, dict) else raw
    return isinstance(raw, str) or (isinstance(items, list) and any(isinstance(item, dict) for item in items))


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
