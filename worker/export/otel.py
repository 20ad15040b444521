"""Send verdicts to an OTLP receiver as spans and events; one that is down delays them, up to the outbox's cap."""

import struct
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
from worker.settings import Settings
from worker.store import Store

__all__ = ["OtelExporter"]

log = structlog.get_logger("tracejudge.export")

_ENVELOPE: Final = Envelope({"service.name": "tracejudge", "service.version": version("tracejudge-worker")})
_TRACES: Final = Channel("/v1/traces", _ENVELOPE.traces, ExportTraceServiceResponse)
_LOGS: Final = Channel("/v1/logs", _ENVELOPE.logs, ExportLogsServiceResponse)


class OtelExporter(OutboxReader):
    """Reads the group ``otel``."""

    # A delivery may wait long for its receiver, and its entries must not be taken over meanwhile.
    stale_ms = 120_000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, endpoint: str) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(store, "otel")
        providers = {model.judge_model: model.provider for model in settings.models.values()}
        self._telemetry = Telemetry(
            providers, explanations=settings.export_explanations, redaction=Redaction.of(settings.redact)
        )
        self._drop = partial(metrics.export_dropped.labels, self.exporter)
        for reason in ("unreadable", "rejected", "partial_success"):
            self._drop(reason)
        self._client = OtlpClient(endpoint, waits=self.stopping.wait, dropped=self.dropped)

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send verdicts and then acknowledge; dead letters are no verdicts and are only acknowledged."""
        encoded = list(self._encoded(entries))
        try:
            self._client.deliver(_TRACES, [span for each in encoded for span in each.spans])
            self._client.deliver(_LOGS, [event for each in encoded for event in each.events])
        except Halted:
            return
        self.acknowledge([entry.entry_id for entry in entries])

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then its connections."""
        ended = super().stop(timeout_s)
        self._client.close()
        return ended

    def dropped(self, reason: str, amount: int) -> None:
        """Count what could not be delivered."""
        self._drop(reason).inc(amount)

    def _encoded(self, entries: Sequence[OutboxEntry]) -> Iterator[Encoded]:
        for entry in entries:
            if entry.kind != "j":
                continue
            try:
                yield self._telemetry.encode(entry.verdict)
            except (ValueError, OverflowError, struct.error) as error:
                # One that cannot be a span must not hold up all behind it, again and again.
                log.warning("verdict cannot be exported", exporter=self.exporter, error=type(error).__name__)
                self.dropped("unreadable", 1)
