"""A dead judge model that has too much to do is shed: of a trace, of a read, once, and with balanced accounting."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    read_balanced_account,
    samples,
    select_metrics,
)

from judges.core.model import ModelSettings
from worker.core.config.settings import Rule, Where
from worker.core.ingest import consumer as reader
from worker.core.storage import group_reader

MODELS = {name: ModelSettings(provider="lexical", label=name) for name in ("well", "dead")}
WELL = Rule(name="well", judges=("safety",), model="well", where=Where(service="both"))
DEAD = Rule(name="dead", judges=("safety", "relevance_to_query"), model="dead")
HALF = Rule(name="half", judges=("relevance_to_query",), model="well", rate=0.5, where=Where(service="half"))
NUMBERS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["both", "alone", "half"])), max_size=12)
any_redis_server = one_redis


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
    keyspace.next_case("repeated traces and steps shed nothing twice")
    chosen = make_ingest(keyspace)
    for _ in range(2):
        keyspace.add(make_trace(1, service="both"))
        chosen.process()
    assert keyspace.counted("sampled", "duplicate", "shed:dead") == {"sampled": 1, "duplicate": 1, "shed:dead": 4}
    read_balanced_account(keyspace)
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
