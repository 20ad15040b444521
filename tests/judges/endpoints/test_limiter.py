"""The limiter of an endpoint, in virtual time: who may call, who waits, who is turned away; no permit is ever lost."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_time import run_virtually

from judges.core.model import (
    BadModelRequestError,
    ChatResponse,
    ModelError,
    ModelRejectedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Quota,
    RateLimitedError,
    Window,
)
from judges.core.verdict import Refusals
from judges.endpoints.availability import LimiterEvents
from judges.endpoints.limiter import EndpointLimiter, LimiterClock

OK = ChatResponse("yes")
AWAY = ModelUnavailableError("away")
NO = ModelRejectedError("no")
NO.status = 401


class Diary(LimiterEvents):
    def __init__(self) -> None:
        self.events = list[tuple[str, float]]()

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"opened {error}", seconds))

    def circuit_closed(self, seconds: float) -> None:
        self.events.append(("closed", seconds))

    def calls_delayed(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"waits {error}", seconds))

    def endpoint_error(self, error: ModelError) -> None:
        self.events.append((f"said {error}", 0.0))


def limiter(most: int = 4, patience_s: float = 5.0, diary: Diary | None = None) -> EndpointLimiter:
    loop = asyncio.get_running_loop()
    timing = LimiterClock(loop.time, loop.time, lambda _low, high: high)
    return EndpointLimiter("m", most, patience_s=patience_s, clock=timing, events=diary or Diary())


def now() -> float:
    return asyncio.get_running_loop().time()


async def call(one: EndpointLimiter, result: ChatResponse | ModelError = OK, seconds: float = 1.0) -> float:
    """Make one call, and tell when it began."""
    taken = await one.acquire()
    await asyncio.sleep(seconds)
    one.release(taken, result)
    return taken.began


def test_permits_are_granted_in_order_of_requests() -> None:
    async def run() -> None:
        one = limiter(2)
        assert await asyncio.gather(*(call(one) for _ in range(6))) == [0, 0, 1, 1, 2, 2]
        assert len(one._waiters) == 0

    run_virtually(run())


def test_a_waiter_that_is_cancelled_as_its_permit_comes_passes_it_on() -> None:
    async def run() -> None:
        one = limiter(1)
        first = await one.acquire()
        cancelled, second = (asyncio.ensure_future(one.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        one.release(first, OK)
        cancelled.cancel()
        await asyncio.wait([cancelled, second], timeout=1.0)
        assert (cancelled.cancelled(), second.done(), one.in_flight) == (True, True, 1)

    run_virtually(run())


def test_answers_of_many_callers_raise_the_limit() -> None:
    async def run() -> None:
        one = limiter(128)
        assert one.limit == 64
        await asyncio.gather(*(call(one, seconds=0.01) for _ in range(300)))
        # Without answers the limit would double after 0.2 s.
        assert (one.limit, now() < 0.2) == (128, True)

    run_virtually(run())


def test_a_rejection_closes_it_for_all_and_names_the_cause() -> None:
    async def run() -> None:
        diary = Diary()
        one = limiter(1, diary=diary)
        first = asyncio.ensure_future(call(one, NO))
        await asyncio.sleep(0)
        others = await asyncio.gather(*(call(one) for _ in range(3)), return_exceptions=True)
        await first
        assert [type(error) for error in others] == [ModelRejectedError] * 3
        assert (one.circuit_open, one.blocked_for_s) == (True, 1.0)
        with pytest.raises(ModelRejectedError, match="no") as caught:
            await one.acquire()
        assert (caught.value.retry_after_s, caught.value.was_asked) == (1.0, False)
        assert diary.events == [("opened no", 1.0)]

    run_virtually(run())


def test_waiting_calls_are_refused_when_the_gate_closes() -> None:
    async def run() -> None:
        one = limiter(1)
        first = asyncio.ensure_future(call(one, RateLimitedError("fewer", 30.0)))
        await asyncio.sleep(0)
        others = await asyncio.gather(*(call(one) for _ in range(3)), return_exceptions=True)
        assert now() == 1.0
        assert [(str(error), error.reason, error.retry_after_s) for error in others] == [  # type: ignore[union-attr]
            ("the endpoint asks for fewer requests", "rate_limited", 30.0)
        ] * 3
        await first
        assert not one.circuit_open
        assert one.blocked_for_s == 30.0

    run_virtually(run())


def test_a_short_pause_is_waited_for_and_one_call_goes_first() -> None:
    async def run() -> None:
        diary = Diary()
        one = limiter(4, diary=diary)
        await call(one, RateLimitedError("fewer", 3.0))
        assert diary.events == [("waits fewer", 3.0)]
        assert await asyncio.gather(*(call(one) for _ in range(4))) == [4.0, 5.0, 5.2, 6.0]

    run_virtually(run())


def test_one_probe_after_the_other_until_one_is_answered() -> None:
    async def run() -> None:
        diary = Diary()
        one = limiter(4, patience_s=60, diary=diary)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        assert one.circuit_open
        results = iter([AWAY, AWAY, OK, OK, OK])

        async def probing() -> float:
            taken = await one.acquire()
            await asyncio.sleep(0.5)
            one.release(taken, next(results))
            return taken.began

        begun = sorted(await asyncio.gather(*(probing() for _ in range(5))))
        assert begun[:3] == [1.0, 1.5 + 2, 4.0 + 4]
        assert all(at >= 8.5 for at in begun[3:])
        assert [event for event in diary.events if "waits" not in event[0]] == [("opened away", 1.0), ("closed", 8.5)]

    run_virtually(run())


def test_a_call_with_little_patience_fails_early_in_an_outage() -> None:
    async def run() -> None:
        one = limiter(4, patience_s=5.0)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        ended = [asyncio.ensure_future(call(one, AWAY, 0.0)) for _ in range(4)]
        outcomes = await asyncio.gather(*ended, return_exceptions=True)
        assert now() == 3.0, "1 s, then 2 s; the next 4 s are too many"
        assert outcomes[:2] == [1.0, 3.0]
        assert all(isinstance(error, ModelUnavailableError) for error in outcomes[2:])
        assert one.blocked_for_s == 4.0

    run_virtually(run())


def test_a_probe_that_hangs_does_not_hide_for_long_that_the_endpoint_is_back() -> None:
    async def run() -> None:
        one = limiter(4, patience_s=60)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        hung = await one.acquire()
        assert (hung.began, hung.is_probe) == (1.0, True)
        assert await call(one) == 16.0, "another one, as the first has no answer"
        assert not one.circuit_open
        one.release(hung, AWAY)
        assert not one.circuit_open, "what hung then says nothing of now"

    run_virtually(run())


def test_a_probe_that_is_answered_after_another_changes_nothing() -> None:
    async def run() -> None:
        diary = Diary()
        one = limiter(64, patience_s=60, diary=diary)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        hung = await one.acquire()
        await call(one)
        await asyncio.gather(*(call(one) for _ in range(40)))
        limit, events = one.limit, list(diary.events)
        assert limit > 1
        one.release(hung, OK)
        assert (one.limit, one.circuit_open, one.blocked_for_s, diary.events) == (limit, False, 0.0, events)

    run_virtually(run())


def test_for_how_long_it_has_been_open_is_known_once_a_call_has_ended() -> None:
    async def run() -> None:
        one = limiter(1)
        assert one.open_for_s is None
        under_way = await one.acquire()
        assert one.open_for_s is None
        one.release(under_way, None)
        assert one.open_for_s is None, "what was broken off says nothing"
        await call(one)
        assert one.open_for_s == 0.0
        for _ in range(4):
            await call(one, NO)
        assert not one.circuit_open, "its key was accepted before: a refusal says nothing of the others"
        await call(one, NO)
        assert (one.open_for_s, one.circuit_open) == (0.0, True)
        await asyncio.sleep(0.5)
        assert one.open_for_s == 0.5
        await asyncio.sleep(2.5)
        await call(one, NO)
        assert (one.open_for_s, one.circuit_open) == (4.0, True), "since it opened, and not since the last probe"
        await asyncio.sleep(2)
        await call(one)
        assert (one.open_for_s, one.circuit_open) == (0.0, False)

    run_virtually(run())


def test_a_failure_is_word_enough_of_an_endpoint() -> None:
    async def run() -> None:
        one = limiter()
        await call(one, AWAY)
        assert one.open_for_s == 0.0

    run_virtually(run())


def test_after_the_shutdown_no_call_begins_or_waits() -> None:
    async def run() -> None:
        one = limiter(1)
        under_way = await one.acquire()
        waiting = asyncio.ensure_future(one.acquire())
        await asyncio.sleep(1)
        one.close()
        with pytest.raises(ModelUnavailableError) as turned_away:
            await waiting
        assert not turned_away.value.was_asked
        one.release(under_way, OK)
        with pytest.raises(ModelUnavailableError):
            await one.acquire()
        assert now() == 1.0

    run_virtually(run())


def test_a_probe_that_is_broken_off_gives_the_next_its_turn() -> None:
    async def run() -> None:
        one = limiter(4)
        await call(one, RateLimitedError("fewer", 1.0))
        taken = await one.acquire()
        assert taken.is_probe
        waiting = asyncio.ensure_future(one.acquire())
        await asyncio.sleep(0)
        one.release(taken, None)
        assert (await waiting).is_probe

    run_virtually(run())


def test_another_answer_than_the_wanted_is_an_answer() -> None:
    async def run() -> None:
        one = limiter(4)
        for _ in range(9):
            await call(one, AWAY, 0.0)
        await call(one, BadModelRequestError("bad"), 0.0)
        for _ in range(9):
            await call(one, AWAY, 0.0)
        assert not one.circuit_open

    run_virtually(run())


def test_a_pause_that_a_failing_endpoint_asks_for_is_kept_too() -> None:
    async def run() -> None:
        one = limiter(4)
        await call(one, ModelUnavailableError("busy", 40.0), 0.0)
        assert one.blocked_for_s == 40.0
        with pytest.raises(ModelError):
            await one.acquire()

    run_virtually(run())


def test_a_quota_that_is_used_up_is_waited_for() -> None:
    async def run() -> None:
        one = limiter(8)
        told = ChatResponse("yes", quota=Quota(Window(2, 3.0), None))
        await call(one, told, 0.0)
        assert await asyncio.gather(*(call(one) for _ in range(4))) == [0, 0, 3, 3]

    run_virtually(run())


def test_a_quota_that_stays_used_up_turns_away() -> None:
    async def run() -> None:
        one = limiter(8)
        await call(one, ChatResponse("yes", quota=Quota(Window(0, 300.0), None)), 0.0)
        assert one.blocked_for_s == 300.0
        with pytest.raises(RateLimitedError):
            await one.acquire()

    run_virtually(run())


def test_calls_begun_before_the_opening_do_not_reopen_the_circuit() -> None:
    async def run() -> None:
        one = limiter(64)
        slow = [asyncio.ensure_future(call(one, ModelTimeoutError("slow"), 20.0)) for _ in range(30)]
        await asyncio.sleep(0)
        for _ in range(30):
            assert not one.circuit_open, "the older calls may be answered"
            await call(one, NO, 0.0)
        assert one.circuit_open
        await asyncio.sleep(1)
        await call(one)
        assert not one.circuit_open
        await asyncio.gather(*slow)
        assert not one.circuit_open

    run_virtually(run())


def test_serves_one_event_loop_after_the_other() -> None:
    one = EndpointLimiter("m", 1, events=Diary())

    async def broken_off() -> None:
        taken = await one.acquire()
        waiting = asyncio.ensure_future(one.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        one.release(taken, OK)

    async def together() -> None:
        await asyncio.gather(*(call(one, seconds=0) for _ in range(5)))

    asyncio.run(broken_off())
    asyncio.run(together())
    assert (len(one._waiters), one.in_flight) == (0, 0)


RESULTS = {
    "ok": OK,
    "away": AWAY,
    "no": NO,
    "fewer": RateLimitedError("fewer"),
    "fewer soon": RateLimitedError("fewer", 0.5),
    "bad": BadModelRequestError("bad"),
    "nothing": None,
}
plans = st.lists(
    st.tuples(
        st.sampled_from(sorted(RESULTS)),
        st.floats(0, 3),  # begins at
        st.floats(0, 3),  # takes
        st.none() | st.floats(0, 5),  # is cancelled at
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(plans, st.integers(1, 70))
def test_no_permit_is_lost_after_any_steps(plan: list[tuple[str, float, float, float | None]], most: int) -> None:
    async def run() -> None:
        one, highest = limiter(most), 0

        async def client(result: str, begins: float, takes: float) -> None:
            nonlocal highest
            await asyncio.sleep(begins)
            taken = await one.acquire()
            highest = max(highest, one.in_flight)
            try:
                await asyncio.sleep(takes)
            except asyncio.CancelledError:
                one.release(taken, None)
                raise
            one.release(taken, RESULTS[result])

        tasks = []
        for result, begins, takes, cancelled_at in plan:
            tasks.append(asyncio.ensure_future(client(result, begins, takes)))
            if cancelled_at is not None:
                asyncio.get_running_loop().call_later(cancelled_at, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (len(one._waiters), one.in_flight, one._probe) == (0, 0, None)
        assert highest <= most
        await asyncio.sleep(60)
        assert one.blocked_for_s == 0
        await call(one)
        assert await asyncio.gather(*(call(one, seconds=0.1) for _ in range(30)))
        assert not one.circuit_open

    run_virtually(run())


def test_a_rate_limited_call_among_answered_ones_holds_nobody_else_back() -> None:
    async def run() -> None:
        one = limiter(8)
        await asyncio.gather(*(call(one) for _ in range(8)))
        slow = [asyncio.ensure_future(call(one, OK, 10.0)) for _ in range(7)]
        await asyncio.sleep(0)
        began = now()
        await call(one, RateLimitedError("fewer", 30.0), 0.5)
        assert (one.blocked_for_s, one.limit) == (0.0, 8)
        # Until an answer shows whom it was meant for, one place stays empty; not for longer than a second.
        assert await call(one, OK, 0.1) == began + 1.5
        assert await call(one, OK, 0.1) == began + 1.6
        await asyncio.gather(*slow)

    run_virtually(run())


def test_a_limit_that_turns_away_most_calls_holds_all_back() -> None:
    refused = RateLimitedError("fewer", 30.0)

    async def run() -> None:
        row = limiter(48)
        await asyncio.gather(*(call(row) for _ in range(48)))
        calls = [asyncio.ensure_future(call(row, refused)) for _ in range(200)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, float) for one in found) == 48, "no call begins while only refusals come"
        assert 29.0 < row.blocked_for_s <= 30.0
        assert row.limit == 1
        share = limiter(8)
        await asyncio.gather(*(call(share) for _ in range(8)))
        made = 0
        while share.blocked_for_s == 0:
            made += 1
            assert made < 300, "nine of ten calls are turned away"
            await call(share, OK if made % 10 == 0 else RateLimitedError("fewer"), 0.01)
        assert share.blocked_for_s > 0

    run_virtually(run())


def test_rate_limits_by_chance_never_hold_all_back() -> None:
    draw = random.Random(3)

    async def run() -> None:
        one = limiter(32)

        async def caller() -> None:
            for _ in range(100):
                await call(one, RateLimitedError("fewer", 1.0) if draw.random() < 0.25 else OK, draw.uniform(0.5, 1.5))

        await call(one)
        await asyncio.gather(*(caller() for _ in range(40)))
        assert (one.blocked_for_s, one.limit) == (0.0, 32)
        assert now() < 1.2 * 40 * 100 / 32, "and they cost little time"

    run_virtually(run())


def test_refusals_count_once_an_answer_came_since_the_last() -> None:
    async def run() -> None:
        one = limiter(4)
        await asyncio.sleep(1)
        assert one.count_refusal(NO, Refusals()) == Refusals(), "who answers nobody refuses nobody alone"
        await call(one)
        first = one.count_refusal(NO, Refusals())
        assert first == Refusals(1, 2.0)
        assert one.count_refusal(NO, first) == first
        await call(one)
        assert one.count_refusal(NO, first) == Refusals(2, 3.0)
        assert one.count_refusal(AWAY, first) == first

    run_virtually(run())
