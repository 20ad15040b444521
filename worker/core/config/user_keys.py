"""The keys by which ids of end users are hashed, so that verdicts name nobody."""

import hashlib
import secrets
import time
from pathlib import Path
from typing import Final

from judges.core.faults import SettingsError, fault_of
from judges.custom.definition import read_text
from worker.core.config.settings import MAX_KEY_BYTES, Settings
from worker.core.storage.client import Store, StoreError

_MADE_BYTES: Final = 32
# How long a key read from Redis is used: a restored backup or a loss of data may change it.
_FRESH_S: Final = 10.0


def hashed_user(user_id: str | None, key: str) -> str | None:
    """Hash the id of an end user; return None for None."""
    if user_id is None:
        return None
    return hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).hexdigest()


def configured_user_key(settings: Settings) -> str | None:
    """Return the key of the settings, or of the file they name; None if neither is set."""
    if settings.user_key_file is None:
        return settings.user_key
    path = Path(settings.user_key_file)
    key = read_text(path, "give the path of a file that holds the key", "user_key_file").strip()
    if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        what = f"{path}: must hold a key of 1 to {MAX_KEY_BYTES} bytes; write one and nothing else into it"
        raise SettingsError(fault_of("user_key_file", what))
    return key


class UserKeys:
    """The keys of one installation. Safe to share between threads."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._name = store.keys.user_key
        self._configured = configured_user_key(settings)
        self._former = settings.user_keys_former
        self._made: str | None = None
        self._fresh_until = 0.0

    @property
    def known(self) -> str | None:
        """The key, if Redis need not be read for it."""
        if self._configured is not None:
            return self._configured
        return self._made if time.monotonic() < self._fresh_until else None

    def current(self) -> str:
        """Return the key; without a configured one read it from Redis, or make it there."""
        if (key_in_use := self.known) is not None:
            return key_in_use
        try:
            key = self._kept()
        except StoreError:
            # The first partition is away, and others are judged on.
            if self._made is None:
                raise
            return self._made
        if key is None:
            # After a loss of its data Redis gets the key in use; workers with different keys agree on the first stored.
            made = self._made or secrets.token_hex(_MADE_BYTES)
            self._store.call(lambda client: client.set(self._name, made, nx=True))
            key = self._kept() or made
        self._made, self._fresh_until = key, time.monotonic() + _FRESH_S
        return key

    def all(self) -> tuple[str, ...]:
        """List every key under which verdicts may have been written: configured, made and former ones."""
        keys = (self._configured, self._kept(), *self._former)
        return tuple(key for key in keys if key is not None)

    def _kept(self) -> str | None:
        kept = self._store.call(lambda client: client.get(self._name))
        return kept.decode() if kept else None
