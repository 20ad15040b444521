"""What may pass is tried again, no sooner than the endpoint wants, and only what is missing."""

import msgspec
import pytest
from structlog.testing import capture_logs
from support.judging_parts import (
    HOUR_S,
    YES,
    Workers,
    assert_settled,
    choose,
    failing,
    holders,
    ids,
    judged,
    letters,
    output,
)
from support.stage_parts import Keyspace

from judges.core.model import CallTotals, ModelRejectedError, ModelUnavailableError, RateLimitedError
from judges.models.scripted import Step


def tries(keyspace: Keyspace, batch_id: str) -> list[int]:
    written = keyspace.client.hvals(keyspace.keys.tries(batch_id))
    return sorted(msgspec.json.decode(each, type=CallTotals).calls for each in written)


@pytest.mark.parametrize("failure", ["timeout", "rate_limited", "judge_unavailable", "judge_rejected"])
def test_a_transient_failure_parks_the_batch(keyspace: Keyspace, new_worker: Workers, failure: str) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker(Step(failure=failure))
    worker.run(batch_id)
    assert holders(keyspace) == {batch_id: "parked"}
    assert keyspace.leases()[batch_id] == keyspace.soon(1.0)
    keyspace.make_due(batch_id, in_s=60)
    before = keyspace.everything()
    worker.run(batch_id)
    worker.sweep()
    new_worker().run(batch_id)
    assert (keyspace.everything(), len(worker.judged_texts)) == (before, 3), "a wake-up before the time does nothing"
    assert (keyspace.outbox("j"), keyspace.outbox("d")) == ([], [])


def test_a_parked_batch_judges_only_missing_evaluations(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 5)
    worker = new_worker(failing(1, 3))
    worker.run(batch_id)
    assert judged(keyspace) == ids(0, 2, 4)
    keyspace.make_due()
    worker.sweep()
    assert worker.judged_texts[5:] == [output(1), output(3)]
    assert holders(keyspace) == {batch_id: "parked"}
    keyspace.make_due()
    successor = new_worker()
    successor.sweep()
    assert successor.judged_texts == [output(1), output(3)]
    assert judged(keyspace) == ids(*range(5))
    assert_settled(keyspace, scored=5)


def test_the_waits_grow_with_the_rounds(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker(Step(failure="timeout"))
    with capture_logs() as lines:
        worker.run(batch_id)
        waits = [keyspace.leases()[batch_id]]
        for _ in range(11):
            keyspace.make_due()
            worker.sweep()
            waits.append(keyspace.leases()[batch_id])
    logged_s = [line["seconds"] for line in lines if line["event"] == "batch parked"]
    assert logged_s == [1.0] * 3 + [2.0] * 4 + [4.0] * 4 + [8.0]
    assert waits == [keyspace.soon(wait_s) for wait_s in logged_s]


@pytest.mark.parametrize(("asked_s", "delay_s"), [(None, 1.0), (0.2, 1.0), (45.0, 45.0), (1e9, 100.0)])
@pytest.mark.parametrize("kind", [RateLimitedError, ModelUnavailableError])
def test_the_endpoint_is_left_alone_as_long_as_it_asks_but_not_past_the_end(
    keyspace: Keyspace, new_worker: Workers, kind: type[RateLimitedError], asked_s: float | None, delay_s: float
) -> None:
    (batch_id,) = choose(keyspace, 3)
    new_worker(failing(1, error=kind("slowly", asked_s)), give_up_after=100.0).run(batch_id)
    assert keyspace.leases()[batch_id] == keyspace.soon(delay_s)
    assert holders(keyspace) == {batch_id: "parked"}


@pytest.mark.parametrize(
    ("was_asked", "blocked_for_s", "delay_s"), [(True, 30.0, 32.0), (True, 0.0, 9.0), (False, 30.0, 9.0)]
)
def test_a_batch_refused_by_an_open_circuit_lets_others_go_first(
    keyspace: Keyspace, new_worker: Workers, *, was_asked: bool, blocked_for_s: float, delay_s: float
) -> None:
    (batch_id,) = choose(keyspace, 3)
    error = ModelUnavailableError("away", 9.0)
    error.was_asked = was_asked
    worker = new_worker(failing(0, 1, 2, error=error))
    worker.begin(batch_id)
    worker.limits.blocked_for_s = blocked_for_s
    worker.end()
    assert keyspace.leases()[batch_id] == keyspace.soon(delay_s)


def test_a_verdict_counts_the_calls_of_all_rounds(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker(failing(1, 2))
    worker.run(batch_id)
    keyspace.make_due()
    worker.sweep()
    assert tries(keyspace, batch_id) == [2, 2]
    keyspace.make_due()
    # Answers that cannot be read are repaired once: two calls a round, unlike those before.
    new_worker("no JSON").sweep()
    by_trace_id = {entry["trace_id"]: entry["attempts"] for entry in keyspace.outbox("j")}
    assert by_trace_id == dict(zip(ids(0, 1, 2), (1, 4, 4), strict=True))
    assert not keyspace.client.exists(keyspace.keys.tries(batch_id))


def test_tokens_and_cost_of_a_verdict_cover_all_rounds(keyspace: Keyspace, new_worker: Workers) -> None:
    """The first round gets an answer that cannot be read, and no repair of it; the last one gets both."""
    (batch_id,) = choose(keyspace, 1)
    answers = iter(["no JSON", Step(failure="judge_unavailable"), "no JSON", YES])
    worker = new_worker(lambda _: next(answers))
    worker.run(batch_id)
    (kept,) = (
        msgspec.json.decode(raw, type=CallTotals) for raw in keyspace.client.hvals(keyspace.keys.tries(batch_id))
    )
    assert (kept.calls, kept.input_tokens, kept.output_tokens) == (2, 7, 7)
    assert kept.cost_usd == pytest.approx(7 * 3e-6)
    keyspace.make_due()
    worker.sweep()
    (verdict,) = keyspace.outbox("j")
    tokens = 2 * 7 + len(YES)
    assert (verdict["outcome"], verdict["attempts"], len(verdict["calls"])) == ("scored", 4, 2)
    assert (verdict["input_tokens"], verdict["output_tokens"]) == (tokens, tokens)
    assert verdict["cost_usd"] == pytest.approx(tokens * 3e-6)


def test_a_rejected_batch_lets_the_more_probes_pass_the_more_often_it_was_one(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (batch_id,) = choose(keyspace, 1)
    error = ModelRejectedError("no", 9.0)
    worker = new_worker(failing(0, error=error))
    waits = []
    for number in range(3):
        worker.begin(batch_id)
        worker.limits.blocked_for_s = 15.0
        if number:
            choose(keyspace, 1, first=number)
        worker.end()
        waits.append(keyspace.leases()[batch_id])
        worker.limits.blocked_for_s = 0.0
        keyspace.client.delete(keyspace.keys.ready("scripted"))
        keyspace.make_due(batch_id)
        worker.judging.leases.sweep(["scripted"])
    assert waits == [keyspace.soon(wait_s) for wait_s in (17.0, 32.0, 47.0)]


def test_a_dead_letter_counts_the_calls_of_all_rounds(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 2, age_s=HOUR_S)
    new_worker(failing(0, 1)).run(batch_id)
    for _ in range(2):
        keyspace.make_due()
        new_worker(failing(1)).sweep()
    assert tries(keyspace, batch_id) == [1, 3]
    keyspace.make_due()
    new_worker(failing(1), give_up_after=HOUR_S / 2).sweep()
    assert [letter.attempts for letter in letters(keyspace).values()] == [4]
    assert_settled(keyspace, scored=1, dead=1)


def test_a_batch_without_calls_counts_no_tries(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 2)
    new_worker(judges={}).run(batch_id)
    assert tries(keyspace, batch_id) == []
