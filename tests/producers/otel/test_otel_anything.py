"""No attributes whatever make the reading raise, and what comes of them can always be encoded."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from tracejudge import Trace
from tracejudge.dialects import RawEvent, RawSpan, builtin, names, read
from tracejudge.dialects.table import Path, Table
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import SpanGroup

WORDS = ("role", "content", "parts", "text", "type", "tool_call", "messages", "documents", "kwargs", "args", "id")
TYPES = ("text", "user", "assistant", "tool", "tool_call", "tool_result", "chat", "LLM", "CHAIN", "TOOL", "ai")
# Lone surrogates included: Python's texts may hold them, and UTF-8 may not.
TEXTS = st.sampled_from(TYPES) | st.text(st.characters(exclude_categories=()), max_size=12)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=4)
structures = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | TEXTS, inner, max_size=4),
    max_leaves=12,
)


def as_json(value: object) -> str:
    return json.dumps(value, default=str)


values = structures | structures.map(as_json) | structures.map(as_json).map(lambda text: text[:-2])


def _texts(table: Table) -> list[str]:
    parts = (getattr(table, name) for name in Table.__struct_fields__)
    return [text for part in parts if isinstance(part, tuple) for text in part]


KEYS = tuple(
    {
        Path(text).name
        for table in builtin().tables
        for text in (*table.kinds, *table.events, *table.input, *table.output, *_texts(table))
    }
    - {""}
)
PATHS = (
    "message.role",
    "message.content",
    "message.contents.0.message_content.text",
    "message.tool_calls.0.tool_call.function.name",
    "document.content",
    "role",
    "content",
    "tool_calls.0.name",
    "0.1",
    "",
)
SPREAD = (names.PROMPT, names.COMPLETION, "llm.input_messages", "llm.output_messages", "retrieval.documents")
spread_keys = st.builds(
    lambda prefix, number, path: f"{prefix}.{number}.{path}",
    st.sampled_from(SPREAD),
    st.integers(min_value=-1, max_value=10**10) | st.integers(0, 3),
    st.sampled_from(PATHS),
)
attributes = st.dictionaries(st.sampled_from(KEYS) | spread_keys | TEXTS, values, max_size=10)
events = st.lists(st.builds(RawEvent, st.sampled_from(KEYS) | TEXTS, attributes), max_size=2).map(tuple)

kinds = st.fixed_dictionaries(
    {},
    optional={
        names.OPERATION: st.sampled_from(["chat", "retrieval", "execute_tool", "invoke_agent"]),
        "openinference.span.kind": st.sampled_from(["LLM", "CHAIN", "TOOL", "RETRIEVER", "RERANKER"]),
        "traceloop.span.kind": st.sampled_from(["workflow", "tool"]),
    },
)


def spans(number: int, parents: list[str]) -> st.SearchStrategy[RawSpan]:
    return st.builds(
        RawSpan,
        trace_id=st.just("t" * 32),
        span_id=st.just(str(number)),
        name=TEXTS,
        parent_id=st.sampled_from([*parents, None]),
        started_at=st.none() | st.floats(0, 1e10),
        ended_at=st.none() | st.floats(0, 1e10),
        status=st.sampled_from([None, "ok", "error"]),
        description=st.none() | TEXTS,
        attributes=st.builds(lambda some, kind: {**some, **kind}, attributes, kinds),
        events=events,
    )


families = st.tuples(*(spans(number, ["0", "1", "2", "3"]) for number in range(4)))


@given(attributes, events)
def test_any_span_can_be_read(some: dict[str, Any], happened: tuple[RawEvent, ...]) -> None:
    read(RawSpan(trace_id="t", span_id="s", attributes=some, events=happened, status="error"))


@settings(deadline=None, max_examples=40)
@given(families.map(lambda family: SpanGroup(family[0], family)) | families.map(lambda family: SpanGroup(None, family)))
def test_any_spans_give_nothing_or_a_trace_the_worker_can_read(group: SpanGroup) -> None:
    fields = join(group)
    if fields is not None:
        trace = Trace(service="shop", **fields)
        msgspec.json.decode(msgspec.json.encode(trace), type=Trace)


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else "end"


HALF = "\ud83d"  # of an emoji: cut in two by a limit on attributes

STRANGE = [
    pytest.param(RawSpan(trace_id="t", span_id="s", name=HALF, attributes={names.OPERATION: "chat"}), id="name"),
    pytest.param(
        RawSpan(
            trace_id="t",
            span_id="s",
            status="error",
            description=HALF,
            attributes={
                names.OPERATION: "chat",
                names.INPUT_MESSAGES: [{"role": HALF, "content": "a"}, {"role": "user", "content": HALF, "name": HALF}],
                names.OUTPUT_MESSAGES: [{"role": "assistant", "content": HALF}],
                "gen_ai.response.model": HALF,
                "session.id": HALF,
                HALF: HALF,
            },
        ),
        id="half_characters",
    ),
    pytest.param(
        RawSpan(
            trace_id="t",
            span_id="s",
            attributes={
                names.OPERATION: "chat",
                names.OUTPUT_MESSAGES: '[{"role": "assistant", "tool_calls": [{"name": "t", "arguments": '
                '{"half": "\\ud83d", "none": NaN, "large": 1%s, "endless": 1e999}}]}]' % ("0" * 4000),
            },
        ),
        id="json_as_python_writes_it",
    ),
    pytest.param(
        RawSpan(
            trace_id="t",
            span_id="s",
            attributes={
                names.OPERATION: "chat",
                "none": float("nan"),
                "large": 10**5000,
                "deep": nested(500),
                "bytes": b"\xff",
                "foreign": object(),
                "keys": {1: "a", None: "b"},
            },
        ),
        id="attributes",
    ),
]


@each_case("strange", STRANGE)
def test_what_json_cannot_hold_never_costs_the_trace(strange: RawSpan) -> None:
    fields = join(SpanGroup(strange, (strange,)))
    assert fields is not None
    payload = msgspec.json.encode(Trace(service="shop", **fields))
    msgspec.json.decode(payload, type=Trace)
    json.loads(payload, parse_constant=pytest.fail)
