"""Detection of drops of a pass share: a sequential test of each bucket of five minutes against the baseline.

A one-sided CUSUM (Page, Biometrika 41, 1954) for each of two sizes of a drop, on log likelihood ratios of the verdicts.
Its limit follows from the number of false alarms that the whole installation may raise in a week. After an alarm the
same sum upwards finds the recovery, so that one incident is one alarm.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from worker.base.monitor.baseline import DROPS, Baseline

_LEAST_DROP: Final = 0.04
_SIZE_KEPT: Final = 0.7
_LEAST_SHARE: Final = 0.02
_SLACK: Final = 0.15
"""The approximation below counts too many visits: simulated false alarms are about half of the budget."""
_MOST_ERRORS: Final = 4.0
_FACTORS: Final = tuple(2 ** (position / 4) for position in range(-24, 1))
_ENOUGH_SESSIONS: Final = 200
_MOST_SCORE: Final = 100.0
_LEAST_FACTOR: Final = 0.125


class Session(NamedTuple):
    """Verdicts of a session of the baseline, in units of the mean weight, and what each sum expects in its hour."""

    passed: float
    failed: float
    expected: Sequence[float]


class Moments(msgspec.Struct, array_like=True):
    """Sums of exp(κ·L) over sessions with the score L, for each of DROPS and a few κ: 51 numbers for any sessions."""

    sessions: float = 0.0
    sums: list[list[float]] = msgspec.field(default_factory=lambda: [[0.0] * len(_FACTORS) for _ in DROPS])

    def add(self, session: Session, number: float = 1.0) -> None:
        """Count sessions with these verdicts."""
        passed, failed, every = session
        self.sessions += number
        for sums, drop, expected in zip(self.sums, DROPS, every, strict=True):
            after = lower(expected, drop)
            score = passed * math.log(after / expected) + failed * math.log((1 - after) / (1 - expected))
            score = min(_MOST_SCORE, score)
            for position, kappa in enumerate(_FACTORS):
                sums[position] += number * math.exp(kappa * score)

    def fade(self, kept: float) -> None:
        """Multiply all sums, so that old sessions count less."""
        self.sessions *= kept
        self.sums = [[kept * value for value in sums] for sums in self.sums]


class Limits(msgspec.Struct, array_like=True, frozen=True):
    """The comparison of a series' sums: for each drop the factor κ of its scores, and its limit."""

    factors: tuple[float, ...]
    limits: tuple[float, ...]
    drops: tuple[float, ...] = DROPS


class State(msgspec.Struct, array_like=True):
    """The state of one detector between two buckets, small enough to store with each of them."""

    sums: list[float] = msgspec.field(default_factory=lambda: [0.0 for _ in DROPS])
    starts: list[int] = msgspec.field(default_factory=lambda: [0 for _ in DROPS])
    """The bucket in which each sum last left zero."""
    missing: list[float] = msgspec.field(default_factory=lambda: [0.0 for _ in DROPS])
    """Passes below expectation since the start."""
    judged: list[float] = msgspec.field(default_factory=lambda: [0.0 for _ in DROPS])
    alarm: int = -1  # The position in DROPS of the sum that raised the open alarm, -1 without one.
    recovery: float = 0.0
    recovery_start: int = 0
    masks: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Past incidents, first bucket and first bucket after, which baselines leave out."""

    @property
    def since(self) -> int | None:
        """The first bucket of the open alarm."""
        return self.starts[self.alarm] if self.alarm >= 0 else None

    def forget(self, before: int) -> None:
        """Drop masks that end before a bucket."""
        self.masks = [mask for mask in self.masks if mask[1] > before]

    def is_masked(self, first: int, after: int) -> bool:
        """Whether a bucket from `first` to before `after` belongs to an incident."""
        return (self.alarm >= 0 and after > self.starts[self.alarm]) or any(
            first < end and after > start for start, end in self.masks
        )


class Change(NamedTuple):
    """A change that a bucket brings: a drop or a recovery, the first bucket that shows it, and the size of the drop."""

    kind: Literal["drop", "recovery"]
    since: int
    size: float


def lower(expected: float, drop: float) -> float:
    """Return the share after a drop: at least half of the expected one."""
    return max(expected - drop, expected / 2)


def information(expected: float, after: float) -> float:
    """Return the Kullback-Leibler divergence of the expected share from the one after: the mean score of a verdict."""
    return expected * math.log(expected / after) + (1 - expected) * math.log((1 - expected) / (1 - after))


def limits_of(
    norm: Baseline,
    moments: Moments,
    *,
    series: float,
    false_alarms_per_week: float = 1.0,
    drops: tuple[float, ...] = DROPS,
) -> Limits:
    """Return the limits that keep the false alarms of an installation within their budget."""
    # The rate at which a CUSUM passes h by chance is about its visits to zero times exp(-h) (Siegmund, Sequential
    # Analysis, 1985, chapter X); visits grow with the information of a week. The last term pays for the errors of the
    # baseline, which are large with few weeks or few judgements. ``series`` counts the active ones with their segments.
    factors, limits = [], []
    for position, drop in enumerate(drops):
        kappa = factor(norm, moments, position)
        cells = [norm.expected(hour)[position] for hour in range(len(norm.cells))]
        mean = sum(information(cell, lower(cell, drop)) for cell in cells) / len(cells)
        limit = math.log(max(1.0, norm.per_week * kappa * mean)) + math.log(series / false_alarms_per_week)
        # A baseline too high by e multiplies false alarms by about exp(2·limit·e / drop): its mean for a normal e.
        limit += -_SLACK + min(_MOST_ERRORS, 2 * (limit * norm.error / drop) ** 2)
        factors.append(kappa)
        limits.append(limit)
    return Limits(tuple(factors), tuple(limits), drops)


def drops_below(share: float) -> tuple[float, ...]:
    """Return the drops below an objective: failures twice and four times as many, at most 10 and 20 points."""
    return tuple(min(most, failures * (1 - share)) for most, failures in zip(DROPS, (1, 3), strict=True))


def factor(norm: Baseline, moments: Moments, drop: int) -> float:
    """Return κ, the factor of scores, because verdicts of a session agree and weights differ."""
    # The largest κ of at most 1/φ with a mean of exp(κ·L) of at most 1 over the sessions: then the sum of the sessions'
    # scores passes a limit as rarely as one of independent verdicts (the root of Lundberg's equation: Asmussen and
    # Albrecher, Ruin Probabilities, 2010, chapter IV).
    if not norm.needs_sessions:
        return 1.0
    most = 1 / norm.dispersion
    if moments.sessions < _ENOUGH_SESSIONS:
        return most
    # The logarithm of the mean is about bκ² - aκ, so divided by κ it is almost a line, with its root between two κ.
    slopes = [math.log(exp / moments.sessions) / kappa for exp, kappa in zip(moments.sums[drop], _FACTORS, strict=True)]
    if slopes[-1] <= 0:
        return most
    for position in range(len(slopes) - 1, 0, -1):
        (low, high), (before, after) = slopes[position - 1 : position + 1], _FACTORS[position - 1 : position + 1]
        if low <= 0:
            return max(_LEAST_FACTOR * most, min(most, before + (after - before) * low / (low - high)))
    return _LEAST_FACTOR * most


def step(
    state: State, bucket: int, passed: float, failed: float, *, expected: Sequence[float], limits: Limits
) -> Change | None:
    """Count the verdicts of one bucket and return what they change; buckets without verdicts change nothing.

    ``passed`` and ``failed`` are weights in units of the baseline's mean weight; drops are measured from the shares
    ``expected`` of this hour.
    """
    if state.alarm >= 0:
        return _recover(state, bucket, passed, failed, expected=expected[state.alarm], limits=limits)
    sums = state.sums
    for position, drop in enumerate(limits.drops):
        usual = expected[position]
        after = usual - drop if usual > 2 * drop else usual / 2
        if sums[position] <= 0:
            state.starts[position] = bucket
            state.missing[position] = state.judged[position] = 0.0
        score = passed * math.log(after / usual) + failed * math.log((1 - after) / (1 - usual))
        sums[position] = max(0.0, sums[position] + limits.factors[position] * score)
        state.missing[position] += usual * (passed + failed) - passed
        state.judged[position] += passed + failed
    over = [value - limit for value, limit in zip(sums, limits.limits, strict=True)]
    if max(over) <= 0:
        return None
    state.alarm = over.index(max(over))
    state.recovery = 0.0
    state.recovery_start = bucket + 1
    return Change("drop", state.starts[state.alarm], state.missing[state.alarm] / state.judged[state.alarm])


def _recover(
    state: State, bucket: int, passed: float, failed: float, *, expected: float, limits: Limits
) -> Change | None:
    """Sum the scores of the expected share against the share of the incident, until the limit is passed."""
    which = state.alarm
    state.missing[which] += expected * (passed + failed) - passed
    state.judged[which] += passed + failed
    size = state.missing[which] / state.judged[which]
    # The share of the incident moves with the hour's expectation: a constant one takes a good hour for a recovery.
    least = min(_LEAST_DROP, limits.drops[0])
    after = max(expected - max(least, size), min(_LEAST_SHARE, expected / 2))
    if state.recovery <= 0:
        state.recovery_start = bucket
    score = passed * math.log(expected / after) + failed * math.log((1 - expected) / (1 - after))
    state.recovery = max(0.0, state.recovery + limits.factors[which] * score)
    if state.recovery <= limits.limits[which]:
        return None
    state.masks.append((state.starts[which], state.recovery_start))
    state.alarm = -1
    state.sums = [0.0 for _ in DROPS]
    return Change("recovery", state.recovery_start, size)


def delay_hours(norm: Baseline, limits: Limits, drop: float) -> float:
    """Return about how many hours a drop lasts (Wald, Sequential Analysis, 1947, section 3.4); inf if no sum rises."""
    share = lower(sum(norm.cells) / len(norm.cells), drop)
    expected = zip(*map(norm.expected, range(len(norm.cells))), strict=True)
    hours = math.inf
    for size, kappa, limit, cells in zip(limits.drops, limits.factors, limits.limits, expected, strict=True):
        level = sum(cells) / len(cells)
        after = lower(level, size)
        gain = share * math.log(after / level) + (1 - share) * math.log((1 - after) / (1 - level))
        if gain > 0:
            hours = min(hours, limit / (kappa * gain * norm.per_week / len(norm.cells)))
    return hours


class Bucket(NamedTuple):
    """Verdicts of a bucket in units of the mean weight, and the share expected in its hour."""

    bucket: int
    passed: float
    failed: float
    expected: float


class Since(NamedTuple):
    """The bucket a drop began in, with the limits of a 90 % interval."""

    low: int
    middle: int
    high: int


def since_interval(buckets: Sequence[Bucket], size: float, kappa: float) -> Since:
    """Return when a drop began: quantiles of the posterior over the buckets, each as likely before."""
    # Smith, Biometrika 62, 1975: the likelihood of a change at a bucket is the product of the ratios from there on.
    # A size measured from the first rise of the sum is too large: with it 84 % of the intervals held the true begin.
    size = max(_LEAST_DROP, _SIZE_KEPT * size)
    likelihoods, total = [0.0] * len(buckets), 0.0
    for position in range(len(buckets) - 1, -1, -1):
        _, passed, failed, expected = buckets[position]
        after = lower(expected, size)
        total += kappa * (passed * math.log(after / expected) + failed * math.log((1 - after) / (1 - expected)))
        likelihoods[position] = total
    most = max(likelihoods)
    weights = [math.exp(likelihood - most) for likelihood in likelihoods]
    bounds, below, whole = [], 0.0, sum(weights)
    quantiles = [0.05, 0.5, 0.95]
    for position, weight in enumerate(weights):
        below += weight
        while quantiles and below >= quantiles[0] * whole:
            bounds.append(buckets[position].bucket)
            quantiles.pop(0)
    bounds.extend([buckets[-1].bucket] * (3 - len(bounds)))
    return Since(*bounds)


class Evidence(NamedTuple):
    """Verdicts of a segment, or of the whole series, since an alarm's start, in units of the mean weight."""

    passed: float
    failed: float
    expected: float  # Passes expected of these verdicts.

    def gain(self, kappa: float) -> float:
        """Return the log likelihood ratio of the observed share below the expected one, 0 above."""
        judged = self.passed + self.failed
        if judged <= 0 or self.passed >= self.expected:
            return 0.0
        share, norm = self.passed / judged, min(self.expected / judged, 1 - 1e-6)
        # 0·log 0 is 0: a segment may have no pass left.
        kept = share * math.log(share / norm) if share > 0 else 0.0
        return kappa * judged * (kept + (1 - share) * math.log((1 - share) / (1 - norm)))


TRAFFIC_MIX: Final = "traffic mix"


class Explanation(NamedTuple):
    """The segment that explains a drop, TRAFFIC_MIX, or None for all of the series, and its posterior probability."""

    segment: str | None
    confidence: float


def explain(
    whole: Evidence, segments: Mapping[str, Evidence], kappa: float = 1.0, mixes: Iterable[float] = ()
) -> Explanation:
    """Return the segment that explains a drop, or that all fell, or that no segment did and their parts changed."""
    # The posterior over "all", the traffic mix and each segment alone, where the segments share one unit of prior
    # (Schwarz, Ann. Stat. 6, 1978, for the choice by maximised likelihoods). ``mixes`` are passes that the segments of
    # each kind were expected to give together, with their parts of this time.
    prior = math.log(len(segments)) if segments else 0.0
    own = whole.gain(kappa)
    # Weak segments that have grown lower the whole although none of them fell.
    fallen = min((whole._replace(expected=expected).gain(kappa) for expected in mixes), default=own)
    gains: dict[str | None, float] = {None: fallen}
    if fallen < own:
        gains[TRAFFIC_MIX] = own - fallen - prior
    gains |= {name: segment.gain(kappa) - prior for name, segment in segments.items()}
    best = max(gains, key=lambda name: gains[name])
    total = sum(math.exp(gain - gains[best]) for gain in gains.values())
    return Explanation(best, 1 / total)
