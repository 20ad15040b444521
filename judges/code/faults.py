"""Say in one line what code raised, and where: in its author's file, not in the machinery that called it."""

import re
import sysconfig
from traceback import extract_tb
from typing import Final

__all__ = ["said", "where"]

_MAX_CHARS: Final = 200
_LOGIN: Final = re.compile(r"(?<=://)[^/\s@]*@")
_NOT_THE_AUTHORS: Final = ("<frozen ", sysconfig.get_path("stdlib"), __file__.rpartition("/")[0])


def said(error: BaseException, file: str = "") -> str:
    """Describe an error of an import, where no text of a trace can be in it; logins in addresses are left out."""
    if isinstance(error, SyntaxError):
        place = f" ({_named(error.filename or file)}:{error.lineno})"
        return f"{type(error).__name__}: {_line(error.msg)}{place}"
    text = _line(f"{error}")
    place = where(error, file) or _last(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{f' ({place})' if place else ''}"


def where(error: BaseException, file: str) -> str:
    """Name a file and the line of the last step in it; nothing where there is none."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return f"{_named(file)}:{lines[-1]}" if lines else ""


def _last(error: BaseException) -> str:
    """Name the last step in anybody's code but the interpreter's and ours."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return f"{_named(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _is_machinery(file: str) -> bool:
    return file.startswith(_NOT_THE_AUTHORS) and "-packages" not in file


def _named(file: str) -> str:
    return file.rpartition("/")[2]


def _line(text: str) -> str:
    line = _LOGIN.sub("…@", " ".join(text.split()))
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 1]}…"
