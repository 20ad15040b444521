"""How far a judge agrees with labels that stand in a tag of each trace."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from judges.verdict import Assessment
from tracejudge import Trace

__all__ = ["Agreement", "Judged", "Share", "agreement", "is_known_label", "shares"]

_TRUE: Final = frozenset({"yes", "true", "1", "pass"})
_FALSE: Final = frozenset({"no", "false", "0", "fail"})


class Judged(NamedTuple):
    """One trace, its label, and what the judge found."""

    trace: Trace
    label: str
    assessment: Assessment

    @property
    def passed(self) -> bool | None:
        """The pass of the judge's first rated metric; None without a score."""
        return next((score.passed for score in self.assessment.scores if score.passed is not None), None)


class Agreement(NamedTuple):
    """A confusion matrix and what stayed outside it.

    Attributes:
        unscored: Traces without a score, by reason (`abstained` among them); they are in no other figure.
    """

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int
    unscored: Mapping[str, int]

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of the shares recognised in both label groups: 0.5 is chance. None when a group is empty."""
        good, bad = self.true_pass + self.false_fail, self.true_fail + self.false_pass
        if not good or not bad:
            return None
        return (self.true_pass / good + self.true_fail / bad) / 2


def is_known_label(label: str) -> bool:
    """Tell whether a label says yes or no."""
    return label.casefold() in _TRUE | _FALSE


def agreement(judged: Iterable[Judged]) -> Agreement:
    """Compare passes with labels that say yes (`yes`, `true`, `1`, `pass`) or no."""
    cells: Counter[tuple[bool, bool]] = Counter()
    unscored: Counter[str] = Counter()
    for one in judged:
        if one.passed is None:
            unscored[one.assessment.reason or one.assessment.outcome] += 1
        else:
            cells[one.label.casefold() in _TRUE, one.passed] += 1
    return Agreement(
        true_pass=cells[True, True],
        false_pass=cells[False, True],
        true_fail=cells[False, False],
        false_fail=cells[True, False],
        unscored=dict(unscored),
    )


class Share(NamedTuple):
    """How many of a label group passed, out of those with a score."""

    passed: int
    scored: int
    unscored: Mapping[str, int]

    @property
    def share(self) -> float | None:
        """Passed out of scored, 0..1; None without any score."""
        return self.passed / self.scored if self.scored else None


def shares(judged: Iterable[Judged]) -> Mapping[str, Share]:
    """Count passes per label, for labels that say something else than what the judge is asked."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(one.label, []).append(one)
    return {
        label: Share(
            passed=sum(one.passed is True for one in group),
            scored=sum(one.passed is not None for one in group),
            unscored=dict(
                Counter(one.assessment.reason or one.assessment.outcome for one in group if one.passed is None)
            ),
        )
        for label, group in sorted(groups.items())
    }
