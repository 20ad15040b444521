"""Typed questions to decision models and their answers as probabilities; no text is generated.

A *predicate* asks how likely a statement about the material is, a *choice* which of several options applies, and a
*score* which of several ordered levels. The forms of judges ask in these three kinds, and each provider of decisions
translates them to its endpoint.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

Kind = Literal["predicate", "choice", "score"]
Problem = Literal["refusal", "incomplete", "invalid_answer", "out_of_range"]
_LEAST: Final = 1e-6  # Bounds the logit of a probability.
_ROUNDING: Final = 0.005  # Some endpoints round probabilities to two digits.
_SLACK: Final = 1e-3
_MAX_SUM_ERROR: Final = 0.1


class Option(NamedTuple):
    """An option of a choice, or a level of a score: a short value with what it means."""

    value: str
    description: str


class Question(Struct, frozen=True):
    """One question about the material of a request."""

    kind: Kind  # What is asked for.
    instructions: str  # The statement of a predicate, or the question of a choice or score.
    # The options of a choice, or the levels of a score from the lowest; empty for a predicate.
    options: tuple[Option, ...] = ()
    # Evidence and claim of a predicate that says "the evidence supports the claim", for classifiers of pairs; None if
    # only a decision model can answer.
    pair: tuple[str, str] | None = None

    @property
    def chars(self) -> int:
        """The length of the question with its options."""
        return len(self.instructions) + sum(len(value) + len(meaning) for value, meaning in self.options)


class Decision(Struct, frozen=True):
    """The answer to one question."""

    # Of a predicate the probability that it is true; else one of each option, in their order, with sum 1. Empty if
    # there is no usable answer.
    probabilities: tuple[float, ...] = ()
    # Why there is no usable answer: the model declined, the endpoint left the answer out, or the answer cannot be used.
    problem: Problem | None = None

    @property
    def probability(self) -> float:
        """The probability that a predicate is true."""
        return self.probabilities[0]

    @property
    def best(self) -> int:
        """The index of the most probable option; the first of equal ones."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """The expected level of a score, counted from 0."""
        return sum(level * probability for level, probability in enumerate(self.probabilities))


def logit(probability: float) -> float:
    """Return the logarithm of the odds; 0 and 1 count as a millionth away from them."""
    bounded = min(1 - _LEAST, max(_LEAST, probability))
    return math.log(bounded / (1 - bounded))


class Calibration(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The correction of one model's probabilities for one metric, and the least that passes."""

    threshold: float = 0.5  # The lowest corrected probability that passes.
    # Slope and intercept of a Platt map: logit(p') = slope * logit(p) + intercept.
    platt: tuple[float, float] | None = None
    # Points (p, p') of an isotonic map with rising p, joined by straight lines.
    isotonic: tuple[tuple[float, float], ...] = ()
    judge_version: str | None = None  # The version of the uncalibrated judge whose verdicts it was fitted to.

    def apply(self, probability: float) -> float:
        """Correct a probability."""
        if self.platt is not None:
            slope, intercept = self.platt
            return 1 / (1 + math.exp(-slope * logit(probability) - intercept))
        if not self.isotonic:
            return probability
        place = bisect_right(self.isotonic, probability, key=lambda point: point[0])
        if place in {0, len(self.isotonic)}:
            return self.isotonic[min(place, len(self.isotonic) - 1)][1]
        (low, start), (high, end) = self.isotonic[place - 1 : place + 1]
        return start + (end - start) * (probability - low) / (high - low)

    def passes(self, probability: float) -> bool:
        """Return whether a corrected probability passes."""
        return probability >= self.threshold


UNCALIBRATED: Final = Calibration()


def read_probabilities(question: Question, values: Sequence[object]) -> Decision:
    """Normalise the probabilities of an answer, one for a predicate or one for each option, in order."""
    expected = 1 if question.kind == "predicate" else len(question.options)
    if len(values) != expected:
        return Decision(problem="invalid_answer")
    numbers = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Decision(problem="invalid_answer")
        if not -_SLACK <= value <= 1 + _SLACK:
            return Decision(problem="out_of_range")
        numbers.append(min(1.0, max(0.0, float(value))))
    if question.kind == "predicate":
        return Decision(tuple(numbers))
    total = sum(numbers)
    if abs(total - 1) > min(_MAX_SUM_ERROR, _ROUNDING * expected + _SLACK):
        return Decision(problem="out_of_range")
    return Decision(tuple(number / total for number in numbers))
