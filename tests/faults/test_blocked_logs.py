"""Standard error cannot be written: a full pipe, a pipe without a reader, a full disk."""

import os
import time
from collections.abc import Callable

import pytest
from experiment import Experiment
from support.processes import bounded_s
from support.scrape import CLIENT

GRACE_S = 3.0
EVALUATIONS = 600
DROPPED = "tracejudge_log_records_dropped_total"


def _unread_pipe() -> tuple[int, list[int]]:
    """Return a full pipe, and its reading end, which is never read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return writing, [reading]


def _closed_pipe() -> tuple[int, list[int]]:
    reading, writing = os.pipe()
    os.close(reading)
    return writing, []


def _full_disk() -> tuple[int, list[int]]:
    return os.open("/dev/full", os.O_WRONLY), []


SECOND_WAYS = [
    pytest.param(outlet, marks=pytest.mark.slow("a second variant")) for outlet in (_closed_pipe, _full_disk)
]


@pytest.mark.parametrize("outlet", [_unread_pipe, *SECOND_WAYS])
def test_a_worker_with_blocked_logs_judges_answers_probes_and_stops(
    experiment: Experiment, outlet: Callable[[], tuple[int, list[int]]]
) -> None:
    """Each verdict writes a line; at log level debug Celery and the HTTP client write more."""
    file, others = outlet()
    worker = experiment.start(log_level="debug", grace_s=GRACE_S, stderr=file)
    try:
        experiment.publish(EVALUATIONS // len(experiment.judges))
        experiment.wait_finished(EVALUATIONS)
        assert CLIENT.get(f"http://127.0.0.1:{worker.port}/healthz").status_code == 200
        if outlet is not _unread_pipe:
            assert worker.counted(100, DROPPED)
        experiment.assert_all_scored()
        began = time.monotonic()
        experiment.terminate(timeout_s=bounded_s(GRACE_S + 10))
        assert time.monotonic() - began < bounded_s(GRACE_S + 10)
    finally:
        for number in (file, *others):
            os.close(number)
