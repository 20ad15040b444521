"""The OTLP receiver is down, slow, or refuses in different ways: spans wait, metrics continue. So with blocked logs."""

import os
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

import httpx
import pytest
from experiment import Experiment, number, seconds
from support import otlp as collector
from support.otlp import Log, Span
from support.pipeline import Worker
from support.processes import bounded_s, wait_until
from support.scrape import CLIENT

TRACES = number(5_000, least=250)
DOWN_S = seconds(60, least=3)
PHASE_S = seconds(20, least=1)
EVALUATION_ID = "tracejudge.evaluation.id"
POISONED = 64
AT_ONCE = 8
short_of = pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")


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
    "slow": collector.slow(1.0),
    "400 for some": collector.Accept(),
    "413": too_large,
    "429": collector.failing(HTTPStatus.TOO_MANY_REQUESTS, retry_after=1),
    "503": collector.failing(HTTPStatus.SERVICE_UNAVAILABLE),
}


def counted(experiment: Experiment) -> float:
    return sum(worker.scrape().total("tracejudge_verdicts_total") for worker in experiment.workers.values())


def metrics_continue(experiment: Experiment, duration_s: float) -> None:
    """Check that finished evaluations are counted in the metrics while the receiver fails, and that more finish."""
    before, until = experiment.finished, time.monotonic() + duration_s
    while time.monotonic() <= until:
        finished = experiment.finished
        wait_until(lambda least=finished: counted(experiment) >= least, what=f"{finished} to be counted")
        time.sleep(0.5)
    wait_until(lambda: experiment.finished > before, what="judging to go on")


def evaluations_sent(experiment: Experiment) -> Counter[str]:
    return Counter(span.attributes[EVALUATION_ID] for span in experiment.otlp.spans if span.kind == "INTERNAL")


def sent_once(experiment: Experiment, *, but: int = 0) -> None:
    """Wait until all evaluations except `but` have reached the receiver; none may arrive twice."""
    expected = experiment.evaluations - but
    wait_until(lambda: len(evaluations_sent(experiment)) >= expected, what=f"{expected} evaluations to be exported")
    sent = evaluations_sent(experiment)
    assert (len(sent), set(sent.values())) == (expected, {1})


def acknowledged(experiment: Experiment) -> None:
    wait_until(lambda: experiment.pipeline.counter("exported:otel") == experiment.evaluations, what="acknowledgements")


def dropped(*workers: Worker) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for worker in workers:
        for sample in worker.scrape().samples("tracejudge_export_dropped_total", exporter="otel"):
            counts[sample.labels["reason"]] += int(sample.value)
    return dict(+counts)


def readiness(worker: Worker) -> httpx.Response:
    return CLIENT.get(f"http://127.0.0.1:{worker.port}/readyz", timeout=30)


def ready(worker: Worker) -> None:
    wait_until(lambda: readiness(worker).status_code == 200, what="the worker to be ready")


def unready(worker: Worker, why: str) -> None:
    wait_until(lambda: why in readiness(worker).text, what=f"the worker to say {why!r}")
    assert readiness(worker).status_code == 503


def lines(worker: Worker, event: str) -> list[str]:
    return [line for line in worker.program.output.splitlines() if event in line]


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
    sent = evaluations_sent(experiment)
    assert (sent.keys(), set(sent.values())) == (set(verdicts) - poisoned, {1})
    assert len(experiment.otlp.logs) == len(verdicts)
    assert dropped(*experiment.workers.values()) == {"rejected": len(poisoned)}
    experiment.assert_each_counted()


@pytest.mark.slow("waits for pauses between requests")
def test_spans_wait_for_a_misconfigured_receiver_and_the_log_reports_it_once(experiment: Experiment) -> None:
    redirect = collector.Accept(status=307, headers={"Location": "http://127.0.0.1:1/v1/traces"})
    worker = experiment.start()
    for answer in (*map(collector.failing, (401, 403, 404)), redirect):
        status = answer.status
        experiment.otlp.behaviour = answer
        experiment.publish(AT_ONCE)
        wait_until(lambda text=f"HTTP {status}": lines(worker, text), what=f"the log to tell of {status}")
        if status == 401:  # each takes ten seconds more: the first stands for all
            unready(worker, f"export-otel: receiver answers HTTP {status}: ")
        wait_until(lambda: counted(experiment) == experiment.evaluations, what="metrics, which do not wait")
        experiment.otlp.behaviour = collector.Accept()
        sent_once(experiment)
        ready(worker)
        assert len(lines(worker, f"HTTP {status}")) == 1, lines(worker, "otlp")
    assert dropped(worker) == {}
    experiment.assert_all_scored()


@pytest.mark.slow("waits for pauses between requests")
def test_a_receiver_that_fails_for_every_request_loses_nothing(experiment: Experiment) -> None:
    worker = experiment.start()
    experiment.otlp.behaviour = collector.failing(HTTPStatus.INTERNAL_SERVER_ERROR)
    experiment.publish(AT_ONCE)
    unready(worker, "export-otel: receiver answers HTTP 500: ")
    experiment.otlp.behaviour = collector.Accept()
    sent_once(experiment)
    assert dropped(worker) == {}
    experiment.assert_all_scored()


@short_of
def test_only_events_are_switched_off_if_the_receiver_has_no_path_for_them(experiment: Experiment) -> None:
    absent, accept = collector.failing(HTTPStatus.NOT_FOUND), collector.Accept()
    experiment.otlp.behaviour = lambda export: absent if export.path == "/v1/logs" else accept
    worker = experiment.start()
    for _ in range(3):
        experiment.publish(AT_ONCE)
        sent_once(experiment)
    assert [export.path for export in experiment.otlp.exports].count("/v1/logs") == 1
    assert len(lines(worker, "events switched off")) == 1
    ready(worker)
    assert dropped(worker) == {}
    acknowledged(experiment)


def test_only_the_item_that_makes_the_receiver_fail_is_dropped(experiment: Experiment) -> None:
    """And an impossible partial success is ignored and counted."""
    worker = experiment.start()
    absurd = (
        collector.partial(-1),
        collector.partial(10**9),
        collector.Accept(body=b"2 of 3", content_type="text/plain"),
    )
    for turn, behaviour in enumerate(absurd, 1):
        experiment.otlp.behaviour = behaviour
        experiment.publish(AT_ONCE)
        sent_once(experiment)
        acknowledged(experiment)
        ignored = worker.scrape().value("tracejudge_export_answers_ignored_total", exporter="otel")
        assert (dropped(worker), ignored >= 2 * turn) == ({}, True)
    ready(worker)
    experiment.otlp.behaviour = collector.refuses_items(is_poisoned, status=HTTPStatus.INTERNAL_SERVER_ERROR)
    before = {entry.verdict.evaluation_id for entry in experiment.pipeline.outbox()}
    experiment.publish(150)
    experiment.wait_finished(experiment.evaluations)
    names = {entry.verdict.evaluation_id for entry in experiment.pipeline.outbox()} - before
    poisoned = sum(map(is_poison, names))
    assert poisoned
    sent_once(experiment, but=poisoned)
    acknowledged(experiment)
    assert dropped(worker) == {"server_error": poisoned}
    assert len(experiment.otlp.logs) == experiment.evaluations


@pytest.mark.slow("waits for the deadline of 30 s")
def test_a_request_to_a_very_slow_receiver_ends_at_its_deadline_and_metrics_continue(experiment: Experiment) -> None:
    experiment.otlp.close()
    worker = experiment.start()
    with collector.Dribbler(b"HTTP/1.1 200 OK\r\nx: ", port=experiment.otlp.port, every_s=1.0) as dribbler:
        experiment.publish(AT_ONCE)
        wait_until(lambda: dribbler.answered == 1, what="the worker to export")
        began = time.monotonic()
        wait_until(lambda: counted(experiment) == experiment.evaluations, what="metrics to go on")
        assert not dribbler.ended.is_set()
        assert dribbler.ended.wait(120), "the worker waits for the end of the answer"
        assert time.monotonic() - began > 25
        wait_until(lambda: lines(worker, "export retrying"), what="the log to tell")
    experiment.otlp.start()
    sent_once(experiment)
    assert dropped(worker) == {}
    experiment.assert_all_scored()


@short_of
def test_spans_beyond_the_cap_are_counted_while_the_receiver_is_misconfigured(experiment: Experiment) -> None:
    experiment.otlp.behaviour = collector.failing(HTTPStatus.UNAUTHORIZED)
    worker = experiment.start(max_outbox=200)
    while experiment.pipeline.counter("outbox_cut_off:otel") < 100:
        experiment.publish(100)
        experiment.wait_finished(experiment.evaluations)
        time.sleep(1)
        assert experiment.evaluations < 10_000, "the outbox is not cut"
    experiment.otlp.behaviour = collector.Accept()
    wait_until(lambda: experiment.pipeline.counter("exported:otel") >= 200, what="what is left to be exported")
    experiment.settle()
    cut, sent = experiment.pipeline.counter("outbox_cut_off:otel"), evaluations_sent(experiment)
    assert set(sent.values()) == {1}
    assert len(sent) >= 200
    assert experiment.evaluations - len(sent) <= cut, "some are neither exported nor counted as cut off"
    assert dropped(worker) == {}
    assert worker.scrape().value("tracejudge_outbox_cut_off_total", exporter="otel") > 0


# --- standard error cannot be written ---
GRACE_S = 3.0
EVALUATIONS = 600
Outlet = Callable[[], tuple[int, list[int]]]


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


SECOND_WAYS = [pytest.param(each, marks=pytest.mark.slow("a second variant")) for each in (_closed_pipe, _full_disk)]


@pytest.mark.parametrize("outlet", [_unread_pipe, *SECOND_WAYS])
def test_a_worker_with_blocked_logs_judges_answers_probes_and_stops(experiment: Experiment, outlet: Outlet) -> None:
    """Each verdict writes a line; at log level debug Celery and the HTTP client write more."""
    file, others = outlet()
    worker = experiment.start(log_level="debug", grace_s=GRACE_S, stderr=file)
    try:
        experiment.publish(EVALUATIONS // len(experiment.judges))
        experiment.wait_finished(EVALUATIONS)
        assert CLIENT.get(f"http://127.0.0.1:{worker.port}/healthz").status_code == 200
        if outlet is not _unread_pipe:
            assert worker.counted(100, "tracejudge_log_records_dropped_total")
        experiment.assert_all_scored()
        began = time.monotonic()
        experiment.terminate(timeout_s=bounded_s(GRACE_S + 10))
        assert time.monotonic() - began < bounded_s(GRACE_S + 10)
    finally:
        for descriptor in (file, *others):
            os.close(descriptor)
