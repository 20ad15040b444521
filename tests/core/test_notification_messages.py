"""What Celery's consumer lets through: notifications as we send them, and nothing else."""

import json
from typing import Any

import pytest
from celery import Celery
from kombu import Connection
from kombu.message import Message
from redis import Redis
from support.cases import each_case

from worker.celery import _is_notification
from worker.core.queue.notify import MESSAGE_VERSION, PARTITION_VERSION, TASK

OURS = {"v": MESSAGE_VERSION, "model": "gpt-6-luna"}
REST = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
HEADS = {"task": TASK, "id": "6f1c", "eta": None, "expires": None, "retries": 0, "timelimit": [None, None]}


def message(body: object = None, *, raw: bytes | None = None, heads: object = HEADS, **fields: Any) -> Message:
    encoded = json.dumps([[], OURS, REST] if body is None else body).encode()
    kind = {"content_type": "application/json", "content_encoding": "utf-8"}
    return Message(encoded if raw is None else raw, headers=heads, **{**kind, **fields})


@pytest.fixture
def sent(redis: Redis, redis_url: str, prefix: str) -> Message:
    """A notification as Celery sends it, taken out of a real broker."""
    app = Celery("tests", broker=redis_url, set_as_current=False)
    app.send_task(TASK, kwargs=OURS, ignore_result=True, queue=f"{prefix}-queue")
    with Connection(redis_url) as connection:
        taken = connection.default_channel.basic_get(f"{prefix}-queue", no_ack=True)
    app.close()
    redis.delete(f"_kombu.binding.{prefix}-queue")
    return taken


NAMED = {**OURS, "v": PARTITION_VERSION, "partition": 2}


def test_our_own_messages_are_notifications(sent: Message) -> None:
    assert _is_notification(sent)
    assert _is_notification(message())
    assert _is_notification(message([[], NAMED, REST]))


OTHERS = {
    "another task": message(heads={**HEADS, "task": "celery.backend_cleanup"}),
    "no task": message(heads={}),
    "no heads": message(heads=None),
    "a time": message(heads={**HEADS, "eta": "2030-01-01T00:00:00"}),
    "an expiry": message(heads={**HEADS, "expires": 7}),
    "a time limit": message(heads={**HEADS, "timelimit": [1, 1]}),
    "a group": message(heads={**HEADS, "group": "g"}),
    "an id of another kind": message(heads={**HEADS, "id": 7}),
    "no JSON": message(raw=b"{"),
    "no Unicode": message(raw=b"\xff"),
    "another form": message(content_type="application/x-python-serialize"),
    "another encoding": message(content_encoding="binary"),
    "a compression": message(heads={**HEADS, "compression": "zlib"}),
    "a bare object": message(OURS),
    "arguments by place": message([[1, "b"], {}, REST]),
    "another version": message([[], {**OURS, "v": 1}, REST]),
    "a wake-up of version 1": message([[], {"v": 1, "batch": "1a1fffcb1bf-e83dd345-b78b0c0b"}, REST]),
    "more arguments": message([[], {**OURS, "x": 1}, REST]),
    "a model in a list": message([[], {**OURS, "model": ["b"]}, REST]),
    "a partition in version 2": message([[], {**NAMED, "v": MESSAGE_VERSION}, REST]),
    "no partition in version 3": message([[], {**OURS, "v": PARTITION_VERSION}, REST]),
    "a partition below the first": message([[], {**NAMED, "partition": -1}, REST]),
    "a partition beyond the last": message([[], {**NAMED, "partition": 64}, REST]),
    "a callback": message([[], OURS, {**REST, "callbacks": [{"task": "other"}]}]),
    "a chain": message([[], OURS, {**REST, "chain": [{"task": "other"}]}]),
    "an abyss": message(raw=b"[" * 100_000),
}


@each_case("other", OTHERS.values(), ids=OTHERS.keys())
def test_other_messages_in_the_queue_are_no_notifications(other: Message) -> None:
    assert not _is_notification(other)
