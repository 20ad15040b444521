"""Every metric of ours is watched, none is asked for that does not exist, and variables bind what they can."""

from itertools import chain

from queries import Asked, asked, dashboards, fill, named_metrics, rule_expressions, selectors
from support.cases import each_case

from deploy.rules.rule_files import FOLDER as RULES
from docs.metrics import worker_metrics

UNUSED = {
    "tracejudge_quality_corrected_window_seconds": "says what the corrected share is about; docs/statistics.md",
    **dict.fromkeys(
        (
            "tracejudge_quality_least_drop",
            *(f"tracejudge_quality_slope_{part}" for part in ("lower", "upper", "since_seconds")),
        ),
        "in the texts of alerts",
    ),
    "tracejudge_verdict_weight_squared_total": "for intervals where no monitor runs: docs/reference/metrics.md",
}
"""Metrics that neither a rule nor a dashboard asks for, and why."""
SUFFIXES = ("_bucket", "_sum", "_count")
EVERYTHING = {"service", "environment", "judge", "metric", "judge_model"}


def declared() -> dict[str, set[str]]:
    """Return the labels of each metric, by the name of its samples."""
    return {metric.full_name: set(metric.labels) for metric in worker_metrics()}


def bare(name: str) -> str:
    """Return the metric's name without the suffix of a histogram's samples."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def recorded() -> set[str]:
    """Return the names of the recorded series, the last part of the names of their rules."""
    return {f"tracejudge:{key.split(':tracejudge:', 1)[1]}" for key in rule_expressions(RULES) if ":tracejudge:" in key}


def windows() -> list[str]:
    variables = dashboards()["tracejudge-quality"]["templating"]["list"]
    return next(variable["query"].split(",") for variable in variables if variable["name"] == "window")


def used() -> set[str]:
    rules = rule_expressions(RULES).values()
    return {bare(name) for expr in chain(rules, (query.expr for query in asked())) for name in named_metrics(expr)}


def test_every_metric_is_watched_or_left_out_on_purpose() -> None:
    assert set(declared()) - used() == set(UNUSED)


@each_case("window", windows())
def test_what_is_asked_for_exists(window: str) -> None:
    metric_names = set(declared()) | recorded()
    values = {
        "window": window,
        **dict.fromkeys(EVERYTHING | {"series", "graded", "__interval", "__range", "__rate_interval"}, "1m"),
    }

    names = {bare(name) for query in asked() for name in named_metrics(fill(query.expr, values))}

    assert names - metric_names == set()
    assert {
        bare(name) for expr in rule_expressions(RULES).values() for name in named_metrics(expr)
    } - metric_names == set()


@each_case("query", asked(), ids=lambda query: f"{query.dashboard}:{query.where}:{query.ref}")
def test_queries_are_bound_by_the_variables_of_their_dashboard(query: Asked) -> None:
    variables = {each["name"] for each in dashboards()[query.dashboard]["templating"]["list"]}
    if query.where.startswith("variable "):
        return
    for name, matchers in selectors(query.expr):
        for label in declared().get(bare(name), set()) & variables:
            assert f'{label}=~"${label}"' in matchers, f"{name} is not bound by ${label}"


def test_a_variable_is_bound_by_those_before_it() -> None:
    query = next(query for query in asked() if query.where == "variable judge" and "quality" in query.dashboard)

    assert query.expr == 'tracejudge_verdicts_total{service=~"$service", environment=~"$environment"}'


def test_several_values_become_alternatives() -> None:
    assert fill('a{b=~"$b"} + ${c:raw}[$__range]', {"b": ["x", "y"], "c": "1", "__range": "5m"}) == (
        'a{b=~"(x|y)"} + 1[5m]'
    )
