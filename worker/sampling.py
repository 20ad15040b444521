"""Which judges look at which traces: one number per trace decides for all rules and all workers alike.

A trace that matches a rule with `egress` is kept to the models named there, whichever rule chooses it: a rule one of
whose models is not among them never chooses such a trace for them. Judges in code send it nowhere, and always may.
"""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import structlog

from judges.catalog import configured
from judges.judge import has_text
from tracejudge import Trace
from worker.seats import CODE, Seats
from worker.settings import Rule, Settings, Where

__all__ = ["Choice", "RuleTally", "Sampler", "Sampling", "position"]

log = structlog.get_logger("tracejudge.sampling")

_DIGITS: Final = 53
_PLACES: Final = 2.0**_DIGITS
_PATTERNED: Final = ("service", "environment", "name", "release", "model")
_MAX_REMEMBERED: Final = 4_096
_MAX_REMEMBERED_CHARS: Final = 1_000


class Choice(NamedTuple):
    """One evaluation a trace was chosen for: judge, name of the seat that judges, and with what probability."""

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


class _Ruled(NamedTuple):
    """A rule, and which evaluations it wants: judges with the names of seats."""

    rule: Rule
    wants: tuple[tuple[str, str], ...]


class _Matching(NamedTuple):
    """Rules that match the same traces, and what tells quickly that none of them chooses.

    ``rules`` want nothing of models that another's egress does not allow; ``allowed`` is None where any model is.
    """

    rules: tuple[_Ruled, ...]
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

    def __init__(self, settings: Settings, seats: Seats | None = None) -> None:
        """Compile the rules' patterns.

        Args:
            seats: Who judges; by the judges of the settings unless given.
        """
        self._seats = Seats(settings, configured(settings.judges)) if seats is None else seats
        self._keyed = hashlib.blake2b(digest_size=8, key=settings.sampling_key.encode())
        self._rules = tuple((self._ruled(rule), _matcher(rule.where)) for rule in settings.rules)
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
        """Tell whether the rules let a trace be sent to a judge model; names that share one share its endpoint.

        A panel's verdict needs those of all its members. Judges in code send nothing.
        """
        allowed = self._matching(trace).allowed
        if allowed is None or judge_model == CODE.judge_model:
            return True
        panel, known = self._seats.panels.get(judge_model), {self._judge_models.get(name) for name in allowed}
        return judge_model in known if panel is None else known.issuperset(panel.members)

    @property
    def hears_complaints(self) -> bool:
        """Tell whether negative feedback makes any rule choose."""
        return any("negative_feedback" in ruled.rule.always for ruled, _ in self._rules)

    def sample_complaint(self, trace: Trace) -> tuple[Choice, ...]:
        """Choose evaluations for a trace of which an end user complained later.

        Only rules that always judge negative feedback choose here: what the others leave to chance was decided when
        the trace came.
        """
        hearing = (ruled for ruled in self._matching(trace).rules if "negative_feedback" in ruled.rule.always)
        wanted = dict.fromkeys(want for ruled in hearing for want in ruled.wants)
        return tuple(Choice(judge, seat, 1.0) for judge, seat in wanted)

    def _ruled(self, rule: Rule) -> _Ruled:
        return _Ruled(rule, tuple((judge, seat) for judge in rule.judges for seat in self._seats.of(rule, judge)))

    def _matching(self, trace: Trace) -> _Matching:
        """Find the matching rules; they are the same for all traces with the same names and kinds of content."""
        names = self._names(trace)
        key = (names, *[has_text(getattr(trace, name)) for name in self._contents]) if self._contents else names
        found = self._remembered.get(key)
        return found or self._match(trace, key)

    def _match(self, trace: Trace, key: object) -> _Matching:
        rules = [ruled for ruled, matches in self._rules if matches(trace)]
        matching = _matching(rules)
        self._tell(rules)
        if sum(len(getattr(trace, name) or "") for name in _PATTERNED) <= _MAX_REMEMBERED_CHARS:
            if len(self._remembered) >= _MAX_REMEMBERED:
                # Names without end; those that really come often are here again at once.
                self._remembered.clear()
            self._remembered[key] = matching
        return matching

    def _tell(self, rules: Sequence[_Ruled]) -> None:
        """Say once of each two rules that the one keeps traces from the other."""
        sending = [one.rule for one in rules if any(seat != CODE.name for _, seat in one.wants)]
        keeping = [one.rule for one in rules if one.rule.egress is not None]
        for rule in sending:
            for other in keeping:
                pair = (rule.name, other.name)
                if pair not in self._told and not set(rule.models).issubset(other.egress or ()):
                    self._told.add(pair)
                    log.warning("a rule's traces are kept from another's model", rule=other.name, other=rule.name)


def _position(trace_id: str, keyed: "hashlib.blake2b") -> float:
    digest = keyed.copy()
    digest.update(trace_id.encode("utf-8", "surrogatepass"))
    # As many digits as a float holds: rounded, the last places would become 1, which not even a rate of 1 chooses.
    return (int.from_bytes(digest.digest(), "big") >> (64 - _DIGITS)) / _PLACES


def _matching(rules: Sequence[_Ruled]) -> _Matching:
    allowed = _allowed([ruled.rule for ruled in rules])
    within = tuple(_within(ruled, allowed) for ruled in rules)
    choosing = [ruled.rule for ruled in within if ruled.wants]
    return _Matching(
        rules=within,
        allowed=allowed,
        highest_rate=max((rule.rate for rule in choosing), default=0.0),
        errors=any("error" in rule.always for rule in choosing),
        complaints=any("negative_feedback" in rule.always for rule in choosing),
        passed=Sampling((), tuple(RuleTally(ruled.rule.name, chosen=False) for ruled in rules)),
    )


def _allowed(rules: Sequence[Rule]) -> frozenset[str] | None:
    """Give the models that every rule with an egress allows; None where no rule has one."""
    named = [frozenset(rule.egress) for rule in rules if rule.egress is not None]
    return frozenset.intersection(*named) if named else None


def _within(ruled: _Ruled, allowed: frozenset[str] | None) -> _Ruled:
    """Take out what a rule wants of models where one of them is not allowed."""
    if allowed is None or allowed.issuperset(ruled.rule.models):
        return ruled
    return ruled._replace(wants=tuple(want for want in ruled.wants if want[1] == CODE.name))


def _sample(matching: _Matching, trace: Trace, place: float) -> Sampling:
    best: dict[tuple[str, str], float] = {}
    tallies = []
    for rule, wants in matching.rules:
        probability = (1.0 if _is_always(rule, trace) else rule.rate) if wants else 0.0
        tallies.append(RuleTally(rule.name, place < probability))
        for want in wants:
            best[want] = max(best.get(want, 0.0), probability)
    choices = (Choice(*want, probability) for want, probability in best.items() if place < probability)
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
