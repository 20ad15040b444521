"""Every built-in judge once in the real pipeline: sampled, judged, recorded, counted."""

import msgspec
from support.pipeline import Pipeline

import tracejudge
from judges.core.combine import GROUNDED_AND_RELEVANT
from judges.registry import catalogue, load_judges

TRACE = tracejudge.Trace(
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    span_id="00f067aa0ba902b7",
    id="a2fb4a1d1a96d312",
    service="support-bot",
    session_id="session 1",
    messages=[
        tracejudge.Message("user", "Hello."),
        tracejudge.Message("assistant", "Plan: 1. Search the warranty. 2. Search returns. 3. Answer."),
    ],
    tools=[{"name": "search"}],
    tool_calls=[
        tracejudge.ToolCall("search", {"q": q}, result="Two years, by the form.") for q in ("warranty", "returns")
    ],
    expected_tools=[{"name": "search", "arguments": {"q": q}} for q in ("warranty", "returns")],
    input="How long is the warranty, and where do I send the lamp?",
    output="The warranty runs for two years. Send the lamp to the address on the form.",
    context=[
        "All lamps come with a warranty of two years. It begins with the day of delivery.",
        tracejudge.Document("Send the lamp to the address on the form. We pay for the parcel.", id="returns"),
    ],
    expected_response="The warranty runs for two years; send the lamp to the address on the form.",
    guidelines=["Answer in two sentences."],
)
RULES = [
    {"name": unit, "unit": unit, "judges": [name for name, judge in catalogue().items() if judge.unit == unit]}
    for unit in ("trace", "session")
]
SETTINGS = {
    "relevance_truth_completeness": {"reasoning": False},
    "ragbench": {"lengths": True},
    "facts_grounding": {"labels": "v2"},
    "guidelines": {"guidelines": ["Name the form."]},
    "faithfulness": {"pass_at": 5},
}


def test_each_judge_scores_a_trace_under_each_of_its_metrics(pipeline: Pipeline) -> None:
    worker = pipeline.worker(rules=RULES, session_idle=0.1)
    pipeline.publish([TRACE])
    account = pipeline.settled(1)
    judges = len(catalogue()) + 1
    assert (account.chosen, account.scored, account.unscored, account.lost) == (judges, judges, 0, 0)

    verdicts = {entry.verdict.judge: entry.verdict for entry in pipeline.outbox()}
    # The rule names both judges of the combined verdict, which asks no model.
    joint = verdicts.pop(GROUNDED_AND_RELEVANT.name)
    page = worker.counted(sum(len(verdict.metrics) for verdict in (joint, *verdicts.values())))
    assert (joint.outcome, joint.metrics, joint.calls) == ("scored", GROUNDED_AND_RELEVANT.metric_names, ())
    assert {name: verdict.metrics for name, verdict in verdicts.items()} == {
        name: judge.metric_names for name, judge in catalogue().items()
    }
    for name, verdict in verdicts.items():
        assert (verdict.outcome, verdict.judge_version) == ("scored", catalogue()[name].version)
        assert tuple(score.metric for score in verdict.scores) == verdict.metrics
        assert all(0 <= score.value <= 1 for score in verdict.scores)
        rules_of = {metric.name: metric.pass_rule for metric in catalogue()[name].metrics}
        assert {score.metric: score.passed is None for score in verdict.scores} == {
            metric: rule is None for metric, rule in rules_of.items()
        }

    for name, judge in catalogue().items():
        series = {"judge": name, "version": judge.version[:8]}
        for metric in judge.metrics:
            outcomes = ("unrated",) if metric.pass_rule is None else ("pass", "fail")
            counted = sum(
                page.total("tracejudge_verdicts_total", metric=metric.name, outcome=o, **series) for o in outcomes
            )
            assert counted == 1, (name, metric.name)


def test_settings_of_a_judge_change_its_version(pipeline: Pipeline) -> None:
    pipeline.worker(rules=[{"name": "all", "judges": list(SETTINGS)}], judges=SETTINGS)
    pipeline.publish([TRACE])
    assert pipeline.settled(1).scored == len(SETTINGS)
    versions = {entry.verdict.judge: entry.verdict.judge_version for entry in pipeline.outbox()}
    assert versions == {name: load_judges(SETTINGS)[name].version for name in SETTINGS}
    assert not set(versions.values()) & {judge.version for judge in catalogue().values()}


def test_a_trace_without_a_required_field_is_unscored_without_a_call(pipeline: Pipeline) -> None:
    empty = {"input": " ", "output": "", "context": [""], "messages": [], "expected_response": None, "guidelines": []}
    empty |= {"tools": None, "tool_calls": None, "expected_tools": None}
    pipeline.worker(rules=RULES, session_idle=0.1)
    pipeline.publish([msgspec.structs.replace(TRACE, error="the call failed", **empty)])
    account = pipeline.settled(1)
    assert (account.scored, account.unscored, account.lost) == (0, len(catalogue()) + 1, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    assert {(verdict.outcome, verdict.reason) for verdict in verdicts} == {("unscored", "missing_input")}
    assert {(verdict.scores, verdict.calls) for verdict in verdicts} == {((), ())}


def test_retrieval_spans_and_named_tools_are_the_context_of_a_trace_without_one(pipeline: Pipeline) -> None:
    where = {"has": ["context"]}
    rules = [{"name": "grounded", "judges": ["groundedness"], "where": where, "context_tools": ["kb_search"]}]
    pipeline.worker(rules=rules)
    warranty = "The warranty runs for two years."
    asked = {"service": "support-bot", "input": "How long is the warranty?", "output": warranty}
    spans = [tracejudge.Span("00f067aa0ba902b8", "search", kind="RETRIEVER", outputs=[warranty])]
    calls = [tracejudge.ToolCall("kb_search", {}, warranty), tracejudge.ToolCall("send_mail", {}, "Sent.")]
    pipeline.publish(
        [
            tracejudge.Trace(trace_id="a" * 32, id="a" * 16, spans=spans, **asked),
            tracejudge.Trace(trace_id="b" * 32, id="b" * 16, tool_calls=calls, **asked),
            tracejudge.Trace(trace_id="c" * 32, id="c" * 16, tool_calls=calls[1:], **asked),
        ]
    )
    account = pipeline.settled(3)
    assert (account.chosen, account.scored, account.no_rule, account.lost) == (2, 2, 1, 0)
    assert {entry.verdict.trace_id[0] for entry in pipeline.outbox() if entry.verdict.scores[0].passed} == {"a", "b"}
