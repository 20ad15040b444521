"""Harness of the experiments: the parts that can fail, and the check at the end of each: nothing lost, doubled or left.

`SCALE` shortens an experiment: times and numbers shrink with it, down to the minimum that still shows the fault. The
product's own times (a lease of 15 s, a sweep each second) are not scaled.
"""

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Self

import httpx
from redis import Redis
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.pipeline import SETTLING_S, Pipeline, SteadyLoad, Worker, make_traces
from support.processes import PATIENCE_S, bounded_s, wait_until
from support.replies import slow, yes_no
from support.scrape import Scrape

from judges.core.verdict import Verdict
from worker.base.accounting import Account
from worker.base.delivery.feature import receiver_group
from worker.base.embedded import EmbeddedRedis
from worker.base.monitor.series import read_buckets, read_series
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import MONITOR_GROUP, Keys

SCALE: Final = float(Fraction(os.environ.get("TRACEJUDGE_FAULTS_SCALE", "1/40")))
RECOVERY_S: Final = bounded_s(30.0)
"""Guaranteed time after `kill -9` until a batch continues elsewhere."""
JUDGES: Final = ("groundedness", "relevance_to_query")
PREFIX: Final = "faults"
JUDGE_MODEL: Final = "judge"
VERDICTS: Final = "tracejudge_verdicts_total"
EVALUATION_ID: Final = "tracejudge.evaluation.id"
READERS: Final = (MONITOR_GROUP, receiver_group("otel"))
"""Groups that a worker makes on the outbox, each by a thread of its own."""


def number(full: int, least: int) -> int:
    """Scale a number of the full experiment, but not below `least`."""
    return min(full, max(least, round(full * SCALE)))


def seconds(full: float, least: float) -> float:
    """Scale a time of the full experiment, but not below `least`."""
    return min(full, max(least, full * SCALE))


def expire_locks(client: Redis, keys: Keys) -> None:
    """Expire the locks of a killed worker, which would take up to 15 s; one without a TTL stays."""
    for lock in keys.locks:
        if client.pttl(lock) > 0:
            client.delete(lock)


class Experiment:
    """One Redis, one endpoint, one OTLP receiver, and workers by name.

    Every trace is judged by each of `judges`. Tests cause faults on the parts themselves:
    `redis.restart()`, `endpoint.behaviour = ...`, `otlp.close()`, `pause("a")`.
    """

    def __init__(self, folder: Path, *, judges: Sequence[str] = JUDGES, redis: EmbeddedRedis | None = None) -> None:
        """Prepare the parts; entering the block starts everything except workers.

        Args:
            folder: Where programs run.
            judges: Each judges every trace, all by one judge model, whose endpoint takes 50 ms.
            redis: A server that is not started yet: with an append-only file where it is restarted, which makes all
                commands wait for the disk.
        """
        self.judges = tuple(judges)
        self.redis = redis or EmbeddedRedis()
        self.endpoint = ChatEndpoint(slow(0.05, yes_no()))
        self.otlp = OtlpReceiver()
        self.workers: dict[str, Worker] = {}
        self.pages: list[Scrape] = []
        """The last metrics page of each worker that ended."""
        self.published = 0
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            for part in (self.redis, self.endpoint, self.otlp):
                self._stack.enter_context(part)
            self.pipeline = Pipeline(self.redis.url, PREFIX, self._folder, self._stack)
            self.recoveries = self._stack.enter_context(Recoveries(self.pipeline.store))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a worker, as Python values."""
        model = {"provider": "openai", "base_url": self.endpoint.base_url, "model": JUDGE_MODEL, "max_in_flight": 48}
        rules = [{"name": "all", "judges": list(self.judges)}]
        # A clock that jumps by an hour would make the canary due, whose evaluations are no traffic.
        monitor = {"canary_every_s": 0}
        usual = {"otlp_endpoint": self.otlp.root_url, "log_level": "warning", "monitor": monitor}
        return {**usual, "models": {"default": model}, "rules": rules, **more}

    def start(self, name: str = "a", *, wait: bool = True, **settings: Any) -> Worker:
        """Start a worker, also one that ended before; `redis_url` may lead through a proxy."""
        assert name not in self.workers, f"worker {name} runs already"
        self.workers[name] = self.pipeline.worker(wait=wait, **self.settings(**settings))
        return self.workers[name]

    def kill(self, name: str = "a", *, times_recovery: bool = True) -> None:
        """Read the metrics page of a worker and `kill -9` it; its batches must continue within `RECOVERY_S`.

        ``times_recovery`` is False where other faults delay the batches of the running workers.
        """
        worker = self._last_page(name)
        if times_recovery:
            self.recoveries.begin()
        worker.program.kill()

    def terminate(self, name: str = "a", timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM, wait for the end, and return the exit status."""
        return self._last_page(name).program.terminate(timeout_s)

    def load_with_kills(
        self, traces: int, kills: int, chance: random.Random, before: Callable[[], object] = bool, **settings: Any
    ) -> None:
        """Publish under load while the worker is killed at random moments, and started again.

        The load lasts longer than all kills: a worker takes about two seconds to start. At full length the leases of a
        killed worker, and its claims of entries, expire after 15 s; the short form sets them to that age.
        """
        self.start(**settings)
        with self.load(traces / (kills * 2.5), traces):
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 1.5))
                before()
                self.kill()
                if SCALE < 1:
                    self._expire()
                self.start(**settings)

    def _expire(self) -> None:
        """Age what a killed worker held, so that others continue its work at once; no other worker may be running."""
        keys, long_ms = self.pipeline.keys, 3_600_000

        def age(client: Redis) -> None:
            held = [batch for batch, holder in client.hgetall(keys.holders).items() if holder != b"parked"]
            if held:
                client.zadd(keys.leases, dict.fromkeys(held, 1), xx=True)
            expire_locks(client, keys)
            for stream, group in [(name, each["name"]) for name in streams for each in client.xinfo_groups(name)]:
                for row in client.xpending_range(stream, group, "-", "+", 100_000):
                    names = (stream, group, row["consumer"])
                    client.xclaim(*names, min_idle_time=0, message_ids=[row["message_id"]], idle=long_ms, justid=True)

        streams = (keys.traces, keys.verdicts)
        self.call_redis(age)

    def verdicts(self) -> list[Verdict]:
        """List the verdicts in the outbox, without those of dead letters."""
        return [entry.verdict for entry in self.pipeline.outbox() if entry.kind == "j"]

    def call_redis(self, call: Callable[[Any], Any]) -> Any:
        return self.pipeline.store.call(call)

    def pause(self, name: str = "a") -> None:
        """Suspend a worker with SIGSTOP."""
        self.workers[name].program.signal(signal.SIGSTOP)

    def resume(self, name: str = "a") -> None:
        self.workers[name].program.signal(signal.SIGCONT)

    @contextmanager
    def load(self, rate: float, total: int | None = None, *, redis_url: str | None = None) -> Iterator[None]:
        """Publish at a rate during the block; with `total`, leaving it waits until that many are published."""
        with SteadyLoad(self.pipeline, rate, first=self.published, total=total, redis_url=redis_url) as load:
            yield
        self.published += load.published

    def publish(self, traces: int) -> None:
        """Publish this many traces at once, and wait until Redis has them."""
        self.pipeline.publish(make_traces(traces, first=self.published, ended_at=time.time()))
        self.published += traces

    @property
    def finished(self) -> int:
        """Evaluations with a verdict, by the accounting; -1 while Redis does not answer."""
        try:
            return sum(self.pipeline.counter(name) for name in ("scored", "abstained", "unscored"))
        except StoreError:
            return -1

    def wait_finished(self, evaluations: int, timeout_s: float = SETTLING_S) -> None:
        wait_until(lambda: self.finished >= evaluations, timeout_s, f"{evaluations} evaluations to be finished")

    @property
    def counted(self) -> float:
        """Verdicts on the metrics pages of all workers, including those that ended."""
        running = [page for name in self.workers if (page := self._page(name)) is not None]
        return sum(page.total(VERDICTS) for page in (*self.pages, *running))

    def assert_each_counted(self) -> None:
        """Check that each evaluation is counted once, where no worker was killed; metrics lag behind the accounting."""
        wait_until(lambda: self.counted >= self.evaluations, what=f"{self.evaluations} verdicts to be counted")
        assert self.counted == self.evaluations

    @property
    def evaluations(self) -> int:
        """Expected number of evaluations of the published traces."""
        return self.published * len(self.judges)

    def settle(self, timeout_s: float = SETTLING_S) -> Account:
        """Wait until no work is left in the accounting and in the exporters' groups; return the account."""
        deadline = time.monotonic() + timeout_s
        while True:
            account = self._account()
            if account is not None and account.published >= self.published and account.settled:
                break
            assert time.monotonic() < deadline, f"not settled within {timeout_s:g} s: {account}"
            time.sleep(0.2)
        # Entries that a dead exporter had read are claimed after 15 s.
        left = max(PATIENCE_S, deadline - time.monotonic())
        wait_until(lambda: is_clean(self.pipeline), left, "the exporters to read the rest")
        return self.pipeline.account()

    def assert_accounting(self, *, timeout_s: float = SETTLING_S, spans: bool = True) -> Account:
        """Wait until all work is done, and check the guarantees of every experiment.

        Args:
            timeout_s: Longest wait for the end of all work.
            spans: Whether every verdict must have reached the receiver; wrong or duplicate spans are never allowed.
        """
        account, verdicts = self.settle(timeout_s), self.verdicts()
        assert account.lost == 0, account
        _check_verdicts(self.pipeline, account, verdicts)
        # Counts since the last scrape are lost with a killed worker: there may be less, but never more.
        assert self.counted <= sum(len(verdict.metrics) for verdict in verdicts)
        _check_spans({verdict.evaluation_id for verdict in verdicts}, self.otlp, all_spans=spans)
        assert (unfinished_work(self.pipeline), unread_groups(self.pipeline)) == ({}, {})
        self.recoveries.check(RECOVERY_S)
        return account

    def assert_all_scored(self, **settling: Any) -> Account:
        """Check the accounting, and that every evaluation of every published trace was scored."""
        account = self.assert_accounting(**settling)
        ends = (account.published, account.dropped, account.chosen, account.scored)
        assert ends == (self.published, 0, self.evaluations, self.evaluations)
        assert [self._monitored(fine=fine) for fine in (False, True)] == [self.evaluations] * 2
        return account

    def _monitored(self, *, fine: bool) -> int:
        """Count the scored verdicts in the sums of the monitor, which another worker continues after a kill."""
        store, day_s = self.pipeline.store, 86_400
        span = time.time() - day_s, time.time() + day_s
        series = read_buckets(store, list(read_series(store)), *span, fine=fine)
        return sum(bucket.sums.total.judgements for buckets in series for bucket in buckets)

    def _account(self) -> Account | None:
        try:
            return self.pipeline.account()
        except StoreError:
            return None

    def _last_page(self, name: str) -> Worker:
        page = self._page(name)
        if page is not None:
            self.pages.append(page)
        return self.workers.pop(name)

    def _page(self, name: str) -> Scrape | None:
        try:
            return self.workers[name].scrape()
        except httpx.TransportError:
            return None


class Recoveries:
    """Watches the batches of a killed worker until another worker holds them or they are finished."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._orphans: dict[bytes, tuple[bytes, float]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="recoveries", daemon=True)
        self.took_s: list[float] = []
        """Waiting times of the batches that were held at a kill."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def begin(self) -> None:
        """Record all batches held now, by any worker: those of running workers finish in time as well."""
        now = time.monotonic()
        try:
            held = self._held()
        except StoreError:
            return
        with self._lock:
            self._orphans |= {batch: (holder, now) for batch, holder in held.items() if holder != b"parked"}

    def check(self, within_s: float) -> None:
        """Fail if any of these batches waited longer."""
        self._look()
        with self._lock:
            waiting = [time.monotonic() - since for _, since in self._orphans.values()]
        slowest = max([*self.took_s, *waiting], default=0.0)
        assert slowest <= within_s, f"a batch went on after {slowest:.1f} s only"

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            try:
                self._look()
            except StoreError:
                continue

    def _look(self) -> None:
        with self._lock:
            if not self._orphans:
                return
        held, now = self._held(), time.monotonic()
        with self._lock:
            for batch, (holder, since) in list(self._orphans.items()):
                if held.get(batch) == holder or (batch not in held and self._is_ready(batch)):
                    continue
                if self._orphans.pop(batch, None) is not None:  # else somebody else looked meanwhile
                    self.took_s.append(now - since)

    def _held(self) -> dict[bytes, bytes]:
        return self._store.call(lambda client: client.hgetall(self._store.keys.holders))

    def _is_ready(self, batch: bytes) -> bool:
        """Return whether a batch that no worker holds is still ready."""
        return bool(self._store.call(lambda client: client.exists(self._store.keys.batch(batch.decode()))))


def is_clean(pipeline: Pipeline) -> bool:
    """Return whether no work is left and the exporters have read everything; False without Redis."""
    try:
        return not unfinished_work(pipeline) and not unread_groups(pipeline)
    except StoreError:
        return False


def unfinished_work(pipeline: Pipeline) -> dict[str, Any]:
    """Return the amounts of unfinished work in Redis by key; empty when all work is done."""
    keys = pipeline.keys
    counted = {
        keys.leases: pipeline.store.call(lambda client: client.zcard(keys.leases)),
        keys.holders: pipeline.store.call(lambda client: client.hlen(keys.holders)),
        keys.waiting: sum(map(int, pipeline.store.call(lambda client: client.hvals(keys.waiting)))),
        **{
            pattern: len(pipeline.store.call(lambda client, name=pattern: set(client.scan_iter(name, count=5000))))
            for pattern in (keys.batch("*"), keys.ready("*"), keys.tries("*"))
        },
    }
    return {key: amount for key, amount in counted.items() if amount}


def unread_groups(pipeline: Pipeline) -> dict[str, Any]:
    """Return the consumer groups with pending or unread entries, and those of `READERS` that no worker has made."""
    unread: dict[str, Any] = {}
    for stream in (pipeline.keys.traces, pipeline.keys.verdicts):
        newest = pipeline.store.call(lambda client, name=stream: client.xrevrange(name, count=1))
        groups = pipeline.store.call(lambda client, name=stream: client.xinfo_groups(name))
        if newest and stream == pipeline.keys.verdicts:
            unread |= dict.fromkeys(set(READERS) - {group["name"].decode() for group in groups}, "absent")
        for group in groups:
            has_all = not newest or _parts(group["last-delivered-id"]) >= _parts(newest[0][0])
            if group["pending"] or not has_all:
                unread[group["name"].decode()] = group
    return unread


def _check_verdicts(pipeline: Pipeline, account: Account, verdicts: Sequence[Verdict]) -> None:
    finished = account.chosen - account.dead - account.waiting - account.removed
    assert account.chosen == len(pipeline.ledger()), "chosen twice, or missing in the accounting"
    # The ledger has those that were removed, as by `forget`, as well.
    finished_ids = {name for name, state in pipeline.ledger().items() if state not in {b"0", b"4"}}
    assert finished_ids == {verdict.evaluation_id for verdict in verdicts}
    assert finished == len(verdicts), f"{finished} evaluations are finished, with {len(verdicts)} verdicts"
    twice = {name: times for name, times in Counter(v.evaluation_id for v in verdicts).items() if times > 1}
    assert twice == {}, "in the outbox more than once"
    assert [verdict for verdict in verdicts if verdict.outcome == "scored" and not verdict.scores] == []
    assert account.scored == sum(verdict.outcome == "scored" for verdict in verdicts)


def _check_spans(evaluation_ids: set[str], otlp: OtlpReceiver, *, all_spans: bool) -> None:
    """A span may arrive twice, under the same ids."""
    ids: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for span in otlp.spans:
        if EVALUATION_ID in span.attributes and not span.parent_span_id:
            ids[span.attributes[EVALUATION_ID]].add((span.trace_id, span.span_id))
    assert {name: several for name, several in ids.items() if len(several) > 1} == {}, "one evaluation, several spans"
    assert ids.keys() <= evaluation_ids, "spans of evaluations that have no verdict"
    if all_spans:
        assert len(evaluation_ids - ids.keys()) == 0, "verdicts without a span"


def _parts(entry_id: bytes) -> tuple[int, int]:
    time_ms, sequence = entry_id.split(b"-")
    return int(time_ms), int(sequence)
