"""Print what `judges test` found, as one JSON document or as tables."""

from collections.abc import Callable, Iterator, Mapping

import msgspec
from rich.markup import escape
from rich.table import Table

from judges.agreement import Agreement, agreement, shares
from worker.cli.evaluate.summary import cost_in_words
from worker.cli.judges.comparing import Comparison
from worker.cli.judges.likeness import Likeness, likeness
from worker.cli.judges.measuring import Measured, Subject
from worker.cli.options import OUT, reasons_in_words
from worker.cli.whole import print_line, print_table

__all__ = ["print_agreement", "print_shares"]


def print_agreement(measured: Measured, comparison: Comparison, tag: str, *, as_json: bool) -> None:
    """Print the confusion matrix and what follows from it; of several models a row each.

    Args:
        comparison: How the traces were compared.
    """

    def alike(subject: Subject) -> Likeness:
        return likeness(subject, comparison, tag, is_combined=subject is measured.combined)

    if as_json:
        inverted = {"inverted": True} if comparison.inverted else {}
        _print_document(measured, lambda subject: _figures(subject, comparison, alike(subject)), **inverted)
        return
    if measured.whole is not None:
        _print_whole(measured.whole, comparison, alike(measured.whole))
    if (disagreement := measured.disagreement) is not None:
        OUT.print(f"mean disagreement of the models: {disagreement:.3f}")
    if len(measured.members) > 1:
        _print_members(measured, comparison, alike)
    _print_notes(measured)


def print_shares(measured: Measured, tag: str, *, as_json: bool, is_comparable: bool) -> None:
    """Print how many pass under each value of the tag, by each model, and by what combines them.

    Args:
        is_comparable: Whether the values say what is right, so that an agreement can be had.
    """
    if as_json:
        _print_document(measured, _groups, by=tag)
        return
    for subject in (*measured.members, measured.combined):
        if subject is not None:
            _print_groups(subject, tag)
    advice = f": for that say --label {tag}" if is_comparable else ""
    said = f"Shares per value of {tag!r}, and no agreement{advice}."
    pays = any(one.pays for one in measured.members)
    print_line(OUT, f"{said} Cost: {cost_in_words(measured.cost_usd, has_price=measured.has_price)}" if pays else said)
    _print_notes(measured)


def _print_document(measured: Measured, figures: Callable[[Subject], Mapping[str, object]], **more: object) -> None:
    first, whole = measured.members[0], measured.whole
    document = {
        "judge": first.judge.name,
        "metric": first.metric,
        "version": first.judge.version,
        "model": ", ".join(one.judge_model for one in measured.members) if whole is None else whole.judge_model,
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
            {"model": one.judge_model, "cost_usd": one.cost_usd, **figures(one)} for one in measured.members
        ]
    print(msgspec.json.encode(document).decode())


def _figures(subject: Subject, comparison: Comparison, alike: Likeness) -> Mapping[str, object]:
    found = {name: value for name, value in alike._asdict().items() if value is not None}
    if not comparison.is_rated:
        return {**found, "unscored": subject.without_score}
    cells = agreement(subject.judged)
    return {"balanced_accuracy": cells.balanced_accuracy, **found, **cells._asdict()}


def _groups(subject: Subject) -> Mapping[str, object]:
    return {
        "groups": {label: {**group._asdict(), "share": group.share} for label, group in shares(subject.judged).items()}
    }


def _print_whole(subject: Subject, comparison: Comparison, alike: Likeness) -> None:
    unscored = subject.without_score
    if comparison.is_rated:
        found = agreement(subject.judged)
        unscored = found.unscored
        print_table(OUT, _confusion(subject, found, comparison))
        OUT.print(f"balanced accuracy: {_accuracy(found)}")
    else:
        print_line(OUT, subject.title)
    if alike.labels is not None:
        print_table(OUT, _labels(alike.labels))
    for line in _alike_in_words(alike):
        print_line(OUT, line)
    cost = f"; cost: {cost_in_words(subject.cost_usd, has_price=subject.price is not None)}" if subject.pays else ""
    print_line(OUT, f"unscored: {reasons_in_words(unscored)}{cost}")


def _confusion(subject: Subject, found: Agreement, comparison: Comparison) -> Table:
    table = Table("label", "judged pass", "judged fail", title=escape(subject.title))
    good, bad = comparison.names
    rows = (
        (good, found.true_pass, found.false_fail, found.mean_yes),
        (bad, found.false_pass, found.true_fail, found.mean_no),
    )
    if subject.is_graded:
        table.add_column("mean value")
    for label, passed, failed, mean in rows:
        table.add_row(label, f"{passed:,}", f"{failed:,}", *([_figure(mean)] if subject.is_graded else []))
    return table


def _labels(found: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table("in the tag", "judged as")
    for given, judged in found.items():
        said = ", ".join(f"{count:,} {label}" for label, count in judged.items())
        table.add_row(escape(given), escape(said) or "-")
    return table


def _alike_in_words(alike: Likeness) -> Iterator[str]:
    if alike.same_label is not None:
        yield f"the very label of the tag: {alike.same_label:.1%}"
    if alike.mean_absolute_error is not None:
        yield f"mean absolute error: {alike.mean_absolute_error:.2f} of the scale's points"
        order = alike.rank_correlation
        none = "no figure: all grades or all ratings are the same"
        yield f"rank correlation: {none if order is None else f'{order:.3f} (1 is the same order)'}"


def _accuracy(found: Agreement) -> str:
    accuracy = found.balanced_accuracy
    return "no figure: a label group is empty" if accuracy is None else f"{accuracy:.3f} (0.5 is chance)"


def _print_members(measured: Measured, comparison: Comparison, alike: Callable[[Subject], Likeness]) -> None:
    title = "each model" if measured.combined else measured.members[0].title.rpartition(" by ")[0]
    good, bad = comparison.names
    rated = ("balanced accuracy", f"{good} passes", f"{bad} passes") if comparison.is_rated else ()
    graded = ("mean error", "rank correlation") if comparison.scale is not None else ()
    same = ("very label",) if comparison.has_own_labels else ()
    table = Table("model", *rated, *graded, *same, "unscored", "cost", title=escape(title))
    for one in measured.members:
        like, found = alike(one), agreement(one.judged)
        cells = [_figure(like.mean_absolute_error), _figure(like.rank_correlation)] if graded else []
        cells += [_figure(like.same_label)] if same else []
        unscored = found.unscored if rated else one.without_score
        table.add_row(
            escape(one.judge_model),
            *(_rates(found) if rated else ()),
            *cells,
            reasons_in_words(unscored),
            cost_in_words(one.cost_usd, has_price=one.price is not None) if one.pays else "none",
        )
    print_table(OUT, table)


def _rates(found: Agreement) -> tuple[str, str, str]:
    yes = f"{found.true_pass:,} of {found.true_pass + found.false_fail:,}"
    no = f"{found.false_pass:,} of {found.false_pass + found.true_fail:,}"
    return _figure(found.balanced_accuracy), yes, no


def _print_groups(subject: Subject, tag: str) -> None:
    table = Table(escape(tag), "passes", "scored", "share", "mean", "unscored", title=escape(subject.title))
    for label, group in shares(subject.judged).items():
        share = "-" if group.share is None else f"{group.share:.1%}"
        unscored = reasons_in_words(group.unscored)
        table.add_row(escape(label), f"{group.passed:,}", f"{group.scored:,}", share, _figure(group.mean), unscored)
    print_table(OUT, table)


def _print_notes(measured: Measured) -> None:
    """Say why there is no score, the commonest reasons first."""
    for note, count in measured.notes.items():
        OUT.print(f"  {count:,} x {note}", markup=False, highlight=False, soft_wrap=True)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
