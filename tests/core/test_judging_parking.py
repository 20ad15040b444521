"""What may pass is tried again, no sooner than the endpoint wants, only what is missing, and soon after an outage."""

import time
from itertools import pairwise

import msgspec
import pytest
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.judging import (
    HOUR_S,
    YES,
    Answering,
    JudgingWorker,
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
from support.stages import HOUR, Keyspace, make_trace, make_verdict, use_script_time

from judges.core.model import (
    CallTotals,
    ChatModel,
    ChatRequest,
    ModelRejectedError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.core.verdict import Assessment, Reason
from judges.endpoints.client import LimitedModel
from judges.endpoints.limiter import EndpointLimiter, LimiterClock
from judges.models.scripted import Step
from worker.core.judging.evaluator import UnfinishedEvaluation
from worker.core.judging.fetching import parking_s
from worker.core.queue.batch import Evaluation, Item

PROBE_S = 15  # between two probes, at the longest
PROMISED_S = 30  # the work goes on so soon once the endpoint is back
POISON = failing(0)
any_redis_server = one_redis


def tries(keyspace: Keyspace, batch_id: str) -> list[int]:
    written = keyspace.client.hvals(keyspace.keys.tries(batch_id))
    return sorted(msgspec.json.decode(each, type=CallTotals).calls for each in written)


def unfinished(reason: Reason, *, asked_s: float | None = None, attempts: int = 1) -> UnfinishedEvaluation:
    evaluation = Evaluation("e1", HOUR, "safety", "1", 1.0)
    assessment = Assessment("unscored", reason, retry_after_s=asked_s)
    return UnfinishedEvaluation(
        Item(make_trace(1), (evaluation,)), evaluation, assessment, make_verdict(attempts=attempts)
    )


class Outage:
    """An endpoint that is away until it is told otherwise, a worker that asks it, and the time that they go by.

    So does Redis: what takes its time on a busy machine must not be due sooner than the endpoint may be asked.
    """

    def __init__(
        self, keyspace: Keyspace, new_workers: Workers, monkeypatch: pytest.MonkeyPatch, poison: Answering = POISON
    ) -> None:
        self.away = True
        self._poison = poison
        self.asked_at: list[float] = []
        self._keyspace = keyspace
        self._steady_s = 0.0
        self._clock = f"{keyspace.prefix}:clock"
        keyspace.client.set(self._clock, int(time.time()))
        use_script_time(monkeypatch, keyspace, f"redis.call('GET', '{self._clock}')")
        self._worker: JudgingWorker = new_workers(self._answer, limited=self._limited)

    def pass_by(self, seconds: int) -> None:
        """Advance the time, with the runs of the sweeper that fall in it."""
        for _ in range(seconds):
            self._steady_s += 1
            self._keyspace.client.incr(self._clock)
            self._worker.sweep()

    def _answer(self, request: ChatRequest) -> str:
        self.asked_at.append(self._steady_s)
        if self.away:
            raise ModelUnavailableError("away")
        return self._poison(request)

    def _limited(self, model: ChatModel) -> LimitedModel:
        # Nobody waits at it, since the timers of the event loop know nothing of our time.
        timing = LimiterClock(lambda: self._steady_s, lambda: self._steady_s, lambda _low, high: high)
        limiter = EndpointLimiter(64, patience_s=0.0, clock=timing)
        return LimitedModel(model, limiter, sleep=_at_once)


async def _at_once(_: float) -> None:
    pass


def test_a_transient_failure_parks_the_batch(keyspace: Keyspace, new_worker: Workers) -> None:
    for failure in ("timeout", "rate_limited", "judge_unavailable", "judge_rejected"):
        keyspace.next_case(failure)
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
        assert (keyspace.everything(), len(worker.judged_texts)) == (before, 3), "woken before the time"
        assert (keyspace.outbox("j"), keyspace.outbox("d")) == ([], [])


def test_a_parked_batch_judges_only_what_is_missing(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 5)
    worker = new_worker(failing(1, 3))
    worker.run(batch_id)
    assert judged(keyspace) == ids(0, 2, 4)
    worker.sweep_due()
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
        for _ in range(4):
            worker.sweep_due()
    assert [line["seconds"] for line in lines if line["event"] == "batch parked"] == [1.0] * 3 + [2.0] * 2
    assert keyspace.leases()[batch_id] == keyspace.soon(2.0)
    keyspace.next_case("a rejected batch lets more probes pass each time")
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


def test_the_endpoint_is_left_alone_as_long_as_it_asks(keyspace: Keyspace, new_worker: Workers) -> None:
    for kind in (RateLimitedError, ModelUnavailableError):
        for asked_s, delay_s in ((None, 1.0), (0.2, 1.0), (45.0, 45.0), (1e9, 100.0)):
            keyspace.next_case(f"{kind.__name__} {asked_s}, but not past the end")
            (batch_id,) = choose(keyspace, 3)
            new_worker(failing(1, error=kind("slowly", asked_s)), give_up_after=100.0).run(batch_id)
            assert keyspace.leases()[batch_id] == keyspace.soon(delay_s)
            assert holders(keyspace) == {batch_id: "parked"}
    # A batch that an open circuit refused lets others go first.
    for was_asked, blocked_for_s, delay_s in ((True, 30.0, 32.0), (True, 0.0, 9.0), (False, 30.0, 9.0)):
        keyspace.next_case(f"{was_asked=} {blocked_for_s=}")
        (batch_id,) = choose(keyspace, 3)
        error = ModelUnavailableError("away", 9.0)
        error.was_asked = was_asked
        worker = new_worker(failing(0, 1, 2, error=error))
        worker.begin(batch_id)
        worker.limits.blocked_for_s = blocked_for_s
        worker.end()
        assert keyspace.leases()[batch_id] == keyspace.soon(delay_s)


def test_calls_tokens_and_cost_cover_all_rounds(keyspace: Keyspace, new_worker: Workers) -> None:
    """Also where an answer is repaired in the first round and in the last one."""
    (batch_id,) = choose(keyspace, 1)
    answers = iter(["no JSON", Step(failure="judge_unavailable"), "no JSON", YES])
    worker = new_worker(lambda _: next(answers))
    worker.run(batch_id)
    (kept,) = (
        msgspec.json.decode(raw, type=CallTotals) for raw in keyspace.client.hvals(keyspace.keys.tries(batch_id))
    )
    assert (kept.calls, kept.input_tokens, kept.output_tokens) == (2, 7, 7)
    assert kept.cost_usd == pytest.approx(7 * 3e-6)
    worker.sweep_due()
    (verdict,) = keyspace.outbox("j")
    tokens = 2 * 7 + len(YES)
    assert (verdict["outcome"], verdict["attempts"], len(verdict["calls"])) == ("scored", 4, 2)
    assert (verdict["input_tokens"], verdict["output_tokens"]) == (tokens, tokens)
    assert verdict["cost_usd"] == pytest.approx(tokens * 3e-6)
    keyspace.next_case("a dead letter")
    (batch_id,) = choose(keyspace, 2, age_s=HOUR_S)
    new_worker(failing(0, 1)).run(batch_id)
    for _ in range(2):
        new_worker(failing(1)).sweep_due()
    assert tries(keyspace, batch_id) == [1, 3]
    new_worker(failing(1), give_up_after=HOUR_S / 2).sweep_due()
    assert [letter.attempts for letter in letters(keyspace).values()] == [4]
    assert_settled(keyspace, scored=1, dead=1)


def test_the_delay_is_by_what_kept_the_evaluations_from_being_made() -> None:
    def delay(*reasons: Reason, age_s: float = HOUR_S, attempts: int = 1) -> float:
        return parking_s([unfinished(reason, attempts=attempts) for reason in reasons], age_s=age_s)

    doubled = [delay("timeout", attempts=attempts) for attempts in (1, 3, 4, 7, 8, 12, 36, 40, 4000, 1 << 40)]
    assert doubled == [1, 1, 2, 2, 4, 8, 512, 600, 600, 600]
    for asked_s, longest_s in (((0.0,), 1.0), ((0.2, 0.1), 1.0), ((45.0,), 45.0), ((3.0, 45.0, None), 45.0)):
        several = [unfinished("rate_limited", asked_s=each, attempts=40) for each in asked_s]
        assert parking_s(several, age_s=HOUR_S) == longest_s, "after any number of attempts"
    fewest = [unfinished("timeout", attempts=attempts) for attempts in (40, 8, 12)]
    assert parking_s(fewest, age_s=0.0) == 4.0
    others: tuple[Reason, ...] = ("unknown_judge_version", "judge_rejected", "internal_error")
    for other in others:
        # A version that is unknown here had what fails asked again, and paid for, every second.
        several = [unfinished(other, attempts=0), unfinished("timeout", attempts=40)]
        assert parking_s(several, age_s=HOUR_S) == 600.0, other
    assert 15.0 <= delay("judge_rejected", attempts=0) <= 30.0
    for age_s, internal_s in ((0.0, 60.0), (59.0, 60.0), (61.0, 61.0), (HOUR_S, HOUR_S)):
        several = [unfinished("internal_error", attempts=attempts) for attempts in (0, 1)]
        assert parking_s(several, age_s=age_s) == internal_s
    assert delay("internal_error", "timeout") == 1.0, "others are not delayed"
    assert parking_s([unfinished("unknown_judge_version"), unfinished("timeout", asked_s=9.0)], age_s=HOUR_S) == 9.0
    # By chance: two workers that look in the same rhythm would else have the same one take it for ever.
    for age_s, most_s in ((-HOUR_S, 1.0), (40.0, 10.0), (HOUR_S, 30.0)):
        waits = {parking_s([unfinished("unknown_judge_version", attempts=0)], age_s=age_s) for _ in range(100)}
        assert most_s / 2 <= min(waits) < max(waits) <= most_s
        assert len(waits) > 90


@pytest.mark.slow("a simulated outage")
def test_batches_are_judged_within_half_a_minute_after_an_outage(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the endpoint comes back between early probes or late ones."""
    for away_s in (3, 44):
        keyspace.next_case(f"{away_s} s")
        with monkeypatch.context() as patch:
            outage = Outage(keyspace, new_worker, patch)
            choose(keyspace, 40, batch_size=4, first=1)
            outage.pass_by(away_s)
            assert judged(keyspace) == []
            pauses = [after - before for before, after in pairwise(outage.asked_at)]
            assert max(pauses) <= PROBE_S
            outage.away = False
            outage.pass_by(PROMISED_S)
            assert judged(keyspace) == ids(*range(1, 41))
    for others in (0, 20):
        keyspace.next_case(f"{others} in other batches")
        with monkeypatch.context() as patch:
            outage = Outage(keyspace, new_worker, patch)
            choose(keyspace, 21 - others, age_s=60)
            if others:
                choose(keyspace, others, batch_size=1, first=1)
            outage.pass_by(30)
            assert judged(keyspace) == []
            outage.away = False
            outage.pass_by(PROMISED_S)
            assert judged(keyspace) == ids(*range(1, 21))
    keyspace.next_case(
        "three refused keys, the oldest and a probe each; after that fresh batches are, of which one comes each second"
    )
    error = ModelRejectedError("the endpoint rejects the request: HTTP 401")
    error.status = 401
    outage = Outage(keyspace, new_worker, monkeypatch, failing(0, 1, 2, error=error))
    outage.away = False
    choose(keyspace, 3, batch_size=1, age_s=60)
    longest = stood = 0
    before: list[str] = []
    for second in range(45):
        choose(keyspace, 1, first=3 + second)
        outage.pass_by(1)
        now_judged = judged(keyspace)
        stood = stood + 1 if now_judged == before else 0
        longest, before = max(longest, stood), now_judged
    assert longest <= 1 + 2 + 4, f"nobody was judged for {longest} s"
