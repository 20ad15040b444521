"""Reads /metrics as Prometheus does: in OpenMetrics, with exemplars."""

import time
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client import Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Sample

from worker.core.telemetry.metrics import Metric

ACCEPT = "application/openmetrics-text; version=1.0.0; charset=utf-8"
SOONEST_CUT_S = 1.0
"""A worker closes connections that are idle for five seconds, and refuses them after one if sixteen are waiting."""

# One client for all tests, with a connection for each scrape: making a client loads the certificates, 40 ms of CPU.
CLIENT = httpx.Client(
    headers={"Accept": ACCEPT},
    limits=httpx.Limits(max_keepalive_connections=0),
    trust_env=False,
    verify=False,  # noqa: S501 - HTTP on the loopback
)


@dataclass(frozen=True)
class Scrape:
    """One scrape. Names are those of samples (`…_total`, `…_bucket`), or of a family for all of its samples."""

    text: str
    families: dict[str, tuple[Sample, ...]]

    def samples(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """Return the samples that have at least these labels."""
        named = self.families.get(name) or [
            sample for family in self.families.values() for sample in family if sample.name == name
        ]
        return tuple(sample for sample in named if labels.items() <= sample.labels.items())

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the only sample with these labels; fails for none and for several."""
        matching = self.samples(name, **labels)
        if len(matching) != 1:
            raise AssertionError(f"{len(matching)} samples of {name} with {labels}, not one: {matching}")
        return matching[0].value

    def total(self, name: str, **labels: str) -> float:
        """Sum all samples with these labels; 0 for none."""
        return sum(sample.value for sample in self.samples(name, **labels))

    def exemplars(self, name: str, **labels: str) -> tuple[Exemplar, ...]:
        return tuple(sample.exemplar for sample in self.samples(name, **labels) if sample.exemplar)


def samples_of(metric: Metric[Any]) -> tuple[str, ...]:
    """Name the samples of a metric."""
    suffixes = ("_bucket", "_sum", "_count") if metric.kind is Histogram else ("",)
    return tuple(metric.full_name + suffix for suffix in suffixes)


def parse(text: str) -> Scrape:
    families = {family.name: tuple(family.samples) for family in text_string_to_metric_families(text)}
    return Scrape(text, families)


def scrape(port: int, *, timeout_s: float = 30.0) -> Scrape:
    """Fetch 127.0.0.1:port/metrics; fails when it is not OpenMetrics, which alone has exemplars."""
    url = f"http://127.0.0.1:{port}/metrics"
    began = time.monotonic()
    try:
        response = CLIENT.get(url, timeout=timeout_s)
    except (httpx.ReadError, httpx.RemoteProtocolError):
        if time.monotonic() - began < SOONEST_CUT_S:
            raise
        response = CLIENT.get(url, timeout=timeout_s)
    content_type = response.raise_for_status().headers["Content-Type"]
    if not content_type.startswith("application/openmetrics-text"):
        raise AssertionError(f"/metrics answered {content_type}, not OpenMetrics")
    return parse(response.text)
