"""Metrics are told apart by their names alone where they are exported."""

import pytest

from judges.core.judge import Judge
from judges.custom import define
from judges.registry import Clash, catalogue, clashes, exported_name


def own(*names: str) -> dict[str, Judge]:
    return {name: define(name, {"instructions": "Is {{ outputs }} polite?"}) for name in names}


@pytest.mark.parametrize(("metric", "name"), [("polite", "polite"), ("tone", "polite_tone")])
def test_a_metric_bears_the_name_of_its_judge_or_both(metric: str, name: str) -> None:
    assert exported_name("polite", metric) == name


def test_no_two_built_in_judges_share_a_name() -> None:
    assert list(clashes({})) == []
    assert list(clashes(dict(catalogue()))) == []


def test_judges_that_differ_do_not_clash() -> None:
    assert list(clashes(own("polite", "polite_tone", "ragbench_polite"))) == []


def test_the_later_judge_is_the_one_that_clashes() -> None:
    assert list(clashes(own("retrieval_relevance_precision", "polite_disagreement", "polite"))) == [
        Clash("retrieval_relevance_precision", "retrieval_relevance_precision", "retrieval_relevance"),
        Clash("polite_disagreement", "polite", "polite_disagreement"),
    ]
