"""Pass shares corrected for the judge's own error by labels, and how far judge and labels agree.

How labels were chosen decides the method. Labels drawn from the traffic with known probability say what share passes
among the traces with each verdict. A golden set has a mix of its own, so it only says how often the judge errs on
traces that should pass and on traces that should not.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from judges.agreement.intervals import Interval, Z, wilson

Origin = Literal["drawn", "golden", "queue"]
"""How labels were chosen: with known probability from the traffic, as a set, or by a person who looked at the queue."""
Method = Literal["ppi", "rogan_gladen"]
METHODS: Final[dict[str, Method]] = {"drawn": "ppi", "golden": "rogan_gladen"}
_MOST_DEVIATION: Final = 5.0
_LEAST_POWER: Final = 0.1
# Of the traffic; the unknown share of so few traces widens the interval by at most as much.
_MOST_UNLABELLED: Final = 0.05
_NO_VARIANCE: Final = 1e-12


class CorrectionRefusedError(ValueError):
    """The labels do not support a corrected share by this method."""


class Stratum(NamedTuple):
    """Judged traces of one verdict, of which the labelled ones are a random sample."""

    verdict: bool
    label_class: int  # Strata of one class had the same chance of being judged or labelled; any number.
    judged: float  # Weight of the judged traces, labelled or not.
    labels: float  # Number of labels; the effective number if their probabilities differ.
    passed: float  # Labels that say pass.
    represented: float = 0.0  # Sum of 1 / probability of a label, 0 if all labels of the class had the same.

    @property
    def rate(self) -> float:
        """The share of labels that say pass; one half without any, between the limits 0 and 1."""
        return self.passed / self.labels if self.labels else 0.5

    @property
    def size(self) -> float:
        """The traces that the labels stand for."""
        return self.represented or self.labels


def _joint(strata: "Sequence[Stratum]") -> tuple[float, float]:
    """Return the share of passes among the labels of several strata, and Kish's effective number of these labels."""
    labelled = [stratum for stratum in strata if stratum.labels]
    size = sum(stratum.size for stratum in labelled)
    if not labelled:
        return 0.5, 0.0
    squares = sum(stratum.size**2 / stratum.labels for stratum in labelled)
    return sum(stratum.size * stratum.rate for stratum in labelled) / size, size * size / squares


class Corrected(NamedTuple):
    """A corrected share, and its width relative to the labels alone (None for a golden set)."""

    interval: Interval
    method: Method
    labels: int
    beside_labels: float | None


class Confusion(NamedTuple):
    """Counts of traces by label and verdict, in this order: label pass or fail, verdict pass or fail."""

    pass_pass: float
    pass_fail: float
    fail_pass: float
    fail_fail: float


class Agreement(NamedTuple):
    """How far the judge agrees with labels."""

    agreement: Interval
    sensitivity: Interval | None  # The share of traces labelled pass that the judge passes.
    specificity: Interval | None  # The share of traces labelled fail that the judge fails.
    kappa: Interval | None


def method_of(origin: Origin, asked: Method | None = None) -> Method:
    """Return the method for labels of an origin; ``CorrectionRefusedError`` if it has none, or not the asked one."""
    method = METHODS.get(origin)
    if method is None:
        raise CorrectionRefusedError(
            "Labels from a queue were chosen without a known probability. Draw labels from the traffic, or label a "
            "golden set."
        )
    if asked not in {None, method}:
        raise CorrectionRefusedError(
            f"{asked} does not fit {origin} labels: its share would be biased. Use {method}, or leave out the method."
        )
    return method


def from_drawn(strata: Sequence[Stratum], effective: float) -> Corrected:
    """Return the share corrected by labels drawn from the traffic, for a judge that says yes or no.

    Post-stratification by verdict and label probability; it equals PPI++ (Angelopoulos, Duchi and Zrnic, arXiv
    2311.01453) with the best λ. Wilson's limits of each stratum combine as in `shares`; the last term is
    the error of the strata's sizes. ``effective`` is the effective number of judged traces. ``CorrectionRefusedError``
    if strata of more than 5 % of the traffic have no labels, or the labels' verdicts are not the traffic's.
    """
    strata = [stratum for stratum in strata if stratum.judged > 0]
    total = sum(stratum.judged for stratum in strata)
    unlabelled = [stratum for stratum in strata if not stratum.labels]
    passing, failing = (sum(each.judged for each in unlabelled if each.verdict is kind) for kind in (True, False))
    if passing + failing > _MOST_UNLABELLED * total or total == 0:
        what = f"{passing:,.0f} that pass and {failing:,.0f} that fail, of {total:,.0f} judged traces"
        raise CorrectionRefusedError(f"{what}, are of a verdict without any label. Label more of the drawn traces.")
    classes: dict[int, list[Stratum]] = defaultdict(list)
    for stratum in strata:
        classes[stratum.label_class].append(stratum)
    for group in classes.values():
        _check_drawn(group)
    interval = _combine([(stratum.judged / total, stratum.rate, stratum.labels) for stratum in strata])
    q = sum(stratum.judged for stratum in strata if stratum.verdict) / total
    sizes = 0.0
    if 0 < q < 1:
        rates = [
            sum(stratum.judged * stratum.rate for stratum in strata if stratum.verdict is verdict) / total / part
            for verdict, part in ((True, q), (False, 1 - q))
        ]
        sizes = Z * Z * (rates[0] - rates[1]) ** 2 * q * (1 - q) / effective
    share = interval.value
    low = max(0.0, share - math.sqrt((share - interval.low) ** 2 + sizes))
    high = min(1.0, share + math.sqrt((interval.high - share) ** 2 + sizes))
    alone = _combine([(sum(item.judged for item in group) / total, *_joint(group)) for group in classes.values()])
    return Corrected(
        Interval(share, low, high),
        "ppi",
        round(sum(stratum.labels for stratum in strata)),
        (high - low) / (alone.high - alone.low),
    )


def _combine(parts: Sequence[tuple[float, float, float]]) -> Interval:
    """Combine strata of a share, a rate and a number of observations each by their Wilson limits."""
    share = below = above = 0.0
    for part, rate, number in parts:
        middle, low, high = wilson(rate, number) if number else (rate, 0.0, 1.0)
        share += part * middle
        below += (part * (middle - low)) ** 2
        above += (part * (high - middle)) ** 2
    return Interval(share, share - math.sqrt(below), share + math.sqrt(above))


def _check_drawn(group: Sequence[Stratum]) -> None:
    """Refuse labels whose verdicts differ from the traffic's of their class by more than chance allows."""
    labels = _joint(group)[1]
    if labels == 0:
        return
    share = sum(stratum.judged for stratum in group if stratum.verdict) / sum(stratum.judged for stratum in group)
    seen = sum(stratum.size for stratum in group if stratum.verdict) / sum(stratum.size for stratum in group)
    if abs(seen - share) > _MOST_DEVIATION * math.sqrt(max(share * (1 - share), 1 / labels) / labels):
        raise CorrectionRefusedError(
            f"The judge passes {seen:.0%} of the labelled traces and {share:.0%} of the traffic: these labels were "
            "not drawn from it. Import them as a golden set, with --replace-drawn."
        )


def from_golden(passed: float, judged: float, seen: Confusion) -> Corrected:
    """Return the share corrected by a golden set: its errors of the judge, applied to the traffic.

    The estimator of Rogan and Gladen (Am. J. Epidemiol. 107, 1978) with the interval of Lee et al. (arXiv 2511.21140):
    z² observations are added to the traffic and one of each kind to both parts of the set. ``passed`` and ``judged``
    are effective numbers of traces. ``CorrectionRefusedError`` if the judge hardly tells the two kinds of traces apart.
    """
    good, bad = seen.pass_pass + seen.pass_fail, seen.fail_pass + seen.fail_fail
    if min(good, bad) <= 0:
        raise CorrectionRefusedError("A golden set needs traces that should pass and traces that should not.")
    sensitivity, specificity = (seen.pass_pass + 1) / (good + 2), (seen.fail_fail + 1) / (bad + 2)
    power = sensitivity + specificity - 1
    if power < _LEAST_POWER:
        raise CorrectionRefusedError(
            "On the golden set the judge hardly tells passing from failing traces. Its verdicts carry no share."
        )
    size = judged + Z * Z
    p = (passed + Z * Z / 2) / size
    middle = (p + specificity - 1) / power
    share = min(1.0, max(0.0, middle))
    of_bad, of_good = specificity * (1 - specificity) / (bad + 2), sensitivity * (1 - sensitivity) / (good + 2)
    half = Z * math.sqrt(p * (1 - p) / size + (1 - share) ** 2 * of_bad + share**2 * of_good) / power
    # The estimate may lie outside 0..1; the interval keeps a part of its width inside.
    middle += 2 * Z * Z * (share * of_good - (1 - share) * of_bad)
    low = min(1 - half / 4, max(0.0, middle - half))
    high = max(half / 4, min(1.0, middle + half))
    raw = (passed / judged + seen.fail_fail / bad - 1) / (seen.pass_pass / good + seen.fail_fail / bad - 1)
    value = min(high, max(low, raw))
    return Corrected(Interval(value, low, high), "rogan_gladen", round(good + bad), None)


def agreement(seen: Confusion) -> Agreement:
    """Return how far verdicts and labels agree; a rate without traces is None."""
    # Kappa with the standard error of Fleiss, Cohen and Everitt, Psychological Bulletin 72, 1969.
    a, b, c, d = seen
    n = a + b + c + d
    if n <= 0:
        raise ValueError("no labelled traces")
    return Agreement(
        wilson((a + d) / n, n),
        wilson(a / (a + b), a + b) if a + b > 0 else None,
        wilson(d / (c + d), c + d) if c + d > 0 else None,
        _kappa(seen),
    )


def _kappa(seen: Confusion) -> Interval | None:
    n = sum(seen)
    a, b, c, d = (count / n for count in seen)
    rows, columns = (a + b, c + d), (a + c, b + d)
    observed, chance = a + d, rows[0] * columns[0] + rows[1] * columns[1]
    if chance >= 1:
        return None
    kappa = (observed - chance) / (1 - chance)
    same = sum(share * (1 - (rows[k] + columns[k]) * (1 - kappa)) ** 2 for k, share in enumerate((a, d)))
    other = (1 - kappa) ** 2 * (b * (columns[0] + rows[1]) ** 2 + c * (columns[1] + rows[0]) ** 2)
    variance = same + other - (kappa - chance * (1 - kappa)) ** 2
    if variance <= _NO_VARIANCE:
        # If all agree, or a side has a single verdict, the formula knows no error, but Wilson's limits of agreement do.
        share = wilson(observed, n)
        return Interval(kappa, *(max(-1.0, (limit - chance) / (1 - chance)) for limit in (share.low, share.high)))
    half = Z * math.sqrt(variance / n) / (1 - chance)
    return Interval(kappa, max(-1.0, kappa - half), min(1.0, kappa + half))


def flips(repeats: Confusion) -> tuple[Interval, Interval | None]:
    """Return the share of repeated judgings with another verdict, and kappa of the two."""
    n = sum(repeats)
    if n <= 0:
        raise ValueError("no repeated judgings")
    return wilson((repeats.pass_fail + repeats.fail_pass) / n, n), _kappa(repeats)
