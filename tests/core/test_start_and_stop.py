"""Starting and stopping a worker; and every published trace is judged once and counted once, whatever happens to it.

SIGTERM and Ctrl-C, sent to this very process: what the stages are told, and what Celery is.
"""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from operator import methodcaller
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest
from celery.worker import state
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Pipeline, Worker, make_traces, model_at
from support.processes import PATIENCE_S, stopped_at_start, wait_until

from worker.base.embedded import EmbeddedRedis
from worker.core.runtime.worker_control import Signals

AtRedis = Callable[[str], Pipeline]
CELERY = ("-m", "celery", "-A", "worker", "worker")
LATE_FORCED_EXIT = """
from worker.core.runtime import worker_control
worker_control._HURRY_S = 600  # the forced exit comes after two seconds, which may be too short on a busy machine
"""
SIGNAL_DURING_START = f"""{LATE_FORCED_EXIT}
import os, time
from worker.core.runtime.runtime import Runtime
begin, signalled, signals = Runtime.start, worker_control.Signals._on_signal, []

def start(self):
    begin(self)
    while len(signals) < 2:
        time.sleep(0.01)

def note(self, *details):
    signalled(self, *details)
    signals.append(details)
    os.write(2, b"signalled\\n")

Runtime.start, worker_control.Signals._on_signal = start, note
"""
CLI_S = "import sys\nfrom worker.cli import main\nsys.exit(main())", "worker"
CELERY_S = "import sys\nfrom celery.__main__ import main\nsys.exit(main())", *CELERY[2:]
SECOND_WAY = pytest.mark.slow("a second variant")
STARTS = "a start of a worker, or seconds of CPU, for what shorter tests touch too"


def leases_are_released(pipeline: Pipeline) -> bool:
    """Return whether no waiting batch is leased, so that another worker need not wait for a lease to expire."""
    return not pipeline.store.call(lambda client: client.hlen(pipeline.keys.holders))


def busy_worker(pipeline: Pipeline, endpoint: ChatEndpoint, *command: str, grace_s: float) -> Worker:
    """Start a worker with ten traces, and wait until all their thirty calls are under way."""
    settings = {"models": {"default": model_at(endpoint.base_url)}, "grace_s": grace_s}
    worker = pipeline.worker(*command, **settings)
    pipeline.publish(make_traces(10))
    wait_until(lambda: endpoint.in_flight == 30, what="all calls to be under way")
    return worker


def test_plain_celery_starts_the_same_worker_from_any_folder_and_judges_each_trace_once(pipeline: Pipeline) -> None:
    """A trace that is published twice has a verdict of each judge, once in the ledger, the outbox and the metrics."""
    worker = pipeline.worker(*CELERY)
    traces = make_traces(20)
    for _ in range(2):
        pipeline.publish(traces)
    account = pipeline.settled(40)
    assert (account.sampled, account.duplicate, account.scored, account.lost) == (20, 20, 60, 0)
    page = worker.counted(60)
    assert page.total("tracejudge_verdicts_total") == pipeline.ledger_size() == 60
    assert (
        worker.counted(20, "tracejudge_traces_total", outcome="sampled").total(
            "tracejudge_traces_total", outcome="duplicate"
        )
        == 20
    )
    ids = Counter(entry.verdict.evaluation_id for entry in pipeline.outbox())
    assert (len(ids), set(ids.values())) == (60, {1})
    worker.program.signal(signal.SIGINT)
    assert worker.program.wait() in (0, 130), "Ctrl-C ends it"
    warned = re.search(r'"no configuration [^"]*"', worker.program.stderr)
    assert warned is not None
    assert "there is no tracejudge.toml in /" in warned[0]
    lines = [line for line in worker.program.stderr.splitlines() if line.startswith("{")]
    verdicts = [json.loads(line) for line in lines if '"event": "verdict"' in line]
    assert {line["trace_id"] for line in verdicts} == {trace.trace_id for trace in traces}
    assert not re.search(r"Parcel \d", worker.program.output)


@pytest.mark.slow(STARTS)
def test_celery_with_another_pool_exits_with_one_line(pipeline: Pipeline) -> None:
    # Celery cannot tell its own default from the same word on the command line; the configured pool is used.
    pipeline.worker(*CELERY, "-P", "prefork", "-c", "1", "-O", "fair", wait=False).program.wait_for("worker started")
    worker = pipeline.worker(*CELERY, "-P", "solo", wait=False)
    assert worker.program.wait() == 2
    (line,) = [line for line in worker.program.stderr.splitlines() if line.startswith("tracejudge: ")]
    assert line.startswith("tracejudge: the pool must be threads; leave out -P/--pool")


def test_a_start_that_fails_exits_with_status_2_and_one_line(pipeline: Pipeline) -> None:
    for command in ((), CELERY):
        worker = pipeline.worker(*command, wait=False, rules=[{"name": "x", "judges": ["groundednes"]}])
        assert worker.program.wait() == 2
        assert worker.program.stderr.strip() == (
            "tracejudge: TRACEJUDGE_RULES: rules[0].judges: there is no judge 'groundednes'; did you mean groundedness?"
        )
    first = pipeline.worker()
    second = pipeline.worker(wait=False, metrics_port=str(first.port))
    assert second.program.wait() == 2
    assert "tracejudge: metrics_port: 127.0.0.1:" in second.program.stderr


@pytest.mark.slow(STARTS)
def test_keys_of_another_version_end_the_start_and_stay_unchanged(pipeline: Pipeline) -> None:
    """This version would not find the evaluations of version 0.1, and would judge their traces again."""
    for name, value in ((f"chosen:{1:032x}", "1"), (f"ledger:{2:032x}", "scored"), ("layout", "3")):
        key = f"{pipeline.prefix}:{name}"
        pipeline.store.call(methodcaller("set", key, value))
        worker = pipeline.worker(wait=False)
        assert worker.program.wait(SETTLING_S) == 2, worker.program.output
        (line,) = [line for line in worker.program.stderr.splitlines() if "redis_url" in line]
        assert "version" in line or "0.1" in line, line
        assert "let that version finish its work, then delete its keys or flush this Redis" in line
        reply = pipeline.store.call(lambda client: list(client.scan_iter(f"{pipeline.prefix}:*")))
        assert reply == [key.encode()], "nothing is written"
        pipeline.store.call(methodcaller("delete", key))


def test_sigterm_finishes_running_work_within_the_grace(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold)
    worker = busy_worker(pipeline, endpoint, grace_s=60)
    worker.program.signal(signal.SIGTERM)
    worker.program.wait_for("worker stopping")
    # Traffic of services that read it goes elsewhere meanwhile.
    assert httpx.get(f"http://127.0.0.1:{worker.port}/readyz", trust_env=False).status_code == 503
    hold.release()
    assert worker.program.wait() == 0
    account = pipeline.account()
    assert (account.scored, account.waiting, account.lost) == (30, 0, 0)


@pytest.mark.slow("several real programs")
def test_work_past_the_grace_period_and_all_work_at_sigquit_is_released(
    pipeline: Pipeline, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = replies.hangs()
    worker = busy_worker(pipeline, endpoint, grace_s=0.5)
    assert worker.program.terminate() == 0
    assert leases_are_released(pipeline)
    models = {"default": model_at(endpoint.base_url)}
    worker = pipeline.worker(models=models, grace_s=600)
    wait_until(lambda: len(endpoint.calls) == 60, what="all calls to be under way again")
    worker.program.signal(signal.SIGQUIT)
    worker.program.wait()
    assert leases_are_released(pipeline)
    endpoint.behaviour = replies.yes_no()
    pipeline.worker(models=models)
    account = pipeline.settled(10)
    assert (account.scored, account.lost) == (30, 0), "another worker finishes the released work"


@pytest.mark.parametrize(
    ("command", "number", "patch"),
    [
        pytest.param(CLI_S, signal.SIGTERM, LATE_FORCED_EXIT, id="tracejudge, stopping"),
        pytest.param(CELERY_S, signal.SIGINT, LATE_FORCED_EXIT, id="celery, stopping", marks=SECOND_WAY),
        pytest.param(CELERY_S, signal.SIGTERM, SIGNAL_DURING_START, id="celery, starting"),
    ],
)
def test_a_second_signal_ends_the_grace_period_and_releases_the_work(
    pipeline: Pipeline, endpoint: ChatEndpoint, command: tuple[str, ...], number: signal.Signals, patch: str
) -> None:
    """Regression: Celery's own handling of a second signal broke the stop off or lost it; a third hung the process."""
    endpoint.behaviour = replies.hangs()
    code, *arguments = command
    program = ("-c", patch + code, *arguments)
    if patch is SIGNAL_DURING_START:
        # No task runs before Celery's consumer: the batches are ready and not leased.
        models = {"default": model_at(endpoint.base_url)}
        worker, sign = pipeline.worker(*program, models=models, grace_s=600), "signalled"
        pipeline.publish(make_traces(10))
        wait_until(lambda: pipeline.account().waiting == 30, what="the traces to be chosen")
    else:
        worker, sign = busy_worker(pipeline, endpoint, *program, grace_s=600), "worker stopping"
    worker.program.signal(number)
    worker.program.wait_for(sign)
    worker.program.signal(number)
    assert worker.program.wait() == 0, "the last resort would have ended it with 1, and the grace is ten minutes"
    assert leases_are_released(pipeline)
    assert pipeline.account().waiting == 30


def test_a_worker_waits_for_redis_at_the_start_and_is_alive(at_redis: AtRedis) -> None:
    with EmbeddedRedis() as server:
        server.kill()
        pipeline = at_redis(server.url)
        worker = pipeline.worker()
        probes = {path: f"http://127.0.0.1:{worker.port}/{path}" for path in ("readyz", "healthz")}
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            assert [client.get(url).status_code for url in probes.values()] == [503, 200]
            roles = client.get(probes["readyz"], headers={"accept": "application/json"}).json()["roles"]
        # A role counts as stalled after ten seconds.
        states = {"starting"} if min(role["seconds"] for role in roles) < 10 else {"starting", "stalled"}
        assert {role["state"] for role in roles} <= states
        worker.program.wait_for("redis unavailable")
        wait_until(lambda: "worker started" in worker.program.stderr, what="all threads to run")
        time.sleep(1)  # several retries of each thread and of the broker
        (warned,) = (line for line in worker.program.stderr.splitlines() if '"error"' in line)
        assert json.loads(warned)["redis"] == server.url
        assert json.loads(warned)["fix"] == "start it, or correct redis_url, TRACEJUDGE_REDIS_URL or --redis-url"
        server.restart()
        pipeline.publish(make_traces(10))
        assert pipeline.settled(10).scored == 30


# --- signals, sent to this very process ---
GRACE_S = 20.0
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.slow("several real programs")
def test_a_program_that_is_stopped_while_it_starts_ends_with_0_if_it_is_a_service() -> None:
    codes: dict[tuple[str, bool], tuple[int, int]] = {
        ("tracejudge worker --metrics-port 0", True): (0, 0),
        ("tracejudge worker", False): (0, 0),
        ("celery -A worker worker", False): (0, 0),
        ("celery -A worker inspect ping", False): (-signal.SIGINT, -signal.SIGTERM),
        ("tracejudge account", True): (130, 143),
        ("tracejudge account", False): (130, -signal.SIGTERM),
    }
    assert dict(zip(codes, stopped_at_start(*codes), strict=True)) == codes


class Stages:
    """Stops when it is let, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.let = threading.Event()
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.told.append("stop")
        assert self.let.wait(PATIENCE_S)
        self.stopped.set()

    def hurry(self) -> None:
        self.told.append("hurry")

    def check(self, *what: str) -> None:
        wait_until(lambda: len(self.told) >= len(what), what="the stages to be told")
        assert sorted(self.told) == sorted(what)


class Process(NamedTuple):
    """The handlers of this very process, their stages, and how it would end."""

    signals: Signals
    stages: Stages
    timers: list[tuple[float, tuple[object, ...]]]
    """None comes to its end: seconds, and what would be done then."""
    codes: list[int]


Install = Callable[..., Process]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the handlers for new stages."""
    former = [(number, signal.getsignal(number)) for number in NUMBERS]
    made: list[Process] = []

    def make(should_stop: int | None = None) -> Process:
        stages = Stages()
        made.append(Process(Signals(stages, GRACE_S), stages, [], []))
        timers = made[-1].timers

        def timer(seconds: float, action: object, arguments: tuple[object, ...]) -> SimpleNamespace:
            return SimpleNamespace(start=lambda: timers.append((seconds, (action, *arguments))))

        monkeypatch.setattr(os, "_exit", made[-1].codes.append)
        monkeypatch.setattr(state, "should_stop", should_stop)
        monkeypatch.setattr(threading, "Timer", timer)
        made[-1].signals.install()
        return made[-1]

    try:
        yield make
    finally:
        for process in made:
            process.stages.let.set()
        for number, handler in former:
            signal.signal(number, handler)


def test_the_first_stops_the_second_hurries_and_the_third_ends_the_process(install: Install) -> None:
    for number in NUMBERS:
        signals, stages, timers, codes = install()
        signals.started()
        for told in (("stop",), ("stop", "hurry")):
            signal.raise_signal(number)
            stages.check(*told)
        (grace_s, first), (last_s, second) = timers
        assert (state.should_stop, first, second) == (0, (os._exit, 1), (os._exit, 1))
        assert GRACE_S + 5 < grace_s < GRACE_S + 10, "a stop that hangs ends in time all the same"
        assert (1 < last_s < 2, codes) == (True, []), "the last resort"
        signal.raise_signal(number)
        assert codes == [1]
        stages.let.set()
        signals.stop()
        assert stages.stopped.is_set(), "Celery waits for it"
        stages.check("stop", "hurry")
    # Signals during the start stop the started stages; one that Celery had received counts.
    for should_stop, count, told in ((None, 1, ("stop",)), (None, 2, ("stop", "hurry")), (0, 1, ("stop", "hurry"))):
        signals, stages, *_ = install(should_stop)
        for _ in range(count):
            signal.raise_signal(signal.SIGTERM)
        assert (stages.told, state.should_stop) == ([], 0)
        signals.started()
        stages.check(*told)
    *_, codes = install()
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    assert codes == [1], "a start that hangs"


def test_celery_stops_a_worker_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for case in ("without a signal", "with a signal while Celery stops it", "without memory for a thread"):
        signals, stages, *_ = install()
        signals.started()
        stages.let.set()
        stop = stages.stop
        if case.startswith("with "):
            monkeypatch.setattr(stages, "stop", lambda stop=stop: (signal.raise_signal(signal.SIGTERM), stop()))
        if case.endswith("thread"):
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", full)
                signal.raise_signal(signal.SIGTERM)
            assert (stages.told, state.should_stop) == ([], 0)
        signals.stop()
        assert stages.told == ["stop"], case
