"""Late feedback in ingest: it ends there, or is moved into the set for the next pass, once and in one step."""

import json

import pytest
from support.feedback_parts import HEARD, Passes, complain, ended, gathered, make_due, take
from support.stage_parts import IngestHarness, Keyspace, make_trace, planner_of, read_balanced_account, samples

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
    keyspace: Keyspace, rules: tuple[Rule, ...], score: float, outcome: str
) -> None:
    chosen = IngestHarness(keyspace, rules=rules)
    complain(keyspace, "1", score)
    chosen.process()
    assert ended(keyspace) == {outcome: 1}
    assert samples(chosen.metrics) == {("late_feedback_total", f"outcome={outcome}"): 1}
    assert (gathered(keyspace), keyspace.pending()) == ({}, 0)


def test_a_complaint_is_gathered_until_its_time_has_come(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(DEAF, HEARD), late_feedback_wait=30, retention=3600)
    entry_id = complain(keyspace, "1", -0.5, "It came on Tuesday.")
    chosen.process()
    (member,) = keyspace.client.zrange(keyspace.keys.feedback, 0, -1)
    assert json.loads(member) == {
        "v": 1,
        "entry_id": entry_id,
        "trace_id": "1",
        "asked": [],
        "score": -0.5,
        "comment": "It came on Tuesday.",
    }
    assert gathered(keyspace)["1"] == keyspace.soon(30)
    assert 3600 + 86_400 - 60 < keyspace.client.ttl(keyspace.keys.feedback) <= 3600 + 86_400
    assert (keyspace.pending(), ended(keyspace), samples(chosen.metrics)) == (0, {}, {})
    assert read_balanced_account(keyspace).published == 0, "feedback is no trace"


def test_of_a_long_comment_only_the_beginning_is_gathered(keyspace: Keyspace) -> None:
    complain(keyspace, "1", comment="\U0001f600" * 50_000)
    take(keyspace)
    (member,) = keyspace.client.zrange(keyspace.keys.feedback, 0, -1)
    assert json.loads(member)["comment"] == "\U0001f600" * 1_000


@pytest.mark.parametrize("again", ["plan", "entries"])
def test_a_repeated_call_gathers_feedback_once(keyspace: Keyspace, again: str) -> None:
    chosen = IngestHarness(keyspace, rules=(HEARD,))
    for trace_id, score in (("1", -1), ("1", -1), ("2", -0.1), ("3", 1)):
        complain(keyspace, trace_id, score)
    entries = keyspace.read()
    if again == "plan":
        plan = planner_of(chosen.settings, keyspace.store).plan(read_entry(entry, 2000) for entry in entries)
        repeat = lambda: keyspace.store.run("choose", plan.keys, plan.arguments)  # noqa: E731 - a name for one expression
    else:
        repeat = lambda: chosen.process(entries)  # noqa: E731
    repeat()
    before = keyspace.everything()
    repeat()
    assert keyspace.everything() == before
    assert keyspace.counted("feedback", "feedback:not_negative", "read") == {
        "feedback": 4,
        "feedback:not_negative": 1,
        "read": 4,
    }
    assert keyspace.client.zcard(keyspace.keys.feedback) == 3


def test_a_complaint_that_was_dealt_with_is_not_gathered_again(keyspace: Keyspace) -> None:
    complain(keyspace, "1")
    entries = keyspace.read()
    chosen = IngestHarness(keyspace, rules=(HEARD,))
    chosen.process(entries)
    make_due(keyspace)
    Passes(keyspace).make()
    chosen.process(entries)
    assert (ended(keyspace), gathered(keyspace)) == ({"not_found": 1}, {})


def test_past_the_bound_complaints_are_counted_and_not_gathered(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.late_feedback.pending.MAX_PENDING", 5)
    chosen = IngestHarness(keyspace, rules=(HEARD,))
    for number in range(4):
        complain(keyspace, f"early {number}")
    chosen.process()
    for number in range(4):
        complain(keyspace, f"late {number}")
    chosen.process()
    assert list(gathered(keyspace)) == [*(f"early {number}" for number in range(4)), "late 0"]
    assert ended(keyspace) == {"overflow": 3}
    assert samples(chosen.metrics) == {("late_feedback_total", "outcome=overflow"): 3}
    assert keyspace.pending() == 0


def test_feedback_that_names_no_possible_trace_is_invalid(keyspace: Keyspace) -> None:
    complain(keyspace, "x" * 128)
    complain(keyspace, "")
    take(keyspace)
    assert list(gathered(keyspace)) == ["x" * 128]
    account = read_balanced_account(keyspace)
    assert (account.invalid, account.reasons) == (1, {"invalid:wrong_type": 1})


def test_a_dead_readers_complaints_are_gathered_by_its_heir(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    complain(keyspace, make_trace(1).trace_id)
    entries = keyspace.read(consumer="dead")
    successor, dead = IngestHarness(keyspace, rules=(HEARD,)), IngestHarness(keyspace, rules=(HEARD,))
    successor.process(keyspace.claim())
    dead.process(entries)
    assert list(gathered(keyspace)) == [make_trace(1).trace_id]
    assert keyspace.counted("feedback", "not_sampled", "read") == {"feedback": 1, "not_sampled": 1, "read": 2}
    read_balanced_account(keyspace)
