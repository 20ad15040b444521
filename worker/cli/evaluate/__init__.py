"""`tracejudge evaluate`: the judges of the worker, offline, on the traces of a file."""

import asyncio
import os
import stat
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from judges.combine import Combine
from tracejudge import Trace
from worker.cli.evaluate.askers import Wanted, open_askers
from worker.cli.evaluate.asking import Waiting
from worker.cli.evaluate.lines import open_source
from worker.cli.evaluate.offline import Offline
from worker.cli.evaluate.output import open_output
from worker.cli.evaluate.summary import judge_line, judge_row, metric_table, why_nothing
from worker.cli.offline_settings import offline_settings
from worker.cli.options import (
    COMBINE,
    CONFIG,
    JSON,
    MODELS,
    NOTES,
    OUT,
    PATIENCE_S,
    TRIES,
    amount,
    judges_named,
    with_judge_files,
)
from worker.cli.whole import print_line, print_table
from worker.wording import nearest

__all__ = ["command"]

_MAX_UNKNOWN = 5


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
@click.option("--output", metavar="OUT", help="Where verdicts go, a JSON object a line; '-' is standard output.")
@click.option("--force", is_flag=True, help="Write over OUT where it is there.")
@TRIES
@MODELS
@COMBINE
@CONFIG
@JSON
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
    written as soon as it is ready, and Ctrl-C keeps what is. A summary comes last. Several models give a verdict each;
    --combine adds one of all of them, with their disagreement.

    An OUT that is there is not written over without --force, and FILE never.

    What may pass (429, timeout, endpoint away) is tried again, later and at a slower pace; what then still has no
    score is written as unscored. Exit code 1 when a line is no trace, or when a judge scored nothing; 130 after Ctrl-C.
    """
    if as_json and output == "-":
        raise click.UsageError("--json and --output - both want standard output; give --output a file")
    settings, names = with_judge_files(offline_settings(config), *given)
    judges = judges_named(settings, *names)
    askers = open_askers(settings, judges, Wanted(model_names, combine, tries), Waiting(PATIENCE_S, _waits))
    with open_source(file) as source, open_output(output, source, force=force) as out, _progress(output) as progress:
        task = progress.add_task(f"by {askers.in_words}", total=_size(source), said="")
        began = time.perf_counter()
        offline = Offline(
            settings,
            judges,
            askers,
            complain=_complain,
            advance=lambda count, end: progress.update(task, completed=end, said=amount(count, "verdict")),
        )
        interrupted = False
        try:
            asyncio.run(offline.run(source, out))
        except KeyboardInterrupt:
            interrupted = True
        except OSError as error:
            raise click.ClickException(f"{file} cannot be read ({error.strerror})") from error
    _report(offline, askers.in_words, file, time.perf_counter() - began, as_json=as_json, aside=output == "-")
    if interrupted:
        NOTES.print("interrupted: not all traces are judged")
        raise KeyboardInterrupt
    sys.exit(_exit_code(offline))


def _progress(output: str | None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
    # Verdicts and a bar on the same terminal would overwrite each other; a file needs no bar.
    hidden = not NOTES.is_terminal or (output == "-" and sys.stdout.isatty())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=NOTES, disable=hidden)


def _size(source: BinaryIO) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _complain(number: int, error: str) -> None:
    NOTES.print(f"line {number}: {error}", markup=False, soft_wrap=True)


def _waits(note: str, seconds: float) -> None:
    NOTES.print(f"{note}; trying again in {seconds:.0f} s", markup=False, soft_wrap=True)


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
        print(msgspec.json.encode(document).decode())
        return
    # With verdicts on standard output the summary would be no line of theirs.
    console = NOTES if aside else OUT
    title = f"{amount(offline.traces, 'trace')} by {judge_models} in {seconds:.1f} s"
    print_line(console, title)
    print_table(console, metric_table(offline.sums))
    for one in offline.sums:
        print_line(console, judge_line(one))


def _exit_code(offline: Offline) -> int:
    """Say what a script must know, and choose the exit code."""
    if offline.skipped:
        NOTES.print(f"skipped {amount(offline.skipped, 'line')} without a trace")
    for name, count in offline.unknown.most_common(_MAX_UNKNOWN):
        close = nearest(name, Trace.__struct_fields__) if name.isprintable() else ""
        NOTES.print(
            f"unknown field {name[:40]!r} in {amount(count, 'trace')}{close.partition('; known')[0]}", markup=False
        )
    empty = [one for one in offline.sums if not one.outcomes["scored"]]
    if len(empty) == len(offline.sums):
        NOTES.print(f"nothing was scored: {why_nothing(empty)}", markup=False, soft_wrap=True)
        return 1
    for one in empty:
        NOTES.print(f"{one.name} scored nothing: {why_nothing([one])}", markup=False, soft_wrap=True)
    return 1 if offline.skipped or empty else 0
