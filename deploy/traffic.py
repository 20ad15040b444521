"""Endless sample traffic of three services, one of which gets worse and recovers repeatedly.

Each round is a plan of `tracejudge demo`, stretched to the length of the round; the drop comes half-way. A call is
published with the SDK, and sent as a span with the same ids, so that the exemplars of a dashboard lead to it.
`TRACEJUDGE_REDIS_URL` is the address of Redis, `OTEL_EXPORTER_OTLP_ENDPOINT` the address for spans; without it none are
sent.
"""

import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import click
import httpx
from msgspec.structs import asdict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

import tracejudge
from worker.features.demo.sample_traffic import TRACES_PER_S, Shot, load_samples, make_plan

_OURS: Final = ("trace_id", "span_id", "id", "environment")
_TO_NS: Final = 1_000_000_000


class Call:
    """A call of a sample service that has just ended."""

    def __init__(self, shot: Shot) -> None:
        self.trace = shot.trace
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.ended_at = time.time()
        self.started_at = self.ended_at - shot.call_s

    def publish(self) -> None:
        """Publish it with the SDK, which neither blocks nor raises."""
        # Sample ids repeat in every round; with fresh ones each round is judged.
        fields = {name: value for name, value in asdict(self.trace).items() if name not in _OURS}
        ids = {"trace_id": self.trace_id, "span_id": self.span_id}
        tracejudge.publish(**fields | ids | {"started_at": self.started_at, "ended_at": self.ended_at})

    def span(self) -> ResourceSpans:
        """Build the span of an instrumented service, without texts."""
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": self.trace.model or "sample"}
        span = Span(
            trace_id=bytes.fromhex(self.trace_id),
            span_id=bytes.fromhex(self.span_id),
            name=f"chat {self.trace.model or 'sample'}",
            kind=Span.SPAN_KIND_CLIENT,
            start_time_unix_nano=int(self.started_at * _TO_NS),
            end_time_unix_nano=int(self.ended_at * _TO_NS),
            attributes=_attributes(attributes),
            status=Status(code=Status.STATUS_CODE_ERROR) if self.trace.error else None,
        )
        resource = Resource(attributes=_attributes({"service.name": self.trace.service}))
        return ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=[span])])


def send_spans(collector: httpx.Client, calls: Sequence[Call]) -> None:
    """Send the spans of calls; those that the collector refuses are dropped."""
    request = ExportTraceServiceRequest(resource_spans=[call.span() for call in calls])
    try:
        collector.post("/v1/traces", content=request.SerializeToString()).raise_for_status()
    except httpx.HTTPError as error:
        click.echo(f"no spans sent: {type(error).__name__}")


@click.command()
@click.option("--round", "round_s", type=click.FloatRange(min=4), default=7200.0, help="Seconds of one round.")
@click.option("--rate", "per_s", type=click.FloatRange(min=0.01), default=1.0, help="Traces a second of each service.")
def main(round_s: float, per_s: float) -> None:
    """Publish until SIGTERM or Ctrl-C."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    tracejudge.init(service="tracejudge-traffic")
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    collector = httpx.Client(base_url=endpoint, timeout=10.0, headers={"Content-Type": "application/x-protobuf"})
    click.echo(f"rounds of {round_s:g} s, {per_s:g} traces a second of each service")
    stretch = TRACES_PER_S / per_s
    alive = Path(tempfile.gettempdir()) / "traffic-alive"
    plan = make_plan(load_samples(), round_s / stretch)
    while not ending.is_set():
        began_s = time.monotonic()
        # A second at a time, so that a collector gets one request a second.
        for second, shots in groupby(plan, lambda shot: int(shot.at_s * stretch)):
            if ending.wait(max(0.0, began_s + second - time.monotonic())):
                break
            calls = [Call(shot) for shot in shots]
            for call in calls:
                call.publish()
            if endpoint:
                send_spans(collector, calls)
            alive.touch()
        ending.wait(max(0.0, began_s + round_s - time.monotonic()))
    tracejudge.shutdown(5.0)


def _attributes(values: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in values.items()]


if __name__ == "__main__":
    main()
