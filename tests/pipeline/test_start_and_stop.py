"""Ways to start and to stop a worker."""

import json
import re
import signal
from collections.abc import Callable

import pytest
from support import otlp as collector
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

from worker.embedded import EmbeddedRedis

AtRedis = Callable[[str], Pipeline]
CELERY = ("-m", "celery", "-A", "worker", "worker")
SAFE = [{"name": "safe", "judges": ["safety"]}]


def test_plain_celery_starts_the_same_worker_from_any_folder(pipeline: Pipeline) -> None:
    pipeline.worker(*CELERY)
    pipeline.publish(make_traces(20))
    assert pipeline.settled(20).scored == 60


@pytest.mark.parametrize("pool", ["solo", "prefork -c 1 -O fair", "processes"])
def test_celery_with_another_pool_ends_at_once_with_one_line(pipeline: Pipeline, pool: str) -> None:
    worker = pipeline.worker(*CELERY, "-P", *pool.split(), wait=False)
    if pool.startswith("prefork"):
        # Celery cannot tell its own default from the same word on the command line; the configured pool is used.
        worker.program.wait_for("worker started")
        return
    assert worker.program.wait() == 2
    said = [line for line in worker.program.stderr.splitlines() if line.startswith("tracejudge: ")]
    assert said == [
        "tracejudge: the pool must be threads; leave out -P/--pool, size and pool come from the configuration"
    ]


def test_a_wrong_configuration_ends_the_start_with_one_line(pipeline: Pipeline) -> None:
    for command in ((), CELERY):
        worker = pipeline.worker(*command, wait=False, rules=[{"name": "x", "judges": ["groundednes"]}])
        assert worker.program.wait() == 2
        assert worker.program.stderr.strip() == (
            "tracejudge: TRACEJUDGE_RULES: rules[0].judges: there is no judge 'groundednes'; did you mean groundedness?"
        )


def is_given_back(pipeline: Pipeline) -> bool:
    """Tell whether nobody holds what waits, so that whoever comes need not wait for the end of a lease."""
    return not pipeline.store.call(lambda client: client.hlen(pipeline.keys.holders))


@pytest.mark.parametrize("command", [(), CELERY], ids=["tracejudge", "celery"])
def test_roles_can_run_in_processes_of_their_own(pipeline: Pipeline, command: tuple[str, ...]) -> None:
    pipeline.worker(*command, roles="ingest")
    pipeline.publish(make_traces(20))
    wait_until(lambda: pipeline.account().sampled == 20, what="the traces to be chosen")
    assert pipeline.account().waiting == 60
    pipeline.worker(roles="judge")
    assert pipeline.settled(20).scored == 60
    exporter = pipeline.worker(roles="export")
    assert exporter.counted(60).total("tracejudge_verdicts_total") == 60


def test_a_start_that_fails_ends_with_a_status_that_says_so(pipeline: Pipeline) -> None:
    first = pipeline.worker()
    second = pipeline.worker(wait=False, metrics_port=str(first.port))
    assert second.program.wait() == 2
    assert "tracejudge: metrics_port: 127.0.0.1:" in second.program.stderr


def test_sigterm_lets_running_work_finish_and_ends_with_zero(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = replies.slow(0.5, replies.yes_no())
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1"}
    worker = pipeline.worker(models={"default": model})
    pipeline.publish(make_traces(10))
    wait_until(lambda: endpoint.in_flight == 30, what="all calls to be under way")
    assert worker.program.terminate() == 0
    account = pipeline.account()
    assert (account.scored, account.waiting, account.lost) == (30, 0, 0)


def test_sigterm_gives_back_what_takes_longer_than_the_grace(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = replies.hangs()
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1"}
    worker = pipeline.worker(models={"default": model}, grace_s=0.5)
    pipeline.publish(make_traces(10))
    wait_until(lambda: endpoint.in_flight == 30, what="all calls to be under way")
    assert worker.program.terminate() == 0
    assert is_given_back(pipeline)
    endpoint.behaviour = replies.yes_no()
    pipeline.worker(models={"default": model})
    account = pipeline.settled(10)
    assert (account.scored, account.lost) == (30, 0)


def test_a_stopping_worker_begins_no_call_and_waits_for_those_under_way(
    pipeline: Pipeline, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.slow(2.0, replies.yes_no())
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", "max_in_flight": 5}
    worker = pipeline.worker(models={"default": model}, rules=SAFE)
    pipeline.publish(make_traces(40))
    wait_until(lambda: endpoint.in_flight == 5, what="calls to be under way")
    begun = len(endpoint.calls)
    assert worker.program.terminate() == 0
    assert len(endpoint.calls) <= begun + 5, "at most one more each, between our look and the signal"
    account = pipeline.account()
    assert (account.scored, account.waiting, account.lost) == (len(endpoint.calls), 40 - len(endpoint.calls), 0)
    assert is_given_back(pipeline)
    endpoint.behaviour = replies.yes_no()
    pipeline.worker(models={"default": model}, rules=SAFE)
    account = pipeline.settled(40)
    assert (account.scored, account.lost, len(endpoint.calls)) == (40, 0, 40)


@pytest.mark.parametrize("sign", ["Warm shutdown", "worker stopping"], ids=["before the stop", "in the stop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [(), CELERY], ids=["tracejudge", "celery"])
def test_a_second_signal_ends_the_grace_and_gives_the_work_back(
    pipeline: Pipeline, endpoint: ChatEndpoint, command: tuple[str, ...], number: signal.Signals, sign: str
) -> None:
    """Celery's own second signal broke our stop off, or was lost before it; a third left the process hanging."""
    endpoint.behaviour = replies.hangs()
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1"}
    worker = pipeline.worker(*command, models={"default": model}, grace_s=60)
    pipeline.publish(make_traces(10))
    wait_until(lambda: endpoint.in_flight == 30, what="all calls to be under way")
    worker.program.signal(number)
    worker.program.wait_for(sign)
    worker.program.signal(number)
    worker.program.wait(30)  # two seconds are promised, and a minute of grace was given; the machine may be slow
    assert is_given_back(pipeline)
    endpoint.behaviour = replies.yes_no()
    pipeline.worker(models={"default": model})
    account = pipeline.settled(10)
    assert (account.scored, account.lost) == (30, 0)


@pytest.mark.faults
def test_work_goes_on_when_redis_comes_back(at_redis: AtRedis) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        pipeline = at_redis(server.url)
        worker = pipeline.worker()
        pipeline.publish(make_traces(100))
        pipeline.settled(100)
        server.restart()
        pipeline.publish(make_traces(200)[100:])
        account = pipeline.settled(200)
        assert (account.scored, account.lost) == (600, 0)
        assert worker.program.running


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(at_redis: AtRedis) -> None:
    server = EmbeddedRedis()
    server.start()
    url = server.url
    try:
        server.kill()
        pipeline = at_redis(url)
        pipeline.worker()
        server.restart()
        pipeline.publish(make_traces(10))
        assert pipeline.settled(10).scored == 30
    finally:
        server.stop()


def test_a_verdict_reaches_an_otlp_receiver_as_a_span_and_an_event(
    pipeline: Pipeline, otlp: collector.OtlpReceiver
) -> None:
    pipeline.worker(otlp_endpoint=otlp.endpoint, rules=[{"name": "all", "judges": ["groundedness"]}])
    (trace,) = make_traces(1)
    pipeline.publish([trace])
    wait_until(lambda: otlp.logs, what="the event to arrive")
    span = next(span for span in otlp.spans if span.name == "evaluate groundedness")
    assert (span.kind, span.parent_span_id, span.attributes["openinference.span.kind"]) == ("INTERNAL", "", "EVALUATOR")
    assert list(span.links) == [collector.Link(trace.trace_id, trace.span_id)]
    (event,) = otlp.logs
    assert (event.event_name, event.trace_id, event.span_id) == (
        "gen_ai.evaluation.result",
        trace.trace_id,
        trace.span_id,
    )
    assert event.attributes == {
        "gen_ai.evaluation.name": "groundedness",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.evaluation.score.label": "yes",
    }


def test_each_log_line_is_json_with_the_trace_s_id(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    pipeline.publish(make_traces(3))
    pipeline.settled(3)
    worker.program.terminate()
    lines = [line for line in worker.program.stderr.splitlines() if line.startswith("{")]
    verdicts = [json.loads(line) for line in lines if '"event": "verdict"' in line]
    assert {line["trace_id"] for line in verdicts} == {trace.trace_id for trace in make_traces(3)}
    assert not re.search(r"Parcel \d", worker.program.output)


def test_ctrl_c_ends_a_worker_too(pipeline: Pipeline) -> None:
    worker = pipeline.worker()
    worker.program.signal(signal.SIGINT)
    assert worker.program.wait() in (0, 130)
