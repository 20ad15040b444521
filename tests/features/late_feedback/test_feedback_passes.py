"""Passes over the stream: what late feedback pulls in, what it does not, and each complaint ends exactly once."""

import json

import pytest
from support.feedback_parts import HEARD, Passes, balanced, complain, ended, evaluations, gathered, make_due, take
from support.stage_parts import Chosen, Ground, make_trace, make_traces, only, samples

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


def test_a_complaint_pulls_its_trace_in_as_if_it_had_come_with_it(ground: Ground) -> None:
    for trace in make_traces(range(20)):
        ground.add(trace)
    complain(ground, ONE.trace_id, -0.5, "It came on Tuesday.")
    take(ground)
    passes = Passes(ground)
    passes.make()
    assert evaluations(ground) == BOTH
    (batch,) = ground.batches().values()
    (item,) = batch.items
    assert item.trace == make_trace(1, feedback=Feedback(-0.5, "It came on Tuesday."))
    assert {one.id for one in item.evaluations} == {
        evaluation_id(ONE, ONE.id, judge=judge, version=catalogue()[judge].version, judge_model="lexical")
        for judge in HEARD.judges
    }
    assert passes.woken == [batch.id]
    assert set(ground.leases()) == {batch.id}
    assert ground.waiting() == {"lexical": ground.client.strlen(ground.keys.batch(batch.id))}
    assert (passes.outcomes, ended(ground), gathered(ground)) == ({"pulled": 1}, {"pulled": 1}, {})


def test_what_is_pulled_in_unbalances_nothing(ground: Ground) -> None:
    ground.append("p1", make_traces(range(20)))
    for number in range(5):
        complain(ground, make_trace(number).trace_id)
    take(ground)
    before = balanced(ground)
    Passes(ground).make()
    after = balanced(ground)
    assert (before.published, before.not_sampled, before.chosen) == (20, 20, 0)
    assert (after.published, after.not_sampled, after.sampled, after.duplicate) == (20, 20, 0, 0)
    assert (after.chosen, after.waiting, after.unread) == (10, 10, 0)
    assert ground.daily_accounting() == ground.accounting()


def test_no_metric_of_sampling_tells_of_what_is_pulled_in(ground: Ground) -> None:
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground)
    passes = Passes(ground)
    passes.make()
    assert samples(passes.metrics) == {("late_feedback_total", "outcome=pulled"): 1}


def test_what_was_judged_already_is_not_judged_again(ground: Ground) -> None:
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground, rules=(Rule(name="all", judges=HEARD.judges),))
    assert ended(ground) == {"no_rule": 1}, "nobody listened then"
    complain(ground, ONE.trace_id)
    take(ground)
    before = evaluations(ground)
    Passes(ground).make()
    assert ended(ground) == {"no_rule": 1, "already_judged": 1}
    assert evaluations(ground) == before
    assert balanced(ground).chosen == 2


def test_of_a_trace_that_one_judge_has_seen_the_others_see_it_too(ground: Ground) -> None:
    rules = (Rule(name="all", judges=("safety",)), HEARD)
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground, rules=rules)
    passes = Passes(ground, rules=rules)
    passes.make()
    assert evaluations(ground) == [BOTH[0], (ONE.trace_id, "safety", "live", 1.0)]
    assert passes.outcomes == {"pulled": 1}


def test_only_rules_that_always_judge_complaints_choose(ground: Ground) -> None:
    rules = (
        Rule(name="of others", judges=("safety",), where=Where(service="desk"), always=("negative_feedback",)),
        Rule(name="of errors", judges=("safety",), rate=0.0, always=("error",)),
        Rule(name="complaints", judges=("relevance_to_query",), rate=0.0, always=("error", "negative_feedback")),
    )
    ground.add(make_trace(1, error="timeout", feedback=Feedback(1)))
    ground.add(make_trace(2))
    ground.add(make_trace(3, service="lab"))
    for number in (1, 2, 3):
        complain(ground, make_trace(number).trace_id)
    take(ground, rules=rules[:1])
    passes = Passes(ground, rules=rules)
    passes.make()
    assert {(judge, origin) for _, judge, origin, _ in evaluations(ground)} == {("relevance_to_query", "late_feedback")}
    assert passes.outcomes == {"pulled": 3}


def test_a_complaint_ends_as_found_without_a_rule_or_not_found_at_all(ground: Ground) -> None:
    rule = Rule(name="shop", judges=("safety",), rate=0.0, where=Where(service="shop"), always=("negative_feedback",))
    ground.add(make_trace(1, service="lab"))
    for trace_id in (ONE.trace_id, "never published", make_trace(2).trace_id):
        complain(ground, trace_id)
    take(ground, rules=(rule,))
    passes = Passes(ground, rules=(rule,))
    passes.make()
    assert passes.outcomes == ended(ground) == {"no_rule": 1, "not_found": 2}
    assert (evaluations(ground), passes.woken, gathered(ground)) == ([], [], {})
    balanced(ground)


def test_of_several_complaints_about_one_trace_the_first_pulls_it_in_and_the_last_is_heard(ground: Ground) -> None:
    ground.add(ONE)
    for score, comment in ((-0.25, "bad"), (1.0, "no, good"), (-1.0, "worse")):
        complain(ground, ONE.trace_id, score, comment)
    take(ground)
    Passes(ground).make()
    assert ended(ground) == {"not_negative": 1, "pulled": 1, "already_judged": 1}
    (batch,) = ground.batches().values()
    assert [item.trace.feedback for item in batch.items] == [Feedback(-1.0, "worse")]


def test_all_publications_within_a_trace_are_pulled_in_each_once(ground: Ground) -> None:
    others = [make_trace(1, id="f" * 16, output="first"), make_trace(1, span_id="f" * 16), make_trace(1, id=None)]
    for trace in (ONE, *others, ONE):
        ground.add(trace)
    complain(ground, ONE.trace_id)
    take(ground)
    passes = Passes(ground)
    passes.make()
    assert passes.outcomes == {"pulled": 1}
    assert evaluations(ground) == sorted(BOTH * 4)
    assert len({one.id for batch in ground.batches().values() for item in batch.items for one in item.evaluations}) == 8


def test_of_very_many_publications_the_newest_are_pulled_in(ground: Ground) -> None:
    for number in range(130):
        ground.add(make_trace(1, id=f"{number:016x}"))
    complain(ground, ONE.trace_id)
    take(ground)
    Passes(ground).make()
    ids = {item.trace.id for batch in ground.batches().values() for item in batch.items}
    assert ids == {f"{number:016x}" for number in range(30, 130)}


def test_batches_of_what_is_pulled_in_are_of_one_model_and_no_larger_than_their_size(ground: Ground) -> None:
    for trace in make_traces(range(7)):
        ground.add(trace)
        complain(ground, trace.trace_id)
    take(ground)
    passes = Passes(ground, batch_size=4)
    passes.make()
    sizes = sorted(sum(len(item.evaluations) for item in batch.items) for batch in ground.batches().values())
    assert sizes == [2, 4, 4, 4]
    assert sorted(passes.woken) == sorted(ground.batches())


# --- traces that ingest is not done with ---


@pytest.mark.parametrize("state", ["not read yet", "read and not decided"])
def test_a_trace_that_sampling_has_not_decided_about_is_left_to_the_next_pass(ground: Ground, state: str) -> None:
    """Else a live evaluation would become a late one, and be missing in the quality series."""
    rules = (Rule(name="all", judges=("safety",)), HEARD)
    complain(ground, ONE.trace_id)
    chosen = take(ground, rules=rules)
    ground.add(ONE)
    entries = ground.read() if state == "read and not decided" else None
    passes = Passes(ground, rules=rules)
    passes.make()
    assert (ended(ground), evaluations(ground)) == ({}, [])
    assert gathered(ground)[ONE.trace_id] == ground.soon(60)
    passes.turn(3)
    assert not passes.under_way, "not before its time has come again"
    chosen.take(entries)
    make_due(ground)
    passes.make()
    assert ended(ground) == {"pulled": 1}
    assert evaluations(ground) == [BOTH[0], (ONE.trace_id, "safety", "live", 1.0)]
    account = balanced(ground)
    assert (account.sampled, account.duplicate, account.chosen) == (1, 0, 2)


def test_without_ingests_group_everything_waits(ground: Ground) -> None:
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground)
    ground.client.xgroup_destroy(ground.keys.traces, INGEST_GROUP)
    Passes(ground).make()
    assert list(gathered(ground)) == [ONE.trace_id]


# --- when ---


def test_before_its_time_nothing_is_sought(ground: Ground) -> None:
    Passes(ground).turn(3)
    Chosen(ground, rules=(HEARD,)).take()
    complain(ground, "1")
    Chosen(ground, rules=(HEARD,)).take()
    passes = Passes(ground)
    passes.turn(3)
    assert (passes.under_way, list(gathered(ground))) == (False, ["1"])
    assert ground.client.exists(ground.keys.feedback_pass) == 0


def test_one_whose_time_has_come_takes_all_others_along(ground: Ground) -> None:
    complain(ground, "1")
    take(ground)
    complain(ground, "2")
    Chosen(ground, rules=(HEARD,)).take()
    Passes(ground).make()
    assert ended(ground) == {"not_found": 2}


def test_very_many_are_sought_at_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_PASS_FROM", 3)
    chosen, passes = Chosen(ground, rules=(HEARD,)), Passes(ground)
    for number in range(3):
        passes.turn()
        assert not passes.under_way
        complain(ground, str(number))
        chosen.take()
    passes.make()
    assert ended(ground) == {"not_found": 3}


def test_past_the_bound_of_waiting_work_nothing_more_is_chosen(ground: Ground) -> None:
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground)
    passes = Passes(ground, max_waiting_bytes=1000)
    passes.pressure.set_waiting({"lexical": 1001})
    passes.until_dealing()
    passes.turn(5)
    assert (evaluations(ground), ended(ground)) == ([], {})
    passes.pressure.set_waiting({"lexical": 1000})
    passes.turn()
    assert ended(ground) == {"pulled": 1}


def test_a_pass_of_many_parts_ends_every_complaint_once(ground: Ground) -> None:
    for trace in make_traces(range(600)):
        ground.add(trace)
    for number in range(300, 1_500):
        complain(ground, make_trace(number).trace_id)
    take(ground)
    passes = Passes(ground)
    passes.make()
    assert passes.outcomes == ended(ground) == {"pulled": 300, "not_found": 900}
    assert len(set(evaluations(ground))) == len(evaluations(ground)) == 600
    assert balanced(ground).chosen == 600


def test_what_a_newer_version_gathered_is_left_to_it(ground: Ground) -> None:
    complain(ground, "1")
    take(ground)
    strangers = [json.dumps({"v": 2, "entry_id": "1-1", "trace_id": "2", "score": -1}), "?"]
    ground.client.zadd(ground.keys.feedback, dict.fromkeys(strangers, 1))
    passes = Passes(ground)
    passes.make()
    assert passes.outcomes == {"not_found": 1}
    assert sorted(ground.client.zrange(ground.keys.feedback, 0, -1)) == sorted(map(str.encode, strangers))
    passes.turn(2)
    assert not passes.under_way, "it is not looked at all the time"


def test_a_complaint_is_pulled_in_by_several_models(ground: Ground) -> None:
    models = {name: ModelSettings(provider="lexical", label=name) for name in ("default", "other")}
    rules = (HEARD, Rule(name="other", judges=("safety",), rate=0.0, always=("negative_feedback",), model="other"))
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground, rules=rules, models=models)
    Passes(ground, rules=rules, models=models).make()
    found = {
        batch.judge_model: sum(len(item.evaluations) for item in batch.items) for batch in ground.batches().values()
    }
    assert found == {"default": 2, "other": 1}
    assert ended(ground) == {"pulled": 1}


def test_an_answer_of_the_store_that_does_not_come_is_asked_for_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.add(ONE)
    complain(ground, ONE.trace_id)
    take(ground)
    passes = Passes(ground)
    passes.until_dealing()
    run = ground.store.run

    def lossy(script: str, *arguments: object) -> object:
        answer = run(script, *arguments)
        if script == "choose_late_feedback":
            raise StoreError("Redis does not answer (TimeoutError)")
        return answer

    with monkeypatch.context() as away:
        away.setattr(ground.store, "run", lossy)
        with pytest.raises(StoreError):
            passes.turn()
    passes.turn(2)
    assert not passes.under_way
    assert (ended(ground), evaluations(ground)) == ({"pulled": 1}, BOTH)
    assert only(samples(passes.metrics), "late_feedback_total") == {}, "the accounting has it, and nothing counts twice"
    balanced(ground)


def test_what_would_ask_a_shed_model_waits_for_a_later_pass(ground: Ground) -> None:
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
        ground.add(trace)
        complain(ground, trace.trace_id)
    take(ground, **fields)
    passes = Passes(ground, **fields)
    passes.pressure.set_waiting({"dead": 10_001})
    passes.pressure.set_dead({"dead": 60.0})
    passes.make()
    assert passes.outcomes == ended(ground) == {"pulled": 1}
    assert {trace_id for trace_id, *_ in evaluations(ground)} == {ONE.trace_id}
    assert gathered(ground)[other.trace_id] == ground.soon(60)
    passes.pressure.set_waiting({})
    make_due(ground)
    passes.make()
    assert passes.outcomes == ended(ground) == {"pulled": 2}
    assert balanced(ground).chosen == 5
