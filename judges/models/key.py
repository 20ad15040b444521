"""The key of an endpoint: from a variable or a file, and never in a log line or an error."""

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from judges.models.model import ModelSettings

__all__ = ["KeyRefusedError", "read_key"]

log = logging.getLogger("judges.models.key")

_MAX_KEY_BYTES: Final = 16_384


class KeyRefusedError(ValueError):
    """There is no usable key. The message names setting and mend, and nothing of the key."""


def read_key(settings: ModelSettings, environment: Mapping[str, str]) -> str | None:
    """Read the key that the settings name, None where they name none.

    Raises:
        KeyRefusedError: It is absent, or no HTTP header may hold it.
    """
    if settings.api_key_file is not None:
        key, where = _from_file(settings.api_key_file), f"api_key_file: the file {settings.api_key_file}"
    elif settings.api_key_env is not None:
        key, where = (
            _from_variable(settings.api_key_env, environment),
            f"api_key_env: the variable {settings.api_key_env}",
        )
    else:
        return None
    if not (key.isascii() and key.isprintable()):
        # Found here, because the client's own error comes with each request and quotes the header.
        raise KeyRefusedError(f"{where} holds a line break or another sign that no HTTP header may hold; take it out")
    return key


def _from_variable(name: str, environment: Mapping[str, str]) -> str:
    key = environment.get(name)
    if not key or key.isspace():
        raise KeyRefusedError(f"api_key_env: the variable {name} is not set; export it, or leave the line out")
    return key


def _from_file(name: str) -> str:
    """Read a key without the line's end that editors put behind it."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_KEY_BYTES + 1)
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise KeyRefusedError(f"api_key_file: the file {name} cannot be read ({why}); give its path") from None
    if not raw.strip() or len(raw) > _MAX_KEY_BYTES:
        raise KeyRefusedError(f"api_key_file: the file {name} holds no key; write the key and nothing else into it")
    if mode & stat.S_IROTH:
        log.warning("key file %s can be read by other users; take that from them: chmod 600", name)
    return raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
