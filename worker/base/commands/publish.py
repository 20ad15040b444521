"""`tracejudge publish`: traces from a file into the stream, each line as it stands."""

import sys
from collections import Counter
from typing import Final

import click

from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.ids import fresh_id, place_of
from tracejudge.log import DeliveryError
from worker.base.commands.options import INPUT, JSON, NOTES, REDIS, amount, connect, note, print_json, with_retries
from worker.base.commands.progress import Meter, file_size
from worker.base.commands.trace_files import note_unknown_fields, open_source, split_lines, trace_of
from worker.core.config.reading import producer_settings
from worker.core.config.settings import MIB, Settings
from worker.core.selection.lenient import LeftOut
from worker.core.storage.client import StoreError

_CHUNK: Final = 500
# One command holds a chunk in memory here and in Redis.
_CHUNK_BYTES: Final = 4 * MIB
_MAX_SHOWN: Final = 10


@click.command("publish")
@click.argument("file", type=INPUT)
@REDIS
@JSON
def command(file: str, config: str | None, redis_url: str | None, *, as_json: bool) -> None:
    """Publish the traces of FILE: JSON lines ('-' is standard input), a JSON array or CSV.

    Each line goes into the stream unchanged, so a line that is published twice is judged once, and its verdict has the
    evaluation id that `tracejudge evaluate` gives it. Exit code 1 when a line is not a trace or Redis did not accept
    everything.
    """
    settings, store = connect(config, redis_url, needs_all=True)
    # The connection only proved that Redis answers; batches go through the SDK's own, which makes them count once.
    for partition in store.partitions:
        partition.close()
    sender = _Sender(settings)
    wrong = 0
    unknown: Counter[str | LeftOut] = Counter()
    with open_source(file) as source, Meter("publishing", "trace", total=file_size(source)) as meter:
        try:
            for line in split_lines(source, settings.max_trace_bytes):
                entry = line.error or trace_of(line, settings.max_trace_bytes)
                if isinstance(entry, str):
                    wrong += 1
                    if wrong <= _MAX_SHOWN:
                        note(f"line {line.number}: {entry}")
                    continue
                unknown.update((*entry.unknown, *entry.left_out))
                place = place_of(entry.trace.trace_id, entry.trace.session_id)
                if sender.add(Entry(Kind.TRACE, line.payload, place)):
                    meter.update(sender.published, done=line.end)
            sender.send()
        except StoreError:
            NOTES.print(f"{amount(sender.published, 'trace')} published; not all arrived")
            raise
    note_unknown_fields(unknown)
    if as_json:
        print_json({"published": sender.published, "lines_skipped": wrong})
    NOTES.print(f"{amount(sender.published, 'trace')} published, {amount(wrong, 'line')} skipped")
    sys.exit(1 if wrong else 0)


class _Sender:
    """Sends numbered batches of one producer, as the SDK does: a batch sent twice is stored once."""

    def __init__(self, settings: Settings) -> None:
        self.published = 0
        self._stream = RedisStream(producer_settings(settings, "tracejudge-publish"), fresh_id())
        self._number = self._size = 0
        self._chunk: list[Entry] = []

    def add(self, entry: Entry) -> bool:
        """Add a trace; return whether that sent a batch."""
        self._chunk.append(entry)
        self._size += len(entry.payload)
        is_full = len(self._chunk) >= _CHUNK or self._size >= _CHUNK_BYTES
        if is_full:
            self.send()
        return is_full

    def send(self) -> None:
        """Append the traces that were added."""
        if not self._chunk:
            return
        self._number += 1
        entries = tuple(self._chunk)
        batch = Batch(self._number, entries, items=len(entries), size_bytes=0, settles_through=0, flush_ticket=0)
        try:
            with_retries(lambda: self._stream.append(batch, meanwhile=lambda: None), DeliveryError, 5)
        except DeliveryError as error:
            raise StoreError(str(error)) from error
        self.published += len(entries)
        self._chunk, self._size = [], 0
