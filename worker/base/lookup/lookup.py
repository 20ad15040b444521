"""Look-ups of traces and verdicts: by the beginning of a trace id, by a filter of verdicts, by text.

Verdicts are read from the outbox. The text of a trace is in the stream until it is trimmed, with the dead letters of
the trace, and with its labels. All functions raise StoreError if Redis does not answer; they change nothing.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import Final, Literal, NamedTuple

import click
import msgspec

from judges.core.verdict import Verdict
from judges.requests.redaction import Redaction
from tracejudge import Trace
from tracejudge.ids import MAX_ID_CHARS
from worker.base.dead_letters.store import AllDeadLetters
from worker.base.lookup.feature import KEEP_LABELLED, MAX_LABELLED_BYTES
from worker.base.lookup.label_store import Label, keep_trace, read_labelled_trace, read_labels
from worker.base.lookup.verdict_filter import VerdictFilter, judged_traces
from worker.base.scans import scan_partitions
from worker.core.config.settings import Settings
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Store
from worker.core.storage.group_reader import CHUNK_BYTES, entry_position, next_count

MIN_PREFIX_CHARS: Final = 6
MAX_MATCHES: Final = 10  # Traces that an ambiguous beginning lists.
MAX_TRACES: Final = 100_000
# Clocks of services, workers and Redis differ by so much.
_CLOCKS_MS: Final = 2_000
_NEAR_COUNT: Final = 1_000
# A trace is published so soon after the end of its call, or judged so soon after it was published, unless work waits.
_NEAR_MS: Final = 4_000
_LAST_S: Final = 10**11
_PLAIN_ID: Final = re.compile(r"[\w.:@=+-]+", re.ASCII)
_PLAIN_TEXT: Final = re.compile(rb'[^"\\\x00-\x1f\x7f-\xff/]+')

Source = Literal["stream", "dead letter", "label"]


class TextMatches(NamedTuple):
    """The traces that contain a text, and the time until which older traces were not searched; None if all were."""

    trace_ids: frozenset[str]
    since_ms: int | None


class _Identity(msgspec.Struct):
    trace_id: str = ""


_read_identity: Final = msgspec.json.Decoder(_Identity).decode


class TraceNotFoundError(click.ClickException):
    """No trace has this id, or several begin with it; the text says which, and how to go on."""


class FoundTrace(NamedTuple):
    """One publication of a trace, where it was found, and when it was published; None if unknown."""

    trace: Trace
    source: Source
    published_ms: int | None = None
    entry: TraceEntry | None = None


def usable_prefix(prefix: str) -> str:
    """Return the beginning of a trace id; ``TraceNotFoundError`` if it is too short, or longer than any id."""
    if not MIN_PREFIX_CHARS <= len(prefix) <= MAX_ID_CHARS:
        raise TraceNotFoundError(
            f"{prefix[:MAX_ID_CHARS]!r} is no trace id: write its first {MIN_PREFIX_CHARS} characters, or more"
        )
    return prefix


def scan_verdicts(store: Store, selected: VerdictFilter, *, newest_first: bool = True) -> Iterator[OutboxEntry]:
    """Yield the wanted verdicts of the outboxes of all partitions."""
    first = "-" if selected.since_ms is None else str(selected.since_ms)
    last = "+" if selected.until_ms is None else str(selected.until_ms)
    holds = _contains(selected.trace_ids if selected.trace_ids is not None else selected.traces or None)
    for entries in scan_partitions(store, store.keys.verdicts, first, last, newest_first=newest_first):
        for entry_id, fields in entries:
            # Most verdicts are of other traces, and searching their bytes is many times faster than decoding them.
            if holds is None or any(holds(raw) for raw in (fields or {}).values()):
                read = read_outbox_entry((entry_id, fields))
                if read is not None and selected.accepts(read):
                    yield read


class TraceLookup:
    """Finds traces by the configuration of the workers; dead letters and labels are read once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._max_bytes = settings.max_trace_bytes
        # A trace may have waited so long for its judge before its verdict.
        self._waits_ms = int(settings.give_up_after * 1000) + 3_600_000

    def resolve(self, prefix: str) -> str:
        """Return the id of the only trace that begins so, or that has this id, or raise ``TraceNotFoundError``."""
        names: dict[str, None] = {}
        for trace_id in self._ids(prefix) if prefix else ():
            if trace_id == prefix:
                return prefix
            if trace_id.startswith(prefix) and len(names) <= MAX_MATCHES:
                names[trace_id] = None
        usable_prefix(prefix)  # A whole id may be short.
        if not names:
            raise TraceNotFoundError(
                f"no trace begins with {prefix!r}: it may be trimmed from the stream and the outbox, or was never "
                "published; `tracejudge tail --no-follow` prints the newest ids"
            )
        if len(names) > 1:
            some = list(names)[:MAX_MATCHES]
            more = ", …" if len(names) > MAX_MATCHES else ""
            raise TraceNotFoundError(f"several traces begin with {prefix!r}: {', '.join(some)}{more}; write more of it")
        return next(iter(names))

    def find(self, trace_ids: Collection[str]) -> dict[str, list[FoundTrace]]:
        """Find the texts of traces, of each the newest publication first; those that are gone are left out."""
        published: dict[str, list[FoundTrace]] = {}
        for publication in self.scan(_contains(trace_ids)):
            if publication.trace.trace_id in trace_ids:
                published.setdefault(publication.trace.trace_id, []).append(publication)
        for trace_id in set(trace_ids) - published.keys():
            if elsewhere := self.elsewhere(trace_id):
                published[trace_id] = [elsewhere]
        return published

    def near(self, verdict: Verdict, most: int) -> FoundTrace | None:
        """Find the trace of a verdict in a bounded time, or where else it is kept.

        At most ``most`` entries from the end of the judged call on are searched, when services publish it, then as many
        before its judging. A trace that came long after its call, or waited long for its judge, is not found.
        """
        holds, key = _contains({verdict.trace_id}), self._store.keys.traces
        at_ms = int(verdict.started_at * 1000)
        searches = [
            scan_partitions(self._store, key, "-", str(at_ms + _CLOCKS_MS), newest_first=True, most=_NEAR_COUNT)
        ]
        if verdict.trace_ended_at is not None and 0 < verdict.trace_ended_at < _LAST_S:
            begin = str(max(0, int(verdict.trace_ended_at * 1000) - _CLOCKS_MS))
            searches.insert(0, scan_partitions(self._store, key, begin, most=_NEAR_COUNT))
        for chunks in searches:
            seen = 0
            for chunk in chunks:
                for publication in self._read(chunk, holds):
                    if (publication.trace.trace_id, publication.trace.span_id) == (verdict.trace_id, verdict.span_id):
                        return publication
                seen += len(chunk)
                if seen >= most:
                    break
        return self.elsewhere(verdict.trace_id, verdict.span_id)

    def near_all(self, verdicts: Iterable[Verdict], most_bytes: int) -> dict[tuple[str, str | None], Trace]:
        """Find the traces of verdicts, by trace and span, in ``most_bytes`` of each Redis after the judged calls."""
        times = dict[tuple[str, str | None], tuple[int, int]]()
        for verdict in verdicts:
            ended, at_ms = verdict.trace_ended_at or 0.0, int(verdict.started_at * 1000)
            begin = int(ended * 1000) - _CLOCKS_MS if 0 < ended < _LAST_S else at_ms - _NEAR_MS
            times[verdict.trace_id, verdict.span_id] = begin, begin + _CLOCKS_MS + _NEAR_MS
        joined = list[tuple[int, int, set[tuple[str, str | None]]]]()
        for name, (begin, end) in sorted(times.items(), key=lambda item: item[1], reverse=True):
            if joined and end >= joined[-1][0]:
                joined[-1] = begin, joined[-1][1], joined[-1][2]
                joined[-1][2].add(name)
            else:
                joined.append((begin, end, {name}))
        traces, holds = dict[tuple[str, str | None], Trace](), _is_of({name for name, _ in times})
        for store in self._store.reachable:
            key, left = store.keys.traces, most_bytes
            windows = [(begin, str(end), 16, names) for begin, end, names in joined]
            while windows and left > 0:
                some, windows = windows[:20], windows[20:]
                replies = store.pipeline(lambda pipe: [pipe.xrevrange(key, end, begin, n) for begin, end, n, _ in some])  # noqa: B023
                for (begin, _, count, names), entries in zip(some, replies, strict=True):
                    for publication in self._read(entries, holds):
                        traces[publication.trace.trace_id, publication.trace.span_id] = publication.trace
                    size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
                    # A small entry costs time, too.
                    left -= max(size, 2_000 * len(entries))
                    if len(entries) == count and not traces.keys() >= names:
                        more = next_count(count, len(entries), size, most=500, most_bytes=CHUNK_BYTES)
                        windows.insert(0, (begin, f"({entries[-1][0].decode()}", more, names))
        return traces

    def scan(self, holds: Callable[[bytes], bool] | None) -> Iterator[FoundTrace]:
        """Yield the traces of the stream, the newest first; with ``holds`` only payloads for which it is true."""
        for chunk in scan_partitions(self._store, self._store.keys.traces, newest_first=True):
            yield from self._read(chunk, holds)

    def find_with_text(
        self,
        text: str,
        since_ms: int | None = None,
        until_ms: int | None = None,
        *,
        most: int = MAX_TRACES,
        seconds: float = math.inf,
    ) -> TextMatches:
        """Find the newest traces that contain a text in any case, in at most ``most`` traces and so many seconds."""
        lowered, ends_at = text.lower(), time.monotonic() + seconds
        raw = lowered.encode()
        # In JSON the bytes of any other character may be written as an escape.
        is_plain = _PLAIN_TEXT.fullmatch(raw) is not None
        names, first, last = set[str](), since_ms and since_ms - self._waits_ms, until_ms
        span = ("-" if first is None else str(first)), ("+" if last is None else str(last))
        for chunk in scan_partitions(self._store, self._store.keys.traces, *span, newest_first=True):
            for publication in self._read(chunk, (lambda payload: raw in payload.lower()) if is_plain else None):
                if any(lowered in field.lower() for field in texts_of(publication.trace)):
                    names.add(publication.trace.trace_id)
            if len(names) >= most or time.monotonic() > ends_at:
                return TextMatches(frozenset(names), entry_position(chunk[-1][0])[0])
        return TextMatches(frozenset(names), None)

    def elsewhere(self, trace_id: str, span_id: str | None = None) -> FoundTrace | None:
        """Find a trace that the stream no longer has: with its dead letters, else with its labels."""
        letters = AllDeadLetters(self._store)
        ids = [letter for letter, owner in self._letters.items() if owner == trace_id]
        for dead in letters.read(ids):
            trace = dead.letter.item.trace
            if span_id in {None, trace.span_id}:
                return FoundTrace(trace, "dead letter")
        labelled = read_labelled_trace(self._store, trace_id)
        # A trace may have several spans; a verdict must not be shown with the text of another one.
        is_other = labelled is not None and span_id not in {None, labelled.span_id}
        return None if labelled is None or is_other else FoundTrace(labelled, "label")

    def _ids(self, prefix: str) -> Iterator[str]:
        """Yield ids of traces from everywhere that they are known, many of them several times."""
        for entry in scan_verdicts(self._store, VerdictFilter(traces=(prefix,))):
            yield from judged_traces(entry.verdict)
        yield from (copy.trace.trace_id for copy in self.scan(_contains({prefix})))
        yield from self._letters.values()
        yield from (item.label.trace_id for item in read_labels(self._store))

    @cached_property
    def _letters(self) -> dict[str, str]:
        letters = AllDeadLetters(self._store).find(VerdictFilter())
        return {dead.letter.evaluation.id: dead.letter.owner.trace_id for dead in letters}

    def _read(
        self, entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]], holds: Callable[[bytes], bool] | None
    ) -> Iterator[FoundTrace]:
        for entry_id, fields in entries:
            payload = (fields or {}).get(b"t")
            if payload is not None and (holds is None or holds(payload)):
                read = read_entry((entry_id, fields), self._max_bytes)
                if isinstance(read, TraceEntry):
                    yield FoundTrace(read.trace, "stream", entry_position(entry_id)[0], read)


class Dataset:
    """Whole traces with their verdicts and labels, in the form that `evaluate` and `judges test` read."""

    def __init__(
        self, store: Store, settings: Settings, selected: VerdictFilter, *, limit: int, labelled: bool = False
    ) -> None:
        """Choose the traces of the newest wanted verdicts, at most ``limit`` of them.

        With ``labelled`` only those with a label, and without a filter also those whose verdicts are gone.
        """
        self.verdicts: dict[str, list[Verdict]] = {}  # The chosen ones by trace, the newest first.
        self._store, self._settings = store, settings
        self._labels: dict[str, list[Label]] = {}
        for item in read_labels(store):
            self._labels.setdefault(item.label.trace_id, []).append(item.label)
        for entry in scan_verdicts(store, selected):
            name = entry.verdict.trace_id
            if (name in self.verdicts or len(self.verdicts) < limit) and (not labelled or name in self._labels):
                self.verdicts.setdefault(name, []).append(entry.verdict)
        if labelled and selected.accepts_all:
            room = max(0, limit - len(self.verdicts))
            self.verdicts.update({name: [] for name in sorted(self._labels.keys() - self.verdicts.keys())[:room]})

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield remaining traces, redacted, with `verdicts` and `labels`; the newest is a tag JUDGE[.METRIC]."""
        traces, redaction = TraceLookup(self._store, self._settings), Redaction.from_settings(self._settings.redact)
        published = traces.find(self.verdicts.keys())
        for name, verdicts in self.verdicts.items():
            for publication in published.get(name, ())[:1]:
                trace = publication.trace if redaction is None else redaction.trace(publication.trace)
                labels = self._labels.get(name, [])
                tags = {label.tag: "pass" if label.passed else "fail" for label in labels}
                row: dict[str, object] = msgspec.to_builtins(trace)
                if tags:
                    row["tags"] = {**(trace.tags or {}), **tags}
                yield {**row, "verdicts": msgspec.to_builtins(verdicts), "labels": msgspec.to_builtins(labels)}


def keep_traces(store: Store, settings: Settings, trace_ids: Collection[str]) -> int:
    """Keep redacted copies of labelled traces if `keep_labelled` is on; return how many are gone or have no room."""
    if not KEEP_LABELLED.read(settings) or not trace_ids:
        return 0
    redaction = Redaction.from_settings(settings.redact)
    missing = [trace_id for trace_id in trace_ids if read_labelled_trace(store, trace_id) is None]
    published_by_id = TraceLookup(store, settings).find(missing) if missing else {}
    kept = 0
    for published in published_by_id.values():
        trace = published[0].trace if redaction is None else redaction.trace(published[0].trace)
        kept += keep_trace(store, trace, MAX_LABELLED_BYTES.read(settings))
    return len(missing) - kept


def texts_of(trace: Trace) -> Iterator[str]:
    """Yield the texts that a search reads: question, answer, documents, messages, error and comment."""
    yield from filter(None, (trace.input, trace.output, trace.error, trace.feedback and trace.feedback.comment))
    for document in trace.context or ():
        yield document if isinstance(document, str) else document.text
    yield from (message.content for message in trace.messages or () if message.content)


def _is_of(names: Collection[str]) -> Callable[[bytes], bool]:
    """Return a test whether a payload may be of one of many traces; it decodes the id only."""

    def holds(payload: bytes) -> bool:
        try:
            return _read_identity(payload).trace_id in names
        except (msgspec.DecodeError, RecursionError):
            return True

    return holds


def _contains(names: Collection[str] | None) -> Callable[[bytes], bool] | None:
    """Return a test whether bytes of JSON may contain one of a few names; None if every payload has to be read."""
    if names is None or not 0 < len(names) <= MAX_MATCHES or not all(map(_PLAIN_ID.fullmatch, names)):
        return None
    raw = [name.encode() for name in names]
    return lambda payload: any(name in payload for name in raw)
