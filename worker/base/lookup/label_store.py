"""Human labels of traces, and the judges' verdicts on these traces.

All are fields of one hash: a label under its id, each verdict on its trace under ``<id>:<evaluation id>``. A write is
one field, so that an import and the monitor may run at the same time, and both may be repeated.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Struct

from judges.core.verdict import Origin as VerdictOrigin
from judges.core.verdict import Outcome, Verdict, joined_parts
from judges.forms.typed_questions import UNCORRECTED
from tracejudge import Trace
from worker.base.lookup.feature import LookupKeys
from worker.base.monitor.corrected import Origin
from worker.base.monitor.series import VERSION_DIGITS, Series, segment_value
from worker.base.scans import scan_partitions
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import CHUNK_BYTES, next_count

Drawn = float | Literal["queue", "golden"]
"""How a label's trace was chosen: with this probability from the traffic, from a queue, or as part of a golden set."""
MAX_LABELS: Final = 100_000
MAX_TEXT_CHARS: Final = 2_000
MAX_VERDICT_BYTES: Final = 8 * 1024
"""A bound for each verdict with a label: names of the SDK have at most 200 characters, names in a file any length."""
MAX_VERDICTS: Final = 10 * MAX_LABELS
# Verdicts of these origins measure the judge against itself, or against the canary's labels.
_OTHER_ORIGINS: Final = frozenset({"repeat", "canary"})
_FIRST_CHUNK_COUNT: Final = 16
_CHUNK_COUNT: Final = 500


class Label(Struct, frozen=True, omit_defaults=True):
    """A label: one person's verdict on one metric of a trace."""

    trace_id: str
    judge: str
    metric: str
    passed: bool
    drawn: Drawn
    span_id: str = ""
    annotator: str = ""
    comment: str = ""
    labelled_at: float = 0.0  # Seconds since the epoch; 0 becomes the time at which the label is first stored.
    reached: tuple[float, float] | None = None
    """Of a label that the board drew: `drawn` is its place in the random order, which had reached this place among the
    verdicts from the first time to the second. `read_labels` puts the probability in its place."""

    @property
    def id(self) -> str:
        """The name of the label in Redis; a second label of the same trace and metric replaces the first."""
        return label_id(self.trace_id, self.span_id, self.judge, self.metric)

    @property
    def tag(self) -> str:
        """The name of the label as a tag of its trace in a data set."""
        return self.judge if self.metric == self.judge else f"{self.judge}.{self.metric}"

    @property
    def origin(self) -> Origin:
        """How the trace was chosen, without the probability."""
        return "drawn" if isinstance(self.drawn, float) else self.drawn


class LabelVerdict(Struct, frozen=True, omit_defaults=True):
    """A verdict on a labelled trace, without its texts."""

    trace_id: str
    evaluation_id: str
    origin: VerdictOrigin
    version: str
    judge_model: str
    service: str
    outcome: Outcome
    judged_at: float
    weight: float
    passed: bool | None = None
    value: float | None = None
    probability: float | None = None
    """The calibrated probability that the metric passes; only from a model that returns probabilities."""
    uncalibrated: float | None = None  # The probability before its calibration, if the judge had one.
    span_id: str = ""
    environment: str = ""
    model: str = ""
    release: str = ""
    name: str = ""
    tags: Mapping[str, str] = {}
    # By these `forget` finds the traces of a conversation and of a person.
    session_id: str | None = None
    user_id: str | None = None

    @classmethod
    def from_verdict(cls, verdict: Verdict, metric: str) -> Self:
        """Return the verdict on one metric."""
        score = next((score for score in verdict.scores if score.metric == metric), None)
        raw = verdict.details.get(UNCORRECTED)
        number = raw.get(metric) if isinstance(raw, dict) else None
        return cls(
            trace_id=verdict.trace_id,
            evaluation_id=verdict.evaluation_id,
            origin=verdict.origin,
            version=verdict.judge_version,
            judge_model=verdict.judge_model,
            service=verdict.service,
            outcome=verdict.outcome,
            judged_at=verdict.started_at + verdict.duration_s,
            weight=verdict.weight,
            passed=None if score is None else score.passed,
            value=None if score is None else score.value,
            probability=None if score is None else score.probability,
            uncalibrated=number if isinstance(number, float) else None,
            span_id=verdict.span_id or "",
            environment=verdict.environment or "",
            model=verdict.model or "",
            release=verdict.release or "",
            name=verdict.name or "",
            tags=verdict.tags,
            session_id=verdict.session_id,
            user_id=verdict.user_id,
        )

    @property
    def raw_probability(self) -> float | None:
        """The probability as the model gave it, None from a model that gives none."""
        return self.probability if self.uncalibrated is None else self.uncalibrated

    @property
    def is_sampled(self) -> bool:
        """Whether it counts in series: it is of live traffic, chosen with a known probability."""
        return self.origin == "live" and self.weight > 0

    @property
    def judge(self) -> tuple[str, str]:
        """The version as in series, and the judge model."""
        return self.version[:VERSION_DIGITS], self.judge_model

    def series(self, label: Label) -> list[Series]:
        """Return the series that it may count in, the whole first, then its segments."""
        whole = Series(self.service, self.environment, label.judge, *self.judge, label.metric)
        names = ("model", "release", "name", "prompt_version", *(f"tags.{tag}" for tag in self.tags))
        values = ((name, value) for name in names if (value := segment_value(self, self.tags, name)))
        return [whole, *(msgspec.structs.replace(whole, segment=name, value=value) for name, value in values)]


class Labelled(NamedTuple):
    """A label with all verdicts on its trace."""

    label: Label
    verdicts: Sequence[LabelVerdict] = ()

    def verdict(self, fits: Callable[[LabelVerdict], bool]) -> LabelVerdict | None:
        """Return the newest fitting verdict that passes or fails; None without any, or if several spans have one."""
        rated = [verdict for verdict in self.verdicts if verdict.passed is not None and fits(verdict)]
        if len({verdict.span_id for verdict in rated}) != 1:
            return None
        return max(rated, key=lambda verdict: verdict.judged_at)

    @property
    def is_ambiguous(self) -> bool:
        """Whether the label names no span, and several spans of its trace were judged."""
        return len({verdict.span_id for verdict in self.verdicts}) > 1


class Attached(Struct):
    """How many verdicts were new, and how many were not stored, by reason."""

    new: int = 0
    too_large: int = 0
    too_many: int = 0

    def add(self, other: "Attached") -> None:
        """Add the counts of other verdicts."""
        self.new += other.new
        self.too_large += other.too_large
        self.too_many += other.too_many


class TooManyLabelsError(Exception):
    """There would be more labels than are kept."""


def label_id(*parts: str) -> str:
    """Return the id of a label by trace id, span id, judge and metric."""
    return hashlib.blake2b(joined_parts(*parts), digest_size=12).hexdigest()


def ids_of(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the ids that labels of a verdict's trace may have, with the metric; repeats and the canary have none."""
    for metric in () if verdict.origin in _OTHER_ORIGINS else verdict.metrics:
        for span_id in {"", verdict.span_id or ""}:
            yield label_id(verdict.trace_id, span_id, verdict.judge, metric), metric


def read_labels(store: Store, fits: Callable[[Label], bool] = lambda _: True) -> list[Labelled]:
    """Read labels with their verdicts, in order of time, then of trace."""
    labels: dict[str, Label] = {}
    verdicts: dict[str, dict[str, LabelVerdict]] = {}
    for name, raw in scan(store):
        label, _, evaluation_id = name.partition(":")
        if evaluation_id:
            verdicts.setdefault(label, {})[evaluation_id] = msgspec.json.decode(raw, type=LabelVerdict)
        elif fits(read := msgspec.json.decode(raw, type=Label)):
            labels[label] = read
    ordered = sorted(labels, key=lambda name: (labels[name].labelled_at, labels[name].trace_id, name))
    return with_places_reached([Labelled(labels[name], tuple(verdicts.get(name, {}).values())) for name in ordered])


def with_places_reached(labels: Sequence[Labelled]) -> list[Labelled]:
    """Return labels of which those of the board's random order have their probability."""
    # It is the furthest place that the order reached among the verdicts of their time: every verdict up to this place
    # was asked. The configured rate says nothing of how many of its questions were answered.
    orders: dict[tuple[str, str], list[tuple[float, tuple[float, float]]]] = defaultdict(list)
    for label, verdicts in labels:
        if label.reached and verdicts:
            orders[label.judge, verdicts[0].service].append((float(label.drawn), label.reached))
    for order in orders.values():
        order.sort(reverse=True)
    probable = []
    for label, verdicts in labels:
        if label.reached and verdicts:
            at = min(verdict.judged_at for verdict in verdicts)
            places = (place for place, (begin, end) in orders[label.judge, verdicts[0].service] if begin <= at <= end)
            furthest = max(float(label.drawn), next(places, 0.0))
            label = msgspec.structs.replace(label, drawn=furthest)  # noqa: PLW2901 - as it is returned
        probable.append(Labelled(label, verdicts))
    return probable


def scan(store: Store, key: str | None = None, count: int = 1_000) -> Iterator[tuple[str, bytes]]:
    """Yield all fields of a hash, the labels' unless given; one written meanwhile may be missing or come twice."""
    cursor, name = 0, key or LookupKeys(store.keys.prefix).labels
    while True:
        cursor, fields = store.call(lambda client: client.hscan(name, cursor, count=count))  # noqa: B023 - called at once
        yield from ((label.decode(), raw) for label, raw in fields.items())
        if not cursor:
            return


def write_labels(
    store: Store, labels: Sequence[Label], *, dry_run: bool = False, replace_drawn: bool = False
) -> Counter[str]:
    """Store labels, and count which are `new`, `changed` or the `same`. Of several with one id the last counts.

    A drawn label stays drawn if one from a queue or a golden set replaces it, unless ``replace_drawn``: else a file of
    the traces that somebody looked for would take the odd ones out of the drawn labels. ``TooManyLabelsError`` if there
    are too many; the labels of this call are not stored.
    """
    by_id: dict[str, Label] = {}
    written: Counter[str] = Counter()
    for label in labels:
        former = by_id.get(label.id, label)
        written["same"] += label.id in by_id and former == label
        written["changed"] += former != label
        by_id[label.id] = label if replace_drawn else keep_drawn(former, label)
    if not by_id:
        return written
    key = LookupKeys(store.keys.prefix).labels
    stored: list[bytes | None] = store.call(lambda client: client.hmget(key, list(by_id)))
    changed: dict[Any, bytes] = {}
    now = store.now_ms() / 1000
    for (name, label), raw in zip(by_id.items(), stored, strict=True):
        old = None if raw is None else msgspec.json.decode(raw, type=Label)
        label = label if old is None or replace_drawn else keep_drawn(old, label)  # noqa: PLW2901 - as it is stored
        # A label without a time is the same in a second import.
        if old == label or (old and not label.labelled_at and old == _with_time(label, old.labelled_at)):
            written["same"] += 1
            continue
        changed[name] = msgspec.json.encode(label if label.labelled_at else _with_time(label, now))
        written["new" if raw is None else "changed"] += 1
    # The number of fields is only an upper limit, because verdicts are fields as well.
    if written["new"] and store.call(lambda client: client.hlen(key)) + written["new"] > MAX_LABELS:
        count = sum(":" not in name for name, _ in scan(store))
        if count + written["new"] > MAX_LABELS:
            raise TooManyLabelsError(f"Redis holds {count:,} labels, and at most {MAX_LABELS:,} are kept.")
    if changed and not dry_run:
        store.call(lambda client: client.hset(key, mapping=changed))
    return written


def keep_drawn(former: Label, label: Label) -> Label:
    """Return a label as it replaces a former one: what was drawn stays so, whoever looks at it for another reason."""
    if former.origin == "drawn" and (former.reached is not None or label.origin != "drawn"):
        return msgspec.structs.replace(label, drawn=former.drawn, reached=former.reached)
    return label


def _with_time(label: Label, labelled_at: float) -> Label:
    return msgspec.structs.replace(label, labelled_at=labelled_at)


def attach(store: Store, verdicts: Iterable[Verdict]) -> Attached:
    """Store verdicts with the labels of their traces."""
    counts = Attached()
    of_id = [(name, metric, verdict) for verdict in verdicts for name, metric in ids_of(verdict)]
    if not of_id:
        return counts
    key = LookupKeys(store.keys.prefix).labels
    stored = store.call(lambda client: client.hmget(key, [name for name, _, _ in of_id]))
    fields: dict[Any, bytes] = {
        f"{name}:{verdict.evaluation_id}": msgspec.json.encode(LabelVerdict.from_verdict(verdict, metric))
        for (name, metric, verdict), raw in zip(of_id, stored, strict=True)
        if raw is not None
    }
    for name in [name for name, raw in fields.items() if len(raw) > MAX_VERDICT_BYTES]:
        counts.too_large += 1
        del fields[name]
    room = MAX_VERDICTS - store.call(lambda client: client.hlen(key)) if fields else 0
    if room < len(fields):
        names = list(fields)
        existing = store.call(lambda client: client.hmget(key, names))
        for name in [name for name, raw in zip(names, existing, strict=True) if raw is None][max(0, room) :]:
            counts.too_many += 1
            del fields[name]
    if not fields:
        return counts
    counts.new = int(store.call(lambda client: client.hset(key, mapping=fields)))
    # `forget` may have erased a label meanwhile, and no verdict stays without it.
    names = list(fields)
    left = store.call(lambda client: client.hmget(key, [name.partition(":")[0] for name in names]))
    if orphans := [name for name, raw in zip(names, left, strict=True) if raw is None]:
        store.call(lambda client: client.hdel(key, *orphans))
    return counts


def join_verdicts(labelled: Sequence[Labelled], verdicts: Iterable[Verdict]) -> list[Labelled]:
    """Return labels with further verdicts on their traces, which are not stored."""
    by_label: dict[str, dict[str, LabelVerdict]] = {
        item.label.id: {verdict.evaluation_id: verdict for verdict in item.verdicts} for item in labelled
    }
    for verdict in verdicts:
        for name, metric in ids_of(verdict):
            if name in by_label:
                by_label[name][verdict.evaluation_id] = LabelVerdict.from_verdict(verdict, metric)
    return [Labelled(item.label, tuple(by_label[item.label.id].values())) for item in labelled]


class OutboxMatcher:
    """Finds verdicts on labelled traces in the outboxes, oldest first, and goes on where it stopped."""

    def __init__(self, store: Store) -> None:
        self.seen = 0
        self.attached = Attached()
        self._store = store
        self._partitions = store.partitions
        self._positions = ["-"] * len(self._partitions)
        self._at = 0
        self._count = _FIRST_CHUNK_COUNT

    def step(self) -> bool:
        """Read the next entries and attach their verdicts; return whether this round may have more."""
        store, position = self._partitions[self._at], self._positions[self._at]
        entries: list[Entry] = []
        try:
            # Partitions but the first are left out while they are away, because the monitor must not wait for them.
            if store in store.first.reachable:
                entries = store.call(lambda client: client.xrange(store.keys.verdicts, position, "+", self._count))
        except StoreError:
            if store is store.first:
                raise
        if entries:
            self.attached.add(attach(self._store, _decode_verdicts(entries)))
            self.seen += len(entries)
            self._positions[self._at] = f"({entries[-1][0].decode()}"
        if len(entries) == self._count:
            size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
            self._count = next_count(self._count, len(entries), size, most=_CHUNK_COUNT, most_bytes=CHUNK_BYTES)
            return True
        self._at, self._count = (self._at + 1) % len(self._partitions), _FIRST_CHUNK_COUNT
        return self._at > 0


def keep_trace(store: Store, trace: Trace, max_bytes: int) -> bool:
    """Keep a redacted trace with its label for good, in place of an earlier copy; False above ``max_bytes`` of all."""
    keys = LookupKeys(store.keys.prefix)
    names = keys.labelled, keys.labelled_bytes
    return bool(store.run("keep_labelled", names, (max_bytes, trace.trace_id, msgspec.json.encode(trace))))


def read_labelled_trace(store: Store, trace_id: str) -> Trace | None:
    """Return the copy of a labelled trace; None without a readable copy."""
    key = LookupKeys(store.keys.prefix).labelled
    raw = store.call(lambda client: client.hget(key, trace_id))
    try:
        return None if raw is None else msgspec.json.decode(raw, type=Trace)
    except (msgspec.DecodeError, RecursionError):
        return None


def outbox_verdicts(store: Store) -> Iterator[Verdict]:
    """Yield all verdicts of the outboxes, the oldest first."""
    for entries in scan_partitions(store, store.keys.verdicts, most=_CHUNK_COUNT):
        yield from _decode_verdicts(entries)


def _decode_verdicts(entries: Iterable[Entry]) -> list[Verdict]:
    read = map(read_outbox_entry, entries)
    return [entry.verdict for entry in read if entry is not None and entry.kind == "j"]
