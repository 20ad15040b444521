"""Pass shares of series, corrected for the judge's error by the labels in Redis.

Labels drawn from the traffic with known probability correct the share of the time in which their traces were judged.
A golden set says how often this version of the judge errs, and corrects the share of any time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from worker.monitor.corrected import (
    Confusion,
    Corrected,
    CorrectionRefusedError,
    Method,
    Origin,
    Stratum,
    from_drawn,
    from_golden,
    method_of,
)
from worker.monitor.labels import Label, Labelled, LabelVerdict, OutboxMatcher, read_labels
from worker.monitor.series import (
    COARSE_DAYS,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    VERSION_DIGITS,
    Series,
    read_buckets,
    read_series,
)
from worker.monitor.shares import PassShare, Sums, merged, pass_share, weight_class
from worker.storage.client import Store
from worker.telemetry.metrics import Metrics

log = structlog.get_logger("tracejudge.labels")
_MATCH_EVERY_S: Final = 60.0
_SHOW_EVERY_S: Final = 300.0
# Of up to 500 entries each: a worker that becomes active reads the whole outbox once, and must not pause its sums.
_STEPS_AT_ONCE: Final = 20
_DAY_S: Final = 24 * HOUR_S
LABELS_S: Final = COARSE_DAYS * _DAY_S
"""For how long a verdict on a labelled trace says how the judge errs."""
_SPANS_S: Final = (HOUR_S, _DAY_S, 7 * _DAY_S, 28 * _DAY_S, LABELS_S)
_ENOUGH_LABELS: Final = 100
# As for the window of the raw share.
_ENOUGH_JUDGEMENTS: Final = 50


class Pair(NamedTuple):
    """A label, and the verdict that it is compared with."""

    label: Label
    verdict: LabelVerdict


class Correction(NamedTuple):
    """A corrected share, or why there is none."""

    method: Method | None
    """None for labels from a queue, which have none."""
    corrected: Corrected | None
    raw: PassShare | None
    """The uncorrected share of the same time."""
    labels: int
    since: float
    until: float
    refused: str = ""
    """Why ``corrected`` is None, in one or two sentences."""

    @property
    def is_enough(self) -> bool:
        """Whether a longer time would hardly make it better, or hide a change."""
        if self.method == "ppi":
            return self.corrected is not None and self.labels >= _ENOUGH_LABELS
        judgements = 0 if self.raw is None else self.raw.judgements
        return judgements >= _ENOUGH_JUDGEMENTS or (judgements > 0 and self.until - self.since >= _DAY_S)


class LabelIndex:
    """Labels with the verdicts that count, by series for those drawn from the traffic, by judge for all others.

    Verdicts before ``since`` are left out: a provider may have changed the model under its name.
    """

    def __init__(self, labels: Iterable[Labelled], since: float) -> None:
        self._drawn: dict[Series, list[Pair]] = defaultdict(list)
        self._others: dict[tuple[str, ...], dict[Origin, list[Pair]]] = defaultdict(dict)
        self.drawn_metrics: set[tuple[str, str]] = set()
        for labelled in labels:
            one = Labelled(labelled.label, [verdict for verdict in labelled.verdicts if verdict.judged_at >= since])
            if one.label.origin == "drawn":
                self._add_drawn(one)
            else:
                # A golden set need not be of the service: it measures the judge.
                judges = {(each.version[:VERSION_DIGITS], each.judge_model) for each in one.verdicts}
                for judge in judges:
                    key = (one.label.judge, *judge, one.label.metric)
                    verdict = one.verdict(lambda each: (each.version[:VERSION_DIGITS], each.judge_model) == judge)  # noqa: B023
                    if verdict is not None:
                        self._others[key].setdefault(one.label.origin, []).append(Pair(one.label, verdict))

    def of(self, series: Series, since: float, until: float) -> dict[Origin, Sequence[Pair]]:
        """Return the labels that count in a series by how they were chosen, drawn ones only of a span of time."""
        key = (series.judge, series.version, series.judge_model, series.metric)
        found: dict[Origin, Sequence[Pair]] = {**self._others.get(key, {})}
        drawn = [pair for pair in self._drawn.get(series, ()) if since <= pair.verdict.judged_at < until]
        return found | ({"drawn": drawn} if drawn else {})

    def _add_drawn(self, labelled: Labelled) -> None:
        label = labelled.label
        self.drawn_metrics.add((label.judge, label.metric))
        for series in {one.series(label)[0] for one in labelled.verdicts if one.is_sampled}:
            verdict = labelled.verdict(lambda one: one.is_sampled and one.series(label)[0] == series)  # noqa: B023
            if verdict is not None:
                for each in verdict.series(label):
                    self._drawn[each].append(Pair(label, verdict))


def corrections(
    store: Store, series: Iterable[Series], since: float, until: float, index: LabelIndex | None = None
) -> dict[Series, list[Correction]]:
    """Correct the pass shares of series in a span of time; series without labels are left out.

    Drawn labels count if their traces were judged in that time, those of a golden set if it was judged in the 90 days
    before the end. A series with both has two corrections.

    Args:
        store: Redis.
        series: Series of ``read_series``.
        since: Seconds since the epoch; moved to the begin of its bucket.
        until: The end.
        index: The labels, if they were read before.
    """
    index = LabelIndex(read_labels(store), until - LABELS_S) if index is None else index
    # Buckets of five minutes are kept for 3 days, those of an hour for 90.
    is_fine = since >= time.time() - (FINE_DAYS - 1) * _DAY_S
    step = FIVE_MINUTES_S if is_fine else HOUR_S
    since = since // step * step
    labelled = {one: by_origin for one in series if (by_origin := index.of(one, since, until))}
    buckets = read_buckets(store, [one.id for one in labelled], since, until, fine=is_fine)
    found = {}
    for (one, by_origin), of_series in zip(labelled.items(), buckets, strict=True):
        sums = merged(bucket.sums for bucket in of_series)
        found[one] = [_correction(origin, pairs, sums, since, until) for origin, pairs in by_origin.items()]
    return found


def _correction(origin: Origin, pairs: Sequence[Pair], sums: Sums, since: float, until: float) -> Correction:
    method: Method | None = None
    share = pass_share(sums)
    try:
        method = method_of(origin)
        if share is None:
            return Correction(method, None, None, len(pairs), since, until, "No verdict passed or failed in this time.")
        if origin == "drawn":
            corrected = from_drawn(strata(pairs, sums), share.effective)
        else:
            corrected = from_golden(share.interval.value * share.effective, share.effective, confusion(pairs))
    except CorrectionRefusedError as error:
        return Correction(method, None, share, len(pairs), since, until, str(error))
    return Correction(method, corrected._replace(labels=len(pairs)), share, len(pairs), since, until)


def strata(pairs: Sequence[Pair], sums: Sums) -> list[Stratum]:
    """Divide judged traffic and drawn labels by verdict and by class of sampling probability.

    Within a stratum labels count by 1 / their probability: it may have changed in the course of time.
    """
    weights: dict[tuple[bool, int], list[float]] = defaultdict(list)
    passing: dict[tuple[bool, int], float] = defaultdict(float)
    for label, verdict in pairs:
        key = bool(verdict.passed), weight_class(verdict.weight)
        weight = 1 / float(label.drawn)
        weights[key].append(weight)
        passing[key] += weight * label.passed
    found = []
    for class_, of_class in sums.classes.items():
        for passed, judged in ((True, of_class.passed), (False, of_class.weight - of_class.passed)):
            given = weights[passed, class_]
            total = sum(given)
            number = total * total / sum(weight * weight for weight in given) if given else 0.0
            rate = passing[passed, class_] / total if given else 0.0
            found.append(Stratum(passed, class_, judged, number, number * rate, total))
    return found


def confusion(pairs: Sequence[Pair]) -> Confusion:
    """Count labels and verdicts."""
    counts = [0, 0, 0, 0]
    for label, verdict in pairs:
        counts[2 * (not label.passed) + (not verdict.passed)] += 1
    return Confusion(*counts)


class CorrectionWatch:
    """Matches labels with verdicts once a minute, and computes the gauges of corrected shares every five minutes."""

    def __init__(self, store: Store, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._gauges = (
            metrics.quality_corrected_share,
            metrics.quality_corrected_lower,
            metrics.quality_corrected_upper,
            metrics.quality_corrected_window,
        )
        self._shown: set[tuple[str, ...]] = set()
        self._matcher = OutboxMatcher(store)
        self._next_match = self._next_show = 0.0
        self._said: set[tuple[str, Method | None]] = set()

    def run_due(self) -> None:
        """Match what has come, and compute the gauges, if their time has come.

        Raises:
            StoreError: Redis did not answer; the gauges stay as they are.
        """
        now = self._clock()
        if now >= self._next_match:
            has_labels = self._store.call(lambda client: client.hlen(self._store.keys.labels)) > 0
            may_be_more = has_labels and all(self._matcher.step() for _ in range(_STEPS_AT_ONCE))
            if not may_be_more:
                self._next_match = now + _MATCH_EVERY_S
        if now >= self._next_show:
            self._next_show = now + _SHOW_EVERY_S
            self._show(self._corrections(now))

    def clear(self) -> None:
        """Remove all gauges: another worker is the active monitor."""
        self._matcher = OutboxMatcher(self._store)
        self._next_match = self._next_show = 0.0
        self._said.clear()
        self._show({})

    def _corrections(self, now: float) -> dict[Series, list[Correction]]:
        """Correct each series over the shortest time that holds enough labels, or judgements for a golden set."""
        labels = read_labels(self._store)
        index = LabelIndex(labels, now - LABELS_S)
        waiting = set(read_series(self._store).values() if labels else ())
        found: dict[Series, dict[Method | None, Correction]] = defaultdict(dict)
        for span_s in _SPANS_S:
            for series, results in corrections(self._store, waiting, now - span_s, now, index).items():
                of_method = found[series]
                for one in results:
                    if one.method not in of_method or not of_method[one.method].is_enough:
                        of_method[one.method] = one
                is_whole = "ppi" in of_method or (series.judge, series.metric) not in index.drawn_metrics
                if is_whole and all(one.is_enough for one in of_method.values()):
                    waiting.remove(series)
        return {series: list(of_method.values()) for series, of_method in found.items()}

    def _show(self, found: Mapping[Series, Sequence[Correction]]) -> None:
        """Set the gauges, and remove those of all others."""
        shown: set[tuple[str, ...]] = set()
        for series, results in found.items():
            for one in results:
                if one.corrected is None:
                    self._log_refusal(series, one)
                    continue
                segment = f"{series.segment}={series.value}" if series.segment else ""
                of_series = (series.service, series.environment, series.judge, series.version, series.judge_model)
                labels: tuple[str, ...] = (series.metric, segment, *of_series, one.corrected.method)
                shown.add(labels)
                values = (*one.corrected.interval, one.until - one.since)
                for gauge, value in zip(self._gauges, values, strict=True):
                    gauge.labels(*labels).set(value)
        for labels in self._shown - shown:
            for gauge in self._gauges:
                gauge.remove(*labels)
        self._shown = shown

    def _log_refusal(self, series: Series, correction: Correction) -> None:
        """Log once why labels correct nothing; segments are left out, whose labels are often too few."""
        if series.segment or (series.id, correction.method) in self._said:
            return
        self._said.add((series.id, correction.method))
        log.warning(
            "share not corrected by labels",
            reason=correction.refused,
            labels=correction.labels,
            service=series.service,
            judge=series.judge,
            version=series.version,
            judge_model=series.judge_model,
            metric=series.metric,
        )
