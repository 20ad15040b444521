"""What the demo watches while it runs: the outbox, entry by entry; how far readers lag; how much goes through."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from worker.export.outbox import OutboxEntry, read_outbox_entry
from worker.keys import outbox_groups
from worker.measure import measure
from worker.store import Store

__all__ = ["Lag", "Rate", "Watch"]

_READ_COUNT: Final = 500
_RATE_WINDOW_S: Final = 5.0


class Lag(NamedTuple):
    """Entries that were not read yet: by ingest in the stream of traces, by the exporters in the outbox."""

    stream: int = 0
    outbox: int = 0


class Watch:
    """Follows the outbox from its beginning."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._position = b"0"

    def read(self, block_s: float) -> list[OutboxEntry]:
        """Read what is new; wait up to ``block_s`` when nothing is.

        Raises:
            StoreError: Redis did not answer.
        """
        stream = self._store.keys.verdicts
        block_ms = max(1, round(block_s * 1000))  # 0 would wait for ever
        reply: Any = self._store.call(
            lambda client: client.xread({stream: self._position}, count=_READ_COUNT, block=block_ms)
        )
        entries = reply[0][1] if reply else []
        if entries:
            self._position = entries[-1][0]
        return [read for entry in entries if (read := read_outbox_entry(entry)) is not None]

    def lag(self) -> Lag:
        """Measure how far the worker's readers are behind.

        Raises:
            StoreError: Redis did not answer.
        """
        found = measure(self._store, groups=outbox_groups(otel=False))
        return Lag(found.traces.lag, sum(position.lag for position in found.outbox.values()))


class Rate:
    """How fast a count grows, over the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._points: deque[tuple[float, int]] = deque([(clock(), 0)])

    def update(self, count: int) -> None:
        """Note where the count stands now."""
        now_s = self._clock()
        self._points.append((now_s, count))
        while len(self._points) > 2 and self._points[1][0] <= now_s - _RATE_WINDOW_S:  # noqa: PLR2004 - a line's ends
            self._points.popleft()

    @property
    def per_s(self) -> float:
        """Growth per second."""
        (began_s, first), (ended_s, last) = self._points[0], self._points[-1]
        return (last - first) / (ended_s - began_s) if ended_s > began_s else 0.0
