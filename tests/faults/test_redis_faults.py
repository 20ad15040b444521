"""Redis restarts, pauses, is full or trimmed, forgets, its network fails, its clock jumps: nothing is lost silently."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from operator import ge
from pathlib import Path

import pytest
from experiment import PREFIX, SCALE, Experiment, number, seconds
from redis import Redis
from redis_faults import HOUR_S, ORIGINS, Clock, filled, frozen, on_redis, restarts, server_of
from support.pipeline import Worker, make_traces, sdk
from support.processes import cpu_s, wait_until
from support.proxy import HOLDS, REFUSES, Behaviour, Proxy
from support.replies import slow, yes_no

import tracejudge
from worker.base.embedded import ServerBinary


# --- restarts, pauses and the network ---
@pytest.mark.slow("five restarts one after the other")
@pytest.mark.parametrize("experiment", ["appendonly"], indirect=True)
def test_redis_is_restarted_under_load(experiment: Experiment) -> None:
    traces, times, every_s = number(5_000, least=300), number(5, least=2), seconds(5, least=1.5)
    experiment.start("a")
    experiment.start("b")
    with experiment.load(traces / (times * (every_s + 1.5)), traces):
        restarts(experiment.redis, times, every_s=every_s, most_away_s=seconds(5, least=1))
    experiment.assert_all_scored()


@pytest.mark.slow("pauses one after the other")
def test_redis_is_paused_under_load(experiment: Experiment) -> None:
    traces, frozen_s = number(5_000, least=300), seconds(20, least=6)
    experiment.start("a")
    experiment.start("b")
    with experiment.load(traces / (frozen_s + 4), traces):
        experiment.wait_finished(traces // 10)
        with frozen(experiment.redis):
            time.sleep(frozen_s)
    experiment.assert_all_scored()
    calls = len(experiment.endpoint.calls)
    assert calls <= experiment.evaluations + 2 * 2 * 128, "what was answered and not written may be asked again"


NETWORK = {
    "nobody listens": REFUSES,
    "nothing goes through": HOLDS,
    "all is late": Behaviour(delay_s=0.3),
    "requests are reset half-way": Behaviour(cut_after=1500),
    "half of each reply": Behaviour(reply_share=0.5),
    "delivered, and not answered": Behaviour(reply_share=0.0),
    "one reply in five is lost": Behaviour(reply_share=0.0, chance=0.2),
}
TOGETHER = {"one after the other": list(NETWORK.values())}
EACH = TOGETHER if SCALE < 1 else TOGETHER | {name: [fault] for name, fault in NETWORK.items()}


@pytest.mark.slow("seven faults one after the other")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", EACH.values(), ids=EACH.keys())
def test_the_network_between_redis_and_its_clients_fails(experiment: Experiment, faults: Sequence[Behaviour]) -> None:
    """The fault affects services, a worker and its broker; another worker is not affected."""
    traces, fault_s, pause_s = number(5_000, least=250), seconds(20, least=1.5), seconds(5, least=0.3)
    with Proxy(experiment.redis.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        experiment.start("cut off", redis_url=url)
        experiment.start("well")
        with experiment.load(traces / (len(faults) * (fault_s + pause_s)), traces, redis_url=url):
            for fault in faults:
                time.sleep(pause_s)
                with proxy.network(fault):
                    time.sleep(fault_s)
        experiment.assert_all_scored()


# --- clocks that jump by an hour: that of Redis, which leases and ages use, and of a worker, which nothing uses ---
TIMED = number(2_000, least=300)
LOAD_S = seconds(30, least=2)


@pytest.mark.slow("each death is recovered from after the lease of 15 s")
def test_the_clock_of_redis_jumps_while_workers_are_killed(tmp_path: Path) -> None:
    """Leases and claims of entries use the clock of Redis; nothing may wait for an hour."""
    clock = Clock(tmp_path, "redis")
    with ExitStack() as stack:
        with clock.applied():
            timed = stack.enter_context(Experiment(tmp_path))
        timed.start("b")
        for killed, step_s in (("a", HOUR_S), ("b", -HOUR_S)):
            timed.start("a")
            before = timed.evaluations
            with timed.load(TIMED / LOAD_S, TIMED):
                timed.wait_finished(before + TIMED // 5)
                timed.kill(killed)
                clock.move(step_s)
            with Redis.from_url(timed.redis.url) as client:
                assert abs(client.time()[0] - time.time() - step_s) < 60
            timed.assert_all_scored()


@pytest.mark.slow("steps of a clock under load")
def test_the_clock_of_a_worker_jumps(experiment: Experiment, tmp_path: Path) -> None:
    """Nothing is trimmed, given up or held longer because of the jump."""
    clock = Clock(tmp_path, "worker")
    with clock.applied():
        experiment.start("stepping")
    experiment.start("right")
    for step_s in (HOUR_S, -HOUR_S):
        with experiment.load(TIMED / LOAD_S, TIMED):
            experiment.wait_finished(experiment.evaluations // 5)
            clock.move(step_s)
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations
    experiment.assert_each_counted()


def publish(experiment: Experiment, traces: int, **fields: object) -> None:
    for trace in make_traces(traces, first=experiment.published, ended_at=time.time(), **fields):
        tracejudge.publish(trace)
    experiment.published += traces


# --- the stream is trimmed while its reader is behind: trimmed entries are counted, and nothing else is missing ---
STREAM = number(20_000, least=1_000)
ROUNDS = number(10, least=3)
BURST = 2 * STREAM // (3 * ROUNDS)


def check_page(experiment: Experiment, cut_off: int, *, publications: int) -> None:
    """Check that the metrics show the same loss.

    They count cut reports of producers as well, of which each sends two at most. Redis 6.2 does not count what was
    added: there they lack what a producer trimmed of which no entry was left to be read. The accounting includes it.
    """
    (worker,) = experiment.workers.values()
    at_most = cut_off + 2 * publications
    at_least = 1 if experiment.redis.version.startswith("6.") else cut_off

    def is_shown() -> bool:
        return at_least <= worker.scrape().value("tracejudge_cut_off_total") <= at_most

    wait_until(is_shown, what=f"{cut_off} to be on the page")


@pytest.mark.slow("several real programs")
@on_redis("6.2")
def test_the_stream_is_trimmed_repeatedly_under_load(experiment: Experiment) -> None:
    """The worker is stopped and resumed; each time some unread entries are cut off."""
    experiment.start(max_stream=BURST // 4)
    for _ in range(ROUNDS):
        experiment.publish(BURST // 2)
        experiment.pause()
        experiment.publish(1)  # the last that it may be given
        experiment.publish(BURST)
        experiment.resume()
    experiment.publish(1)
    account = experiment.assert_accounting()
    assert account.published == experiment.published
    # The worker reads none of a burst while it is stopped. Redis trims whole nodes, of 100 entries at most.
    assert account.cut_off >= ROUNDS * BURST // 4
    assert account.cut_off + account.sampled == experiment.published
    check_page(experiment, account.cut_off, publications=3 * ROUNDS + 1)


# --- full, and evicting nothing: workers wait without spinning, no write is partial, and work resumes later ---
TRACES = number(5_000, least=500)
FULL_S = seconds(60, least=3)
BUFFER = TRACES // 2
MAX_CPU_SHARE = 0.5
MAX_LINES_PER_S = 20


@contextlib.contextmanager
def low_load(worker: Worker) -> Iterator[None]:
    """Check that a worker keeps running inside the block, with little CPU time and few log lines."""
    began, cpu, lines = time.monotonic(), cpu_s(worker.program.pid), worker.program.stderr.count("\n")
    yield
    lasted = time.monotonic() - began
    assert worker.program.running, worker.program.output
    assert cpu_s(worker.program.pid) - cpu < MAX_CPU_SHARE * lasted
    assert worker.program.stderr.count("\n") - lines < MAX_LINES_PER_S * lasted


def stored_amounts(experiment: Experiment, client: Redis) -> list[int]:
    """Count what uses memory: traces, verdicts, batches, evaluations."""
    keys = experiment.pipeline.keys
    patterns = (keys.batch("*"), f"{keys.evaluations}:*")
    streams = [client.xlen(keys.traces), client.xlen(keys.verdicts)]
    return [*streams, *(sum(1 for _ in client.scan_iter(pattern, count=5_000)) for pattern in patterns)]


@pytest.mark.slow("full, and full and empty over and over")
@pytest.mark.parametrize(
    ("experiment", "room_bytes"),
    [("6.2", None), ("7", 100_000)] if SCALE < 1 else [*itertools.product(ORIGINS, (None, 100_000))],
    indirect=["experiment"],
)
def test_redis_is_full_under_load(experiment: Experiment, room_bytes: int | None) -> None:
    worker = experiment.start()
    with sdk(experiment.redis.url, PREFIX, max_items=BUFFER):
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
    assert account.dropped >= (TRACES - BUFFER if room_bytes is None else 0)
    assert account.reasons == ({"dropped:buffer_full": account.dropped} if account.dropped else {})
    assert account.sampled == account.published - account.dropped
    assert account.scored == account.chosen == account.sampled * len(experiment.judges)
    assert len(experiment.endpoint.calls) <= account.chosen + 128, "nothing is begun whose verdict cannot be written"


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
    experiment.assert_all_scored()


@pytest.mark.slow("fills Redis")
@on_redis("7")
def test_a_full_redis_is_trimmed_to_the_caps(experiment: Experiment) -> None:
    """Entries that were read stay in the stream for replay; trimming to the cap frees memory."""
    experiment.start()
    with sdk(experiment.redis.url, PREFIX, max_items=TRACES):
        # Some kB each: trimming must free more than connections take.
        publish(experiment, TRACES, words=400)
    experiment.wait_finished(experiment.evaluations)
    experiment.terminate()
    with filled(experiment.redis, room_bytes=0) as client:
        experiment.start(max_stream=TRACES // 5)
        wait_until(lambda: client.xlen(experiment.pipeline.keys.traces) < TRACES // 2, what="the stream to be trimmed")
        memory = client.info("memory")
        assert memory["used_memory"] < memory["maxmemory"]
        experiment.publish(10)
        experiment.wait_finished(experiment.evaluations)
    experiment.assert_all_scored()


# --- Redis loses confirmed writes: what was lost is named in the account, and all before and after is judged once ---
PART = 40


class Losing(Experiment):
    """An experiment with one judge on a Redis that persists nothing; one SDK client publishes all the time."""

    def publish(self, traces: int = PART) -> None:
        publish(self, traces)
        assert tracejudge.flush(60)

    def assert_balanced(self, *, lost: int) -> None:
        """Wait until everything published is accounted for and no work is left."""
        account = self.pipeline.settled(self.published)
        assert (account.lost, account.lost_by_redis, account.cut_off, account.dropped) == (0, lost, 0, 0), account
        assert (account.published, account.unread, account.waiting) == (self.published, 0, 0)
        ended = self.published - lost
        assert account.sampled + account.duplicate == ended
        ids = [verdict.evaluation_id for verdict in self.verdicts()]
        assert len(set(ids)) == len(ids) == account.scored == account.chosen >= ended


FAST = ("--repl-diskless-sync-delay", "0")


@pytest.fixture
def losing(
    request: pytest.FixtureRequest, tmp_path: Path, redis_binaries: tuple[ServerBinary, ...]
) -> Iterator[Losing]:
    """An experiment on a version of Redis."""
    redis = server_of(request.param, redis_binaries, *FAST)
    with Losing(tmp_path, judges=("relevance_to_query",), redis=redis) as made, sdk(redis.url, PREFIX):
        yield made


@pytest.mark.slow("several real programs")
@pytest.mark.parametrize(
    "losing", ["6.2", pytest.param("7", marks=pytest.mark.endurance("the other version of Redis"))], indirect=True
)
def test_redis_is_flushed_while_a_worker_holds_batches(losing: Losing) -> None:
    experiment = losing
    experiment.endpoint.behaviour = slow(3, yes_no())
    experiment.start()
    experiment.publish()
    wait_until(lambda: len(experiment.endpoint.calls) >= PART // 2, what="calls under way")
    experiment.call_redis(lambda client: client.flushdb())
    experiment.publish()
    experiment.assert_balanced(lost=PART)
    assert experiment.pipeline.counter("chosen") > PART, "what was under way has ended, and counts"


@pytest.mark.parametrize(
    "losing",
    [
        pytest.param("7", marks=pytest.mark.slow("seconds of CPU, for what shorter tests touch too")),
        pytest.param("6.2", marks=pytest.mark.endurance("the other version of Redis")),
    ],
    indirect=True,
)
def test_redis_is_flushed_and_then_restarts_from_an_older_snapshot(losing: Losing) -> None:
    experiment = losing
    experiment.start()
    experiment.publish()
    experiment.assert_balanced(lost=0)
    experiment.call_redis(lambda client: client.flushall())
    experiment.publish()
    experiment.assert_balanced(lost=PART)
    experiment.publish(5)
    experiment.call_redis(lambda client: client.save())
    experiment.publish()
    experiment.assert_balanced(lost=PART)
    experiment.redis.kill()
    experiment.redis.restart()
    experiment.publish()
    experiment.assert_balanced(lost=2 * PART)


@pytest.mark.parametrize("losing", ["7"], indirect=True)
def test_redis_fails_over_without_the_last_writes(losing: Losing, redis_binaries: tuple[ServerBinary, ...]) -> None:
    """The replica loses its master, which continues; then both swap roles, under the same address."""
    experiment = losing
    with server_of("7", redis_binaries, *FAST) as replica, Redis.from_url(replica.url) as other:
        client = Redis.from_url(experiment.redis.url)
        experiment.start()
        experiment.publish()
        experiment.assert_balanced(lost=0)
        other.replicaof("127.0.0.1", str(experiment.redis.port))
        wait_until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica")
        experiment.publish(5)
        experiment.assert_balanced(lost=0)

        def has_all() -> bool:
            return other.info("replication")["slave_repl_offset"] >= client.info("replication")["master_repl_offset"]

        wait_until(has_all, what="the replica to have all")
        other.replicaof("NO", "ONE")
        experiment.publish()
        # From now on the address leads to the data of the former replica.
        client.replicaof("127.0.0.1", str(replica.port))
        wait_until(lambda: client.info("replication").get("master_link_status") == "up", what="the master's data to go")
        client.replicaof("NO", "ONE")
        experiment.publish()
        experiment.assert_balanced(lost=PART)
        client.close()
