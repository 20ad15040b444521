"""The OTLP receiver is down, slow, and refuses in each way; spans wait for it, metrics never do."""

import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

import pytest
from experiment import Experiment, number, seconds
from support import otlp as collector
from support.otlp import Log, Span
from support.processes import wait_until

TRACES = number(5_000, least=500)
DOWN_S = seconds(60, least=3)
PHASE_S = seconds(20, least=1)
VERDICTS = "tracejudge_verdicts_total"
DROPPED = "tracejudge_export_dropped_total"
EVALUATION_ID = "tracejudge.evaluation.id"
POISONED = 64


def is_poisoned(item: Span | Log) -> bool:
    """Tell whether the receiver never takes an item: one evaluation span in so many."""
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


def metrics_go_on(experiment: Experiment, until: Callable[[], bool]) -> None:
    """See that what is finished is counted while the receiver is as it is, and that there is ever more of it."""
    before = experiment.finished
    while not until():
        finished = experiment.finished
        wait_until(lambda least=finished: counted(experiment) >= least, what=f"{finished} to be counted")
        time.sleep(0.5)
    wait_until(lambda: experiment.finished > before, what="judging to go on")


def for_a_while(duration_s: float) -> Callable[[], bool]:
    until = time.monotonic() + duration_s
    return lambda: time.monotonic() > until


@pytest.mark.timeout(900)
def test_otlp_receiver_down_then_slow_then_refusing(experiment: Experiment) -> None:
    experiment.otlp.behaviour = with_poison(collector.Accept())
    for name in ("a", "b"):
        experiment.start(name)
    lasts_s = 1.5 * DOWN_S + (len(PHASES) + 1) * PHASE_S
    with experiment.load(TRACES / lasts_s):
        experiment.wait_finished(10)
        experiment.otlp.close()
        metrics_go_on(experiment, for_a_while(DOWN_S))
        experiment.otlp.start()
        for behaviour in PHASES.values():
            experiment.otlp.behaviour = with_poison(behaviour)
            metrics_go_on(experiment, for_a_while(PHASE_S))
        experiment.otlp.behaviour = with_poison(collector.Accept())
    experiment.assert_all_scored(spans=False)
    check_exported(experiment)


def check_exported(experiment: Experiment) -> None:
    """Check that all but the poison reached the receiver, and that this is what was counted as dropped."""
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
