"""Access to the board: who may read it, under which name, and what browsers may do with its pages."""

import hashlib
import hmac
import http
import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker.core.config.serving import LOOPBACK, MIN_TOKEN_CHARS, Listen, Secret
from worker.core.config.settings import Settings, SettingsError
from worker.core.telemetry.http_server import Credential
from worker.core.telemetry.metrics import Metric, ProcessMetrics
from worker.features.board.feature import BOARD

_MAX_NAME_CHARS: Final = 100
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

BOARD_PAGES: Final = ("overview", "series", "verdicts", "funnel", "labels", "other")


class BoardMetrics(ProcessMetrics):
    """The metrics of one board process."""

    # fmt: off
    requests = Metric(Counter, "board_requests_total", "requests", ("page", "status"),
        f"Requests of the board by page ({', '.join(BOARD_PAGES)}) and HTTP status")
    indexed = Metric(Gauge, "board_indexed_verdicts", "verdicts", (), "Verdicts of the outbox that the board can show")


class _Refused(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str] = {}


class Access:
    """The rules of one configuration. Its repr shows no token."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        """Read the token; ``SettingsError`` if it is unusable, or other machines may connect and none is required."""
        board = BOARD.read(settings)
        self._token = Secret.from_table(board, "board.token_").read(environment)
        self._user_header = board.user_header
        self._proxies = tuple(ipaddress.ip_network(address) for address in board.proxies)
        self._hosts = LOOPBACK | {host.lower() for host in board.hosts}
        if self._token is not None and len(self._token) < MIN_TOKEN_CHARS:
            raise SettingsError(f"board.token: must have at least {MIN_TOKEN_CHARS} characters; make one at random")
        if self._token is None and self._user_header is None and not Listen.from_table(board, "board.").is_local:
            fix = 'set token_env or token_file in [board], user_header behind a reverse proxy, or host = "127.0.0.1"'
            raise SettingsError(f"board.host: other machines may connect and nothing is required of them; {fix}")

    def admit(self, headers: Headers, peer: str | None) -> "str | _Refused":
        """Return the name of the user, empty if there is none, or why the request is refused."""
        if self._user_header is not None and self._is_proxy(peer):
            if user := headers.get(self._user_header, "").strip():
                return user[:_MAX_NAME_CHARS]
            if self._token is None:
                return _Refused(403, f"The reverse proxy named no user in {self._user_header}.\n")
        if self._token is not None:
            return self._user_with_token(headers.get("authorization", ""))
        if self._user_header is not None:
            return _Refused(403, "Only a reverse proxy of `board.proxies` may connect.\n")
        # A foreign page could point its own name to this address; its requests have that name.
        host = headers.get("host", "").rsplit(":", 1)[0].strip("[]").lower()
        if host not in self._hosts:
            return _Refused(
                421, f"This board does not serve the host {host[:_MAX_NAME_CHARS]!r}: add it to board.hosts.\n"
            )
        return ""

    def _is_proxy(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        return any(address in network for network in self._proxies)

    def _user_with_token(self, authorization: str) -> "str | _Refused":
        # Browsers cannot be told to send a bearer token; they ask for a name and a password.
        shown = Credential(authorization)
        if shown.scheme in {"bearer", "basic"} and shown.shows(self._token or ""):
            return shown.user[:_MAX_NAME_CHARS]
        challenge = 'Basic realm="TraceJudge board", charset="UTF-8"'
        text = "The board needs its token: as the password with any name, or as a bearer token.\n"
        return _Refused(401, text, {"WWW-Authenticate": challenge})


class Guard:
    """Middleware: admits requests by `Access`, refuses foreign sites, adds the headers to every answer, and counts."""

    def __init__(self, app: ASGIApp, access: Access, metrics: BoardMetrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                is_static = scope["path"].startswith("/static/") and message["status"] == http.HTTPStatus.OK
                headers["Cache-Control"] = "max-age=31536000, immutable" if is_static else "no-store"
                named = scope["path"].strip("/").partition("/")[0].partition(".")[0] or "overview"
                self._metrics.requests.labels(named if named in BOARD_PAGES else "other", message["status"]).inc()
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        peer = scope["client"][0] if scope.get("client") else None
        user = self._access.admit(headers, peer)
        if isinstance(user, str) and headers.get("sec-fetch-site") == "cross-site" and scope["method"] != "GET":
            user = _Refused(403, "Forms of other sites are refused.\n")
        if isinstance(user, _Refused):
            refusal = PlainTextResponse(user.text, user.status, dict(user.headers))
            await refusal(scope, receive, send_with_headers)
            return
        scope["state"] = {**scope.get("state", {}), "user": user}
        await self._app(scope, receive, send_with_headers)


def form_token(key: str, user: str) -> str:
    """Return the token that a user's form has, so that no other site can send it (CSRF)."""
    return hashlib.blake2b(f"board:{user}".encode(), key=key.encode()[:64], digest_size=16).hexdigest()


def is_form_token(shown: str, key: str, user: str) -> bool:
    """Return whether a form has the token of its user."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), form_token(key, user).encode())
