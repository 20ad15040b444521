"""Behind sentinels, or behind a name that moves: writes go to the new master within seconds after a failover."""

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kombu import Connection
from redis import Redis
from support.processes import wait_until
from support.redis_kinds import Watched, watched

from worker.base.embedded import EmbeddedRedis
from worker.core.config.settings import Settings
from worker.core.queue.notify import broker
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import Keys


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as servers:
        yield servers


def writes(store: Store, name: str) -> bool:
    try:
        return bool(store.call(lambda client: client.set(name, "1")))
    except StoreError:
        return False


def stands_at(port: int, name: str) -> bool:
    with Redis(port=port) as client:
        return bool(client.exists(name))


@pytest.mark.faults
def test_writes_follow_the_master_through_a_failover(servers: Watched) -> None:
    store = Store(servers.url, Keys())
    assert writes(store, "before")
    assert stands_at(servers.first.port, "before")
    servers.fail_over()
    tries = itertools.count()
    wait_until(lambda: next(tries) >= 0 and writes(store, "after"), what="a write to be taken")
    assert next(tries) <= 10, "soon; what keeps its connections is refused for ever"
    assert stands_at(servers.second.port, "after")
    store.close()


@pytest.mark.faults
def test_writes_follow_when_the_master_dies(servers: Watched) -> None:
    store = Store(servers.url, Keys())
    assert writes(store, "before")
    servers.lose_master()
    wait_until(lambda: writes(store, "after"), what="a write to be taken")
    assert stands_at(servers.second.port, "after")
    store.close()


@pytest.mark.faults
def test_scripts_find_a_demoted_master_out_as_well(servers: Watched) -> None:
    """In them Redis 6.2 says so in the middle of an error."""
    store = Store(servers.url, Keys("scripted"))

    def held() -> bool:
        try:
            store.run("finish", [f"scripted:{name}" for name in "abcdefg"], ("batch", "model"))
        except StoreError:
            return False
        return True

    assert held()
    servers.fail_over()
    wait_until(held, what="a script to run")
    store.close()


@pytest.mark.faults
def test_kombu_finds_the_master_through_the_same_sentinels(servers: Watched) -> None:
    parameters = broker(Settings(redis_url=servers.url))
    with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
        connection.SimpleQueue("sentinel-test").put({"x": 1})
    assert stands_at(servers.first.port, "sentinel-test")


class MovingName:
    """A port that leads to one server or another, as a name in DNS does; connections stay where they were made to."""

    def __init__(self, target: EmbeddedRedis) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target.port))
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_relay, args=pair, daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


@pytest.mark.faults
def test_a_name_that_moved_is_asked_again_when_the_old_master_takes_no_writes(servers: Watched) -> None:
    """Connections to the demoted master were kept, and every write failed until somebody restarted the worker."""
    name = MovingName(servers.first)
    store = Store(f"redis://127.0.0.1:{name.port}/0", Keys())
    try:
        assert writes(store, "before")
        servers.fail_over()
        wait_until(lambda: not writes(store, "between"), what="the old master to refuse")
        name.target = servers.second
        wait_until(lambda: writes(store, "after"), what="a write to be taken")
        assert stands_at(servers.second.port, "after")
    finally:
        store.close()
        name.close()
