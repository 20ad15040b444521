"""Sums of an evaluation by judge and metric. They are running sums: a file may hold millions of traces."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.markup import escape
from rich.table import Table

from judges.core.judge import RESULT, Judge
from judges.core.verdict import Score, Verdict
from judges.custom.variables import declared_labels
from worker.base.commands.options import reasons_in_words

# Limit of different notes that are kept: some hold a number, so there could be one for each trace.
_MAX_NOTES: Final = 20


@dataclass
class _MetricSum:
    scored: int = 0
    valueless: int = 0  # Results without a value, such as texts.
    value: float = 0.0
    rated: int = 0
    passed: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, score: Score) -> None:
        self.scored += 1
        self.value += score.value
        self.rated += score.passed is not None
        self.passed += score.passed is True
        # A judge's own labels; a combined verdict may have others.
        if score.label is not None and score.label in self.labels:
            self.labels[score.label] += 1

    @property
    def mean(self) -> float | None:
        valued = self.scored - self.valueless
        return self.value / valued if valued else None

    @property
    def share_passed(self) -> float | None:
        return self.passed / self.rated if self.rated else None


@dataclass
class JudgeSum:
    """The sums of one judge by one judge model; lines name the model if ``is_named``, since there are several."""

    judge: Judge
    judge_model: str
    metric_names: Sequence[str]
    is_named: bool = False
    is_combined: bool = False  # Combined verdicts have no cost: those that they combine have it.
    is_free: bool = False
    has_price: bool = False
    evaluations: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    unscored: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    # Verdicts with requests of unknown cost: no price is set, or the endpoint did not report its tokens.
    costless: int = 0
    seconds: float = 0.0  # Of calls.
    waited_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Create all metrics and labels, so that one without any score is shown."""
        self.metrics = {name: _MetricSum() for name in self.metric_names}
        if self.judge.metrics:
            own = dict.fromkeys(declared_labels(self.judge).values(), 0)
            self.metrics[self.judge.metric_names[0]].labels.update(own)

    @property
    def name(self) -> str:
        """Its name in lines."""
        return f"{self.judge.name} by {self.judge_model}" if self.is_named else self.judge.name

    def add(self, verdict: Verdict) -> None:
        """Add a verdict of this judge."""
        self.evaluations += 1
        self.outcomes[verdict.outcome] += 1
        self.input_tokens += verdict.input_tokens
        self.output_tokens += verdict.output_tokens
        self.seconds += verdict.seconds
        self.waited_seconds += verdict.duration_s - verdict.seconds
        # A combined verdict costs nothing by itself; a zero would look like the cost of all.
        if verdict.cost_usd is not None and not self.is_combined:
            self.cost_usd = (self.cost_usd or 0.0) + verdict.cost_usd
        self.costless += verdict.cost_usd is None and bool(verdict.calls)
        for score in verdict.scores:
            self.metrics.setdefault(score.metric, _MetricSum()).add(score)
        if RESULT in verdict.details and not verdict.scores:
            for metric in self.metrics.values():
                metric.scored += 1
                metric.valueless += 1
        if verdict.outcome == "unscored":
            self.unscored[str(verdict.reason)] += 1
            if verdict.note and (verdict.note in self.notes or len(self.notes) < _MAX_NOTES):
                self.notes[verdict.note] += 1


def judge_row(row: JudgeSum) -> dict[str, object]:
    """Lay out the sums of a judge for JSON; figures without data are null."""
    return {
        "judge": row.judge.name,
        "version": row.judge.version,
        "model": row.judge_model,
        "evaluations": row.evaluations,
        "scored": row.outcomes["scored"],
        "abstained": row.outcomes["abstained"],
        "unscored": dict(sorted(row.unscored.items())),
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "cost_usd": row.cost_usd,
        "mean_seconds": row.seconds / row.evaluations if row.evaluations else None,
        "mean_waited_seconds": row.waited_seconds / row.evaluations if row.evaluations else None,
        "metrics": {
            name: {
                "scored": metric.scored,
                "mean": metric.mean,
                "share_passed": metric.share_passed,
                **({"labels": dict(metric.labels)} if metric.labels.total() else {}),
            }
            for name, metric in row.metrics.items()
        },
    }


def metric_table(sums: Sequence[JudgeSum]) -> Table:
    """Lay out the scores, a row a metric."""
    table = Table("metric", box=None, padding=(0, 2, 0, 0))
    for name in ("scored", "mean", "passed"):
        table.add_column(name, justify="right")
    for row in sums:
        for name, metric in row.metrics.items():
            label = name if name == row.judge.name else f"{row.judge.name} {name}"
            label = f"{label} by {row.judge_model}" if row.is_named else label
            mean = "-" if metric.mean is None else f"{metric.mean:.3f}"
            share = "-" if metric.share_passed is None else f"{metric.share_passed:.1%}"
            table.add_row(escape(label), f"{metric.scored:,}", mean, share)
    return table


def judge_line(row: JudgeSum) -> str:
    """Summarise a judge in one line: scores, labels, tokens, cost and time."""
    fared = (
        f"{row.name}: {row.outcomes['scored']:,} scored, {row.outcomes['abstained']:,} abstained, "
        f"unscored {reasons_in_words(row.unscored)}"
    )
    labels = (", ".join(f"{n:,} {label}" for label, n in each.labels.items() if n) for each in row.metrics.values())
    spent = f"{row.seconds / max(1, row.evaluations):.2f} s each"
    if (waited_s := row.waited_seconds / max(1, row.evaluations)) >= 0.05 and not row.is_free:  # noqa: PLR2004 - a trace needs this between calls
        spent += f" and {waited_s:.2f} s of waiting"
    if not row.is_free:
        cost = cost_in_words(row.cost_usd, has_price=row.has_price)
        if row.cost_usd is not None and row.costless:
            cost += f" ({row.costless:,} not reported)"
        spent = f"{row.input_tokens:,} + {row.output_tokens:,} tokens, {cost}, {spent}"
    # Verdicts that combine others spend nothing themselves.
    return "; ".join(filter(None, (fared, *labels, "" if row.is_combined else spent)))


def cost_in_words(cost_usd: float | None, *, has_price: bool) -> str:
    """Write the cost, or why it is unknown."""
    if cost_usd is not None:
        return f"{cost_usd:.4f} USD"
    return "not reported" if has_price else "no price set"


def why_nothing(sums: Sequence[JudgeSum]) -> str:
    """Explain why some judges scored nothing, by their most common notes."""
    if not any(row.evaluations for row in sums):
        return "there was no trace"
    notes: Counter[str] = Counter()
    for row in sums:
        notes.update(row.notes)
    texts = [note for note, _ in notes.most_common(3)]
    return "; ".join(texts) or "the judge abstained each time"
