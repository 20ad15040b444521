"""`tracejudge search` and `tracejudge export`: find verdicts in the outbox, and save their traces as a data set."""

import itertools
import sys
from typing import Any, Final, get_args

import click
import msgspec

from judges.core.verdict import Origin
from worker.base.commands.options import (
    JSON,
    NOTES,
    OUT,
    PATTERNS,
    REDIS,
    amount,
    connect,
    moments,
    note,
    options,
    output_file,
    print_json,
)
from worker.base.lookup.lookup import MAX_TRACES, Dataset, TraceLookup, scan_verdicts
from worker.base.lookup.tail import verdict_line
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter, VerdictOutcome
from worker.core.config.settings import Settings
from worker.core.storage.client import Store

FILTER: Final = options(
    PATTERNS,
    click.option("--failed", is_flag=True, help="Only what did not pass or has no score, abstained included."),
    click.option(
        "--outcome",
        "outcomes",
        multiple=True,
        type=click.Choice(get_args(VerdictOutcome)),
        help="Only this outcome; repeatable.",
    ),
    click.option("--origin", type=click.Choice(get_args(Origin)), help="Only verdicts of this origin."),
    click.option("--text", metavar="TEXT", help="Only traces with this text in question, answer, documents, messages."),
    click.option("--trace-id", metavar="ID", help="Only this trace; the first 6 characters are enough."),
    click.option("--since", metavar="TIME", help="Only verdicts since then: 15m, 24h, or 2026-05-01T12:00:00Z."),
    click.option("--until", metavar="TIME", help="Only verdicts until then."),
)
"""The options that select verdicts, of `search` and `export`."""


def verdict_filter(settings: Settings, store: Store, **selection: Any) -> VerdictFilter:
    """Make the filter of the options, which searches the stream for a text, or raise ``TraceNotFoundError``."""
    text, trace_id = selection.pop("text"), selection.pop("trace_id")
    if selection.pop("failed"):
        if selection["outcomes"]:
            raise click.UsageError("give --failed or --outcome, not both")
        selection["outcomes"] = FAILED
    times = moments(store, since=selection.pop("since"), until=selection.pop("until"))
    lookup, trace_ids = TraceLookup(store, settings), None
    if trace_id is not None:
        trace_ids = frozenset({lookup.resolve(trace_id)})
    if text is not None:
        if not text.strip():
            raise click.UsageError("--text is empty; leave it out, or write what the trace contains")
        with NOTES.status("searching the texts of traces"):
            names, searched_ms = lookup.find_with_text(text, times["since"], times["until"])
        if searched_ms is not None:
            note(f"more than {MAX_TRACES:,} traces contain this text: only the newest are searched")
        trace_ids = names if trace_ids is None else trace_ids & names
    return VerdictFilter(**selection, trace_ids=trace_ids, since_ms=times["since"], until_ms=times["until"])


@click.command("search")
@FILTER
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="End after the newest N verdicts.",
)
@REDIS
@JSON
def command(*, limit: int, config: str | None, redis_url: str | None, as_json: bool, **selection: Any) -> None:
    """Find verdicts, the newest first.

    Verdicts are searched in the outbox, texts in the stream: as long as both hold them. `tracejudge show` prints a
    trace that was found. With --json each line is a verdict; `dead` is true for an evaluation that was given up.

    Exit code 0 on success, 1 if nothing is found, 2 on wrong usage.

    \b
    Examples:
      tracejudge search --judge groundedness --failed --since 24h
      tracejudge search --service "support-*" --text refund
    """  # noqa: D301 - click's mark for lines that stay as they are
    settings, store = connect(config, redis_url)
    selected = verdict_filter(settings, store, **selection)
    count = 0
    for entry in itertools.islice(scan_verdicts(store, selected), limit):
        count += 1
        if as_json:
            print_json({**msgspec.to_builtins(entry.verdict), "dead": entry.kind == "d"})
        else:
            OUT.print(verdict_line(entry, with_date=True), soft_wrap=True)
    if not count:
        raise click.ClickException("no verdict of the outbox fits; `tracejudge tail --no-follow` prints the newest")
    if count == limit:
        note(f"{amount(count, 'verdict')}, the newest; --limit shows more")


@click.command("export")
@FILTER
@click.option("--labelled", is_flag=True, help="Only traces with a human label.")
@click.option("--output", "path", metavar="FILE", help="The file to write; standard output unless given.")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=100_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Save at most N traces, those of the newest verdicts.",
)
@REDIS
@JSON
def export(
    *,
    labelled: bool,
    path: str | None,
    limit: int,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
    **selection: Any,
) -> None:
    """Save whole traces with their verdicts and labels, as JSON lines that `evaluate` and `judges test` read.

    A line is a trace as it was published, redacted by `[redact]`. `verdicts` are those of the filter, and `labels` are
    all of the trace. The tag JUDGE or JUDGE.METRIC is a label too, so `judges test JUDGE FILE --label JUDGE` compares.
    Traces whose text is gone are counted; those with a label stay as copies unless `keep_labelled` is off.

    Exit code 0 on success, 1 if no trace is saved, 2 on wrong usage.

    \b
    Examples:
      tracejudge export --judge safety --failed --since 24h --output failed.jsonl
      tracejudge export --labelled > labelled.jsonl
    """  # noqa: D301 - click's mark for lines that stay as they are
    if as_json and path is None:
        raise click.UsageError("--json prints the counts: add --output for the traces")
    settings, store = connect(config, redis_url)
    selected = verdict_filter(settings, store, **selection)
    saved = 0
    with NOTES.status("searching verdicts and traces"):
        dataset = Dataset(store, settings, selected, limit=limit, labelled=labelled)
    with output_file(path) as file:
        for row in dataset.rows():
            file.write(msgspec.json.encode(row).decode() + "\n")
            saved += 1
    gone, is_limited = len(dataset.verdicts) - saved, len(dataset.verdicts) == limit
    if as_json:
        print_json({"traces": saved, "gone": gone, "limited": is_limited})
    else:
        lost = f"; the text of {gone:,} more is gone from the stream" if gone else ""
        more = f"; --limit {limit:,} left out further ones" if is_limited else ""
        note(f"saved {amount(saved, 'trace')}{lost}{more}")
    sys.exit(0 if saved else 1)
