"""The monitor's sums equal those of the verdicts in the outbox, whatever is delivered twice or in which parts."""

import datetime as dt
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from support.stage_parts import Keyspace, make_judged, rules_of

from judges.agreement.shares import Sums
from judges.core.verdict import Score, Verdict
from worker.base.monitor.counts import Increment, read_counts
from worker.base.monitor.feature import Monitor, MonitorKeys
from worker.base.monitor.gauges import Watch
from worker.base.monitor.series import Series, class_of, read_buckets, read_newest_buckets, read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

DAY_MS = 1_760_000_000_000
WEIGHTS = (1.0, 1.0, 2.0, 10 / 3, 20.0, 100.0)


def verdict(number: int, **fields: Any) -> Verdict:
    ids = {"evaluation_id": f"{number:032x}", "trace_id": f"{number:032x}"}
    return make_judged(number, **ids | {"started_at": 1.0, "duration_s": 1.0} | fields)


def publish(keyspace: Keyspace, verdicts: Sequence[Verdict], times_ms: Sequence[int]) -> list[OutboxEntry]:
    """Write verdicts into the outbox at these times, and read them for the monitor."""
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    for number, (judgement, at) in enumerate(zip(verdicts, times_ms, strict=True)):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(judgement)}, id=f"{at}-{number}")
    return read(keyspace)


def read(keyspace: Keyspace) -> list[OutboxEntry]:
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    return [entry for entry in map(read_outbox_entry, entries) if entry is not None]


def sums_of(keyspace: Keyspace, **monitor: Any) -> QualitySums:
    settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(**monitor))
    sums = QualitySums(settings, keyspace.store, Metrics(settings), rules_of(settings))
    sums.prepare()
    return sums


def expected(entries: Sequence[OutboxEntry], seconds: int) -> dict[tuple[Any, ...], list[Any]]:
    """Add up the verdicts one by one: by labels and bucket the sums, the abstained and the unscored."""
    sums_by_bucket: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [Sums(), [0, 0.0, 0.0], [0, 0.0, 0.0]])
    sessions: dict[tuple[Any, ...], tuple[float, float]] = {}
    for entry in entries:
        judgement, time_s = entry.verdict, int(entry.entry_id.split("-")[0]) // 1000
        if judgement.origin != "live":
            continue
        passed = {score.metric: score.passed for score in judgement.scores}
        segments = [("", ""), *([("model", judgement.model)] if judgement.model else [])]
        for metric in judgement.metrics:
            for segment in segments:
                labels = (
                    judgement.service,
                    judgement.environment or "",
                    judgement.judge,
                    "01234567",
                    judgement.judge_model,
                    metric,
                    *segment,
                )
                at, w = (labels, time_s // seconds * seconds), judgement.weight
                if judgement.outcome != "scored":
                    kind = 1 if judgement.outcome == "abstained" else 2
                    sums_by_bucket[at][kind] = [
                        a + b for a, b in zip(sums_by_bucket[at][kind], (1, w, w * w), strict=True)
                    ]
                elif passed[metric] is not None:
                    session = (
                        labels,
                        judgement.session_id or judgement.trace_id,
                        time_s // (21_600 if judgement.session_id else 1_800),
                    )
                    before = sessions.get(session, (0.0, 0.0))
                    sums_by_bucket[at][0].count(w, passed=passed[metric], before=before)
                    sessions[session] = (before[0] + w, before[1] + w * passed[metric])
    return sums_by_bucket


def stored(keyspace: Keyspace, *, fine: bool) -> dict[tuple[Any, ...], list[Any]]:
    sums_by_bucket: dict[tuple[Any, ...], list[Any]] = {}
    for series_id, series in read_series(keyspace.store).items():
        span = DAY_MS / 1000 - 86_400, DAY_MS / 1000 + 3 * 86_400
        for bucket in next(read_buckets(keyspace.store, [series_id], *span, fine=fine)):
            others = [list(bucket.abstained), list(bucket.unscored)]
            sums_by_bucket[msgspec.structs.astuple(series), int(bucket.begins_at)] = [bucket.sums, *others]
    return sums_by_bucket


def flat(sums: Any) -> list[float]:
    """List all numbers of what `expected` and `stored` hold of one bucket."""
    numbers, *others = sums
    classes = [msgspec.structs.astuple(numbers.classes[key]) for key in sorted(numbers.classes)]
    over_sessions = msgspec.structs.astuple(numbers.over_sessions)
    return [*sorted(numbers.classes), *(n for group in (*classes, over_sessions, *others) for n in group)]


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
                trace_id=f"{number - random_.choice([0, 0, 1, 2]):032x}",
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


def test_sums_are_those_of_the_verdicts(keyspace: Keyspace) -> None:
    entries = publish(keyspace, *random_verdicts(1500))
    sums, random_ = sums_of(keyspace, segments=("model",)), random.Random(3)
    at = 0
    while at < len(entries):
        # Some parts come twice, or overlap: an answer was lost, or another worker claimed them.
        size = random_.randrange(1, 200)
        sums.deliver(entries[max(0, at - random_.choice([0, 0, 50])) : at + size])
        at += size
    for fine, seconds in ((True, 300), (False, 3600)):
        stored_sums, expected_sums = stored(keyspace, fine=fine), expected(entries, seconds)
        assert stored_sums.keys() == expected_sums.keys()
        for at, sums in expected_sums.items():
            assert flat(stored_sums[at]) == pytest.approx(flat(sums), rel=1e-12), at
    assert keyspace.client.xpending(keyspace.keys.verdicts, "monitor")["pending"] == 0
    assert int(keyspace.client.hget(keyspace.keys.account_all, "exported:monitor")) == len(entries)


def test_sums_of_ten_seconds_are_of_whole_series_and_the_last_hour_and_expire(keyspace: Keyspace) -> None:
    verdicts, times = random_verdicts(600)
    now_ms = int(time.time() * 1000)
    # Two days become 80 minutes that end now.
    entries = publish(keyspace, verdicts, [now_ms - 4_800_000 + (at - DAY_MS) // 36 for at in times])
    sums, hour_ago_s = sums_of(keyspace, segments=("model",)), time.time() - 3_600
    for at in range(0, 600, 70):
        sums.deliver(entries[max(0, at - 20) : at + 70])
    tens = {
        (msgspec.structs.astuple(series), int(bucket.begins_at)): [
            bucket.sums,
            [*bucket.abstained],
            [*bucket.unscored],
        ]
        for series_id, series in read_series(keyspace.store).items()
        for bucket in next(read_newest_buckets(keyspace.store, [series_id], hour_ago_s - 7_200, now_ms / 1000 + 10))
    }
    wanted = {at: sums for at, sums in expected(entries, 10).items() if at[1] >= hour_ago_s + 10 and not at[0][-1]}
    assert len(wanted) > 100
    # The bucket in which the hour began has a part of its verdicts.
    assert {at for at in tens if at[1] >= hour_ago_s + 10} == wanted.keys()
    assert min(at for _, at in tens) >= hour_ago_s - 10
    for at, sums in wanted.items():
        assert flat(tens[at]) == pytest.approx(flat(sums), rel=1e-12), at
    keys = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??:??:?")
    assert keys
    assert all(0 < keyspace.client.ttl(key) <= 4_200 for key in keys)
    # As many fields as Redis keeps in its compact encoding.
    assert {keyspace.client.object("encoding", key) for key in keys} <= {b"listpack", b"ziplist"}


def test_a_series_beyond_the_bound_is_counted(keyspace: Keyspace) -> None:
    failed = (Score("safety", 0.0, passed=False),)
    verdicts = [verdict(n, service=f"s{n % 5}", scores=failed) for n in range(20)]
    entries = publish(keyspace, verdicts, range(DAY_MS, DAY_MS + 20))
    settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(max_series=3))
    metrics = Metrics(settings)
    sums = QualitySums(settings, keyspace.store, metrics, rules_of(settings))
    sums.prepare()
    for part in (entries[:10], entries[10:]):
        sums.deliver(part)
    assert {series.service for series in read_series(keyspace.store).values()} == {"s0", "s1", "s2"}
    dropped = metrics.registry.get_sample_value(
        "tracejudge_export_dropped_total", {"exporter": "monitor", "reason": "too_many_series"}
    )
    assert dropped == 8


def test_tags_and_prompt_versions_are_segments(keyspace: Keyspace) -> None:
    tags = [{}, {"plan": "pro"}, {"plan": "free", "prompt_version": "v7"}, {"plan": "pro", "other": "x"}]
    entries = publish(keyspace, [verdict(n, tags=tags) for n, tags in enumerate(tags)], [DAY_MS] * len(tags))
    sums_of(keyspace, segments=("tags.plan", "prompt_version")).deliver(entries)
    counts = {key[0][-2:]: amounts[0].total.judgements for key, amounts in stored(keyspace, fine=True).items()}
    assert counts == {("", ""): 4, ("tags.plan", "pro"): 2, ("tags.plan", "free"): 1, ("prompt_version", "v7"): 1}


def test_broken_sums_are_refused_before_anything_is_written(keyspace: Keyspace) -> None:
    entries = publish(keyspace, [verdict(1), verdict(2)], [DAY_MS, DAY_MS + 1])
    sums = sums_of(keyspace)
    sums.deliver(entries[:1])
    (key,) = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??")
    before = keyspace.client.hgetall(key)
    (field,) = before
    for broken in (b"\xc1", b"\xa3abc", b"\x90", b"\x92\x01\xa1a"):
        keyspace.client.hset(key, field, broken)
        with pytest.raises(StoreError, match="holds no sums; delete it"):
            sums.deliver(entries[1:])
        assert keyspace.client.xpending(keyspace.keys.verdicts, "monitor")["pending"] == 1
    keyspace.client.hset(key, mapping=before)
    sums.deliver(entries[1:])
    (series_id,) = read_series(keyspace.store)
    span = DAY_MS / 1000 - 3600, DAY_MS / 1000 + 3600
    ((bucket,),) = read_buckets(keyspace.store, [series_id], *span, fine=False)
    assert bucket.sums.total.judgements == 2


def test_judgements_of_one_weight_are_stored_in_short(keyspace: Keyspace) -> None:
    weights = [100 / 3] * 30 + [40.0]
    verdicts = [verdict(number, weight=weight) for number, weight in enumerate(weights)]
    entries = publish(keyspace, verdicts, range(DAY_MS, DAY_MS + len(weights)))
    sums, sizes = sums_of(keyspace), []
    for part in (entries[:7], entries[7:30], entries[30:]):
        sums.deliver(part)
        (key,) = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??")
        sizes.append([len(msgspec.msgpack.decode(value)) for value in keyspace.client.hvals(key)])
    assert sizes == [[3], [3], [5]]
    (stored_sums,), (expected_sums,) = stored(keyspace, fine=False).values(), expected(entries, 3600).values()
    assert flat(stored_sums) == pytest.approx(flat(expected_sums), rel=1e-12)


class Agreement(Watch):
    judges = (verdict(0).judge,)

    def run(self, now: float) -> None:
        """Do nothing."""

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        yield Increment("agreement", at, (verdict.service, verdict.origin), 2)


def test_counts_are_added_once(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [verdict(n, origin="replay" if n % 2 else "live", service=f"s{n % 3}") for n in range(60)]
    entries = publish(keyspace, verdicts, [DAY_MS + n * 3_600_000 for n in range(60)])
    sums = sums_of(keyspace)
    sums.counting = [Agreement(keyspace.store)]
    for part in (entries[:25], entries[10:40], entries):
        sums.deliver(part)
    times = [DAY_MS / 1000 + day * 86_400 for day in range(3)]
    by_day = [read_counts(keyspace.store, "agreement", at, at) for at in times]
    expected_values = Counter((each.service, each.origin) for each in verdicts)
    assert sum(by_day, Counter()) == Counter({labels: 2 * amount for labels, amount in expected_values.items()})
    assert all(count.total() > 0 for count in by_day)
    key = MonitorKeys(keyspace.keys.prefix).quality_counts(
        "agreement", dt.datetime.fromtimestamp(DAY_MS / 1000, dt.UTC).date()
    )
    assert 0 < keyspace.client.ttl(key) <= 90 * 86_400
    # A broken count is refused before anything is written.
    (late,) = publish(keyspace, [verdict(0)], [DAY_MS + 80 * 3_600_000])
    at_once = [Increment("agreement", DAY_MS / 1000, ("shop", "live"))]
    monkeypatch.setattr(Agreement, "count", lambda *_: at_once)
    keyspace.client.hset(key, '["shop","live"]', "x")
    with pytest.raises(StoreError, match="no whole number"):
        sums.deliver([late])
    assert keyspace.client.xpending(keyspace.keys.verdicts, "monitor")["pending"] == 1


def test_a_watch_counts_only_verdicts_that_concern_it(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Agreement, "count", lambda _self, item, _at: counted.append(item.evaluation_id[-1]) or ())
    verdicts = [
        verdict(1),
        verdict(2, details={"cascade": {}}),
        verdict(3, origin="canary"),
        verdict(4, judge="relevance"),
        verdict(5, judge="relevance", details={"repeat": None}, origin="repeat"),
    ]
    concerns: tuple[dict[str, Any], ...] = ({"judges": ("relevance",)}, {"detail": "cascade"}, {"origin": "canary"})
    watches = [type("Part", (Agreement,), {"judges": (), **fields})(keyspace.store) for fields in concerns]
    sums = sums_of(keyspace)
    sums.counting = watches
    sums.deliver(publish(keyspace, verdicts, [DAY_MS + n for n in range(5)]))
    assert counted == ["2", "3", "4", "5"]


def test_classes_of_weights() -> None:
    assert [class_of(weight) for weight in (1.0, 1.9, 2.0, 3.99, 4.0, 1e12, 0.5)] == [*"AABBCZA"]
    assert len({Series("a", *"bcdef", "m", value).id for value in "xyz"}) == 3


def test_a_failed_script_takes_no_place_of_a_value(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = sums_of(keyspace, segments=("model",), max_segment_values=2)
    entries = publish(keyspace, [verdict(number, model=f"m{number}") for number in range(2)], [DAY_MS, DAY_MS])

    def fail(*_: object) -> None:
        raise StoreError("Redis does not answer")

    with monkeypatch.context() as failing:
        failing.setattr(keyspace.store, "run", fail)
        for _ in range(3):
            with pytest.raises(StoreError):
                sums.deliver(entries)
    sums.deliver(entries)
    assert {series.value for series in read_series(keyspace.store).values()} == {"", "m0", "m1"}
    listed = {series.value: series_id for series_id, series in read_series(keyspace.store).items()}
    for value in ("m0", "m1"):
        span = DAY_MS / 1000 - 3600, DAY_MS / 1000 + 1
        ((bucket,),) = read_buckets(keyspace.store, [listed[value]], *span, fine=False)
        assert bucket.sums.total.judgements == 1, value
