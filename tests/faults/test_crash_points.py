"""A crash at every kind of command: the connection to Redis ends before or after the n-th one, and work restarts.

What runs is a worker and an operator in this process, step by step, so that the n-th command is the same in each run.
After the restart the accounting balances, each evaluation has ended once, and exporters have delivered each verdict.
"""

import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import redis
from redis_faults import server_of
from support.passes import NOTHING, Replays
from support.proxy import CommandProxy
from support.sessions import COMPLETE, Sessions, session_trace
from support.stages import (
    APPEND,
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    make_verdict,
    rules_of,
    samples,
    select_metrics,
)

from judges.core.verdict import Score, Verdict
from worker.base.accounting import read_account
from worker.base.dead_letters.retry import group_letters, retry
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.base.forget.forget import ForgetTarget, forget_everywhere
from worker.base.lookup.label_store import Label, OutboxMatcher, keep_trace, read_labels, write_labels
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Rule, Settings
from worker.core.export import consumer as outbox
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.queue import batch as batches
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger
from worker.core.storage.client import StoreError, script_sources
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP
from worker.core.telemetry.metrics import Metrics
from worker.features.canary.canary_file import Canary
from worker.features.receivers.feature import FileSettings
from worker.features.receivers.files import FileExporter

SAFETY = Rule(name="all", judges=("safety",))
TRACES = 5
TRACES_OF_A_PERSON = make_traces(range(TRACES), user_id="u1")
GROUPS = ("metrics", MONITOR_GROUP, "receiver:archive")
SCRIPTS = {hashlib.sha1(text.encode()).hexdigest(): name for name, text in script_sources().items()}  # noqa: S324 - Redis' names
Steps = Callable[["Process"], None]


class Service:
    """The service that publishes: it goes on when Redis was away, and sends a batch again until Redis confirms it."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.batches = 0

    def publish(self, process: "Process", *payloads: object) -> None:
        entries = [msgspec.json.encode(each) for each in payloads]
        keys = process.keyspace.keys
        names = (keys.traces, keys.producer("p1"), keys.caps, keys.producers)
        arguments = (self.batches + 1, "p1", 10**6, 3600, "shop", self.confirmed, "t" * len(entries), *entries)
        process.keyspace.store.call(lambda client: client.eval(APPEND, len(names), *names, *arguments))
        self.batches += 1
        self.confirmed += len(entries)


class Process:
    """A worker with its exporters, and an operator: one after the other, until Redis is away."""

    def __init__(
        self, keyspace: Keyspace, service: Service, rules: Sequence[Rule], folder: Path, *, restarted: bool
    ) -> None:
        self.keyspace, self.service, self.restarted = keyspace, service, restarted
        options = {"rules": tuple(rules), "receivers": {"archive": FileSettings(path=str(folder))}, "batch_size": 2}
        self.chosen = IngestHarness(keyspace, **options)
        self.chosen.ingest.stopping.set()  # so that it does not wait for Redis to answer
        self.settings, self.metrics = self.chosen.settings, self.chosen.metrics
        self.options = options
        self.ledger = Ledger(keyspace.store, self.settings)
        self.leases = Leases(keyspace.store, tries_ttl_s=3600)
        made = (self.settings, keyspace.store, self.metrics)
        sums = QualitySums(*made, rules_of(self.settings))
        # What the monitor computes from its sums is computed again at any time.
        sums.tasks = ()
        self.exporters: list[ExportConsumer] = [PrometheusExporter(*made), sums, FileExporter(*made, "archive")]

    def begin(self, payloads: Sequence[object]) -> None:
        """Publish what is not confirmed, and run ingest."""
        if self.service.confirmed < TRACES:
            self.service.publish(self, *payloads[self.service.confirmed :])
        self.keyspace.store.make_group(self.keyspace.keys.traces, INGEST_GROUP)
        if self.restarted:
            self.chosen.process(self.keyspace.claim())
        self.chosen.process(self.keyspace.read())

    def judge(self, *failing: int) -> None:
        """Judge what waits; evaluations of these traces are given up."""
        if self.restarted:
            self._expire()
        self.leases.sweep(["lexical"])
        for held in self.leases.take("lexical", "ours", 10):
            batch = batches.decode_batch(held.payload)
            parts = [(item, evaluation) for item in batch.items for evaluation in item.evaluations]
            (ended,) = self.ledger.already_finished([batch])
            parts = [(item, part) for item, part in parts if part.id not in ended]
            gone = [(item, part) for item, part in parts if int(item.trace.trace_id, 16) - 1 in failing]
            kept = [pair for pair in parts if pair not in gone]
            scored = [FinalVerdict.encode(verdict(item, part), part.period) for item, part in kept]
            letters = [(letter(item, part), verdict(item, part)) for item, part in gone]
            self.leases.renew([held.lease])
            if scored:
                self.ledger.record(scored)
            if letters:
                self.ledger.add_dead_letter(letters, held.lease.batch_id)
            self.leases.finish(held.lease.batch_id, "lexical")

    def export(self) -> None:
        if self.restarted:
            self.keyspace.client.delete(self.keyspace.keys.monitor)
        for exporter in self.exporters:
            exporter.prepare()
            exporter.run_once()
        self.keyspace.measure(groups=GROUPS, report_cuts=True)

    def retry_dead(self) -> None:
        for group in group_letters(DeadLetterStore(self.keyspace.store).read(self._dead()), 2):
            retry(self.keyspace.store, self.settings, group)

    def drop_dead(self) -> None:
        self.ledger.remove(self._dead())

    def _dead(self) -> list[str]:
        found = DeadLetterStore(self.keyspace.store).find(VerdictFilter())
        return [stored.letter.evaluation.id for stored in found]

    def _expire(self) -> None:
        """Advance the time: leases of the process that has ended expire."""
        for batch_id in self.keyspace.leases():
            self.keyspace.client.zadd(self.keyspace.keys.leases, {batch_id: 1}, xx=True)


def verdict(item: batches.Item, evaluation: batches.Evaluation) -> Verdict:
    judge, trace = evaluation.judge, item.trace
    names = {"judge": judge, "judge_version": evaluation.version, "trace_id": trace.trace_id, "user_id": trace.user_id}
    scores = (Score(judge, 1.0, passed=True),)
    fields = {"outcome": "scored", "metrics": (judge,), "scores": scores, "span_id": None}
    return make_verdict(evaluation_id=evaluation.id, **names, **fields)


def letter(item: batches.Item, evaluation: batches.Evaluation) -> DeadLetter:
    return DeadLetter(1, evaluation, "default", "lexical", "timeout", 2, 1.0, time.time(), item=item)


def verdicts_leave(process: Process) -> None:
    process.judge()
    process.export()


def dead_letters(process: Process) -> None:
    process.judge(*(() if process.restarted else (0, 3)))
    process.retry_dead()
    process.judge(3)
    process.drop_dead()


def replay(process: Process) -> None:
    Replays(process.keyspace, rules=(NOTHING,)).make("safety")
    process.judge()


def conversation(process: Process) -> None:
    Sessions(process.keyspace, **process.options).pause()
    process.judge()


def label(number: int) -> Label:
    return Label(make_trace(number).trace_id, "safety", "safety", passed=True, drawn=1.0)


def labels(process: Process) -> None:
    process.judge()
    store = process.keyspace.store
    for number in range(2):
        keep_trace(store, make_trace(number), 10**6)
    write_labels(store, [label(number) for number in range(2)])
    matcher = OutboxMatcher(store)
    while matcher.step():
        pass
    assert [len(each.verdicts) for each in read_labels(store)] == [1, 1]


def forgetting(process: Process) -> None:
    process.judge(1)
    if not process.restarted:
        keep_trace(process.keyspace.store, make_trace(0, user_id="u1"), 10**6)
        write_labels(process.keyspace.store, [label(0)])
    forget_everywhere(process.keyspace.store, process.settings, ForgetTarget(user_id="u1"))
    assert read_labels(process.keyspace.store) == []


EXPORTED = {"open_group", "acknowledge", "add_quality", "measure", "hold", "claim"}
JUDGED = {"choose", "sweep", "take", "renew", "record", "finish", "outcomes"}
SCENES: dict[str, tuple[Steps, Rule, set[str]]] = {
    "verdicts": (verdicts_leave, SAFETY, {*JUDGED, *EXPORTED}),
    "dead letters": (dead_letters, SAFETY, {"dead_add", "dead_retry", "dead_remove"}),
    "replay": (replay, NOTHING, {"replay"}),
    "conversation": (conversation, COMPLETE, {"session_choose"}),
    "labels": (labels, SAFETY, {"keep_labelled"}),
    "forget": (forgetting, SAFETY, {"forget_entries", "forget_verdicts", "forget_labelled"}),
}
"""By name the steps, their rule and the scripts before which a scene is cut: those that no scene above it runs."""


@pytest.fixture
def server(redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    with server_of("7", redis_binaries) as server:
        yield server


def cuts_of(commands: Sequence[str], scripts: set[str], client: redis.Redis) -> Iterator[tuple[int, bool]]:
    """Yield where a scene is cut: the number of the command, and whether Redis has executed it.

    After the first and the last of each command that writes: reads change nothing, and those between repeat the first.
    Where other scenes cut the first one, after the last. Also before the first of each script: what happens outside of
    Redis until then, as a file, is done.
    """
    kinds = {name.upper() for name, command in client.command().items() if "write" in command["flags"]}
    first = {name: number for number, name in reversed([*enumerate(commands, 1)])}
    last = {name: number for number, name in enumerate(commands, 1)}
    writes = sorted(
        {
            place[name]
            for name in first
            if name in {*kinds, *SCRIPTS.values(), "EVAL", "EXEC"}
            for place in ((first, last) if name in scripts or name not in JUDGED else (last,))
        }
    )
    yield from ((number, True) for number in writes)
    yield from ((first[name], False) for name in sorted(scripts))


@pytest.mark.slow("a run for each command of each scene")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", SCENES)
def test_a_crash_at_any_command_leaves_a_balance(
    server: EmbeddedRedis, scene: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_BLOCK_MS", 1)
    monkeypatch.setattr(ExportConsumer, "gather_s", 0.0)
    monkeypatch.setattr(QualitySums, "gather_s", 0.0)
    # The order of batches made in one millisecond, and with it that of the commands.
    numbers = itertools.count(1)
    monkeypatch.setattr(batches.secrets, "token_hex", lambda size=32: f"{next(numbers):0{2 * size}x}")
    steps, rule, scripts = SCENES[scene]
    # Of all processes: making them takes longer than all else here.
    settings = Settings(rules=(rule,))
    metrics, canary = Metrics(settings), Canary.from_settings(settings)
    monkeypatch.setattr("support.stages.Metrics", lambda _settings: metrics)
    monkeypatch.setattr(Canary, "from_settings", lambda _settings: canary)
    with CommandProxy(server.port, SCRIPTS) as proxy:
        failures = _crash(server.url, proxy, (steps, rule), tmp_path)
    with redis.Redis.from_url(server.url) as client:
        cuts = [*cuts_of(proxy.commands, scripts, client)]
    for number, is_executed in cuts:
        expected, folder = proxy.commands[number - 1], tmp_path / f"{number}-{is_executed}"
        with CommandProxy(server.port, SCRIPTS, at=number, is_executed=is_executed) as cutting:
            wrong = _crash(server.url, cutting, (steps, rule), folder)
        failures += [f"{'after' if is_executed else 'before'} {number}, {cutting.cut}: {each}" for each in wrong]
        assert cutting.cut == expected, "each run has the same commands"
    assert failures == []


def _crash(url: str, proxy: CommandProxy, scene: tuple[Steps, Rule], folder: Path) -> list[str]:
    """Run a scene until the cut, and once more after it; return what does not balance then."""
    direct, service, (steps, rule) = redis.Redis.from_url(url), Service(), scene
    direct.flushall()
    keyspace = Keyspace(f"redis://127.0.0.1:{proxy.port}/0", "crash")
    keyspace.client.close()
    keyspace.client = direct
    first = Process(keyspace, service, (rule,), folder, restarted=False)
    counted = _counted(first.metrics)
    published = [session_trace("s1", number) for number in range(TRACES)] if rule is COMPLETE else TRACES_OF_A_PERSON
    try:
        first.begin(published)
        steps(first)
    except (StoreError, redis.ConnectionError):
        assert proxy.cut is not None
    keyspace.store.close()
    with Keyspace(url, "crash") as keyspace:
        second = Process(keyspace, service, (rule,), folder, restarted=True)
        for exporter in second.exporters:
            exporter.stale_ms = 0
        try:
            second.begin(published)
            steps(second)
            second.export()
        except AssertionError as error:
            return [str(error)]
        return [*_unbalanced(keyspace), *_not_exported(keyspace, _counted(second.metrics) - counted, folder)]


def _unbalanced(keyspace: Keyspace) -> Iterator[str]:
    account = read_account(keyspace.store)
    if (account.published, account.lost, account.unread, account.waiting, account.dead) != (TRACES, 0, 0, 0, 0):
        yield f"{account}"
    if account.chosen != account.scored + account.removed:
        yield f"not all has ended: {account}"
    if any(keyspace.waiting().values()) or keyspace.leases() or keyspace.pending():
        yield f"left: {keyspace.waiting()}, {keyspace.leases()}"
    if any(name.startswith("forgetting:") for name in keyspace.everything()):
        yield "trace ids of a person are left"


def _counted(metrics: Metrics) -> float:
    return sum(select_metrics(samples(metrics), "verdicts_total").values())


def _not_exported(keyspace: Keyspace, counted: float, folder: Path) -> Iterator[str]:
    scored = keyspace.accounting().get("scored", 0)
    if counted > scored:
        yield f"the metrics count {counted} verdicts"
    left = [group for group in GROUPS if keyspace.pending(group, keyspace.keys.verdicts)]
    ids = [entry["evaluation_id"] for entry in keyspace.outbox("j")]
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    files = [json.loads(line)["evaluation_id"] for line in lines]
    if left or len(set(ids)) != len(ids) or max(Counter(files).values(), default=0) > 2:
        yield f"pending for {left}, {len(ids)} verdicts, {len(files)} lines"
    if keyspace.accounting().get("removed"):
        return  # some verdicts were erased
    names = [f"{name}:{group}" for name in ("exported", "outbox_cut_off") for group in GROUPS]
    counts = keyspace.counted("outbox", *names)
    read = [counts[f"exported:{group}"] + counts[f"outbox_cut_off:{group}"] for group in GROUPS]
    if read != [counts["outbox"]] * len(GROUPS) or len(ids) != scored or set(files) != set(ids):
        yield f"{read} of {counts['outbox']} are exported, {len(files)} lines of {len(ids)} verdicts"
