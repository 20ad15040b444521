"""The proxy fails as networks do."""

import threading
import time
from collections.abc import Iterator

import pytest
from redis import ConnectionError as NoConnectionError
from redis import Redis
from redis import TimeoutError as LateError
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.proxy import HOLDS, PASSES, REFUSES, Proxy, cuts_replies, delays, resets_after

from worker.base.embedded import EmbeddedRedis


@pytest.fixture
def proxy(redis_server: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Redis]:
    with Redis(port=proxy.port, socket_timeout=60, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_it_passes_both_ways(client: Redis, prefix: str) -> None:
    client.set(f"{prefix}:key", b"x" * 1_000_000)
    assert client.get(f"{prefix}:key") == b"x" * 1_000_000


def test_one_that_refuses_resets_what_was_connected_and_comes_back(proxy: Proxy, client: Redis) -> None:
    assert client.ping()
    proxy.behaviour = REFUSES
    for _ in range(2):
        with pytest.raises(NoConnectionError):
            client.ping()
    proxy.behaviour = PASSES
    assert client.ping()


def test_what_it_accepted_just_before_it_refused_is_reset_as_well(proxy: Proxy, client: Redis) -> None:
    proxy._behaviour = REFUSES  # and its server listens still
    with pytest.raises(NoConnectionError):
        client.ping()
    assert proxy.cut == 1


def test_what_is_held_arrives_late(proxy: Proxy, client: Redis, prefix: str, redis: Redis) -> None:
    assert client.ping()
    proxy.behaviour = HOLDS
    caller = threading.Thread(target=client.set, args=(f"{prefix}:key", "1"))
    caller.start()
    caller.join(0.1)
    assert caller.is_alive()
    assert not redis.exists(f"{prefix}:key")
    proxy.behaviour = PASSES
    caller.join(60)
    assert redis.get(f"{prefix}:key") == b"1"


def test_what_is_held_too_long_is_given_up(proxy: Proxy) -> None:
    with (
        Redis(port=proxy.port, socket_timeout=0.05, retry=Retry(NoBackoff(), 0)) as client,
        proxy.network(HOLDS),
        pytest.raises(LateError),
    ):
        client.ping()


def test_it_delays(proxy: Proxy, client: Redis) -> None:
    with proxy.network(delays(0.05)):
        began = time.monotonic()
        assert client.ping()
        assert time.monotonic() - began >= 0.1


def test_a_request_is_cut_half_way(proxy: Proxy, client: Redis, prefix: str, redis: Redis) -> None:
    with proxy.network(resets_after(1000)):
        client.set(f"{prefix}:small", "1")
        with pytest.raises(NoConnectionError):
            client.set(f"{prefix}:large", "x" * 10_000)
    assert redis.exists(f"{prefix}:small", f"{prefix}:large") == 1
    assert proxy.cut == 1


@pytest.mark.parametrize("share", [0, 0.5])
def test_a_reply_is_cut_though_the_request_was_delivered(
    proxy: Proxy, client: Redis, prefix: str, redis: Redis, share: float
) -> None:
    assert client.ping()
    with proxy.network(cuts_replies(share)), pytest.raises(NoConnectionError):
        client.set(f"{prefix}:key", "1")
    assert redis.get(f"{prefix}:key") == b"1"
    assert client.ping()
