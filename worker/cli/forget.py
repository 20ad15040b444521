"""`tracejudge forget`: erase a trace or a person."""

import sys
from typing import Final

import click
import msgspec
from rich.table import Table

from worker.cli.options import CONFIG, JSON, NOTES, OUT, REDIS_URL, open_store, settings_from
from worker.forget.forgetting import Forgetting, Forgotten
from worker.forget.subject import Subject
from worker.settings import Settings
from worker.store import StoreError, address

__all__ = ["command"]

_MEANINGS: Final = {
    "traces": "in the stream",
    "feedback": "in the stream, or gathered",
    "evaluations": "in batches; in the books they are removed",
    "dead_letters": "in the books they are removed",
    "verdicts": "in the outbox; the books keep their count",
}
_KEPT: Final = (
    "Redis keeps, until they expire, which evaluations have ended: hashes, no texts and no names",
    "Prometheus keeps counts, and exemplars with trace ids",
    "logs keep trace ids, until they are rotated",
    "entries of the stream that are no JSON name nobody; they go with `retention`",
    "a batch that a worker holds just now may still reach its judge model; no verdict is written",
    "what services publish from now on is new: stop them first, or run this again",
)
_SENT: Final = "{endpoint} keeps the spans and events that were sent: erase them there, by trace id"
_UNKNOWN_ENDPOINT: Final = "an OpenTelemetry backend"


@click.command("forget")
@click.option("--trace-id", metavar="ID", help="The trace to erase.")
@click.option("--user-id", metavar="ID", help="The end user to erase, with all traces of theirs.")
@click.option("--dry-run", is_flag=True, help="Count what would be erased, and erase nothing.")
@CONFIG
@REDIS_URL
@JSON
def command(
    *,
    trace_id: str | None,
    user_id: str | None,
    dry_run: bool,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Erase a trace or a person from the stream, gathered feedback, batches, dead letters and verdicts.

    Workers may go on meanwhile, and it may be run again. Use their configuration: of end users verdicts hold a hash,
    which depends on `sampling_key`. A part of a trace that names another user is not this person's. Exit code 1 when
    something could not be read, as another version of tracejudge wrote it.

    \b
    Examples:
      tracejudge forget --trace-id 4bf92f3577b34da6a3ce929d0e0e4736
      tracejudge forget --user-id u-1729 --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are
    if bool(trace_id) == bool(user_id):
        raise click.UsageError("say either --trace-id or --user-id")
    settings = settings_from(config, {"redis_url": redis_url})
    store = open_store(settings)
    subject = Subject(settings, trace_id=trace_id or None, user_id=user_id or None)
    with NOTES.status("") as status:
        forgetting = Forgetting(
            store,
            settings,
            subject,
            dry_run=dry_run,
            progress=lambda place, seen: status.update(f"looking through {place}: {seen:,}"),
        )
        try:
            forgetting.run()
        except (KeyboardInterrupt, StoreError):
            NOTES.print("stopped; not all is erased, run it again")
            raise
    _report(forgetting.found, settings, dry_run=dry_run, as_json=as_json)
    sys.exit(1 if forgetting.found.unreadable or forgetting.found.unsettled else 0)


def _report(found: Forgotten, settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    endpoint = address(settings.otlp_endpoint) if settings.otlp_endpoint else _UNKNOWN_ENDPOINT
    kept = (_SENT.format(endpoint=endpoint), *_KEPT)
    if as_json:
        counts: dict[str, object] = msgspec.to_builtins(found)
        print(msgspec.json.encode({**counts, "dry_run": dry_run, "kept": kept}).decode())
        return
    OUT.print(_table(found, dry_run=dry_run))
    if found.unsettled:
        NOTES.print("new work of theirs kept appearing: run this again")
    if found.unreadable:
        NOTES.print(f"{found.unreadable:,} batches or letters are of another version of tracejudge: run its `forget`")
    NOTES.print("What stays:")
    for line in kept:
        NOTES.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)


def _table(found: Forgotten, *, dry_run: bool) -> Table:
    title = "What would be erased" if dry_run else "Erased"
    table = Table(title=title, show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for field, meaning in _MEANINGS.items():
        table.add_row(field, f"{getattr(found, field):,}", meaning)
    return table
