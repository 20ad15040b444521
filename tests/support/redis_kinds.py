"""Redis deployments: TLS, and master and replica with a sentinel. Real servers, real certificates."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from redis import Redis, RedisError

from support.processes import free_port, missing, wait_until
from worker.base.embedded import EmbeddedRedis, ServerBinary, find_servers

MASTER = "mymaster"
_DAYS = "2"


def delete_keys(client: Any, pattern: str) -> None:
    """Delete all keys whose names match, on one server or a whole cluster."""
    with client.pipeline(transaction=False) as pipe:
        for key in client.scan_iter(match=pattern, count=1000):
            pipe.unlink(key)
        pipe.execute()


class Certificates(NamedTuple):
    """Paths of an authority, and of the certificates that it signed for a loopback server and a client."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and certificates; without openssl the test is skipped, and fails in CI."""
    if shutil.which("openssl") is None:
        missing("no openssl command")
    files = Certificates(
        *(folder / name for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key"))
    )
    authority_key = folder / "ca.key"
    _openssl(
        "req", "-x509", *_new_key(authority_key), "-days", _DAYS, "-subj", "/CN=authority", "-out", files.authority
    )
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for certificate, key in ((files.server, files.server_key), (files.client, files.client_key)):
        request = certificate.with_suffix(".csr")
        _openssl("req", *_new_key(key), "-subj", f"/CN={certificate.stem}", "-out", request)
        signed = ("-CA", files.authority, "-CAkey", authority_key, "-CAcreateserial", "-extfile", names)
        _openssl("x509", "-req", "-in", request, *signed, "-days", _DAYS, "-out", certificate)
    return files


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class TunedRedis(EmbeddedRedis):
    """A server with further options."""

    def __init__(self, binary: ServerBinary, *options: str) -> None:
        super().__init__(binary)
        self._options = options

    def _command(self) -> list[str]:
        return [*super()._command(), *self._options]


class TlsRedis(TunedRedis):
    """A server with a second port for TLS only; the plain port is for its start and for the test."""

    def __init__(self, certificates: Certificates, *further: str, asks_clients: bool = False) -> None:
        # Below 20,000: the port of the bus of a cluster is higher by 10,000, and must be none of the system's own.
        self.tls_port = free_port()
        files = ("--tls-cert-file", certificates.server, "--tls-key-file", certificates.server_key)
        authority = ("--tls-ca-cert-file", certificates.authority)
        asks = ("--tls-auth-clients", "yes" if asks_clients else "no")
        options = ("--tls-port", self.tls_port, *files, *authority, *asks)
        super().__init__(_with_tls(), *map(str, options), *further)

    @property
    def tls_url(self) -> str:
        return f"rediss://127.0.0.1:{self.tls_port}/0"


def _with_tls() -> ServerBinary:
    """Find a server that was built with TLS; others do not know the option."""
    for binary in find_servers():
        tried = subprocess.run([str(binary.path), "--tls-port", "1", "--port", "0"], capture_output=True, check=False)
        if b"Bad directive" not in tried.stdout + tried.stderr:
            return binary
    return missing("no redis-server with TLS")


class Watched(NamedTuple):
    """A master, its replica, and the port of the sentinel that watches them."""

    first: EmbeddedRedis
    second: EmbeddedRedis
    port: int

    @property
    def url(self) -> str:
        """A URL with an unreachable sentinel before the reachable one."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.port}/{MASTER}/0"

    def ask(self, *command: str) -> object:
        with Redis(port=self.port) as sentinel:
            return sentinel.execute_command(*command)

    def master_port(self) -> int:
        with Redis(port=self.port) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(MASTER)[1])

    def lose_master(self) -> None:
        """Kill the master, and make the sentinel detect it soon."""
        self.ask("SENTINEL", "SET", MASTER, "down-after-milliseconds", "500")
        self.first.kill()

    def knows_replica(self) -> bool:
        with Redis(port=self.port) as sentinel:
            return any(replica["master-link-status"] == "ok" for replica in sentinel.sentinel_slaves(MASTER))

    def fail_over(self) -> None:
        """Make the replica the master and the master a replica; the sentinel does this ten seconds later."""
        before = self.master_port()
        # Wait for the replica: what it has not received would be lost, which is not the subject of these tests.
        wait_until(lambda: self._has_all(before), what="the replica to have all")
        wait_until(lambda: self._has_moved(before), what="another master")
        with Redis(port=before) as demoted:
            demoted.replicaof("127.0.0.1", str(self.master_port()))

    def _has_all(self, master_port: int) -> bool:
        other = next(server.port for server in (self.first, self.second) if server.port != master_port)
        with Redis(port=master_port) as master, Redis(port=other) as replica:
            written = master.info("replication")["master_repl_offset"]
            return replica.info("replication").get("slave_repl_offset", -1) >= written

    def _has_moved(self, before: int) -> bool:
        """Return whether the failover is done; request one if none is under way, because a slow one is abandoned."""
        if self.master_port() != before:
            return True
        with Redis(port=self.port) as sentinel:
            master = sentinel.sentinel_master(MASTER)
            if master["port"] == before and "failover_in_progress" not in master["flags"]:
                with suppress(RedisError):  # a replica that was silent for a while is not promoted
                    sentinel.execute_command("SENTINEL", "FAILOVER", MASTER)
        time.sleep(0.1)
        return False


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Run a master, a replica and a sentinel."""
    binary = next(iter(find_servers()), None) or missing("no Redis server")
    fast = ("--repl-diskless-sync-delay", "0")
    with ExitStack() as stack:
        first = stack.enter_context(TunedRedis(binary, *fast))
        second = stack.enter_context(TunedRedis(binary, *fast, "--replicaof", "127.0.0.1", str(first.port)))
        sentinel = stack.enter_context(_Sentinel(binary, folder, first.port))
        client = stack.enter_context(Redis(port=second.port))
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replica")
        servers = Watched(first, second, sentinel.port)
        # The sentinel queries the master every ten seconds; a master that dies before has no known replica.
        wait_until(servers.knows_replica, what="the sentinel to know of the replica")
        yield servers


class _Sentinel:
    """One sentinel, which considers a master down after a minute: a busy machine may delay it for seconds."""

    def __init__(self, binary: ServerBinary, folder: Path, master_port: int) -> None:
        self.port = free_port()
        self._config = folder / "sentinel.conf"
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {MASTER} 127.0.0.1 {master_port} 1",
            f"sentinel down-after-milliseconds {MASTER} 60000",
            f"sentinel failover-timeout {MASTER} 10000",
        )
        self._config.write_text("\n".join(lines) + "\n")
        self._command: Sequence[str] = (str(binary.path), str(self._config), "--sentinel")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
        with Redis(port=self.port) as client:
            wait_until(lambda: answers(client), what="the sentinel to answer")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def answers(client: Redis) -> bool:
    """Return whether a server answers a ping."""
    try:
        return bool(client.ping())
    except RedisError:
        return False
