"""Late feedback from the SDK to the verdict, with real workers."""

import json
from collections.abc import Callable

import pytest
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import wait_until

import tracejudge
from judges.core.verdict import Verdict

JUDGES = ("groundedness", "relevance_to_query")
COMPLAINTS_ONLY = [{"name": "complaints", "judges": JUDGES, "rate": 0.0, "always": ["negative_feedback"]}]
COUNTED = "tracejudge_late_feedback_total"
SOON_S = 0.5
TRACES = 300


def send_feedback(pipeline: Pipeline, *feedback: tuple[str, float]) -> None:
    """Publish feedback through the SDK and wait until Redis has it."""
    tracejudge.init(service="tests", redis_url=pipeline.redis_url, prefix=pipeline.prefix)
    try:
        for trace_id, score in feedback:
            tracejudge.feedback(trace_id, score=score, comment="It came on Tuesday.")
        assert tracejudge.flush(30)
    finally:
        tracejudge.shutdown()


def ended(pipeline: Pipeline) -> dict[str, int]:
    """Outcomes of late feedback in the accounting."""
    accounting = pipeline.store.call(lambda client: client.hgetall(pipeline.keys.account_all))
    by_name = {name.decode(): int(amount) for name, amount in accounting.items()}
    return {name.split(":")[1]: amount for name, amount in by_name.items() if name.startswith("feedback:")}


def wait_for(pipeline: Pipeline, expected: dict[str, int]) -> None:
    wait_until(lambda: sum(ended(pipeline).values()) >= sum(expected.values()), 200, "feedback to be dealt with")
    assert ended(pipeline) == expected


def verdicts(pipeline: Pipeline) -> list[Verdict]:
    return [entry.verdict for entry in pipeline.outbox()]


def outcomes(worker: Worker) -> dict[str, float]:
    samples = worker.scrape().samples(COUNTED)
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.value}


def test_negative_feedback_leads_to_verdicts_on_its_trace_only(pipeline: Pipeline) -> None:
    worker = pipeline.worker(rules=COMPLAINTS_ONLY, late_feedback_wait=SOON_S)
    traces = make_traces(TRACES)
    pipeline.publish(traces)
    assert pipeline.settled(TRACES).not_sampled == TRACES
    expected, praised = traces[17].trace_id, traces[18].trace_id
    send_feedback(pipeline, (expected, -1), (praised, 1), ("f" * 32, -1))
    wait_for(pipeline, {"pulled": 1, "not_negative": 1, "not_found": 1})
    account = pipeline.settled(TRACES)
    assert (account.published, account.not_sampled, account.sampled) == (TRACES, TRACES, 0)
    assert (account.chosen, account.scored, account.lost) == (2, 2, 0)
    rows = [
        (verdict.trace_id, verdict.judge, verdict.origin, verdict.weight, verdict.outcome)
        for verdict in verdicts(pipeline)
    ]
    assert sorted(rows) == [(expected, judge, "late_feedback", 0.0, "scored") for judge in JUDGES]

    worker.counted(3, COUNTED)
    page = worker.counted(len(JUDGES), "tracejudge_late_feedback_verdicts_total")
    assert page.total("tracejudge_verdicts_total") == 0
    assert page.total("tracejudge_score_count") == 0
    assert outcomes(worker) == {"pulled": 1, "not_negative": 1, "not_found": 1}

    send_feedback(pipeline, (expected, -1))
    wait_for(pipeline, {"pulled": 1, "not_negative": 1, "not_found": 1, "already_judged": 1})
    assert len(verdicts(pipeline)) == len(JUDGES)


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_the_log_line_of_a_pass_quotes_no_content(pipeline: Pipeline) -> None:
    (trace,) = make_traces(1)
    pipeline.publish([trace])
    send_feedback(pipeline, (trace.trace_id, -1))
    # After the report of the client, which is in the stream as well.
    worker = pipeline.worker(rules=COMPLAINTS_ONLY, late_feedback_wait=SOON_S)
    wait_for(pipeline, {"pulled": 1})
    line = json.loads(worker.program.wait_for(r"^\{.*late feedback pass ended.*$")[0])
    assert (line["entries"], line["pulled"]) == (
        pipeline.store.call(lambda client: client.xlen(pipeline.keys.traces)),
        1,
    )
    assert "Tuesday" not in worker.program.output


@pytest.mark.faults
def test_nothing_is_lost_or_counted_twice_when_a_worker_is_killed_before_the_pass(pipeline: Pipeline) -> None:
    first = pipeline.worker(rules=COMPLAINTS_ONLY, late_feedback_wait=600)
    traces = make_traces(TRACES)
    pipeline.publish(traces)
    send_feedback(pipeline, *((trace.trace_id, -1) for trace in traces[:20]), ("f" * 32, -1))
    gathered = lambda: pipeline.store.call(lambda client: client.zcard(pipeline.keys.feedback))  # noqa: E731
    wait_until(lambda: gathered() == 21, what="feedback to be gathered")
    first.program.kill()
    assert pipeline.counter("chosen") == 0

    make_feedback_due(pipeline)
    pipeline.worker(rules=COMPLAINTS_ONLY, late_feedback_wait=SOON_S)
    wait_for(pipeline, {"pulled": 20, "not_found": 1})
    assert gathered() == 0
    account = pipeline.settled(TRACES)
    assert (account.chosen, account.scored, account.lost) == (40, 40, 0)
    assert len({verdict.evaluation_id for verdict in verdicts(pipeline)}) == len(verdicts(pipeline)) == 40


@pytest.mark.slow("several workers")
def test_one_of_several_workers_makes_the_pass(new_pipeline: Callable[[str], Pipeline], prefix: str) -> None:
    pipeline = new_pipeline(prefix)
    rules = [{"name": "half", "judges": ["groundedness"], "rate": 0.5, "always": ["negative_feedback"]}]
    workers = [pipeline.worker(rules=rules, late_feedback_wait=SOON_S, log_level="warning") for _ in range(2)]
    traces = make_traces(TRACES)
    pipeline.publish(traces)
    sampled = pipeline.settled(TRACES).sampled
    assert 0 < sampled < TRACES
    send_feedback(pipeline, *((trace.trace_id, -1) for trace in traces))
    wait_for(pipeline, {"pulled": TRACES - sampled, "already_judged": sampled})
    account = pipeline.settled(TRACES)
    assert (account.sampled, account.chosen, account.scored, account.lost) == (sampled, TRACES, TRACES, 0)
    by_origin = {(verdict.origin, verdict.weight, verdict.probability) for verdict in verdicts(pipeline)}
    assert by_origin == {("live", 2.0, 0.5), ("late_feedback", 0.0, 1.0)}
    assert len({verdict.evaluation_id for verdict in verdicts(pipeline)}) == TRACES

    def counted() -> float:
        return sum(sum(outcomes(worker).values()) for worker in workers)

    wait_until(lambda: counted() >= TRACES, what="all to be counted")
    assert counted() == TRACES


def make_feedback_due(pipeline: Pipeline) -> None:
    """Make all pending feedback due."""
    members = pipeline.store.call(lambda client: client.zrange(pipeline.keys.feedback, 0, -1))
    pipeline.store.call(lambda client: client.zadd(pipeline.keys.feedback, dict.fromkeys(members, 1)))
