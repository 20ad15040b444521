"""Which spans make a trace together, when it is complete, and what the bounds cost. Times are given by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracejudge.dialects import RawSpan
from tracejudge.otel.span_buffer import Limits, Loss, SpanBuffer, SpanGroup, span_bytes

Names = tuple[str | None, list[str]]


def limits(**changed: float) -> Limits:
    fields = {"late_span_wait_s": 2.0, "max_open_traces": 100, "max_spans": 100, "max_bytes": 10**9, "max_age_s": 600.0}
    return Limits(**fields | changed)  # type: ignore[arg-type]


def span(name: str, above: str | None = None, *, trace: str = "trace", remote: bool = False, **fields: Any) -> RawSpan:
    text = {"text": fields.pop("text", "")}
    is_root = above is None or remote
    return RawSpan(trace_id=trace, span_id=name, parent_id=above, is_local_root=is_root, attributes=text, **fields)


def names(taken: SpanGroup) -> Names:
    return taken.root and taken.root.span_id, [lease.span_id for lease in taken.spans]


def taken_at(buffer: SpanBuffer, now_s: float) -> list[Names]:
    return [names(trace) for trace in buffer.take_due(now_s)]


def lost(buffer: SpanBuffer) -> dict[Loss, int]:
    return {loss: count for loss, count in buffer.losses.items() if count}


def filled(*spans: RawSpan, **changed: float) -> SpanBuffer:
    buffer = SpanBuffer(limits(**changed))
    for each in spans:
        buffer.add(each, 0.0)
    return buffer


def test_a_trace_is_due_when_its_root_has_ended_and_the_wait_is_over() -> None:
    buffer = filled(span("call", "root"), span("call", "root"), span("root"))
    assert buffer.next_due_s() == 2.0
    buffer.add(span("joins", "root"), 1.9)
    assert taken_at(buffer, 1.9) == []
    assert taken_at(buffer, 2.0) == [("root", ["call", "root", "joins"])], "what comes twice is there once"
    assert buffer.next_due_s() is None


def test_what_ends_after_the_wait_is_late_and_so_is_what_is_below_it() -> None:
    buffer = filled(span("call", "root"), span("root"))
    assert taken_at(buffer, 2.0) == [("root", ["call", "root"])]
    buffer.add(span("late", "call"), 2.1)
    buffer.add(span("later", "late"), 2.2)
    assert (lost(buffer), buffer.held_spans) == ({Loss.LATE: 2}, 0)
    # Whatever comes first, and also the root itself once more.
    for each in (span("inner", "another"), span("another", "root"), span("root")):
        buffer.add(each, 3.0)
    assert taken_at(buffer, 700.0) == []
    assert (lost(buffer), buffer.held_spans) == ({Loss.LATE: 5}, 0)


def test_each_request_in_one_opentelemetry_trace_is_a_trace_of_its_own() -> None:
    buffer = filled(span("call-1", "first"), span("call-2", "second"), span("first", "elsewhere", remote=True))
    assert taken_at(buffer, 2.0) == [("first", ["call-1", "first"])]
    buffer.add(span("second", "elsewhere", remote=True), 5.0)
    assert taken_at(buffer, 7.0) == [("second", ["call-2", "second"])]
    assert len(buffer._open) == 0  # no figure for it outside


def test_a_remote_parent_of_this_process_is_a_parent_unless_the_span_is_a_request() -> None:
    buffer = filled(span("root"), span("answer", "root", remote=True), span("own", "root", remote=True, kind="server"))
    assert taken_at(buffer, 2.0) == [("root", ["root", "answer"]), ("own", ["own"])]
    # The parent was taken before: the span is a trace of its own, and nothing is lost.
    buffer.add(span("later", "root", remote=True), 3.0)
    assert taken_at(buffer, 5.0) == [("later", ["later"])]
    assert lost(buffer) == {}


def test_spans_whose_root_never_ends_are_taken_for_their_age() -> None:
    buffer = filled(span("call", "step"), span("step", "root"), span("other", "else"), max_age_s=60)
    assert taken_at(buffer, 59.9) == []
    assert taken_at(buffer, 60.0) == [(None, ["call", "step"]), (None, ["other"])]
    assert (lost(buffer), buffer.held_bytes) == ({}, 0)


def test_of_a_long_trace_the_last_spans_are_kept_in_bounded_memory() -> None:
    calls = [span(f"call-{number}", "step") for number in range(5)]
    buffer = filled(*calls, span("step", "root"), span("root"), max_spans=3)
    assert taken_at(buffer, 2.0) == [("root", ["call-4", "step", "root"])]
    assert lost(buffer) == {Loss.SURPLUS: 4}
    # Spans let go still tell whose children others are.
    buffer = filled(span("step", "root"), *calls[:3], span("root"), max_spans=2)
    assert taken_at(buffer, 2.0) == [("root", ["call-2", "root"])]
    buffer = filled(*(span(f"call-{number}", "root", text="x" * 100) for number in range(1000)), max_spans=2)
    assert (buffer.held_spans, buffer.held_bytes) == (2, 2 * span_bytes(span("one", "root", text="x" * 100)))
    assert lost(buffer) == {Loss.SURPLUS: 998}


def test_above_a_bound_complete_traces_go_before_their_time_then_the_oldest() -> None:
    spans = (span("a", "root", trace="open"), span("b", "root", trace="also-open"), span("c", trace="complete"))
    buffer = filled(*spans, max_open_traces=1)
    assert buffer.usage > 1
    assert [names(trace) for trace in buffer.take_excess()] == [("c", ["c"]), (None, ["a"])]
    assert (len(buffer._open), lost(buffer)) == (1, {})
    buffer = filled(span("a", "root", text="x" * 9000), span("b", "root", trace="other"), max_bytes=5000)
    assert [names(trace) for trace in buffer.take_excess()] == [(None, ["a"])]
    assert buffer.usage <= 1
    # What comes faster than it is taken is refused and counted.
    buffer = filled(*(span("call", "root", trace=f"t{number}") for number in range(10)), max_open_traces=2)
    assert (len(buffer._open), lost(buffer)) == (5, {Loss.OVERFLOW: 5})


def test_a_flush_takes_only_what_is_complete_and_the_end_everything() -> None:
    spans = (span("call", "root", trace="open"), span("done", trace="complete"))
    buffer = filled(*spans)
    assert [names(trace) for trace in buffer.take_complete()] == [("done", ["done"])]
    assert buffer.held_spans == 1
    buffer = filled(*spans)
    assert [names(item) for item in buffer.take_all()] == [("done", ["done"]), (None, ["call"])]
    assert (buffer.held_spans, buffer.held_bytes) == (0, 0)
    buffer = filled(span("a", "b"), span("b", "a"))
    assert sorted(name for item in buffer.take_all() for name in names(item)[1]) == ["a", "b"], "a circle"


numbers = st.integers(0, 8)


@pytest.mark.parametrize("late_s", [0.0, 5.0])
@given(ends=st.lists(st.tuples(st.integers(0, 3), numbers, numbers, st.booleans(), st.floats(0, 3)), max_size=60))
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
        taken += sum(len(each.spans) for each in buffer.take_due(now_s))
        taken += sum(len(each.spans) for each in buffer.take_excess())
    taken += sum(len(item.spans) for item in buffer.take_all())
    assert (buffer.held_spans, buffer.held_bytes, buffer.next_due_s()) == (0, 0, None)
    assert taken + sum(buffer.losses.values()) + replaced == len(ends)
