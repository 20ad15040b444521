"""The limiter of an endpoint, in virtual time: who may call, who waits, who is turned away; no permit is ever lost."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import ERRORS
from limit_simulation import OK, Diary, call, calls, make_limiter, now, rejection, virtually
from support.tables import check_golden, read_table
from support.virtual_time import run_virtually

from judges.core.model import ChatResponse, ModelError, ModelUnavailableError, Quota, RateLimitedError, Window
from judges.core.verdict import Refusals
from judges.endpoints.limiter import EndpointLimiter

AWAY = ModelUnavailableError("away")
NO = rejection()
start = asyncio.ensure_future


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


class Scene:
    """A limiter to which the steps of a table happen, and what is seen of it after each."""

    def __init__(self, most: int, patience_s: float) -> None:
        self.diary = Diary()
        self.limiter = make_limiter(most, patience_s, self.diary)
        self.under_way = list[asyncio.Task[object]]()

    async def call(self, results: Iterator[Any], seconds: float) -> object:
        """Make one call; return when it began, or what the limiter said."""
        try:
            permit = await self.limiter.acquire()
        except ModelError as error:
            return f"{error.reason} {error} {error.retry_after_s}{' asked' * error.was_asked}"
        await asyncio.sleep(seconds)
        self.limiter.release(permit, next(results))
        return round(permit.began, 3)

    async def do(self, what: str, *how: Any) -> str:
        limiter = self.limiter
        match what, how:
            case "sleep", (seconds,):
                await asyncio.sleep(seconds)
            case "close", ():
                limiter.close()
            case "end", ():
                what += await ended(self.under_way)
            case "in a row", (times, result, seconds):
                for number in range(times):
                    await self.call(results(result), seconds)
                    if limiter.circuit_open:
                        what += f", opened by the {number + 1}."
                        break
            case _, (times, result, seconds):
                drawn = results(result)
                tasks = [start(self.call(drawn, seconds)) for _ in range(times)]
                self.under_way += tasks
                await asyncio.sleep(0)
                if what == "calls":
                    what += await ended(tasks)
        held = f"blocked for {limiter.blocked_for_s:.3f} s, " if limiter.blocked_for_s else ""
        is_open = "circuit open" if limiter.circuit_open else f"{limiter.limit} places"
        return f"{now():.3f} {what}; {limiter.in_flight} in flight, {is_open}, {held}open for {limiter.open_for_s}"


async def ended(tasks: Sequence[asyncio.Task[object]]) -> str:
    runs = itertools.groupby(map(str, await asyncio.gather(*tasks)))
    return f": {', '.join(f'{began} x{len([*alike])}' for began, alike in runs)}"


def results(told: Any) -> Iterator[Any]:
    """Make what calls end with: a name, a quota, an error by reason, message and wait, or several in turn."""
    match told:
        case {"in turn": several}:
            return itertools.chain.from_iterable(itertools.islice(results(each), 1) for each in several)
        case {"quota": window}:
            return itertools.repeat(ChatResponse("yes", quota=Quota(Window(*window), None)))
        case [reason, *fields]:
            return itertools.repeat(ERRORS[reason](*fields))
    return itertools.repeat(RESULTS[told])


def test_scenes_are_those_of_the_golden_file() -> None:
    async def play(name: str, most: int, patience_s: float, steps: Sequence[Any]) -> str:
        scene = Scene(most, patience_s)
        seen = [await scene.do(*step) for step in steps]
        events = [f"  {event} {seconds}" for event, seconds in scene.diary.events if "said" not in event]
        return "\n".join((f"## {name}", *seen, *events, ""))

    scenes = [run_virtually(play(name, *row)) for name, row in read_table(__file__, "gates")["limiter"].items()]
    check_golden(Path(__file__).with_name("golden_limiter.txt"), "".join(scenes))


class TestLimiter:
    @virtually
    async def test_answers_raise_the_limit_before_its_time(self) -> None:
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
    async def test_a_probe_that_hangs_does_not_hide_for_long_that_the_endpoint_is_back(self) -> None:
        for result in (AWAY, OK):
            diary = Diary()
            limiter, began = make_limiter(64, 60.0, diary), now()
            for _ in range(10):
                await call(limiter, AWAY, 0.0)
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
    async def test_a_limit_that_turns_away_most_calls_holds_all_back(self) -> None:
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
