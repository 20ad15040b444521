"""Redis is full and evicts nothing: workers wait without spinning, no write is partial, and work resumes later."""

import contextlib
import os
import time
from collections.abc import Iterator
from operator import ge
from pathlib import Path

import pytest
from experiment import Experiment, number, seconds
from redis import Redis
from redis_faults import filled, on_redis, server_of
from support.pipeline import Worker, make_traces
from support.processes import wait_until

import tracejudge
from worker.base.accounting import Account
from worker.base.embedded import ServerBinary

TRACES = number(5_000, least=500)
FULL_S = seconds(60, least=3)
BUFFER = TRACES // 2
MAX_CPU_SHARE = 0.5
MAX_LINES_PER_S = 20


@pytest.fixture
def experiment(
    request: pytest.FixtureRequest, tmp_path: Path, redis_binaries: tuple[ServerBinary, ...]
) -> Iterator[Experiment]:
    """An experiment on the Redis version that `on_redis` selects."""
    with Experiment(tmp_path, redis=server_of(request.param, redis_binaries)) as made:
        yield made


def publish(experiment: Experiment, traces: int, **fields: object) -> None:
    for trace in make_traces(traces, first=experiment.published, ended_at=time.time(), **fields):
        tracejudge.publish(trace)
    experiment.published += traces


@contextlib.contextmanager
def service(experiment: Experiment, *, buffer: int = BUFFER) -> Iterator[None]:
    """Publish as a service with a small buffer."""
    settings = {"service": "tests", "redis_url": experiment.redis.url, "prefix": experiment.pipeline.prefix}
    tracejudge.init(**settings, max_items=buffer)
    try:
        yield
        assert tracejudge.flush(60)
    finally:
        tracejudge.shutdown()


def cpu_s(worker: Worker) -> float:
    fields = Path(f"/proc/{worker.program.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def low_load(worker: Worker) -> Iterator[None]:
    """Check that a worker keeps running inside the block, with little CPU time and few log lines."""
    began, cpu, lines = time.monotonic(), cpu_s(worker), worker.program.stderr.count("\n")
    yield
    lasted = time.monotonic() - began
    assert worker.program.running, worker.program.output
    assert cpu_s(worker) - cpu < MAX_CPU_SHARE * lasted
    assert worker.program.stderr.count("\n") - lines < MAX_LINES_PER_S * lasted


def stored_amounts(experiment: Experiment, client: Redis) -> list[int]:
    """Count what uses memory: traces, verdicts, batches, evaluations."""
    keys = experiment.pipeline.keys
    patterns = (keys.batch("*"), f"{keys.evaluations}:*")
    streams = [client.xlen(keys.traces), client.xlen(keys.verdicts)]
    return [*streams, *(sum(1 for _ in client.scan_iter(pattern, count=5_000)) for pattern in patterns)]


@pytest.mark.slow("fills and empties Redis with workers of all roles")
@on_redis("6.2")
def test_redis_is_full_under_load(experiment: Experiment) -> None:
    account = fill_under_load(experiment)
    assert account.dropped >= TRACES - BUFFER


@pytest.mark.slow("full and empty over and over")
@on_redis("7")
def test_redis_is_full_intermittently(experiment: Experiment) -> None:
    fill_under_load(experiment, room_bytes=100_000)


def fill_under_load(experiment: Experiment, room_bytes: int | None = None) -> Account:
    worker = experiment.start()
    with service(experiment):
        publish(experiment, TRACES // 4)
        experiment.wait_finished(20)
        with filled(experiment.redis, room_bytes=room_bytes) as client:
            time.sleep(1)
            publish(experiment, TRACES)
            with low_load(worker):
                before = stored_amounts(experiment, client)
                time.sleep(FULL_S)
                if room_bytes is None:
                    # A batch that was finished just before Redis became full may still be removed.
                    assert all(map(ge, before, stored_amounts(experiment, client)))
        wait_until(lambda: experiment.pipeline.account().unread == 0, what="it to go on")
        publish(experiment, TRACES // 4)
    account = experiment.assert_accounting()
    assert account.published == experiment.published
    assert account.reasons == ({"dropped:buffer_full": account.dropped} if account.dropped else {})
    assert account.sampled == account.published - account.dropped
    assert account.scored == account.chosen == account.sampled * len(experiment.judges)
    assert len(experiment.endpoint.calls) <= account.chosen + 128, "nothing is begun whose verdict cannot be written"
    return account


@pytest.mark.slow("a start that waits")
@on_redis("7")
def test_a_worker_that_starts_on_a_full_redis_waits_for_memory(experiment: Experiment) -> None:
    experiment.publish(TRACES // 5)
    with filled(experiment.redis):
        worker = experiment.start(wait=False)
        wait_until(worker.is_up, what="its metrics page")
        time.sleep(2)
        with low_load(worker):
            time.sleep(FULL_S)
        assert experiment.pipeline.counter("chosen") == 0
    # The worker creates its groups of the outbox only now.
    wait_until(lambda: experiment.otlp.spans, what="the exporters to begin")
    experiment.assert_all_scored()


@pytest.mark.slow("fills Redis")
@on_redis("7")
def test_a_full_redis_is_trimmed_to_the_caps(experiment: Experiment) -> None:
    """Entries that were read stay in the stream for replay; trimming to the cap frees memory."""
    experiment.start()
    with service(experiment, buffer=TRACES):
        # Some kB each: trimming must free more than connections take.
        publish(experiment, TRACES, words=400)
    experiment.wait_finished(experiment.evaluations)
    experiment.terminate()
    with filled(experiment.redis, room_bytes=0) as client:
        experiment.start(max_stream=TRACES // 5)
        wait_until(lambda: client.xlen(experiment.pipeline.keys.traces) < TRACES // 2, what="the stream to be trimmed")
        _has_room(client)
        experiment.publish(10)
        experiment.wait_finished(experiment.evaluations)
    experiment.assert_all_scored()


def _has_room(client: Redis) -> None:
    memory = client.info("memory")
    assert memory["used_memory"] < memory["maxmemory"]
