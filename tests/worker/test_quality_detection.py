"""Drops found in stored sums: once per incident, with its begin, also when another worker goes on."""

import random

import msgspec
import pytest
from stage_parts import Ground

from worker.config.settings import Monitor
from worker.monitor.detection import Detection
from worker.monitor.series import FIVE_MINUTES_S, HOUR_S, Series, place
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
