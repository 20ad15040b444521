"""Which spans make a trace together, and the trace to judge that they become. Ids of spans are their names."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from lookalikes import table

from tracejudge import Usage
from tracejudge.content.convert import Notes, convert_trace
from tracejudge.content.dialogue import unwrapped
from tracejudge.dialects import RawEvent, RawSpan, builtin, read
from tracejudge.dialects.own_tables import dialects_with
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import Limits, SpanBuffer, SpanGroup, span_bytes

Fields = dict[str, Any]
CHAIN = {"openinference.span.kind": "CHAIN"}


def step(name: str, above: str | None = None, at: float = 1.0, /, events: Any = (), **fields: Any) -> RawSpan:
    """A span that begins a second before it ends."""
    default = {"span_id": name, "name": name, "started_at": at - 1, "ended_at": at}
    happened = tuple(RawEvent(*event) for event in events)
    return RawSpan(**{**default, **fields}, trace_id="trace", parent_id=above, events=happened)


def root(at: float = 9.0, **attributes: Any) -> RawSpan:
    return step("root", None, at, started_at=0.0, is_local_root=True, kind="server", attributes=attributes)


def call(name: str, above: str, at: float, asked: Any = "", message: Any = "", /, **more: Any) -> RawSpan:
    values: Fields = {"gen_ai.operation.name": "chat"}
    for key, role, content in (("input", "user", asked), ("output", "assistant", message)):
        values[f"gen_ai.{key}.messages"] = [{"role": role, "content": content}] if type(content) is str else content
    return step(name, above, at, attributes=values | more)


def retrieval(name: str, above: str, at: float, *texts: str) -> RawSpan:
    documents = [{"content": text} for text in texts]
    attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.documents": documents}
    return step(name, above, at, attributes=attributes)


def reranking(name: str, above: str, at: float, given: list[str], kept: list[str]) -> RawSpan:
    attributes = {"openinference.span.kind": "RERANKER"}
    for key, texts in (("input", given), ("output", kept)):
        attributes |= {f"reranker.{key}_documents.{place}.document.content": text for place, text in enumerate(texts)}
    return step(name, above, at, attributes=attributes)


def tool(name: str, above: str, at: float, /, said: Any = (), **fields: Any) -> RawSpan:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    attributes |= {f"gen_ai.tool.call.{key}": value for key, value in dict(said).items()}
    return step(f"tool {name}", above, at, attributes=attributes, **fields)


def agent(name: str, above: str | None, at: float, asked: str, message: str, **fields: Any) -> RawSpan:
    attributes = {"openinference.span.kind": "AGENT", "input.value": asked, "output.value": message}
    return step(name, above, at, started_at=0.0, attributes=attributes, **fields)


def chain(name: str, above: str | None, at: float, value: Any = None, output: Any = None) -> RawSpan:
    """A step whose input and output are JSON, or texts."""
    attributes = dict(CHAIN)
    for key, content in (("input", value), ("output", output)):
        if content is not None:
            is_text = isinstance(content, str)
            attributes[f"{key}.value"] = content if is_text else json.dumps(content)
            attributes[f"{key}.mime_type"] = "text/plain" if is_text else "application/json"
    return step(name, above, at, started_at=0.0, attributes=attributes)


BUILDERS = {make.__name__: make for make in (step, root, call, retrieval, reranking, tool, agent, chain)}
ACME = {
    "name": "acme",
    "prefixes": ["acme."],
    "kinds": {"acme.kind": {"call": "llm", "find": "retriever"}},
    "input": {"acme.asked": "messages", "acme.turn.#": "messages"},
    "output": {"acme.said": "text"},
    "documents": ["acme.docs", "acme.doc.#"],
}


def joined(*spans: RawSpan, dialects: Any = None) -> Fields | None:
    top = next((span for span in spans if span.is_local_root), None)
    fields = join(SpanGroup(top, spans), *([dialects] if dialects else []))
    return None if fields is None else {**msgspec.to_builtins({**fields, "spans": None}), "spans": fields["spans"]}


def seen(fields: Fields, keys: Any) -> Fields:
    """Return what a case compares: fields, or what these say together."""
    spans = fields["spans"]
    shown = {
        **fields,
        "texts": [document["text"] for document in fields.get("context", [])],
        "names": [span.name for span in spans],
        "inputs": {span.name: span.inputs for span in spans},
        "outputs": {span.name: span.outputs for span in spans},
        "read tags": convert_trace(fields, Notes()).get("tags"),
    }
    return {key: shown.get(key) for key in keys}


def test_spans_become_the_trace_of_their_case() -> None:
    """A row of the table: its name, the calls of builders, and fields; None if there is no trace, or no such field."""
    acme = dialects_with([ACME])
    for name, rows, expected in table("joining"):
        spans = []
        for row in rows:
            (builder, arguments), *fields = row.items()
            spans.append(BUILDERS[builder](*arguments, **dict(fields)))
        fields = joined(*spans, dialects=acme if name.startswith("acme") else None)
        unseen = (expected or {}).pop("unseen", None)
        assert (fields and seen(fields, expected or ("output",))) == expected, name
        assert not (fields and unseen and unseen in repr(fields["spans"])), name


def test_a_typed_result_stays_whole() -> None:
    for key in ("text", "answer", "output", "result", "response", "content"):
        typed = {"days": 30, key: "ORD-17"}
        context = {key: "ORD-17", "messages": [], "context": ["a"]}
        beside = {key: "ORD-17", "input": "Which?"}
        alone = {key: "ORD-17"}
        for output, said, expected in (
            (typed, "I used the tool.", typed),
            # It is the text, where that is what the model answered, and beside what is no result.
            (typed, "ORD-17", "ORD-17"),
            (context, "ORD-17", "ORD-17"),
            (beside, "ORD-17", "ORD-17"),
            (beside, None, "ORD-17"),
            (alone, None, alone),
            ({**alone, "context": []}, None, "ORD-17"),
            (alone, "ORD-17", "ORD-17"),
        ):
            calls = [] if said is None else [call("call", "chain", 4, "Which?", said)]
            fields = joined(chain("chain", None, 9, "Which?", output), *calls)
            assert fields is not None
            result = fields["output"]
            assert (result if expected == "ORD-17" else json.loads(result)) == expected, (output, said)
    for key in ("answer", "output", "result"):
        typed = {key: "ORD-17"}
        assert unwrapped({"input": "Which?", "output": typed})["output"] == typed, "as publish keeps it"


def test_session_and_user_of_every_convention() -> None:
    metadata = {"session_id": ("session_id", "conversation_id", "threadId"), "user_id": ("user_id", "userId", "user")}
    conventions = [
        (field, {key.partition(" ~ ")[0]: "visit"})
        for field in ("session_id", "user_id")
        for table in builtin().tables
        for key in getattr(table, field)
        if "/" not in key
    ]
    for field, keys in metadata.items():
        conventions += [(field, {"metadata": json.dumps({key: "visit"})}) for key in keys]
        conventions.append((field, {"metadata.requester_metadata": f"{{'{field}': 'visit', 'tags': None}}"}))
    assert len(conventions) > 25
    for field, attributes in conventions:
        fields = joined(root(), call("call", "root", 4, "Open?", "Yes.", **attributes))
        assert fields is not None
        assert {name: fields[name] for name in metadata if name in fields} == {field: "visit"}, attributes


def test_attributes_of_a_span_stay_but_for_the_content_that_is_read() -> None:
    attributes = {"gen_ai.request.temperature": 0.5, "http.route": "/ask", "weird": object(), "gen_ai.prompt.name": "p"}
    fields = joined(call("call", "root", 4, "Open?", "Yes.", **attributes))
    assert fields is not None
    (published,) = fields["spans"]
    assert published.attributes == {**attributes, "gen_ai.operation.name": "chat", "weird": "[object]"}


def test_numbers_of_every_kind() -> None:
    attributes = {"gen_ai.usage.input_tokens": 1e7, "gen_ai.usage.output_tokens": "12345678901", "session.id": 17.0}
    reading = read(call("call", "top", 4, "a", "b", **attributes))
    assert (reading.usage, reading.session_id) == (Usage(10_000_000, 12345678901), "17")
    for number, expected in ((140234567, None), ("thread-1", "thread-1")):
        assert read(call("call", "top", 4, "a", "b", thread_id=number)).session_id == expected


# --- which spans make a trace, when it is complete, and what the bounds cost: times are given by hand ---
def limits(**changed: float) -> Limits:
    fields = {"late_span_wait_s": 2.0, "max_open_traces": 100, "max_spans": 100, "max_bytes": 10**9, "max_age_s": 600.0}
    return Limits(**fields | changed)  # type: ignore[arg-type]


def span(name: str, above: str | None = None, *, trace: str = "trace", remote: bool = False, **fields: Any) -> RawSpan:
    text = {"text": fields.pop("text", "")}
    is_root = above is None or remote
    return RawSpan(trace_id=trace, span_id=name, parent_id=above, is_local_root=is_root, attributes=text, **fields)


def names(taken: Iterable[SpanGroup]) -> list[Any]:
    return [[group.root and group.root.span_id, [each.span_id for each in group.spans]] for group in taken]


def end(buffer: SpanBuffer, now_s: float, *spans: list[Any]) -> None:
    for name, above, fields in ([*each, None, None][:3] for each in spans):
        buffer.add(span(name, above, **fields or {}), now_s)


STEPS: dict[str, Callable[..., Any]] = {
    "end": end,
    "due": lambda buffer, now_s: names(buffer.take_due(now_s)),
    "excess": lambda buffer: names(buffer.take_excess()),
    "complete": lambda buffer: names(buffer.take_complete()),
    "all": lambda buffer: names(buffer.take_all()),
    "next due": SpanBuffer.next_due_s,
    "is over": lambda buffer: buffer.usage > 1,
    "lost": lambda buffer: {loss.value: count for loss, count in buffer.losses.items() if count},
    "held": lambda buffer: buffer.held_spans or buffer.held_bytes,
    "open": lambda buffer: len(buffer._open),  # no figure for it outside
}


def test_spans_are_taken_and_lost_as_the_table_says() -> None:
    """A row: its name, the bounds, and steps with their arguments and what they return."""
    for name, bounds, steps in table("span_buffer"):
        buffer = SpanBuffer(limits(**bounds))
        for step_name, *arguments, expected in steps:
            assert STEPS[step_name](buffer, *arguments) == expected, (name, step_name, arguments)


def test_spans_are_kept_in_bounded_memory() -> None:
    long = [(f"call-{number}", "root", {"text": "x" * 100}) for number in range(1000)]
    buffer = SpanBuffer(limits(max_spans=2))
    end(buffer, 0.0, *map(list, long))
    assert (buffer.held_spans, buffer.held_bytes) == (2, 2 * span_bytes(span("one", "root", text="x" * 100)))
    assert STEPS["lost"](buffer) == {"surplus": 998}
    buffer = SpanBuffer(limits(max_bytes=5000))
    end(buffer, 0.0, ["a", "root", {"text": "x" * 9000}], ["b", "root", {"trace": "other"}])
    assert names(buffer.take_excess()) == [[None, ["a"]]]
    assert buffer.usage <= 1


numbers = st.integers(0, 8)


@given(
    st.sampled_from([0.0, 5.0]),
    st.lists(st.tuples(st.integers(0, 3), numbers, numbers, st.booleans(), st.floats(0, 3)), max_size=60),
)
def test_every_span_is_in_one_trace_or_in_one_count(
    late_s: float, ends: list[tuple[int, int, int, bool, float]]
) -> None:
    """Whatever ends in whatever order, twice, in circles, over the bounds; and nothing is held in the end."""
    buffer = SpanBuffer(limits(late_span_wait_s=late_s, max_open_traces=2, max_spans=4, max_age_s=20))
    now_s, taken, replaced = 0.0, 0, 0
    for trace, name, above, is_root, pause_s in ends:
        before = buffer.held_spans + sum(buffer.losses.values())
        buffer.add(span(str(name), None if is_root else str(above), trace=str(trace)), now_s)
        replaced += before + 1 - buffer.held_spans - sum(buffer.losses.values())
        now_s += pause_s
        taken += sum(len(each.spans) for each in [*buffer.take_due(now_s), *buffer.take_excess()])
    taken += sum(len(item.spans) for item in buffer.take_all())
    assert (buffer.held_spans, buffer.held_bytes, buffer.next_due_s()) == (0, 0, None)
    assert taken + sum(buffer.losses.values()) + replaced == len(ends)
