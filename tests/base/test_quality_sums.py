"""The monitor's sums equal those of the verdicts in the outbox, whatever comes twice; and the bounds of its series."""

import datetime as dt
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from support.fixtures import one_redis
from support.stages import Keyspace, make_judged, rules_of

from judges.agreement.shares import Sums
from judges.core.verdict import Score, Verdict
from worker.base.monitor.counts import Increment, read_counts
from worker.base.monitor.feature import MONITOR, Monitor, MonitorKeys
from worker.base.monitor.gauges import Watch
from worker.base.monitor.incidents import keep_examples
from worker.base.monitor.series import Series, class_of, read_buckets, read_newest_buckets, read_series
from worker.base.monitor.sums import QualitySums, SeriesPruning
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

any_redis_server = one_redis  # tests of the board and of reports run the script on the newest
DAY_MS = 1_760_000_000_000
DAY_S = 86_400
WEIGHTS = (1.0, 1.0, 2.0, 10 / 3, 20.0, 100.0)
Stored = dict[tuple[Any, ...], list[Any]]


def verdict(number: int, **fields: Any) -> Verdict:
    ids = {"evaluation_id": f"{number:032x}", "trace_id": f"{number:032x}"}
    return make_judged(number, **ids | {"started_at": 1.0, "duration_s": 1.0} | fields)


class Monitoring:
    """The sums of one worker, and what they dropped."""

    def __init__(self, keyspace: Keyspace, **monitor: Any) -> None:
        self._keyspace = keyspace
        self.settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(**monitor))
        self.metrics = Metrics(self.settings)
        self.sums = QualitySums(self.settings, keyspace.store, self.metrics, rules_of(self.settings))
        self.sums.prepare()
        self._written = 0

    def dropped(self, reason: str) -> float | None:
        labels = {"exporter": "monitor", "reason": reason}
        return self.metrics.registry.get_sample_value("tracejudge_export_dropped_total", labels)

    def count(self, day: int, *verdicts: Verdict) -> None:
        """Count verdicts that come on a day after the first."""
        times = [DAY_MS + day * DAY_S * 1000 + self._written] * len(verdicts)
        self.sums.deliver(publish(self._keyspace, verdicts, times))
        self._written += 1

    def prune(self, day: int) -> None:
        now = DAY_MS / 1000 + day * DAY_S
        SeriesPruning(self._keyspace.store, MONITOR.read(self.settings), self.sums.relist, lambda: now).run_due()

    def listed(self) -> set[tuple[str, str]]:
        return {(series.service, series.value) for series in read_series(self._keyspace.store).values()}


def publish(keyspace: Keyspace, verdicts: Sequence[Verdict], times_ms: Sequence[int]) -> list[OutboxEntry]:
    """Write verdicts into the outbox at these times, and read them for the monitor."""
    keyspace.store.make_group(keyspace.keys.verdicts, "monitor")
    with keyspace.client.pipeline(transaction=False) as pipe:
        for number, (each, at) in enumerate(zip(verdicts, times_ms, strict=True)):
            pipe.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(each)}, id=f"{at}-{number}")
        pipe.execute()
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=10_000, block_ms=1)
    return [entry for entry in map(read_outbox_entry, entries) if entry is not None]


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending("monitor", keyspace.keys.verdicts)


def expected(entries: Sequence[OutboxEntry], seconds: int) -> Stored:
    """Add up the verdicts one by one: by labels and bucket the sums, the abstained and the unscored."""
    buckets: Stored = defaultdict(lambda: [Sums(), [0, 0.0, 0.0], [0, 0.0, 0.0]])
    sessions: dict[tuple[Any, ...], tuple[float, float]] = {}
    for entry in entries:
        each, time_s = entry.verdict, int(entry.entry_id.split("-")[0]) // 1000
        if each.origin != "live":
            continue
        passed, w = {score.metric: score.passed for score in each.scores}, each.weight
        common = (each.service, each.environment or "", each.judge, "01234567", each.judge_model)
        segments = [("", ""), *([("model", each.model)] if each.model else [])]
        for labels in ((*common, metric, *segment) for metric in each.metrics for segment in segments):
            at, metric = (labels, time_s // seconds * seconds), labels[5]
            if each.outcome != "scored":
                kind = 1 if each.outcome == "abstained" else 2
                buckets[at][kind] = [a + b for a, b in zip(buckets[at][kind], (1, w, w * w), strict=True)]
            elif passed[metric] is not None:
                period = time_s // (21_600 if each.session_id else 1_800)
                session = (labels, each.session_id or each.trace_id, period)
                before = sessions.get(session, (0.0, 0.0))
                buckets[at][0].count(w, passed=passed[metric], before=before)
                sessions[session] = (before[0] + w, before[1] + w * passed[metric])
    return buckets


def stored(keyspace: Keyspace, *, fine: bool) -> Stored:
    """Read the buckets of four days."""
    span = DAY_MS / 1000 - DAY_S, DAY_MS / 1000 + 3 * DAY_S
    return {
        (msgspec.structs.astuple(series), int(bucket.begins_at)): [bucket.sums, [*bucket.abstained], [*bucket.unscored]]
        for series_id, series in read_series(keyspace.store).items()
        for bucket in next(read_buckets(keyspace.store, [series_id], *span, fine=fine))
    }


def flat(sums: Any) -> list[float]:
    """List all numbers of what `expected` and `stored` hold of one bucket."""
    numbers, *others = sums
    classes = [msgspec.structs.astuple(numbers.classes[key]) for key in sorted(numbers.classes)]
    over_sessions = msgspec.structs.astuple(numbers.over_sessions)
    return [*sorted(numbers.classes), *(n for group in (*classes, over_sessions, *others) for n in group)]


def assert_close(numbers: Sequence[float], wanted: Sequence[float], name: object) -> None:
    """Compare as `pytest.approx` does, which takes twenty times as long."""
    pairs = zip(numbers, wanted, strict=True)
    assert all(math.isclose(*pair, rel_tol=1e-12, abs_tol=1e-12) for pair in pairs), (name, numbers, wanted)


def random_verdicts(count: int) -> tuple[list[Verdict], list[int]]:
    random_, verdicts = random.Random(18), []
    for number in range(count):
        passed = random_.choice([True, True, True, False, None])
        outcome = random_.choices(["scored", "abstained", "unscored"], [8, 1, 1])[0]
        weight = random_.choice(WEIGHTS)
        scores = (Score("safety", 0.5, passed=passed), Score("tone", 0.5, passed=True))
        fields = {
            "outcome": outcome,
            "reason": "refusal" if outcome == "unscored" else None,
            "scores": scores if outcome == "scored" else (),
            "metrics": ("safety", "tone"),
            "trace_id": f"{number - random_.choice([0, 0, 1, 2]):032x}",
            "service": random_.choice(["shop", "bot"]),
            "session_id": random_.choice([None, *(f"s{each}" for each in range(20))]),
            "model": random_.choice([None, "a", "b"]),
            "origin": random_.choices(["live", "late_feedback", "replay", "session_update"], [9, 1, 1, 1])[0],
        }
        verdicts.append(verdict(number, **fields, weight=weight, probability=1 / weight))
    return verdicts, sorted(DAY_MS + random_.randrange(2 * DAY_S * 1000) for _ in verdicts)


def test_sums_are_those_of_the_verdicts(keyspace: Keyspace) -> None:
    entries = publish(keyspace, *random_verdicts(800))
    sums, random_, at = Monitoring(keyspace, segments=("model",)).sums, random.Random(3), 0
    while at < len(entries):
        # Some parts come twice, or overlap: an answer was lost, or another worker claimed them.
        size = random_.randrange(1, 200)
        sums.deliver(entries[max(0, at - random_.choice([0, 0, 50])) : at + size])
        at += size
    for fine, seconds in ((True, 300), (False, 3600)):
        stored_sums, expected_sums = stored(keyspace, fine=fine), expected(entries, seconds)
        assert stored_sums.keys() == expected_sums.keys()
        for bucket, numbers in expected_sums.items():
            assert_close(flat(stored_sums[bucket]), flat(numbers), bucket)
    assert pending(keyspace) == 0
    assert int(keyspace.client.hget(keyspace.keys.account_all, "exported:monitor")) == len(entries)
    keyspace.next_case("sums of ten seconds are of whole series and the last hour, and expire")
    verdicts, times = random_verdicts(600)
    now_ms = int(time.time() * 1000)
    # Two days become 80 minutes that end now.
    entries = publish(keyspace, verdicts, [now_ms - 4_800_000 + (at - DAY_MS) // 36 for at in times])
    sums, hour_ago_s = Monitoring(keyspace, segments=("model",)).sums, time.time() - 3_600
    for at in range(0, 600, 70):
        sums.deliver(entries[max(0, at - 20) : at + 70])
    tens = {
        (msgspec.structs.astuple(series), int(bucket.begins_at)): [bucket.sums, [*bucket.abstained], [*bucket.unscored]]
        for series_id, series in read_series(keyspace.store).items()
        for bucket in next(read_newest_buckets(keyspace.store, [series_id], hour_ago_s - 7_200, now_ms / 1000 + 10))
    }
    wanted = {at: sums for at, sums in expected(entries, 10).items() if at[1] >= hour_ago_s + 10 and not at[0][-1]}
    assert len(wanted) > 100
    # The bucket in which the hour began has a part of its verdicts.
    assert {at for at in tens if at[1] >= hour_ago_s + 10} == wanted.keys()
    assert min(at for _, at in tens) >= hour_ago_s - 10
    for bucket, numbers in wanted.items():
        assert_close(flat(tens[bucket]), flat(numbers), bucket)
    keys = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??:??:?")
    assert keys
    assert all(0 < keyspace.client.ttl(key) <= 4_200 for key in keys)
    # As many fields as Redis keeps in its compact encoding.
    assert {keyspace.client.object("encoding", key) for key in keys} <= {b"listpack", b"ziplist"}


def test_series_beyond_the_bound_are_counted_and_tags_and_prompt_versions_are_segments(keyspace: Keyspace) -> None:
    failed = (Score("safety", 0.0, passed=False),)
    verdicts = [verdict(n, service=f"s{n % 5}", scores=failed) for n in range(20)]
    entries = publish(keyspace, verdicts, range(DAY_MS, DAY_MS + 20))
    monitoring = Monitoring(keyspace, max_series=3)
    for part in (entries[:10], entries[10:]):
        monitoring.sums.deliver(part)
    assert monitoring.listed() == {("s0", ""), ("s1", ""), ("s2", "")}
    assert monitoring.dropped("too_many_series") == 8
    tags = [{}, {"plan": "pro"}, {"plan": "free", "prompt_version": "v7"}, {"plan": "pro", "other": "x"}]
    verdicts = [verdict(n, service="tagged", tags=tags) for n, tags in enumerate(tags)]
    entries = publish(keyspace, verdicts, [DAY_MS + 100] * len(tags))
    Monitoring(keyspace, segments=("tags.plan", "prompt_version")).sums.deliver(entries)
    tagged = {key[0]: sums[0].total.judgements for key, sums in stored(keyspace, fine=True).items()}
    counts = {labels[-2:]: count for labels, count in tagged.items() if labels[0] == "tagged"}
    assert counts == {("", ""): 4, ("tags.plan", "pro"): 2, ("tags.plan", "free"): 1, ("prompt_version", "v7"): 1}
    assert [class_of(weight) for weight in (1.0, 1.9, 2.0, 3.99, 4.0, 1e12, 0.5)] == [*"AABBCZA"]
    assert len({Series("a", *"bcdef", "m", value).id for value in "xyz"}) == 3


def test_broken_sums_are_refused_before_anything_is_written(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = publish(keyspace, [verdict(1), verdict(2)], [DAY_MS, DAY_MS + 1])
    sums = Monitoring(keyspace).sums
    sums.deliver(entries[:1])
    (key,) = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??")
    before = keyspace.client.hgetall(key)
    (field,) = before
    for broken in (b"\xc1", b"\xa3abc", b"\x90", b"\x92\x01\xa1a"):
        keyspace.client.hset(key, field, broken)
        with pytest.raises(StoreError, match="holds no sums; delete it"):
            sums.deliver(entries[1:])
        assert pending(keyspace) == 1
    keyspace.client.hset(key, mapping=before)
    sums.deliver(entries[1:])
    ((numbers, *_),) = stored(keyspace, fine=False).values()
    assert numbers.total.judgements == 2
    keyspace.next_case("judgements of one weight are stored in short")
    weights = [100 / 3] * 30 + [40.0]
    verdicts = [verdict(number, weight=weight) for number, weight in enumerate(weights)]
    entries = publish(keyspace, verdicts, range(DAY_MS, DAY_MS + len(weights)))
    sums, sizes = Monitoring(keyspace).sums, []
    for part in (entries[:7], entries[7:30], entries[30:]):
        sums.deliver(part)
        (key,) = keyspace.client.keys(f"{keyspace.prefix}:quality:*:????-??-??")
        sizes.append([len(msgspec.msgpack.decode(value)) for value in keyspace.client.hvals(key)])
    assert sizes == [[3], [3], [5]]
    (stored_sums,), (expected_sums,) = stored(keyspace, fine=False).values(), expected(entries, 3600).values()
    assert flat(stored_sums) == pytest.approx(flat(expected_sums), rel=1e-12)
    keyspace.next_case("a failed script takes no place of a value")
    monitoring = Monitoring(keyspace, segments=("model",), max_segment_values=2)
    entries = publish(keyspace, [verdict(number, model=f"m{number}") for number in range(2)], [DAY_MS, DAY_MS])

    def fail(*_: object) -> None:
        raise StoreError("Redis does not answer")

    with monkeypatch.context() as failing:
        failing.setattr(keyspace.store, "run", fail)
        for _ in range(3):
            with pytest.raises(StoreError):
                monitoring.sums.deliver(entries)
    monitoring.sums.deliver(entries)
    counts = {labels[-1]: sums[0].total.judgements for (labels, _), sums in stored(keyspace, fine=False).items()}
    assert counts == {"": 2, "m0": 1, "m1": 1}


class Agreement(Watch):
    judges = (verdict(0).judge,)

    def run(self, now: float) -> None:
        """Do nothing."""

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        yield Increment("agreement", at, (verdict.service, verdict.origin), 2)


def test_counts_are_added_once(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [verdict(n, origin="replay" if n % 2 else "live", service=f"s{n % 3}") for n in range(60)]
    entries = publish(keyspace, verdicts, [DAY_MS + n * 3_600_000 for n in range(60)])
    sums = Monitoring(keyspace).sums
    sums.counting = [Agreement(keyspace.store)]
    for part in (entries[:25], entries[10:40], entries):
        sums.deliver(part)
    times = [DAY_MS / 1000 + day * DAY_S for day in range(3)]
    by_day = [read_counts(keyspace.store, "agreement", at, at) for at in times]
    labels = Counter((each.service, each.origin) for each in verdicts)
    assert sum(by_day, Counter()) == Counter({name: 2 * amount for name, amount in labels.items()})
    assert all(count.total() > 0 for count in by_day)
    day = dt.datetime.fromtimestamp(DAY_MS / 1000, dt.UTC).date()
    key = MonitorKeys(keyspace.keys.prefix).quality_counts("agreement", day)
    assert 0 < keyspace.client.ttl(key) <= 90 * DAY_S
    # A broken count is refused before anything is written.
    (late,) = publish(keyspace, [verdict(0)], [DAY_MS + 80 * 3_600_000])
    at_once = [Increment("agreement", DAY_MS / 1000, ("shop", "live"))]
    monkeypatch.setattr(Agreement, "count", lambda *_: at_once)
    keyspace.client.hset(key, '["shop","live"]', "x")
    with pytest.raises(StoreError, match="no whole number"):
        sums.deliver([late])
    assert pending(keyspace) == 1
    keyspace.next_case("a watch counts only verdicts that concern it")
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
    sums = Monitoring(keyspace).sums
    sums.counting = watches
    sums.deliver(publish(keyspace, verdicts, [DAY_MS + n for n in range(5)]))
    assert counted == ["2", "3", "4", "5"]


# --- silent series give their place to new ones, and a segment cannot take all places ---
def of(service: str, release: str | None = None) -> Verdict:
    return make_judged(service=service, release=release)


def test_series_without_verdicts_for_90_days_give_their_place_to_others(keyspace: Keyspace) -> None:
    days, keys = Monitoring(keyspace, max_series=2), MonitorKeys(keyspace.keys.prefix)
    days.count(0, of("a"), of("b"), of("c"))
    days.count(60, of("b"))
    for day in (60, 89):
        days.prune(day)
        assert days.listed() == {("a", ""), ("b", "")}, day
    (a,) = (series_id for series_id, series in read_series(keyspace.store).items() if series.service == "a")
    keyspace.client.set(keys.quality_detector(a), b"state")
    keep_examples(keyspace.store, "drop", a, ["t:1"])
    days.prune(92)
    assert days.listed() == {("b", "")}
    assert not keyspace.client.exists(keys.quality_detector(a), keys.quality_examples)
    days.count(92, of("c"), of("d"))
    assert days.listed() == {("b", ""), ("c", "")}
    assert days.dropped("too_many_series") == 2
    keyspace.next_case("a burst of names of releases is bounded, and passes")
    days = Monitoring(keyspace, segments=("release",), max_segment_values=2)
    days.count(0, *(of("a", f"r{number}") for number in range(5)))
    days.count(0, of("b", "r4"))
    assert days.listed() == {("a", ""), ("a", "r0"), ("a", "r1"), ("b", ""), ("b", "r4")}
    assert (days.dropped("too_many_values"), days.dropped("too_many_series")) == (3, 0)
    days.count(6, of("a", "r1"))
    days.prune(6)
    assert ("a", "r0") in days.listed(), "silent for less than a week"
    days.prune(9)
    # The value of b is silent as well, but its segment has room.
    assert days.listed() == {("a", ""), ("a", "r1"), ("b", ""), ("b", "r4")}
    days.count(9, of("a", "r5"), of("a", "r6"))
    assert ("a", "r5") in days.listed()
    assert days.dropped("too_many_values") == 4


@pytest.mark.usefixtures("_short_reads")
def test_series_that_redis_lost_are_listed_again_also_by_a_successor(keyspace: Keyspace) -> None:
    series = MonitorKeys(keyspace.keys.prefix).quality_series
    first, second = Monitoring(keyspace), Monitoring(keyspace)
    first.count(0, of("a"))
    keyspace.client.delete(series)
    first.prune(0)
    first.count(0, of("a"))
    assert first.listed() == {("a", "")}
    for each in (first, second):
        each.sums.stopping.set()  # no pause between reads
    second.sums.prepare()
    first.sums.run_once()
    second.sums.run_once()
    keyspace.client.delete(series)
    first.sums.stop(1.0)
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(of("a"))})
    second.sums.run_once()
    assert second.listed() == {("a", "")}
