"""Brokers: one with TLS, one behind sentinels, RabbitMQ, one that hangs, and none at all.

Batches wait in Redis, and nothing is judged outside a Celery task: without its broker a worker judges nothing, loses
nothing, and goes on within seconds of the broker's return. Notifications leave in a thread of their own: one for all
that came together, and never more than the bound. Celery's consumer lets through notifications as we send them.
"""

import base64
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.message import Message
from redis import Redis
from structlog.testing import capture_logs
from support import replies
from support.endpoint import ChatEndpoint
from support.fixtures import one_redis
from support.pipeline import Pipeline, make_traces, model_at
from support.processes import bounded_s, free_port, wait_until
from support.rabbitmq import RabbitMq
from support.redis_kinds import Certificates, TlsRedis, watched
from support.stages import Keyspace, settings_of
from support.tables import as_bytes, read_table

from worker.base.embedded import EmbeddedRedis
from worker.celery import _is_notification
from worker.core.config.settings import Settings
from worker.core.queue import notify
from worker.core.queue.batch import fresh_id
from worker.core.queue.notify import MESSAGE_VERSION, PARTITION_VERSION, TASK, BrokerSender, Notifier
from worker.core.storage.client import StoreError
from worker.core.telemetry.health import Heartbeat

AtRedis = Callable[[str], Pipeline]
RULES = [{"name": "all", "judges": ["safety"]}]
SHIFT_S = 5.0
any_redis_server = one_redis
RESUMES_S = bounded_s(5.0)
"""Guaranteed time after the broker's return until judging continues."""
RECOVERY_S = bounded_s(30.0)
SECONDS = 60
"""Limit for steps that take seconds, also on a busy machine; the bugs found here took minutes or never ended."""


def seconds_until_judged(pipeline: Pipeline, count: int, *, first: int = 0) -> float:
    """Publish traces, and return the seconds until all were judged."""
    pipeline.publish(make_traces(count, first=first))
    began = time.monotonic()
    account = pipeline.settled(first + count)
    assert (account.scored, account.lost) == (first + count, 0)
    return time.monotonic() - began


def seconds_until_resumed(endpoint: ChatEndpoint, came: int) -> float:
    """Return the seconds from now until another call arrives."""
    began = time.monotonic()
    wait_until(lambda: len(endpoint.calls) > came, what="a call")
    return time.monotonic() - began


@pytest.mark.slow("several real programs")
@pytest.mark.faults
@pytest.mark.parametrize("end", ["killed", pytest.param("hangs", marks=pytest.mark.endurance("a second variant"))])
def test_no_call_reaches_the_endpoint_while_the_broker_is_down(pipeline: Pipeline, end: str) -> None:
    """Regression: evaluations were judged although the broker had never been reachable."""
    with EmbeddedRedis() as broker, ChatEndpoint(replies.slow(0.05, replies.yes_no())) as endpoint:
        models = {"default": model_at(endpoint.base_url, max_in_flight=4)}
        worker = pipeline.worker(rules=RULES, broker_url=broker.url, models=models)
        pipeline.publish(make_traces(200))
        wait_until(lambda: len(endpoint.calls) > 20, what="judging in full course")
        broker.kill()
        pipeline.publish(make_traces(200, first=200))
        wait_until(lambda: endpoint.in_flight == 0 and _is_quiet(endpoint), SHIFT_S * 4, "the calls under way to end")
        worker.program.wait_for("notifications lost|Connection to broker lost|Cannot connect")
        came = len(endpoint.calls)
        assert came < 400
        time.sleep(SHIFT_S)  # long enough for waits between attempts to grow
        assert len(endpoint.calls) == came, "no call begins outside a task"
        assert pipeline.account().waiting == 400 - came
        if end == "hangs":
            with socket.create_server(("127.0.0.1", broker.port), backlog=64):
                time.sleep(1.0)
        broker.restart()
        took_s = seconds_until_resumed(endpoint, came)
        account = pipeline.settled(400)
        assert (account.scored, account.lost, len(endpoint.calls)) == (400, 0, 400)
        assert took_s < (RESUMES_S if end == "killed" else SECONDS)
        assert worker.program.terminate() == 0


def _is_quiet(endpoint: ChatEndpoint) -> bool:
    came = len(endpoint.calls)
    time.sleep(0.5)
    return len(endpoint.calls) == came


@pytest.mark.slow("a start of a worker")
def test_a_worker_uses_tls(at_redis: AtRedis, certificates: Certificates) -> None:
    with TlsRedis(certificates) as server:
        pipeline = at_redis(f"{server.tls_url}?ssl_ca_certs={certificates.authority}")
        worker = pipeline.worker(rules=RULES)
        seconds_until_judged(pipeline, 10)
        worker.program.wait_for("Connected to rediss://")


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
@pytest.mark.faults
def test_a_worker_with_sentinels_continues_after_a_failover(at_redis: AtRedis, tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        pipeline = at_redis(servers.url)
        worker = pipeline.worker(rules=RULES)
        seconds_until_judged(pipeline, 20)
        worker.program.wait_for("Connected to sentinel://")
        servers.fail_over()
        wait_until(lambda: _takes_writes(pipeline), what="our own connections to follow")
        assert seconds_until_judged(pipeline, 20, first=20) < SECONDS
        assert worker.program.running
        assert worker.program.terminate() == 0


def _takes_writes(pipeline: Pipeline) -> bool:
    with suppress(StoreError):
        return bool(pipeline.store.call(lambda client: client.set(f"{pipeline.prefix}-probe", "1")))
    return False


@pytest.mark.parametrize(
    "restarts",
    [
        pytest.param(False, marks=pytest.mark.slow("RabbitMQ")),
        pytest.param(True, marks=pytest.mark.endurance("RabbitMQ twice; in CI a broker in Redis is restarted")),
    ],
)
def test_rabbitmq_as_broker_is_restarted_and_a_worker_is_killed(
    pipeline: Pipeline, tmp_path: Path, *, restarts: bool
) -> None:
    with RabbitMq(tmp_path) as broker, ChatEndpoint(replies.slow(0.2, replies.yes_no())) as endpoint:
        models = {"default": model_at(endpoint.base_url)}
        settings = {"rules": RULES, "broker_url": broker.url, "models": models, "batch_size": 4}
        worker = pipeline.worker(**settings)
        seconds_until_judged(pipeline, 20)
        worker.program.wait_for("Connected to amqp://")
        if restarts:
            broker.kill()
            pipeline.publish(make_traces(100, first=20))
            wait_until(lambda: pipeline.account().chosen == 120, what="the traces to be chosen")
            wait_until(lambda: _is_quiet(endpoint), what="what was under way to end")
            came = len(endpoint.calls)
            time.sleep(2)
            assert len(endpoint.calls) == came, "no call begins outside a task"
            broker.start()
            assert seconds_until_resumed(endpoint, came) < RESUMES_S
            assert pipeline.settled(120).scored == 120
        judged = pipeline.account().scored
        successor = pipeline.worker(**settings, grace_s=1.0)
        endpoint.behaviour = replies.slow(SECONDS, replies.yes_no())
        pipeline.publish(make_traces(40, first=judged))
        wait_until(lambda: endpoint.in_flight == 40, what="all calls to be under way")
        worker.program.kill()
        endpoint.behaviour = replies.yes_no()
        successor.program.signal(signal.SIGTERM)
        assert successor.program.wait() == 0
        pipeline.worker(**settings)
        began = time.monotonic()
        account = pipeline.settled(judged + 40)
        assert (account.scored, account.lost) == (judged + 40, 0)
        assert time.monotonic() - began < RECOVERY_S
        assert "not a notification" not in worker.program.output + successor.program.output


@pytest.mark.slow("a start of a worker")
def test_variables_of_celery_replace_no_broker(
    pipeline: Pipeline, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64)).getsockname()[1]
    foreign = {f"CELERY_BROKER{way}_URL": f"redis://127.0.0.1:{hanging}/0" for way in ("", "_READ", "_WRITE")}
    foreign["CELERY_RESULT_BACKEND"] = "xyzzy://"
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    worker = pipeline.worker("-m", "celery", "-A", "worker", "worker", rules=RULES)
    assert seconds_until_judged(pipeline, 3) < SECONDS
    assert {name for name in foreign if f'"{name}"' in worker.program.stderr} == set(foreign)


# --- notifications ---
MODELS = ("gpt", "majority(a,b)", "mean(a,b)")
OURS = {"v": MESSAGE_VERSION, "model": "gpt-6-luna"}
NAMED = {**OURS, "v": PARTITION_VERSION, "partition": 2}
REST = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
HEADS = {"task": TASK, "id": "6f1c", "eta": None, "expires": None, "retries": 0, "timelimit": [None, None]}


class Sent:
    """Records what is sent; fails or hangs on request."""

    def __init__(self) -> None:
        self.labels: list[tuple[str, int]] = []
        self.failure: Exception | None = None
        self.hanging = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def send(self, label: str, at_most: int) -> None:
        if not self.free.is_set():
            self.hanging.set()
            self.free.wait()
        if self.failure is not None:
            raise self.failure
        self.labels.append((label, at_most))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def notifier(keyspace: Keyspace, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> Notifier:
    monkeypatch.setattr(notify, "_LOOK_S", 0.01)
    monkeypatch.setattr(notify, "_GATHER_S", 0.0)
    return Notifier(keyspace.store, sent.send, MODELS)


def test_one_notification_leaves_for_each_queue_within_the_bound(
    keyspace: Keyspace, notifier: Notifier, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [fresh_id(name, float(number)) for number in range(3) for name in MODELS]
    notifier.notify_batches(ids)
    notifier.run_once()
    assert sorted(sent.labels) == [("gpt", 2), ("panel", 2)], "all panels share a queue"
    keyspace.client.zadd(keyspace.keys.ready("gpt"), {ids[0]: 1})
    assert notifier.ready_labels() == {"gpt"}
    notifier.notify_batches(ids, notifier.ready_labels())
    notifier.run_once()
    assert sent.labels[2:] == [("panel", 2)], "batches of the other were ready before"
    # The bound is two for each worker that judges, and the sweepers' own.
    monkeypatch.setattr(notify, "_COUNT_WORKERS_S", 0.0)
    for roles in ({"judge": True}, {"judge": False, "ingest": True}, {"judge": True}, {"ingest": True}):
        Heartbeat(keyspace.store).beat(roles)
    notifier.notify("gpt", 1)
    notifier.run_once()
    assert (notifier.workers, sent.labels[3:]) == (3, [("gpt", 1)])
    for bound in ((1,), (), (1,)):
        notifier.notify("gpt", *bound)
    notifier.run_once()
    assert sent.labels[4:] == [("gpt", 6)]


def test_an_outage_of_the_broker_loses_notifications_and_logs_one_line(notifier: Notifier, sent: Sent) -> None:
    failures = (OperationalError("s3cret"), ConnectionRefusedError("s3cret"), TimeoutError())
    for dropped, failure in zip((12, 24, 36), failures, strict=True):
        sent.failure = failure
        sent.labels.clear()
        with capture_logs() as logged:
            for _ in range(3):
                for label in "abcd":
                    notifier.notify(label)
                notifier.run_once()
            assert notifier.dropped == dropped
            sent.failure = None
            notifier.notify("again")
            notifier.run_once()
        assert sent.labels == [("again", 2)]
        name = type(failure).__name__
        lines = [(line["event"], line.get("error"), line.get("dropped")) for line in logged]
        lost = ("notifications lost, judging waits for the broker", name, None)
        assert lines == [lost, ("notifications resumed", None, dropped)], name
    # A broker that hangs blocks neither `notify` nor the stop.
    sent.labels.clear()
    sent.free.clear()
    notifier.start()
    notifier.notify("first")
    assert sent.hanging.wait(60)
    for number in range(1_000):
        notifier.notify(f"label {number % 3}")
    sent.free.set()
    wait_until(lambda: len(sent.labels) == 4, what="one for each label")
    assert notifier.stop(60)


@contextmanager
def sender(url: str, settings: Settings, client: Redis) -> Iterator[tuple[Celery, BrokerSender]]:
    """Make a sender, and delete what it leaves in the broker at the end."""
    with closing(Celery("tests", broker=url, set_as_current=False)) as app:
        app.conf.broker_transport_options = {"priority_steps": [0]}
        with closing(BrokerSender(app, settings)) as broker:
            yield app, broker
    client.delete(settings.queue("gpt"), f"_kombu.binding.{settings.prefix}.judge")


def test_a_queue_holds_as_many_as_bound_for_each_partition(redis_url: str, keyspace: Keyspace, redis: Redis) -> None:
    settings = settings_of(keyspace)
    queue = settings.queue("gpt")
    with sender(redis_url, settings, redis) as (_, broker):
        lengths = []
        for at_most in (1, 1, 2, 2, 4, 3, 4):
            broker.send(0, "gpt", at_most)
            lengths.append(redis.llen(queue))
        assert lengths == [1, 1, 2, 2, 3, 3, 4]
        assert b'"gpt"' not in redis.lindex(queue, 0), "the body is encoded"
    with sender(redis_url, settings_of(keyspace, redis_url="redis+cluster://a", partitions=3), redis) as (_, broker):
        lengths = []
        for partition in (2, 0) * 3:
            broker.send(partition, "gpt", 1)
            lengths.append(redis.llen(queue))
        bodies = [json.loads(base64.b64decode(json.loads(raw)["body"]))[1] for raw in redis.lrange(queue, 0, -1)]
    assert lengths == [1, 2, 3, 3, 3, 3], "one for each partition"
    assert bodies[::-1] == [{"v": 3, "partition": partition, "model": "gpt"} for partition in (2, 0, 2)]
    settings = settings_of(keyspace)
    with sender(f"redis://127.0.0.1:{free_port()}/0", settings, redis) as (app, broker):
        with pytest.raises(Exception, match=r"."):
            broker.send(0, "gpt", 1)
        app.conf.broker_url = app.conf.broker_write_url = redis_url
        broker.send(0, "gpt", 1)
        assert redis.llen(settings.queue("gpt")) == 1


def message(body: object = None, *, raw: bytes | None = None, heads: object = HEADS, **fields: Any) -> Message:
    encoded = json.dumps([[], OURS, REST] if body is None else body).encode()
    kind = {"content_type": "application/json", "content_encoding": "utf-8"}
    return Message(encoded if raw is None else raw, headers=heads, **{**kind, **fields})


def test_our_own_messages_alone_are_notifications(redis: Redis, redis_url: str, prefix: str) -> None:
    app = Celery("tests", broker=redis_url, set_as_current=False)
    app.send_task(TASK, kwargs=OURS, ignore_result=True, queue=f"{prefix}-queue")
    with Connection(redis_url) as connection:
        taken = connection.default_channel.basic_get(f"{prefix}-queue", no_ack=True)
    app.close()
    redis.delete(f"_kombu.binding.{prefix}-queue")
    for own in (taken, message(), message([[], NAMED, REST])):
        assert _is_notification(own)
    others = read_table(__file__, "messages")
    for name, row in others.items():
        fields = {key: row[key] for key in ("content_type", "content_encoding") if key in row}
        heads = row.get("all_heads", HEADS | row.get("heads", {}))
        body = [row.get("args", []), row.get("kwargs", OURS | row.get("changed", {})), REST | row.get("rest", {})]
        raw = as_bytes(row["raw"]) if "raw" in row else None
        assert not _is_notification(message(row.get("body", body), raw=raw, heads=heads, **fields)), name
    without = {key: value for key, value in NAMED.items() if key != "partition"}
    assert not _is_notification(message([[], without, REST])), "no partition in version 3"
    assert not _is_notification(message([[], {**NAMED, "v": MESSAGE_VERSION}, REST])), "a partition in version 2"
    for partition in (-1, 64):
        assert not _is_notification(message([[], {**NAMED, "partition": partition}, REST])), partition
