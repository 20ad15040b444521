"""Metrics: what each verdict counts and what it leaves alone; names, types and labels are those of the contract."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client import ProcessCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import generate_latest
from support.scrape import Scrape, parse
from support.stages import make_verdict, samples
from support.tables import read_table

from docs.metrics import worker_metrics
from judges.core.verdict import REASONS, Score, Verdict
from worker.core.config.settings import Rule, Settings, Where
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import OUTCOMES, BoundedLabel, Metrics

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
SERIES = {"service": "shop", "environment": "prod", "judge": "trio", "version": "01234567", "judge_model": "gpt-6-luna"}
METRICS = ("clear", "true", "length")
PASS = Score("clear", 1.0, 1.0, "yes", passed=True)
FAIL = Score("true", 0.25, 2.0, passed=False)
BAD = msgspec.structs.replace(FAIL, value=0.75)
UNRATED = Score("length", 0.5)
ENDS: dict[str, dict[str, Any]] = {
    "scored": {"scores": (PASS, FAIL, UNRATED)},
    "abstained": {"outcome": "abstained"},
    "unscored": {"outcome": "unscored", "reason": "timeout"},
}


def verdict(**fields: Any) -> Verdict:
    """Make a verdict of a judge with three metrics; without scores it says what became of it instead."""
    place = {"trace_id": TRACE_ID, "span_id": None, "environment": "prod", "judge": "trio", "judge_model": "gpt-6-luna"}
    defaults = {"outcome": "scored", "metrics": METRICS, "probability": 0.25, "weight": 4.0}
    return make_verdict(**place | defaults | {"started_at": 1000.0, "duration_s": 2.0} | fields)


class Counted:
    """A counter of verdicts with a registry of its own, and its page."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings(rules=())
        self.metrics = Metrics(self.settings)
        self._counter = VerdictCounter(self.settings, self.metrics)

    def count(self, *verdicts: Verdict, kind: Any = "j") -> Scrape:
        self._counter.count(*(OutboxEntry("1-0", kind, each) for each in verdicts))
        return parse(generate_latest(self.metrics.registry).decode())


def count(*verdicts: Verdict, kind: Any = "j", **settings: Any) -> Scrape:
    return Counted(Settings(rules=(), **settings)).count(*verdicts, kind=kind)


def by_outcome(scrape: Scrape, name: str, **labels: str) -> dict[tuple[str, str], float]:
    """Return the counts that are not zero, by metric and outcome."""
    counts = scrape.samples(f"tracejudge_{name}_total", **labels)
    return {(each.labels["metric"], each.labels["outcome"]): each.value for each in counts if each.value}


def labels(scrape: Scrape, *names: str, **where: str) -> list[tuple[str, ...]]:
    """List the labels of these names, of the passed verdicts that count one."""
    passed = scrape.samples("tracejudge_verdicts_total", metric="clear", outcome="pass", **where)
    return sorted(tuple(each.labels[name] for name in names) for each in passed if each.value == 1)


def quality(scrape: Scrape) -> list[str]:
    """Name the quality samples that hold anything."""
    names = ("score", "verdicts", "verdict_weight", "verdict_weight_squared", "score_weighted", "unscored", "score_age")
    return [
        sample.name
        for family, samples in scrape.families.items()
        for sample in samples
        if sample.value and not sample.name.endswith("_created")
        if family.removeprefix("tracejudge_").removesuffix("_seconds") in names
    ]


def test_each_outcome_counts_under_its_metrics() -> None:
    bare: dict[str, Any] = {"metrics": ("topic",), "details": {"result": "A refund."}}
    rows: dict[str, tuple[dict[str, Any], dict[tuple[str, str], int]]] = {
        "scored": (ENDS["scored"], {("clear", "pass"): 1, ("true", "fail"): 1, ("length", "unrated"): 1}),
        "left out": ({"scores": (PASS,)}, {("clear", "pass"): 1}),
        "abstained": (ENDS["abstained"], {(metric, "abstained"): 1 for metric in METRICS}),
        **{
            reason: ({"outcome": "unscored", "reason": reason}, {(metric, "unscored"): 1 for metric in METRICS})
            for reason in REASONS
        },
        "a result without a value": (bare, {("topic", "unrated"): 1}),
    }
    page = count(*(verdict(service=name, **fields) for name, (fields, _) in rows.items()))
    for name, (fields, counted) in rows.items():
        series = {**SERIES, "service": name}
        assert by_outcome(page, "verdicts", **series) == counted, name
        unscored = [sample.labels["reason"] for sample in page.samples("tracejudge_unscored_total", **series)]
        assert unscored == ([name] if name in REASONS else []), name
        assert page.total("tracejudge_score_count", **series) == len(fields.get("scores", ())), name
        assert (page.total("tracejudge_score_weighted_total", **series) > 0) is ("scores" in fields), name
    late = count(verdict(**bare, origin="late_feedback"))
    assert by_outcome(late, "late_feedback_verdicts") == {("topic", "unrated"): 1}
    # Evidence that does not exist is counted, and its series begins at zero.
    evidence = {"none": ({}, 0), "three": (3, 3), "less than none": (-1, 0), "text": ("3", 0)}
    details = {name: {"fabricated_evidence": value} if value != {} else {} for name, (value, _) in evidence.items()}
    page = count(*(verdict(scores=(PASS,), service=name, details=each) for name, each in details.items()))
    for name, (_, counted) in evidence.items():
        series = {**SERIES, "service": name}
        assert page.value("tracejudge_fabricated_evidence_total", **series) == counted, name
        assert page.value("tracejudge_check_differs_total", **series) == 0


def test_weights_and_scores_are_summed_by_outcome() -> None:
    verdicts = [
        verdict(scores=(PASS, FAIL), weight=4.0),
        verdict(scores=(PASS,), weight=10.0),
        verdict(outcome="abstained", weight=2.0, metrics=("clear",)),
        verdict(outcome="unscored", reason="refusal", weight=5.0, metrics=("clear",)),
    ]
    scrape = count(*verdicts)
    clear = {"pass": (14, 116), "abstained": (2, 4), "unscored": (5, 25)}
    expected = {("clear", outcome): sums for outcome, sums in clear.items()} | {("true", "fail"): (4, 16)}
    for place, name in enumerate(("verdict_weight", "verdict_weight_squared")):
        assert by_outcome(scrape, name, **SERIES) == {key: sums[place] for key, sums in expected.items()}
    # Scores are bare in the histogram and weighted beside it.
    timeout = verdict(outcome="unscored", reason="timeout", weight=100.0)
    scrape = count(verdict(scores=(FAIL,), weight=4.0), verdict(scores=(BAD,), weight=10.0), timeout)
    of_metric = {**SERIES, "metric": "true"}
    assert scrape.value("tracejudge_score_count", **of_metric) == 2
    assert scrape.value("tracejudge_score_sum", **of_metric) == 1.0
    assert scrape.value("tracejudge_score_weighted_total", **of_metric) == 4 * 0.25 + 10 * 0.75
    buckets = {sample.labels["le"]: sample.value for sample in scrape.samples("tracejudge_score_bucket", **of_metric)}
    assert [buckets[edge] for edge in ("0.2", "0.3", "0.7", "0.8", "+Inf")] == [0, 1, 1, 2, 2]
    # The age of a score runs from the end of the call.
    ages: dict[str, tuple[float | None, dict[str, Any], float | None]] = {
        "scored": (995.0, {"scores": (PASS, FAIL)}, 7.0),
        "a clock that runs ahead": (2000.0, {"scores": (PASS,)}, 0.0),
        "no end": (None, {"scores": (PASS,)}, None),
        "abstained": (995.0, ENDS["abstained"], None),
        "unscored": (995.0, ENDS["unscored"], None),
    }
    page = count(*(verdict(trace_ended_at=at, service=name, **fields) for name, (at, fields, _) in ages.items()))
    for name, (_, _, age_s) in ages.items():
        totals = [page.total(f"tracejudge_score_age_seconds_{part}", service=name) for part in ("count", "sum")]
        assert totals == ([0, 0] if age_s is None else [1, age_s]), name


def test_verdicts_count_alike_one_by_one_and_together() -> None:
    verdicts = [
        verdict(scores=(PASS, FAIL), weight=4.0, trace_ended_at=999.0),
        verdict(scores=(UNRATED,), details={"fabricated_evidence": 2}),
        verdict(outcome="abstained", service="desk"),
        verdict(outcome="unscored", reason="refusal"),
        verdict(scores=(PASS,), origin="late_feedback", weight=0.0),
    ] * 2
    together, one_by_one = Counted(), Counted()
    together.count(*verdicts)
    for each in verdicts:
        one_by_one.count(each)
    assert samples(together.metrics) == samples(one_by_one.metrics)


def test_only_live_traffic_counts_and_a_dead_letter_by_its_reason_alone() -> None:
    for kind in "jd":
        others = [
            verdict(origin=origin, trace_ended_at=999.0, **fields)
            for fields in ENDS.values()
            for origin in ("late_feedback", "replay")
        ]
        assert quality(count(*others, kind=kind)) == []
    scrape = count(verdict(outcome="unscored", reason="judge_unavailable", trace_ended_at=999.0), kind="d")
    assert quality(scrape) == ["tracejudge_unscored_total"]
    assert scrape.value("tracejudge_unscored_total", **SERIES, reason="judge_unavailable") == 1
    assert not scrape.samples("tracejudge_verdicts_total")
    # No label of the metric of late feedback tells a panel from its members.
    late = {"metrics": ("clear",), "scores": (PASS,), "origin": "late_feedback", "weight": 0.0}
    page = count(*(verdict(judge_model=name, **late) for name in ("a", "b", "c", "majority(a,b,c)")))
    assert page.total("tracejudge_late_feedback_verdicts_total") == 3


def test_all_outcomes_of_a_series_begin_at_zero_with_its_first_verdict() -> None:
    scrape = count(*(verdict(service=end, **fields) for end, fields in ENDS.items()))
    for end in ENDS:
        series = {**SERIES, "service": end}
        for name in ("verdicts", "verdict_weight", "verdict_weight_squared"):
            each = scrape.samples(f"tracejudge_{name}_total", **series)
            outcomes = sorted((sample.labels["metric"], sample.labels["outcome"]) for sample in each)
            assert outcomes == sorted((metric, outcome) for metric in METRICS for outcome in OUTCOMES), end
        for metric in METRICS:
            assert scrape.samples("tracejudge_score_count", **series, metric=metric)
            assert scrape.samples("tracejudge_score_weighted_total", **series, metric=metric)
    panel = {"judge_model": "majority(a,b)", "metrics": ("clear", "disagreement")}
    scored = verdict(**panel, scores=(PASS, Score("disagreement", 0.5, 0.5)))
    page = count(verdict(**panel, outcome="unscored", reason="refusal"), scored)
    expected = [("clear", "unscored"), ("clear", "pass"), ("disagreement", "unscored"), ("disagreement", "unrated")]
    assert by_outcome(page, "verdicts", judge_model="majority(a,b)") == dict.fromkeys(expected, 1)


def test_series_are_told_apart_by_version_model_and_chosen_labels_within_bounds() -> None:
    others = ({"judge_version": "f" * 32}, {"judge_model": "other"}, {"environment": None}, {})
    scrape = count(*(verdict(scores=(PASS,), **other) for other in others))
    assert labels(scrape, "version", "judge_model", "environment") == [
        ("01234567", "gpt-6-luna", ""),
        ("01234567", "gpt-6-luna", "prod"),
        ("01234567", "other", "prod"),
        ("ffffffff", "gpt-6-luna", "prod"),
    ]
    named = verdict(scores=(PASS,), name="answer", release="1.2", model="gpt-4.1")
    scrape = count(named, verdict(scores=(PASS,)), series_labels=("name", "release", "model"))
    assert labels(scrape, "name", "release", "model", **SERIES) == [("", "", ""), ("answer", "1.2", "gpt-4.1")]
    scrape = count(
        verdict(scores=(PASS,)),
        verdict(scores=(PASS,), service="desk", trace_ended_at=1.0),
        verdict(outcome="unscored", reason="timeout", service="bot"),
        max_services=1,
    )
    services = {sample.labels["service"] for sample in scrape.samples("tracejudge_verdicts_total")}
    assert services == {"shop", "other"}
    assert scrape.value("tracejudge_score_age_seconds_count", service="other") == 1
    assert scrape.value("tracejudge_unscored_total", service="other") == 1
    personal = {name: name.upper() for name in ("session_id", "user_id", "response_id", "rationale")}
    text = count(verdict(scores=(PASS,), **personal)).text
    assert not [word for word in personal.values() if word in text], "personal ids are no labels"


def test_a_score_points_to_its_trace_by_w3c_ids() -> None:
    trace = {"trace_id": TRACE_ID}
    rows: list[tuple[str, str | None, dict[str, str] | None]] = [
        (TRACE_ID, SPAN_ID, trace | {"span_id": SPAN_ID}),
        *((TRACE_ID, span_id, trace) for span_id in (None, "span-1", f"{SPAN_ID}\n", "0" * 16)),
        *((wrong, SPAN_ID, None) for wrong in ("0" * 32, TRACE_ID.upper(), "request-1", f"{TRACE_ID}\n", "a" * 128)),
        (TRACE_ID[1:], SPAN_ID, None),
    ]
    ids = {f"row {number}": row for number, row in enumerate(rows)}
    page = count(*(verdict(scores=(FAIL,), service=name, trace_id=a, span_id=b) for name, (a, b, _) in ids.items()))
    for name, (*_, exemplar) in ids.items():
        exemplars = [each.labels for each in page.exemplars("tracejudge_score_bucket", service=name)]
        assert exemplars == ([] if exemplar is None else [exemplar]), ids[name]
        assert all(sum(len(key) + len(value) for key, value in each.items()) <= 128 for each in exemplars)
    (exemplar,) = count(verdict(scores=(FAIL,))).exemplars("tracejudge_score_bucket", metric="true", le="0.3")
    assert exemplar.value == 0.25, "it holds the score"
    scrape = count(*[verdict(scores=(FAIL,)), verdict(scores=(BAD,))] * 3)
    exemplars = [exemplar.value for exemplar in scrape.exemplars("tracejudge_score_bucket", metric="true")]
    assert exemplars == [0.25, 0.75], "one in each bucket"
    # A judge with a yes-no metric and a graded one has a histogram for the second; what is unknown may have any scale.
    scores = Score("grounded", 0.0, passed=False), Score("supported_share", 0.5)
    judged = verdict(judge="facts_grounding", metrics=("grounded", "supported_share"), scores=scores)
    scrape = count(judged, verdict(judge="safety", metrics=("safety",), scores=(Score("safety", 1.0, passed=True),)))
    (histogram,) = scrape.samples("tracejudge_score_count")
    assert (histogram.labels["judge"], histogram.labels["metric"]) == ("facts_grounding", "supported_share")
    assert scrape.value("tracejudge_score_weighted_total", judge="safety", metric="safety") == 4
    (exemplar,) = scrape.exemplars("tracejudge_verdicts_total")
    assert exemplar.labels["trace_id"] == TRACE_ID


names = st.text(max_size=20)
scores = st.builds(
    Score, metric=st.sampled_from(["a", "b"]), value=st.floats(0, 1), passed=st.sampled_from([None, True, False])
)
verdicts = st.builds(
    verdict,
    service=names,
    environment=st.none() | names,
    judge_model=names,
    name=names,
    trace_id=names | st.just(TRACE_ID),
    scores=st.lists(scores, max_size=2, unique_by=lambda score: score.metric).map(tuple),
    metrics=st.just(("a", "b")),
)


@hypothesis_settings(deadline=None, max_examples=10)
@given(st.lists(verdicts, max_size=5))
def test_the_page_is_openmetrics_for_any_name_of_a_service(drawn: list[Verdict]) -> None:
    scrape = count(*drawn, series_labels=("name",))
    assert scrape.total("tracejudge_score_count") == sum(len(each.scores) for each in drawn)
    assert scrape.text.endswith("# EOF\n")


# --- the metrics of the contract: names, types and labels, and what is at zero before anything happens ---
LABELS = ("service", "environment", "judge", "version", "judge_model")
CONTRACT: Mapping[str, list[str]] = read_table(__file__, "metrics")
"""Section 7 of the contract, row by row: type and labels."""
INF = float("inf")


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
    # Histograms have edges for scores, timeouts and the time of giving up.
    tenths = [number / 10 for number in range(11)]
    assert edges("score", "score", ("s", "e", "j", "v", "m", "metric")) == [*tenths, INF]
    doubled = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    assert edges("request_duration", "judge_request_duration_seconds", ("m", "ok")) == [*doubled, INF]
    *_, last, _ = edges("score_age", "score_age_seconds", ("shop",))
    assert last == Settings().give_up_after


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the library reads it there")
def test_the_page_tells_when_its_process_began() -> None:
    """By its standard name, without a label: the rules go by it."""
    text = generate_latest(Metrics(Settings()).registry).decode()
    (start_s,) = re.findall(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
    # The moment when the machine began is told in whole seconds.
    assert float(start_s) == pytest.approx(psutil.Process().create_time(), abs=2)


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
    # Labels are bounded.
    service = Metrics(settings(max_services=3)).service
    assert "".join(service(name) for name in "abacdbec") == "abacotherbotherc"
    service = Metrics(settings("late", "bot-*", max_services=2)).service
    assert [service(name) for name in ("a", "b", "late", "bot-1")] == ["a", "other", "late", "other"], "rules name it"
    bounded = BoundedLabel(5)
    assert [bounded("s" * 200), bounded("s" * 201), bounded("s" * 1_000_000)] == ["s" * 200, "other", "other"]
    metrics = Metrics(Settings(series_labels=("name", "release")))
    for label, most in ((metrics.service, 200), (metrics.environment, 50), (metrics.extra["name"], 50)):
        assert [label(f"n{number}") for number in range(most + 9)] == [*(f"n{n}" for n in range(most)), *["other"] * 9]
    assert metrics.extra["release"]("1.0") == "1.0"


def test_series_labels_follow_those_of_every_series() -> None:
    plain = declared(Metrics(settings()))
    for extra in (("name",), ("release", "name"), ("name", "model", "release")):
        got = declared(Metrics(settings(series_labels=extra)))
        expected = {
            name: [kind, *LABELS, *extra, *labels[len(LABELS) :]] if tuple(labels[:5]) == LABELS else [kind, *labels]
            for name, (kind, *labels) in plain.items()
        }
        assert got == expected, extra
        assert got["score"] == ["histogram", *LABELS, *extra, "metric"]
