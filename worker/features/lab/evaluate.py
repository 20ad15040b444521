"""`tracejudge evaluate`: the judges of the worker, offline, on the traces of a file, or on pairs from two files."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from judges.core.combine import Combine
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes
from worker.base.commands.options import (
    INPUT,
    NOTES,
    OUT,
    amount,
    note,
    offline_judges,
    print_json,
    print_line,
    print_table,
)
from worker.base.commands.progress import Meter, file_size
from worker.base.commands.trace_files import note_unknown_fields, open_output, open_source
from worker.features.lab.compare import Comparison, comparing
from worker.features.lab.gate import GATE, Gate, check_files, deciding
from worker.features.lab.offline import OFFLINE, Offline, open_graders, refuse_unconfigured
from worker.features.lab.summary import judge_line, judge_row, metric_table, why_nothing


@click.command("evaluate")
@click.argument("file", type=INPUT)
@click.option(
    "--judge",
    "judge_names",
    metavar="NAME|FILE",
    multiple=True,
    help="A judge of `tracejudge judges`, or the file of one of yours; repeatable.",
)
@click.option(
    "--compare",
    "compared_file",
    metavar="A",
    type=INPUT,
    help="Compare the answers of FILE, B, with those of the file A, pair by pair.",
)
@click.option("--criterion", metavar="TEXT", help="With --compare: what makes an answer better, in words.")
@click.option("--output", metavar="OUT", help="File for verdicts, a JSON object a line; '-' is standard output.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.option("--resume", is_flag=True, help="Go on with OUT of an interrupted run: what it has is not judged again.")
@GATE
@OFFLINE
def command(
    file: str,
    judge_names: tuple[str, ...],
    compared_file: str | None,
    criterion: str | None,
    output: str | None,
    *,
    force: bool,
    resume: bool,
    tries: int,
    model_names: tuple[str, ...],
    combine: Combine | None,
    config: str | None,
    as_json: bool,
    **gate_options: Any,
) -> None:
    """Judge the traces of FILE, a JSON object a line ('-' is standard input), without Redis.

    Verdicts are those of the worker, in the order of the file; their origin is `replay`, their weight 1. Each is
    written as soon as it is ready, and Ctrl-C keeps those that are. A summary comes last. Several models give a verdict
    each; --combine adds one of all of them, with their disagreement.

    A judge of conversations gives one verdict on all lines with the same service, environment and session_id, after
    the verdicts on single traces.

    `evaluate --compare A B` compares two answers to each request instead, joined by trace_id or input: by correctness
    and helpfulness, by --criterion, or by the measure of each --judge. Each pair is asked about twice, with the
    positions swapped; a preference that follows the position is a tie.

    An existing OUT is overwritten with --force only, and FILE never; the same holds for A. --resume adds to OUT what it
    lacks, and judges again what failed for a passing reason; judges, versions and models must be the same.

    --fail-under ends with 0 if the lower 95 % limit is above the share, 1 if the upper one is below, else 3; rows
    without a score are fails for the lower, passes for the upper. --baseline: 1 if the whole interval is below 0.

    Transient failures (429, timeout, unreachable endpoint) are retried later and more slowly; a trace that still has no
    score is written as unscored. Exit code 1 when a line is not a trace or has no partner, or a judge scored nothing;
    130 after Ctrl-C.
    """
    if as_json and output == "-":
        raise click.UsageError("--json and --output - both use standard output; give --output a file")
    check_files(file, output, gate_options, as_json=as_json, force=force)
    resumable = None if output in {None, "-"} or compared_file is not None else output
    _check_resume(resumable, resume=resume, force=force)
    _check_comparison(file, judge_names, compared_file, criterion, combine)
    settings, named = offline_judges(config, *judge_names, models=model_names)
    judges = named if compared_file is None else comparing(named, criterion)
    delays = DelayNotes(
        OFFLINE_PATIENCE_S, lambda text, s: note(text if s is None else f"{text}; trying again in {s:.0f} s")
    )
    graders = open_graders(settings, judges, model_names, delays, combine=combine, tries=tries)
    # Verdicts and a bar on the same terminal would overwrite each other.
    hidden = output == "-" and sys.stdout.isatty()
    with ExitStack() as opened:
        source = opened.enter_context(open_source(file))
        first = [] if compared_file is None else [opened.enter_context(open_source(compared_file))]
        out = opened.enter_context(closing(open_output(output, source, *first, force=force, resume=resume)))
        size = file_size(source)
        meter = opened.enter_context(Meter(f"judging by {graders.in_words}", "verdict", total=size, hidden=hidden))
        began = time.perf_counter()

        def invalid(number: int, error: str) -> None:
            note(f"line {number}: {error}")

        def advance(count: int, end: int) -> None:
            total = offline.total if isinstance(offline, Comparison) else size
            meter.update(count, done=end, total=total, cost_usd=sum(row.cost_usd or 0.0 for row in offline.sums))

        offline = (
            Comparison(settings, judges, graders, *first, on_paired=out.open, on_invalid_line=invalid, advance=advance)
            if first
            else Offline(settings, judges, graders, on_invalid_line=invalid, advance=advance)
        )
        gate = Gate(offline.sums, gate_options)
        refuse_unconfigured(deciding(gate_options), settings, judges, graders, model_names)
        offline.on_verdict = gate.add
        offline.skip_written(resumable if resume else None)
        interrupted = False
        if not first:
            out.open()
        try:
            asyncio.run(offline.run(source, out))
        except KeyboardInterrupt:
            interrupted = True
        except OSError as error:
            which = " or ".join(name for name in (compared_file, file) if name is not None)
            raise click.ClickException(f"{which} cannot be read ({error.strerror})") from error
    files = [Path(name).name for name in (compared_file, file) if name is not None]
    seconds = time.perf_counter() - began
    _report(offline, gate, graders.in_words, files, seconds, as_json=as_json, aside=output == "-")
    for text in offline.resumed_notes(output):
        note(text)
    if interrupted:
        note("interrupted: not all traces are judged" + ("; --resume goes on" if resumable else ""))
        raise KeyboardInterrupt
    what = f"{amount(offline.traces, 'trace')} of {files[-1]} by {graders.in_words}"
    sys.exit(gate.finish(_problems(offline), what))


def _check_resume(output: str | None, *, resume: bool, force: bool) -> None:
    if resume and (force or output is None):
        raise click.UsageError("--resume needs --output FILE, and goes neither with --force nor with --compare")


def _check_comparison(
    file: str, judges: tuple[str, ...], compared: str | None, criterion: str | None, combine: Combine | None
) -> None:
    """Refuse options that do not go together."""
    if compared is None:
        if not judges:
            raise click.MissingParameter(param_hint="'--judge'", param_type="option")
        if criterion is not None:
            raise click.UsageError("--criterion is for --compare; leave it out, or give the file A by --compare")
        return
    if combine is not None:
        raise click.UsageError("--combine does not go with --compare; several --model have a result each")
    if compared == file == "-":
        raise click.UsageError("--compare and FILE both read standard input; give one of them a file")
    if criterion is not None and not criterion.strip():
        raise click.UsageError("--criterion is empty; say in words what makes an answer better, or leave it out")


def _report(
    offline: Offline, gate: Gate, judge_models: str, files: Sequence[str], seconds: float, *, as_json: bool, aside: bool
) -> None:
    compared = offline if isinstance(offline, Comparison) else None
    if as_json:
        costs = [row.cost_usd for row in offline.sums if row.cost_usd is not None]
        document = {
            "file": files[-1],
            **({"compared_with": files[0]} if compared is not None else {}),
            "model": judge_models,
            "traces": offline.traces,
            "lines_skipped": offline.skipped,
            "seconds": seconds,
            "cost_usd": sum(costs) if costs else None,
            **({"judges": [judge_row(row) for row in offline.sums]} if compared is None else compared.document()),
            **({"gate": findings} if (findings := gate.findings()) else {}),
        }
        print_json(document)
    if as_json or not offline.traces:
        return
    # With verdicts on standard output the summary goes to standard error, since it is no line of theirs.
    console = NOTES if aside else OUT
    if compared is None:
        print_line(console, f"{amount(offline.traces, 'trace')} by {judge_models} in {seconds:.1f} s")
        print_table(console, metric_table(offline.sums))
        sentences = [*map(judge_line, offline.sums), *(finding["text"] for finding in gate.findings())]
    else:
        names = f"A = {files[0]}, B = {files[1]}"
        print_line(console, f"{amount(offline.traces, 'pair')} by {judge_models} in {seconds:.1f} s; {names}")
        print_table(console, compared.table())
        sentences = [*compared.lines()]
    for line in sentences:
        print_line(console, line)


def _problems(offline: Offline) -> list[str]:
    """Print what a script must know, and return what makes the exit code 1."""
    problems = [f"skipped {amount(offline.skipped, 'line')} without a trace"] if offline.skipped else []
    if isinstance(offline, Comparison) and not offline.is_matched:
        alone = f"{amount(offline.alone_a, 'row')} of A and {amount(offline.alone_b, 'row')} of B"
        problems.append(f"without partner, and left out: {alone}")
    empty = [row for row in offline.sums if not row.outcomes["scored"]]
    if len(empty) == len(offline.sums):
        problems.append(f"nothing was scored: {why_nothing(empty)}")
    else:
        problems += [f"{row.name} scored nothing: {why_nothing([row])}" for row in empty]
    note_unknown_fields(offline.unknown)
    for text in problems:
        note(text)
    return problems
