"""Conversations: how their traces are stored, and the thread that chooses their evaluations when they are due.

Ingest and replays add the traces in the steps that choose (scripts `choose` and `replay`), and set when a conversation
is due. All effects of a judging are in the script `session_choose`: a worker that dies leaves a conversation as it was,
and another one judges it. Quiet conversations are dropped.
"""

import contextlib
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct
from prometheus_client import Counter as CounterMetric

from judges.core.judge import Judge
from judges.core.sessions import in_order, join, part, session_id_of
from judges.core.verdict import Origin
from tracejudge import Trace
from tracejudge.log import Once
from worker.base.forget.forget import Eraser, Forgetting, Owner
from worker.core.config.graders import Graders
from worker.core.config.settings import MAX_SESSION_BYTES, SESSION_MAX, Settings
from worker.core.features import ChooseLimits, IngestHook, TraceHookContext
from worker.core.queue.batch import Session
from worker.core.queue.notify import Notifier
from worker.core.selection.evaluations import (
    BatchWriter,
    ChosenEvaluation,
    EvaluationFactory,
    leave_out_shed,
    publication_parts,
)
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.storage.client import Store, StoreError
from worker.core.storage.group_reader import entry_position
from worker.core.telemetry.backlog import Backpressure
from worker.core.telemetry.metrics import Metric, Metrics, MetricTable
from worker.core.telemetry.service import ServiceThread
from worker.features.sessions.feature import SESSION_IDLE, SESSION_KEEP, SessionKeys

log = structlog.get_logger("tracejudge.ingest")
_PRESSURE_PAUSE_S: Final = 0.2
_LEASE_MS: Final = 15_000
# Conversations of one script call, read this many at once: each may have as many bytes as the largest trace.
_PART_COUNT: Final = 64
_PART_BYTES: Final = 8 * 1024 * 1024
_READ_AT_ONCE: Final = 8


class GatheredTrace(Struct, frozen=True, omit_defaults=True):
    """A trace of a conversation, without what only judges of single traces need."""

    entry_id: str  # Its entry in the stream.
    # The evaluations of the conversation that it was chosen for; another trace may have others.
    choices: tuple[Choice, ...]
    trace: Trace
    origin: Origin = "live"  # `live`, or `replay` in the conversations that a replay gathers.


class StoredTrace(NamedTuple):
    """A gathered trace with its number in the conversation and the hash of its publication."""

    number: int
    publication: str
    gathered: GatheredTrace


class StoredSession(NamedTuple):
    """The content of ``session:<id>``; all numbers are 0 if it is absent. ``total`` counts all traces that came."""

    total: int
    judged: int
    generation: int
    bytes: int
    traces: Sequence[StoredTrace]

    @property
    def origin(self) -> Origin:
        """The origin of the next verdict: only the first verdict of a live conversation is `live`."""
        if any(stored.gathered.origin == "replay" for stored in self.traces):
            return "replay"
        return "session_update" if self.generation else "live"

    @property
    def has_grown(self) -> bool:
        """Whether it is judged now: for the first time, or again because it has grown by half."""
        return self.total > 0 and 2 * self.total >= 3 * self.judged


_NUMBERS: Final = (b"count", b"judged", b"generation", b"bytes")
_encoder: Final = msgspec.json.Encoder()
_decode: Final = msgspec.json.Decoder(GatheredTrace).decode


def decode_session(fields: Mapping[bytes, bytes]) -> StoredSession:
    """Read a conversation, its traces in the order of their entries; traces of another version are left out."""
    total, judged, generation, size = (int(fields.get(name, 0)) for name in _NUMBERS)
    traces = []
    for field, value in fields.items():
        if field[:1] == b"t":
            publication, _, text = value.partition(b" ")
            try:
                traces.append(StoredTrace(int(field[1:]), publication.decode(), _decode(text)))
            except msgspec.DecodeError:
                continue
    # Several workers read the stream at once, so that the numbers do not follow it.
    traces.sort(key=lambda stored: entry_position(stored.gathered.entry_id))
    return StoredSession(total, judged, generation, size, traces)


class SessionGathering(IngestHook):
    """Gathers the traces of conversations."""

    def __init__(self, context: TraceHookContext) -> None:
        self._settings, self._keys = context.settings, SessionKeys(context.ledger.store.keys.prefix)

    def limits(self, limits: ChooseLimits) -> ChooseLimits:
        """Add the limits of worker/core/storage/scripts/sessions.lua."""
        settings = self._settings
        sessions = {
            "max": SESSION_MAX.read(settings),
            "max_bytes": settings.max_trace_bytes,
            "idle_ms": int(SESSION_IDLE.read(settings) * 1000),
            "keep_ms": int(SESSION_KEEP.read(settings) * 1000),
            "ttl_s": settings.ledger_ttl_s,
        }
        return limits._replace(sessions=sessions)

    def gather(
        self, writer: BatchWriter, entry: TraceEntry, choices: tuple[Choice, ...], replay: str = ""
    ) -> Mapping[str, object] | None:
        """Add a trace to its conversation; the part of a replay names the conversation of live traffic too."""
        session = session_id_of(entry.trace, replay)
        trace = GatheredTrace(entry.entry_id, choices, part(entry.trace), "replay" if replay else "live")
        live = {"live": writer.key(self._keys.session(session_id_of(entry.trace)))} if replay else {}
        return {
            **live,
            "key": writer.key(self._keys.session(session)),
            "member": session,
            "publication": hashlib.blake2b(publication_parts(entry), digest_size=8).hexdigest(),
            "text": writer.payload(_encoder.encode(trace)),
        }


class SessionAnswer(Struct):
    """The answer of ``session_choose``."""

    batch_ids: tuple[str, ...] = msgspec.field(default=(), name="made")  # The new batches.
    ended: Mapping[str, int] = {}  # The number of conversations by outcome.
    waiting: Mapping[str, int] = {}  # The bytes of waiting batches by judge model.
    shed: Mapping[str, int] = {}  # The number of shed evaluations by judge model.


class DueSession(NamedTuple):
    """A conversation that is due, or is dropped early because there are too many."""

    session_id: str
    stored: StoredSession


class _Group(NamedTuple):
    trace: Trace
    evaluations: Sequence[ChosenEvaluation]


class SessionChooser:
    """Chooses evaluations of conversations under one configuration."""

    def __init__(self, settings: Settings, store: Store, judges: Mapping[str, Judge], graders: Graders) -> None:
        """Use the judges, by name, and their graders."""
        self._settings = settings
        self._store = store
        self._graders = graders
        self._units = {name: judge.unit for name, judge in judges.items()}
        self._factory = EvaluationFactory(self._graders)

    def choose(
        self, due: Sequence[DueSession], shed: frozenset[str] = frozenset(), *, drops: bool = False
    ) -> SessionAnswer:
        """Choose evaluations of conversations that have grown, drop the others, in one step, which is safe to repeat.

        At least one is due. A conversation for a model in ``shed`` stays due. ``drops`` drops all of them, also those
        that would stay for their next judging.
        """
        keys = self._store.keys
        writer = BatchWriter.for_choosing(self._settings, keys, keys.sessions_due, keys.sessions)
        key_of = SessionKeys(keys.prefix).session
        sessions = []
        for session_id, stored in due:
            groups = self._groups(stored) if stored.has_grown else []
            away: Counter[str] = Counter()
            kept = []
            for group in groups:
                evaluations, gone = leave_out_shed(group.evaluations, shed)
                away += gone
                kept.append(group._replace(evaluations=evaluations))
            # Evaluations are shed only if they cannot wait for their judge model.
            waits = bool(away) and not drops
            wait_s = SESSION_IDLE.read(self._settings) if waits else SESSION_KEEP.read(self._settings)
            sessions.append(
                {
                    "key": writer.key(key_of(session_id)),
                    "member": session_id,
                    "count": stored.total,
                    "generation": stored.generation,
                    "bytes": stored.bytes,
                    "is_judged": bool(groups) and not waits,
                    # A replay brings no further traces.
                    "is_dropped": not waits and (drops or not groups or stored.origin == "replay"),
                    "wait_ms": int(wait_s * 1000),
                    "shed": {} if waits else dict(away),
                    "groups": [
                        {"evaluations": writer.evaluations(group.evaluations, group.trace)}
                        for group in ([] if waits else kept)
                        if group.evaluations
                    ],
                }
            )
        return msgspec.json.decode(
            self._store.run("session_choose", *writer.finish({"sessions": sessions})), type=SessionAnswer
        )

    def _groups(self, stored: StoredSession) -> list[_Group]:
        """Make the evaluations that the traces were chosen for; each sees only the traces chosen for it."""
        places: dict[tuple[str, str], list[int]] = {}
        best: dict[tuple[str, str], float] = {}
        for place, trace in enumerate(stored.traces):
            for judge, model, probability in trace.gathered.choices:
                # The configuration may have changed since.
                if self._units.get(judge) == "session" and self._graders.has_grader(model):
                    places.setdefault((judge, model), []).append(place)
                    best[judge, model] = max(best.get((judge, model), 0.0), probability)
        alike: dict[tuple[int, ...], list[Choice]] = {}
        for (judge, model), chosen in places.items():
            alike.setdefault(tuple(chosen), []).append(Choice(judge, model, best[judge, model]))
        groups = []
        for shown, choices in alike.items():
            traces = in_order([stored.traces[place].gathered.trace for place in shown])
            trace_ids = dict.fromkeys(trace.trace_id for trace in traces)
            of = Session(stored.generation + 1, stored.total, tuple(trace_ids))
            groups.append(_Group(join(traces), self._factory.make_session(traces[0], choices, stored.origin, of)))
        return groups


OUTCOMES: Final = ("judged", "updated", "dropped", "expired")
"""Judged for the first time, judged again, dropped without a judging, expired in Redis."""


class SessionMetrics(MetricTable):
    """The metrics of conversations."""

    # fmt: off
    sessions = Metric(CounterMetric, "sessions_total", "conversations", ("outcome",),
        f"Conversations whose gathering ended, by outcome: {', '.join(OUTCOMES)}",
        values=OUTCOMES)


class _Due(NamedTuple):
    """Ids of conversations to judge or drop, and whether that is earlier than they are due."""

    ids: Sequence[str]
    is_early: bool


class SessionPasses(ServiceThread):
    """Looks for conversations that are due; of several workers one does at a time."""

    role = "ingest"
    shares = True

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        chooser: SessionChooser,
        notifier: Notifier,
        pressure: Backpressure,
    ) -> None:
        """Let ``pressure`` decide when nothing is chosen, and for which judge models."""
        super().__init__("sessions")
        self._store = store
        self._metrics = metrics
        self._max_bytes = MAX_SESSION_BYTES.read(settings)
        self._chooser = chooser
        self._notifier = notifier
        self._pressure = pressure
        self._holder = secrets.token_hex(8)
        self._minute = Once(time.monotonic)
        self._look_every_s = min(1.0, SESSION_IDLE.read(settings))

    def run_once(self) -> None:
        """Choose the evaluations of some conversations that are due, or wait."""
        if self._pressure.bounds.paused:
            # Ingest adds no trace meanwhile.
            self.pause(_PRESSURE_PAUSE_S)
            return
        ids, is_early = self._due()
        if not ids or not self._store.acquire_lock(self._store.keys.sessions_pass, self._holder, _LEASE_MS):
            self.pause(self._look_every_s)
            return
        for due in self._read(ids):
            answer = self._chooser.choose(due, self._pressure.bounds.shed, drops=is_early)
            if answer.batch_ids:
                self._pressure.set_waiting(answer.waiting)
            for outcome, amount in answer.ended.items():
                self._metrics.table(SessionMetrics).sessions.labels(outcome).inc(amount)
            for judge_model, amount in answer.shed.items():
                self._metrics.shed.labels(judge_model).inc(amount)
            self._notifier.notify_batches(answer.batch_ids)
            self.record_progress()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread, and leave the conversations to another worker."""
        ended = super().stop(timeout_s)
        if ended:
            with contextlib.suppress(StoreError):
                self._store.release_lock(self._store.keys.sessions_pass, self._holder)
        return ended

    def _due(self) -> _Due:
        """Find conversations that are due; if all together take too many bytes, the next ones."""
        keys, now_ms = self._store.keys, self._store.now_ms()
        due, size = self._store.pipeline(
            lambda pipe: (
                pipe.zrangebyscore(keys.sessions_due, "-inf", now_ms, 0, _PART_COUNT),
                pipe.hget(keys.sessions, "bytes"),
            )
        )
        is_early = int(size or 0) > self._max_bytes
        if is_early:
            if self._minute.take("early"):
                log.warning("conversations judged early", bytes=int(size), reason="they exceed max_session_bytes")
            due = self._store.call(lambda client: client.zrange(keys.sessions_due, 0, _PART_COUNT - 1))
        return _Due([raw.decode() for raw in due], is_early)

    def _read(self, ids: Sequence[str]) -> Iterator[list[DueSession]]:
        key_of = SessionKeys(self._store.keys.prefix).session
        part: list[DueSession] = []
        size = 0
        for first in range(0, len(ids), _READ_AT_ONCE):
            some = ids[first : first + _READ_AT_ONCE]
            sessions = map(decode_session, self._store.read_hashes(map(key_of, some)))
            for session in map(DueSession, some, sessions):
                if part and size + session.stored.bytes > _PART_BYTES:
                    yield part
                    part, size = [], 0
                part.append(session)
                size += session.stored.bytes
        yield part


class SessionEraser(Eraser):
    """Erases traces in ``session:<id>``."""

    def __init__(self, run: Forgetting) -> None:
        super().__init__(run)
        self._key_of = SessionKeys(run.store.keys.prefix).session

    def owners(self) -> Iterator[Owner]:
        """Yield the owners of all gathered traces."""
        for _, stored in self._conversations():
            yield from map(_owner_of, stored.traces)

    def erase(self) -> None:
        """Erase the traces of the target, which count as ``gathered``."""
        store, keys = self.run.store, self.run.store.keys
        for session, stored in self._conversations():
            owned = [trace for trace in stored.traces if self.run.target.owns(_owner_of(trace))]
            self.run.result.gathered += len(owned)
            if owned and not self.run.dry_run:
                names = (self._key_of(session), keys.sessions_due, keys.sessions, keys.account_now(), keys.account_all)
                flat = [part for trace in owned for part in (trace.number, trace.publication)]
                store.run("forget_session", names, (session, *flat))

    def _conversations(self) -> Iterator[tuple[str, StoredSession]]:
        store = self.run.store
        members = store.call(lambda client: client.zrange(store.keys.sessions_due, 0, -1))
        for seen, raw in enumerate(members, 1):
            fields = store.call(methodcaller("hgetall", self._key_of(raw.decode())))
            yield raw.decode(), decode_session(fields)
            self.run.progress("conversations", seen)


def _owner_of(stored: StoredTrace) -> Owner:
    trace = stored.gathered.trace
    return Owner(trace.trace_id, trace.user_id, trace.session_id)
