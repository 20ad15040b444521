"""Read the files of a configuration; what cannot be read is one ``SettingsError`` line with a mend."""

import tomllib
from pathlib import Path
from typing import Any, Final

from worker.settings import SettingsError

__all__ = ["MAX_BYTES", "read_text", "read_toml", "unread"]

MAX_BYTES: Final = 1 << 20
"""No file of a configuration is longer; another one was named by mistake."""


def read_text(path: Path, place: str, advice: str) -> str:
    """Read a text of at most a mebibyte, in UTF-8, with a byte order mark or without.

    Args:
        place: How an error begins: where the file was named, and how.
        advice: What to do where it cannot be read.

    Raises:
        SettingsError: There is no such file, or it is none of these.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{place}: {unread(error, advice)}") from error
    except ValueError as error:
        # A zero byte in the name.
        raise SettingsError(f"{place}: is no name of a file; {advice}") from error
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{place}: is longer than 1 MiB; {advice}")
    try:
        # Editors of Windows mark a file so.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{place}: is not UTF-8; save it as UTF-8") from error


def unread(error: OSError, advice: str) -> str:
    """Say why something cannot be read, and what to do: ``advice``, unless it is there and closed to us."""
    mend = "let the user that runs this read it" if isinstance(error, PermissionError) else advice
    return f"cannot be read ({error.strerror}); {mend}"


def read_toml(path: Path, advice: str) -> dict[str, Any]:
    """Read a file of TOML.

    Raises:
        SettingsError: It cannot be read, or is no TOML.
    """
    text = read_text(path, f"{path}", advice)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}; mend it there") from error
    except ValueError as error:
        # Python reads no number of more than 4,300 digits, and tomllib lets that through.
        raise SettingsError(f"{path}: is not TOML: a number has too many digits; mend it there") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: is not TOML: it is nested too deep; mend it there") from error
