"""The demo's traffic: sample traces of three services as a steady stream, and the quality drop planted in one.

What is published when is laid out beforehand from a seed, so that every run of one length publishes the same.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

import tracejudge

__all__ = ["DROP", "TRACES_PER_S", "Drop", "Mix", "Samples", "Shot", "Traffic", "load_samples", "make_plan"]

T = TypeVar("T")

TRACES_PER_S: Final = 8.5
"""Of each service."""
_SEED: Final = 20
_LABELS: Final = ("relevant", "safe", "grounded", "correct")
_IDS: Final = ("trace_id", "span_id", "id")
_FAILING_SERVICE: Final = "code-helper"
_CALL_SECONDS: Final = (0.6, 2.8)


class Mix(NamedTuple):
    """Of so many traces, how many are good and how many are bad."""

    good: int
    bad: int

    @property
    def share(self) -> float:
        """Share of good traces, 0..1."""
        return self.good / (self.good + self.bad)


class Drop(NamedTuple):
    """The planted drop: from the middle of the run on, one service answers badly."""

    service: str
    judge: str
    before: Mix
    after: Mix


DROP: Final = Drop("support-bot", "groundedness", Mix(9, 1), Mix(2, 8))
_CALLS: Final = Mix(24, 1)
"""Calls that succeed and fail in the failing service: what has no answer is unscored and never a zero."""


class Samples(NamedTuple):
    """Traces of one service: those that every label calls good, and those with a fault."""

    good: tuple[tracejudge.Trace, ...]
    bad: tuple[tracejudge.Trace, ...]


class Shot(NamedTuple):
    """One publication: when, in seconds since the traffic began; what; and how long its call took."""

    at_s: float
    trace: tracejudge.Trace
    call_s: float


class _Deck(Generic[T]):
    """Deals shuffled cards over and over. Dice would do, but over short runs their luck looks like a drop."""

    def __init__(self, cards: Sequence[T], dice: random.Random) -> None:
        self._cards = tuple(cards)
        self._dice = dice
        self._rest: list[T] = []

    def deal(self) -> T:
        if not self._rest:
            self._rest = self._dice.sample(self._cards, len(self._cards))
        return self._rest.pop()


def load_samples() -> Mapping[str, Samples]:
    """Read the labelled samples by service.

    Those labelled `hard` are left out: they were written to mislead the word overlap that judges here.
    """
    decoder = msgspec.json.Decoder(tracejudge.Trace)
    folder = files("judges").joinpath("samples")
    lines = (
        line
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    found: dict[str, tuple[list[tracejudge.Trace], list[tracejudge.Trace]]] = {}
    for trace in map(decoder.decode, lines):
        labels = trace.tags or {}
        if labels.get("hard") != "yes":
            is_bad = any(labels.get(label) == "no" for label in _LABELS)
            found.setdefault(trace.service, ([], []))[is_bad].append(trace)
    return {service: Samples(tuple(good), tuple(bad)) for service, (good, bad) in found.items()}


def make_plan(samples: Mapping[str, Samples], seconds: float) -> tuple[Shot, ...]:
    """Lay out the publications of a run, in order of time; the drop comes half-way."""
    shots = [shot for service in sorted(samples) for shot in _shots(service, samples[service], seconds)]
    return tuple(sorted(shots, key=lambda shot: shot.at_s))


def _shots(service: str, samples: Samples, seconds: float) -> Iterator[Shot]:
    dice = random.Random(f"{_SEED} {service}")  # noqa: S311 - sample traffic, no secret
    good, bad, failing = _Deck(samples.good, dice), _Deck(samples.bad, dice), _deck(_CALLS, dice)
    before, after = _deck(DROP.before, dice), _deck(DROP.after, dice)
    at_s = dice.random() / TRACES_PER_S
    while at_s < seconds:
        mix = after if service == DROP.service and at_s >= seconds / 2 else before
        trace = (good if mix.deal() else bad).deal()
        if service == _FAILING_SERVICE and not failing.deal():
            trace = replace(trace, output="", error="the provider did not answer in time", usage=None)
        yield Shot(at_s, trace, dice.uniform(*_CALL_SECONDS))
        at_s += dice.uniform(0.5, 1.5) / TRACES_PER_S


def _deck(mix: Mix, dice: random.Random) -> _Deck[bool]:
    return _Deck([True] * mix.good + [False] * mix.bad, dice)


class Traffic:
    """Publishes a plan through the SDK, each shot when its time has come.

    Attributes:
        published: Traces published so far.
    """

    def __init__(self, plan: Sequence[Shot], began_at: float) -> None:
        """Take the plan and the time it began, in seconds since the epoch."""
        self.published = 0
        self._plan = plan
        self._began_at = began_at

    def publish_due(self, elapsed_s: float) -> None:
        """Publish everything whose time has come."""
        while self.published < len(self._plan) and self._plan[self.published].at_s <= elapsed_s:
            self._publish(self._plan[self.published])
            self.published += 1

    def pause_s(self, elapsed_s: float, longest_s: float) -> float:
        """Tell how long nothing is due, at most ``longest_s``."""
        if self.published == len(self._plan):
            return longest_s
        return min(longest_s, max(0.0, self._plan[self.published].at_s - elapsed_s))

    def _publish(self, shot: Shot) -> None:
        # The SDK makes fresh ids: a sample that comes again is another trace. The end of the call is the planned
        # time and not the clock's: by it verdicts are put before or after the drop.
        fields = {name: value for name, value in asdict(shot.trace).items() if name not in _IDS}
        ended_at = self._began_at + shot.at_s
        tracejudge.publish(**fields | {"started_at": ended_at - shot.call_s, "ended_at": ended_at})
