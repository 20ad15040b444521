"""The monitor's sums while workers die: they equal the verdicts of the outbox exactly."""

import itertools
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
from experiment import number
from support.processes import Program, bounded_s, wait_until

from judges.core.verdict import Score, Verdict
from worker.monitor.series import read_buckets, read_series
from worker.storage.client import Store
from worker.storage.keys import Keys

KILLS = number(20, least=3)
A_SECOND = 500
BATCH = 50
Totals = Counter[tuple[str, str]]


def verdict(place: int, chance: random.Random) -> Verdict:
    weight = chance.choice([1.0, 20.0])
    passed = chance.random() < 0.9
    return Verdict(
        evaluation_id=f"{place:032x}",
        outcome="scored",
        scores=(Score("safety", float(passed), passed=passed),),
        metrics=("safety",),
        trace_id=f"{place:032x}",
        session_id=f"s{place // 7}",
        service=f"shop-{place % 3}",
        judge="safety",
        judge_version="0123456789abcdef",
        judge_model="lexical",
        weight=weight,
        probability=1 / weight,
        started_at=1.0,
        duration_s=1.0,
    )


class Writer:
    """Writes verdicts into the outbox in a thread, and adds them up."""

    def __init__(self, store: Store) -> None:
        self.totals: Totals = Counter()
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        chance = random.Random(18)
        for first in itertools.count(step=BATCH):
            if self._stopped.wait(BATCH / A_SECOND):
                return
            verdicts = [verdict(first + more, chance) for more in range(BATCH)]
            self._publish([msgspec.json.encode(one) for one in verdicts])
            for one in verdicts:
                self.totals[one.service, "judgements"] += 1
                self.totals[one.service, "weight"] += int(one.weight)
                self.totals[one.service, "passed"] += int(one.weight * one.scores[0].value)

    def _publish(self, texts: list[bytes]) -> None:
        outbox = self._store.keys.verdicts
        self._store.pipeline(lambda pipe: [pipe.xadd(outbox, {"v": 1, "j": text}) for text in texts])


def totals(store: Store, *, fine: bool) -> Totals:
    found: Totals = Counter()
    for series_id, series in read_series(store).items():
        for bucket in read_buckets(store, [series_id], time.time() - 86_400, time.time() + 60, fine=fine)[0]:
            for name in ("judgements", "weight", "passed"):
                found[series.service, name] += int(getattr(bucket.sums.total, name))
    return found


def test_sums_survive_kills(redis_url: str, prefix: str, tmp_path: Path) -> None:
    store, chance = Store(redis_url, Keys(prefix)), random.Random(19)
    store.make_group(store.keys.verdicts, "monitor")
    env = {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_METRICS_PORT": "0"}
    with ExitStack() as ends:

        def start() -> Program:
            command = ("-m", "worker.cli", "worker", "--roles", "monitor")
            return ends.enter_context(Program(*command, folder=tmp_path, env=env))

        workers = [start(), start()]
        for worker in workers:
            worker.wait_for("worker started", bounded_s(30))
        with Writer(store) as writer:
            for _ in range(KILLS):
                before = totals(store, fine=True).total()
                # One of the two is active: the sums go on growing, whichever was killed.
                wait_until(
                    lambda before=before: totals(store, fine=True).total() > before, bounded_s(30), "sums to grow"
                )
                time.sleep(chance.random())
                killed = chance.randrange(2)
                workers[killed].kill()
                workers[killed] = start()
        wait_until(lambda: totals(store, fine=True) == writer.totals, bounded_s(40), "the sums of all verdicts")
        assert totals(store, fine=False) == writer.totals
        assert writer.totals.total() > 1000, "hardly anything was written"
