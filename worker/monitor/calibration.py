"""How a judge errs, measured by labels: agreement, error rates, reliability of graded values, and a balanced threshold.

Labels drawn from the traffic count by the number of traces that they stand for, all others once.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from judges.agreement.intervals import Interval, wilson
from worker.monitor.corrected import Agreement, Confusion, Origin, agreement
from worker.monitor.label_store import Labelled, LabelVerdict

_BINS: Final = 5


class Subject(NamedTuple):
    """One version of a judge with one model, and labels of one origin."""

    metric: str
    version: str
    judge_model: str
    origin: Origin


class Bin(NamedTuple):
    """Labelled traces whose values lie between two limits."""

    low: float
    high: float
    labels: int
    mean: float
    """Mean value of the judge."""
    passing: Interval
    """The share of labels that say pass."""


class Threshold(NamedTuple):
    """A value from which traces would pass, and the shares of all traces that it would judge wrongly."""

    value: float
    false_pass: float
    false_fail: float


class Reliability(NamedTuple):
    """How the values of a judge compare with labels."""

    bins: Sequence[Bin]
    error: float
    """Mean distance of values and shares in the bins (expected calibration error)."""
    brier: float
    """Mean squared distance of value and label."""
    balanced: Threshold
    """The threshold with which as many traces pass wrongly as fail wrongly."""


class Calibration(NamedTuple):
    """The errors of one subject."""

    subject: Subject
    labels: int
    effective: float
    """The number of labels of equal weight that would be as precise."""
    confusion: Confusion
    """Numbers of labelled traces, not weighted."""
    agreement: Agreement
    false_pass: float
    """The share of all traces that the judge passes wrongly; ``false_fail`` likewise."""
    false_fail: float
    reliability: Reliability | None
    """None where all values are 0 or 1."""


class _Row(NamedTuple):
    passed: bool
    judged: bool
    value: float | None
    weight: float


def calibrate(
    labelled: Iterable[Labelled], fits: Callable[[LabelVerdict], bool]
) -> tuple[list[Calibration], Mapping[str, int]]:
    """Compare labels with fitting verdicts.

    Returns:
        Each subject, the most labels first, and how many labels count nowhere, by reason: ``no verdict``, ``several
        spans``, ``abstained``, ``unscored``, or ``unrated`` for a metric without a pass rule.
    """
    rows: dict[Subject, list[_Row]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for one in labelled:
        found = [verdict for verdict in one.verdicts if fits(verdict)]
        rated = [verdict for verdict in found if verdict.passed is not None]
        if not rated:
            outcome = max(found, key=lambda verdict: verdict.judged_at).outcome if found else "no verdict"
            left_out["unrated" if outcome == "scored" else outcome] += 1
        for judge in {(verdict.version, verdict.judge_model) for verdict in rated}:
            verdict = one.verdict(lambda each: fits(each) and (each.version, each.judge_model) == judge)  # noqa: B023
            if verdict is None:
                left_out["several spans"] += 1
                continue
            label = one.label
            weight = 1.0
            if isinstance(label.drawn, float):
                # Another version judged the trace later: the trace stands for as many as when it was sampled.
                weight = max((each.weight for each in one.verdicts if each.is_sampled), default=1.0) / label.drawn
            row = _Row(label.passed, bool(verdict.passed), verdict.value, weight)
            rows[Subject(label.metric, *judge, label.origin)].append(row)
    found_ = [_calibration(subject, given) for subject, given in rows.items()]
    return sorted(found_, key=lambda each: (-each.labels, each.subject)), left_out


def _calibration(subject: Subject, rows: Sequence[_Row]) -> Calibration:
    cells = [[row for row in rows if (row.passed, row.judged) == cell] for cell in _CELLS]
    weights = [sum(row.weight for row in cell) for cell in cells]
    total = sum(weights)
    size = _effective(rows)
    whole = agreement(Confusion(*(weight * size / total for weight in weights)))
    rates: list[Interval | None] = []
    for right, wrong in ((0, 1), (3, 2)):
        of_label = [*cells[right], *cells[wrong]]
        of_all = weights[right] + weights[wrong]
        rates.append(wilson(weights[right] / of_all, _effective(of_label)) if of_label else None)
    kinds = [sum(map(len, (cells[one], cells[other]))) for one, other in ((0, 1), (2, 3), (0, 2), (1, 3))]
    graded = [row for row in rows if row.value is not None]
    is_graded = any(row.value not in {0.0, 1.0} for row in graded)
    return Calibration(
        subject,
        len(rows),
        size,
        Confusion(*map(len, cells)),
        # With one kind of verdict or label alone kappa is 0, with an interval of no width.
        Agreement(whole.agreement, *rates, None if min(*kinds) == 0 else whole.kappa),
        weights[2] / total,
        weights[1] / total,
        _reliability(graded) if is_graded else None,
    )


_CELLS: Final = ((True, True), (True, False), (False, True), (False, False))


def _effective(rows: Sequence[_Row]) -> float:
    """Return Kish's effective number."""
    total = sum(row.weight for row in rows)
    return total * total / sum(row.weight**2 for row in rows)


def _reliability(rows: Sequence[_Row]) -> Reliability:
    total = sum(row.weight for row in rows)
    grouped: dict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        grouped[min(_BINS - 1, int((row.value or 0.0) * _BINS))].append(row)
    bins, error = [], 0.0
    for number, group in sorted(grouped.items()):
        size = sum(row.weight for row in group)
        mean = sum(row.weight * (row.value or 0.0) for row in group) / size
        share = sum(row.weight * row.passed for row in group) / size
        bins.append(Bin(number / _BINS, (number + 1) / _BINS, len(group), mean, wilson(share, _effective(group))))
        error += size * abs(mean - share) / total
    brier = sum(row.weight * ((row.value or 0.0) - row.passed) ** 2 for row in rows) / total
    return Reliability(bins, error, brier, _balanced(rows, total))


def _balanced(rows: Sequence[_Row], total: float) -> Threshold:
    """Find the threshold, one of the values, at which wrong passes and wrong fails are most nearly as many."""
    ordered = sorted(rows, key=lambda row: row.value or 0.0)
    # At the lowest value all pass.
    false_pass, false_fail = sum(row.weight for row in rows if not row.passed), 0.0
    found: list[Threshold] = []
    for place, row in enumerate(ordered):
        if place == 0 or row.value != ordered[place - 1].value:
            found.append(Threshold(row.value or 0.0, false_pass / total, false_fail / total))
        if row.passed:
            false_fail += row.weight
        else:
            false_pass -= row.weight
    return min(found, key=lambda each: (abs(each.false_pass - each.false_fail), each.false_pass + each.false_fail))
