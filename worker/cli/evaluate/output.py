"""Where verdicts go: JSON lines, each written whole as soon as it is there."""

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import IO, BinaryIO, Self

import click

__all__ = ["Output", "open_output"]


class Output:
    """A file of lines, or nothing at all. What it holds are whole lines at any time."""

    def __init__(self, file: IO[bytes] | None, name: str) -> None:
        """Take a file that is open for writing at its beginning; None keeps nothing."""
        self._file = file
        self._name = name
        self._written = 0

    def write(self, line: bytes) -> None:
        """Write a line at once.

        Raises:
            click.ClickException: It cannot be written; what was begun of it is taken back.
        """
        if self._file is None:
            return
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._file.flush()
        except OSError as error:
            self._take_back(self._file)
            raise click.ClickException(f"{self._name} cannot be written ({error.strerror})") from error
        self._written += len(line) + 1

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._file is not None and self._file is not sys.stdout.buffer:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_back(self, file: IO[bytes]) -> None:
        if file is sys.stdout.buffer:
            # What is left in its buffer would be tried once more at the end, with a traceback.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file.fileno())
            os.close(nowhere)
            return
        with contextlib.suppress(OSError):
            file.truncate(self._written)


def open_output(path: str | None, source: BinaryIO, *, force: bool) -> Output:
    """Open where verdicts go; `-` is standard output.

    Args:
        source: Where the traces come from; it is never written over.
        force: Write over a file that is there.

    Raises:
        click.UsageError: The file is the source, is there, or cannot be made.
    """
    if path is None or path == "-":
        return Output(None if path is None else sys.stdout.buffer, "standard output")
    present = _stat(path)
    if present is not None:
        if os.path.samestat(present, os.fstat(source.fileno())):
            raise click.UsageError(f"{path} is the input; give --output another name")
        if stat.S_ISREG(present.st_mode) and not force:
            raise click.UsageError(f"{path} is there; give --output another name, or --force to write over it")
    try:
        file = Path(path).open("wb" if present else "xb", buffering=0)  # noqa: SIM115 - Output closes it
    except OSError as error:
        raise click.UsageError(f"{path} cannot be made ({error.strerror})") from error
    return Output(file, path)


def _stat(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError:
        return None
