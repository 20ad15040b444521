"""Seek traces by their ids in everything the stream keeps: one pass, piece by piece, in the order of the entries."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from worker.ingest.entries import WIRE_VERSION
from worker.pieces import next_count
from worker.store import Entry, Store

__all__ = ["Found", "Search"]

_PIECE_COUNT: Final = 300
_FIRST_PIECE_COUNT: Final = 32
_PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how much is looked through at once: Redis and the other threads of the process wait meanwhile."""
_MAX_FOUND: Final = 100
_MAX_FOUND_BYTES: Final = 32 * 1024 * 1024


class Found(NamedTuple):
    """Where a trace stands, and how long its payload is."""

    entry_id: str
    size: int


class _Named(Struct):
    """Of a trace only whose it is: everything else is passed over unread, which is what makes a pass cheap."""

    trace_id: str


_decoder = msgspec.json.Decoder(_Named)


class Search:
    """One pass for some traces. Holds no payloads: only where they are."""

    def __init__(self, store: Store, trace_ids: Iterable[str]) -> None:
        """Begin before the oldest entry."""
        self.read = 0
        self._store = store
        self._found: dict[str, deque[Found]] = {trace_id: deque(maxlen=_MAX_FOUND) for trace_id in trace_ids}
        self._from = "-"
        self._last: str | None = None
        self._count = _FIRST_PIECE_COUNT

    def step(self) -> bool:
        """Look through the next piece; True while there may be more.

        Raises:
            StoreError: Redis did not answer; the next step looks through the same piece.
        """
        last = self._last = self._last or self._newest()
        if last is None:
            return False
        entries = self._store.call(
            lambda client: client.xrange(self._store.keys.traces, min=self._from, max=last, count=self._count)
        )
        if not entries:
            return False
        size = sum(map(self._look, entries))
        self.read += len(entries)
        self._from = f"({entries[-1][0].decode()}"
        full = len(entries) == self._count
        self._count = next_count(self._count, len(entries), size, most=_PIECE_COUNT, most_bytes=_PIECE_BYTES)
        return full

    def found(self, trace_id: str) -> list[Found]:
        """Give a trace's publications, of very many or very large ones the newest."""
        taken: list[Found] = []
        size = 0
        for one in reversed(self._found[trace_id]):
            size += one.size
            if taken and size > _MAX_FOUND_BYTES:
                break
            taken.append(one)
        return taken[::-1]

    def _newest(self) -> str | None:
        """Fix where the pass ends: it would never catch up with a stream that fills as fast as it reads."""
        newest = self._store.call(lambda client: client.xrevrange(self._store.keys.traces, count=1))
        return newest[0][0].decode() if newest else None

    def _look(self, entry: Entry) -> int:
        entry_id, fields = entry
        payload = (fields or {}).get(b"t")
        if payload is None or (fields or {}).get(b"v") != WIRE_VERSION:
            return 0
        found = self._found.get(_trace_id(payload))
        if found is not None:
            found.append(Found(entry_id.decode(), len(payload)))
        return len(payload)


def _trace_id(payload: bytes) -> str:
    try:
        return _decoder.decode(payload).trace_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # No trace: ingest has counted it as invalid. An empty id belongs to no trace either.
        return ""
