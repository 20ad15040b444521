"""Gathering the spans of a trace in Redis until it is complete, and joining them into published traces.

A request is answered once Redis has its spans. Any gateway process joins a trace that is due, under a lease: after a
crash another one joins it again, with the same ids, so that it is sampled once.
"""

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from tracejudge.delivery.buffer import Entry, Kind
from tracejudge.dialects import Dialects, RawEvent, RawSpan, names
from tracejudge.dialects.unread import unread
from tracejudge.dialects.values import decoded
from tracejudge.ids import place_of
from tracejudge.otel.joining import SpanGroup, has_no_content, join
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.logs import error_place
from worker.core.telemetry.service import ServiceThread
from worker.features.gateway.admission import Loss, Losses, RefusedError, full
from worker.features.gateway.feature import Gateway, GatewayKeys
from worker.features.gateway.intake import Encoder
from worker.features.gateway.otlp import Decoded, Part, Request, Source, decode_parts
from worker.features.gateway.publishing import Publisher

log = structlog.get_logger("tracejudge.gateway")
_LEASE_MS: Final = 30_000
_MAX_TRACES: Final = 1_000
_MESSAGES: Final = {
    names.INPUT_MESSAGES: "input",
    names.PROMPT: "input",
    names.OUTPUT_MESSAGES: "output",
    names.COMPLETION: "output",
}
_CLOSING: Final = {"[": "]", "{": "}"}
_part_decoder = msgspec.msgpack.Decoder(list[Part])
_part_encoder = msgspec.msgpack.Encoder()


class LeasedTrace(NamedTuple):
    """One leased trace."""

    trace_id: str
    parts: tuple[bytes, ...]
    number: int


class Gatherer:
    """The gathered spans in Redis. Safe to share between threads."""

    def __init__(self, store: Store, settings: Gateway) -> None:
        self.store = store
        keys = GatewayKeys(store.keys.prefix)
        self._keys, self._key_of = (keys.gather, keys.gather_due), keys.gathered
        # Without its root a trace waits longer: services export a root last, and batch exporters every five seconds.
        self._waits_ms = (
            round(settings.gather_s * 1000),
            round(min(settings.gather_max_s, 4 * settings.gather_s) * 1000),
            round(settings.gather_max_s * 1000),
        )
        self._bounds = settings.max_trace_bytes, settings.max_gather_bytes, 24 * 3600
        self.held_bytes = 0  # Bytes of all gathered spans when Redis was last asked.

    def add(self, request: Request, trace_ids: Collection[str] | None = None) -> None:
        """Store the spans of a request's traces but too large ones, or raise ``RefusedError``; safe to repeat."""
        groups = [group for group in request.traces.items() if trace_ids is None or group[0] in trace_ids]
        for start in range(0, len(groups), _MAX_TRACES):
            some = groups[start : start + _MAX_TRACES]
            arguments: list[Any] = [*self._waits_ms, *self._bounds]
            for trace_id, group in some:
                arguments += (trace_id, int(group.has_root), _part_encoder.encode(list(group.parts.values())))
            key_names = (*self._keys, *(self._key_of(trace_id) for trace_id, _ in some))
            reply = self.store.run("gather_add", key_names, arguments)
            if reply is None:
                raise full("too many spans wait for the rest of their traces; send these again later")
            self.held_bytes, *too_large = reply
            request.drop("trace_too_large", count=sum(some[place][1].count for place in too_large))

    def take(self, most: int) -> list[LeasedTrace]:
        """Lease traces that are due."""
        bounds = _LEASE_MS, min(most, 200), 4 * 1024 * 1024
        reply = self.store.run("gather_take", self._keys, bounds)
        taken = []
        for trace_id, flat in reply:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            # Redis returns the fields in any order; the events of a conversation are read in that of their arrival.
            parts = tuple(fields[name] for name in sorted(filter(bytes.isdigit, fields), key=int))
            taken.append(LeasedTrace(trace_id.decode(), parts, int(fields.get(b"count", 0))))
        return taken

    def finish(self, taken: Iterable[LeasedTrace]) -> None:
        """Remove what was published."""
        arguments = [value for lease in taken for value in (lease.trace_id, lease.number)]
        self.held_bytes = self.store.run("gather_done", self._keys, arguments)


class Gatherers:
    """The gathered spans of all partitions: those of a trace are in the partition of its trace id."""

    def __init__(self, stores: Sequence[Store], settings: Gateway) -> None:
        self.each = [Gatherer(store, settings) for store in stores]

    @property
    def held_bytes(self) -> int:
        """Bytes of all gathered spans when Redis was last asked."""
        return sum(gatherer.held_bytes for gatherer in self.each)

    def add(self, request: Request) -> None:
        """Store the spans of a request; after a ``RefusedError`` or ``StoreError`` a repeat stores them once."""
        if len(self.each) == 1:
            self.each[0].add(request)
            return
        trace_ids: dict[int, set[str]] = {}
        for trace_id in request.traces:
            trace_ids.setdefault(place_of(trace_id, None) % len(self.each), set()).add(trace_id)
        for number, own in trace_ids.items():
            self.each[number].add(request, own)


def split_groups(decoded: Decoded) -> Iterator[tuple[Source, SpanGroup]]:
    """Divide a trace into one group for each local root, as the SDK's exporter does in the process of a service."""
    # A local root has no parent in its service. A span whose parent never arrived belongs to the only root of its
    # service, if it has one, else to the topmost span that is known above it.
    events: dict[str, list[RawEvent]] = {}
    for span_id, event in decoded.events:
        events.setdefault(span_id, []).append(event)
    services: dict[str, dict[str, RawSpan]] = {}
    sources: dict[str, Source] = {}
    everywhere = {span.span_id for _, span in decoded.spans}
    for source, raw in decoded.spans:
        further = events.get(raw.span_id)
        span = msgspec.structs.replace(raw, events=(*raw.events, *further)) if further else raw
        services.setdefault(source.service, {})[span.span_id] = span
        sources.setdefault(source.service, source)
    for service, spans in services.items():
        groups: dict[str, list[RawSpan]] = {}
        orphans: dict[str, list[RawSpan]] = {}
        for span in spans.values():
            top = _top(span, spans)
            is_root = top.is_local_root or top.parent_id in everywhere
            (groups if is_root else orphans).setdefault(top.span_id, []).append(span)
        if len(groups) == 1:
            next(iter(groups.values())).extend(span for members in orphans.values() for span in members)
            orphans = {}
        for top_id, members in (*groups.items(), *orphans.items()):
            ordered = tuple(sorted(members, key=lambda span: span.ended_at or 0.0))
            yield sources[service], SpanGroup(spans[top_id] if top_id in groups else None, ordered)


def _top(span: RawSpan, spans: dict[str, RawSpan]) -> RawSpan:
    """Return the local root above a span, else the topmost span of its service that is known."""
    for _ in range(1_000):  # parents may form a circle
        parent = spans.get(span.parent_id or "")
        # A request to its own service is a root; other spans with a remote parent are not, such as those that logfire
        # writes of a stream, if that parent is in the same service.
        if parent is None or parent is span or (span.is_local_root and span.is_request):
            break
        span = parent
    return span


def _broken(spans: Iterable[RawSpan], fields: Mapping[str, Any]) -> set[str]:
    """Return the fields whose messages no JSON parser reads, as instrumentations cut long attributes."""
    broken = set()
    for span in spans:
        for name, field in _MESSAGES.items():
            text = span.attributes.get(name)
            if isinstance(text, str) and (closing := _CLOSING.get(text[:1])):
                # Decoding all messages again would cost more than it finds: most texts that were cut lack the end.
                is_suspect = not text.endswith(closing) or not fields.get(field)
                if is_suspect and decoded(text) is None:
                    broken.add(field)
    return broken


def publication_id(trace_id: str, span_id: str) -> str:
    """Derive the id of a publication: a trace that is joined again after a crash has the same."""
    return hashlib.blake2b(f"{trace_id}:{span_id}".encode(), digest_size=8, person=b"gateway").hexdigest()


class Joiner(ServiceThread):
    """The thread that joins and publishes the traces that are due."""

    role = "gather"

    def __init__(
        self,
        gatherers: Sequence[Gatherer],
        encoder: Encoder,
        publisher: Publisher,
        losses: Losses,
        *,
        dialects: Dialects,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("gateway-joiner")
        self._gatherers = gatherers
        self._encoder = encoder
        self._publisher = publisher
        self._losses = losses
        self._dialects = dialects
        # Traces without any of these have nothing that a dialect reads.
        self._prefixes = tuple(prefix.encode() for prefix in dialects.prefixes)
        self._clock = clock

    def run_once(self) -> None:
        """Join and publish some of the traces that are due; wait if there is none, or no room for them."""
        self._losses.write()
        failure: Exception | None = None
        taken = False
        for gatherer in self._gatherers:
            try:
                taken |= self._publish(gatherer)
            except StoreError as error:
                # The traces of other partitions go on.
                failure = error
        if failure is not None:
            raise failure
        if not taken:
            self.pause(0.25)

    def _publish(self, gatherer: Gatherer) -> bool:
        """Join and publish some traces of a partition; return whether there were any."""
        room = self._publisher.room
        # In a full stream a joined trace would cost one that nobody has read; here it stays in Redis.
        taken = gatherer.take(room) if room > 0 else []
        if not taken:
            return False
        entries: list[Entry] = []
        for lease in taken:
            with self._guarded(lease.trace_id, len(lease.parts)):
                entries += self._joined(lease)
        try:
            # What is not written in time is joined again when the lease ends.
            self._publisher.submit(entries).result(timeout=_LEASE_MS / 1000)
        except (RefusedError, FutureTimeoutError) as error:
            raise StoreError(str(error) or "Redis does not answer", gatherer.store.address) from error
        gatherer.finish(taken)
        return True

    def _joined(self, taken: LeasedTrace) -> Iterator[Entry]:
        if not taken.parts:
            # Nothing tells how many spans it had.
            self._drop(taken.trace_id, "expired", 1)
            return
        parts = [part for raw in taken.parts for part in _part_decoder.decode(raw)]
        counts = Counter[str]()
        for part in parts:
            counts[part.scope] += len(part.items)
        if self._losses.is_examined(counts) and not any(
            prefix in part for part in taken.parts for prefix in self._prefixes
        ):
            self._losses.drop_unread(counts, taken.trace_id)
            return
        decoded = decode_parts(taken.trace_id, parts)
        self._drop(taken.trace_id, "unreadable", decoded.unreadable)
        for source, group in split_groups(decoded):
            with self._guarded(taken.trace_id, len(group.spans)):
                fields = join(group, self._dialects)
                if fields is None:
                    kinds = unread(group.spans, self._dialects)
                    self._losses.drop_unread({kind.scope: kind.count for kind in kinds}, taken.trace_id, kinds)
                    continue
                if not (fields.get("output") or fields.get("error")):
                    has_content = not has_no_content(fields)
                    self._losses.tell_empty(group.spans, self._dialects, taken.trace_id, has_content=has_content)
                fields["id"] = publication_id(taken.trace_id, fields["span_id"])
                named = {"service": source.service, "environment": source.environment, "release": source.release}
                outcome = self._encoder.encode(Kind.TRACE, fields | named, self._clock())
                if isinstance(outcome, Entry):
                    for field in _broken(group.spans, fields):
                        self._losses.leave_out(field, source.service, taken.trace_id)
                    yield outcome
                else:
                    self._drop(taken.trace_id, outcome.reason, len(group.spans), detail=outcome.words)

    @contextlib.contextmanager
    def _guarded(self, trace_id: str, count: int) -> Iterator[None]:
        """Count what fails as unreadable: one malformed trace must not hold up the others for ever."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            log.error("trace not joined", error=type(error).__name__, where=error_place(error))  # noqa: TRY400
            self._drop(trace_id, "unreadable", count)

    def _drop(self, trace_id: str, reason: str, count: int, *, detail: str = "") -> None:
        self._losses.drop([Loss(reason, count, detail, trace_id=trace_id)])
