"""Every published trace is judged once and counted once, whatever happens to the worker."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

TRACES = 3_000
TWO_JUDGES = [{"name": "all", "judges": ["groundedness", "relevance_to_query"]}]


def evaluation_ids(pipeline: Pipeline) -> Counter[str]:
    return Counter(entry.verdict.evaluation_id for entry in pipeline.outbox())


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.endurance("15 s of CPU"))])
def test_traces_with_two_judges_give_two_verdicts_once_each(pipeline: Pipeline, count: int) -> None:
    worker = pipeline.worker(rules=TWO_JUDGES, log_level="warning")
    pipeline.publish(make_traces(count))
    account = pipeline.settled(count)
    worker.counted(count, "tracejudge_traces_total", outcome="sampled")
    page = worker.counted(2 * count)
    assert (account.published, account.sampled, account.chosen, account.scored) == (count, count, 2 * count, 2 * count)
    assert account.lost == 0
    assert page.total("tracejudge_verdicts_total") == 2 * count
    assert page.total("tracejudge_traces_total", outcome="sampled") == count
    assert pipeline.ledger_size() == 2 * count
    ids = evaluation_ids(pipeline)
    assert len(ids) == 2 * count
    assert set(ids.values()) == {1}


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
def test_nothing_is_lost_or_counted_twice_when_a_worker_is_killed(pipeline: Pipeline) -> None:
    first = pipeline.worker(rules=TWO_JUDGES, log_level="warning")
    pipeline.publish(make_traces(TRACES))
    wait_until(lambda: pipeline.counter("scored") > TRACES // 10, what="work to be well under way")
    scraped_before = first.scrape().total("tracejudge_verdicts_total")
    first.program.kill()
    finished_at_kill = pipeline.ledger_size()
    assert 0 < finished_at_kill < 2 * TRACES, "the kill must fall into the middle of the work"

    second = pipeline.worker(rules=TWO_JUDGES, log_level="warning")
    wait_until(lambda: pipeline.ledger_size() > finished_at_kill, what="work to go on after the restart")
    account = pipeline.settled(TRACES)
    assert (account.chosen, account.scored, account.lost) == (2 * TRACES, 2 * TRACES, 0)
    assert pipeline.ledger_size() == 2 * TRACES
    ids = evaluation_ids(pipeline)
    assert len(ids) == 2 * TRACES
    assert set(ids.values()) == {1}

    lag = {"exporter": "metrics"}
    wait_until(lambda: second.scrape().value("tracejudge_outbox_lag", **lag) == 0, what="the outbox to be read")
    assert scraped_before + second.scrape().total("tracejudge_verdicts_total") <= 2 * TRACES


@pytest.mark.slow("three runs one after the other")
def test_a_rate_samples_the_same_traces_in_every_run_and_worker(
    new_pipeline: Callable[[str], Pipeline], prefix: str
) -> None:
    chosen = []
    for rate, workers in ((0.1, 1), (0.1, 2), (0.2, 1)):
        pipeline = new_pipeline(f"{prefix}-{len(chosen)}")
        for _ in range(workers):
            pipeline.worker(rules=[{"name": "some", "judges": ["safety"], "rate": rate}], log_level="warning")
        pipeline.publish(make_traces(TRACES))
        account = pipeline.settled(TRACES)
        assert account.lost == 0
        assert account.sampled + account.not_sampled == TRACES
        verdicts = [entry.verdict for entry in pipeline.outbox()]
        assert {verdict.probability for verdict in verdicts} == {rate}
        chosen.append({verdict.trace_id for verdict in verdicts})
    once, by_two_workers, at_double_rate = chosen
    assert abs(len(once) - 0.1 * TRACES) <= 50
    assert once == by_two_workers
    assert once < at_double_rate


def test_traces_published_twice_are_judged_once(pipeline: Pipeline) -> None:
    pipeline.worker(rules=TWO_JUDGES)
    for _ in itertools.repeat(None, 2):
        pipeline.publish(make_traces(50))
    account = pipeline.settled(100)
    assert (account.sampled, account.duplicate, account.scored, account.lost) == (50, 50, 100, 0)
