"""Services that are silent: at night and at weekends no verdicts are expected."""

from collections.abc import Sequence

import msgspec
from support.stage_parts import Keyspace

from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import HOUR_S, Series, place
from worker.base.monitor.watch import Silence

DAY_S = 24 * HOUR_S
MONDAY_S = (1_760_000_000 // (7 * DAY_S) * 7 + 4) * DAY_S
SERIES = Series("shop", "prod", "safety", "01234567", "lexical", "safety")
OTHER = Series("shop", "prod", "tone", "01234567", "lexical", "tone")
KNOWN = {SERIES.id: SERIES}
SERVICE = "shop", "prod"


def write(keyspace: Keyspace, series: Series, at: int, verdicts: int, kind: str = "A") -> None:
    numbers = [verdicts] * (5 if kind == "A" else 3)
    where = place(MonitorKeys(keyspace.keys.prefix), series.id, at)
    keyspace.client.hset(where.hour_key, f"{where.hour}{kind}", msgspec.msgpack.encode(numbers))


def silent_after(keyspace: Keyspace, last: int, hours: int, series: Sequence[Series] = (SERIES,)) -> list[int]:
    """Return after which hours without verdicts the service is silent."""
    silence = Silence(keyspace.store, lambda: float(now))
    silent_hours = []
    for hour in range(hours):
        now = last + hour * HOUR_S
        if any(silence.step({monitored_series.id: monitored_series for monitored_series in series}, {}).values()):
            silent_hours.append(hour)
    return silent_hours


def test_a_service_is_silent_when_20_verdicts_are_missing(keyspace: Keyspace) -> None:
    for service, every, verdicts, begins in (("busy", 1, 100, 1), ("few", 1, 10, 24), ("quiet", 2, 1, 40)):
        judges = [msgspec.structs.replace(monitored_series, service=service) for monitored_series in (SERIES, OTHER)]
        for hour in range(every - 1, 28 * 24, every):
            # Of two judges; abstained verdicts are verdicts.
            write(keyspace, judges[hour % 4 > 0], MONDAY_S + hour * HOUR_S, verdicts, "Aa"[hour % 3 > 1])
        silences = silent_after(keyspace, MONDAY_S + 28 * DAY_S, 8 * 24, judges)
        # A service without verdicts for a week was switched off.
        assert silences == list(range(begins, 7 * 24 + 1)), service


def test_nights_and_weekends_are_no_silence(keyspace: Keyspace) -> None:
    for day in range(28):
        for hour in range(8, 18):
            if day % 7 < 5:
                write(keyspace, SERIES, MONDAY_S + day * DAY_S + hour * HOUR_S, 40)
    friday = MONDAY_S + 25 * DAY_S + 18 * HOUR_S
    silences = silent_after(keyspace, friday, 4 * 24)
    # Until Monday, an hour after eight o'clock.
    assert silences[0] == 2 * 24 + 15


def test_a_new_service_and_one_that_still_speaks_are_not_silent(keyspace: Keyspace) -> None:
    for hour in range(6 * 24):
        write(keyspace, SERIES, MONDAY_S + hour * HOUR_S, 100)
    assert silent_after(keyspace, MONDAY_S + 6 * DAY_S, 24) == []
    for hour in range(6 * 24, 20 * 24):
        write(keyspace, SERIES, MONDAY_S + hour * HOUR_S, 100)
    now = MONDAY_S + 20 * DAY_S + 5 * HOUR_S
    silence = Silence(keyspace.store, lambda: float(now))
    assert silence.step(KNOWN, {}) == {SERVICE: True}
    assert silence.step(KNOWN, {SERVICE: now - 600.0}) == {SERVICE: False}
    assert silence.step({}, {}) == {}
