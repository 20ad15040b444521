"""The six tools over one trace: three tasks of a judge, what each tool gives, and what a wrong call is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from attacks import EVERYWHERE
from support.cases import each_case
from trace_spans import BEGAN_AT, FAILED_ID, LARGE_ID, SLOW_ID, long_trace, step, trace

from judges.agent.toolbox import TraceToolbox
from judges.core.prompt import neutralise
from tracejudge import Message, Span, ToolCall, Trace, Usage

NAMES = [
    "get_trace_info",
    "get_root_span",
    "get_span",
    "list_spans",
    "search_trace_regex",
    "get_span_performance_and_timing_report",
]


@pytest.fixture(scope="module")
def long_box() -> TraceToolbox:
    return TraceToolbox(long_trace())


def ask(toolbox: TraceToolbox | Trace, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool as a model does."""
    opened = TraceToolbox(toolbox) if isinstance(toolbox, Trace) else toolbox
    answer = json.loads(opened.call(name, json.dumps(arguments)))
    assert isinstance(answer, dict)
    return answer


def pages(toolbox: TraceToolbox, name: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Call a tool until it says that there is no more."""
    token = None
    while True:
        answer = ask(toolbox, name, **arguments, page_token=token)
        yield answer
        if (token := answer["page_token"]) is None:
            return


def content(toolbox: TraceToolbox | Trace, name: str = "get_root_span", /, **arguments: Any) -> dict[str, Any]:
    opened = TraceToolbox(toolbox) if isinstance(toolbox, Trace) else toolbox
    decoded = json.loads("".join(page["content"] for page in pages(opened, name, **arguments)))
    assert isinstance(decoded, dict)
    return decoded


class TestTasks:
    def test_a_tool_error_is_found_by_search(self, long_box: TraceToolbox) -> None:
        """The word begins a line inside of JSON that stands in a string."""
        reply = ask(long_box, "search_trace_regex", pattern=r"\bOrderServiceDown\b")
        assert [(match["span_id"], match["match"]) for match in reply["matches"]] == [(FAILED_ID, "OrderServiceDown")]
        assert reply["matches"][0]["before"].endswith('{"error": "no answer\n')
        assert reply["matches"][0]["after"].startswith(": 503 from the store")
        read = content(long_box, "get_span", span_id=reply["matches"][0]["span_id"])
        assert (read["status"], read["inputs"]) == ("error", {"id": 217})

    def test_the_slowest_step_is_found_by_the_report(self, long_box: TraceToolbox) -> None:
        report = ask(long_box, "get_span_performance_and_timing_report")
        assert [row["id"] for row in report["slowest"][:2]] == ["f" * 16, SLOW_ID]
        fields = {"id": SLOW_ID, "name": "find_order 101", "kind": "tool", "status": "ok"}
        fields |= {"start_s": 12.12, "duration_s": 7.5, "self_s": 7.5}
        assert report["slowest"][1] == fields

    @each_case("size", [99_999, 200_000, None])
    def test_a_large_span_is_read_page_by_page(self, long_box: TraceToolbox, size: int | None) -> None:
        read = list(pages(long_box, "get_span", span_id=LARGE_ID, max_content_length=size))
        whole = "".join(page["content"] for page in read)
        assert len(read) == -(-len(whole.encode()) // (size or 100_000))
        assert {page["content_size_bytes"] for page in read} == {len(whole.encode())}
        assert all(len(page["content"].encode()) <= (size or 100_000) for page in read)
        (large,) = (span for span in long_trace().spans or () if span.span_id == LARGE_ID)
        assert json.loads(whole)["outputs"] == large.outputs
        assert len(whole.encode()) > 1_000_000

    def test_reading_goes_on_at_a_match(self, long_box: TraceToolbox) -> None:
        (match,) = ask(long_box, "search_trace_regex", pattern='"found": 333, ')["matches"]
        page = ask(long_box, "get_span", span_id=LARGE_ID, page_token=match["page_token"], max_content_length=100)
        assert page["content"].startswith('"found": 333, "text": "Bestellung')


class TestInfo:
    def test_says_what_stands_outside(self) -> None:
        sample = trace(
            step("a", started_at=BEGAN_AT, ended_at=BEGAN_AT + 2.5),
            step("b", "a", status="ERROR"),
            id="1" * 16,
            model="small",
            user_id="somebody",
            error="it failed",
            usage=Usage(3, 4),
            started_at=BEGAN_AT,
        )
        assert ask(sample, "get_trace_info") == {
            "trace_id": "4b" * 16,
            "id": "1" * 16,
            "service": "shop",
            "model": "small",
            "status": "error",
            "error": "it failed",
            "started_at": "2025-10-09T08:53:20+00:00",
            "ended_at": "2025-10-09T08:53:22.500000+00:00",
            "duration_s": 2.5,
            "usage": {"input_tokens": 3, "output_tokens": 4},
            "spans": 2,
            "failed_spans": 1,
            "root_span_id": "a",
            "id_of_trace_itself": "trace",
        }

    def test_expectations_feedback_and_users_are_shown_by_no_tool(self) -> None:
        sample = trace(step("a"), expected_response="SECRET", guidelines=["SECRET"], user_id="SECRET")
        toolbox = TraceToolbox(sample)
        read = [toolbox.call(name, "{}") for name in NAMES] + [toolbox.call("get_span", '{"span_id": "trace"}')]
        assert "SECRET" not in "".join(read)


class TestWithoutSpans:
    GIVEN = Trace(
        trace_id="t",
        service="shop",
        output="Two.",
        input="How many?",
        messages=[Message("system", "Be short.")],
        tool_calls=[ToolCall("count", {"of": "lamps"}, 2)],
    )

    def test_the_trace_is_the_one_step(self) -> None:
        listed = ask(self.GIVEN, "list_spans")
        assert [(row["id"], row["is_root"]) for row in listed["spans"]] == [("trace", True)]
        assert "no recorded spans" in listed["note"]
        assert "no recorded spans" in ask(self.GIVEN, "get_trace_info")["note"]

    def test_the_root_is_what_the_trace_itself_holds(self) -> None:
        read = content(self.GIVEN)
        assert read["inputs"] == {"messages": [{"role": "system", "content": "Be short."}], "input": "How many?"}
        calls = [{"name": "count", "arguments": {"of": "lamps"}, "result": 2}]
        assert read["outputs"] == {"output": "Two.", "tool_calls": calls}

    def test_it_is_searched_once(self) -> None:
        reply = ask(self.GIVEN, "search_trace_regex", pattern="HOW MANY")
        assert [(match["span_id"], match["match"]) for match in reply["matches"]] == [("trace", "How many")]


class TestSpan:
    def test_only_attributes_that_are_asked_for(self) -> None:
        sample = trace(step("a", inputs="in", attributes={"x": 1, "y": 2}))
        read = content(sample, attributes_to_fetch=["y", "z"])
        assert (read["inputs"], read["attributes"]) == ("in", {"y": 2})

    @each_case(
        ("asked", "said"),
        [
            ("input.value", "output.value"),
            ("gen_ai.input.messages", "gen_ai.output.messages"),
            ("traceloop.entity.input", "traceloop.entity.output"),
            ("mlflow.spanInputs", "mlflow.spanOutputs"),
        ],
    )
    def test_inputs_and_outputs_may_stand_in_attributes(self, asked: str, said: str) -> None:
        sample = trace(step("a", attributes={asked: '{"q": 1}', said: "out", "other": 3}))
        read = content(sample)
        assert (read["inputs"], read["outputs"], read["attributes"]) == ('{"q": 1}', "out", {"other": 3})
        assert content(sample, attributes_to_fetch=[asked])["attributes"] == {asked: '{"q": 1}'}

    def test_a_page_token_of_another_content_is_refused(self) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs="x" * 500, attributes={"y": "z" * 50})))
        token = ask(toolbox, "get_root_span", max_content_length=100)["page_token"]
        assert "content" in ask(toolbox, "get_root_span", page_token=token)
        for wrong in ({"attributes_to_fetch": [], "page_token": token}, {"page_token": "100"}, {"page_token": "-1-5"}):
            assert "page_token does not belong" in ask(toolbox, "get_root_span", **wrong)["error"]

    def test_only_values_that_json_cannot_hold_are_left_out(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        read = content(trace(step("a", inputs=10**5000, outputs="out", attributes={"deep": deep, "x": 1})))
        assert read["outputs"] == "out"
        assert read["attributes"] == {"deep": "[cannot be shown as JSON]", "x": 1}
        assert read["inputs"] == "[cannot be shown as JSON]"
        while deep:  # taken apart by hand: freeing it at once would overflow the stack of some versions
            deep = deep.pop()

    @each_case("text", EVERYWHERE.values(), ids=EVERYWHERE)
    def test_an_attack_stays_a_text(self, text: str) -> None:
        toolbox = TraceToolbox(trace(step("a", name=text, outputs={"said": text}, attributes={text: text})))
        answer = toolbox.call("get_root_span", "{}")
        assert neutralise(answer) == answer
        read = content(toolbox)
        # Line breaks are kept apart, and control characters stay the escapes that JSON has for them.
        assert neutralise(read["outputs"]["said"]) == neutralise(text)
        listed = ask(toolbox, "list_spans")["spans"]
        assert [(row["id"], row["is_root"]) for row in listed] == [("a", True)]


class TestList:
    def test_rows_say_what_tells_steps_apart(self) -> None:
        sample = trace(
            step("a", None, 0.0, 4.0, kind="server"),
            step("b", "a", 1.0, 0.25, kind="llm", status="STATUS_CODE_ERROR", attributes={"x": 1, "y": 2}),
        )
        assert ask(sample, "list_spans")["spans"][1] == {
            "id": "b",
            "name": "step b",
            "kind": "llm",
            "start_s": 1.0,
            "end_s": 1.25,
            "duration_s": 0.25,
            "parent_id": "a",
            "status": "error",
            "is_root": False,
            "attributes": ["x", "y"],
        }

    def test_pages_hold_every_span_once(self, long_box: TraceToolbox) -> None:
        read = list(pages(long_box, "list_spans", max_results=90))
        assert [len(page["spans"]) for page in read] == [90, 90, 90, 90, 40]
        assert len({row["id"] for page in read for row in page["spans"]}) == 400

    def test_a_page_is_never_too_large(self) -> None:
        spans = [step(str(number), attributes={f"{name}" * 60: 1 for name in range(60)}) for number in range(100)]
        toolbox = TraceToolbox(trace(*spans))
        read = list(pages(toolbox, "list_spans"))
        assert all(len(json.dumps(page)) < 105_000 for page in read)
        assert len(read) > 1
        assert sum(len(page["spans"]) for page in read) == 100
        assert (len(read[0]["spans"][0]["attributes"]), read[0]["spans"][0]["attributes_left_out"]) == (30, 30)


class TestWrongCalls:
    @each_case(
        ("name", "arguments", "told"),
        [
            ("get_spans", "{}", "There is no tool `get_spans`. Tools are: get_trace_info, "),
            ("get_span", "{", "The arguments are no JSON. Send one JSON object with these keys: span_id (required), "),
            ("get_span", "[1]", "The arguments are no JSON object. Send"),
            ("get_span", "{}", "missing required field `span_id`"),
            ("get_span", '{"span_id": 7}', "Expected `str`, got `int` - at `$.span_id`"),
            ("get_span", '{"span_id": "q"}', "There is no span `q`. Spans are: a. list_spans gives all ids."),
            ("get_root_span", '{"span": "a"}', "unknown field `span`"),
            ("get_root_span", '{"max_content_length": 1000000}', "Expected `int` <= 200000"),
            ("get_root_span", '{"max_content_length": "many"}', "Expected `int`, got `str`"),
            ("get_root_span", '{"attributes_to_fetch": "x"}', "Expected `array`, got `str`"),
            ("list_spans", '{"max_results": 0}', "Expected `int` >= 1"),
            ("get_trace_info", '{"trace_id": "t"}', "This tool takes no arguments: send {}."),
            ("search_trace_regex", '{"pattern": ""}', "The pattern is empty."),
            ("search_trace_regex", '{"pattern": "(a"}', "The pattern cannot be used: missing ): (a. Send"),
        ],
    )
    def test_are_told_what_to_send_instead(self, name: str, arguments: str, told: str) -> None:
        answer = json.loads(TraceToolbox(trace(step("a"))).call(name, arguments))
        assert list(answer) == ["error"]
        assert told in answer["error"]

    @each_case("arguments", ["", " ", "{}", '{"max_results": null}', '{"max_results": "100"}'])
    def test_slips_of_weak_models_are_read(self, arguments: str) -> None:
        assert len(json.loads(TraceToolbox(trace(step("a"))).call("list_spans", arguments))["spans"]) == 1

    def test_an_unreadable_trace_is_a_tool_error_and_no_exception(self) -> None:
        toolbox = TraceToolbox(trace(Span(span_id="a", name=7)))  # type: ignore[arg-type]
        assert "cannot read this trace" in ask(toolbox, "list_spans")["error"]


def test_tools_are_strict_objects_with_words_for_each_argument() -> None:
    tools = TraceToolbox(trace()).tools
    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        shown: Any = tool.parameters
        assert (shown["type"], shown["additionalProperties"]) == ("object", False)
        assert all(argument["description"] for argument in shown["properties"].values())
        assert len(tool.description) > 50
