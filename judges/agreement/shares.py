"""Sums of weighted verdicts, and the 95 % interval of the pass share that they estimate.

A verdict counts with the weight 1 / probability of being judged. Weights of one power of two form a class. All sums are
additive, so that buckets of five minutes merge to any window. Conversations whose verdicts agree with each other make
an interval wider: sums over sessions measure by how much. Verdicts that were asked for and not given are not missing at
random, since filters refuse the worst answers: beside the interval stands the range that they allow.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Final, NamedTuple

import msgspec

from judges.agreement.intervals import Interval, Z, combine, wilson

MANY_SESSIONS: Final = 200
"""From this number the normal quantile replaces Student's t, and a history determines a design effect."""
_FEW_JUDGEMENTS: Final = 5
_NO_EXCESS: Final = 1e-9
_LEAST_OWN: Final = 0.2  # Of the residuals, what one large session leaves of its own.
_MANY_CLASSES: Final = 3
_PRIOR_CORRELATION: Final = 0.25  # Of the verdicts of a session, worth two sessions of a window without a history.
_PRIOR_SESSIONS: Final = 2
UNKNOWN_MENTIONED: Final = 0.02
"""The part of unknown verdicts from which the range that they allow stands beside a share."""
MOST_UNKNOWN: Final = 0.1  # With a larger part of unknown verdicts a share is not known.
_FREEDOM_PER_SESSION: Final = 3
"""Simulated with 40 to 100 sessions of five: 2 makes intervals too wide at a share of .95, 3.5 too narrow at .98."""


class ClassSums(msgspec.Struct, array_like=True):
    """Sums over the verdicts of one class of sampling probability; y is 1 for pass, w the weight."""

    judgements: int = 0
    weight: float = 0.0  # Σw
    passed: float = 0.0  # Σwy
    squares: float = 0.0  # Σw²
    passed_squares: float = 0.0  # Σw²y

    def add(self, other: "ClassSums") -> None:
        """Add the sums of other verdicts."""
        self.judgements += other.judgements
        self.weight += other.weight
        self.passed += other.passed
        self.squares += other.squares
        self.passed_squares += other.passed_squares

    def residual_squares(self, share: float) -> float:
        """Return Σw²(y - share)²."""
        return self.passed_squares * (1 - 2 * share) + share * share * self.squares


class SessionSums(msgspec.Struct, array_like=True):
    """Sums over sessions c of their weights W_c and passed weights K_c; a verdict without a session is one."""

    sessions: int = 0
    weights: float = 0.0  # A = ΣW_c²
    products: float = 0.0  # B = ΣW_c·K_c
    passed: float = 0.0  # C = ΣK_c²
    cubes: float = 0.0  # ΣW_c³ - Σw³
    fourths: float = 0.0  # ΣW_c⁴ - Σw⁴

    def add(self, other: "SessionSums") -> None:
        """Add the sums of other sessions, or of later verdicts of the same ones."""
        self.sessions += other.sessions
        self.weights += other.weights
        self.products += other.products
        self.passed += other.passed
        self.cubes += other.cubes
        self.fourths += other.fourths

    def residual_squares(self, share: float) -> float:
        """Return Σ_c(K_c - share·W_c)²."""
        return self.passed - 2 * share * self.products + share * share * self.weights


class Unjudged(NamedTuple):
    """Sums over verdicts without a pass or fail."""

    verdicts: int = 0
    weight: float = 0.0
    squares: float = 0.0


def sum_unjudged(every: Iterable[Unjudged]) -> Unjudged:
    """Add up verdicts without a pass or fail."""
    return Unjudged(*map(sum, zip(Unjudged(), *every, strict=True)))


class Sums(msgspec.Struct, array_like=True):
    """The sums of a bucket: by class of sampling probability, over sessions, and of verdicts that were not given."""

    classes: dict[int, ClassSums] = msgspec.field(default_factory=dict)
    over_sessions: SessionSums = msgspec.field(default_factory=SessionSums)
    unknown: Unjudged = Unjudged()

    def count(self, weight: float, *, passed: bool, before: tuple[float, float] = (0.0, 0.0)) -> None:
        """Count one verdict; ``before`` has W_c and K_c of its session without it, zeros for the first one."""
        y = float(passed)
        of_class = self.classes.setdefault(weight_class(weight), ClassSums())
        of_class.add(ClassSums(1, weight, weight * y, weight**2, weight**2 * y))
        total, kept = before
        # (W + w)² - W² and so on: increments let a session grow over many buckets, each counted once.
        self.over_sessions.add(
            SessionSums(
                int(total == 0),
                weight * (2 * total + weight),
                weight * (kept + y * (total + weight)),
                weight * y * (2 * kept + weight * y),
                3 * total * weight * (total + weight),
                total * weight * (4 * total**2 + 6 * total * weight + 4 * weight**2),
            )
        )

    def count_unknown(self, weight: float) -> None:
        """Count a verdict that was asked for and not given."""
        self.unknown = sum_unjudged((self.unknown, Unjudged(1, weight, weight**2)))

    def add(self, other: "Sums") -> None:
        """Add the sums of another bucket."""
        for key, of_class in other.classes.items():
            self.classes.setdefault(key, ClassSums()).add(of_class)
        self.over_sessions.add(other.over_sessions)
        if other.unknown.verdicts:
            self.unknown = sum_unjudged((self.unknown, other.unknown))

    @property
    def total(self) -> ClassSums:
        """The sums of all classes together."""
        whole = ClassSums()
        for of_class in self.classes.values():
            whole.add(of_class)
        return whole


class ShareEstimate(NamedTuple):
    """A share with the limits of its 95 % interval, and what the verdicts that were asked for and not given allow."""

    share: float
    low: float
    high: float
    unknown: float  # The part of the verdicts that was asked for and not given.
    lowest: float  # The lower limit if all of these failed.
    highest: float  # The upper limit if all of these passed.
    judgements: int  # Verdicts that pass or fail; of a cascade those of the second model.
    effective: float  # The number of independent, equally weighted judgements that would be as precise.
    design_effect: float = 1.0  # By how much sessions widen the variance, at least 1.

    @property
    def interval(self) -> Interval:
        """The share with its limits."""
        return Interval(self.share, self.low, self.high)

    @property
    def known(self) -> bool:
        """Whether at most a tenth of the verdicts is unknown."""
        return self.unknown <= MOST_UNKNOWN

    def unknown_text(self, least: float = UNKNOWN_MENTIONED) -> str:
        """Return what is not known of the share; empty unless more than ``least`` of the verdicts, 0..1, is unknown."""
        if self.unknown <= least:
            return ""
        limits = f"{self.lowest:.1%} to {self.highest:.1%}"
        if self.known:
            return f"{self.unknown:.1%} of the verdicts are not known: {limits} if all of them fail or pass"
        judged = f"; {self.judged_text}" if self.judgements else ""
        return f"not known, {limits}: {self.unknown:.1%} of the verdicts are not known{judged}"

    @property
    def judged_text(self) -> str:
        """The share of what was judged."""
        return f"{self.share:.1%} of {1 - self.unknown:.0%} of the traffic"


def weight_class(weight: float) -> int:
    """Return the class of a weight: the power of two below it."""
    return math.frexp(weight)[1] - 1


def merge_sums(buckets: Iterable[Sums]) -> Sums:
    """Return the sums of a window of buckets."""
    window = Sums()
    for bucket in buckets:
        window.add(bucket)
    return window


def estimate_share(window: Sums, history: Sums | None = None) -> ShareEstimate | None:
    """Return the pass share of a window with its 95 % interval, None without a judgement."""
    # Wilson's interval in each class of sampling probability, combined over the classes by the method of variance
    # estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008). The sizes of the classes are estimates too:
    # their variance is that of Poisson sampling (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992,
    # section 3.5). Few judgements in a class, or many classes: never narrower than Wilson on Kish's effective size
    # (Survey Sampling, 1965, section 11.7). The history of 28 days steadies the design effect.
    total = window.total
    if total.weight <= 0:
        return None
    effect, freedom = _clustering(window, history)
    z = Z if _steady(history) is not None and freedom + 1 >= MANY_SESSIONS else _quantile(max(1.0, freedom))
    share, low, high = lowest = highest = _interval(window.classes, effect, z)
    if window.unknown.verdicts:
        lowest, highest = (_interval(_with_unknown(window, passed=passed), effect, z) for passed in (False, True))
    kish, limits = total.weight**2 / (effect * total.squares), (min(low, lowest.low), max(high, highest.high))
    return ShareEstimate(share, low, high, unknown_part(window), *limits, total.judgements, kish, effect)


def unknown_part(sums: Sums) -> float:
    """Return the part of the verdicts that was asked for and not given, by weight."""
    asked = sums.total.weight + sums.unknown.weight
    return sums.unknown.weight / asked if asked > 0 else 0.0


def _with_unknown(window: Sums, *, passed: bool) -> dict[int, ClassSums]:
    """Return the classes with the unknown verdicts as passes or fails, in the class of their mean weight."""
    number, weight, squares = window.unknown
    more, classes = ClassSums(number, weight, weight * passed, squares, squares * passed), dict(window.classes)
    key = weight_class(squares / weight)
    more.add(classes.get(key, ClassSums()))
    classes[key] = more
    return classes


def _interval(classes: Mapping[int, ClassSums], effect: float, z: float) -> Interval:
    def of(sums: ClassSums) -> Interval:
        return wilson(sums.passed / sums.weight, sums.weight**2 / (effect * sums.squares), z)

    total = Sums(dict(classes)).total
    parts = [(each.weight, of(each), max(0.0, each.squares - each.weight)) for each in classes.values()]
    share, low, high = combine(total.passed / total.weight, parts, z * z * effect)
    few = any(of_class.judgements < _FEW_JUDGEMENTS for of_class in classes.values())
    if few or len(classes) >= _MANY_CLASSES:
        whole = of(total)
        low, high = min(low, whole.low), max(high, whole.high)
    return Interval(share, low, high)


def design_effect(window: Sums, history: Sums | None = None) -> float:
    """Return the variance of the share relative to independent judgements, at least 1."""
    # The linearised variance with sessions as clusters (Kish and Frankel, J. R. Stat. Soc. B 36, 1974), of the window
    # and of a history with enough sessions together; for a window alone see ``_clustering_alone``.
    return _clustering(window, history)[0]


def _clustering(window: Sums, history: Sums | None) -> tuple[float, float]:
    if (history := _steady(history)) is None:
        return _clustering_alone(window)
    (clustered, single), (more_clustered, more_single) = _residuals(window), _residuals(history)
    clustered, single = clustered + more_clustered, single + more_single
    freedom = window.over_sessions.sessions - 1
    if single <= 0:
        # All verdicts are equal and tell nothing of how sessions agree, so a session counts as one judgement.
        return max(1.0, window.over_sessions.weights / window.total.squares), freedom
    return max(1.0, clustered / single), freedom


def _clustering_alone(window: Sums) -> tuple[float, float]:
    """Return design effect and degrees of freedom of a window without a history."""
    # Sessions of very different sizes say little of how their verdicts agree. Their intraclass correlation has the
    # degrees of freedom of Satterthwaite (Biometrics Bulletin 2, 1946), and is averaged with a prior worth two
    # sessions. In units of the mean weight k_c = W_c / (Σw² / Σw), so that n = Σk_c is Kish's effective size, S2 =
    # Σk_c², ….
    total, over = window.total, window.over_sessions
    unit = total.squares / total.weight
    n, s2 = total.weight / unit, over.weights / unit**2
    # Single weights have these third and fourth moments where all weights of a class are equal. Sums of older versions
    # lack those of sessions, which are at least as large as for equal sizes.
    cubes = over.cubes + sum(each.squares**2 / each.weight for each in window.classes.values())
    fourths = over.fourths + sum(each.squares**3 / each.weight**2 for each in window.classes.values())
    s3 = max(cubes / unit**3, s2 * s2 / n)
    s4 = max(fourths / unit**4, s3 * s3 / s2)
    excess = max(0.0, s2 / n - 1)
    correlation = 0.0
    if excess > _NO_EXCESS:
        clustered, single = _residuals(window)
        own = max(_LEAST_OWN, 1 - 2 * s3 / (n * s2) + s2 / n**2)
        effect = max(1.0, clustered / single / own) if single > 0 else s2 / n
        correlation = min(1.0, (effect - 1) / excess)
    rest = 1 - correlation
    known = (correlation * s2 + rest * n) ** 2 / (correlation**2 * s4 + 2 * correlation * rest * s3 + rest * rest * s2)
    steadied = (known * correlation + _PRIOR_SESSIONS * _PRIOR_CORRELATION) / (known + _PRIOR_SESSIONS)
    freedom = max(2.0, min(_freedom(window), known + _PRIOR_SESSIONS))
    return 1 + steadied * excess, freedom


def _steady(history: Sums | None) -> Sums | None:
    return history if history is not None and history.over_sessions.sessions >= MANY_SESSIONS else None


def _freedom(window: Sums) -> int:
    """Return the sessions of a window - 1, or fewer if few of them determine the design effect."""
    # These are the sessions with the rarer verdict. Their effective number is (ΣF)² / ΣF² for the weight F of that
    # verdict in a session, and each counts as three degrees of freedom.
    total, sessions = window.total, window.over_sessions
    most = sessions.sessions - 1
    if sessions.sessions == total.judgements:
        return most
    failed = total.weight - total.passed
    rarer, squares = min((total.passed, sessions.residual_squares(0)), (failed, sessions.residual_squares(1)))
    return min(most, round(_FREEDOM_PER_SESSION * rarer**2 / squares)) if rarer > 0 and squares > 0 else most


def _residuals(sums: Sums) -> tuple[float, float]:
    total = sums.total
    share = total.passed / total.weight
    return sums.over_sessions.residual_squares(share), total.residual_squares(share)


def _quantile(freedom: float) -> float:
    """Return Student's quantile at a fractional number of degrees of freedom, linear in its inverse."""
    whole = int(freedom)
    low, high = student(whole), student(whole + 1)
    return low + (high - low) * (1 / whole - 1 / freedom) * whole * (whole + 1)


def student(freedom: int, tail: float = 0.05) -> float:
    """Return the two-sided quantile of Student's t (Hill, Algorithm 396, Communications of the ACM 13, 1970)."""
    if freedom == 1:
        return 1 / math.tan(tail * math.pi / 2)
    if freedom == 2:  # noqa: PLR2004
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * tail) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if freedom < 5:  # noqa: PLR2004
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
