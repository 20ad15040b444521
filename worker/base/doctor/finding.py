"""Findings of `tracejudge doctor`: a part, whether it works, what is wrong and how to fix it."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct, field
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from worker.core.storage.client import StoreError

SLOW_MODEL: Final = "if calls time out, raise `timeout_s` or lower `max_in_flight` of the model"


class Finding(Struct, frozen=True):
    """The state of one part: what is wrong and how to fix it; of a working part, its details."""

    name: str
    result: Literal["ok", "warning", "broken"]
    what: str = ""
    # The JSON of earlier versions calls it so, and scripts read it.
    fix: str = field(default="", name="mend")


def ok(name: str, what: str = "") -> Finding:
    """Report a part that works."""
    return Finding(name, "ok", what)


def warning(name: str, what: str, fix: str) -> Finding:
    """Report a part that works, but not as it should."""
    return Finding(name, "warning", what, fix)


def broken(name: str, what: str, fix: str) -> Finding:
    """Report a part that does not work."""
    return Finding(name, "broken", what, fix)


def misconfigured(name: str, error: Exception) -> Finding:
    """Report a configuration error, whose text has the fix after a semicolon."""
    what, _, fix = f"{error}".partition("; ")
    return broken(name, what, fix or "correct it at the named place")


class Check(NamedTuple):
    """A check, the name of its finding when it fails itself, and its time limit."""

    name: str
    run: Callable[[], Sequence[Finding]]
    bound_s: float = 5.0

    def findings(self) -> Sequence[Finding]:
        """Run the check; a failure of the check is a finding too, so that it does not hide the other checks."""
        # Without the driver's text, which may contain an address or a key.
        what, fix = "cannot be checked", "fix Redis, then run the doctor again"
        try:
            return list(self.run())
        except StoreError as error:
            what = f"{what}: {error}"
        except NoPermissionError:
            what = f"{what}: Redis refuses the user a command"
            fix = "allow the commands that the part on permissions names (ACL SETUSER), then run the doctor again"
        except RedisError as error:
            reason = "refuses a command" if isinstance(error, ResponseError) else "does not answer"
            what = f"{what}: Redis {reason} ({type(error).__name__})"
        except Exception as error:  # noqa: BLE001 - see the docstring
            what, fix = f"{what} ({type(error).__name__})", "this is a bug of TraceJudge: please report it"
        return [broken(self.name, what, fix)]


def examine(checks: Sequence[Check]) -> list[Finding]:
    """Run all checks at the same time; return their findings in the order of the checks."""
    by_place: dict[int, Sequence[Finding]] = {}

    def run(place: int, check: Check) -> None:
        by_place[place] = check.findings()

    # Use daemon threads, because at its end the process would wait for threads of a pool, however long they hang.
    threads = [threading.Thread(target=run, args=row, daemon=True) for row in enumerate(checks)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread, check in zip(threads, checks, strict=True):
        thread.join(max(0.0, began_s + check.bound_s - time.monotonic()))
    overran = "check whether a firewall drops the connection, and whether the other side is overloaded"
    return [
        finding
        for place, check in enumerate(checks)
        for finding in by_place.get(place, (broken(check.name, f"no answer within {check.bound_s:g} s", overran),))
    ]


class Cause(NamedTuple):
    """The cause of a failed connection, and how to fix it."""

    what: str
    fix: str


# The narrower kinds first.
_KNOWN: Final[Sequence[tuple[type[BaseException], str, str]]] = (
    (
        ssl.SSLCertVerificationError,
        "the certificate of {where} is not trusted ({reason})",
        "trust its authority (SSL_CERT_FILE, or ssl_ca_certs in a Redis URL), or use the name it is made for",
    ),
    (
        ssl.SSLError,
        "the TLS handshake with {where} failed ({reason})",
        "use the address without TLS (redis://, http://), or switch TLS on there",
    ),
    (socket.gaierror, "the name of {where} cannot be resolved", "correct the host, or fix the name service"),
    (ConnectionRefusedError, "nothing listens at {where}", "start {what} there, or correct the address"),
    (FileNotFoundError, "there is no {file} {where}", "start {what}, or correct the path"),
    (ConnectionError, "{where} closes the connection", "perhaps it speaks TLS: use rediss:// or https://"),
    (TimeoutError, "{where} does not answer in time", "check whether a firewall is between, or it is overloaded"),
)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def cause_of(error: BaseException, where: str, what: str) -> Cause:
    """Explain why a connection to ``what``, such as Redis, failed; ``where`` is its address without secrets."""
    for link in chain(error):
        for kind, problem, fix in _KNOWN:
            if isinstance(link, kind):
                reason = getattr(link, "verify_message", None) or getattr(link, "reason", None) or "no handshake"
                file = "socket at" if where.startswith("unix") else "certificate file for"
                return Cause(problem.format(where=where, reason=reason, file=file), fix.format(what=what))
    return Cause(f"no connection to {where} ({type(error).__name__})", f"check whether {what} runs there")
