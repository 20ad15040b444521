"""`tracejudge judges test`: how far a judge agrees with labelled traces."""

import asyncio
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from judges.agreement import agreement, is_known_label
from judges.combine import Combine
from judges.judge import Judge
from judges.verdict import PASSING_REASONS
from worker.cli.evaluate.askers import Wanted, open_askers
from worker.cli.evaluate.asking import Waiting
from worker.cli.judges.measuring import Labelled, Measured, Subject, measure
from worker.cli.judges.own_labels import passing
from worker.cli.judges.report import print_agreement, print_shares
from worker.cli.options import (
    COMBINE,
    CONFIG,
    JSON,
    MODELS,
    NOTES,
    PATIENCE_S,
    TRIES,
    judges_named,
    settings_from,
    with_judge_files,
)
from worker.cli.traces import read_traces

__all__ = ["test"]


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
@MODELS
@COMBINE
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
    model_names: tuple[str, ...],
    combine: Combine | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Run a judge over the labelled TRACES, a JSON object a line, and compare.

    The judge is one of `tracejudge judges` by its name, or one of yours by its file.
    Traces without the tag are left out. Unscored traces are counted by reason and are in no other figure.

    Several models are measured side by side; --combine measures what their verdicts come to together, and --min is for
    that, else for each.
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
    askers = open_askers(settings, (judge,), Wanted(model_names, combine, tries), Waiting(PATIENCE_S))
    measured = asyncio.run(measure(judge, chosen, askers, labelled))
    if by:
        print_shares(measured, by, as_json=as_json)
    else:
        print_agreement(measured, tag, as_json=as_json, own_labels=bool(own))
    sys.exit(_exit_code(measured, minimum, rated=label is not None))


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


def _exit_code(measured: Measured, minimum: float | None, *, rated: bool) -> int:
    """Say what is no success, of several models with the name of each."""
    found = [(one, _complaint(one, minimum, rated=rated)) for one in measured.checked]
    for one, said in found:
        if said is not None:
            here = f"{one.judge_model}: " if len(measured.members) > 1 else ""
            NOTES.print(f"{here}{said}", markup=False, soft_wrap=True)
    return int(any(said is not None for _, said in found))


def _complaint(subject: Subject, minimum: float | None, *, rated: bool) -> str | None:
    """Say why this is no success; nothing where it is one."""
    if all((one.passed if rated else one.score) is None for one in subject.judged):
        return "nothing was scored"
    if minimum is None:
        return None
    away = sorted({one.left_out for one in subject.judged} & PASSING_REASONS)
    if away:
        return f"some traces are not judged ({', '.join(away)}): no check without them"
    accuracy = agreement(subject.judged).balanced_accuracy
    if accuracy is None or accuracy < minimum:
        return f"balanced accuracy is below {minimum}"
    return None
