"""The ledger, the outbox and the dead letters, written in one step with the accounting.

A verdict is once in the ledger and once in the outbox; an evaluation given up is one dead letter. All methods raise
StoreError if Redis does not answer, and can be repeated.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from judges.core.model import CallTotals
from judges.core.verdict import Assessment, Score, Verdict
from tracejudge import Trace
from worker.core.config.settings import Settings
from worker.core.queue.batch import Batch, Evaluation, Item, fresh_id, made_at_ms
from worker.core.queue.leases import READY_MS
from worker.core.storage.client import Entry, Store
from worker.core.storage.group_reader import entry_position

RETRYABLE_REASONS: Final = frozenset(
    {"judge_unavailable", "judge_rejected", "rate_limited", "timeout", "unknown_judge_version"}
)
"""Reasons whose cause may pass by itself; the cause of an `internal_error` is a fault of ours, which stays."""
# Minimum delay of a dead letter before each automatic retry; after the last delay it is not retried.
AUTO_RETRY_DELAYS_S: Final = (60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
OUTBOX_VERSION: Final = b"1"
FIELD_BYTES: Final = 16
_MAX_LOOKUPS: Final = 500
_CHOSEN: Final = b"0"
_decode_verdict = msgspec.json.Decoder(Verdict).decode

# Escapes of control characters in JSON, which the storage of many receivers refuses, U+0000 above all; an even number
# of backslashes before one is text.
_CONTROLS: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u00[01][0-9a-fA-F]")


class OutboxEntry(NamedTuple):
    """One entry of the outbox: a final verdict (``j``) or the verdict of a new dead letter (``d``)."""

    entry_id: str
    kind: Literal["j", "d"]
    verdict: Verdict

    @property
    def written_s(self) -> float:
        """When Redis wrote it, in seconds since the epoch."""
        return entry_position(self.entry_id)[0] / 1000


def read_outbox_entry(entry: Entry) -> OutboxEntry | None:
    """Decode an entry; None when it was trimmed away, is of another version, or cannot be read."""
    raw_id, fields = entry
    if not fields or fields.get(b"v") != OUTBOX_VERSION:
        return None
    kind: Literal["j", "d"] = "j" if b"j" in fields else "d"
    payload = fields.get(kind.encode(), b"")
    if b"\\u00" in payload:
        payload = _CONTROLS.sub(rb"\1", payload)
    try:
        return OutboxEntry(raw_id.decode(), kind, _decode_verdict(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class FinalVerdict(NamedTuple):
    """A final verdict with the arguments of the script `record`."""

    evaluation_id: str
    field: bytes
    period: str
    payload: bytes
    outcome: str
    reason: str
    scores: bytes = b""  # Kept to be combined with others.
    batch_id: str = ""  # The batch that held the evaluation: it shows whether Redis has lost the choice.
    follow_ups: bytes = b""  # Batches that hooks add in this step.

    @classmethod
    def encode(
        cls, verdict: Verdict, period: str, *, keep: bool = False, batch_id: str = "", follow_ups: Sequence[Batch] = ()
    ) -> "FinalVerdict":
        """Encode a verdict; ``keep`` keeps its scores, to be combined with others."""
        name, scores = verdict.evaluation_id, b""
        if keep:
            kept = [Score(score.metric, score.value, score.raw, score.label, score.passed) for score in verdict.scores]
            scores = msgspec.json.encode(Assessment(verdict.outcome, verdict.reason, tuple(kept)))
        payload = msgspec.json.encode(verdict)
        rows = [
            (ref.id, field_of(ref.id).hex(), ref.period, batch.id, made_at_ms(batch.id), batch.judge_model, text)
            for batch, text in ((batch, msgspec.json.encode(batch).decode()) for batch in follow_ups)
            for item in batch.items
            for ref in item.evaluations
        ]
        packed = msgspec.msgpack.encode(rows) if rows else b""
        reason = verdict.reason or ""
        return cls(name, field_of(name), period, payload, verdict.outcome, reason, scores, batch_id, packed)


class EvaluationState(NamedTuple):
    """The stored state of an evaluation."""

    ended: bool  # Whether the ledger holds an outcome.
    letter: str  # `dead` or the batch of its retry if it is a dead letter, else empty.
    outcome: bytes  # Its code in the ledger, empty for none.
    scores: bytes  # Its scores kept to be combined with others, or empty.


def field_of(evaluation_id: str) -> bytes:
    """Return the ledger's field of an evaluation: its id in half as many bytes."""
    try:
        field = bytes.fromhex(evaluation_id)
    except ValueError:
        field = b""
    return field if len(field) == FIELD_BYTES else hashlib.blake2b(evaluation_id.encode(), digest_size=16).digest()


def evaluation_states(store: Store, periods: Mapping[str, str]) -> dict[str, EvaluationState]:
    """Look up evaluations, given as periods by evaluation id."""
    keys, ids = store.keys, list(periods)
    names = (keys.evaluations, keys.scores, keys.dead, keys.dead_retries)
    states: dict[str, EvaluationState] = {}
    for first in range(0, len(ids), _MAX_LOOKUPS):
        some = ids[first : first + _MAX_LOOKUPS]
        arguments = [part for name in some for part in (name, field_of(name), periods[name])]
        flat = iter(store.run("outcomes", names, arguments))
        for name, outcome, letter, scores in zip(some, flat, flat, flat, strict=True):
            ended = outcome not in {b"", _CHOSEN}
            states[name] = EvaluationState(ended, letter.decode(), outcome, scores)
    return states


class _LetterFields(Struct, frozen=True):
    """Fields of a dead letter with or without its trace.

    Its version is the version of batches that hold its evaluation; ``note`` is the verdict's. Scripts find the first
    `period` and the last `reason`: after it there must be only numbers and texts.
    """

    v: int
    evaluation: Evaluation
    grader: str = msgspec.field(name="model")
    judge_model: str
    reason: str
    attempts: int
    chosen_at: float
    given_up_at: float
    note: str = ""
    spent: CallTotals = CallTotals()


class DeadLetter(_LetterFields, frozen=True, kw_only=True):
    """An evaluation that could not be made in time, with everything a retry needs."""

    item: Item


class TraceOwner(Struct, frozen=True, omit_defaults=True):
    """The origin of a trace: the fields that a stored dead letter has of it."""

    trace_id: str
    service: str
    user_id: str | None = None


class StoredDeadLetter(_LetterFields, frozen=True, kw_only=True):
    """A dead letter in Redis: its trace, which other letters may share, is stored separately under a name."""

    trace: str
    owner: TraceOwner

    def with_trace(self, trace: Trace) -> DeadLetter:
        """Join it with its trace."""
        return DeadLetter(*_fields_of(self), item=Item(trace, (self.evaluation,)))


def _fields_of(letter: _LetterFields) -> tuple[Any, ...]:
    return tuple(getattr(letter, name) for name in _LetterFields.__struct_fields__)


class Ledger:
    """Writes verdicts and dead letters, and looks them up."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self._keys = store.keys
        self._max_outbox = settings.max_outbox
        self._ttl_s = settings.ledger_ttl_s
        # Times of automatic retries are kept this long; by then a letter is pruned.
        self._dead_ttl_s = int(settings.dead_retention + settings.ledger_ttl_s + 86_400)

    def record(self, finished: Sequence[FinalVerdict]) -> list[bool]:
        """Write verdicts, choose their follow-ups, and remove their dead letters; True for each that was new."""
        keys = self._keys
        names = (*self._shared_keys(), keys.evaluations, keys.scores)
        of_batches = (keys.batches, keys.leases, keys.waiting, keys.readies)
        flat = [part for verdict in finished for part in verdict]
        fresh = self.store.run("record", (*names, *of_batches), (self._max_outbox, self._ttl_s, READY_MS, *flat))
        return [answer == 1 for answer in fresh]

    def add_dead_letter(self, letters: Sequence[tuple[DeadLetter, Verdict]], batch_id: str = "") -> list[bool]:
        """Write or renew dead letters of a batch; True for each that was not finished or given up before."""
        delays = ",".join(str(int(delay_s * 1000)) for delay_s in AUTO_RETRY_DELAYS_S)
        names: list[str] = []
        traces: dict[str, bytes] = {}
        flat: list[bytes | str] = []
        for letter, verdict in letters:
            evaluation, trace = letter.evaluation, letter.item.trace
            payload = msgspec.json.encode(trace)
            name = hashlib.blake2b(payload, digest_size=16).hexdigest()
            traces[name] = payload
            owner = TraceOwner(trace.trace_id, trace.service, trace.user_id)
            stored = StoredDeadLetter(*_fields_of(letter), trace=name, owner=owner)
            # A combined evaluation can be made as soon as its members are there, with any reason.
            is_retryable = letter.reason in RETRYABLE_REASONS or bool(evaluation.members)
            created = fresh_id(letter.judge_model, letter.chosen_at).split("-", 1)[0]
            names.append(self._keys.dead_again(letter.judge_model))
            flat += (evaluation.id, field_of(evaluation.id), evaluation.period, msgspec.json.encode(stored), name)
            flat += (msgspec.json.encode(verdict), letter.reason, created, str(int(is_retryable)), batch_id)
        named = (part for row in traces.items() for part in row)
        arguments = (self._max_outbox, self._dead_ttl_s, delays, len(traces), *named, *flat)
        shared = (*self._shared_keys(), self._keys.evaluations, self._keys.batches)
        return [answer == 1 for answer in self.store.run("dead_add", (*shared, *names), arguments)]

    def remove(
        self, evaluation_ids: Sequence[str], *, given_up_until_ms: int | None = None, above_bytes: int = -1
    ) -> list[bool]:
        """Remove dead letters for good; True for each that was there. They count as removed, and stay finished.

        By default all: else those given up by a time, or only while all letters with their traces take more bytes.
        """
        if not evaluation_ids:
            return []
        _, *shared = self._shared_keys()
        until = "+inf" if given_up_until_ms is None else given_up_until_ms
        flat = [part for name in evaluation_ids for part in (name, field_of(name))]
        arguments = (self._ttl_s, until, above_bytes, *flat)
        removed = self.store.run("dead_remove", (*shared, self._keys.evaluations), arguments)
        return [answer == 1 for answer in removed]

    def already_finished(self, batches: Sequence[Batch]) -> list[set[str]]:
        """Return for each batch the evaluations that it must not judge: ended, or dead letters that it does not retry.

        A worker that gives an evaluation up, and ends before its batch is removed, leaves it in there.
        """
        held = [{ref.id: ref.period for item in batch.items for ref in item.evaluations} for batch in batches]
        states = evaluation_states(self.store, {name: period for periods in held for name, period in periods.items()})
        return [
            {name for name in periods if states[name].ended or states[name].letter not in {"", batch.id}}
            for batch, periods in zip(batches, held, strict=True)
        ]

    def _shared_keys(self) -> tuple[str, ...]:
        keys = self._keys
        return (keys.verdicts, keys.account_now(), keys.account_all, *keys.dead_letters)
