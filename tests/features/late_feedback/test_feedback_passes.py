"""Passes over the stream: what late feedback pulls in, what it does not, and each complaint ends exactly once."""

import json

import pytest
from support.feedback_parts import HEARD, Passes, complain, ended, evaluations, gathered, make_due, take
from support.stage_parts import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    read_balanced_account,
    samples,
    select_metrics,
)

from judges.core.model import ModelSettings
from judges.core.verdict import evaluation_id
from judges.registry import catalogue
from tracejudge import Feedback
from worker.core.config.settings import Rule, Where
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP
from worker.features.late_feedback import pending as gathering

LATE = ("late_feedback", 1.0)
ONE = make_trace(1)
BOTH = [(ONE.trace_id, "relevance_to_query", *LATE), (ONE.trace_id, "safety", *LATE)]


def test_a_complaint_pulls_its_trace_in_as_if_it_had_come_with_it(keyspace: Keyspace) -> None:
    for trace in make_traces(range(20)):
        keyspace.add(trace)
    complain(keyspace, ONE.trace_id, -0.5, "It came on Tuesday.")
    take(keyspace)
    passes = Passes(keyspace)
    passes.make()
    assert evaluations(keyspace) == BOTH
    (batch,) = keyspace.batches().values()
    (item,) = batch.items
    assert item.trace == make_trace(1, feedback=Feedback(-0.5, "It came on Tuesday."))
    assert {evaluation.id for evaluation in item.evaluations} == {
        evaluation_id(ONE, ONE.id, judge=judge, version=catalogue()[judge].version, judge_model="lexical")
        for judge in HEARD.judges
    }
    assert passes.woken == [batch.id]
    assert set(keyspace.leases()) == {batch.id}
    assert keyspace.waiting() == {"lexical": keyspace.client.strlen(keyspace.keys.batch(batch.id))}
    assert (passes.outcomes, ended(keyspace), gathered(keyspace)) == ({"pulled": 1}, {"pulled": 1}, {})


def test_late_chosen_traces_keep_the_accounting_balanced(keyspace: Keyspace) -> None:
    keyspace.append("p1", make_traces(range(20)))
    for number in range(5):
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace)
    before = read_balanced_account(keyspace)
    Passes(keyspace).make()
    after = read_balanced_account(keyspace)
    assert (before.published, before.not_sampled, before.chosen) == (20, 20, 0)
    assert (after.published, after.not_sampled, after.sampled, after.duplicate) == (20, 20, 0, 0)
    assert (after.chosen, after.waiting, after.unread) == (10, 10, 0)
    assert keyspace.daily_accounting() == keyspace.accounting()


def test_late_chosen_traces_change_no_metric_of_sampling(keyspace: Keyspace) -> None:
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.make()
    assert samples(passes.metrics) == {("late_feedback_total", "outcome=pulled"): 1}


def test_late_feedback_does_not_repeat_a_judged_evaluation(keyspace: Keyspace) -> None:
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace, rules=(Rule(name="all", judges=HEARD.judges),))
    assert ended(keyspace) == {"no_rule": 1}, "nobody listened then"
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    before = evaluations(keyspace)
    Passes(keyspace).make()
    assert ended(keyspace) == {"no_rule": 1, "already_judged": 1}
    assert evaluations(keyspace) == before
    assert read_balanced_account(keyspace).chosen == 2


def test_of_a_trace_that_one_judge_has_seen_the_others_see_it_too(keyspace: Keyspace) -> None:
    rules = (Rule(name="all", judges=("safety",)), HEARD)
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace, rules=rules)
    passes = Passes(keyspace, rules=rules)
    passes.make()
    assert evaluations(keyspace) == [BOTH[0], (ONE.trace_id, "safety", "live", 1.0)]
    assert passes.outcomes == {"pulled": 1}


def test_only_rules_that_always_judge_complaints_choose(keyspace: Keyspace) -> None:
    rules = (
        Rule(name="of others", judges=("safety",), where=Where(service="desk"), always=("negative_feedback",)),
        Rule(name="of errors", judges=("safety",), rate=0.0, always=("error",)),
        Rule(name="complaints", judges=("relevance_to_query",), rate=0.0, always=("error", "negative_feedback")),
    )
    keyspace.add(make_trace(1, error="timeout", feedback=Feedback(1)))
    keyspace.add(make_trace(2))
    keyspace.add(make_trace(3, service="lab"))
    for number in (1, 2, 3):
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace, rules=rules[:1])
    passes = Passes(keyspace, rules=rules)
    passes.make()
    assert {(judge, origin) for _, judge, origin, _ in evaluations(keyspace)} == {
        ("relevance_to_query", "late_feedback")
    }
    assert passes.outcomes == {"pulled": 3}


def test_a_complaint_ends_as_found_without_a_rule_or_not_found_at_all(keyspace: Keyspace) -> None:
    rule = Rule(name="shop", judges=("safety",), rate=0.0, where=Where(service="shop"), always=("negative_feedback",))
    keyspace.add(make_trace(1, service="lab"))
    for trace_id in (ONE.trace_id, "never published", make_trace(2).trace_id):
        complain(keyspace, trace_id)
    take(keyspace, rules=(rule,))
    passes = Passes(keyspace, rules=(rule,))
    passes.make()
    assert passes.outcomes == ended(keyspace) == {"no_rule": 1, "not_found": 2}
    assert (evaluations(keyspace), passes.woken, gathered(keyspace)) == ([], [], {})
    read_balanced_account(keyspace)


def test_of_several_complaints_about_one_trace_the_first_pulls_it_in_and_the_last_is_heard(keyspace: Keyspace) -> None:
    keyspace.add(ONE)
    for score, comment in ((-0.25, "bad"), (1.0, "no, good"), (-1.0, "worse")):
        complain(keyspace, ONE.trace_id, score, comment)
    take(keyspace)
    Passes(keyspace).make()
    assert ended(keyspace) == {"not_negative": 1, "pulled": 1, "already_judged": 1}
    (batch,) = keyspace.batches().values()
    assert [item.trace.feedback for item in batch.items] == [Feedback(-1.0, "worse")]


def test_all_publications_within_a_trace_are_pulled_in_each_once(keyspace: Keyspace) -> None:
    others = [make_trace(1, id="f" * 16, output="first"), make_trace(1, span_id="f" * 16), make_trace(1, id=None)]
    for trace in (ONE, *others, ONE):
        keyspace.add(trace)
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.make()
    assert passes.outcomes == {"pulled": 1}
    assert evaluations(keyspace) == sorted(BOTH * 4)
    assert (
        len(
            {
                evaluation.id
                for batch in keyspace.batches().values()
                for item in batch.items
                for evaluation in item.evaluations
            }
        )
        == 8
    )


def test_of_very_many_publications_the_newest_are_pulled_in(keyspace: Keyspace) -> None:
    for number in range(130):
        keyspace.add(make_trace(1, id=f"{number:016x}"))
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    Passes(keyspace).make()
    ids = {item.trace.id for batch in keyspace.batches().values() for item in batch.items}
    assert ids == {f"{number:016x}" for number in range(30, 130)}


def test_batches_of_late_chosen_traces_hold_one_model_and_keep_their_size(keyspace: Keyspace) -> None:
    for trace in make_traces(range(7)):
        keyspace.add(trace)
        complain(keyspace, trace.trace_id)
    take(keyspace)
    passes = Passes(keyspace, batch_size=4)
    passes.make()
    sizes = sorted(sum(len(item.evaluations) for item in batch.items) for batch in keyspace.batches().values())
    assert sizes == [2, 4, 4, 4]
    assert sorted(passes.woken) == sorted(keyspace.batches())


# --- traces that ingest is not done with ---


@pytest.mark.parametrize("state", ["not read yet", "read and not decided"])
def test_a_trace_that_sampling_has_not_decided_about_is_left_to_the_next_pass(keyspace: Keyspace, state: str) -> None:
    """Else a live evaluation would become a late one, and be missing in the quality series."""
    rules = (Rule(name="all", judges=("safety",)), HEARD)
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


def test_without_ingests_group_everything_waits(keyspace: Keyspace) -> None:
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    keyspace.client.xgroup_destroy(keyspace.keys.traces, INGEST_GROUP)
    Passes(keyspace).make()
    assert list(gathered(keyspace)) == [ONE.trace_id]


# --- when ---


def test_before_its_time_nothing_is_sought(keyspace: Keyspace) -> None:
    Passes(keyspace).turn(3)
    IngestHarness(keyspace, rules=(HEARD,)).process()
    complain(keyspace, "1")
    IngestHarness(keyspace, rules=(HEARD,)).process()
    passes = Passes(keyspace)
    passes.turn(3)
    assert (passes.under_way, list(gathered(keyspace))) == (False, ["1"])
    assert keyspace.client.exists(keyspace.keys.feedback_pass) == 0


def test_one_due_feedback_starts_a_pass_over_all(keyspace: Keyspace) -> None:
    complain(keyspace, "1")
    take(keyspace)
    complain(keyspace, "2")
    IngestHarness(keyspace, rules=(HEARD,)).process()
    Passes(keyspace).make()
    assert ended(keyspace) == {"not_found": 2}


def test_very_many_are_sought_at_once(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_PASS_FROM", 3)
    chosen, passes = IngestHarness(keyspace, rules=(HEARD,)), Passes(keyspace)
    for number in range(3):
        passes.turn()
        assert not passes.under_way
        complain(keyspace, str(number))
        chosen.process()
    passes.make()
    assert ended(keyspace) == {"not_found": 3}


def test_past_the_bound_of_waiting_work_nothing_more_is_chosen(keyspace: Keyspace) -> None:
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    passes = Passes(keyspace, max_waiting_bytes=1000)
    passes.pressure.set_waiting({"lexical": 1001})
    passes.until_dealing()
    passes.turn(5)
    assert (evaluations(keyspace), ended(keyspace)) == ([], {})
    passes.pressure.set_waiting({"lexical": 1000})
    passes.turn()
    assert ended(keyspace) == {"pulled": 1}


def test_a_pass_of_many_parts_ends_every_complaint_once(keyspace: Keyspace) -> None:
    for trace in make_traces(range(600)):
        keyspace.add(trace)
    for number in range(300, 1_500):
        complain(keyspace, make_trace(number).trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.make()
    assert passes.outcomes == ended(keyspace) == {"pulled": 300, "not_found": 900}
    assert len(set(evaluations(keyspace))) == len(evaluations(keyspace)) == 600
    assert read_balanced_account(keyspace).chosen == 600


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


def test_a_complaint_is_pulled_in_by_several_models(keyspace: Keyspace) -> None:
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "other")}
    rules = (HEARD, Rule(name="other", judges=("safety",), rate=0.0, always=("negative_feedback",), model="other"))
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace, rules=rules, models=models)
    Passes(keyspace, rules=rules, models=models).make()
    sizes = {
        batch.judge_model: sum(len(item.evaluations) for item in batch.items) for batch in keyspace.batches().values()
    }
    assert sizes == {"default": 2, "other": 1}
    assert ended(keyspace) == {"pulled": 1}


def test_an_answer_of_the_store_that_does_not_come_is_asked_for_again(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.add(ONE)
    complain(keyspace, ONE.trace_id)
    take(keyspace)
    passes = Passes(keyspace)
    passes.until_dealing()
    run = keyspace.store.run

    def lossy(script: str, *arguments: object) -> object:
        answer = run(script, *arguments)
        if script == "choose_late_feedback":
            raise StoreError("Redis does not answer (TimeoutError)")
        return answer

    with monkeypatch.context() as away:
        away.setattr(keyspace.store, "run", lossy)
        with pytest.raises(StoreError):
            passes.turn()
    passes.turn(2)
    assert not passes.under_way
    assert (ended(keyspace), evaluations(keyspace)) == ({"pulled": 1}, BOTH)
    assert select_metrics(samples(passes.metrics), "late_feedback_total") == {}, (
        "the accounting has it, and nothing counts twice"
    )
    read_balanced_account(keyspace)


def test_late_feedback_of_a_shed_model_waits_for_a_later_pass(keyspace: Keyspace) -> None:
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "dead")}
    lab = Rule(
        name="lab",
        judges=("safety",),
        always=("negative_feedback",),
        rate=0.0,
        model="dead",
        where=Where(service="lab"),
    )
    fields = {"rules": (HEARD, lab), "models": models, "max_waiting_bytes": 10_000}
    other = make_trace(2, service="lab")
    for trace in (ONE, other):
        keyspace.add(trace)
        complain(keyspace, trace.trace_id)
    take(keyspace, **fields)
    passes = Passes(keyspace, **fields)
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
