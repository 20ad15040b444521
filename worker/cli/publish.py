"""`tracejudge publish`: traces from a file into the stream, each line as it stands."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

import click
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.ids import fresh_id
from tracejudge.log import DeliveryError
from worker.cli.evaluate.trace_files import note_unknown_fields, open_source, split_lines, trace_of
from worker.cli.options import NOTES, REDIS, amount, connect, note, with_retries
from worker.config.loading import producer_settings
from worker.config.settings import MIB, Settings
from worker.storage.client import StoreError

_CHUNK: Final = 500
# One command holds a chunk in memory here and in Redis.
_CHUNK_BYTES: Final = 4 * MIB
_MAX_SHOWN: Final = 10
_TRIES: Final = 5


@click.command("publish")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@REDIS
def command(file: str, config: str | None, redis_url: str | None) -> None:
    """Publish the traces of FILE, a JSON object a line ('-' is standard input).

    Each line goes into the stream unchanged, so a line that is published twice is judged once, and its verdict has the
    evaluation id that `tracejudge evaluate` gives it. Exit code 1 when a line is not a trace or Redis did not accept
    everything.
    """
    settings, store = connect(config, redis_url)
    # The connection only proved that Redis answers; batches go through the SDK's own, which makes them count once.
    store.close()
    batches = _Batches(settings)
    published, wrong, chunk, size = 0, 0, list[bytes](), 0
    unknown: Counter[str] = Counter()
    columns = (*Progress.get_default_columns()[:1], MofNCompleteColumn(), TimeElapsedColumn())
    with open_source(file) as source, Progress(*columns, console=NOTES) as progress:
        task = progress.add_task("publishing", total=None)
        try:
            for line in split_lines(source, settings.max_trace_bytes):
                entry = trace_of(line, settings.max_trace_bytes)
                if isinstance(entry, str):
                    wrong += 1
                    if wrong <= _MAX_SHOWN:
                        note(f"line {line.number}: {entry}")
                    continue
                unknown.update(entry.unknown)
                chunk.append(line.payload)
                size += len(line.payload)
                if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
                    published += batches.send(chunk)
                    chunk, size = [], 0
                    progress.update(task, completed=published)
            published += batches.send(chunk)
            progress.update(task, completed=published)
        except StoreError:
            NOTES.print(f"{amount(published, 'trace')} published; not all arrived")
            raise
    note_unknown_fields(unknown)
    NOTES.print(f"{amount(published, 'trace')} published, {amount(wrong, 'line')} skipped")
    sys.exit(1 if wrong else 0)


class _Batches:
    """Numbered batches of one producer, as the SDK sends them: a batch that is sent twice is stored once."""

    def __init__(self, settings: Settings) -> None:
        sdk = producer_settings(settings, "tracejudge-publish")
        self._stream = RedisStream(sdk, fresh_id())
        self._number = 0

    def send(self, payloads: Sequence[bytes]) -> int:
        """Append traces; return how many."""
        if not payloads:
            return 0
        self._number += 1
        entries = tuple(Entry(Kind.TRACE, payload) for payload in payloads)
        batch = Batch(self._number, entries, items=len(entries), size_bytes=0, settles_through=0, flush_ticket=0)
        try:
            with_retries(lambda: self._stream.append(batch, meanwhile=lambda: None), DeliveryError, _TRIES)
        except DeliveryError as error:
            raise StoreError(str(error)) from error
        return len(payloads)
