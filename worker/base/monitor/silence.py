"""Services without verdicts for longer than their usual traffic explains.

Nothing is stored: last verdicts and usual volumes come from the buckets, so that another worker goes on alike.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from worker.base.monitor.series import DAY_S, HOUR_S, Bucket, Series, read_buckets
from worker.core.storage.client import Store

EXPECTED: Final = 20
"""Verdicts that must be missing."""
_LEAST_DAYS: Final = 7
_GONE_S: Final = 7 * DAY_S
"""A service without verdicts for so long was switched off."""
_WEEK: Final = 168
_LEARN_AT_ONCE: Final = 100
Service = tuple[str, str]


class _Volume:
    """Usual verdicts of a service in each hour of the week, and the time of its newest one."""

    def __init__(self, learned_at: float) -> None:
        self.learned_at = learned_at
        self.newest = 0.0
        self.hours: list[float] | None = None

    def add(self, buckets: Iterable[Bucket], now: float) -> None:
        """Learn from the hours of all series of the service."""
        counts: dict[int, int] = {}
        for bucket in buckets:
            hour = int(bucket.begins_at) // HOUR_S
            counts[hour] = counts.get(hour, 0) + bucket.verdicts
        if not counts:
            return
        self.newest = max(self.newest, (max(counts) + 1.0) * HOUR_S)
        first, after = min(counts), int(now) // HOUR_S - DAY_S // HOUR_S
        if after - first < _LEAST_DAYS * 24:
            return
        self.hours = [0.0] * _WEEK
        occurrences = [0] * _WEEK
        # The newest day stays out, so that a silence does not become usual.
        for hour in range(first, after):
            occurrences[hour % _WEEK] += 1
            self.hours[hour % _WEEK] += counts.get(hour, 0)
        self.hours = [count / max(1, number) for count, number in zip(self.hours, occurrences, strict=True)]

    def is_silent(self, now: float) -> bool | None:
        """Return whether the verdicts of a usual time are missing; None if that is unknown, or long ago.

        The time is at least an hour, and a day if 20 verdicts take more than an hour.
        """
        if self.hours is None or now - self.newest > _GONE_S:
            return None
        begin, end = self.newest / HOUR_S, now / HOUR_S
        expected = sum(
            self.hours[hour % _WEEK] * (min(end, hour + 1) - max(begin, hour))
            for hour in range(int(begin), math.ceil(end))
        )
        least = 24 if sum(self.hours) / _WEEK < EXPECTED else 1
        return expected >= EXPECTED and end - begin >= least


class Silence:
    """Finds the services that are silent."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._volumes: dict[Service, _Volume] = {}

    def clear(self) -> None:
        """Forget all volumes: another worker is the active monitor."""
        self._volumes.clear()

    def step(self, series: Mapping[str, Series], newest: Mapping[Service, float]) -> dict[Service, bool]:
        """Return for each service with a known volume whether it is silent, by the time of its newest verdict."""
        now = self._clock()
        ids: dict[Service, list[str]] = {}
        for series_id, labels in series.items():
            if not labels.segment:
                ids.setdefault((labels.service, labels.environment), []).append(series_id)
        self._volumes = {service: volume for service, volume in self._volumes.items() if service in ids}
        read = 0
        for service, members in ids.items():
            learned = self._volumes.get(service)
            if (learned is None or now - learned.learned_at >= DAY_S) and read < _LEARN_AT_ONCE:
                read += len(members)
                self._volumes[service] = volume = _Volume(now)
                history = read_buckets(self._store, members, now - 28 * DAY_S, now, fine=False)
                volume.add(chain.from_iterable(history), now)
        silent: dict[Service, bool] = {}
        for service, volume in self._volumes.items():
            volume.newest = max(volume.newest, newest.get(service, 0.0))
            if (is_silent := volume.is_silent(now)) is not None:
                silent[service] = is_silent
        return silent
