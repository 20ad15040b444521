"""Notifications that are lost, repeated or late, and faults of the threads that process them."""

import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Final, Self

import pytest
from experiment import RECOVERY_S, Experiment, number, seconds
from redis import Redis
from support.processes import bounded_s, wait_until
from support.replies import Call, slow, yes_no
from support.scrape import CLIENT

TRACES = number(5_000, least=250)
LOAD_S = seconds(30, least=2)
COPIES: Final = 10
KILL_THE_POOL: Final = """
import ctypes, signal, sys, threading
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
from worker.cli import main
sys.argv[1:] = ["worker"]
sys.exit(main())
"""
STOP_THE_LOOP: Final = """
import signal, sys, time
from worker.core.judging.consumer import JudgingConsumer

start = JudgingConsumer.start

def start_and_listen(self):
    start(self)
    signal.signal(signal.SIGUSR2, lambda *_: self.loop.call(lambda: time.sleep(10_000)))

JudgingConsumer.start = start_and_listen
from worker.cli import main
sys.argv[1:] = ["worker"]
sys.exit(main())
"""
CLOSE_FAILS: Final = """
import sys
from celery.worker.consumer import consumer

ignore_errors = consumer.ignore_errors

def fail_once(connection, close):
    consumer.ignore_errors = ignore_errors
    connection.close()
    raise AttributeError("'NoneType' object has no attribute 'client'")

consumer.ignore_errors = fail_once
from worker.cli import main
sys.argv[1:] = ["worker"]
sys.exit(main())
"""
"""Seen in a soak test: kombu closed a channel without transport, raised AttributeError, and Celery ended the worker."""
GRACE_S: Final = 2.0
STOPS_S: Final = bounded_s(10.0)
"""Guaranteed time after its grace period within which a worker has ended, whatever hangs in it."""


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


def test_messages_are_lost_repeated_or_late(experiment: Experiment) -> None:
    """Every evaluation costs one call, whether messages are lost or repeated."""
    experiment.start("judge", roles="judge,export")
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


@pytest.mark.slow("two workers, and a long variant of lost messages")
def test_the_queue_is_deleted_repeatedly(experiment: Experiment) -> None:
    for name in ("a", "b"):
        experiment.start(name)
    with Redis.from_url(experiment.redis.url) as client, experiment.load(TRACES / LOAD_S, TRACES) as load:
        while load.running:
            client.delete(queue_of(experiment), "unacked", "unacked_index")
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations


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


@pytest.mark.slow("waits for a worker that does not end")
def test_the_thread_pool_is_killed_in_the_middle_of_a_task(experiment: Experiment) -> None:
    """The worker's leases expire and it reports that it is dead; another judges the rest."""
    experiment.endpoint.behaviour = slow(600, yes_no())
    victim = experiment.pipeline.worker("-c", KILL_THE_POOL, **experiment.settings(grace_s=1))
    experiment.publish(20)
    wait_until(lambda: experiment.endpoint.in_flight == 40, what="all calls to be under way")
    health = f"http://127.0.0.1:{victim.port}/healthz"
    assert CLIENT.get(health).status_code == 200
    killed_at = time.monotonic()
    victim.program.signal(signal.SIGUSR2)
    wait_until(lambda: CLIENT.get(health).status_code != 200, what="the worker to be unhealthy")
    experiment.endpoint.behaviour = yes_no()
    experiment.start("successor")
    experiment.wait_finished(experiment.evaluations)
    assert time.monotonic() - killed_at < RECOVERY_S
    assert victim.program.terminate() == 0
    experiment.assert_accounting()


@pytest.mark.slow("waits longer than a lease of 15 s")
def test_a_worker_with_a_blocked_event_loop_loses_its_leases_and_ends(experiment: Experiment) -> None:
    experiment.endpoint.behaviour = slow(600, yes_no())
    victim = experiment.pipeline.worker("-c", STOP_THE_LOOP, **experiment.settings(grace_s=GRACE_S))
    experiment.publish(20)
    wait_until(lambda: experiment.endpoint.in_flight == 40, what="all calls to be under way")
    stopped_at = time.monotonic()
    victim.program.signal(signal.SIGUSR2)
    health = f"http://127.0.0.1:{victim.port}/healthz"
    wait_until(lambda: CLIENT.get(health).status_code != 200, RECOVERY_S, "the worker to be unhealthy")
    experiment.endpoint.behaviour = yes_no()
    experiment.start("successor")
    experiment.wait_finished(experiment.evaluations)
    assert time.monotonic() - stopped_at < RECOVERY_S + STOPS_S, "renewal ends after 10 s, and a lease lasts 15 s"
    asked_at = time.monotonic()
    victim.program.terminate()
    assert time.monotonic() - asked_at < GRACE_S + STOPS_S
    experiment.assert_accounting()


@pytest.mark.slow("four workers one after the other")
def test_a_model_whose_calls_hang_does_not_slow_down_three_others(experiment: Experiment) -> None:
    """Of four models of one worker the other three are judged as fast as without the one that hangs.

    Slots and the endpoint's time set the rates: 9 ms between two calls of a slot are 2 % of its time, so that a busy
    machine changes little. The two kinds take turns, so that what changes on the machine changes for both.
    """
    traces, slots, answer_s = number(1_000, least=150), 8, 0.4
    models = ("hangs", "second", "third", "fourth")

    def settings(*names: str) -> dict[str, object]:
        made = {
            name: {
                "provider": "openai",
                "base_url": experiment.endpoint.base_url,
                "model": name,
                "max_in_flight": slots,
            }
            for name in names
        }
        rules = [{"name": name, "judges": ["relevance_to_query"], "model": name} for name in names]
        return experiment.settings(models=made, rules=rules)

    def rate(*names: str) -> float:
        before = experiment.finished
        experiment.endpoint.forget()
        worker = experiment.pipeline.worker(**settings(*names))
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
