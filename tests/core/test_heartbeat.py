"""Who is there, where readers stand, which judge models are dead for all workers, and what maintenance makes of it.

A dead judge model that has too much to do is shed: of a trace, of a read, once, and with balanced accounting.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.stages import (
    IngestHarness,
    Keyspace,
    make_maintenance,
    make_trace,
    make_traces,
    read_balanced_account,
    samples,
    select_metrics,
    settings_of,
    use_script_time,
)
from support.tables import read_table

from judges.core.model import ModelSettings
from worker.core.config.settings import Rule, Where
from worker.core.ingest import consumer as reader
from worker.core.queue.leases import Leases
from worker.core.storage import group_reader
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry import health as presence
from worker.core.telemetry.backlog import Backpressure, Bounds
from worker.core.telemetry.health import Heartbeat, flow_positions, flows, live_workers
from worker.core.telemetry.metrics import Metrics

TRACE = {"trace_id": "a", "service": "shop", "output": "o"}
MODEL, OTHER = "lexical", "other"
PUBLISHED_MS = 10_000
NOW_S = 1_700_000_000
BOUND = 100
KNOWN = ("a", "b")
UNKNOWN = ("old", "of another prefix")
SURELY_S = 10.0  # dead for so long, also a slow model is held for dead
FREE, PAUSED = (Bounds(paused=paused, shed=frozenset()) for paused in (False, True))
SHED = Bounds(paused=False, shed=frozenset("a"))
Circuits = Mapping[str, float | None]
History = list[tuple[str, dict[str, Any]]]
any_redis_server = one_redis


def at(keyspace: Keyspace, **capacity: bool) -> dict[str, str | None]:
    return flow_positions(keyspace.store, ("metrics", "otel"), capacity)


def published(keyspace: Keyspace) -> list[dict[str, float | None]]:
    fields = keyspace.client.hvals(keyspace.keys.circuits)
    return [msgspec.json.decode(field.split(b" ", 1)[1]) for field in fields]


def publish(keyspace: Keyspace, process: str, circuits: Circuits, *, ago_ms: int) -> None:
    """Store the circuits that a worker published some time before the stopped clock."""
    field = b"%d %s" % (NOW_S * 1000 - ago_ms, msgspec.json.encode(circuits))
    keyspace.client.hset(keyspace.keys.circuits, process, field)


def idle_worker(keyspace: Keyspace) -> Heartbeat:
    """Make the heartbeat of a worker that judges nothing."""
    return Heartbeat(keyspace.store, dict)


class Keeper:
    """One worker's maintenance, run by hand."""

    def __init__(
        self, keyspace: Keyspace, circuits: Callable[[], Mapping[str, float | None]] = dict, *, bound: int = 1
    ) -> None:
        self.metrics, self.pressure = Metrics(settings_of(keyspace)), Backpressure(bound, {MODEL, OTHER})
        self._stage = make_maintenance(keyspace, self.metrics, backpressure=self.pressure, circuits=circuits)

    def turn(self) -> Bounds:
        self._stage.run_once()
        return self.pressure.bounds

    @property
    def batches(self) -> dict[str, float]:
        """How many batches wait and are parked."""
        gauges = samples(self.metrics)
        return {name: gauges.get((f"batches_{name}",), 0) for name in ("waiting", "parked")}


def pressure_of(*events: tuple[str, dict[str, Any]]) -> Backpressure:
    """Make a pressure that has heard this."""
    pressure = Backpressure(BOUND, KNOWN)
    for kind, heard in events:
        (pressure.set_waiting if kind == "waiting" else pressure.set_open_circuits)(heard)
    return pressure


def sizes(*names: str) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(names), st.integers(BOUND - 2, BOUND + 2))


def deaths(*names: str, most_s: float = 3 * SURELY_S) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(names), st.floats(0.001, most_s))


def histories(*names: str) -> st.SearchStrategy[History]:
    """What may be heard of these models, in any order."""
    waiting, dead = st.tuples(st.just("waiting"), sizes(*names)), st.tuples(st.just("dead"), deaths(*names))
    return st.lists(st.one_of(waiting, dead), max_size=12)


def leave_work(keyspace: Keyspace) -> None:
    """Leave three batches of one judge model, of which one is taken and one parked, and two of another."""
    for model in (MODEL, MODEL, MODEL, OTHER, OTHER):
        keyspace.add_batch(model)
    leases = Leases(keyspace.store, tries_ttl_s=60)
    _, parked = leases.take(MODEL, "a", 2)
    leases.put_back(parked.lease, delay_s=60)


def test_marks_of_readers_are_what_they_have_not_read(keyspace: Keyspace) -> None:
    keyspace.client.delete(keyspace.keys.traces)
    assert at(keyspace) == {"ingest": None, "export:metrics": None, "export:otel": None}
    keyspace.next_case("a mark is the last read entry until all are read")
    ids = [keyspace.add(TRACE) for _ in range(3)]
    assert at(keyspace)[INGEST_GROUP] == "0-0"
    keyspace.read(1)
    assert at(keyspace)[INGEST_GROUP] == ids[0]
    keyspace.read()
    assert at(keyspace)[INGEST_GROUP] is None, "read, though not acknowledged"
    keyspace.add(TRACE)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=0)
    assert at(keyspace)[INGEST_GROUP] is None, "a trimmed entry is not waiting"
    for group in ("metrics", "otel"):
        keyspace.client.xgroup_create(keyspace.keys.verdicts, group, id="0", mkstream=True)
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1})
    keyspace.client.xreadgroup("metrics", "me", {keyspace.keys.verdicts: ">"})
    assert (at(keyspace)["export:metrics"], at(keyspace)["export:otel"]) == (None, "0-0")
    batch_id = keyspace.add_batch(MODEL)
    assert at(keyspace, **{MODEL: True})[f"judge:{MODEL}"] == batch_id
    assert at(keyspace, **{MODEL: False})[f"judge:{MODEL}"] is None
    Leases(keyspace.store, tries_ttl_s=60).take(MODEL, "me", 1)
    assert at(keyspace, **{MODEL: True})[f"judge:{MODEL}"] is None
    own = flows(("ingest", "export"), {"metrics": "export", "otel": "export"}, ("m",))
    exports = [("export:metrics", "export"), ("export:otel", "export")]
    assert [(name, role) for name, role, *_ in own] == [("ingest", "ingest"), *exports]
    assert [name for name, *_ in flows(("judge",), {"metrics": "export"}, ("a", "b"))] == ["judge:a", "judge:b"]


def test_a_heartbeat_counts_for_ten_seconds_and_then_goes(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(presence, "HEARTBEAT_MS", 60_000)
        assert live_workers(keyspace.store) == []
        first, second = Heartbeat(keyspace.store), Heartbeat(keyspace.store)
        first.beat({"ingest": True, "judge": False})
        second.beat({"export": True})
        second.beat({"export": False})
        roles = sorted((dict(worker.roles) for worker in live_workers(keyspace.store)), key=len)
        assert roles == [{"export": False}, {"ingest": True, "judge": False}]
    for age_s, there, kept in ((9, True, True), (12, False, True), (70, False, False)):
        keyspace.next_case(f"{age_s} s")
        with monkeypatch.context() as patch:
            Heartbeat(keyspace.store).beat({"ingest": True})
            name = f"{keyspace.prefix}:workers"
            (process,) = keyspace.client.hkeys(name)
            said_at, message = keyspace.client.hget(name, process).split(b" ")
            keyspace.client.hset(name, process, b"%d %s" % (int(said_at) - age_s * 1000, message))
            patch.setattr(keyspace.store, "now_ms", lambda now_ms=int(said_at): now_ms)
            assert [worker.process for worker in live_workers(keyspace.store)] == ([process.decode()] if there else [])
            Heartbeat(keyspace.store).beat({"judge": True})
            assert keyspace.client.hexists(name, process) == kept
            assert 0 < keyspace.client.ttl(name) <= 60
    for circuits_of_workers, dead in read_table(__file__, "circuits")["rows"]:
        keyspace.next_case(f"{circuits_of_workers}")
        before = keyspace.everything()
        idle = idle_worker(keyspace)
        assert idle.configured_models is None, "nothing is known before the first exchange"
        assert (idle.exchange_circuits(), keyspace.everything()) == ({}, before), "it only listens"
        workers = [Heartbeat(keyspace.store, lambda circuits=circuits: circuits) for circuits in circuits_of_workers]
        for worker in workers:
            worker.exchange_circuits()
        assert [worker.exchange_circuits() for worker in (*workers, idle)] == [dead] * (len(workers) + 1)
        assert idle.configured_models == {name for circuits in circuits_of_workers for name in circuits}


def test_published_circuits_follow_the_worker_and_expire(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    here: dict[str, float | None] = {}
    worker = Heartbeat(keyspace.store, lambda: here)
    dead = []
    for open_for_s in (None, 0.0, 3.5, 0.0):
        here["a"] = open_for_s
        dead.append(worker.exchange_circuits())
    assert dead == [{}, {}, {"a": 3.5}, {}]
    assert published(keyspace) == [{"a": 0.0}], "one entry for each worker"
    use_script_time(monkeypatch, keyspace, str(NOW_S))
    keyspace.next_case("of a worker that ended")
    publish(keyspace, "ended", {"a": 0.0, "b": 60.0}, ago_ms=PUBLISHED_MS + 1)
    publish(keyspace, "ahead of our time", {"a": 0.0}, ago_ms=-PUBLISHED_MS - 1)
    worker = Heartbeat(keyspace.store, lambda: {"a": 5.0})
    assert (worker.exchange_circuits(), worker.configured_models) == ({"a": 5.0}, {"a"})
    assert published(keyspace) == [{"a": 5.0}], "and is not kept"
    for ago_ms in (PUBLISHED_MS, -PUBLISHED_MS):
        keyspace.next_case(f"just not expired: {ago_ms}")
        publish(keyspace, "another", {"a": 0.0}, ago_ms=ago_ms)
        assert Heartbeat(keyspace.store, lambda: {"a": 5.0}).exchange_circuits() == {}
        assert published(keyspace) == [{"a": 0.0}, {"a": 5.0}], "and is kept"
    keyspace.next_case("of a model without workers")
    publish(keyspace, "ended", {"a": 60.0}, ago_ms=PUBLISHED_MS + 1)
    heartbeat = idle_worker(keyspace)
    assert (heartbeat.exchange_circuits(), heartbeat.configured_models) == ({}, set())
    assert published(keyspace) == []


def test_maintenance_reports_waiting_and_parked_batches_and_what_they_hold_up(keyspace: Keyspace) -> None:
    leave_work(keyspace)
    keeper = Keeper(keyspace, lambda: {MODEL: 0.0, OTHER: None})
    assert keeper.turn() == Bounds(paused=True, shed=frozenset())
    assert keeper.batches == {"waiting": 4, "parked": 1}
    keyspace.next_case("batches of a dead model are parked, and new evaluations are shed")
    leave_work(keyspace)
    judging = Keeper(keyspace, lambda: {MODEL: 2.0, OTHER: 30.0})
    assert judging.turn() == Bounds(paused=False, shed=frozenset({MODEL, OTHER}))
    assert judging.batches == {"waiting": 1, "parked": 4}
    ingesting = Keeper(keyspace)
    assert ingesting.turn() == judging.turn(), "a worker that judges nothing hears of it"
    alive = Keeper(keyspace, lambda: {MODEL: 60.0, OTHER: 0.0})
    assert alive.turn() == Bounds(paused=True, shed=frozenset({MODEL}))
    assert alive.batches == {"waiting": 3, "parked": 2}


def test_a_slow_model_pauses_ingest_and_a_dead_one_over_the_bound_is_shed() -> None:
    assert pressure_of().bounds == FREE
    over = BOUND + 1
    for waiting, dead, expected in (
        ({"a": BOUND}, {}, FREE),
        ({"a": BOUND, "b": BOUND}, {}, FREE),
        ({"a": over}, {"a": 0.1}, SHED),
        ({"a": over, "b": 1}, {"a": 60.0, "b": 60.0}, SHED),
        ({"a": over, "b": over}, {"a": 60.0}, Bounds(paused=True, shed=frozenset("a"))),
        ({"a": over, "b": over}, {"a": 60.0, "b": 0.1}, Bounds(paused=False, shed=frozenset("ab"))),
    ):
        assert pressure_of(("dead", dead), ("waiting", waiting)).bounds == expected, f"{waiting} {dead}"
    for dead_s, expected in ((0.1, PAUSED), (SURELY_S - 0.1, PAUSED), (SURELY_S, SHED), (3600.0, SHED)):
        assert pressure_of(("waiting", {"a": over}), ("dead", {"a": dead_s})).bounds == expected, dead_s
    # One that comes back with much to do is slow until it has done it.
    events: tuple[tuple[str, dict[str, Any]], ...] = (("dead", {"a": 1.0}), ("waiting", {"a": over}), ("dead", {}))
    events += (("dead", {"a": 1.0}), ("waiting", {"a": BOUND}), ("waiting", {"a": over}))
    bounds = [pressure_of(*events[:count]).bounds for count in range(2, 7)]
    assert bounds == [SHED, PAUSED, PAUSED, FREE, SHED], "it may open for a moment; then that it was slow is forgotten"


@given(histories(*KNOWN, *UNKNOWN), deaths("b"), st.lists(deaths("a", most_s=SURELY_S - 0.001), max_size=6))
def test_a_living_model_past_the_bound_pauses_and_others_change_nothing(
    history: History, dead: dict[str, float], openings: list[dict[str, float]]
) -> None:
    alone = [(kind, {name: value for name, value in heard.items() if name in KNOWN}) for kind, heard in history]
    assert pressure_of(*history).bounds == pressure_of(*alone).bounds, "models that nothing is chosen for"
    over = ("waiting", {"a": BOUND + 1})
    waiting = [heard for kind, heard in history if kind == "waiting"]
    is_over = {name for name in KNOWN if waiting and waiting[-1].get(name, 0) > BOUND}
    bounds = pressure_of(*history).bounds
    assert (bounds.shed <= is_over, bounds.paused) == (True, bounds.shed != is_over), "waited for or shed"
    bounds = pressure_of(*history, ("dead", dead), over).bounds
    assert (bounds.paused, "a" in bounds.shed) == (True, False)
    pressure = pressure_of(*history, ("dead", {}), over)
    for opening in openings:
        pressure.set_open_circuits(opening)
        assert pressure.bounds == PAUSED, "short openings never shed a model that was slow before"
        pressure.set_waiting({"a": BOUND + 2})
        assert pressure.bounds == PAUSED


# --- shedding ---
MODELS = {name: ModelSettings(provider="lexical", label=name) for name in ("well", "dead")}
WELL = Rule(name="well", judges=("safety",), model="well", where=Where(service="both"))
DEAD = Rule(name="dead", judges=("safety", "relevance_to_query"), model="dead")
HALF = Rule(name="half", judges=("relevance_to_query",), model="well", rate=0.5, where=Where(service="half"))
NUMBERS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["both", "alone", "half"])), max_size=12)


def make_ingest(keyspace: Keyspace, *, dead: bool = True, **fields: Any) -> IngestHarness:
    """Make an ingest for which, unless it is alive, one of two judge models is dead and has too much to do."""
    settings = {"rules": (WELL, DEAD, HALF), "models": MODELS, "max_waiting_bytes": 10_000, **fields}
    chosen = IngestHarness(keyspace, **settings)
    if dead:
        # In Redis too, since ingest hears from there what waits whenever it made a batch.
        keyspace.client.hset(keyspace.keys.waiting, "dead", 10_001)
        chosen.pressure.set_waiting({"dead": 10_001})
        chosen.pressure.set_open_circuits({"dead": 60.0})
    return chosen


def evaluations(keyspace: Keyspace) -> Counter[str]:
    """Count what is in batches, by judge model."""
    batches = keyspace.batches().values()
    return Counter(batch.judge_model for batch in batches for item in batch.items for _ in item.evaluations)


def counted(chosen: IngestHarness, *names: str) -> dict[tuple[str, ...], float]:
    return select_metrics(samples(chosen.metrics), "shed_total", *names)


def test_a_trace_goes_on_to_healthy_models_and_is_shed_without_one(keyspace: Keyspace) -> None:
    chosen = make_ingest(keyspace)
    shed = {
        sample.labels["judge_model"]: sample.value
        for family in chosen.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tracejudge_shed_total"
    }
    assert shed == {"well": 0, "dead": 0}, "every model is there from the start"
    keyspace.append("p1", make_traces(range(5), service="both"))
    chosen.process()
    counts = {"sampled": 5, "shed": 0, "shed:dead": 10, "chosen": 5}
    assert (evaluations(keyspace), keyspace.counted(*counts)) == ({"well": 5}, counts)
    assert counted(chosen, "traces_total") == {
        ("shed_total", "judge_model=dead"): 10,
        ("traces_total", "outcome=sampled", "service=both"): 5,
    }
    assert read_balanced_account(keyspace).reasons == {"shed:dead": 10}
    keyspace.next_case("a trace that only the dead model wants")
    chosen = make_ingest(keyspace)
    keyspace.append("p1", make_traces(range(3), service="alone"))
    keyspace.add(make_trace(3, service="alone"))
    chosen.process()
    assert (evaluations(keyspace), chosen.woken) == ({}, [])
    assert counted(chosen, "traces_total", "producer_published_total") == {
        ("shed_total", "judge_model=dead"): 8,
        ("traces_total", "outcome=shed", "service=alone"): 4,
        ("producer_published_total", "service=alone"): 4,
    }
    account = read_balanced_account(keyspace)
    assert (account.published, account.shed, account.chosen, account.reasons) == (4, 4, 0, {"shed:dead": 8})
    keyspace.next_case("a shed trace that is published again is chosen after the outage")
    for dead in (True, False):
        keyspace.add(make_trace(1, service="alone"))
        make_ingest(keyspace, dead=dead).process()
    assert (evaluations(keyspace), keyspace.counted("shed", "sampled")) == ({"dead": 2}, {"shed": 1, "sampled": 1})
    read_balanced_account(keyspace)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.tuples(NUMBERS, st.booleans(), st.booleans()), max_size=4))
def test_the_accounting_balances(keyspace: Keyspace, rounds: list[tuple[list[tuple[int, str]], bool, bool]]) -> None:
    before, shed = keyspace.counted("shed:dead")["shed:dead"], 0
    for numbers, dead, again in rounds:
        chosen = make_ingest(keyspace, dead=dead)
        keyspace.append("p1", [make_trace(number, service=service) for number, service in numbers])
        entries = keyspace.read()
        for _ in range(1 + again):
            chosen.process(entries)
        account = read_balanced_account(keyspace)
        assert account.unread == 0
        shed += int(counted(chosen).get(("shed_total", "judge_model=dead"), 0))
        assert sum(evaluations(keyspace).values()) == account.chosen
    assert keyspace.counted("shed:dead")["shed:dead"] - before == shed


def test_begin_and_end_of_shedding_lie_within_a_read(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = make_ingest(keyspace)
    with capture_logs() as logs:
        for waiting in ({"dead": 10_001}, {"dead": 10_001}, {}, {}):
            chosen.pressure.set_waiting(waiting)
            chosen.ingest.run_once()
    events = [(entry["event"], entry["judge_model"]) for entry in logs]
    assert events == [("shedding started", "dead"), ("shedding ended", "dead")]
    keyspace.next_case("the rest of a read")
    monkeypatch.setattr(group_reader, "READ_BYTES", 500)
    chosen = make_ingest(keyspace, dead=False, max_waiting_bytes=1_000)
    chosen.pressure.set_open_circuits({"dead": 60.0})
    for trace in make_traces(range(20), service="alone"):
        keyspace.add(trace)
    while keyspace.measure().traces.lag:
        chosen.ingest.run_once()
    assert chosen.pressure.bounds.shed == {"dead"}
    assert 1_000 < keyspace.waiting()["dead"] < 3_000
    account = read_balanced_account(keyspace)
    assert (account.sampled + account.shed, account.chosen) == (20, 2 * account.sampled)
    assert account.shed > 0
