"""Members and panel are chosen, shed, replayed, forgotten and revived together, also beside older workers."""

import json
from typing import Any

import msgspec
import pytest
from support.feedback import Passes, complain, make_due
from support.judging import (
    HOUR_S,
    MODELS,
    NO,
    PANEL,
    SETUP,
    TOGETHER,
    Workers,
    assert_settled,
    by_model,
    chosen,
    finish,
    in_order,
    letters,
    panel_worker,
)
from support.passes import Replays, make_retryable, retry_all
from support.stages import (
    IngestHarness,
    Keyspace,
    make_trace,
    make_traces,
    read_balanced_account,
    rules_of,
    sampler_of,
    samples,
    settings_of,
)

from judges.models.scripted import Step
from tracejudge import Feedback
from worker.base.dead_letters.retry import MIN_PACE, AutoRetry
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config.settings import Rule, Settings, Where
from worker.core.queue.batch import Batch, BatchError, Member, decode_batch
from worker.core.selection.sampling import Choice, Sampler

OTHER = Rule(name="other", judges=("relevance_to_query",), model="default")
AWAY = Step(failure="judge_unavailable")
ALONE = Rule(name="alone", judges=("safety",), model="default")


def sampler(*rules: Rule) -> Sampler:
    return sampler_of(Settings(models=MODELS, rules=rules))


def names(*rules: Rule, **fields: Any) -> list[tuple[str, float]]:
    """List the judge models that are chosen for a trace, with their probabilities."""
    return [(choice.grader, choice.probability) for choice in sampler(*rules).sample(make_trace(1, **fields)).choices]


def evaluations(keyspace: Keyspace) -> dict[str, Any]:
    """Return the only evaluation in the batch of each judge model."""
    return {batch.judge_model: item.evaluations[0] for batch in keyspace.batches().values() for item in batch.items}


def test_members_are_chosen_before_their_panel_and_once_at_the_higher_rate() -> None:
    together = [("default", 1.0), ("first", 1.0), ("last", 1.0), (PANEL, 1.0)]
    heard = msgspec.structs.replace(TOGETHER, rate=0.0, always=("negative_feedback",))
    assert names(TOGETHER) == names(heard, feedback=Feedback(score=-1)) == together
    rare, none = (msgspec.structs.replace(TOGETHER, rate=rate) for rate in (0.999, 0.0))
    assert names(rare, ALONE) == [("default", 1.0), ("first", 0.999), ("last", 0.999), (PANEL, 0.999)]
    assert names(none, ALONE) == [("default", 1.0)]
    other = msgspec.structs.replace(TOGETHER, name="other", model=("last", "first", "default"))
    assert [name for name, _ in names(TOGETHER, other)].count(PANEL) == 1, "in any order they are one panel"
    everywhere = Rule(name="kept", judges=("safety",), egress=tuple(MODELS))
    assert sampler(TOGETHER, everywhere).rules.allows(make_trace(1), PANEL)
    for missing in MODELS:
        kept = Rule(name="kept", judges=("safety",), rate=0.0, egress=tuple(set(MODELS) - {missing}))
        under_test = sampler(TOGETHER, kept)
        assert under_test.sample(make_trace(1)).choices == (), missing
        assert not under_test.rules.allows(make_trace(1), PANEL), missing


def test_an_evaluation_names_its_members_and_those_know_that_they_are_kept(keyspace: Keyspace) -> None:
    chosen(keyspace, 1)
    choices = evaluations(keyspace)
    assert choices[PANEL].members == tuple(Member(name, choices[name].id) for name in "abc")
    assert {name: choice.keep for name, choice in choices.items()} == {"a": True, "b": True, "c": True, PANEL: False}
    keyspace.next_case("a possible member")
    chosen(keyspace, 1, rules=(msgspec.structs.replace(TOGETHER, rate=0.0), ALONE))
    assert {name: evaluation.keep for name, evaluation in evaluations(keyspace).items()} == {"b": True}
    keyspace.next_case("the traces in a panel's batch hold no texts: what a rule wants of them was looked at before")
    with_context = msgspec.structs.replace(TOGETHER, where=Where(has=("context",)))
    keyspace.add(make_trace(1, context=["It is warm."]))
    IngestHarness(keyspace, models=MODELS, rules=(with_context,)).process()
    assert evaluations(keyspace).keys() == {"a", "b", "c", PANEL}
    texts = {
        (batch.judge_model, bool(item.trace.output)) for batch in keyspace.batches().values() for item in batch.items
    }
    assert texts == {("a", True), ("b", True), ("c", True), (PANEL, False)}
    assert Choice("safety", PANEL, 1.0) in sampler(TOGETHER).sample(make_trace(1)).choices


def test_with_one_member_its_panel_is_shed_and_both_are_brought_back(keyspace: Keyspace, new_worker: Workers) -> None:
    under_test = IngestHarness(keyspace, **SETUP, max_waiting_bytes=10_000)
    for dead in ("abc", "c"):
        keyspace.next_case(f"{dead} dead, with too much to do")
        under_test.pressure.set_waiting(dict.fromkeys(dead, 10_001))
        under_test.pressure.set_open_circuits(dict.fromkeys(dead, 60.0))
        keyspace.append("p1", [make_trace(0)])
        under_test.process()
        account = read_balanced_account(keyspace)
        assert (account.shed, account.chosen) == ((1, 0) if dead == "abc" else (0, 2))
        assert account.reasons == ({"shed:a": 2, "shed:b": 1, "shed:c": 1} if dead == "abc" else {"shed:c": 2})
    assert evaluations(keyspace).keys() == {"a", "b"}
    assert samples(under_test.metrics)["shed_total", "judge_model=c"] == 3

    worker = panel_worker(new_worker)
    finish(keyspace, worker)
    assert Replays(keyspace, **SETUP).make() == {"traces": 1, "chosen": 2, "already_judged": 2}
    assert versions(keyspace) == {"c": {2}, PANEL: {2}}
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4)
    combined = by_model(keyspace)[PANEL]
    assert (combined.origin, combined.scores[0].passed) == ("replay", True)
    assert by_model(keyspace)["a"].origin == "live"


def test_a_replay_without_a_removed_member_combines_the_others(keyspace: Keyspace, new_worker: Workers) -> None:
    chosen(keyspace, 1)
    finish(keyspace, panel_worker(new_worker, c=Step(failure="judge_unavailable")))
    assert by_model(keyspace).keys() == {"a", "b"}
    two = {**SETUP, "rules": (msgspec.structs.replace(TOGETHER, model=("default", "first")),)}
    assert Replays(keyspace, **two).make() == {"traces": 1, "chosen": 1, "already_judged": 2}
    worker = panel_worker(new_worker, rules=two["rules"])
    finish(keyspace, worker)
    assert by_model(keyspace)["majority(a,b)"].scores[0].passed
    assert [worker.models[name].requests for name in two["rules"][0].models] == [[], []], "nobody is asked twice"
    assert evaluations(keyspace).keys() == {PANEL}, "others may know it; if not, it is given up"
    keyspace.next_case("what was judged before there was a panel has left no scores in the ledger: the panel says so")
    chosen(keyspace, 1, rules=(ALONE,))
    finish(keyspace, panel_worker(new_worker, rules=(ALONE,)))
    assert Replays(keyspace, **SETUP).make() == {"traces": 1, "chosen": 3, "already_judged": 1}
    finish(keyspace, panel_worker(new_worker, c=Step(text="no", refusal=True)))
    combined = by_model(keyspace)[PANEL]
    assert (combined.origin, combined.outcome, combined.reason) == ("replay", "unscored", "judge_failed")


def test_late_feedback_pulls_in_members_and_panel(keyspace: Keyspace, new_worker: Workers) -> None:
    heard = msgspec.structs.replace(TOGETHER, rate=0.0, always=("negative_feedback",))
    setup = {**SETUP, "rules": (heard, ALONE)}
    worker = panel_worker(new_worker, rules=setup["rules"], c=NO)
    keyspace.add(make_trace(1))
    IngestHarness(keyspace, **setup).process()
    finish(keyspace, worker)
    complain(keyspace, make_trace(1).trace_id)
    IngestHarness(keyspace, **setup).process()
    make_due(keyspace)
    Passes(keyspace, **setup).make()
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4)
    judged = by_model(keyspace)
    assert {name: verdict.origin for name, verdict in judged.items()} == {
        "b": "live",
        "a": "late_feedback",
        "c": "late_feedback",
        PANEL: "late_feedback",
    }
    assert (judged[PANEL].weight, judged[PANEL].scores[0].passed) == (0.0, True)


def test_forgotten_between_members_and_panel_nothing_is_combined(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = panel_worker(new_worker)
    of = chosen(keyspace, 2)
    worker.run(of["a"], of["b"], of["c"])
    settings = settings_of(keyspace, **SETUP)
    Forgetting(keyspace.store, settings, ForgetTarget(trace_id=make_trace(0).trace_id)).run()
    assert versions(keyspace) == {PANEL: {2}}
    finish(keyspace, worker)
    combined = [entry["trace_id"] for entry in keyspace.outbox("j") if entry["judge_model"] == PANEL]
    assert combined == [make_trace(1).trace_id]
    account = read_balanced_account(keyspace)
    assert (account.scored, account.removed, account.waiting) == (7, 1, 0)


def given_up(keyspace: Keyspace, new_worker: Workers, count: int = 1) -> None:
    """Run a worker that gives panels up because two of their members are absent."""
    chosen(keyspace, count, age_s=7 * HOUR_S)
    in_order(keyspace, panel_worker(new_worker, b=AWAY, c=AWAY), "a", "b", "c", PANEL)
    assert read_balanced_account(keyspace).dead == 3 * count


def reviving(keyspace: Keyspace, *healthy: str) -> AutoRetry:
    settings = settings_of(keyspace, **SETUP)
    return AutoRetry(settings, keyspace.store, rules=rules_of(settings), healthy=lambda: healthy)


def test_a_panel_is_not_taken_up_before_its_members(keyspace: Keyspace, new_worker: Workers) -> None:
    given_up(keyspace, new_worker)
    make_retryable(keyspace, PANEL)
    stage = reviving(keyspace, PANEL, "b", "c")
    stage.look()
    assert keyspace.batches() == {}
    for name in ("b", "c"):
        make_retryable(keyspace, name)
    stage.look()
    finish(keyspace, panel_worker(new_worker))
    assert by_model(keyspace).keys() == {"a", "b", "c"}
    make_retryable(keyspace, PANEL)
    stage.look()
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    assert by_model(keyspace)[PANEL].scores[0].passed


def test_panels_that_may_go_on_are_found_behind_those_that_may_not(keyspace: Keyspace, new_worker: Workers) -> None:
    given_up(keyspace, new_worker, MIN_PACE + 1)
    panels = [letter.evaluation for letter in letters(keyspace).values() if letter.judge_model == PANEL]
    *waiting, able = panels
    for member in able.members:
        keyspace.end(member.id, able.period, "abstained")
    again = keyspace.keys.dead_again(PANEL)
    keyspace.client.zadd(again, {panel.id: place for place, panel in enumerate(panels)})
    reviving(keyspace, PANEL).look()
    items = [item for batch in keyspace.batches().values() for item in batch.items]
    assert [evaluation.id for item in items for evaluation in item.evaluations] == [able.id]
    postponed = keyspace.client.zmscore(again, [letter.id for letter in waiting])
    assert min(postponed) > MIN_PACE, "postponed behind the others"


def versions(keyspace: Keyspace) -> dict[str, set[int]]:
    """Read the versions of the batches of each judge model."""
    by_model: dict[str, set[int]] = {}
    for key in keyspace.client.scan_iter(keyspace.keys.batch("*")):
        batch = json.loads(keyspace.client.get(key))
        by_model.setdefault(batch["judge_model"], set()).add(batch["v"])
    return by_model


def test_older_workers_return_panels(keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(payload: bytes) -> Batch:
        if (batch := decode_batch(payload)).v != 1:
            raise BatchError(f"version {batch.v} of a batch is unknown here")
        return batch

    of = chosen(keyspace, 1)
    chosen(keyspace, 1, first=1, rules=(OTHER,))
    with monkeypatch.context() as before:
        before.setattr("worker.core.judging.fetching.decode_batch", decode)
        older = panel_worker(new_worker, a=NO, configured_models=lambda: frozenset(of), rules=(TOGETHER, OTHER))
        finish(keyspace, older)
        assert [verdict["judge"] for verdict in keyspace.outbox("j")] == ["relevance_to_query"]
        older.judging.stop(0.1)
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=5)


def test_only_batches_of_panels_and_members_have_the_later_version(keyspace: Keyspace) -> None:
    apart = msgspec.structs.replace(TOGETHER, model=("first", "last"))
    later = {"a": {2}, "c": {2}}
    cases: list[tuple[tuple[Rule, ...], dict[str, Any], int, dict[str, set[int]]]] = [
        ((apart, OTHER), {}, 1, {**later, "majority(a,c)": {2}, "b": {1}}),
        # A batch of both has it from the first trace that is combined.
        ((OTHER, TOGETHER), {"batch_size": 1}, 3, {**later, "b": {1, 2}, PANEL: {2}}),
        ((OTHER, TOGETHER), {}, 1, {**later, "b": {2}, PANEL: {2}}),
    ]
    for rules, options, count, expected in cases:
        keyspace.next_case(f"{expected}")
        keyspace.append("p1", make_traces(range(count)))
        IngestHarness(keyspace, models=MODELS, rules=rules, **options).process()
        assert versions(keyspace) == expected


def test_dead_letters_of_panels_and_retries_have_the_later_version(keyspace: Keyspace, new_worker: Workers) -> None:
    def letter_versions() -> dict[str, int]:
        rows = map(json.loads, keyspace.client.hvals(keyspace.keys.dead))
        return {letter["judge_model"]: letter["v"] for letter in rows}

    given_up(keyspace, new_worker)
    assert letter_versions() == {"b": 2, "c": 2, PANEL: 2}
    retry_all(keyspace, settings_of(keyspace, **SETUP))
    assert versions(keyspace) == {"b": {2}, "c": {2}, PANEL: {2}}
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    assert by_model(keyspace)[PANEL].scores[0].passed
    chosen(keyspace, 1, first=1, rules=(OTHER,), age_s=7 * HOUR_S)
    finish(keyspace, panel_worker(new_worker, b=AWAY, rules=(OTHER,)))
    assert letter_versions() == {"b": 1}, "without panels they have the former one"
    keyspace.next_case("an internal error is not taken up by itself; its panel is, once the member was retried")

    def fault(_: object) -> str:
        raise KeyError

    chosen(keyspace, 1, age_s=7 * HOUR_S)
    in_order(keyspace, panel_worker(new_worker, b=fault, c=fault), "a", "b", "c", PANEL)
    assert read_balanced_account(keyspace).reasons == {"dead:internal_error": 3}
    again = [keyspace.client.zcard(keyspace.keys.dead_again(name)) for name in (PANEL, "c")]
    assert again == [1, 0]
