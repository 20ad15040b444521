"""Egress: a trace that a rule keeps to some models is sent to no other, whichever rule wants it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.cases import each_case
from support.stage_parts import sampler_of

from judges.core.model import ModelSettings
from tracejudge import Feedback, Trace
from worker.core.config.loading import load
from worker.core.config.settings import Rule, Settings, SettingsError, Where
from worker.core.selection.sampling import Choice, RuleTally, Sampler

NAMES = ("default", "inside", "outside")
MODELS = {name: ModelSettings(provider="lexical", label=f"judge-{name}") for name in NAMES}
MEDICAL = Where(service="medical-*")


def trace(service: str = "medical-chat", trace_id: str = "4bf9", **fields: Any) -> Trace:
    return Trace(**{"trace_id": trace_id, "service": service, "output": "It is.", **fields})


def sampler(*rules: Rule) -> Sampler:
    return sampler_of(Settings(rules=rules, models=MODELS))


def evaluations(asked: Sampler, subject: Trace) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the judges and models of each matching rule."""
    return {matching.rule.name: matching.evaluations for matching in asked.rules.matching(subject).rules}


def rule(name: str, model: str, **fields: Any) -> Rule:
    return Rule(**{"name": name, "model": model, "judges": ("safety",), **fields})


KEPT = rule("kept", "inside", where=MEDICAL, egress=("inside",))
FREE = rule("free", "outside")


def test_another_rule_s_model_does_not_get_the_trace() -> None:
    sampled = sampler(KEPT, FREE).sample(trace())
    assert sampled.choices == (Choice("safety", "inside", 1.0),)
    assert sampled.rules == (RuleTally("kept", chosen=True), RuleTally("free", chosen=False))


def test_traces_of_others_go_anywhere() -> None:
    assert sampler(KEPT, FREE).sample(trace("shop")).choices == (Choice("safety", "outside", 1.0),)


def test_a_rule_keeps_traces_also_that_it_does_not_choose() -> None:
    sampled = sampler(rule("kept", "inside", where=MEDICAL, egress=("inside",), rate=0.0), FREE).sample(trace())
    assert sampled.choices == ()
    assert [tally.chosen for tally in sampled.rules] == [False, False]


def test_only_models_that_all_matching_rules_allow_are_chosen() -> None:
    both = rule("both", "inside", egress=("inside", "default"))
    less = rule("less", "default", where=MEDICAL, egress=("default",))
    under_test = sampler(both, less, FREE)
    assert under_test.sample(trace()).choices == (Choice("safety", "default", 1.0),)
    assert under_test.sample(trace("shop")).choices == (Choice("safety", "inside", 1.0),)
    none = sampler(rule("a", "inside", egress=("inside",)), rule("b", "default", egress=("default",)))
    assert none.sample(trace()).choices == ()


@pytest.mark.parametrize("always", ["error", "negative_feedback"])
def test_egress_limits_always_rules_too(always: Any) -> None:
    under_test = sampler(KEPT, rule("free", "outside", always=(always,), rate=0.0))
    unhappy = trace(error="broken", feedback=Feedback(score=-1))
    assert {choice.grader for choice in under_test.sample(unhappy).choices} == {"inside"}
    assert evaluations(under_test, unhappy)["free"] == ()


def test_anybody_may_ask_whether_a_trace_may_go_to_a_judge_model() -> None:
    under_test = sampler(KEPT, FREE)
    assert [under_test.rules.allows(trace(), f"judge-{name}") for name in NAMES] == [False, True, False]
    assert all(under_test.rules.allows(trace("shop"), f"judge-{name}") for name in NAMES)
    assert not under_test.rules.allows(trace(), "one that this configuration does not know")


def test_two_rules_that_do_not_agree_are_told_once() -> None:
    under_test = sampler(KEPT, FREE, rule("free as well", "outside"))
    with capture_logs() as logged:
        for number in range(20):
            under_test.sample(trace(f"medical-{number}", trace_id=str(number)))
            under_test.sample(trace("shop"))
    assert logged == [
        {"event": "egress excludes another rule's model", "rule": "kept", "other": other, "log_level": "warning"}
        for other in ("free", "free as well")
    ]


rules = st.builds(
    lambda model, more, where, rate, always: (model, more, where, rate, always),
    st.sampled_from(NAMES),
    st.none() | st.sets(st.sampled_from(NAMES)),
    st.sampled_from([Where(), MEDICAL, Where(has=("input",)), Where(environment="prod")]),
    st.floats(0, 1),
    st.sets(st.sampled_from(["error", "negative_feedback"])),
)
traces = st.builds(
    trace,
    service=st.sampled_from(["medical-chat", "shop"]),
    trace_id=st.text(min_size=1, max_size=8),
    environment=st.sampled_from([None, "prod"]),
    input=st.sampled_from([None, "What?"]),
    error=st.sampled_from([None, "broken"]),
    feedback=st.sampled_from([None, Feedback(score=-1)]),
)


@hypothesis_settings(deadline=None)
@given(st.lists(rules, max_size=5), traces)
def test_no_choice_ever_leaves_the_egress_of_any_matching_rule(drawn: list[Any], random_trace: Trace) -> None:
    drawn_rules = [
        rule(
            str(number),
            model,
            where=where,
            rate=rate,
            always=tuple(always),
            egress=None if more is None else (*more, model),
        )
        for number, (model, more, where, rate, always) in enumerate(drawn)
    ]
    under_test = sampler(*drawn_rules)
    matching = {tally.rule for tally in under_test.sample(random_trace).rules}
    chosen = {choice.grader for choice in under_test.sample(random_trace).choices}
    # Late feedback may choose all of these.
    chosen.update(model for asks in evaluations(under_test, random_trace).values() for _, model in asks)
    for each in drawn_rules:
        if each.name in matching and each.egress is not None:
            assert chosen <= set(each.egress)
    assert all(under_test.rules.allows(random_trace, f"judge-{model}") for model in chosen)


WRONG = {
    "own model": (["inside"], "egress: keeps the rule's own model 'default' out; add it, or take egress out"),
    "nothing": ([], "egress: keeps the rule's own model 'default' out; add it, or take egress out"),
    "unknown": (["default", "insde"], "egress: there is no [models.insde]; did you mean inside?"),
}


@each_case(("egress", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_rule_whose_egress_cannot_serve_stops_the_start(egress: list[str], message: str) -> None:
    models = {name: {"provider": "lexical", "label": name} for name in NAMES}
    rules = [{"name": "kept", "judges": ["safety"], "egress": egress}]
    with pytest.raises(SettingsError) as caught:
        load({"TRACEJUDGE_MODELS": json.dumps(models), "TRACEJUDGE_RULES": json.dumps(rules)})
    assert str(caught.value) == f"TRACEJUDGE_RULES: rules[0].{message}"
