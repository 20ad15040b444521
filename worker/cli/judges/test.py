"""`tracejudge judges test`: how far a judge agrees with labelled traces."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, TextIO

import click
from rich.progress import MofNCompleteColumn, Progress

import tracejudge
from judges.agreement import Judged, agreement, is_known_label, shares
from judges.judge import Judge
from judges.verdict import PASSING_REASONS
from worker.cli.evaluate.asking import Asker, Waiting
from worker.cli.evaluate.order import in_order
from worker.cli.judges.own_labels import passing, same_label
from worker.cli.judges.report import Subject, print_agreement, print_shares
from worker.cli.options import (
    CONFIG,
    JSON,
    MODEL,
    NOTES,
    PATIENCE_S,
    TRIES,
    judges_named,
    open_model,
    settings_from,
    with_judge_files,
)
from worker.cli.traces import read_traces
from worker.limits.model import LimitedModel
from worker.redaction import Redaction

__all__ = ["test"]


class Labelled(NamedTuple):
    """A trace and the value of its tag."""

    trace: tracejudge.Trace
    label: str


@click.command("test")
@click.argument("given", metavar="NAME|FILE")
@click.argument(
    "traces",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    nargs=-1,
    required=True,
    metavar="TRACES...",
)
@click.option(
    "--label",
    metavar="TAG",
    help="Tag with the right answer, yes or no or a label of the judge's own: prints the agreement.",
)
@click.option("--by", metavar="TAG", help="Tag that says something else: prints the share of passes per value.")
@click.option(
    "--metric", metavar="METRIC", help="Which of the judge's metrics; the first with a pass rule unless given."
)
@click.option("--min", "minimum", type=click.FloatRange(0, 1), help="Exit code 1 below this balanced accuracy.")
@TRIES
@MODEL
@CONFIG
@JSON
def test(
    given: str,
    traces: tuple[TextIO, ...],
    label: str | None,
    by: str | None,
    *,
    metric: str | None,
    minimum: float | None,
    tries: int,
    model_name: str,
    config: str | None,
    as_json: bool,
) -> None:
    """Run a judge over the labelled TRACES, a JSON object a line, and compare.

    The judge is one of `tracejudge judges` by its name, or one of yours by its file.
    Traces without the tag are left out. Unscored traces are counted by reason and are in no other figure.
    """
    tag = label or by
    if tag is None:
        raise click.UsageError("give --label TAG (agreement, with --min if wanted) or --by TAG (shares)")
    if label and by:
        raise click.UsageError("give --label or --by, not both")
    if by and minimum is not None:
        raise click.UsageError("--min compares an agreement: it goes with --label")
    settings, names = with_judge_files(settings_from(config), given)
    (judge,) = judges_named(settings, *names)
    chosen = _metric(judge, metric, rated=label is not None)
    labelled = [one for file in traces for one in _labelled(file, tag)]
    if not labelled:
        raise click.ClickException(f"no trace of {', '.join(file.name for file in traces)} has the tag {tag!r}")
    own = {} if label is None or all(is_known_label(one.label) for one in labelled) else passing(judge)
    if label:
        labelled = [one._replace(label=_yes_or_no(one.label, own, tag)) for one in labelled]
    model = open_model(settings, model_name, tries, Waiting(PATIENCE_S))
    asker = Asker(model, Redaction.of(settings.redact))
    judged = asyncio.run(_judge_all(judge, chosen, model, asker, labelled))
    subject = Subject(judge, chosen, model.settings, judged)
    if by:
        print_shares(subject, shares(judged), tag, as_json=as_json)
        return
    result = agreement(judged)
    print_agreement(subject, result, as_json=as_json, same_label=same_label(judged, tag) if own else None)
    sys.exit(_exit_code(judged, result.balanced_accuracy, minimum))


def _metric(judge: Judge, name: str | None, *, rated: bool) -> str:
    """Choose the metric to look at.

    Raises:
        click.UsageError: The judge has no such metric, or none that passes where that is needed.
    """
    passing = [metric.name for metric in judge.metrics if metric.pass_rule is not None]
    if name is not None and name not in judge.metric_names:
        raise click.UsageError(f"{judge.name} has no metric {name!r}; its metrics are {', '.join(judge.metric_names)}")
    if rated and not passing:
        raise click.UsageError(f"no metric of {judge.name} has a pass rule to compare with labels; --by prints means")
    if rated and name is not None and name not in passing:
        raise click.UsageError(f"the metric {name} has no pass rule to compare with labels; {', '.join(passing)} has")
    return name or (passing or judge.metric_names)[0]


def _yes_or_no(label: str, own: Mapping[str, bool], tag: str) -> str:
    """Take a label that says yes or no, or say it of a label of the judge's own by whether that passes.

    Raises:
        click.UsageError: It is neither.
    """
    if own and label.casefold() in own:
        return "yes" if own[label.casefold()] else "no"
    if own or not is_known_label(label):
        wanted = f"those of the judge, {', '.join(own)}" if own else "yes and no"
        raise click.UsageError(f"the tag {tag!r} holds other values than {wanted}; --by {tag} prints shares")
    return label


def _labelled(file: TextIO, tag: str) -> list[Labelled]:
    found = []
    for line in read_traces(file):
        if line.trace is None:
            raise click.ClickException(f"{file.name}: line {line.number} {line.error}")
        if line.trace.tags and tag in line.trace.tags:
            found.append(Labelled(line.trace, line.trace.tags[tag]))
    return found


async def _judge_all(
    judge: Judge, metric: str, model: LimitedModel, asker: Asker, labelled: Sequence[Labelled]
) -> list[Judged]:
    judged: list[Judged] = []
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=NOTES) as progress:
        task = progress.add_task(judge.name, total=len(labelled))

        async def each() -> AsyncIterator[Labelled]:
            for one in labelled:
                yield one

        async def work(one: Labelled) -> Judged:
            asked = await asker.ask(judge, one.trace)
            progress.advance(task)
            return Judged(one.trace, one.label, asked.assessment, metric)

        try:
            await in_order(each(), work, judged.append, window=max(1, len(labelled)))
        finally:
            await model.aclose()
            if judge.close is not None:
                await judge.close()
    return judged


def _exit_code(judged: Sequence[Judged], accuracy: float | None, minimum: float | None) -> int:
    if all(one.passed is None for one in judged):
        notes = sorted({one.assessment.note for one in judged if one.assessment.note})
        NOTES.print(f"nothing was scored: {'; '.join(notes)}", markup=False, soft_wrap=True)
        return 1
    away = sorted({one.left_out for one in judged} & PASSING_REASONS)
    if minimum is not None and away:
        NOTES.print(f"some traces are not judged ({', '.join(away)}): no check without them")
        return 1
    if minimum is not None and (accuracy is None or accuracy < minimum):
        NOTES.print(f"balanced accuracy is below {minimum}")
        return 1
    return 0
