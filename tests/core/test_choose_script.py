"""Ingest and its script: what was read ends under exactly one outcome, in one step, however often that step is made."""

import itertools
import time
from collections import Counter
from typing import Any

import pytest
from support.fixtures import one_redis
from support.stages import IngestHarness, Keyspace, make_trace, make_traces, planner_of, samples, select_metrics

from judges.core.model import ModelSettings
from tracejudge import Trace
from worker.base.accounting import read_account
from worker.core.config.settings import Rule, Where
from worker.core.queue.batch import Evaluation
from worker.core.selection.sampling import position
from worker.core.selection.stream_entry import read_entry
from worker.core.storage.client import StoreError

DAY_S = 24 * 3600
SHOP = Where(service="shop")
HALF = Rule(name="half", where=SHOP, judges=("safety", "relevance_to_query"), rate=0.5, always=("error",))
MODELS = {
    "default": ModelSettings(provider="lexical"),
    "other": ModelSettings(provider="lexical", label="second opinion"),
}
FEEDBACK = {"trace_id": "1", "score": -1}
any_redis_server = one_redis
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


def rule_of(*judges: str, **fields: Any) -> Rule:
    return Rule(**{"name": "one", "judges": judges or ("safety",), **fields})


def add(keyspace: Keyspace, *traces: Trace) -> None:
    for trace in traces:
        keyspace.add(trace)


def chosen_evaluations(keyspace: Keyspace) -> list[tuple[str, str, Evaluation]]:
    """List all chosen evaluations with model and trace."""
    items = [(batch.grader, item) for batch in keyspace.batches().values() for item in batch.items]
    return [(grader, item.trace.trace_id, evaluation) for grader, item in items for evaluation in item.evaluations]


def judges_of(keyspace: Keyspace) -> Counter[str]:
    return Counter(evaluation.judge for _, _, evaluation in chosen_evaluations(keyspace))


def counts(keyspace: Keyspace, names: str) -> list[int]:
    """Read some counters of the accounting, in this order."""
    return [*keyspace.counted(*names.split()).values()]


def test_every_trace_of_a_mixed_read_ends_under_exactly_one_outcome(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(HALF,), max_trace_bytes=2000)
    picked = below(range(40), 0.5)
    passed = 40 - len(picked)
    assert 0 < passed < 40
    add(keyspace, *make_traces(range(36)))
    keyspace.append("p1", make_traces(range(36, 40)))
    add(keyspace, make_trace(50, error="timeout"), *make_traces(range(60, 63), service="lab"))
    for entry in INVALID.values():
        keyspace.add(**entry)
    add(keyspace, *make_traces(picked[:2]))
    keyspace.add(FEEDBACK, kind="f")
    keyspace.report("p1", published=4)
    chosen.process()
    sampled = len(picked) + 1
    accounting = {"published": 51, "bare": 47, "sent": 4, "read": 53, "arrived": 51, "feedback": 1}
    accounting |= {"sampled": sampled, "not_sampled": passed, "no_rule": 3, "duplicate": 2, "invalid": 5}
    accounting |= {f"invalid:{reason}": 1 for reason in INVALID} | {"chosen": 2 * sampled, "feedback:no_rule": 1}
    assert keyspace.accounting() == keyspace.daily_accounting() == accounting
    outcomes = {"sampled": sampled, "not_sampled": passed, "duplicate": 2}
    published = {"shop": 43, "lab": 3, "unknown": 5}
    assert samples(chosen.metrics) == {
        **{("traces_total", f"outcome={name}", "service=shop"): value for name, value in outcomes.items()},
        ("traces_total", "outcome=no_rule", "service=lab"): 3,
        ("traces_total", "outcome=invalid", "service=unknown"): 5,
        **{("invalid_traces_total", f"reason={reason}"): 1 for reason in INVALID},
        **{("producer_published_total", f"service={name}"): value for name, value in published.items()},
        ("late_feedback_total", "outcome=no_rule"): 1,
        ("effective_sampling_ratio", "rule=half"): pytest.approx((sampled + 2) / 43),
    }
    assert keyspace.pending() == 0
    account = read_account(keyspace.store)
    assert (account.lost, account.unread, account.waiting) == (0, 0, 2 * sampled)


def test_batches_hold_the_chosen_evaluations_of_one_model_up_to_their_size(keyspace: Keyspace) -> None:
    both = rule_of("safety", "relevance_to_query", name="both")
    other = rule_of("safety", name="other", model="other", rate=0.4)
    chosen = IngestHarness(keyspace, rules=(both, other), models=MODELS, batch_size=3)
    add(keyspace, *make_traces(range(10)))
    chosen.process()
    picked, ids = below(range(10), 0.4), [trace.trace_id for trace in make_traces(range(10))]
    expected = [("default", trace_id, judge) for trace_id in ids for judge in both.judges]
    expected += [("other", ids[number], "safety") for number in picked]
    found = Counter(
        (grader, trace_id, evaluation.judge) for grader, trace_id, evaluation in chosen_evaluations(keyspace)
    )
    assert found == Counter(expected)
    batches = keyspace.batches()
    sizes: dict[str, list[int]] = {"default": [], "other": []}
    for batch_id, batch in batches.items():
        assert (batch.v, batch.id, batch.judge_model) == (1, batch_id, MODELS[batch.grader].judge_model)
        sizes[batch.grader].append(sum(len(item.evaluations) for item in batch.items))
    full, rest = divmod(len(picked), 3)
    assert sorted(sizes["default"]) == [2, 3, 3, 3, 3, 3, 3]
    assert sorted(sizes["other"], reverse=True) == [3] * full + [rest] * bool(rest)
    assert sorted(chosen.woken) == sorted(batches), "one wake-up for each batch"
    keyspace.next_case("a batch is ready, due later, counts as waiting, and its marks expire")
    rules = (rule_of(name="other", model="other"), rule_of())
    add(keyspace, make_trace(1))
    IngestHarness(keyspace, rules=rules, models=MODELS, retention=3600).process()
    batches, client, keys = keyspace.batches(), keyspace.client, keyspace.keys
    assert len(batches) == 2
    assert keyspace.leases() == dict.fromkeys(batches, keyspace.soon(3600))
    sizes = {batch.judge_model: client.strlen(keys.batch(batch_id)) for batch_id, batch in batches.items()}
    assert keyspace.waiting() == sizes
    assert set(keyspace.ledger()) == {evaluation.id for _, _, evaluation in chosen_evaluations(keyspace)}
    # Counted from an hour after the end of the day, for a trace without a time.
    counted_s = 3600 + DAY_S + 3600 + DAY_S - time.time() % DAY_S
    parts = client.scan_iter(f"{keys.evaluations}:*")
    assert all(counted_s - 60 < client.ttl(part) <= counted_s + 660 for part in parts)
    assert client.ttl(keys.account_now()) == pytest.approx(90 * DAY_S, abs=60)
    assert client.ttl(keys.account_all) == -1


def test_a_repeated_call_of_choose_changes_nothing(keyspace: Keyspace) -> None:
    for again in ("entries", "plan"):
        keyspace.next_case(again)
        chosen = IngestHarness(keyspace, rules=(HALF,), max_trace_bytes=2000)
        keyspace.append("p1", make_traces(range(20)))
        keyspace.report("p1", 25, buffer_full=2)
        for entry in INVALID.values():
            keyspace.add(**entry)
        add(keyspace, make_trace(below(range(20), 0.5)[0]))
        keyspace.add(FEEDBACK, kind="f")
        doomed = keyspace.add(make_trace(30))
        entries = keyspace.read()
        keyspace.client.xdel(keyspace.keys.traces, doomed)
        entries = [(entry_id, None if entry_id == doomed.encode() else fields) for entry_id, fields in entries]
        if again == "entries":
            chosen.process(entries)
            before = keyspace.everything(), samples(chosen.metrics), chosen.woken.copy()
            chosen.process(entries)
            assert (keyspace.everything(), samples(chosen.metrics), chosen.woken) == before
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


def test_a_trace_published_again_gets_only_evaluations_that_are_new(keyspace: Keyspace) -> None:
    names = "sampled duplicate chosen"
    add(keyspace, make_trace(1))
    IngestHarness(keyspace, rules=(rule_of(),)).process()
    add(keyspace, make_trace(1), make_trace(1, output="says something else under the same id"))
    again = IngestHarness(keyspace, rules=(rule_of(),))
    again.process()
    assert (counts(keyspace, names), again.woken, len(chosen_evaluations(keyspace))) == ([1, 2, 1], [], 1)
    add(keyspace, make_trace(1))
    IngestHarness(keyspace, rules=(rule_of("safety", "relevance_to_query", name="two"),)).process()
    assert counts(keyspace, names) == [2, 2, 2]
    assert judges_of(keyspace) == {"relevance_to_query": 1, "safety": 1}
    # Their batch is written again without what was chosen before, wherever that stood.
    judges = ["safety", "relevance_to_query", "groundedness"]
    chosen = IngestHarness(keyspace, rules=(rule_of(*judges, name="three"),))
    traces = [make_trace(number, input="Grüße 😀", context=["a"]) for number in (1, 2, 1, 3, 2)]
    add(keyspace, *traces)
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.prefix}:batch:*"))
    chosen.process()
    (batch,) = keyspace.batches().values()
    held = [(item.trace, [evaluation.judge for evaluation in item.evaluations]) for item in batch.items]
    assert held == [(traces[0], ["groundedness"]), (traces[1], judges), (traces[3], judges)]
    assert counts(keyspace, "sampled duplicate") == [5, 4]


def test_one_script_call_applies_a_bounded_share_of_a_read(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = list[bool](), keyspace.store.run

    def counted(script: str, *rest: Any) -> Any:
        calls.append(script == "choose")
        return run(script, *rest)

    monkeypatch.setattr(keyspace.store, "run", counted)
    for rate, first, last, least, most in ((1.0, 0, 250, 4, 5), (0.0, 250, 2_000, 2, 3)):
        chosen = IngestHarness(keyspace, rules=(rule_of(rate=rate),))
        keyspace.append("p1", make_traces(range(first, last)))
        calls.clear()
        chosen.process()
        assert least <= sum(calls) <= most, (rate, calls)
    assert counts(keyspace, "sampled not_sampled") == [250, 1_750]


def test_an_answer_that_two_telemetries_tell_is_judged_once(keyspace: Keyspace) -> None:
    message = {"role": "user", "content": "Is it warm?"}
    tellings: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("the first", {}, "sampled"),
        ("another span", {"span_id": "b" * 16}, "duplicate"),
        ("messages and a space", {"input": None, "messages": [message], "output": " It is."}, "duplicate"),
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
            add(keyspace, make_trace(100 * judge_duplicates + number, **{"trace_id": trace_id, **fields}))
            harness.process()
            outcome = "sampled" if judge_duplicates else expected
            assert keyspace.accounting()[outcome] == before.get(outcome, 0) + 1, f"{what}, {judge_duplicates=}"
        assert (keyspace.client.ttl(keyspace.keys.told(trace_id)) > 86_000) is not judge_duplicates
    keyspace.next_case("a telling that brings another judge is judged by that one")
    for number, judges in enumerate((["safety"], ["safety", "relevance_to_query"], ["safety"])):
        add(keyspace, make_trace(number, trace_id="1"))
        IngestHarness(keyspace, rules=(rule_of(*judges),)).process()
    assert judges_of(keyspace) == {"safety": 1, "relevance_to_query": 1}
    assert counts(keyspace, "sampled duplicate") == [2, 1]
    keyspace.next_case("what is known of the answers of a trace is bounded and never stops ingest")
    harness, key = IngestHarness(keyspace), keyspace.keys.told("1")
    add(keyspace, *(make_trace(number, trace_id="1", output=f"answer {number}") for number in range(12)))
    harness.process()
    assert keyspace.client.strlen(key) == 64
    for number, output in ((20, "answer 11"), (21, "answer 4"), (22, "answer 3")):
        add(keyspace, make_trace(number, trace_id="1", output=output))
        harness.process()
    assert keyspace.accounting()["duplicate"] == 2, "the last eight are known"
    keyspace.client.delete(key)
    keyspace.client.rpush(key, "not ours")
    add(keyspace, make_trace(50, trace_id="1", output="answer 0"))
    harness.process()
    assert keyspace.accounting()["sampled"] == 14


def published(chosen: IngestHarness) -> dict[tuple[str, ...], float]:
    return select_metrics(samples(chosen.metrics), "producer_published_total", "producer_dropped_total")


def test_a_producers_traces_count_as_published_when_sent_bare_ones_when_read(keyspace: Keyspace) -> None:
    chosen, names = IngestHarness(keyspace), "published sent bare arrived"
    keyspace.append("p1", make_traces(range(10)))
    add(keyspace, *make_traces(range(10, 15)))
    chosen.process(keyspace.read(count=4))
    assert counts(keyspace, names) == [10, 10, 0, 4]
    chosen.process()
    assert counts(keyspace, names) == [15, 10, 5, 15]
    keyspace.next_case("reports and unreadable entries of producers unbalance nothing")
    report = {"producer": "forged", "seq": 1, "service": "shop", "published": 3, "accepted": 3, "dropped": {}}
    keyspace.add(report, kind="r")
    keyspace.report("p1", 3)
    IngestHarness(keyspace).process()
    assert 0 < keyspace.client.ttl(keyspace.keys.producer("forged")) <= 90 * DAY_S, "it makes no key that stays"
    assert 0 < keyspace.client.ttl(keyspace.keys.producer("p1")) <= 1000, "the producer's own TTL stays"
    for kind in "fr":
        keyspace.next_case(f"unreadable {kind}")
        keyspace.append("p1", [make_trace(1)])
        keyspace.append("p1", [b"{"], kind=kind)
        IngestHarness(keyspace).process()
        account = read_account(keyspace.store)
        assert (account.published, account.sampled, account.invalid, account.lost) == (2, 1, 1, 0)


def test_the_largest_report_of_each_producer_counts_though_reports_are_late_or_repeated(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    for count, full, invalid in ((10, 2, 0), (7, 1, 0), (10, 2, 0), (12, 2, 1), (11, 2, 0)):
        keyspace.report("p1", count, buffer_full=full, invalid=invalid)
        chosen.process()
    names = "published dropped dropped:buffer_full dropped:invalid arrived read"
    assert counts(keyspace, names) == [12, 3, 2, 1, 0, 5]
    assert published(chosen) == {
        ("producer_published_total", "service=shop"): 12,
        ("producer_dropped_total", "reason=buffer_full", "service=shop"): 2,
        ("producer_dropped_total", "reason=invalid", "service=shop"): 1,
    }
    keyspace.next_case("several producers in one read add up")
    for producer, count in itertools.product(("p1", "p2"), (3, 5, 4)):
        keyspace.append(producer, [make_trace(count)], service="shop")
        keyspace.report(producer, count, too_large=1)
    chosen.process()
    assert counts(keyspace, "published dropped sent sampled duplicate") == [10, 2, 6, 3, 3]
