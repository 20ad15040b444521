"""Members and panel are chosen together, by rules, egress, replays and late feedback, shed and forgotten together."""

from typing import Any

import msgspec
import pytest
from support.dead_parts import make_retryable, retry_all
from support.feedback_parts import Passes, complain, make_due
from support.judging_parts import HOUR_S, Desks, assert_settled, letters
from support.panel_parts import (
    MODELS,
    NO,
    PANEL,
    SETUP,
    TOGETHER,
    balanced,
    chosen,
    finish,
    in_order,
    panel_desk,
    verdicts,
)
from support.replay_parts import Replays
from support.stage_parts import Chosen, Ground, make_trace, make_traces, rules_of, sampler_of, samples, settings_of

from judges.models.scripted import Step
from tracejudge import Feedback
from worker.base.dead_letters.retry import MIN_PACE, AutoRetry
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config.settings import Rule, Settings, Where
from worker.core.queue.batch import Member
from worker.core.selection.sampling import Choice, Sampler

ALONE = Rule(name="alone", judges=("safety",), model="default")


def sampler(*rules: Rule) -> Sampler:
    return sampler_of(Settings(models=MODELS, rules=rules))


def names(*rules: Rule, **fields: Any) -> list[tuple[str, float]]:
    """List the seats that a trace is chosen for, with their probabilities."""
    return [(choice.model, choice.probability) for choice in sampler(*rules).sample(make_trace(1, **fields)).choices]


def evaluations(ground: Ground) -> dict[str, Any]:
    """Return the only evaluation in the batch of each judge model."""
    return {batch.judge_model: item.evaluations[0] for batch in ground.batches().values() for item in batch.items}


# --- rules and egress ---


def test_members_are_chosen_before_their_panel() -> None:
    assert names(TOGETHER) == [("default", 1.0), ("first", 1.0), ("last", 1.0), (PANEL, 1.0)]


def test_a_member_that_another_rule_wants_too_is_asked_once_at_the_higher_rate() -> None:
    rare = msgspec.structs.replace(TOGETHER, rate=0.999)
    assert names(rare, ALONE) == [("default", 1.0), ("first", 0.999), ("last", 0.999), (PANEL, 0.999)]
    assert names(msgspec.structs.replace(TOGETHER, rate=0.0), ALONE) == [("default", 1.0)]


def test_panels_of_the_same_models_are_one_whatever_their_order() -> None:
    other = msgspec.structs.replace(TOGETHER, name="other", model=("last", "first", "default"))
    assert [name for name, _ in names(TOGETHER, other)].count(PANEL) == 1


@pytest.mark.parametrize("missing", ["default", "first", "last"])
def test_an_egress_that_leaves_one_model_out_bars_the_whole_panel(missing: str) -> None:
    kept = Rule(name="kept", judges=("safety",), rate=0.0, egress=tuple(set(MODELS) - {missing}))
    under_test = sampler(TOGETHER, kept)
    assert under_test.sample(make_trace(1)).choices == ()
    assert not under_test.rules.allows(make_trace(1), PANEL)
    assert sampler(TOGETHER, Rule(name="kept", judges=("safety",), egress=tuple(MODELS))).rules.allows(
        make_trace(1), PANEL
    )


def test_an_evaluation_names_its_members_and_those_know_that_they_are_kept(ground: Ground) -> None:
    chosen(ground, 1)
    found = evaluations(ground)
    assert found[PANEL].members == tuple(Member(name, found[name].id) for name in "abc")
    assert {name: one.keep for name, one in found.items()} == {"a": True, "b": True, "c": True, PANEL: False}


def test_what_a_panel_may_want_later_is_kept_though_it_is_not_chosen(ground: Ground) -> None:
    chosen(ground, 1, rules=(msgspec.structs.replace(TOGETHER, rate=0.0), ALONE))
    assert {name: one.keep for name, one in evaluations(ground).items()} == {"b": True}


# --- shedding ---


def shedding(ground: Ground) -> Chosen:
    """Make an ingest for which `c` is dead and has too much to do."""
    under_test = Chosen(ground, **SETUP, max_waiting_bytes=10_000)
    ground.client.hset(ground.keys.waiting, "c", 10_001)
    under_test.pressure.set_waiting({"c": 10_001})
    under_test.pressure.set_dead({"c": 60.0})
    return under_test


def test_with_one_member_its_panel_is_shed_too_and_both_are_brought_back(ground: Ground, desk: Desks) -> None:
    under_test = shedding(ground)
    ground.append("p1", [make_trace(0)])
    under_test.take()
    ground.client.hdel(ground.keys.waiting, "c")
    assert evaluations(ground).keys() == {"a", "b"}
    assert balanced(ground).reasons == {"shed:c": 2}
    assert samples(under_test.metrics)["shed_total", "judge_model=c"] == 2

    worker = panel_desk(desk)
    finish(ground, worker)
    assert Replays(ground, **SETUP).make() == {"traces": 1, "chosen": 2, "already_judged": 2}
    finish(ground, worker)
    assert_settled(ground, scored=4)
    combined = verdicts(ground)[PANEL]
    assert (combined.origin, combined.scores[0].passed) == ("replay", True)
    assert verdicts(ground)["a"].origin == "live"


def test_a_trace_that_only_a_panel_of_the_dead_wants_is_shed_whole(ground: Ground) -> None:
    under_test = shedding(ground)
    under_test.pressure.set_waiting(dict.fromkeys("abc", 10_001))
    under_test.pressure.set_dead(dict.fromkeys("abc", 60.0))
    ground.append("p1", make_traces(range(2)))
    under_test.take()
    account = balanced(ground)
    assert (account.shed, account.chosen) == (2, 0)
    assert account.reasons == {"shed:a": 4, "shed:b": 2, "shed:c": 2}


# --- replay and late feedback ---


def test_a_replay_with_a_new_panel_asks_only_who_is_missing(ground: Ground, desk: Desks) -> None:
    """What was judged before there was a panel has left no scores in the ledger: the panel says so."""
    chosen(ground, 1, rules=(ALONE,))
    finish(ground, panel_desk(desk, rules=(ALONE,)))
    assert Replays(ground, **SETUP).make() == {"traces": 1, "chosen": 3, "already_judged": 1}
    finish(ground, panel_desk(desk, c=Step(text="no", refusal=True)))
    combined = verdicts(ground)[PANEL]
    assert (combined.origin, combined.outcome, combined.reason) == ("replay", "unscored", "judge_failed")


def test_without_a_member_that_was_taken_out_a_replay_combines_what_the_others_said(
    ground: Ground, desk: Desks
) -> None:
    chosen(ground, 1)
    finish(ground, panel_desk(desk, c=Step(failure="judge_unavailable")))
    assert verdicts(ground).keys() == {"a", "b"}
    two = {**SETUP, "rules": (msgspec.structs.replace(TOGETHER, model=("default", "first")),)}
    assert Replays(ground, **two).make() == {"traces": 1, "chosen": 1, "already_judged": 2}
    worker = panel_desk(desk, rules=two["rules"])
    finish(ground, worker)
    assert verdicts(ground)["majority(a,b)"].scores[0].passed
    assert [worker.models[name].requests for name in two["rules"][0].models] == [[], []], "nobody is asked twice"
    assert evaluations(ground).keys() == {PANEL}, "others may know it; if not, it is given up"


def test_late_feedback_pulls_in_members_and_panel(ground: Ground, desk: Desks) -> None:
    heard = msgspec.structs.replace(TOGETHER, rate=0.0, always=("negative_feedback",))
    setup = {**SETUP, "rules": (heard, ALONE)}
    worker = panel_desk(desk, rules=setup["rules"], c=NO)
    ground.add(make_trace(1))
    Chosen(ground, **setup).take()
    finish(ground, worker)
    complain(ground, make_trace(1).trace_id)
    Chosen(ground, **setup).take()
    make_due(ground)
    Passes(ground, **setup).make()
    finish(ground, worker)
    assert_settled(ground, scored=4)
    found = verdicts(ground)
    assert {name: one.origin for name, one in found.items()} == {
        "b": "live",
        "a": "late_feedback",
        "c": "late_feedback",
        PANEL: "late_feedback",
    }
    assert (found[PANEL].weight, found[PANEL].scores[0].passed) == (0.0, True)


def test_a_complaint_that_comes_with_its_trace_is_chosen_for_the_panel() -> None:
    heard = msgspec.structs.replace(TOGETHER, rate=0.0, always=("negative_feedback",))
    assert [name for name, _ in names(heard, feedback=Feedback(score=-1))] == ["default", "first", "last", PANEL]


# --- forgetting ---


def test_forgotten_between_members_and_panel_nothing_is_combined(ground: Ground, desk: Desks) -> None:
    worker = panel_desk(desk)
    of = chosen(ground, 2)
    worker.run(of["a"], of["b"], of["c"])
    settings = settings_of(ground, **SETUP)
    Forgetting(ground.store, settings, ForgetTarget(trace_id=make_trace(0).trace_id)).run()
    finish(ground, worker)
    assert [entry["trace_id"] for entry in ground.outbox("j") if entry["judge_model"] == PANEL] == [
        make_trace(1).trace_id
    ]
    account = balanced(ground)
    assert (account.scored, account.removed, account.waiting) == (7, 1, 0)


# --- dead letters ---


def given_up(ground: Ground, desk: Desks, count: int = 1) -> None:
    """Run a worker that gives panels up because two of their members are absent."""
    chosen(ground, count, age_s=7 * HOUR_S)
    away = Step(failure="judge_rejected")
    in_order(ground, panel_desk(desk, b=away, c=away), "a", "b", "c", PANEL)
    assert balanced(ground).dead == 3 * count


def reviving(ground: Ground, *healthy: str) -> AutoRetry:
    settings = settings_of(ground, **SETUP)
    return AutoRetry(settings, ground.store, rules=rules_of(settings), healthy=lambda: healthy)


def test_a_panel_is_not_taken_up_before_its_members(ground: Ground, desk: Desks) -> None:
    given_up(ground, desk)
    make_retryable(ground, PANEL)
    stage = reviving(ground, PANEL, "b", "c")
    stage.look()
    assert ground.batches() == {}
    for name in ("b", "c"):
        make_retryable(ground, name)
    stage.look()
    finish(ground, panel_desk(desk))
    assert verdicts(ground).keys() == {"a", "b", "c"}
    make_retryable(ground, PANEL)
    stage.look()
    finish(ground, panel_desk(desk))
    assert_settled(ground, scored=4)
    assert verdicts(ground)[PANEL].scores[0].passed


def test_panels_that_may_go_on_are_found_behind_those_that_may_not(ground: Ground, desk: Desks) -> None:
    given_up(ground, desk, MIN_PACE + 1)
    panels = [letter.evaluation for letter in letters(ground).values() if letter.judge_model == PANEL]
    *waiting, able = panels
    for member in able.members:
        ground.end(member.id, able.period, "abstained")
    again = ground.keys.dead_again(PANEL)
    ground.client.zadd(again, {one.id: place for place, one in enumerate(panels)})
    reviving(ground, PANEL).look()
    assert [one.id for batch in ground.batches().values() for item in batch.items for one in item.evaluations] == [
        able.id
    ]
    assert min(ground.client.zmscore(again, [one.id for one in waiting])) > MIN_PACE, "postponed behind the others"


def test_retried_by_hand_member_and_panel_end_once(ground: Ground, desk: Desks) -> None:
    given_up(ground, desk)
    retry_all(ground, settings_of(ground, **SETUP))
    finish(ground, panel_desk(desk))
    assert_settled(ground, scored=4)


def test_a_fault_in_a_member_does_not_keep_the_panel_from_coming_back(ground: Ground, desk: Desks) -> None:
    """An `internal_error` is not taken up by itself; the panel of it is, once somebody has retried the member."""
    chosen(ground, 1, age_s=7 * HOUR_S)

    def fault(_: object) -> str:
        raise KeyError

    in_order(ground, panel_desk(desk, b=fault, c=fault), "a", "b", "c", PANEL)
    assert balanced(ground).reasons == {"dead:internal_error": 3}
    assert ground.client.zcard(ground.keys.dead_again(PANEL)) == 1
    assert ground.client.zcard(ground.keys.dead_again("c")) == 0


def test_where_says_it_all_the_same(ground: Ground) -> None:
    """The traces in a panel's batch hold no texts: what a rule wants of them was looked at before."""
    with_context = msgspec.structs.replace(TOGETHER, where=Where(has=("context",)))
    ground.add(make_trace(1, context=["It is warm."]))
    Chosen(ground, models=MODELS, rules=(with_context,)).take()
    assert evaluations(ground).keys() == {"a", "b", "c", PANEL}
    assert Choice("safety", PANEL, 1.0) in sampler(TOGETHER).sample(make_trace(1)).choices
