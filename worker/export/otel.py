"""Send verdicts to an OTLP receiver as spans and events; one that is down delays them, up to the outbox's cap."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from worker.export.envelope import Envelope
from worker.export.otlp import Channel, Halted, OtlpClient
from worker.export.outbox import OutboxEntry, OutboxReader
from worker.export.telemetry import Encoded, Telemetry
from worker.metrics import Metrics
from worker.redaction import Redaction
from worker.seats import providers
from worker.settings import Settings
from worker.store import Store, StoreError

__all__ = ["OtelExporter"]

log = structlog.get_logger("tracejudge.export")

_ENVELOPE: Final = Envelope({"service.name": "tracejudge", "service.version": version("tracejudge-worker")})
_TRACES: Final = Channel("/v1/traces", _ENVELOPE.traces, ExportTraceServiceResponse)
_LOGS: Final = Channel("/v1/logs", _ENVELOPE.logs, ExportLogsServiceResponse)
_KEEP_EVERY_S: Final = 5.0


class OtelExporter(OutboxReader):
    """Reads the group ``otel``."""

    # Longer than one request may take: before each, and while it waits, a delivery keeps its entries its own.
    stale_ms = 45_000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, endpoint: str) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(store, "otel")
        self._telemetry = Telemetry(
            providers(settings), explanations=settings.export_explanations, redaction=Redaction.of(settings.redact)
        )
        self._drop = partial(metrics.export_dropped.labels, self.exporter)
        for reason in ("unreadable", "rejected", "partial_success"):
            self._drop(reason)
        self._client = OtlpClient(endpoint, waits=self._wait, dropped=self.dropped, before_each=self._keep)
        self._delivering: tuple[str, ...] = ()
        self._delivered: list[str] = []
        self._keep_at = 0.0

    def turn(self) -> None:
        """Acknowledge what was delivered while Redis was away, before it is delivered again; then read."""
        self._acknowledge_delivered()
        super().turn()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send verdicts and then acknowledge; dead letters are no verdicts and are only acknowledged."""
        encoded = list(self._encoded(entries))
        self._delivering = tuple(entry.entry_id for entry in entries)
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            self._client.deliver(_TRACES, [span for each in encoded for span in each.spans])
            self._client.deliver(_LOGS, [event for each in encoded for event in each.events])
        except Halted:
            return
        self._delivered += self._delivering
        self._acknowledge_delivered()

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then its connections."""
        ended = super().stop(timeout_s)
        self._client.close()
        return ended

    def dropped(self, reason: str, amount: int) -> None:
        """Count what could not be delivered."""
        self._drop(reason).inc(amount)

    def _acknowledge_delivered(self) -> None:
        if self._delivered:
            self.acknowledge(self._delivered)
            self._delivered.clear()

    def _wait(self, seconds: float) -> bool:
        """Wait for the receiver; True when the exporter was told to stop."""
        self.held_up("receiver does not answer")
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self.stopping.wait(min(left_s, _KEEP_EVERY_S)):
                return True
            self._keep()
        return self.stopping.is_set()

    def _keep(self) -> None:
        """Keep what is under way from being taken over, once in a while.

        Raises:
            Halted: This process stood still for so long that others have taken all of it.
        """
        if time.monotonic() < self._keep_at:
            return
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            ours = self.keep(self._delivering)
        except StoreError:
            # Without Redis nobody else takes them either.
            return
        if ours == 0:
            log.warning("others deliver this now", exporter=self.exporter, entries=len(self._delivering))
            raise Halted

    def _encoded(self, entries: Sequence[OutboxEntry]) -> Iterator[Encoded]:
        for entry in entries:
            if entry.kind != "j":
                continue
            try:
                yield self._telemetry.encode(entry.verdict)
            except Exception as error:  # noqa: BLE001 - one that cannot be a span must not hold up all behind it
                log.warning("verdict cannot be exported", exporter=self.exporter, error=type(error).__name__)
                self.dropped("unreadable", 1)
