"""The OTLP receiver is down, slow, or refuses in different ways: spans wait, metrics continue."""

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
from support.processes import wait_until
from support.scrape import CLIENT

TRACES = number(5_000, least=250)
DOWN_S = seconds(60, least=3)
PHASE_S = seconds(20, least=1)
VERDICTS = "tracejudge_verdicts_total"
DROPPED = "tracejudge_export_dropped_total"
EVALUATION_ID = "tracejudge.evaluation.id"
POISONED = 64


def is_poisoned(item: Span | Log) -> bool:
    """Return whether the receiver always refuses an item: one evaluation span in a fixed number."""
    evaluation_id = item.attributes.get(EVALUATION_ID)
    return item.kind == "INTERNAL" and int(evaluation_id, 16) % POISONED == 0 if isinstance(item, Span) else False


def with_poison(otherwise: collector.Behaviour) -> collector.Behaviour:
    refusing = collector.refuses_items(is_poisoned, status=HTTPStatus.BAD_REQUEST)

    def behave(export: collector.Export) -> collector.Behaviour:
        return refusing if any(map(is_poisoned, export.items)) else otherwise

    return behave


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
    return sum(worker.scrape().total(VERDICTS) for worker in experiment.workers.values())


def metrics_continue(experiment: Experiment, until: Callable[[], bool]) -> None:
    """Check that finished evaluations are counted in the metrics while the receiver fails, and that more finish."""
    before = experiment.finished
    while not until():
        finished = experiment.finished
        wait_until(lambda least=finished: counted(experiment) >= least, what=f"{finished} to be counted")
        time.sleep(0.5)
    wait_until(lambda: experiment.finished > before, what="judging to go on")


def for_a_while(duration_s: float) -> Callable[[], bool]:
    until = time.monotonic() + duration_s
    return lambda: time.monotonic() > until


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
        metrics_continue(experiment, for_a_while(DOWN_S))
        experiment.otlp.start()
        for behaviour in PHASES.values():
            experiment.otlp.behaviour = with_poison(behaviour)
            metrics_continue(experiment, for_a_while(PHASE_S))
        experiment.otlp.behaviour = with_poison(collector.Accept())
    experiment.assert_all_scored(spans=False)
    check_exported(experiment)


def check_exported(experiment: Experiment) -> None:
    """Check that all items except the refused ones arrived, and that exactly those are counted as dropped."""
    verdicts = [entry.verdict.evaluation_id for entry in experiment.pipeline.outbox()]
    poisoned = {evaluation_id for evaluation_id in verdicts if int(evaluation_id, 16) % POISONED == 0}
    spans = Counter(span.attributes[EVALUATION_ID] for span in experiment.otlp.spans if span.kind == "INTERNAL")
    assert poisoned
    assert spans.keys() == set(verdicts) - poisoned
    assert set(spans.values()) == {1}
    assert len(experiment.otlp.logs) == len(verdicts)
    dropped: Counter[str] = Counter()
    for worker in experiment.workers.values():
        for sample in worker.scrape().samples(DROPPED, exporter="otel"):
            dropped[sample.labels["reason"]] += int(sample.value)
    assert +dropped == Counter(rejected=len(poisoned))
    experiment.assert_each_counted()


# --- odd receivers, each with a real worker ---
IGNORED = "tracejudge_export_answers_ignored_total"
AT_ONCE = 8


def evaluations_sent(experiment: Experiment) -> Counter[str]:
    return Counter(span.attributes[EVALUATION_ID] for span in experiment.otlp.spans if span.kind == "INTERNAL")


def sent_once(experiment: Experiment, *, but: int = 0) -> Counter[str]:
    """Wait until all evaluations except `but` have reached the receiver; none may arrive twice."""
    expected = experiment.evaluations - but
    wait_until(lambda: len(evaluations_sent(experiment)) >= expected, what=f"{expected} evaluations to be exported")
    choices = evaluations_sent(experiment)
    assert (len(choices), set(choices.values())) == (expected, {1})
    return choices


def dropped(worker: Worker) -> dict[str, int]:
    samples = worker.scrape().samples(DROPPED, exporter="otel")
    return {sample.labels["reason"]: int(sample.value) for sample in samples if sample.value}


def readiness(worker: Worker) -> httpx.Response:
    return CLIENT.get(f"http://127.0.0.1:{worker.port}/readyz", timeout=30)


def ready(worker: Worker) -> None:
    wait_until(lambda: readiness(worker).status_code == 200, what="the worker to be ready")


def unready(worker: Worker, why: str) -> None:
    wait_until(lambda: why in readiness(worker).text, what=f"the worker to say {why!r}")
    assert readiness(worker).status_code == 503


def lines(worker: Worker, event: str) -> list[str]:
    return [line for line in worker.program.output.splitlines() if event in line]


@pytest.mark.slow("waits for pauses between requests")
def test_spans_wait_for_a_misconfigured_receiver_and_the_log_reports_it_once(experiment: Experiment) -> None:
    answers = {
        401: collector.failing(HTTPStatus.UNAUTHORIZED),
        403: collector.failing(HTTPStatus.FORBIDDEN),
        404: collector.failing(HTTPStatus.NOT_FOUND),
        307: collector.Accept(status=307, headers={"Location": "http://127.0.0.1:1/v1/traces"}),
    }
    worker = experiment.start()
    for status, answer in answers.items():
        experiment.otlp.behaviour = answer
        experiment.publish(AT_ONCE)
        wait_until(lambda log_lines=f"HTTP {status}": lines(worker, log_lines), what=f"the log to tell of {status}")
        if status == 401:  # each takes ten seconds more: the first stands for all
            unready(worker, f"export-otel: receiver answers HTTP {status}: ")
        wait_until(lambda: counted(experiment) == experiment.evaluations, what="metrics, which do not wait")
        experiment.otlp.behaviour = collector.Accept()
        sent_once(experiment)
        ready(worker)
        assert len(lines(worker, f"HTTP {status}")) == 1, lines(worker, "otlp")
    assert dropped(worker) == {}
    experiment.assert_all_scored()


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_only_events_are_switched_off_if_the_receiver_has_no_path_for_them(experiment: Experiment) -> None:
    experiment.otlp.behaviour = lambda export: (
        collector.failing(HTTPStatus.NOT_FOUND) if export.path == "/v1/logs" else collector.Accept()
    )
    worker = experiment.start()
    for _ in range(3):
        experiment.publish(AT_ONCE)
        sent_once(experiment)
    assert [export.path for export in experiment.otlp.exports].count("/v1/logs") == 1
    assert len(lines(worker, "events switched off")) == 1
    ready(worker)
    assert dropped(worker) == {}
    wait_until(lambda: experiment.pipeline.counter("exported:otel") == experiment.evaluations, what="acknowledgements")


def test_only_the_item_that_makes_the_receiver_fail_is_dropped(experiment: Experiment) -> None:
    experiment.otlp.behaviour = collector.refuses_items(is_poisoned, status=HTTPStatus.INTERNAL_SERVER_ERROR)
    worker = experiment.start()
    experiment.publish(150)
    experiment.wait_finished(experiment.evaluations)
    poisoned = sum(int(entry.verdict.evaluation_id, 16) % POISONED == 0 for entry in experiment.pipeline.outbox())
    assert poisoned
    sent_once(experiment, but=poisoned)
    wait_until(lambda: experiment.pipeline.counter("exported:otel") == experiment.evaluations, what="acknowledgements")
    assert dropped(worker) == {"server_error": poisoned}
    assert len(experiment.otlp.logs) == experiment.evaluations


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


def test_an_impossible_partial_success_is_ignored_and_counted(experiment: Experiment) -> None:
    worker = experiment.start()
    absurd = (
        collector.partial(-1),
        collector.partial(10**9),
        collector.Accept(body=b"2 of 3", content_type="text/plain"),
    )
    for number_of, behaviour in enumerate(absurd, 1):
        experiment.otlp.behaviour = behaviour
        experiment.publish(AT_ONCE)
        sent_once(experiment)
        wait_until(
            lambda: experiment.pipeline.counter("exported:otel") == experiment.evaluations, what="acknowledgement"
        )
        assert (dropped(worker), worker.scrape().value(IGNORED, exporter="otel") >= 2 * number_of) == ({}, True)
    ready(worker)


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


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_spans_beyond_the_cap_of_the_outbox_are_counted_while_the_receiver_is_misconfigured(
    experiment: Experiment,
) -> None:
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
    cut = experiment.pipeline.counter("outbox_cut_off:otel")
    choices = evaluations_sent(experiment)
    assert set(choices.values()) == {1}
    assert len(choices) >= 200
    assert experiment.evaluations - len(choices) <= cut, "some are neither exported nor counted as cut off"
    assert dropped(worker) == {}
    assert worker.scrape().value("tracejudge_outbox_cut_off_total", exporter="otel") > 0
