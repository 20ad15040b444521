"""Let a judge judge labelled traces: by one model, or by several, whose verdicts may be combined."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.progress import MofNCompleteColumn, Progress

from judges.agreement import Judged
from judges.combine import combine, metrics_of
from judges.judge import Judge
from judges.models.model import Price
from judges.verdict import Assessment
from tracejudge import Trace
from worker.cli.evaluate.askers import Askers
from worker.cli.evaluate.order import in_order
from worker.cli.options import NOTES

__all__ = ["Labelled", "Measured", "Subject", "measure"]

_MAX_NOTES: Final = 3


class Labelled(NamedTuple):
    """A trace and the value of its tag."""

    trace: Trace
    label: str


class Subject(NamedTuple):
    """What one judge model found at one metric of a judge.

    Attributes:
        judge_model: The model, `code`, or the name of several that are combined.
        price: Of the model, where it has one.
        pays: Whether it is asked for money: not so code, the built-in model, and what only combines.
    """

    judge: Judge
    metric: str
    judge_model: str
    price: Price | None
    judged: Sequence[Judged]
    pays: bool = True

    @property
    def cost_usd(self) -> float | None:
        """What all calls cost; None without a price, or where an answer came without its tokens: unknown, not free."""
        calls = [call for one in self.judged for call in one.assessment.calls]
        untold = any(call.status == "ok" and not call.input_tokens + call.output_tokens for call in calls)
        if self.price is None or untold:
            return None
        return self.price.cost_usd(sum(call.input_tokens for call in calls), sum(call.output_tokens for call in calls))

    @property
    def without_score(self) -> Mapping[str, int]:
        """Count what has no score by reason."""
        return dict(Counter(one.left_out for one in self.judged if one.score is None))

    @property
    def is_graded(self) -> bool:
        """Tell whether the metric has more values than 0 and 1, so that a mean says more than the passes."""
        return any(one.score is not None and one.score.value not in (0.0, 1.0) for one in self.judged)

    @property
    def title(self) -> str:
        """Name it above a table."""
        metric = "" if self.metric == self.judge.name else f" {self.metric}"
        return f"{self.judge.name}{metric} by {self.judge_model}"


class Measured(NamedTuple):
    """What all models found, and what that comes to together, where it is combined."""

    members: Sequence[Subject]
    combined: Subject | None

    @property
    def whole(self) -> Subject | None:
        """What stands for the judge: the combined verdicts, or those of the only model."""
        return self.combined or (self.members[0] if len(self.members) == 1 else None)

    @property
    def checked(self) -> Sequence[Subject]:
        """What a minimum is for."""
        return self.members if self.whole is None else (self.whole,)

    @property
    def cost_usd(self) -> float | None:
        """What all models cost together; None where none has a price."""
        costs = [cost for one in self.members if (cost := one.cost_usd) is not None]
        return sum(costs) if costs else None

    @property
    def has_price(self) -> bool:
        """Tell whether any model has a price."""
        return any(one.price is not None for one in self.members)

    @property
    def notes(self) -> dict[str, int]:
        """Count the commonest reasons why there is no score."""
        told = [one.assessment for subject in self.members for one in subject.judged]
        counts = Counter(one.note for one in told if one.outcome != "scored" and one.note)
        return dict(counts.most_common(_MAX_NOTES))

    @property
    def disagreement(self) -> float | None:
        """The mean disagreement of the models about the metric; None where nothing is combined."""
        if self.combined is None:
            return None
        judge, metric = self.combined.judge, self.combined.metric
        name = metrics_of(judge.metrics)[len(judge.metrics) + judge.metric_names.index(metric)].name
        found = [Judged(*one[:3], name).score for one in self.combined.judged]
        values = [score.value for score in found if score is not None]
        return sum(values) / len(values) if values else None


async def measure(judge: Judge, metric: str, askers: Askers, labelled: Sequence[Labelled]) -> Measured:
    """Judge all traces by all models."""
    members = askers.of(judge)
    found: list[Sequence[Assessment]] = []
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=NOTES, disable=not NOTES.is_terminal) as progress:
        task = progress.add_task(judge.name, total=len(labelled))

        async def work(one: Labelled) -> Sequence[Assessment]:
            asked = await asyncio.gather(*(asker.ask(judge, one.trace) for asker in members))
            progress.advance(task)
            return [each.assessment for each in asked]

        try:
            await in_order(_each(labelled), work, found.append, window=max(1, len(labelled)))
        finally:
            await askers.aclose((judge,))

    def judged(assessments: Iterable[Assessment]) -> Sequence[Judged]:
        return [Judged(one.trace, one.label, given, metric) for one, given in zip(labelled, assessments, strict=True)]

    names = [asker.judge_model for asker in members]
    subjects = [
        Subject(judge, metric, asker.judge_model, asker.price, judged(column), pays=not asker.is_free)
        for asker, column in zip(members, zip(*found, strict=True), strict=True)
    ]
    together = askers.combining(judge)
    if together is None:
        return Measured(subjects, None)
    combined = (combine(together.combine, dict(zip(names, each, strict=True)), judge.metrics) for each in found)
    return Measured(subjects, Subject(judge, metric, together.judge_model, None, judged(combined), pays=False))


async def _each(labelled: Sequence[Labelled]) -> AsyncIterator[Labelled]:
    for one in labelled:
        yield one
