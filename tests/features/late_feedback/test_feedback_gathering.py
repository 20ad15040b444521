"""Late feedback in ingest: it ends there, or is moved into the set for the next pass, once and in one step."""

import json

import pytest
from support.feedback_parts import HEARD, Passes, balanced, complain, ended, gathered, make_due, take
from support.stage_parts import Chosen, Ground, make_trace, planner_of, samples

from worker.core.config.settings import Rule
from worker.core.selection.stream_entry import read_entry

DEAF = Rule(name="deaf", judges=("safety",), always=("error",))


@pytest.mark.parametrize(
    ("rules", "score", "outcome"),
    [
        ((HEARD,), 1.0, "not_negative"),
        ((HEARD,), 0.0, "not_negative"),
        ((DEAF,), -1.0, "no_rule"),
        ((DEAF,), 1.0, "not_negative"),
    ],
    ids=["positive", "neutral", "nobody listens", "positive where nobody listens"],
)
def test_feedback_that_can_pull_nothing_in_ends_at_once(
    ground: Ground, rules: tuple[Rule, ...], score: float, outcome: str
) -> None:
    chosen = Chosen(ground, rules=rules)
    complain(ground, "1", score)
    chosen.take()
    assert ended(ground) == {outcome: 1}
    assert samples(chosen.metrics) == {("late_feedback_total", f"outcome={outcome}"): 1}
    assert (gathered(ground), ground.pending()) == ({}, 0)


def test_a_complaint_is_gathered_until_its_time_has_come(ground: Ground) -> None:
    chosen = Chosen(ground, rules=(DEAF, HEARD), late_feedback_wait=30, retention=3600)
    entry_id = complain(ground, "1", -0.5, "It came on Tuesday.")
    chosen.take()
    (member,) = ground.client.zrange(ground.keys.feedback, 0, -1)
    assert json.loads(member) == {
        "v": 1,
        "entry_id": entry_id,
        "trace_id": "1",
        "asked": [],
        "score": -0.5,
        "comment": "It came on Tuesday.",
    }
    assert gathered(ground)["1"] == ground.soon(30)
    assert 3600 + 86_400 - 60 < ground.client.ttl(ground.keys.feedback) <= 3600 + 86_400
    assert (ground.pending(), ended(ground), samples(chosen.metrics)) == (0, {}, {})
    assert balanced(ground).published == 0, "feedback is no trace"


def test_of_a_long_comment_only_the_beginning_is_gathered(ground: Ground) -> None:
    complain(ground, "1", comment="\U0001f600" * 50_000)
    take(ground)
    (member,) = ground.client.zrange(ground.keys.feedback, 0, -1)
    assert json.loads(member)["comment"] == "\U0001f600" * 1_000


@pytest.mark.parametrize("again", ["plan", "entries"])
def test_what_is_repeated_gathers_nothing_twice(ground: Ground, again: str) -> None:
    chosen = Chosen(ground, rules=(HEARD,))
    for trace_id, score in (("1", -1), ("1", -1), ("2", -0.1), ("3", 1)):
        complain(ground, trace_id, score)
    entries = ground.read()
    if again == "plan":
        plan = planner_of(chosen.settings, ground.store).plan(read_entry(entry, 2000) for entry in entries)
        repeat = lambda: ground.store.run("choose", plan.keys, plan.arguments)  # noqa: E731 - a name for one expression
    else:
        repeat = lambda: chosen.take(entries)  # noqa: E731
    repeat()
    before = ground.everything()
    repeat()
    assert ground.everything() == before
    assert ground.counted("feedback", "feedback:not_negative", "read") == {
        "feedback": 4,
        "feedback:not_negative": 1,
        "read": 4,
    }
    assert ground.client.zcard(ground.keys.feedback) == 3


def test_a_complaint_that_was_dealt_with_is_not_gathered_again(ground: Ground) -> None:
    complain(ground, "1")
    entries = ground.read()
    chosen = Chosen(ground, rules=(HEARD,))
    chosen.take(entries)
    make_due(ground)
    Passes(ground).make()
    chosen.take(entries)
    assert (ended(ground), gathered(ground)) == ({"not_found": 1}, {})


def test_past_the_bound_complaints_are_counted_and_not_gathered(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.late_feedback.pending.MAX_PENDING", 5)
    chosen = Chosen(ground, rules=(HEARD,))
    for number in range(4):
        complain(ground, f"early {number}")
    chosen.take()
    for number in range(4):
        complain(ground, f"late {number}")
    chosen.take()
    assert list(gathered(ground)) == [*(f"early {number}" for number in range(4)), "late 0"]
    assert ended(ground) == {"overflow": 3}
    assert samples(chosen.metrics) == {("late_feedback_total", "outcome=overflow"): 3}
    assert ground.pending() == 0


def test_feedback_that_names_no_possible_trace_is_invalid(ground: Ground) -> None:
    complain(ground, "x" * 128)
    complain(ground, "")
    take(ground)
    assert list(gathered(ground)) == ["x" * 128]
    account = balanced(ground)
    assert (account.invalid, account.reasons) == (1, {"invalid:wrong_type": 1})


def test_a_dead_readers_complaints_are_gathered_by_its_heir(ground: Ground) -> None:
    ground.add(make_trace(1))
    complain(ground, make_trace(1).trace_id)
    entries = ground.read(consumer="dead")
    heir, dead = Chosen(ground, rules=(HEARD,)), Chosen(ground, rules=(HEARD,))
    heir.take(ground.claim())
    dead.take(entries)
    assert list(gathered(ground)) == [make_trace(1).trace_id]
    assert ground.counted("feedback", "not_sampled", "read") == {"feedback": 1, "not_sampled": 1, "read": 2}
    balanced(ground)
