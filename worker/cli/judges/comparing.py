"""What the tag of labelled traces holds, and what it says of whether they should pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import click

from judges.agreement import is_known_label, says_yes
from judges.answer import folded
from judges.defined.own_labels import declared_labels, passing
from judges.grades import Scale, scale_of
from judges.judge import Judge, Metric
from worker.cli.judges.measuring import Labelled

__all__ = ["Comparison", "chosen_metric", "compared"]

_ROUNDING: Final = 1e-9
_MAX_LISTED: Final = 12


class Comparison(NamedTuple):
    """How traces are compared with what a judge finds.

    Attributes:
        metric: The metric that is looked at.
        labelled: The traces; labels are `yes` (should pass) and `no` where ``is_rated``.
        is_rated: Whether the tag says what should pass, and the metric what does.
        has_own_labels: Whether the tag holds the judge's own labels.
        scale: That of the grades in the tag, where it holds grades.
        inverted: Whether `yes` in the tag means that a trace should fail.
    """

    metric: str
    labelled: Sequence[Labelled]
    is_rated: bool = True
    has_own_labels: bool = False
    scale: Scale | None = None
    inverted: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """What the tag says of traces that should pass, and of those that should fail."""
        return ("no", "yes") if self.inverted else ("yes", "no")


def compared(
    judge: Judge, metric: str | None, labelled: Sequence[Labelled], tag: str, *, invert: bool = False
) -> Comparison:
    """Find out whether the tag says yes and no, or holds the judge's own labels, or grades on its scale.

    Args:
        metric: Which metric is to be looked at, where one is named.
        invert: Take `yes` for what should fail.

    Raises:
        click.UsageError: The judge has no such metric, or the tag holds nothing that it could be compared with.
    """
    chosen = chosen_metric(judge, metric)
    labels = [one.label for one in labelled]
    says_words, scale = all(map(is_known_label, labels)), scale_of(judge, chosen)
    own = declared_labels(judge)
    # Before yes and no: a judge may declare these two itself, and that no is what passes.
    if not invert and all(folded(label) in own for label in labels):
        return _by_own_labels(chosen, labelled, passing(judge))
    if says_words and chosen.pass_rule is not None:
        found = _rated(labelled, lambda label: says_yes(label) is not invert)
        return Comparison(chosen.name, found, inverted=invert)
    if invert:
        raise click.UsageError(f"--invert turns yes and no round, and the tag {tag!r} does not say yes and no")
    values = {label: scale.value(label) for label in labels} if scale is not None else {}
    if scale is not None and None not in values.values():
        return _by_grades(chosen, labelled, scale)
    raise click.UsageError(_nothing_to_compare(judge, chosen, tag) if says_words else _others(judge, chosen, tag))


def chosen_metric(judge: Judge, name: str | None) -> Metric:
    """Choose the metric to look at: the first with a pass rule, or else the first, unless one is named.

    Raises:
        click.UsageError: The judge has no such metric.
    """
    if name is not None and name not in judge.metric_names:
        raise click.UsageError(f"{judge.name} has no metric {name!r}; its metrics are {', '.join(judge.metric_names)}")
    if name is not None:
        return judge.metrics[judge.metric_names.index(name)]
    return next((metric for metric in judge.metrics if metric.pass_rule is not None), judge.metrics[0])


def _rated(labelled: Sequence[Labelled], passes: Callable[[str], bool]) -> Sequence[Labelled]:
    return [one._replace(label="yes" if passes(one.label) else "no") for one in labelled]


def _by_own_labels(metric: Metric, labelled: Sequence[Labelled], passes: Mapping[str, bool]) -> Comparison:
    found = _rated(labelled, lambda label: passes[folded(label)]) if passes else labelled
    return Comparison(metric.name, found, bool(passes), has_own_labels=True)


def _by_grades(metric: Metric, labelled: Sequence[Labelled], scale: Scale) -> Comparison:
    mark = metric.pass_at
    if mark is None:
        return Comparison(metric.name, labelled, is_rated=False, scale=scale)
    found = _rated(labelled, lambda grade: (scale.value(grade) or 0.0) >= mark - _ROUNDING)
    return Comparison(metric.name, found, scale=scale)


def _nothing_to_compare(judge: Judge, metric: Metric, tag: str) -> str:
    """Say that yes and no are no measure for a metric without a pass rule, and what is one."""
    others = [other.name for other in judge.metrics if other.pass_rule is not None]
    scale = scale_of(judge, metric)
    graded = "" if scale is None else f"{scale.in_words} in the tag can be compared, and "
    mend = f"{', '.join(others)} has" if others else f"{graded}--by {tag} prints means"
    return f"the metric {metric.name} has no pass rule to compare yes and no with; {mend}"


def _others(judge: Judge, metric: Metric, tag: str) -> str:
    wanted = ["yes and no"] if metric.pass_rule is not None else []
    if own := list(declared_labels(judge).values()):
        more = ", …" if len(own) > _MAX_LISTED else ""
        wanted.append(f"those of the judge, {', '.join(own[:_MAX_LISTED])}{more}")
    if (scale := scale_of(judge, metric)) is not None:
        wanted.append(scale.in_words)
    known = ", or ".join(wanted) or "the metric could be compared with"
    return f"the tag {tag!r} holds other values than {known}; --by {tag} prints shares"
