"""Print the messages of Alertmanager, so that the compose setup shows what a person on call would read.

    python inbox.py [PORT]

`POST /page`, `/ticket` and `/info` accept the form of Slack's incoming webhooks, `POST /webhook` Alertmanager's own.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

# Far above Alertmanager's largest message; the port is open to the network of the compose setup.
_MAX_BYTES: Final = 4 * 1024 * 1024


def main(arguments: list[str]) -> None:
    """Serve until the process is ended."""
    port = int(arguments[0]) if arguments else 8080
    with ThreadingHTTPServer(("", port), _Inbox) as server:
        _say(f"inbox on port {server.server_port}")
        server.serve_forever()


def in_words(receiver: str, message: Any) -> str:
    """Format a message for a person; one for programs on a single line."""
    if "attachments" not in message:
        alerts = ", ".join(f"{alert['labels'].get('alertname')} {alert['status']}" for alert in message["alerts"])
        return f"-- {receiver}: {alerts}"
    parts = (f"{part['title']}\n{part['text']}\n{part.get('title_link', '')}" for part in message["attachments"])
    return f"== {receiver} ==\n" + "\n".join(parts) + "\n"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Inbox(BaseHTTPRequestHandler):
    """Answers `ok` as Slack does."""

    timeout = 10

    def do_GET(self) -> None:
        self._answer(200, b"ok")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_BYTES:
            self._answer(413, b"too large")
            return
        try:
            text = in_words(self.path.strip("/"), json.loads(self.rfile.read(length)))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400, b"neither a message of Slack's form nor of Alertmanager's")
            return
        _say(text)
        self._answer(200, b"ok")

    def log_message(self, *_: object) -> None:
        """Print no requests."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    main(sys.argv[1:])
