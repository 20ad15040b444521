"""The ledger counts a verdict once, a dead letter once, never both, and the accounting agrees with it."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.judging_parts import letters
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of

from judges.core.verdict import Score, Verdict
from tracejudge import ToolCall
from worker.core.queue.batch import Batch, Evaluation, Item
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger

COUNTS = (
    "scored", "abstained", "unscored", "unscored:refusal", "unscored:bad_request", "dead", "dead:timeout", "outbox",
)  # fmt: skip
ENDS = {
    "scored": {"outcome": "scored", "scores": (Score("safety", 1.0, 1.0, "yes", passed=True),)},
    "abstained": {"outcome": "abstained"},
    "refusal": {"outcome": "unscored", "reason": "refusal"},
    "bad_request": {"outcome": "unscored", "reason": "bad_request"},
}


@pytest.fixture
def ledger(keyspace: Keyspace) -> Ledger:
    return Ledger(keyspace.store, settings_of(keyspace))


def verdict(number: int, end: str = "scored") -> Verdict:
    return make_verdict(number, **ENDS[end])


def given_up(number: int, reason: str = "timeout") -> tuple[DeadLetter, Verdict]:
    verdict_of_letter = make_verdict(number, outcome="unscored", reason=reason)
    evaluation = Evaluation(
        verdict_of_letter.evaluation_id, HOUR, verdict_of_letter.judge, verdict_of_letter.judge_version, 0.5
    )
    item = Item(make_trace(number), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "lexical", reason, 3, 1_700_000_000.0, 1_700_021_600.0, item=item)
    return letter, verdict_of_letter


def dead(keyspace: Keyspace) -> dict[str, DeadLetter]:
    return letters(keyspace)


def test_a_verdict_stands_in_ledger_outbox_and_accounting(keyspace: Keyspace, ledger: Ledger) -> None:
    verdicts = [verdict(number, end) for number, end in enumerate(ENDS)]
    assert ledger.record([FinalVerdict.encode(each, HOUR) for each in verdicts]) == [True] * 4
    assert keyspace.ended() == {each.evaluation_id: each.outcome for each in verdicts}
    assert [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")] == verdicts
    accounting = {
        "scored": 1,
        "abstained": 1,
        "unscored": 2,
        "unscored:refusal": 1,
        "unscored:bad_request": 1,
        "outbox": 4,
    }
    assert keyspace.accounting() == accounting
    assert keyspace.daily_accounting() == accounting
    least = 2 * 24 * 3600
    parts = list(keyspace.client.scan_iter(f"{keyspace.keys.evaluations}:*"))
    assert all(least - 60 < keyspace.client.ttl(part) <= least + 600 for part in parts)


def test_recording_a_verdict_again_changes_nothing(keyspace: Keyspace, ledger: Ledger) -> None:
    ledger.record([FinalVerdict.encode(verdict(1, "scored"), HOUR)])
    before = keyspace.everything()
    assert ledger.record([FinalVerdict.encode(verdict(1, "scored"), HOUR)]) == [False]
    assert ledger.record([FinalVerdict.encode(verdict(1, "refusal"), HOUR)]) == [False], "the first one stands"
    assert keyspace.everything() == before


def test_a_group_may_hold_old_new_and_the_same_twice(keyspace: Keyspace, ledger: Ledger) -> None:
    ledger.record([FinalVerdict.encode(verdict(1), HOUR)])
    finished = [FinalVerdict.encode(verdict(number), HOUR) for number in (0, 1, 2, 2)]
    assert ledger.record(finished) == [True, False, True, False]
    assert [entry["evaluation_id"] for entry in keyspace.outbox("j")] == [
        verdict(number).evaluation_id for number in (1, 0, 2)
    ]
    assert keyspace.accounting() == {"scored": 3, "outbox": 3}


def test_of_many_threads_with_the_same_verdicts_one_writes_each(keyspace: Keyspace, ledger: Ledger) -> None:
    finished = [FinalVerdict.encode(verdict(number, end), HOUR) for number, end in enumerate([*ENDS] * 5)]
    together = threading.Barrier(8)

    def write(turn: int) -> list[bool]:
        together.wait()
        order = finished[turn:] + finished[:turn]
        fresh = [answer for start in range(0, 20, 5) for answer in ledger.record(order[start : start + 5])]
        return fresh[20 - turn :] + fresh[: 20 - turn]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(write, range(8)))
    assert [sum(each) for each in zip(*answers, strict=True)] == [1] * 20
    assert sorted(entry["evaluation_id"] for entry in keyspace.outbox("j")) == sorted(
        result.evaluation_id for result in finished
    )
    assert keyspace.counted("scored", "abstained", "unscored", "outbox") == {
        "scored": 5,
        "abstained": 5,
        "unscored": 10,
        "outbox": 20,
    }


def test_a_dead_letter_holds_all_it_takes_to_try_again(keyspace: Keyspace, ledger: Ledger) -> None:
    letter, dead_verdict = given_up(1)
    assert ledger.add_dead_letter([(letter, dead_verdict)]) == [True]
    assert dead(keyspace) == {letter.evaluation.id: letter}
    assert keyspace.outbox("d") == [json.loads(msgspec.json.encode(dead_verdict))]
    assert (keyspace.outbox("j"), keyspace.ended()) == ([], {})
    assert keyspace.accounting() == {"dead": 1, "dead:timeout": 1, "outbox": 1}
    ((evaluation_id, given_up_ms),) = keyspace.client.zrange(keyspace.keys.dead_due, 0, -1, withscores=True)
    seconds, _ = keyspace.client.time()
    assert (evaluation_id.decode(), given_up_ms / 1000) == (letter.evaluation.id, pytest.approx(seconds, abs=60))


def test_an_evaluation_becomes_a_dead_letter_once(keyspace: Keyspace, ledger: Ledger) -> None:
    ledger.add_dead_letter([given_up(1)])
    before = keyspace.everything()
    assert ledger.add_dead_letter([given_up(1, "rate_limited"), given_up(1)]) == [False, False]
    assert keyspace.everything() == before


def test_an_evaluation_with_a_verdict_never_becomes_a_dead_letter(keyspace: Keyspace, ledger: Ledger) -> None:
    ledger.record([FinalVerdict.encode(verdict(1), HOUR)])
    before = keyspace.everything()
    assert ledger.add_dead_letter([given_up(1)]) == [False]
    assert keyspace.everything() == before


def test_a_verdict_that_comes_after_all_ends_a_dead_letter(keyspace: Keyspace, ledger: Ledger) -> None:
    misleading = make_trace(1, output='"reason":"refusal"', tool_calls=[ToolCall("find", {"reason": "refusal"})])
    letter, dead_verdict = given_up(1, "rate_limited")
    letter = msgspec.structs.replace(letter, item=Item(misleading, letter.item.evaluations))
    ledger.add_dead_letter([(letter, dead_verdict), given_up(2)])
    assert ledger.record([FinalVerdict.encode(verdict(1), HOUR)]) == [True]
    assert (dead(keyspace).keys(), keyspace.ended().keys()) == ({verdict(2).evaluation_id}, {verdict(1).evaluation_id})
    assert keyspace.client.zrange(keyspace.keys.dead_due, 0, -1) == [verdict(2).evaluation_id.encode()]
    assert keyspace.accounting() == {
        "scored": 1, "dead": 1, "dead:rate_limited": 0, "dead:timeout": 1, "outbox": 3,
    }  # fmt: skip


def test_already_finished_knows_ledger_and_dead_letters(ledger: Ledger) -> None:
    ledger.record([FinalVerdict.encode(verdict(1), HOUR)])
    ledger.add_dead_letter([given_up(2)])
    ids = [verdict(number).evaluation_id for number in range(4)]

    def batch(period: str) -> Batch:
        evaluations = tuple(Evaluation(name, period, "safety", "1", 0.5) for name in ids)
        return Batch(1, "1-a", "default", "lexical", 1.0, (Item(make_trace(0), evaluations),))

    assert ledger.already_finished([batch(HOUR)]) == [{ids[1], ids[2]}]
    assert ledger.already_finished([batch("472223")]) == [{ids[2]}]
    assert ledger.already_finished([]) == []


STEPS = st.tuples(st.sampled_from(["record", "give up"]), st.lists(st.integers(0, 3), min_size=1, max_size=3))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8), ends=st.lists(st.sampled_from([*ENDS]), min_size=4, max_size=4))
def test_an_evaluation_ends_once_in_any_order_of_calls(
    fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[str, list[int]]], ends: list[str]
) -> None:
    keyspace = fresh_keyspaces()
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    new = 0
    for step, numbers in steps:
        if step == "record":
            new += sum(ledger.record([FinalVerdict.encode(verdict(number, ends[number]), HOUR) for number in numbers]))
        else:
            new += sum(ledger.add_dead_letter([given_up(number) for number in numbers]))
    touched = {verdict(number).evaluation_id for _, numbers in steps for number in numbers}
    written, dead_letters, verdicts, dead_verdicts = (
        keyspace.ended(),
        dead(keyspace),
        keyspace.outbox("j"),
        keyspace.outbox("d"),
    )
    assert sorted([*written, *dead_letters]) == sorted(touched)
    assert sorted(entry["evaluation_id"] for entry in verdicts) == sorted(written)
    assert written == {entry["evaluation_id"]: entry["outcome"] for entry in verdicts}
    assert dead_letters.keys() <= {entry["evaluation_id"] for entry in dead_verdicts}
    assert new == len(verdicts) + len(dead_verdicts)
    reasons = Counter(entry["reason"] for entry in verdicts if entry.get("reason"))
    assert keyspace.counted(*COUNTS) == {
        **{outcome: list(written.values()).count(outcome) for outcome in ("scored", "abstained", "unscored")},
        **{f"unscored:{reason}": reasons[reason] for reason in ("refusal", "bad_request")},
        "dead": len(dead_letters),
        "dead:timeout": len(dead_letters),
        "outbox": new,
    }
    assert {each.decode() for each in keyspace.client.zrange(keyspace.keys.dead_due, 0, -1)} == dead_letters.keys()


def test_a_full_part_of_the_ledger_lives_as_long_as_those_behind_it(keyspace: Keyspace, ledger: Ledger) -> None:
    """A short part that expired first hid what stood in the longer ones, and an evaluation was judged again."""
    names = [f"ab{number:030x}" for number in range(101)]
    verdicts = [make_verdict(evaluation_id=name) for name in names]
    assert all(ledger.record([FinalVerdict.encode(each, HOUR) for each in verdicts[:100]]))
    short, longer = (f"{keyspace.keys.evaluations}:{HOUR}:{digits}" for digits in ("ab", "ab0"))
    keyspace.client.expire(short, 60)
    assert ledger.record([FinalVerdict.encode(verdicts[100], HOUR)]) == [True]
    assert (keyspace.client.hlen(short), keyspace.client.hlen(longer)) == (100, 1)
    assert keyspace.client.ttl(short) >= keyspace.client.ttl(longer) > 3600
