"""Late feedback: collected for a while, then its traces are searched in one pass over the stream and judged.

Ingest has moved the feedback from the stream into a sorted set and acknowledged it there. It stays in the set
until the script ``choose_late_feedback`` removes it in the step that writes the batches: if a worker dies, another
repeats its pass.

Feedback goes to the partition of its trace id, but the trace may be in the partition of its session. So a partition
without the trace hands the feedback to the next one, and the last one counts it as not found.

Nothing is chosen for a judge model that is away while too much of its work waits. Feedback that asks for it is
postponed from pass to pass until the model is back, or until the stream's caps have removed the trace.
"""

import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import redis
import structlog
from msgspec import Struct

from tracejudge import Feedback, Trace
from worker.core.config.settings import Settings
from worker.core.queue.notify import Notifier
from worker.core.selection.evaluations import BatchWriter, ChosenEvaluation, EvaluationFactory
from worker.core.selection.sampling import Choice, Rules
from worker.core.selection.stream_entry import WIRE_VERSION, TraceEntry, read_entry, trace_id_of
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import CHUNK_BYTES, next_count
from worker.core.telemetry.backlog import Backpressure
from worker.core.telemetry.metrics import Metrics
from worker.core.telemetry.service import ServiceThread
from worker.features.late_feedback.feature import WAIT
from worker.features.late_feedback.pending import FeedbackMember, PendingFeedback

log = structlog.get_logger("tracejudge.ingest")

# About as much is searched at once: Redis and the other threads of the process wait meanwhile.
_PIECE_COUNT: Final = 300
_READ_AT_ONCE: Final = 100
_PRESSURE_PAUSE_S: Final = 0.2
# Bounds of one script call.
_PART_MEMBERS: Final = 500
_PART_PUBLICATIONS: Final = 200
_PART_BYTES: Final = 8 * 1024 * 1024


class PublicationRef(NamedTuple):
    """The entry of one publication of a trace, and the length of its payload."""

    entry_id: str
    size: int


class _EntryId(NamedTuple):
    ms: int
    number: int

    @classmethod
    def read(cls, raw: bytes) -> "_EntryId":
        ms, _, number = raw.partition(b"-")
        return cls(int(ms), int(number))

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


_NOTHING: Final = _EntryId(0, 0)


class TraceIndex:
    """Entries of traces in the stream, as far as one process has read it and they are still there."""

    def __init__(self) -> None:
        self.last = _NOTHING
        # Hashes may collide: the reader of an entry compares the trace ids.
        self._hashes, self._times, self._numbers, self._sizes = array("q"), array("Q"), array("Q"), array("I")

    def __len__(self) -> int:
        return len(self._hashes)

    def begin(self, oldest: _EntryId, newest: _EntryId) -> None:
        """Remove the entries that have left the stream; all of them if it is another stream."""
        gone = bisect_left(self._times, oldest.ms)
        if newest < self.last:
            self.last, gone = _NOTHING, len(self)
        for column in (self._hashes, self._times, self._numbers, self._sizes):
            del column[:gone]

    def add(self, entry_id: _EntryId, trace_id: str, size: int) -> None:
        """Add a trace; entries come in their order."""
        self._hashes.append(hash(trace_id))
        self._times.append(entry_id.ms)
        self._numbers.append(entry_id.number)
        self._sizes.append(size)

    def find(self, trace_ids: Iterable[str]) -> dict[str, deque[PublicationRef]]:
        """Find the publications of traces; only the newest of a trace that has very many."""
        publications: dict[str, deque[PublicationRef]] = {name: deque(maxlen=100) for name in trace_ids}
        by_hash = {hash(trace_id): trace_id for trace_id in publications}
        for row in [row for row, value in enumerate(self._hashes) if value in by_hash]:
            entry_id = f"{self._times[row]}-{self._numbers[row]}"
            publications[by_hash[self._hashes[row]]].append(PublicationRef(entry_id, self._sizes[row]))
        return publications


class Search:
    """The search of one pass. It keeps no payloads, only entry ids."""

    def __init__(self, store: Store, trace_ids: Iterable[str], index: TraceIndex) -> None:
        """Begin behind the last entry that the index knows."""
        self.read = 0
        self._store = store
        self._index = index
        self._trace_ids = list(trace_ids)
        self._publications: dict[str, deque[PublicationRef]] = {}
        self._last: _EntryId | None = None
        self._count = 32

    def step(self) -> bool:
        """Index the next piece of the stream; True while there may be more. After ``StoreError`` it is read again."""
        traces = self._store.keys.traces
        if self._last is None:
            # The end of the pass is fixed here: it would never catch up with a stream that fills as fast as it reads.
            oldest = self._store.call(lambda client: client.xrange(traces, count=1))
            newest = self._store.call(lambda client: client.xrevrange(traces, count=1))
            first, self._last = (_EntryId.read(entries[0][0]) if entries else _NOTHING for entries in (oldest, newest))
            self._index.begin(first, self._last)
        after, last = self._index.last, self._last
        entries = self._store.call(
            lambda client: client.xrange(traces, min=f"({after}", max=str(last), count=self._count)
        )
        size = 0
        for raw_id, fields in entries:
            entry_id = self._index.last = _EntryId.read(raw_id)
            payload = fields.get(b"t")
            if payload is None or fields.get(b"v") != WIRE_VERSION:
                continue
            size += len(payload)
            # A payload without trace id is invalid, and ingest has counted it.
            if (trace_id := trace_id_of(payload)) is not None:
                self._index.add(entry_id, trace_id, len(payload))
        self.read += len(entries)
        if len(entries) == self._count:
            self._count = next_count(self._count, len(entries), size, most=_PIECE_COUNT, most_bytes=CHUNK_BYTES)
            return True
        self._publications = self._index.find(self._trace_ids)
        return False

    def list_publications(self, trace_id: str) -> list[PublicationRef]:
        """Return a trace's publications; only the newest if they are very many or very large."""
        taken: list[PublicationRef] = []
        size = 0
        # From the newest: past the bound the oldest publications are left out.
        for publication in reversed(self._publications[trace_id]):
            size += publication.size
            if taken and size > 32 * 1024 * 1024:
                break
            taken.append(publication)
        return taken[::-1]


class FeedbackOnTrace(NamedTuple):
    """The feedback on one trace, the oldest first, and the entries of the trace's publications."""

    trace_id: str
    members: Sequence[FeedbackMember]
    publications: Sequence[PublicationRef]


class SelectionResult(Struct):
    """The answer of ``choose_late_feedback``: amounts by outcome, batches, and members for models that are shed."""

    outcomes: Mapping[str, int] = {}
    batch_ids: tuple[str, ...] = msgspec.field(default=(), name="made")
    later: tuple[str, ...] = ()


class _Publication(NamedTuple):
    """One publication of a trace, as if its newest feedback had come with it, and the evaluations chosen for it."""

    entry_id: str
    trace: Trace
    evaluations: Sequence[ChosenEvaluation]


def late_choices(rules: Rules, trace: Trace) -> list[Choice]:
    """Choose evaluations for a trace with late negative feedback, by the rules that always judge it."""
    always = (compiled for compiled in rules.matching(trace).rules if "negative_feedback" in compiled.rule.always)
    evaluations = dict.fromkeys(evaluation for compiled in always for evaluation in compiled.evaluations)
    return [Choice(judge, grader, 1.0) for judge, grader in evaluations]


class FeedbackChooser:
    """Chooses evaluations for traces with late feedback under one configuration."""

    def __init__(self, settings: Settings, store: Store, rules: Rules) -> None:
        self._settings = settings
        self._store = store
        self._rules = rules
        self._factory = EvaluationFactory(rules.graders)

    def choose(self, part: Sequence[FeedbackOnTrace], shed: Collection[str] = frozenset()) -> SelectionResult:
        """Write the batches that the rules ask for and end the feedback, in one step, which is safe to repeat.

        Feedback on a trace that ingest has not acknowledged stays for the next pass. Feedback that asks for a judge
        model in ``shed`` is left unchanged; the caller postpones it.
        """
        entries = self._read([ref.entry_id for feedback in part for ref in feedback.publications])
        now: list[tuple[FeedbackOnTrace, list[_Publication]]] = []
        later: list[str] = []
        for feedback in part:
            newest = feedback.members[-1].item
            there = (entries[ref.entry_id] for ref in feedback.publications if ref.entry_id in entries)
            read = (read_entry(entry, self._settings.max_trace_bytes) for entry in there)
            publications = [
                _Publication(
                    entry.entry_id,
                    msgspec.structs.replace(entry.trace, feedback=Feedback(newest.score, newest.comment)),
                    self._factory.make(entry, late_choices(self._rules, entry.trace), "late_feedback"),
                )
                for entry in read
                if isinstance(entry, TraceEntry) and entry.trace.trace_id == feedback.trace_id
            ]
            # A panel is chosen together with its members, so that their judge models are among these.
            asked = {grader.judge_model for each in publications for grader, _ in each.evaluations}
            if asked.isdisjoint(shed):
                now.append((feedback, publications))
            else:
                later += [member.raw for member in feedback.members]
        result = self._run(now) if now else SelectionResult()
        return msgspec.structs.replace(result, later=tuple(later))

    def _run(self, part: Sequence[tuple[FeedbackOnTrace, Sequence[_Publication]]]) -> SelectionResult:
        keys = self._store.keys
        writer = BatchWriter.for_choosing(self._settings, keys, keys.feedback)
        traces = [
            {
                "members": [member.raw for member in feedback.members],
                "publications": [
                    {
                        "id": publication.entry_id,
                        "evaluations": writer.evaluations(publication.evaluations, publication.trace),
                    }
                    for publication in publications
                ],
            }
            for feedback, publications in part
        ]
        plan = {"wait_ms": int(WAIT.read(self._settings) * 1000), "traces": traces}
        return msgspec.json.decode(self._store.run("choose_late_feedback", *writer.finish(plan)), type=SelectionResult)

    def _read(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """Read entries again, without those that were trimmed away since the search."""

        def read(some: Sequence[str], pipe: "redis.client.Pipeline") -> None:
            # One command each: the entries lie far apart in the stream.
            for entry_id in some:
                pipe.xrange(self._store.keys.traces, min=entry_id, max=entry_id)

        chunks = (entry_ids[first : first + _READ_AT_ONCE] for first in range(0, len(entry_ids), _READ_AT_ONCE))
        replies = [reply for chunk in chunks for reply in self._store.pipeline(partial(read, chunk))]
        return {entry_id: entries[0] for entry_id, entries in zip(entry_ids, replies, strict=True) if entries}


class _Pass:
    """One pass under way: search first, then process one part after another."""

    def __init__(self, store: Store, members: list[FeedbackMember], index: TraceIndex) -> None:
        self.began_at = time.monotonic()
        self.outcomes: Counter[str] = Counter()
        self.part: list[FeedbackOnTrace] | None = None
        self._members: dict[str, list[FeedbackMember]] = {}
        for member in members:
            self._members.setdefault(member.item.trace_id, []).append(member)
        self.search = Search(store, self._members, index)
        self.seeking = True
        self._parts = self._divide()

    def advance(self) -> None:
        """Go on to the next part; it is None after the last."""
        self.part = next(self._parts, None)

    def _divide(self) -> Iterator[list[FeedbackOnTrace]]:
        """Divide the feedback into parts for one script call each; the feedback on one trace is never divided."""
        part: list[FeedbackOnTrace] = []
        members = publications = size = 0
        for trace_id, about in self._members.items():
            feedback = FeedbackOnTrace(trace_id, about, self.search.list_publications(trace_id))
            bytes_ = sum(publication.size for publication in feedback.publications)
            members, publications, size = members + len(about), publications + len(feedback.publications), size + bytes_
            if part and (members > _PART_MEMBERS or publications > _PART_PUBLICATIONS or size > _PART_BYTES):
                yield part
                part, members, publications, size = [], len(about), len(feedback.publications), bytes_
            part.append(feedback)
        if part:
            yield part


class LateFeedbackPasses(ServiceThread):
    """The passes of one worker; of several workers one makes a pass at a time."""

    role = "ingest"
    shares = True

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        rules: Rules,
        notifier: Notifier,
        pressure: Backpressure,
    ) -> None:
        """Let ``pressure`` decide when nothing is chosen, and for which judge models."""
        super().__init__("late-feedback")
        self._store = store
        self._metrics = metrics
        self._feedback = PendingFeedback(store, WAIT.read(settings))
        self._chooser = FeedbackChooser(settings, store, rules)
        self._notifier = notifier
        self._pressure = pressure
        self._look_every_s = min(1.0, WAIT.read(settings))
        self._index = TraceIndex()
        self._pass: _Pass | None = None

    def run_once(self) -> None:
        """Begin a pass that is due, or make one piece of it."""
        current = self._pass
        if current is None:
            if self._feedback.is_due() and self._feedback.acquire():
                self._pass = _Pass(self._store, self._feedback.read_all(), self._index)
            else:
                self.pause(self._look_every_s)
        elif not self._feedback.acquire():
            # This worker was away for longer than the lease, and another one repeats the pass from its beginning.
            self._pass = None
        elif current.seeking:
            current.seeking = current.search.step()
            if current.seeking:
                # So that a pass never delays reading and judging.
                self.pause(0.005)
            else:
                current.advance()
        elif current.part is None:
            seconds = round(time.monotonic() - current.began_at, 2)
            log.info("late feedback pass ended", entries=current.search.read, seconds=seconds, **current.outcomes)
            self._pass = None
            self._feedback.release()
        elif self._pressure.bounds.paused:
            # The lease is renewed by each turn, so a pause does not lose the pass.
            self.pause(_PRESSURE_PAUSE_S)
        else:
            self.choose(current, current.part)

    def choose(self, current: _Pass, part: list[FeedbackOnTrace]) -> None:
        """Choose evaluations for one part of a pass; postpone or hand on the rest to partitions. Safe to repeat."""
        here: list[FeedbackOnTrace] = []
        is_away = False
        for feedback in part:
            try:
                # Each wait for a partition that is away takes seconds, and the lease of the pass ends meanwhile.
                passed = not feedback.publications and [
                    self._feedback.hand_over(member, asks_away=not is_away) for member in feedback.members
                ]
            except StoreError as error:
                if not is_away:
                    log.info("late feedback waits for a partition", error=str(error))
                is_away = True
                self._feedback.postpone([member.raw.encode() for member in feedback.members])
                continue
            if not passed or not all(passed):
                here.append(feedback)
            elif self.wake is not None:
                # The next partition searches at once if this worker serves it: else each of many costs a second.
                self.wake.set()
        result = self._chooser.choose(here, self._pressure.bounds.shed)
        if result.later:
            self._feedback.postpone([raw.encode() for raw in result.later])
        current.advance()
        current.outcomes.update(result.outcomes)
        for outcome, amount in result.outcomes.items():
            self._metrics.late_feedback.labels(outcome).inc(amount)
        self._notifier.notify_batches(result.batch_ids)
