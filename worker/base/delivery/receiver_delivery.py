"""Delivers verdicts to one receiver: batches, retries, halves after a refusal, and parking until it has the trace.

A receiver that is down delays its verdicts; they wait in the outbox, up to its cap, and no other receiver waits with
them. A verdict may be sent twice, after a crash between its delivery and the acknowledgement: each receiver
recognises it by the evaluation id.
"""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Final, Literal, NamedTuple

import msgspec
import structlog
from msgspec import structs
from prometheus_client import Counter, Gauge

from judges.core.backoff import backoff_s
from judges.core.verdict import Score, Verdict
from judges.models.registry import PROVIDERS
from judges.models.replies import retry_after_s
from judges.requests.redaction import Redaction
from worker.base.delivery.channel import Answer, Channel, Item, SkippedError, batches
from worker.base.delivery.feature import DeliveryKeys, receiver_group
from worker.base.delivery.receiver_client import Reply, Request
from worker.base.delivery.settings import all_receivers
from worker.base.doctor.finding import Check
from worker.core.config.graders import find_providers
from worker.core.config.settings import Settings
from worker.core.export.consumer import ExportConsumer
from worker.core.queue.ledger import OutboxEntry
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.metrics import Metric, Metrics, MetricTable

log = structlog.get_logger("tracejudge.export")
PARKED_FOR_S: Final = (60.0, 300.0, 1800.0, 7200.0)
"""How long a verdict waits whose trace the receiver does not know: after the first answer, the second and so on."""
BY_CODE: Final = frozenset({"code", *(name for name, provider in PROVIDERS.items() if provider.is_heuristic)})
"""Providers that are programs."""
_PARKED_COUNT: Final = 100
_KEEP_EVERY_S: Final = 5.0
_TRIES: Final = 3
_GIVEN_UP_IN_A_ROW: Final = 3
_GIVE_UP_AFTER_S: Final = 300.0


class DeliveryEndedError(Exception):
    """The worker stops, or another one delivers these entries now; undelivered ones stay in the outbox."""


class _Part(NamedTuple):
    """Items for one request, and how often the receiver failed (5xx) over them."""

    items: Sequence[Item]
    failures: int = 0


class _GiveUpPolicy:
    """Decides whether a single item that the receiver fails over is dropped or retried.

    A receiver that fails over every item is broken, and the items are good. So an item is dropped only if the receiver
    has accepted others lately, or has accepted nothing for so long that this item may be the reason.
    """

    def __init__(self) -> None:
        self._left = 0
        self._since: float | None = None

    def record_accepted(self) -> None:
        self._left, self._since = _GIVEN_UP_IN_A_ROW, None

    def may_give_up(self) -> bool:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if self._left > 0:
            self._left -= 1
        elif now - self._since < _GIVE_UP_AFTER_S:
            return False
        self._since = now
        return True


class DeliveryMetrics(MetricTable):
    """The metrics of receivers."""

    # fmt: off
    export_parked = Metric(Gauge, "export_parked", "verdicts", ("exporter",),
        "Verdicts that wait until a receiver knows their traces")
    export_answers_ignored = Metric(Counter, "export_answers_ignored_total", "requests", ("exporter",),
        "Accepted requests whose answer was unreadable or impossible")


class ReceiverExporter(ExportConsumer):
    """Base of all receivers; docs/changing.md says what a further one needs."""

    drop_reasons: ClassVar[tuple[str, ...]] = (
        "unreadable",
        "rejected",
        "server_error",
        "partial_success",
        "not_ingested",
    )
    # A request takes less; before each, and while it waits, a delivery resets the idle time of its entries.
    stale_ms = 45_000
    channels: Sequence[Channel]  # The kinds of requests, in the order in which they are sent.

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        """Deliver to the receiver ``name`` of the settings, or to `otel` for `otlp_endpoint`."""
        self.exporter = receiver_group(name)  # type: ignore[misc]  # each receiver has its own group
        super().__init__(settings, store, metrics)
        self.name_in_settings = name
        self._settings = settings
        self._options = all_receivers(settings)[name]
        self._redaction = Redaction.from_settings(settings.redact)
        self._providers = find_providers(settings)
        self._parked_keys = DeliveryKeys(store.keys.prefix).receiver_parked(name)
        own = metrics.table(DeliveryMetrics)
        self._parked_gauge = own.export_parked.labels(self.exporter)
        self._ignored = own.export_answers_ignored.labels(self.exporter)
        self._policy = _GiveUpPolicy()
        self._failures = 0
        self._logged_reason: str | None = None
        self._logged_ignored = False
        self._delivering: tuple[str, ...] = ()
        self._delivered: list[str] = []
        self._keep_at = 0.0
        self._next_parked = 0.0
        self._send_at = 0.0

    @classmethod
    @abstractmethod
    def checks(cls, settings: Settings, name: str) -> Sequence[Check]:
        """Return what `tracejudge doctor` checks; ``name`` is the receiver's in the settings."""

    @classmethod
    @abstractmethod
    def retained_data(cls, settings: Settings, name: str) -> str:
        """Return which data `tracejudge forget` cannot erase there, and how to erase it; for its output."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The receiver in logs, without credentials."""

    @abstractmethod
    def send(self, request: Request) -> Reply:
        """Send one request; errors are replies too."""

    @abstractmethod
    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode a verdict for its channels; ``SkippedError`` if the receiver cannot hold it, others if unreadable."""

    @property
    def explains(self) -> bool:
        """Whether rationales are sent."""
        own = self._options.export_explanations
        return self._settings.export_explanations if own is None else own

    def redact(self, text: str | None) -> str | None:
        """Return a text of a judge, redacted as `[redact]` says; None if rationales are not sent."""
        if not self.explains:
            return None
        return self._redaction.text(text) if text and self._redaction else text

    def explanation(self, verdict: Verdict, score: Score) -> str | None:
        """Return the rationale of a score as it may be sent."""
        return self.redact(verdict.explanation(score))

    def encode_whole(self, verdict: Verdict) -> bytes:
        """Encode a verdict with all its fields; without rationales no field that may quote the trace is left."""
        if not self.explains:
            scores = tuple(structs.replace(score, rationale=None) for score in verdict.scores)
            return msgspec.json.encode(structs.replace(verdict, rationale=None, details={}, scores=scores))
        # Ids stay as they are, because a verdict is recognised, and its lines in an archive are erased, by them.
        fields: dict[str, object] = msgspec.to_builtins(verdict)
        written_by_judge = ("scores", "rationale", "note", "details")
        texts = {name: _redact_texts(fields[name], self.redact) for name in written_by_judge if name in fields}
        return msgspec.json.encode({**fields, **texts})

    def annotator_kind(self, judge_model: str) -> Literal["LLM", "CODE"]:
        """Return who judged: a model, or a program."""
        return "CODE" if self._providers.get(judge_model) in BY_CODE else "LLM"

    def run_once(self) -> None:
        """Acknowledge entries delivered while Redis was away, before they are delivered again; then read."""
        self._acknowledge_delivered()
        if time.monotonic() >= self._next_parked and self._deliver_parked() < _PARKED_COUNT:
            self._next_parked = time.monotonic() + 5.0
        super().run_once()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send final verdicts, then acknowledge; entries of dead letters and of the canary are only acknowledged."""
        # A receiver would average verdicts of repeats and of canaries with verdicts of the traffic.
        sent = [
            entry.verdict
            for entry in entries
            if entry.kind == "j" and entry.verdict.origin not in {"repeat", "canary"} and self._wants(entry.verdict)
        ]
        self._delivering = tuple(entry.entry_id for entry in entries)
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            self._deliver([(verdict, 0) for verdict in sent])
        except DeliveryEndedError:
            return
        self._delivered += self._delivering
        self._acknowledge_delivered()

    def lacks(self, channel: Channel, reply: Reply) -> bool:  # noqa: ARG002 - subclasses use them
        """Return whether the receiver has no such channel, so that its items are no loss."""
        return False

    def send_items(self, channel: Channel, items: Sequence[Item]) -> Reply:
        """Send a request with items."""
        return self.send(channel.request(items))

    def _wants(self, verdict: Verdict) -> bool:
        options = self._options
        return (
            (not options.services or any(fnmatchcase(verdict.service, pattern) for pattern in options.services))
            and (not options.judges or any(fnmatchcase(verdict.judge, pattern) for pattern in options.judges))
            and (options.only == "all" or any(score.passed is False for score in verdict.scores))
        )

    def _deliver(self, verdicts: Iterable[tuple[Verdict, int]]) -> None:
        by_channel: dict[Channel, list[Item]] = {channel: [] for channel in self.channels}
        for verdict, parked in verdicts:
            try:
                # Encode all of a verdict before any is added, because a part of it may be what cannot be encoded.
                for channel, item in list(self.items(verdict)):
                    by_channel[channel].append(item._replace(parked=parked))
            except SkippedError as skipped:
                self.count_dropped(str(skipped), 1)
            except StoreError:
                raise  # Redis is away; the verdict is good.
            except Exception as error:  # noqa: BLE001 - one bad verdict must not block all behind it
                log.warning("verdict cannot be exported", exporter=self.exporter, error=type(error).__name__)
                self.count_dropped("unreadable", 1)
        for channel in self.channels:
            self._send(channel, by_channel[channel])

    def _send(self, channel: Channel, items: Sequence[Item]) -> None:
        """Deliver items until each was accepted, parked or dropped: in batches, or in halves after a refusal."""
        parts = deque(_Part(batch) for batch in batches(channel, items))
        while parts:
            part = parts.popleft()
            self._keep()
            if channel.interval_s > 0:
                if (wait_s := self._send_at - time.monotonic()) > 0 and self.wait(wait_s):
                    raise DeliveryEndedError
                self._send_at = time.monotonic() + channel.interval_s
            reply = self.send_items(channel, part.items)
            answer = channel.answer(part.items, reply)
            if answer is not None:
                # If all are unsent, halve them, because one is at fault and the receiver does not say which.
                half = len(answer.unsent) // 2 if len(answer.unsent) == len(part.items) else 0
                halves = (answer.unsent[half:], answer.unsent[:half])
                parts.extendleft(part._replace(items=some) for some in halves if some)
                parts.extend(
                    _Part([item], part.failures + 1) for item in self._handle_answer(channel, part, answer, reply)
                )
                continue
            if self.lacks(channel, reply):
                return
            if reply.kind == "failing":
                # The parts of a request that failed so often are as suspect as the whole was.
                part = part._replace(failures=part.failures + 1)
            isolates = reply.kind == "rejected" or part.failures >= _TRIES
            if isolates and len(part.items) > 1:
                half = len(part.items) // 2
                parts.extendleft(part._replace(items=some) for some in (part.items[half:], part.items[:half]))
            elif reply.kind == "rejected":
                self._give_up("rejected", channel, reply, part.items[0])
            elif isolates and (channel.is_optional or self._policy.may_give_up()):
                self._give_up("server_error", channel, reply, part.items[0])
            else:
                self._retry_later(reply)
                # A single suspect goes behind the others, because their success shows that the receiver works.
                (parts.append if isolates else parts.appendleft)(part)

    def _handle_answer(self, channel: Channel, part: _Part, answer: Answer, reply: Reply) -> Sequence[Item]:
        self.record_progress()
        self._failures = 0
        if len(answer.again) < len(part.items):
            self._policy.record_accepted()
        if self._logged_reason is not None and not answer.again:
            log.info("export resumed", exporter=self.exporter, receiver=self.address)
            self._logged_reason = None
        if not answer.is_read:
            self._ignored.inc()
            if not self._logged_ignored:
                self._logged_ignored = True
                self._warn("answer ignored", path=channel.path, sent=len(part.items))
        elif answer.rejected > 0:
            self._warn("partial success", path=channel.path, rejected=answer.rejected)
            self.count_dropped("partial_success", answer.rejected)
        if answer.absent:
            self._park(answer.absent)
        if not answer.again:
            return ()
        if part.failures + 1 >= _TRIES and self._policy.may_give_up():
            for item in answer.again:
                self._give_up("server_error", channel, reply, item)
            return ()
        self._retry_later(reply)
        return answer.again

    def _give_up(self, reason: str, channel: Channel, reply: Reply, item: Item) -> None:
        name = item.verdict.evaluation_id
        self._warn("verdict dropped", path=channel.path, reason=reason, status=reply.status, evaluation_id=name)
        self.count_dropped(reason, 1)

    def _park(self, items: Sequence[Item]) -> None:
        """Keep verdicts until the receiver may know their traces; drop those that have waited long enough."""
        waiting: dict[str, tuple[float, bytes]] = {}
        given_up = set()
        for item in items:
            name = item.verdict.evaluation_id
            if item.parked >= len(PARKED_FOR_S):
                given_up.add(name)
                continue
            payload = b"%d %b" % (item.parked + 1, msgspec.json.encode(item.verdict))
            waiting[name] = time.time() + PARKED_FOR_S[item.parked], payload
        refused = 0
        if waiting:
            flat = [part for name, (due_s, payload) in waiting.items() for part in (name, int(due_s * 1000), payload)]
            refused = int(self._store.run("receiver_park", self._parked_keys, (self._settings.max_outbox, *flat)))
        if given_up or refused:
            self._warn("verdicts dropped: traces unknown", verdicts=len(given_up), no_room=refused)
            self.count_dropped("not_ingested", len(given_up) + refused)

    def _deliver_parked(self) -> int:
        """Send those parked verdicts again whose time has come; return how many."""
        lease_ms = 120_000
        arguments = (int(time.time() * 1000), lease_ms, _PARKED_COUNT)
        count, *flat = self._store.run("receiver_due", self._parked_keys, arguments)
        self._parked_gauge.set(count)
        taken = dict(zip(flat[::2], flat[1::2], strict=True))
        if not taken:
            return 0
        parked = []
        for name, payload in taken.items():
            try:
                times, _, body = payload.partition(b" ")
                parked.append((msgspec.json.decode(body, type=Verdict), int(times)))
            except ValueError:
                log.warning("parked verdict unreadable", exporter=self.exporter, evaluation=name.decode())
                self.count_dropped("unreadable", 1)
        self._delivering = ()
        try:
            self._deliver(parked)
        except DeliveryEndedError:
            return 0
        # Verdicts that were parked again have a new payload, and stay.
        self._store.run("receiver_unpark", self._parked_keys, [part for row in taken.items() for part in row])
        return len(taken)

    def _retry_later(self, reply: Reply) -> None:
        """Wait before the next request; the reason is logged when it changes."""
        least_s = backoff_s(self._failures, first_s=0.5, longest_s=20.0)
        self._failures += 1
        # A receiver may ask for a longer wait, up to five minutes.
        wait_s = max(least_s, min(300.0, retry_after_s(reply.headers) or 0.0))
        if reply.reason != self._logged_reason:
            self._logged_reason = reply.reason
            cause = {"reason": reply.reason, "meaning": reply.meaning, **({"fix": reply.fix} if reply.fix else {})}
            self._warn("export retrying", seconds=round(wait_s, 1), **cause)
        status = f"answers {reply.reason}: {reply.meaning}," if reply.status else "does not answer"
        self.report_blocked(f"receiver {status}")
        if self.wait(wait_s):
            raise DeliveryEndedError

    def _warn(self, event: str, **fields: object) -> None:
        log.warning(event, exporter=self.exporter, receiver=self.address, **fields)

    def _acknowledge_delivered(self) -> None:
        if self._delivered:
            self.acknowledge(self._delivered)
            self._delivered.clear()

    def wait(self, seconds: float) -> bool:
        """Wait, and keep the entries under delivery; True when the exporter was told to stop."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and not self.stopping.wait(min(left_s, _KEEP_EVERY_S)):
            self._keep()
        return self.stopping.is_set()

    def _keep(self) -> None:
        """Reset the idle time of the entries under delivery every few seconds, so that no worker claims them.

        ``DeliveryEndedError`` if none of them is left: after a long pause of this process others have claimed them,
        or the outbox's cap has removed them.
        """
        if time.monotonic() < self._keep_at or not self._delivering:
            return
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            ours = self.keep(self._delivering)
        except StoreError:
            # Without Redis no other worker can claim them either.
            return
        if ours == 0:
            log.warning("delivery ended: taken over or cut off", exporter=self.exporter, entries=len(self._delivering))
            raise DeliveryEndedError


def _redact_texts(value: object, redact: Callable[[str | None], str | None]) -> object:
    if isinstance(value, str):
        return redact(value) or value
    if isinstance(value, dict):
        return {key: _redact_texts(item, redact) for key, item in value.items()}
    return [_redact_texts(item, redact) for item in value] if isinstance(value, list | tuple) else value
