"""Sums of the monitor equal the verdicts of the ledger while workers die; labels outlive kills of board and Redis."""

import html
import itertools
import random
import re
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest
import redis
from experiment import number
from redis import Redis
from support.board_parts import ANSWER, fill, trace_row
from support.judged import judged
from support.processes import Program, bounded_s, free_port, wait_until
from support.stage_parts import make_judged

from judges.core.verdict import Outcome, Verdict
from worker.base.embedded import EmbeddedRedis
from worker.base.monitor.series import read_buckets, read_series
from worker.core.config.settings import Settings
from worker.core.queue.ledger import FinalVerdict, Ledger
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

MONITOR_KILLS = number(20, least=3)
A_SECOND = 500
BATCH = 50
Totals = Counter[tuple[str, str]]


OUTCOMES: tuple[Outcome, ...] = ("scored", "abstained", "unscored")


def verdict(place: int, chance: random.Random) -> Verdict:
    weight, passed = chance.choice([1.0, 20.0]), chance.random() < 0.9
    outcome = chance.choices(OUTCOMES, [8, 1, 1])[0]
    reason = "refusal" if outcome == "unscored" else None
    names = {"session_id": f"s{place // 7}", "service": f"shop-{place % 3}"}
    result = {"passed": passed if outcome == "scored" else None, "outcome": outcome, "reason": reason}
    return make_judged(place, **result, **names, weight=weight, probability=1 / weight)


class Writer:
    """Records verdicts in the ledger in a thread, some of them twice, and adds them up."""

    def __init__(self, store: Store) -> None:
        self.totals: Totals = Counter()
        self._ledger = Ledger(store, Settings(max_outbox=1_000_000))
        self._period = str(int(time.time() // 3600))
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
        before: list[FinalVerdict] = []
        for first in itertools.count(step=BATCH):
            if self._stopped.wait(BATCH / A_SECOND):
                return
            verdicts = [verdict(first + more, chance) for more in range(BATCH)]
            new = [FinalVerdict.encode(each, self._period) for each in verdicts]
            again = chance.sample(before, min(5, len(before)))
            assert sum(self._ledger.record(new + again)) == BATCH
            before = new
            for each in verdicts:
                self.totals[each.service, each.outcome] += 1
                if each.outcome == "scored":
                    self.totals[each.service, "weight"] += int(each.weight)
                    self.totals[each.service, "passed"] += int(each.weight * each.scores[0].value)


def totals(store: Store, *, fine: bool) -> Totals:
    """Add up the buckets of each service."""
    counts: Totals = Counter()
    for series_id, series in read_series(store).items():
        for bucket in next(read_buckets(store, [series_id], time.time() - 86_400, time.time() + 60, fine=fine)):
            sums = bucket.sums.total
            counts[series.service, "scored"] += sums.judgements
            counts[series.service, "abstained"] += bucket.abstained.verdicts
            counts[series.service, "unscored"] += bucket.unscored.verdicts
            counts[series.service, "weight"] += int(sums.weight)
            counts[series.service, "passed"] += int(sums.passed)
    return counts


def in_ledger(store: Store) -> Counter[str]:
    """Count the outcomes in the ledger."""
    codes = {b"1": "scored", b"2": "abstained", b"3": "unscored"}

    def states(client: redis.Redis) -> list[bytes]:
        names = client.scan_iter(f"{store.keys.evaluations}:*", count=1000)
        return [state for name in names for state in client.hvals(name)]

    return Counter(codes[state] for state in store.call(states))


@pytest.mark.slow("a takeover after each kill takes the length of the lock, 10 s")
def test_sums_survive_kills(redis_url: str, prefix: str, tmp_path: Path) -> None:
    store = Store(redis_url, Keys(prefix))
    store.make_group(store.keys.verdicts, "monitor")
    env = {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_METRICS_PORT": "0"}
    chance = random.Random(19)
    with ExitStack() as ends:

        def start() -> Program:
            command = ("-m", "worker.cli", "worker", "--roles", "monitor")
            return ends.enter_context(Program(*command, folder=tmp_path, env=env))

        workers = [start(), start()]
        for worker in workers:
            worker.wait_for("worker started", bounded_s(30))
        with Writer(store) as writer:
            for kill in range(MONITOR_KILLS):
                before = totals(store, fine=True).total()
                grows = lambda before=before: totals(store, fine=True).total() > before  # noqa: E731 - one expression
                wait_until(grows, bounded_s(30), f"sums to grow after {kill} kills")
                time.sleep(chance.random())
                # The older one is the active one, except for the first time: a new worker waits for the lock.
                workers.pop(0).kill()
                workers.append(start())
        wait_until(lambda: totals(store, fine=True) == writer.totals, bounded_s(40), "the sums of all verdicts")
    assert totals(store, fine=False) == writer.totals
    ended = {what: sum(count for (_, name), count in writer.totals.items() if name == what) for what in OUTCOMES}
    assert ended == in_ledger(store)
    assert sum(ended.values()) > 1000, "hardly anything was written"


ROWS = [trace_row(number) for number in range(1, 7)]
KILLS = 3


@pytest.mark.slow("kills of the board and restarts of Redis, one after the other")
def test_labels_survive_kills_of_the_board_and_restarts_of_redis(tmp_path: Path) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        env = {"TRACEJUDGE_REDIS_URL": server.url}
        with Redis.from_url(server.url) as redis:
            fill(redis, "tracejudge", ROWS, judged(ROWS, ("facts_grounding",)))
        for number in range(1, KILLS + 1):
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            with Program("-m", "worker.cli", "board", "--port", str(port), folder=tmp_path, env=env) as board:
                wait_until(lambda: _ready(url), what="the index")  # noqa: B023 - called at once
                page = httpx.get(f"{url}/labels?judge=facts_grounding").text
                # Labels of the runs before count.
                assert re.search(rf"\b{number - 1} labels?\b", page)
                fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
                form = {**{name: html.unescape(value) for name, value in fields.items()}, "opinion": "fail"}
                assert httpx.post(f"{url}/labels", data=form).status_code == 303
                board.signal(signal.SIGKILL)
            server.restart()
        with Program("-m", "worker.cli", "board", "--port", "0", folder=tmp_path, env=env) as board:
            board.wait_for("board: http")
            assert board.terminate() == 0
        saved = tmp_path / "labels.jsonl"
        command = ("-m", "worker.cli", "labels", "export", "--traces", "--output", saved)
        with Program(*command, folder=tmp_path, env=env) as program:
            assert program.wait() == 0, program.stderr
        lines = saved.read_text().splitlines()
        assert len(lines) == KILLS
        assert all(f'"output":"{ANSWER}"' in line and '"label":"fail"' in line for line in lines)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").text == "ready\n"
    except httpx.TransportError:
        return False
