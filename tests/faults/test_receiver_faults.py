"""The OTLP receiver is down, slow, or refuses: spans wait, metrics continue. So they do with blocked logs.

Each answer of a receiver by itself is a case of `tests/base/test_otel_delivery.py`.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from experiment import EVALUATION_ID, Experiment, number, seconds
from support import otlp as collector
from support.otlp import Log, Span
from support.processes import bounded_s, wait_until
from support.scrape import CLIENT

TRACES = number(5_000, least=250)
DOWN_S = seconds(60, least=3)
PHASE_S = seconds(20, least=1)
POISONED = 64


def is_poison(evaluation_id: str) -> bool:
    """Return whether the receiver always refuses an evaluation's span: one in a fixed number."""
    return int(evaluation_id, 16) % POISONED == 0


def is_poisoned(item: Span | Log) -> bool:
    return isinstance(item, Span) and item.kind == "INTERNAL" and is_poison(item.attributes[EVALUATION_ID])


def with_poison(otherwise: collector.Behaviour) -> collector.Behaviour:
    refusing = collector.failing(HTTPStatus.BAD_REQUEST)
    return lambda export: refusing if any(map(is_poisoned, export.items)) else otherwise


def too_large(export: collector.Export) -> collector.Accept:
    return collector.failing(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) if len(export.items) > 8 else collector.Accept()


PHASES: dict[str, collector.Behaviour] = {
    "slow": collector.Accept(delay_s=1.0),
    "400 for some": collector.Accept(),
    "413": too_large,
    "429": collector.failing(HTTPStatus.TOO_MANY_REQUESTS, retry_after=1),
    "503": collector.failing(HTTPStatus.SERVICE_UNAVAILABLE),
}


def metrics_continue(experiment: Experiment, duration_s: float) -> None:
    """Check that finished evaluations are counted in the metrics while the receiver fails, and that more finish."""
    before, until = experiment.finished, time.monotonic() + duration_s
    while time.monotonic() <= until:
        finished = experiment.finished
        wait_until(lambda least=finished: experiment.counted >= least, what=f"{finished} to be counted")
        time.sleep(0.5)
    wait_until(lambda: experiment.finished > before, what="judging to go on")


@pytest.mark.slow("seven states of the receiver one after the other")
@pytest.mark.timeout(900)
def test_the_receiver_is_down_then_slow_then_refusing(experiment: Experiment) -> None:
    experiment.otlp.behaviour = with_poison(collector.Accept())
    for name in ("a", "b"):
        experiment.start(name)
    lasts_s = 1.5 * DOWN_S + (len(PHASES) + 1) * PHASE_S
    with experiment.load(TRACES / lasts_s):
        experiment.wait_finished(10)
        experiment.otlp.close()
        metrics_continue(experiment, DOWN_S)
        experiment.otlp.start()
        for behaviour in PHASES.values():
            experiment.otlp.behaviour = with_poison(behaviour)
            metrics_continue(experiment, PHASE_S)
        experiment.otlp.behaviour = with_poison(collector.Accept())
    experiment.assert_all_scored(spans=False)
    # All items except the refused ones arrived, and exactly those are counted as dropped.
    verdicts = [entry.verdict.evaluation_id for entry in experiment.pipeline.outbox()]
    poisoned = {name for name in verdicts if is_poison(name)}
    assert poisoned
    sent = Counter(span.attributes[EVALUATION_ID] for span in experiment.otlp.spans if span.kind == "INTERNAL")
    assert (sent.keys(), set(sent.values())) == (set(verdicts) - poisoned, {1})
    assert len(experiment.otlp.logs) == len(verdicts)
    name, dropped = "tracejudge_export_dropped_total", Counter[str]()
    for worker in experiment.workers.values():
        for sample in worker.scrape().samples(name, exporter="otel"):
            dropped[sample.labels["reason"]] += int(sample.value)
    assert +dropped == {"rejected": len(poisoned)}
    experiment.assert_each_counted()


# --- standard error cannot be written: it is a full pipe that nobody reads; closed ones and full disks lose less ---
GRACE_S = 3.0
EVALUATIONS = 600


@pytest.fixture
def unread_pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.slow("several real programs")
def test_a_worker_with_blocked_logs_judges_answers_probes_and_stops(experiment: Experiment, unread_pipe: int) -> None:
    """Each verdict writes a line; at log level debug Celery and the HTTP client write more."""
    worker = experiment.start(log_level="debug", grace_s=GRACE_S, stderr=unread_pipe)
    experiment.publish(EVALUATIONS // len(experiment.judges))
    experiment.wait_finished(EVALUATIONS)
    assert CLIENT.get(f"http://127.0.0.1:{worker.port}/healthz").status_code == 200
    experiment.assert_all_scored()
    began = time.monotonic()
    experiment.terminate(timeout_s=bounded_s(GRACE_S + 10))
    assert time.monotonic() - began < bounded_s(GRACE_S + 10)
