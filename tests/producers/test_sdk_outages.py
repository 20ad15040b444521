"""Life of the SDK in a process, and Redis absent, lost, hanging, cutting its replies, or refusing."""

import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from sdk_rig import StartedSdk, patient
from support.processes import free_port, wait_until
from support.proxy import HOLDS, PASSES, Behaviour, Proxy

import tracejudge
from tracejudge import api
from tracejudge.delivery import transport as redis_stream
from tracejudge.delivery.buffer import Batch, Totals
from tracejudge.delivery.transport import RedisStream
from worker.base.embedded import EmbeddedRedis

Start = Callable[..., StartedSdk]


def publish_many(count: int, first: int = 0) -> list[str]:
    outputs = [str(number) for number in range(first, first + count)]
    for output in outputs:
        tracejudge.publish(output=output)
    return outputs


def no_op() -> None:
    threads = set(threading.enumerate())
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(output="a", unknown=1))
    assert tracejudge.publish(trace_id="mine", output="a") == "mine"
    tracejudge.feedback("mine", score=1)
    assert tracejudge.flush(60)
    tracejudge.shutdown()
    assert set(threading.enumerate()) <= threads, "what an earlier test has left may end meanwhile"


def test_before_init_every_call_is_a_no_op_and_the_first_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: dict[str, Callable[[], object]] = {
        "publish": lambda: tracejudge.publish(output="secret words"),
        "observe": lambda: tracejudge.observe(len)([]),
        "trace": lambda: tracejudge.trace(name="n").__enter__(),
    }
    for function, call in calls.items():
        monkeypatch.setattr(api._Current, "warned", False)  # whatever an earlier test has said
        caplog.clear()
        for _ in range(2):
            call()
        message = f"Traces are not published: call tracejudge.init before tracejudge.{function}"
        assert caplog.record_tuples == [("tracejudge", logging.WARNING, message)]
    no_op()
    caplog.clear()
    monkeypatch.setenv("TRACEJUDGE_DISABLED", "1")
    tracejudge.init(service="shop")
    no_op()
    assert caplog.messages == [], "nor does it say anything when disabled"


def test_init_alone_starts_nothing_and_a_wrong_one_leaves_the_former_in_force_and_another_ends_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    idle = start()
    assert tracejudge.flush(60)
    former = start(service="former", exit_timeout_s=60)
    assert (idle.client._delivery._thread, idle.entries()) == (None, [])
    with pytest.raises(tracejudge.ConfigurationError):
        tracejudge.init(service="")
    tracejudge.publish(output="a")
    thread = former.client._delivery._thread
    later = start(service="later")
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert thread is not None
    assert not thread.is_alive()
    assert [[trace["service"] for trace in sdk.traces()] for sdk in (former, later)] == [["former"], ["later"]]
    assert former.client.producer != later.client.producer
    arguments = {"prefix": "same", "exit_timeout_s": 0.5}
    start(**arguments)
    caplog.clear()
    start(**arguments)
    assert caplog.messages == []
    start(**{**arguments, "environment": "prod", "max_items": 5})
    names = "environment, max_items"
    assert caplog.messages == [f"tracejudge.init was called again with other values of {names}; the new values hold"]


def test_shutdown_delivers_reports_and_ends_the_thread_and_later_publications_are_drops(sdk: StartedSdk) -> None:
    publish_many(1_200)
    tracejudge.shutdown(60)
    thread = sdk.client._delivery._thread
    assert thread is not None
    assert not thread.is_alive()
    assert len(sdk.traces()) == 1_200
    assert (sdk.reports()[-1]["published"], sdk.reports()[-1]["dropped"]) == (1_200, {})
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(output="b"))
    tracejudge.shutdown()
    assert tracejudge.flush(60), "what was accepted is in Redis"
    assert sdk.client.totals() == Totals(published=1_201, accepted=1_200, dropped={"shutdown": 1})
    assert len(sdk.traces()) == 1_200


def test_a_timeout_may_be_endless_or_nothing(start: Start) -> None:
    nobody = {"redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    for timeout_s, arguments, dropped in (
        *((float("inf"), {}, {}), (1e30, {}, {})),
        *((0, nobody, {"abandoned": 1}), (-1, nobody, {"abandoned": 1})),
    ):
        sdk = start(**arguments)
        tracejudge.publish(output="a")
        assert tracejudge.flush(timeout=timeout_s) is not bool(dropped)
        tracejudge.shutdown(timeout=timeout_s)
        assert sdk.client.totals() == Totals(published=1, accepted=1, dropped=dropped)


@pytest.mark.swallows
def test_a_thread_that_cannot_start_is_tried_again(sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        tracejudge.publish(output="a")
        assert not tracejudge.flush(timeout=0)
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert sdk.outputs() == ["a", "b"]


def test_the_end_of_the_process_is_registered_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setattr("atexit.unregister", registered.remove)
    registered.append(api._shutdown_at_exit)
    start()
    start()
    assert registered == [api._shutdown_at_exit]


# --- outages ---------------------------------------------------------------------------------------------------------


def test_what_is_published_while_redis_is_absent_or_killed_stands_once(start: Start, own_redis: EmbeddedRedis) -> None:
    sdk = start(server=own_redis)
    sent = publish_many(1)
    assert not tracejudge.flush(timeout=0.1)
    own_redis.restart()
    assert tracejudge.flush(60)
    sent += publish_many(2_000, 1)
    assert tracejudge.flush(60)
    sent += publish_many(500, 2_001)
    own_redis.kill()
    sent += publish_many(1_499, 2_501)
    assert not tracejudge.flush(timeout=0.1)
    own_redis.restart()
    assert tracejudge.flush(60)
    assert sdk.outputs() == sent
    assert sdk.producer()["sent"] == "4000"
    assert sdk.client.totals() == Totals(4_000, 4_000, {})


def test_a_batch_whose_reply_is_cut_stands_once(start: Start, redis_server: EmbeddedRedis) -> None:
    with Proxy(redis_server.port) as proxy:
        sdk = start(redis_url=f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=60")
        sent = publish_many(1)
        for first in (1, 4, 7):
            assert tracejudge.flush(60)
            # Of a connection that is open: the reply of the script.
            proxy.behaviour, cut = Behaviour(reply_share=0), proxy.cut
            sent += publish_many(3, first)
            wait_until(lambda cut=cut: proxy.cut > cut, what="the cut")
            proxy.behaviour = PASSES
        assert tracejudge.flush(60)
        assert sdk.outputs() == sent
        assert sdk.producer()["sent"] == "10"
        tracejudge.shutdown(60)


def test_a_server_that_cuts_idle_connections_costs_a_silent_reconnect(
    start: Start, own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tracejudge")
    own_redis.restart()
    sdk = start(server=own_redis)
    with redis.Redis(port=own_redis.port) as admin:
        admin.config_set("timeout", 1)
        for number in range(2):
            publish_many(1, number)
            assert tracejudge.flush(60)
            wait_until(lambda: len(admin.client_list()) == 1, what="the cut of all but this client")
    assert sdk.outputs() == ["0", "1"]
    assert sdk.client.totals() == Totals(2, 2, {})
    assert caplog.messages == []


def test_a_connection_that_was_idle_for_long_is_not_trusted_and_all_keep_themselves_alive(
    sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer forgets it without a word: whoever sends then waits for a reply that never comes."""
    names = []
    for number, idle_s in enumerate((0.0, 0.0, 60.0, 60.0)):
        monkeypatch.setattr(redis_stream, "_IDLE_S", idle_s)
        publish_many(1, number)
        assert tracejudge.flush(60)
        stream: Any = sdk.client._delivery._sender._stream  # the only way to the socket
        connection: socket.socket = stream._lanes[0]._connection._sock
        names.append(connection.getsockname())
    assert (names[0] != names[1], names[2] == names[3]) == (True, True)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def test_a_server_that_never_answers_blocks_nobody_and_is_left_in_time(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket would wait for ten minutes, and all publications for days: what ends within a minute has not waited."""
    with Proxy(free_port()) as proxy:
        proxy.behaviour = HOLDS
        silent = f"redis://127.0.0.1:{proxy.port}/0"
        sdk = start(redis_url=f"{silent}?socket_timeout=600")
        began = time.monotonic()
        publish_many(700)
        assert not tracejudge.flush(timeout=0.2)
        assert time.monotonic() - began >= 0.2
        tracejudge.feedback("1", 1)
        tracejudge.shutdown(timeout=0.3)
        assert time.monotonic() - began < 60
        assert sdk.client.totals() == Totals(700, 700, {"abandoned": 700})
        assert not tracejudge.flush()
        assert caplog.messages[-1] == f"701 entries for Redis at {silent} abandoned"


def test_drops_of_a_full_buffer_are_reported_when_redis_is_back(start: Start, own_redis: EmbeddedRedis) -> None:
    for drop, kept, accepted in (("newest", range(10), 10), ("oldest", range(5, 15), 15)):
        own_redis.kill()
        sdk = start(server=own_redis, max_items=10, drop=drop)
        sdk.client._delivery.buffer._wake_at = math.inf  # so that none is on its way when others need room
        publish_many(15)
        own_redis.restart()
        assert tracejudge.flush(60)
        assert sdk.outputs() == [str(number) for number in kept]
        report = sdk.reports()[-1]
        assert (report["published"], report["accepted"], report["dropped"]) == (15, accepted, {"buffer_full": 5})
        assert sdk.producer()["sent"] == "10"


def test_what_shutdown_has_no_time_for_is_reported_as_abandoned(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, given_up, stalls = start(), threading.Event(), threading.Event()
    append, buffer = RedisStream.append, sdk.client._delivery.buffer
    abandon = buffer.abandon_queued

    def stall(stream: RedisStream, batch: Batch, meanwhile: Callable[[], None]) -> None:
        if batch.number > 3:
            stalls.set()
            given_up.wait(60)
        append(stream, batch, meanwhile)

    monkeypatch.setattr(RedisStream, "append", stall)
    monkeypatch.setattr("tracejudge.delivery.delivery._DELIVERY_SHARE", 0.01)  # so that the rest has nearly a minute
    monkeypatch.setattr(buffer, "abandon_queued", lambda: (abandon(), given_up.set()))
    publish_many(6_000)
    assert stalls.wait(60)
    tracejudge.shutdown(timeout=60)
    stored = len(sdk.traces())
    assert 0 < stored < 6_000
    assert sdk.client.totals() == Totals(6_000, 6_000, {"abandoned": 6_000 - stored})
    assert sdk.reports()[-1]["dropped"] == {"abandoned": 6_000 - stored}
    assert sdk.producer()["sent"] == str(stored)


def test_a_batch_is_held_until_redis_takes_it(
    start: Start, own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.restart()
    sdk = start(server=own_redis)
    key = f"{sdk.client.settings.prefix}:traces"
    with redis.Redis(port=own_redis.port) as operator:
        operator.set(key, "not a stream")
        publish_many(1)
        assert not tracejudge.flush(timeout=0.2)
        wait_until(lambda: caplog.messages, what="the complaint")
        operator.delete(key)
        assert tracejudge.flush(60)
        assert "failed (ResponseError" in caplog.messages[0]
        operator.config_set("maxmemory", 1)
        publish_many(1, 1)
        assert not tracejudge.flush(timeout=0.2)
        operator.config_set("maxmemory", 0)
        assert tracejudge.flush(60)
        operator.script_flush()
        publish_many(1, 2)
        assert tracejudge.flush(60), "scripts that are forgotten are sent again"
    assert sdk.outputs() == ["0", "1", "2"]


def test_the_log_says_how_to_fix_it_and_names_neither_password_nor_text(
    start: Start, own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tracejudge")
    own_redis.restart()
    start(redis_url=f"{own_redis.url.rpartition('/')[0]}/9999")
    tracejudge.publish(output="a")
    assert not tracejudge.flush(timeout=0.3)
    fix = "Redis has no such database: correct the number at the end of redis_url, 0 to 15 as a rule"
    wait_until(lambda: any(fix in message for message in caplog.messages), what="the complaint")
    tracejudge.shutdown(timeout=0.1)
    start(redis_url=patient(own_redis.url).replace("//", "//user:s3cret@"))
    tracejudge.publish(output="secret words")
    assert not tracejudge.flush(timeout=0.3)
    wait_until(lambda: any(own_redis.url in message for message in caplog.messages), what="the complaint")
    tracejudge.shutdown(timeout=0.1)
    login = "set user and password in redis_url or TRACEJUDGE_REDIS_URL, as redis://user:password@host:6379/0"
    # Of this client: a thread that an earlier test left to its timeout may still complain about its own Redis.
    assert [message for message in caplog.messages if f"{own_redis.url} " in message or "s3cret" in message] == [
        f"Publishing to Redis at {own_redis.url} failed (AuthenticationError: {login}); 1 waiting",
        f"1 entries for Redis at {own_redis.url} abandoned",
    ]
    assert "secret words" not in caplog.text
