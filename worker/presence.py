"""Which workers there are and how their roles fare, by their own word: a consumer group knows nobody who waits."""

import secrets
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from worker.store import Store

__all__ = ["Presence", "Present", "present"]

_WORD_MS: Final = 10_000
"""So long a word counts; it is renewed every second."""
_KEPT_MS: Final = 60_000
_decoder = msgspec.json.Decoder(dict[str, bool])


class Present(NamedTuple):
    """A worker that was there lately: by role, whether it makes progress."""

    process: str
    roles: Mapping[str, bool]


class Presence:
    """One worker's word."""

    def __init__(self, store: Store) -> None:
        """Take a name of its own for this process."""
        self._store = store
        self._process = f"{socket.gethostname()}-{secrets.token_hex(4)}"

    def tell(self, roles: Mapping[str, bool]) -> None:
        """Say that this worker is there, and which of its roles make progress.

        Raises:
            StoreError: Redis did not answer.
        """
        word = msgspec.json.encode(dict(roles))
        self._store.run("present", (self._store.keys.workers,), (self._process, word, _KEPT_MS))

    def leave(self) -> None:
        """Take the word back, since this worker stops.

        Raises:
            StoreError: Redis did not answer; the word lapses then.
        """
        self._store.call(lambda client: client.hdel(self._store.keys.workers, self._process))


def present(store: Store) -> list[Present]:
    """List the workers that were there within the last seconds, by Redis' clock.

    Raises:
        StoreError: Redis did not answer.
    """
    now_ms = store.now_ms()
    words = store.call(lambda client: client.hgetall(store.keys.workers))
    read = ((process.decode(), *word.split(b" ", 1)) for process, word in sorted(words.items()))
    return [
        Present(process, _decoder.decode(roles)) for process, at, roles in read if abs(now_ms - int(at)) <= _WORD_MS
    ]
