"""Retries: only of what may pass, later each time, and never more than the budget bears."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from judges.core.backoff import backoff_s
from judges.core.model import (
    BadModelRequestError,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.endpoints.client import Retries, RetryBudget, is_transient

AWAY = ModelUnavailableError("away")


def test_is_transient_is_true_for_rate_limits_timeouts_and_unavailability() -> None:
    kinds = [RateLimitedError, ModelTimeoutError, ModelUnavailableError]
    assert [is_transient(kind("x")) for kind in kinds] == [True] * 3
    others = [ModelRejectedError, BadModelRequestError, InputTooLongError, ContentFilteredError, ModelError]
    assert [is_transient(kind("x")) for kind in others] == [False] * 5


@given(st.integers(0, 10**9), st.integers())
def test_backoff_is_bounded(failed: int, seed: int) -> None:
    pause_s = backoff_s(failed, 0.5, 8.0, 0.75, random.Random(seed).uniform)
    assert 0.75 <= pause_s / min(8.0, 0.5 * 2 ** min(failed, 20)) <= 1


def test_backoff_doubles() -> None:
    assert [backoff_s(failed, 0.5, 8.0) for failed in range(6)] == [0.5, 1, 2, 4, 8, 8]
    assert backoff_s(5, 0.5, 8.0, 0.0, lambda low, _high: low) == 0, "full jitter"


@given(st.lists(st.booleans(), max_size=2000))
def test_the_budget_never_pays_for_more_than_was_earned_and_reserved(first: list[bool]) -> None:
    budget, attempts, paid = RetryBudget(), 0, 0
    for is_first in first:
        if is_first:
            attempts += 1
            budget.earn()
        else:
            paid += budget.spend()
        assert paid <= 20 + 0.25 * attempts


def test_the_retry_budget_is_bounded() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(1000)) == 100


def test_an_outage_costs_the_reserve_and_a_quarter() -> None:
    retries = Retries(draw=lambda _low, high: high)
    again = 0
    for _ in range(1000):
        retries.record_first_attempt()
        again += retries.pause_s(AWAY, 1) is not None
    assert again == 20 + 250


def test_four_attempts_at_most() -> None:
    retries = Retries(draw=lambda _low, high: high)
    assert [retries.pause_s(AWAY, failed) for failed in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, None]


@each_case("kind", [ModelRejectedError, BadModelRequestError, InputTooLongError, ContentFilteredError])
def test_a_permanent_error_is_not_retried(kind: type[ModelError]) -> None:
    assert Retries().pause_s(kind("x"), 1) is None


def test_a_rate_limit_costs_attempts_and_no_budget() -> None:
    retries = Retries(budget=RetryBudget(reserve=0))
    closed = [retries.pause_s(RateLimitedError("x"), failed, is_blocked=True) for failed in (1, 2, 3, 4)]
    assert closed == [0.0, 0.0, 0.0, None], "the limiter's pause is long enough"
    alone = [retries.pause_s(RateLimitedError("x", 3.0), failed) for failed in (1, 2, 3, 4)]
    assert alone == [3.0, 3.0, 3.0, None], "as long as the endpoint says"
    assert retries.pause_s(AWAY, 1) is None
