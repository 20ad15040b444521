"""`tracejudge evaluate`: the judges of the worker, offline, on the traces of a file."""

import asyncio
import os
import stat
import sys
import time
from contextlib import closing
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from judges.agreement.combine import Combine
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes
from worker.cli.evaluate.offline import Offline, open_graders
from worker.cli.evaluate.summary import judge_line, judge_row, metric_table, why_nothing
from worker.cli.evaluate.trace_files import note_unknown_fields, open_output, open_source
from worker.cli.options import (
    NOTES,
    OFFLINE,
    OUT,
    amount,
    note,
    offline_judges,
    print_json,
    print_line,
    print_table,
)


@click.command("evaluate")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--judge",
    "given",
    metavar="NAME|FILE",
    multiple=True,
    required=True,
    help="A judge of `tracejudge judges`, or the file of one of yours; repeatable.",
)
@click.option("--output", metavar="OUT", help="File for verdicts, a JSON object a line; '-' is standard output.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@OFFLINE
def command(
    file: str,
    given: tuple[str, ...],
    output: str | None,
    *,
    force: bool,
    tries: int,
    model_names: tuple[str, ...],
    combine: Combine | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Judge the traces of FILE, a JSON object a line ('-' is standard input), without Redis.

    Verdicts are those of the worker, in the order of the file; their origin is `replay`, their weight 1. Each is
    written as soon as it is ready, and Ctrl-C keeps those that are. A summary comes last. Several models give a verdict
    each; --combine adds one of all of them, with their disagreement.

    A judge of conversations gives one verdict on all lines with the same service, environment and session_id, after
    the verdicts on single traces.

    An existing OUT is overwritten with --force only, and FILE never.

    Transient failures (429, timeout, unreachable endpoint) are retried later and more slowly; a trace that still has no
    score is written as unscored. Exit code 1 when a line is not a trace or a judge scored nothing; 130 after Ctrl-C.
    """
    if as_json and output == "-":
        raise click.UsageError("--json and --output - both use standard output; give --output a file")
    settings, judges = offline_judges(config, *given)
    delays = DelayNotes(
        OFFLINE_PATIENCE_S, lambda text, s: note(text if s is None else f"{text}; trying again in {s:.0f} s")
    )
    graders = open_graders(settings, judges, model_names, delays, combine=combine, tries=tries)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
    # Verdicts and a bar on the same terminal would overwrite each other; a file needs no bar.
    hidden = not NOTES.is_terminal or (output == "-" and sys.stdout.isatty())
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=NOTES, disable=hidden)
    with open_source(file) as source, closing(open_output(output, source, force=force)) as out, bar as progress:
        status = os.fstat(source.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        task = progress.add_task(f"by {graders.in_words}", total=size, said="")
        began = time.perf_counter()
        offline = Offline(
            settings,
            judges,
            graders,
            on_invalid_line=lambda number, error: note(f"line {number}: {error}"),
            advance=lambda count, end: progress.update(task, completed=end, said=amount(count, "verdict")),
        )
        interrupted = False
        try:
            asyncio.run(offline.run(source, out))
        except KeyboardInterrupt:
            interrupted = True
        except OSError as error:
            raise click.ClickException(f"{file} cannot be read ({error.strerror})") from error
    _report(offline, graders.in_words, file, time.perf_counter() - began, as_json=as_json, aside=output == "-")
    if interrupted:
        NOTES.print("interrupted: not all traces are judged")
        raise KeyboardInterrupt
    sys.exit(_exit_code(offline))


def _report(offline: Offline, judge_models: str, file: str, seconds: float, *, as_json: bool, aside: bool) -> None:
    if as_json:
        costs = [one.cost_usd for one in offline.sums if one.cost_usd is not None]
        document = {
            "file": Path(file).name,
            "model": judge_models,
            "traces": offline.traces,
            "lines_skipped": offline.skipped,
            "seconds": seconds,
            "cost_usd": sum(costs) if costs else None,
            "judges": [judge_row(one) for one in offline.sums],
        }
        print_json(document)
        return
    # With verdicts on standard output the summary goes to standard error, since it is no line of theirs.
    console = NOTES if aside else OUT
    print_line(console, f"{amount(offline.traces, 'trace')} by {judge_models} in {seconds:.1f} s")
    print_table(console, metric_table(offline.sums))
    for one in offline.sums:
        print_line(console, judge_line(one))


def _exit_code(offline: Offline) -> int:
    """Print what a script must know, and choose the exit code."""
    if offline.skipped:
        NOTES.print(f"skipped {amount(offline.skipped, 'line')} without a trace")
    note_unknown_fields(offline.unknown)
    empty = [one for one in offline.sums if not one.outcomes["scored"]]
    if len(empty) == len(offline.sums):
        note(f"nothing was scored: {why_nothing(empty)}")
        return 1
    for one in empty:
        note(f"{one.name} scored nothing: {why_nothing([one])}")
    return 1 if offline.skipped or empty else 0
