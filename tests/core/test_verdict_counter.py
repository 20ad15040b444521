"""From verdicts to metrics: what each outcome counts, and what it leaves alone."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import generate_latest
from support.cases import each_case
from support.scrape import Scrape, parse
from support.stage_parts import make_verdict, samples

from judges.core.verdict import REASONS, Score, Verdict
from worker.core.config.settings import Settings
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import OUTCOMES, Metrics

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
SERIES = {"service": "shop", "environment": "prod", "judge": "trio", "version": "01234567", "judge_model": "gpt-6-luna"}
PASS = Score("clear", 1.0, 1.0, "yes", passed=True)
FAIL = Score("true", 0.25, 2.0, passed=False)
UNRATED = Score("length", 0.5)


def verdict(**fields: Any) -> Verdict:
    """Make a verdict of a judge with three metrics; without scores it says what became of it instead."""
    metrics, place = ("clear", "true", "length"), {"trace_id": TRACE_ID, "environment": "prod", "judge": "trio"}
    defaults = {
        "judge_model": "gpt-6-luna",
        "probability": 0.25,
        "weight": 4.0,
        "started_at": 1000.0,
        "duration_s": 2.0,
    }
    return make_verdict(**{"outcome": "scored", "metrics": metrics, "span_id": None} | place | defaults | fields)


class Counted:
    """A scorekeeper with a registry of its own, and its page."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings(rules=())
        self.metrics = Metrics(self.settings)
        self._counter = VerdictCounter(self.settings, self.metrics)

    def count(self, *verdicts: Verdict, kind: Any = "j") -> Scrape:
        self._counter.count(*(OutboxEntry("1-0", kind, each) for each in verdicts))
        return parse(generate_latest(self.metrics.registry).decode())


def count(*verdicts: Verdict, kind: Any = "j") -> Scrape:
    return Counted().count(*verdicts, kind=kind)


def by_outcome(scrape: Scrape, name: str, **labels: str) -> dict[tuple[str, str], float]:
    """Return the counts that are not zero, by metric and outcome."""
    return {
        (sample.labels["metric"], sample.labels["outcome"]): sample.value
        for sample in scrape.samples(f"tracejudge_{name}_total", **labels)
        if sample.value
    }


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


# --- outcomes ---


def test_a_scored_verdict_counts_pass_fail_and_unrated_by_metric() -> None:
    scrape = count(verdict(scores=(PASS, FAIL, UNRATED)))
    assert by_outcome(scrape, "verdicts", **SERIES) == {
        ("clear", "pass"): 1,
        ("true", "fail"): 1,
        ("length", "unrated"): 1,
    }
    assert not scrape.samples("tracejudge_unscored_total")


def test_a_result_without_a_value_counts_as_unrated_and_in_no_mean() -> None:
    scrape = count(verdict(metrics=("topic",), details={"result": "A refund."}))
    assert by_outcome(scrape, "verdicts", **SERIES) == {("topic", "unrated"): 1}
    assert scrape.total("tracejudge_score_count") == 0
    late = Counted().count(verdict(metrics=("topic",), details={"result": "A refund."}, origin="late_feedback"))
    assert by_outcome(late, "late_feedback_verdicts") == {("topic", "unrated"): 1}


def test_an_abstained_verdict_counts_once_under_each_metric() -> None:
    scrape = count(verdict(outcome="abstained"))
    assert by_outcome(scrape, "verdicts", **SERIES) == {
        (metric, "abstained"): 1 for metric in ("clear", "true", "length")
    }
    assert scrape.total("tracejudge_score_count") == 0
    assert not scrape.samples("tracejudge_unscored_total")


@each_case("reason", REASONS)
def test_an_unscored_verdict_counts_under_each_metric_and_once_by_reason(reason: str) -> None:
    scrape = count(verdict(outcome="unscored", reason=reason))
    assert by_outcome(scrape, "verdicts", **SERIES) == {
        (metric, "unscored"): 1 for metric in ("clear", "true", "length")
    }
    assert scrape.value("tracejudge_unscored_total", **SERIES, reason=reason) == 1
    assert scrape.total("tracejudge_unscored_total") == 1
    assert scrape.total("tracejudge_score_count") == 0
    assert scrape.total("tracejudge_score_weighted_total") == 0


def test_a_metric_that_a_scored_verdict_leaves_out_counts_nowhere() -> None:
    scrape = count(verdict(scores=(PASS,)))
    assert by_outcome(scrape, "verdicts") == {("clear", "pass"): 1}
    assert scrape.total("tracejudge_score_count") == 1


@each_case(
    ("details", "counted"),
    [({}, 0), ({"fabricated_evidence": 3}, 3), ({"fabricated_evidence": -1}, 0), ({"fabricated_evidence": "3"}, 0)],
    ids=["none", "some", "negative", "no number"],
)
def test_evidence_that_does_not_exist_is_counted_and_its_series_stands_at_zero(
    details: dict[str, object], counted: int
) -> None:
    scrape = count(verdict(scores=(PASS,), details=details))
    assert scrape.value("tracejudge_fabricated_evidence_total", **SERIES) == counted
    assert scrape.value("tracejudge_check_differs_total", **SERIES) == (details.get("check_differs") or 0)


def test_weights_and_their_squares_are_summed_by_outcome() -> None:
    scrape = count(
        verdict(scores=(PASS, FAIL), weight=4.0),
        verdict(scores=(PASS,), weight=10.0),
        verdict(outcome="abstained", weight=2.0, metrics=("clear",)),
        verdict(outcome="unscored", reason="refusal", weight=5.0, metrics=("clear",)),
    )
    assert by_outcome(scrape, "verdict_weight", **SERIES) == {
        ("clear", "pass"): 14,
        ("true", "fail"): 4,
        ("clear", "abstained"): 2,
        ("clear", "unscored"): 5,
    }
    assert by_outcome(scrape, "verdict_weight_squared", **SERIES) == {
        ("clear", "pass"): 116,
        ("true", "fail"): 16,
        ("clear", "abstained"): 4,
        ("clear", "unscored"): 25,
    }


def test_scores_are_counted_bare_in_the_histogram_and_weighted_beside_it() -> None:
    scrape = count(
        verdict(scores=(FAIL,), weight=4.0),
        verdict(scores=(msgspec.structs.replace(FAIL, value=0.75),), weight=10.0),
        verdict(outcome="unscored", reason="timeout", weight=100.0),
    )
    labels = {**SERIES, "metric": "true"}
    assert scrape.value("tracejudge_score_count", **labels) == 2
    assert scrape.value("tracejudge_score_sum", **labels) == 1.0
    assert scrape.value("tracejudge_score_weighted_total", **labels) == 4 * 0.25 + 10 * 0.75
    buckets = {sample.labels["le"]: sample.value for sample in scrape.samples("tracejudge_score_bucket", **labels)}
    assert (buckets["0.2"], buckets["0.3"], buckets["0.7"], buckets["0.8"], buckets["+Inf"]) == (0, 1, 1, 2, 2)


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


# --- what does not count ---


@each_case("origin", ["late_feedback", "replay"])
@each_case(
    "fields",
    [{"scores": (PASS, FAIL, UNRATED)}, {"outcome": "abstained"}, {"outcome": "unscored", "reason": "timeout"}],
    ids=["scored", "abstained", "unscored"],
)
@each_case("kind", ["j", "d"])
def test_only_live_traffic_counts(origin: str, fields: dict[str, Any], kind: str) -> None:
    assert quality(count(verdict(origin=origin, trace_ended_at=999.0, **fields), kind=kind)) == []


def test_a_dead_letter_counts_by_its_reason_and_nowhere_else() -> None:
    dead = verdict(outcome="unscored", reason="judge_unavailable", trace_ended_at=999.0)
    scrape = count(dead, kind="d")
    assert quality(scrape) == ["tracejudge_unscored_total"]
    assert scrape.value("tracejudge_unscored_total", **SERIES, reason="judge_unavailable") == 1
    assert not scrape.samples("tracejudge_verdicts_total")


# --- series ---


@each_case(
    "first",
    [
        verdict(scores=(PASS, FAIL, UNRATED)),
        verdict(outcome="abstained"),
        verdict(outcome="unscored", reason="timeout"),
    ],
    ids=["scored", "abstained", "unscored"],
)
def test_all_outcomes_of_a_series_stand_at_zero_from_its_first_verdict_on(first: Verdict) -> None:
    scrape = count(first)
    for name in ("verdicts", "verdict_weight", "verdict_weight_squared"):
        outcomes = [
            (sample.labels["metric"], sample.labels["outcome"])
            for sample in scrape.samples(f"tracejudge_{name}_total", **SERIES)
        ]
        assert sorted(outcomes) == sorted((metric, outcome) for metric in first.metrics for outcome in OUTCOMES)
    for metric in first.metrics:
        assert scrape.samples("tracejudge_score_count", **SERIES, metric=metric)
        assert scrape.samples("tracejudge_score_weighted_total", **SERIES, metric=metric)


def test_another_version_or_model_of_a_judge_is_another_series() -> None:
    scrape = count(
        verdict(scores=(PASS,)),
        verdict(scores=(PASS,), judge_version="f" * 32),
        verdict(scores=(PASS,), judge_model="other"),
        verdict(scores=(PASS,), environment=None),
    )
    series = {
        (sample.labels["version"], sample.labels["judge_model"], sample.labels["environment"])
        for sample in scrape.samples("tracejudge_verdicts_total", outcome="pass")
        if sample.value == 1
    }
    assert series == {
        ("01234567", "gpt-6-luna", "prod"),
        ("ffffffff", "gpt-6-luna", "prod"),
        ("01234567", "other", "prod"),
        ("01234567", "gpt-6-luna", ""),
    }


def test_services_past_the_bound_are_counted_as_other() -> None:
    scrape = Counted(Settings(max_services=1)).count(
        verdict(scores=(PASS,)),
        verdict(scores=(PASS,), service="desk", trace_ended_at=1.0),
        verdict(outcome="unscored", reason="timeout", service="bot"),
    )
    metric_values = {sample.labels["service"] for sample in scrape.samples("tracejudge_verdicts_total")}
    assert metric_values == {"shop", "other"}
    assert scrape.value("tracejudge_score_age_seconds_count", service="other") == 1
    assert scrape.value("tracejudge_unscored_total", service="other") == 1


def test_chosen_series_labels_are_taken_from_the_verdict() -> None:
    counted = Counted(Settings(series_labels=("name", "release", "model")))
    scrape = counted.count(
        verdict(scores=(PASS,), name="answer", release="1.2", model="gpt-4.1"), verdict(scores=(PASS,))
    )
    labels = [
        (sample.labels["name"], sample.labels["release"], sample.labels["model"])
        for sample in scrape.samples("tracejudge_verdicts_total", **SERIES, metric="clear", outcome="pass")
        if sample.value == 1
    ]
    assert sorted(labels) == [("", "", ""), ("answer", "1.2", "gpt-4.1")]


def test_a_series_label_has_fifty_values_and_other() -> None:
    scrape = Counted(Settings(series_labels=("name",))).count(
        *(verdict(scores=(PASS,), name=f"n{number}") for number in range(60))
    )
    passes = {
        sample.labels["name"]: sample.value
        for sample in scrape.samples("tracejudge_verdicts_total", metric="clear", outcome="pass")
    }
    assert passes == {**{f"n{number}": 1 for number in range(50)}, "other": 10}


def test_personal_ids_are_no_labels() -> None:
    text = count(
        verdict(scores=(PASS,), session_id="SESSION", user_id="USER", response_id="RESPONSE", rationale="RATIONALE")
    ).text
    assert not [word for word in ("SESSION", "USER", "RESPONSE", "RATIONALE") if word in text]


# --- exemplars ---

EXEMPLARS: dict[str, tuple[str, str | None, dict[str, str] | None]] = {
    "both": (TRACE_ID, SPAN_ID, {"trace_id": TRACE_ID, "span_id": SPAN_ID}),
    "no span": (TRACE_ID, None, {"trace_id": TRACE_ID}),
    "span of another form": (TRACE_ID, "span-1", {"trace_id": TRACE_ID}),
    "span with a line end": (TRACE_ID, f"{SPAN_ID}\n", {"trace_id": TRACE_ID}),
    "span of zeros": (TRACE_ID, "0" * 16, {"trace_id": TRACE_ID}),
    "zeros": ("0" * 32, SPAN_ID, None),
    "capitals": (TRACE_ID.upper(), SPAN_ID, None),
    "another form": ("request-1", SPAN_ID, None),
    "line end": (f"{TRACE_ID}\n", SPAN_ID, None),
    "long": ("a" * 128, SPAN_ID, None),
    "too short": (TRACE_ID[1:], SPAN_ID, None),
}


@each_case(("trace_id", "span_id", "exemplar"), EXEMPLARS.values(), ids=EXEMPLARS.keys())
def test_a_score_points_to_its_trace_by_w3c_ids(
    trace_id: str, span_id: str | None, exemplar: dict[str, str] | None
) -> None:
    scrape = count(verdict(scores=(FAIL,), trace_id=trace_id, span_id=span_id))
    exemplars = [each.labels for each in scrape.exemplars("tracejudge_score_bucket")]
    assert exemplars == ([] if exemplar is None else [exemplar])
    assert all(sum(len(key) + len(value) for key, value in each.items()) <= 128 for each in exemplars)


def test_scores_counted_together_have_an_exemplar_in_each_bucket() -> None:
    bad = msgspec.structs.replace(FAIL, value=0.75)
    scrape = count(*[verdict(scores=(FAIL,)), verdict(scores=(bad,))] * 3)
    exemplars = [exemplar.value for exemplar in scrape.exemplars("tracejudge_score_bucket", metric="true")]
    assert exemplars == [0.25, 0.75]


def test_an_exemplar_holds_the_score() -> None:
    scrape = count(verdict(scores=(FAIL,)))
    (exemplar,) = scrape.exemplars("tracejudge_score_bucket", metric="true", le="0.3")
    assert exemplar.value == 0.25


def test_a_yes_no_metric_has_no_histogram_and_its_failures_lead_to_traces() -> None:
    """A judge with both has one for its graded metric; what is unknown here may have any scale."""
    grounded, share = Score("grounded", 0.0, passed=False), Score("supported_share", 0.5)
    judged = verdict(judge="facts_grounding", metrics=("grounded", "supported_share"), scores=(grounded, share))
    scrape = count(judged, verdict(judge="safety", metrics=("safety",), scores=(Score("safety", 1.0, passed=True),)))
    histograms = {
        (sample.labels["judge"], sample.labels["metric"]) for sample in scrape.samples("tracejudge_score_count")
    }
    assert histograms == {("facts_grounding", "supported_share")}
    assert scrape.value("tracejudge_score_weighted_total", judge="safety", metric="safety") == 4
    (exemplar,) = scrape.exemplars("tracejudge_verdicts_total")
    assert exemplar.labels["trace_id"] == TRACE_ID


# --- age ---


def test_the_age_of_a_score_runs_from_the_end_of_the_call() -> None:
    scrape = count(verdict(scores=(PASS, FAIL), started_at=1000.0, duration_s=2.0, trace_ended_at=995.0))
    assert scrape.value("tracejudge_score_age_seconds_count", service="shop") == 1
    assert scrape.value("tracejudge_score_age_seconds_sum", service="shop") == 7.0


def test_a_clock_that_runs_ahead_makes_no_negative_age() -> None:
    scrape = count(verdict(scores=(PASS,), trace_ended_at=2000.0))
    assert scrape.value("tracejudge_score_age_seconds_sum", service="shop") == 0.0


@each_case(
    "fields",
    [
        {"scores": (PASS,)},
        {"outcome": "abstained", "trace_ended_at": 995.0},
        {"outcome": "unscored", "reason": "refusal", "trace_ended_at": 995.0},
    ],
    ids=["end unknown", "abstained", "unscored"],
)
def test_a_verdict_without_an_end_or_a_score_has_no_age(fields: dict[str, Any]) -> None:
    assert count(verdict(**fields)).total("tracejudge_score_age_seconds_count") == 0


# --- the page ---

names = st.text(max_size=20)
scores = st.builds(
    Score, metric=st.sampled_from(["a", "b"]), value=st.floats(0, 1), passed=st.sampled_from([None, True, False])
)


@hypothesis_settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.builds(
            verdict,
            service=names,
            environment=st.none() | names,
            judge_model=names,
            name=names,
            trace_id=names | st.just(TRACE_ID),
            scores=st.lists(scores, max_size=2, unique_by=lambda score: score.metric).map(tuple),
            metrics=st.just(("a", "b")),
        ),
        max_size=5,
    )
)
def test_the_page_is_openmetrics_for_any_name_of_a_service(verdicts: list[Verdict]) -> None:
    scrape = Counted(Settings(series_labels=("name",))).count(*verdicts)
    total = sum(len(each.scores) for each in verdicts)
    assert scrape.total("tracejudge_score_count") == total
    assert scrape.text.endswith("# EOF\n")


# --- several models ---


def test_a_panel_has_series_and_disagreement_from_the_start() -> None:
    series = {**SERIES, "judge_model": "majority(a,b)"}
    panel = verdict(
        judge_model="majority(a,b)", metrics=("clear", "disagreement"), outcome="unscored", reason="refusal"
    )
    counted = Counted()
    scrape = counted.count(panel)
    outcomes = {
        sample.labels["outcome"]
        for sample in scrape.samples("tracejudge_verdicts_total", metric="disagreement", **series)
    }
    assert outcomes == set(OUTCOMES)
    scored = msgspec.structs.replace(
        panel, outcome="scored", reason=None, scores=(PASS, Score("disagreement", 0.5, 0.5))
    )
    assert by_outcome(counted.count(scored), "verdicts", **series) == {
        ("clear", "unscored"): 1,
        ("clear", "pass"): 1,
        ("disagreement", "unscored"): 1,
        ("disagreement", "unrated"): 1,
    }


def test_late_feedback_counts_judge_models_and_not_their_panel() -> None:
    """No label of that metric tells a panel from its members."""
    counted = Counted()
    late = [
        verdict(metrics=("clear",), scores=(PASS,), judge_model=name, origin="late_feedback", weight=0.0)
        for name in ("a", "b", "c", "majority(a,b,c)")
    ]
    page = counted.count(*late)
    assert page.total("tracejudge_late_feedback_verdicts_total") == 3
