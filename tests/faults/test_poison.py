"""Invalid input: stream entries that are not traces, and messages that are not notifications."""

import base64
import json
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from experiment import JUDGES, Experiment, number
from redis import Redis
from support import fuzz
from support.processes import wait_until

ENTRIES = number(2_000, least=300)
MESSAGES = number(2_000, least=200)
GOOD = 100
NO_MESSAGES = (b"", b"\xff\xfe", b"[]", b"{}", b"null", b'{"body": 1}', fuzz.MARK.encode())
"""Messages that the broker's driver cannot read; each ends its connection."""
MAX_LINES = 2.0


def messages(count: int, queue: str, *, seed: int = 6) -> Iterator[str]:
    """Make messages in kombu's format with invalid contents: unknown models, other tasks, other forms."""
    chance = random.Random(seed)
    odd = (None, 1, -1, True, "", "x" * 5_000, f"{fuzz.MARK} model", [], {}, "0-0-0", "zz-zz-zz", "..", "\u0000")
    for _ in range(count):
        notification: dict[str, Any] = {"v": 2, "model": chance.choice(odd)}
        arguments: Any = chance.choice(
            (
                [[], notification, {}],
                [[], notification | {"v": chance.choice((0, 1, "2", None, 10**30))}, {}],
                [[], {"v": 2}, {}],
                [[], notification | {fuzz.MARK: fuzz.MARK}, {}],
                [[fuzz.MARK], {}, {}],
                [notification, [], {}],
                {"v": 2},
                [],
                None,
                fuzz.MARK,
            )
        )
        task = chance.choice(("tracejudge.judge", "tracejudge.judge", "no.such.task", fuzz.MARK, "celery.chord", ""))
        yield json.dumps(envelope(chance, queue, task, arguments))


def envelope(chance: random.Random, queue: str, task: str, arguments: object) -> dict[str, Any]:
    body = json.dumps(arguments).encode()
    if chance.random() < 0.1:
        body = body[: len(body) // 2]
    content_type = chance.choice(
        ("application/json",) * 4 + ("application/x-python-serialize", "text/plain", "no/type")
    )
    names = {"id": str(uuid.UUID(int=chance.getrandbits(128))), "task": task, "lang": "py"}
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": chance.choice(("utf-8",) * 4 + ("binary", "no-such-encoding")),
        "content-type": content_type,
        "headers": names if chance.random() < 0.8 else {fuzz.MARK: fuzz.MARK},
        "properties": {
            "correlation_id": names["id"],
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_mode": 2,
            "delivery_tag": names["id"],
            "priority": 0,
            "body_encoding": "base64",
        },
    }


def test_invalid_stream_entries_are_counted_and_the_rest_is_judged(experiment: Experiment) -> None:
    worker = experiment.start()
    with Redis.from_url(experiment.redis.url) as client:
        for fields in fuzz.entries(ENTRIES):
            client.xadd(experiment.pipeline.keys.traces, fields)
    experiment.publish(GOOD)
    account = experiment.assert_accounting()
    assert account.invalid > ENTRIES // 4
    assert account.sampled > GOOD, "some of it can be read after all"
    assert scored_valid_traces(experiment) == GOOD * len(JUDGES)
    assert worker.program.running
    log = worker.program.output
    assert fuzz.MARK not in log
    assert "unexpected error" not in log
    assert log.count("\n") < MAX_LINES * ENTRIES


@pytest.mark.slow("waits for reconnects")
def test_invalid_broker_messages_are_dropped_and_end_no_worker(experiment: Experiment) -> None:
    worker = experiment.start()
    queue = f"{experiment.pipeline.prefix}.judge.judge"
    with Redis.from_url(experiment.redis.url) as client:
        for message in messages(MESSAGES, queue):
            client.lpush(queue, message)
        client.lpush(queue, *NO_MESSAGES)
        experiment.publish(GOOD)
        experiment.assert_all_scored()
        wait_until(lambda: client.llen(queue) == 0, what="the messages to be consumed")
    assert worker.program.running
    log = worker.program.output
    assert fuzz.MARK not in log
    assert log.count("\n") < MAX_LINES * MESSAGES


def scored_valid_traces(experiment: Experiment) -> int:
    """Count the scored evaluations of the valid traces."""
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox()]
    return sum(verdict.service == "bot" and verdict.outcome == "scored" for verdict in verdicts)
