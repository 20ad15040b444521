"""Files of traces and verdicts: lines are read in a thread, so that a slow input does not block evaluations."""

import asyncio
import contextlib
import io
import os
import stat
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NamedTuple, TextIO

import click
import msgspec
from msgspec.structs import replace

from judges.core.sessions import in_order, join, part, session_id_of
from judges.parsing.rows import EMPTY_OUTPUT, as_trace, csv_rows, encoded, encoding_fault, is_csv, text_lines
from tracejudge import Trace
from tracejudge.content.convert import Notes
from tracejudge.content.field_names import closest_field
from worker.base.commands.options import amount, note
from worker.core.config.settings import MAX_SESSION_BYTES, MIB, SESSION_MAX, Settings
from worker.core.queue.batch import Session
from worker.core.selection.lenient import NO_OUTPUT, LeftOut, NoTraceError, decode_repaired, losses
from worker.core.selection.stream_entry import TraceEntry, read_entry

# `tracejudge export` adds it to each trace.
_VERDICTS: Final = "verdicts"
_ROW: Final = msgspec.json.Decoder(dict[str, Any])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Line(NamedTuple):
    """A line that is not empty, without its line break, and the bytes of the file to its end."""

    number: int
    payload: bytes
    end: int
    error: str | None = None  # Of a row of a CSV file, or an item of an array, that is no trace.
    without_output: str = "is not a trace: Object missing required field `output`"


@contextlib.contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; `-` is standard input."""
    # Not sys.stdin: a thread that reads it when the process ends, as after Ctrl-C, would crash the interpreter.
    source = os.fdopen(os.dup(0), "rb") if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    try:
        yield source
    finally:
        # A pipe is left open, because closing it would block until the reading thread has its next line.
        if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source.close()


async def lines(source: BinaryIO, max_bytes: int) -> AsyncIterator[Line]:
    """Yield the lines that are not empty; a thread reads them, so that a slow input does not block the event loop.

    Of a line longer than ``max_bytes`` only so much is kept that it is seen to be too long.
    """
    loop, items = asyncio.get_running_loop(), asyncio.Queue[Line | Exception | None]()
    # Few lines are read ahead, because each may have megabytes.
    places, ended = threading.Semaphore(8), threading.Event()

    def put(item: Line | Exception | None) -> bool:
        places.acquire()
        if not ended.is_set():
            loop.call_soon_threadsafe(items.put_nowait, item)
        return not ended.is_set()

    def read() -> None:
        last: Exception | None = None
        try:
            if not all(map(put, split_lines(source, max_bytes))):
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer waits for the next line
            last = error
        # The loop may be closed at any step; the lines are not needed any more then.
        with contextlib.suppress(RuntimeError):
            put(last)

    threading.Thread(target=read, name="tracejudge-lines", daemon=True).start()
    try:
        while (item := await items.get()) is not None:
            places.release()
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        ended.set()
        places.release()


def read_traces(
    file: TextIO, max_bytes: int = 4 * MIB, unknown: Counter[str | LeftOut] | None = None
) -> Iterator[tuple[int, Trace | str]]:
    """Yield the number of each line that is not empty, with its trace or error; ``unknown`` counts unread names."""
    source = getattr(file, "buffer", None) or io.BytesIO(file.read().encode("utf-8", "surrogateescape"))
    for line in split_lines(source, max_bytes):
        entry = trace_of_row(line, max_bytes)
        if isinstance(entry, TraceEntry) and unknown is not None:
            unknown.update((*entry.unknown, *entry.left_out))
        yield line.number, entry if isinstance(entry, str) else entry.trace


def _error_of(payload: bytes) -> str:
    """Return why a line is no trace."""
    try:
        msgspec.convert(decode_repaired(payload), Trace)
    except NoTraceError:
        return "is not JSON"
    except msgspec.ValidationError as error:
        return f"is not a trace: {error}"
    return "is not a trace: an empty or overlong trace_id or service, or nested too deeply"


def trace_of(line: Line, max_bytes: int) -> TraceEntry | str:
    """Read a trace as the worker does, or return the error, also of an encoding that the worker would distort."""
    if len(line.payload) > max_bytes:
        return f"is longer than max_trace_bytes: {max_bytes:,} bytes"
    text = line.payload.decode("utf-8", "surrogateescape")
    if fault := encoding_fault(text):
        return fault
    entry = read_entry((b"-", {b"v": b"1", b"t": line.payload}), max_bytes)
    # A service may fail before there is an output; in a file the column has another name.
    if isinstance(entry, TraceEntry) and NO_OUTPUT not in entry.left_out:
        return entry
    # The stream only counts invalid entries; here the user needs the reason.
    return _error_of(line.payload)


def trace_of_row(line: Line, max_bytes: int) -> TraceEntry | str:
    """Read a trace as `trace_of`, or a row of labelled data, whose unknown names become tags, or return the error."""
    entry = line.error or trace_of(line, max_bytes)
    if line.error or len(line.payload) > max_bytes or (isinstance(entry, TraceEntry) and not entry.unknown):
        return entry
    notes = Notes()
    try:
        row = decode_repaired(line.payload.decode().encode(), _ROW.decode)
        if isinstance(entry, str) and row.get("trace_id") == "":
            return entry
        fields = as_trace(row, notes)
    except (NoTraceError, UnicodeDecodeError):
        return entry
    if "output" not in fields:
        return line.without_output
    read = read_entry((b"-", {b"v": b"1", b"t": encoded(fields)}), max_bytes)
    if not isinstance(read, TraceEntry):
        return _error_of(line.payload)
    unknown = tuple(note.field for note in notes.entries if note.reason == "unknown_name")
    left_out = (*losses(notes.entries), *read.left_out)
    return replace(read, payload=line.payload, left_out=left_out, unknown=unknown)


def note_unknown_fields(counts: Mapping[str | LeftOut, int]) -> None:
    """Print the most frequent fields that no trace has, each with a suggestion, and those that could not be read."""
    unknown = Counter({name: count for name, count in counts.items() if name != _VERDICTS})
    for name, count in unknown.most_common(5):
        if isinstance(name, LeftOut):
            note(f"left out {name.field!r} of JSON type {name.kind} in {amount(count, 'trace')}: it cannot be read")
            continue
        close = closest_field(name) if name.isprintable() else None
        hint = "" if close is None else f"; did you mean {close}?"
        note(f"unknown field {name[:40]!r} in {amount(count, 'trace')}{hint}")


def split_lines(source: BinaryIO, max_bytes: int, *, needs_output: bool = True) -> Iterator[Line]:
    """Yield the lines that are not empty, the items of a JSON array, which is read as a whole, or the rows of `*.csv`.

    Of a line longer than ``max_bytes`` only as much is kept as shows that it is.
    """
    if is_csv(source):
        yield from _csv_lines(source, needs_output=needs_output)
        return
    most, end, number, part = max_bytes + 2, 0, 0, b""
    texts, head = text_lines(source, most), list[str]()
    while not "".join(head[-1:]).strip() and (text := next(texts, None)) is not None:
        head.append(text)
    if "".join(head[-1:]).lstrip().startswith("["):
        yield from _array_items("".join((*head, *texts)).encode("utf-8", "surrogateescape"))
        return
    parts = (text.encode("utf-8", "surrogateescape") for text in chain(head, texts))
    for first in parts:
        if first == b"\n" and part.endswith(b"\r"):
            continue  # one line end, divided because the line became too long
        number, end, part = number + 1, end + len(first), first
        while part and not part.endswith((b"\n", b"\r")):
            part = next(parts, b"")
            end += len(part)
        payload = first.strip() if len(first.rstrip(b"\r\n")) < most else first[:most]
        if payload:
            yield Line(number, payload, end)


def _array_items(data: bytes) -> Iterator[Line]:
    number, end = 1, 0
    try:
        items = decode_repaired(data, _ITEMS.decode)
    except NoTraceError:
        yield Line(number, b"[", end, "begins an array that is no JSON; complete it, or write one object a line")
        return
    for item in map(bytes, items):
        # The texts of a repaired array are not in the file: then it is the line of the last one that is.
        start = max(data.find(item, end), end)
        number, end = number + data.count(b"\n", end, start), start + len(item)
        yield Line(number, item, end)
        number += item.count(b"\n")


def _csv_lines(source: BinaryIO, *, needs_output: bool) -> Iterator[Line]:
    """Yield the rows of a CSV file as objects in JSON."""
    is_pipe = not source.seekable()
    for number, cells, error in csv_rows(text_lines(source), needs_output=needs_output):
        yield Line(number, msgspec.json.encode(cells), 0 if is_pipe else source.tell(), error, EMPTY_OUTPUT)


class Output:
    """A file of lines, or nothing; it holds whole lines only at any time."""

    def __init__(self, file: IO[bytes] | None, name: str, create: Callable[[], IO[bytes]] | None = None) -> None:
        """Wrap a file that is open for writing at its beginning, or one to ``create``; None discards all lines."""
        self._file = file
        self._name = name
        self._create = create
        self._written = 0

    def open(self) -> None:
        """Create the file unless it is open already, or raise ``UsageError``."""
        if self._create is not None:
            try:
                self._file, self._create = self._create(), None
                self._written = os.fstat(self._file.fileno()).st_size
            except OSError as error:
                raise click.UsageError(f"{self._name} cannot be created ({error.strerror})") from error

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


def open_output(path: str | None, *sources: BinaryIO, force: bool, resume: bool = False) -> Output:
    """Return the file for verdicts, to be opened; `-` is standard output. ``UsageError`` if it would be overwritten."""
    if path is None or path == "-":
        return Output(None if path is None else sys.stdout.buffer, "standard output")
    try:
        present = Path(path).stat()
    except OSError:
        present = None
    if present is not None:
        if any(os.path.samestat(present, os.fstat(source.fileno())) for source in sources):
            raise click.UsageError(f"{path} is the input; give --output another name")
        if stat.S_ISREG(present.st_mode) and not (force or resume):
            raise click.UsageError(f"{path} exists; give --output another name, --force to overwrite it, or --resume")
    return Output(None, path, lambda: Path(path).open("ab" if resume else "wb" if present else "xb", buffering=0))


class Conversation(NamedTuple):
    """The joined newest traces of a session with the last values of all tags, and the session as verdicts name it."""

    trace: Trace
    session: Session


class Conversations:
    """Traces of sessions, gathered as a worker gathers them."""

    def __init__(self, settings: Settings) -> None:
        self._max, self._max_bytes = SESSION_MAX.read(settings), MAX_SESSION_BYTES.read(settings)
        self._traces: dict[str, deque[Trace]] = {}
        self._totals: dict[str, int] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._bytes = 0

    def add(self, trace: Trace, size: int) -> None:
        """Add a trace with a session id, of so many bytes; ``ClickException`` if not all can be held at once."""
        session = session_id_of(trace)
        kept = self._traces.setdefault(session, deque(maxlen=self._max))
        kept.append(part(trace))
        self._totals[session] = self._totals.get(session, 0) + 1
        self._tags.setdefault(session, {}).update(trace.tags or {})
        self._bytes += size
        if self._bytes > self._max_bytes:
            fix = "divide the file between two sessions, or raise max_session_bytes"
            raise click.ClickException(f"the conversations of the file take more than {self._max_bytes:,} bytes; {fix}")

    def joined(self) -> Iterator[Conversation]:
        """Yield the conversations in the order of their first traces."""
        for session, kept in self._traces.items():
            traces = in_order(list(kept))
            names = tuple(dict.fromkeys(trace.trace_id for trace in traces))
            trace = replace(join(traces), tags=self._tags[session] or None)
            yield Conversation(trace, Session(1, self._totals[session], names))
