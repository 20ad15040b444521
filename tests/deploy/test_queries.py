"""Every query of dashboards, runbooks and rules runs on a real Prometheus with our rules, and finds something."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from queries import Asked, asked, dashboards, fill, opened_values, panels, recorded, rule_expressions
from scraped import FINDING_S, MODEL, PANEL, PANEL_REASON, Prometheus, Traffic, prometheus
from support.processes import wait_until
from test_runbooks import PARTS

from deploy.rules.rule_files import generate

pytestmark = pytest.mark.slow("a Prometheus that scrapes until every query finds something")

SCALE = 60
"""An hour of the rules is a minute."""
QUERIES = asked() + [
    Asked(part.alert, "runbook", str(place), query, now=True)
    for part in PARTS
    for place, query in enumerate(part.queries)
]
FOUND_NOTHING: Mapping[tuple[str, str, str], str] = {
    ("tracejudge-cost", "Against this hour yesterday", "A"): "needs a yesterday",
    ("TraceJudgeQualityBelowObjective", "runbook", "0"): "nothing is below its objective",
    ("TraceJudgeTracesStopped", "runbook", "0"): "needs a yesterday",
    ("TraceJudgeRoleNotReady", "runbook", "0"): "all roles are well",
}
"""Queries that find nothing within a minute of traffic, and why."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Traffic() as page, prometheus(folder, generate(scale=SCALE), "1s") as server:
        server.watch(f"127.0.0.1:{page.port}")
        yield server


@pytest.fixture(scope="module")
def all_answers(server: Prometheus) -> dict[Asked, Any]:
    """Ask everything until it finds something; queries that cannot are asked as well, and a refused one raises."""
    answers: dict[Asked, Any] = dict.fromkeys(QUERIES)
    deadline = time.monotonic() + FINDING_S
    while time.monotonic() < deadline:
        for query in [query for query, answer in answers.items() if not answer]:
            answers[query] = ask(server, query)
        if all(answer or key(query) in FOUND_NOTHING for query, answer in answers.items()):
            break
        time.sleep(0.3)
    return answers


@pytest.fixture(scope="module")
def answers(all_answers: Mapping[Asked, Any]) -> dict[Asked, Any]:
    """Return the answers of dashboards."""
    return {query: answer for query, answer in all_answers.items() if query.where != "runbook"}


def ask(
    server: Prometheus, query: Asked, at: float | None = None, seconds: float = 60, **chosen: str | Sequence[str]
) -> Any:
    """Ask with everything chosen, unless a variable is given."""
    expr = fill(query.expr, {**values(query.dashboard), **chosen})
    return server.query(expr, at) if query.now else server.query_range(expr, seconds, at=at)


def values(uid: str) -> dict[str, str]:
    return opened_values(uid, "shop / safety / safety / prod", "4s") if uid.startswith("tracejudge-") else {}


def key(query: Asked) -> tuple[str, str, str]:
    return query.dashboard, query.where, query.ref


def test_each_query_finds_something(all_answers: Mapping[Asked, Any]) -> None:
    assert {key(query) for query, answer in all_answers.items() if not answer} <= FOUND_NOTHING.keys()
    assert FOUND_NOTHING.keys() <= {key(query) for query in QUERIES}


@pytest.mark.usefixtures("answers")
def test_every_rule_runs_and_has_recorded(server: Prometheus) -> None:
    """By now each has been asked many times; before that nobody knows how it is."""
    rules = server.rules()
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert len(rules) == len(rule_expressions())
    # Sums over windows are recorded after what they add up.
    has_recorded = lambda: all(server.query(f"last_over_time({name}[10m])") for name in recorded())  # noqa: E731
    wait_until(has_recorded, FINDING_S, "all series to be recorded")


def with_variables(queries: Iterable[Asked], names: set[str]) -> list[Asked]:
    """Return the queries in which some of these variables stand; others are the same whatever is chosen."""
    return [query for query in queries if {*re.findall(r"\$\{?([A-Za-z_]\w*)", query.expr)} & names]


def test_each_window_one_value_and_several_can_be_chosen(server: Prometheus, answers: Mapping[Asked, Any]) -> None:
    for window in ("30m", "6h", "3d"):
        for query in with_variables(answers, {"window"}):
            ask(server, query, seconds=3, window=window)
    for chosen in ({"service": "shop", "judge": "safety", "judge_model": MODEL}, {"judge": ["safety", "groundedness"]}):
        by_query = {query: ask(server, query, seconds=3, **chosen) for query in with_variables(answers, {*chosen})}
        silent = {query.where for query, answer in by_query.items() if not answer and answers[query]}
        assert not silent & {"What fires now", "annotation Quality alerts"}


def test_panels_repeat_for_each_series(answers: Mapping[Asked, Any]) -> None:
    """Grafana writes what a query found as text and takes the names out of it with the variable's expression."""
    variables = dashboards()["tracejudge-quality"]["templating"]["list"]
    regex = next(each["regex"] for each in variables if each["name"] == "series").strip("/")
    query = next(query for query in answers if query.where == "variable series")
    texts = ["{" + ",".join(f'{k}="{v}"' for k, v in each["metric"].items()) + "} 1 2" for each in answers[query]]
    names = [match[1] for text in texts if (match := re.search(regex, text))]
    assert sorted(names) == [
        "shop / correctness / correctness / prod",
        "shop / facts_grounding / grounded / prod",
        "shop / groundedness / groundedness / prod",
        "shop / groundedness / groundedness / stage",
        "shop / safety / safety / prod",
    ]
    assert names[0] == "shop / facts_grounding / grounded / prod"


def test_a_panel_of_one_series_has_one_line_of_each_kind(answers: Mapping[Asked, Any]) -> None:
    of_the_series = {query.ref: answer for query, answer in answers.items() if query.where == "$series"}
    assert {ref: len(answer) for ref, answer in of_the_series.items()} == dict.fromkeys("ABCDEFGH", 1)
    lower, upper, passed = (float(of_the_series[ref][0]["values"][-1][1]) for ref in "ABC")
    assert 0 < lower < passed < upper < 1


def test_lines_of_a_panel_can_be_told_apart(answers: Mapping[Asked, Any]) -> None:
    """One of the services judges in two environments."""
    names: dict[tuple[str, str], list[str]] = {}
    for query, answer in answers.items():
        for series in answer or () if query.legend not in ("", "__auto") else ():
            shown = re.sub(r"{{(\w+)}}", lambda label, of=series["metric"]: of.get(label[1], ""), query.legend)
            names.setdefault((query.dashboard, query.where), []).append(shown)
    assert names
    assert {where: results for where, results in names.items() if len(set(results)) < len(results)} == {}


def test_rows_of_a_table_bear_its_columns_alone(answers: Mapping[Asked, Any]) -> None:
    """Grafana joins the rows of several queries only where all that they share is alike, the metric's name as well."""
    shown = {
        (uid, panel["title"]): set(panel["transformations"][1]["options"]["indexByName"])
        for uid, dashboard in dashboards().items()
        for panel in panels(dashboard)
        if panel["type"] == "table"
    }
    beside = {
        (*key(query), label)
        for query, answer in answers.items()
        for series in (answer or () if (query.dashboard, query.where) in shown else ())
        for label in series["metric"].keys() - shown[query.dashboard, query.where]
    }
    assert shown
    assert beside == set()


def by_label(answer: Any, label: str) -> dict[str, float]:
    """Return the last value of each series by one of its labels."""
    return {each["metric"].get(label, ""): float((each.get("value") or each["values"][-1])[1]) for each in answer}


def of_judge(server: Prometheus, judge: str) -> dict[tuple[str, str], Any]:
    """Ask what is shown of one judge at one moment, by panel and query; all that was scraped by then is in by now."""
    at = time.time() - 2
    queries = [query for query in asked() if query.where[0] != "$"]
    return {(query.where, query.ref): ask(server, query, at, 3, judge=judge) for query in queries}


@pytest.mark.usefixtures("answers")
def test_what_a_panel_says_is_not_added_to_what_its_members_say(server: Prometheus) -> None:
    """Those that judge correctness pass everything; only the panel of them fails, abstains and lacks a score."""
    result = of_judge(server, "correctness")
    ended = by_label(result["How verdicts ended", "A"], "outcome")
    assert {outcome for outcome, amount in ended.items() if amount} == {"pass"}
    assert by_label(result["Why there is no score", "A"], "reason").get(PANEL_REASON, 0) == 0
    assert set(by_label(result["Evaluations with a score", "A"], "judge").values()) == {1}
    assert set(by_label(result["With a score", "A"], "").values()) == {1}
    assert set(by_label(result["Failures, with their traces", "A"], "judge").values()) == {0}
    assert result["How the scores of $graded spread", "A"] == [], "a judge of yes and no has no histogram"
    funnel = {ref: by_label(answer, "")[""] for (where, ref), answer in result.items() if where.startswith("From publ")}
    assert funnel["E"] == pytest.approx(funnel["F"], rel=0.1)


@pytest.mark.usefixtures("answers")
def test_where_judge_models_are_told_apart_a_panel_is_one(server: Prometheus) -> None:
    result = of_judge(server, "correctness")
    for where in ("Every series", "Mean score", "Versions and models that judge", "Evaluations that ended"):
        assert PANEL in by_label(result[where, "A"], "judge_model"), where
    assert by_label(result["Disagreement of judge models", "A"], "metric") == {"disagreement": 1}


@pytest.mark.parametrize(("panel", "most"), [("Low scores", 0.4), ("Failures", float("inf"))])
def test_bad_verdicts_point_to_their_traces(
    server: Prometheus, answers: Mapping[Asked, Any], panel: str, most: float
) -> None:
    query = next(query for query in answers if query.where.startswith(panel))
    series = server.exemplars(fill(query.expr, values(query.dashboard)), 60)
    points = [exemplar for each in series for exemplar in each["exemplars"]]
    assert points
    assert all(float(point["value"]) <= most and len(point["labels"]["trace_id"]) == 32 for point in points)


def test_a_changed_judge_is_marked_and_a_new_one_is_not(answers: Mapping[Asked, Any]) -> None:
    (result,) = (answer for query, answer in answers.items() if query.where == "annotation Judges that changed")
    assert [each["metric"] for each in result] == [{"judge": "correctness", "version": "b" * 8, "judge_model": MODEL}]


def test_variables_offer_what_there_is(server: Prometheus, answers: Mapping[Asked, Any]) -> None:
    offered = {
        query.where.removeprefix("variable "): server.label_values(
            query.where.removeprefix("variable "), fill(query.expr, values(query.dashboard))
        )
        for query in answers
        if query.dashboard == "tracejudge-quality" and query.where in {"variable service", "variable judge"}
    }
    assert offered == {"service": ["shop"], "judge": ["correctness", "facts_grounding", "groundedness", "safety"]}
