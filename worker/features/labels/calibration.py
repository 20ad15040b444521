"""How a judge errs, measured by labels: agreement, error rates, reliability of values, and thresholds.

For models that return probabilities it also fits a calibration, by labels or by the second verdicts of a cascade.
Labels drawn from the traffic count by the number of traces that they stand for, all others once.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from judges.agreement.intervals import Interval, wilson
from judges.agreement.reliability import Reliability, Row, effective, fit, reliability, threshold
from judges.agreement.reliability import Threshold as ThresholdFound
from judges.core.decision import Calibration as FittedMap
from judges.core.verdict import Verdict
from worker.base.lookup.label_store import Label, Labelled, LabelVerdict
from worker.base.monitor.corrected import Agreement, Confusion, Origin, agreement
from worker.base.monitor.counts import step_of
from worker.core.queue.batch import CascadeStep

_DIGITS: Final = 6


class Subject(NamedTuple):
    """One version of a judge with one model, and labels of one origin."""

    metric: str
    version: str
    judge_model: str
    origin: Origin


class Threshold(NamedTuple):
    """A value from which traces would pass, and the shares of all traces that it would judge wrongly."""

    value: float
    false_pass: float
    false_fail: float


class Calibration(NamedTuple):
    """The errors of one subject."""

    subject: Subject
    labels: int
    effective: float  # The number of labels of equal weight that would be as precise.
    confusion: Confusion  # Numbers of labelled traces, not weighted.
    agreement: Agreement
    false_pass: float  # The share of all traces that the judge passes wrongly; ``false_fail`` likewise.
    false_fail: float
    reliability: Reliability | None  # Of probabilities, else of graded values; None if all are 0 or 1.
    balanced: Threshold | None  # The threshold with which as many traces pass wrongly as fail wrongly.


class Fitted(NamedTuple):
    """A fitted calibration, and the probabilities before it."""

    labels: int
    effective: float
    reliability: Reliability  # Of the probabilities as the model gave them.
    calibration: FittedMap
    threshold: ThresholdFound


class _Row(NamedTuple):
    passed: bool
    judged: bool
    value: float | None
    weight: float


def calibrate(
    labelled: Iterable[Labelled], fits: Callable[[LabelVerdict], bool]
) -> tuple[list[Calibration], Mapping[str, int]]:
    """Compare labels with fitting verdicts; return each subject, the most labels first.

    Beside them how many labels were not used, by reason: ``no verdict``, ``several spans``, ``abstained``,
    ``unscored``, or ``unrated`` for a metric without a pass rule.
    """
    rows: dict[Subject, list[_Row]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for item in labelled:
        fitting = [verdict for verdict in item.verdicts if fits(verdict)]
        rated = [verdict for verdict in fitting if verdict.passed is not None]
        if not rated:
            outcome = max(fitting, key=lambda verdict: verdict.judged_at).outcome if fitting else "no verdict"
            left_out["unrated" if outcome == "scored" else outcome] += 1
        for judge in {(verdict.version, verdict.judge_model) for verdict in rated}:
            verdict = item.verdict(lambda each: fits(each) and (each.version, each.judge_model) == judge)  # noqa: B023
            if verdict is None:
                left_out["several spans"] += 1
                continue
            value = verdict.value if verdict.probability is None else verdict.probability
            row = _Row(item.label.passed, bool(verdict.passed), value, _weight(item))
            rows[Subject(item.label.metric, *judge, item.label.origin)].append(row)
    found_ = [_calibration(subject, of_subject) for subject, of_subject in rows.items()]
    return sorted(found_, key=lambda each: (-each.labels, each.subject)), left_out


def probability_rows(
    labelled: Iterable[Labelled], versions: Collection[str], fits: Callable[[LabelVerdict], bool]
) -> tuple[list[Row], Mapping[str, int]]:
    """Pair labels with the probabilities of fitting verdicts, as the model gave them, of these versions of the judge.

    Beside them how many labels were not used, by reason: as ``calibrate`` says, or ``other version``.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    for item in labelled:
        fitting = [each for each in item.verdicts if fits(each)]
        usable = [each for each in fitting if each.version in versions]
        rated = [each for each in usable if each.raw_probability is not None]
        if not rated:
            outcome = max(usable, key=lambda each: each.judged_at).outcome if usable else "no verdict"
            left_out["other version" if fitting and not usable else outcome] += 1
        elif (verdict := item.verdict(rated.__contains__)) is None:
            left_out["several spans"] += 1
        else:
            rows.append(Row(verdict.raw_probability or 0.0, item.label.passed, _weight(item)))
    return rows, left_out


def audited(verdicts: Iterable[Verdict], judge: str, metric: str) -> list[Labelled]:
    """Return the first verdicts of cascades, labelled by the second ones, drawn with their probability."""
    firsts: dict[str, tuple[CascadeStep, LabelVerdict]] = {}
    seconds: dict[str, bool] = {}
    for verdict in verdicts:
        step = step_of(verdict) if verdict.judge == judge else None
        if step is None:
            continue
        outcome = LabelVerdict.from_verdict(verdict, metric)
        if step.first and outcome.passed is not None:
            seconds[step.first] = outcome.passed
        elif not step.first and step.is_chosen:
            firsts[verdict.evaluation_id] = step, outcome
    return [
        Labelled(Label(verdict.trace_id, judge, metric, passed, step.rate, verdict.span_id), (verdict,))
        for first, passed in seconds.items()
        if first in firsts
        for step, verdict in (firsts[first],)
    ]


def fit_calibration(
    rows: Sequence[Row], version: str, kind: Literal["platt", "isotonic", "none"] | None, precision: float | None
) -> Fitted:
    """Fit a map, then the threshold of the corrected probabilities, by agreement or a precision it must reach.

    ``version`` is the judge's without a calibration. ``ValueError`` if nothing can be fitted, or none reaches it.
    """
    fitted = FittedMap() if kind == "none" else fit(rows, kind)
    if fitted.platt is not None:
        fitted = FittedMap(platt=(round(fitted.platt[0], _DIGITS), round(fitted.platt[1], _DIGITS)))
    # Of points that are one after rounding the last is kept.
    points = {round(p, _DIGITS): round(corrected, _DIGITS) for p, corrected in fitted.isotonic}
    fitted = msgspec.structs.replace(fitted, isotonic=tuple(points.items()))
    if len({fitted.apply(row.probability) for row in rows}) == 1 or (fitted.platt is not None and fitted.platt[0] <= 0):
        raise ValueError("the labels do not follow the probabilities: no rising map fits them")
    # By the rounded map, as it will be applied.
    corrected = [row._replace(probability=fitted.apply(row.probability)) for row in rows]
    placed = threshold(corrected, precision)
    value = round(placed.value.value, _DIGITS)
    # A threshold may lie just above a probability that many traces share.
    if any((row.probability >= value) != (row.probability >= placed.value.value) for row in corrected):
        value = placed.value.value
    fitted = msgspec.structs.replace(fitted, threshold=value, judge_version=version)
    return Fitted(len(rows), effective(rows), reliability(rows), fitted, placed)


def _weight(item: Labelled) -> float:
    """Return for how many traces a label stands."""
    if not isinstance(item.label.drawn, float):
        return 1.0
    # Another version judged the trace later: the trace stands for as many as when it was sampled.
    return max((each.weight for each in item.verdicts if each.is_sampled), default=1.0) / item.label.drawn


def _calibration(subject: Subject, rows: Sequence[_Row]) -> Calibration:
    cells = [[row for row in rows if (row.passed, row.judged) == cell] for cell in _CELLS]
    weights = [sum(row.weight for row in cell) for cell in cells]
    total = sum(weights)
    size = effective(rows)
    whole = agreement(Confusion(*(weight * size / total for weight in weights)))
    rates: list[Interval | None] = []
    for right, wrong in ((0, 1), (3, 2)):
        of_label = [*cells[right], *cells[wrong]]
        of_all = weights[right] + weights[wrong]
        rates.append(wilson(weights[right] / of_all, effective(of_label)) if of_label else None)
    kinds = [sum(map(len, (cells[first], cells[second]))) for first, second in ((0, 1), (2, 3), (0, 2), (1, 3))]
    graded = [row for row in rows if row.value is not None]
    is_graded = any(row.value not in {0.0, 1.0} for row in graded)
    return Calibration(
        subject,
        len(rows),
        size,
        Confusion(*map(len, cells)),
        # With one kind of verdict or label alone kappa is 0, with an interval of no width.
        whole._replace(sensitivity=rates[0], specificity=rates[1], kappa=whole.kappa if all(kinds) else None),
        weights[2] / total,
        weights[1] / total,
        reliability([Row(row.value or 0.0, row.passed, row.weight) for row in graded]) if is_graded else None,
        _balanced(graded) if is_graded else None,
    )


_CELLS: Final = ((True, True), (True, False), (False, True), (False, False))


def _balanced(rows: Sequence[_Row]) -> Threshold:
    """Find the threshold, one of the values, at which wrong passes and wrong fails are most nearly as many."""
    ordered = sorted(rows, key=lambda row: row.value or 0.0)
    total = sum(row.weight for row in rows)
    # At the lowest value all pass.
    false_pass, false_fail = sum(row.weight for row in rows if not row.passed), 0.0
    thresholds: list[Threshold] = []
    for place, row in enumerate(ordered):
        if place == 0 or row.value != ordered[place - 1].value:
            thresholds.append(Threshold(row.value or 0.0, false_pass / total, false_fail / total))
        if row.passed:
            false_fail += row.weight
        else:
            false_pass -= row.weight
    return min(thresholds, key=lambda each: (abs(each.false_pass - each.false_fail), each.false_pass + each.false_fail))
