"""Files of traces and verdicts: lines are read in a thread, so that a slow input does not block evaluations."""

import asyncio
import contextlib
import io
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, Final, NamedTuple

import click

from tracejudge import Trace
from worker.cli.options import amount, note, read_traces
from worker.config.errors import nearest
from worker.selection.stream_entry import TraceEntry, read_entry

# Lines read ahead: each may have megabytes.
_AHEAD: Final = 8
_MAX_UNKNOWN: Final = 5
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line that is not empty, without its line break, and the offset of its end in the file."""

    number: int
    payload: bytes
    end: int


@contextlib.contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; `-` is standard input."""
    # Not sys.stdin: a thread that reads it when the process ends, as after Ctrl-C, would crash the interpreter.
    source = os.fdopen(os.dup(0), "rb") if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    try:
        yield source
    finally:
        # A pipe is left open: closing it would block until the reading thread has its next line.
        if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source.close()


async def lines(source: BinaryIO, max_bytes: int) -> AsyncIterator[Line]:
    """Yield the lines that are not empty; a thread reads them, so that a slow input does not block the event loop.

    Of a line longer than ``max_bytes`` only so much is kept that it is seen to be too long.
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
        # The loop or the file may be closed at any step; the lines are not needed any more then.
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
    """Read a trace as the worker reads it from the stream, or return what is wrong with the line."""
    entry = read_entry((b"-", {b"v": b"1", b"t": line.payload}), max_bytes)
    if isinstance(entry, TraceEntry):
        return entry
    if len(line.payload) > max_bytes:
        return f"is longer than max_trace_bytes: {max_bytes:,} bytes"
    # The stream only counts invalid entries; here the user needs the reason.
    read = read_traces(io.StringIO(line.payload.decode("utf-8", "surrogateescape")))
    unknown = "is not a trace: an empty or overlong trace_id or service, or nested too deeply"
    return next((one.error for one in read if one.error is not None), unknown)


def note_unknown_fields(counts: Mapping[str, int]) -> None:
    """Print the most frequent fields that no trace has, each with a suggestion."""
    for name, count in Counter(counts).most_common(_MAX_UNKNOWN):
        close = nearest(name, Trace.__struct_fields__) if name.isprintable() else ""
        note(f"unknown field {name[:40]!r} in {amount(count, 'trace')}{close.partition('; known')[0]}")


def split_lines(source: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """Yield the lines that are not empty; of one longer than ``max_bytes`` only as much as shows that it is."""
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


class Output:
    """A file of lines, or nothing; it holds whole lines only at any time."""

    def __init__(self, file: IO[bytes] | None, name: str) -> None:
        """Wrap a file that is open for writing at its beginning; None discards all lines."""
        self._file = file
        self._name = name
        self._written = 0

    def write(self, line: bytes) -> None:
        """Write a line at once; when that fails, remove its beginning and raise ClickException."""
        if self._file is None:
            return
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._file.flush()
        except OSError as error:
            if self._file is sys.stdout.buffer:
                # The interpreter would flush the rest of its buffer at exit, and fail with a traceback.
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._file.fileno())
                os.close(nowhere)
            else:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._written)
            raise click.ClickException(f"{self._name} cannot be written ({error.strerror})") from error
        self._written += len(line) + 1

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._file is not None and self._file is not sys.stdout.buffer:
            self._file.close()


def open_output(path: str | None, source: BinaryIO, *, force: bool) -> Output:
    """Open the file for verdicts; `-` is standard output. Raises UsageError where that would overwrite a file."""
    if path is None or path == "-":
        return Output(None if path is None else sys.stdout.buffer, "standard output")
    try:
        present = Path(path).stat()
    except OSError:
        present = None
    if present is not None:
        if os.path.samestat(present, os.fstat(source.fileno())):
            raise click.UsageError(f"{path} is the input; give --output another name")
        if stat.S_ISREG(present.st_mode) and not force:
            raise click.UsageError(f"{path} exists; give --output another name, or --force to overwrite it")
    try:
        file = Path(path).open("wb" if present else "xb", buffering=0)  # noqa: SIM115 - Output closes it
    except OSError as error:
        raise click.UsageError(f"{path} cannot be created ({error.strerror})") from error
    return Output(file, path)
