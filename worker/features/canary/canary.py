"""The canary at work: the active monitor has its traces judged, counts which verdicts agree, and watches for drift.

The verdicts have the origin `canary`. As all others they are in the accounting and in the costs, but in no series of
quality.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import structs
from prometheus_client import Gauge

from judges.agreement.intervals import Interval, wilson
from judges.core.verdict import Verdict
from worker.base.monitor.counts import Increment, read_counts
from worker.base.monitor.feature import MONITOR
from worker.base.monitor.gauges import MonitorParts, Sample, Watch
from worker.base.monitor.series import DAY_S, HOUR_S, VERSION_DIGITS, utc_minute
from worker.core.config.graders import Grader, Graders
from worker.core.config.settings import Settings
from worker.core.selection.evaluations import BatchWriter, EvaluationFactory
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.telemetry.health import live_circuits
from worker.core.telemetry.metrics import Metric, MetricTable
from worker.features.canary.canary_file import Canary
from worker.features.canary.feature import CanaryKeys

LEAST_BEFORE: Final = 12  # A trace with fewer earlier verdicts is not compared.
RECENT: Final = 6  # Judgings that are compared with the earlier ones.
OPENS_AT: Final = 1e-4
CLOSES_AT: Final = 1e-2
log = structlog.get_logger("tracejudge.monitor")
_DAYS: Final = "canary"
_HOURS: Final = "canary_hours"
_LONGEST_DRIFT_S: Final = 30 * DAY_S  # Then the new level is the reference.


class Verdicts(NamedTuple):
    """How many verdicts about a trace there were, and how many agreed with its labels."""

    total: int = 0
    agreed: int = 0

    @property
    def missed(self) -> int:
        """How many did not agree."""
        return self.total - self.agreed

    def add(self, more: "Verdicts") -> "Verdicts":
        """Add other verdicts about the same trace."""
        return Verdicts(self.total + more.total, self.agreed + more.agreed)


OfTraces = Mapping[str, Verdicts]


class Shift(NamedTuple):
    """Recent verdicts beside earlier ones of the same traces."""

    # Of so many recent disagreements by a judge that has not changed, without the trace that fell most.
    probability: float
    before: float  # The earlier agreement.
    now: float  # The recent agreement.
    fallen: tuple[str, ...]  # The traces whose agreement fell, the one that fell most first.


def agreement(traces: Mapping[str, Verdicts]) -> Interval | None:
    """Return the mean agreement of traces with Wilson's interval on their number, None without a verdict."""
    shares = [verdicts.agreed / verdicts.total for verdicts in traces.values() if verdicts.total]
    return wilson(sum(shares) / len(shares), len(shares)) if shares else None


def shift(recent: Mapping[str, Verdicts], before: Mapping[str, Verdicts]) -> Shift | None:
    """Compare recent verdicts with earlier ones by trace; None until two traces have enough verdicts."""
    # Each trace has its own rate of disagreement, estimated from its earlier verdicts. With Jeffreys' prior the number
    # of its recent disagreements has a beta-binomial distribution, and their sum over traces the convolution of these.
    # The trace that fell most is left out, because a single trace may lie on the border of the judge's decision.
    pairs = {
        name: (now, then)
        for name, now in recent.items()
        if now.total and (then := before.get(name, Verdicts())).total >= LEAST_BEFORE
    }
    if len(pairs) < 2:  # noqa: PLR2004
        return None
    falls = {name: then.agreed / then.total - now.agreed / now.total for name, (now, then) in pairs.items()}
    order = sorted(falls, key=lambda name: falls[name], reverse=True)
    others = (pairs[name] for name in order[1:])
    counts = sorted((now.total, now.missed, then.total, then.missed) for now, then in others)
    earlier = sum(then.agreed / then.total for _, then in pairs.values()) / len(pairs)
    latest = earlier - sum(falls.values()) / len(falls)
    return Shift(_tail(tuple(counts)), earlier, latest, tuple(name for name in order if falls[name] > 0))


@lru_cache(maxsize=1024)
def _tail(counts: tuple[tuple[int, int, int, int], ...]) -> float:
    """Return the probability of as many recent disagreements, from recent and earlier verdicts of each trace."""
    seen = sum(missed for _, missed, _, _ in counts)
    if seen <= sum(total * (past_missed + 0.5) / (past + 1) for total, _, past, past_missed in counts):
        return 1.0
    # Probability of each sum below the observed sum; the last place collects all others.
    sums = [1.0] + [0.0] * seen
    for total, _, past, past_missed in counts:
        a, b = past_missed + 0.5, past - past_missed + 0.5
        rest = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.lgamma(a + b + total)
        chances = [
            math.comb(total, number) * math.exp(math.lgamma(a + number) + math.lgamma(b + total - number) + rest)
            for number in range(total + 1)
        ]
        added = [0.0] * (seen + 1)
        for place, probability in enumerate(sums):
            for more, chance in enumerate(chances):
                added[min(seen, place + more)] += probability * chance
        sums = added
    return sums[seen]


class Series(NamedTuple):
    """A judge of one version with one judge model."""

    judge: str
    version: str
    judge_model: str


class CanaryMetrics(MetricTable):
    """The gauges of the canary."""

    # fmt: off
    judge_canary_agreement = Metric(Gauge, "judge_canary_agreement", "ratio", Series._fields,
        "Mean share of the last day's verdicts on each canary trace that agree with its labels", stability="stable")
    judge_canary_lower = Metric(Gauge, "judge_canary_agreement_lower", "ratio", Series._fields,
        "Lower limit of the 95 % interval of judge_canary_agreement, by the number of traces")
    judge_canary_upper = Metric(Gauge, "judge_canary_agreement_upper", "ratio", Series._fields,
        "Upper limit of the 95 % interval of judge_canary_agreement, by the number of traces")
    judge_canary_drift = Metric(Gauge, "judge_canary_drift", "boolean", Series._fields,
        "1 while a judge agrees with the canary's labels surely less than it did in the week before")
    judge_canary_drift_info = Metric(Gauge, "judge_canary_drift_info", "boolean",
        (*Series._fields, "since", "examples"),
        "1 while a judge drifts: when that was found, and the names of up to three canary traces that fell most")


class _Drift(msgspec.Struct, array_like=True):
    """An open drift: when it was found, in seconds since the epoch, and the names of some traces that fell."""

    since: int
    examples: str


def list_graders(settings: Settings, canary: Canary, graders: Graders) -> list[tuple[str, Grader]]:
    """List the judges with labelled traces that rules name, each with the models that judge; panels are left out."""
    named = (
        (judge, name) for rule in settings.rules for judge in rule.judges for name in graders.grader_names(rule, judge)
    )
    pairs = ((judge, graders.grader(name)) for judge, name in dict.fromkeys(named) if judge in canary.ids_by_judge)
    # Two names of one judge model would give each evaluation twice.
    models = {(judge, grader.judge_model): (judge, grader) for judge, grader in pairs if not grader.members}
    return list(models.values())


class CanaryWatch(Watch):
    """Has the canary judged when it is due, and shows the agreement of each judge and model."""

    origin = "canary"

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parts.store, clock)
        settings = self._settings = parts.settings
        canary = self._canary = Canary.from_settings(settings)
        self._key = CanaryKeys(parts.store.keys.prefix).canary
        self._judged_every_s = MONITOR.read(settings).canary_every_s
        self.every_s = min(self.every_s, self._judged_every_s)
        self._asked = list_graders(settings, canary, parts.rules.graders)
        self._rules = parts.rules
        self._graders = parts.rules.graders
        self._factory = EvaluationFactory(parts.rules.graders)
        own = parts.metrics.table(CanaryMetrics)
        agreed = own.judge_canary_agreement, own.judge_canary_lower, own.judge_canary_upper
        self._of_series = (*agreed, own.judge_canary_drift)
        self._info = own.judge_canary_drift_info

    def run(self, now: float) -> None:  # noqa: ARG002 - evaluations are due by the clock of Redis
        """Choose the evaluations that are due, and compute the gauges."""
        if self._judged_every_s:
            now_ms = self._store.now_ms()
            self.choose(now_ms)
            self._show_agreement(now_ms / 1000)

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Yield the increments, by day and by hour; their time is the time of the judging, else of the entry."""
        if (agrees := self._canary.agrees(verdict)) is None:
            return
        began = verdict.trace_ended_at or at
        series = Series(verdict.judge, verdict.judge_version[:VERSION_DIGITS], verdict.judge_model)
        labels = (*series, verdict.trace_id, str(int(agrees)))
        yield Increment(_DAYS, began, labels)
        yield Increment(_HOURS, began, (str(int(began // HOUR_S)), *labels), keep_days=4)

    def choose(self, now_ms: int) -> int:
        """Choose the evaluations of one judging if it is due; return how many were chosen."""
        key, every_ms = self._key, int(self._judged_every_s * 1000)
        stored = self._store.call(lambda client: client.hget(key, "due"))
        due_ms = int(stored or 0)
        # The first judging is not at the start: a worker that is tried out for a minute calls no model for it.
        if stored is None or due_ms > now_ms + every_ms:
            self._store.call(lambda client: client.hset(key, "due", now_ms + every_ms))
            evaluations = sum(len(self._canary.ids_by_judge[judge]) for judge, _ in self._asked)
            log.info("canary scheduled", evaluations=evaluations, every_s=self._judged_every_s)
            return 0
        if due_ms > now_ms:
            return 0
        writer = BatchWriter.for_choosing(self._settings, self._store.keys, key)
        missed = (now_ms - due_ms) // every_ms
        plan = {
            "due": str(due_ms),
            "next": str(due_ms + (missed + 1) * every_ms),
            "traces": list(self._planned(writer, now_ms)),
        }
        chosen = int(self._store.run("choose_canary", *writer.finish(plan)))
        if chosen > 0:
            log.info("canary chosen", evaluations=chosen, judges=sorted({judge for judge, _ in self._asked}))
        return max(0, chosen)

    def _planned(self, writer: BatchWriter, now_ms: int) -> Iterator[dict[str, object]]:
        # Behind an open circuit evaluations would only wait, and become dead letters, one judging after the other.
        circuits = [circuit for of_worker in live_circuits(self._store) for circuit in of_worker.items()]
        away = {model for model, open_s in circuits if open_s} - {model for model, open_s in circuits if open_s == 0}
        for labelled in self._canary.traces.values():
            # The time makes the ids of the evaluations, so that each judging has its own.
            trace = structs.replace(labelled.trace, id=f"{now_ms:016x}", ended_at=now_ms / 1000)
            choices = [
                Choice(judge, grader.name, 1.0)
                for judge, grader in self._asked
                if labelled.trace.trace_id in self._canary.ids_by_judge[judge]
                and grader.judge_model not in away
                and self._rules.allows(trace, grader.judge_model)
            ]
            if choices:
                chosen = self._factory.make(TraceEntry(f"{now_ms}-0", None, trace, b""), choices, "canary")
                yield {"evaluations": writer.evaluations(chosen, trace)}

    def _show_agreement(self, now: float) -> None:
        """Set the gauges of the judges and models of the rules that the canary was judged by."""
        asked = {
            Series(judge, self._graders.version(judge, grader.judge_model)[:VERSION_DIGITS], grader.judge_model)
            for judge, grader in self._asked
        }
        day, recent = self._hours(now)
        stored = self._store.call(lambda client: client.hgetall(self._key))
        drifts = {
            Series(*name.decode().split("\n")): msgspec.json.decode(value, type=_Drift)
            for name, value in stored.items()
            if name != b"due"
        }
        # Of a judge that no rule names any more, or of an earlier version.
        if stale := [series for series, drift in drifts.items() if now - drift.since > 2 * _LONGEST_DRIFT_S]:
            self._store.call(lambda client: client.hdel(self._key, *map("\n".join, stale)))
        # Most often one reading serves all: only a series in drift has another reference.
        references: dict[int, Mapping[Series, OfTraces]] = {}
        samples: list[Sample] = []
        for series in sorted(asked):
            if (interval := agreement(day.get(series, {}))) is None:
                continue
            drift = drifts.get(series)
            # The reference is a week of whole days, one day before the recent verdicts or before the drift.
            until = (int(now) if drift is None else drift.since) // DAY_S - 1
            if until not in references:
                days = ((until - 7) * DAY_S, (until - 1) * DAY_S)
                references[until] = _by_series(read_counts(self._store, _DAYS, *days).items())
            drift = self._decide(series, shift(recent.get(series, {}), references[until].get(series, {})), drift, now)
            values = (*interval, float(drift is not None))
            samples += [(gauge, series, value) for gauge, value in zip(self._of_series, values, strict=True)]
            if drift is not None:
                samples.append((self._info, (*series, utc_minute(drift.since), drift.examples), 1.0))
        self.show(samples)

    def _decide(self, series: Series, change: Shift | None, drift: _Drift | None, now: float) -> _Drift | None:
        key, field = self._key, "\n".join(series)
        if drift is None:
            if change is None or change.probability > OPENS_AT:
                return None
            fallen = [self._canary.traces[name].title for name in change.fallen if name in self._canary.traces]
            drift = _Drift(int(now), " ".join(fallen[:3]))
            stored = msgspec.json.encode(drift)
            self._store.call(lambda client: client.hset(key, field, stored))
            shares = {"agreement": round(change.now, 3), "before": round(change.before, 3)}
            log.warning("judge drift", **series._asdict(), **shares, traces=fallen)
            return drift
        # Without verdicts to compare, the drift is not over.
        is_over = change is not None and change.probability >= CLOSES_AT
        if is_over or now - drift.since > _LONGEST_DRIFT_S:
            self._store.call(lambda client: client.hdel(key, field))
            log.info("judge drift ended", **series._asdict())
            return None
        return drift

    def _hours(self, now: float) -> tuple[Mapping[Series, OfTraces], Mapping[Series, OfTraces]]:
        """Read the verdicts of the last day, and of the last judgings."""
        hour, length = int(now // HOUR_S), math.ceil(RECENT * max(self._judged_every_s / HOUR_S, 1.0))
        hours = max(24, length)
        of_day: list[tuple[tuple[str, ...], int]] = []
        latest: list[tuple[tuple[str, ...], int]] = []
        for (of_hour, *labels), count in read_counts(self._store, _HOURS, now - hours * HOUR_S, now).items():
            if hour - hours < int(of_hour) <= hour:
                of_day.append((tuple(labels), count))
            if hour - length < int(of_hour) <= hour:
                latest.append((tuple(labels), count))
        return _by_series(of_day), _by_series(latest)


def _by_series(counts: Iterable[tuple[tuple[str, ...], int]]) -> Mapping[Series, OfTraces]:
    """Add counts up by series and trace; `CanaryWatch.count` writes their labels."""
    verdicts: dict[Series, dict[str, Verdicts]] = defaultdict(dict)
    for (*series, trace, agrees), count in counts:
        of_series = verdicts[Series(*series)]
        of_series[trace] = of_series.get(trace, Verdicts()).add(Verdicts(count, count * int(agrees)))
    return verdicts
