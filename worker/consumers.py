"""The names of readers in the consumer groups: who stops takes its own out, and names of the dead are taken out later.

A name with entries pending stays until a living reader has claimed them. A living reader whose name is taken out, since
nothing came for very long, loses nothing: its next read makes the name anew.
"""

from collections.abc import Collection
from typing import Final

import structlog

from worker.store import Store, StoreError

__all__ = ["IDLE_MS", "leave", "retire"]

log = structlog.get_logger("tracejudge.consumers")

IDLE_MS: Final = 15 * 60 * 1000
"""Far longer than a reader that is alive and has something to read stays silent."""
_AT_ONCE: Final = 1_000


def retire(store: Store, stream: str, group: str, keep: Collection[str] = (), idle_ms: int = IDLE_MS) -> int:
    """Take names out of a group that have nothing pending and were silent for ``idle_ms``; return how many.

    Args:
        keep: Names that stay in any case, as the caller's own.

    Raises:
        StoreError: Redis did not answer.
    """
    return int(store.run("retire", (stream,), (group, idle_ms, _AT_ONCE, *keep)))


def leave(store: Store, stream: str, group: str, consumer: str) -> None:
    """Take a reader's own name out of its group, unless something is pending there; others do it when Redis is away."""
    try:
        store.run("leave", (stream,), (group, consumer))
    except StoreError as error:
        log.info("the reader's name stays in its group for now", group=group, error=str(error))
