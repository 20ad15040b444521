"""What the stages of a worker are tested with: traces, verdicts, settings, keyspaces and the stages themselves."""

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.resources import files
from typing import Any, Self

import msgspec
import pytest
import redis

from judges.core.verdict import Score, Verdict
from judges.registry import load_judges
from support.redis_kinds import delete_keys
from tracejudge import Trace
from tracejudge.ids import partition_prefix, place_of
from tracejudge.redis_url import cluster_url
from worker.base.accounting import Account, read_account
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.features import IngestHook, TraceHookContext, build_hooks, installed
from worker.core.ingest.consumer import IngestConsumer, Planner
from worker.core.queue.batch import Batch, Evaluation, batch_header, decode_batch, fresh_id, made_at_ms
from worker.core.queue.leases import READY_MS
from worker.core.queue.ledger import Ledger, field_of
from worker.core.runtime.partition import Maintenance
from worker.core.selection.sampling import Rules, Sampler
from worker.core.storage import client as store_module
from worker.core.storage.client import Entry, Store, connect
from worker.core.storage.keys import INGEST_GROUP, Keys
from worker.core.telemetry.backlog import Backlog, Backpressure, Caps, measure
from worker.core.telemetry.health import Heartbeat, Readiness
from worker.core.telemetry.metrics import Metrics

APPEND = files("tracejudge").joinpath("scripts/append.lua").read_text(encoding="utf-8")
READ_ALL = 10_000
HOUR = "472222"
"""The period of evaluations that tests make themselves."""
NEVER = 10**9


class Keyspace(AbstractContextManager["Keyspace"]):
    """The keys under one prefix of a Redis, with the store that the stages use and a client that reads them."""

    def __init__(self, url: str, prefix: str, partition: int = 0) -> None:
        self.url, self.prefix = url, prefix
        self.keys = Keys(prefix)
        self.store = Store(url, self.keys, partition)
        is_cluster = cluster_url(url) is not None
        self.client = connect(url, self.keys.layout) if is_cluster else redis.Redis.from_url(url)
        self._numbers: dict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
        self._confirmed: Counter[str] = Counter()
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        self.store.make_group(self.keys.traces, INGEST_GROUP)
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.store.close()

    def next_case(self, name: str) -> None:
        """Delete all keys for the next case of a test, and print its name, which pytest shows with a failure."""
        print(f"case: {name}")  # noqa: T201
        delete_keys(self.client, f"*{self.prefix}:*")
        self.store.make_group(self.keys.traces, INGEST_GROUP)
        self._numbers.clear()
        self._confirmed.clear()
        self._began_s = time.monotonic()

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.client.info("server")["redis_version"].split(".")))

    def add(self, payload: object, *, kind: str = "t", version: str = "1") -> str:
        """Publish an entry as any language does, without a producer."""
        return self.client.xadd(self.keys.traces, {"v": version, kind: encoded(payload)}).decode()

    def append(
        self, producer: str, payloads: Iterable[object], *, kind: str = "t", cap: int = NEVER, service: str = "shop"
    ) -> None:
        """Publish entries as the SDK does: one numbered batch."""
        entries = [encoded(payload) for payload in payloads]
        confirmed, kinds = self._confirmed[producer], kind * len(entries)
        arguments = [next(self._numbers[producer]), producer, cap, 1000, service, confirmed, kinds, *entries]
        names = (self.keys.traces, self.keys.producer(producer), self.keys.caps, self.keys.producers)
        assert self.client.eval(APPEND, len(names), *names, *arguments) == 1
        self._confirmed[producer] += kinds.count("t")

    def report(self, producer: str, published: int, **dropped: int) -> None:
        """Publish a producer's report."""
        accepted = published - sum(dropped.values())
        report = {"producer": producer, "seq": 1, "service": "shop", "published": published, "accepted": accepted}
        self.append(producer, [report | {"dropped": dropped}], kind="r")

    def read(self, count: int = READ_ALL, consumer: str = "reader") -> list[Entry]:
        """Read what no ingest has read."""
        return self.store.read_group(self.keys.traces, INGEST_GROUP, consumer, count=count, block_ms=1)

    def claim(self, consumer: str = "successor") -> list[Entry]:
        """Claim what its reader has not acknowledged."""
        return self.store.claim_stale(self.keys.traces, INGEST_GROUP, consumer, idle_ms=0, count=READ_ALL)

    def accounting(self) -> dict[str, int]:
        return {name.decode(): int(amount) for name, amount in self.client.hgetall(self.keys.account_all).items()}

    def counted(self, *names: str) -> dict[str, int]:
        """Read some counters of the accounting; what is not counted is 0."""
        accounting = self.accounting()
        return {name: accounting.get(name, 0) for name in names}

    def daily_accounting(self) -> dict[str, int]:
        """Read the accounting of each day; a test may begin before midnight and end after."""
        amounts: Counter[str] = Counter()
        for key in self.client.scan_iter(match=f"{self.prefix}:account:????-??-??", count=1000):
            amounts.update({name.decode(): int(amount) for name, amount in self.client.hgetall(key).items()})
        return dict(amounts)

    def batches(self) -> dict[str, Batch]:
        start = self.keys.batch("")
        keys = list(self.client.scan_iter(match=f"{start}*", count=1000))
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.get(key)
                pipe.ttl(key)
            replies = iter(pipe.execute())
        rows = zip(keys, replies, replies, strict=True)
        # Those with a TTL were written for a script that did not choose them; a worker may have ended one meanwhile.
        return {
            key.decode().removeprefix(start): decode_batch(batch) for key, batch, ttl in rows if batch and ttl == -1
        }

    def chosen(self) -> list[tuple[Trace, Evaluation]]:
        """List what is in batches: traces and their evaluations."""
        items = [item for batch in self.batches().values() for item in batch.items]
        return [(item.trace, evaluation) for item in items for evaluation in item.evaluations]

    def ledger(self) -> dict[str, str]:
        """Read the ledger: evaluation id and `chosen`, or how it ended."""
        words = {b"0": "chosen", b"1": "scored", b"2": "abstained", b"3": "unscored", b"4": "removed"}
        parts = [self.client.hgetall(key) for key in self.client.scan_iter(f"{self.keys.evaluations}:*", count=1000)]
        return {field.hex(): words[state] for part in parts for field, state in part.items()}

    def ended(self) -> dict[str, str]:
        """Read how evaluations ended, by their ids."""
        return {name: state for name, state in self.ledger().items() if state != "chosen"}

    def end(self, evaluation_id: str, period: str, state: str, scores: str = "") -> None:
        """Write into the ledger that an evaluation has ended."""
        code = {"scored": "1", "abstained": "2", "unscored": "3", "removed": "4"}[state]
        self.client.hset(f"{self.keys.evaluations}:{period}:{evaluation_id[:2]}", field_of(evaluation_id), code)
        if scores:
            self.client.set(f"{self.keys.scores}:{evaluation_id}", scores)

    def today(self) -> str:
        """Return the period of traces without a time that arrive now, as those of `make_trace`."""
        return f"d{self.client.time()[0] // 86_400}"

    def leases(self) -> dict[str, float]:
        """Seconds until each batch is due."""
        due = self.client.zrange(self.keys.leases, 0, -1, withscores=True)
        # The clock is read after the due times: a due time that is set in between would seem too late otherwise.
        seconds, microseconds = self.client.time()
        now_ms = seconds * 1000 + microseconds / 1000
        return {batch_id.decode(): (due_ms - now_ms) / 1000 for batch_id, due_ms in due}

    def soon(self, delay_s: float, *, less_s: float = 0.0, growth: float = 0.0) -> Any:
        """Expect seconds until a due time that was set since the test began: never more than the delay.

        Args:
            less_s: By chance the delay may have been as much shorter.
            growth: Of the age of a batch, where the delay grows with it: the test's batches age as it does.
        """
        passed_s = time.monotonic() - self._began_s
        least, most = delay_s - less_s - passed_s - 0.01, delay_s + growth * passed_s + 0.01
        return pytest.approx((least + most) / 2, abs=(most - least) / 2)

    def make_due(self, *batch_ids: str, in_s: float = -1.0) -> None:
        """Make batches due now or soon; all of them where none is named."""
        due_ms = (time.time() + in_s) * 1000
        self.client.zadd(self.keys.leases, dict.fromkeys(batch_ids or self.batches(), due_ms), xx=True)

    def add_batch(self, model: str = "lexical", *, made_at_s: float = 1_700_000_000.0) -> str:
        """Leave a batch without evaluations as ingest does."""
        batch_id = fresh_id(model, made_at_s)
        payload = batch_header(batch_id, "default", model, made_at_s) + "]}"
        self.client.set(self.keys.batch(batch_id), payload)
        self.client.hincrby(self.keys.waiting, model, len(payload))
        self.client.zadd(self.keys.ready(model), {batch_id: made_at_ms(batch_id)})
        self.client.zadd(self.keys.leases, {batch_id: 0})
        self.make_due(batch_id, in_s=READY_MS / 1000)
        return batch_id

    def waiting(self) -> dict[str, int]:
        return {model.decode(): int(size) for model, size in self.client.hgetall(self.keys.waiting).items()}

    def pending(self, group: str = INGEST_GROUP, stream: str | None = None) -> int:
        return self.client.xpending(stream or self.keys.traces, group)["pending"]

    def outbox(self, kind: str) -> list[dict[str, Any]]:
        """Read the outbox's entries of a kind: verdicts `j`, the unscored verdicts of dead letters `d`."""
        entries = [fields for _, fields in self.client.xrange(self.keys.verdicts)]
        assert all(fields[b"v"] == b"1" and len(fields) == 2 for fields in entries)
        return [json.loads(fields[kind.encode()]) for fields in entries if kind.encode() in fields]

    def send(self, *verdicts: Verdict, kind: str = "j") -> list[str]:
        """Put verdicts into the outbox as the scripts do, including their count in the accounting."""
        self.client.hincrby(self.keys.account_all, "outbox", len(verdicts))
        fields = [{"v": "1", kind: msgspec.json.encode(verdict)} for verdict in verdicts]
        return [self.client.xadd(self.keys.verdicts, each).decode() for each in fields]

    def measure(self, *, groups: tuple[str, ...] = (), report_cuts: bool = False, **caps: Any) -> Backlog:
        return measure(self.store, Caps(**caps), groups=groups, report_cuts=report_cuts)

    def everything(self) -> dict[str, object]:
        """Read all there is under the prefix, whatever it is; a key that expires meanwhile is left out."""
        keys = sorted(self.client.scan_iter(match=f"{self.prefix}:*", count=1000))
        content = {key.decode().removeprefix(f"{self.prefix}:"): self._value(key) for key in keys}
        return {name: value for name, value in content.items() if value is not None}

    def _value(self, key: bytes) -> object:
        match self.client.type(key):
            case b"string":
                return self.client.get(key)
            case b"hash":
                return self.client.hgetall(key)
            case b"zset":
                return self.client.zrange(key, 0, -1, withscores=True)
            case b"stream":
                groups = [group["name"] for group in self.client.xinfo_groups(key)]
                return self.client.xrange(key), {group: self.client.xpending(key, group) for group in groups}
            case b"none":
                return None
        raise AssertionError(key)


class RecordingNotifier:
    """Records what ingest sends to its notifier."""

    def __init__(self) -> None:
        self.batch_ids: list[str] = []

    def ready_labels(self) -> frozenset[str]:
        return frozenset()

    def notify_batches(self, batch_ids: Iterable[str], except_labels: Collection[str] = ()) -> None:  # noqa: ARG002
        self.batch_ids += batch_ids


class IngestHarness:
    """An ingest whose thread does not run: tests hand it what they have read."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        self.settings = settings_of(keyspace, **settings)
        self.metrics = Metrics(self.settings)
        notifier = RecordingNotifier()
        self.woken = notifier.batch_ids
        self.pressure = pressure_of(self.settings)
        planner = planner_of(self.settings, keyspace.store)
        parts = self.settings, keyspace.store, self.metrics
        self.ingest = IngestConsumer(*parts, planner=planner, notifier=notifier, pressure=self.pressure)
        self._keyspace = keyspace

    def write_unusable(self) -> None:
        """Write what could not be used, as at the end of the thread."""
        for close in self.ingest._close:
            close()

    def process(self, entries: Sequence[Entry] | None = None) -> None:
        """Process entries, or all that nobody has read."""
        self.ingest.process(self._keyspace.read() if entries is None else entries)


def use_script_time(monkeypatch: pytest.MonkeyPatch, keyspace: Keyspace, seconds: str) -> None:
    """Make all scripts of the worker read the time from an expression in Lua instead of from Redis."""
    theirs = store_module.script_sources()
    ours = {name: text.replace("redis.call('TIME')", f"{{{seconds}, 0}}") for name, text in theirs.items()}
    assert [name for name, text in ours.items() if "TIME" in text] == []
    assert {name for name, text in theirs.items() if "TIME" in text} >= {"choose", "put_back", "sweep", "take"}
    monkeypatch.setattr(store_module, "script_sources", lambda: ours)
    monkeypatch.setattr(keyspace.store, "_scripts", Store(keyspace.url, keyspace.keys)._scripts)


def pressure_of(settings: Settings) -> Backpressure:
    """Make what an ingest under these settings goes by."""
    return Backpressure(settings.max_waiting_bytes, {model.judge_model for model in settings.models.values()})


def settings_of(keyspace: Keyspace, **settings: Any) -> Settings:
    """Make settings for a keyspace; without rules every trace is judged for safety."""
    rules = (Rule(name="all", judges=("safety",)),)
    return Settings.from_keys(**{"redis_url": keyspace.url, "prefix": keyspace.prefix, "rules": rules, **settings})


def rules_of(settings: Settings) -> Rules:
    """Compile the rules of settings, with the judges that they configure."""
    return Rules(settings, Graders(settings, load_judges(settings.judges)))


def sampler_of(settings: Settings, *hooks: IngestHook) -> Sampler:
    """Make a sampler by the rules of settings."""
    return Sampler(rules_of(settings), hooks)


def planner_of(settings: Settings, store: Store) -> Planner:
    """Make the planner of a worker with these settings, and with all features."""
    rules = rules_of(settings)
    context = TraceHookContext(settings, None, Ledger(store, settings), rules)
    hooks = build_hooks((feature.ingest for feature in installed()), context)
    return Planner(settings, store.keys, Sampler(rules, hooks), hooks)


def encoded(payload: object) -> bytes:
    return payload if isinstance(payload, bytes) else msgspec.json.encode(payload)


def make_trace(number: int, **fields: Any) -> Trace:
    """Make a trace with ids of its own, the same for the same number."""
    defaults = {"trace_id": f"{number + 1:032x}", "span_id": f"{number + 1:016x}", "id": f"{number + 1:016x}"}
    return Trace(**{"service": "shop", "input": "Is it warm?", "output": "It is.", **defaults, **fields})


def make_traces(numbers: Iterable[int], **fields: Any) -> list[Trace]:
    return [make_trace(number, **fields) for number in numbers]


def make_verdict(number: int = 0, **fields: Any) -> Verdict:
    """Make a verdict of its own evaluation."""
    defaults = {
        "evaluation_id": f"{number + 1:032x}",
        "outcome": "abstained",
        "metrics": ("safety",),
        "trace_id": f"{number + 1:032x}",
        "span_id": f"{number + 1:016x}",
        "service": "shop",
        "judge": "safety",
        "judge_version": "0123456789abcdef0123456789abcdef",
        "judge_model": "lexical",
        "started_at": 1_700_000_000.25,
        "duration_s": 0.5,
    }
    return Verdict(**{**defaults, **fields})


def make_judged(number: int = 0, *, passed: bool | None = True, **fields: Any) -> Verdict:
    """Make a verdict about safety on a whole trace, of this second; it abstains if nothing passed or failed."""
    defaults = {
        "evaluation_id": f"e{number}",
        "outcome": "abstained" if passed is None else "scored",
        "scores": () if passed is None else (Score("safety", float(passed), passed=passed),),
        "trace_id": f"t{number}",
        "span_id": None,
        "judge_version": "0123456789abcdef",
        "started_at": time.time() - 1,
    }
    return make_verdict(number, **{**defaults, **fields})


def read_balanced_account(keyspace: Keyspace) -> Account:
    """Read the account, in which nothing is lost."""
    account = read_account(keyspace.store)
    assert account.lost == 0
    return account


def read_amounts(keyspace: Keyspace, names: str) -> tuple[int, ...]:
    """Read some amounts of the account, in this order."""
    account = read_account(keyspace.store)
    return tuple(getattr(account, name) for name in names.split())


def make_maintenance(
    keyspace: Keyspace,
    metrics: Metrics | None = None,
    *,
    groups: Sequence[str] = (),
    backpressure: Backpressure | None = None,
    circuits: Callable[[], Mapping[str, float | None]] = dict,
    **settings: Any,
) -> Maintenance:
    """Build the maintenance of one worker, which ends each turn at once."""
    loaded = settings_of(keyspace, **settings)
    stage = Maintenance(
        loaded,
        keyspace.store,
        metrics or Metrics(loaded),
        groups=groups,
        readiness=Readiness(),
        capacity=dict,
        backpressure=backpressure or Backpressure(1, ()),
        heartbeat=Heartbeat(keyspace.store, circuits),
    )
    stage.stopping.set()
    return stage


class InstantEvent(threading.Event):
    """An event that waits for nothing, and notes how long it should have waited."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._waits.append(timeout or 0.0)
        return self.is_set()


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Read all metrics of ours: name and labels, without the times of their creation and without what is still 0."""
    return {
        (
            sample.name.removeprefix("tracejudge_"),
            *(f"{name}={value}" for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.value
        and sample.name.startswith("tracejudge_")
        and not sample.name.endswith(("_created", "_build_info"))
    }


def select_metrics(values: Mapping[tuple[str, ...], float], *names: str) -> dict[tuple[str, ...], float]:
    """Keep the samples of some metrics."""
    return {key: value for key, value in values.items() if key[0] in names}


# --- several partitions ---
PARTITIONS = 3


@contextmanager
def three_partitions(url: str, prefix: str, count: int = PARTITIONS) -> Iterator[list[Keyspace]]:
    """Make the keyspaces of partitions, on a cluster or on one server; the fixture `prefix` deletes their keys."""
    keyspaces = [Keyspace(url, partition_prefix(prefix, number), number) for number in range(count)]
    stores = tuple(keyspace.store for keyspace in keyspaces)
    for store in stores:
        store.partitions = stores
    try:
        for keyspace in keyspaces:
            keyspace.__enter__()
        yield keyspaces
    finally:
        for keyspace in keyspaces:
            keyspace.__exit__()


def home(trace_id: str, session_id: str | None = None, count: int = PARTITIONS) -> int:
    """Return the partition of a trace."""
    return place_of(trace_id, session_id) % count


def named_in(number: int, count: int = PARTITIONS, start: str = "s") -> str:
    """Return a name that belongs to a partition."""
    return next(name for name in (f"{start}{each}" for each in range(999)) if home(name, None, count) == number)
