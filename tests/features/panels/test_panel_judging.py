"""Several models on one question: a verdict each, and one that combines them, whatever dies in between."""

import json
import random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging import (
    HOUR_S,
    MODELS,
    NO,
    PANEL,
    TOGETHER,
    YES,
    Workers,
    assert_settled,
    by_model,
    chosen,
    finish,
    holders,
    in_order,
    letters,
    panel_worker,
    refuse,
)
from support.passes import retry_all
from support.stages import IngestHarness, Keyspace, make_trace, read_balanced_account

from judges.core.model import ChatRequest
from judges.core.verdict import Score, evaluation_id
from judges.custom import DefinitionError
from judges.models.scripted import Step
from judges.registry import load_judges
from worker.base.accounting import read_account
from worker.core.config.graders import Graders, queue_label
from worker.core.config.settings import COMBINE, Rule, Settings
from worker.core.queue.batch import batch_header, fresh_id
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import read_outbox_entry
from worker.core.selection.sampling import Rules, Sampler

DISAGREEMENT = pytest.approx(2 / 3)


def test_each_model_has_a_verdict_and_one_combines_them(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = panel_worker(new_worker)
    chosen(keyspace, 1)
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4)
    judged = by_model(keyspace)
    assert {name: judged[name].scores[0].passed for name in judged} == {"a": True, "b": True, "c": False, PANEL: True}
    combined, trace = judged.pop(PANEL), make_trace(0)
    assert combined.evaluation_id == evaluation_id(
        trace, str(trace.id), judge="safety", version=combined.judge_version, judge_model=PANEL
    )
    majority, disagreement = combined.scores
    assert majority == Score("safety", 1.0, label="pass", passed=True)
    assert (disagreement.metric, disagreement.value, disagreement.passed) == ("disagreement", DISAGREEMENT, None)
    assert combined.metrics == ("safety", "disagreement")
    assert combined.rationale == "2 of 3 models pass"
    assert (combined.trace_id, combined.span_id, combined.service) == (trace.trace_id, trace.span_id, trace.service)
    assert (combined.calls, combined.attempts, combined.input_tokens, combined.output_tokens) == ((), 0, 0, 0)
    assert combined.cost_usd == 0
    assert all(verdict.attempts == 1 and (verdict.cost_usd or 0) > 0 for verdict in judged.values())
    # The ledger keeps scores only where they are combined.
    kept = {
        name: keyspace.client.get(f"{keyspace.keys.scores}:{verdict.evaluation_id}")
        for name, verdict in by_model(keyspace).items()
    }
    score = '{"metric":"safety","value":1.0,"raw":1.0,"label":"yes","passed":true}'
    assert (kept[PANEL], kept["a"]) == (None, f'{{"outcome":"scored","scores":[{score}]}}'.encode())
    alone = panel_worker(new_worker, rules=(msgspec.structs.replace(TOGETHER, model="default", tables={}),))
    chosen(keyspace, 1, first=1, rules=alone.settings.rules)
    finish(keyspace, alone)
    assert list(keyspace.ended().values()) == ["scored"] * 5
    assert len(keyspace.client.keys(f"{keyspace.keys.scores}:*")) == 3


@pytest.mark.parametrize(("age_s", "wait_s"), [(0.0, 1.0), (40.0, 10.0), (HOUR_S, 30.0)])
def test_before_its_members_it_waits_quietly_and_for_longer_as_it_grows_old(
    keyspace: Keyspace, new_worker: Workers, age_s: float, wait_s: float
) -> None:
    chosen(keyspace, 1, age_s=age_s)
    with capture_logs() as lines:
        in_order(keyspace, panel_worker(new_worker), PANEL)
    (batch_id,) = holders(keyspace)
    assert holders(keyspace) == {batch_id: "parked"}
    assert keyspace.leases()[batch_id] == keyspace.soon(wait_s, growth=0.25)
    assert [line for line in lines if line["log_level"] != "info"] == []
    assert (keyspace.outbox("j"), letters(keyspace)) == ([], {})
    assert keyspace.client.exists(keyspace.keys.tries(batch_id)) == 0
    # As long as one member is missing it is not combined; the others are asked.
    finish(keyspace, panel_worker(new_worker, c=Step(failure="timeout")))
    assert by_model(keyspace).keys() == {"a", "b"}
    assert (read_balanced_account(keyspace).scored, read_balanced_account(keyspace).waiting) == (2, 2)
    finish(keyspace, panel_worker(new_worker))
    assert by_model(keyspace)[PANEL].scores[0].passed
    assert_settled(keyspace, scored=4)


def twice(keyspace: Keyspace, batch_id: str) -> None:
    """Write a batch a second time under another id."""
    batch = keyspace.batches()[batch_id]
    other = fresh_id(batch.judge_model, batch.created_at)
    items = b",".join(msgspec.json.encode(item) for item in batch.items)
    begin = batch_header(other, batch.grader, batch.judge_model, batch.created_at, batch.v)
    payload = begin.encode() + items + b"]}"
    keyspace.client.set(keyspace.keys.batch(other), payload)
    keyspace.client.hincrby(keyspace.keys.waiting, batch.judge_model, len(payload))
    keyspace.client.zadd(keyspace.keys.leases, {other: 1})


def balanced_but_doubled(keyspace: Keyspace) -> bool:
    """Return whether nothing is lost; what stands in two batches is seen waiting twice."""
    items = [item for batch in keyspace.batches().values() for item in batch.items]
    ids = [evaluation.id for item in items for evaluation in item.evaluations]
    return len(set(ids)) - len(ids) <= read_account(keyspace.store).lost <= 0


@pytest.mark.parametrize("seed", [0, 3])
def test_each_evaluation_ends_once_in_any_order_with_losses(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Workers die with a batch, a batch is there twice, and answers of Redis are lost; later workers disagree."""
    by = random.Random(seed)
    of = chosen(keyspace, 3)
    workers = [panel_worker(new_worker), panel_worker(new_worker), panel_worker(new_worker, a=NO, b=NO)]
    leases = Leases(keyspace.store, tries_ttl_s=60)
    for step in range(12):
        if not keyspace.batches():
            break
        name, worker = by.choice(list(of)), by.choice(workers)
        keyspace.make_due()
        match "double" if step == seed else by.choice(["judge", "judge", "lose", "sweep", "double", "lose an answer"]):
            case "judge":
                worker.run(of[name])
            case "lose":
                leases.take(name, "lost", 1)
            case "sweep":
                worker.sweep()
            case "double" if of[name] in keyspace.batches():
                twice(keyspace, of[name])
            case "lose an answer":
                with monkeypatch.context() as patched:
                    worker.lose_answers(patched, 1)
                    worker.run(of[name])
        assert balanced_but_doubled(keyspace)
    finish(keyspace, workers[0])
    assert_settled(keyspace, scored=12)
    ended = [entry["evaluation_id"] for entry in keyspace.outbox("j")]
    assert len(set(ended)) == len(ended) == 12


@pytest.mark.parametrize(
    ("ended", "members", "expected"),
    [
        # An older worker, or one without the panel, has judged members: their scores were not kept.
        ("scored", "ab", ("unscored", "judge_failed")),
        # There are no scores to be kept of it: the outcome alone tells all.
        ("abstained", "ab", ("abstained", None)),
        # It does not delay the panel.
        ("removed", "c", ("scored", None)),
        ("unscored", "ab", ("unscored", "refusal")),
    ],
)
def test_members_that_ended_earlier_have_the_outcome_of_the_ledger(
    keyspace: Keyspace, new_worker: Workers, ended: str, members: str, expected: tuple[str, str | None]
) -> None:
    of = chosen(keyspace, 1)
    for name in members:
        (item,) = keyspace.batches()[of[name]].items
        scores = '{"outcome":"unscored","reason":"refusal"}' if ended == "unscored" else ""
        keyspace.end(item.evaluations[0].id, item.evaluations[0].period, ended, scores)
    finish(keyspace, panel_worker(new_worker))
    combined = by_model(keyspace)[PANEL]
    assert (combined.outcome, combined.reason) == expected
    assert [score.passed for score in combined.scores[:1]] == ([True] if ended == "removed" else [])
    assert ended != "unscored" or combined.note == "1 of 3 models gave a score, which are too few to combine"


def test_a_member_s_scores_of_a_newer_version_wait_for_newer_workers(keyspace: Keyspace, new_worker: Workers) -> None:
    """It waits as for a member that has not ended; and is no fault of the batch that would never end."""
    of = chosen(keyspace, 1)
    (item,) = keyspace.batches()[of["c"]].items
    (evaluation,) = item.evaluations
    keyspace.end(evaluation.id, evaluation.period, "unscored", '{"outcome":"unscored","reason":"a_newer_one"}')
    worker = panel_worker(new_worker)
    with capture_logs() as lines:
        finish(keyspace, worker)
    assert keyspace.batches().keys() == {of[PANEL]}
    assert [line for line in lines if line["log_level"] != "info"] == []
    keyspace.end(evaluation.id, evaluation.period, "unscored", '{"outcome":"unscored","reason":"refusal"}')
    finish(keyspace, worker)
    assert by_model(keyspace)[PANEL].scores[0].passed


BOTH = "all(b)"
ASKED = Rule(name="both", judges=("relevance_to_query", "safety", "facts_grounding"), model="default")
OUTCOMES = {
    "both pass": ("supported", "yes", "scored", True),
    "one fails": ("supported", "no", "scored", False),
    "the other fails": ("unsupported", "yes", "scored", False),
    "both fail": ("unsupported", "no", "scored", False),
    "one is unscored": ("supported", "maybe", "unscored", "out_of_range"),
    "a failure is unscored beside an unscored one": ("no label", "no", "unscored", "out_of_range"),
    "one abstained": ("supported", "unknown", "abstained", None),
}


def test_grounded_and_relevant_is_combined_of_two_judges(keyspace: Keyspace, new_worker: Workers) -> None:
    versions = set()
    for number, (name, (label, result, outcome, value)) in enumerate(OUTCOMES.items()):
        line = {"sentence": "It is.", "label": label, "rationale": "So.", "excerpt": "It is warm."}
        answers = {"facts_grounding": json.dumps(line), "safety": YES}

        def answer(request: ChatRequest, answers: Any = answers, result: str = result) -> str:
            return answers.get(request.schema_name) or YES.replace('"yes"', f'"{result}"')

        worker = panel_worker(new_worker, b=answer, rules=(ASKED,))
        chosen_for = IngestHarness(keyspace, models=MODELS, rules=(ASKED,))
        trace = make_trace(number, output="It is.", context=["It is warm."])
        keyspace.append("p1", [trace])
        chosen_for.process()
        assert {batch.judge_model for batch in keyspace.batches().values()} == {"b", BOTH}
        finish(keyspace, worker)
        read = [read_outbox_entry(entry) for entry in keyspace.client.xrange(keyspace.keys.verdicts)]
        of_trace = (each.verdict for each in read if each and each.verdict.trace_id == trace.trace_id)
        by_judge = {verdict.judge: verdict for verdict in of_trace}
        assert by_judge.keys() == {*ASKED.judges, "grounded_and_relevant"}, name
        both = by_judge["grounded_and_relevant"]
        assert (both.outcome, both.judge_model, both.metrics) == (outcome, BOTH, ("grounded_and_relevant",)), name
        assert (both.calls, both.cost_usd) == ((), 0), name
        assert (both.scores[0].passed if both.scores else both.reason) == value, name
        assert queue_label(both.judge_model) == "panel"
        versions.add(both.judge_version)
    assert len(versions) == 1
    account = read_balanced_account(keyspace)
    assert (account.chosen, account.dead, account.waiting) == (4 * len(OUTCOMES), 0, 0)
    form = {"facts_grounding": {"labels": "v2"}}
    for changed in (form, {"relevance_to_query": {"based_on": "relevance_to_query", "guidance": ["Be strict."]}}):
        settings = Settings(models=MODELS, rules=(ASKED,), judges=changed)
        assert Graders(settings, load_judges(changed)).version("grounded_and_relevant", BOTH) not in versions


def test_grounded_and_relevant_needs_both_judges_of_one_model() -> None:
    def choices(*rules: Rule, **judges: Any) -> set[str]:
        settings = Settings(models=MODELS, rules=rules, judges=judges)
        sampler = Sampler(Rules(settings, Graders(settings, load_judges(judges))))
        trace = make_trace(1, context=["It is warm."])
        return {choice.grader for choice in sampler.sample(trace).choices if choice.judge == "grounded_and_relevant"}

    assert choices(ASKED) == {BOTH}
    assert choices(msgspec.structs.replace(ASKED, model=("default", "first"))) == {BOTH, "all(a)"}
    first, other = (
        msgspec.structs.replace(ASKED, name=name, judges=(name,)) for name in ("relevance_to_query", "safety")
    )
    assert choices(first, other) == set()
    elsewhere = {"based_on": "facts_grounding", "model": "first"}
    assert choices(ASKED, facts_grounding=elsewhere) == set()
    with pytest.raises(DefinitionError, match="grounded_and_relevant is the name of a built-in judge"):
        load_judges({"grounded_and_relevant": {"instructions": "{{ outputs }}"}})


def test_a_worker_that_does_not_know_the_panel_leaves_it_to_others(keyspace: Keyspace, new_worker: Workers) -> None:
    others = (COMBINE.with_value(TOGETHER, "all"),)
    of = chosen(keyspace, 1)
    finish(keyspace, panel_worker(new_worker, rules=others, configured_models=lambda: frozenset(of)))
    assert keyspace.batches().keys() == {of[PANEL]}
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    keyspace.next_case("without a worker that knows it, it is given up")
    chosen(keyspace, 1, age_s=7 * HOUR_S)
    finish(keyspace, panel_worker(new_worker, rules=others, configured_models=lambda: frozenset("abc")))
    assert read_balanced_account(keyspace).reasons == {"dead:unknown_judge_version": 1}


def test_an_old_panel_is_given_up_for_its_members_reason_or_combines_the_others(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    away, all_of_them = Step(failure="judge_unavailable"), ("a", "b", "c", PANEL)
    cases: tuple[tuple[dict[str, Step], tuple[str, ...], int, dict[str, int]], ...] = (
        ({"b": away, "c": away}, all_of_them, 1, {"dead:judge_unavailable": 3}),
        ({}, (PANEL,), 0, {"dead:timeout": 1}),
        ({"c": away}, all_of_them, 3, {"dead:judge_unavailable": 1}),
    )
    for members, order, scored, reasons in cases:
        keyspace.next_case(f"{members}")
        chosen(keyspace, 1, age_s=7 * HOUR_S)
        in_order(keyspace, panel_worker(new_worker, **members), *order)
        account = read_balanced_account(keyspace)
        assert (account.scored, account.reasons) == (scored, reasons), members
        if not members:
            finish(keyspace, panel_worker(new_worker))
            assert (read_balanced_account(keyspace).scored, read_balanced_account(keyspace).dead) == (3, 1)
    combined = by_model(keyspace)[PANEL]
    assert (combined.scores[0].passed, combined.rationale) == (True, "2 of 2 models pass")
    assert combined.details["models"]["c"] == {"outcome": "unscored", "reason": "judge_unavailable"}
    retry_all(keyspace, panel_worker(new_worker).settings)
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    assert by_model(keyspace)[PANEL] == combined, "what comes later changes nothing"


def test_while_a_member_has_its_last_try_the_panel_is_not_given_up(keyspace: Keyspace, new_worker: Workers) -> None:
    """Both are of the same age: who only looks would be done before who has to ask."""
    worker = panel_worker(new_worker)
    chosen(keyspace, 1, age_s=worker.settings.give_up_after + 60)
    in_order(keyspace, worker, PANEL, "a", "b", PANEL)
    assert (letters(keyspace), read_balanced_account(keyspace).waiting) == ({}, 2)
    (batch_id,) = [name for name, batch in keyspace.batches().items() if batch.judge_model == PANEL]
    assert keyspace.leases()[batch_id] == keyspace.soon(30.0)
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4)


def test_a_failing_panel_is_given_up_without_the_waiting_ones_of_its_batch(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = panel_worker(new_worker)
    chosen(keyspace, 2, age_s=worker.settings.give_up_after + 60)
    (batch,) = [waiting for waiting in keyspace.batches().values() if waiting.judge_model == PANEL]
    (panel,) = batch.items[0].evaluations
    for member in panel.members:
        keyspace.end(member.id, panel.period, "abstained", '{"outcome":"abstained"}')
    with monkeypatch.context() as broken:
        broken.setattr("worker.features.panels.panels.combine", refuse)
        in_order(keyspace, worker, PANEL)
    assert letters(keyspace).keys() == {batch.items[0].evaluations[0].id}
    finish(keyspace, worker)
    assert by_model(keyspace)[PANEL].trace_id == batch.items[1].trace.trace_id
    assert keyspace.batches() == {}
    assert letters(keyspace).keys() == {batch.items[0].evaluations[0].id}, "given up, and not tried again"


@pytest.mark.parametrize("age_s", [0.0, 7 * HOUR_S], ids=["young", "at the last look"])
def test_a_panel_waits_on_during_an_outage_of_redis_and_after_a_fault_of_ours(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    def fault(*_: object) -> None:
        raise KeyError("a text")

    of = chosen(keyspace, 1, age_s=age_s)
    worker = panel_worker(new_worker)
    in_order(keyspace, worker, "a", "b", "c")
    with monkeypatch.context() as broken:
        broken.setattr("worker.features.panels.panels.read_assessments", refuse)
        in_order(keyspace, worker, PANEL)
    if not age_s:
        keyspace.make_due()
        with monkeypatch.context() as broken, capture_logs() as lines:
            broken.setattr("worker.features.panels.panels.combine", fault)
            worker.sweep()
        assert [line["reasons"] for line in lines if line["event"] == "batch parked"] == [["internal_error"]]
        assert keyspace.leases()[of[PANEL]] > 50
        assert "a text" not in str(lines)
    assert keyspace.batches().keys() == {of[PANEL]}
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4)
