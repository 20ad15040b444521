"""The script that appends a batch, on each version of Redis."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace
from sdk_rig import SETTINGS, patient

import tracejudge
from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.log import DeliveryError
from tracejudge.redis_url import RedisUrl
from tracejudge.settings import Settings

SCRIPT = Path(tracejudge.__file__).parent / "scripts" / "append.lua"
WEEK_S = 7 * 24 * 3600
KEYS = ("shop:traces", "shop:producer:p1", "shop:producers")


@pytest.fixture
def store(any_redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(any_redis_url, decode_responses=True) as client:
        yield client
        client.delete(*KEYS, "shop:producer:p2", "shop:caps")
        client.execute_command("ACL", "DELUSER", "service", "support-bot")


def append(
    store: redis.Redis, number: int, *pairs: str, producer: str = "p1", cap: int = 1000, confirmed: int = 0
) -> int:
    arguments = (number, producer, cap, WEEK_S, "shop", confirmed, "".join(pairs[::2]), *pairs[1::2])
    keys = ("shop:traces", f"shop:producer:{producer}", "shop:caps", "shop:producers")
    answer = store.eval(SCRIPT.read_text(), len(keys), *keys, *arguments)
    assert isinstance(answer, int)
    return answer


def traces(count: int) -> list[str]:
    return ["t", "x"] * count


def test_a_batch_appends_its_entries_in_order(store: redis.Redis) -> None:
    assert append(store, 1, "t", "one", "f", "two", "r", "three") == 1
    assert [fields for _, fields in store.xrange("shop:traces")] == [
        {"v": "1", kind: text, "p": "p1"} for kind, text in (("t", "one"), ("f", "two"), ("r", "three"))
    ]
    assert store.hgetall("shop:producer:p1") == {"batch": "1", "service": "shop", "sent": "1", "trimmed": "0"}
    assert WEEK_S - 600 <= store.ttl("shop:producer:p1") <= WEEK_S
    assert store.ttl("shop:traces") == -1


def test_a_batch_that_comes_again_changes_nothing_and_numbers_compare_as_numbers(store: redis.Redis) -> None:
    assert append(store, 9, "t", "one") == 1
    assert append(store, 10, "t", "two") == 1
    before = (store.xrange("shop:traces"), store.hgetall("shop:producer:p1"))
    for number in (9, 10):
        assert append(store, number, "t", "again") == 0
        assert (store.xrange("shop:traces"), store.hgetall("shop:producer:p1")) == before
    assert append(store, 1, "t", "three", producer="p2") == 1, "producers have numbers of their own"
    assert store.xlen("shop:traces") == 3


def test_what_was_confirmed_and_is_known_no_more_is_lost(store: redis.Redis) -> None:
    fields = ("sent", "lost")
    append(store, 1, "t", "one", "t", "two", "f", "said")
    append(store, 2, "t", "three", confirmed=2)
    assert store.hmget("shop:producer:p1", fields) == ["3", None]
    store.delete(*KEYS)
    append(store, 3, "t", "four", confirmed=3)
    assert store.hmget("shop:producer:p1", fields) == ["4", "3"]
    store.hset("shop:producer:p1", mapping={"batch": 1, "sent": 2, "lost": 0})
    append(store, 4, "t", "five", confirmed=4)
    assert store.hmget("shop:producer:p1", fields) == ["5", "2"], "it came back from older data"
    assert append(store, 4, "t", "five", confirmed=9) == 0
    seconds, _ = store.time()
    assert store.zscore("shop:producers", "p1") / 1000 == pytest.approx(seconds, abs=60)


def test_what_the_cap_removes_is_counted_and_the_worker_s_cap_stands_above_a_service_s(store: redis.Redis) -> None:
    append(store, 1, *traces(400), cap=100)
    append(store, 2, *traces(400), producer="p2", cap=100)
    trimmed = [int(store.hget(f"shop:producer:{producer}", "trimmed") or -1) for producer in ("p1", "p2")]
    assert all(count > 0 for count in trimmed)
    assert sum(trimmed) + store.xlen("shop:traces") == 800
    store.delete(*KEYS)
    store.hset("shop:caps", "max_stream", 1000)
    append(store, 1, *traces(800), cap=100)
    assert store.xlen("shop:traces") == 800
    append(store, 2, *traces(800), cap=100_000)
    assert store.xlen("shop:traces") < 1200
    for unusable in ("0", "-5", "many", None):
        store.delete("shop:caps", *KEYS)
        if unusable is None:
            store.set("shop:caps", "of a wrong type")
        else:
            store.hset("shop:caps", "max_stream", unusable)
        append(store, 1, *traces(400), cap=300)
        assert 300 <= store.xlen("shop:traces") < 400, f"{unusable}: the service's own cap must hold"


def test_a_key_of_a_wrong_type_or_an_unusable_count_refuses_the_batch_as_a_whole(store: redis.Redis) -> None:
    for key in KEYS:
        store.set(key, "text")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            append(store, 1, "t", "one")
        assert store.exists(*KEYS) == 1, key
        store.delete(key)
    for count in ("sent", "lost", "trimmed"):
        for value in ("many", str(2**63 - 1)):
            store.hset("shop:producer:p1", count, value)
            with pytest.raises(redis.ResponseError, match="no whole number"):
                append(store, 1, "t", "x")
            assert not store.exists("shop:traces"), (count, value)
        store.delete("shop:producer:p1")


def test_a_right_that_is_absent_refuses_the_batch_as_a_whole(store: redis.Redis, any_redis_url: str) -> None:
    """Half of a batch was appended, and again with each retry, where the user lacked XTRIM or HSET."""
    for command in ("xadd", "xtrim", "hset", "hincrby", "expire", "zadd"):
        store.execute_command("ACL", "SETUSER", "service", "reset", "on", "nopass", "~*", "+@all", f"-{command}")
        user = {"username": "service", "password": "any"}
        limited = redis.Redis.from_url(any_redis_url, decode_responses=True, **user)
        with limited, pytest.raises(redis.ResponseError, match="allow it with ACL SETUSER"):
            append(limited, 1, "t", "x")
        assert not store.exists(*KEYS), command
    assert append(store, 1, "t", "x") == 1


def settings(url: str) -> Settings:
    return replace(SETTINGS, redis_url=RedisUrl(url), prefix="shop")


def batch(number: int) -> Batch:
    return Batch(number, (Entry(Kind.TRACE, b"{}"),), items=1, size_bytes=1, settles_through=1, flush_ticket=0)


def nothing() -> None:
    pass


def test_the_driver_sends_the_script_once_and_then_its_digest_and_quotes_no_error(
    store: redis.Redis, any_redis_url: str
) -> None:
    store.script_flush()
    store.config_resetstat()
    stream = RedisStream(settings(patient(any_redis_url)), "p1")
    for number in (1, 2, 2, 3):
        stream.append(batch(number), nothing)
    calls = store.info("commandstats")
    assert (calls["cmdstat_eval"]["calls"], calls["cmdstat_evalsha"]["calls"]) == (1, 4)
    assert store.hget("shop:producer:p1", "sent") == "3"
    store.set("shop:traces", "text")
    with pytest.raises(DeliveryError) as raised:
        stream.append(batch(4), nothing)
    stream.disconnect()
    assert str(raised.value) in {"ResponseError", "ResponseError WRONGTYPE"}
    # Whatever the URL asks for: a retry of the driver would hold the sender for minutes.
    stream = RedisStream(settings(f"{any_redis_url}?retry_on_timeout=yes"), "p1")
    assert stream._lanes[0]._connection.retry._retries == 0
    stream.disconnect()


def test_the_user_of_the_documentation_may_publish_and_read_nothing(store: redis.Redis, any_redis_url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
    line, _of_a_cluster = re.findall(r"^ACL SETUSER support-bot .*$", page, re.MULTILINE)
    store.execute_command(*line.split())
    store.script_flush()  # the first batch is sent with EVAL, the second with EVALSHA
    url = any_redis_url.replace("//", "//support-bot:PASSWORD@")
    stream = RedisStream(replace(settings(url), prefix="tracejudge"), "p1")
    for number in (1, 2):
        stream.append(batch(number), nothing)
    stream.disconnect()
    assert store.hget("tracejudge:producer:p1", "batch") == "2"
    refused = ("XRANGE tracejudge:traces - +", "XREAD STREAMS tracejudge:traces 0", "DEL tracejudge:traces", "KEYS *")
    with redis.Redis.from_url(url) as limited:
        for command in (*refused, "HGET tracejudge:user_key x", "XADD other * v 1", "CONFIG GET *"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                limited.execute_command(*command.split())
    store.delete("tracejudge:traces", "tracejudge:producer:p1", "tracejudge:producers")
