"""`tracejudge invalid`: list the last entries of the stream that were no traces."""

import time

import click
from rich.table import Table

from worker.base.commands.groups import SuggestingGroup
from worker.base.commands.options import JSON, NOTES, OUT, REDIS, amount, connect, plain, print_json, print_table
from worker.base.input.unusable import MAX_INVALID, read_invalid


@click.group("invalid", cls=SuggestingGroup)
def command() -> None:
    """List the last entries of the stream that were no traces.

    \b
    Examples:
      tracejudge invalid list
    """  # noqa: D301 - click's mark for lines that stay as they are


@command.command("list")
@click.option("--limit", type=click.IntRange(1, MAX_INVALID), default=MAX_INVALID, metavar="N", help="How many.")
@REDIS
@JSON
def list_entries(*, config: str | None, redis_url: str | None, limit: int, as_json: bool) -> None:
    """List the last invalid entries, the newest first; with --json one on each line.

    Shown are the reason, the trace id, and the names in the payload. No text of an entry is kept.

    \b
    Examples:
      tracejudge invalid list --limit 10
      tracejudge invalid list --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    _, store = connect(config, redis_url)
    rows = read_invalid(store, limit)
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title in ("time", "reason", "detail", "trace id", "names"):
            table.add_column(title, overflow="fold")
        for row in rows:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.at))
            table.add_row(at, *map(plain, (row.reason, row.detail, row.trace_id or "", ", ".join(row.keys))))
        print_table(OUT, table)
    NOTES.print(f"{amount(len(rows), 'invalid entry') if len(rows) == 1 else f'{len(rows):,} invalid entries'}")
