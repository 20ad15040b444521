"""Passes over the stream: what late feedback pulls in, what it does not, and each complaint ends exactly once."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import convert
from structlog.testing import capture_logs
from support.feedback import HEARD, Passes, complain, ended, evaluations, gathered, make_due, take
from support.judging import refuse
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    read_balanced_account,
    samples,
    select_metrics,
)
from support.tables import as_bytes, read_table

from judges.core.model import ModelSettings
from judges.core.verdict import Assessment, evaluation_id
from judges.registry import catalogue
from tracejudge import Feedback
from worker.core.config.loading import load
from worker.core.config.settings import Rule, Where
from worker.core.queue.batch import make_verdict
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP
from worker.features.late_feedback import pending as gathering

TABLES = read_table(__file__, "passes")
ONE = make_trace(1)
BOTH = [(ONE.trace_id, judge, "late_feedback", 1.0) for judge in ("relevance_to_query", "safety")]


def complained(keyspace: Keyspace, *numbers: int, about: Sequence[str] = (), **settings: Any) -> Passes:
    """Publish traces of these numbers and complaints, by default about each, which ingest gathers; a pass is due."""
    traces = make_traces(numbers)
    for trace in traces:
        keyspace.add(trace)
    for trace_id in about or [trace.trace_id for trace in traces]:
        complain(keyspace, trace_id)
    take(keyspace, **settings)
    return Passes(keyspace, **settings)


def test_a_complaint_pulls_its_trace_in_as_if_it_had_come_with_it(keyspace: Keyspace) -> None:
    keyspace.append("p1", make_traces(range(20)))
    complain(keyspace, ONE.trace_id, -0.5, "It came on Tuesday.")
    take(keyspace)
    before = read_balanced_account(keyspace)
    passes = Passes(keyspace)
    with capture_logs() as lines:
        passes.make()
    (line,) = (line for line in lines if line["event"] == "late feedback pass ended")
    assert (line["entries"], line["pulled"]) == (21, 1)
    assert "Tuesday" not in repr(lines)
    assert evaluations(keyspace) == BOTH
    (batch,) = keyspace.batches().values()
    (item,) = batch.items
    assert item.trace == make_trace(1, feedback=Feedback(-0.5, "It came on Tuesday."))
    assert {evaluation.id for evaluation in item.evaluations} == {
        evaluation_id(ONE, ONE.id, judge=judge, version=catalogue()[judge].version, judge_model="lexical")
        for judge in HEARD.judges
    }
    for evaluation in item.evaluations:
        by: dict[str, Any] = {"metrics": ("safety",), "judge_model": "lexical", "price": None, "user_key": ""}
        verdict, _ = make_verdict(Assessment("abstained"), item, evaluation, started_at=1.0, duration_s=0.1, **by)
        assert (verdict.origin, verdict.weight, verdict.probability) == ("late_feedback", 0.0, 1.0)
    assert passes.woken == [batch.id]
    assert set(keyspace.leases()) == {batch.id}
    assert keyspace.waiting() == {"lexical": keyspace.client.strlen(keyspace.keys.batch(batch.id))}
    assert (passes.outcomes, ended(keyspace), gathered(keyspace)) == ({"pulled": 1}, {"pulled": 1}, {})
    assert samples(passes.metrics) == {("late_feedback_total", "outcome=pulled"): 1}, "no metric of sampling changes"
    after = read_balanced_account(keyspace)
    assert (before.published, before.not_sampled, before.chosen) == (20, 20, 0)
    assert (after.published, after.not_sampled, after.sampled, after.duplicate) == (20, 20, 0, 0)
    assert (after.chosen, after.waiting, after.unread) == (2, 2, 0)
    assert keyspace.daily_accounting() == keyspace.accounting()


def test_the_rules_that_hear_complaints_choose_what_is_not_judged_yet(keyspace: Keyspace) -> None:
    for name, case in TABLES["choices"].items():
        keyspace.next_case(name)
        named = {key: case[key] for key in ("rules", "models", "batch_size") if key in case}
        loaded = load({f"TRACEJUDGE_{key.upper()}": json.dumps(value) for key, value in named.items()})
        settings = {"rules": (HEARD,)} | {key: getattr(loaded, key) for key in named}
        for number, *fields in case["traces"]:
            keyspace.add(make_trace(number, **(fields[0] if fields else {})))
        for about, *feedback in case["complaints"]:
            complain(keyspace, about if isinstance(about, str) else make_trace(about).trace_id, *feedback)
        at_ingest = {"rules": tuple(convert(rule, Rule) for rule in case["ingest"])} if "ingest" in case else {}
        take(keyspace, **settings | at_ingest)
        passes = Passes(keyspace, **settings)
        passes.make()
        assert ended(keyspace) == case["outcomes"]
        assert passes.outcomes == {key: amount for key, amount in case["outcomes"].items() if key != "not_negative"}
        batches = keyspace.batches()
        chosen = [
            (item.trace, evaluation, f"{evaluation.judge} {evaluation.origin} {batch.judge_model}")
            for batch in batches.values()
            for item in batch.items
            for evaluation in item.evaluations
        ]
        assert len({evaluation.id for _, evaluation, _ in chosen}) == len(chosen)
        assert sorted(
            f"{int(trace.trace_id, 16) - 1} {text} {evaluation.probability:g}" for trace, evaluation, text in chosen
        ) == sorted(case["evaluations"])
        if "heard" in case:
            assert {trace.feedback for trace, *_ in chosen} == {Feedback(*case["heard"])}
        if "sizes" in case:
            assert (
                sorted(sum(len(item.evaluations) for item in each.items) for each in batches.values()) == case["sizes"]
            )
            assert sorted(passes.woken) == sorted(batches)
        assert gathered(keyspace) == {}
        read_balanced_account(keyspace)


# --- the search: a trace is found by what it is, not by how it looks, and every kept entry is looked at once ---


def test_a_trace_is_found_however_it_is_written_and_nothing_else_is(keyspace: Keyspace) -> None:
    for name, (kind, version, payload, outcomes) in TABLES["entries"].items():
        keyspace.next_case(name)
        keyspace.add(as_bytes(payload), kind=kind, version=version)
        complain(keyspace, "wanted")
        take(keyspace, max_trace_bytes=2500)
        Passes(keyspace, max_trace_bytes=2500).make()
        assert ended(keyspace) == outcomes
        read_balanced_account(keyspace)


def test_a_pass_reads_every_entry_of_any_size_once(keyspace: Keyspace) -> None:
    large = "x" * 400_000
    for number in range(1_500):
        keyspace.add(make_trace(number, output=large if number % 50 == 0 else ""))

    def search(*numbers: int) -> tuple[int, list[int]]:
        for number in numbers:
            complain(keyspace, make_trace(number).trace_id)
        take(keyspace)
        passes.until_dealing()
        found = passes.stage._pass.search
        return found.read, [len(found.list_publications(make_trace(number).trace_id)) for number in numbers]

    # Complaints of several parts: about traces of any place, and as many about none.
    passes, expected = Passes(keyspace), [*(0, 1, 31, 32, 33, 700, 750, 1498, 1499), *range(1_000, 1_200)]
    unknown = range(1_500, 2_000)
    assert search(*expected, *unknown) == (1_500 + len(expected) + len(unknown), [1] * len(expected) + [0] * 500)
    passes.make()
    assert passes.outcomes == ended(keyspace) == {"pulled": len(expected), "not_found": len(unknown)}
    assert len(set(evaluations(keyspace))) == len(evaluations(keyspace)) == 2 * len(expected)
    assert read_balanced_account(keyspace).chosen == 2 * len(expected)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=1_000, approximate=False)
    for number in range(130):
        keyspace.add(make_trace(2_000, id=f"{number:016x}"))
    assert search(10, 1_400, 2_000)[1] == [0, 1, 100], "only what came since, without what is gone; of many the newest"
    passes.make()
    items = [item for batch in keyspace.batches().values() for item in batch.items]
    ids = {item.trace.id for item in items if item.trace.trace_id == make_trace(2_000).trace_id}
    assert ids == {f"{number:016x}" for number in range(30, 130)}


def test_a_pass_ends_where_the_stream_ended_and_goes_on_when_it_is_trimmed(keyspace: Keyspace) -> None:
    passes = complained(keyspace, *range(200), about=[make_trace(number).trace_id for number in (5, 199)])
    passes.turn(2)
    for trace in make_traces(range(200, 300)):
        keyspace.add(trace)
    passes.until_dealing()
    assert passes.stage._pass.search.read == 202
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=200, approximate=False)
    passes.turn(10)
    assert ended(keyspace) == {"not_found": 1, "pulled": 1}
    read_balanced_account(keyspace)
    keyspace.next_case("the stream is gone")
    passes = complained(keyspace, 1)
    keyspace.client.delete(keyspace.keys.traces)
    passes.make()
    assert ended(keyspace) == {"not_found": 1}


# --- when ---


def test_a_trace_that_sampling_has_not_decided_about_is_left_to_the_next_pass(keyspace: Keyspace) -> None:
    """Else a live evaluation would become a late one, and be missing in the quality series."""
    rules = (Rule(name="all", judges=("safety",)), HEARD)
    for state in ("not read yet", "read and not decided"):
        keyspace.next_case(state)
        complain(keyspace, ONE.trace_id)
        chosen = take(keyspace, rules=rules)
        keyspace.add(ONE)
        entries = keyspace.read() if state == "read and not decided" else None
        passes = Passes(keyspace, rules=rules)
        passes.make()
        assert (ended(keyspace), evaluations(keyspace)) == ({}, [])
        assert gathered(keyspace)[ONE.trace_id] == keyspace.soon(60)
        passes.turn(3)
        assert not passes.under_way, "not before its time has come again"
        chosen.process(entries)
        make_due(keyspace)
        passes.make()
        assert ended(keyspace) == {"pulled": 1}
        assert evaluations(keyspace) == [BOTH[0], (ONE.trace_id, "safety", "live", 1.0)]
        account = read_balanced_account(keyspace)
        assert (account.sampled, account.duplicate, account.chosen) == (1, 0, 2)
    keyspace.next_case("ingest has no group")
    passes = complained(keyspace, 1)
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    passes.make()
    assert list(gathered(keyspace)) == [ONE.trace_id]


def test_one_due_complaint_or_very_many_start_a_pass_over_all(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, passes = IngestHarness(keyspace, rules=(HEARD,)), Passes(keyspace)
    passes.turn(3)
    complain(keyspace, "1")
    chosen.process()
    passes.turn(3)
    assert (passes.under_way, list(gathered(keyspace))) == (False, ["1"]), "before its time nothing is sought"
    assert keyspace.client.exists(keyspace.keys.feedback_pass) == 0
    make_due(keyspace)
    complain(keyspace, "2")
    chosen.process()
    passes.make()
    assert ended(keyspace) == {"not_found": 2}
    monkeypatch.setattr(gathering, "_PASS_FROM", 3)
    passes = Passes(keyspace)
    for number in range(3):
        passes.turn()
        assert not passes.under_way
        complain(keyspace, f"many {number}")
        chosen.process()
    passes.make()
    assert ended(keyspace) == {"not_found": 5}


def test_complaints_wait_for_room_and_for_models_that_are_away(keyspace: Keyspace) -> None:
    passes = complained(keyspace, 1, max_waiting_bytes=1000)
    passes.pressure.set_waiting({"lexical": 1001})
    passes.until_dealing()
    passes.turn(5)
    assert (evaluations(keyspace), ended(keyspace)) == ([], {})
    passes.pressure.set_waiting({"lexical": 1000})
    passes.turn()
    assert ended(keyspace) == {"pulled": 1}

    keyspace.next_case("one of two models is shed")
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "dead")}
    lab = Rule("lab", ("safety",), always=HEARD.always, rate=0.0, model="dead", where=Where(service="lab"))
    other = make_trace(2, service="lab")
    keyspace.add(other)
    complain(keyspace, other.trace_id)
    passes = complained(keyspace, 1, rules=(HEARD, lab), models=models, max_waiting_bytes=10_000)
    passes.pressure.set_waiting({"dead": 10_001})
    passes.pressure.set_open_circuits({"dead": 60.0})
    passes.make()
    assert passes.outcomes == ended(keyspace) == {"pulled": 1}
    assert {trace_id for trace_id, *_ in evaluations(keyspace)} == {ONE.trace_id}
    assert gathered(keyspace)[other.trace_id] == keyspace.soon(60)
    passes.pressure.set_waiting({})
    make_due(keyspace)
    passes.make()
    assert passes.outcomes == ended(keyspace) == {"pulled": 2}
    assert read_balanced_account(keyspace).chosen == 5


def test_late_feedback_of_a_newer_version_is_left_to_newer_workers(keyspace: Keyspace) -> None:
    complain(keyspace, "1")
    take(keyspace)
    strangers = [json.dumps({"v": 2, "entry_id": "1-1", "trace_id": "2", "score": -1}), "?"]
    keyspace.client.zadd(keyspace.keys.feedback, dict.fromkeys(strangers, 1))
    passes = Passes(keyspace)
    passes.make()
    assert passes.outcomes == {"not_found": 1}
    assert sorted(keyspace.client.zrange(keyspace.keys.feedback, 0, -1)) == sorted(map(str.encode, strangers))
    passes.turn(2)
    assert not passes.under_way, "it is not looked at all the time"


# --- several workers, and workers that die: one pass at a time, no complaint lost, none judged twice ---

HOUR_MS = 3_600_000
NUMBERS = (3, 50, 90)
ALL_ENDED = {"pulled": 3, "not_found": 1}


def two_workers(keyspace: Keyspace, case: str) -> tuple[Passes, Passes]:
    """Begin a case with a hundred traces and four complaints, of which one is about no trace."""
    keyspace.next_case(case)
    complained(keyspace, *range(100), about=(*(make_trace(number).trace_id for number in NUMBERS), "never published"))
    return Passes(keyspace), Passes(keyspace)


def check_end(keyspace: Keyspace) -> None:
    found = sorted((make_trace(number).trace_id, *row[1:]) for number in NUMBERS for row in BOTH)
    assert (ended(keyspace), gathered(keyspace), evaluations(keyspace)) == (ALL_ENDED, {}, found)
    assert read_balanced_account(keyspace).chosen == len(found)


def test_one_worker_makes_a_pass_and_if_it_dies_anywhere_leaves_all_of_it_to_another(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_LEASE_MS", HOUR_MS)
    for turns in range(1, 7):
        dead, successor = two_workers(keyspace, f"after {turns} turns")
        dead.turn()
        keyspace.client.pexpire(keyspace.keys.feedback_pass, HOUR_MS // 2)
        dead.turn(turns - 1)
        if dead.under_way:
            is_kept = keyspace.client.pttl(keyspace.keys.feedback_pass) > HOUR_MS // 2
            assert is_kept is (turns > 1), "the lease is kept while the pass goes on"
            successor.turn(3)
            assert not successor.under_way, "as long as its lease lasts"
            assert keyspace.client.delete(keyspace.keys.feedback_pass) == 1
        else:
            assert keyspace.client.exists(keyspace.keys.feedback_pass) == 0, "the next pass need not wait"
        successor.turn(20)
        check_end(keyspace)


def test_a_worker_that_was_away_for_too_long_does_nothing_twice(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_LEASE_MS", HOUR_MS)
    slow, quick = two_workers(keyspace, "both choose")
    slow.until_dealing()
    assert keyspace.client.delete(keyspace.keys.feedback_pass) == 1
    quick.make()
    slow.stage.choose(slow.stage._pass, slow.stage._pass.part)
    assert (quick.outcomes, slow.outcomes, slow.woken) == (ALL_ENDED, {}, [])
    check_end(keyspace)
    slow, quick = two_workers(keyspace, "the other one goes on")
    slow.until_dealing()
    assert keyspace.client.delete(keyspace.keys.feedback_pass) == 1
    quick.turn()
    slow.turn()
    assert (slow.under_way, quick.under_way) == (False, True)
    slow.turn(5)
    assert keyspace.client.exists(keyspace.keys.feedback_pass) == 1, "it is the other's lease"
    quick.turn(20)
    check_end(keyspace)


def test_redis_that_goes_away_at_any_moment_costs_a_repetition_and_nothing_else(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(5):
        passes, _ = two_workers(keyspace, f"after {turn} turns")
        passes.turn(turn)
        with monkeypatch.context() as away:
            for name in ("run", "call"):
                away.setattr(keyspace.store, name, refuse)
            with pytest.raises(StoreError):
                passes.turn()
        passes.turn(20)
        assert passes.outcomes == ALL_ENDED
        check_end(keyspace)
    passes, _ = two_workers(keyspace, "the answer is lost")
    passes.until_dealing()
    run = keyspace.store.run

    def lossy(script: str, *arguments: Any) -> Any:
        answer = run(script, *arguments)
        return refuse() if script == "choose_late_feedback" else answer

    with monkeypatch.context() as away:
        away.setattr(keyspace.store, "run", lossy)
        with pytest.raises(StoreError):
            passes.turn()
    passes.turn(2)
    assert not passes.under_way
    counted = select_metrics(samples(passes.metrics), "late_feedback_total")
    assert counted == {}, "the accounting has it, and nothing counts twice"
    check_end(keyspace)
