"""File and standard output: verdicts as JSON lines. The files are an archive for reports beyond the outbox.

Each worker process appends to a file of its own for each day (UTC): `verdicts-2026-05-01.HOST-PID.jsonl`. A verdict may
be written twice after a crash; `tracejudge report` counts it once.
"""

import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, ClassVar, Final, Literal

from judges.core.verdict import Verdict
from worker.config.receivers import FileSettings
from worker.config.settings import Settings
from worker.export.receiver_client import Reply, Request
from worker.export.receiver_delivery import Channel, Item, ReceiverExporter
from worker.storage.client import Store
from worker.telemetry.finding import Check, Finding, broken, ok
from worker.telemetry.metrics import Metrics

PREFIX: Final = "verdicts-"
_DAY_S: Final = 86_400.0
_QUIET_S: Final = 3600.0
"""A file is complete so long after the end of its day."""
_TIDY_EVERY_S: Final = 600.0


class _Lines(Channel):
    """Verdicts as lines."""

    path = "lines"

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, b"".join([item.body + b"\n" for item in items]))


class _LineExporter(ReceiverExporter):
    """Base of both receivers."""

    channels: ClassVar[Sequence[Channel]] = (_Lines(),)  # type: ignore[misc]

    def items(self, verdict: Verdict) -> Iterable[tuple[Channel, Item]]:
        """Encode the whole verdict."""
        return [(self.channels[0], Item(verdict, self.whole(verdict)))]


class StdoutExporter(_LineExporter):
    """JSON lines on standard output; logs go to standard error."""

    kind = "stdout"
    address = "standard output"

    @classmethod
    def checks_of(cls, settings: Settings, name: str) -> Sequence[Check]:  # noqa: ARG003 - nothing can be wrong
        """There is nothing to check."""
        return ()

    @classmethod
    def keeps_of(cls, settings: Settings, name: str) -> str:  # noqa: ARG003 - nothing is configured
        """Name what collects the output."""
        return "what collects the standard output of workers keeps verdicts: erase them there, by trace id"

    def send(self, request: Request) -> Reply:
        """Write lines; a closed output is an error."""
        try:
            sys.stdout.buffer.write(request.body)
            sys.stdout.buffer.flush()
        except (OSError, ValueError) as error:
            return Reply("unreachable", type(error).__name__, "it cannot be written", error=error)
        return Reply("accepted", "written")


class FileExporter(_LineExporter):
    """JSON lines in one folder."""

    kind = "file"

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._files = _options(settings, name)
        self._folder = Path(self._files.path)
        self._worker = f"{socket.gethostname()}-{os.getpid()}"
        self._next_tidy = 0.0

    @classmethod
    def checks_of(cls, settings: Settings, name: str) -> Sequence[Check]:
        """Check that the folder can be written."""
        return [Check(f"receiver {name}", partial(_check, name, _options(settings, name).path))]

    @classmethod
    def keeps_of(cls, settings: Settings, name: str) -> str:
        """Name the folder."""
        path = _options(settings, name).path
        return f"the files in {path} on other machines keep verdicts: run this command there as well"

    @property
    def address(self) -> str:
        """The folder."""
        return self._files.path

    def send(self, request: Request) -> Reply:
        """Append lines to the file of today, and wait until they are on the disk."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with locked(self._folder / f"{PREFIX}{_day(time.time())}.{self._worker}.jsonl", "a+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                # A line that was cut, as by a full disk, must not become a part of the next one.
                file.write((b"" if file.read(1) in {b"", b"\n"} else b"\n") + request.body)
                file.flush()
                os.fsync(file.fileno())
            if time.monotonic() >= self._next_tidy:
                self._next_tidy = time.monotonic() + _TIDY_EVERY_S
                self._tidy()
        except OSError as error:
            what = f"it cannot be written: {error.strerror}"
            return Reply("unreachable", type(error).__name__, what, "make the folder writable", error=error)
        return Reply("accepted", "written")

    def _tidy(self) -> None:
        """Compress complete files of past days, and delete those that are too old."""
        now, keep = time.time(), self._files.keep_days
        oldest = "" if keep is None else _day(now - keep * _DAY_S)
        _remove_leftovers(self._folder)
        for path in sorted(self._folder.glob(f"{PREFIX}*.jsonl*")):
            day = path.name.removeprefix(PREFIX)[:10]
            with contextlib.suppress(FileNotFoundError):  # Another worker was faster.
                if day < oldest:
                    path.unlink()
                elif self._files.compress and path.suffix == ".jsonl" and day < _day(now - _QUIET_S):
                    # A reader may find both for a moment; it counts an evaluation id once.
                    temporary = path.with_name(f".{path.name}.{os.getpid()}.gz")
                    with locked(path):
                        with path.open("rb") as plain, gzip.open(temporary, "wb") as compressed:
                            shutil.copyfileobj(plain, compressed)
                        _replace(path.with_name(f"{path.name}.gz"), temporary)
                        path.unlink()


def erase_lines(folder: Path, owns: Callable[[bytes], bool], *, dry_run: bool) -> int:
    """Remove lines from all files of an archive; return how many there are.

    Workers may be writing meanwhile.

    Raises:
        OSError: A file cannot be read or replaced; the others before it are done.
    """
    erased = 0
    if not dry_run:
        _remove_leftovers(folder)
    for path in sorted(folder.glob(f"{PREFIX}*.jsonl*")):
        # A file that another process is compressing is found under its other name by the next run.
        with contextlib.suppress(FileNotFoundError), locked(path):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rb") as lines:
                try:
                    found = sum(owns(line) for line in lines)
                except (EOFError, zlib.error) as error:
                    raise OSError(errno.EIO, "is damaged: repair or remove it", str(path)) from error
            erased += found
            if not found or dry_run:
                continue
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            with opened(path, "rb") as lines, opened(temporary, "wb") as kept:
                kept.writelines(line for line in lines if not owns(line))
            shutil.copymode(path, temporary)
            _replace(path, temporary)
    return erased


def _replace(path: Path, temporary: Path) -> None:
    """Rename a file once it is on the disk."""
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.rename(path)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that were killed: they hold lines, and nobody else would erase them."""
    for path in folder.glob(f".{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _QUIET_S:
                path.unlink()


@contextlib.contextmanager
def locked(path: Path, mode: Literal["a+b", "r+b"] = "r+b") -> Iterator[IO[bytes]]:
    """Open a file alone: `tracejudge forget` replaces files that contain lines to be erased, and workers compress them.

    Only ``a+b`` makes a file. One that came into being empty behind a file that was compressed meanwhile would replace
    the compressed one.

    Raises:
        FileNotFoundError: There is no such file any more.
    """
    while True:
        with path.open(mode) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                is_current = os.fstat(file.fileno()).st_ino == path.stat().st_ino
            except FileNotFoundError:
                is_current = False
            if is_current:
                yield file
                return


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _options(settings: Settings, name: str) -> FileSettings:
    options = settings.all_receivers[name]
    assert isinstance(options, FileSettings)  # noqa: S101 - by its kind
    return options


def _check(name: str, path: str) -> Sequence[Finding]:
    part = f"receiver {name}"
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{PREFIX}check"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [broken(part, f"{path} cannot be written ({error.strerror})", "make the folder writable for the worker")]
    return [ok(part, path)]
