"""What holds for all traces and calls: pages make the whole, places lead back, and nothing is ever raised."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_spans import step, trace

from judges.agent import spans as content
from judges.agent.patterns import _ESCAPE, _meant, views
from judges.agent.spans import as_json
from judges.agent.toolbox import TraceToolbox
from judges.core.prompt import neutralise
from tracejudge import Span, Trace

SMALL = settings(max_examples=60, deadline=None)

texts = st.text(st.characters() | st.sampled_from('aé日😀\u200b\r\n"\\\x1b'), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
few_ids = st.sampled_from(["", "a", "b", "a#2", "trace", "\ud800"])
times = st.none() | st.floats() | st.sampled_from([0.0, 1.0, 2.0])
kinds = st.none() | texts | st.sampled_from(["INTERNAL", '"TOOL"'])
spans = st.builds(
    Span,
    span_id=few_ids | texts,
    name=texts,
    parent_id=st.none() | few_ids,
    kind=kinds,
    started_at=times,
    ended_at=times,
    status=kinds,
    inputs=values,
    outputs=values,
    attributes=st.none() | st.dictionaries(texts | st.just("input.value"), values, max_size=4),
)
traces = st.builds(
    Trace,
    trace_id=texts,
    service=texts,
    output=texts,
    input=st.none() | texts,
    error=st.none() | texts,
    started_at=times,
    ended_at=times,
    spans=st.none() | st.lists(spans, max_size=6),
)
names = st.sampled_from([tool.name for tool in TraceToolbox(trace()).tools])
keys = st.sampled_from(
    ["span_id", "attributes_to_fetch", "max_content_length", "page_token", "max_results", "pattern", "max_matches"]
)
tokens = st.sampled_from(["0-0", "1-2", "5-300", "a", "(a+)+$", "error|x", "\ud800"])
arguments = st.dictionaries(keys, values | few_ids | tokens | st.integers(0, 300), max_size=3).map(json.dumps) | texts


def ask(toolbox: TraceToolbox, name: str, **sample: Any) -> dict[str, Any]:
    return dict(json.loads(toolbox.call(name, json.dumps(sample))))


@SMALL
@given(traces, st.lists(st.tuples(names | texts, arguments), min_size=1, max_size=5))
def test_a_call_gives_a_visible_json_object_whatever_is_called(of: Trace, calls: list[tuple[str, str]]) -> None:
    toolbox = TraceToolbox(of)
    for name, text in calls:
        answer = toolbox.call(name, text)
        assert isinstance(json.loads(answer), dict)
        assert neutralise(answer) == answer
        answer.encode()


@SMALL
@given(traces)
def test_every_tool_can_read_every_trace(of: Trace) -> None:
    toolbox = TraceToolbox(of)
    for tool in toolbox.tools:
        required: Any = tool.parameters["required"]
        answer = ask(toolbox, tool.name, **dict.fromkeys(required, "trace"))
        assert "cannot read this trace" not in str(answer.get("error"))


@SMALL
@given(values, st.integers(100, 150))
def test_pages_put_together_are_the_content(outputs: object, size: int) -> None:
    toolbox = TraceToolbox(trace(step("a", outputs=outputs)))
    whole = ask(toolbox, "get_root_span")
    pieces, token = [], None
    while token is not None or not pieces:
        piece = ask(toolbox, "get_root_span", max_content_length=size, page_token=token)
        assert 0 < len(piece["content"].encode()) <= size
        pieces.append(piece["content"])
        token = piece["page_token"]
    assert "".join(pieces) == whole["content"]
    assert len(whole["content"].encode()) == whole["content_size_bytes"]


@SMALL
@given(traces, st.integers(1, 3))
def test_pages_of_a_list_hold_every_span_once(of: Trace, size: int) -> None:
    toolbox = TraceToolbox(of)
    rows, token = [], None
    while token is not None or not rows:
        page = ask(toolbox, "list_spans", max_results=size, page_token=token)
        rows += page["spans"]
        token = page["page_token"]
    assert rows == ask(toolbox, "list_spans")["spans"]
    assert len({row["id"] for row in rows}) == max(1, len(of.spans or ()))
    assert any(row["is_root"] for row in rows)


@SMALL
@given(texts, texts)
def test_reading_from_a_match_begins_with_it(before: str, behind: str) -> None:
    toolbox = TraceToolbox(trace(step("a", outputs=f"{before}needle{behind}")))
    match, *_ = ask(toolbox, "search_trace_regex", pattern="needle")["matches"]
    read = ask(toolbox, "get_root_span", page_token=match["page_token"])["content"]
    assert read.lower().startswith("needle")


@SMALL
@given(st.text(max_size=30), st.booleans())
def test_a_view_shows_what_was_written_and_where_it_stands(text: str, ascii_only: bool) -> None:  # noqa: FBT001
    def written(part: str) -> str:
        return json.dumps(part, ensure_ascii=ascii_only)

    first = next(views(written(text)))
    assert first.text == f'"{text}"'
    starts = [len(written(text[:position])) - 1 for position in range(len(text) + 1)]
    assert [first.place(position + 1) for position in range(len(text) + 1)] == starts


@SMALL
@given(texts)
def test_a_text_within_a_text_is_seen_as_it_was_written_first(text: str) -> None:
    shown = list(views(json.dumps(json.dumps(text))))
    whole = shown[1] if len(shown) > 1 else shown[0]
    assert text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") in whole.text.encode(
        "utf-16", "surrogatepass"
    ).decode("utf-16", "replace")


@SMALL
@given(st.text(st.sampled_from('\\\\\\u005c6enr"/\0\né'), max_size=40))
def test_escapes_are_read_the_same_in_both_ways(text: str) -> None:
    assert next(views(text)).text == _ESCAPE.sub(_meant, text)


@SMALL
@given(values, st.integers(1, 9))
def test_a_content_written_in_slices_is_the_same(value: object, slice_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_AT_ONCE_CHARS", slice_chars)
        assert as_json(value) == neutralise(json.dumps(value, ensure_ascii=False))
