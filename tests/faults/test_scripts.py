"""Each script runs as a whole or not at all.

Whatever is in its way: a right that the Redis user has lost, a key that holds something else, a counter that cannot
grow, no memory. With the cause removed each trace is judged once. Redis looks at its memory when a script begins, and
refuses at most the first write; after it all others pass.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from redis import Redis
from redis_faults import filled, server_of
from support.stages import make_judged, make_verdict

from judges.core.model import ModelSettings
from judges.core.verdict import Verdict
from judges.registry import catalogue
from tracejudge import LateFeedback, Trace
from worker.base.accounting import read_account
from worker.base.dead_letters.retry import group_letters, retry
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.series import read_buckets, read_series
from worker.base.monitor.sums import QualitySums
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.features import TraceHookContext, build_hooks, installed
from worker.core.ingest.consumer import Planner
from worker.core.queue import batch as batches
from worker.core.queue.leases import LeasedPayload, Leases
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger, OutboxEntry, read_outbox_entry
from worker.core.selection.sampling import Rules, Sampler
from worker.core.selection.stream_entry import read_entry
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP, Keys
from worker.core.telemetry.backlog import Caps, measure
from worker.core.telemetry.health import Heartbeat
from worker.core.telemetry.metrics import Metrics
from worker.features.late_feedback.pending import PendingFeedback
from worker.features.late_feedback.search import FeedbackChooser, FeedbackOnTrace, PublicationRef
from worker.features.sessions.conversations import DueSession, SessionChooser, decode_session
from worker.features.sessions.feature import SessionKeys

MODEL = "lexical"
SETTINGS = Settings(
    prefix="whole",
    models={"default": ModelSettings(provider="lexical")},
    rules=(
        Rule(name="all", judges=("safety",)),
        Rule(name="complaints", judges=("relevance_to_query",), rate=0.0, always=("negative_feedback",)),
        Rule(name="conversations", judges=("user_frustration",), unit="session"),
    ),
    batch_size=2,
)
COMMANDS = (
    *("del", "exists", "expire", "hdel", "hget", "hincrby", "hmget", "hset", "set", "xack", "xadd", "xdel", "xpending"),
    *("xrange", "zadd", "zcard", "zincrby", "zrem", "zscore", "hlen", "xinfo"),
)
COUNTED = (
    *("read", "arrived", "published", "sampled", "chosen", "abstained", "outbox", "dead", "removed", "cut_off"),
    *("feedback", "trimmed", "exported:monitor"),
)
LARGEST = 2**63 - 1


@pytest.fixture(params=["7", pytest.param("6.2", marks=pytest.mark.endurance("the other version of Redis"))])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    with server_of(request.param, redis_binaries) as server:
        yield server


@contextlib.contextmanager
def without_permission(admin: Redis, command: str) -> Iterator[None]:
    admin.execute_command("ACL", "SETUSER", "worker", f"-{command}")
    yield
    admin.execute_command("ACL", "SETUSER", "worker", "+@all")


def _planner(store: Store) -> Planner:
    rules = Rules(SETTINGS, Graders(SETTINGS, catalogue()))
    context = TraceHookContext(SETTINGS, None, Ledger(store, SETTINGS), rules)
    hooks = build_hooks((feature.ingest for feature in installed()), context)
    return Planner(SETTINGS, store.keys, Sampler(rules, hooks), hooks)


class Scene:
    """A Redis whose user may lose rights, and the steps of a worker on it."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server = server
        self.admin = Redis.from_url(server.url)
        self.admin.flushall()
        self.admin.execute_command("ACL", "SETUSER", "worker", "reset", "on", "nopass", "~*", "&*", "+@all")
        self.admin.config_set("stream-node-max-entries", 4)  # the least that is trimmed
        self.keys = Keys(SETTINGS.prefix)
        self.store = Store(server.url.replace("redis://", "redis://worker:@"), self.keys)
        self.ledger = Ledger(self.store, SETTINGS)
        self.leases = Leases(self.store, tries_ttl_s=3600)
        self.sums = QualitySums(
            SETTINGS, self.store, Metrics(SETTINGS), Rules(SETTINGS, Graders(SETTINGS, catalogue()))
        )
        self.judged: list[OutboxEntry] = []
        self.held: list[LeasedPayload] = []
        self.unreadable = 0
        self.entries: list[Any] = []
        self.verdicts: list[str] = []

    def snapshot(self) -> dict[bytes, bytes]:
        keys = sorted(self.admin.scan_iter("whole:*", count=10_000))
        # A batch with a TTL was written for a script that did not choose it, and ends by itself.
        waits = dict(zip(keys, self._each("TTL", keys), strict=True))
        keys = [key for key in keys if b":batch:" not in key or waits[key] == -1]
        return dict(zip(keys, self._each("DUMP", keys), strict=True))

    def content(self) -> dict[bytes, Any]:
        """The values of all keys. A dump of a hash depends on the order of its fields, which reading may change."""
        dumps = self.snapshot()
        kinds = zip(dumps, self._each("TYPE", dumps), strict=True)
        hashes = [key for key, kind in kinds if kind == b"hash"]
        return {**dumps, **dict(zip(hashes, self._each("HGETALL", hashes), strict=True))}

    def _each(self, command: str, keys: Iterable[bytes]) -> list[Any]:
        """Run a command on each key, in one request: a thousand comparisons read every key."""
        pipeline = self.admin.pipeline(transaction=False)
        for key in keys:
            pipeline.execute_command(command, key)
        return pipeline.execute()

    def restore(self, snapshot: dict[bytes, bytes]) -> None:
        pipeline = self.admin.pipeline(transaction=False)
        if extra := [key for key in self.admin.scan_iter("whole:*", count=10_000) if key not in snapshot]:
            pipeline.delete(*extra)
        for key, value in snapshot.items():
            pipeline.restore(key, 0, value, replace=True)
        pipeline.execute()

    @contextlib.contextmanager
    def monitored(self) -> Iterator[list[str]]:
        """Collect the commands of a block, those of scripts included."""
        commands: list[str] = []
        with self.admin.monitor() as monitor:
            yield commands
            self.admin.echo("the end of the block")
            for command in monitor.listen():
                if "the end of the block" in command["command"]:
                    return
                commands.append(command["command"])

    def counted(self) -> tuple[dict[bytes, bytes], set[bytes]]:
        """The accounting and the ledger."""
        fields = {field for key in self.admin.scan_iter("whole:evaluations:*") for field in self.admin.hgetall(key)}
        return self.admin.hgetall(self.keys.account_all), fields

    def prepare(self, name: str) -> None:
        """Bring about what a step is for."""
        if name == "sweep":
            # One lease has ended, and the others last for as long as this test.
            ids = [each.lease.batch_id for each in self.held]
            self.admin.zadd(self.keys.leases, dict.fromkeys(ids, time.time() * 1000 + 3_600_000) | {ids[3]: 1})
        if name == "renew":
            self.admin.zadd(self.keys.leases, {self.held[0].lease.batch_id: 1})
        if name == "keep":
            self.admin.xreadgroup("metrics", "reader", {self.keys.verdicts: ">"}, block=1)
            self.verdicts = [entry_id.decode() for entry_id, _ in self.admin.xrange(self.keys.verdicts)]
        if name == "add_sums":
            self.judge()

    # --- the steps ---
    def choose(self) -> None:
        plan = _planner(self.store).plan(read_entry(entry, 10**6) for entry in self.entries)
        self.store.run("choose", plan.keys, plan.arguments, plan.bodies)

    def take(self) -> None:
        self.held = self.leases.take(MODEL, "ours", 10)
        assert len(self.held) == 4 - self.unreadable

    def take_back(self) -> None:
        self.held = [*self.held[:3], *self.leases.take(MODEL, "ours", 10)]
        assert len(self.held) == 4 - self.unreadable

    def sweep(self) -> None:
        assert self.leases.sweep([MODEL]) == 1

    def put_back(self) -> None:
        self.leases.put_back(self.held[3].lease)

    def renew(self) -> None:
        lease = self.held[0].lease
        assert self.leases.renew([lease]) == set()
        due_ms = self.admin.zscore(self.keys.leases, lease.batch_id)
        assert due_ms is not None
        assert due_ms > time.time() * 1000 + 10_000, "its full length"

    def park(self) -> None:
        self.leases.put_back(self.held[3].lease, delay_s=60, tries={"evaluation": 1})

    def record(self) -> None:
        both = [(verdict(item, each), each.period) for item, each in self._items(0)[:2]]
        self.ledger.record([FinalVerdict.encode(each, period, keep=True) for each, period in both])

    def add_dead_letter(self) -> None:
        letters = [(self._letter(item), verdict(item, each, "timeout")) for item, each in self._items(1)]
        self.ledger.add_dead_letter(letters)

    def retry(self) -> None:
        letters = DeadLetterStore(self.store)
        ids = [stored.letter.evaluation.id for stored in letters.find(VerdictFilter())][:1]
        for group in group_letters(letters.read(ids), 2):
            retry(self.store, SETTINGS, group)

    def record_dead(self) -> None:
        """Record a verdict of an evaluation that became a dead letter."""
        (item, evaluation), *_ = self._items(1)
        self.ledger.record([FinalVerdict.encode(verdict(item, evaluation), evaluation.period)])

    def remove(self) -> None:
        _, (_, evaluation) = self._items(1)
        self.ledger.remove([evaluation.id])

    def finish(self) -> None:
        self.leases.finish(self.held[0].lease.batch_id, MODEL)

    def forget(self) -> None:
        (item, _), *_ = self._items(2)
        Forgetting(self.store, SETTINGS, ForgetTarget(trace_id=item.trace.trace_id)).run()

    def pull(self) -> None:
        members = PendingFeedback(self.store, 60.0).read_all()
        trace_id = members[0].item.trace_id
        entry = next(entry for entry in self.entries if trace_id.encode() in entry[1].get(b"t", b""))
        feedback = FeedbackOnTrace(trace_id, members, [PublicationRef(entry[0].decode(), 100)])
        FeedbackChooser(SETTINGS, self.store, _planner(self.store).sampler.rules).choose([feedback])

    def judge_session(self) -> None:
        """Choose the evaluation of the conversation of the third batch."""
        (session,) = self.store.call(lambda client: client.zrange(self.keys.sessions_due, 0, -1))
        key = SessionKeys(self.keys.prefix).session(session.decode())
        due = DueSession(session.decode(), decode_session(self.store.call(lambda client: client.hgetall(key))))
        SessionChooser(SETTINGS, self.store, catalogue(), Graders(SETTINGS, catalogue())).choose([due])

    def keep(self) -> None:
        self.store.run("keep", (self.keys.verdicts,), ("metrics", "reader", self.verdicts[0]))

    def acknowledge(self) -> None:
        ids = self.verdicts
        names = (self.keys.verdicts, self.keys.account_all, self.keys.groups)
        self.store.run("acknowledge", names, ("metrics", ids[-1], *ids))

    def judge(self) -> None:
        """Put two verdicts of a conversation into the outbox, and all but the last of it into the monitor's sums."""
        for place in range(2):
            payload = msgspec.json.encode(make_judged(place, session_id="conversation"))
            self.admin.xadd(self.keys.verdicts, {"v": 1, "j": payload})
        read = self.store.read_group(self.keys.verdicts, MONITOR_GROUP, "reader", count=100, block_ms=1)
        *first, last = (entry for each in read if isinstance(entry := read_outbox_entry(each), OutboxEntry))
        self.sums.deliver(first)
        self.judged = [last]

    def add_sums(self) -> None:
        self.sums.deliver(self.judged)

    def open_group(self) -> None:
        self.store.make_group(self.keys.verdicts, "otel")

    def measure(self) -> None:
        measure(self.store, Caps(max_entries=4), groups=("metrics",), report_cuts=True)

    def clock(self) -> None:
        keys = self.keys
        times = (keys.clock, keys.leases, keys.feedback, keys.sessions_due)
        self.store.run("clock", (*times, keys.traces, keys.verdicts, keys.sweeper), (15_000, 1_000))

    def circuits(self) -> None:
        Heartbeat(self.store, lambda: {MODEL: None}).exchange_circuits()

    def presence(self) -> None:
        Heartbeat(self.store).beat({"judge": True})

    def _items(self, place: int) -> list[tuple[batches.Item, batches.Evaluation]]:
        batch = batches.decode_batch(self.held[place].payload)
        return [(item, evaluation) for item in batch.items for evaluation in item.evaluations]

    def _letter(self, item: batches.Item) -> DeadLetter:
        return DeadLetter(1, item.evaluations[0], "default", MODEL, "timeout", 2, time.time(), time.time(), item=item)


STEPS = (
    *("choose", "take", "sweep", "take_back", "put_back", "take_back", "renew", "park", "record", "keep"),
    *("acknowledge", "add_sums", "add_dead_letter", "retry", "record_dead", "remove", "finish", "pull"),
    *("judge_session", "open_group", "clock", "circuits", "presence", "forget", "measure"),
)
WITHOUT_MEMORY = {
    *("put_back", "renew", "park", "keep", "acknowledge", "remove", "finish", "clock", "circuits", "presence"),
    "measure",
}
"""Steps that protect work or free memory: they run without memory. All others are refused."""


def verdict(item: batches.Item, evaluation: batches.Evaluation, reason: str | None = None) -> Verdict:
    fields = {"evaluation_id": evaluation.id, "judge": evaluation.judge, "judge_version": evaluation.version}
    outcome = "unscored" if reason else "abstained"
    return make_verdict(trace_id=item.trace.trace_id, span_id=None, outcome=outcome, reason=reason, **fields)


@contextlib.contextmanager
def wrong_type(scene: Scene, key: str) -> Iterator[None]:
    """Store a value of another type under a key."""
    is_string = scene.admin.type(key) == b"string"
    scene.admin.delete(key)
    scene.admin.hset(key, "a", "b") if is_string else scene.admin.set(key, "somebody's")
    scene.unreadable = int(":batch:" in key)
    yield
    scene.unreadable = 0


@contextlib.contextmanager
def full_counter(scene: Scene, key: str, field: str) -> Iterator[None]:
    scene.admin.hset(key, field, LARGEST)
    yield


def causes(
    scene: Scene, snapshot: dict[bytes, bytes], commands: list[str]
) -> dict[str, contextlib.AbstractContextManager[Any]]:
    """Return what can hinder a step that runs these commands: what it never touches hinders nothing."""
    keys, text = scene.keys, "\n".join(commands)
    fixed = (keys.leases, keys.holders, keys.waiting, keys.dead, keys.dead_due, keys.dead_retries, keys.account_all)
    names = {key.decode() for key in snapshot} | {*fixed, keys.account_now(), keys.feedback, keys.verdicts, keys.groups}
    fields = [(key, field) for key in (keys.account_all, keys.account_now()) for field in COUNTED]
    counters = [
        (key, field) for key, field in fields if any(key in command and field in command for command in commands)
    ]
    run = {command.partition(" ")[0].lower() for command in commands}
    return {
        **{f"the user may not run {name}": without_permission(scene.admin, name) for name in COMMANDS if name in run},
        **{f"{name} holds something else": wrong_type(scene, name) for name in sorted(names) if name in text},
        **{f"{field} of {key} is full": full_counter(scene, key, field) for key, field in counters},
        f"bytes of {MODEL} are full": full_counter(scene, keys.waiting, MODEL),
        "memory is full": filled(scene.server),
    }


@pytest.fixture
def scene(server: EmbeddedRedis) -> Iterator[Scene]:
    scene = Scene(server)
    scene.store.make_group(scene.keys.traces, INGEST_GROUP)
    scene.store.make_group(scene.keys.verdicts, "metrics")
    scene.sums.prepare()
    fields = {"service": "shop", "output": "It is.", "input": "Is it?", "ended_at": time.time()}
    for number in range(8):
        trace = Trace(trace_id=f"{number + 1:032x}", session_id="s1" if number in {4, 5} else None, **fields)
        scene.admin.xadd(scene.keys.traces, {"v": "1", "t": msgspec.json.encode(trace)})
    feedback = LateFeedback(trace_id=f"{8:032x}", score=-1.0)
    scene.admin.xadd(scene.keys.traces, {"v": "1", "f": msgspec.json.encode(feedback)})
    scene.entries = scene.store.read_group(scene.keys.traces, INGEST_GROUP, "reader", count=100, block_ms=1)
    scene.admin.xreadgroup("metrics", "reader", {scene.keys.verdicts: ">"}, block=1)
    yield scene
    scene.store.close()
    scene.admin.close()


def attempt(step: Callable[[], None]) -> str | None:
    """Run a step, and return why it was refused."""
    try:
        step()
    except StoreError as error:
        return str(error)
    return None


@pytest.mark.slow("hinders every command of a script")
def test_a_script_that_is_hindered_runs_as_a_whole_or_not_at_all(scene: Scene) -> None:
    failures: list[str] = []
    refusals, without_memory = 0, set[str]()
    for name in STEPS:
        step = getattr(scene, name)
        scene.prepare(name)
        before, held = scene.snapshot(), scene.held
        with scene.monitored() as commands:
            step()
        after, held_after = scene.counted(), scene.held
        hindrances = causes(scene, before, commands)
        if name == "measure":  # which is repeated each second, and trims before it measures
            hindrances = {cause: present for cause, present in hindrances.items() if "memory" in cause}
        for cause, present in hindrances.items():
            scene.restore(before)
            scene.held = held
            with present:
                spoiled = scene.content()
                reply = attempt(step)
                result = scene.content()
            refusals += reply is not None
            # Only a single script is atomic. Forgetting runs several and is repeated; so does fetching a batch that is
            # missing, whose lease expires.
            several = name == "forget" or (name == "take" and ":batch:" in cause)
            if reply is not None and not several and result != spoiled:
                failures.append(f"{name}, {cause}: refused half-way: {reply}")
            if reply is None and cause.startswith("the user") and scene.counted() != after:
                failures.append(f"{name}, {cause}: done in part")
            if cause == "memory is full" and reply is None:
                without_memory.add(name)
                assert result != spoiled, name
            if reply is not None and "refused the command (Error)" in reply:
                failures.append(f"{name}, {cause}: not foreseen: {reply}")
        scene.restore(before)
        scene.held = held
        assert attempt(step) is None, f"{name} with nothing in its way any more"
        scene.held = held_after if name == "take" and not scene.held else scene.held
    assert failures == []
    assert without_memory - {"forget"} == WITHOUT_MEMORY, "forgetting depends on what is left in batches"
    assert refusals > 290, "the causes are none"
    account = read_account(scene.store)
    assert (account.lost, account.sampled, account.chosen) == (0, 8, 10), account
    assert (account.abstained, account.dead) == (3, 0), account
    # The trace that was forgotten last had no verdict; every verdict exists once, and once in the sums.
    verdicts = [fields[b"j"] for _, fields in scene.admin.xrange(scene.keys.verdicts) if b"j" in fields]
    assert len(set(verdicts)) == len(verdicts) == 5
    span = time.time() - 7200, time.time() + 3600
    buckets = [
        each
        for bucket in read_buckets(scene.store, list(read_series(scene.store)), *span, fine=False)
        for each in bucket
    ]
    assert sum(bucket.sums.total.judgements for bucket in buckets) == 2
    assert sum(bucket.sums.over_sessions.sessions for bucket in buckets) == 1
