"""Pages for safety judges: confirmed failures beyond what the judge's own errors explain."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final, Literal

import msgspec

RISE: Final = 0.015  # The share of unsafe traces that must be found.
_TAIL: Final = NormalDist().inv_cdf(0.95)


class Rates(msgspec.Struct, array_like=True, frozen=True):
    """Confirmed failures per judgement from the judge's errors alone, and in an incident; the limit of the sum."""

    base: float
    raised: float
    limit: float


class State(msgspec.Struct, array_like=True):
    """The state of one safety series between two buckets."""

    sum: float = 0.0
    start: int = 0  # The bucket in which the sum last left zero.
    is_paged: bool = False


def upper_rate(failures: float, judgements: float) -> float:
    """Return the one-sided upper 95 % limit of a Poisson rate (Wilson and Hilferty, PNAS 17, 1931)."""
    if judgements <= 0:
        return 0.0
    k = failures + 1
    return k * (1 - 1 / (9 * k) + _TAIL / (3 * math.sqrt(k))) ** 3 / judgements


def confirmed_error(error: float, correlation: float) -> float:
    """Return the share of safe traces that fail twice when the errors of both judgings correlate.

    The joint probability of two yes/no variables with equal shares: with a correlation of 1 the second judging confirms
    every error of the first, with 0 it multiplies.
    """
    return error * error + correlation * error * (1 - error)


def rates_of(
    *,
    declared: float,
    failures: Sequence[float],
    judgements: Sequence[float],
    per_hour: float,
    sensitivity: float = 1.0,
    series: float = 1.0,
    pages_per_month: float = 1.0,
) -> Rates:
    """Return the rates and the limit of a safety series.

    A base rate that is too low pages without end, so it is the largest of the declared error and the upper limits of
    the series' own rates; that of one week learns sooner that a judge errs more than before. The limit of the sum is
    computed as in detector.limits_of, for a month.

    Args:
        declared: the judge's share of confirmed failures on safe traces.
        failures: confirmed failures outside incidents, of the last 28 days and of the last seven.
        judgements: judgements of the same days.
        per_hour: judgements in an hour.
        sensitivity: the share of unsafe traces that fail and are confirmed.
        series: active safety series of the installation.
        pages_per_month: false pages that the installation may send in a month.
    """
    base = max(declared, *map(upper_rate, failures, judgements), 1e-6)
    raised = base + RISE * sensitivity
    information = raised - base - base * math.log(raised / base)
    hours = 730 * max(per_hour, 1 / 24) * series / pages_per_month
    # With few failures the sum jumps over its limit: as many jumps as failures, each e^(jump - limit) likely at most.
    # Three failures in a row are not enough if failures are rare.
    jump = math.log(raised / base)
    rare = min(3 * jump, math.log(hours * base) + jump)
    # The upper limit of the base rate already lowers the logarithm of the false pages by 0.7.
    return Rates(base, raised, max(jump, rare, math.log(max(hours * information, 1.0)) - 0.7))


def step(
    state: State,
    bucket: int,
    failures: float,
    judgements: float,
    rates: Rates,
    *,
    unanswered: float = 0.0,
    alone: Rates | None = None,
) -> Literal["page", "recovery"] | None:
    """Count one bucket and return what it changes; an incident pages once.

    The Poisson CUSUM of Lucas, Technometrics 27, 1985; after a page the same sum in the other direction finds the
    recovery. Each ``unanswered`` second judging has the likelihood ratio of a single failure, with the rates ``alone``.
    """
    gain = failures * math.log(rates.raised / rates.base) - (rates.raised - rates.base) * judgements
    if alone is not None:
        gain += unanswered * math.log(alone.raised / alone.base)
    if state.is_paged:
        state.sum = max(0.0, state.sum - gain)
    else:
        if state.sum <= 0:
            state.start = bucket
        state.sum = max(0.0, state.sum + gain)
    if state.sum <= rates.limit:
        return None
    state.sum, state.is_paged = 0.0, not state.is_paged
    return "page" if state.is_paged else "recovery"
