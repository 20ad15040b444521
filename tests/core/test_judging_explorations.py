"""A trace judge whose endpoint fails in the middle: what was paid for is not paid for again until the letters' end."""

import pytest
from support.judging_parts import YES, Workers, assert_settled, choose
from support.stage_parts import Keyspace

from judges.core.prompt import ToolCall
from judges.models.scripted import Step
from judges.registry import load_judges
from worker.core.config.settings import Rule

TABLES = {"mine": {"instructions": "Read {{ trace }}. Is {{ outputs }} borne out?", "max_rounds": 3}}
RULES = (Rule(name="all", judges=("mine",)),)
LOOK = Step(tool_calls=(ToolCall("look", "get_trace_info", "{}"),))
AWAY = Step(failure="judge_unavailable")

pytestmark = pytest.mark.usefixtures("_patience_with_tools")


@pytest.mark.parametrize("steps", [(LOOK, LOOK, AWAY), (LOOK, AWAY)], ids=["after two rounds", "after one"])
def test_an_exploration_is_over_budget_after_the_calls_of_all_tries(
    keyspace: Keyspace, new_worker: Workers, steps: tuple[Step, ...]
) -> None:
    (batch_id,) = choose(keyspace, 1, judges=TABLES, rules=RULES)
    worker = new_worker(*steps, judges=load_judges(TABLES))
    worker.run(batch_id)
    while keyspace.batches():
        keyspace.make_due()
        worker.sweep()
    (verdict,) = keyspace.outbox("j")
    assert (verdict["outcome"], verdict["reason"]) == ("unscored", "over_budget")
    assert 16 <= verdict["attempts"] == len(worker.model.requests) < 16 + len(steps)


def test_an_outage_before_the_first_answer_costs_nothing(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 1, judges=TABLES, rules=RULES)
    worker = new_worker(AWAY, judges=load_judges(TABLES))
    worker.run(batch_id)
    for _ in range(30):
        keyspace.make_due()
        worker.sweep()
    assert keyspace.outbox("j") == []
    keyspace.make_due()
    new_worker(LOOK, YES, judges=load_judges(TABLES)).sweep()
    assert_settled(keyspace, scored=1)
