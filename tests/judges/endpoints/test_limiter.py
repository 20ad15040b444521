"""The limiter of an endpoint, in virtual time: who may call, who waits, who is turned away; no permit is ever lost."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import ERRORS
from limit_simulation import OK, Diary, call, calls, make_limiter, now, rejection, virtually

from judges.core.model import ChatResponse, ModelError, ModelUnavailableError, Quota, RateLimitedError, Window
from judges.core.verdict import Refusals
from judges.endpoints.limiter import EndpointLimiter

AWAY = ModelUnavailableError("away")
NO = rejection()
FEWER = RateLimitedError("fewer", 30.0)
start = asyncio.ensure_future


async def away(patience_s: float = 60.0, most: int = 4, diary: Diary | None = None) -> EndpointLimiter:
    """Make a limiter whose circuit ten failures have opened."""
    limiter = make_limiter(most, patience_s, diary)
    await outage(limiter, 10)
    assert limiter.circuit_open
    return limiter


async def outage(limiter: EndpointLimiter, failures: int) -> None:
    for _ in range(failures):
        await call(limiter, AWAY, 0.0)


RESULTS = {
    "ok": OK,
    "away": AWAY,
    "no": NO,
    "fewer": RateLimitedError("fewer"),
    "fewer soon": RateLimitedError("fewer", 0.5),
    "bad": ERRORS["bad_request"]("bad"),
    "nothing": None,
}
# What a call ends with, when it begins, what it takes, and when it is cancelled.
steps = st.tuples(st.sampled_from(sorted(RESULTS)), st.floats(0, 3), st.floats(0, 3), st.none() | st.floats(0, 5))


class TestLimiter:
    @virtually
    async def test_permits_are_granted_in_order_and_answers_raise_their_number(self) -> None:
        limiter = make_limiter(2)
        assert await calls(6, limiter) == [0, 0, 1, 1, 2, 2]
        many, began = make_limiter(128), now()
        assert many.limit == 64
        await calls(300, many, seconds=0.01)
        # Without answers the limit would double after 0.2 s.
        assert (many.limit, now() - began < 0.2) == (128, True)

    @virtually
    async def test_a_waiter_that_is_cancelled_as_its_permit_comes_passes_it_on(self) -> None:
        limiter = make_limiter(1)
        first = await limiter.acquire()
        cancelled, second = (start(limiter.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        limiter.release(first, OK)
        cancelled.cancel()
        await asyncio.wait([cancelled, second], timeout=1.0)
        assert (cancelled.cancelled(), second.done(), limiter.in_flight) == (True, True, 1)

    @virtually
    async def test_waiting_calls_are_refused_and_told_why_when_the_gate_closes(self) -> None:
        fewer = "the endpoint asks for fewer requests"
        for result, note, reason, seconds in ((NO, "no", "judge_rejected", 1.0), (FEWER, fewer, "rate_limited", 30.0)):
            diary = Diary()
            limiter, began = make_limiter(1, diary=diary), now()
            first = start(call(limiter, result))
            await asyncio.sleep(0)
            others = await calls(3, limiter)
            assert now() == began + 1
            others += await calls(1, limiter)
            told = {(str(error), error.reason, error.retry_after_s, error.was_asked) for error in others}
            assert told == {(note, reason, seconds, False)}
            await first
            assert (limiter.circuit_open, limiter.blocked_for_s) == (result is NO, seconds)
            assert diary.events == ([("opened no", 1.0)] if result is NO else [("waits fewer", 30.0)])

    @virtually
    async def test_a_short_pause_is_waited_for_and_one_call_goes_first(self) -> None:
        diary = Diary()
        limiter = make_limiter(4, diary=diary)
        await call(limiter, RateLimitedError("fewer", 3.0))
        assert diary.events == [("waits fewer", 3.0)]
        assert await calls(4, limiter) == [4.0, 5.0, 5.2, 6.0]

    @virtually
    async def test_one_probe_after_the_other_until_one_is_answered(self) -> None:
        diary, results = Diary(), iter([AWAY, AWAY, OK, OK, OK])
        limiter = await away(diary=diary)

        async def probing() -> float:
            taken = await limiter.acquire()
            await asyncio.sleep(0.5)
            limiter.release(taken, next(results))
            return taken.began

        begun = sorted(await asyncio.gather(*(probing() for _ in range(5))))
        assert begun[:3] == [1.0, 1.5 + 2, 4.0 + 4]
        assert all(at >= 8.5 for at in begun[3:])
        assert [event for event in diary.events if "waits" not in event[0]] == [("opened away", 1.0), ("closed", 8.5)]

    @virtually
    async def test_a_call_with_little_patience_fails_early_in_an_outage(self) -> None:
        limiter = await away(5.0)
        outcomes = await calls(4, limiter, AWAY, 0.0)
        assert now() == 3.0, "1 s, then 2 s; the next 4 s are too many"
        assert outcomes[:2] == [1.0, 3.0]
        assert all(isinstance(error, ModelUnavailableError) for error in outcomes[2:])
        assert limiter.blocked_for_s == 4.0

    @virtually
    async def test_a_probe_that_hangs_does_not_hide_for_long_that_the_endpoint_is_back(self) -> None:
        for result in (AWAY, OK):
            diary = Diary()
            limiter, began = await away(most=64, diary=diary), now()
            hung, another = await limiter.acquire(), await limiter.acquire()
            assert (hung.began - began, hung.is_probe) == (1.0, True)
            assert another.began - began == 16.0, "another one, as the first has no answer"
            limiter.release(another, OK)
            assert not limiter.circuit_open
            await calls(40, limiter)
            limit, events = limiter.limit, list(diary.events)
            assert limit > 1
            limiter.release(hung, result)
            state = (limiter.limit, limiter.circuit_open, limiter.blocked_for_s, diary.events)
            assert state == (limit, False, 0.0, events), "what hung then says nothing of now"

    @virtually
    async def test_for_how_long_it_has_been_open_is_known_once_a_call_has_ended(self) -> None:
        limiter = make_limiter(1)
        assert limiter.open_for_s is None
        under_way = await limiter.acquire()
        assert limiter.open_for_s is None
        limiter.release(under_way, None)
        assert limiter.open_for_s is None, "what was broken off says nothing"
        await call(limiter)
        assert limiter.open_for_s == 0.0
        for _ in range(4):
            await call(limiter, NO)
        assert not limiter.circuit_open, "its key was accepted before: a refusal says nothing of the others"
        await call(limiter, NO)
        assert (limiter.open_for_s, limiter.circuit_open) == (0.0, True)
        await asyncio.sleep(0.5)
        assert limiter.open_for_s == 0.5
        await asyncio.sleep(2.5)
        await call(limiter, NO)
        assert (limiter.open_for_s, limiter.circuit_open) == (4.0, True), (
            "since it opened, and not since the last probe"
        )
        await asyncio.sleep(2)
        await call(limiter)
        assert (limiter.open_for_s, limiter.circuit_open) == (0.0, False)
        other = make_limiter()
        await call(other, AWAY)
        assert other.open_for_s == 0.0, "a failure is word enough of an endpoint"

    @virtually
    async def test_after_the_shutdown_no_call_begins_or_waits(self) -> None:
        limiter = make_limiter(1)
        under_way = await limiter.acquire()
        waiting = start(limiter.acquire())
        await asyncio.sleep(1)
        limiter.close()
        with pytest.raises(ModelUnavailableError) as turned_away:
            await waiting
        assert not turned_away.value.was_asked
        limiter.release(under_way, OK)
        with pytest.raises(ModelUnavailableError):
            await limiter.acquire()
        assert now() == 1.0

    @virtually
    async def test_a_probe_that_is_broken_off_gives_the_next_its_turn(self) -> None:
        limiter = make_limiter(4)
        await call(limiter, RateLimitedError("fewer", 1.0))
        taken = await limiter.acquire()
        assert taken.is_probe
        waiting = start(limiter.acquire())
        await asyncio.sleep(0)
        limiter.release(taken, None)
        assert (await waiting).is_probe

    @virtually
    async def test_another_answer_than_the_wanted_is_an_answer_and_so_is_a_rate_limit_to_a_probe(self) -> None:
        limiter = await away()
        await call(limiter, FEWER)
        assert (limiter.circuit_open, limiter.blocked_for_s) == (False, 30.0)
        limiter = make_limiter(4)
        await outage(limiter, 9)
        await call(limiter, ERRORS["bad_request"]("bad"), 0.0)
        await outage(limiter, 9)
        assert not limiter.circuit_open

    @virtually
    async def test_long_pauses_and_used_up_quotas_turn_away_and_short_ones_are_waited_for(self) -> None:
        for result, seconds in (
            (ModelUnavailableError("busy", 40.0), 40.0),
            (ChatResponse("yes", quota=Quota(Window(0, 300.0), None)), 300.0),
        ):
            limiter = make_limiter(8)
            await call(limiter, result, 0.0)
            assert limiter.blocked_for_s == seconds
            with pytest.raises(RateLimitedError):
                await limiter.acquire()
        limiter = make_limiter(8)
        await call(limiter, ChatResponse("yes", quota=Quota(Window(2, 3.0), None)), 0.0)
        assert await calls(4, limiter) == [0, 0, 3, 3]

    @virtually
    async def test_calls_begun_before_the_opening_do_not_reopen_the_circuit(self) -> None:
        limiter = make_limiter(64)
        slow = start(calls(30, limiter, ERRORS["timeout"]("slow"), 20.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(30):
            assert not limiter.circuit_open, "the older calls may be answered"
            await call(limiter, ERRORS["judge_rejected"]("no"), 0.0)
        assert limiter.circuit_open
        await asyncio.sleep(1)
        await call(limiter)
        assert not limiter.circuit_open
        await slow
        assert not limiter.circuit_open

    def test_serves_one_event_loop_after_the_other(self) -> None:
        limiter = EndpointLimiter(1, events=Diary())

        async def broken_off() -> None:
            taken = await limiter.acquire()
            waiting = start(limiter.acquire())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            limiter.release(taken, OK)

        asyncio.run(broken_off())
        begun = asyncio.run(calls(5, limiter, seconds=0))
        assert [type(each) for each in begun] == [float] * 5
        assert (len(limiter._waiters), limiter.in_flight) == (0, 0)  # a waiter of an ended loop is seen nowhere else

    @settings(deadline=None, max_examples=100)
    @given(st.lists(steps, max_size=60), st.integers(1, 70))
    @virtually
    async def test_no_permit_is_lost(self, plan: list[tuple[str, float, float, float | None]], most: int) -> None:
        limiter, highest = make_limiter(most), 0

        async def client(result: str, begins: float, takes: float) -> None:
            nonlocal highest
            await asyncio.sleep(begins)
            taken = await limiter.acquire()
            highest = max(highest, limiter.in_flight)
            try:
                await asyncio.sleep(takes)
            except asyncio.CancelledError:
                limiter.release(taken, None)
                raise
            limiter.release(taken, RESULTS[result])

        tasks = []
        for result, begins, takes, cancelled_at in plan:
            tasks.append(start(client(result, begins, takes)))
            if cancelled_at is not None:
                asyncio.get_running_loop().call_later(cancelled_at, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        # A waiter or a probe that is left over would show in calls alone.
        assert (len(limiter._waiters), limiter.in_flight, limiter._probe) == (0, 0, None)
        assert highest <= most
        await asyncio.sleep(60)
        assert limiter.blocked_for_s == 0
        await call(limiter)
        assert all(isinstance(began, float) for began in await calls(30, limiter, seconds=0.1))
        assert not limiter.circuit_open

    @virtually
    async def test_a_rate_limited_call_among_answered_ones_holds_nobody_else_back(self) -> None:
        limiter = make_limiter(8)
        await calls(8, limiter)
        slow = [start(call(limiter, OK, 10.0)) for _ in range(7)]
        await asyncio.sleep(0)
        began = now()
        await call(limiter, FEWER, 0.5)
        assert (limiter.blocked_for_s, limiter.limit) == (0.0, 8)
        # Until an answer shows whom it was meant for, one place stays empty; not for longer than a second.
        assert await call(limiter, OK, 0.1) == began + 1.5
        assert await call(limiter, OK, 0.1) == began + 1.6
        await asyncio.gather(*slow)

    @virtually
    async def test_a_limit_that_turns_away_most_calls_holds_all_back(self) -> None:
        row = make_limiter(48)
        await calls(48, row)
        outcomes = await calls(200, row, FEWER)
        assert sum(isinstance(outcome, float) for outcome in outcomes) == 48, "no call begins while only refusals come"
        assert 29.0 < row.blocked_for_s <= 30.0
        assert row.limit == 1
        share, made = make_limiter(8), 0
        await calls(8, share)
        while share.blocked_for_s == 0:
            made += 1
            assert made < 300, "nine of ten calls are turned away"
            await call(share, OK if made % 10 == 0 else RateLimitedError("fewer"), 0.01)

    @virtually
    async def test_rate_limits_by_chance_never_hold_all_back(self) -> None:
        draw, limiter = random.Random(3), make_limiter(32)

        async def caller() -> None:
            for _ in range(100):
                result: ChatResponse | ModelError = RateLimitedError("fewer", 1.0) if draw.random() < 0.25 else OK
                await call(limiter, result, draw.uniform(0.5, 1.5))

        await call(limiter)
        await asyncio.gather(*(caller() for _ in range(40)))
        assert (limiter.blocked_for_s, limiter.limit) == (0.0, 32)
        assert now() < 1.2 * 40 * 100 / 32, "and they cost little time"

    @virtually
    async def test_refusals_count_once_an_answer_came_since_the_last(self) -> None:
        limiter = make_limiter(4)
        await asyncio.sleep(1)
        assert limiter.count_refusal(NO, Refusals()) == Refusals(), "who answers nobody refuses nobody alone"
        await call(limiter)
        first = limiter.count_refusal(NO, Refusals())
        assert first == Refusals(1, 2.0)
        assert limiter.count_refusal(NO, first) == first
        await call(limiter)
        assert limiter.count_refusal(NO, first) == Refusals(2, 3.0)
        assert limiter.count_refusal(AWAY, first) == first

    @virtually
    async def test_a_key_that_is_taken_away_holds_calls_back_until_those_in_flight_have_ended(self) -> None:
        limiter = make_limiter(48)
        await call(limiter)
        older = [start(call(limiter, OK, 0.5)) for _ in range(30)]
        await asyncio.sleep(0)
        for _ in range(5):
            await call(limiter, NO, 0.0)
        assert (limiter.circuit_open, now()) == (False, 1.0)
        ended = await calls(40, limiter, NO, 0.1)
        await asyncio.gather(*older)
        # One begins when the older calls were answered, and its refusal is the last needed.
        assert [began for began in ended if isinstance(began, float)] == [1.5]
