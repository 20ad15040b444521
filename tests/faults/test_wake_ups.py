"""Wake-up messages that never come, come often, or come when all is done: the sweeper and the lease bear each."""

import random
import threading
from typing import Final, Self

from experiment import Experiment, number, seconds
from redis import Redis
from support.processes import wait_until

TRACES = number(5_000, least=500)
LOAD_S = seconds(30, least=2)
COPIES: Final = 10


class Courier:
    """Carries messages from the broker of those who choose to that of those who judge: never, once, or ten times."""

    def __init__(self, experiment: Experiment) -> None:
        self.kept: list[bytes] = []
        """What it was given, whatever it did with it."""
        self._here = Redis.from_url(experiment.redis.url)
        self._there = Redis.from_url(other_broker(experiment))
        self._queue = f"{experiment.pipeline.prefix}.judge"
        self._random = random.Random(6)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="courier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._here.close()
        self._there.close()

    def deliver(self, message: bytes, copies: int) -> None:
        """Put a message where Celery's consumer takes it."""
        if copies:
            self._here.lpush(self._queue, *[message] * copies)

    def all_heard(self) -> bool:
        """Tell whether nothing lies in the queue, or is with a consumer that has not confirmed it."""
        return self._here.llen(self._queue) == 0 and self._here.hlen("unacked") == 0

    def _carry(self) -> None:
        while not self._stop.is_set():
            found = self._there.brpop([self._queue], timeout=0.2)
            if found is not None:
                self.kept.append(found[1])
                self.deliver(found[1], self._random.choice((0, 1, COPIES)))


def other_broker(experiment: Experiment) -> str:
    return experiment.redis.url.removesuffix("/0") + "/1"


def test_wake_ups_lost_or_doubled_and_again_when_all_is_done(experiment: Experiment) -> None:
    """Every evaluation costs one call, whatever the messages do."""
    experiment.start("judge", roles="judge,export")
    experiment.start("ingest", roles="ingest", broker_url=other_broker(experiment))
    with Courier(experiment) as courier:
        with experiment.load(TRACES / LOAD_S, TRACES):
            pass
        experiment.assert_all_scored()
        assert courier.kept, "the fault must hit messages"
        for message in courier.kept:
            courier.deliver(message, COPIES)
        wait_until(courier.all_heard, 120, "the late messages to be heard")
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations
    experiment.assert_each_counted()


def test_the_queue_deleted_over_and_over(experiment: Experiment) -> None:
    for name in ("a", "b"):
        experiment.start(name)
    with Redis.from_url(experiment.redis.url) as client, experiment.load(TRACES / LOAD_S, TRACES) as load:
        while load.running:
            client.delete(f"{experiment.pipeline.prefix}.judge", "unacked", "unacked_index")
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations
