"""Read traces from a file or standard input, line by line, without holding up what is under way."""

import asyncio
import contextlib
import io
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from worker.cli.traces import read_traces
from worker.ingest.entries import TraceEntry, read_entry

__all__ = ["Line", "lines", "open_source", "split_lines", "trace_of"]

_AHEAD: Final = 8
"""Lines read and not yet taken: each may be of megabytes."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One line that is not empty, without its line break, and how far into the file it reaches."""

    number: int
    payload: bytes
    end: int


@contextlib.contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; `-` is standard input."""
    # Not sys.stdin: a thread that waits in it when the process ends, as after Ctrl-C, would bring the end down.
    source = os.fdopen(os.dup(0), "rb") if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    try:
        yield source
    finally:
        # A pipe goes with the process: closing it would wait for the thread that waits for its next line.
        if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source.close()


async def lines(source: BinaryIO, max_bytes: int) -> AsyncIterator[Line]:
    """Yield the lines that are not empty.

    A thread reads: standard input may keep it waiting, while evaluations go on.

    Args:
        max_bytes: How long a trace may be; of a longer line only one byte more is kept.
    """
    loop, found = asyncio.get_running_loop(), asyncio.Queue[Line | OSError | None]()
    places, ended = threading.Semaphore(_AHEAD), threading.Event()

    def put(item: Line | OSError | None) -> bool:
        places.acquire()
        if not ended.is_set():
            loop.call_soon_threadsafe(found.put_nowait, item)
        return not ended.is_set()

    def read() -> None:
        last: OSError | None = None
        # The loop or the file may be closed at any step: then nobody asks any more.
        with contextlib.suppress(RuntimeError, ValueError):
            try:
                if not all(map(put, split_lines(source, max_bytes))):
                    return
            except OSError as error:
                last = error
            put(last)

    threading.Thread(target=read, name="tracejudge-lines", daemon=True).start()
    try:
        while (item := await found.get()) is not None:
            places.release()
            if isinstance(item, OSError):
                raise item
            yield item
    finally:
        ended.set()
        places.release()


def trace_of(line: Line, max_bytes: int) -> TraceEntry | str:
    """Read a trace as the worker would read it from the stream, or say what is wrong with the line."""
    entry = read_entry((b"-", {b"v": b"1", b"t": line.payload}), max_bytes)
    if isinstance(entry, TraceEntry):
        return entry
    if len(line.payload) > max_bytes:
        return f"is longer than max_trace_bytes: {max_bytes:,} bytes"
    # The stream only counts what is wrong; a person is told where.
    for told in read_traces(io.StringIO(line.payload.decode("utf-8", "surrogateescape"))):
        if told.error is not None:
            return told.error
    return "is no trace: an empty or overlong trace_id or service, or nested too deeply"


def split_lines(source: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """Yield the lines that are not empty; of one longer than ``max_bytes`` only so much that it is seen to be."""
    most, end, number = max_bytes + 2, 0, 0
    while first := source.readline(most):
        number, end, part = number + 1, end + len(first), first
        while part and not part.endswith(b"\n"):
            part = source.readline(most)
            end += len(part)
        is_whole = len(first) < most or first.endswith(b"\n")
        if number == 1:
            first = first.removeprefix(_BYTE_ORDER_MARK)
        payload = first.strip() if is_whole else first
        if payload:
            yield Line(number, payload, end)
