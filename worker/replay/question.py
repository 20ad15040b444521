"""What a replay asks for, and which evaluations that makes of a trace."""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from judges.catalog import configured
from judges.judge import Judge
from tracejudge import Trace
from worker.ingest.choosing import Chosen, Naming
from worker.ingest.entries import TraceEntry
from worker.sampling import Choice, Sampler, position
from worker.seats import Seats
from worker.settings import Settings

__all__ = ["QUESTION_VERSION", "Chooser", "Question", "ruling"]

QUESTION_VERSION: Final = 1


class Question(Struct, frozen=True, kw_only=True):
    """One replay's question, as it is kept with its position. Version 1.

    Attributes:
        judges: Versions of the wanted judges by name.
        first: Id of the first entry, or the bound it was sought from.
        last: Id of the last entry.
        service: Pattern of the publishing service; None is any.
        model: For judges that no rule names: which `[models.NAME]` judges.
        rate: For judges that no rule names: which share of the traces they judge.
        dry_run: Count only.
    """

    v: int = QUESTION_VERSION
    judges: Mapping[str, str]
    first: str
    last: str
    service: str | None = None
    model: str = "default"
    rate: float = 1.0
    dry_run: bool = False


def ruling(settings: Settings, judge: str) -> str | None:
    """Give the name of a rule that names a judge, None where none does."""
    return next((rule.name for rule in settings.rules if judge in rule.judges), None)


class Chooser:
    """Chooses as ingest does: the same rules, the same place of each trace, the same ids of evaluations.

    Where no rule names a judge, there is nothing to go by but the question: that judge gets every trace of the
    service, or the share that a rule with this rate would choose.
    """

    def __init__(self, settings: Settings, question: Question, judges: Iterable[Judge]) -> None:
        """Take the wanted judges as they are configured."""
        wanted = {judge.name: judge for judge in judges}
        self._settings = settings
        self._question = question
        self._seats = Seats(settings, {**configured(settings.judges), **wanted})
        self._versions = {name: judge.version for name, judge in wanted.items()}
        self._free = [name for name in self._versions if ruling(settings, name) is None]
        self._sampler = Sampler(settings, self._seats)
        self._naming = Naming(self._seats, self._versions)
        self._service = re.compile(fnmatch.translate(question.service or "*"))

    def choose(self, entry: TraceEntry) -> list[Chosen]:
        """Choose evaluations for a trace."""
        if self._service.match(entry.trace.service) is None:
            return []
        choices = (*self._by_rules(entry.trace), *self._by_question(entry.trace))
        return self._naming.evaluations(entry, choices, "replay")

    def _by_rules(self, trace: Trace) -> list[Choice]:
        if len(self._free) == len(self._versions):
            return []
        return [choice for choice in self._sampler.sample(trace).choices if choice.judge in self._versions]

    def _by_question(self, trace: Trace) -> list[Choice]:
        model, rate = self._question.model, self._question.rate
        if not self._free or position(trace.trace_id, self._settings.sampling_key) >= rate:
            return []
        wanted = ((judge, self._seats.for_judge(judge, model)) for judge in self._free)
        allowed = ((judge, seat) for judge, seat in wanted if self._sampler.allows(trace, seat.judge_model))
        return [Choice(judge, seat.name, rate) for judge, seat in allowed]
