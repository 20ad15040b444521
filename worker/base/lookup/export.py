"""`tracejudge export`: save the traces of verdicts as a data set."""

import sys
from typing import Any

import click
import msgspec

from worker.base.commands.options import JSON, NOTES, REDIS, amount, connect, note, output_file, print_json
from worker.base.lookup.lookup import Dataset
from worker.base.lookup.search import FILTER, verdict_filter


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
def command(
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
      tracejudge export --judge groundedness --failed --since 24h --output failed.jsonl
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
