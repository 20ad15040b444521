"""Send verdicts to an OTLP receiver as spans and events; one that is down delays them, up to the outbox's cap."""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource

from worker.export import conventions
from worker.export.otlp import Channel, Halted, OtlpClient
from worker.export.outbox import OutboxEntry, OutboxReader
from worker.export.telemetry import Telemetry
from worker.metrics import Metrics
from worker.redaction import Redaction
from worker.settings import Settings
from worker.store import Store

__all__ = ["OtelExporter"]

_TRACES: Final = Channel("/v1/traces", encode_spans, ExportTraceServiceResponse)
_LOGS: Final = Channel("/v1/logs", encode_logs, ExportLogsServiceResponse)


class OtelExporter(OutboxReader):
    """Reads the group ``otel``."""

    # A delivery may wait long for its receiver, and its entries must not be taken over meanwhile.
    stale_ms = 120_000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, endpoint: str) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(store, "otel")
        resource = Resource(
            {SERVICE_NAME: "tracejudge", SERVICE_VERSION: version("tracejudge-worker")}, conventions.SCHEMA_URL
        )
        providers = {model.judge_model: model.provider for model in settings.models.values()}
        redaction = Redaction.of(settings.redact)
        self._telemetry = Telemetry(resource, providers, settings.export_explanations, redaction)
        self._drop = partial(metrics.export_dropped.labels, self.exporter)
        for reason in ("unreadable", "rejected", "partial_success"):
            self._drop(reason)
        self._client = OtlpClient(endpoint, waits=self.stopping.wait, dropped=self.dropped)

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send verdicts and then acknowledge; dead letters are no verdicts and are only acknowledged."""
        verdicts = [entry.verdict for entry in entries if entry.kind == "j"]
        try:
            self._client.deliver(_TRACES, [span for verdict in verdicts for span in self._telemetry.spans(verdict)])
            self._client.deliver(_LOGS, [event for verdict in verdicts for event in self._telemetry.events(verdict)])
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
