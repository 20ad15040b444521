"""The monitor's sums while workers die: they equal the verdicts of the outbox exactly."""

import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from experiment import number
from support.processes import PATIENCE_S, Program, bounded_s, wait_until

from judges.core.verdict import Score, Verdict
from worker.embedded import EmbeddedRedis
from worker.monitor.series import read_buckets, read_series
from worker.storage.client import Store
from worker.storage.keys import Keys

KILLS = number(20, least=3)
A_SECOND = 500
PREFIX = "sums"


def verdict(place: int, chance: random.Random) -> Verdict:
    weight = chance.choice([1.0, 20.0])
    passed = chance.random() < 0.9
    return Verdict(
        evaluation_id=f"{place:032x}",
        outcome="scored",
        scores=(Score("safety", float(passed), passed=passed),),
        metrics=("safety",),
        trace_id=f"{place:032x}",
        session_id=f"s{place // 7}",
        service=f"shop-{place % 3}",
        judge="safety",
        judge_version="0123456789abcdef",
        judge_model="lexical",
        weight=weight,
        probability=1 / weight,
        started_at=1.0,
        duration_s=1.0,
    )


def test_sums_survive_kills(faults_redis: EmbeddedRedis, tmp_path: Path) -> None:
    store, chance, stopped = Store(faults_redis.url, Keys(PREFIX)), random.Random(18), threading.Event()
    expected: Counter[tuple[str, str]] = Counter()
    env = {"TRACEJUDGE_REDIS_URL": faults_redis.url, "TRACEJUDGE_PREFIX": PREFIX, "TRACEJUDGE_METRICS_PORT": "0"}

    def write() -> None:
        place = 0
        while not stopped.wait(0.1):
            some = [verdict(place + more, chance) for more in range(A_SECOND // 10)]
            place += len(some)
            store.pipeline(
                lambda pipe: [
                    pipe.xadd(store.keys.verdicts, {"v": 1, "j": msgspec.json.encode(one)})
                    for one in some  # noqa: B023
                ]
            )
            for one in some:
                expected[one.service, "n"] += 1
                expected[one.service, "w"] += int(one.weight)
                expected[one.service, "wy"] += int(one.weight * one.scores[0].value)

    def sums() -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for series_id, series in read_series(store).items():
            for fine in (True, False):
                for bucket in read_buckets(store, series_id, now - 86_400, now + 86_400, fine=fine):
                    for of_class in bucket.classes.values():
                        found[series.service, "n", fine] += of_class.judgements
                        found[series.service, "w", fine] += of_class.weight
                        found[series.service, "wy", fine] += of_class.passed
        return found

    with ExitStack() as ends:
        pass
