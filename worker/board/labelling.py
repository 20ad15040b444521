"""The queue of verdicts to check: which one an annotator is asked about next."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from worker.board.index import IndexedVerdict, VerdictIndex, condition
from worker.monitor.answers import Answer, lock, mark_drawn, of_label
from worker.monitor.label_store import Drawn, label_id
from worker.storage.client import Store
from worker.verdict_filter import VerdictFilter

Kind = Literal["random", "failing", "uncertain", "disagreeing", "second"]
KINDS: Final[Mapping[Kind, str]] = {
    "random": "drawn at random",
    "failing": "failing",
    "uncertain": "uncertain",
    "disagreeing": "judges disagree",
    "second": "second opinion",
}
"""`second` are questions that another annotator has answered."""
RATES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
_WANTED: Final = 400
"""About how many verdicts the default rate draws: as many as ± 5 points need."""
_MOST: Final = 2_000
_LIVE: Final = 2
_SPLIT: Final = (
    "SELECT trace_id FROM verdicts WHERE passed IS NOT NULL "
    "GROUP BY trace_id, judge, metric HAVING min(passed) < max(passed)"
)
_DISAGREEING: Final = f"rated > 0 AND trace_id IN ({_SPLIT})"


class Queue(NamedTuple):
    """What an annotator wants to be asked about."""

    kind: Kind = "random"
    service: str = ""
    judge: str = ""
    rate: float = 0.0
    """Share of the live verdicts that are drawn; 0 for one that suits their number."""

    @property
    def wanted(self) -> VerdictFilter:
        """The filter of its verdicts."""
        return VerdictFilter((self.service,) if self.service else (), (self.judge,) if self.judge else ())


class Question(NamedTuple):
    """One verdict to check, and how it was chosen."""

    row: IndexedVerdict
    drawn: Drawn

    @property
    def label_id(self) -> str:
        """The id of the label that an answer gives."""
        return label_of(self.row)


def label_of(row: IndexedVerdict) -> str:
    """Return the id of the label of a verdict's first metric."""
    return label_id(row.trace_id, row.span_id, row.judge, row.metric)


def is_drawn(row: IndexedVerdict, rate: float) -> bool:
    """Return whether a random queue of this rate has a verdict."""
    return row.rated == _LIVE and row.place < rate


class LabelQueue:
    """Chooses the next question. Answers and locks are in Redis, so several boards share one queue."""

    def __init__(self, store: Store, index: VerdictIndex) -> None:
        self._store = store
        self._index = index

    def rate(self, queue: Queue) -> float:
        """Return the rate of a random queue, by default the one that draws about 400 of the verdicts there are."""
        if queue.rate:
            return min(RATES, key=lambda rate: abs(rate - queue.rate))
        where, values = condition(queue.wanted)
        ((count,),) = self._index.query(
            f"SELECT count(*) FROM verdicts WHERE {where} AND rated = 2",  # noqa: S608 - constants
            values,
        )
        return next((rate for rate in reversed(RATES) if count * rate >= _WANTED), 1.0)

    def next(
        self, queue: Queue, annotator: str, answers: Mapping[str, list[Answer]], skipped: frozenset[str]
    ) -> Question | None:
        """Return the next question that the annotator has not answered and nobody else has open, and lock it.

        Args:
            queue: What is wanted.
            annotator: The hash of the annotator's name.
            answers: All answers by label.
            skipped: Labels that the annotator skipped.
        """
        # Once: it counts the verdicts of the index.
        rate = self.rate(queue) if queue.kind == "random" else 0.0
        for row in self._candidates(queue, rate, answers):
            name = label_of(row)
            given = answers.get(name, ())
            is_second = queue.kind == "second"
            by_others = [one for one in given if one.annotator != annotator]
            if queue.kind == "random" and given and all(one.drawn == "queue" for one in given):
                mark_drawn(self._store, given, rate)
            if name in skipped or len(by_others) < len(given) or bool(by_others) is not is_second:
                continue
            # Somebody may have answered between the reading of all answers and the lock.
            if lock(self._store, name, annotator) and (is_second or not of_label(self._store, name)):
                drawn: Drawn = rate if queue.kind == "random" else "queue"
                return Question(row, by_others[0].drawn if by_others else drawn)
        return None

    def _candidates(self, queue: Queue, rate: float, answers: Mapping[str, list[Answer]]) -> Iterable[IndexedVerdict]:
        wanted = queue.wanted
        if queue.kind == "random":
            # Every verdict has a place of its own below 1, as a trace has in sampling: those below the rate are drawn,
            # in the order of their places, so that what is answered so far is a random part of them.
            rows = self._index.rows(wanted, limit=_MOST, extra="rated = 2", order="place")
            return [row for row in rows if is_drawn(row, rate)]
        if queue.kind == "failing":
            return self._index.rows(wanted, limit=_MOST, extra="rated > 0 AND outcome = 'failed'")
        if queue.kind == "uncertain":
            order = "abs(probability - 0.5), rowid DESC"
            return self._index.rows(wanted, limit=_MOST, extra="rated > 0 AND probability IS NOT NULL", order=order)
        if queue.kind == "second":
            found = (self._index.find(given[0].evaluation_id) for given in answers.values())
            return (
                row for row in found if row and queue.service in {"", row.service} and queue.judge in {"", row.judge}
            )
        return self._index.rows(wanted, limit=_MOST, extra=_DISAGREEING)
