"""The judges of tools and trajectories: what they are shown, what code finds, and what becomes of odd answers.

The labelled traces of `agent_traces.py` are six a judge and outcome.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from agent_traces import labelled, recording
from clients.recording import RECORDED
from families import FAMILIES
from judge_traces import SHORT, parse, table, told
from support.tables import check_golden

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
from tracejudge import Tool, ToolCall, Trace

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


def test_assessments_of_scenes_are_those_of_the_golden_file() -> None:
    """Each with its transcript: what is missing, what code decides alone, and what becomes of states and evidence."""
    written = []
    for name, (judge, fields, answers) in TABLES["scenes"].items():
        trace = SHORT if fields == "short" else msgspec.convert({**msgspec.to_builtins(TRACE), **fields}, Trace)
        outcome = told([], judged(catalogue()[judge], trace, *answers))
        written.append(f"## {name} ({judge})\n{transcript(trace).block().value}\n{outcome}\n")
    check_golden(Path(__file__).with_name("golden_agents.txt"), "\n".join(written))


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


def test_labelled_traces_are_scored_by_the_lexical_model() -> None:
    right: Counter[str] = Counter()
    for row in labelled():
        assessment = asyncio.run(evaluate(catalogue()[row.judge], row.trace, LexicalModel()))
        assert assessment.outcome == "scored", (row.id, assessment.note)
        right[row.judge] += assessment.scores[0].passed is row.passes
    # A heuristic: it looks at errors, words and repeats, and does not see what was left undone.
    assert right["tool_arguments"] == right["step_efficiency"] == 12
    assert min(right.values()) >= 6, right
