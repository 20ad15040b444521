"""An OTLP/HTTP receiver on loopback that only counts what arrives; `python -m benchmarks.receiver PORT`."""

import sys
import zlib
from collections.abc import Mapping
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.serving import Peer, reply, serve

_TAKEN: Final = reply(b"", content_type="application/x-protobuf")
_GZIP_OR_ZLIB: Final = 47


class Receiver(Peer):
    """Accepts everything at once."""

    def __init__(self) -> None:
        """Begin at nothing."""
        super().__init__()
        self.spans = 0
        self.events = 0

    def take(self, head: bytes, body: bytes) -> bytes:
        """Count the spans or log records of one export."""
        head = head.lower()
        if b"\r\ncontent-encoding:" in head:
            body = zlib.decompress(body, _GZIP_OR_ZLIB)
        if head.startswith(b"post /v1/traces "):
            spans = ExportTraceServiceRequest.FromString(body).resource_spans
            self.spans += sum(len(scope.spans) for resource in spans for scope in resource.scope_spans)
        else:
            logs = ExportLogsServiceRequest.FromString(body).resource_logs
            self.events += sum(len(scope.log_records) for resource in logs for scope in resource.scope_logs)
        return _TAKEN

    def counts(self) -> Mapping[str, int]:
        """Count spans and events as well."""
        return {**super().counts(), "spans": self.spans, "events": self.events}


if __name__ == "__main__":
    serve(Receiver(), int(sys.argv[1]))
