"""The demo's traffic: sample traces of three services as a steady stream, with a quality drop planted in one.

The plan is drawn from a seed beforehand, so that every run of one length publishes the same.
"""

import random
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

import tracejudge

T = TypeVar("T")

TRACES_PER_S: Final = 8.5  # For each service.
# Each repetition of a sample is another trace, and another conversation: in one its verdicts would count as dependent.
_IDS: Final = ("trace_id", "span_id", "id", "session_id")
# Judges for which shared words are some evidence: code shares few words with its documents, and a request for a summary
# few with the summary, so groundedness of the one and relevance of the other would measure the heuristic only.
JUDGES: Final[Mapping[str, tuple[str, ...]]] = {
    "support-bot": ("groundedness", "relevance_to_query", "safety"),
    "code-helper": ("answer_relevance", "safety"),
    "summariser": ("groundedness", "safety"),
}


class Mix(NamedTuple):
    """Numbers of good and bad traces."""

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
# Calls that succeed and fail in the failing service: a call without an answer is unscored, never a zero.
_CALLS: Final = Mix(24, 1)


class Samples(NamedTuple):
    """Traces of one service: those with good labels only, and those with a fault."""

    good: tuple[tracejudge.Trace, ...]
    bad: tuple[tracejudge.Trace, ...]


class Shot(NamedTuple):
    """One publication: its time in seconds since the traffic began, the trace, and the duration of its call."""

    at_s: float
    trace: tracejudge.Trace
    call_s: float


class _Deck(Generic[T]):
    """Deals shuffled cards repeatedly. Independent draws would do, but in short runs their noise looks like a drop."""

    def __init__(self, cards: Sequence[T], dice: random.Random) -> None:
        self._cards = tuple(cards)
        self._dice = dice
        self._rest: list[T] = []

    def deal(self) -> T:
        if not self._rest:
            self._rest = self._dice.sample(self._cards, len(self._cards))
        return self._rest.pop()


def load_samples() -> Mapping[str, Samples]:
    """Read the labelled samples by service, but `hard` ones, which mislead the lexical model that judges here."""
    decoder = msgspec.json.Decoder(tracejudge.Trace)
    folder = files("judges").joinpath("samples")
    lines = (
        line
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    traces: dict[str, tuple[list[tracejudge.Trace], list[tracejudge.Trace]]] = {}
    for trace in map(decoder.decode, lines):
        labels = trace.tags or {}
        if labels.get("hard") != "yes":
            is_bad = any(labels.get(label) == "no" for label in ("relevant", "safe", "grounded", "correct"))
            traces.setdefault(trace.service, ([], []))[is_bad].append(trace)
    return {service: Samples(tuple(good), tuple(bad)) for service, (good, bad) in traces.items()}


def make_plan(samples: Mapping[str, Samples], seconds: float) -> tuple[Shot, ...]:
    """Plan the publications of a run, in order of time; the drop comes half-way."""
    shots = []
    for service in sorted(samples):
        dice = random.Random(f"20 {service}")  # noqa: S311 - sample traffic, no secret
        good, bad = _Deck(samples[service].good, dice), _Deck(samples[service].bad, dice)
        failing, before, after = (
            _Deck([True] * mix.good + [False] * mix.bad, dice) for mix in (_CALLS, DROP.before, DROP.after)
        )
        # Each service begins at its own moment: published in step, all of them would make a peak each time.
        at_s = dice.random() / TRACES_PER_S
        while at_s < seconds:
            mix = after if service == DROP.service and at_s >= seconds / 2 else before
            trace = (good if mix.deal() else bad).deal()
            if service == "code-helper" and not failing.deal():
                trace = replace(trace, output="", error="the provider did not answer in time", usage=None)
            shots.append(Shot(at_s, trace, dice.uniform(0.6, 2.8)))
            at_s += dice.uniform(0.5, 1.5) / TRACES_PER_S
    return tuple(sorted(shots, key=lambda shot: shot.at_s))


class Traffic:
    """Publishes a plan through the SDK, each shot when it is due."""

    def __init__(self, plan: Sequence[Shot], began_at: float) -> None:
        """Set the plan and its start, in seconds since the epoch."""
        self.published = 0
        self.traces: dict[str, tracejudge.Trace] = {}
        self._plan = plan
        self._began_at = began_at

    def publish_due(self, elapsed_s: float) -> None:
        """Publish everything that is due."""
        while self.published < len(self._plan) and self._plan[self.published].at_s <= elapsed_s:
            shot = self._plan[self.published]
            # The SDK makes fresh ids. The call ends at the planned time, not at the clock's: it decides whether a
            # verdict counts before or after the drop.
            fields = {name: value for name, value in asdict(shot.trace).items() if name not in _IDS}
            fields["session_id"] = secrets.token_hex(8)
            ended_at = self._began_at + shot.at_s
            trace_id = tracejudge.publish(**fields | {"started_at": ended_at - shot.call_s, "ended_at": ended_at})
            self.traces[trace_id] = shot.trace
            self.published += 1

    def pause_s(self, elapsed_s: float, longest_s: float) -> float:
        """Return how long nothing is due, at most ``longest_s``."""
        if self.published == len(self._plan):
            return longest_s
        return min(longest_s, max(0.0, self._plan[self.published].at_s - elapsed_s))
