"""`tracejudge forget`: erase a trace, a session or a person."""

import sys
from typing import Final

import click
import msgspec

from worker.base.commands.options import JSON, NOTES, OUT, REDIS, connect, counts_table, note, print_json
from worker.base.forget.forget import ErasureCounts, ForgetTarget, forget_everywhere
from worker.base.lookup.lookup import TraceLookup, TraceNotFoundError
from worker.core.config.serving import UserKeys
from worker.core.config.settings import Settings
from worker.core.features import find_exporters
from worker.core.storage.client import Store, StoreError

_MEANINGS: Final = {
    "traces": "in the stream",
    "feedback": "in the stream, or waiting for its trace",
    "gathered": "in conversations that wait to be judged",
    "evaluations": "in batches; the accounting counts them as removed",
    "dead_letters": "the accounting counts them as removed",
    "verdicts": "in the outbox; the accounting keeps their count",
    "labels": "with the verdicts on their traces",
    "examples": "of open incidents",
    "archived": "lines of the archives on this machine",
}
_KEPT: Final = (
    "Redis keeps the record of ended evaluations until it expires: hashes, no texts and no names",
    "receivers that earlier settings named keep the spans and events that were sent: erase them there, by trace id",
    "logs keep trace ids until they are rotated; the lists of invalid entries and of fields left out, for a week",
    "Prometheus and messages of alerts keep trace ids that were examples of incidents",
    "entries of the stream that are no JSON cannot be attributed; they expire with `retention`",
    "a batch that a worker holds now may still be sent to its judge model; no verdict is written",
    "anything that services publish from now on is new: stop them first, or run this again",
)


@click.command("forget")
@click.option("--trace-id", metavar="ID", help="The trace to erase; the first 6 characters are enough.")
@click.option("--user-id", metavar="ID", help="The end user to erase, with all traces of theirs.")
@click.option("--session-id", metavar="ID", help="The conversation to erase, with all its traces.")
@click.option("--dry-run", is_flag=True, help="Count what would be erased, and erase nothing.")
@REDIS
@JSON
def command(
    *,
    trace_id: str | None,
    user_id: str | None,
    session_id: str | None,
    dry_run: bool,
    config: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Erase a trace, a session or a person from the stream, waiting feedback, batches, dead letters, verdicts, labels.

    Workers may keep running, and the command may be repeated. Use the workers' configuration: verdicts hold a hash of
    the end user, made with `user_key`, the key that was made in Redis, or one of `user_keys_former`. A part of a trace
    that names another user is not erased. The verdict on a conversation is erased with any of its traces.

    Exit code 0 on success, 1 if nothing of the id is found, or an entry could not be read because another version of
    tracejudge wrote it, 2 on wrong usage.

    \b
    Examples:
      tracejudge forget --trace-id 4bf92f3577b34da6a3ce929d0e0e4736
      tracejudge forget --user-id u-1729 --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are
    if sum(map(bool, (trace_id, user_id, session_id))) != 1:
        raise click.UsageError("give one of --trace-id, --user-id and --session-id")
    settings, store = connect(config, redis_url, needs_all=True)
    user_keys = UserKeys(settings, store).all() if user_id else ()
    names = {"trace_id": trace_id or None, "user_id": user_id or None, "session_id": session_id or None}
    forgotten = _forget(store, settings, ForgetTarget(**names, user_keys=user_keys), dry_run=dry_run)
    reason = f"nothing is stored of {trace_id or user_id or session_id}"
    if not forgotten.total and trace_id:
        # Something may be left of a whole id that no verdict and no trace has any more, so that was tried first.
        try:
            name = TraceLookup(store, settings).resolve(trace_id)
        except TraceNotFoundError as error:
            reason = error.message
        else:
            note(f"{trace_id} is the beginning of {name}")
            forgotten = _forget(store, settings, ForgetTarget(trace_id=name), dry_run=dry_run)
    if not (forgotten.total or forgotten.unreadable or as_json):
        raise click.ClickException(reason)
    exporters = find_exporters(settings).values()
    kept = (*filter(None, (exporter.retained_data(settings) for exporter in exporters)), *_KEPT)
    if as_json:
        print_json({**msgspec.to_builtins(forgotten), "dry_run": dry_run, "kept": kept})
    else:
        rows = ((field, getattr(forgotten, field), meaning) for field, meaning in _MEANINGS.items())
        OUT.print(counts_table("What would be erased" if dry_run else "Erased", rows))
        if forgotten.unsettled:
            NOTES.print("new work of the trace or person kept appearing: run this again")
        if forgotten.unreadable:
            others = f"{forgotten.unreadable:,} batches or dead letters"
            NOTES.print(f"{others} are of another version of tracejudge: use its `forget`")
        # To prove an erasure, a user needs the places that this command does not reach.
        NOTES.print("Not erased:")
        for line in kept:
            note(f"- {line}")
    sys.exit(0 if forgotten.total and not forgotten.unreadable and not forgotten.unsettled else 1)


def _forget(store: Store, settings: Settings, target: ForgetTarget, *, dry_run: bool) -> ErasureCounts:
    with NOTES.status("") as status:
        try:
            return forget_everywhere(
                store,
                settings,
                target,
                dry_run=dry_run,
                progress=lambda place, seen: status.update(f"searching {place}: {seen:,}"),
            )
        except (KeyboardInterrupt, StoreError):
            NOTES.print("stopped; not all is erased, run it again")
            raise
        except OSError as error:
            what = f"{error.filename}: {error.strerror}; not all is erased, make it writable and run this again"
            raise click.ClickException(what) from error
