"""Print what `judges test` found, as one JSON document or as tables."""

from collections.abc import Callable, Mapping

import msgspec
from rich.markup import escape
from rich.table import Table

from judges.agreement import Agreement, agreement, shares
from worker.cli.judges.measuring import Measured, Subject
from worker.cli.judges.own_labels import same_label
from worker.cli.options import OUT, reasons_in_words

__all__ = ["print_agreement", "print_shares"]


def print_agreement(measured: Measured, tag: str, *, as_json: bool, own_labels: bool) -> None:
    """Print the confusion matrix and what follows from it; of several models a row each.

    Args:
        own_labels: Whether the tag holds the judge's own labels, so that these are compared too.
    """

    def alike(subject: Subject) -> float | None:
        # A combined verdict says whether it passes, in words that no judge declares.
        return same_label(subject.judged, tag) if own_labels and subject is not measured.combined else None

    if as_json:
        _print_document(measured, lambda subject: _figures(subject, alike(subject)))
        return
    if measured.whole is not None:
        _print_confusion(measured.whole, alike(measured.whole))
    if (disagreement := measured.disagreement) is not None:
        OUT.print(f"mean disagreement of the models: {disagreement:.3f}")
    if len(measured.members) > 1:
        _print_members(measured)
    _print_notes(measured)


def print_shares(measured: Measured, tag: str, *, as_json: bool) -> None:
    """Print how many pass under each value of the tag, by each model, and by what combines them."""
    if as_json:
        _print_document(measured, _groups, by=tag)
        return
    for subject in (*measured.members, measured.combined):
        if subject is not None:
            _print_groups(subject, tag)
    said = f"Shares per value of {tag!r}, and no agreement: for that say --label {tag}."
    asks = measured.members[0].asks
    OUT.print(f"{said} Cost: {_cost(measured.cost_usd)}" if asks else said, markup=False)
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


def _figures(subject: Subject, alike: float | None) -> Mapping[str, object]:
    found = agreement(subject.judged)
    same = {} if alike is None else {"same_label": alike}
    return {"balanced_accuracy": found.balanced_accuracy, **same, **found._asdict()}


def _groups(subject: Subject) -> Mapping[str, object]:
    return {
        "groups": {label: {**group._asdict(), "share": group.share} for label, group in shares(subject.judged).items()}
    }


def _print_confusion(subject: Subject, alike: float | None) -> None:
    found = agreement(subject.judged)
    table = Table("label", "judged pass", "judged fail", title=escape(subject.title))
    rows = (
        ("yes", found.true_pass, found.false_fail, found.mean_yes),
        ("no", found.false_pass, found.true_fail, found.mean_no),
    )
    if subject.is_graded:
        table.add_column("mean value")
    for label, passed, failed, mean in rows:
        table.add_row(label, f"{passed:,}", f"{failed:,}", *([_mean(mean)] if subject.is_graded else []))
    OUT.print(table)
    OUT.print(f"balanced accuracy: {_accuracy(found)}")
    if alike is not None:
        OUT.print(f"the very label of the tag: {alike:.1%}")
    cost = f"; cost: {_cost(subject.cost_usd)}" if subject.asks else ""
    OUT.print(f"unscored: {reasons_in_words(found.unscored)}{cost}")


def _accuracy(found: Agreement) -> str:
    accuracy = found.balanced_accuracy
    return "no figure: a label group is empty" if accuracy is None else f"{accuracy:.3f} (0.5 is chance)"


def _print_members(measured: Measured) -> None:
    title = "each model" if measured.combined else measured.members[0].title.rpartition(" by ")[0]
    table = Table("model", "balanced accuracy", "yes passes", "no passes", "unscored", "cost", title=escape(title))
    for one in measured.members:
        found = agreement(one.judged)
        accuracy = "-" if found.balanced_accuracy is None else f"{found.balanced_accuracy:.3f}"
        yes = f"{found.true_pass:,} of {found.true_pass + found.false_fail:,}"
        no = f"{found.false_pass:,} of {found.false_pass + found.true_fail:,}"
        unscored = reasons_in_words(found.unscored)
        table.add_row(escape(one.judge_model), accuracy, yes, no, unscored, _cost(one.cost_usd))
    OUT.print(table)


def _print_groups(subject: Subject, tag: str) -> None:
    table = Table(escape(tag), "passes", "scored", "share", "mean", "unscored", title=escape(subject.title))
    for label, group in shares(subject.judged).items():
        share = "-" if group.share is None else f"{group.share:.1%}"
        unscored = reasons_in_words(group.unscored)
        table.add_row(escape(label), f"{group.passed:,}", f"{group.scored:,}", share, _mean(group.mean), unscored)
    OUT.print(table)


def _print_notes(measured: Measured) -> None:
    """Say why there is no score, the commonest reasons first."""
    for note, count in measured.notes.items():
        OUT.print(f"  {count:,} x {note}", markup=False, highlight=False, soft_wrap=True)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cost(cost_usd: float | None) -> str:
    return "no price set" if cost_usd is None else f"{cost_usd:.4f} USD"
