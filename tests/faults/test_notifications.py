"""Notifications are lost, repeated, late or invalid, as is input; and faults of the threads that process them."""

import base64
import itertools
import json
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, Self

import pytest
from experiment import JUDGES, RECOVERY_S, Experiment, number, seconds
from redis import Redis
from support.pipeline import Worker
from support.processes import bounded_s, wait_until
from support.replies import Call, slow, yes_no
from support.scrape import CLIENT
from support.tables import read_table

TRACES = number(5_000, least=250)
LOAD_S = seconds(30, least=2)
COPIES: Final = 10
GRACE_S: Final = 2.0
STOPS_S: Final = bounded_s(10.0)
"""Guaranteed time after its grace period within which a worker has ended, whatever hangs in it."""
RUN: Final = "import sys\nfrom worker.cli import main\nsys.argv[1:] = ['worker']\nsys.exit(main())\n"
KILL_THE_POOL: Final = f"""
import ctypes, signal
from celery.concurrency.thread import TaskPool

made = TaskPool.__init__

def keep(self, *arguments, **options):
    made(self, *arguments, **options)

    def kill(*_):
        self.executor.shutdown(wait=False, cancel_futures=True)
        for thread in self.executor._threads:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

    signal.signal(signal.SIGUSR2, kill)

TaskPool.__init__ = keep
{RUN}"""
STOP_THE_LOOP: Final = f"""
import signal, time
from worker.core.judging.consumer import JudgingConsumer

start = JudgingConsumer.start

def start_and_listen(self):
    start(self)
    signal.signal(signal.SIGUSR2, lambda *_: self.loop.call(lambda: time.sleep(10_000)))

JudgingConsumer.start = start_and_listen
{RUN}"""
CLOSE_FAILS: Final = f"""
from celery.worker.consumer import consumer

ignore_errors = consumer.ignore_errors

def fail_once(connection, close):
    consumer.ignore_errors = ignore_errors
    connection.close()
    raise AttributeError("'NoneType' object has no attribute 'client'")

consumer.ignore_errors = fail_once
{RUN}"""
"""Seen in a soak test: kombu closed a channel without transport, raised AttributeError, and Celery ended the worker."""


class MessageRelay:
    """Relays messages from the broker of the ingest worker to that of the judging worker: never, once or ten times."""

    def __init__(self, experiment: Experiment) -> None:
        self.kept: list[bytes] = []
        """Messages received, delivered or not."""
        self._here = Redis.from_url(experiment.redis.url)
        self._there = Redis.from_url(other_broker(experiment))
        self._queue = queue_of(experiment)
        self._random = random.Random(6)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._relay, name="courier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._here.close()
        self._there.close()

    def deliver(self, message: bytes, copies: int) -> None:
        """Put a message into the queue of Celery's consumer."""
        if copies:
            self._here.lpush(self._queue, *[message] * copies)

    def all_acknowledged(self) -> bool:
        """Return whether the queue is empty and every message is acknowledged."""
        return self._here.llen(self._queue) == 0 and self._here.hlen("unacked") == 0

    def _relay(self) -> None:
        while not self._stop.is_set():
            popped = self._there.brpop([self._queue], timeout=0.2)
            if popped is not None:
                self.kept.append(popped[1])
                self.deliver(popped[1], self._random.choice((0, 1, COPIES)))


def queue_of(experiment: Experiment) -> str:
    return f"{experiment.pipeline.prefix}.judge.judge"


def other_broker(experiment: Experiment) -> str:
    return experiment.redis.url.removesuffix("/0") + "/1"


@pytest.mark.slow("a worker for each fault")
def test_messages_are_lost_repeated_or_late(experiment: Experiment) -> None:
    """Every evaluation costs one call, whether messages are lost or repeated."""
    experiment.start("judge", roles="judge,export,monitor")
    experiment.start("ingest", roles="ingest", broker_url=other_broker(experiment))
    with MessageRelay(experiment) as courier:
        with experiment.load(TRACES / LOAD_S, TRACES):
            pass
        experiment.assert_all_scored()
        assert courier.kept, "the fault must hit messages"
        for message in courier.kept:
            courier.deliver(message, COPIES)
        wait_until(courier.all_acknowledged, 120, "the late messages to be heard")
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations
    experiment.assert_each_counted()


def test_a_broker_connection_that_cannot_be_closed_does_not_end_the_worker(experiment: Experiment) -> None:
    worker = experiment.pipeline.worker("-c", CLOSE_FAILS, **experiment.settings())
    experiment.publish(5)
    experiment.wait_finished(experiment.evaluations)
    with Redis.from_url(experiment.redis.url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: "broker connection not closed cleanly" in worker.program.output, what="the failed close")
    experiment.publish(5)
    experiment.wait_finished(experiment.evaluations)
    assert worker.program.terminate() == 0


def break_worker(experiment: Experiment, program: str, within_s: float, **settings: float) -> Worker:
    """Signal a worker in the middle of its tasks; it must report that it is dead, and another judges the rest."""
    experiment.endpoint.behaviour = slow(600, yes_no())
    victim = experiment.pipeline.worker("-c", program, **experiment.settings(**settings))
    experiment.publish(20)
    wait_until(lambda: experiment.endpoint.in_flight == 40, what="all calls to be under way")
    health = f"http://127.0.0.1:{victim.port}/healthz"
    assert CLIENT.get(health).status_code == 200
    began = time.monotonic()
    victim.program.signal(signal.SIGUSR2)
    wait_until(lambda: CLIENT.get(health).status_code != 200, RECOVERY_S, "the worker to be unhealthy")
    experiment.endpoint.behaviour = yes_no()
    experiment.start("successor")
    experiment.wait_finished(experiment.evaluations)
    assert time.monotonic() - began < within_s
    return victim


@pytest.mark.slow("waits for a worker that does not end")
def test_the_thread_pool_is_killed_in_the_middle_of_a_task(experiment: Experiment) -> None:
    victim = break_worker(experiment, KILL_THE_POOL, RECOVERY_S, grace_s=1)
    assert victim.program.terminate() == 0
    experiment.assert_accounting()


@pytest.mark.slow("waits longer than a lease of 15 s")
def test_a_worker_with_a_blocked_event_loop_loses_its_leases_and_ends(experiment: Experiment) -> None:
    """Renewal ends after 10 s, and a lease lasts 15 s."""
    victim = break_worker(experiment, STOP_THE_LOOP, RECOVERY_S + STOPS_S, grace_s=GRACE_S)
    asked_at = time.monotonic()
    victim.program.terminate()
    assert time.monotonic() - asked_at < GRACE_S + STOPS_S
    experiment.assert_accounting()


@pytest.mark.slow("four workers one after the other")
def test_a_model_whose_calls_hang_does_not_slow_down_three_others(experiment: Experiment) -> None:
    """Of four models of one worker the other three are judged as fast as without the one that hangs.

    Slots and the endpoint's time set the rates: 9 ms between two calls of a slot are 1 % of its time, so that a busy
    machine changes little. The two kinds take turns, so that what changes on the machine changes for both.
    """
    traces, slots, answer_s = number(333, least=48), 8, 1.2
    models = ("hangs", "second", "third", "fourth")

    def rate(*names: str) -> float:
        before, model = experiment.finished, {"provider": "openai", "base_url": experiment.endpoint.base_url}
        made = {name: {**model, "model": name, "max_in_flight": slots} for name in names}
        rules = [{"name": name, "judges": ["relevance_to_query"], "model": name} for name in names]
        experiment.endpoint.forget()
        worker = experiment.pipeline.worker(**experiment.settings(models=made, rules=rules))
        experiment.publish(traces)
        experiment.wait_finished(before + 3 * traces)
        worker.program.kill()
        calls = experiment.endpoint.calls
        hanging = [call for call in calls if call.body["model"] == "hangs"]
        assert len(hanging) == (slots if "hangs" in names else 0), "the fault must fill all slots of its model"
        return rate_of([call for call in calls if call.body["model"] != "hangs" and call.ended_at is not None])

    usual, hangs = slow(answer_s, yes_no()), slow(600, yes_no())
    experiment.endpoint.behaviour = lambda call: hangs if call.body["model"] == "hangs" else usual
    first, *beside, last = (rate(*names) for names in (models[1:], models, models, models[1:]))
    most = 3 * slots / answer_s
    assert min(first, last) > 0.6 * most, f"{(first, last)} of {most:g}/s: this machine is too busy to tell"
    assert sum(beside) >= 0.95 * (first + last), (first, *beside, last)


def rate_of(calls: Sequence[Call]) -> float:
    """Return the calls per second between the first and last fifth; a call partly in that time counts partly.

    Whole calls would come in waves of as many as there are slots, of which a short time holds one more or less.
    """
    began = sorted(call.started_at for call in calls)
    first, last = began[len(began) // 5], began[len(began) * 4 // 5]
    spans = [(call.started_at, call.ended_at) for call in calls if call.ended_at is not None]
    shares = (max(0.0, min(ended, last) - max(start, first)) / (ended - start) for start, ended in spans)
    return sum(shares) / (last - first)


# --- stream entries that are not traces, and messages that are not notifications ---
ENTRIES = number(2_000, least=300)
GOOD = 100
MARK: Final = "PLANTED"
ODD_VALUES = (
    *(None, True, [], {}, [[]], [None], {"": None}, float("nan"), float("inf"), 0, -1, 2**64, 10**30, 1e308),
    *("", "\x00", "\ud800", "\u202e", "\U0001d518" * 50, "\r\n", " ", "a" * 5_000, "-1", "../..", "%s%n"),
)
NO_MESSAGES = (b"", b"\xff\xfe", b"[]", b"{}", b"null", b'{"body": 1}', MARK.encode())
"""Messages that the broker's driver cannot read; each ends its connection."""
MAX_LINES = 2.0


def invalid_entries(count: int) -> Iterator[dict[bytes, bytes]]:
    """Make entries that are no traces, and a few that are; each text holds `MARK`, which no log may show.

    Reading them alone is a property in `tests/core/test_entries.py`. A report with other counts would be believed.
    """
    chance = random.Random(6)
    for place in range(count):
        text, trace_id = f"{MARK} parcel {place}", f"{place:032x}"
        parts = {"messages": [{"role": "user", "content": text}], "spans": [{"span_id": "a", "inputs": text}]}
        trace = {"trace_id": trace_id, "service": "poison", "input": text, "output": text, "tags": {"team": text}}
        trace |= {"tool_calls": [{"name": "look", "arguments": text}], "usage": {"input_tokens": 1}, **parts}
        feedback = {"trace_id": trace_id, "score": -1, "comment": text}
        kind, body = chance.choice(((b"t", trace), (b"t", trace), (b"f", feedback)))
        raw, flipped = json.dumps(body).encode(), bytearray(json.dumps(body).encode())
        for _ in range(chance.randint(1, 8)):
            flipped[chance.randrange(len(raw))] = chance.randrange(256)
        odd = body | {chance.choice(list(body)): chance.choice(ODD_VALUES)}
        levels = chance.choice((50, 900, 50_000))
        huge = MARK * (800_000 if place % 50 == 0 else 5_000)  # past `max_trace_bytes`, and not
        yield chance.choice(
            (
                {b"v": b"1", kind: raw},
                {b"v": b"1", kind: json.dumps(odd).encode()},
                {b"v": b"1", kind: bytes(flipped)},
                {b"v": b"1", kind: raw[: chance.randrange(len(raw))]},
                {b"v": b"1", kind: raw.replace(MARK.encode(), chance.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")))},
                {b"v": b"1", kind: raw[:-1] + b',"context":' + b"[" * levels + b"]" * levels + b"}"},
                {b"v": b"1", kind: json.dumps(body | {"comment": huge, "output": huge}).encode()},
                {b"v": b"1", kind: raw, b"f": json.dumps(feedback).encode(), b"p": chance.randbytes(80)},
                {b"v": b"1", chance.choice((b"t", b"f", b"r", b"x", b"")): chance.randbytes(500)},
                {b"v": chance.choice((b"", b"0", b"2", b"1.0", b" 1", b"\xff", b"1" * 1000)), kind: raw},
            )
        )


def messages(queue: str) -> Iterator[str]:
    """Make messages in kombu's format with invalid contents: unknown models, other tasks, other forms."""
    table = read_table(__file__, "messages")
    for arguments, changes in itertools.product(table["arguments"], table["envelopes"]):
        body, tag = json.dumps(arguments).encode(), str(uuid.uuid4())
        delivery = {"delivery_info": {"exchange": "", "routing_key": queue}, "delivery_mode": 2, "delivery_tag": tag}
        envelope = {
            "body": base64.b64encode(body[: len(body) // 2] if "is_cut" in changes else body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"id": tag, "task": changes.get("task", "tracejudge.judge"), "lang": "py"},
            "properties": {"correlation_id": tag, **delivery, "priority": 0, "body_encoding": "base64"},
        }
        yield json.dumps(envelope | changes)


@pytest.mark.slow("several real programs")
def test_invalid_stream_entries_are_counted_and_the_rest_is_judged(experiment: Experiment) -> None:
    worker = experiment.start()
    with Redis.from_url(experiment.redis.url) as client:
        for fields in invalid_entries(ENTRIES):
            client.xadd(experiment.pipeline.keys.traces, fields)
    experiment.publish(GOOD)
    account = experiment.assert_accounting()
    assert account.invalid > ENTRIES // 4
    assert account.sampled > GOOD, "some of it can be read after all"
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox()]
    scored = sum(verdict.service == "bot" and verdict.outcome == "scored" for verdict in verdicts)
    assert scored == GOOD * len(JUDGES), "of the valid traces"
    assert worker.program.running
    log = worker.program.output
    assert MARK not in log
    assert "unexpected error" not in log
    assert log.count("\n") < MAX_LINES * ENTRIES


@pytest.mark.slow("waits for reconnects")
def test_invalid_broker_messages_are_dropped_and_end_no_worker(experiment: Experiment) -> None:
    worker, queue = experiment.start(), queue_of(experiment)
    invalid = list(messages(queue))
    with Redis.from_url(experiment.redis.url) as client:
        client.lpush(queue, *invalid, *NO_MESSAGES)
        experiment.publish(GOOD)
        experiment.assert_all_scored()
        wait_until(lambda: client.llen(queue) == 0, what="the messages to be consumed")
    assert worker.program.running
    log = worker.program.output
    assert MARK not in log
    assert log.count("\n") < MAX_LINES * len(invalid)
