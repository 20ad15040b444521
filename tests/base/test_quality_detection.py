"""Drops found in stored sums: once per incident, explained, also when another worker goes on; and silence."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.fixtures import newest_redis
from support.stages import Keyspace, make_judged, settings_of

from judges.agreement.shares import ClassSums, SessionSums, Sums, Unjudged
from judges.core.verdict import Score
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.monitor.baseline import flat
from worker.base.monitor.detection import Detection, Detector, add_sessions
from worker.base.monitor.detection import count as count_bucket
from worker.base.monitor.detector import Moments, Session, limits_of
from worker.base.monitor.feature import Monitor, MonitorKeys
from worker.base.monitor.incidents import read_examples
from worker.base.monitor.objectives import Objective
from worker.base.monitor.series import CLUSTER_PERIOD_S, FIVE_MINUTES_S, HOUR_S, Bucket, Series, place
from worker.base.monitor.watch import Silence

any_redis_server = newest_redis  # no script of ours takes part

SERIES = Series("shop", "", "safety", "01234567", "lexical", "safety")
DAY_S = 24 * HOUR_S
BEGIN_S = 1_760_000_400 // DAY_S * DAY_S
DAYS = 8
LATE_S = 61
"""Buckets are counted when verdicts may no longer come late."""
Shares = Mapping[Series, float]
Cells = defaultdict[str, dict[str, bytes]]


class Monitored:
    """Sums of verdicts by the clock of the test, as script `add_quality` writes them, and what a detection finds.

    A series has the verdicts of its segments, where there are any. The detection looks after every quarter of an hour.
    """

    def __init__(
        self, keyspace: Keyspace, objectives: Sequence[Objective] = (), *, an_hour: int = 120, **settings: object
    ) -> None:
        self.now = float(BEGIN_S)
        self._keyspace, self._objectives, self._an_hour = keyspace, objectives, an_hour
        self._keys = MonitorKeys(keyspace.keys.prefix)
        self._chance = random.Random(18)
        self._hours: dict[Series, tuple[int, int]] = {}
        self._settings = Monitor(**({"false_alarms_per_week": 0.05} | settings))  # type: ignore[arg-type]
        self.detectors: Mapping[str, Detector] = {}
        self.restart()

    @property
    def detector(self) -> Detector:
        return self.detectors[SERIES.id]

    def restart(self) -> None:
        """Replace the detection, as when another worker becomes the active monitor."""
        self._detection = Detection(self._keyspace.store, self._settings, self._objectives, lambda: self.now)

    def write(self, shares: Shares, letter: str = "A", unknown: int = 0, buckets: int = 1) -> None:
        """Write five minutes of verdicts, or so many times as long; of ten judged ones as many more are unknown."""
        cells: Cells = defaultdict(dict)
        for _ in range(buckets):
            self._add(cells, shares, letter, unknown)
        with self._keyspace.client.pipeline(transaction=False) as pipe:
            for key, fields in cells.items():
                pipe.hset(key, mapping=fields)
            pipe.execute()

    def _add(self, written: Cells, shares: Shares, letter: str, unknown: int) -> None:
        if self.now % HOUR_S == 0:
            self._hours.clear()
        weight, judged = 2.0 ** (ord(letter) - ord("A")), self._an_hour // 12
        counts = {
            series: (judged, sum(self._chance.random() < share for _ in range(judged)))
            for series, share in shares.items()
        }
        for whole in [count for count in counts if not count.segment]:
            parts = [counts[count] for count in counts if count.segment and count.version == whole.version]
            if parts:
                counts[whole] = sum(n for n, _ in parts), sum(y for _, y in parts)
        for series, (number, passed) in counts.items():
            before = self._hours.get(series, (0, 0))
            self._hours[series] = before[0] + number, before[1] + passed
            at = place(self._keys, series.id, self.now)
            cells = ((at.hour_key, at.hour, self._hours[series]), (at.five_key, at.five, (number, passed)))
            for key, bucket, (n, y) in cells:
                sums = [n, n * weight, y * weight, n * weight**2, y * weight**2]
                written[key][f"{bucket}{letter}"] = msgspec.msgpack.encode(sums)
                if unknown:
                    written[key][f"{bucket}x"] = msgspec.msgpack.encode([n * unknown / 10] * 3)
        self.now += FIVE_MINUTES_S

    def history(self, shares: Shares) -> None:
        """Write days of verdicts at which nobody looks."""
        self.write(shares, buckets=DAYS * 24 * 12)

    def look(self, shares: Shares) -> None:
        self.now += LATE_S
        self.detectors = self._detection.step({share.id: share for share in shares})
        self.now -= LATE_S

    def live(self, hours: int, shares: Shares, letter: str = "A") -> None:
        for _ in range(hours):
            self.write(shares, letter, buckets=12)
            self.look(shares)

    def until(self, is_done: Callable[[Detector], object], shares: Shares, letter: str = "A") -> Detector:
        """Live until the detector of the series fulils a condition, for two days at most."""
        for _ in range(48 * 4):
            self.write(shares, letter, buckets=3)
            self.look(shares)
            if is_done(self.detector):
                return self.detector
        raise AssertionError


def parts_of(values: str) -> list[Series]:
    return [msgspec.structs.replace(SERIES, segment="model", value=value) for value in values]


def test_a_drop_is_found_once_and_recovers_though_another_worker_goes_on_each_hour(keyspace: Keyspace) -> None:
    monitored = Monitored(keyspace)
    changes: list[tuple[float, int | None]] = []

    def live(hours: int, share: float) -> None:
        for _ in range(hours * 4):
            monitored.write({SERIES: share}, buckets=3)
            monitored.look({SERIES: share})
            since = monitored.detector.state.since
            if not changes or changes[-1][1] != since:
                changes.append((monitored.now, since))
            if monitored.now % HOUR_S == 0:
                monitored.restart()

    monitored.history({SERIES: 0.9})
    with capture_logs() as logs:
        live(24, 0.9)
        fell = monitored.now
        live(12, 0.6)
        rose = monitored.now
        live(24, 0.9)
    assert [since is not None for _, since in changes] == [False, True, False], changes
    (_, _), (raised, since), (recovered, _) = changes
    assert raised - fell <= 3 * HOUR_S
    assert since is not None
    assert abs(since * FIVE_MINUTES_S - fell) <= HOUR_S
    assert recovered - rose <= 6 * HOUR_S
    # One incident is one line for its begin and one for its end, whatever the number of workers.
    assert [line["event"] for line in logs] == ["quality baseline known", "quality dropped", "quality recovered"]
    assert 0 < logs[0]["hours_to_find_0.20"] < logs[0]["hours_to_find_0.10"] < 6
    assert monitored.detector.incident is None


def publish(keyspace: Keyspace, at: float, trace_id: str, **fields: Any) -> None:
    verdict = make_judged(passed=False, trace_id=trace_id, **{"model": "b"} | fields)
    entry = {"v": 1, "j": msgspec.json.encode(verdict)}
    keyspace.client.xadd(keyspace.keys.verdicts, entry, id=f"{int(at * 1000)}-0")


def acknowledge(keyspace: Keyspace) -> None:
    """Acknowledge all of the outbox for the monitor, as its script does."""
    newest = keyspace.client.xrevrange(keyspace.keys.verdicts, count=1)[0][0]
    keyspace.client.hset(keyspace.keys.groups, "verdicts:monitor", newest)


def test_after_an_outage_no_bucket_is_stepped_over(keyspace: Keyspace) -> None:
    monitored = Monitored(keyspace)
    monitored.history({SERIES: 0.9})
    publish(keyspace, monitored.now, "before")
    acknowledge(keyspace)
    monitored.live(1, {SERIES: 0.9})
    began = monitored.now
    # Four hours of verdicts wait in the outbox when another worker looks, and are counted afterwards.
    publish(keyspace, began, "first")
    keyspace.client.hset(keyspace.keys.groups, "verdicts:monitor", f"{int(began - 1) * 1000}-0")
    publish(keyspace, began + 4 * HOUR_S, "last")
    monitored.now += 4 * HOUR_S
    monitored.restart()
    monitored.look({SERIES: 0.9})
    assert monitored.detector.done == began // FIVE_MINUTES_S - 1
    monitored.now = began
    monitored.write({SERIES: 0.4}, buckets=4 * 12)
    acknowledge(keyspace)
    # The newest entry may be forgotten.
    keyspace.client.xdel(keyspace.keys.verdicts, f"{int(began + 4 * HOUR_S) * 1000}-0")
    monitored.look({SERIES: 0.9})
    since = monitored.detector.state.since
    assert since is not None
    assert abs(since * FIVE_MINUTES_S - began) <= HOUR_S


def test_an_incident_says_segment_begin_changes_and_examples(keyspace: Keyspace) -> None:
    monitored, parts = Monitored(keyspace, segments=("model",)), parts_of("abcd")
    healthy = {SERIES: 0.9} | dict.fromkeys(parts, 0.9)
    monitored.history(healthy)
    monitored.live(2, healthy)
    began = monitored.now
    publish(keyspace, began - 2 * HOUR_S, "before")
    sibling = msgspec.structs.replace(SERIES, version="89abcdef")
    verdicts: tuple[tuple[str, dict[str, Any]], ...] = (
        *(("oldest", {}), ("older", {}), ("another model", {"model": "a"})),
        ("passes", {"scores": (Score("safety", 1.0, passed=True),)}),
        *(("newer", {}), ("another service", {"service": "bot"}), ("another version", {"judge_version": "89abcdef"})),
        *(("replayed", {"origin": "replay"}), ("newest", {})),
    )
    for minute, (trace_id, fields) in enumerate(verdicts):
        publish(keyspace, began + 60 * minute, trace_id, **fields)
    for broken in (b"{", b'{"evaluation_id":"\xff"}'):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": broken})
    acknowledge(keyspace)
    fallen = healthy | {SERIES: 0.8, parts[1]: 0.5, sibling: 0.9}
    incident = monitored.until(lambda detector: detector.incident, fallen).incident
    assert incident is not None
    assert incident.segment == "model=b"
    assert incident.confidence > 0.9
    assert incident.low <= began // FIVE_MINUTES_S <= incident.high
    assert incident.high - incident.low <= 24
    # Another version of the judge began with the drop; it has no baseline, so it raises nothing by itself.
    assert incident.changed == ("judge_version",)
    assert monitored.detectors[sibling.id].state.since is None
    assert read_examples(keyspace.store, "drop") == {SERIES.id: ["newest", "newer", "older"]}
    # A trace can be forgotten while the monitor goes on.
    assert Forgetting(keyspace.store, settings_of(keyspace), ForgetTarget(trace_id="newer")).run().examples == 1
    assert b"newer" not in repr(keyspace.everything()).encode()
    # It stays as it was found: also for the next worker, and while the whole series has an alarm of its own.
    monitored.restart()
    monitored.live(4, fallen)
    assert monitored.detector.incident == incident
    assert read_examples(keyspace.store, "drop") == {SERIES.id: ["newest", "older"]}
    monitored.until(lambda detector: detector.incident is None, healthy | {sibling: 0.9})
    assert read_examples(keyspace.store, "drop") == {}


def test_an_incident_of_all_segments_names_sampling_and_traffic(keyspace: Keyspace) -> None:
    monitored, parts = Monitored(keyspace, segments=("model",)), parts_of("abc")
    healthy = {SERIES: 0.9} | dict.fromkeys(parts[:2], 0.9)
    monitored.history(healthy)
    monitored.live(2, healthy)
    # The rate was halved, and a third model has a third of the traffic.
    fallen = dict.fromkeys((SERIES, *parts), 0.6)
    incident = monitored.until(lambda detector: detector.incident, fallen, "B").incident
    assert incident is not None
    assert (incident.segment, incident.changed) == ("all", ("sampling", "traffic_mix"))
    assert read_examples(keyspace.store, "drop") == {}


def test_a_traffic_mix_and_a_new_segment_are_answers_of_their_own(keyspace: Keyspace) -> None:
    monitored, parts = Monitored(keyspace, segments=("model",)), parts_of("abcde")
    healthy = {SERIES: 0.9} | dict.fromkeys(parts[:3], 0.95) | {parts[3]: 0.5}
    monitored.history(healthy)
    monitored.live(2, healthy)
    for segment, cause, shares, said in (
        ("traffic mix", "traffic_mix", {SERIES: 0.9, parts[0]: 0.95, parts[3]: 0.5}, "no segment, but"),
        ("model=e", "new_segment", healthy | {parts[4]: 0.1}, "model=e, a new segment"),
    ):
        incident = monitored.until(lambda detector: detector.incident, shares).incident
        assert incident is not None
        assert (incident.segment, incident.cause, incident.confidence > 0.9) == (segment, cause, True)
        assert said in incident.meaning
        monitored.until(lambda detector: detector.incident is None, healthy)
    keyspace.next_case("a new version or model and a fallen rate are no drop")
    monitored = Monitored(keyspace)
    monitored.history({SERIES: 0.95})
    monitored.live(1, {SERIES: 0.95})
    for labels in ({"version": "89abcdef"}, {"judge_model": "large"}):
        stricter = msgspec.structs.replace(SERIES, **labels)
        monitored.live(12, {stricter: 0.5, SERIES: 0.95})
        for series in (stricter, SERIES):
            detector = monitored.detectors[series.id]
            assert (detector.state.since, detector.incident) == (None, None), labels
    # A judgement does not count as many because its rate fell.
    monitored.live(24, {SERIES: 0.95}, letter="G")
    assert monitored.detector.state.since is None, monitored.detector.state


def test_services_below_their_objective_or_environment_need_no_baseline(keyspace: Keyspace) -> None:
    goals = {"safety": 0.95, "groundedness": 0.8}
    monitored = Monitored(keyspace, objectives=[Objective(name, name, goal) for name, goal in goals.items()])
    others = [msgspec.structs.replace(SERIES, service=name) for name in ("bot", "mail", "chat")]
    grounded = msgspec.structs.replace(SERIES, judge="groundedness", metric="groundedness")
    elsewhere = msgspec.structs.replace(SERIES, environment="test", judge="tone", metric="tone")
    shares = {SERIES: 0.87} | dict.fromkeys(others, 0.97) | {grounded: 0.85, elsewhere: 0.3}
    monitored.live(14, shares)

    def below(series: Series) -> list[str]:
        references = monitored.detectors[series.id].references
        return sorted(name for name, reference in references.items() if reference.state.since is not None)

    assert below(SERIES) == ["environment", "objective"]
    assert {other: below(other) for other in (*others, grounded, elsewhere) if below(other)} == {}
    assert list(monitored.detectors[elsewhere.id].references) == []
    with capture_logs() as logs:
        monitored.restart()
        monitored.live(2, shares)
        assert below(SERIES) == ["environment", "objective"]
        monitored.until(lambda _: not below(SERIES), shares | {SERIES: 0.98})
    assert below(SERIES) == []
    assert sorted(line["event"] for line in logs) == ["quality back at environment", "quality back at objective"]


def test_a_series_of_five_judgements_an_hour_is_watched(keyspace: Keyspace) -> None:
    monitored = Monitored(keyspace, an_hour=15, false_alarms_per_week=1.0)

    def write(share: float) -> None:
        """Write one judgement in a quarter of an hour."""
        monitored.write({SERIES: share})
        monitored.write({}, buckets=2)

    for _ in range(DAYS * 24 * 4):
        write(0.9)
    monitored.look({SERIES: 0.9})
    began = monitored.now
    while monitored.detector.state.since is None:
        write(0.6)
        monitored.look({SERIES: 0.6})
        assert monitored.now - began < DAY_S


def test_hours_in_which_much_is_unknown_are_not_learned_unless_they_are_usual(keyspace: Keyspace) -> None:
    for usual, hidden, expected in ((1, 6, 0.9), (3, 3, 0.825)):
        keyspace.next_case(f"{usual=} {hidden=}")
        monitored = Monitored(keyspace)
        for days, share, unknown in ((9, 0.9, usual), (3, 0.6, hidden), (1, 0.9, usual)):
            monitored.write({SERIES: share}, unknown=unknown, buckets=days * 24 * 12)
        monitored.look({SERIES: 0.9})
        norm = monitored.detector.norm
        assert norm is not None
        assert sum(norm.cells) / len(norm.cells) == pytest.approx(expected, abs=0.012), (usual, hidden)
    keyspace.next_case("masks are kept as long as the history")
    now, detector = BEGIN_S // FIVE_MINUTES_S, Detector()
    masks = [(now - 60 * 288, now - 55 * 288), (now - 20 * 288, now - 19 * 288)]
    detector.state.masks, detector.judged.masks = list(masks), list(masks)
    keyspace.client.set(MonitorKeys(keyspace.keys.prefix).quality_detector(SERIES.id), msgspec.msgpack.encode(detector))
    monitored = Monitored(keyspace)
    monitored.look({SERIES: 0.9})
    assert monitored.detector.state.masks == monitored.detector.judged.masks == masks[1:]


def test_a_drop_that_unknown_verdicts_hide_is_masked() -> None:
    for name in ("state", "judged"):
        detector = Detector()
        getattr(detector, name).masks.append((10, 20))
        assert [detector.is_masked(first, first + 2) for first in (8, 9, 19, 20)] == [False, True, True, False], name
    # It is told where it would be one if the unknown verdicts had passed.
    for unknown, is_told in ((0, True), (10, True), (60, False)):
        norm = flat(0.9, 10_000)
        detector = Detector(norm=norm, limits=limits_of(norm, Moments(), series=10))
        unjudged = Unjudged(unknown, unknown, unknown)
        sums = Sums({0: ClassSums(20, 20, 12, 20, 12)}, SessionSums(20, 20, 12, 12), unjudged)
        for number in range(12):
            count_bucket(detector, number, Bucket(number * 300.0, sums, Unjudged(), Unjudged()))
        assert detector.judged.since is not None, "without the unknown ones it is a drop"
        assert (detector.state.since is not None) is is_told, unknown
        assert detector.is_drop_unknown is not is_told, unknown
        # Unknown verdicts bring no recovery.
        empty = Sums({0: ClassSums(1, 1, 1, 1, 1)}, SessionSums(1, 1, 1, 1), Unjudged(500, 500, 500))
        for number in range(12, 18):
            count_bucket(detector, number, Bucket(number * 300.0, empty, Unjudged(), Unjudged()))
        assert (detector.state.since is not None) is is_told, unknown
    # A hundred traces of two judgements that agree count as groups, in sums that no session is known of.
    sums = Sums({0: ClassSums(200, 200, 180, 200, 180)}, SessionSums(100, 400, 360, 360))
    detector = Detector(norm=flat(0.9, 10_000, dispersion=2.0))
    add_sessions(detector, [Bucket(BEGIN_S, sums, Unjudged(), Unjudged())], {})
    # The correlation of 1 of a hundred sessions, with a prior of .25 worth two.
    size = 1 + 100.5 / 102
    assert_moments(detector, {Session(size, 0, (0.9, 0.9)): 180 / size, Session(0, size, (0.9, 0.9)): 20 / size})


def assert_moments(detector: Detector, sessions: Mapping[Session, float]) -> None:
    expected = Moments()
    for session, number in sessions.items():
        expected.add(session, number)
    for sums, sums_expected in zip(detector.moments.sums, expected.sums, strict=True):
        assert sums == pytest.approx(sums_expected)


def test_sessions_of_a_period_are_counted_once(keyspace: Keyspace) -> None:
    period, keys = BEGIN_S // CLUSTER_PERIOD_S, MonitorKeys(keyspace.keys.prefix)
    begin, key = period * CLUSTER_PERIOD_S, keys.quality_detector(SERIES.id)
    norm = msgspec.structs.replace(flat(0.9, 10_000, dispersion=2.0), mean_weight=2.0)
    detector = Detector(norm=norm, learned_at=begin, done=begin // FIVE_MINUTES_S)
    keyspace.client.set(key, msgspec.msgpack.encode(detector))
    # Three sessions of five verdicts of weight 2, one of which fails twice, and ten verdicts without a session.
    for part, clusters in ((0, {"0a": (10, 10), "08": (10, 6)}), (3, {"33": (10, 10)})):
        packed = {name: msgspec.msgpack.encode(sums) for name, sums in clusters.items()}
        keyspace.client.hset(keys.quality_clusters(SERIES.id, period, part), mapping=packed)
    at = place(keys, SERIES.id, begin)
    keyspace.client.hset(at.hour_key, f"{at.hour}A", msgspec.msgpack.encode([25, 50, 40, 100, 80]))
    for _ in range(2):
        Detection(keyspace.store, Monitor(), (), lambda: begin + CLUSTER_PERIOD_S + 200).step({SERIES.id: SERIES})
        detector = msgspec.msgpack.decode(keyspace.client.get(key), type=Detector)
    # By weight 20 of 50 come without a session: passes and failures in proportion.
    counts = {(5, 0): 2, (3, 2): 1, (1, 0): 8, (0, 1): 2}
    assert detector.moments.sessions == pytest.approx(13)
    assert_moments(detector, {Session(*session, (0.9, 0.9)): number for session, number in counts.items()})


# --- services that are silent: at night and at weekends no verdicts are expected ---
MONDAY_S = (1_760_000_000 // (7 * DAY_S) * 7 + 4) * DAY_S
SAFETY, TONE = (Series("shop", "prod", judge, "01234567", "lexical", judge) for judge in ("safety", "tone"))


def write_hours(keyspace: Keyspace, hours: Iterable[tuple[Series, int, int, str]]) -> None:
    """Write numbers of verdicts of a series in an hour after Monday; `a` are abstained ones."""
    keys = MonitorKeys(keyspace.keys.prefix)
    with keyspace.client.pipeline(transaction=False) as pipe:
        for series, hour, verdicts, kind in hours:
            where = place(keys, series.id, MONDAY_S + hour * HOUR_S)
            numbers = [verdicts] * (5 if kind == "A" else 3)
            pipe.hset(where.hour_key, f"{where.hour}{kind}", msgspec.msgpack.encode(numbers))
        pipe.execute()


def silent_after(keyspace: Keyspace, last: int, hours: int, *series: Series) -> list[int]:
    """Return after which hours without verdicts the service is silent."""
    now = last
    silence, silent_hours = Silence(keyspace.store, lambda: float(now)), []
    for hour in range(hours):
        now = last + hour * HOUR_S
        if any(silence.step({each.id: each for each in series}, {}).values()):
            silent_hours.append(hour)
    return silent_hours


def test_a_service_is_silent_when_20_verdicts_are_missing(keyspace: Keyspace) -> None:
    for service, every, verdicts, begins in (("busy", 1, 100, 1), ("few", 1, 10, 24), ("quiet", 2, 1, 40)):
        judges = [msgspec.structs.replace(series, service=service) for series in (SAFETY, TONE)]
        # Of two judges; abstained verdicts are verdicts.
        hours = range(every - 1, 28 * 24, every)
        write_hours(keyspace, ((judges[hour % 4 > 0], hour, verdicts, "Aa"[hour % 3 > 1]) for hour in hours))
        silences = silent_after(keyspace, MONDAY_S + 28 * DAY_S, 8 * 24, *judges)
        # A service without verdicts for a week was switched off.
        assert silences == list(range(begins, 7 * 24 + 1)), service
    keyspace.next_case("nights and weekends are no silence")
    weekdays = [day for day in range(28) if day % 7 < 5]
    write_hours(keyspace, ((SAFETY, 24 * day + hour, 40, "A") for day in weekdays for hour in range(8, 18)))
    silences = silent_after(keyspace, MONDAY_S + 25 * DAY_S + 18 * HOUR_S, 4 * 24, SAFETY)
    assert silences[0] == 2 * 24 + 15, "an hour after eight o'clock of Monday"
    keyspace.next_case("a new service and one that still speaks")
    write_hours(keyspace, ((SAFETY, hour, 100, "A") for hour in range(6 * 24)))
    assert silent_after(keyspace, MONDAY_S + 6 * DAY_S, 24, SAFETY) == []
    write_hours(keyspace, ((SAFETY, hour, 100, "A") for hour in range(6 * 24, 20 * 24)))
    now = MONDAY_S + 20 * DAY_S + 5 * HOUR_S
    silence, service, series = Silence(keyspace.store, lambda: float(now)), ("shop", "prod"), {SAFETY.id: SAFETY}
    assert silence.step(series, {}) == {service: True}
    assert silence.step(series, {service: now - 600.0}) == {service: False}
    assert silence.step({}, {}) == {}
