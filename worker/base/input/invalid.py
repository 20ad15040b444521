"""`tracejudge invalid`: list the last entries of the stream that were no traces."""

import time

import click
from rich.table import Table

from tracejudge.dialects.unread import ADVICE
from worker.base.commands.groups import SuggestingGroup
from worker.base.commands.options import JSON, NOTES, OUT, REDIS, amount, connect, plain, print_json, print_table
from worker.base.input.unusable import MAX_INVALID, read_invalid, read_unread


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

    Shown are the reason, the trace id, and the names in the payload. No text of an entry is kept. After them come the
    instrumentations whose spans no dialect reads, the commonest first, with the names of their attributes.

    \b
    Examples:
      tracejudge invalid list --limit 10
      tracejudge invalid list --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    _, store = connect(config, redis_url)
    rows, unread = read_invalid(store, limit), read_unread(store)
    if as_json:
        for row in (*rows, *unread):
            print_json(row)
        unread = []
    elif rows:
        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title in ("time", "reason", "detail", "trace id", "names"):
            table.add_column(title, overflow="fold")
        for row in rows:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.at))
            table.add_row(at, *map(plain, (row.reason, row.detail, row.trace_id or "", ", ".join(row.keys))))
        print_table(OUT, table)
    if unread:
        table = Table(box=None, padding=(0, 1), show_edge=False)
        for title in ("spans", "instrumentation", "attributes that no dialect reads"):
            table.add_column(title, overflow="fold")
        for kind in unread:
            table.add_row(f"{kind.spans:,}", *map(plain, (kind.instrumentation, ", ".join(kind.names))))
        print_table(OUT, table)
        NOTES.print(f"To have them read, {ADVICE}.")
    NOTES.print(f"{amount(len(rows), 'invalid entry') if len(rows) == 1 else f'{len(rows):,} invalid entries'}")
