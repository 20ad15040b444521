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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal

from judges.core.verdict import Verdict
from worker.base.delivery.channel import Channel, Item
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.receiver_delivery import ReceiverExporter
from worker.base.delivery.settings import RECEIVERS, all_receivers
from worker.base.doctor.finding import Check, Finding, broken, ok
from worker.base.forget.forget import Eraser, owner_of
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics
from worker.features.receivers.feature import FileSettings

PREFIX: Final = "verdicts-"
_QUIET_S: Final = 3600.0  # A file is complete so long after the end of its day.


class _Lines(Channel):
    path = "lines"

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, b"".join([item.body + b"\n" for item in items]))


class FileExporter(ReceiverExporter):
    """JSON lines in one folder, or on standard output; logs go to standard error."""

    channels = (_Lines(),)

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        self._files = _files(settings, name)
        self._worker = f"{socket.gethostname()}-{os.getpid()}"
        self._next_tidy = 0.0

    @classmethod
    def checks(cls, settings: Settings, name: str) -> Sequence[Check]:
        """Check that the folder can be written."""
        files = _files(settings, name)
        return () if files is None else [Check(f"receiver {name}", partial(_check, name, files.path))]

    @classmethod
    def retained_data(cls, settings: Settings, name: str) -> str:
        """Name the folder, or the collector of the output."""
        files = _files(settings, name)
        if files is None:
            return "what collects the standard output of workers keeps verdicts: erase them there, by trace id"
        return f"the files in {files.path} on other machines keep verdicts: run this command there as well"

    @property
    def address(self) -> str:
        """The folder."""
        return "standard output" if self._files is None else self._files.path

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode the whole verdict."""
        yield self.channels[0], Item(verdict, self.encode_whole(verdict))

    def send(self, request: Request) -> Reply:
        """Write lines; a closed output is an error."""
        fix = "" if self._files is None else "make the folder writable"
        try:
            if self._files is None:
                sys.stdout.buffer.write(request.body)
                sys.stdout.buffer.flush()
            else:
                # Append lines to the file of today, and wait until they are on the disk.
                folder = Path(self._files.path)
                folder.mkdir(parents=True, exist_ok=True)
                with locked(folder / f"{PREFIX}{_day(time.time())}.{self._worker}.jsonl", "a+b") as file:
                    end = file.seek(0, os.SEEK_END)
                    file.seek(max(0, end - 1))
                    # A line that was cut, as by a full disk, must not become a part of the next one.
                    file.write((b"" if file.read(1) in {b"", b"\n"} else b"\n") + request.body)
                    file.flush()
                    os.fsync(file.fileno())
                if time.monotonic() >= self._next_tidy:
                    self._next_tidy = time.monotonic() + 600.0
                    tidy(folder, self._files)
        except (OSError, ValueError) as error:
            what = f"it cannot be written: {getattr(error, 'strerror', None) or 'it is closed'}"
            return Reply("unreachable", type(error).__name__, what, fix, error=error)
        return Reply("accepted", "written")


def tidy(folder: Path, files: FileSettings) -> None:
    """Compress complete files of past days, and delete those that are too old."""
    now, keep = time.time(), files.keep_days
    oldest = "" if keep is None else _day(now - keep * 86_400)
    _remove_leftovers(folder)
    for path in sorted(folder.glob(f"{PREFIX}*.jsonl*")):
        day = path.name.removeprefix(PREFIX)[:10]
        with contextlib.suppress(FileNotFoundError):  # Another worker was faster.
            if day < oldest:
                path.unlink()
            elif files.compress and path.suffix == ".jsonl" and day < _day(now - _QUIET_S):
                # A reader may find both for a moment; it counts an evaluation id once.
                temporary = path.with_name(f".{path.name}.{os.getpid()}.gz")
                with locked(path):
                    with path.open("rb") as plain, gzip.open(temporary, "wb") as compressed:
                        shutil.copyfileobj(plain, compressed)
                    _replace(path.with_name(f"{path.name}.gz"), temporary)
                    path.unlink()


def erase_lines(folder: Path, owns: Callable[[bytes], bool], *, dry_run: bool) -> int:
    """Remove lines from all files of an archive; return how many there are. Workers may be writing meanwhile."""
    erased = 0
    if not dry_run:
        _remove_leftovers(folder)
    for path in sorted(folder.glob(f"{PREFIX}*.jsonl*")):
        # If another process is compressing a file, the next run reads it under its other name.
        with contextlib.suppress(FileNotFoundError), locked(path):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rb") as lines:
                try:
                    owned = sum(owns(line) for line in lines)
                except (EOFError, zlib.error) as error:
                    raise OSError(errno.EIO, "is damaged: repair or remove it", str(path)) from error
            erased += owned
            if not owned or dry_run:
                continue
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            with opened(path, "rb") as lines, opened(temporary, "wb") as kept:
                kept.writelines(line for line in lines if not owns(line))
            shutil.copymode(path, temporary)
            _replace(path, temporary)
    return erased


class ArchiveEraser(Eraser):
    """Erases lines of the files that receivers of the kind `file` write."""

    def erase_last(self) -> None:
        """Erase the lines of the target, which count as ``archived``, once for all partitions."""
        run = self.run
        for options in RECEIVERS.read(run.settings).values() if run.store is run.store.first else ():
            if isinstance(options, FileSettings):
                run.result.archived += erase_lines(
                    Path(options.path), lambda line: run.target.owns(owner_of(line)), dry_run=run.dry_run
                )


def _replace(path: Path, temporary: Path) -> None:
    """Rename a file once it is on the disk."""
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.rename(path)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes, since nobody else would erase their lines."""
    for path in folder.glob(f".{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _QUIET_S:
                path.unlink()


@contextlib.contextmanager
def locked(path: Path, mode: Literal["a+b", "r+b"] = "r+b") -> Iterator[IO[bytes]]:
    """Open a file alone: `tracejudge forget` replaces files that contain lines to be erased, and workers compress them.

    Only ``a+b`` makes a file: an empty file made beside a file that was compressed meanwhile would replace the
    compressed file.
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


def _files(settings: Settings, name: str) -> FileSettings | None:
    options = all_receivers(settings)[name]
    return options if isinstance(options, FileSettings) else None


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
