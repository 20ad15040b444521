"""Every query of a runbook runs on a real Prometheus with our rules, and finds something."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
from alertmanager_run import find_program
XX
from scraped import FINDING_S, Traffic, prometheus, serve
from support.cases import each_case

pytestmark = pytest.mark.slow("a Prometheus that scrapes until every query finds something")

QUERIES = [(part.alert, place, query) for part in alerts() for place, query in enumerate(part.queries)]
FOUND_NOTHING = {
    ("TraceJudgeQualityBelowObjective", 0): "nothing is below its objective",
    ("TraceJudgeTracesStopped", 0): "needs a yesterday",
    ("TraceJudgeRoleNotReady", 0): "all roles are well",
}
"""Queries that find nothing in a minute of traffic, and why."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], Any]:
    """Ask each until it finds something; one that Prometheus refuses raises."""
    program = find_program("prometheus")
    values: dict[tuple[str, int], Any] = {}
    with serve(Traffic()) as port, prometheus(program, tmp_path_factory.mktemp("prometheus"), port) as server:
        deadline = time.monotonic() + FINDING_S
        while time.monotonic() < deadline:
            for page, place, query in QUERIES:
                if not values.get((page, place)):
                    values[page, place] = server.query(query)
            if all(answer or key in FOUND_NOTHING for key, answer in values.items()):
                break
            time.sleep(1)
    return values


@each_case(("page", "place", "query"), QUERIES, ids=[f"{page}-{place}" for page, place, _ in QUERIES])
def test_a_query_finds_something(page: str, place: int, query: str, answers: Mapping[tuple[str, int], Any]) -> None:
    assert answers[page, place] or (page, place) in FOUND_NOTHING, query


def test_each_exception_is_a_query() -> None:
    assert set(FOUND_NOTHING) <= {(page, place) for page, place, _ in QUERIES}
