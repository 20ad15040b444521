"""Judges in code ask no model: they have a lane of their own, once for each trace, whatever their rules name."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from judge_traces import ASKING
from structlog.testing import capture_logs
from support.judging_parts import SAFETY, Workers, assert_settled, holders
from support.panel_parts import MODELS, TOGETHER, finish, panel_worker, verdicts
from support.stage_parts import IngestHarness, Keyspace, make_trace, make_traces, read_balanced_account

from judges.core.judge import Judge, JudgeFailedError, Reading
from judges.core.verdict import Score
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.graders import CODE, Graders, find_providers
from worker.core.config.settings import Rule, Settings
from worker.core.judging.evaluator import CODE_AT_ONCE

KEPT = Rule(name="kept", judges=("relevance_to_query",), model="first", egress=("first",))


class Code:
    """A judge in code that a test can look into."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.at_once = self.most_at_once = 0
        self.fault: Exception | None = None

    async def run(self, trace: Trace) -> Reading:
        self.traces.append(trace)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.fault is not None:
            raise self.fault
        return Reading((Score("safety", 1.0, passed=True),))

    @property
    def judges(self) -> Mapping[str, Judge]:
        return MappingProxyType({**catalogue(), "safety": replace(SAFETY, run=self.run)})


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Code:
    """Replace `safety` by a judge in code wherever the judges are loaded."""
    made = Code()
    for place in ("support.stage_parts", "worker.base.replay.replay"):
        monkeypatch.setattr(f"{place}.load_judges", lambda _: made.judges)
    return made


def choose(keyspace: Keyspace, count: int = 1, **settings: Any) -> None:
    keyspace.append("p1", make_traces(range(count)))
    IngestHarness(keyspace, **{"models": MODELS, "rules": (TOGETHER,), **settings}).process()


def test_however_many_models_its_rule_names_it_judges_once(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    worker = panel_worker(new_worker, judges=code.judges)
    choose(keyspace)
    assert {batch.judge_model for batch in keyspace.batches().values()} == {"code"}
    finish(keyspace, worker)
    assert_settled(keyspace, scored=1)
    (verdict,) = verdicts(keyspace).values()
    assert (verdict.judge_model, verdict.calls, verdict.attempts, verdict.cost_usd) == ("code", (), 0, None)
    assert [trace.output for trace in code.traces] == [make_trace(0).output]
    assert worker.model.requests == []


def test_other_judges_of_the_rule_ask_its_models(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    both = Rule.from_keys(
        name="both", judges=("safety", "relevance_to_query"), model=("default", "first"), combine="all"
    )
    worker = panel_worker(new_worker, judges=code.judges, rules=(both,))
    choose(keyspace, rules=(both,))
    finish(keyspace, worker)
    assert {(verdict.judge, name) for name, verdict in verdicts(keyspace).items()} == {
        ("safety", "code"),
        ("relevance_to_query", "a"),
        ("relevance_to_query", "b"),
        ("relevance_to_query", "all(a,b)"),
    }


def test_no_egress_keeps_a_trace_from_the_operator_s_own_code(
    keyspace: Keyspace, new_worker: Workers, code: Code
) -> None:
    rules = (KEPT, Rule(name="coded", judges=("safety", "groundedness")))
    with capture_logs() as lines:
        choose(keyspace, rules=rules)
    assert {batch.judge_model for batch in keyspace.batches().values()} == {"code", "a"}
    assert [line["other"] for line in lines if "egress excludes" in line["event"]] == ["coded"]
    finish(keyspace, panel_worker(new_worker, judges=code.judges, rules=rules))
    assert read_balanced_account(keyspace).scored == 2


def test_so_many_run_at_the_same_time(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    worker = panel_worker(new_worker, judges=code.judges)
    choose(keyspace, 4 * CODE_AT_ONCE)
    finish(keyspace, worker)
    assert_settled(keyspace, scored=4 * CODE_AT_ONCE)
    assert 1 < code.most_at_once <= CODE_AT_ONCE


def test_a_code_judge_that_reports_failure_is_unscored(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    code.fault = JudgeFailedError("the code raised ValueError")
    worker = panel_worker(new_worker, judges=code.judges)
    choose(keyspace)
    finish(keyspace, worker)
    (verdict,) = verdicts(keyspace).values()
    assert (verdict.outcome, verdict.reason, verdict.note) == ("unscored", "judge_failed", "the code raised ValueError")


def test_a_worker_without_the_code_puts_the_batch_back(keyspace: Keyspace, new_worker: Workers, code: Code) -> None:
    choose(keyspace)
    (batch_id,) = keyspace.batches()
    stranger = panel_worker(new_worker, judges=ASKING, configured_models=frozenset)
    stranger.wake(batch_id)
    stranger.sweep()
    assert (keyspace.batches().keys(), holders(keyspace)) == ({batch_id}, {})
    finish(keyspace, panel_worker(new_worker, judges=code.judges))
    assert_settled(keyspace, scored=1)


def test_there_is_a_seat_only_where_there_is_code() -> None:
    settings = Settings(models=MODELS, rules=(TOGETHER,))
    assert Graders(settings, ASKING).code_judges == frozenset()
    assert Graders(settings, catalogue()).code_judges == {"trajectory_match"}
    assert Graders(settings, Code().judges).panels == {}, "nobody would sit on it"
    assert find_providers(settings)[CODE.judge_model] == "code"
