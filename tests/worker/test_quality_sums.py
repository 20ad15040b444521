"""The monitor's sums equal those of the verdicts in the outbox, whatever is delivered twice or in which parts."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from stage_parts import Ground

from judges.core.verdict import Score, Verdict
from worker.config.settings import Monitor, Settings
from worker.export.consumer import OutboxEntry, read_outbox_entry
from worker.export.quality import QualitySums
from worker.monitor.series import Series, class_of, read_buckets, read_series
from worker.storage.client import StoreError
from worker.telemetry.metrics import Metrics

DAY_MS = 1_760_000_000_000
WEIGHTS = (1.0, 1.0, 2.0, 10 / 3, 20.0, 100.0)


def verdict(number: int, **fields: Any) -> Verdict:
    given = {
        "evaluation_id": f"{number:032x}",
        "outcome": "scored",
        "scores": (Score("safety", 1.0, passed=True),),
        "metrics": ("safety",),
        "trace_id": f"{number:032x}",
        "service": "shop",
        "judge": "safety",
        "judge_version": "0123456789abcdef",
        "judge_model": "lexical",
        "started_at": 1.0,
        "duration_s": 1.0,
    }
    return Verdict(**(given | fields))


def publish(ground: Ground, verdicts: Sequence[Verdict], times_ms: Sequence[int]) -> list[OutboxEntry]:
    """Write verdicts into the outbox at these times, and read them for the monitor."""
    ground.store.make_group(ground.keys.verdicts, "monitor")
    for number, (one, at) in enumerate(zip(verdicts, times_ms, strict=True)):
        ground.client.xadd(ground.keys.verdicts, {"v": 1, "j": msgspec.json.encode(one)}, id=f"{at}-{number}")
    return read(ground)


def read(ground: Ground) -> list[OutboxEntry]:
    entries = ground.store.read_group(ground.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    return [one for one in map(read_outbox_entry, entries) if one is not None]


def sums_of(ground: Ground, **monitor: Any) -> QualitySums:
    settings = Settings(prefix=ground.prefix, redis_url=ground.url, monitor=Monitor(**monitor))
    sums = QualitySums(settings, ground.store, Metrics(settings))
    sums.prepare()
    return sums


def expected(entries: Sequence[OutboxEntry], seconds: int) -> dict[tuple[Any, ...], dict[Any, list[float]]]:
    """Add up the verdicts the direct way: by labels and bucket, then by class of weight and kind of sum."""
    found: dict[tuple[Any, ...], dict[Any, list[float]]] = defaultdict(dict)
    clusters: dict[tuple[Any, ...], tuple[float, float]] = {}

    def add(at: tuple[Any, ...], kind: Any, amounts: Sequence[float]) -> None:
        before = found[at].get(kind, [0.0] * len(amounts))
        found[at][kind] = [a + b for a, b in zip(before, amounts, strict=True)]

    for entry in entries:
        one, time_s = entry.verdict, int(entry.entry_id.split("-")[0]) // 1000
        if one.origin != "live" or one.weight <= 0:
            continue
        passed = {score.metric: score.passed for score in one.scores}
        segments = [("", ""), *([("model", one.model)] if one.model else [])]
        for metric in one.metrics:
            for segment in segments:
                labels = (one.service, one.environment or "", one.judge, "01234567", one.judge_model, metric, *segment)
                at, w = (labels, time_s // seconds * seconds), one.weight
                if one.outcome != "scored":
                    add(at, one.outcome, (1, w, w * w))
                    continue
                if passed.get(metric) is None:
                    continue
                y = int(bool(passed[metric]))
                add(at, math.floor(math.log2(w)), (1, w, w * y, w * w, w * w * y))
                if one.session_id:
                    cluster = (labels, one.session_id, time_s // 21_600)
                    total, good = clusters.get(cluster, (0.0, 0.0))
                    after = (total + w, good + w * y)
                    more = (
                        after[0] ** 2 - total**2 - w * w,
                        after[0] * after[1] - total * good - w * w * y,
                        after[1] ** 2 - good**2 - w * w * y,
                    )
                    clusters[cluster] = after
                    if total:
                        add(at, "clusters", more)
    return found


def stored(ground: Ground, *, fine: bool) -> dict[tuple[Any, ...], dict[Any, list[float]]]:
    found: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
    for series_id, series in read_series(ground.store).items():
        span = DAY_MS / 1000 - 86_400, DAY_MS / 1000 + 3 * 86_400
        for bucket in read_buckets(ground.store, series_id, *span, fine=fine):
            kinds: dict[Any, list[float]] = {class_: list(sums) for class_, sums in bucket.classes.items()}
            others = {"clusters": bucket.clusters, "abstained": bucket.abstained, "unscored": bucket.unscored}
            kinds |= {name: list(sums) for name, sums in others.items() if any(sums)}
            found[(*msgspec.structs.astuple(series),), bucket.begins_at] = kinds
    return found


def assert_equal(left: dict[Any, dict[Any, list[float]]], right: dict[Any, dict[Any, list[float]]]) -> None:
    assert left.keys() == right.keys()
    for at, kinds in right.items():
        assert left[at].keys() == kinds.keys(), at
        for kind, numbers in kinds.items():
            assert left[at][kind] == pytest.approx(numbers, rel=1e-12), (at, kind)


def random_verdicts(count: int) -> tuple[list[Verdict], list[int]]:
    random_ = random.Random(18)
    verdicts = []
    for number in range(count):
        passed = random_.choice([True, True, True, False, None])
        outcome = random_.choices(["scored", "abstained", "unscored"], [8, 1, 1])[0]
        weight = random_.choice(WEIGHTS)
        verdicts.append(
            verdict(
                number,
                outcome=outcome,
                reason="refusal" if outcome == "unscored" else None,
                scores=(Score("safety", 0.5, passed=passed), Score("tone", 0.5, passed=True))
                if outcome == "scored"
                else (),
                metrics=("safety", "tone"),
                service=random_.choice(["shop", "bot"]),
                session_id=random_.choice([None, *(f"s{each}" for each in range(20))]),
                model=random_.choice([None, "a", "b"]),
                origin=random_.choices(["live", "late_feedback", "replay", "session_update"], [9, 1, 1, 1])[0],
                weight=weight,
                probability=1 / weight,
            )
        )
    times = sorted(DAY_MS + random_.randrange(2 * 86_400_000) for _ in verdicts)
    return verdicts, times


def test_sums_are_those_of_the_verdicts(ground: Ground) -> None:
    entries = publish(ground, *random_verdicts(1500))
    sums, random_ = sums_of(ground, segments=("model",)), random.Random(3)
    at = 0
    while at < len(entries):
        # Some parts come twice, or overlap: an answer was lost, or another worker claimed them.
        size = random_.randrange(1, 200)
        sums.deliver(entries[max(0, at - random_.choice([0, 0, 50])) : at + size])
        at += size
    for fine, seconds in ((True, 300), (False, 3600)):
        assert_equal(stored(ground, fine=fine), expected(entries, seconds))
    assert ground.client.xpending(ground.keys.verdicts, "monitor")["pending"] == 0
    assert int(ground.client.hget(ground.keys.account_all, "exported:monitor")) == len(entries)


def test_a_series_beyond_the_bound_is_counted(ground: Ground) -> None:
    entries = publish(ground, [verdict(n, service=f"s{n % 5}") for n in range(20)], range(DAY_MS, DAY_MS + 20))
    settings = Settings(prefix=ground.prefix, redis_url=ground.url, monitor=Monitor(max_series=3))
    metrics = Metrics(settings)
    sums = QualitySums(settings, ground.store, metrics)
    sums.prepare()
    for part in (entries[:10], entries[10:]):
        sums.deliver(part)
    assert {series.service for series in read_series(ground.store).values()} == {"s0", "s1", "s2"}
    dropped = metrics.registry.get_sample_value(
        "tracejudge_export_dropped_total", {"exporter": "monitor", "reason": "too_many_series"}
    )
    assert dropped == 8


def test_broken_sums_are_refused_before_anything_is_written(ground: Ground) -> None:
    entries = publish(ground, [verdict(1), verdict(2)], [DAY_MS, DAY_MS + 1])
    sums = sums_of(ground)
    sums.deliver(entries[:1])
    (key,) = ground.client.keys(f"{ground.prefix}:quality:*:????-??-??")
    before = ground.client.hgetall(key)
    (field,) = before
    for broken in (b"\xc1", b"\xa3abc"):
        ground.client.hset(key, field, broken)
        with pytest.raises(StoreError, match="holds no sums; delete it"):
            sums.deliver(entries[1:])
        assert ground.client.xpending(ground.keys.verdicts, "monitor")["pending"] == 1
    ground.client.hset(key, mapping=before)
    sums.deliver(entries[1:])
    (series_id,) = read_series(ground.store)
    (bucket,) = read_buckets(ground.store, series_id, DAY_MS / 1000 - 3600, DAY_MS / 1000 + 3600, fine=False)
    assert bucket.classes[0].n == 2


def test_classes_of_weights() -> None:
    assert [class_of(weight) for weight in (1.0, 1.9, 2.0, 3.99, 4.0, 1e12, 0.5)] == [*"AABBCZA"]
    assert len({Series("a", *"bcdef", "m", value).id for value in "xyz"}) == 3
