"""Shares of verdicts in arrays, by the estimators of the monitor: for notebooks and the release gate, without Redis."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal

from judges.agreement.cascade import CascadeSums, ClassKey, class_key, estimate_cascade
from judges.agreement.shares import ShareEstimate, Sums, design_effect, estimate_share

SecondOutcome = Literal["pass", "fail", "refused", "waiting"]
_MAX_WEIGHT: Final = 1e9
_OUTCOMES: Final = (None, "pass", "fail", "refused", "waiting")


def pass_share(
    passed: Iterable[bool | None],
    *,
    weight: Iterable[float] | None = None,
    session: Iterable[Hashable] | None = None,
) -> ShareEstimate | None:
    """Return the share of verdicts that pass, as the monitor, the report and the board compute it.

    Args:
        passed: Of each verdict whether it passes; None for one that was asked for and not given.
        weight: 1 / probability of being judged; 1 unless given.
        session: The conversation of each verdict, None for one without; each is its own unless given.

    Returns:
        The share with its interval; None without a verdict that passes or fails.

    Raises:
        ValueError: Arguments of different lengths, or a value out of its range; the text names argument and index.
    """
    verdicts = _checked("passed", passed, None, (True, False, None).__contains__, "True, False or None")
    count = len(verdicts)
    return estimate_share(fold(verdicts, _weights(weight, count), _names("session", session, count)))


def cascade_share(
    first: Iterable[float],
    chosen: Iterable[float],
    outcome: Iterable[SecondOutcome | None],
    *,
    weight: Iterable[float] | None = None,
    hour: Iterable[Hashable] | None = None,
    session: Iterable[Hashable] | None = None,
) -> ShareEstimate | None:
    """Return the share that the second model of a cascade would find on all traces, as the monitor computes it.

    Args:
        first: Of each first verdict the probability of a pass by the first model.
        chosen: The probability with which its second judging was drawn.
        outcome: None if it was not drawn, `pass`, `fail`, `refused` (answered without a usable score) or `waiting`.
        weight: 1 / probability of being judged the first time; 1 unless given.
        hour: The hour of each first verdict, by which hours without the second model are found; one unless given.
        session: The conversation of each first verdict, only where these are drawn by conversation.

    Returns:
        The share with its interval; None with fewer than ten second verdicts, unless more than a tenth of ten second
        judgings is unknown: then it is not known, and the limits are what the unknown ones allow.

    Raises:
        ValueError: Arguments of different lengths, or a value out of its range; the text names argument and index.
    """
    probabilities = _checked("first", first, None, lambda value: 0 <= value <= 1, "from 0 to 1")
    count = len(probabilities)
    rates = _checked("chosen", chosen, count, lambda value: 1 / _MAX_WEIGHT <= value <= 1, "from 1e-9 to 1")
    outcomes = _checked("outcome", outcome, count, _OUTCOMES.__contains__, "None, pass, fail, refused or waiting")
    for index, (rate, end) in enumerate(zip(rates, outcomes, strict=True)):
        if rate == 1 and end is None:
            raise ValueError(f"outcome[{index}] is None, although chosen[{index}] is 1")
    weights, names = _weights(weight, count), _names("hour", hour, count)
    # Numbers of arrays become Python's own.
    probabilities, rates = list(map(float, probabilities)), list(map(float, rates))
    hours: defaultdict[Hashable, dict[ClassKey, CascadeSums]] = defaultdict(dict)
    for g, rate, end, w, name in zip(probabilities, rates, outcomes, weights, names, strict=True):
        of_hour, key = hours[name], class_key(g, w / rate)
        of_hour[key] = of_hour.get(key, CascadeSums()).plus(sums_of_verdict(w, w / rate, end))
    effect = 1.0
    if session is not None and count:
        sessions = _names("session", session, count)
        effect = design_effect(fold([g >= 0.5 for g in probabilities], weights, sessions))  # noqa: PLR2004
    return estimate_cascade(list(hours.values()), effect)


def sums_of_verdict(w: float, u: float, outcome: SecondOutcome | None) -> CascadeSums:
    """Return the sums of one first verdict of weight w, with what became of a second judging of weight u."""
    first = CascadeSums(first=1, weight=w, spread=w * (w - 1))
    if outcome in {"pass", "fail"}:
        return first._replace(second=1, second_weight=u, passed=u * (outcome == "pass"), squares=u * u)
    if outcome == "refused":
        return first._replace(refused=1, refused_weight=u, refused_squares=u * u)
    return first if outcome is None else first._replace(waiting=1, waiting_weight=u, waiting_squares=u * u)


def fold(passed: Iterable[bool | None], weights: Iterable[float], sessions: Iterable[Hashable]) -> Sums:
    """Return the sums of verdicts with their weights and conversations, None for one without."""
    sums, grown = Sums(), dict[Hashable, tuple[float, float]]()
    for verdict, w, name in zip(passed, weights, sessions, strict=True):
        if verdict is None:
            sums.count_unknown(w)
            continue
        before = grown.get(name, (0.0, 0.0))
        sums.count(w, passed=bool(verdict), before=before)
        if name is not None:
            grown[name] = before[0] + w, before[1] + w * bool(verdict)
    return sums


def _weights(weight: Iterable[float] | None, count: int) -> list[float]:
    weights = [1.0] * count if weight is None else weight
    return list(
        map(float, _checked("weight", weights, count, lambda value: 1 <= value <= _MAX_WEIGHT, "from 1 to 1e9"))
    )


def _names(name: str, values: Iterable[Hashable] | None, count: int) -> list[Hashable]:
    # A NaN, by which tables write an absent value, would be one name or many.
    return _checked(name, values, count, lambda value: hash(value) is not None and value == value, "a name or None")  # noqa: PLR0124


def _checked(
    name: str,
    values: Iterable[Any] | None,
    count: int | None,
    holds: Callable[[Any], bool] = lambda _: True,
    expected: str = "",
) -> list[Any]:
    """Return values as a list, ``count`` times None if there are none, or raise ``ValueError``."""
    listed = [None] * (count or 0) if values is None else list(values)
    if count is not None and len(listed) != count:
        raise ValueError(f"{name} has {len(listed):,} values, and not {count:,} as the first argument")
    for index, value in enumerate(listed):
        with suppress(TypeError, ValueError):  # an array in place of a value
            if holds(value):
                continue
        raise ValueError(f"{name}[{index}] is {value!r}, and not {expected}")
    return listed
