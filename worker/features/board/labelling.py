"""The queue of verdicts to check: which one an annotator is asked about next."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from worker.base.lookup.label_store import Drawn, label_id, read_labels
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.series import Series, read_series
from worker.core.queue.ledger import OutboxEntry
from worker.core.storage.client import Store
from worker.features.board.index import NEWEST_FIRST, VerdictIndex, condition, leading_score
from worker.features.labels.answers import Answer, lock, mark_drawn, of_label
from worker.features.labels.correction import LABELS_S, Correction, LabelIndex, newest_corrections

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
_WANTED: Final = 400  # About how many verdicts the default rate draws: as many as ± 5 points need.
_SPLIT: Final = (
    "SELECT trace_id FROM verdicts WHERE passed IS NOT NULL "
    "GROUP BY trace_id, judge, metric HAVING min(passed) < max(passed)"
)
# Of each queue, the condition and the order. Every verdict has a place of its own below 1, as a trace has in sampling:
# those below the rate are drawn, in the order of their places, so that the answers so far are of a random part of them.
# The place of the last answer is the probability of all of them, whatever the rate is and becomes.
_CANDIDATES: Final[Mapping[Kind, tuple[str, str]]] = {
    "random": ("rated = 2 AND place < ?", "place"),
    "failing": ("rated > 0 AND outcome = 'failed'", NEWEST_FIRST),
    "uncertain": ("rated > 0 AND probability IS NOT NULL", "abs(probability - 0.5), rowid DESC"),
    "disagreeing": (f"rated > 0 AND trace_id IN ({_SPLIT})", NEWEST_FIRST),
}


class Queue(NamedTuple):
    """The selection of questions that an annotator wants."""

    kind: Kind = "random"
    service: str = ""
    judge: str = ""
    rate: float = 0.0  # Share of the live verdicts that are drawn; 0 for one that suits their number.

    @property
    def filter(self) -> VerdictFilter:
        """The filter of its verdicts."""
        return VerdictFilter((self.service,) if self.service else (), (self.judge,) if self.judge else ())


class Question(NamedTuple):
    """One verdict to check, and how it was chosen."""

    entry: OutboxEntry
    drawn: Drawn

    @property
    def metric(self) -> str:
        """The metric that is labelled."""
        return leading_score(self.entry.verdict)[0]

    @property
    def label_id(self) -> str:
        """The id of the label that an answer gives."""
        verdict = self.entry.verdict
        return label_id(verdict.trace_id, verdict.span_id or "", verdict.judge, self.metric)


def agreements(answers: Iterable[Answer]) -> dict[str, tuple[int, int]]:
    """Return how often answers agree with the verdicts of each judge, and their number."""
    counts = dict[str, tuple[int, int]]()
    for answer in answers:
        if answer.opinion != "cannot_tell":
            agreed, total = counts.get(answer.judge, (0, 0))
            counts[answer.judge] = agreed + ((answer.opinion == "pass") is answer.judged), total + 1
    return counts


class LabelQueue:
    """Chooses the next question. Answers and locks are in Redis, so several boards share one queue."""

    def __init__(self, store: Store, index: VerdictIndex) -> None:
        self._store = store
        self._index = index
        self._corrections: Mapping[Series, Sequence[Correction]] = {}
        self._corrected_at = 0.0

    def rate(self, queue: Queue) -> float:
        """Return the rate of a random queue, by default the one that draws about 400 of the verdicts there are."""
        if queue.rate:
            return min(RATES, key=lambda rate: abs(rate - queue.rate))
        where, values = condition(queue.filter)
        ((count,),) = self._index.query(
            f"SELECT count(*) FROM verdicts WHERE {where} AND rated = 2",  # noqa: S608 - constants
            values,
        )
        return next((rate for rate in reversed(RATES) if count * rate >= _WANTED), 1.0)

    def next(
        self, queue: Queue, annotator: str, answers: Mapping[str, list[Answer]], skipped: frozenset[str]
    ) -> Question | None:
        """Return the next question that the annotator has not answered and nobody else has open, and lock it.

        ``annotator`` is the hash of a name; ``answers`` are all answers by label, ``skipped`` labels to leave out.
        """
        # Once: it counts the verdicts of the index.
        rate = self.rate(queue) if queue.kind == "random" else 0.0
        reached = self.reached() if queue.kind == "random" else (0.0, 0.0)
        for evaluation_id, name, place in self._candidates(queue, rate, answers):
            earlier = answers.get(name, ())
            is_second = queue.kind == "second"
            by_others = [answer for answer in earlier if answer.annotator != annotator]
            if queue.kind == "random" and earlier and all(answer.drawn == "queue" for answer in earlier):
                mark_drawn(self._store, earlier, place, reached)
            if name in skipped or len(by_others) < len(earlier) or bool(by_others) is not is_second:
                continue
            entry = self._index.find(evaluation_id)
            # Somebody may have answered between the reading of all answers and the lock.
            if entry and lock(self._store, name, annotator) and (is_second or not of_label(self._store, name)):
                drawn: Drawn = place if queue.kind == "random" else "queue"
                return Question(entry, by_others[0].drawn if by_others else drawn)
        return None

    def reached(self) -> tuple[float, float]:
        """Return when the oldest verdict that can be asked was judged, and now."""
        now_s = self._store.now_ms() / 1000
        oldest = self._index.query("SELECT evaluation_id FROM verdicts ORDER BY at_ms, rowid LIMIT 1")
        entry = self._index.find(oldest[0][0]) if oldest else None
        # As `LabelVerdict.judged_at`, which is compared with it: its entry came into the outbox a moment later.
        return (now_s if entry is None else entry.verdict.started_at + entry.verdict.duration_s), now_s

    def corrections(self, queue: Queue) -> list[tuple[Series, Correction]]:
        """Return the shares that labels of a queue correct, or why they do not; computed at most once a minute."""
        now = time.time()
        if now >= self._corrected_at + 60:
            series = [each for each in read_series(self._store).values() if not each.segment]
            index = LabelIndex(read_labels(self._store), now - LABELS_S)
            self._corrections, self._corrected_at = newest_corrections(self._store, series, now, index), now
        return [
            (series, correction)
            for series, results in self._corrections.items()
            if queue.judge in {"", series.judge} and queue.service in {"", series.service}
            for correction in results
        ]

    def _candidates(
        self, queue: Queue, rate: float, answers: Mapping[str, list[Answer]]
    ) -> Iterable[tuple[str, str, float]]:
        """Return evaluations with the ids of their labels, and their places in the random order."""
        if queue.kind == "second":
            firsts = ((name, of_label[0]) for name, of_label in answers.items())
            return (
                (answer.evaluation_id, name, 0.0)
                for name, answer in firsts
                if queue.service in {"", answer.service} and queue.judge in {"", answer.judge}
            )
        where, values = condition(queue.filter)
        extra, order = _CANDIDATES[queue.kind]
        if queue.kind == "random":
            values.insert(0, rate)
        rows = self._index.query(
            "SELECT evaluation_id, place, trace_id, span_id, judge, metric FROM verdicts "  # noqa: S608 - constants
            f"WHERE {extra} AND {where} ORDER BY {order} LIMIT 2000",
            values,
        )
        return ((evaluation_id, label_id(*label), place) for evaluation_id, place, *label in rows)
