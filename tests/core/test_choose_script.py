"""Ingest and its script: what was read ends under exactly one outcome, in one step, however often that step is made."""

import time
from collections import Counter
from typing import Any

import pytest
from support.stage_parts import IngestHarness, Keyspace, make_trace, make_traces, planner_of, samples, select_metrics

from judges.core.model import ModelSettings
from judges.core.verdict import evaluation_id
from judges.registry import catalogue, load_judges
from tracejudge import Feedback
from worker.base.accounting import read_account
from worker.core.config.settings import Rule, Where
from worker.core.selection.sampling import position
from worker.core.selection.stream_entry import read_entry
from worker.core.storage.client import StoreError

SHOP = Where(service="shop")
HALF = Rule(name="half", where=SHOP, judges=("safety", "relevance_to_query"), rate=0.5, always=("error",))
MODELS = {
    "default": ModelSettings(provider="lexical"),
    "other": ModelSettings(provider="lexical", label="second opinion"),
}
FEEDBACK = {"trace_id": "1", "score": -1}
INVALID: dict[str, dict[str, Any]] = {
    "not_json": {"payload": b"{"},
    "wrong_type": {"payload": {"trace_id": "1", "service": None, "output": ""}},
    "unknown_version": {"payload": make_trace(900), "version": "2"},
    "no_payload": {"payload": make_trace(901), "kind": "x"},
    "too_large": {"payload": make_trace(902, output="x" * 3000)},
}


def below(numbers: range, rate: float) -> list[int]:
    """Find which traces a rate chooses."""
    return [number for number in numbers if position(make_trace(number).trace_id, "tracejudge") < rate]


def evaluations(keyspace: Keyspace) -> list[tuple[str, str, str]]:
    """List all chosen evaluations: model, trace and judge."""
    return [
        (batch.grader, item.trace.trace_id, evaluation.judge)
        for batch in keyspace.batches().values()
        for item in batch.items
        for evaluation in item.evaluations
    ]


def test_every_trace_of_a_mixed_read_ends_under_exactly_one_outcome(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(HALF,), max_trace_bytes=2000)
    picked = below(range(40), 0.5)
    passed = len(range(40)) - len(picked)
    assert picked
    assert passed
    for trace in make_traces(range(36)):
        keyspace.add(trace)
    keyspace.append("p1", make_traces(range(36, 40)))
    keyspace.add(make_trace(50, error="timeout"))
    for trace in make_traces(range(60, 63), service="lab"):
        keyspace.add(trace)
    for entry in INVALID.values():
        keyspace.add(**entry)
    for number in picked[:2]:
        keyspace.add(make_trace(number))
    keyspace.add(FEEDBACK, kind="f")
    keyspace.report("p1", published=4)
    chosen.process()
    sampled = len(picked) + 1
    assert keyspace.accounting() == {
        "published": 51,
        "bare": 47,
        "sent": 4,
        "read": 53,
        "arrived": 51,
        "sampled": sampled,
        "not_sampled": passed,
        "no_rule": 3,
        "duplicate": 2,
        "invalid": 5,
        **{f"invalid:{reason}": 1 for reason in INVALID},
        "chosen": 2 * sampled,
        "feedback": 1,
        "feedback:no_rule": 1,
    }
    ratio = (sampled + 2) / 43
    assert samples(chosen.metrics) == {
        ("traces_total", "outcome=sampled", "service=shop"): sampled,
        ("traces_total", "outcome=not_sampled", "service=shop"): passed,
        ("traces_total", "outcome=duplicate", "service=shop"): 2,
        ("traces_total", "outcome=no_rule", "service=lab"): 3,
        ("traces_total", "outcome=invalid", "service=unknown"): 5,
        **{("invalid_traces_total", f"reason={reason}"): 1 for reason in INVALID},
        ("producer_published_total", "service=shop"): 43,
        ("producer_published_total", "service=lab"): 3,
        ("producer_published_total", "service=unknown"): 5,
        ("late_feedback_total", "outcome=no_rule"): 1,
        ("effective_sampling_ratio", "rule=half"): pytest.approx(ratio),
    }
    assert keyspace.pending() == 0
    account = read_account(keyspace.store)
    assert (account.lost, account.unread, account.waiting) == (0, 0, 2 * sampled)


def test_batches_hold_the_chosen_evaluations_of_one_model_up_to_their_size(keyspace: Keyspace) -> None:
    both = Rule(name="both", judges=("safety", "relevance_to_query"))
    other = Rule(name="other", judges=("safety",), model="other", rate=0.4)
    chosen = IngestHarness(keyspace, rules=(both, other), models=MODELS, batch_size=3)
    for trace in make_traces(range(10)):
        keyspace.add(trace)
    chosen.process()
    picked = below(range(10), 0.4)
    expected = [
        *(("default", make_trace(number).trace_id, judge) for number in range(10) for judge in both.judges),
        *(("other", make_trace(number).trace_id, "safety") for number in picked),
    ]
    assert Counter(evaluations(keyspace)) == Counter(expected)
    batches = keyspace.batches()
    sizes = {"default": [], "other": []}
    for batch_id, batch in batches.items():
        assert (batch.v, batch.id, batch.judge_model) == (1, batch_id, MODELS[batch.grader].judge_model)
        sizes[batch.grader].append(sum(len(item.evaluations) for item in batch.items))
    full, rest = divmod(len(picked), 3)
    assert sorted(sizes["default"]) == [2, 3, 3, 3, 3, 3, 3]
    assert sorted(sizes["other"], reverse=True) == [3] * full + [rest] * bool(rest)
    assert sorted(chosen.woken) == sorted(batches), "one wake-up for each batch"


def test_an_evaluation_carries_id_judge_version_and_probability(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(HALF,))
    first = make_trace(below(range(40), 0.5)[0], feedback=Feedback(score=1), tags={"a": "b"}, input="Grüße \U0001f600")
    keyspace.add(first)
    chosen.process()
    (batch,) = keyspace.batches().values()
    (item,) = batch.items
    assert item.trace == first
    versions = {judge: catalogue()[judge].version for judge in HALF.judges}
    assert {evaluation.judge: evaluation for evaluation in item.evaluations} == {
        judge: type(item.evaluations[0])(
            id=evaluation_id(first, first.id, judge=judge, version=version, judge_model="lexical"),
            period=item.evaluations[0].period,
            judge=judge,
            version=version,
            probability=0.5,
            origin="live",
        )
        for judge, version in versions.items()
    }


def test_a_batch_is_ready_and_due_later_counts_as_waiting_and_its_marks_expire(keyspace: Keyspace) -> None:
    other = Rule(name="other", judges=("safety",), model="other")
    chosen = IngestHarness(keyspace, rules=(other, Rule(name="all", judges=("safety",))), models=MODELS, retention=3600)
    keyspace.add(make_trace(1))
    chosen.process()
    batches = keyspace.batches()
    assert len(batches) == 2
    assert set(keyspace.leases()) == set(batches)
    assert all(due_s == keyspace.soon(3600) for due_s in keyspace.leases().values())
    for batch_id, batch in batches.items():
        made_at_ms = pytest.approx(batch.created_at * 1000, abs=1)
        ready = keyspace.client.zrange(keyspace.keys.ready(batch.judge_model), 0, -1, withscores=True)
        assert ready == [(batch_id.encode(), made_at_ms)]
    assert keyspace.waiting() == {
        batch.judge_model: keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id, batch in batches.items()
    }
    marks = [evaluation.id for batch in batches.values() for item in batch.items for evaluation in item.evaluations]
    day = 24 * 3600
    assert set(keyspace.ledger()) == set(marks)
    parts = list(keyspace.client.scan_iter(f"{keyspace.keys.evaluations}:*"))
    # Counted from an hour after the end of the day, for a trace without a time.
    counted_s = 3600 + day + 3600 + day - time.time() % day
    assert all(counted_s - 60 < keyspace.client.ttl(part) <= counted_s + 660 for part in parts)
    assert keyspace.client.ttl(keyspace.keys.account_now()) == pytest.approx(90 * day, abs=60)
    assert keyspace.client.ttl(keyspace.keys.account_all) == -1


def test_the_accounting_of_the_day_and_of_all_days_grow_alike(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    keyspace.add(b"{")
    chosen.process()
    assert keyspace.daily_accounting() == keyspace.accounting()


@pytest.mark.parametrize("again", ["plan", "entries"])
def test_a_repeated_call_of_choose_changes_nothing(keyspace: Keyspace, again: str) -> None:
    chosen = IngestHarness(keyspace, rules=(HALF,), max_trace_bytes=2000)
    keyspace.append("p1", make_traces(range(20)))
    keyspace.report("p1", 25, buffer_full=2)
    for entry in INVALID.values():
        keyspace.add(**entry)
    keyspace.add(make_trace(below(range(20), 0.5)[0]))
    keyspace.add(FEEDBACK, kind="f")
    doomed = keyspace.add(make_trace(30))
    entries = keyspace.read()
    keyspace.client.xdel(keyspace.keys.traces, doomed)
    entries = [(entry_id, None if entry_id == doomed.encode() else fields) for entry_id, fields in entries]
    if again == "plan":
        plan = planner_of(chosen.settings, keyspace.store).plan(read_entry(entry, 2000) for entry in entries)
        before = keyspace.everything()
        with pytest.raises(StoreError, match="removed before its batch was chosen"):
            keyspace.store.run("choose", plan.keys, plan.arguments)
        assert keyspace.everything() == before
        keyspace.store.run("choose", plan.keys, plan.arguments, plan.bodies)
        assert {keyspace.client.ttl(key) for key in plan.bodies} == {-1}
        before = keyspace.everything()
        keyspace.store.run("choose", plan.keys, plan.arguments, plan.bodies)
        assert keyspace.everything() == before
        assert keyspace.accounting()["cut_off"] == 1
        keyspace.client.delete(*plan.bodies)  # as when all is judged
        keyspace.store.run("choose", plan.keys, plan.arguments, plan.bodies)
        assert keyspace.client.exists(*plan.bodies) == 0
        return
    chosen.process(entries)
    before, counted, woken = keyspace.everything(), samples(chosen.metrics), chosen.woken.copy()
    chosen.process(entries)
    assert keyspace.everything() == before
    assert samples(chosen.metrics) == counted
    assert chosen.woken == woken


def test_a_trace_published_again_is_a_duplicate(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.add(make_trace(1))
    chosen.process()
    keyspace.add(make_trace(1))
    keyspace.add(make_trace(1, output="says something else under the same id"))
    chosen.process()
    assert keyspace.counted("sampled", "duplicate", "chosen") == {"sampled": 1, "duplicate": 2, "chosen": 1}
    assert len(evaluations(keyspace)) == len(chosen.woken) == 1


def test_with_judge_duplicates_another_publication_of_the_same_trace_is_judged(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, judge_duplicates=True)
    for fields in ({}, {"id": "f" * 16}, {"span_id": "f" * 16}, {"id": None}):
        keyspace.add(make_trace(1, **fields))
    chosen.process()
    assert keyspace.counted("sampled", "duplicate", "chosen") == {"sampled": 4, "duplicate": 0, "chosen": 4}


def test_a_trace_published_again_gets_only_evaluations_that_are_new(keyspace: Keyspace) -> None:
    IngestHarness(keyspace, rules=(Rule(name="one", judges=("safety",)),)).process()
    keyspace.add(make_trace(1))
    IngestHarness(keyspace, rules=(Rule(name="one", judges=("safety",)),)).process()
    keyspace.add(make_trace(1))
    IngestHarness(keyspace, rules=(Rule(name="two", judges=("safety", "relevance_to_query")),)).process()
    assert keyspace.counted("sampled", "duplicate", "chosen") == {"sampled": 2, "duplicate": 0, "chosen": 2}
    assert sorted(judge for _, _, judge in evaluations(keyspace)) == ["relevance_to_query", "safety"]
    # Their batch is written again without what was chosen before, wherever that stood.
    judges = ("safety", "relevance_to_query", "groundedness")
    chosen = IngestHarness(keyspace, rules=(Rule(name="three", judges=judges),))
    traces = [make_trace(number, input="Grüße 😀", context=["a"]) for number in (1, 2, 1, 3, 2)]
    for trace in traces:
        keyspace.add(trace)
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.prefix}:batch:*"))
    chosen.process()
    (batch,) = keyspace.batches().values()
    held = [(item.trace, [evaluation.judge for evaluation in item.evaluations]) for item in batch.items]
    assert held == [(traces[0], ["groundedness"]), (traces[1], [*judges]), (traces[3], [*judges])]
    assert keyspace.counted("sampled", "duplicate") == {"sampled": 5, "duplicate": 2}


def test_rules_that_want_the_same_share_one_evaluation_of_the_larger_rate(keyspace: Keyspace) -> None:
    rare = Rule(name="rare", judges=("safety",), rate=0.2)
    often = Rule(name="often", judges=("safety", "relevance_to_query"), rate=0.7)
    chosen = IngestHarness(keyspace, rules=(rare, often))
    for trace in make_traces(range(40)):
        keyspace.add(trace)
    chosen.process()
    picked = below(range(40), 0.7)
    expected = Counter(("default", make_trace(number).trace_id, judge) for number in picked for judge in often.judges)
    assert Counter(evaluations(keyspace)) == expected
    probabilities = {
        evaluation.probability
        for batch in keyspace.batches().values()
        for item in batch.items
        for evaluation in item.evaluations
    }
    assert probabilities == {0.7}
    assert select_metrics(samples(chosen.metrics), "effective_sampling_ratio") == {
        ("effective_sampling_ratio", "rule=rare"): len(below(range(40), 0.2)) / 40,
        ("effective_sampling_ratio", "rule=often"): len(picked) / 40,
    }


def test_feedback_is_acknowledged_and_counted_once(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", [FEEDBACK, FEEDBACK], kind="f")
    entries = keyspace.read()
    chosen.process(entries)
    chosen.process(entries)
    assert (keyspace.pending(), keyspace.accounting()) == (0, {"read": 2, "feedback": 2, "feedback:no_rule": 2})
    assert samples(chosen.metrics) == {("late_feedback_total", "outcome=no_rule"): 2}


def test_one_script_call_applies_a_bounded_share_of_a_read(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run = keyspace.store.run

    def counted(script: str, *rest: Any) -> Any:
        calls.append(script == "choose")
        return run(script, *rest)

    monkeypatch.setattr(keyspace.store, "run", counted)
    for rate, first, last, least, most in ((1.0, 0, 500, 8, 9), (0.0, 500, 3_000, 3, 3)):
        chosen = IngestHarness(keyspace, rules=(Rule(name="r", judges=("safety",), rate=rate),))
        keyspace.append("p1", make_traces(range(first, last)))
        calls.clear()
        chosen.process()
        assert least <= sum(calls) <= most, (rate, calls)
    assert keyspace.counted("sampled", "not_sampled") == {"sampled": 500, "not_sampled": 2_500}


def test_an_answer_that_two_telemetries_tell_is_judged_once(keyspace: Keyspace) -> None:
    asked, answered = "Is it warm?", "It is."
    tellings: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("the first", {}, "sampled"),
        ("another span", {"span_id": "b" * 16}, "duplicate"),
        (
            "messages and a space",
            {"input": None, "messages": [{"role": "user", "content": asked}], "output": " It is."},
            "duplicate",
        ),
        ("another answer", {"output": "It is cold."}, "sampled"),
        ("the first again", {}, "duplicate"),
        ("another question", {"input": "Is it cold?"}, "sampled"),
        ("another trace", {"trace_id": "f" * 32}, "sampled"),
        ("an empty answer", {"output": "", "error": "timeout"}, "sampled"),
        ("an empty answer again", {"output": "", "error": "timeout"}, "sampled"),
    )
    for judge_duplicates in (False, True):
        trace_id = f"{judge_duplicates + 1:032x}"
        harness = IngestHarness(keyspace, judge_duplicates=judge_duplicates)
        for number, (what, fields, expected) in enumerate(tellings):
            before = keyspace.accounting()
            told = {"trace_id": trace_id, "input": asked, "output": answered, **fields}
            keyspace.add(make_trace(100 * judge_duplicates + number, **told))
            harness.process()
            outcome = "sampled" if judge_duplicates else expected
            assert keyspace.accounting()[outcome] == before.get(outcome, 0) + 1, f"{what}, {judge_duplicates=}"
        key = keyspace.keys.told(trace_id)
        assert (keyspace.client.ttl(key) > 86_000) is not judge_duplicates


def test_a_telling_that_brings_another_judge_is_judged_by_that_one(keyspace: Keyspace) -> None:
    for number, judges in enumerate((("safety",), ("safety", "relevance_to_query"), ("safety",))):
        keyspace.add(make_trace(number, trace_id="1"))
        IngestHarness(keyspace, rules=(Rule(name="r", judges=judges),)).process()
    assert Counter(judge for _, _, judge in evaluations(keyspace)) == {"safety": 1, "relevance_to_query": 1}
    assert (keyspace.accounting()["sampled"], keyspace.accounting()["duplicate"]) == (2, 1)


def test_what_is_known_of_the_answers_of_a_trace_is_bounded_and_never_stops_ingest(keyspace: Keyspace) -> None:
    harness, key = IngestHarness(keyspace), keyspace.keys.told("1")
    for number in range(12):
        keyspace.add(make_trace(number, trace_id="1", output=f"answer {number}"))
    harness.process()
    assert keyspace.client.strlen(key) == 64
    for number, output in ((20, "answer 11"), (21, "answer 4"), (22, "answer 3")):
        keyspace.add(make_trace(number, trace_id="1", output=output))
        harness.process()
    assert keyspace.accounting()["duplicate"] == 2, "the last eight are known"
    keyspace.client.delete(key)
    keyspace.client.rpush(key, "not ours")
    keyspace.add(make_trace(50, trace_id="1", output="answer 0"))
    harness.process()
    assert keyspace.accounting()["sampled"] == 14
    # Of nine judges of one answer the last eight are known.
    judges = sorted(load_judges({}))[:9]
    for number in (60, 61):
        keyspace.add(make_trace(number, trace_id="2", messages=[{"role": "user", "content": "?"}]))
        IngestHarness(keyspace, rules=(Rule(name="r", judges=tuple(judges)),)).process()
    again = Counter(judge for _, _, judge in evaluations(keyspace) if judge in judges)
    assert again == {judge: 1 + (judge == judges[0]) for judge in judges}
