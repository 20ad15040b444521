"""How near a judge comes to what stands in the tag, beyond passing and failing: the label, or the grade, itself."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from judges.agreement import Judged
from judges.answer import folded
from judges.defined.own_labels import declared_labels
from judges.grades import Grades, grades
from worker.cli.judges.comparing import Comparison
from worker.cli.judges.measuring import Subject

__all__ = ["Likeness", "likeness"]


class Likeness(NamedTuple):
    """What can be said; None where it cannot.

    Attributes:
        same_label: Share of those with a score that bear the very label of the tag.
        labels: How often each value of the tag was judged as each of the judge's labels, the commonest first.
        mean_absolute_error: That of the grades (``judges.grades``).
        rank_correlation: That of the grades.
    """

    same_label: float | None = None
    labels: Mapping[str, Mapping[str, int]] | None = None
    mean_absolute_error: float | None = None
    rank_correlation: float | None = None


def likeness(subject: Subject, comparison: Comparison, tag: str, *, is_combined: bool) -> Likeness:
    """Compare labels of a judge with labels of its own, and ratings with grades."""
    # A combined verdict may say whether it passes, in words and values that are none of the judge's.
    own = {} if is_combined else declared_labels(subject.judge)
    error, order = _grades(subject, comparison, tag, is_combined=is_combined)
    return Likeness(
        same_label=_same(subject, tag) if own and comparison.has_own_labels else None,
        labels=(_labels(subject, tag) or None) if own else None,
        mean_absolute_error=error,
        rank_correlation=order,
    )


def _grades(subject: Subject, comparison: Comparison, tag: str, *, is_combined: bool) -> Grades:
    if comparison.scale is None:
        return Grades(None, None)
    pairs = [
        (grade, one.score.value)
        for one in subject.judged
        # `majority` and `all` tell only whether it passes.
        if one.score is not None and not (is_combined and one.score.label)
        if (grade := comparison.scale.value(_given(one, tag))) is not None
    ]
    return grades(pairs, comparison.scale)


def _same(subject: Subject, tag: str) -> float | None:
    pairs = list(_pairs(subject, tag))
    return sum(folded(given) == folded(label) for given, label in pairs) / len(pairs) if pairs else None


def _labels(subject: Subject, tag: str) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, Counter[str]] = {}
    for given, label in _pairs(subject, tag):
        found.setdefault(given, Counter())[label] += 1
    return {given: dict(counts.most_common()) for given, counts in sorted(found.items())}


def _pairs(subject: Subject, tag: str) -> Iterator[tuple[str, str]]:
    """Give what stands in the tag and the judge's label, of each trace with a label: a mean over documents has none."""
    return ((_given(one, tag), one.score.label) for one in subject.judged if one.score is not None and one.score.label)


def _given(one: Judged, tag: str) -> str:
    return (one.trace.tags or {})[tag]
