"""Why a connection does not come about, told by what the driver's error was made of, never by its text."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

__all__ = ["Cause", "cause_of", "chain"]


class Cause(NamedTuple):
    """What is wrong with a connection, and the mend."""

    what: str
    mend: str


_KNOWN: Final[Sequence[tuple[type[BaseException], str, str]]] = (
    (
        ssl.SSLCertVerificationError,
        "the certificate of {where} is not trusted ({reason})",
        "trust its authority (SSL_CERT_FILE, or ssl_ca_certs in a Redis URL), or use the name it is made for",
    ),
    (
        ssl.SSLError,
        "{where} and we do not agree on TLS ({reason})",
        "use the address without TLS (redis://, http://), or switch TLS on there",
    ),
    (socket.gaierror, "the name of {where} leads nowhere", "correct the host, or mend the name service"),
    (ConnectionRefusedError, "nobody listens at {where}", "start {what} there, or correct the address"),
    (FileNotFoundError, "there is no socket at {where}", "start {what}, or correct the path"),
    (ConnectionError, "{where} closes the connection", "perhaps it speaks TLS: use rediss:// or https://"),
    (TimeoutError, "{where} does not answer in time", "see whether a firewall is between, or it is overloaded"),
)
"""What an error says, the narrower kinds first."""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Go through an error and those that it was made of."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def cause_of(error: BaseException, where: str, what: str) -> Cause:
    """Explain why there is no connection.

    Args:
        where: The address as it may be shown.
        what: Who should be there, as ``Redis``.
    """
    for each in chain(error):
        for kind, problem, mend in _KNOWN:
            if isinstance(each, kind):
                reason = getattr(each, "verify_message", None) or getattr(each, "reason", None) or "no handshake"
                return Cause(problem.format(where=where, reason=reason), mend.format(what=what))
    return Cause(f"no connection to {where} ({type(error).__name__})", f"see whether {what} runs there")
