"""The stream is trimmed while its reader is behind: trimmed entries are counted, and nothing else is missing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment import Experiment, number
from redis import Redis
from redis_faults import on_redis, server_of
from support.pipeline import make_traces
from support.processes import wait_until

import tracejudge
from worker.base.embedded import ServerBinary
from worker.core.storage.keys import INGEST_GROUP

TRACES = number(20_000, least=2_000)
CAP = TRACES // 8
HELD = 150
CUT_OFF = "tracejudge_cut_off_total"


@pytest.fixture
def experiment(
    request: pytest.FixtureRequest, tmp_path: Path, redis_binaries: tuple[ServerBinary, ...]
) -> Iterator[Experiment]:
    """An experiment on the Redis version that `on_redis` selects."""
    with Experiment(tmp_path, redis=server_of(request.param, redis_binaries), answer_s=0.0) as made:
        yield made


def publish(experiment: Experiment, traces: int) -> None:
    """Publish as a service that caps the stream."""
    settings = {"service": "tests", "redis_url": experiment.redis.url, "prefix": experiment.pipeline.prefix}
    tracejudge.init(**settings, max_stream=CAP, max_items=50_000)
    try:
        for trace in make_traces(traces, first=experiment.published, ended_at=time.time()):
            tracejudge.publish(trace)
        assert tracejudge.flush(60)
    finally:
        tracejudge.shutdown()
    experiment.published += traces


def read_and_die(client: Redis, experiment: Experiment) -> None:
    """Read entries as a worker that is killed before it processes them."""
    assert client.xreadgroup(INGEST_GROUP, "dead", {experiment.pipeline.keys.traces: ">"}, count=HELD)


def check_page(experiment: Experiment, cut_off: int, *, publications: int) -> None:
    """Check that the metrics show the same loss.

    They count cut reports of producers as well, of which each sends two at most. Redis 6.2 does not count what was
    added: there they lack what a producer trimmed of which no entry was left to be read. The accounting includes it.
    """
    (worker,) = experiment.workers.values()
    at_most = cut_off + 2 * publications
    at_least = 1 if experiment.redis.version.startswith("6.") else cut_off
    wait_until(lambda: at_least <= worker.scrape().value(CUT_OFF) <= at_most, what=f"{cut_off} to be on the page")


@pytest.mark.slow("a stream has to overflow")
@on_redis("6.2")
def test_the_stream_is_trimmed_while_a_worker_is_behind(experiment: Experiment) -> None:
    experiment.start(max_stream=2 * CAP)
    publish(experiment, CAP // 2)
    experiment.wait_finished(experiment.evaluations)
    experiment.pause()
    publish(experiment, 1)
    # It may have been the reply that the paused worker waits for; it sends no other request.
    publish(experiment, CAP // 2)
    with Redis.from_url(experiment.redis.url) as client:
        read_and_die(client, experiment)
        publish(experiment, TRACES - experiment.published)
        assert client.xlen(experiment.pipeline.keys.traces) < TRACES // 2
    assert experiment.pipeline.account().lost == 0
    experiment.resume()
    account = experiment.assert_accounting()
    assert (account.published, account.dropped, account.invalid) == (TRACES, 0, 0)
    assert account.cut_off > TRACES // 2
    assert account.cut_off + account.sampled == TRACES
    assert account.scored == account.chosen == account.sampled * len(experiment.judges)
    check_page(experiment, account.cut_off, publications=4)


@on_redis("6.2", pytest.param("7", marks=pytest.mark.slow("the other version of Redis")))
def test_the_stream_is_trimmed_repeatedly_under_load(experiment: Experiment) -> None:
    """The worker is stopped and resumed; each time some unread entries are cut off."""
    experiment.start(max_stream=2 * CAP)
    rounds = number(10, least=3)
    for _ in range(rounds):
        publish(experiment, TRACES // (3 * rounds))
        experiment.pause()
        publish(experiment, 1)  # the last that it may be given
        publish(experiment, TRACES * 2 // (3 * rounds))
        experiment.resume()
    publish(experiment, 1)
    account = experiment.assert_accounting()
    assert account.published == experiment.published
    assert account.cut_off > 0
    assert account.cut_off + account.sampled == experiment.published
    check_page(experiment, account.cut_off, publications=3 * rounds + 1)
