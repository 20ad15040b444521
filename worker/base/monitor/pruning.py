"""Bounds the list of series: silent ones leave it, so that new ones have a place under ``max_series``."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec
import structlog
from redis.client import Pipeline

from worker.base.monitor.failing import remove_examples, scan_examples
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.gauges import Watch
from worker.base.monitor.series import COARSE_DAYS, DAY_S, HOUR_S, Series, place, read_series
from worker.base.monitor.settings import Monitor
from worker.core.storage.client import Store

log = structlog.get_logger("tracejudge.monitor")
_SILENT_DAYS: Final = 7
"""A value of a segment that has as many values as allowed leaves after this time; its sums stay, and it may return."""
_AT_ONCE: Final = 100


class SeriesPruning(Watch):
    """Removes, once an hour, series without sums, and silent values of segments that have as many as allowed.

    Then it reports which series are listed: another worker, or a Redis that lost its last writes, may have changed it.
    """

    every_s = float(HOUR_S)

    def __init__(
        self,
        store: Store,
        settings: Monitor,
        listed: Callable[[Iterable[Series]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store, clock)
        self._keys = MonitorKeys(store.keys.prefix)
        self._max_values = settings.max_segment_values
        self._listed = listed

    def run(self, now: float) -> None:
        """Remove series, and report those that are left."""
        known = read_series(self._store)
        by_segment: dict[Series, list[str]] = {}
        for series_id, series in known.items():
            if series.segment:
                by_segment.setdefault(segment_of(series), []).append(series_id)
        full = [one for ids in by_segment.values() if len(ids) >= self._max_values for one in ids]
        silent = {*self._silent(known, now, COARSE_DAYS + 1), *self._silent(full, now, _SILENT_DAYS)}
        if silent:
            keys = self._keys
            self._store.call(lambda client: client.hdel(keys.quality_series, *silent))
            self._store.call(lambda client: client.delete(*map(keys.quality_detector, silent)))
            remove_examples(self._store, (one for one in scan_examples(self._store) if one.series_id in silent))
            log.info("silent series removed", series=len(silent))
        self._listed(series for series_id, series in known.items() if series_id not in silent)

    def _silent(self, series_ids: Collection[str], now: float, days: int) -> list[str]:
        """Return the series that have no sums in these last days."""

        def count(some: Sequence[str], pipe: Pipeline) -> None:
            for series_id in some:
                # Tomorrow as well: Redis dates verdicts by its own clock.
                times = (now + ahead * DAY_S for ahead in range(1 - days, 2))
                pipe.exists(*(place(self._keys, series_id, at).hour_key for at in times))

        ids, found = iter(series_ids), list[str]()
        while some := list(islice(ids, _AT_ONCE)):
            counts = self._store.pipeline(partial(count, some))
            found += [one for one, amount in zip(some, counts, strict=True) if not amount]
        return found


def segment_of(series: Series) -> Series:
    """Return what all values of a segment of one series have in common."""
    return msgspec.structs.replace(series, value="")
