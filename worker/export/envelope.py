"""The requests of OTLP: encoded spans or log records, wrapped in a scope and a resource that are always the same."""

from collections.abc import Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from worker.export.conventions import SCHEMA_URL, SCOPE
from worker.export.shared import key_values
from worker.export.wire import delimited, repeated

__all__ = ["Envelope"]


class Envelope:
    """Wraps messages for one resource."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        """Take the resource's attributes."""
        sender, scope = Resource(attributes=key_values(resource)), InstrumentationScope(name=SCOPE)
        self._resource_spans = ResourceSpans(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_spans = ScopeSpans(scope=scope, schema_url=SCHEMA_URL).SerializeToString()
        self._resource_logs = ResourceLogs(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_logs = ScopeLogs(scope=scope, schema_url=SCHEMA_URL).SerializeToString()

    def traces(self, spans: Sequence[bytes]) -> bytes:
        """Make an `ExportTraceServiceRequest`."""
        scope = self._scope_spans + repeated(ScopeSpans.SPANS_FIELD_NUMBER, spans)
        resource = self._resource_spans + delimited(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, scope)
        return delimited(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, resource)

    def logs(self, records: Sequence[bytes]) -> bytes:
        """Make an `ExportLogsServiceRequest`."""
        scope = self._scope_logs + repeated(ScopeLogs.LOG_RECORDS_FIELD_NUMBER, records)
        resource = self._resource_logs + delimited(ResourceLogs.SCOPE_LOGS_FIELD_NUMBER, scope)
        return delimited(ExportLogsServiceRequest.RESOURCE_LOGS_FIELD_NUMBER, resource)
