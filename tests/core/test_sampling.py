"""Sampling: a lower rate takes a subset of what a higher one takes, and every worker takes the same.

Egress: a trace that a rule keeps to some models is sent to no other, whichever rule wants it.
"""

import random
from inspect import getclosurevars
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.stages import sampler_of
from support.tables import read_table

from judges.core.model import ModelSettings
from tracejudge import Feedback, Span, ToolCall, Trace
from worker.core.config.settings import Rule, Settings, Where
from worker.core.selection.sampling import Choice, RuleTally, Sampler, Sampling, position

LABELS = {"default": None, "other": "other", "inside": "judge-inside", "outside": "judge-outside"}
MODELS = {name: ModelSettings(provider="lexical", label=label) for name, label in LABELS.items()}
TABLES = read_table(__file__, "sampling")
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
SAFE = Choice("safety", "default", 1.0)
HAS_CONTEXT = Where(has=("context",))
MEDICAL = Where(service="medical-*")

unhurried = settings(deadline=None)
trace_ids = st.text(min_size=1, max_size=128)
rates = st.floats(0, 1)


def trace(trace_id: str = TRACE_ID, **fields: Any) -> Trace:
    return Trace(**{"trace_id": trace_id, "service": "shop", "output": "It is.", **fields})


def read(fields: dict[str, Any]) -> Trace:
    """Make a trace of a row of the table."""
    return msgspec.convert(msgspec.to_builtins(trace()) | fields, Trace)


def sampler(*rules: Rule, key: str = "tracejudge") -> Sampler:
    return sampler_of(Settings(rules=rules, models=MODELS, sampling_key=key))


def rule(rate: float = 1.0, name: str = "all", judges: tuple[str, ...] = ("safety",), **fields: Any) -> Rule:
    return Rule(name=name, judges=judges, rate=rate, **fields)


def tallies(**chosen: bool) -> tuple[RuleTally, ...]:
    return tuple(RuleTally(name, chosen=is_chosen) for name, is_chosen in chosen.items())


def random_ids(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [f"{source.getrandbits(128):032x}" for _ in range(count)]


def chosen_of(under_test: Sampler, ids: list[str]) -> list[tuple[Choice, ...]]:
    return [under_test.sample(trace(trace_id)).choices for trace_id in ids]


@unhurried
@given(trace_ids, st.text(max_size=16), rates, rates)
def test_a_trace_has_one_place_and_lower_rates_a_subset(trace_id: str, key: str, one: float, another: float) -> None:
    place = position(trace_id, key)
    assert 0 <= place < 1, "a rate of 1 chooses every trace"
    assert place == position(trace_id, key)
    lower, higher = sorted((one, another))
    if sampler(rule(lower), key=key).sample(trace(trace_id)).choices:
        assert sampler(rule(higher), key=key).sample(trace(trace_id)).choices
    assert sampler(rule(1.0)).sample(trace(trace_id)) == Sampling((SAFE,), tallies(all=True))
    assert sampler(rule(0.0)).sample(trace(trace_id)) == Sampling((), tallies(all=False))


def test_the_place_of_a_trace_is_fixed_for_good_and_a_matter_of_its_id() -> None:
    """Workers of different versions share a stream: what one calls chosen no other may leave out."""
    assert position(TRACE_ID, "tracejudge") == pytest.approx(0.29376961355910985, abs=1e-15)
    under_test = sampler(rule(0.5))
    for trace_id in random_ids(20, seed=9):
        bare = under_test.sample(trace(trace_id))
        assert under_test.sample(trace(trace_id, span_id=SPAN_ID, id="0123456789abcdef", input="?")) == bare
    # The share of chosen traces is the rate.
    count, ids = 4_000, random_ids(4_000, seed=7)
    counting_up = [f"request-{number}" for number in range(count)]
    for rate, drawn in ((0.01, ids), (0.05, ids), (0.5, ids), (0.9, ids), (0.1, counting_up)):
        chosen = sum(map(bool, chosen_of(sampler(rule(rate)), drawn)))
        assert abs(chosen - rate * count) <= 3 * (count * rate * (1 - rate)) ** 0.5, rate
    # Two keys agree as often as two independent draws do: on a hundredth of all traces.
    by_key = [chosen_of(sampler(rule(0.1), key=key), ids) for key in ("tracejudge", "other")]
    both = sum(bool(one and other) for one, other in zip(*by_key, strict=True))
    assert abs(both - 40) <= 19


def test_a_rule_matches_by_patterns_and_by_the_fields_of_a_trace() -> None:
    for where, fields, matches in TABLES["matches"]:
        found = sampler(rule(where=msgspec.convert(where, Where))).sample(read(fields)).rules
        assert bool(found) is matches, (where, fields)
    of_default = sampler_of(Settings())
    by_default = [of_default.sample(trace(**fields)).choices for fields in ({}, {"context": ["A document."]})]
    names = [{choice.judge for choice in choices} for choices in by_default]
    assert names == [{"relevance_to_query", "safety"}, {"relevance_to_query", "safety", "groundedness"}]
    # Retrieval spans and named tools count as context.
    tea_trace = trace(tool_calls=[ToolCall("kb_search", result="Tea.")])
    under_test = sampler(
        rule(name="plain", where=HAS_CONTEXT),
        rule(name="tools", where=HAS_CONTEXT, context_tools=("kb_search",)),
        rule(name="any", context_tools=("find", "kb_search")),
    )
    for subject, matching in (
        (trace(), ["any"]),
        (trace(spans=[Span(SPAN_ID, "search", kind="RETRIEVER", outputs=["Tea."])]), ["plain", "tools", "any"]),
        (trace(spans=[Span(SPAN_ID, "search", kind="RETRIEVER")]), ["any"]),
        (tea_trace, ["tools", "any"]),
    ):
        assert [tally.rule for tally in under_test.sample(subject).rules] == matching
    assert under_test.rules.matching(tea_trace).context_tools == ("kb_search", "find")
    assert under_test.rules.matching(trace()).context_tools == ("find", "kb_search")


def test_always_chooses_at_any_rate() -> None:
    for always, fields, chosen in TABLES["always"]:
        got = sampler(rule(0.0, always=tuple(always))).sample(read(fields))
        assert got == Sampling((SAFE,) if chosen else (), tallies(all=chosen)), (always, fields)
    elsewhere = sampler(rule(where=Where(service="other"), always=("error",)))
    assert elsewhere.sample(trace(error="timeout")) == Sampling((), ()), "the rule must match"
    under_test = sampler(rule(0.2, "a"), rule(0.9, "b"), rule(0.25, "c"))
    assert 0.25 <= position(TRACE_ID, "tracejudge") < 0.9, "this trace is chosen by one of them"
    shared = Sampling((Choice("safety", "default", 0.9),), tallies(a=False, b=True, c=False))
    assert under_test.sample(trace()) == shared, "rules that want the same share one evaluation"
    both = sampler(rule(0.0, "a", always=("error",)), rule(0.9, "b")).sample(trace(error="timeout"))
    assert both.choices == (SAFE,), "always in one rule makes the shared evaluation certain"


def test_sessions_are_chosen_as_a_whole() -> None:
    under_test = sampler(rule(0.3, sample_by="session"))
    chosen: dict[str, set[tuple[Choice, ...]]] = {}
    for number, trace_id in enumerate(random_ids(6000, seed=18)):
        session_id = f"session {number // 6}"
        chosen.setdefault(session_id, set()).add(under_test.sample(trace(trace_id, session_id=session_id)).choices)
    assert {len(choices) for choices in chosen.values()} == {1}, "a session is divided"
    share = sum(choices != {()} for choices in chosen.values()) / len(chosen)
    assert abs(share - 0.3) < 0.05
    without = chosen_of(under_test, random_ids(3000, seed=19))
    assert abs(sum(map(bool, without)) / len(without) - 0.3) < 0.03, "traces without a session"

    under_test = sampler(rule(0.3, "a"), rule(0.5, "b", sample_by="session"), rule(0.2, "c", ("groundedness",)))
    grounded = Choice("groundedness", "default", 0.2)
    ids = random_ids(4_000, seed=1)
    sessions = zip(ids, random_ids(4_000, seed=2), strict=True)
    in_sessions = [under_test.sample(trace(trace_id, session_id=name)).choices for trace_id, name in sessions]
    # Without a session both rules choose by the trace.
    for samples, rate in ((in_sessions, 0.65), (chosen_of(under_test, ids), 0.5)):
        safety = Choice("safety", "default", rate)
        assert {choice for choices in samples for choice in choices} == {safety, grounded}
        assert abs(sum(safety in choices for choices in samples) / 4_000 - rate) < 0.03


@unhurried
@given(trace_ids, st.lists(rates, min_size=1, max_size=4))
def test_a_trace_is_chosen_by_rules_together_as_by_the_widest_alone(trace_id: str, all_rates: list[float]) -> None:
    together = sampler(*(rule(rate, f"rule {number}") for number, rate in enumerate(all_rates)))
    alone = sampler(rule(max(all_rates)))
    assert together.sample(trace(trace_id)).choices == alone.sample(trace(trace_id)).choices


PATTERNED = (
    rule(0.3, "shop", where=Where(service="sh?p", has=("context",)), always=("error",)),
    rule(0.6, "named", ("relevance_to_query",), where=Where(environment="prod*", has=("input",))),
    rule(0.1, "other", where=Where(service="[!s]*"), model="other", always=("negative_feedback",)),
)
traces = st.builds(
    Trace,
    trace_id=trace_ids,
    service=st.sampled_from(["shop", "ship", "lab", "medical-chat"]),
    output=st.just("It is."),
    environment=st.sampled_from([None, "prod", "prod-eu", "test"]),
    input=st.sampled_from([None, "Is it?", " "]),
    context=st.sampled_from([None, [], ["It is warm."]]),
    error=st.sampled_from([None, "timeout"]),
    feedback=st.sampled_from([None, Feedback(-1), Feedback(1)]),
)


@settings(deadline=None, max_examples=25)
@given(st.lists(traces, max_size=10))
def test_a_sampler_answers_the_thousandth_trace_as_it_would_the_first(seen: list[Trace]) -> None:
    first_sampler = sampler(*PATTERNED)
    for each in seen * 2:
        assert first_sampler.sample(each) == sampler(*PATTERNED).sample(each)
        assert first_sampler.rules.matching(each) == sampler(*PATTERNED).rules.matching(each)


def test_names_are_remembered_within_bounds() -> None:
    for names in ([f"s{number}" for number in range(5_000)], ["s" * 2_000]):
        under_test = sampler(rule(where=Where(name="s*")))
        for _ in range(2):
            assert all(under_test.sample(trace(name=name)).choices for name in names)
        cache = getclosurevars(under_test._matching).nonlocals["cache"]  # nothing else shows what is remembered
        assert sum(len(str(name)) for name in cache) <= 4_096 * 8


KEPT = rule(name="kept", model="inside", where=MEDICAL, egress=("inside",))
FREE = rule(name="free", model="outside")
ILL = trace(service="medical-chat")


def asked(under_test: Sampler, subject: Trace) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the judges and models of each matching rule."""
    return {match.rule.name: match.evaluations for match in under_test.rules.matching(subject).rules}


def test_a_trace_goes_only_to_models_that_all_matching_rules_allow() -> None:
    inside, outside = Choice("safety", "inside", 1.0), Choice("safety", "outside", 1.0)
    sampled = sampler(KEPT, FREE).sample(ILL)
    assert sampled == Sampling((inside,), tallies(kept=True, free=False))
    assert sampler(KEPT, FREE).sample(trace()).choices == (outside,), "traces of others go anywhere"
    rare = rule(0.0, "kept", model="inside", where=MEDICAL, egress=("inside",))
    assert sampler(rare, FREE).sample(ILL) == Sampling((), tallies(kept=False, free=False)), "though not chosen"
    both = rule(name="both", model="inside", egress=("inside", "default"))
    less = rule(name="less", where=MEDICAL, egress=("default",))
    under_test = sampler(both, less, FREE)
    assert under_test.sample(ILL).choices == (SAFE,)
    assert under_test.sample(trace()).choices == (inside,)
    none = sampler(rule(name="a", model="inside", egress=("inside",)), rule(name="b", egress=("default",)))
    assert none.sample(ILL).choices == ()
    unhappy = trace(service="medical-chat", error="broken", feedback=Feedback(score=-1))
    under_test = sampler(KEPT, rule(0.0, "free", model="outside", always=("error", "negative_feedback")))
    assert {choice.grader for choice in under_test.sample(unhappy).choices} == {"inside"}
    assert asked(under_test, unhappy)["free"] == ()
    under_test = sampler(KEPT, FREE)
    names = [MODELS[name].judge_model for name in ("default", "inside", "outside")]
    assert [under_test.rules.allows(ILL, name) for name in names] == [False, True, False]
    assert all(under_test.rules.allows(trace(), name) for name in names)
    assert not under_test.rules.allows(ILL, "one that this configuration does not know")


def test_two_rules_that_do_not_agree_are_told_once() -> None:
    under_test = sampler(KEPT, FREE, rule(name="free as well", model="outside"))
    with capture_logs() as logged:
        for number in range(20):
            under_test.sample(trace(str(number), service=f"medical-{number}"))
            under_test.sample(trace())
    told = {"event": "egress excludes another rule's model", "rule": "kept", "log_level": "warning"}
    assert logged == [told | {"other": other} for other in ("free", "free as well")]


names = st.sampled_from(["default", "inside", "outside"])
drawn_rules = st.tuples(
    names,
    st.none() | st.sets(names),
    st.sampled_from([Where(), MEDICAL, Where(has=("input",)), Where(environment="prod")]),
    rates,
    st.sets(st.sampled_from(["error", "negative_feedback"])),
)


@unhurried
@given(st.lists(drawn_rules, max_size=5), traces)
def test_no_choice_ever_leaves_the_egress_of_any_matching_rule(drawn: list[Any], subject: Trace) -> None:
    rules = {
        str(number): rule(
            rate,
            str(number),
            model=model,
            where=where,
            always=tuple(always),
            egress=None if more is None else (*more, model),
        )
        for number, (model, more, where, rate, always) in enumerate(drawn)
    }
    under_test = sampler(*rules.values())
    sampled = under_test.sample(subject)
    chosen = {choice.grader for choice in sampled.choices}
    # Late feedback may choose all of these.
    chosen.update(model for asks in asked(under_test, subject).values() for _, model in asks)
    for tally in sampled.rules:
        if (egress := rules[tally.rule].egress) is not None:
            assert chosen <= set(egress)
    assert all(under_test.rules.allows(subject, MODELS[model].judge_model) for model in chosen)
