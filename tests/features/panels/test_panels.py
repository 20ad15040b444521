"""Two models on real endpoints: a verdict each, a combined one, and none twice when an endpoint is down."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

from judges.core.verdict import Verdict
from worker.base.accounting import Account

PANEL = "majority(judge-1,judge-2)"
RULES = [{"name": "both", "judges": ["safety"], "model": ["one", "two"], "combine": "majority"}]
TRACES = 40


@pytest.fixture
def other_endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint(replies.yes_no("no")) as server:
        yield server


@pytest.fixture
def setup(endpoint: ChatEndpoint, other_endpoint: ChatEndpoint) -> dict[str, Any]:
    models = {
        "one": {"base_url": endpoint.base_url, "model": "judge-1", "price": {"input": 1.0, "output": 1.0}},
        "two": {"base_url": other_endpoint.base_url, "model": "judge-2"},
    }
    return {"models": models, "rules": RULES}


def by_model(pipeline: Pipeline) -> dict[str, list[Verdict]]:
    verdicts: dict[str, list[Verdict]] = {}
    for entry in pipeline.outbox():
        if entry.kind == "j":
            verdicts.setdefault(entry.verdict.judge_model, []).append(entry.verdict)
    return verdicts


def settled(pipeline: Pipeline) -> Account:
    account = pipeline.settled(TRACES)
    assert (account.chosen, account.scored, account.lost) == (3 * TRACES, 3 * TRACES, 0)
    counts = Counter(
        (verdict.judge_model, verdict.trace_id) for each in by_model(pipeline).values() for verdict in each
    )
    assert (len(counts), set(counts.values())) == (3 * TRACES, {1})
    return account


def test_two_models_disagree(pipeline: Pipeline, setup: dict[str, Any], otlp: OtlpReceiver) -> None:
    worker = pipeline.worker(**setup, otlp_endpoint=otlp.root_url)
    pipeline.publish(make_traces(TRACES))
    settled(pipeline)
    combined = by_model(pipeline)[PANEL]
    assert {verdict.scores[0].passed for verdict in combined} == {False}, "a tie does not pass"
    assert {(verdict.scores[1].metric, verdict.scores[1].value) for verdict in combined} == {("disagreement", 1.0)}

    page = worker.counted(4 * TRACES)
    series = {"judge": "safety", "judge_model": PANEL}
    counted = {
        (metric, outcome): page.value("tracejudge_verdicts_total", metric=metric, outcome=outcome, **series)
        for metric, outcome in (("safety", "pass"), ("safety", "fail"), ("disagreement", "unrated"))
    }
    assert counted == {("safety", "pass"): 0, ("safety", "fail"): TRACES, ("disagreement", "unrated"): TRACES}
    assert page.total("tracejudge_score_sum", metric="disagreement", **series) == TRACES
    assert page.total("tracejudge_judge_circuit_open", judge_model=PANEL) == 0
    members = [sample.labels for sample in page.samples("tracejudge_panel_member")]
    assert sorted(each["judge_model"] for each in members) == ["judge-1", "judge-2"]
    assert {each["judge"] for each in members} == {"safety"}

    def spans() -> Counter[str]:
        return Counter(span.name for span in otlp.spans)

    wait_until(lambda: spans()["evaluate safety"] == 3 * TRACES, what="all spans")
    assert spans() == {"evaluate safety": 3 * TRACES, "chat judge-1": TRACES, "chat judge-2": TRACES}


def test_verdicts_are_combined_only_after_the_failed_endpoint_is_back(
    pipeline: Pipeline, setup: dict[str, Any], other_endpoint: ChatEndpoint
) -> None:
    other_endpoint.behaviour = replies.failing(503)
    worker = pipeline.worker(**setup)
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("scored") == TRACES, what="the healthy model's verdicts")
    worker.program.wait_for("batch parked")
    assert by_model(pipeline).keys() == {"judge-1"}
    assert pipeline.account().lost == 0
    wait_until(lambda: worker.scrape().value("tracejudge_batches_parked") > 0, what="the gauge")
    other_endpoint.behaviour = replies.yes_no("yes")
    settled(pipeline)
    assert {verdict.scores[0].passed for verdict in by_model(pipeline)[PANEL]} == {True}
    assert not [line for line in worker.program.output.splitlines() if "parked" in line and PANEL in line]


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
def test_after_a_kill_only_the_missing_model_of_a_panel_is_called(
    pipeline: Pipeline, setup: dict[str, Any], endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> None:
    """The verdict of the first model is in the ledger: it is not repeated, and the panel includes it."""
    other_endpoint.behaviour = replies.hangs()
    worker = pipeline.worker(**setup)
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("scored") == TRACES, what="all verdicts of the one that answers")
    worker.program.kill()
    other_endpoint.behaviour = replies.yes_no("yes")
    pipeline.worker(**setup)
    settled(pipeline)
    assert len(endpoint.calls) == TRACES
    assert {verdict.scores[0].passed for verdict in by_model(pipeline)[PANEL]} == {True}


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
def test_after_a_kill_before_the_combination_each_panel_is_combined_once(
    pipeline: Pipeline, setup: dict[str, Any], endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.slow(0.1)
    worker = pipeline.worker(**setup, batch_size=4)
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("scored") > TRACES // 2, what="some verdicts")
    worker.program.kill()
    pipeline.worker(**setup)
    settled(pipeline)
