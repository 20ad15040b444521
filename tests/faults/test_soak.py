"""A steady load with random faults: a minute in the short form, half an hour at full length."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from experiment import SCALE, Experiment, seconds
from redis import Redis
from redis.exceptions import RedisError
from redis_faults import frozen, restart
from support import otlp as collector
from support import replies
from support.processes import wait_until
from support.proxy import HOLDS, REFUSES, Behaviour, Proxy

from worker.base.embedded import EmbeddedRedis

SOAK_S: Final = 1800.0 if SCALE >= 1 else 24.0
EVERY_S: Final = seconds(5, least=4)
FAULT_S: Final = seconds(4, least=3)
RATE: Final = 150.0 if SCALE >= 1 else 30.0
"""Traces a second; each is judged by two judges."""
WARM_S: Final = 300.0
"""Until then the memory of the worker still grows with its caches."""
KEEPS: Final = {"max_outbox": 2_000_000, "max_outbox_bytes": 4 << 30}
"""The accounting compares ledger and outbox, so nothing may be trimmed: half an hour gives 540,000 verdicts."""
NETWORKS: Final = (
    *(REFUSES, HOLDS, Behaviour(delay_s=0.3), Behaviour(cut_after=1500)),
    *(Behaviour(reply_share=0.5), Behaviour(reply_share=0.0, chance=0.2)),
)


class RandomFaults:
    """The random faults. Worker `a` reaches Redis through the proxy; `b` and the service do not."""

    def __init__(self, experiment: Experiment, proxy: Proxy, chance: random.Random) -> None:
        self.experiment, self._proxy, self.chance = experiment, proxy, chance
        self._usual = experiment.endpoint.behaviour

    def start(self, name: str) -> None:
        """Start a worker with its own connection to Redis."""
        port = self._proxy.port if name == "a" else self.experiment.redis.port
        self.experiment.start(name, redis_url=f"redis://127.0.0.1:{port}/0", wait=False, **KEEPS)

    def in_turn(self) -> Iterator[Callable[[], None]]:
        """Yield all faults in random order, repeatedly."""
        kinds = [self.kill, self.replace, self.pause, self.restart_redis, self.freeze_redis, self.cut_network]
        kinds += [self.delete_queue, self.fail_endpoint, self.fail_receiver]
        while True:
            self.chance.shuffle(kinds)
            yield from kinds

    def kill(self) -> None:
        name = self.chance.choice("ab")
        # A hanging endpoint holds batches of the running workers for the whole time limit of an evaluation.
        self.experiment.kill(name, times_recovery=False)
        self.start(name)

    def replace(self) -> None:
        name = self.chance.choice("ab")
        # Before that a signal ends the process at once.
        wait_until(self.experiment.workers[name].is_up, what=f"worker {name} to have started")
        assert self.experiment.terminate(name) == 0
        self.start(name)

    def pause(self) -> None:
        name = self.chance.choice("ab")
        self.experiment.pause(name)
        time.sleep(FAULT_S)
        self.experiment.resume(name)

    def restart_redis(self) -> None:
        restart(self.experiment.redis, away_s=FAULT_S / 4)

    def freeze_redis(self) -> None:
        with frozen(self.experiment.redis):
            time.sleep(FAULT_S)

    def cut_network(self) -> None:
        with self._proxy.network(self.chance.choice(NETWORKS)):
            time.sleep(FAULT_S)

    def delete_queue(self) -> None:
        with Redis.from_url(self.experiment.redis.url) as client:
            client.delete(f"{self.experiment.pipeline.prefix}.judge.judge", "unacked", "unacked_index")

    def fail_endpoint(self) -> None:
        failures = (replies.failing(429, retry_after=1), replies.failing(503), replies.cuts(0.5), replies.hangs())
        self.experiment.endpoint.behaviour = self.chance.choice(failures)
        time.sleep(FAULT_S)
        self.experiment.endpoint.behaviour = self._usual

    def fail_receiver(self) -> None:
        failures = (collector.failing(429, retry_after=1), collector.failing(503), collector.Accept(delay_s=1.0))
        self.experiment.otlp.behaviour = self.chance.choice(failures)
        time.sleep(FAULT_S)
        self.experiment.otlp.behaviour = collector.Accept()


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[RandomFaults]:
    """Random faults. At full length each run has a new seed, which repeats it."""
    seed = random.randrange(1_000_000) if SCALE >= 1 else 6
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    with contextlib.ExitStack() as stack:
        experiment = stack.enter_context(Experiment(tmp_path, redis=EmbeddedRedis(appendonly=True)))
        proxy = stack.enter_context(Proxy(experiment.redis.port))
        yield RandomFaults(experiment, proxy, random.Random(seed))


@pytest.mark.endurance("a minute of random faults, each of which has a test of its own")
@pytest.mark.timeout(SOAK_S + 900)
def test_a_steady_load_with_random_faults(faults: RandomFaults) -> None:
    experiment = faults.experiment
    for name in ("a", "b"):
        faults.start(name)
    survivor = ResourceUse(experiment)
    happened = []
    ends = time.monotonic() + SOAK_S
    with experiment.load(RATE):
        for happens in faults.in_turn():
            began = time.monotonic()
            happens()
            happened.append(happens.__name__)
            survivor.sample()
            print(f"{time.strftime('%X')} {happens.__name__}: {experiment.finished} finished")  # noqa: T201
            time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
            if time.monotonic() > ends and len(happened) >= SOAK_S / (EVERY_S + 5):
                break
    experiment.assert_all_scored()
    survivor.assert_flat()


class ResourceUse:
    """Resources of a worker that no fault ends, and of Redis, over time: MiB, file descriptors, MB and keys."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._began = experiment, time.monotonic()
        self._process = experiment.start("survivor", **KEEPS).program.pid
        self.samples: list[tuple[float, float, int]] = []

    def sample(self) -> None:
        """Read all figures, without those of Redis while it does not answer."""
        status = Path(f"/proc/{self._process}/status").read_text()
        mib = int(status.split("VmRSS:")[1].split()[0]) / 1024
        files = len(list(Path(f"/proc/{self._process}/fd").iterdir()))
        self.samples.append((time.monotonic() - self._began, mib, files))
        with contextlib.suppress(RedisError), Redis.from_url(self._experiment.redis.url, socket_timeout=1) as client:
            used = client.info("memory")["used_memory"] / 1e6
            print(f"survivor {mib:.0f} MiB, {files} files; Redis {used:.1f} MB, {client.dbsize()} keys")  # noqa: T201

    def assert_flat(self) -> None:
        """Compare the last third with the first after warm-up; short runs have none."""
        warm = [sample for sample in self.samples if sample[0] >= WARM_S]
        if len(warm) < 9:
            return
        third = len(warm) // 3
        for what, place, slack in (("MiB", 1, 10), ("files", 2, 8)):
            early, late = ([sample[place] for sample in part] for part in (warm[:third], warm[-third:]))
            assert statistics.median(late) <= 1.1 * statistics.median(early) + slack, (what, early, late)
