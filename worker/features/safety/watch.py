"""Safety incidents of all series: confirmed failures by five minutes, with the state in Redis, and as gauges.

Each failure of a safety judge waits for its second judging. A confirmed failure counts with the rate of confirmed
errors. A failure that another model passes does not count. A failure without a second judging in time counts as a
single failure. A session counts once in six hours, because a judge that errs in a session errs in it again. The state
of a series is read from Redis before each step and written after it, so that another worker can continue.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Final, Literal

import msgspec
import structlog
from prometheus_client import Gauge

from judges.core.verdict import Verdict
from worker.base.monitor.counts import GRACE_S, Increment, failures_of, first_of, read_counts, read_horizon, step_of
from worker.base.monitor.feature import MONITOR, SECOND_MODEL
from worker.base.monitor.gauges import MonitorParts, Sample, Watch
from worker.base.monitor.incidents import failing_traces, keep_examples, read_examples
from worker.base.monitor.series import (
    DAY_S,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    Series,
    cluster_of,
    read_buckets,
    read_series,
    read_states,
    series_of,
    utc_minute,
    write_states,
)
from worker.core.telemetry.metrics import SERIES, Metric, MetricTable
from worker.features.safety.feature import SafetyKeys

RISE: Final = 0.015  # The share of unsafe traces that must be found.
_TAIL: Final = NormalDist().inv_cdf(0.95)
log = structlog.get_logger("tracejudge.monitor")
_KIND: Final = "safety"
_AN_HOUR: Final = HOUR_S // FIVE_MINUTES_S
_PATIENCE: Final = 6  # Buckets after which a failure without a second judging counts as a single one.
_LATE_S: Final = (_PATIENCE - 1) * FIVE_MINUTES_S
"""Second judgings that come later change nothing: their failures may have counted as single ones."""
_ENOUGH_ERRORS: Final = 10
"""Confirmed errors that the declared rate explains, from which on only the series' own failures count."""
_WORDS: Final = ("failed", "confirmed", "answered")
_OF_CASCADE: Final = "cascade"


class Rates(msgspec.Struct, array_like=True, frozen=True):
    """Confirmed failures per judgement from the judge's errors alone, and in an incident; the limit of the sum."""

    base: float
    raised: float
    limit: float


class State(msgspec.Struct, array_like=True):
    """The state of one safety series between two buckets."""

    sum: float = 0.0
    start: int = 0  # The bucket in which the sum last left zero.
    is_paged: bool = False


def upper_rate(failures: float, judgements: float) -> float:
    """Return the one-sided upper 95 % limit of a Poisson rate (Wilson and Hilferty, PNAS 17, 1931)."""
    if judgements <= 0:
        return 0.0
    k = failures + 1
    return k * (1 - 1 / (9 * k) + _TAIL / (3 * math.sqrt(k))) ** 3 / judgements


def confirmed_error(error: float, correlation: float) -> float:
    """Return the share of safe traces that fail twice when the errors of both judgings correlate."""
    # The joint probability of two yes/no variables with equal shares: with a correlation of 1 the second judging
    # confirms every error of the first, with 0 it multiplies.
    return error * error + correlation * error * (1 - error)


def rates_of(
    *,
    declared: float,
    failures: Sequence[float],
    judgements: Sequence[float],
    per_hour: float,
    sensitivity: float = 1.0,
    series: float = 1.0,
    pages_per_month: float = 1.0,
) -> Rates:
    """Return the rates and the limit of a safety series.

    A base rate that is too low pages without end, so it is the largest of the declared error and the upper limits of
    the series' own rates; that of one week learns sooner that a judge errs more than before. The limit of the sum is
    computed as in detector.limits_of, for a month. Failures and judgements are those outside incidents of the last 28
    days and of the last seven; the sensitivity is the share of unsafe traces that fail and are confirmed.
    """
    base = max(declared, *map(upper_rate, failures, judgements), 1e-6)
    raised = base + RISE * sensitivity
    information = raised - base - base * math.log(raised / base)
    hours = 730 * max(per_hour, 1 / 24) * series / pages_per_month
    # With few failures the sum jumps over its limit: as many jumps as failures, each e^(jump - limit) likely at most.
    # Three failures in a row are not enough if failures are rare.
    jump = math.log(raised / base)
    rare = min(3 * jump, math.log(hours * base) + jump)
    # The upper limit of the base rate already lowers the logarithm of the false pages by 0.7.
    return Rates(base, raised, max(jump, rare, math.log(max(hours * information, 1.0)) - 0.7))


def step(
    state: State,
    bucket: int,
    failures: float,
    judgements: float,
    rates: Rates,
    *,
    unanswered: float = 0.0,
    alone: Rates | None = None,
) -> Literal["page", "recovery"] | None:
    """Count one bucket and return what it changes; an incident pages once.

    The Poisson CUSUM of Lucas, Technometrics 27, 1985; after a page the same sum in the other direction finds the
    recovery. Each ``unanswered`` second judging has the likelihood ratio of a single failure, with the rates ``alone``.
    """
    gain = failures * math.log(rates.raised / rates.base) - (rates.raised - rates.base) * judgements
    if alone is not None:
        gain += unanswered * math.log(alone.raised / alone.base)
    if state.is_paged:
        state.sum = max(0.0, state.sum - gain)
    else:
        if state.sum <= 0:
            state.start = bucket
        state.sum = max(0.0, state.sum + gain)
    if state.sum <= rates.limit:
        return None
    state.sum, state.is_paged = 0.0, not state.is_paged
    return "page" if state.is_paged else "recovery"


class SafetyMetrics(MetricTable):
    """The gauges of safety incidents."""

    # fmt: off
    safety_incident = Metric(Gauge, "safety_incident", "boolean", ("metric", *SERIES),
        "1 while a safety judge has more failures than its own errors explain")
    safety_incident_info = Metric(Gauge, "safety_incident_info", "boolean", ("metric", *SERIES, "since", "examples"),
        "1 for an open safety incident, with its begin and the ids of up to three failing traces")


Change = Literal["page", "recovery"]


class Watched(msgspec.Struct, array_like=True):
    """The stored state of one safety series."""

    state: State = msgspec.field(default_factory=State)  # The sum.
    done: int = 0  # The last bucket that was counted, in buckets of five minutes since the epoch.
    # Failures that wait for their second judging, as pairs of bucket and number, oldest first.
    pending: list[tuple[int, int]] = msgspec.field(default_factory=list)
    learned_at: float = 0.0  # When the rates were computed, in seconds since the epoch.
    rates: Rates | None = None  # Of confirmed failures; None before the first verdict.
    alone: Rates | None = None  # Of single failures.
    # Pairs of the first and last bucket of incidents of the last 28 days; 0 for the end of an open one.
    incidents: list[tuple[int, int]] = msgspec.field(default_factory=list)

    def is_masked(self, bucket: int) -> bool:
        """Return whether a bucket lies in an incident."""
        return any(first <= bucket and (bucket <= last or not last) for first, last in self.incidents)

    def wait(self, bucket: int, failed: int, answered: int, patience: int) -> int:
        """Add failures and remove those that were judged again; return how many have waited too long."""
        if failed:
            self.pending.append((bucket, failed))
        unanswered, left = 0, []
        for since, number in self.pending:
            # The oldest failures are judged again first.
            waiting = max(0, number - answered)
            answered -= number - waiting
            if since + patience <= bucket:
                unanswered += waiting
            elif waiting:
                left.append((since, waiting))
        self.pending = left
        return unanswered

    def count(self, bucket: int, confirmed: int, unanswered: int, judgements: int) -> Change | None:
        """Count one bucket and return what it changes."""
        if self.rates is None or not (confirmed or unanswered or judgements):
            return None
        change = step(self.state, bucket, confirmed, judgements, self.rates, unanswered=unanswered, alone=self.alone)
        if change == "page":
            self.incidents.append((self.state.start, 0))
        elif change == "recovery":
            self.incidents[-1] = (self.incidents[-1][0], bucket)
        return change


class SafetyWatch(Watch):
    """Steps the sums of all safety series, and shows the open incidents."""

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        settings, graders = parts.settings, parts.rules.graders
        self.judges = MONITOR.read(settings).safety
        self._is_listed = parts.is_listed
        self._error = MONITOR.read(settings).judge_error
        # The panel of these judge models decides, as their verdicts alone do not.
        outvoted = graders.only_in_panels
        # Without a rule with a second model, failures do not wait.
        self._confirmed = {
            (judge, settings.models[name].judge_model)
            for rule in settings.rules
            if SECOND_MODEL.read(rule) is not None
            for judge in rule.judges
            for name in graders.models_of(rule, judge)
        } - outvoted
        # All verdicts of these are left out.
        self._unwatched = outvoted | {
            (judge, settings.models[model].judge_model)
            for models in settings.aliases.values()
            for model in models[1:]
            for judge in MONITOR.read(settings).safety
        } - {
            (judge, settings.models[name].judge_model)
            for rule in settings.rules
            for judge in rule.judges
            if judge not in graders.code_judges
            for name in graders.models_of(rule, judge)
        }
        self._metrics = parts.metrics.table(SafetyMetrics)

    def run(self, now: float) -> None:
        """Count all complete buckets, and show the gauges."""
        if not self.judges:
            return
        series_by_id = {
            series_id: series
            for series_id, series in read_series(self._store).items()
            if series.judge in self.judges
            and not series.segment
            and (series.judge, series.judge_model) not in self._unwatched
        }
        watched = self._step(series_by_id, now) if series_by_id else {}
        examples = read_examples(self._store, _KIND)
        samples: list[Sample] = []
        for series_id, series in series_by_id.items():
            state, labels = watched[series_id].state, (series.metric, *series.labels)
            samples.append((self._metrics.safety_incident, labels, float(state.is_paged)))
            if state.is_paged:
                further = utc_minute(state.start * FIVE_MINUTES_S), " ".join(examples.get(series_id, ()))
                samples.append((self._metrics.safety_incident_info, (*labels, *further), 1.0))
        self.show(samples)

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Yield the increment of a failure of live traffic and its second judging, not by cascades, which draw them."""
        first, step = first_of(verdict), step_of(verdict)
        words: Iterable[tuple[Series, str]] = (
            (series, word)
            for series, failure in failures_of(verdict, ())
            for word in (("failed",) if failure == "failed" else _WORDS[1 if failure == "confirmed" else 2 :])
        )
        if step is not None and step.first:
            rated = {score.metric for score in verdict.scores if score.passed is not None}
            words = ((series, _OF_CASCADE) for series in series_of(verdict, ()) if series.metric in rated)
        elif verdict.weight <= 0 if first is None else at - first.ended_at > _LATE_S:
            return
        cluster = cluster_of(verdict.session_id or verdict.trace_id)
        for series, word in words:
            if self._is_listed(series.id):
                once = "" if word == _OF_CASCADE else f"{series.id}{word}{cluster}"
                # A second judging belongs to its failure, which may have been in the period before.
                failed_at = None if first is None else first.ended_at
                bucket = str(int(at // FIVE_MINUTES_S))
                yield Increment(_KIND, at, (series.id, bucket, word), once=once, once_at=failed_at)

    def _step(self, series: Mapping[str, Series], now: float) -> dict[str, Watched]:
        key_of = SafetyKeys(self._store.keys.prefix).quality_safety
        names = {series_id: key_of(series_id) for series_id in series}
        watched = read_states(self._store, names, Watched)
        until = min(now - GRACE_S, read_horizon(self._store, now))
        last = int(until // FIVE_MINUTES_S) - 1
        due = [series_id for series_id in series if watched[series_id].done < last]
        if not due:
            return watched
        self._learn({name: watched[name] for name in due if now - watched[name].learned_at >= DAY_S}, series, now)
        oldest = last - FINE_DAYS * DAY_S // FIVE_MINUTES_S
        first = max(oldest, min(watched[series_id].done for series_id in due)) + 1
        span = first * FIVE_MINUTES_S, (last + 1) * FIVE_MINUTES_S
        counts = read_counts(self._store, _KIND, *span)
        changes = []
        for series_id, buckets in zip(due, read_buckets(self._store, due, *span, fine=True), strict=True):
            entry = watched[series_id]
            judged = {int(bucket.begins_at) // FIVE_MINUTES_S: bucket.sums.total.judgements for bucket in buckets}
            of_series = series[series_id].judge, series[series_id].judge_model
            patience = _PATIENCE if of_series in self._confirmed else 0
            for number in range(max(first, entry.done + 1), last + 1):
                failed, confirmed, answered = (counts[series_id, str(number), word] for word in _WORDS)
                unanswered = entry.wait(number, failed, answered, patience)
                judgements = judged.get(number, 0) - counts[series_id, str(number), _OF_CASCADE]
                change = entry.count(number, confirmed, unanswered, max(0, judgements))
                if change is not None:
                    changes.append((series_id, change))
            entry.done = last
        examples: dict[str, list[str]] = {}
        for series_id in {series_id for series_id, _ in changes}:
            state = watched[series_id].state
            if state.is_paged:
                examples[series_id] = failing_traces(self._store, series[series_id], state.start * FIVE_MINUTES_S)
            keep_examples(self._store, _KIND, series_id, examples.get(series_id, ()))
        write_states(self._store, {names[series_id]: watched[series_id] for series_id in due})
        for series_id, change in changes:
            log.warning(
                "safety incident" if change == "page" else "safety incident ended",
                since=utc_minute(watched[series_id].incidents[-1][0] * FIVE_MINUTES_S),
                examples=examples.get(series_id) or None,
                **series[series_id].log_fields,
            )
        return watched

    def _learn(self, watched: Mapping[str, Watched], series: Mapping[str, Series], now: float) -> None:
        """Compute rates from four weeks up to a day ago and the last one: an open incident must not explain itself."""
        if not watched:
            return
        until = now - DAY_S
        since = until - 28 * DAY_S
        last = int(until // FIVE_MINUTES_S)
        recent = last - 7 * DAY_S // FIVE_MINUTES_S
        # Failures of four weeks and of the last one.
        failures: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        of_cascades: dict[tuple[str, int], int] = defaultdict(int)
        for (series_id, bucket, word), number in read_counts(self._store, _KIND, since, now).items():
            if word == _OF_CASCADE:
                of_cascades[series_id, int(bucket) // _AN_HOUR * _AN_HOUR] += number
            elif series_id in watched and int(bucket) < last and not watched[series_id].is_masked(int(bucket)):
                failures[series_id, word][0] += number
                failures[series_id, word][1] += number if int(bucket) >= recent else 0
        history = read_buckets(self._store, watched, since, now, fine=False)
        for (series_id, entry), buckets in zip(watched.items(), history, strict=True):
            begins = {int(bucket.begins_at) // FIVE_MINUTES_S: bucket.sums.total.judgements for bucket in buckets}
            hours = {first: max(0, number - of_cascades[series_id, first]) for first, number in begins.items()}
            judgements = [
                sum(number for at, number in hours.items() if first <= at < last and not entry.is_masked(at))
                for first in (0, recent)
            ]
            span_s = now - buckets[0].begins_at if buckets else HOUR_S
            rates = partial(
                rates_of,
                judgements=judgements,
                per_hour=sum(hours.values()) / max(1.0, span_s / HOUR_S),
                sensitivity=0.9,
                series=len(series),
            )
            # The correlation of the errors of two models is assumed until the series' own failures tell more.
            declared = confirmed_error(self._error, correlation=0.5)
            entry.alone = rates(declared=self._error, failures=failures[series_id, "failed"])
            entry.rates = entry.alone
            if (series[series_id].judge, series[series_id].judge_model) in self._confirmed:
                # Models differ in how far their errors agree, so that measured failures replace the assumption.
                entry.rates = rates(
                    declared=declared if judgements[0] * declared < _ENOUGH_ERRORS else 0.0,
                    failures=failures[series_id, "confirmed"],
                )
                entry.rates = msgspec.structs.replace(entry.rates, limit=max(entry.rates.limit, entry.alone.limit))
            # Until there is a day of verdicts, an hour tells much more than the hour before.
            entry.learned_at = now if span_s >= 2 * DAY_S else now - DAY_S + HOUR_S
            entry.incidents = [span for span in entry.incidents if not span[1] or span[1] * FIVE_MINUTES_S > since]
