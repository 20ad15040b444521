"""`tracejudge judges test`: how far a judge agrees with labelled traces."""

import asyncio
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from judges.combine import Combine
from judges.judge import Judge
from worker.cli.evaluate.askers import Wanted, open_askers
from worker.cli.evaluate.asking import Waiting
from worker.cli.judges.checking import MAX_UNSCORED, Minimum, exit_code
from worker.cli.judges.comparing import Comparison, chosen_metric, compared
from worker.cli.judges.measuring import Labelled, measure
from worker.cli.judges.report import print_agreement, print_shares
from worker.cli.offline_settings import offline_settings
from worker.cli.options import COMBINE, CONFIG, JSON, MODELS, PATIENCE_S, TRIES, judges_named, with_judge_files
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
    help="Tag with the right answer: yes (should pass) or no, a label of the judge's own, or a grade on its scale.",
)
@click.option("--invert", is_flag=True, help="Take yes in the tag for what should fail.")
@click.option("--by", metavar="TAG", help="Tag that says something else: prints the share of passes per value.")
@click.option(
    "--metric", metavar="METRIC", help="Which of the judge's metrics; the first with a pass rule unless given."
)
@click.option("--min", "accuracy", type=click.FloatRange(0, 1), help="Exit code 1 below this balanced accuracy.")
@click.option(
    "--max-unscored",
    type=click.FloatRange(0, 1),
    help=f"With --min: exit code 1 where a larger share of the traces is unscored.  [default: {MAX_UNSCORED}]",
)
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
    invert: bool,
    metric: str | None,
    accuracy: float | None,
    max_unscored: float | None,
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

    Exit code 0 on success. 1 when nothing was scored and, with --min, when the balanced accuracy is below it, some
    traces could not be asked about, or too many are unscored. 2 on wrong usage: a mistake in the judge, the
    configuration or an option, a line that is no trace, a tag that no trace has or that cannot be compared.
    """
    tag = label or by
    if tag is None:
        raise click.UsageError("give --label TAG (agreement, with --min if wanted) or --by TAG (shares)")
    if label and by:
        raise click.UsageError("give --label or --by, not both")
    if by and (accuracy is not None or invert):
        raise click.UsageError(f"{'--invert' if invert else '--min'} is about an agreement: it goes with --label")
    if max_unscored is not None and accuracy is None:
        raise click.UsageError("--max-unscored goes with --min")
    settings, names = with_judge_files(offline_settings(config), given)
    (judge,) = judges_named(settings, *names)
    labelled = _labelled(traces, tag)
    if label:
        comparison = compared(judge, metric, labelled, tag, invert=invert)
    else:
        comparison = _shares(judge, metric, labelled, tag)
    if accuracy is not None and not comparison.is_rated:
        raise click.UsageError(f"--min needs a pass rule, and the metric {comparison.metric} has none")
    askers = open_askers(settings, (judge,), Wanted(model_names, combine, tries), Waiting(PATIENCE_S))
    measured = asyncio.run(measure(judge, comparison.metric, askers, comparison.labelled))
    if by:
        print_shares(measured, by, as_json=as_json, is_comparable=comparison.is_rated)
    else:
        print_agreement(measured, comparison, tag, as_json=as_json)
    minimum = None if accuracy is None else Minimum(accuracy, MAX_UNSCORED if max_unscored is None else max_unscored)
    sys.exit(exit_code(measured, minimum, rated=label is not None and comparison.is_rated))


def _shares(judge: Judge, metric: str | None, labelled: Sequence[Labelled], tag: str) -> Comparison:
    """Take labels as they are, and find out whether they could be compared as well."""
    chosen = chosen_metric(judge, metric)
    try:
        compared(judge, metric, labelled, tag)
    except click.UsageError:
        return Comparison(chosen.name, labelled, is_rated=False)
    return Comparison(chosen.name, labelled)


class _TracesError(click.ClickException):
    """The traces are not what a test needs; a judge that fails its test has another exit code."""

    exit_code = 2


def _labelled(files: Sequence[TextIO], tag: str) -> list[Labelled]:
    """Take the traces with a tag.

    Raises:
        _TracesError: A line is no trace, or none has the tag.
    """
    found = []
    for file in files:
        for line in read_traces(file):
            if line.trace is None:
                raise _TracesError(f"{file.name}: line {line.number} {line.error}")
            if line.trace.tags and tag in line.trace.tags:
                found.append(Labelled(line.trace, line.trace.tags[tag]))
    if not found:
        raise _TracesError(f"no trace of {', '.join(file.name for file in files)} has the tag {tag!r}")
    return found
