"""Redis absent, lost, hanging, truncating its replies, or refusing."""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sdk_servers import CuttingProxy, RedisServer, SilentServer, required_redis
from sdk_started import StartedSdk
from support.processes import wait_until

import tracejudge
from tracejudge.delivery import transport as redis_stream
from tracejudge.delivery.buffer import Batch, Totals
from tracejudge.delivery.transport import RedisStream

Start = Callable[..., StartedSdk]
LONG_REPLY = "?socket_timeout=600"
"""In a URL: so long a socket waits for an answer. What ends within a minute has not waited for it."""


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test that keeps what it confirmed; not started yet."""
    binary = required_redis()
    if binary is None:
        pytest.skip("no redis-server")
    server = RedisServer(binary, tmp_path, durable=True)
    yield server
    server.kill()


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.close()


@pytest.fixture
def cutting(sdk_redis: RedisServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(sdk_redis.port)
    yield proxy
    proxy.close()


def outputs(sdk: StartedSdk) -> list[str]:
    return [trace["output"] for trace in sdk.traces()]


def test_redis_may_come_after_init(start: Start, own_redis: RedisServer) -> None:
    sdk = start(server=own_redis)
    tracejudge.publish(output="early")
    assert not tracejudge.flush(timeout=0.1)
    own_redis.start()
    assert tracejudge.flush(60)
    assert outputs(sdk) == ["early"]


def test_what_is_published_while_redis_is_killed_stands_once(start: Start, own_redis: RedisServer) -> None:
    own_redis.start()
    sdk = start(server=own_redis)
    killed = threading.Event()
    sent: list[str] = []
    for number in range(4_000):
        sent.append(str(number))
        tracejudge.publish(output=str(number))
        if number == 2_000:
            assert tracejudge.flush(60)
        if number == 2_500:
            own_redis.kill()
            killed.set()
    assert killed.is_set()
    assert not tracejudge.flush(timeout=0.1)
    own_redis.start()
    assert tracejudge.flush(60)
    assert outputs(sdk) == sent
    assert sdk.producer()["sent"] == "4000"
    assert sdk.client.totals() == Totals(4_000, 4_000, {})


def test_a_batch_whose_reply_is_cut_stands_once(start: Start, cutting: CuttingProxy) -> None:
    sdk = start(redis_url=f"{cutting.url}?socket_timeout=60")
    tracejudge.publish(output="before")
    assert tracejudge.flush(60)
    cutting.cuts = 3
    for number in range(10):
        tracejudge.publish(output=str(number))
    assert tracejudge.flush(60)
    assert cutting.cuts == 0
    assert outputs(sdk) == ["before", *map(str, range(10))]
    assert sdk.producer()["sent"] == "11"


def test_a_server_that_cuts_idle_connections_costs_a_silent_reconnect(
    start: Start, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tracejudge")
    own_redis.start()
    sdk = start(server=own_redis)
    with redis.Redis(port=own_redis.port) as admin:
        admin.config_set("timeout", 1)
        for number in range(3):
            tracejudge.publish(output=str(number))
            assert tracejudge.flush(60)
            wait_until(lambda: len(admin.client_list()) == 1, what="the cut of all but this client")
    assert outputs(sdk) == ["0", "1", "2"]
    assert sdk.client.totals() == Totals(3, 3, {})
    assert caplog.messages == []


def test_a_connection_that_was_idle_for_long_is_not_trusted_and_all_keep_themselves_alive(
    sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer forgets it without a word: whoever sends then waits for a reply that never comes."""
    connections = []
    for idle_s in (0.0, 60.0):
        monkeypatch.setattr(redis_stream, "_IDLE_S", idle_s)
        for number in range(2):
            tracejudge.publish(output=str(number))
            assert tracejudge.flush(60)
            connections.append(_socket_of(sdk).getsockname())
    first, second, third, fourth = connections
    assert len({first, second}) == 2
    assert third == fourth
    assert _socket_of(sdk).getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert _socket_of(sdk).getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def _socket_of(sdk: StartedSdk) -> socket.socket:
    stream: Any = sdk.client._delivery._sender._stream
    return stream._lanes[0]._connection._sock


def test_a_server_that_never_answers_blocks_nobody(start: Start, silent: SilentServer) -> None:
    start(redis_url=silent.url + LONG_REPLY)
    began = time.monotonic()
    for number in range(1_000):
        tracejudge.publish(output=str(number))
    assert time.monotonic() - began < 60, "no publication waits, or a thousand would for days"
    began = time.monotonic()
    assert not tracejudge.flush(timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 60, "nor does a flush wait for the answer"


def test_shutdown_leaves_a_server_that_never_answers_in_time(
    start: Start, silent: SilentServer, caplog: pytest.LogCaptureFixture
) -> None:
    sdk = start(redis_url=silent.url + LONG_REPLY)
    for number in range(700):
        tracejudge.publish(output=str(number))
    tracejudge.feedback("1", 1)
    began = time.monotonic()
    tracejudge.shutdown(timeout=0.3)
    assert time.monotonic() - began < 60, "and not when the socket gives up"
    assert sdk.client.totals() == Totals(700, 700, {"abandoned": 700})
    assert not tracejudge.flush()
    assert caplog.messages[-1] == f"701 entries for Redis at {silent.url} abandoned"


def test_full_by_items(start: Start, silent: SilentServer) -> None:
    sdk = start(redis_url=silent.url, max_items=10)
    for number in range(15):
        tracejudge.publish(output=str(number))
    assert sdk.client.totals() == Totals(published=15, accepted=10, dropped={"buffer_full": 5})


def test_full_by_bytes(start: Start, silent: SilentServer) -> None:
    sdk = start(redis_url=silent.url, max_bytes=100_000)
    for _ in range(15):
        tracejudge.publish(output="x" * 10_000)
    assert sdk.client.totals() == Totals(published=15, accepted=9, dropped={"buffer_bytes": 6})


def test_drops_of_a_full_buffer_are_reported_when_redis_is_back(start: Start, own_redis: RedisServer) -> None:
    sdk = start(server=own_redis, max_items=10)
    for number in range(15):
        tracejudge.publish(output=str(number))
    own_redis.start()
    assert tracejudge.flush(60)
    assert outputs(sdk) == [str(number) for number in range(10)]
    report = sdk.reports()[-1]
    assert (report["published"], report["accepted"], report["dropped"]) == (15, 10, {"buffer_full": 5})
    assert sdk.producer()["sent"] == "10"


def test_with_drop_oldest_the_newest_arrive_and_the_counts_balance(start: Start, own_redis: RedisServer) -> None:
    sdk = start(server=own_redis, max_items=10, drop="oldest")
    sdk.client._delivery.buffer._wake_at = math.inf  # so that none is on its way when others need room
    for number in range(15):
        tracejudge.publish(output=str(number))
    own_redis.start()
    assert tracejudge.flush(60)
    assert outputs(sdk) == [str(number) for number in range(5, 15)]
    report = sdk.reports()[-1]
    assert (report["published"], report["accepted"], report["dropped"]) == (15, 15, {"buffer_full": 5})
    assert sdk.producer()["sent"] == "10"


class StallingStream:
    """The real stream, which stands still after a few batches until it may go on."""

    def __init__(self, stream: RedisStream, go_on: threading.Event) -> None:
        self._stream, self._go_on = stream, go_on
        self.stands = threading.Event()
        self.partitions, self.disconnect = stream.partitions, stream.disconnect

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        if batch.number > 3:
            self.stands.set()
            self._go_on.wait(60)
        self._stream.append(batch, meanwhile)


def test_what_shutdown_has_no_time_for_is_reported_as_abandoned(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, given_up = start(), threading.Event()
    delivery = sdk.client._delivery
    stream = StallingStream(delivery._sender._open_stream(), given_up)
    monkeypatch.setattr("tracejudge.delivery.delivery._DELIVERY_SHARE", 0.01)  # so that the rest has nearly a minute
    monkeypatch.setattr(delivery._sender, "_open_stream", lambda: stream)
    abandon = delivery.buffer.abandon_queued
    monkeypatch.setattr(delivery.buffer, "abandon_queued", lambda: (abandon(), given_up.set()))
    for number in range(6_000):
        tracejudge.publish(output=str(number))
    assert stream.stands.wait(60)
    tracejudge.shutdown(timeout=60)
    stored = len(sdk.traces())
    assert 0 < stored < 6_000
    assert sdk.client.totals() == Totals(6_000, 6_000, {"abandoned": 6_000 - stored})
    assert sdk.reports()[-1]["dropped"] == {"abandoned": 6_000 - stored}
    assert sdk.producer()["sent"] == str(stored)


def test_a_key_of_a_wrong_type_holds_the_batch_until_it_is_fixed(
    start: Start, sdk_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    sdk = start()
    key = f"{sdk.client.settings.prefix}:traces"
    with redis.Redis(port=sdk_redis.port) as reader:
        reader.set(key, "not a stream")
        tracejudge.publish(output="a")
        assert not tracejudge.flush(timeout=0.2)
        wait_until(lambda: caplog.messages, what="the complaint")
        reader.delete(key)
    assert tracejudge.flush(60)
    assert outputs(sdk) == ["a"]
    assert "failed (ResponseError" in caplog.messages[0]


def test_a_full_redis_holds_the_batch_until_there_is_room(start: Start, own_redis: RedisServer) -> None:
    own_redis.start()
    sdk = start(server=own_redis)
    with redis.Redis(port=own_redis.port) as operator:
        operator.config_set("maxmemory", 1)
        tracejudge.publish(output="a")
        assert not tracejudge.flush(timeout=0.2)
        operator.config_set("maxmemory", 0)
    assert tracejudge.flush(60)
    assert outputs(sdk) == ["a"]


def test_forgotten_scripts_are_sent_again(start: Start, sdk_redis: RedisServer) -> None:
    sdk = start()
    tracejudge.publish(output="a")
    assert tracejudge.flush(60)
    with redis.Redis(port=sdk_redis.port) as operator:
        operator.script_flush()
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert outputs(sdk) == ["a", "b"]


def test_the_log_says_how_to_fix_a_database_that_redis_does_not_have(
    start: Start, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.start()
    start(redis_url=f"{own_redis.url.rpartition('/')[0]}/9999")
    tracejudge.publish(output="a")
    assert not tracejudge.flush(timeout=0.3)
    fix = "Redis has no such database: correct the number at the end of redis_url, 0 to 15 as a rule"
    wait_until(lambda: any(fix in message for message in caplog.messages), what="the complaint")
    tracejudge.shutdown(timeout=0.1)


def test_the_log_names_neither_password_nor_text(
    start: Start, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tracejudge")
    own_redis.start()
    start(redis_url=own_redis.patient_url.replace("//", "//user:s3cret@"))
    tracejudge.publish(output="secret words")
    assert not tracejudge.flush(timeout=0.3)
    wait_until(lambda: any(own_redis.url in message for message in caplog.messages), what="the complaint")
    tracejudge.shutdown(timeout=0.1)
    login = "set user and password in redis_url or TRACEJUDGE_REDIS_URL, as redis://user:password@host:6379/0"
    # Of this client: a thread that an earlier test left to its timeout may still complain about its own Redis.
    assert [message for message in caplog.messages if own_redis.url in message or "s3cret" in message] == [
        f"Publishing to Redis at {own_redis.url} failed (AuthenticationError: {login}); 1 waiting",
        f"1 entries for Redis at {own_redis.url} abandoned",
    ]
