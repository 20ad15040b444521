"""How far a judge agrees with labels that stand in a tag of each trace."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from judges.verdict import Assessment, Score
from tracejudge import Trace

__all__ = ["Agreement", "Judged", "Share", "agreement", "is_known_label", "says_yes", "shares"]

_TRUE: Final = frozenset({"yes", "true", "1", "pass"})
_FALSE: Final = frozenset({"no", "false", "0", "fail"})


class Judged(NamedTuple):
    """One trace, its label, and what the judge found.

    Attributes:
        metric: Which metric is looked at; the first that passes or fails unless given.
    """

    trace: Trace
    label: str
    assessment: Assessment
    metric: str | None = None

    @property
    def score(self) -> Score | None:
        """The score of the metric; None where there is none."""
        scores = self.assessment.scores
        if self.metric is None:
            return next((score for score in scores if score.passed is not None), None)
        return next((score for score in scores if score.metric == self.metric), None)

    @property
    def passed(self) -> bool | None:
        """Whether the metric passed; None without a score or without a pass rule."""
        return None if self.score is None else self.score.passed

    @property
    def left_out(self) -> str:
        """Why this is in no figure: the reason, `abstained`, or `unrated` for a verdict without this metric."""
        found = self.assessment
        return found.reason or ("unrated" if found.outcome == "scored" else found.outcome)


class Agreement(NamedTuple):
    """A confusion matrix and what stayed outside it.

    Attributes:
        unscored: Traces without a score, by reason (`abstained` and `unrated` among them); they are in no other
            figure.
        mean_yes: Mean value over traces whose label says yes; None when there is none with a score.
        mean_no: The same over those whose label says no.
    """

    true_pass: int
    false_pass: int
    true_fail: int
    false_fail: int
    unscored: Mapping[str, int]
    mean_yes: float | None = None
    mean_no: float | None = None

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


def says_yes(label: str) -> bool:
    """Tell whether a known label says yes."""
    return label.casefold() in _TRUE


def agreement(judged: Iterable[Judged]) -> Agreement:
    """Compare passes with labels that say yes (`yes`, `true`, `1`, `pass`) or no."""
    cells: Counter[tuple[bool, bool]] = Counter()
    unscored: Counter[str] = Counter()
    values: dict[bool, list[float]] = {True: [], False: []}
    for one in judged:
        if one.score is None or one.score.passed is None:
            unscored[one.left_out] += 1
            continue
        is_yes = says_yes(one.label)
        cells[is_yes, one.score.passed] += 1
        values[is_yes].append(one.score.value)
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
    """How many of a label group passed, out of those with a score.

    Attributes:
        rated: Those that passed or failed; fewer than ``scored`` only for a metric without a pass rule.
        mean: Mean value; None without any score.
    """

    passed: int
    scored: int
    unscored: Mapping[str, int]
    rated: int = 0
    mean: float | None = None

    @property
    def share(self) -> float | None:
        """Passed out of rated, 0..1; None without any."""
        return self.passed / self.rated if self.rated else None


def shares(judged: Iterable[Judged]) -> Mapping[str, Share]:
    """Count passes per label, for labels that say something else than what the judge is asked."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(one.label, []).append(one)
    return {label: _share(group) for label, group in sorted(groups.items())}


def _share(group: Sequence[Judged]) -> Share:
    scores = [one.score for one in group if one.score is not None]
    return Share(
        passed=sum(score.passed is True for score in scores),
        scored=len(scores),
        unscored=dict(Counter(one.left_out for one in group if one.score is None)),
        rated=sum(score.passed is not None for score in scores),
        mean=_mean([score.value for score in scores]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
