"""Spans as exporters leave them: kinds and states in any spelling, roots that are missing, circles, odd times."""

import json
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode
from support.cases import each_case
from trace_spans import step, trace

from judges.agent.toolbox import TraceToolbox
from tracejudge import Span, Trace
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import SpanGroup, raw_span


def listed(*spans: Span) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask(trace(*spans), "list_spans")["spans"]
    return rows


def ask(sample: Trace, name: str, **arguments: Any) -> dict[str, Any]:
    answer = json.loads(TraceToolbox(sample).call(name, json.dumps(arguments)))
    assert "error" not in answer or name == "get_trace_info", answer
    return dict(answer)


class TestKind:
    @each_case(
        ("kind", "attributes", "shown"),
        [
            ("LLM", {}, "llm"),
            ("tool", {"openinference.span.kind": "LLM"}, "tool"),
            ("INTERNAL", {"openinference.span.kind": "TOOL"}, "tool"),
            ("SPAN_KIND_CLIENT", {"gen_ai.operation.name": "chat"}, "llm"),
            ("SpanKind.CLIENT", {"gen_ai.operation.name": "execute_tool"}, "tool"),
            (None, {"mlflow.spanType": '"RETRIEVER"'}, "retriever"),
            (None, {"traceloop.span.kind": "workflow"}, "chain"),
            ("client", {"gen_ai.operation.name": 7, "traceloop.span.kind": "agent"}, "agent"),
            ("server", {}, "server"),
            ("PLANNER", {}, "planner"),
            (None, {}, None),
        ],
    )
    def test_is_one_word_for_all_dialects(self, kind: str | None, attributes: dict[str, Any], shown: str) -> None:
        assert listed(step("a", kind=kind, attributes=attributes))[0]["kind"] == shown


@each_case(
    ("status", "shown"),
    [
        ("OK", "ok"),
        ("ERROR", "error"),
        ("STATUS_CODE_ERROR", "error"),
        ("StatusCode.UNSET", "unset"),
        ("2", "error"),
        ("", None),
        (None, None),
        ("cancelled", "cancelled"),
    ],
)
def test_status_in_any_spelling(status: str | None, shown: str | None) -> None:
    assert listed(step("a", status=status))[0]["status"] == shown


class TestRoot:
    @each_case(
        ("spans", "root", "roots"),
        [
            ([step("a"), step("b", "a")], "a", ["a"]),
            ([step("b", "a", 1.0), step("a", None, 2.0)], "a", ["a"]),
            ([step("a", "elsewhere"), step("b", "a")], "a", ["a"]),
            ([step("a", "elsewhere"), step("b", None, 3.0)], "b", ["a", "b"]),
            ([step("b", None, 2.0), step("a", None, 1.0)], "a", ["a", "b"]),
            ([step("a", "b"), step("b", "a", 1.0)], "a", ["a"]),
            ([step("a", "a"), step("b", "a", 1.0)], "a", ["a"]),
            ([step("a", ""), step("b", "a", 1.0)], "a", ["a"]),
        ],
        ids=["one", "later", "its parent is elsewhere", "without parent first", "the first", "circle", "own", "blank"],
    )
    def test_is_chosen(self, spans: list[Span], root: str, roots: list[str]) -> None:
        reply = ask(trace(*spans), "get_root_span")
        assert reply["span_id"] == root
        assert [row["id"] for row in listed(*spans) if row["is_root"]] == roots
        assert reply.get("other_roots", []) == [other for other in roots if other != root]


class TestIds:
    def test_that_are_shared_are_told_apart(self) -> None:
        rows = listed(step("a"), step("a", "a", 1.0), step("b", "a", 2.0), step("", "a", 3.0), step("trace", None, 4.0))
        ids = [(row["id"], row["parent_id"]) for row in rows]
        # The second is its own parent by its id: nothing tells that the first was meant.
        assert ids == [("a", None), ("a#2", None), ("b", "a"), ("unnamed", "a"), ("trace", None)]

    def test_every_step_is_found_by_the_id_it_is_listed_under(self) -> None:
        spans = [step("a"), step("a"), step("a#2"), step("y\u200bz"), step("x" * 5000), step("trace"), step("")]
        toolbox = TraceToolbox(trace(*spans))
        for row in json.loads(toolbox.call("list_spans", ""))["spans"]:
            reply = json.loads(toolbox.call("get_span", json.dumps({"span_id": row["id"]})))
            assert json.loads(reply["content"])["id"] == row["id"]

    def test_the_trace_itself_has_one_that_no_span_has(self) -> None:
        sample = trace(step("trace"), input="q")
        own = ask(sample, "get_trace_info")["id_of_trace_itself"]
        assert json.loads(ask(sample, "get_span", span_id=own)["content"])["inputs"] == {"input": "q"}


class TestTimes:
    def test_of_steps_are_in_seconds_since_the_trace_began(self) -> None:
        rows = listed(step("late", None, 5.5, 0.25), step("early", None, 2.0), step("without", None, None))
        assert [(row["id"], row["start_s"], row["end_s"]) for row in rows] == [
            ("early", 0.0, 1.0),
            ("late", 3.5, 3.75),
            ("without", None, None),
        ]

    @each_case(
        "times",
        [
            {"started_at": 5.0, "ended_at": 4.0},
            {"started_at": 5.0},
            {"ended_at": 5.0},
            {"started_at": float("inf"), "ended_at": float("nan")},
        ],
    )
    def test_that_cannot_be_used_give_no_duration(self, times: dict[str, float]) -> None:
        sample = trace(Span("a", "n", **times))
        assert listed(Span("a", "n", **times))[0]["duration_s"] is None
        report = ask(sample, "get_span_performance_and_timing_report")
        assert (report["spans_without_usable_times"], report["total_s"], report["slowest"]) == (1, None, [])

    def test_before_all_calendars_are_numbers(self) -> None:
        read = json.loads(ask(trace(Span("a", "n", started_at=1e300)), "get_root_span")["content"])
        assert read["started_at"] == "1e+300"


class TestReport:
    GIVEN = trace(
        step("root", None, 0.0, 10.0, kind="agent"),
        step("plan", "root", 0.0, 2.0, kind="llm"),
        step("one", "root", 2.0, 3.0, kind="tool", status="ERROR"),
        step("two", "root", 2.5, 1.0, kind="tool"),
        step("three", "root", 3.0, 4.0, kind="tool"),
        step("answer", "root", 7.0, 2.0, kind="llm"),
    )

    def test_time_of_a_step_itself_is_without_those_below_it(self) -> None:
        report = ask(self.GIVEN, "get_span_performance_and_timing_report")
        assert {row["id"]: row["self_s"] for row in report["slowest"]}["root"] == 1.0
        assert [row["id"] for row in report["most_time_by_themselves"]][:2] == ["three", "one"]
        assert report["total_s"] == 10.0

    def test_steps_below_that_outlast_those_above_count_only_within_them(self) -> None:
        sample = trace(step("a", None, 1.0, 2.0), step("b", "a", 0.0, 1.5), step("c", "a", 2.5, 9.0))
        report = ask(sample, "get_span_performance_and_timing_report")
        assert {row["id"]: row["self_s"] for row in report["slowest"]}["a"] == 1.0

    def test_time_by_kind(self) -> None:
        assert ask(self.GIVEN, "get_span_performance_and_timing_report")["by_kind"] == [
            {"kind": "tool", "spans": 3, "failed": 1, "self_s": 8.0, "duration_s": 8.0},
            {"kind": "llm", "spans": 2, "failed": 0, "self_s": 4.0, "duration_s": 4.0},
            {"kind": "agent", "spans": 1, "failed": 0, "self_s": 1.0, "duration_s": 10.0},
        ]

    def test_overlapping_spans_are_reported(self) -> None:
        """Steps that only touch do not overlap."""
        assert ask(self.GIVEN, "get_span_performance_and_timing_report")["overlaps"] == [
            {
                "parent_id": "root",
                "spans": 3,
                "span_ids": ["one", "two", "three"],
                "most_at_once": 3,
                "start_s": 2.0,
                "end_s": 7.0,
                "sum_s": 8.0,
            }
        ]


def test_a_trace_of_the_exporter() -> None:
    """Spans that OpenTelemetry's SDK recorded, joined as the exporter joins them."""
    recorded = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(recorded))
    tracer = provider.get_tracer("shop")
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": '[{"role": "user", "content": "Is it open?"}]',
        "gen_ai.output.messages": '[{"role": "assistant", "content": "Yes, until six."}]',
    }
    look_up = {"openinference.span.kind": "TOOL", "tool.name": "hours", "input.value": '{"day": "Monday"}'}
    with tracer.start_as_current_span("POST /ask"):
        with tracer.start_as_current_span("hours", attributes=look_up) as tool:
            tool.record_exception(TimeoutError("no answer from the calendar"))
            tool.set_status(Status(StatusCode.ERROR))
        with tracer.start_as_current_span("chat small", attributes=chat):
            pass
    raw = [span for finished in recorded.get_finished_spans() if (span := raw_span(finished)) is not None]
    (root,) = (span for span in raw if span.is_local_root)
    fields = join(SpanGroup(root, tuple(raw)))
    assert fields is not None
    sample = Trace(service="shop", **fields)
    rows = ask(sample, "list_spans")["spans"]
    assert [(row["name"], row["kind"], row["status"], row["is_root"]) for row in rows] == [
        ("POST /ask", "internal", None, True),
        ("hours", "tool", "error", False),
        ("chat small", "llm", None, False),
    ]
    (match, *_) = ask(sample, "search_trace_regex", pattern="timeouterror")["matches"]
    assert match["span_id"] == rows[1]["id"]
    read = json.loads(ask(sample, "get_span", span_id=rows[1]["id"])["content"])
    assert read["inputs"] == {"day": "Monday"}
    assert read["outputs"] == "TimeoutError: no answer from the calendar"
