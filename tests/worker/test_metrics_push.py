"""Metrics pushed by OTLP: a receiver gets every series of the metrics page, with the same names, labels and values."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from prometheus_client.openmetrics.exposition import generate_latest
from structlog.testing import capture_logs
from support.cases import each_case
from support.loopback import LoopbackServer
from support.otlp_read import attributes_of
from support.processes import wait_until
from support.scrape import parse

from judges.core.verdict import Score, Verdict
from worker.board.board_server import BoardServer
from worker.cli.doctor.http_endpoints import metrics_receiver
from worker.config.settings import Board, Settings, SettingsError
from worker.export.prometheus import VerdictCounter
from worker.queue.ledger import OutboxEntry
from worker.telemetry.finding import ok
from worker.telemetry.metrics import GatewayMetrics, Metrics, push

SLOWLY_S = 3600.0
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class MetricsReceiver(LoopbackServer):
    """Serves `/v1/metrics`: keeps the requests, and answers with `status`."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/metrics", self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.requests.append(ExportMetricsServiceRequest.FromString(await request.read()))
        return web.Response(status=self.status, content_type="application/x-protobuf")

    @property
    def last(self) -> list[Any]:
        """The metrics of the last request."""
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return list(scope.metrics)


@pytest.fixture
def receiver() -> Iterator[MetricsReceiver]:
    with MetricsReceiver() as server:
        yield server


def scraped(registry: Any) -> Series:
    """Return every sample of the page, by name and labels."""
    page = parse(generate_latest(registry).decode())
    samples = (sample for family in page.families.values() for sample in family)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in samples
        if not sample.name.endswith("_created")
    }


def received(metrics: list[Any]) -> Series:
    """Return every number as the page would show it: a histogram's buckets include all lower ones."""
    found: Series = {}
    for metric in metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = frozenset(attributes_of(point.attributes).items())
            if kind != "histogram":
                found[metric.name, labels] = point.as_double
                continue
            found[f"{metric.name}_sum", labels], found[f"{metric.name}_count", labels] = point.sum, point.count
            bounds = [*map(str, point.explicit_bounds), "+Inf"]
            for place, bound in enumerate(bounds, start=1):
                found[f"{metric.name}_bucket", labels | {("le", bound)}] = sum(point.bucket_counts[:place])
    return found


def busy_metrics(settings: Settings) -> Metrics:
    """Count verdicts of a graded and of a yes/no judge, requests, and names that need escapes."""
    metrics = Metrics(settings)
    fields: dict[str, Any] = {"trace_id": TRACE_ID, "span_id": SPAN_ID, "service": 'sh"op\\', "environment": "prod"}
    shared: dict[str, Any] = {"judge_version": "0123456789ab", "judge_model": "gpt", "weight": 4.0, "started_at": 9.0}
    shared |= {"evaluation_id": "e", "outcome": "scored", "duration_s": 2.0}
    verdicts = []
    for judge, value in (("answer_relevance", 0.25), ("answer_relevance", 1.0), ("safety", 1.0), ("safety", 0.0)):
        score = Score(judge, value, passed=value > 0.5)
        verdicts.append(Verdict(judge=judge, metrics=(judge,), scores=(score,), **fields, **shared))
    VerdictCounter(settings, metrics).count(*(OutboxEntry("1-0", "j", verdict) for verdict in verdicts))
    metrics.request_duration.labels("gpt", "ok").observe(0.3)
    metrics.in_flight.labels("gpt").set(7)
    return metrics


def test_a_push_is_the_page_series_by_series(receiver: MetricsReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, labels, kind, temporality, start and exemplars; values of the process itself change between the two."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ops")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod")
    settings = Settings(metrics="otlp", metrics_push_s=SLOWLY_S, otlp_endpoint=receiver.root_url)
    metrics = busy_metrics(settings)
    pushing = push(settings, metrics.registry, {})
    assert pushing is not None
    pushing.stop()

    page, pushed = scraped(metrics.registry), received(receiver.last)
    own = {key for key in page if key[0].startswith("process_")}
    assert pushed.keys() == page.keys()
    assert {key: value for key, value in pushed.items() if key not in own} == {
        key: value for key, value in page.items() if key not in own
    }
    assert len(page) > 100 and own  # noqa: PT018 - one look at how much was compared
    by_name = {metric.name: metric for metric in receiver.last}
    assert {metric.unit for metric in by_name.values()} == {""}
    sums = {name for name, metric in by_name.items() if metric.WhichOneof("data") == "sum"}
    assert sums == {name for name in by_name if name.endswith("_total")}
    for name, metric in by_name.items():
        data = getattr(metric, metric.WhichOneof("data"))
        if metric.WhichOneof("data") != "gauge":
            assert data.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE, name
            assert name not in sums or data.is_monotonic
            assert all(0 < point.start_time_unix_nano < point.time_unix_nano for point in data.data_points), name
    scores = by_name["tracejudge_score"].histogram.data_points
    failed = by_name["tracejudge_verdicts_total"].sum.data_points
    for points, value in ((scores, 0.25), (failed, 1.0)):
        (exemplar,) = (one for point in points for one in point.exemplars if one.as_double == value)
        assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (TRACE_ID, SPAN_ID)
    resource = attributes_of(receiver.requests[-1].resource_metrics[0].resource.attributes)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("tracejudge", "prod")
    assert resource["service.instance.id"]
    assert receiver.headers[-1]["x-team"] == "ops"


def test_a_push_repeats_and_an_outage_is_one_log_line(receiver: MetricsReceiver) -> None:
    settings = Settings(metrics="otlp", metrics_push_s=0.05, otlp_endpoint=receiver.root_url)
    metrics = Metrics(settings)
    receiver.status = 401
    with capture_logs() as lines:
        pushing = push(settings, metrics.registry, {})
        assert pushing is not None
        try:
            wait_until(lambda: len(receiver.requests) > 2, what="three refused pushes")
            receiver.status = 200
            wait_until(lambda: any("resumed" in line["event"] for line in lines), what="the end")
        finally:
            pushing.stop()
    # Of this push: a thread that an earlier test stopped may still report its own receiver.
    ours = [line for line in lines if line["receiver"] == f"{receiver.root_url}/v1/metrics"]
    assert [line["event"] for line in ours] == ["metrics push failed, retrying", "metrics push resumed"]
    assert ours[0]["error"] in {"HTTP 401", "Unauthorized"}
    assert not [one for one in threading.enumerate() if "MetricReader" in one.name]


def test_a_stop_does_not_wait_for_a_receiver_that_is_away() -> None:
    settings = Settings(metrics="otlp", metrics_push_s=SLOWLY_S, otlp_endpoint="http://127.0.0.1:1")
    with capture_logs() as lines:
        pushing = push(settings, Metrics(settings).registry, {})
        assert pushing is not None
        pushing.stop()
        pushing.stop()
    assert [line["event"] for line in lines if ":1/" in line["receiver"]] in ([], ["metrics push failed, retrying"])


def test_the_doctor_pushes_nothing_and_says_what_a_receiver_answers(receiver: MetricsReceiver) -> None:
    settings = Settings(metrics="otlp", otlp_endpoint=receiver.root_url)
    url = f"{receiver.root_url}/v1/metrics"
    assert metrics_receiver(settings, {}) == [ok("metrics receiver", url)]
    assert not receiver.requests[-1].resource_metrics
    receiver.status = 401
    (refused,) = metrics_receiver(settings, {})
    assert (refused.result, refused.what) == ("broken", f"{url} takes no metrics (Unauthorized)")
    (absent,) = metrics_receiver(Settings(metrics="otlp"), {})
    assert (absent.result, absent.what) == ("broken", "metrics: otlp needs a receiver")


def test_the_gateway_pushes_its_own_metrics(receiver: MetricsReceiver) -> None:
    settings = Settings(metrics="otlp", metrics_push_s=SLOWLY_S, otlp_endpoint=receiver.root_url)
    metrics = GatewayMetrics(settings)
    metrics.requests.labels("/v1/traces", "200").inc()
    pushing = push(settings, metrics.registry, {})
    assert pushing is not None
    pushing.stop()
    pushed = received(receiver.last)
    assert pushed.keys() == scraped(metrics.registry).keys()
    assert pushed["tracejudge_gateway_requests_total", frozenset({("path", "/v1/traces"), ("status", "200")})] == 1


def test_a_board_pushes_its_own_metrics_until_it_ends(receiver: MetricsReceiver, redis_url: str, prefix: str) -> None:
    settings = Settings(
        redis_url=redis_url,
        prefix=prefix,
        metrics="otlp",
        metrics_push_s=SLOWLY_S,
        otlp_endpoint=receiver.root_url,
        board=Board(port=0),
    )
    with BoardServer(settings, {}) as board:
        assert httpx.get(board.url).status_code == 200
    pushed = received(receiver.last)
    assert pushed["tracejudge_board_requests_total", frozenset({("page", "overview"), ("status", "200")})] == 1
    built = [dict(labels)["config_hash"] for name, labels in pushed if name == "tracejudge_build_info"]
    assert built == [settings.config_hash]


WRONG = {
    "no receiver": ({}, None, "metrics: otlp needs a receiver; set otlp_endpoint"),
    "no address": ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, None, "OTEL_EXPORTER_OTLP_ENDPOINT must be http://"),
    "no address of metrics": (
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector"},
        "http://host:4318",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT must be http://",
    ),
    "the SDK is disabled": ({"OTEL_SDK_DISABLED": "True"}, "http://host:4318", "OTEL_SDK_DISABLED switches the push"),
    "another protocol": (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        None,
        "ask for grpc, which is not spoken here; set otlp_endpoint",
    ),
}


@each_case(("variables", "endpoint", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_receiver_that_cannot_be_used_stops_the_start(
    variables: dict[str, str], endpoint: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(metrics="otlp", otlp_endpoint=endpoint)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [one.result for one in metrics_receiver(settings, variables)] == ["broken"]
    with pytest.raises(SettingsError, match=message):
        push(settings, Metrics(settings).registry, variables)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "worker.telemetry.metrics_push", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    settings = Settings(metrics="otlp", otlp_endpoint="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match=r"needs further packages: pip install 'tracejudge-worker\[otlp\]'"):
        push(settings, Metrics(settings).registry, {})


def test_without_the_setting_nothing_is_pushed() -> None:
    assert push(Settings(otlp_endpoint="http://127.0.0.1:1"), Metrics(Settings()).registry, {}) is None
