"""The metrics are those of the contract: names, types and labels, and what is at zero before anything happens."""

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import generate_latest
from support.scrape import Scrape, parse, samples_of
from support.tables import read_table

from docs.metrics import worker_metrics
from worker.core.config.settings import Rule, Settings, Where
from worker.core.telemetry.metrics import BoundedLabel, Metrics

SERIES = ("service", "environment", "judge", "version", "judge_model")
CONTRACT: Mapping[str, list[str]] = read_table(__file__, "metrics")
"""Section 7 of the contract, row by row: type and labels."""
INF = float("inf")
TELLS = """
from prometheus_client import generate_latest
from worker.core.telemetry.metrics import Metrics
from worker.core.config.settings import Settings

print(generate_latest(Metrics(Settings()).registry).decode())
"""


def settings(*services: str | None, **fields: Any) -> Settings:
    named = enumerate(services)
    rules = [Rule(name=f"rule {number}", judges=("safety",), where=Where(service=name)) for number, name in named]
    return Settings.from_keys(rules=tuple(rules), **fields)


def declared(metrics: Metrics) -> dict[str, list[str]]:
    """Read names, types and labels of what is ours from the registry, by the names of samples."""
    metrics_by_name = {}
    for collector in set(metrics.registry._collector_to_names):  # the library shows its collectors nowhere else
        if isinstance(collector, ProcessCollector):
            continue
        assert isinstance(collector, MetricWrapperBase)
        (family,) = collector.describe()
        assert family.name.startswith("tracejudge_")
        assert family.documentation
        name = family.name.removeprefix("tracejudge_") + ("_total" if family.type == "counter" else "")
        metrics_by_name[name] = [family.type, *collector._labelnames]
    return metrics_by_name


def page(metrics: Metrics) -> Scrape:
    return parse(generate_latest(metrics.registry).decode())


def edges(name: str, family_name: str, labels: Iterable[str]) -> list[float]:
    metrics = Metrics(settings())
    getattr(metrics, name).labels(*labels)
    (samples,) = (each.samples for each in metrics.registry.collect() if each.name == f"tracejudge_{family_name}")
    return [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]


def test_the_metrics_of_the_contract_are_as_it_fixes_them_and_alone_are_stable() -> None:
    got = declared(Metrics(settings()))
    assert {name: got.get(name) for name in CONTRACT} == CONTRACT
    assert {metric.name for metric in worker_metrics() if metric.stability == "stable"} == CONTRACT.keys()
    units = {metric.name: metric.unit for metric in worker_metrics()}
    assert all(units[name] == "seconds" for name in units if name.endswith("_seconds"))
    assert all(units[name] == "bytes" for name in units if name.endswith("_bytes"))
    assert all(units.values())


def test_samples_are_named_as_the_page_names_them() -> None:
    metrics = Metrics(settings("shop"))
    metrics.score_age.labels("shop").observe(1)
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    expected = map(samples_of, (Metrics.score_age, Metrics.traces, Metrics.stream_lag))
    assert names.issuperset(chain.from_iterable(expected))


def test_histograms_have_edges_for_scores_timeouts_and_the_time_of_giving_up() -> None:
    tenths = [number / 10 for number in range(11)]
    assert edges("score", "score", ("s", "e", "j", "v", "m", "metric")) == [*tenths, INF]
    doubled = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    assert edges("request_duration", "judge_request_duration_seconds", ("m", "ok")) == [*doubled, INF]
    *_, last, _ = edges("score_age", "score_age_seconds", ("shop",))
    assert last == Settings().give_up_after


def test_each_bundle_has_a_registry_of_its_own() -> None:
    first, other = Metrics(settings()), Metrics(settings())
    first.stream_lag.set(5)
    assert page(other).value("tracejudge_stream_lag") == 0
    registry = CollectorRegistry()
    assert Metrics(settings(), registry).registry is registry


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the library reads it there")
def test_the_page_tells_when_its_process_began() -> None:
    """By its standard name, without a label: the rules go by it."""
    before = time.time()
    text = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, text=True, check=True).stdout
    (start_s,) = re.findall(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
    # The moment when the machine began is told in whole seconds.
    assert before - 2 < float(start_s) < time.time() + 2


def test_outcomes_and_reasons_begin_at_zero_and_touching_a_service_changes_no_count() -> None:
    outcomes = ("sampled", "not_sampled", "shed", "no_rule", "invalid", "duplicate")
    reasons = ("no_payload", "not_json", "wrong_type", "unknown_version", "too_large")
    feedback = ("pulled", "already_judged", "not_found", "no_rule", "not_negative", "overflow")
    metrics = Metrics(settings("shop", "desk", "shop", "bot-*", "b?t", "b[ao]t", None))
    scrape = page(metrics)
    for name, names, expected in (
        ("traces", ("service", "outcome"), {(service, each) for service in ("shop", "desk") for each in outcomes}),
        ("invalid_traces", ("reason",), {(each,) for each in reasons}),
        ("late_feedback", ("outcome",), {(each,) for each in feedback}),
    ):
        samples = scrape.samples(f"tracejudge_{name}_total")
        counts = {tuple(sample.labels[label] for label in names): sample.value for sample in samples}
        assert counts == dict.fromkeys(expected, 0.0), name
    metrics.traces.labels("shop", "sampled").inc(3)
    metrics.touch_service("shop")
    metrics.touch_service("new")
    scrape = page(metrics)
    assert scrape.value("tracejudge_traces_total", service="shop", outcome="sampled") == 3
    assert len(scrape.samples("tracejudge_traces_total", service="new")) == len(outcomes)


def test_labels_are_bounded() -> None:
    service = Metrics(settings(max_services=3)).service
    assert "".join(service(name) for name in "abacdbec") == "abacotherbotherc"
    service = Metrics(settings("late", "bot-*", max_services=2)).service
    assert [service(name) for name in ("a", "b", "late", "bot-1")] == ["a", "other", "late", "other"], "rules name it"
    service = Metrics(Settings()).service
    labels = {service(f"service-{number}") for number in range(1000)}
    assert labels == {*(f"service-{number}" for number in range(200)), "other"}
    bounded = BoundedLabel(5)
    assert [bounded("s" * 200), bounded("s" * 201), bounded("s" * 1_000_000)] == ["s" * 200, "other", "other"]
    environment = Metrics(settings()).environment
    assert len({environment(f"pr-{number}") for number in range(1000)}) == 51
    extra = Metrics(settings(series_labels=("name", "release"))).extra
    for number in range(60):
        extra["name"](f"name-{number}")
    assert [extra["name"]("name-49"), extra["name"]("name-50"), extra["release"]("1.0")] == ["name-49", "other", "1.0"]


def test_series_labels_follow_those_of_every_series() -> None:
    plain = declared(Metrics(settings()))
    for extra in (("name",), ("release", "name"), ("name", "model", "release")):
        got = declared(Metrics(settings(series_labels=extra)))
        expected = {
            name: [kind, *SERIES, *extra, *labels[len(SERIES) :]] if tuple(labels[:5]) == SERIES else [kind, *labels]
            for name, (kind, *labels) in plain.items()
        }
        assert got == expected, extra
        assert got["score"] == ["histogram", *SERIES, *extra, "metric"]
