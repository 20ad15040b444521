"""Measure a judge against labels, and print the result as one JSON document or as tables."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import click
from rich.markup import escape
from rich.table import Table

from judges.agreement.labelled import (
    Grades,
    Judged,
    Labelled,
    Scale,
    agreement,
    grades,
    is_known_label,
    says_yes,
    scale_of,
    shares,
)
from judges.calling.runs import JudgeRunner, in_order
from judges.core.combine import metrics_of
from judges.core.judge import Judge, Metric
from judges.core.model import CallTotals
from judges.core.verdict import Assessment
from judges.custom.variables import declared_labels, passing
from judges.parsing.answer import folded
from worker.base.commands.options import (
    OUT,
    chosen_metric,
    print_json,
    print_line,
    print_table,
    reasons_in_words,
)
from worker.base.commands.progress import Meter
from worker.features.lab.offline import OfflineGraders, Panel, Question
from worker.features.lab.summary import cost_in_words

_MAX_LISTED: Final = 12


class Subject(NamedTuple):
    """The assessments of one judge model, `code` or a panel, for one metric of a judge."""

    judge: Judge
    metric: str
    by: JudgeRunner | Panel
    judged: Sequence[Judged]

    @property
    def cost_usd(self) -> float | None:
        """Cost of all calls; None, which is not free, without a price or if an answer did not report its tokens."""
        calls = [call for judged in self.judged for call in judged.assessment.calls]
        return CallTotals().plus(calls, self.by.price).reported.cost_usd

    @property
    def without_score(self) -> Mapping[str, int]:
        """Counts of evaluations without a score by reason."""
        return dict(Counter(judged.left_out for judged in self.judged if judged.score is None))

    @property
    def is_graded(self) -> bool:
        """Whether the metric has more values than 0 and 1, so that a mean says more than the passes."""
        return any(judged.score is not None and judged.score.value not in (0.0, 1.0) for judged in self.judged)

    @property
    def title(self) -> str:
        """Title of its table."""
        metric = "" if self.metric == self.judge.name else f" {self.metric}"
        return f"{self.judge.name}{metric} by {self.by.judge_model}"


class Measured(NamedTuple):
    """The subject of each model, and of the panel if verdicts are combined."""

    members: Sequence[Subject]
    combined: Subject | None

    @property
    def whole(self) -> Subject | None:
        """The subject that stands for the judge: the panel, or the only model."""
        return self.combined or (self.members[0] if len(self.members) == 1 else None)

    @property
    def checked(self) -> Sequence[Subject]:
        """The subjects that a minimum applies to."""
        return self.members if self.whole is None else (self.whole,)

    @property
    def cost_usd(self) -> float | None:
        """Cost of all models together; None if none has a price."""
        costs = [cost for subject in self.members if (cost := subject.cost_usd) is not None]
        return sum(costs) if costs else None

    @property
    def notes(self) -> dict[str, int]:
        """Counts of the most common reasons for a missing score."""
        answers = [judged.assessment for subject in self.members for judged in subject.judged]
        counts = Counter(answer.note for answer in answers if answer.outcome != "scored" and answer.note)
        return dict(counts.most_common(3))

    @property
    def disagreement(self) -> float | None:
        """The mean disagreement of the models about the metric; None if nothing is combined."""
        if self.combined is None:
            return None
        judge, metric = self.combined.judge, self.combined.metric
        name = metrics_of(judge.metrics)[len(judge.metrics) + judge.metric_names.index(metric)].name
        scores = [Judged(*judged[:3], name).score for judged in self.combined.judged]
        values = [score.value for score in scores if score is not None]
        return sum(values) / len(values) if values else None


async def measure(judge: Judge, metric: str, graders: OfflineGraders, labelled: Sequence[Labelled]) -> Measured:
    """Judge all traces by all models."""
    asked = graders.by_judge[judge.name]
    assessments = list[Assessment]()
    spent = 0.0
    with Meter(f"judging by {graders.in_words}", "verdict", total=len(asked) * len(labelled)) as meter:

        async def jobs() -> AsyncIterator[tuple[Question, JudgeRunner | Panel]]:
            for item in labelled:
                question = Question(judge, item.trace)
                for grader in asked:
                    yield question, grader

        async def ask(job: tuple[Question, JudgeRunner | Panel]) -> Assessment:
            nonlocal spent
            assessment = (await job[0].ask(job[1])).assessment
            spent += CallTotals().plus(assessment.calls, job[1].price).cost_usd or 0.0
            meter.advance(spent)
            return assessment

        try:
            window = max(1, len(asked) * len(labelled))
            await in_order(jobs(), ask, lambda _, assessment: assessments.append(assessment), window=window)
        finally:
            await graders.aclose((judge,))
    subjects = []
    for place, by in enumerate(asked):
        own = zip(labelled, assessments[place :: len(asked)], strict=True)
        subjects.append(Subject(by.form_of(judge), metric, by, [Judged(*item, each, metric) for item, each in own]))
    return Measured(subjects[:-1], subjects[-1]) if isinstance(asked[-1], Panel) else Measured(subjects, None)


class Comparison(NamedTuple):
    """How the labels of traces are compared with the verdicts of a judge."""

    metric: str  # The metric that is compared.
    labelled: Sequence[Labelled]  # The traces; labels are `yes` (should pass) and `no` if ``is_rated``.
    is_rated: bool = True  # Whether the tag says what should pass, and the metric what does.
    has_own_labels: bool = False  # Whether the tag holds the judge's own labels.
    scale: Scale | None = None  # Scale of the grades in the tag, if it holds grades.
    inverted: bool = False  # Whether `yes` in the tag means that a trace should fail.

    @property
    def names(self) -> tuple[str, str]:
        """Values of the tag for traces that should pass, and for those that should fail."""
        return ("no", "yes") if self.inverted else ("yes", "no")


def compared(
    judge: Judge, metric: str | None, labelled: Sequence[Labelled], tag: str, *, invert: bool = False
) -> Comparison:
    """Find out whether the tag holds yes and no (``invert``: `yes` should fail), the judge's own labels, or grades."""
    chosen = chosen_metric(judge, metric)
    labels = [item.label for item in labelled]
    own, scale = declared_labels(judge), scale_of(judge, chosen)

    def rated(passes: Callable[[str], bool]) -> Sequence[Labelled]:
        return [item._replace(label="yes" if passes(item.label) else "no") for item in labelled]

    # Before yes and no: a judge may declare these two itself, with no as the label that passes.
    if not invert and all(folded(label) in own for label in labels):
        passes = passing(judge)
        pairs = rated(lambda label: passes[folded(label)]) if passes else labelled
        return Comparison(chosen.name, pairs, bool(passes), has_own_labels=True)
    says_words = all(map(is_known_label, labels))
    if says_words and chosen.pass_rule is not None:
        return Comparison(chosen.name, rated(lambda label: says_yes(label) is not invert), inverted=invert)
    if invert:
        raise click.UsageError(f"--invert needs yes and no, and the tag {tag!r} holds other values")
    if scale is not None and None not in map(scale.value, labels):
        mark = chosen.pass_at
        if mark is None:
            return Comparison(chosen.name, labelled, is_rated=False, scale=scale)
        pairs = rated(lambda grade: (scale.value(grade) or 0.0) >= mark - 1e-9)
        return Comparison(chosen.name, pairs, scale=scale)
    raise click.UsageError(_not_comparable(judge, chosen, tag, says_words=says_words))


def _not_comparable(judge: Judge, metric: Metric, tag: str, *, says_words: bool) -> str:
    """Explain why labels cannot be compared: yes and no without a pass rule, or values that mean nothing here."""
    scale = scale_of(judge, metric)
    if says_words:
        names = [choice.name for choice in judge.metrics if choice.pass_rule is not None]
        graded = "" if scale is None else f"{scale.in_words} in the tag can be compared, and "
        fix = f"{', '.join(names)} has" if names else f"{graded}--by {tag} prints means"
        return f"the metric {metric.name} has no pass rule to compare yes and no with; {fix}"
    accepted = ["yes and no"] if metric.pass_rule is not None else []
    if own := list(declared_labels(judge).values()):
        more = ", …" if len(own) > _MAX_LISTED else ""
        accepted.append(f"those of the judge, {', '.join(own[:_MAX_LISTED])}{more}")
    if scale is not None:
        accepted.append(scale.in_words)
    listed = ", or ".join(accepted) or "the metric can be compared with"
    return f"the tag {tag!r} holds other values than {listed}; --by {tag} prints shares"


class Likeness(NamedTuple):
    """Comparison of labels and grades; None if there is none.

    ``same_label`` is a share of those with a score. ``labels`` counts the judge's labels for each value of the tag.
    """

    same_label: float | None = None
    labels: Mapping[str, Mapping[str, int]] | None = None
    mean_absolute_error: float | None = None
    rank_correlation: float | None = None


def likeness(subject: Subject, comparison: Comparison, tag: str, *, is_combined: bool) -> Likeness:
    """Compare the judge's own labels with labels, and ratings with grades."""

    def label_of(judged: Judged) -> str:
        return (judged.trace.tags or {})[tag]

    scored = [(label_of(judged), judged.score) for judged in subject.judged if judged.score is not None]
    error = Grades(None, None)
    if (scale := comparison.scale) is not None:
        # Without the verdicts of `majority` and `all`, which have a label and no grade.
        values = ((scale.value(grade), score.value) for grade, score in scored if not (is_combined and score.label))
        error = grades([(grade, value) for grade, value in values if grade is not None], scale)
    # A panel may label its verdicts pass or fail, which are no labels of the judge.
    if is_combined or not declared_labels(subject.judge):
        return Likeness(None, None, *error)
    # A mean over documents has no label.
    pairs = [(label, score.label) for label, score in scored if score.label]
    counts: dict[str, Counter[str]] = {}
    for label, own in pairs:
        counts.setdefault(label, Counter())[own] += 1
    same = sum(folded(label) == folded(own) for label, own in pairs) / len(pairs) if pairs else None
    return Likeness(
        same if comparison.has_own_labels else None,
        {label: dict(each.most_common()) for label, each in sorted(counts.items())} or None,
        *error,
    )


def print_agreement(measured: Measured, comparison: Comparison, tag: str, *, as_json: bool) -> None:
    """Print the confusion matrix and its figures; of several models a row each."""

    def alike(subject: Subject) -> Likeness:
        return likeness(subject, comparison, tag, is_combined=subject is measured.combined)

    def figures(subject: Subject) -> Mapping[str, object]:
        values = {name: value for name, value in alike(subject)._asdict().items() if value is not None}
        if not comparison.is_rated:
            return {**values, "unscored": subject.without_score}
        cells = agreement(subject.judged)
        return {"balanced_accuracy": cells.balanced_accuracy, **values, **cells._asdict()}

    if as_json:
        _print_document(measured, figures, **({"inverted": True} if comparison.inverted else {}))
        return
    if measured.whole is not None:
        _print_whole(measured.whole, comparison, alike(measured.whole))
    if (disagreement := measured.disagreement) is not None:
        OUT.print(f"mean disagreement of the models: {disagreement:.3f}")
    if len(measured.members) > 1:
        _print_members(measured, comparison, alike)
    _print_notes(measured)


def print_shares(measured: Measured, tag: str, *, as_json: bool, is_comparable: bool) -> None:
    """Print the shares that pass for each value of the tag, by each model and by the panel.

    Where the values say what is right (``is_comparable``), recommend to measure the agreement.
    """

    def groups(subject: Subject) -> Mapping[str, object]:
        by_label = shares(subject.judged)
        return {"groups": {label: {**group._asdict(), "share": group.share} for label, group in by_label.items()}}

    if as_json:
        _print_document(measured, groups, by=tag)
        return
    for subject in (*measured.members, measured.combined):
        if subject is None:
            continue
        table = Table(escape(tag), "passes", "scored", "share", "mean", "unscored", title=escape(subject.title))
        for label, group in shares(subject.judged).items():
            share = "-" if group.share is None else f"{group.share:.1%}"
            counts = (f"{group.passed:,}", f"{group.scored:,}")
            table.add_row(escape(label), *counts, share, _figure(group.mean), reasons_in_words(group.unscored))
        print_table(OUT, table)
    advice = f": for that use --label {tag}" if is_comparable else ""
    text = f"Shares per value of {tag!r}, and no agreement{advice}."
    if not all(subject.by.is_free for subject in measured.members):
        has_price = any(subject.by.price is not None for subject in measured.members)
        text += f" Cost: {cost_in_words(measured.cost_usd, has_price=has_price)}"
    print_line(OUT, text)
    _print_notes(measured)


def _print_document(measured: Measured, figures: Callable[[Subject], Mapping[str, object]], **more: object) -> None:
    first, whole = measured.members[0], measured.whole
    document = {
        "judge": first.judge.name,
        "metric": first.metric,
        "version": first.judge.version,
        "model": ", ".join(row.by.judge_model for row in measured.members) if whole is None else whole.by.judge_model,
        "traces": len(first.judged),
        "cost_usd": measured.cost_usd,
        "notes": measured.notes,
        **more,
        **({} if whole is None else figures(whole)),
    }
    if measured.combined is not None:
        document["disagreement"] = measured.disagreement
    if len(measured.members) > 1:
        document["models"] = [
            {"model": row.by.judge_model, "cost_usd": row.cost_usd, **figures(row)} for row in measured.members
        ]
    print_json(document)


def _print_whole(subject: Subject, comparison: Comparison, alike: Likeness) -> None:
    unscored = subject.without_score
    if comparison.is_rated:
        cells = agreement(subject.judged)
        unscored = cells.unscored
        table = Table("label", "judged pass", "judged fail", title=escape(subject.title))
        good, bad = comparison.names
        rows = (
            (good, cells.true_pass, cells.false_fail, cells.mean_yes),
            (bad, cells.false_pass, cells.true_fail, cells.mean_no),
        )
        if subject.is_graded:
            table.add_column("mean value")
        for label, passed, failed, mean in rows:
            table.add_row(label, f"{passed:,}", f"{failed:,}", *([_figure(mean)] if subject.is_graded else []))
        print_table(OUT, table)
        accuracy = cells.balanced_accuracy
        figure = "no figure: a label group is empty" if accuracy is None else f"{accuracy:.3f} (0.5 is chance)"
        OUT.print(f"balanced accuracy: {figure}")
    else:
        print_line(OUT, subject.title)
    if alike.labels is not None:
        table = Table("in the tag", "judged as")
        for tag_label, judged in alike.labels.items():
            counts = ", ".join(f"{count:,} {label}" for label, count in judged.items())
            table.add_row(escape(tag_label), escape(counts) or "-")
        print_table(OUT, table)
    if alike.same_label is not None:
        print_line(OUT, f"same label as the tag: {alike.same_label:.1%}")
    if alike.mean_absolute_error is not None:
        print_line(OUT, f"mean absolute error: {alike.mean_absolute_error:.2f} of the scale's points")
        order = alike.rank_correlation
        none = "no figure: all grades or all ratings are the same"
        print_line(OUT, f"rank correlation: {none if order is None else f'{order:.3f} (1 is the same order)'}")
    by = subject.by
    cost = "" if by.is_free else f"; cost: {cost_in_words(subject.cost_usd, has_price=by.price is not None)}"
    print_line(OUT, f"unscored: {reasons_in_words(unscored)}{cost}")


def _print_members(measured: Measured, comparison: Comparison, alike: Callable[[Subject], Likeness]) -> None:
    title = "each model" if measured.combined else measured.members[0].title.rpartition(" by ")[0]
    good, bad = comparison.names
    columns = ["balanced accuracy", f"{good} passes", f"{bad} passes"] if comparison.is_rated else []
    columns += ["mean error", "rank correlation"] if comparison.scale is not None else []
    columns += ["same label"] if comparison.has_own_labels else []
    table = Table("model", *columns, "unscored", "cost", title=escape(title))
    for subject in measured.members:
        like, confusion = alike(subject), agreement(subject.judged)
        cells = []
        if comparison.is_rated:
            yes = f"{confusion.true_pass:,} of {confusion.true_pass + confusion.false_fail:,}"
            no = f"{confusion.false_pass:,} of {confusion.false_pass + confusion.true_fail:,}"
            cells += [_figure(confusion.balanced_accuracy), yes, no]
        if comparison.scale is not None:
            cells += [_figure(like.mean_absolute_error), _figure(like.rank_correlation)]
        if comparison.has_own_labels:
            cells.append(_figure(like.same_label))
        unscored = confusion.unscored if comparison.is_rated else subject.without_score
        cost = "none" if subject.by.is_free else cost_in_words(subject.cost_usd, has_price=subject.by.price is not None)
        table.add_row(escape(subject.by.judge_model), *cells, reasons_in_words(unscored), cost)
    print_table(OUT, table)


def _print_notes(measured: Measured) -> None:
    for text, count in measured.notes.items():
        OUT.print(f"  {count:,} x {text}", markup=False, soft_wrap=True)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
