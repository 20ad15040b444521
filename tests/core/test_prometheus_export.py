"""The metrics exporter on a real outbox: each verdict counts once, whoever reads it, dies over it or cannot read it."""

import math
import threading
from typing import Any

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from support.scrape import parse
from support.stage_parts import Keyspace, make_verdict, samples, select_metrics, settings_of

from judges.core.verdict import Score, Verdict
from worker.core.export.prometheus import PrometheusExporter
from worker.core.telemetry.metrics import Metrics

SERIES = ("environment=prod", "judge=safety", "judge_model=lexical")
GROUP = "metrics"
pytestmark = pytest.mark.usefixtures("_short_reads")


class Counting:
    """One worker's metrics exporter."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        self.metrics = Metrics(settings_of(keyspace, **settings))
        self.exporter = PrometheusExporter(settings_of(keyspace, **settings), keyspace.store, self.metrics)
        self.exporter.stale_ms = 0
        self.exporter.gather_s = 0.0
        self.exporter.prepare()

    def turn(self, count: int | None = None) -> None:
        """Read once; claim first, as it is done every few seconds."""
        if count is not None:
            self.exporter.read_count = count
        self.exporter._next_claim = 0.0
        self.exporter.run_once()

    @property
    def counted(self) -> dict[tuple[str, ...], float]:
        return samples(self.metrics)

    @property
    def verdicts(self) -> float:
        return sum(select_metrics(self.counted, "verdicts_total").values())

    @property
    def dropped(self) -> float:
        return sum(select_metrics(self.counted, "export_dropped_total").values())


def scored(number: int, value: float = 1.0, *, passed: bool | None = True, **fields: Any) -> Verdict:
    return make_verdict(
        number, outcome="scored", environment="prod", scores=(Score("safety", value, passed=passed),), **fields
    )


def unscored(number: int, reason: str = "refusal", **fields: Any) -> Verdict:
    return make_verdict(number, outcome="unscored", reason=reason, environment="prod", **fields)


def labels(*own: str) -> tuple[str, ...]:
    return tuple(sorted((*SERIES, *own, "service=shop", "version=01234567")))


def test_every_outcome_is_counted_under_its_series(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    keyspace.send(
        scored(0, 1.0, weight=4.0, trace_ended_at=1_700_000_000.0),
        scored(1, 0.25, passed=False, weight=4.0),
        scored(2, 0.75, passed=None),
        make_verdict(3, environment="prod"),
        unscored(4, weight=2.0),
    )
    keyspace.send(unscored(5, "timeout"), kind="d")
    worker.turn()

    def ended(outcome: str) -> tuple[str, ...]:
        return labels("metric=safety", f"outcome={outcome}")

    weights = {"pass": 4.0, "fail": 4.0, "unrated": 1.0, "abstained": 1.0, "unscored": 2.0}
    rated = labels("metric=safety")
    ages = (1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600, 21600, math.inf)
    assert worker.counted == {
        **{("verdicts_total", *ended(outcome)): 1 for outcome in weights},
        **{("verdict_weight_total", *ended(outcome)): weight for outcome, weight in weights.items()},
        **{("verdict_weight_squared_total", *ended(outcome)): weight**2 for outcome, weight in weights.items()},
        ("score_weighted_total", *rated): 4 * 1 + 4 * 0.25 + 0.75,
        ("unscored_total", *labels("reason=refusal")): 1,
        ("unscored_total", *labels("reason=timeout")): 1,
        ("score_age_seconds_count", "service=shop"): 1,
        ("score_age_seconds_sum", "service=shop"): 0.75,
        **{("score_age_seconds_bucket", *at(age, ("service=shop",))): 1 for age in ages},
    }


def at(step: float, others: tuple[str, ...]) -> tuple[str, ...]:
    """Name a histogram's bucket."""
    return tuple(sorted((*others, "le=+Inf" if math.isinf(step) else f"le={float(step)}")))


def test_outcomes_that_did_not_come_are_there_at_zero(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    keyspace.send(scored(0))
    worker.turn()
    page = parse(generate_latest(worker.metrics.registry).decode())
    outcomes = {sample.labels["outcome"]: sample.value for sample in page.samples("tracejudge_verdicts_total")}
    assert outcomes == {"pass": 1, "fail": 0, "unrated": 0, "abstained": 0, "unscored": 0}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ({"trace_id": "ab" * 16, "span_id": "cd" * 8}, {"trace_id": "ab" * 16, "span_id": "cd" * 8}),
        ({"trace_id": "ab" * 16, "span_id": None}, {"trace_id": "ab" * 16}),
        ({"trace_id": "ab" * 16, "span_id": "number 7"}, {"trace_id": "ab" * 16}),
        ({"trace_id": "t" * 128, "span_id": "cd" * 8}, None),
    ],
    ids=["both", "no span", "foreign span", "foreign trace"],
)
def test_a_failure_points_to_its_trace(
    keyspace: Keyspace, ids: dict[str, str], expected: dict[str, str] | None
) -> None:
    worker = Counting(keyspace)
    keyspace.send(scored(0, 0.0, passed=False, **ids), scored(1, 1.0, **ids))
    worker.turn()
    page = parse(generate_latest(worker.metrics.registry).decode())
    exemplars = [exemplar.labels for exemplar in page.exemplars("tracejudge_verdicts_total")]
    assert exemplars == ([expected] if expected else [])


def test_only_live_traffic_feeds_the_series(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    keyspace.send(scored(0, origin="replay"), unscored(1, origin="late_feedback"))
    worker.turn()
    late = ("late_feedback_verdicts_total", "judge=safety", "metric=safety", "outcome=unscored", "service=shop")
    assert worker.counted == {late: 1}
    assert keyspace.pending(GROUP, keyspace.keys.verdicts) == 0


def test_of_several_metrics_each_counts_for_itself(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    both = {"metrics": ("a", "b")}
    keyspace.send(make_verdict(0, outcome="scored", scores=(Score("b", 0.5),), **both), unscored(1, **both))
    worker.turn()
    counts = {
        (sample.labels["metric"], sample.labels["outcome"]): sample.value
        for family in worker.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tracejudge_verdicts_total" and sample.value
    }
    assert counts == {("b", "unrated"): 1, ("a", "unscored"): 1, ("b", "unscored"): 1}


def test_further_labels_are_those_of_the_configuration(keyspace: Keyspace) -> None:
    worker = Counting(keyspace, series_labels=("release", "name"))
    keyspace.send(scored(0, release="1.2", name="chat"), scored(1))
    worker.turn()
    assert select_metrics(worker.counted, "verdicts_total") == {
        ("verdicts_total", *labels("metric=safety", "outcome=pass", "release=1.2", "name=chat")): 1,
        ("verdicts_total", *labels("metric=safety", "outcome=pass", "release=", "name=")): 1,
    }


def test_two_workers_reading_at_once_count_each_verdict_once(keyspace: Keyspace) -> None:
    workers = [Counting(keyspace) for _ in range(2)]
    ended = threading.Event()
    failures: list[BaseException] = []

    def work(worker: Counting) -> None:
        try:
            while not ended.is_set() or keyspace.measure(groups=(GROUP,)).outbox[GROUP].lag:
                worker.turn(count=7)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for start in range(0, 300, 20):
        keyspace.send(*(scored(number) for number in range(start, start + 20)))
    ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    assert sum(worker.verdicts for worker in workers) == 300
    assert keyspace.accounting()["exported:metrics"] == 300
    assert sum(worker.dropped for worker in workers) == 0


def test_entries_pending_for_a_dead_worker_are_counted_once_by_another(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    keyspace.send(*(scored(number) for number in range(5)))
    keyspace.store.read_group(keyspace.keys.verdicts, GROUP, "dead", count=3, block_ms=1)
    worker.turn()
    assert (worker.verdicts, keyspace.pending(GROUP, keyspace.keys.verdicts)) == (5, 0)
    worker.turn()
    assert worker.verdicts == 5


def test_recently_read_entries_are_left_to_their_reader(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    worker.exporter.stale_ms = 60_000
    keyspace.send(scored(1))
    keyspace.store.read_group(keyspace.keys.verdicts, GROUP, "busy", count=3, block_ms=1)
    worker.turn()
    assert (worker.verdicts, keyspace.pending(GROUP, keyspace.keys.verdicts)) == (0, 1)


def test_a_slow_worker_does_not_count_verdicts_again(keyspace: Keyspace) -> None:
    slow, quick = Counting(keyspace), Counting(keyspace)
    keyspace.send(scored(1))
    deliver, held = slow.exporter.deliver, []
    slow.exporter.deliver = held.append
    slow.turn()
    quick.turn()
    deliver(held[0])
    assert (slow.verdicts, quick.verdicts) == (0, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"v": "1", "j": "{"},
        {"v": "1", "j": "{}"},
        {"v": "1", "d": '{"evaluation_id": 1}'},
        {"v": "1", "x": "?"},
        {"v": "1", "j": b"\xff"},
    ],
    ids=["no JSON", "no verdict", "wrong type", "unknown kind", "no UTF-8"],
)
def test_an_unreadable_entry_is_counted_acknowledged_and_delays_nothing(
    keyspace: Keyspace, fields: dict[str, Any]
) -> None:
    worker = Counting(keyspace)
    keyspace.send(scored(0))
    keyspace.client.xadd(keyspace.keys.verdicts, fields)
    keyspace.send(scored(1))
    worker.turn()
    worker.turn()
    assert worker.verdicts == 2
    assert select_metrics(worker.counted, "export_dropped_total") == {
        ("export_dropped_total", "exporter=metrics", "reason=unreadable"): 1
    }
    assert keyspace.pending(GROUP, keyspace.keys.verdicts) == 0


def test_an_entry_of_another_version_is_left_to_other_workers(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    newer = keyspace.client.xadd(keyspace.keys.verdicts, {"v": "2", "j": "{}"})
    unversioned = keyspace.client.xadd(keyspace.keys.verdicts, {"j": "{}"})
    keyspace.send(scored(1))
    for _ in range(3):
        worker.turn()
    waiting = keyspace.client.xpending_range(keyspace.keys.verdicts, GROUP, "-", "+", 10)
    assert [entry["message_id"] for entry in waiting] == [newer, unversioned]
    assert (worker.verdicts, worker.dropped) == (1, 0)


def test_trimmed_entries_of_a_dead_worker_are_cut_off_and_not_dropped(keyspace: Keyspace) -> None:
    worker = Counting(keyspace)
    keyspace.send(*(scored(number) for number in range(6)))
    keyspace.store.read_group(keyspace.keys.verdicts, GROUP, "dead", count=4, block_ms=1)
    keyspace.client.xtrim(keyspace.keys.verdicts, maxlen=3, approximate=False)
    worker.turn()
    assert (worker.verdicts, worker.dropped, keyspace.pending(GROUP, keyspace.keys.verdicts)) == (3, 0, 0)
    assert keyspace.measure(groups=(GROUP,), report_cuts=True).outbox[GROUP][:2] == (0, 3)
    assert keyspace.accounting()["exported:metrics"] == 3
