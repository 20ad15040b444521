"""Sampling: a lower rate takes a subset of what a higher one takes, and every worker takes the same."""

import random
from collections.abc import Sequence
from inspect import getclosurevars
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case
from support.stage_parts import sampler_of

from judges.core.model import ModelSettings
from tracejudge import Document, Feedback, Message, Span, ToolCall, Trace
from worker.core.config.settings import Rule, Settings, Where
from worker.core.selection.sampling import Choice, RuleTally, Sampler, Sampling, position

LEXICAL = ModelSettings(provider="lexical")
MODELS = {"default": LEXICAL, "other": ModelSettings(provider="lexical", label="other")}

unhurried = settings(deadline=None)
trace_ids = st.text(min_size=1, max_size=128)
rates = st.floats(0, 1)


def trace(trace_id: str = "4bf92f3577b34da6a3ce929d0e0e4736", **fields: Any) -> Trace:
    return Trace(**{"trace_id": trace_id, "service": "shop", "output": "It is.", **fields})


def sampler(*rules: Rule, key: str = "tracejudge") -> Sampler:
    return sampler_of(Settings(rules=rules, models=MODELS, sampling_key=key))


def rule(rate: float = 1.0, name: str = "all", judges: Sequence[str] = ("safety",), **fields: Any) -> Rule:
    return Rule(name=name, judges=tuple(judges), rate=rate, **fields)


def random_ids(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [f"{source.getrandbits(128):032x}" for _ in range(count)]


# --- the number of a trace ---


@unhurried
@given(trace_ids, st.text(max_size=16))
def test_a_trace_has_one_place_from_zero_to_one(trace_id: str, key: str) -> None:
    place = position(trace_id, key)
    assert 0 <= place < 1, "a rate of 1 chooses every trace"
    assert place == position(trace_id, key)


def test_the_place_of_a_trace_is_fixed_for_good() -> None:
    """Workers of different versions share a stream: what one calls chosen no other may leave out."""
    assert position("4bf92f3577b34da6a3ce929d0e0e4736", "tracejudge") == pytest.approx(0.29376961355910985, abs=1e-15)


@unhurried
@given(trace_ids, rates, rates)
def test_a_lower_rate_chooses_a_subset(trace_id: str, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    if sampler(rule(lower)).sample(trace(trace_id)).choices:
        assert sampler(rule(higher)).sample(trace(trace_id)).choices


@unhurried
@given(trace_ids, rates, st.text(max_size=16))
def test_every_sampler_chooses_alike(trace_id: str, rate: float, key: str) -> None:
    first, other = (sampler(rule(rate), key=key) for _ in range(2))
    first.sample(trace("seen before"))
    assert first.sample(trace(trace_id)) == other.sample(trace(trace_id))


@each_case("rate", [0.01, 0.05, 0.5, 0.9])
def test_the_share_of_chosen_traces_is_the_rate(rate: float) -> None:
    under_test, count = sampler(rule(rate)), 10_000
    chosen = sum(bool(under_test.sample(trace(trace_id)).choices) for trace_id in random_ids(count, seed=7))
    assert abs(chosen - rate * count) <= 3 * (count * rate * (1 - rate)) ** 0.5


def test_ids_that_count_up_are_spread_as_evenly_as_random_ones() -> None:
    under_test, count, rate = sampler(rule(0.1)), 10_000, 0.1
    chosen = sum(bool(under_test.sample(trace(f"request-{number}")).choices) for number in range(count))
    assert abs(chosen - rate * count) <= 3 * (count * rate * (1 - rate)) ** 0.5


def test_another_key_chooses_other_traces() -> None:
    """Two keys agree as often as two independent draws do: on a hundredth of all traces."""
    first_sampler, other, ids = sampler(rule(0.1)), sampler(rule(0.1), key="other"), random_ids(10_000, seed=8)
    both = sum(bool(first_sampler.sample(trace(i)).choices and other.sample(trace(i)).choices) for i in ids)
    assert abs(both - 100) <= 30


def test_only_the_trace_id_decides() -> None:
    under_test = sampler(rule(0.5))
    for trace_id in random_ids(20, seed=9):
        bare = under_test.sample(trace(trace_id))
        assert under_test.sample(trace(trace_id, span_id="00f067aa0ba902b7", id="0123456789abcdef", input="?")) == bare


@unhurried
@given(trace_ids)
def test_a_rate_of_one_chooses_all_and_zero_none(trace_id: str) -> None:
    assert sampler(rule(1.0)).sample(trace(trace_id)) == Sampling(
        (Choice("safety", "default", 1.0),), (RuleTally("all", chosen=True),)
    )
    assert sampler(rule(0.0)).sample(trace(trace_id)) == Sampling((), (RuleTally("all", chosen=False),))


# --- which rules match ---

PATTERNS = {
    "no pattern": (Where(), {}, True),
    "the same": (Where(service="shop"), {}, True),
    "another": (Where(service="shop"), {"service": "shop-2"}, False),
    "only a part": (Where(service="hop"), {}, False),
    "star at the end": (Where(service="shop-*"), {"service": "shop-2"}, True),
    "star for nothing": (Where(service="shop*"), {}, True),
    "star over lines": (Where(service="shop*"), {"service": "shop\n2"}, True),
    "star in the middle": (Where(service="s*p"), {}, True),
    "question mark": (Where(service="sh?p"), {}, True),
    "question mark for nothing": (Where(service="shop?"), {}, False),
    "capitals": (Where(service="Shop"), {}, False),
    "a dot is a dot": (Where(release="1.2"), {"release": "1x2"}, False),
    "environment": (Where(environment="prod"), {"environment": "prod"}, True),
    "no environment": (Where(environment="prod"), {}, False),
    "any environment, also none": (Where(environment="*"), {}, True),
    "some environment": (Where(environment="?*"), {}, False),
    "name": (Where(name="answer_*"), {"name": "answer_question"}, True),
    "release": (Where(release="2024-*"), {"release": "2025-01"}, False),
    "model": (Where(model="gpt-6*"), {"model": "gpt-6-luna"}, True),
    "all of several": (Where(service="shop", environment="prod"), {"environment": "prod"}, True),
    "one of several": (Where(service="shop", environment="prod"), {"environment": "test"}, False),
}


@each_case(("where", "fields", "matches"), PATTERNS.values(), ids=PATTERNS.keys())
def test_a_rule_matches_by_patterns(where: Where, fields: dict[str, Any], matches: bool) -> None:  # noqa: FBT001
    assert bool(sampler(rule(where=where)).sample(trace(**fields)).rules) is matches


HAS = {
    "input": ({"input": "Why?"}, True),
    "blank input": ({"input": " \n"}, False),
    "messages": ({"messages": [Message("user", "Hello")]}, True),
    "no messages": ({"messages": []}, False),
    "context as a text": ({"context": ["A document."]}, True),
    "context as an object": ({"context": [Document("A document.")]}, True),
    "blank documents": ({"context": ["", Document(" ")]}, False),
    "empty context": ({"context": []}, False),
    "expected_response": ({"expected_response": "Yes."}, True),
    "expected_facts": ({"expected_facts": ["", "A fact"]}, True),
    "guidelines": ({"guidelines": ["Be brief."]}, True),
    "tool_calls": ({"tool_calls": [ToolCall("search")]}, True),
    "spans": ({"spans": [Span("00f067aa0ba902b7", "root")]}, True),
    "nothing": ({}, False),
}


@each_case(("fields", "matches"), HAS.values(), ids=HAS.keys())
def test_a_rule_matches_by_the_fields_of_a_trace(fields: dict[str, Any], matches: bool) -> None:  # noqa: FBT001
    (name,) = fields or {"input": None}
    under_test = sampler(rule(where=Where(has=(name,))))
    assert bool(under_test.sample(trace(**fields)).rules) is matches


def test_retrieval_spans_and_named_tools_count_as_context() -> None:
    span = Span("00f067aa0ba902b7", "search", kind="RETRIEVER", outputs=["Tea."])
    tea_trace = trace(tool_calls=[ToolCall("kb_search", result="Tea.")])
    has_context = Where(has=("context",))
    under_test = sampler(
        rule(name="plain", where=has_context),
        rule(name="tools", where=has_context, context_tools=("kb_search",)),
        rule(name="any", context_tools=("find", "kb_search")),
    )

    def matching(subject: Trace) -> list[str]:
        return [tally.rule for tally in under_test.sample(subject).rules]

    assert matching(trace()) == ["any"]
    assert matching(trace(spans=[span])) == ["plain", "tools", "any"]
    assert matching(trace(spans=[Span("00f067aa0ba902b7", "search", kind="RETRIEVER")])) == ["any"]
    assert matching(tea_trace) == ["tools", "any"]
    assert (under_test.rules.matching(tea_trace).context_tools, under_test.rules.matching(trace()).context_tools) == (
        ("kb_search", "find"),
        ("find", "kb_search"),
    )


def test_a_rule_wants_all_that_it_names() -> None:
    under_test = sampler(rule(where=Where(has=("input", "context"))))
    assert not under_test.sample(trace(input="Why?")).rules
    assert under_test.sample(trace(input="Why?", context=["A document."])).rules


# --- whatever the rate ---

ALWAYS = {
    "error": (("error",), {"error": "timeout"}, True),
    "no error": (("error",), {"error": ""}, False),
    "bad feedback": (("negative_feedback",), {"feedback": Feedback(-0.1)}, True),
    "neutral feedback": (("negative_feedback",), {"feedback": Feedback(0)}, False),
    "good feedback": (("negative_feedback",), {"feedback": Feedback(1)}, False),
    "no feedback": (("negative_feedback",), {}, False),
    "error where only feedback counts": (("negative_feedback",), {"error": "timeout"}, False),
    "feedback where only errors count": (("error",), {"feedback": Feedback(-1)}, False),
    "one of both": (("error", "negative_feedback"), {"feedback": Feedback(-1)}, True),
    "slow": (("slow",), {"started_at": 1e9, "ended_at": 1e9 + 10}, True),
    "quick": (("slow",), {"started_at": 1e9, "ended_at": 1e9 + 9.9}, False),
    "of unknown duration": (("slow",), {"ended_at": 1e9}, False),
    "slow where only errors count": (("error",), {"started_at": 1e9, "ended_at": 1e9 + 99}, False),
    "nothing asked": ((), {"error": "timeout", "feedback": Feedback(-1)}, False),
}


@each_case(("always", "fields", "chosen"), ALWAYS.values(), ids=ALWAYS.keys())
def test_always_chooses_at_any_rate(always: Any, fields: dict[str, Any], chosen: bool) -> None:  # noqa: FBT001
    got = sampler(rule(0.0, always=always)).sample(trace(**fields))
    choices = (Choice("safety", "default", 1.0),) if chosen else ()
    assert got == Sampling(choices, (RuleTally("all", chosen=chosen),))


def test_always_needs_a_matching_rule() -> None:
    under_test = sampler(rule(where=Where(service="other"), always=("error",)))
    assert under_test.sample(trace(error="timeout")) == Sampling((), ())


# --- several rules ---


def test_rules_that_want_the_same_share_one_evaluation_with_the_largest_probability() -> None:
    under_test = sampler(rule(0.2, "a"), rule(0.9, "b"), rule(0.25, "c"))
    assert 0.25 <= position(trace().trace_id, "tracejudge") < 0.9, "this trace is chosen by one of them"
    assert under_test.sample(trace()) == Sampling(
        (Choice("safety", "default", 0.9),),
        (RuleTally("a", chosen=False), RuleTally("b", chosen=True), RuleTally("c", chosen=False)),
    )


def test_always_in_one_rule_makes_the_shared_evaluation_certain() -> None:
    got = sampler(rule(0.0, "a", always=("error",)), rule(0.9, "b")).sample(trace(error="timeout"))
    assert got.choices == (Choice("safety", "default", 1.0),)


def test_sessions_are_chosen_as_a_whole() -> None:
    under_test = sampler(rule(0.3, sample_by="session"))
    chosen: dict[str, set[tuple[Choice, ...]]] = {}
    for number, trace_id in enumerate(random_ids(6000, seed=18)):
        session_id = f"session {number // 6}"
        chosen.setdefault(session_id, set()).add(under_test.sample(trace(trace_id, session_id=session_id)).choices)
    assert {len(choices) for choices in chosen.values()} == {1}, "a session is divided"
    share = sum(choices != {()} for choices in chosen.values()) / len(chosen)
    assert abs(share - 0.3) < 0.05
    without = [under_test.sample(trace(trace_id)).choices for trace_id in random_ids(3000, seed=19)]
    assert abs(sum(map(bool, without)) / len(without) - 0.3) < 0.03, "traces without a session"


def test_an_evaluation_chosen_by_trace_and_by_session_has_the_probability_of_either() -> None:
    under_test = sampler(rule(0.3, "a"), rule(0.5, "b", sample_by="session"), rule(0.2, "c", judges=("groundedness",)))
    samples = [
        under_test.sample(trace(trace_id, session_id=session_id)).choices
        for trace_id, session_id in zip(random_ids(20_000, seed=1), random_ids(20_000, seed=2), strict=True)
    ]
    assert {choice for choices in samples for choice in choices} == {
        Choice("safety", "default", 0.65),
        Choice("groundedness", "default", 0.2),
    }
    share = sum(any(choice.judge == "safety" for choice in choices) for choices in samples) / len(samples)
    assert abs(share - 0.65) < 0.02
    # Without a session both rules choose by the trace.
    alone = [under_test.sample(trace(trace_id)).choices for trace_id in random_ids(20_000, seed=3)]
    share = sum(any(choice.judge == "safety" for choice in choices) for choices in alone) / len(alone)
    assert abs(share - 0.5) < 0.02
    assert {choice.probability for choices in alone for choice in choices if choice.judge == "safety"} == {0.5}


def test_other_models_and_judges_are_other_evaluations() -> None:
    got = sampler(
        rule(1.0, "a", ("safety", "relevance_to_query")),
        rule(0.95, "b", ("safety",), model="other"),
        rule(0.9, "c", ("relevance_to_query", "groundedness")),
    ).sample(trace())
    assert set(got.choices) == {
        Choice("safety", "default", 1.0),
        Choice("relevance_to_query", "default", 1.0),
        Choice("safety", "other", 0.95),
        Choice("groundedness", "default", 0.9),
    }
    assert len(got.choices) == 4


def test_a_judge_named_twice_judges_once() -> None:
    assert sampler(rule(1.0, judges=("safety", "safety"))).sample(trace()).choices == (
        Choice("safety", "default", 1.0),
    )


def test_no_matching_rule_is_told_from_a_rule_that_did_not_choose() -> None:
    under_test = sampler(rule(0.0, where=Where(service="shop")))
    assert under_test.sample(trace(service="other")) == Sampling((), ())
    assert under_test.sample(trace()) == Sampling((), (RuleTally("all", chosen=False),))


@unhurried
@given(trace_ids, st.lists(rates, min_size=1, max_size=4))
def test_a_trace_is_chosen_by_rules_together_as_by_the_widest_alone(trace_id: str, all_rates: list[float]) -> None:
    together = sampler(*(rule(rate, f"rule {number}") for number, rate in enumerate(all_rates)))
    alone = sampler(rule(max(all_rates)))
    assert together.sample(trace(trace_id)).choices == alone.sample(trace(trace_id)).choices


def test_the_default_rules_judge_groundedness_only_with_context() -> None:
    under_test = sampler_of(Settings())
    bare = {choice.judge for choice in under_test.sample(trace()).choices}
    full = {choice.judge for choice in under_test.sample(trace(context=["A document."])).choices}
    assert (bare, full) == ({"relevance_to_query", "safety"}, {"relevance_to_query", "safety", "groundedness"})


# --- what is remembered ---

PATTERNED = (
    rule(0.3, "shop", where=Where(service="sh?p", has=("context",)), always=("error",)),
    rule(0.6, "named", ("relevance_to_query",), where=Where(environment="prod*", has=("input",))),
    rule(0.1, "other", where=Where(service="[!s]*"), model="other", always=("negative_feedback",)),
)
traces = st.builds(
    Trace,
    trace_id=trace_ids,
    service=st.sampled_from(["shop", "ship", "lab"]),
    output=st.just("It is."),
    environment=st.sampled_from([None, "prod", "prod-eu", "test"]),
    input=st.sampled_from([None, "Is it?", " "]),
    context=st.sampled_from([None, [], ["It is warm."]]),
    error=st.sampled_from([None, "timeout"]),
    feedback=st.sampled_from([None, Feedback(-1), Feedback(1)]),
)


@unhurried
@given(st.lists(traces, max_size=20))
def test_a_sampler_answers_the_thousandth_trace_as_it_would_the_first(seen: list[Trace]) -> None:
    first_sampler = sampler(*PATTERNED)
    for each in seen * 2:
        assert first_sampler.sample(each) == sampler(*PATTERNED).sample(each)
        assert first_sampler.rules.matching(each) == sampler(*PATTERNED).rules.matching(each)


@pytest.mark.parametrize(
    "names", [[f"s{number}" for number in range(5_000)], ["s" * 2_000]], ids=["without-end", "as-long-as-texts"]
)
def test_names_are_remembered_within_bounds(names: list[str]) -> None:
    first_sampler = sampler(rule(where=Where(name="s*")))
    for _ in range(2):
        assert all(first_sampler.sample(trace(name=name)).choices for name in names)
    cache = getclosurevars(first_sampler._matching).nonlocals["cache"]
    assert sum(len(str(name)) for name in cache) <= 4_096 * 8
