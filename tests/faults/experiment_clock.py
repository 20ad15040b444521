"""Wall clocks of single programs, moved by a test while they run."""

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

__all__ = ["HOUR_S", "Clock"]

HOUR_S: Final = 3600
_SOURCE: Final = Path(__file__).with_name("experiment_clock.c")


class Clock:
    """The clock of programs started within `applied`; correct until it is moved."""

    def __init__(self, folder: Path, name: str) -> None:
        """Build the library; without a C compiler the test is skipped, and fails in CI."""
        self._library = folder / "clock.so"
        self._file = folder / f"{name}.offset"
        if not self._library.exists():
            _compile(self._library)
        self.move(0)

    def move(self, offset_s: int) -> None:
        """Set the offset of the clock in seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", offset_s))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply this clock to programs that are started inside the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(self._library))
            patch.setenv("CLOCK_OFFSET_FILE", str(self._file))
            yield


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no C compiler: install gcc and libc6-dev")
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE], check=True)
