"""How far a judge agrees with grades that people gave on its own scale."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import correlation, fmean
from typing import NamedTuple

from judges.judge import Judge, Metric

__all__ = ["Grades", "Scale", "grades", "scale_of"]


class Scale(NamedTuple):
    """A range of numbers.

    Attributes:
        is_lower_good: Whether the value of a score is 1 at the lowest number.
    """

    lowest: float
    highest: float
    is_lower_good: bool = False

    @property
    def in_words(self) -> str:
        """Say what a grade may be."""
        return f"numbers from {self.lowest:g} to {self.highest:g}"

    def value(self, grade: str) -> float | None:
        """Give what a grade is worth, 0..1, as a score's value is; None where it is no number of the scale."""
        try:
            number = float(grade)
        except ValueError:
            return None
        if not self.lowest <= number <= self.highest:
            return None
        above = self.highest - number if self.is_lower_good else number - self.lowest
        return above / (self.highest - self.lowest)


def scale_of(judge: Judge, metric: Metric) -> Scale | None:
    """Find the range on which a metric is rated; none where it is no plain range of numbers."""
    first, dots, last = metric.scale.partition("..")
    try:
        lowest, highest = float(first), float(last if dots else "")
    except ValueError:
        return None
    declared = getattr(judge.settings, "result", None)
    is_lower_good = isinstance(declared, Mapping) and declared.get("direction") == "lower"
    return Scale(lowest, highest, is_lower_good)


class Grades(NamedTuple):
    """What a comparison of grades gives.

    Attributes:
        mean_absolute_error: How far the judge's ratings are from the grades, in points of the scale; None without any.
        rank_correlation: Spearman's, -1..1: whether better grades come with better ratings. None where all grades or
            all ratings are the same.
    """

    mean_absolute_error: float | None
    rank_correlation: float | None


def grades(pairs: Iterable[tuple[float, float]], scale: Scale) -> Grades:
    """Compare grades with ratings.

    Args:
        pairs: For each trace what the grade and what the score is worth, 0..1.
        scale: The scale of both.
    """
    given = list(pairs)
    if not given:
        return Grades(None, None)
    error = math.fsum(abs(grade - value) for grade, value in given) / len(given)
    ours, theirs = (_ranks(values) for values in zip(*given, strict=True))
    varies = len(set(ours)) > 1 and len(set(theirs)) > 1
    return Grades(error * (scale.highest - scale.lowest), correlation(ours, theirs) if varies else None)


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank values; equal ones share the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    for _, group in groupby(enumerate(order), key=lambda placed: values[placed[1]]):
        placed = list(group)
        rank = fmean(place for place, _ in placed)
        for _, number in placed:
            ranks[number] = rank
    return ranks
