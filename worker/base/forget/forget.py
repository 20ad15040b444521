"""Forget a trace, a session or a person in the stream, gathered parts, batches, dead letters and verdicts.

Labels and the examples of open incidents are erased as well.

Gathered parts are late feedback and the traces of conversations. A conversation that is being judged, and its verdict,
belong to each of its traces.

What stays in Redis: the ledger (``evaluations:``, an evaluation id and one digit) and ``scores:`` of panels' members
until their TTL ends, the trace ids of an interrupted run (``forgetting:``) for a week, the monitor's short hashes of
session ids for half a day, and the counts of the accounting. An evaluation id is a hash: only somebody who already
knows the trace can tell whose it is. Without the ledger an evaluation that is published, replayed or retried again
would count twice.

In the accounting, an evaluation that had not ended counts as ``removed``; one that had keeps its outcome. An unread
trace counts as ``cut_off``, because the stream lost it unread. Workers do not report it in
``cut_off_total`` and ``outbox_cut_off_total``, which count losses.

What cannot be recalled: spans and events that exporters have sent, exemplars and the examples of incidents in
Prometheus and in messages of Alertmanager, log lines with a trace id, and for a week the trace ids in the lists of
invalid entries and of fields left out.
A worker that is judging the trace may finish its call; the verdict is not written.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from tracejudge.content.convert import convert_field
from tracejudge.ids import MAX_ID_CHARS, MAX_NAME_CHARS, bounded
from worker.base.commands.feature import ProgressKeys
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.delivery.feature import DeliveryKeys
from worker.base.delivery.settings import all_receivers
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import scan as scan_labels
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.incidents import remove_examples, scan_examples
from worker.base.scans import groups_of, scan_stream
from worker.core.config.serving import hashed_user
from worker.core.config.settings import Settings
from worker.core.features import import_attribute, installed
from worker.core.queue.batch import KNOWN_VERSIONS, EvaluationRef, RawBatch, Session
from worker.core.queue.ledger import Ledger, evaluation_states, field_of
from worker.core.selection.lenient import LenientPayload, NoTraceError
from worker.core.storage.client import Store
from worker.core.storage.keys import INGEST_GROUP

_CHUNK_COUNT: Final = 500


class Owner(NamedTuple):
    """The trace, person (a hash in verdicts) and session that something belongs to, and its ``joined`` traces."""

    trace_id: object
    user_id: object = None
    session_id: object = None
    joined: frozenset[object] = frozenset()


class ForgetTarget:
    """A trace, or a person or session with all their traces that are known."""

    def __init__(
        self,
        *,
        trace_id: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        user_keys: Iterable[str] = (),
    ) -> None:
        """Set one of the three ids; verdicts may hash the user's id by any of the keys."""
        self.is_person = user_id is not None
        self.name = hashlib.blake2b(repr((user_id, session_id)).encode(), digest_size=8).hexdigest()
        self.session_id = session_id
        self._session_ids = () if session_id is None else (session_id, bounded(session_id, MAX_NAME_CHARS))
        self.trace_ids = set[str]() if trace_id is None else {trace_id, bounded(trace_id, MAX_ID_CHARS)}
        # The SDK cuts long ids.
        names = set[str]() if user_id is None else {user_id, bounded(user_id, MAX_NAME_CHARS)}
        hashed = {hashed_user(name, key) for name in names for key in user_keys}
        self._user_ids: set[object] = {*names, *hashed}

    def owns(self, owner: Owner) -> bool:
        """Return whether something belongs to the target; of a trace of several people also the parts without an id."""
        if not self.trace_ids.isdisjoint(owner.joined):
            return True
        if self.is_person and owner.user_id is not None:
            return self._is_user(owner.user_id)
        if self.session_id is not None and owner.session_id is not None:
            return owner.session_id in self._session_ids
        return isinstance(owner.trace_id, str) and owner.trace_id in self.trace_ids

    def learn(self, owners: Iterable[Owner]) -> None:
        """Add the traces of the person or session among these."""
        for owner in owners:
            is_of_session = owner.session_id in self._session_ids
            is_of_person = owner.user_id is not None and self._is_user(owner.user_id)
            if isinstance(owner.trace_id, str) and (is_of_session or is_of_person):
                self.trace_ids.add(owner.trace_id)

    def _is_user(self, user_id: object) -> bool:
        # A service in another language may write the id as a number.
        return user_id in self._user_ids or str(user_id) in self._user_ids


class _Named(Struct):
    """The owner in a payload. Any type is accepted, so that entries refused as invalid are read as well."""

    trace_id: Any = None
    user_id: Any = None
    session_id: Any = None
    # Of a verdict.
    details: Any = None

    @property
    def owner(self) -> Owner:
        """The owner, with the traces of a conversation."""
        session = self.details.get("session") if isinstance(self.details, dict) else None
        joined = session.get("trace_ids") if isinstance(session, dict) else None
        names = (name for name in joined if isinstance(name, str)) if isinstance(joined, list) else ()
        return Owner(self.trace_id, self.user_id, self.session_id, frozenset(names))


class _SessionRef(EvaluationRef):
    session: Session | None = None


class _ItemName(Struct):
    trace: _Named
    evaluations: list[_SessionRef]

    @property
    def owner(self) -> Owner:
        """The owner, with the traces of a conversation."""
        sessions = (evaluation.session.trace_ids for evaluation in self.evaluations if evaluation.session is not None)
        return self.trace.owner._replace(joined=frozenset(name for names in sessions for name in names))


class _ScannedEntry(NamedTuple):
    """An entry of a stream, or a member of a set, with the name by which it is erased."""

    name: str
    kind: str
    owner: Owner


class _ScannedItem(NamedTuple):
    """A trace in a batch as it is stored, and the periods of its evaluations by their ids."""

    raw: msgspec.Raw
    owner: Owner
    evaluations: Mapping[str, str]


class _ScannedBatch(NamedTuple):
    payload: bytes
    batch: RawBatch
    items: Sequence[_ScannedItem]


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_batch = msgspec.json.Decoder(RawBatch).decode
_decode_item = msgspec.json.Decoder(_ItemName).decode


class ErasureCounts(Struct):
    """Counts of matches and erased entries; a dry run erases none."""

    traces: int = 0  # Entries of the stream, publications of traces.
    feedback: int = 0  # Late feedback, in the stream or pending.
    gathered: int = 0  # Traces in conversations that wait to be judged, or whose spans the gateway gathers.
    evaluations: int = 0  # Evaluations in batches that had not ended.
    dead_letters: int = 0  # Evaluations given up.
    verdicts: int = 0  # Entries of the outbox.
    # Human labels and the answers of annotators, what is kept of the verdicts on their traces, and copies of these
    # traces.
    labels: int = 0
    examples: int = 0  # Examples of open incidents.
    archived: int = 0  # Lines of the archives on this machine, of receivers of the kind `file`.
    unreadable: int = 0  # Batches and letters of another version, which were left as they are.
    unsettled: bool = False  # Whether new work of the target still appeared in the last round.

    @property
    def total(self) -> int:
        """The number of all things found."""
        pending = self.traces + self.feedback + self.gathered + self.evaluations
        return pending + self.dead_letters + self.verdicts + self.labels + self.examples + self.archived


def forget_everywhere(
    store: Store,
    settings: Settings,
    target: ForgetTarget,
    *,
    dry_run: bool = False,
    progress: Callable[[str, int], None] = lambda _place, _things: None,
) -> ErasureCounts:
    """Erase a target from all partitions, a person's traces after all of them were found, as ``Forgetting.run``."""
    runs = [Forgetting(part, settings, target, dry_run=dry_run, progress=progress) for part in store.partitions]
    for forgetting in runs:
        forgetting.learn()
    # The first partition is last, because its incidents take examples from the verdicts of all partitions.
    for forgetting in reversed(runs):
        forgetting.erase()
    if not dry_run:
        for forgetting in runs:
            # Feedback may have been handed on to a partition that was done.
            forgetting.erase_pending_feedback()
    results = [forgetting.result for forgetting in runs]
    counts = {name: sum(getattr(result, name) for result in results) for name in ErasureCounts.__struct_fields__}
    return ErasureCounts(**{**counts, "unsettled": any(result.unsettled for result in results)})


class Eraser:
    """Erases data of traces that a feature keeps. Methods are overridden as needed, and may raise ``StoreError``."""

    def __init__(self, run: "Forgetting") -> None:
        self.run = run

    def owners(self) -> Iterable[Owner]:
        """Return the owners of all that is kept, from which the traces of a person or session are learnt."""
        return ()

    def erase(self) -> None:
        """Erase traces that wait for evaluations to be chosen."""
        # Called before batches are searched: a worker that has read a trace chooses nothing of it once it is erased.

    def erase_last(self) -> None:
        """Erase copies of verdicts outside Redis; an ``OSError`` ends the run, which can be begun again."""


class Forgetting:
    """One run for one target in one Redis; its attributes are for erasers too, which add to ``result``."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        target: ForgetTarget,
        *,
        dry_run: bool = False,
        progress: Callable[[str, int], None] = lambda _place, _things: None,
    ) -> None:
        """Search one Redis for a target; ``progress`` is called with the kind that is scanned and the number so far."""
        self.result = ErasureCounts()
        self.store = store
        self._keys = store.keys
        self._lookup_keys = LookupKeys(store.keys.prefix)
        self.settings = settings
        self._ledger = Ledger(store, settings)
        self.target = target
        self.dry_run = dry_run
        self.progress = progress
        self._erasers = [import_attribute(feature.eraser)(self) for feature in installed() if feature.eraser]
        self._unreadable: set[str] = set()
        self._unreadable_letters = 0

    def run(self) -> ErasureCounts:
        """Find the traces of a person or session first, then erase.

        After ``StoreError`` (Redis), or ``OSError`` (a file of an archive), it is safe to begin again.
        """
        self.learn()
        return self.erase()

    def erase(self) -> ErasureCounts:
        """Erase all data of the target as it is known now; errors as of ``run``."""
        names = (self._keys.traces, self._keys.account_now(), self._keys.account_all)
        for entries in self._scan(self._keys.traces, "traces"):
            owned = self._find_owned(entries)
            self.result.traces += sum(entry.kind == "t" for entry in owned)
            self.result.feedback += sum(entry.kind == "f" for entry in owned)
            if owned and not self.dry_run:
                self.store.run("forget_entries", names, (INGEST_GROUP, *(entry.name for entry in owned)))
        self.erase_pending_feedback()
        # Erasers run before the batches, because a worker that has read what loses a trace here chooses nothing of it.
        for eraser in self._erasers:
            eraser.erase()
        clean = 0
        for _ in range(20):
            # Work moves between batches and dead letters. Of two rounds that find nothing, the second has seen where
            # batches went during the first.
            clean = 0 if self._erase_letters() + self._erase_from_batches() else clean + 1
            if self.dry_run or clean > 1:
                break
        else:
            self.result.unsettled = True
        self._erase_verdicts()
        self._erase_parked()
        # After the verdicts, which the monitor searches for examples, and copies to their labels.
        examples = [example for example in scan_examples(self.store) if self.target.owns(Owner(example.trace_id))]
        self.result.examples = len(examples)
        if not self.dry_run:
            remove_examples(self.store, examples)
        while self._erase_labels() and not self.dry_run:
            pass
        self._erase_answers_and_copies()
        for eraser in self._erasers:
            eraser.erase_last()
        if not self.dry_run and self.store is self.store.first:
            self.store.call(methodcaller("delete", ProgressKeys(self._keys.prefix).forgetting(self.target.name)))
        self.result.unreadable = len(self._unreadable) + self._unreadable_letters
        return self.result

    def learn(self) -> None:
        """Find the traces of a person or session: feedback, and other parts of a trace, name neither."""
        if not self.target.is_person and self.target.session_id is None:
            return
        first = self.store.first
        key = ProgressKeys(first.keys.prefix).forgetting(self.target.name)
        self.target.trace_ids.update(msgspec.json.decode(first.call(methodcaller("get", key)) or b"[]"))
        for eraser in self._erasers:
            self.target.learn(eraser.owners())
        for batch_id in self._batch_ids():
            batch = self._read_batch(batch_id)
            self.target.learn(item.owner for item in (batch.items if batch else ()))
        self.target.learn(owner for _, owner in self._letters())
        self.target.learn(owner_of(raw) for _, raw in scan_labels(self.store))
        self.target.learn(owner_of(raw) for _, raw in self._copies())
        for name, place in ((self._keys.verdicts, "verdicts"), (self._keys.traces, "traces")):
            for entries in self._scan(name, place):
                self.target.learn(entry.owner for entry in entries)
        if not self.dry_run and self.target.trace_ids:
            # Keep the ids before the data that name the person are gone, or a run after a crash would not find labels.
            encoded = msgspec.json.encode(sorted(self.target.trace_ids))
            first.call(methodcaller("set", key, encoded, ex=7 * 86_400))

    def erase_pending_feedback(self) -> None:
        """Erase feedback that waits for its trace."""
        names = (self._keys.feedback, self._keys.account_now(), self._keys.account_all)
        members = self.store.call(lambda client: client.zrange(self._keys.feedback, 0, -1))
        owned = [raw for raw in members if self.target.owns(owner_of(raw))]
        self.result.feedback += len(owned)
        for first in range(0, 0 if self.dry_run else len(owned), _CHUNK_COUNT):
            self.store.run("forget_feedback", names, owned[first : first + _CHUNK_COUNT])

    def _erase_letters(self) -> int:
        ids = [evaluation_id for evaluation_id, owner in self._letters() if self.target.owns(owner)]
        erased = len(ids)
        if not self.dry_run:
            chunks = (ids[first : first + _CHUNK_COUNT] for first in range(0, len(ids), _CHUNK_COUNT))
            erased = sum(sum(self._ledger.remove(chunk)) for chunk in chunks)
        self.result.dead_letters += erased
        return erased

    def _letters(self) -> Iterable[tuple[str, Owner]]:
        letters = DeadLetterStore(self.store)
        for seen, entry in enumerate(letters.find(VerdictFilter()), 1):
            owner = entry.letter.owner
            session = entry.letter.evaluation.session
            joined = frozenset[object](session.trace_ids if session else ())
            yield entry.letter.evaluation.id, Owner(owner.trace_id, owner.user_id, None, joined)
            self.progress("dead letters", seen)
        self._unreadable_letters = letters.unreadable

    def _erase_from_batches(self) -> int:
        erased = 0
        for seen, batch_id in enumerate(self._batch_ids(), 1):
            erased += self._erase_from(batch_id)
            self.progress("batches", seen)
        return erased

    def _erase_from(self, batch_id: str) -> int:
        """Remove the target's evaluations from a batch; return how many there were, ended or not."""
        for _ in range(20):
            batch = self._read_batch(batch_id)
            items = [item for item in batch.items if self.target.owns(item.owner)] if batch else []
            owned = {name: period for item in items for name, period in item.evaluations.items()}
            if batch is None or not owned:
                return 0
            unfinished, letters = self._rewrite(batch, owned)
            if unfinished >= 0:
                self.result.evaluations += unfinished - letters
                self.result.dead_letters += letters
                return len(owned)
        return 1

    def _rewrite(self, scanned: _ScannedBatch, owned: Mapping[str, str]) -> tuple[int, int]:
        """Replace a batch; return evaluations that had not ended (-1: it has changed), and letters among them."""
        if self.dry_run:
            states = evaluation_states(self.store, owned)
            return sum(not state.ended and not state.letter for state in states.values()), 0
        keys, batch = self._keys, scanned.batch
        names = (
            *(keys.leases, keys.holders, keys.waiting, keys.ready(batch.judge_model), keys.batch(batch.id)),
            *(keys.tries(batch.id), keys.account_now(), keys.account_all, *keys.dead_letters, keys.evaluations),
        )
        left = [item.raw for item in scanned.items if not self.target.owns(item.owner)]
        payload = b""
        if left:
            payload = msgspec.json.encode(msgspec.structs.replace(batch, items=left))
        read = hashlib.sha1(scanned.payload, usedforsecurity=False).hexdigest()
        flat = [part for name, period in owned.items() for part in (name, field_of(name), period)]
        arguments = (batch.id, batch.judge_model, read, payload, self.settings.ledger_ttl_s, *flat)
        unfinished, letters = self.store.run("forget_batch", names, arguments)
        return unfinished, letters

    def _erase_verdicts(self) -> None:
        names = (self._keys.verdicts, self._keys.account_all)
        for entries in self._scan(self._keys.verdicts, "verdicts"):
            owned = self._find_owned(entries)
            self.result.verdicts += len(owned)
            if owned and not self.dry_run:
                self.store.run("forget_verdicts", names, [entry.name for entry in owned])

    def _erase_parked(self) -> None:
        """Remove verdicts that wait until a receiver knows their traces; also of one that settings name no more."""
        groups = groups_of(self.store, self._keys.verdicts)
        former = {group.removeprefix("receiver:") for group in groups if group.startswith("receiver:")}
        for name in former | all_receivers(self.settings).keys():
            parked, due = DeliveryKeys(self._keys.prefix).receiver_parked(name)
            rows = self.store.call(methodcaller("hgetall", parked)).items()
            owned = [field for field, raw in rows if self.target.owns(owner_of(raw.partition(b" ")[2]))]
            self.result.verdicts += len(owned)
            if owned and not self.dry_run:
                self.store.call(methodcaller("hdel", parked, *owned))
                self.store.call(methodcaller("zrem", due, *owned))

    def _erase_labels(self) -> int:
        """Remove labels and the verdicts kept with them; return how many fields there were."""
        owned = sorted({name for name, raw in scan_labels(self.store) if self.target.owns(owner_of(raw))})
        self.result.labels += sum(":" not in name for name in owned)
        if not self.dry_run:
            for first in range(0, len(owned), _CHUNK_COUNT):
                names = owned[first : first + _CHUNK_COUNT]
                self.store.call(methodcaller("hdel", self._lookup_keys.labels, *names))
        return len(owned)

    def _erase_answers_and_copies(self) -> None:
        stored = scan_labels(self.store, self._lookup_keys.answers)
        answers = [name for name, raw in stored if self.target.owns(owner_of(raw))]
        self.result.labels += len(answers)
        for first in range(0, 0 if self.dry_run else len(answers), _CHUNK_COUNT):
            some = answers[first : first + _CHUNK_COUNT]
            self.store.call(methodcaller("hdel", self._lookup_keys.answers, *some))
        keys = (self._lookup_keys.labelled, self._lookup_keys.labelled_bytes)
        owned = [name for name, raw in self._copies() if self.target.owns(owner_of(raw))]
        self.result.labels += len(owned)
        for first in range(0, 0 if self.dry_run else len(owned), _CHUNK_COUNT):
            self.store.run("forget_labelled", keys, owned[first : first + _CHUNK_COUNT])

    def _copies(self) -> Iterator[tuple[str, bytes]]:
        # Copies of labelled traces may be megabytes each.
        return scan_labels(self.store, self._lookup_keys.labelled, 32)

    def _find_owned(self, entries: Iterable[_ScannedEntry]) -> list[_ScannedEntry]:
        return [entry for entry in entries if self.target.owns(entry.owner)]

    def _scan(self, stream: str, place: str) -> Iterator[list[_ScannedEntry]]:
        """Read a stream in chunks, from its oldest entry to the one that is the newest now."""
        seen = 0
        for entries in scan_stream(self.store, stream, most=_CHUNK_COUNT):
            scanned = []
            for entry_id, fields in entries:
                kinds = ((kind, fields[kind]) for kind in (b"t", b"f", b"j", b"d") if fields and kind in fields)
                kind, payload = next(kinds, (b"", b""))
                scanned.append(_ScannedEntry(entry_id.decode(), kind.decode(), owner_of(payload, kind)))
            yield scanned
            seen += len(entries)
            self.progress(place, seen)

    def _batch_ids(self) -> list[str]:
        return [raw.decode() for raw in self.store.call(lambda client: client.zrange(self._keys.leases, 0, -1))]

    def _read_batch(self, batch_id: str) -> _ScannedBatch | None:
        """Read a batch; None if it was finished meanwhile, or cannot be read here, which is counted."""
        payload: bytes | None = self.store.call(lambda client: client.get(self._keys.batch(batch_id)))
        if payload is None:
            return None
        with suppress(msgspec.DecodeError, RecursionError):
            batch, scanned = _decode_batch(payload), []
            for raw in batch.items:
                item = _decode_item(raw)
                scanned.append(_ScannedItem(raw, item.owner, {ref.id: ref.period for ref in item.evaluations}))
            if batch.v in KNOWN_VERSIONS:
                return _ScannedBatch(payload, batch, scanned)
        self._unreadable.add(batch_id)
        return None


def owner_of(payload: bytes, kind: bytes = b"") -> Owner:
    """Return the owner that a payload of a kind (`t`, `f`, or any other) names; one without ids if it names nobody."""
    try:
        if kind in {b"t", b"f"}:
            # Any language may have written the entry, and ingest accepts these names and types too.
            fields = LenientPayload(payload)
            return Owner(fields.trace_id, _text_in(fields, "user_id"), _text_in(fields, "session_id"))
        return _decode_named(payload).owner
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NoTraceError):
        # A payload that is no JSON names nobody.
        return Owner(None)


def _text_in(fields: LenientPayload, name: str) -> str | None:
    """Return an id as the text that it is in the trace that ingest has made of the entry."""
    value = next((candidate for candidate in fields.values(name) if candidate is not None), None)
    text: str | None = value if isinstance(value, str) else convert_field(name, value)
    return text
