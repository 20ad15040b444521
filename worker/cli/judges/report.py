"""Print what `judges test` found, as one JSON document or as a table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from rich.markup import escape
from rich.table import Table

from judges.agreement import Agreement, Judged, Share
from judges.judge import Judge
from judges.models.model import ModelSettings
from worker.cli.options import OUT, reasons_in_words
from worker.seats import CODE

__all__ = ["Subject", "print_agreement", "print_shares"]


class Subject(NamedTuple):
    """Which judge was measured by which model, at which metric, and on what."""

    judge: Judge
    metric: str
    model: ModelSettings
    judged: Sequence[Judged]

    @property
    def judge_model(self) -> str:
        """Who judged: the model, or the judge's own code."""
        return self.model.judge_model if self.judge.run is None else CODE.judge_model

    @property
    def cost_usd(self) -> float | None:
        """What all calls cost; None without a price, which is not free."""
        price = self.model.price
        if price is None:
            return None
        calls = [call for one in self.judged for call in one.assessment.calls]
        return price.cost_usd(sum(call.input_tokens for call in calls), sum(call.output_tokens for call in calls))

    @property
    def is_graded(self) -> bool:
        """Tell whether the metric has more values than 0 and 1, so that a mean says more than the passes."""
        return any(one.score is not None and one.score.value not in (0.0, 1.0) for one in self.judged)

    @property
    def title(self) -> str:
        """Name it above a table."""
        metric = "" if self.metric == self.judge.name else f" {self.metric}"
        return f"{self.judge.name}{metric} by {self.judge_model}"

    @property
    def head(self) -> dict[str, object]:
        """Name it in JSON."""
        return {
            "judge": self.judge.name,
            "metric": self.metric,
            "version": self.judge.version,
            "model": self.judge_model,
            "traces": len(self.judged),
            "cost_usd": self.cost_usd,
        }


def print_agreement(subject: Subject, result: Agreement, *, as_json: bool, same_label: float | None = None) -> None:
    """Print the confusion matrix and what follows from it.

    Args:
        same_label: The share with the very label of the tag, where that holds the judge's own labels.
    """
    accuracy = result.balanced_accuracy
    if as_json:
        alike = {} if same_label is None else {"same_label": same_label}
        figures = {**subject.head, "balanced_accuracy": accuracy, **alike, **result._asdict()}
        print(msgspec.json.encode(figures).decode())
        return
    table = Table("label", "judged pass", "judged fail", title=escape(subject.title))
    rows = (
        ("yes", result.true_pass, result.false_fail, result.mean_yes),
        ("no", result.false_pass, result.true_fail, result.mean_no),
    )
    if subject.is_graded:
        table.add_column("mean value")
    for label, passed, failed, mean in rows:
        table.add_row(label, f"{passed:,}", f"{failed:,}", *([_mean(mean)] if subject.is_graded else []))
    OUT.print(table)
    said = "no figure: a label group is empty" if accuracy is None else f"{accuracy:.3f} (0.5 is chance)"
    OUT.print(f"balanced accuracy: {said}")
    if same_label is not None:
        OUT.print(f"the very label of the tag: {same_label:.1%}")
    OUT.print(f"unscored: {reasons_in_words(result.unscored)}; cost: {_cost(subject)}")


def print_shares(subject: Subject, groups: Mapping[str, Share], tag: str, *, as_json: bool) -> None:
    """Print how many pass under each value of the tag."""
    if as_json:
        found = {label: {**group._asdict(), "share": group.share} for label, group in groups.items()}
        print(msgspec.json.encode({**subject.head, "by": tag, "groups": found}).decode())
        return
    table = Table(escape(tag), "passes", "scored", "share", "mean", "unscored", title=escape(subject.title))
    for label, group in groups.items():
        share = "-" if group.share is None else f"{group.share:.1%}"
        unscored = reasons_in_words(group.unscored)
        table.add_row(escape(label), f"{group.passed:,}", f"{group.scored:,}", share, _mean(group.mean), unscored)
    OUT.print(table)
    said = f"Shares per value of {tag!r}, and no agreement: for that say --label {tag}. Cost: {_cost(subject)}"
    OUT.print(said, markup=False)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cost(subject: Subject) -> str:
    return "no price set" if subject.cost_usd is None else f"{subject.cost_usd:.4f} USD"
