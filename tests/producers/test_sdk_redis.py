"""The SDK on each kind of Redis: its script on each version, partitions of a cluster, sentinels and TLS."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from lookalikes import table
from msgspec.structs import replace
from redis.crc import key_slot
from sdk_rig import SETTINGS, Host, StoredEntry, patient, stored_entry
from support.cluster import Cluster, running_cluster
from support.processes import bounded_s, wait_until
from support.redis_kinds import TlsRedis, make_certificates, watched
from support.stages import IngestHarness, Keyspace, home, named_in, three_partitions

import tracejudge
from tracejudge import api
from tracejudge.delivery import transport
from tracejudge.delivery.buffer import Batch, Entry, Kind
from tracejudge.delivery.transport import RedisStream
from tracejudge.ids import place_of
from tracejudge.log import DeliveryError
from tracejudge.redis_url import RedisUrl
from tracejudge.settings import Settings
from worker.base.accounting import Account, read_account, sum_accounts

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
) -> Any:
    arguments = (number, producer, cap, WEEK_S, "shop", confirmed, "".join(pairs[::2]), *pairs[1::2])
    keys = ("shop:traces", f"shop:producer:{producer}", "shop:caps", "shop:producers")
    return store.eval(SCRIPT.read_text(), len(keys), *keys, *arguments)


def test_a_batch_appends_its_entries_in_order(store: redis.Redis) -> None:
    assert append(store, 1, "t", "one", "f", "two", "r", "three") == 1
    assert [fields for _, fields in store.xrange("shop:traces")] == [
        {"v": "1", kind: text, "p": "p1"} for kind, text in (("t", "one"), ("f", "two"), ("r", "three"))
    ]
    assert store.hgetall("shop:producer:p1") == {"batch": "1", "service": "shop", "sent": "1", "trimmed": "0"}
    assert WEEK_S - 600 <= store.ttl("shop:producer:p1") <= WEEK_S
    assert store.ttl("shop:traces") == -1
    seconds, _ = store.time()
    assert store.zscore("shop:producers", "p1") / 1000 == pytest.approx(seconds, abs=60)


def test_the_script_counts_as_its_table_says(store: redis.Redis) -> None:
    """A row: its name, and steps, each a batch or a command of Redis with what it returns."""
    for name, steps in table("append_script"):
        for (command, *arguments), options, expected in steps:
            if command == "append":
                result = append(store, *arguments, **options)
            else:
                result = store.execute_command(command, *arguments)
            assert result == expected, (name, command, arguments)
        store.delete(*KEYS, "shop:producer:p2")


def test_what_the_cap_removes_is_counted_and_the_worker_s_cap_stands_above_a_service_s(store: redis.Redis) -> None:
    def fill(count: int, cap: int, producer: str = "p1") -> int:
        append(store, 1, *["t", "x"] * count, cap=cap, producer=producer)
        return int(store.xlen("shop:traces"))

    fill(400, 100)
    left = fill(400, 100, "p2")
    trimmed = [int(store.hget(f"shop:producer:{producer}", "trimmed") or -1) for producer in ("p1", "p2")]
    assert (min(trimmed) > 0, sum(trimmed) + left) == (True, 800)
    store.delete(*KEYS, "shop:producer:p2")
    store.hset("shop:caps", "max_stream", 1000)
    assert fill(800, 100) == 800
    assert fill(800, 100_000, "p2") < 1200
    for unusable in ("0", "-5", "many", None):
        store.delete("shop:caps", *KEYS)
        if unusable is None:
            store.set("shop:caps", "of a wrong type")
        else:
            store.hset("shop:caps", "max_stream", unusable)
        assert 300 <= fill(400, 300) < 400, f"{unusable}: the service's own cap must hold"


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


def send(stream: RedisStream, *numbers: int) -> None:
    for number in numbers:
        stream.append(batch(number), lambda: None)


def test_the_driver_sends_the_script_once_and_then_its_digest_and_quotes_no_error(
    store: redis.Redis, any_redis_url: str
) -> None:
    store.script_flush()
    store.config_resetstat()
    # Whatever the URL asks for: a retry of the driver would hold the sender for minutes.
    stream = RedisStream(settings(f"{patient(any_redis_url)}&retry_on_timeout=yes"), "p1")
    send(stream, 1, 2, 2, 3)
    assert stream._lanes[0]._connection.retry._retries == 0
    calls = store.info("commandstats")
    assert (calls["cmdstat_eval"]["calls"], calls["cmdstat_evalsha"]["calls"]) == (1, 4)
    assert store.hget("shop:producer:p1", "sent") == "3"
    store.set("shop:traces", "text")
    with pytest.raises(DeliveryError) as raised:
        send(stream, 4)
    stream.disconnect()
    assert str(raised.value) in {"ResponseError", "ResponseError WRONGTYPE"}


def test_the_user_of_the_documentation_may_publish_and_read_nothing(store: redis.Redis, any_redis_url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "connecting.md").read_text(encoding="utf-8")
    line, _of_a_cluster = re.findall(r"^ACL SETUSER support-bot .*$", page, re.MULTILINE)
    store.execute_command(*line.split())
    store.script_flush()  # the first batch is sent with EVAL, the second with EVALSHA
    url = any_redis_url.replace("//", "//support-bot:PASSWORD@")
    stream = RedisStream(replace(settings(url), prefix="tracejudge"), "p1")
    send(stream, 1, 2)
    stream.disconnect()
    assert store.hget("tracejudge:producer:p1", "batch") == "2"
    refused = ("XRANGE tracejudge:traces - +", "XREAD STREAMS tracejudge:traces 0", "DEL tracejudge:traces", "KEYS *")
    with redis.Redis.from_url(url) as limited:
        for command in (*refused, "HGET tracejudge:user_key x", "XADD other * v 1", "CONFIG GET *"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                limited.execute_command(*command.split())
    store.delete("tracejudge:traces", "tracejudge:producer:p1", "tracejudge:producers")


# --- partitions of a cluster, as a worker sees them: moves and failovers lose and double nothing ---
COUNT = 8


class Partitions:
    """Eight partitions of a cluster."""

    def __init__(self, keyspaces: list[Keyspace]) -> None:
        self.each = keyspaces

    def entries(self, number: int, kind: str = "t") -> list[StoredEntry]:
        space = self.each[number]
        stored = [stored_entry(fields) for _, fields in space.client.xrange(space.keys.traces)]
        return [entry for entry in stored if entry.kind == kind]

    def outputs(self) -> list[str]:
        return sorted(entry.record["output"] for number in range(COUNT) for entry in self.entries(number))

    def counts(self, name: str, producer: str | None = None) -> list[int]:
        """Read a count of a producer, this one unless named, from each partition."""
        producer = producer or client().producer
        return [int(space.client.hget(space.keys.producer(producer), name) or 0) for space in self.each]

    def account(self) -> Account:
        """Read everything as a worker does, and return the account of all partitions."""
        for space in self.each:
            IngestHarness(space).process()
        return sum_accounts([read_account(space.store) for space in self.each])


def client() -> api.Client:
    assert api._Current.client is not None
    return api._Current.client


def begin(cluster: Cluster, prefix: str, **arguments: Any) -> None:
    tracejudge.init(**{"service": "shop", "redis_url": cluster.url, "prefix": prefix, **arguments})


def publish_everywhere(count: int, start: str = "t") -> None:
    """Publish traces to each partition; their outputs are their ids."""
    for number in range(COUNT):
        for each in range(count):
            name = named_in(number, COUNT, f"{start}{number}-{each}-")
            tracejudge.publish("q", name, trace_id=name)


@pytest.fixture
def partitions(cluster: Cluster, prefix: str) -> Iterator[Partitions]:
    with three_partitions(cluster.url, prefix, COUNT) as keyspaces:
        yield Partitions(keyspaces)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster whose nodes are killed and whose slots are moved here."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def own(own_cluster: Cluster, prefix: str) -> Iterator[Partitions]:
    own_cluster.wait_well()
    with three_partitions(own_cluster.url, prefix, COUNT) as keyspaces:
        begin(own_cluster, prefix, max_items=50)
        publish_everywhere(2)
        assert tracejudge.flush(60)
        yield Partitions(keyspaces)


def test_a_session_is_in_one_partition_under_whatever_name_it_is_given(
    cluster: Cluster, prefix: str, partitions: Partitions
) -> None:
    places = {"4bf92f3577b34da6a3ce929d0e0e4736": [0, 4, 52], "00000000000000000000000000000001": [0, 6, 6]}
    places |= {"session-1": [0, 6, 46], "Zürich": [0, 6, 62], "🦊": [0, 7, 39]}
    for name, numbers in places.items():  # as documented, of 1, 8 and 64 partitions
        for trace_id, session_id in ((name, None), (name, ""), ("another", name)):
            assert [place_of(trace_id, session_id) % count for count in (1, 8, 64)] == numbers, (trace_id, session_id)
    begin(cluster, prefix)
    for number in range(30):
        tracejudge.publish(input="q", output="a", session_id=f"s{number}")
        tracejudge.publish({"input": "q", "output": "a", "conversationId": f"s{number}"})
        tracejudge.publish(input="q", output="a", thread_id=number)
    late = tracejudge.publish("q", "a", session_id="s1")
    tracejudge.feedback(late, -1)
    assert tracejudge.flush(60)
    records = [(number, entry.record) for number in range(COUNT) for entry in partitions.entries(number)]
    assert len(records) == 91
    for number, record in records:
        assert number == home(record["trace_id"], record.get("session_id"), COUNT), record
    assert [n for n in range(COUNT) for _ in partitions.entries(n, "f")] == [home(late, None, COUNT)]


def test_traces_wait_with_one_warning_until_a_worker_has_written_the_number(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guessed, the number could name partitions that no worker reads; and only the sender thread asks for it."""
    caplog.set_level(logging.INFO, "tracejudge")
    asked: list[int] = []
    ask = transport._Lane.ask

    def noted(lane: Any, *command: Any) -> Any:
        asked.append(threading.get_ident())
        return ask(lane, *command)

    monkeypatch.setattr(transport._Lane, "ask", noted)
    begin(cluster, prefix)
    publish_everywhere(2)
    assert not tracejudge.flush(1)
    wait_until(lambda: len(asked) > 2, what="the number to be asked for again")
    (warning,) = caplog.messages
    why = "the cluster has no number of partitions yet: start a worker, which writes it"
    assert warning.endswith(f" failed ({why}); {2 * COUNT} waiting")
    with three_partitions(cluster.url, prefix, COUNT) as keyspaces:
        assert tracejudge.flush(60)
        assert len(Partitions(keyspaces).outputs()) == 2 * COUNT
        times = len(asked)
        publish_everywhere(1, "later")
        assert tracejudge.flush(60)
        assert len(Partitions(keyspaces).outputs()) == 3 * COUNT
    assert len(asked) == times
    assert threading.get_ident() not in asked
    assert [text for text in caplog.messages if "resumed" not in text] == [warning]


def test_what_a_partition_has_lost_counts_there_but_not_what_was_confirmed_in_part(
    cluster: Cluster, prefix: str, partitions: Partitions
) -> None:
    begin(cluster, prefix)
    publish_everywhere(2)
    assert tracejudge.flush(60)
    space = partitions.each[1]
    space.client.delete(space.keys.traces, space.keys.producer(client().producer))
    publish_everywhere(1, "later")
    assert tracejudge.flush(60)
    assert (partitions.counts("sent"), partitions.counts("lost")) == ([3] * COUNT, [0, 2, *[0] * (COUNT - 2)])
    stream = transport.RedisStream(client().settings, "p1")
    entries = tuple(Entry(Kind.TRACE, b"{}", number) for number in range(COUNT))
    first, last = partitions.each[0], partitions.each[-1]
    last.client.delete(last.keys.traces)
    last.client.set(last.keys.traces, "text")
    with pytest.raises(DeliveryError, match="WRONGTYPE"):
        stream.append(Batch(1, entries, COUNT, 1, COUNT, 0), lambda: None)
    assert (partitions.counts("sent", "p1")[0], partitions.counts("lost", "p1")[0]) == (1, 0)
    # Meanwhile the first partition loses its part, which is appended once more.
    first.client.delete(first.keys.traces, first.keys.producer("p1"))
    last.client.delete(last.keys.traces)
    for number in (1, 1, 2):
        stream.append(Batch(number, entries, COUNT, 1, COUNT, 0), lambda: None)
    stream.disconnect()
    assert (partitions.counts("sent", "p1"), partitions.counts("lost", "p1")) == ([2] * COUNT, [0] * COUNT)
    assert [each.client.xlen(each.keys.traces) for each in (first, last)] == [2] * 2


KILLED = """
import itertools, tracejudge
tracejudge.init(exit_timeout_s=60)
for number in range(50):
    tracejudge.publish("q", "a")
assert tracejudge.flush(60)
print("flushed", flush=True)
for number in itertools.count():
    tracejudge.publish("q", "a")
"""


def test_the_account_of_all_partitions_balances_also_when_the_process_is_killed(
    cluster: Cluster, prefix: str, partitions: Partitions, tmp_path: Path
) -> None:
    begin(cluster, prefix)
    for number in range(60):
        tracejudge.publish("q", "a" if number % 6 else None)
    assert tracejudge.flush(60)
    reports = {number for number in range(COUNT) for _ in partitions.entries(number, "r")}
    assert reports == {home(client().producer, None, COUNT)}
    dropped = client().totals().dropped
    account = partitions.account()
    assert (account.published, account.dropped, account.unread, account.lost) == (60, sum(dropped.values()), 0, 0)
    with Host(tmp_path, cluster.url, prefix).begin(KILLED) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "flushed\n"
        wait_until(lambda: sum(space.client.xlen(space.keys.traces) for space in partitions.each) > 500)
        program.kill()
    account = partitions.account()
    ends = account.dropped + account.no_rule + account.sampled + account.not_sampled
    assert account.published == ends > 500
    assert (account.unread, account.lost) == (0, 0)


FORKING = """
import multiprocessing
def publish(name):
    for number in range(10):
        tracejudge.publish("q", f"{name} {number}")

if __name__ == "__main__":
    tracejudge.init(exit_timeout_s=60)
    publish("parent")
    child = multiprocessing.get_context("fork").Process(target=publish, args=("child",))
    child.start()
    child.join()
"""


def test_a_fork_delivers_to_all_partitions_and_waits_for_what_the_sender_imports(
    cluster: Cluster, prefix: str, partitions: Partitions, tmp_path: Path
) -> None:
    assert Host(tmp_path, cluster.url, prefix).run(Host.PATIENT + Host.WATCH + FORKING) == ""
    assert partitions.outputs() == sorted(f"{name} {number}" for name in ("child", "parent") for number in range(10))


@contextmanager
def half_moved(cluster: Cluster, space: Keyspace) -> Iterator[None]:
    """Move the slot of a partition to another master, and hold it when only the key `layout` has moved."""
    slot, source = key_slot(space.keys.traces.encode()), cluster.master_of(space.keys.traces)
    target = next(node for node in cluster.nodes if node.is_master() and node is not source)

    def move(*keys: str) -> None:
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    move(space.keys.layout)
    yield
    move(*source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000))
    for node in (target, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)


@pytest.mark.slow("a cluster")
@pytest.mark.faults
def test_a_slot_that_moves_loses_and_doubles_nothing(own_cluster: Cluster, own: Partitions) -> None:
    with half_moved(own_cluster, own.each[3]):
        publish_everywhere(3, "moving")
        assert not tracejudge.flush(2)
        assert own.counts("sent")[3] == len(own.entries(3)) == 2, "refused as a whole"
    assert tracejudge.flush(60)
    assert len(set(own.outputs())) == len(own.outputs()) == 5 * COUNT
    assert (own.counts("sent"), own.counts("lost")) == ([5] * COUNT, [0] * COUNT)


@pytest.mark.faults
@pytest.mark.usefixtures("own")
def test_flush_and_shutdown_keep_their_time_while_a_partition_hangs(own_cluster: Cluster, prefix: str) -> None:
    master = own_cluster.of_partition(5, prefix)
    master.pause()
    try:
        publish_everywhere(3, "meanwhile")
        for call in (tracejudge.flush, tracejudge.shutdown):
            began = time.monotonic()
            assert not call(0.5)
            assert time.monotonic() - began < bounded_s(1.5), call.__name__
    finally:
        master.resume()
    totals = client().totals(Kind.TRACE)
    assert totals.published == 5 * COUNT
    assert set(totals.dropped) <= {"abandoned"}


# --- sentinels and TLS -----------------------------------------------------------------------------------------------


def outputs(port: int, prefix: str) -> list[Any]:
    with redis.Redis(port=port) as reader:
        entries = [stored_entry(fields) for _, fields in reader.xrange(f"{prefix}:traces")]
    return [entry.record["output"] for entry in entries if entry.kind == "t"]


@pytest.mark.faults
def test_traces_go_on_to_the_new_master_and_stand_once(tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        tracejudge.init(service="shop", redis_url=servers.url, prefix="failing-over")
        tracejudge.publish(output="before")
        assert tracejudge.flush(60)
        servers.fail_over()
        tracejudge.publish(output="after")
        assert tracejudge.flush(60)
        assert outputs(servers.second.port, "failing-over") == ["before", "after"]
        tracejudge.shutdown(0)


def test_traces_go_through_tls_to_a_server_whose_certificate_is_trusted_and_names_it(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    trust = f"?ssl_ca_certs={certificates.authority}"
    with TlsRedis(certificates) as server:
        for prefix, url, arrived in (
            ("trusted", f"{server.tls_url}{trust}", ["in secret"]),
            ("stranger", server.tls_url, []),
        ):
            tracejudge.init(service="shop", redis_url=url, prefix=prefix)
            tracejudge.publish(output="in secret")
            assert tracejudge.flush(60 if arrived else 1) is bool(arrived)
            assert outputs(server.port, prefix) == arrived
        tracejudge.shutdown(0)
        url = f"rediss://127.1:{server.tls_port}/0{trust}"
        for options, expected in (
            ("", pytest.raises(redis.ConnectionError)),
            ("&ssl_check_hostname=false", nullcontext()),
        ):
            pool: Any = transport.make_pool(f"{url}{options}", reply_timeout_s=60, connect_timeout_s=60)
            with redis.Redis.from_pool(pool) as connected, expected:
                assert connected.ping()
