"""Two versions run side by side, as during a rolling upgrade: each worker leaves unknown versions to the other."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experiment import Experiment, number, seconds
from support.processes import wait_until

TRACES = number(5_000, least=200)
LOAD_S = seconds(20, least=2)
RULES = {"old": "Name the parcel.", "new": "Name the parcel and what it holds."}
OLD, NEW = "old", "new"


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    """An experiment with one judge in two versions: its settings are part of its version."""
    with Experiment(tmp_path, judges=("guidelines",)) as made:
        yield made


def start(experiment: Experiment, version: str, **settings: Any) -> None:
    experiment.start(version, judges={"guidelines": {"guidelines": [RULES[version]]}}, **settings)


def versions(experiment: Experiment) -> Counter[str]:
    return Counter(entry.verdict.judge_version for entry in experiment.pipeline.outbox())


def asked(experiment: Experiment) -> Counter[str]:
    """Count the calls by version."""
    texts = [call.text() for call in experiment.endpoint.calls]
    new = sum(RULES[NEW] in text for text in texts)
    return Counter({NEW: new, OLD: len(texts) - new})


@pytest.mark.slow("four workers one after the other")
def test_both_versions_sample_and_judge_during_an_upgrade(experiment: Experiment) -> None:
    """No trace is judged by both: the worker that reads it determines the version."""
    for version in (OLD, NEW):
        start(experiment, version)
    with experiment.load(TRACES / LOAD_S) as load:
        wait_until(lambda: load.published >= TRACES and len(versions(experiment)) == 2, what="both to choose")
    experiment.assert_all_scored()
    assert sorted(versions(experiment).values()) == sorted(asked(experiment).values())


@pytest.mark.slow("waits longer than a lease of 15 s")
def test_evaluations_of_the_old_version_wait_for_a_worker_that_has_it(experiment: Experiment) -> None:
    """After a rolled-back upgrade nothing is lost, and nothing is judged by the wrong version."""
    choose(experiment)
    start(experiment, NEW, roles="judge,export")
    wait_until(lambda: parked(experiment) > 0, what="the new worker to hand them back")
    account = experiment.pipeline.account()
    assert (account.waiting, account.lost, account.scored) == (60, 0, 0)
    assert experiment.terminate(OLD) == 0
    start(experiment, OLD, roles="judge")
    experiment.assert_all_scored()
    assert asked(experiment) == {OLD: 60, NEW: 0}


def test_batches_of_a_later_version_are_released(experiment: Experiment) -> None:
    choose(experiment)
    batches = rewrite_batches(experiment, b'"v":1,', b'"v":9,')
    experiment.terminate(OLD)
    start(experiment, OLD, roles="judge,export")
    wait_until(lambda: parked(experiment) == batches, what="all batches to be handed back")
    account = experiment.pipeline.account()
    assert (account.waiting, account.lost, len(experiment.endpoint.calls)) == (60, 0, 0)
    # A worker of the later version starts (simulated by this version).
    rewrite_batches(experiment, b'"v":9,', b'"v":1,')
    experiment.assert_all_scored()


@pytest.mark.slow("two workers one after the other")
def test_outbox_entries_of_a_later_version_wait_while_others_flow(experiment: Experiment) -> None:
    stream = experiment.pipeline.keys.verdicts
    start(experiment, OLD)
    experiment.publish(10)
    experiment.wait_finished(10)
    entry = {"v": "2", "x": "later"}
    later = [experiment.call_redis(lambda client: client.xadd(stream, entry)) for _ in range(3)]
    experiment.publish(20)
    wait_until(lambda: experiment.counted == 30, what="the verdicts behind them to be counted")
    wait_until(lambda: len(experiment.otlp.logs) >= 30, what="and exported")
    assert experiment.terminate(OLD) == 0
    start(experiment, OLD)
    experiment.publish(5)
    experiment.wait_finished(35)
    for group in ("metrics", "monitor", "otel"):
        wait_until(lambda name=group: pending(experiment, name) == later, what="only the later ones to wait")
        # A worker of the later version starts and acknowledges them.
        experiment.call_redis(lambda client, name=group: client.xack(stream, name, *later))
    experiment.assert_all_scored()


def choose(experiment: Experiment) -> None:
    """Choose 60 traces by an ingest of the old version."""
    start(experiment, OLD, roles="ingest")
    experiment.publish(60)
    wait_until(lambda: experiment.pipeline.counter("chosen") == 60, what="the traces to be chosen")


def parked(experiment: Experiment) -> int:
    holders = experiment.pipeline.keys.holders
    return experiment.call_redis(lambda client: client.hvals(holders)).count(b"parked")


def rewrite_batches(experiment: Experiment, old: bytes, new: bytes) -> int:
    """Change the batches, and return their number."""
    pattern = experiment.pipeline.keys.batch("*")
    names = experiment.call_redis(lambda client: list(client.scan_iter(pattern, count=1000)))
    for name in names:
        experiment.call_redis(lambda client, name=name: client.set(name, client.get(name).replace(old, new, 1)))
    return len(names)


def pending(experiment: Experiment, group: str) -> list[bytes]:
    entries = (experiment.pipeline.keys.verdicts, group, "-", "+", 100)
    return [entry["message_id"] for entry in experiment.call_redis(lambda client: client.xpending_range(*entries))]
