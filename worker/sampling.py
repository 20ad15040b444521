"""Which judges look at which traces: one number per trace decides for all rules and all workers alike.

A trace that matches a rule with `egress` is kept to the models named there, whichever rule chooses it: a rule whose
model is not among them never chooses such a trace.
"""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import structlog

from judges.judge import has_text
from tracejudge import Trace
from worker.settings import Rule, Settings, Where

__all__ = ["Choice", "RuleTally", "Sampler", "Sampling", "position"]

log = structlog.get_logger("tracejudge.sampling")

_DIGITS: Final = 53
_PLACES: Final = 2.0**_DIGITS
_PATTERNED: Final = ("service", "environment", "name", "release", "model")
_MAX_REMEMBERED: Final = 4_096
_MAX_REMEMBERED_CHARS: Final = 1_000


class Choice(NamedTuple):
    """One evaluation a trace was chosen for: judge, name of the model's settings, and with what probability."""

    judge: str
    model: str
    probability: float


class RuleTally(NamedTuple):
    """How a rule fared with one trace."""

    rule: str
    chosen: bool


class Sampling(NamedTuple):
    """What the rules say of one trace; without matching rules both are empty."""

    choices: tuple[Choice, ...]
    rules: tuple[RuleTally, ...]


class _Matching(NamedTuple):
    """Rules that match the same traces, and what tells quickly that none of them chooses.

    ``barred`` are names of rules whose model another's egress does not allow; ``allowed`` is None where any model is.
    """

    rules: tuple[Rule, ...]
    barred: frozenset[str]
    allowed: frozenset[str] | None
    highest_rate: float
    errors: bool
    complaints: bool
    passed: Sampling


def position(trace_id: str, sampling_key: str) -> float:
    """Place a trace on 0..1, evenly and always at the same place.

    A rate chooses the traces below it, so a lower rate chooses a subset of a higher one, and every worker chooses
    alike.
    """
    return _position(trace_id, hashlib.blake2b(digest_size=8, key=sampling_key.encode()))


class Sampler:
    """The rules of the settings, ready to be asked for each trace."""

    def __init__(self, settings: Settings) -> None:
        """Compile the rules' patterns."""
        self._keyed = hashlib.blake2b(digest_size=8, key=settings.sampling_key.encode())
        self._rules = tuple((rule, _matcher(rule.where)) for rule in settings.rules)
        self._names = attrgetter(*_named(settings.rules))
        self._contents = sorted({name for rule in settings.rules for name in rule.where.has})
        self._remembered: dict[object, _Matching] = {}
        self._told: set[tuple[str, str]] = set()
        self._judge_models = {name: model.judge_model for name, model in settings.models.items()}

    def sample(self, trace: Trace) -> Sampling:
        """Choose evaluations for a trace.

        Rules that want the same judge and model share one evaluation; its probability is the largest of theirs.
        """
        matching = self._matching(trace)
        if not matching.rules:
            return matching.passed
        place = _position(trace.trace_id, self._keyed)
        always = (matching.errors and trace.error) or (matching.complaints and trace.feedback is not None)
        if place >= matching.highest_rate and not always:
            return matching.passed
        return _sample(matching, trace, place)

    def allows(self, trace: Trace, judge_model: str) -> bool:
        """Tell whether the rules let a trace be sent to a judge model; names that share one share its endpoint."""
        allowed = self._matching(trace).allowed
        return allowed is None or any(self._judge_models.get(name) == judge_model for name in allowed)

    @property
    def hears_complaints(self) -> bool:
        """Tell whether negative feedback makes any rule choose."""
        return any("negative_feedback" in rule.always for rule, _ in self._rules)

    def sample_complaint(self, trace: Trace) -> tuple[Choice, ...]:
        """Choose evaluations for a trace of which an end user complained later.

        Only rules that always judge negative feedback choose here: what the others leave to chance was decided when
        the trace came.
        """
        matching = self._matching(trace)
        wanting = (rule for rule in matching.rules if rule.name not in matching.barred)
        hearing = [rule for rule in wanting if "negative_feedback" in rule.always]
        wanted = ((judge, rule.model) for rule in hearing for judge in rule.judges)
        return tuple(Choice(judge, model, 1.0) for judge, model in dict.fromkeys(wanted))

    def _matching(self, trace: Trace) -> _Matching:
        """Find the matching rules; they are the same for all traces with the same names and kinds of content."""
        names = self._names(trace)
        key = (names, *[has_text(getattr(trace, name)) for name in self._contents]) if self._contents else names
        found = self._remembered.get(key)
        return found or self._match(trace, key)

    def _match(self, trace: Trace, key: object) -> _Matching:
        matching = _matching(tuple(rule for rule, matches in self._rules if matches(trace)))
        self._tell(matching)
        if sum(len(getattr(trace, name) or "") for name in _PATTERNED) <= _MAX_REMEMBERED_CHARS:
            if len(self._remembered) >= _MAX_REMEMBERED:
                # Names without end; those that really come often are here again at once.
                self._remembered.clear()
            self._remembered[key] = matching
        return matching

    def _tell(self, matching: _Matching) -> None:
        """Say once of each two rules that the one keeps traces from the other."""
        for rule in matching.rules if matching.barred else ():
            for other in matching.rules:
                pair = (rule.name, other.name)
                if other.egress is not None and rule.model not in other.egress and pair not in self._told:
                    self._told.add(pair)
                    log.warning("a rule's traces are kept from another's model", rule=other.name, other=rule.name)


def _position(trace_id: str, keyed: "hashlib.blake2b") -> float:
    digest = keyed.copy()
    digest.update(trace_id.encode("utf-8", "surrogatepass"))
    # As many digits as a float holds: rounded, the last places would become 1, which not even a rate of 1 chooses.
    return (int.from_bytes(digest.digest(), "big") >> (64 - _DIGITS)) / _PLACES


def _matching(rules: tuple[Rule, ...]) -> _Matching:
    allowed = _allowed(rules)
    choosing = [rule for rule in rules if allowed is None or rule.model in allowed]
    return _Matching(
        rules=rules,
        barred=frozenset(rule.name for rule in rules if rule not in choosing),
        allowed=allowed,
        highest_rate=max((rule.rate for rule in choosing), default=0.0),
        errors=any("error" in rule.always for rule in choosing),
        complaints=any("negative_feedback" in rule.always for rule in choosing),
        passed=Sampling((), tuple(RuleTally(rule.name, chosen=False) for rule in rules)),
    )


def _allowed(rules: Sequence[Rule]) -> frozenset[str] | None:
    """Give the models that every rule with an egress allows; None where no rule has one."""
    named = [frozenset(rule.egress) for rule in rules if rule.egress is not None]
    return frozenset.intersection(*named) if named else None


def _sample(matching: _Matching, trace: Trace, place: float) -> Sampling:
    best: dict[tuple[str, str], float] = {}
    tallies = []
    for rule in matching.rules:
        if rule.name in matching.barred:
            tallies.append(RuleTally(rule.name, chosen=False))
            continue
        probability = 1.0 if _is_always(rule, trace) else rule.rate
        tallies.append(RuleTally(rule.name, place < probability))
        for judge in rule.judges:
            key = (judge, rule.model)
            best[key] = max(best.get(key, 0.0), probability)
    choices = (Choice(*key, probability) for key, probability in best.items() if place < probability)
    return Sampling(tuple(choices), tuple(tallies))


def _is_always(rule: Rule, trace: Trace) -> bool:
    if "error" in rule.always and trace.error:
        return True
    return "negative_feedback" in rule.always and trace.feedback is not None and trace.feedback.score < 0


def _named(rules: Sequence[Rule]) -> tuple[str, ...]:
    """List the fields that the patterns of any rule look at; with none of them the service, so that there is one."""
    used = (name for name in _PATTERNED if any(getattr(rule.where, name) is not None for rule in rules))
    return tuple(used) or ("service",)


def _matcher(where: Where) -> Callable[[Trace], bool]:
    """Build the test of one rule from the fields that it names."""
    patterns = [(name, getattr(where, name)) for name in _PATTERNED if getattr(where, name) is not None]
    compiled: Sequence[tuple[str, re.Pattern[str]]] = [
        (name, re.compile(fnmatch.translate(pattern))) for name, pattern in patterns
    ]

    def matches(trace: Trace) -> bool:
        for name, pattern in compiled:
            if pattern.match(getattr(trace, name) or "") is None:
                return False
        return all(has_text(getattr(trace, name)) for name in where.has)

    return matches
