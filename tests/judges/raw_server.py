"""A server that answers every HTTP request with the same bytes, whether or not they are HTTP."""

import socketserver
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self


class Certificate(NamedTuple):
    """A certificate for 127.0.0.1 that nobody has signed but itself."""

    path: Path
    tls: ssl.SSLContext


class RawServer:
    """Serves `base_url` on a free port. With `closes=False` a connection stays open after its reply."""

    def __init__(self, reply: bytes, *, closes: bool = True, tls: ssl.SSLContext | None = None) -> None:
        outer = self
        self.connections = 0

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                with suppress(OSError):  # a client that has read enough is no error
                    while self._read_request():
                        self.wfile.write(reply)
                        if closes:
                            return

            def _read_request(self) -> bool:
                length, is_there = 0, False
                while line := self.rfile.readline().strip().lower():
                    is_there = True
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.rfile.read(length)
                return is_there

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End with all that is being served: what a thread says later would be taken for a later test's."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
