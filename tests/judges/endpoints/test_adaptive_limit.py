"""The limit finds what an endpoint bears: simulated endpoints, in virtual time."""

import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_simulation import Batching, Ended, Queueing, RateLimiter, Simulation, Steady, lognormal, simulate

from judges.endpoints.concurrency import AdaptiveLimit

MOST: Final = 1000
seeds = pytest.mark.parametrize("seed", range(4))


def test_begins_at_64_or_below_at_its_bound() -> None:
    assert [AdaptiveLimit(most).limit for most in (1, 7, 64, 65, 5000)] == [1, 7, 64, 64, 64]


def test_an_endpoint_that_takes_seconds_is_used_to_the_full_within_one() -> None:
    seen = simulate(AdaptiveLimit(MOST), Steady(lambda _: 2.0), 60)
    assert seen.limit(1) == MOST
    assert seen.rate(10, 60) == pytest.approx(500, rel=0.03)


@seeds
def test_latencies_of_much_variance_do_not_hold_it_down(seed: int) -> None:
    latency = lognormal(2.0, 0.7, random.Random(seed))
    seen = simulate(AdaptiveLimit(MOST), Steady(lambda _: latency()), 120)
    assert min(seen.between(60, 120)) >= 700
    assert seen.rate(60, 120) >= 0.95 * 500


@seeds
@pytest.mark.parametrize(("places", "service_s"), [(32, 0.05), (100, 1.0), (200, 2.0)])
@pytest.mark.parametrize("kind", ["queueing", "batching"])
def test_settles_near_the_knee_and_keeps_the_throughput(kind: str, places: int, service_s: float, seed: int) -> None:
    latency = lognormal(service_s, 0.7, random.Random(seed))
    server = Queueing(places, latency) if kind == "queueing" else Batching(places, latency)
    seconds = max(60, 300 * service_s)
    seen = simulate(AdaptiveLimit(MOST), server, seconds)
    assert seen.rate(seconds / 2, seconds) >= 0.85 * places / service_s
    assert max(seen.between(seconds * 0.8, seconds)) <= 3 * places


def test_an_endpoint_that_was_flooded_by_doubling_is_given_less() -> None:
    seen = simulate(AdaptiveLimit(MOST), Queueing(100, lambda: 1.0), 200)
    assert seen.limit(1) == MOST
    assert max(seen.between(150, 200)) <= 300
    assert seen.rate(150, 200) >= 95


def test_a_latency_ten_times_as_long_for_a_minute_is_survived() -> None:
    seen = simulate(AdaptiveLimit(MOST), Steady(lambda now: 20.0 if 60 < now < 120 else 2.0), 240)
    assert min(seen.between(60, 120)) >= 250
    assert seen.limit(200) == MOST
    assert seen.rate(180, 240) >= 0.95 * 500


def test_a_lasting_change_of_latency_becomes_the_usual() -> None:
    seen = simulate(AdaptiveLimit(256), Steady(lambda now: 1.0 if now < 60 else 5.0), 400)
    assert seen.limit(400) == 256


def test_timeouts_halve_it_and_no_more_than_once_for_those_under_way() -> None:
    limit = AdaptiveLimit(64)
    for number in range(9):
        limit.record_failure(number, 64, 1.0, contended=True)
    assert limit.limit == 64
    # Fewer than ten failures are no proof of overload.
    limit.record_failure(9, 64, 1.0, contended=True)
    assert limit.limit == 32
    for number in range(10, 64):
        limit.record_failure(number, 64, 1.0, contended=True)
    assert limit.limit == 32


def test_of_many_refused_together_one_counts() -> None:
    limit = AdaptiveLimit(64)
    for number in range(64):
        limit.record_refusal(number, 64)
    assert limit.limit == 32
    limit.record_refusal(64, 65)
    assert limit.limit == 16


@seeds
def test_failures_by_chance_do_not_bring_it_down(seed: int) -> None:
    """What fails at any limit is no overload."""
    draw = random.Random(seed)

    class Flaky:
        def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
            return Ended(now + 0.05, "failed") if draw.random() < 0.3 else Ended(now + 2.0)

    seen = simulate(AdaptiveLimit(256), Flaky(), 300)
    assert min(seen.between(0, 300)) >= 8
    assert min(seen.between(200, 300)) >= 64


def test_hanging_calls_among_good_ones_do_not_bring_it_down() -> None:
    draw = random.Random(1)

    class Hanging:
        def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
            return Ended(now + 60, "failed") if draw.random() < 0.02 else Ended(now + 2.0)

    assert min(simulate(AdaptiveLimit(MOST), Hanging(), 300).between(0, 300)) >= 64


def test_a_rate_limiter_is_not_flooded() -> None:
    seen = simulate(AdaptiveLimit(MOST), RateLimiter(50, 50, 2.0), 300)
    assert max(seen.between(60, 300)) <= 200
    assert seen.rate(60, 300) >= 5


def test_a_limit_that_callers_wait_for_at_most_half_of_the_time_does_not_grow() -> None:
    for every in (20_000, 2):
        limit = AdaptiveLimit(MOST)
        for number in range(10_000):
            limit.record_answer(number, number + 1, 1.0, float(number), contended=number % every == 1)
        assert limit.limit == 64, f"waited for at the end of one call in {every}"


def test_few_failures_among_many_answers_do_not_lower_it() -> None:
    limit = AdaptiveLimit(512)
    limit.record_demand(0.0)
    for seconds in range(1, 4):
        limit.tick(64, float(seconds))
    assert limit.limit == 512
    for number in range(200):
        limit.record_answer(number, number + 512, 2.0, 4.0, contended=True)
    for number in range(200, 220):
        limit.record_failure(number, number + 512, 4.0, contended=True)
    assert limit.limit == 512


def test_the_limit_restarts_at_one_and_climbs_to_half_of_its_former_value() -> None:
    simulation = Simulation(AdaptiveLimit(MOST), Steady(lambda _: 1.0))
    simulation.run(30)
    simulation.restart()
    assert simulation.limit.limit == 1
    assert simulation.run(3).limit(simulation.now) >= 500
    simulation.restart()
    simulation.restart()
    assert simulation.run(3).limit(simulation.now) >= 250, "a climb that is broken off keeps its goal"


events = st.lists(
    st.tuples(
        st.sampled_from(["ok", "failed", "refused", "restart", "tick"]),
        st.floats(0, 100),
        st.integers(0, 80),
        st.booleans(),
    ),
    max_size=400,
)


@settings(deadline=None)
@given(st.integers(1, 300), events)
def test_is_never_below_one_nor_above_its_bound(most: int, happened: list[tuple[str, float, int, bool]]) -> None:
    limit, now, begun = AdaptiveLimit(most), 0.0, 100
    for what, seconds, back, wanted in happened:
        now += seconds / 100
        begun += 1
        number = max(0, begun - back)
        if what == "ok":
            limit.record_answer(number, begun, seconds, now, contended=wanted)
        elif what == "failed":
            limit.record_failure(number, begun, now, contended=wanted)
        elif what == "refused":
            limit.record_refusal(number, begun)
        elif what == "restart":
            limit.restart(begun)
        else:
            limit.record_demand(now)
            limit.tick(begun, now + seconds)
        assert 1 <= limit.limit <= most


def test_at_one_it_tries_to_grow() -> None:
    limit = AdaptiveLimit(64)
    for _ in range(10):
        limit.record_refusal(0, 0)
    simulation = Simulation(limit, Steady(lambda _: 0.1))
    assert simulation.run(120).limit(120) == 64


def test_a_lowered_limit_that_does_not_help_is_undone() -> None:
    draw = random.Random(1)

    class Unsteady:
        """Fails with one call in four, however many there are."""

        def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
            return Ended(now + 0.2, "failed" if draw.random() < 0.25 else "ok")

    seen = simulate(AdaptiveLimit(256), Unsteady(), 60)
    assert seen.rate(5, 60) >= 0.5 * 256 / 0.2 * 0.75


def test_two_lowerings_that_do_not_help_are_undone_together() -> None:
    limit = AdaptiveLimit(64)
    number = 0

    def end(answers: int, failures: int) -> None:
        nonlocal number
        for index in range(answers + failures):
            if index < answers:
                limit.record_answer(number, number + limit.limit, 0.2, 1.0, contended=True)
            else:
                limit.record_failure(number, number + limit.limit, 1.0, contended=True)
            number += 1

    end(30, 10)
    assert limit.limit == 32
    number += 64
    end(16, 10)
    assert limit.limit == 16
    number += 32
    # 16 calls in flight bring 72 answers/s, 64 brought 240.
    end(36, 4)
    assert limit.limit == 64
