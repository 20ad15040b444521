"""The judges of tools and trajectories: what they are shown, what code finds, and what becomes of odd answers.

The labelled traces of `agent_traces.py` are six a judge and outcome.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from agent_traces import labelled, recording
from clients.recording import RECORDED
from families import FAMILIES
from judge_traces import SHORT, parse, table

from judges.agent.transcript import arguments_of, transcript
from judges.calling.evaluation import evaluate
from judges.catalog.step_efficiency import repeats
from judges.catalog.tool_arguments import breaches, schema_breaches
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import ToolCall as ModelCall
from judges.core.verdict import Assessment
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Span, Tool, ToolCall, Trace

ASKING = ("tool_selection", "tool_arguments", "tool_result_use", "task_completion", "plan_adherence", "step_efficiency")
MATCH = catalogue()["trajectory_match"]
TABLES: Final = table("agent_judges")


def judged(judge: Judge, trace: Trace, *answers: str | Step, **settings: Any) -> Assessment:
    model = ScriptedModel(answers or ["{}"], ModelSettings(provider="scripted", model="scripted", **settings))
    return asyncio.run(evaluate(judge, trace, None if judge.run else model))


def test_the_set_has_six_traces_of_each_judge_and_outcome_a_third_recorded_and_the_parts_in_code_are_right() -> None:
    counts = Counter((row.judge, row.passes, row.is_recorded) for row in labelled())
    kinds = itertools.product(ASKING, (True, False), (True, False))
    assert counts == {kind: 2 if kind[2] else 4 for kind in kinds}
    assert len({row.id for row in labelled()}) == 72
    for row in labelled():
        steps = transcript(MATCH.prepare(row.trace))
        assert len(breaches(MATCH.prepare(row.trace), steps)) == row.schema_errors, row.id
        assert len(repeats(steps)) == row.repeats, row.id
        assessment = judged(MATCH, row.trace)
        passed = assessment.scores[0].passed if assessment.scores else None
        assert passed is row.trajectory_match, (row.id, assessment.note)


def test_the_transcript_of_each_recorded_client_has_its_one_call() -> None:
    clients = [path.parent.name for path in RECORDED.glob("*/tool.traces.gz")]
    assert len(clients) > 30
    for name in clients:
        trace = msgspec.convert({"service": "s", **recording(name, "tool")}, Trace)
        calls = transcript(trace).calls
        assert [call.name.rpartition("-")[2] for call in calls] == ["track"], name
        assert arguments_of(calls[0]) == {"number": 7}, name


CALLS = [
    ToolCall("find", {"title": "Glass Rivers"}, {"copy": "GR-2"}),
    ToolCall("find", {"title": "Glass Rivers"}, {"copy": "GR-2"}),
    ToolCall("reserve", {"copy": "GR-2"}, error="the card is blocked"),
]
TOOLS = [Tool("find", "Finds a title.", {"type": "object"}), Tool("reserve", "Reserves a copy."), Tool("renew")]
TRACE = Trace(trace_id="1", service="s", input="Reserve it.", output="It is blocked.", tool_calls=CALLS, tools=TOOLS)


def test_steps_come_from_spans_in_order_of_time_without_wrappers_and_repeated_spans() -> None:
    def span(name: str, parent: str | None, kind: str, start: float, **more: Any) -> Span:
        return Span(f"{name}{start}", name, parent, kind, start, start + 0.5, **more)

    spans = [
        span("pay", "agent0.0", "TOOL", 3.0, status="error", outputs="card refused", inputs={"sum": 4}),
        span("agent", None, "AGENT", 0.0, outputs="No."),
        span("execute_tool look", "agent0.0", "internal", 2.0, attributes={"gen_ai.operation.name": "execute_tool"}),
        span("look", "execute_tool look2.0", "TOOL", 2.1, outputs="4 left"),
        span("chat", "agent0.0", "LLM", 1.0, outputs="I look.\nThen I pay."),
        span("search", "agent0.0", "RETRIEVER", 2.5, inputs="shop", outputs=["open"]),
    ]
    text = transcript(Trace(trace_id="1", service="s", output="No.", spans=spans)).block().value
    assert text.split("\n") == [
        "S1 model chat (0.5 s)", "  text: I look.", "    Then I pay.",
        "S2 C1 tool look (0.5 s)",
        "S3 retrieval search (0.5 s)", "  inputs: shop", '  result: ["open"]',
        "S4 C2 tool pay (0.5 s)", '  arguments: {"sum": 4}', "  error: card refused",
    ]  # fmt: skip


def test_long_results_are_cut_from_the_largest_down_and_then_the_trace_is_read_by_tools() -> None:
    judge = catalogue()["tool_result_use"]
    sizes = (30_000, 9_000, 2_000)
    calls = [ToolCall("read", {"page": size}, f"begin {'x' * size} end") for size in sizes]
    trace = msgspec.structs.replace(TRACE, tool_calls=calls)
    good = FAMILIES["tool_result_use"].text()
    cut = judged(judge, trace, good, max_input_tokens=7_000)
    assert (cut.outcome, cut.details["left_out"]) == ("scored", {"results": 1})
    many = msgspec.structs.replace(trace, tool_calls=calls * 20)
    requests = list[str]()

    look = Step(tool_calls=(ModelCall("1", "get_span", '{"span_id": "trace", "max_content_length": 200}'),))

    def answer(asked: Any) -> Step | str:
        requests.append(asked.messages[1].content)
        return good if any(message.role == "tool" for message in asked.messages) else look

    explored = judged(judge, many, answer, max_input_tokens=9_000)
    assert explored.outcome == "scored", explored.note
    assert explored.details["exploration"]["tool_calls"] == {"get_span": 1}
    steps = dict(parse(requests[0]))["transcript"]
    assert "S60 C60 tool read" in steps
    assert "result: [30,010 characters]" in steps
    assert judged(judge, trace, good, max_input_tokens=500).reason == "input_too_long"


def test_a_yes_with_problems_is_asked_for_once_more_and_then_a_no() -> None:
    family = FAMILIES["tool_result_use"]
    doubtful = json.dumps({**family.other[0], "result": "yes"})
    for answers, passed in (((doubtful, doubtful), False), ((doubtful, family.text()), True)):
        assessment = judged(family.judge, SHORT, *answers)
        assert (assessment.scores[0].passed, len(assessment.calls)) == (passed, 2)


def test_inputs_that_no_field_names_are_missing_without_a_call_and_a_plan_with_one() -> None:
    once = ToolCall("find", {"title": "x"})
    cases = {
        "tool_result_use": (msgspec.structs.replace(TRACE, tool_calls=[once]), "no call of a tool has a result", 0),
        "step_efficiency": (msgspec.structs.replace(TRACE, tool_calls=[once]), "fewer than two steps", 0),
        "tool_selection": (msgspec.structs.replace(TRACE, tool_calls=None, tools=None), "no tool_calls or tools", 0),
        "trajectory_match": (TRACE, "no expected_tools", 0),
        "plan_adherence": (TRACE, "states no plan", 1),
    }
    for name, (trace, note, calls) in cases.items():
        assessment = judged(catalogue()[name], trace, '{"plan": [], "unplanned": []}')
        assert (assessment.reason, len(assessment.calls)) == ("missing_input", calls), name
        assert note in (assessment.note or ""), name


def test_code_decides_alone_where_there_is_nothing_to_ask() -> None:
    broken = [ToolCall("find", '{"title": 4}'), ToolCall("find", {"title": "x", "more": 1})]
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "additionalProperties": False}
    trace = msgspec.structs.replace(TRACE, tool_calls=broken, tools=[Tool("find", None, schema)])
    assessment = judged(catalogue()["tool_arguments"], trace)
    assert (assessment.scores[0].value, assessment.calls, assessment.details["schema_errors"]) == (0.0, (), 2)
    found = {"C1": ["$.title breaks `type`"], "C2": ["$ breaks `additionalProperties`"]}
    assert assessment.details["breaches"] == found
    assessment = judged(catalogue()["step_efficiency"], msgspec.structs.replace(TRACE, tool_calls=CALLS[1:]))
    assert (assessment.scores[0].value, assessment.calls) == (1.0, ())


def test_a_selection_without_a_call_is_judged_by_what_could_have_been_called() -> None:
    trace = msgspec.structs.replace(TRACE, tool_calls=None)
    for missing, value, passed in (([], 1.0, True), ([{"reason": "So.", "tool": "find"}], 0.0, False)):
        assessment = judged(catalogue()["tool_selection"], trace, json.dumps({"calls": [], "missing": missing}))
        assert (assessment.scores[0].value, assessment.scores[0].passed) == (value, passed)


def test_a_repeat_is_needless_unless_state_changed_or_it_failed() -> None:
    def calls(text: str) -> list[ToolCall]:
        names = {"g": "get_it", "s": "set_it", "l": "list_it"}
        return [
            ToolCall(names[c.lower()], {"a": 1, "b": 2}, error="down" if c.isupper() else None) for c in text.split()
        ]

    cases = {"g g": 1, "g l g": 1, "g s g": 0, "g S g": 1, "s s": 1, "G g": 0, "G G g": 1, "G G G": 1, "G G G G": 2}
    for text, count in cases.items():
        trace = msgspec.structs.replace(TRACE, tool_calls=calls(text))
        assert len(repeats(transcript(trace))) == count, text
    other = [ToolCall("get_it", {"b": 2, "a": 1.0}), ToolCall("get_it", '{"a": 1.0, "b": 2}')]
    assert len(repeats(transcript(msgspec.structs.replace(TRACE, tool_calls=other)))) == 1


def test_trajectories_match_by_mode_and_by_the_rule_for_arguments() -> None:
    def calls(text: str) -> list[ToolCall]:
        return [ToolCall(word[0], None if len(word) == 1 else json.loads(word[1:])) for word in text.split()]

    for made, expected, settings, passed, precision, recall in TABLES["trajectories"]:
        trace = Trace(trace_id="1", service="s", output="", tool_calls=calls(made), expected_tools=calls(expected))
        scores = {each.metric: each.value for each in judged(MATCH.configured(settings), trace).scores}
        values = {"trajectory_match": float(passed), "precision": precision, "recall": recall}
        found = {name: scores[name] for name in values}
        assert found == pytest.approx(values), (made, expected, settings)
    for opening, end in (('{"a":', "}"), ("[", "]")):
        one, other = (ToolCall("f", json.loads(f"{opening * 40}{leaf}{end * 40}")) for leaf in (1, 2))
        trace = Trace(trace_id="1", service="s", output="", tool_calls=[one], expected_tools=[other])
        assert judged(MATCH, trace).scores[0].value == 0, f"they differ below forty {opening}"


def test_a_schema_that_cannot_be_used_is_left_to_the_model_in_bounded_time() -> None:
    doubling = {f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(40)}
    schemas: list[object] = [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "#"},
        {"$defs": {**doubling, "d40": {}}, "$ref": "#/$defs/d0"},
        {"properties": {"q": {"pattern": "(a+)+$"}}},
        {"patternProperties": {"(q+)+$": {}}, "additionalProperties": False},
        {"type": 7}, {"properties": 3}, {"required": "q"}, [], "text", None, {"unknown": 1},
    ]  # fmt: skip
    started = time.monotonic()
    for schema in schemas:
        assert schema_breaches(schema, {"q": "a" * 40 + "!"}) == [], schema
    assert time.monotonic() - started < 20
    assert schema_breaches({"required": ["city"]}, {}) == ["$ breaks `required`"]


def test_scores_follow_from_states_and_from_evidence_that_exists() -> None:
    for name, answer, value, passed in TABLES["answers"]:
        assessment = judged(catalogue()[name], SHORT, json.dumps(answer))
        assert assessment.outcome == "scored", (name, assessment.note)
        assert (assessment.scores[0].value, assessment.scores[0].passed) == (pytest.approx(value), passed), answer


def test_labelled_traces_are_scored_by_the_lexical_model() -> None:
    right: Counter[str] = Counter()
    for row in labelled():
        assessment = asyncio.run(evaluate(catalogue()[row.judge], row.trace, LexicalModel()))
        assert assessment.outcome == "scored", (row.id, assessment.note)
        right[row.judge] += assessment.scores[0].passed is row.passes
    # A heuristic: it looks at errors, words and repeats, and does not see what was left undone.
    assert right["tool_arguments"] == right["step_efficiency"] == 12
    assert min(right.values()) >= 6, right
