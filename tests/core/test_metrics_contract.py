"""The metrics are those of the contract: names, types and labels, and what is at zero before anything happens."""

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import generate_latest
from support.cases import each_case
from support.scrape import Scrape, parse, samples_of

from docs.metrics import worker_metrics
from worker.core.config.settings import Rule, Settings, Where
from worker.core.telemetry.metrics import BoundedLabel, Metrics

SERIES = ("service", "environment", "judge", "version", "judge_model")


class Declared(NamedTuple):
    type: str
    labels: tuple[str, ...]


def counter(*labels: str) -> Declared:
    return Declared("counter", labels)


def gauge(*labels: str) -> Declared:
    return Declared("gauge", labels)


def histogram(*labels: str) -> Declared:
    return Declared("histogram", labels)


CONTRACT = {
    "traces_total": counter("service", "outcome"),
    "invalid_traces_total": counter("reason"),
    "producer_published_total": counter("service"),
    "producer_dropped_total": counter("service", "reason"),
    "cut_off_total": counter(),
    "score": histogram(*SERIES, "metric"),
    "verdicts_total": counter(*SERIES, "metric", "outcome"),
    "verdict_weight_total": counter(*SERIES, "metric", "outcome"),
    "verdict_weight_squared_total": counter(*SERIES, "metric", "outcome"),
    "score_weighted_total": counter(*SERIES, "metric"),
    "unscored_total": counter(*SERIES, "reason"),
    "judge_request_duration_seconds": histogram("judge_model", "status"),
    "judge_tokens_total": counter("judge_model", "judge", "direction"),
    "judge_cost_usd_total": counter("judge_model", "judge", "direction"),
    "judge_in_flight": gauge("judge_model"),
    "judge_concurrency_limit": gauge("judge_model"),
    "judge_circuit_open": gauge("judge_model"),
    "score_age_seconds": histogram("service"),
    "stream_lag": gauge(),
    "stream_capacity": gauge(),
    "stream_oldest_seconds": gauge(),
    "batches_waiting": gauge(),
    "batches_parked": gauge(),
    "outbox_lag": gauge("exporter"),
    "dead_letters": gauge(),
    "outbox_cut_off_total": counter("exporter"),
    "export_dropped_total": counter("exporter", "reason"),
    "shed_total": counter("judge_model"),
    "dead_cut_off_total": counter(),
    "effective_sampling_ratio": gauge("rule"),
    "ready": gauge("role"),
    "build_info": gauge("version", "config_hash"),
    "judge_flip_ratio": gauge("judge", "version", "judge_model", "second_model"),
    "judge_canary_agreement": gauge("judge", "version", "judge_model"),
    **{f"budget_{name}": gauge("budget") for name in ("spent_usd", "limit_usd", "rate_factor")},
    **{
        f"quality_corrected_{name}": gauge("metric", "segment", *SERIES, "method")
        for name in ("share", "lower", "upper")
    },
    **{
        f"quality_{name}": gauge("metric", "segment", *SERIES)
        for name in (
            "share",
            "lower",
            "upper",
            "effective_n",
            "judgements",
            "abstained_share",
            "unscored_share",
            "unknown_ratio",
            "lowest",
            "highest",
            "slope",
            "baseline",
            "drop",
            "drop_since_seconds",
        )
    },
}
"""Section 7 of the contract, row by row."""

TRACE_OUTCOMES = ("sampled", "not_sampled", "shed", "no_rule", "invalid", "duplicate")
INVALID_REASONS = ("no_payload", "not_json", "wrong_type", "unknown_version", "too_large")
LATE_FEEDBACK_OUTCOMES = ("pulled", "already_judged", "not_found", "no_rule", "not_negative", "overflow")


def settings(*services: str | None, **fields: Any) -> Settings:
    rules = tuple(
        Rule(name=f"rule {number}", judges=("safety",), where=Where(service=service))
        for number, service in enumerate(services)
    )
    return Settings.from_keys(rules=rules, **fields)


def declared(metrics: Metrics) -> dict[str, Declared]:
    """Read names, types and labels of what is ours from the registry, by the names that samples bear."""
    metrics_by_name = {}
    for collector in set(metrics.registry._collector_to_names):
        if isinstance(collector, ProcessCollector):
            continue
        assert isinstance(collector, MetricWrapperBase)
        (family,) = collector.describe()
        name = family.name.removeprefix("tracejudge_") + ("_total" if family.type == "counter" else "")
        assert family.name.startswith("tracejudge_")
        assert family.documentation
        metrics_by_name[name] = Declared(family.type, collector._labelnames)
    return metrics_by_name


def page(metrics: Metrics) -> Scrape:
    return parse(generate_latest(metrics.registry).decode())


def edges(metrics: Metrics, name: str, labels: Iterable[str]) -> list[float]:
    getattr(metrics, name).labels(*labels)
    (samples,) = (
        family.samples for family in metrics.registry.collect() if family.name == f"tracejudge_{FAMILIES[name]}"
    )
    return [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]


FAMILIES = {"score": "score", "request_duration": "judge_request_duration_seconds", "score_age": "score_age_seconds"}


def test_the_metrics_of_the_contract_are_as_it_fixes_them() -> None:
    backlog = declared(Metrics(settings()))
    assert {name: backlog.get(name) for name in CONTRACT} == CONTRACT


def test_the_metrics_of_the_contract_alone_are_stable() -> None:
    assert {metric.name for metric in worker_metrics() if metric.stability == "stable"} == CONTRACT.keys()


def test_a_unit_in_a_name_is_that_of_the_table() -> None:
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


def test_scores_are_counted_in_steps_of_a_tenth() -> None:
    bounds = edges(Metrics(settings()), "score", ("s", "e", "j", "v", "m", "metric"))
    assert bounds == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, float("inf")]


def test_requests_are_measured_up_to_the_longest_timeout() -> None:
    bounds = edges(Metrics(settings()), "request_duration", ("m", "ok"))
    assert bounds == [
        *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
        *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
        float("inf"),
    ]


def test_the_age_of_scores_is_measured_up_to_the_time_of_giving_up() -> None:
    *_, last, _ = edges(Metrics(settings()), "score_age", ("shop",))
    assert last == Settings().give_up_after


def test_each_bundle_has_a_registry_of_its_own() -> None:
    first, other = Metrics(settings()), Metrics(settings())
    first.stream_lag.set(5)
    assert page(other).value("tracejudge_stream_lag") == 0
    registry = CollectorRegistry()
    assert Metrics(settings(), registry).registry is registry


TELLS = """
from prometheus_client import generate_latest
from worker.core.telemetry.metrics import Metrics
from worker.core.config.settings import Settings

print(generate_latest(Metrics(Settings()).registry).decode())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the library reads it there")
def test_the_page_tells_when_its_process_began() -> None:
    """By its standard name, without a label: the rules go by it."""
    before = time.time()
    page = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, text=True, check=True).stdout

    (start_s,) = re.findall(r"^process_start_time_seconds (\S+)$", page, re.MULTILINE)
    # The moment when the machine began is told in whole seconds.
    assert before - 2 < float(start_s) < time.time() + 2


# --- at zero before anything happens ---


def test_outcomes_of_services_that_rules_name_stand_at_zero() -> None:
    scrape = page(Metrics(settings("shop", "desk", "shop", "bot-*", "b?t", "b[ao]t", None)))
    counts = {
        (sample.labels["service"], sample.labels["outcome"]): sample.value
        for sample in scrape.samples("tracejudge_traces_total")
    }
    assert counts == {(service, outcome): 0.0 for service in ("shop", "desk") for outcome in TRACE_OUTCOMES}


def test_reasons_of_invalid_traces_stand_at_zero() -> None:
    counts = {
        sample.labels["reason"]: sample.value
        for sample in page(Metrics(settings())).samples("tracejudge_invalid_traces_total")
    }
    assert counts == dict.fromkeys(INVALID_REASONS, 0.0)


def test_outcomes_of_late_feedback_stand_at_zero() -> None:
    counts = {
        sample.labels["outcome"]: sample.value
        for sample in page(Metrics(settings())).samples("tracejudge_late_feedback_total")
    }
    assert counts == dict.fromkeys(LATE_FEEDBACK_OUTCOMES, 0.0)


def test_touching_a_service_changes_nothing_that_was_counted() -> None:
    metrics = Metrics(settings("shop"))
    metrics.traces.labels("shop", "sampled").inc(3)
    metrics.touch_service("shop")
    metrics.touch_service("new")
    scrape = page(metrics)
    assert scrape.value("tracejudge_traces_total", service="shop", outcome="sampled") == 3
    assert len(scrape.samples("tracejudge_traces_total", service="new")) == len(TRACE_OUTCOMES)


# --- bounded labels ---


def test_services_past_the_bound_are_one() -> None:
    service = Metrics(settings(max_services=3)).service
    assert [service(name) for name in ("a", "b", "a", "c", "d", "b", "e", "c")] == [
        *("a", "b", "a", "c", "other", "b", "other", "c")
    ]


def test_services_that_rules_name_have_their_place() -> None:
    service = Metrics(settings("late", "bot-*", max_services=2)).service
    assert [service(name) for name in ("a", "b", "late", "bot-1")] == ["a", "other", "late", "other"]


def test_two_hundred_services_by_default() -> None:
    service = Metrics(Settings()).service
    labels = {service(f"service-{number}") for number in range(1000)}
    assert labels == {*(f"service-{number}" for number in range(200)), "other"}


def test_a_text_is_no_label() -> None:
    bounded = BoundedLabel(5)
    assert [bounded("s" * 200), bounded("s" * 201), bounded("s" * 1_000_000)] == ["s" * 200, "other", "other"]


def test_environments_are_bounded_as_well() -> None:
    environment = Metrics(settings()).environment
    assert len({environment(f"pr-{number}") for number in range(1000)}) == 51


@each_case("extra", [("name",), ("release", "name"), ("name", "model", "release")])
def test_series_labels_stand_behind_those_of_every_series(extra: tuple[str, ...]) -> None:
    def expected(labels: tuple[str, ...]) -> tuple[str, ...]:
        return (*SERIES, *extra, *labels[len(SERIES) :]) if labels[: len(SERIES)] == SERIES else labels

    plain = declared(Metrics(settings()))
    got = declared(Metrics(settings(series_labels=extra)))
    assert {name: family.labels for name, family in got.items()} == {
        name: expected(family.labels) for name, family in plain.items()
    }
    assert got["score"].labels == (*SERIES, *extra, "metric")


def test_series_labels_are_bounded_to_fifty_values_each() -> None:
    metrics = Metrics(settings(series_labels=("name", "release")))
    for number in range(60):
        metrics.extra["name"](f"name-{number}")
    assert metrics.extra["name"]("name-49") == "name-49"
    assert metrics.extra["name"]("name-50") == "other"
    assert metrics.extra["release"]("1.0") == "1.0"
