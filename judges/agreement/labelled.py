"""Agreement of a judge with labels in a tag of each trace."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import correlation, fmean
from typing import Final, NamedTuple

from judges.core.judge import Judge, Metric
from judges.core.verdict import Assessment, Score
from tracejudge import Trace

_TRUE: Final = frozenset({"yes", "true", "1", "pass"})
_FALSE: Final = frozenset({"no", "false", "0", "fail"})


class Labelled(NamedTuple):
    """A trace and the value of its tag."""

    trace: Trace
    label: str


class Judged(NamedTuple):
    """One trace with its label and assessment; ``metric`` defaults to the first score that passes or fails."""

    trace: Trace
    label: str
    assessment: Assessment
    metric: str | None = None

    @property
    def score(self) -> Score | None:
        """The score of the metric, if there is one."""
        scores = self.assessment.scores
        if self.metric is None:
            return next((score for score in scores if score.passed is not None), None)
        return next((score for score in scores if score.metric == self.metric), None)

    @property
    def passed(self) -> bool | None:
        """Whether the metric passed; None without a score or a pass rule."""
        return None if self.score is None else self.score.passed

    @property
    def left_out(self) -> str:
        """Why there is no score: the reason, `abstained`, or `unrated` for a verdict without this metric."""
        assessment = self.assessment
        return assessment.reason or ("unrated" if assessment.outcome == "scored" else assessment.outcome)


class Agreement(NamedTuple):
    """A confusion matrix."""

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int
    # Number of traces without a score, by reason including `abstained` and `unrated`; the other figures exclude them.
    unscored: Mapping[str, int]
    mean_yes: float | None = None  # Mean value of the traces with a positive label; None without any.
    mean_no: float | None = None  # Mean value of the traces with a negative label; None without any.

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of sensitivity and specificity; chance is 0.5. None if one of the labels does not occur."""
        good, bad = self.true_pass + self.false_fail, self.true_fail + self.false_pass
        if not good or not bad:
            return None
        return (self.true_pass / good + self.true_fail / bad) / 2


def is_known_label(label: str) -> bool:
    """Return whether a label means yes or no."""
    return label.casefold() in _TRUE | _FALSE


def says_yes(label: str) -> bool:
    """Return whether a known label means yes."""
    return label.casefold() in _TRUE


def agreement(judged: Iterable[Judged]) -> Agreement:
    """Compare passes with labels that mean yes (`yes`, `true`, `1`, `pass`) or no."""
    cells: Counter[tuple[bool, bool]] = Counter()
    unscored: Counter[str] = Counter()
    values: dict[bool, list[float]] = {True: [], False: []}
    for case in judged:
        if case.score is None or case.score.passed is None:
            unscored[case.left_out] += 1
            continue
        is_yes = says_yes(case.label)
        cells[is_yes, case.score.passed] += 1
        values[is_yes].append(case.score.value)
    return Agreement(
        true_pass=cells[True, True],
        false_pass=cells[False, True],
        true_fail=cells[False, False],
        false_fail=cells[True, False],
        unscored=dict(unscored),
        mean_yes=_mean(values[True]),
        mean_no=_mean(values[False]),
    )


class Share(NamedTuple):
    """The share of a label group that passed."""

    passed: int  # Number of scores that passed.
    scored: int  # Number of scores.
    unscored: Mapping[str, int]  # Number of traces without a score, by reason.
    rated: int = 0  # Number of scores that passed or failed; below ``scored`` only for a metric without a pass rule.
    mean: float | None = None  # Mean value; None without any score.

    @property
    def share(self) -> float | None:
        """Passed out of rated, 0..1; None without any."""
        return self.passed / self.rated if self.rated else None


def shares(judged: Iterable[Judged]) -> Mapping[str, Share]:
    """Count passes per label, for labels other than yes and no."""
    groups: dict[str, list[Judged]] = {}
    for case in judged:
        groups.setdefault(case.label, []).append(case)
    by_label = {}
    for label, group in sorted(groups.items()):
        scores = [case.score for case in group if case.score is not None]
        by_label[label] = Share(
            passed=sum(score.passed is True for score in scores),
            scored=len(scores),
            unscored=dict(Counter(case.left_out for case in group if case.score is None)),
            rated=sum(score.passed is not None for score in scores),
            mean=_mean([score.value for score in scores]),
        )
    return by_label


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Scale(NamedTuple):
    """A range of numbers."""

    lowest: float
    highest: float
    is_lower_good: bool = False  # Whether the lowest number has the value 1.

    @property
    def in_words(self) -> str:
        """The range of grades, for error texts."""
        return f"numbers from {self.lowest:g} to {self.highest:g}"

    def value(self, grade: str) -> float | None:
        """Convert a grade to a value, 0..1; None if it is no number of the scale."""
        try:
            number = float(grade)
        except ValueError:
            return None
        if not self.lowest <= number <= self.highest:
            return None
        above = self.highest - number if self.is_lower_good else number - self.lowest
        return above / (self.highest - self.lowest)


def scale_of(judge: Judge, metric: Metric) -> Scale | None:
    """Return the range of a metric's ratings; None if it is not numeric."""
    first, dots, last = metric.scale.partition("..")
    try:
        lowest, highest = float(first), float(last if dots else "")
    except ValueError:
        return None
    declared = getattr(judge.settings, "result", None)
    is_lower_good = isinstance(declared, Mapping) and declared.get("direction") == "lower"
    return Scale(lowest, highest, is_lower_good)


class Grades(NamedTuple):
    """Agreement of ratings with grades."""

    mean_absolute_error: float | None  # Mean distance of ratings and grades, in points of the scale; None without any.
    rank_correlation: float | None  # Spearman's coefficient, -1..1; None if all grades or all ratings are equal.


def grades(pairs: Iterable[tuple[float, float]], scale: Scale) -> Grades:
    """Compare the values, 0..1, of grades and ratings on the same scale."""
    grades_and_values = list(pairs)
    if not grades_and_values:
        return Grades(None, None)
    error = math.fsum(abs(grade - value) for grade, value in grades_and_values) / len(grades_and_values)
    ours, theirs = (_ranks(values) for values in zip(*grades_and_values, strict=True))
    varies = len(set(ours)) > 1 and len(set(theirs)) > 1
    return Grades(error * (scale.highest - scale.lowest), correlation(ours, theirs) if varies else None)


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank values; equal ones share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for _, group in groupby(enumerate(order), key=lambda placed: values[placed[1]]):
        placed = list(group)
        rank = fmean(place for place, _ in placed)
        for _, number in placed:
            ranks[number] = rank
    return ranks
