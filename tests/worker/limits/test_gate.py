"""The gate of an endpoint, in virtual time: who may call, who waits, who is turned away, and no place is ever lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_time import run_virtually

from judges.models.model import (
    BadModelRequestError,
    ChatResponse,
    ModelError,
    ModelRejectedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.models.quota import Quota, Window
from worker.limits.gate import Gate
from worker.limits.timing import Timing

OK = ChatResponse("yes")
AWAY = ModelUnavailableError("away")
NO = ModelRejectedError("no")


class Diary:
    def __init__(self) -> None:
        self.events = list[tuple[str, float]]()

    def opened(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"opened {error}", seconds))

    def closed(self, seconds: float) -> None:
        self.events.append(("closed", seconds))

    def waits(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"waits {error}", seconds))


def gate(most: int = 4, patience_s: float = 5.0, diary: Diary | None = None) -> Gate:
    loop = asyncio.get_running_loop()
    timing = Timing(loop.time, loop.time, lambda _low, high: high)
    return Gate("m", most, patience_s=patience_s, timing=timing, witness=diary or Diary())


def now() -> float:
    return asyncio.get_running_loop().time()


async def call(one: Gate, result: ChatResponse | ModelError = OK, seconds: float = 1.0) -> float:
    """Make one call, and tell when it began."""
    taken = await one.enter()
    await asyncio.sleep(seconds)
    one.leave(taken, result)
    return taken.began


def test_who_asks_first_is_first() -> None:
    async def run() -> None:
        one = gate(2)
        assert await asyncio.gather(*(call(one) for _ in range(6))) == [0, 0, 1, 1, 2, 2]
        assert one.waiting == 0

    run_virtually(run())


def test_a_rejection_closes_it_for_all_and_names_the_cause() -> None:
    async def run() -> None:
        diary = Diary()
        one = gate(1, diary=diary)
        first = asyncio.ensure_future(call(one, NO))
        await asyncio.sleep(0)
        others = await asyncio.gather(*(call(one) for _ in range(3)), return_exceptions=True)
        await first
        assert [type(error) for error in others] == [ModelRejectedError] * 3
        assert (one.circuit_open, one.closed_for_s) == (True, 1.0)
        with pytest.raises(ModelRejectedError, match="no") as caught:
            await one.enter()
        assert (caught.value.retry_after_s, caught.value.was_asked) == (1.0, False)
        assert diary.events == [("opened no", 1.0)]

    run_virtually(run())


def test_those_who_wait_are_turned_away_at_the_moment_it_closes() -> None:
    async def run() -> None:
        one = gate(1)
        first = asyncio.ensure_future(call(one, RateLimitedError("fewer", 30.0)))
        await asyncio.sleep(0)
        others = await asyncio.gather(*(call(one) for _ in range(3)), return_exceptions=True)
        assert now() == 1.0
        assert [(str(error), error.reason, error.retry_after_s) for error in others] == [  # type: ignore[union-attr]
            ("the endpoint asks for fewer requests", "rate_limited", 30.0)
        ] * 3
        await first
        assert not one.circuit_open
        assert one.closed_for_s == 30.0

    run_virtually(run())


def test_a_short_pause_is_waited_for_and_one_call_goes_first() -> None:
    async def run() -> None:
        one = gate(4)
        await call(one, RateLimitedError("fewer", 3.0))
        assert await asyncio.gather(*(call(one) for _ in range(4))) == [4.0, 5.0, 5.2, 6.0]

    run_virtually(run())


def test_one_probe_after_the_other_until_one_is_answered() -> None:
    async def run() -> None:
        diary = Diary()
        one = gate(4, patience_s=60, diary=diary)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        assert one.circuit_open
        results = iter([AWAY, AWAY, OK, OK, OK])

        async def probing() -> float:
            taken = await one.enter()
            await asyncio.sleep(0.5)
            one.leave(taken, next(results))
            return taken.began

        begun = sorted(await asyncio.gather(*(probing() for _ in range(5))))
        assert begun[:3] == [1.0, 1.5 + 2, 4.0 + 4]
        assert all(at >= 8.5 for at in begun[3:])
        assert [event for event in diary.events if "waits" not in event[0]] == [("opened away", 1.0), ("closed", 8.5)]

    run_virtually(run())


def test_who_is_impatient_does_not_wait_for_an_outage_step_by_step() -> None:
    async def run() -> None:
        one = gate(4, patience_s=5.0)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        ended = [asyncio.ensure_future(call(one, AWAY, 0.0)) for _ in range(4)]
        found = await asyncio.gather(*ended, return_exceptions=True)
        assert now() == 3.0, "1 s, then 2 s; the next 4 s are too many"
        assert found[:2] == [1.0, 3.0]
        assert all(isinstance(error, ModelUnavailableError) for error in found[2:])
        assert one.closed_for_s == 4.0

    run_virtually(run())


def test_a_probe_that_hangs_does_not_hide_for_long_that_the_endpoint_is_back() -> None:
    async def run() -> None:
        one = gate(4, patience_s=60)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        hung = await one.enter()
        assert (hung.began, hung.is_probe) == (1.0, True)
        assert await call(one) == 16.0, "another one, as the first has no answer"
        assert not one.circuit_open
        one.leave(hung, AWAY)
        assert not one.circuit_open, "what hung then says nothing of now"

    run_virtually(run())


def test_a_probe_that_is_answered_after_another_changes_nothing() -> None:
    async def run() -> None:
        diary = Diary()
        one = gate(64, patience_s=60, diary=diary)
        for _ in range(10):
            await call(one, AWAY, 0.0)
        hung = await one.enter()
        await call(one)
        await asyncio.gather(*(call(one) for _ in range(40)))
        limit, events = one.limit, list(diary.events)
        assert limit > 1
        one.leave(hung, OK)
        assert (one.limit, one.circuit_open, one.closed_for_s, diary.events) == (limit, False, 0.0, events)

    run_virtually(run())


def test_for_how_long_it_has_been_open_is_known_once_a_call_has_ended() -> None:
    async def run() -> None:
        one = gate(1)
        assert one.open_for_s is None
        under_way = await one.enter()
        assert one.open_for_s is None
        one.leave(under_way, None)
        assert one.open_for_s is None, "what was broken off says nothing"
        await call(one)
        assert one.open_for_s == 0.0
        await call(one, NO)
        assert one.open_for_s == 0.0
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
        one = gate()
        await call(one, AWAY)
        assert one.open_for_s == 0.0

    run_virtually(run())


def test_once_it_is_shut_no_call_begins_and_nobody_waits() -> None:
    async def run() -> None:
        one = gate(1)
        under_way = await one.enter()
        waiting = asyncio.ensure_future(one.enter())
        await asyncio.sleep(1)
        one.shut()
        with pytest.raises(ModelUnavailableError) as turned_away:
            await waiting
        assert not turned_away.value.was_asked
        one.leave(under_way, OK)
        with pytest.raises(ModelUnavailableError):
            await one.enter()
        assert now() == 1.0

    run_virtually(run())


def test_a_probe_that_is_broken_off_gives_the_next_its_turn() -> None:
    async def run() -> None:
        one = gate(4)
        await call(one, RateLimitedError("fewer", 1.0))
        taken = await one.enter()
        assert taken.is_probe
        waiting = asyncio.ensure_future(one.enter())
        await asyncio.sleep(0)
        one.leave(taken, None)
        assert (await waiting).is_probe

    run_virtually(run())


def test_another_answer_than_the_wanted_is_an_answer() -> None:
    async def run() -> None:
        one = gate(4)
        for _ in range(9):
            await call(one, AWAY, 0.0)
        await call(one, BadModelRequestError("bad"), 0.0)
        for _ in range(9):
            await call(one, AWAY, 0.0)
        assert not one.circuit_open

    run_virtually(run())


def test_a_pause_that_a_failing_endpoint_asks_for_is_kept_too() -> None:
    async def run() -> None:
        one = gate(4)
        await call(one, ModelUnavailableError("busy", 40.0), 0.0)
        assert one.closed_for_s == 40.0
        with pytest.raises(ModelError):
            await one.enter()

    run_virtually(run())


def test_a_quota_that_is_used_up_is_waited_for() -> None:
    async def run() -> None:
        one = gate(8)
        told = ChatResponse("yes", quota=Quota(Window(2, 3.0), None))
        await call(one, told, 0.0)
        assert await asyncio.gather(*(call(one) for _ in range(4))) == [0, 0, 3, 3]

    run_virtually(run())


def test_a_quota_that_stays_used_up_turns_away() -> None:
    async def run() -> None:
        one = gate(8)
        await call(one, ChatResponse("yes", quota=Quota(Window(0, 300.0), None)), 0.0)
        assert one.closed_for_s == 300.0
        with pytest.raises(RateLimitedError):
            await one.enter()

    run_virtually(run())


def test_what_began_before_it_opened_does_not_matter_after_it_closed() -> None:
    async def run() -> None:
        one = gate(64)
        slow = [asyncio.ensure_future(call(one, ModelTimeoutError("slow"), 20.0)) for _ in range(30)]
        await asyncio.sleep(0)
        await call(one, NO, 0.0)
        await asyncio.sleep(1)
        await call(one)
        assert not one.circuit_open
        await asyncio.gather(*slow)
        assert not one.circuit_open

    run_virtually(run())


def test_serves_one_event_loop_after_the_other() -> None:
    one = Gate("m", 1, witness=Diary())

    async def broken_off() -> None:
        taken = await one.enter()
        waiting = asyncio.ensure_future(one.enter())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        one.leave(taken, OK)

    async def together() -> None:
        await asyncio.gather(*(call(one, seconds=0) for _ in range(5)))

    asyncio.run(broken_off())
    asyncio.run(together())
    assert (one.waiting, one._in_flight) == (0, 0)


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
def test_no_place_is_lost_whatever_happens(plan: list[tuple[str, float, float, float | None]], most: int) -> None:
    async def run() -> None:
        one, highest = gate(most), 0

        async def client(result: str, begins: float, takes: float) -> None:
            nonlocal highest
            await asyncio.sleep(begins)
            taken = await one.enter()
            highest = max(highest, one._in_flight)
            try:
                await asyncio.sleep(takes)
            except asyncio.CancelledError:
                one.leave(taken, None)
                raise
            one.leave(taken, RESULTS[result])

        tasks = []
        for result, begins, takes, cancelled_at in plan:
            tasks.append(asyncio.ensure_future(client(result, begins, takes)))
            if cancelled_at is not None:
                asyncio.get_running_loop().call_later(cancelled_at, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (one.waiting, one._in_flight, one._probe) == (0, 0, None)
        assert highest <= most
        await asyncio.sleep(60)
        assert one.closed_for_s == 0
        await call(one)
        assert await asyncio.gather(*(call(one, seconds=0.1) for _ in range(30)))
        assert not one.circuit_open

    run_virtually(run())
