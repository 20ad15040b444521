"""The messages between a worker and a judge process, in JSON with a length prefix; errors and variables for them.

worker                      process
  Start           ->
                  <-   Answer           after importing the judge
  a trace         ->
                  <-   Answer           and so on, one trace at a time
  (end of file)   ->                    it ends, with all processes it started
"""

import os
import re
import struct
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from traceback import FrameSummary, extract_tb
from typing import Final

from msgspec import Struct

from judges.core.judge import Reading

HEAD: Final = struct.Struct("!I")  # The prefix: the length of a message in bytes.
MAX_ANSWER_BYTES: Final = 256 * 1024
"""Verdicts are stored, exported and shown whole, so a longer answer is a fault of the judge."""


class Start(Struct, frozen=True):
    """The first message to a process."""

    name: str  # The judge's name, which is also the name of its only metric.
    path: list[str]  # The import path: the worker's, and the folder of a judge's file.
    text: bytes | None = None  # The judge's file as the worker read it; None for a judge in a module.
    memory_bytes: int | None = None  # Limit of the address space; None for no limit.


class Answer(Struct, frozen=True, omit_defaults=True):
    """The answer to any message."""

    fingerprint: str | None = None  # Of the imported judge, in reply to ``Start``.
    reading: Reading = Reading(())  # Of a trace, in reply to it.
    failed: str | None = None  # Why there is neither.
    is_last: bool = False  # Whether the process cannot go on: it lacks the judge, or memory.


def framed(payload: bytes) -> bytes:
    """Prefix a message with its length."""
    return HEAD.pack(len(payload)) + payload


def read_frame(source: BufferedReader) -> bytes | None:
    """Read one message; None at the end."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    payload = source.read(size)
    return payload if len(payload) == size else None


_MAX_CHARS: Final = 200
_LOGIN: Final = re.compile(r"(?<=://)[^/\s@]*@")
_NOT_THE_AUTHORS: Final = ("<frozen ", sysconfig.get_path("stdlib"), __file__.rpartition("/")[0])


def describe(error: BaseException, file: str = "") -> str:
    """Describe an error of an import, without logins in addresses. Texts of traces cannot be in it."""
    if isinstance(error, SyntaxError):
        place = f" ({(error.filename or file).rpartition('/')[2]}:{error.lineno})"
        return f"{type(error).__name__}: {_line(error.msg)}{place}"
    text = _line(f"{error}")
    # Else the last frame outside of the interpreter's library and this package.
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if "-packages" in frame.filename or not frame.filename.startswith(_NOT_THE_AUTHORS)
    ]
    place = where(error, file) or _place(frames)
    return f"{type(error).__name__}{': ' if text else ''}{text}{f' ({place})' if place else ''}"


def where(error: BaseException, file: str) -> str:
    """Return the file and line of the last frame in a file; empty if there is none."""
    return _place([frame for frame in extract_tb(error.__traceback__) if frame.filename == file])


def _place(frames: Sequence[FrameSummary]) -> str:
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""


def _line(text: str) -> str:
    line = _LOGIN.sub("…@", " ".join(text.split()))
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"


_SECRET: Final = re.compile(
    r"^TRACEJUDGE_|KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|HEADERS|PASS($|_)|(^|_)(PW|AUTH)($|_)",
    re.IGNORECASE,
)
_WITH_LOGIN: Final = re.compile(r"://[^/\s@]*@")
_withheld: Final[set[str]] = set()


def withhold(*names: str) -> None:
    """Hide further variables from all judges in Python: those that the configuration names as secrets."""
    _withheld.update(names)


def passed_on(environment: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """Select the variables that a judge in Python gets: the ``names``, and all but secrets."""
    # Secrets are variables whose names begin with `TRACEJUDGE_` or contain a word for keys, tokens, passwords,
    # credentials, cookies or headers (`OTEL_EXPORTER_OTLP_HEADERS` may contain the key of a collector), whose values
    # are addresses with a login, or which the configuration names as secrets.
    return {
        name: value
        for name, value in environment.items()
        if name in names or not (name in _withheld or _SECRET.search(name) or _WITH_LOGIN.search(value))
    }


@contextmanager
def as_judges_find_it(names: Collection[str] = ()) -> Iterator[None]:
    """Hide the other variables in this process too while a judge is imported, so that a missing one shows at start."""
    whole = dict(os.environ)
    for name in whole.keys() - passed_on(whole, names).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in whole.items() if name not in os.environ})
