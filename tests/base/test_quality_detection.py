"""Drops found in stored sums: once per incident, with its explanation, also when another worker goes on."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.stage_parts import Keyspace, make_judged, settings_of

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

SERIES = Series("shop", "", "safety", "01234567", "lexical", "safety")
BEGIN_S = 1_760_000_400 // (24 * HOUR_S) * 24 * HOUR_S
DAYS = 10
LATE_S = 61
"""Buckets are counted when verdicts may no longer come late."""
Shares = Mapping[Series, float]


class Traffic:
    """Writes the sums of verdicts as script `add_quality` does, by the clock of the test.

    A series has the verdicts of its segments, where there are any.
    """

    def __init__(self, keyspace: Keyspace, an_hour: int = 120) -> None:
        self.now = float(BEGIN_S)
        self.an_hour = an_hour
        self._keyspace = keyspace
        self._chance = random.Random(18)
        self._hours: dict[Series, tuple[int, int]] = {}

    def clock(self) -> float:
        return self.now

    def five_minutes(self, shares: Shares, letter: str = "A", unknown: int = 0) -> None:
        if self.now % HOUR_S == 0:
            self._hours.clear()
        pipe = self._keyspace.client.pipeline(transaction=False)
        weight = 2.0 ** (ord(letter) - ord("A"))
        counts: dict[Series, tuple[int, int]] = {}
        for series, share in shares.items():
            judged = self.an_hour // 12
            counts[series] = judged, sum(self._chance.random() < share for _ in range(judged))
        for whole in [count for count in counts if not count.segment]:
            parts = [counts[count] for count in counts if count.segment and count.version == whole.version]
            if parts:
                counts[whole] = sum(n for n, _ in parts), sum(y for _, y in parts)
        for series, (judged, passed) in counts.items():
            before = self._hours.get(series, (0, 0))
            self._hours[series] = before[0] + judged, before[1] + passed
            at = place(MonitorKeys(self._keyspace.keys.prefix), series.id, self.now)
            cells = ((at.hour_key, at.hour, self._hours[series]), (at.five_key, at.five, (judged, passed)))
            for key, bucket, (n, y) in cells:
                sums = [n, n * weight, y * weight, n * weight**2, y * weight**2]
                pipe.hset(key, f"{bucket}{letter}", msgspec.msgpack.encode(sums))
                if unknown:
                    pipe.hset(key, f"{bucket}x", msgspec.msgpack.encode([n * unknown / 10] * 3))
        pipe.execute()
        self.now += FIVE_MINUTES_S

    def hours(self, count: int, shares: Shares, unknown: int = 0) -> None:
        """Let hours pass; of ten judged verdicts as many more are unknown."""
        for _ in range(count * 12):
            self.five_minutes(shares, unknown=unknown)


class Monitored:
    """A detection that looks after every five minutes of traffic, and what it found."""

    def __init__(
        self, keyspace: Keyspace, traffic: Traffic, objectives: Sequence[Objective] = (), **settings: object
    ) -> None:
        self._keyspace, self._traffic, self._objectives = keyspace, traffic, objectives
        self._settings = Monitor(**({"false_alarms_per_week": 0.05} | settings))  # type: ignore[arg-type]
        self.detectors: Mapping[str, Detector] = {}
        self.restart()

    def restart(self) -> None:
        """Replace the detection, as when another worker becomes the active monitor."""
        self._detection = Detection(self._keyspace.store, self._settings, self._objectives, self._traffic.clock)

    def look(self, shares: Shares) -> None:
        self._traffic.now += LATE_S
        self.detectors = self._detection.step({share.id: share for share in shares})
        self._traffic.now -= LATE_S

    def live(self, hours: int, shares: Shares, letter: str = "A") -> None:
        for _ in range(hours * 12):
            self._traffic.five_minutes(shares, letter)
            self.look(shares)

    def until(self, values: Callable[[Detector], object], shares: Shares, hours: int = 48) -> float:
        """Live until the detector of the first series fulfils a condition; return the hours."""
        for count in itertools.count(1):
            self._traffic.five_minutes(shares)
            self.look(shares)
            if values(self.detectors[next(iter(shares)).id]):
                return count / 12
            assert count < hours * 12, "not found"
        raise AssertionError


@pytest.mark.parametrize("restarts", [False, True])
def test_a_drop_is_found_once_and_recovers(keyspace: Keyspace, restarts: bool) -> None:  # noqa: FBT001
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic)
    changes: list[tuple[float, int | None]] = []

    def live(hours: int, share: float) -> None:
        for _ in range(hours * 12):
            traffic.five_minutes({SERIES: share})
            monitored.look({SERIES: share})
            since = monitored.detectors[SERIES.id].state.since
            if not changes or changes[-1][1] != since:
                changes.append((traffic.now, since))
            if restarts and traffic.now % HOUR_S == 0:
                monitored.restart()

    traffic.hours(DAYS * 24, {SERIES: 0.9})
    with capture_logs() as logs:
        live(24, 0.9)
        fell = traffic.now
        live(12, 0.6)
        rose = traffic.now
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
    assert monitored.detectors[SERIES.id].incident is None


def publish(keyspace: Keyspace, at: float, trace_id: str, **fields: Any) -> None:
    verdict = make_judged(passed=False, trace_id=trace_id, **{"model": "b"} | fields)
    entry = {"v": 1, "j": msgspec.json.encode(verdict)}
    keyspace.client.xadd(keyspace.keys.verdicts, entry, id=f"{int(at * 1000)}-0")


def acknowledge(keyspace: Keyspace) -> None:
    """Acknowledge all of the outbox for the monitor, as its script does."""
    newest = keyspace.client.xrevrange(keyspace.keys.verdicts, count=1)[0][0]
    keyspace.client.hset(keyspace.keys.groups, "verdicts:monitor", newest)


def test_after_an_outage_no_bucket_is_stepped_over(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic)
    traffic.hours(DAYS * 24, {SERIES: 0.9})
    publish(keyspace, traffic.now, "before")
    acknowledge(keyspace)
    monitored.live(1, {SERIES: 0.9})
    began = traffic.now
    # Four hours of verdicts wait in the outbox when another worker looks, and are counted afterwards.
    publish(keyspace, began, "first")
    keyspace.client.hset(keyspace.keys.groups, "verdicts:monitor", f"{int(began - 1) * 1000}-0")
    publish(keyspace, began + 4 * HOUR_S, "last")
    traffic.now += 4 * HOUR_S
    monitored.restart()
    monitored.look({SERIES: 0.9})
    assert monitored.detectors[SERIES.id].done == began // FIVE_MINUTES_S - 1
    traffic.now = began
    traffic.hours(4, {SERIES: 0.4})
    acknowledge(keyspace)
    # The newest entry may be forgotten.
    keyspace.client.xdel(keyspace.keys.verdicts, f"{int(began + 4 * HOUR_S) * 1000}-0")
    monitored.look({SERIES: 0.9})
    since = monitored.detectors[SERIES.id].state.since
    assert since is not None
    assert abs(since * FIVE_MINUTES_S - began) <= HOUR_S


def test_an_incident_says_segment_begin_changes_and_examples(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic, segments=("model",))
    parts = [msgspec.structs.replace(SERIES, segment="model", value=value) for value in "abcd"]
    healthy = {SERIES: 0.9} | dict.fromkeys(parts, 0.9)
    fallen = healthy | {SERIES: 0.8, parts[1]: 0.5}
    traffic.hours(DAYS * 24, healthy)
    monitored.live(2, healthy)
    began = traffic.now
    publish(keyspace, began - 2 * HOUR_S, "before")
    sibling = msgspec.structs.replace(SERIES, version="89abcdef")
    for minute, (trace_id, fields) in enumerate(
        (
            ("oldest", {}),
            ("older", {}),
            ("another model", {"model": "a"}),
            ("passes", {"scores": (Score("safety", 1.0, passed=True),)}),
            ("newer", {}),
            ("another service", {"service": "bot"}),
            ("another version", {"judge_version": "89abcdef"}),
            ("replayed", {"origin": "replay"}),
            ("newest", {}),
        )
    ):
        publish(keyspace, began + 60 * minute, trace_id, **fields)
    for broken in (b"{", b'{"evaluation_id":"\xff"}'):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1, "j": broken})
    acknowledge(keyspace)
    fallen |= {sibling: 0.9}
    monitored.until(lambda detector: detector.incident, fallen)
    incident = monitored.detectors[SERIES.id].incident
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
    assert monitored.detectors[SERIES.id].incident == incident
    assert read_examples(keyspace.store, "drop") == {SERIES.id: ["newest", "older"]}
    monitored.until(lambda detector: detector.incident is None, healthy | {sibling: 0.9})
    assert read_examples(keyspace.store, "drop") == {}


def test_an_incident_of_all_segments_names_sampling_and_traffic(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic, segments=("model",))
    parts = [msgspec.structs.replace(SERIES, segment="model", value=value) for value in "abcd"]
    healthy = {SERIES: 0.9} | dict.fromkeys(parts[:2], 0.9)
    traffic.hours(DAYS * 24, healthy)
    monitored.live(2, healthy)
    fallen = {SERIES: 0.6, parts[0]: 0.6, parts[1]: 0.6, parts[2]: 0.6}
    for _ in range(12 * 12):
        # The rate was halved, and a third model has a third of the traffic.
        traffic.five_minutes(fallen, "B")
        monitored.look(fallen)
        if (incident := monitored.detectors[SERIES.id].incident) is not None:
            break
    assert incident is not None
    assert incident.segment == "all"
    assert incident.changed == ("sampling", "traffic_mix")
    assert read_examples(keyspace.store, "drop") == {}


def test_a_traffic_mix_and_a_new_segment_are_answers_of_their_own(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic, segments=("model",))
    parts = [msgspec.structs.replace(SERIES, segment="model", value=value) for value in "abcde"]
    healthy = {SERIES: 0.9} | dict.fromkeys(parts[:3], 0.95) | {parts[3]: 0.5}
    traffic.hours(DAYS * 24, healthy)
    monitored.live(2, healthy)
    for segment, cause, shares, said in (
        ("traffic mix", "traffic_mix", {SERIES: 0.9, parts[0]: 0.95, parts[3]: 0.5}, "no segment, but"),
        ("model=e", "new_segment", healthy | {parts[4]: 0.1}, "model=e, a new segment"),
    ):
        monitored.until(lambda detector: detector.incident, shares)
        incident = monitored.detectors[SERIES.id].incident
        assert incident is not None
        assert (incident.segment, incident.cause, incident.confidence > 0.9) == (segment, cause, True)
        assert said in incident.meaning
        monitored.until(lambda detector: detector.incident is None, healthy)


def test_a_new_version_or_model_of_a_judge_is_no_drop(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic)
    traffic.hours(DAYS * 24, {SERIES: 0.95})
    monitored.live(1, {SERIES: 0.95})
    for labels in ({"version": "89abcdef"}, {"judge_model": "large"}):
        stricter = msgspec.structs.replace(SERIES, **labels)
        monitored.live(12, {stricter: 0.5, SERIES: 0.95})
        for monitored_series in (stricter, SERIES):
            detector = monitored.detectors[monitored_series.id]
            assert (detector.state.since, detector.incident) == (None, None), labels


def test_services_below_their_objective_or_environment_need_no_baseline(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    shares = {"safety": 0.95, "groundedness": 0.8}
    monitored = Monitored(keyspace, traffic, objectives=[Objective(name, name, shares[name]) for name in shares])
    others = [msgspec.structs.replace(SERIES, service=name) for name in ("bot", "mail", "chat")]
    grounded = msgspec.structs.replace(SERIES, judge="groundedness", metric="groundedness")
    elsewhere = msgspec.structs.replace(SERIES, environment="test", judge="tone", metric="tone")
    shares = {SERIES: 0.87} | dict.fromkeys(others, 0.97) | {grounded: 0.85, elsewhere: 0.3}
    monitored.live(14, shares)

    def below(series: Series) -> list[str]:
        references = monitored.detectors[series.id].references
        return sorted(name for name, reference in references.items() if reference.state.since is not None)

    assert below(SERIES) == ["environment", "objective"]
    for other in (*others, grounded, elsewhere):
        assert below(other) == [], other
    assert list(monitored.detectors[elsewhere.id].references) == []
    with capture_logs() as logs:
        monitored.restart()
        monitored.live(2, shares)
        assert below(SERIES) == ["environment", "objective"]
        monitored.live(36, shares | {SERIES: 0.98})
    assert below(SERIES) == []
    log_lines = [line["event"] for line in logs]
    assert sorted(log_lines) == ["quality back at environment", "quality back at objective"]


def test_a_fallen_rate_does_not_make_judgements_count_as_many(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    monitored = Monitored(keyspace, traffic)
    traffic.hours(DAYS * 24, {SERIES: 0.9})
    monitored.live(1, {SERIES: 0.9})
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(monitored.detectors[SERIES.id].state), type=list)
    monitored.live(24, {SERIES: 0.9}, letter="G")
    assert monitored.detectors[SERIES.id].state.since is None, state


def test_a_series_of_five_judgements_an_hour_is_watched(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace, an_hour=15)
    monitored = Monitored(keyspace, traffic, false_alarms_per_week=1.0)
    # One judgement in a quarter of an hour.
    for _ in range(DAYS * 24 * 12):
        traffic.five_minutes({SERIES: 0.9} if traffic.now % 900 < FIVE_MINUTES_S else {})
    monitored.look({SERIES: 0.9})
    began = traffic.now
    while monitored.detectors[SERIES.id].state.since is None:
        traffic.five_minutes({SERIES: 0.6} if traffic.now % 900 < FIVE_MINUTES_S else {})
        monitored.look({SERIES: 0.6})
        assert traffic.now - began < 24 * HOUR_S


def test_masks_are_kept_as_long_as_the_history(keyspace: Keyspace) -> None:
    traffic = Traffic(keyspace)
    now = traffic.now // FIVE_MINUTES_S
    masks = [(int(now) - 60 * 288, int(now) - 55 * 288), (int(now) - 20 * 288, int(now) - 19 * 288)]
    detector = Detector()
    detector.state.masks, detector.judged.masks = list(masks), list(masks)
    keyspace.client.set(MonitorKeys(keyspace.keys.prefix).quality_detector(SERIES.id), msgspec.msgpack.encode(detector))
    monitored = Monitored(keyspace, traffic)
    monitored.look({SERIES: 0.9})
    detector = monitored.detectors[SERIES.id]
    assert detector.state.masks == detector.judged.masks == masks[1:]


def test_hours_in_which_much_is_unknown_are_not_learned_unless_they_are_usual(keyspace: Keyspace) -> None:
    for usual, hidden, expected in ((0, 6, 0.9), (1, 6, 0.9), (0, 0, 0.825), (3, 3, 0.825)):
        keyspace.client.flushdb()
        traffic = Traffic(keyspace)
        traffic.hours(9 * 24, {SERIES: 0.9}, usual)
        traffic.hours(3 * 24, {SERIES: 0.6}, hidden)
        traffic.hours(24, {SERIES: 0.9}, usual)
        monitored = Monitored(keyspace, traffic)
        monitored.look({SERIES: 0.9})
        norm = monitored.detectors[SERIES.id].norm
        assert norm is not None
        assert sum(norm.cells) / len(norm.cells) == pytest.approx(expected, abs=0.012), (usual, hidden)


def test_a_drop_that_unknown_verdicts_hide_is_masked() -> None:
    for name in ("state", "judged"):
        detector = Detector()
        getattr(detector, name).masks.append((10, 20))
        assert [detector.is_masked(first, first + 2) for first in (8, 9, 19, 20)] == [False, True, True, False], name


def test_a_drop_is_told_where_it_would_be_one_if_the_unknown_verdicts_had_passed() -> None:
    for unknown, is_told in ((0, True), (10, True), (60, False)):
        norm = flat(0.9, 10_000)
        detector = Detector(norm=norm, limits=limits_of(norm, Moments(), series=10))
        sums = Sums(
            {0: ClassSums(20, 20, 12, 20, 12)}, SessionSums(20, 20, 12, 12), Unjudged(unknown, unknown, unknown)
        )
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


def test_judgements_of_one_trace_count_as_a_group() -> None:
    """A hundred traces of two judgements that agree, in sums that no session is known of."""
    sums = Sums({0: ClassSums(200, 200, 180, 200, 180)}, SessionSums(100, 400, 360, 360))
    detector = Detector(norm=flat(0.9, 10_000, dispersion=2.0))
    add_sessions(detector, [Bucket(BEGIN_S, sums, Unjudged(), Unjudged())], {})
    # The correlation of 1 of a hundred sessions, with a prior of .25 worth two.
    size = 1 + 100.5 / 102
    expected = Moments()
    expected.add(Session(size, 0, (0.9, 0.9)), 180 / size)
    expected.add(Session(0, size, (0.9, 0.9)), 20 / size)
    for result, sums_of_drop in zip(detector.moments.sums, expected.sums, strict=True):
        assert result == pytest.approx(sums_of_drop)


def test_sessions_of_a_period_are_counted_once(keyspace: Keyspace) -> None:
    period = BEGIN_S // CLUSTER_PERIOD_S
    begin = period * CLUSTER_PERIOD_S
    key = MonitorKeys(keyspace.keys.prefix).quality_detector(SERIES.id)
    norm = msgspec.structs.replace(flat(0.9, 10_000, dispersion=2.0), mean_weight=2.0)
    detector = Detector(norm=norm, learned_at=begin, done=begin // FIVE_MINUTES_S)
    keyspace.client.set(key, msgspec.msgpack.encode(detector))
    # Three sessions of five verdicts of weight 2, one of which fails twice, and ten verdicts without a session.
    for part, clusters in ((0, {"0a": (10, 10), "08": (10, 6)}), (3, {"33": (10, 10)})):
        packed = {name: msgspec.msgpack.encode(sums) for name, sums in clusters.items()}
        keyspace.client.hset(
            MonitorKeys(keyspace.keys.prefix).quality_clusters(SERIES.id, period, part), mapping=packed
        )
    at = place(MonitorKeys(keyspace.keys.prefix), SERIES.id, begin)
    keyspace.client.hset(at.hour_key, f"{at.hour}A", msgspec.msgpack.encode([25, 50, 40, 100, 80]))
    for _ in range(2):
        Detection(keyspace.store, Monitor(), (), lambda: begin + CLUSTER_PERIOD_S + 200).step({SERIES.id: SERIES})
        detector = msgspec.msgpack.decode(keyspace.client.get(key), type=Detector)
    # By weight 20 of 50 come without a session: passes and failures in proportion.
    expected = Moments()
    sessions = {
        Session(5, 0, (0.9, 0.9)): 2,
        Session(3, 2, (0.9, 0.9)): 1,
        Session(1, 0, (0.9, 0.9)): 8,
        Session(0, 1, (0.9, 0.9)): 2,
    }
    for session, number in sessions.items():
        expected.add(session, number)
    assert detector.moments.sessions == pytest.approx(13)
    for result, sums in zip(detector.moments.sums, expected.sums, strict=True):
        assert result == pytest.approx(sums)
