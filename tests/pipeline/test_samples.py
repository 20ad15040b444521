"""Rules with `samples`: each evaluation counts once and costs N, with budgets, second models, cascades and replay."""

from typing import Any

import msgspec
import pytest
from msgspec import structs
from support.judging_parts import MODEL, YES, JudgingWorker, Workers, assert_settled, choose
from support.panel_parts import MODELS as MEMBERS
from support.panel_parts import PANEL
from support.replay_parts import Replays
from support.stage_parts import Keyspace

from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, Price
from judges.core.verdict import Verdict
from judges.models.scripted import Step
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.features.budgets.feature import Budget
from worker.features.cascades.feature import Cascade

NO = YES.replace("yes", "no")
OTHER = ModelSettings(provider="scripted", model="other", price=Price(input=1.0, output=2.0))
CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
MODELS = {"default": MODEL, "other": OTHER, "cheap": CHEAP}


def rule(samples: int = 3, **fields: Any) -> Rule:
    return Rule.from_keys(**{"name": "all", "judges": ("safety",), "samples": samples, **fields})


def verdicts(keyspace: Keyspace) -> list[Verdict]:
    return [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, **settings: Any) -> None:
    choose(keyspace, count, **settings)
    while keyspace.batches():
        keyspace.make_due()
        worker.sweep()


def test_an_evaluation_is_one_entry_and_costs_all_askings(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = (rule(),)
    judge_all(keyspace, new_worker(YES, NO, YES, rules=rules), 1, rules=rules)
    (verdict,) = verdicts(keyspace)
    (score,) = verdict.scores
    assert (score.passed, verdict.attempts, len(verdict.details["samples"])) == (True, 3, 3)  # type: ignore[arg-type]
    assert (verdict.input_tokens, len(verdict.calls)) == (2 * len(YES) + len(NO), 3)
    assert verdict.cost_usd == pytest.approx(3e-6 * verdict.input_tokens), "1 and 2 USD for a million tokens"
    assert_settled(keyspace, scored=1)


def test_a_tie_is_final_and_a_failure_that_passes_is_tried_again(keyspace: Keyspace, new_worker: Workers) -> None:
    rules = (rule(2),)
    judge_all(keyspace, new_worker(YES, NO, rules=rules), 1, rules=rules)
    judge_all(keyspace, new_worker(YES, Step(failure="timeout"), NO, NO, rules=(rule(4),)), 1, rules=(rule(4),))
    judged = [(verdict.outcome, verdict.reason, verdict.attempts) for verdict in verdicts(keyspace)]
    assert judged == [("unscored", "disagreement", 2), ("scored", None, 4)]


def test_budgets_pay_for_each_asking(keyspace: Keyspace, new_worker: Workers) -> None:
    settings: dict[str, Any] = {"rules": (rule(),), "budgets": {"all": Budget(tokens_per_day=20_000)}}
    judge_all(keyspace, new_worker(**settings), 30, **settings)
    judged = verdicts(keyspace)
    assert {verdict.reason for verdict in judged} == {None, "over_budget"}
    assert 10_000 < sum(verdict.input_tokens + verdict.output_tokens for verdict in judged) <= 20_000


def test_second_models_cascades_and_panels_ask_as_often(keyspace: Keyspace, new_worker: Workers) -> None:
    class Cheap:
        settings = CHEAP

        async def complete(self, request: ChatRequest) -> ChatResponse:  # noqa: ARG002 - the protocol's
            return ChatResponse("", input_tokens=9, output_tokens=1, decisions=(Decision((0.6,)),))

        async def aclose(self) -> None:
            pass

    cases: dict[str, tuple[dict[str, Any], dict[tuple[str, str], int]]] = {
        "second model": (
            {"models": MODELS, "rules": (rule(repeat=1.0, second_model="other"),)},
            {("scripted", "live"): 3, ("scripted", "repeat"): 3, ("other", "repeat"): 3},
        ),
        "cascade": (
            {
                "models": MODELS,
                "cascades": {"both": Cascade("cheap", "other", rate=1.0)},
                "rules": (rule(model="both", name="cascade"),),
            },
            {("cheap", "live"): 1, ("other", "live"): 3},
        ),
        "panel": (
            {"models": MEMBERS, "rules": (rule(model=("default", "first", "last"), combine="majority"),)},
            {("a", "live"): 3, ("b", "live"): 3, ("c", "live"): 3, (PANEL, "live"): 0},
        ),
    }
    for number, (name, (settings, expected)) in enumerate(cases.items()):
        worker = new_worker(**settings)
        if name == "cascade":
            worker.models["cheap"] = Cheap()  # type: ignore[assignment]
        before = {verdict.evaluation_id for verdict in verdicts(keyspace)}
        judge_all(keyspace, worker, 1, first=number, **settings)
        new = [verdict for verdict in verdicts(keyspace) if verdict.evaluation_id not in before]
        assert {(verdict.judge_model, verdict.origin): verdict.attempts for verdict in new} == expected, name
        assert len(new) == len(expected), name


def test_a_replay_judges_again_after_the_number_has_changed(keyspace: Keyspace, new_worker: Workers) -> None:
    judge_all(keyspace, new_worker(rules=(rule(1),)), 2, rules=(rule(1),))
    for samples, made in ((1, 0), (3, 2), (3, 0)):
        worker = new_worker(rules=(rule(samples),))
        assert Replays(keyspace, rules=(rule(samples),)).make().get("chosen", 0) == made, samples
        worker.sweep()
    attempts = [(verdict.origin, verdict.attempts) for verdict in verdicts(keyspace)]
    assert attempts == [("live", 1)] * 2 + [("replay", 3)] * 2


def test_what_cannot_be_sampled_stops_the_start() -> None:
    free = {"words": {"instructions": "Sum up {{ outputs }}.", "result": "text"}}
    cheap = rule(2, name="cheap", model="cheap")
    cases: dict[str, tuple[Rule, ...]] = {
        "rules[1].samples: another rule asks 'scripted' for 'safety' another number of times": (rule(), rule(1, name="b")),
        "rules[0].samples: the answers of 'words' have no majority": (rule(judges=("words",)),),
        "": (rule(), rule(1, name="b", model="other"), cheap, structs.replace(cheap, name="c", samples=1)),
    }
    for expected, rules in cases.items():
        settings = Settings.from_keys(models=MODELS, rules=rules, judges=free)
        faults = [str(fault) for fault in rule_faults(settings, judge_names(settings))]
        assert (len(faults) == bool(expected), expected in "".join(faults)) == (True, True), (expected, faults)
