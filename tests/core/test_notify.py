"""Notifications leave in a thread of their own: one for all that came together, and never more than the bound."""

import base64
import json
import threading
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis
from structlog.testing import capture_logs
from support.ports import free_port
from support.processes import wait_until
from support.stage_parts import Keyspace, settings_of

from worker.core.config.settings import Settings
from worker.core.queue import notify
from worker.core.queue.batch import fresh_id
from worker.core.queue.notify import BrokerSender, Notifier
from worker.core.telemetry.health import Heartbeat

MODELS = ("gpt", "majority(a,b)", "mean(a,b)")


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


def test_batches_of_one_read_send_one_notification_for_each_queue(
    keyspace: Keyspace, notifier: Notifier, sent: Sent
) -> None:
    ids = [fresh_id(name, float(number)) for number in range(3) for name in MODELS]
    notifier.notify_batches(ids)
    notifier.run_once()
    assert sorted(sent.labels) == [("gpt", 2), ("panel", 2)], "all panels share a queue"
    keyspace.client.zadd(keyspace.keys.ready("gpt"), {ids[0]: 1})
    notified = notifier.ready_labels()
    assert notified == {"gpt"}
    notifier.notify_batches(ids, notified)
    notifier.run_once()
    assert sent.labels[2:] == [("panel", 2)], "batches of the other were ready before"


def test_the_bound_is_two_for_each_worker_that_judges_and_the_sweepers_own(
    keyspace: Keyspace, notifier: Notifier, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_COUNT_WORKERS_S", 0.0)
    for roles in ({"judge": True}, {"judge": False, "ingest": True}, {"judge": True}, {"ingest": True}):
        Heartbeat(keyspace.store).beat(roles)
    notifier.notify("gpt", 1)
    notifier.run_once()
    assert (notifier.workers, sent.labels) == (3, [("gpt", 1)])
    notifier.notify("gpt", 1)
    notifier.notify("gpt")
    notifier.notify("gpt", 1)
    notifier.run_once()
    assert sent.labels[1:] == [("gpt", 6)]


@pytest.mark.parametrize("failure", [OperationalError("s3cret"), ConnectionRefusedError("s3cret"), TimeoutError()])
def test_an_outage_of_the_broker_loses_notifications_and_logs_one_line(
    notifier: Notifier, sent: Sent, failure: Exception
) -> None:
    sent.failure = failure
    with capture_logs() as logged:
        for _ in range(3):
            for label in "abcd":
                notifier.notify(label)
            notifier.run_once()
        assert notifier.dropped == 12
        sent.failure = None
        notifier.notify("again")
        notifier.run_once()
    assert sent.labels == [("again", 2)]
    assert [(line["event"], line.get("error"), line.get("dropped")) for line in logged] == [
        ("notifications lost, judging waits for the broker", type(failure).__name__, None),
        ("notifications resumed", None, 12),
    ]


def test_a_hanging_broker_blocks_neither_notify_nor_stop(notifier: Notifier, sent: Sent) -> None:
    sent.free.clear()
    notifier.start()
    notifier.notify("first")
    assert sent.hanging.wait(60)
    for number in range(1_000):
        notifier.notify(f"label {number % 3}")
    sent.free.set()
    wait_until(lambda: len(sent.labels) == 4, what="one for each label")
    assert notifier.stop(60)


@pytest.fixture
def settings(keyspace: Keyspace) -> Settings:
    return settings_of(keyspace)


@pytest.fixture
def broker(redis_url: str, settings: Settings) -> Iterator[BrokerSender]:
    app = Celery("tests", broker=redis_url, set_as_current=False)
    app.conf.broker_transport_options = {"priority_steps": [0]}
    broker = BrokerSender(app, settings)
    yield broker
    broker.close()
    app.close()


def test_a_queue_is_never_filled_beyond_its_bound(
    broker: BrokerSender, settings: Settings, keyspace: Keyspace, redis: Redis
) -> None:
    queue = settings.queue("gpt")
    lengths = []
    for at_most in (1, 1, 2, 2, 4, 3, 4):
        broker.send(0, "gpt", at_most)
        lengths.append(redis.llen(queue))
    assert lengths == [1, 1, 2, 2, 3, 3, 4]
    assert b'"gpt"' not in redis.lindex(queue, 0), "the body is encoded"
    keyspace.client.delete(queue, f"_kombu.binding.{settings.prefix}.judge")


def test_a_message_names_its_partition_and_the_queue_holds_some_for_each(
    redis_url: str, keyspace: Keyspace, redis: Redis
) -> None:
    settings = settings_of(keyspace, redis_url="redis+cluster://a", partitions=3)
    app = Celery("tests", broker=redis_url, set_as_current=False)
    app.conf.broker_transport_options = {"priority_steps": [0]}
    broker = BrokerSender(app, settings)
    queue = settings.queue("gpt")
    lengths = []
    for partition in (2, 0) * 3:
        broker.send(partition, "gpt", 1)
        lengths.append(redis.llen(queue))
    bodies = [json.loads(base64.b64decode(json.loads(raw)["body"]))[1] for raw in redis.lrange(queue, 0, -1)]
    broker.close()
    app.close()
    keyspace.client.delete(queue, f"_kombu.binding.{settings.prefix}.judge")
    assert lengths == [1, 2, 3, 3, 3, 3], "one for each partition"
    assert bodies[::-1] == [{"v": 3, "partition": partition, "model": "gpt"} for partition in (2, 0, 2)]


def test_a_broker_that_is_away_is_connected_to_anew(keyspace: Keyspace, settings: Settings) -> None:
    app = Celery("tests", broker=f"redis://127.0.0.1:{free_port()}/0", set_as_current=False)
    broker = BrokerSender(app, settings)
    with pytest.raises(Exception, match=r"."):
        broker.send(0, "gpt", 1)
    app.conf.broker_url = keyspace.url
    app.conf.broker_write_url = keyspace.url
    broker.send(0, "gpt", 1)
    assert keyspace.client.llen(settings.queue("gpt")) == 1
    broker.close()
    app.close()
    keyspace.client.delete(settings.queue("gpt"), f"_kombu.binding.{settings.prefix}.judge")
