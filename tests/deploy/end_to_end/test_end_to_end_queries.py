"""On motley traffic through a real worker every query of rules and dashboards runs, and finds something."""

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest
from queries import Asked, asked, fill, named_metrics, opened_values, recorded, rule_expressions
from scraped import FINDING_S
from support.pipeline import Pipeline
from support.scrape import Scrape
from traffic import SERVICE, motley, reads
from whole_picture import SCALE, SCRAPE_S, Picture, assembled

from deploy.rules.rule_files import generate
from worker.base.embedded import EmbeddedRedis
from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import Metrics

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
SILENT_QUERIES: Final[Mapping[tuple[str, str, str], str]] = {
    ("tracejudge-cost", "Against this hour yesterday", "A"): "needs a yesterday, which is a day on a dashboard",
    ("tracejudge-pipeline", "Memory of Redis", "B"): "this Redis has no maxmemory",
    ("tracejudge-pipeline", "Memory of Redis", "C"): "this Redis has no maxmemory",
}
"""Queries that find nothing, and why."""
MOSTLY_SILENT_QUERIES: Final[Mapping[tuple[str, str, str], str]] = {
    ("tracejudge-quality", "annotation Judges that changed", "A"): "no judge changes, but a model of a panel passes "
    "for a change where its first verdict comes two seconds after another's",
    ("tracejudge-quality", "annotation Quality alerts", "A"): "without objectives and weeks of verdicts none fires",
}
"""Queries that may find something where the machine is busy, and why."""

_LATER: Final = """
budget_ cascade_ export_parked judge_canary judge_flip judge_kappa quality_baseline quality_below quality_corrected
quality_drop quality_highest quality_incident quality_least_drop quality_lowest quality_objective quality_silent
quality_slope safety_incident
"""
LATER: Final = tuple(f"tracejudge_{name}" for name in _LATER.split())
"""How gauges begin that need days of verdicts, objectives, labels, a canary, a second model, a cascade or a budget.

Their queries are asked of served gauges in test_queries.
"""


class Asking(NamedTuple):
    """What was found on motley traffic: by each query of the dashboards, and on the worker's own page."""

    picture: Picture
    answers: Mapping[Asked, Any]
    page: Scrape


@pytest.fixture(scope="module")
def found(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    folder = tmp_path_factory.mktemp("motley")
    with ExitStack() as stack:
        pipeline = Pipeline(redis_server.url, f"motley-{uuid.uuid4().hex[:12]}", folder, stack)
        picture = stack.enter_context(assembled(pipeline, folder, reads))
        worker = stack.enter_context(motley(picture))
        answers = ask_patiently(picture)
        yield Asking(picture, answers, worker.scrape())


def ask_patiently(picture: Picture) -> dict[Asked, Any]:
    """Ask everything once, and again until it finds something what can find something here."""
    answers, deadline = {query: ask(picture, query) for query in asked()}, time.monotonic() + FINDING_S
    while (left := silent(answers) - {*SILENT_QUERIES, *MOSTLY_SILENT_QUERIES}) and time.monotonic() < deadline:
        time.sleep(1)
        again = [query for query in answers if (query.dashboard, query.where, query.ref) in left]
        answers |= {query: ask(picture, query) for query in again}
    return answers


def filled(query: Asked) -> str:
    return fill(query.expr, opened_values(query.dashboard, f"{SERVICE} / safety / safety / prod", "2s"))


def ask(picture: Picture, query: Asked) -> Any:
    return picture.prometheus.query(filled(query)) if query.now else picture.prometheus.query_range(filled(query), 60)


def silent(answers: Mapping[Asked, Any]) -> set[tuple[str, str, str]]:
    return {
        (query.dashboard, query.where, query.ref)
        for query, answer in answers.items()
        if not answer and not any(name.startswith(LATER) for name in named_metrics(query.expr))
    }


def test_the_shortest_window_at_this_pace_holds_four_scrapes() -> None:
    windows = re.findall(r"\[([0-9]+)ms[\]:]", "".join(generate(scale=SCALE).values()))
    assert min(map(int, windows)) >= 4 * SCRAPE_S * 1000


def test_every_query_of_every_dashboard_finds_something(found: Asking) -> None:
    assert silent(found.answers) - set(MOSTLY_SILENT_QUERIES) == set(SILENT_QUERIES)
    assert {*SILENT_QUERIES, *MOSTLY_SILENT_QUERIES} <= {(query.dashboard, query.where, query.ref) for query in asked()}


def test_every_rule_is_evaluated_without_an_error_and_has_recorded(found: Asking) -> None:
    rules = found.picture.prometheus.rules()
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert len(rules) == len(rule_expressions())

    def missing() -> set[str]:
        return {name for name in recorded() if not found.picture.prometheus.query(f"last_over_time({name}[10m])")}

    # Sums over windows are recorded after what they add up.
    deadline = time.monotonic() + FINDING_S
    while missing() and time.monotonic() < deadline:
        time.sleep(1)
    assert missing() == set()


def test_every_metric_and_all_that_is_asked_for_is_on_the_page_of_the_worker_or_recorded(found: Asking) -> None:
    """All that are declared; that those of the contract are among them is tested where they are declared."""
    declared = {family.name for family in Metrics(Settings()).registry.collect()}
    panels = [filled(query) for query in found.answers]
    names = {name for expr in (*panels, *rule_expressions().values()) for name in named_metrics(expr)}
    needed = declared | names - recorded()
    assert {name for name in needed if not found.page.samples(name) and not name.startswith(LATER)} == set()
