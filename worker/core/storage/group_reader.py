"""Bounded reads of new entries for one consumer of a group, the size of a next chunk, and positions of entries."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import hiredis
import redis

from worker.core.storage.client import Entry, Store, StoreError

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""One step reads or writes about this much, because Redis serves no other client meanwhile."""
READ_COUNT: Final = 1_000
READ_BYTES: Final = 8 * 1024 * 1024  # Bounds of one read.
# Entries of one command. Redis holds its whole reply: when entries of 4 MiB follow small ones, 128 MiB.
_MAX_COUNT: Final = 32


class GroupReader:
    """Reads entries that no consumer has read yet, at most `READ_COUNT` of them and `READ_BYTES` at once.

    XREADGROUP bounds the number of entries, not their bytes, and entries that a script returns cost Redis five times
    as much. So a reply is measured while it is received. One that exceeds the bytes is cut off with its connection;
    its entries are pending for this consumer by then, and are read again one by one. Used by one thread.
    """

    def __init__(self, store: Store, stream: str, group: str, consumer: str) -> None:
        self._store = store
        self._stream, self._group = stream, group
        self._command = ("XREADGROUP", "GROUP", group, consumer, "COUNT")
        self._count = 2
        self._requested = 0
        self._is_at_end = True
        # The last of the consumer's own pending entries that was read again; None if there are none.
        self._pending: bytes | None = None
        self._buffered: list[Entry] = []
        self._connection: Any = None
        self._replies: Any = None
        self._buffer = bytearray(1 << 20)

    def read(self, block_ms: int, most: int = READ_COUNT) -> Iterator[Entry]:
        """Yield at most ``most`` new entries; if the last read found the end of the stream, wait for the first.

        Entries stay pending until they are acknowledged, also when an error ends the read. At most one command is sent
        ahead: if the reader is closed before the next read, another consumer claims its entries.
        """
        total = size = 0
        while total < most:
            if not self._buffered and not self._requested:
                self._request(most, block_ms)
            entries = self._buffered or self._receive()
            if entries is None:
                return
            self._buffered = []
            more = sum([sum(map(len, fields.values())) for _, fields in entries if fields])
            if more > READ_BYTES and len(entries) > 1:
                self._count, self._pending, self._is_at_end = 1, b"0", False
                return
            if total and size + more > READ_BYTES:
                self._buffered = entries
                return
            total, size = total + len(entries), size + more
            if more:
                self._count = next_count(self._count, len(entries), more, most=_MAX_COUNT, most_bytes=READ_BYTES // 2)
            if self._is_at_end:
                yield from entries
                return
            # Redis executes the next command, also that of the next read, while the caller processes these entries.
            self._request(most - total if total < most else most, block_ms)
            yield from entries

    def close(self) -> None:
        """Close the connection. Entries that were requested and not received are read again after the next connect."""
        connection, self._connection = self._connection, None
        self._requested, self._buffered, self._pending, self._is_at_end = 0, [], b"0", False
        if connection is not None:
            connection.disconnect()
            self._store.call(lambda client: client.connection_pool.release(connection))

    def _request(self, most: int, block_ms: int) -> None:
        def send(client: "redis.Redis") -> None:
            if self._connection is None:
                self._connection = client.connection_pool.get_connection()
                self._replies = hiredis.Reader()
            self._connection.send_command(*self._command, count, *wait, "STREAMS", self._stream, after)

        # Pending entries may be large, so they are read one by one.
        count, after = (min(self._count, most), ">") if self._pending is None else (1, self._pending)
        wait = ("BLOCK", block_ms) if self._is_at_end else ()
        self._call(send)
        self._requested = count

    def _receive(self) -> list[Entry] | None:
        """Receive the entries of one reply; None if they have to be requested again."""
        reply = self._call(self._receive_reply)
        if reply is False:
            self._count = 1
            self.close()
        if not isinstance(reply, list | None):
            return None
        entries = reply[0][1] if reply else ()
        if self._pending is not None:
            self._pending = entries[-1][0] if entries else None
        else:
            self._is_at_end = len(entries) < self._requested
        self._requested = 0
        return [(key, dict(zip(fields[::2], fields[1::2], strict=True)) if fields else None) for key, fields in entries]

    def _call(self, command: "Callable[[redis.Redis], Any]") -> Any:
        """Run a command on the connection; if Redis came back without its data, make the group again instead."""
        try:
            return self._store.call(command)
        except StoreError as error:
            self.close()
            if not isinstance(error.__cause__, redis.ResponseError) or "NOGROUP" not in str(error.__cause__):
                raise
        return self._store.make_group(self._stream, self._group)

    def _receive_reply(self, _: object) -> Any:
        """Receive one reply; False as soon as it exceeds the bytes, unless it has a single entry."""
        # The driver's own method returns whole replies only, however large.
        socket = self._connection._sock  # noqa: SLF001
        received = 0
        while (reply := self._replies.gets()) is False:
            if received > READ_BYTES and self._requested > 1:
                return False
            try:
                size = socket.recv_into(self._buffer)
            except TimeoutError as error:
                raise redis.TimeoutError(str(error)) from error
            except (OSError, AttributeError) as error:
                # The driver has no socket any more after another thread closed its connections.
                raise redis.ConnectionError(str(error)) from error
            if not size:
                raise redis.ConnectionError("closed by Redis")
            received += size
            self._replies.feed(self._buffer, 0, size)
        if isinstance(reply, Exception):
            raise redis.ResponseError(str(reply))
        return reply


def next_count(count: int, read: int, size: int, *, most: int, most_bytes: int, least: int = 1) -> int:
    """Double the size of the next chunk as long as that many entries of this size fit ``most_bytes``.

    Entries take a few bytes or megabytes each, so the count is adapted while reading.

    Of ``count`` requested entries ``read`` were received, of ``size`` bytes together. The next count lies between
    ``least`` and ``most``.
    """
    return max(least, min(2 * count, most_bytes * read // max(1, size), most))


def entry_position(entry_id: bytes | str) -> tuple[int, int]:
    """Return the milliseconds and the number of an entry's id, by which entries are in order."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    ms, _, number = text.partition("-")
    return int(ms), int(number)
