"""`tracejudge judges test`: measure the agreement of a judge with labelled traces."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, TextIO

import click
import msgspec

from judges.agreement.labelled import Labelled, agreement
from judges.core.combine import Combine
from judges.core.judge import Judge, has_text
from judges.core.verdict import PASSING_REASONS
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes
from judges.parsing.rows import EMPTY_OUTPUT
from worker.base.commands.options import TRACE_FILE, amount, chosen_metric, note, offline_judges
from worker.base.commands.trace_files import Conversations, note_unknown_fields, read_traces
from worker.core.config.settings import Settings
from worker.core.selection.lenient import LeftOut
from worker.features.lab.measuring import (
    Comparison,
    Measured,
    Subject,
    compared,
    measure,
    print_agreement,
    print_shares,
)
from worker.features.lab.offline import OFFLINE, open_graders, refuse_unconfigured

MAX_UNSCORED: Final = 0.1
_ROUNDING: Final = 1e-9  # The mean of the shares 17/20 and 19/20 is computed as slightly less than 0.9.


class Minimum(NamedTuple):
    """The requirements of ``--min``: the least balanced accuracy, and the largest share of unscored traces."""

    accuracy: float
    unscored: float = MAX_UNSCORED  # Abstaining is an answer and does not count.


def exit_code(measured: Measured, minimum: Minimum | None, *, rated: bool) -> int:
    """Print why the test fails, if it does, and choose the exit code; of several models each is named."""
    failures = [(subject, _failure(subject, minimum, rated=rated)) for subject in measured.checked]
    for subject, failure in failures:
        if failure is not None:
            note(f"{subject.by.judge_model}: {failure}" if len(measured.members) > 1 else failure)
    return int(any(failure is not None for _, failure in failures))


def _failure(subject: Subject, minimum: Minimum | None, *, rated: bool) -> str | None:
    if all((judged.passed if rated else judged.score) is None for judged in subject.judged):
        return "nothing was scored"
    if minimum is None:
        return None
    # A check that passes while an endpoint is down would hide a worse judge behind the outage.
    transient = sorted({judged.left_out for judged in subject.judged} & PASSING_REASONS)
    if transient:
        return f"some traces are not judged ({', '.join(transient)}): no check without them"
    cells, traces = agreement(subject.judged), len(subject.judged)
    # The traces with a score must not stand for all when many lack one.
    reasons = {reason: count for reason, count in cells.unscored.items() if reason != "abstained"}
    unscored = sum(reasons.values())
    if unscored > (minimum.unscored + _ROUNDING) * traces:
        most = max(sorted(reasons), key=reasons.__getitem__)
        text = f"{unscored / traces:.1%} of the traces are unscored, most of them {most}"
        return f"{text}; --max-unscored allows {minimum.unscored:.1%}"
    accuracy = cells.balanced_accuracy
    if accuracy is None:
        group = "fail" if cells.true_pass + cells.false_fail else "pass"
        return f"there is no balanced accuracy: no trace with a score should {group}; --min needs both groups"
    return f"balanced accuracy is below {minimum.accuracy}" if accuracy < minimum.accuracy - _ROUNDING else None


@click.command("test")
@click.argument("judge_name", metavar="NAME|FILE")
@click.argument("traces", type=TRACE_FILE, nargs=-1, required=True, metavar="TRACES...")
@click.option(
    "--label",
    metavar="TAG",
    help="Tag with the right answer: yes (should pass) or no, a label of the judge's own, or a grade on its scale.",
)
@click.option("--invert", is_flag=True, help="Yes in the tag means that the trace should fail.")
@click.option("--by", metavar="TAG", help="Tag with other values: prints the share of passes for each.")
@click.option("--metric", metavar="METRIC", help="A metric of the judge; the first with a pass rule unless given.")
@click.option("--min", "accuracy", type=click.FloatRange(0, 1), help="Exit code 1 below this balanced accuracy.")
@click.option(
    "--max-unscored",
    type=click.FloatRange(0, 1),
    help=f"With --min: exit code 1 where a larger share of the traces is unscored.  [default: {MAX_UNSCORED}]",
)
@OFFLINE
def test(
    judge_name: str,
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
    """Judge the labelled TRACES, a JSON object a line, and compare the verdicts with the labels.

    The judge is one of `tracejudge judges` by its name, or one of yours by its file. Traces without the tag are left
    out. A judge of conversations gets the traces of each session together; the last tag of a conversation is its label.
    Unscored traces are counted by reason and are in no other figure.

    Several models are measured side by side; --combine measures their combined verdict. --min applies to the combined
    verdict, else to each model.

    Exit code 0 on success. 1 when nothing was scored and, with --min, when the balanced accuracy is below it, some
    traces were not judged, or too many are unscored. 2 on wrong usage: an error in the judge, the configuration or an
    option, a line that is not a trace, a tag that no trace has or that cannot be compared, --min without a
    configuration: the built-in heuristic would answer.
    """
    tag = label or by
    if tag is None:
        raise click.UsageError("give --label TAG (agreement, with --min if wanted) or --by TAG (shares)")
    if label and by:
        raise click.UsageError("give --label or --by, not both")
    if by and (accuracy is not None or invert):
        raise click.UsageError(f"{'--invert' if invert else '--min'} needs an agreement: use it with --label")
    if max_unscored is not None and accuracy is None:
        raise click.UsageError("--max-unscored needs --min")
    settings, (judge,) = offline_judges(config, judge_name, models=model_names)
    labelled = labelled_traces(traces, tag, settings, judge)
    if label:
        comparison = compared(judge, metric, labelled, tag, invert=invert)
    else:
        # Shares need no comparison; whether one is possible decides about the advice to use --label.
        comparison = Comparison(chosen_metric(judge, metric).name, labelled)
        try:
            compared(judge, metric, labelled, tag)
        except click.UsageError:
            comparison = comparison._replace(is_rated=False)
    if accuracy is not None and not comparison.is_rated:
        raise click.UsageError(f"--min needs a pass rule, and the metric {comparison.metric} has none")
    graders = open_graders(
        settings, (judge,), model_names, DelayNotes(OFFLINE_PATIENCE_S), combine=combine, tries=tries
    )
    refuse_unconfigured(None if accuracy is None else "--min", settings, (judge,), graders, model_names)
    measured = asyncio.run(measure(judge, comparison.metric, graders, comparison.labelled))
    if by:
        print_shares(measured, by, as_json=as_json, is_comparable=comparison.is_rated)
    else:
        print_agreement(measured, comparison, tag, as_json=as_json)
    minimum = None if accuracy is None else Minimum(accuracy, MAX_UNSCORED if max_unscored is None else max_unscored)
    sys.exit(exit_code(measured, minimum, rated=label is not None and comparison.is_rated))


class TracesError(click.ClickException):
    """The traces cannot be used; the exit code differs from that of a judge that fails its test."""

    exit_code = 2


def labelled_traces(files: Sequence[TextIO], tag: str, settings: Settings, judge: Judge) -> list[Labelled]:
    """Read the traces with a tag, or the conversations of which a trace has it; rows without an output are skipped."""
    conversations = Conversations(settings) if judge.unit == "session" else None
    labelled, tags, skipped, unknown = [], set[str](), 0, Counter[str | LeftOut]()
    for file in files:
        for number, trace in read_traces(file, settings.max_trace_bytes, unknown):
            if trace == EMPTY_OUTPUT:
                skipped += 1
                continue
            if isinstance(trace, str):
                raise TracesError(f"{file.name}: line {number} {trace}")
            tags.update(trace.tags or ())
            if conversations is not None and has_text(trace.session_id):
                conversations.add(trace, len(msgspec.json.encode(trace)))
            elif trace.tags and tag in trace.tags:
                labelled.append(Labelled(trace, trace.tags[tag]))
    del unknown[tag]
    note_unknown_fields(unknown)
    if skipped:
        note(f"{amount(skipped, 'row')} skipped: no output")
    joined = () if conversations is None else conversations.joined()
    labelled += [
        Labelled(joint.trace, joint.trace.tags[tag]) for joint in joined if joint.trace.tags and tag in joint.trace.tags
    ]
    if not labelled:
        shown = sorted(filter(str.isprintable, tags))[:20]
        there = f"the tags are {', '.join(shown)}" if shown else "no trace has any tag"
        raise TracesError(f"no trace of {', '.join(file.name for file in files)} has the tag {tag!r}; {there}")
    return labelled
