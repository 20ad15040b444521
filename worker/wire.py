"""One client's connection, bounded in time and size: whoever is slow, or sends without end, is cut off."""

import contextlib
import socket
import ssl
import threading
import time
from typing import Final

__all__ = ["HeadTooLongError", "Wire"]

_HEAD_S: Final = 5.0
"""For the TLS handshake and the head of the request together."""
_REPLY_S: Final = 10.0
_MAX_HEAD_BYTES: Final = 16 * 1024
_READ_BYTES: Final = 4096
_PIECE_BYTES: Final = 64 * 1024
_ENDS: Final = (b"\r\n\r\n", b"\n\n")


class HeadTooLongError(Exception):
    """The head of a request is longer than any client of ours writes."""


class Wire:
    """A connection on which one request comes and one reply goes.

    ``cut`` may be called from any thread; all else from the one that serves the client.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take a connection that was just accepted."""
        self._connection = connection
        self._deadline = time.monotonic() + _HEAD_S
        self._lock = threading.Lock()

    def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS from here on.

        Raises:
            OSError: The client speaks none, or took too long.
        """
        with self._lock:
            self._connection = context.wrap_socket(
                self._connection, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
        self._hurry()
        self._connection.do_handshake()

    def head(self) -> bytes:
        """Read a request up to the end of its head; what ends before is given as it is.

        Raises:
            HeadTooLongError: It does not end within 16 KiB.
            OSError: It took too long, or the connection broke.
        """
        head = b""
        while not any(end in head for end in _ENDS):
            if len(head) > _MAX_HEAD_BYTES:
                raise HeadTooLongError
            self._hurry()
            piece = self._connection.recv(_READ_BYTES)
            if not piece:
                break
            head += piece
        return head

    def reply(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            OSError: The client took too long to read, or is gone.
        """
        self._deadline = time.monotonic() + _REPLY_S
        for first in range(0, len(data), _PIECE_BYTES):
            # Piece by piece: over TLS the time of a socket holds for each record, and not for the whole.
            self._hurry()
            self._connection.sendall(data[first : first + _PIECE_BYTES])

    def cut(self) -> None:
        """Break the connection off; who waits for it goes on at once."""
        with self._lock, contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        with self._lock, contextlib.suppress(OSError):
            # Not SSLSocket's: it would wait for the client's farewell.
            socket.socket.shutdown(self._connection, socket.SHUT_WR)
        self._connection.close()

    def _hurry(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
