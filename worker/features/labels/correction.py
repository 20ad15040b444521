"""Pass shares of series, corrected for the judge's error by the labels in Redis.

Labels drawn from the traffic with known probability correct the share of the time in which their traces were judged.
A golden set says how often this version of the judge errs, and corrects the share of any time.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from judges.agreement.shares import ShareEstimate, Sums, design_effect, estimate_share, merge_sums, weight_class
from worker.base.lookup.label_store import Label, Labelled, LabelVerdict, read_labels
from worker.base.monitor.corrected import (
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
from worker.base.monitor.series import (
    COARSE_DAYS,
    DAY_S,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    Bucket,
    Series,
    read_buckets,
    utc_minute,
)
from worker.core.storage.client import Store

LABELS_S: Final = COARSE_DAYS * DAY_S  # For how long a verdict on a labelled trace says how the judge errs.
SPANS_S: Final = (HOUR_S, DAY_S, 7 * DAY_S, 28 * DAY_S, LABELS_S)
_ENOUGH_JUDGEMENTS: Final = 50  # As for the window of the raw share.
_LEAST_AGREEMENT: Final = 0.25  # Of the labels of a session: truths may agree where errors do not.


class Pair(NamedTuple):
    """A label, and the verdict that it is compared with."""

    label: Label
    verdict: LabelVerdict


class Correction(NamedTuple):
    """A corrected share, or why there is none."""

    method: Method | None  # None for labels from a queue, which have none.
    corrected: Corrected | None
    raw: ShareEstimate | None  # The uncorrected share of the same time.
    labels: int
    since: float
    until: float
    refused: str = ""  # Why ``corrected`` is None, and what to do.
    offered: "Correction | None" = None  # The share of the labelled part of the time, where the rest has no label.


class LabelIndex:
    """Labels with the verdicts that count, by series for those drawn from the traffic, by judge for all others.

    Verdicts before ``since`` are left out: a provider may have changed the model under its name.
    """

    def __init__(self, labels: Iterable[Labelled], since: float) -> None:
        self._drawn: dict[Series, list[Pair]] = defaultdict(list)
        self._others: dict[tuple[str, ...], dict[Origin, list[Pair]]] = defaultdict(dict)
        for labelled in labels:
            label = labelled.label
            item = Labelled(label, [verdict for verdict in labelled.verdicts if verdict.judged_at >= since])
            if label.origin == "drawn":
                for series in {each.series(label)[0] for each in item.verdicts if each.is_sampled}:
                    verdict = item.verdict(lambda each: each.is_sampled and each.series(label)[0] == series)  # noqa: B023
                    if verdict is not None:
                        for part in verdict.series(label):
                            self._drawn[part].append(Pair(label, verdict))
                continue
            # A golden set need not be of the service: it measures the judge.
            for judge in {each.judge for each in item.verdicts}:
                verdict = item.verdict(lambda each: each.judge == judge)  # noqa: B023
                if verdict is not None:
                    of_judge = self._others[label.judge, *judge, label.metric]
                    of_judge.setdefault(label.origin, []).append(Pair(label, verdict))

    def find_labels(self, series: Series, since: float, until: float) -> dict[Origin, Sequence[Pair]]:
        """Return the labels that count in a series by how they were chosen, drawn ones only of a span of time."""
        key = (series.judge, series.version, series.judge_model, series.metric)
        pairs: dict[Origin, Sequence[Pair]] = {**self._others.get(key, {})}
        drawn = [pair for pair in self._drawn.get(series, ()) if since <= pair.verdict.judged_at < until]
        return pairs | ({"drawn": drawn} if drawn else {})

    def has_others(self, series: Series) -> bool:
        """Return whether labels of a golden set or of a queue count in a series."""
        return (series.judge, series.version, series.judge_model, series.metric) in self._others

    def span_s(self, series: Series, now: float) -> float | None:
        """Return the shortest span until now that holds enough drawn labels of a series, or all; None without any."""
        times = [pair.verdict.judged_at for pair in self._drawn.get(series, ())]
        enough = min(len(times), 100)
        counted = (span_s for span_s in SPANS_S if sum(at >= now - span_s for at in times) >= enough)
        return next(counted, None) if times else None


def corrections(
    store: Store, series: Iterable[Series], since: float, until: float, index: LabelIndex | None = None
) -> dict[Series, list[Correction]]:
    """Correct the pass shares of series in a span of time; series without labels are left out.

    Drawn labels count if their traces were judged in that time, those of a golden set if it was judged in the 90 days
    before the end. A series with both has two corrections. ``since`` and ``until`` are seconds since the epoch; the
    first is moved to the begin of its bucket. ``index`` has the labels, if they were read before.
    """
    index = LabelIndex(read_labels(store), until - LABELS_S) if index is None else index
    # Buckets of five minutes are kept for 3 days, those of an hour for 90; the latter are fewer to read.
    is_fine = until - since < 6 * HOUR_S and since >= time.time() - (FINE_DAYS - 1) * DAY_S
    step = FIVE_MINUTES_S if is_fine else HOUR_S
    since = since // step * step
    labelled = {each: by_origin for each in series if (by_origin := index.find_labels(each, since, until))}
    buckets = read_buckets(store, [series.id for series in labelled], since, until, fine=is_fine)
    corrected = {}
    for (each, by_origin), of_series in zip(labelled.items(), buckets, strict=True):
        corrected[each] = [
            correct(origin, pairs, of_series, (since, until), step) for origin, pairs in by_origin.items()
        ]
    return corrected


def newest_corrections(
    store: Store, some: Sequence[Series], now: float, index: LabelIndex
) -> dict[Series, list[Correction]]:
    """Correct series by drawn labels over the span of these, by a golden set over the window of the raw share."""
    spans = {series: index.span_s(series, now) for series in some}
    by_others = {series for series in some if index.has_others(series)}
    corrected: dict[Series, dict[Method | None, Correction]] = defaultdict(dict)
    for span_s in SPANS_S:
        asked = [series for series in some if spans[series] == span_s or series in by_others]
        for series, results in corrections(store, asked, now - span_s, now, index).items():
            for correction in results:
                is_chosen = spans[series] == span_s if correction.method == "ppi" else series in by_others
                if is_chosen:
                    corrected[series][correction.method] = correction
            # All results are of the same verdicts.
            judgements = 0 if results[0].raw is None else results[0].raw.judgements
            if judgements >= _ENOUGH_JUDGEMENTS or span_s >= DAY_S:
                by_others.discard(series)
    return {series: list(of_method.values()) for series, of_method in corrected.items()}


def correct(
    origin: Origin, pairs: Sequence[Pair], buckets: Sequence[Bucket], span: tuple[float, float], step: float
) -> Correction:
    """Correct the share of a span of time by labels of one origin; its buckets are ``step`` seconds long."""
    method: Method | None = None
    sums = merge_sums(bucket.sums for bucket in buckets)
    share = estimate_share(sums)
    try:
        method = method_of(origin)
        if share is None:
            return Correction(method, None, None, len(pairs), *span, "No verdict passed or failed in this time.")
        if origin == "drawn":
            if refused := _find_unlabelled(pairs, buckets, step):
                times = [pair.verdict.judged_at // step * step for pair in pairs]
                labelled = min(times), max(times) + step
                inside = [bucket for bucket in buckets if labelled[0] <= bucket.begins_at < labelled[1]]
                offered = correct(origin, pairs, inside, labelled, step) if len(inside) < len(buckets) else None
                if offered is None or offered.corrected is None:
                    return Correction(method, None, share, len(pairs), *span, f"{refused}.")
                when = " to ".join(map(utc_minute, labelled))
                refused += f", or use the share of the labelled part: {offered.corrected.interval.percent}, {when}."
                return Correction(method, None, share, len(pairs), *span, refused, offered)
            corrected = from_drawn(strata(pairs, sums), share.effective)
        else:
            corrected = from_golden(share.interval.value * share.effective, share.effective, confusion(pairs))
    except CorrectionRefusedError as error:
        return Correction(method, None, share, len(pairs), *span, str(error))
    return Correction(method, corrected._replace(labels=len(pairs)), share, len(pairs), *span)


def _find_unlabelled(pairs: Sequence[Pair], buckets: Sequence[Bucket], step: float) -> str:
    """Describe the heaviest stretch of traffic without a label; empty if it may be chance.

    m labels drawn from all of the traffic leave (ln m + 5) / m of it without one in less than one of a hundred cases.
    Sessions count once, and m is the effective number where probabilities differ.
    """
    groups: dict[str, float] = defaultdict(float)
    for label, verdict in pairs:
        groups[verdict.session_id or verdict.evaluation_id] += verdict.weight / float(label.drawn)
    number = sum(groups.values()) ** 2 / sum(weight**2 for weight in groups.values())
    labelled = {pair.verdict.judged_at // step for pair in pairs}
    stretches = [
        (sum(bucket.sums.total.weight for bucket in stretch), stretch[0].begins_at, stretch[-1].begins_at + step)
        for has_label, group in groupby(buckets, lambda bucket: bucket.begins_at // step in labelled)
        if not has_label and (stretch := list(group))
    ]
    weight, *times = max(stretches, default=(0.0, 0.0, 0.0))
    part = weight / sum(bucket.sums.total.weight for bucket in buckets)
    if part <= (math.log(number) + 5) / number:
        return ""
    return (
        f"No label is of the time {' to '.join(map(utc_minute, times))}, which has {part:.0%} of the judged traffic. "
        "Label verdicts that are drawn from all of the time"
    )


def strata(pairs: Sequence[Pair], sums: Sums) -> list[Stratum]:
    """Divide judged traffic and drawn labels by verdict and by class of sampling probability.

    Within a stratum labels count by 1 / their probability: it may have changed in the course of time. Labels of one
    session count as fewer if they agree with each other.
    """
    groups: dict[tuple[bool, int], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[bool(pair.verdict.passed), weight_class(pair.verdict.weight)].append(pair)
    cells, influences = [], []
    for class_, of_class in sums.classes.items():
        for passed, judged in ((True, of_class.passed), (False, of_class.weight - of_class.passed)):
            group = groups[passed, class_]
            weights = [1 / float(label.drawn) for label, _ in group]
            total = sum(weights)
            number = total * total / sum(weight * weight for weight in weights) if group else 0.0
            rate = sum(w * pair.label.passed for w, pair in zip(weights, group, strict=True)) / total if group else 0.0
            cells.append(Stratum(passed, class_, judged, number, number * rate, total))
            influences += [
                (verdict.session_id or verdict.evaluation_id, part := judged * w / total, part * (label.passed - rate))
                for w, (label, verdict) in zip(weights, group, strict=True)
            ]
    effect = _label_effect(influences, sums)
    return [stratum._replace(labels=stratum.labels / effect, passed=stratum.passed / effect) for stratum in cells]


def _label_effect(influences: Sequence[tuple[str, float, float]], judged: Sums) -> float:
    """Return by how much sessions widen the variance of a corrected share, at least 1.

    The larger of two estimates: that of the labels, as in shares.design_effect, and what the agreement of verdicts in
    sessions of the traffic (``judged``) means for as many labels a session. Few labelled sessions alone tell too
    little. ``influences`` are session, weight and weighted residual of each label.
    """
    sessions: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for session, weight, residual in influences:
        sessions[session][0] += weight
        sessions[session][1] += residual
    number = len(sessions)
    if number == len(influences):
        return 1.0
    together = sum(w**2 for w, _ in sessions.values()) / sum(w**2 for _, w, _ in influences)
    single = sum(residual**2 for _, _, residual in influences)
    if single <= 0 or number == 1:
        # Without residuals labels tell nothing of how sessions agree, so a session counts as one label.
        return max(1.0, together)
    own = sum(r**2 for _, r in sessions.values()) / single * number / (number - 1)
    traffic = judged.over_sessions.weights / judged.total.squares
    alike = (design_effect(judged) - 1) / (traffic - 1) if traffic > 1 else 0.0
    return max(1.0, own, 1 + (together - 1) * min(1.0, max(_LEAST_AGREEMENT, alike)))


def confusion(pairs: Sequence[Pair]) -> Confusion:
    """Count labels and verdicts."""
    counts = [0, 0, 0, 0]
    for label, verdict in pairs:
        counts[2 * (not label.passed) + (not verdict.passed)] += 1
    return Confusion(*counts)
