"""HTTP requests to one receiver: deadlines, proxies, certificates, bounded answers, and the meaning of a status."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import httpx

from judges.models.credentials import proxy_for, tls_context
from worker.core.config.settings import SettingsError

Kind = Literal["accepted", "rejected", "failing", "busy", "misconfigured", "unreachable"]
MAX_ANSWER_BYTES: Final = 1024 * 1024
DEADLINE_S: Final = 30.0
_ADD_CREDENTIALS: Final = "grant the worker access, or send through a collector that authenticates"
_REJECTED: Final = frozenset({400, 413, 422})
_BUSY: Final = frozenset({408, 429, 502, 503, 504})
ABSENT: Final = frozenset({404, 405})


class Destination(NamedTuple):
    """The address of requests, their options, and its name in messages."""

    url: str  # The address that the paths of requests are added to.
    setting: str  # The setting with the address, for advice.
    expected: str  # The server that belongs there, for advice.
    protocol: str = "JSON"  # The name of its requests, for advice.
    content: str = "JSON"  # Their encoding, for advice.
    headers: Mapping[str, str] = {}  # Sent with each request.
    proxy: str | None = None  # The setting, as ``proxy_for`` takes it.
    timeout_s: float = DEADLINE_S  # How long one request may take, from the connection to the end of the answer.
    ca_file: str | None = None  # Certificates of authorities (PEM) in place of those that the environment names.
    client_cert: str | None = None  # Certificate (PEM) by which the worker identifies itself.
    client_key: str | None = None  # Its private key.


class Request(NamedTuple):
    """One request; its path is added to the address of the destination."""

    path: str
    body: bytes
    headers: Mapping[str, str] = {"content-type": "application/json"}
    method: str = "POST"


class Reply(NamedTuple):
    """The outcome of one request."""

    # ``accepted``; ``rejected`` for its content; ``failing``, perhaps over one item; ``busy``, to be retried;
    # ``misconfigured``, to be retried but of no use before an operator acts; ``unreachable``.
    kind: Kind
    reason: str  # The status, or the class of the error, for logs.
    meaning: str = ""  # What the receiver did, for people.
    fix: str = ""  # What to do about it; empty if nothing is to be done.
    status: int | None = None  # None without an answer.
    headers: Mapping[str, str] = httpx.Headers()
    body: bytes | None = None  # None if it was incomplete, or longer than the bound.
    error: Exception | None = None  # Why there was no answer.


class ReceiverClient:
    """Connections to one receiver, for use by one thread at a time."""

    # httpx's asynchronous client in an event loop of its own, since only that bounds a whole request: the timeouts of
    # the blocking client apply to each read, and a receiver that sends a byte every few seconds never ends.

    def __init__(self, destination: Destination) -> None:
        """Make a client; the first request connects. ``SettingsError`` if a certificate file cannot be used."""
        # How long one request may take, from the connection to the end of the answer.
        self.deadline_s = destination.timeout_s
        self._destination = destination
        self._url = destination.url
        self._runner = asyncio.Runner()
        # The proxy is found as for judge endpoints; certificates are those that the environment names.
        proxy = proxy_for(destination.url, destination.proxy)
        context = tls_context(destination.url, proxy, kind=SettingsError)
        try:
            if destination.ca_file is not None:
                context.load_verify_locations(destination.ca_file)
            if destination.client_cert is not None:
                # A key with a passphrase is refused, because OpenSSL would ask for it on the terminal.
                context.load_cert_chain(destination.client_cert, destination.client_key, password=b"")
        except OSError as error:
            cause = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            files = filter(None, (destination.ca_file, destination.client_cert, destination.client_key))
            fix = "they must be PEM files that the worker may read, the key without a passphrase"
            raise SettingsError(f"{destination.setting}: {', '.join(files)} cannot be used ({cause}); {fix}") from None
        self._http = httpx.AsyncClient(
            # Compressed answers are refused, because one of a few kilobytes may be gigabytes of text.
            headers={"accept-encoding": "identity", **destination.headers},
            timeout=httpx.Timeout(None, connect=10.0),
            proxy=proxy,
            verify=context,
            trust_env=False,
        )
        self._closed = False

    def send(self, request: Request) -> Reply:
        """Send one request; errors are replies too."""
        return self._runner.run(self._send(request))

    def close(self) -> None:
        """Close connections."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._http.aclose())
            self._runner.close()

    async def _send(self, request: Request) -> Reply:
        reply: Reply | None = None
        url = f"{self._url}{request.path}"
        try:
            async with (
                asyncio.timeout(self.deadline_s),
                self._http.stream(request.method, url, content=request.body, headers=request.headers) as response,
            ):
                # The status decides, even if the rest of the answer is missing or too long.
                reply = reply_of(self._destination, response.status_code, response.headers)
                answer = bytearray()
                async for piece in response.aiter_raw():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        return reply
                reply = reply_of(self._destination, response.status_code, response.headers, bytes(answer))
        except (TimeoutError, httpx.HTTPError) as error:
            return reply or Reply("unreachable", type(error).__name__, "it does not answer", error=error)
        return reply


def reply_of(to: Destination, status: int, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
    """Classify an answer."""
    set_address = f"set {to.setting} to {to.expected}"
    refused: tuple[Kind, str, str] = "rejected", "it refuses the content", "see the receiver's log for what it refuses"
    meanings: Mapping[int, tuple[Kind, str, str]] = {
        **dict.fromkeys(_REJECTED, refused),
        **dict.fromkeys(_BUSY, ("busy", "it is busy or restarts", "see the receiver's log, if it lasts")),
        **dict.fromkeys(ABSENT, ("misconfigured", f"nothing takes {to.protocol} under this path", set_address)),
        401: ("misconfigured", "it asks for credentials", _ADD_CREDENTIALS),
        403: ("misconfigured", "it does not let the worker in", _ADD_CREDENTIALS),
        415: ("misconfigured", f"it does not take {to.content}", set_address),
    }
    default: tuple[Kind, str, str]
    if httpx.codes.is_success(status):
        default = "accepted", "", ""
        # No answer in protobuf or JSON begins so; the page of a sign-in or of a proxy does.
        if (body or b"").lstrip()[:1] == b"<":
            default = "misconfigured", "it answers with a web page", set_address
    elif httpx.codes.is_redirect(status):
        fix = f"set {to.setting} to the address that it redirects to, or remove the sign-in page before it"
        default = "misconfigured", "it redirects, and redirects are not followed", fix
    elif status >= httpx.codes.INTERNAL_SERVER_ERROR:
        default = "failing", "it fails", "see the receiver's log"
    else:
        default = "misconfigured", "it rejects all requests", "see the receiver's log"
    kind, meaning, fix = meanings.get(status, default)
    return Reply(kind, f"HTTP {status}", meaning, fix, status, headers, body)
