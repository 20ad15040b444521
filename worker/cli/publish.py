"""`tracejudge publish`: traces from a file, through the SDK, into the stream."""

import sys
from collections.abc import Iterator
from typing import NamedTuple, TextIO

import click
import msgspec
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

import tracejudge
from tracejudge.encoding import MAX_ENTRY_BYTES
from worker.cli.options import CONFIG, NOTES, REDIS_URL, open_store, settings_from

__all__ = ["Line", "command", "read_traces"]

_FLUSH_EVERY = 2000
_FLUSH_EVERY_BYTES = 8 * 1024 * 1024
_SDK_ADDS_BYTES = 1024
_FLUSH_TIMEOUT_S = 60.0
_MAX_SHOWN = 10


class Line(NamedTuple):
    """One line of a file: a trace, or what is wrong with it."""

    number: int
    trace: tracejudge.Trace | None
    error: str | None


@click.command("publish")
@click.argument("file", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@CONFIG
@REDIS_URL
def command(file: TextIO, config: str | None, redis_url: str | None) -> None:
    """Publish the traces of FILE, a JSON object a line ('-' is standard input).

    Exit code 1 when a line is no trace or Redis did not take everything.
    """
    settings = settings_from(config, {"redis_url": redis_url})
    open_store(settings).close()
    tracejudge.init(
        service="tracejudge-publish",
        redis_url=settings.redis_url,
        prefix=settings.prefix,
        disabled=False,
        max_stream=settings.max_stream,
        max_items=2 * _FLUSH_EVERY,
        max_bytes=256 * 1024 * 1024,
    )
    limit = min(settings.max_trace_bytes, MAX_ENTRY_BYTES) - _SDK_ADDS_BYTES
    published, unsent_bytes, wrong, delivered = 0, 0, 0, True
    columns = (*Progress.get_default_columns()[:1], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=NOTES) as progress:
        task = progress.add_task("publishing", total=None)
        for line in read_traces(file):
            size = len(msgspec.json.encode(line.trace))
            if line.trace is None or size > limit:
                wrong += 1
                if wrong <= _MAX_SHOWN:
                    error = line.error or f"is longer than max_trace_bytes: {size:,} bytes"
                    NOTES.print(f"line {line.number}: {error}", markup=False, soft_wrap=True)
                continue
            tracejudge.publish(line.trace)
            published += 1
            unsent_bytes += size
            progress.update(task, completed=published)
            # Never faster than Redis: from a file nothing may be dropped for a full buffer.
            if published % _FLUSH_EVERY == 0 or unsent_bytes > _FLUSH_EVERY_BYTES:
                unsent_bytes = 0
                if not tracejudge.flush(_FLUSH_TIMEOUT_S):
                    delivered = False
                    break
    delivered = tracejudge.flush(_FLUSH_TIMEOUT_S) and delivered
    tracejudge.shutdown()
    NOTES.print(f"{published:,} traces published, {wrong:,} lines skipped" + ("" if delivered else "; not all arrived"))
    sys.exit(1 if wrong or not delivered else 0)


def read_traces(file: TextIO) -> Iterator[Line]:
    """Read traces from JSON lines; empty lines are passed over."""
    decoder = msgspec.json.Decoder(tracejudge.Trace)
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            yield Line(number, decoder.decode(text), None)
        except msgspec.ValidationError as error:
            yield Line(number, None, f"is no trace: {error}")
        except UnicodeEncodeError:
            yield Line(number, None, "is not UTF-8")
        except (msgspec.DecodeError, RecursionError):
            yield Line(number, None, "is no JSON")
