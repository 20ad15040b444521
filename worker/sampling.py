"""Which judges look at which traces: one number per trace decides for all rules and all workers alike."""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from judges.judge import has_text
from tracejudge import Trace
from worker.settings import Rule, Settings, Where

__all__ = ["Choice", "RuleTally", "Sampler", "Sampling", "position"]

_DIGITS: Final = 53
_PATTERNED: Final = ("service", "environment", "name", "release", "model")


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


def position(trace_id: str, sampling_key: str) -> float:
    """Place a trace on 0..1, evenly and always at the same place.

    A rate chooses the traces below it, so a lower rate chooses a subset of a higher one, and every worker chooses
    alike.
    """
    digest = hashlib.blake2b(trace_id.encode("utf-8", "surrogatepass"), digest_size=8, key=sampling_key.encode())
    # As many digits as a float holds: rounded, the last places would become 1, which not even a rate of 1 chooses.
    return (int.from_bytes(digest.digest(), "big") >> (64 - _DIGITS)) / 2.0**_DIGITS


class Sampler:
    """The rules of the settings, ready to be asked for each trace."""

    def __init__(self, settings: Settings) -> None:
        """Compile the rules' patterns."""
        self._sampling_key = settings.sampling_key
        self._rules = tuple((rule, _matcher(rule.where)) for rule in settings.rules)

    def sample(self, trace: Trace) -> Sampling:
        """Choose evaluations for a trace.

        Rules that want the same judge and model share one evaluation; its probability is the largest of theirs.
        """
        matching = [rule for rule, matches in self._rules if matches(trace)]
        if not matching:
            return Sampling((), ())
        place = position(trace.trace_id, self._sampling_key)
        best: dict[tuple[str, str], float] = {}
        tallies = []
        for rule in matching:
            probability = 1.0 if _is_always(rule, trace) else rule.rate
            tallies.append(RuleTally(rule.name, place < probability))
            for judge in rule.judges:
                key = (judge, rule.model)
                best[key] = max(best.get(key, 0.0), probability)
        choices = (Choice(*key, probability) for key, probability in best.items() if place < probability)
        return Sampling(tuple(choices), tuple(tallies))

    @property
    def hears_complaints(self) -> bool:
        """Tell whether negative feedback makes any rule choose."""
        return any("negative_feedback" in rule.always for rule, _ in self._rules)

    def sample_complaint(self, trace: Trace) -> tuple[Choice, ...]:
        """Choose evaluations for a trace of which an end user complained later.

        Only rules that always judge negative feedback choose here: what the others leave to chance was decided when
        the trace came.
        """
        wanted = (
            (judge, rule.model)
            for rule, matches in self._rules
            if "negative_feedback" in rule.always and matches(trace)
            for judge in rule.judges
        )
        return tuple(Choice(judge, model, 1.0) for judge, model in dict.fromkeys(wanted))


def _is_always(rule: Rule, trace: Trace) -> bool:
    if "error" in rule.always and trace.error:
        return True
    return "negative_feedback" in rule.always and trace.feedback is not None and trace.feedback.score < 0


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
