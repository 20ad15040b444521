"""Sums of weighted verdicts, and the 95 % interval of the pass share that they estimate.

A verdict counts with the weight 1 / probability of being judged. Weights of one power of two form a class. All sums are
additive, so that buckets of five minutes merge to any window. Conversations whose verdicts agree with each other make
an interval wider: sums over sessions measure by how much.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final, NamedTuple

import msgspec

from judges.agreement.intervals import Interval, Z, wilson

MANY_SESSIONS: Final = 200
"""From this number the normal quantile replaces Student's t, and a history determines a design effect."""
_FEW_JUDGEMENTS: Final = 5
_MANY_CLASSES: Final = 3
_FREEDOM_PER_SESSION: Final = 3
"""Simulated with 40 to 100 sessions of five: 2 makes intervals too wide at a share of .95, 3.5 too narrow at .98."""


class ClassSums(msgspec.Struct, array_like=True):
    """Sums over the verdicts of one class of sampling probability; y is 1 for pass, w the weight."""

    judgements: int = 0
    weight: float = 0.0
    """Σw"""
    passed: float = 0.0
    """Σwy"""
    squares: float = 0.0
    """Σw²"""
    passed_squares: float = 0.0
    """Σw²y"""

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
    """Sums over sessions c with the weight W_c and the passed weight K_c of their verdicts.

    A verdict without a session counts as one session.
    """

    sessions: int = 0
    weights: float = 0.0
    """A = ΣW_c²"""
    products: float = 0.0
    """B = ΣW_c·K_c"""
    passed: float = 0.0
    """C = ΣK_c²"""

    def add(self, other: "SessionSums") -> None:
        """Add the sums of other sessions, or of later verdicts of the same ones."""
        self.sessions += other.sessions
        self.weights += other.weights
        self.products += other.products
        self.passed += other.passed

    def residual_squares(self, share: float) -> float:
        """Return Σ_c(K_c - share·W_c)²."""
        return self.passed - 2 * share * self.products + share * share * self.weights


class Sums(msgspec.Struct, array_like=True):
    """The sums of a bucket, by class of sampling probability and over sessions."""

    classes: dict[int, ClassSums] = msgspec.field(default_factory=dict)
    over_sessions: SessionSums = msgspec.field(default_factory=SessionSums)

    def count(self, weight: float, *, passed: bool, before: tuple[float, float] = (0.0, 0.0)) -> None:
        """Count one verdict.

        Args:
            weight: 1 / probability of being judged.
            passed: the verdict.
            before: W_c and K_c of the verdict's session without this verdict, zeros for its first verdict.
        """
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
            )
        )

    def add(self, other: "Sums") -> None:
        """Add the sums of another bucket."""
        for key, of_class in other.classes.items():
            self.classes.setdefault(key, ClassSums()).add(of_class)
        self.over_sessions.add(other.over_sessions)

    @property
    def total(self) -> ClassSums:
        """The sums of all classes together."""
        whole = ClassSums()
        for of_class in self.classes.values():
            whole.add(of_class)
        return whole


class PassShare(NamedTuple):
    """The weighted pass share of a window."""

    interval: Interval
    judgements: int
    effective: float
    """The number of independent, equally weighted judgements that would be as precise."""
    design_effect: float
    """By how much sessions widen the variance, at least 1."""


def weight_class(weight: float) -> int:
    """Return the class of a weight: the power of two below it."""
    return math.frexp(weight)[1] - 1


def merge_sums(buckets: Iterable[Sums]) -> Sums:
    """Return the sums of a window of buckets."""
    window = Sums()
    for bucket in buckets:
        window.add(bucket)
    return window


def pass_share(window: Sums, history: Sums | None = None) -> PassShare | None:
    """Return the pass share of a window with its 95 % interval, None without a judgement.

    Wilson's interval in each class of sampling probability, combined over the classes by the method of variance
    estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008). The sizes of the classes are estimates too:
    their variance is that of Poisson sampling (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992,
    section 3.5). Few judgements in a class, or many classes: never narrower than Wilson on Kish's effective size
    (Survey Sampling, 1965, section 11.7).

    Args:
        window: sums of the window.
        history: sums of the last 28 days of the series, which steady the design effect.
    """
    total = window.total
    if total.weight <= 0:
        return None
    share = total.passed / total.weight
    effect = design_effect(window, history)
    freedom = _freedom(window, _steady(history))
    z = Z if freedom + 1 >= MANY_SESSIONS else student(max(1, freedom))
    kish = total.weight**2 / (effect * total.squares)
    below = above = sizes = 0.0
    for of_class in window.classes.values():
        part = of_class.weight / total.weight
        middle, low, high = wilson(
            of_class.passed / of_class.weight, of_class.weight**2 / (effect * of_class.squares), z
        )
        below += (part * (middle - low)) ** 2
        above += (part * (high - middle)) ** 2
        sizes += (middle - share) ** 2 * max(0.0, of_class.squares - of_class.weight)
    spread = z * z * effect * sizes / total.weight**2
    low, high = max(0.0, share - math.sqrt(below + spread)), min(1.0, share + math.sqrt(above + spread))
    few = any(of_class.judgements < _FEW_JUDGEMENTS for of_class in window.classes.values())
    if few or len(window.classes) >= _MANY_CLASSES:
        whole = wilson(share, kish, z)
        low, high = min(low, whole.low), max(high, whole.high)
    return PassShare(Interval(share, low, high), total.judgements, kish, effect)


def design_effect(window: Sums, history: Sums | None = None) -> float:
    """Return the variance of the share relative to independent judgements, at least 1.

    The linearised variance with sessions as clusters (Kish and Frankel, J. R. Stat. Soc. B 36, 1974), of the window
    and of a history with enough sessions together; of the window alone with the factor m / (m - 1) for m sessions.
    """
    clustered, single = _residuals(window)
    sessions = window.over_sessions.sessions
    history = _steady(history)
    if history is not None:
        more_clustered, more_single = _residuals(history)
        clustered, single = clustered + more_clustered, single + more_single
    elif sessions > 1:
        clustered *= sessions / (sessions - 1)
    if single <= 0:
        # All verdicts are equal and tell nothing of how sessions agree, so a session counts as one judgement.
        return max(1.0, window.over_sessions.weights / window.total.squares)
    return max(1.0, clustered / single)


def _steady(history: Sums | None) -> Sums | None:
    return history if history is not None and history.over_sessions.sessions >= MANY_SESSIONS else None


def _freedom(window: Sums, history: Sums | None) -> int:
    """Return the degrees of freedom of the design effect: sessions - 1, or fewer if few of them determine it.

    In a window alone these are the sessions with the rarer verdict. Their effective number is (ΣF)² / ΣF² for the
    weight F of that verdict in a session, and each counts as three degrees of freedom.
    """
    total, sessions = window.total, window.over_sessions
    most = sessions.sessions - 1
    if history is not None or sessions.sessions == total.judgements:
        return most
    failed = total.weight - total.passed
    rarer, squares = min((total.passed, sessions.residual_squares(0)), (failed, sessions.residual_squares(1)))
    return min(most, round(_FREEDOM_PER_SESSION * rarer**2 / squares)) if rarer > 0 and squares > 0 else most


def _residuals(sums: Sums) -> tuple[float, float]:
    total = sums.total
    share = total.passed / total.weight
    return sums.over_sessions.residual_squares(share), total.residual_squares(share)


def student(freedom: int, tail: float = 0.05) -> float:
    """Return the two-sided quantile of Student's t (Hill, Algorithm 396, Communications of the ACM 13, 1970).

    Args:
        freedom: degrees of freedom, at least 1.
        tail: probability outside ± the quantile.
    """
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
