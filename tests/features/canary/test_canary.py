"""The canary with real workers: every judging is whole and counted once, also when the active monitor is killed."""

import time
from collections import Counter
from collections.abc import Mapping

import pytest
from support.pipeline import SETTLING_S, Pipeline
from support.processes import wait_until

from worker.base.monitor.counts import read_counts

EVALUATIONS = 54
"""Of one judging by the default rules: 14 for groundedness, 20 for relevance, 20 for safety."""


def judgings(pipeline: Pipeline) -> Mapping[float | None, int]:
    """Count the verdicts of each judging in the outbox, which it is told by."""
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    assert {verdict.origin for verdict in verdicts} <= {"canary"}
    assert len({verdict.evaluation_id for verdict in verdicts}) == len(verdicts)
    return Counter(verdict.trace_ended_at for verdict in verdicts)


def counted(pipeline: Pipeline) -> int:
    return read_counts(pipeline.store, "canary", time.time() - 86_400, time.time()).total()


@pytest.mark.slow("starts of three workers")
def test_each_judging_is_whole_and_counted_once_while_workers_are_killed(pipeline: Pipeline) -> None:
    workers = [pipeline.worker(monitor={"canary_every_s": 2}) for _ in range(2)]
    for worker in workers:
        more = pipeline.counter("scored") + 2 * EVALUATIONS
        wait_until(lambda more=more: pipeline.counter("scored") >= more, SETTLING_S, "two judgings")  # type: ignore[misc]
        worker.program.kill()
    # A third worker ends what was begun, and begins nothing.
    last = pipeline.worker(monitor={"canary_every_s": 0})
    account = wait_until(
        lambda: result if (result := pipeline.account()).settled and counted(pipeline) >= result.scored else None,
        SETTLING_S,
        "all verdicts to be counted",
    )
    assert set(judgings(pipeline).values()) == {EVALUATIONS}
    assert (account.chosen, account.lost, account.published) == (account.scored, 0, 0)
    assert counted(pipeline) == account.scored == sum(judgings(pipeline).values()) >= 4 * EVALUATIONS
    page = last.scrape()
    assert page.total("tracejudge_verdicts_total") == 0
    assert "tracejudge_quality_share{" not in page.text
