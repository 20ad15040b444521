"""The monitor's sums: CPU time per verdict in the worker and in Redis, by how many verdicts one read returns."""

import gc
import random
import resource
from collections.abc import Iterator
from typing import Final

import msgspec

from benchmarks.figures import Figure, tell
from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from worker.base.embedded import EmbeddedRedis
from worker.base.monitor.feature import Monitor
from worker.base.monitor.sums import QualitySums
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.metrics import Metrics

__all__ = ["monitor"]

_VERDICTS: Final = {512: 40_000, 64: 16_000, 24: 8_000}
"""Verdicts by the number of them in one read; 24 are those of 3 s, which the monitor gathers, at 8 a second."""
_SERVICES: Final = 10
_SESSIONS: Final = 2_000
"""Open at the same time, so that hardly two verdicts of a session are in one read."""
_PASS_RATE: Final = 0.9
_BAR: Final = "≤ 30 µs"
_RATIONALE: Final = "The answer names the warehouse, the day and the carrier as the first document does. " * 4


def monitor() -> Iterator[Figure]:
    """Measure on one worker: 10 services, two classes of sampling probability, five verdicts a session."""
    with EmbeddedRedis() as server:
        yield from _each_read(server, "", Monitor())
        yield from _each_read(server, ", with segments by model and release", Monitor(segments=("model", "release")))


def _each_read(server: EmbeddedRedis, what: str, settings: Monitor) -> Iterator[Figure]:
    for size, count in _VERDICTS.items():
        in_worker, in_redis = _cpu_us(server, settings, size, count)
        beside = f"{in_worker:.1f} in the worker and {in_redis:.1f} in Redis"
        name = f"CPU per verdict in the monitor, {size} a read{what}"
        yield Figure(
            name, f"{in_worker + in_redis:.1f} µs", beside, _BAR if size == max(_VERDICTS) and not what else ""
        )


def _cpu_us(server: EmbeddedRedis, monitor: Monitor, size: int, count: int) -> tuple[float, float]:
    """Return microseconds per verdict in this process and in Redis, with the read and the acknowledgement."""
    settings = Settings.from_keys(redis_url=server.url, prefix=f"bench-{random.getrandbits(40):x}", monitor=monitor)
    store = Store(server.url, Keys(settings.prefix))
    sums = _Sums(settings, store, Metrics(settings), Rules(settings, Graders(settings, load_judges(settings.judges))))
    sums.prepare()
    sums.read_count = size
    chance = random.Random(18)
    texts = [msgspec.json.encode(_verdict(number, chance)) for number in range(count)]
    outbox = store.keys.verdicts
    store.pipeline(lambda pipe: [pipe.xadd(outbox, {"v": 1, "j": text}) for text in texts])
    sums.read_all()  # the scripts' first run, the connection
    tell(f"{count:,} verdicts written")
    # As a worker does when it has started.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    before = _used_s(store)
    while sums.read_all():
        pass
    worker_s, redis_s = (after - begin for begin, after in zip(before, _used_s(store), strict=True))
    store.close()
    return worker_s / (count - size) * 1e6, redis_s / (count - size) * 1e6


class _Sums(QualitySums):
    def read_all(self) -> int:
        """Read once and add, without the wait for the first entry and the pause after a read that is not full."""
        entries = self._read(1)
        self._process(entries)
        return len(entries)


def _used_s(store: Store) -> tuple[float, float]:
    here = resource.getrusage(resource.RUSAGE_SELF)
    there = store.call(lambda client: client.info("cpu"))
    return here.ru_utime + here.ru_stime, there["used_cpu_user_main_thread"] + there["used_cpu_sys_main_thread"]


def _verdict(number: int, chance: random.Random) -> Verdict:
    """Make a verdict as a judge with a model gives it, 1 kB."""
    passed = chance.random() < _PASS_RATE
    session = number // (5 * _SESSIONS) * _SESSIONS + number % _SESSIONS
    return Verdict(
        evaluation_id=f"{chance.getrandbits(128):032x}",
        outcome="scored",
        scores=(Score("groundedness", float(passed), passed=passed, label="yes" if passed else "no"),),
        metrics=("groundedness",),
        rationale=_RATIONALE,
        trace_id=f"{chance.getrandbits(128):032x}",
        span_id=f"{chance.getrandbits(64):016x}",
        session_id=f"{session:032x}",
        service=f"service-{number % _SERVICES}",
        environment="prod",
        release=f"v{chance.randrange(2)}",
        name="answer",
        model=chance.choice(["large", "small"]),
        judge="groundedness",
        judge_version="0123456789abcdef",
        judge_model="gpt-6-luna",
        probability=0.05 if passed else 1.0,
        weight=20.0 if passed else 1.0,
        input_tokens=1200,
        output_tokens=90,
        cost_usd=0.0006,
        attempts=1,
        started_at=1_760_000_000.0,
        duration_s=0.8,
    )
