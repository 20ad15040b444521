"""Pushes the metrics of a registry by OTLP/HTTP, for installations without a program that scrapes.

The registry stays the only source: each push converts what the metrics page would show, and the SDK's meter provider
sets the pace, the resource and the end. Names, labels and bucket bounds are those of the page, so that rules and
dashboards work on either; units are left out, because receivers append them to names.

Importing this module needs the extra `otlp`.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import Exemplar, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Exemplar as PageExemplar
from prometheus_client.samples import Sample

from judges.models.credentials import NO_PROXY, check_pem
from judges.models.http import is_endpoint
from worker.config.receivers import OtlpSettings, base_url
from worker.config.settings import Settings, SettingsError
from worker.storage.client import address

log = structlog.get_logger("tracejudge.metrics")
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_TLS_FILES: Final = (
    *(f"OTEL_EXPORTER_OTLP_{of}{part}" for of in ("", "METRICS_") for part in ("CERTIFICATE", "CLIENT_CERTIFICATE")),
    *("OTEL_EXPORTER_OTLP_CLIENT_KEY", "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_PROTOCOL: Final = "http/protobuf"
_SCOPE: Final = InstrumentationScope("tracejudge", version("tracejudge-worker"))
_STOP_MS: Final = 3_000.0
_MAX_REASON_CHARS: Final = 60
_LIBRARY: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")


class _Period(NamedTuple):
    """The time that cumulative values are about, in nanoseconds since the epoch."""

    start: int
    end: int


def metrics_of(registry: CollectorRegistry, start_ns: int) -> list[Metric]:
    """Convert all metrics of a registry; ``start_ns`` is when its counters were 0."""
    period = _Period(start_ns, time.time_ns())
    return [metric for family in registry.collect() for metric in _converted(family, period)]


def _converted(family: Family, period: _Period) -> Iterator[Metric]:
    """Convert a family: one metric a name, with points of all its label values."""
    cumulative = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        series = groupby(family.samples, key=lambda sample: {k: v for k, v in sample.labels.items() if k != "le"})
        points = [_histogram_point(family.name, labels, list(samples), period) for labels, samples in series]
        if points:
            yield Metric(family.name, family.documentation, "", Histogram(points, cumulative))
        return
    by_name: dict[str, list[NumberDataPoint]] = {}
    for sample in (one for one in family.samples if not one.name.endswith("_created")):
        exemplars = _exemplars(sample)
        point = NumberDataPoint(sample.labels, period.start, period.end, sample.value, exemplars)
        by_name.setdefault(sample.name, []).append(point)
    for name, numbers in by_name.items():
        data = Sum(numbers, cumulative, is_monotonic=True) if family.type == "counter" else Gauge(numbers)
        yield Metric(name, family.documentation, "", data)


def _histogram_point(
    name: str, labels: Mapping[str, str], samples: Iterable[Sample], period: _Period
) -> HistogramDataPoint:
    """Join the samples of one series; the page's buckets include all lower ones, those of OTLP do not."""
    buckets = [sample for sample in samples if sample.name == f"{name}_bucket"]
    (total,) = (sample.value for sample in samples if sample.name == f"{name}_sum")
    counts = [0, *(int(bucket.value) for bucket in buckets)]
    nothing: Any = None  # a page does not tell the smallest and the largest value
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=period.start,
        time_unix_nano=period.end,
        count=counts[-1],
        sum=total,
        bucket_counts=[higher - lower for lower, higher in pairwise(counts)],
        explicit_bounds=[float(bucket.labels["le"]) for bucket in buckets[:-1]],
        min=nothing,
        max=nothing,
        exemplars=[exemplar for bucket in buckets for exemplar in _exemplars(bucket)],
    )


def _exemplars(sample: Sample) -> list[Exemplar]:
    found: PageExemplar | None = sample.exemplar
    if found is None:
        return []
    ids = [int(found.labels[name], 16) if name in found.labels else None for name in ("span_id", "trace_id")]
    return [Exemplar({}, float(found.value), int(float(found.timestamp or 0) * 1e9), *ids)]


class RegistryExporter(OTLPMetricExporter):
    """Sends the metrics of a registry; logs the first failure of an outage, and its end."""

    def __init__(
        self, registry: CollectorRegistry, url: str, proxy: str | None, timeout_s: float | None = None
    ) -> None:
        """Send to ``url``; headers, certificates, compression and timeout are those of OpenTelemetry's variables."""
        session = requests.Session()
        session.trust_env = proxy is None
        if proxy is not None and proxy != NO_PROXY:
            session.proxies.update({"http": proxy, "https": proxy})
        super().__init__(endpoint=url, session=session, timeout=timeout_s)
        self._registry = registry
        self._start_ns = time.time_ns()
        self._address = address(url)
        self._is_failing = False
        self._cause = _Cause()
        _LIBRARY.addFilter(self._cause)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Replace what the SDK collected by the registry's metrics, of the same resource, and send them."""
        resource = metrics_data.resource_metrics[0].resource
        scope = ScopeMetrics(_SCOPE, metrics_of(self._registry, self._start_ns), "")
        result = super().export(MetricsData([ResourceMetrics(resource, [scope], "")]), timeout_millis, **kwargs)
        failed = result is not MetricExportResult.SUCCESS
        if failed and not self._is_failing:
            fix = "see whether an OTLP/HTTP receiver takes metrics there; its variables are OTEL_EXPORTER_OTLP_*"
            log.warning("metrics push failed, retrying", receiver=self._address, error=self._cause.text, fix=fix)
        elif self._is_failing and not failed:
            log.info("metrics push resumed", receiver=self._address)
        self._is_failing = failed
        return result

    def refusal(self) -> str | None:
        """Push nothing; return why the receiver does not take it, None where it does."""
        result = super().export(MetricsData([]))
        return None if result is MetricExportResult.SUCCESS else self._cause.text

    def shutdown(self, timeout_millis: float = _STOP_MS, **kwargs: Any) -> None:
        """End a request in progress."""
        super().shutdown(timeout_millis, **kwargs)
        _LIBRARY.removeFilter(self._cause)


class _Cause(logging.Filter):
    """Keeps the cause of the last failure, and passes none of the library's lines: it has several for each attempt."""

    text = "no answer"

    def filter(self, record: logging.LogRecord) -> bool:
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, Exception):
                # Its text may hold the address with a login.
                self.text = type(argument).__name__
            elif isinstance(argument, int):
                self.text = f"HTTP {argument}"
            elif isinstance(argument, str) and argument != "metrics" and argument.isprintable():
                self.text = argument[:_MAX_REASON_CHARS]
        return False


class MetricsPush:
    """Pushes a registry every few seconds until it is stopped, and once more then."""

    def __init__(self, settings: Settings, registry: CollectorRegistry, environment: Mapping[str, str]) -> None:
        """Begin to push.

        Raises:
            SettingsError: No receiver is named, or its address is wrong.
        """
        url = receiver_url(settings, environment)
        ours = {"service.name": "tracejudge", "service.version": version("tracejudge-worker")}
        # Prometheus takes it for the instance: counters of two processes must not be one series.
        ours["service.instance.id"] = f"{socket.gethostname()}:{os.getpid()}"
        reader = PeriodicExportingMetricReader(
            RegistryExporter(registry, url, settings.proxy), export_interval_millis=1000 * settings.metrics_push_s
        )
        resource = Resource(ours).merge(OTELResourceDetector().detect())
        # Never released: a signal and the end of Celery may stop the worker at once.
        self._stopping = threading.Lock()
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        # The SDK exports nothing while it has no instrument; the exporter replaces this one.
        self._provider.get_meter("tracejudge").create_observable_gauge("push", [lambda _: [Observation(1)]])

    def stop(self) -> None:
        """Push the last values, within three seconds; a second call does nothing."""
        if self._stopping.acquire(blocking=False):
            self._provider.shutdown(_STOP_MS)


def receiver_url(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return where metrics are pushed: the variable for metrics, `otlp_endpoint`, or the variable for all signals.

    Raises:
        SettingsError: No receiver is named, its address is wrong, or a file for its TLS cannot be used.
    """
    given = environment.get(_METRICS_ENDPOINT, "").strip()
    base = settings.otlp_endpoint or environment.get(_ENDPOINT, "").strip()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise SettingsError("metrics: the variable OTEL_SDK_DISABLED switches the push off; take it out, or metrics")
    protocols = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next(filter(None, (environment.get(name, "").strip() for name in protocols)), _PROTOCOL)
    if protocol != _PROTOCOL and (given or not settings.otlp_endpoint):
        fix = f"set otlp_endpoint to a receiver of {_PROTOCOL}, usually at port 4318"
        raise SettingsError(f"metrics: the variables OTEL_* ask for {protocol}, which is not spoken here; {fix}")
    if not given and not base:
        raise SettingsError(f"metrics: otlp needs a receiver; set otlp_endpoint, {_ENDPOINT} or {_METRICS_ENDPOINT}")
    if not is_endpoint(given or base):
        raise SettingsError(f"metrics: {_METRICS_ENDPOINT if given else _ENDPOINT} must be http://host:port")
    url = given or f"{base_url(base, OtlpSettings.paths)}/v1/metrics"
    for name in _TLS_FILES if url.startswith("https") else ():
        if not Path(environment.get(name, "")).is_dir():  # The library takes a folder too.
            check_pem(name, environment.get(name), SettingsError)
    return url
