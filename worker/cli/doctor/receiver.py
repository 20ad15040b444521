"""The OTLP receiver: whether it takes a request that holds nothing."""

from collections.abc import Sequence
from typing import Final

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from worker.addresses import address
from worker.cli.doctor.connections import cause_of
from worker.cli.doctor.finding import Finding, broken, ok, warning

__all__ = ["receiver"]

_TIMEOUT_S: Final = 4.0
_WAITS: Final = frozenset({408, 429, 502, 503, 504})


def receiver(endpoint: str) -> Sequence[Finding]:
    """Post an export without spans."""
    url = f"{endpoint.rstrip('/')}/v1/traces"
    body = ExportTraceServiceRequest().SerializeToString()
    try:
        reply = httpx.post(url, content=body, headers={"content-type": "application/x-protobuf"}, timeout=_TIMEOUT_S)
    except httpx.TimeoutException:
        mend = "see whether a firewall is between, or it is overloaded; verdicts wait in the outbox meanwhile"
        return [broken("otlp receiver", f"{address(url)} does not answer in time", mend)]
    except httpx.HTTPError as error:
        return [broken("otlp receiver", *cause_of(error, address(url), "the receiver"))]
    return [_read(reply.status_code, address(url))]


def _read(status: int, where: str) -> Finding:
    if httpx.codes.is_success(status):
        return ok("otlp receiver", where)
    what = f"{where} answers HTTP {status}"
    if status in _WAITS:
        return warning("otlp receiver", what, "see its log; verdicts wait in the outbox meanwhile")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return broken("otlp receiver", what, "let the worker in there, or send through a collector that signs in")
    return broken("otlp receiver", what, "set otlp_endpoint to an OTLP/HTTP receiver for protobuf, without /v1/traces")
