"""Wake-ups leave in a thread of their own: whoever asks for one never waits for the broker."""

import threading

import pytest
from kombu.exceptions import OperationalError
from structlog.testing import capture_logs
from support.processes import wait_until

from worker import waking
from worker.batches import fresh_id
from worker.waking import Waking


class Broker:
    """Notes what is sent; fails or hangs as it is told."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.failure: Exception | None = None
        self.hanging = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def send(self, batch_id: str) -> None:
        if not self.free.is_set():
            self.hanging.set()
            self.free.wait()
        if self.failure is not None:
            raise self.failure
        self.sent.append(batch_id)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_LOOK_S", 0.01)
    monkeypatch.setattr(waking, "_GATHER_S", 0.0)


def test_wake_ups_are_sent_in_order(broker: Broker) -> None:
    stage = Waking(broker.send)
    for number in range(5):
        stage.wake(f"b{number}")
    for _ in range(6):
        stage.turn()
    assert broker.sent == [f"b{number}" for number in range(5)]
    assert stage.dropped == 0


def test_of_each_judge_model_one_is_sent_for_all_that_came_together(broker: Broker) -> None:
    stage = Waking(broker.send)
    ids = [fresh_id(judge_model, float(number)) for number in range(3) for judge_model in ("a", "b")]
    for batch_id in ids:
        stage.wake(batch_id)
    stage.turn()
    assert broker.sent == ids[:2]
    stage.wake(ids[-1])
    stage.turn()
    assert broker.sent == [*ids[:2], ids[-1]]
    assert stage.dropped == 0


def test_a_full_queue_drops_and_nobody_waits_for_a_broker_that_hangs(broker: Broker) -> None:
    stage = Waking(broker.send)
    broker.free.clear()
    stage.start()
    stage.wake("first")
    assert broker.hanging.wait(60)
    for number in range(waking._MAX_WAITING + 7):
        stage.wake(f"b{number}")
    assert stage.dropped == 7
    broker.free.set()
    wait_until(lambda: len(broker.sent) == waking._MAX_WAITING + 1, what="what waits to be sent")
    assert stage.stop(60)


@pytest.mark.parametrize("failure", [OperationalError("s3cret"), ConnectionRefusedError("s3cret"), TimeoutError()])
def test_a_broker_that_is_away_costs_what_waits_and_one_line(broker: Broker, failure: Exception) -> None:
    stage = Waking(broker.send)
    broker.failure = failure
    with capture_logs() as logged:
        for _ in range(3):
            for number in range(4):
                stage.wake(f"b{number}")
            stage.turn()
        assert stage.dropped == 12
        broker.failure = None
        stage.wake("again")
        stage.turn()
    assert broker.sent == ["again"]
    assert logged == [
        {
            "event": "wake-ups are lost, workers find batches once a second",
            "error": type(failure).__name__,
            "log_level": "warning",
        },
        {"event": "wake-ups are sent again", "dropped": 12, "log_level": "info"},
    ]


def test_an_idle_thread_ends_at_once_when_it_is_asked_to(broker: Broker) -> None:
    stage = Waking(broker.send)
    stage.start()
    assert stage.stop(60)
