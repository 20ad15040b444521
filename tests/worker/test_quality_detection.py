"""Drops found in stored sums: once per incident, with its begin, also when another worker goes on."""

import random

import msgspec
import pytest
from stage_parts import Ground

from worker.config.settings import Monitor
from worker.monitor.baseline import flat
from worker.monitor.detection import Detection, Detector
from worker.monitor.detector import Moments, Session
from worker.monitor.series import CLUSTER_PERIOD_S, FIVE_MINUTES_S, HOUR_S, Series, place
from worker.storage.client import Store

SERIES = Series("shop", "", "safety", "01234567", "lexical", "safety")
BEGIN_S = 1_760_000_400 // HOUR_S * HOUR_S
DAYS = 10
AN_HOUR = 120


class Traffic:
    """Writes the sums of verdicts as script `add_quality` does, by the clock of the test."""

    def __init__(self, ground: Ground) -> None:
        self.now = float(BEGIN_S)
        self._ground = ground
        self._chance = random.Random(18)
        self._hour: tuple[int, int] = (0, 0)

    def clock(self) -> float:
        return self.now

    def five_minutes(self, share: float) -> None:
        if self.now % HOUR_S == 0:
            self._hour = (0, 0)
        judged = AN_HOUR // 12
        passed = sum(self._chance.random() < share for _ in range(judged))
        self._hour = (self._hour[0] + judged, self._hour[1] + passed)
        at = place(self._ground.keys, SERIES.id, self.now)
        for key, bucket, (n, y) in ((at.hour_key, at.hour, self._hour), (at.five_key, at.five, (judged, passed))):
            self._ground.client.hset(key, f"{bucket}A", msgspec.msgpack.encode([n, n, y, n, y]))
        self.now += FIVE_MINUTES_S

    def hours(self, count: int, share: float) -> None:
        for _ in range(count * 12):
            self.five_minutes(share)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_drop_is_found_once_and_recovers(ground: Ground, restarts: bool) -> None:  # noqa: FBT001
    traffic = Traffic(ground)
    store = Store(ground.url, ground.keys)

    def make() -> Detection:
        return Detection(store, Monitor(), clock=traffic.clock)

    detection = make()
    found: list[tuple[float, int | None]] = []

    def live(hours: int, share: float) -> None:
        nonlocal detection
        for _ in range(hours * 12):
            traffic.five_minutes(share)
            traffic.now += 61  # the grace of late verdicts
            detector = detection.step({SERIES.id: SERIES})[SERIES.id]
            traffic.now -= 61
            if not found or found[-1][1] != detector.state.since:
                found.append((traffic.now, detector.state.since))
            detection = make() if restarts and traffic.now % HOUR_S == 0 else detection

    traffic.hours(DAYS * 24, 0.9)
    live(24, 0.9)
    fell = traffic.now
    live(12, 0.6)
    rose = traffic.now
    live(24, 0.9)
    store.close()
    assert [since is not None for _, since in found] == [False, True, False], found
    (_, _), (raised, since), (recovered, _) = found
    assert raised - fell <= 3 * HOUR_S
    assert since is not None
    assert abs(since * FIVE_MINUTES_S - fell) <= HOUR_S
    assert recovered - rose <= 6 * HOUR_S


def test_sessions_of_a_period_are_counted_once(ground: Ground) -> None:
    period = BEGIN_S // CLUSTER_PERIOD_S
    begin = period * CLUSTER_PERIOD_S
    key = ground.keys.quality_detector(SERIES.id)
    norm = msgspec.structs.replace(flat(0.9, 10_000, dispersion=2.0), mean_weight=2.0)
    ground.client.set(key, msgspec.msgpack.encode(Detector(norm=norm, learned_at=begin, done=begin // FIVE_MINUTES_S)))
    # Three sessions of five verdicts of weight 2, one of which fails twice, and ten verdicts without a session.
    for part, clusters in ((0, {"0a": (10, 10), "08": (10, 6)}), (3, {"33": (10, 10)})):
        values = {name: msgspec.msgpack.encode(sums) for name, sums in clusters.items()}
        ground.client.hset(ground.keys.quality_clusters(SERIES.id, period, part), mapping=values)
    at = place(ground.keys, SERIES.id, begin)
    ground.client.hset(at.hour_key, f"{at.hour}A", msgspec.msgpack.encode([25, 50, 40, 100, 80]))
    for _ in range(2):
        Detection(ground.store, Monitor(), clock=lambda: begin + CLUSTER_PERIOD_S + 200).step({SERIES.id: SERIES})
        detector = msgspec.msgpack.decode(ground.client.get(key), type=Detector)
    # By weight 20 of 50 come without a session: passes and failures in proportion.
    wanted = Moments()
    sessions = {Session(5, 0, 0.9): 2, Session(3, 2, 0.9): 1, Session(1, 0, 0.9): 8, Session(0, 1, 0.9): 2}
    for session, number in sessions.items():
        wanted.add(session, number)
    assert detector.moments.sessions == pytest.approx(13)
    for found, sums in zip(detector.moments.sums, wanted.sums, strict=True):
        assert found == pytest.approx(sums)
