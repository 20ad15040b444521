"""What workers say of their circuits, read without saying anything."""

from collections.abc import Mapping
from typing import Final

import msgspec

from worker.store import Store

__all__ = ["circuit_words"]

_COUNTS_MS: Final = 10_000
_decoder = msgspec.json.Decoder(dict[str, bool | float | None])
"""By judge model for how many seconds its circuit has been open; older workers say whether it is."""


def circuit_words(store: Store) -> list[Mapping[str, bool]]:
    """List the fresh words: by judge model, whether its circuit is open.

    Raises:
        StoreError: Redis did not answer.
    """
    now_ms = store.now_ms()
    words = store.call(lambda client: client.hvals(store.keys.circuits))
    read = (word.split(b" ", 1) for word in words)
    fresh = [_decoder.decode(said) for at, said in read if abs(now_ms - int(at)) <= _COUNTS_MS]
    return [{model: bool(is_open) for model, is_open in word.items()} for word in fresh]
