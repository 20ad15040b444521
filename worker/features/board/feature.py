"""The board: pages with shares, verdicts, losses and labels. Its settings `[board]` and command."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from judges.core.faults import Fault
from worker.core.config.serving import Secret, Tls
from worker.core.config.settings import Settings
from worker.core.features import Command, Feature, Table


class Board(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[board]`: where `tracejudge board` listens, and who may read it.

    Attributes:
        host: Address to listen on; 0.0.0.0 admits other machines, which requires a token or `user_header`.
        port: Port of the board; 0 takes any free one, which is then printed.
        metrics_port: Port of the board's metrics, health and readiness pages at `metrics_host`; 0 takes any free one,
            which is then logged. Without it there are none.
        token_env: Name of the variable with the bearer token; the token itself is refused here. Browsers ask for it as
            the password, with any user name, which is the name of the annotator.
        token_file: A file that holds the token instead.
        user_header: Header in which a reverse proxy names the user that it has checked, as `X-Forwarded-User`.
        proxies: Addresses of the reverse proxies whose `user_header` counts; it is ignored from all others.
        hosts: Names under which browsers reach the board, besides those of the loopback; checked if there is no
            token, since a foreign page could have its own name point here.
        tls_cert: Certificate (PEM, with its chain) to serve the board over TLS.
        tls_key: Its private key (PEM, without a passphrase).
        links: Where a trace is shown elsewhere, by name: URLs with `{trace_id}`, `{span_id}`, `{session_id}` or
            `{service}`, as `Grafana = "https://grafana.example.com/explore?traceId={trace_id}"`.
        runbook: Address of the runbook that incidents link, as
            `http://localhost:3000/public/runbooks/quality.md` of the compose file.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 9810
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    token_env: str | None = None
    token_file: str | None = None
    user_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+\Z")] | None = None
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    links: Mapping[str, Annotated[str, Meta(pattern=r"^https?://[^\s]+\Z")]] = msgspec.field(default_factory=dict)
    runbook: Annotated[str, Meta(pattern=r"^https?://[^\s]+\Z")] | None = None


BOARD: Final = Table("board", Board, Board(), "Where `tracejudge board` listens, as `[board]`.")


def _faults(settings: Settings) -> Iterator[Fault]:
    """Check the certificate, the token, links and addresses of proxies."""
    board = BOARD.read(settings)
    yield from Tls.from_table(board, "board.tls_").faults()
    yield from Secret.from_table(board, "board.token_").faults()
    for name, template in board.links.items():
        try:
            template.format(trace_id="", span_id="", session_id="", service="")
        except (LookupError, ValueError, AttributeError):
            what = "may hold {trace_id}, {span_id}, {session_id} and {service} only"
            yield Fault(f"board.links.{name}", what, "write other braces twice")
    for address in board.proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError:
            yield Fault("board.proxies", f"{address!r} is no address and no network such as 10.0.0.0/8")


_COMMANDS: Final = {
    "board": Command("worker.features.board.command", "Serve pages with shares, verdicts, losses and labels")
}
FEATURE: Final = Feature(
    name="board",
    needs=("labels", "report"),
    tables=(BOARD,),
    faults=_faults,
    commands=_COMMANDS,
    page_metrics="worker.features.board.access.BoardMetrics",
)
