"""Weeks of judged traffic in the form of the monitor, in which a real worker finds the incidents of a service."""

import datetime as dt
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from busy_services import ENVIRONMENT
from support.pipeline import Pipeline
from whole_picture import JUDGE_MODEL

from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.base.monitor.counts import field_of
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Series, place
from worker.core.config.settings import Settings
from worker.features.canary.canary_file import Canary

__all__ = ["DAY_S", "Past", "version"]

DAY_S: Final = 24 * HOUR_S
_WEEKS_S: Final = 16 * DAY_S
_CANARY_DAYS: Final = 9


def version(judge: str) -> str:
    """Return a judge's version as it stands in labels."""
    return catalogue()[judge].version[:8]


class Past:
    """The verdicts of the past, collected and then written to Redis."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.now = time.time()
        self._store, self._keys = pipeline.store, MonitorKeys(pipeline.keys.prefix)
        self._hashes: dict[str, dict[str, Any]] = defaultdict(dict)
        self._verdicts: list[tuple[float, Verdict]] = []

    def series(
        self, service: str, judge: str, share: Callable[[float], float], an_hour: int = 120, model: str = ""
    ) -> Iterator[tuple[float, int, int]]:
        """Add verdicts at a rate until now; yield the time, the verdicts and the passes of each five minutes.

        Args:
            service: Whose traffic.
            judge: The judge, and its metric.
            share: The share that passes, by the age in seconds; below 0 nothing is judged.
            an_hour: Verdicts in an hour.
            model: The segment, empty for the whole.
        """
        segment = ("model", model) if model else ("", "")
        labels = Series(service, ENVIRONMENT, judge, version(judge), JUDGE_MODEL, judge, *segment)
        self._hashes[self._keys.quality_series][labels.id] = msgspec.json.encode(labels)
        each, hour = an_hour // 12, (0, 0)
        last = int(self.now // FIVE_MINUTES_S) * FIVE_MINUTES_S
        for at in range(int((last - _WEEKS_S) // HOUR_S) * HOUR_S, last, FIVE_MINUTES_S):
            hour = (0, 0) if at % HOUR_S == 0 else hour
            if (part := share(self.now - at)) < 0:
                continue
            # Drawn by the age: at any time of the day the same happens so long ago.
            chance = random.Random(f"{service} {judge} {model} {last - at}")
            passed = sum(chance.random() < part for _ in range(each))
            hour = hour[0] + each, hour[1] + passed
            where = place(self._keys, labels.id, at)
            self._hashes[where.hour_key][f"{where.hour}A"] = _sums(*hour)
            if at >= last - FINE_DAYS * DAY_S:
                self._hashes[where.five_key][f"{where.five}A"] = _sums(each, passed)
            yield at, each, passed

    def confirmed(self, service: str, judge: str, at: float, failures: int) -> None:
        """Count failures of a safety judge that a second judging confirmed."""
        series = Series(service, ENVIRONMENT, judge, version(judge), JUDGE_MODEL, judge)
        bucket = str(int(at // FIVE_MINUTES_S))
        for word in ("failed", "confirmed"):
            key = self._keys.quality_counts("safety", _date(at))
            self._hashes[key][field_of((series.id, bucket, word))] = failures

    def failing(self, service: str, judge: str, age_s: float, **fields: Any) -> str:
        """Put a failing verdict into the outbox, and return its trace id."""
        trace_id = f"{len(self._verdicts):032x}"
        verdict = Verdict(
            evaluation_id=trace_id,
            outcome="scored",
            scores=(Score(judge, 0.0, passed=False),),
            metrics=(judge,),
            trace_id=trace_id,
            service=service,
            environment=ENVIRONMENT,
            judge=judge,
            judge_version=catalogue()[judge].version,
            judge_model=JUDGE_MODEL,
            started_at=self.now - age_s,
            duration_s=1.0,
            **fields,
        )
        self._verdicts.append((self.now - age_s, verdict))
        return trace_id

    def canary(self, judge: str, agrees: Callable[[int, float], bool]) -> None:
        """Add hourly verdicts on the canary; `agrees` decides by the number of a trace and the age in seconds."""
        traces = sorted(Canary.from_settings(Settings()).ids_by_judge[judge])
        series = judge, version(judge), JUDGE_MODEL
        for age_h in range(_CANARY_DAYS * 24):
            at = self.now - age_h * HOUR_S
            for number, trace_id in enumerate(traces):
                labels = (*series, trace_id, str(int(agrees(number, age_h * HOUR_S))))
                for key, field in (
                    (self._keys.quality_counts("canary", _date(at)), field_of(labels)),
                    (self._keys.quality_counts("canary_hours", _date(at)), field_of((str(int(at // HOUR_S)), *labels))),
                ):
                    self._hashes[key][field] = self._hashes[key].get(field, 0) + 1

    def write(self) -> None:
        """Write everything to Redis."""
        hashes: Mapping[str, Mapping[str, Any]] = self._hashes
        self._store.pipeline(lambda pipe: [pipe.hset(key, mapping=dict(fields)) for key, fields in hashes.items()])
        for at, verdict in sorted(self._verdicts, key=lambda each: each[0]):
            entry = {"v": 1, "j": msgspec.json.encode(verdict)}
            self._store.call(lambda client: client.xadd(self._store.keys.verdicts, entry, id=f"{int(at * 1000)}-*"))  # noqa: B023


def _sums(judged: int, passed: int) -> bytes:
    return msgspec.msgpack.encode([judged, judged, passed, judged, passed])


def _date(at: float) -> dt.date:
    return dt.datetime.fromtimestamp(at, dt.UTC).date()
