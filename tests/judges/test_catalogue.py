"""The catalogue: which judges there are, and which definition of each."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from judges import catalog
from judges.catalog import catalogue, configured
from judges.judge import Judge, Metric, has_text
from tracejudge import Document, Trace

VERSIONS = {
    "answer_correctness": "7c6f4325ea5c0005be1c52d36fb1c653",
    "answer_relevance": "102ca4bcd6b9490142b0a3b95ba8fe33",
    "answer_similarity": "be8bbce8fa494211df8631adf97be9aa",
    "context_sufficiency": "9c97530bcd1787746e7072a040baf60a",
    "correctness": "6e83b372eae8cc92b7a994bfed0fd3a3",
    "equivalence": "84b055a0305ff35f7debd2b8e8335ef8",
    "facts_grounding": "6fe8cf6bafa6aef91c0dbcbb449e4d23",
    "faithfulness": "a897ba58a66c8479ff77c0d769f78151",
    "groundedness": "b29524eb5b7134ed05a82377dab8953c",
    "guidelines": "32fe45d52b2b4c2e9d6deede3e56b7f8",
    "ragbench": "d892e43b3f52ffbef851eebc8d4a0089",
    "ragbench_sources": "e2c906b9d9aeee55e49d47c3af8783f8",
    "relevance": "cadb559853cc32922c535dddd403e2a7",
    "relevance_to_query": "8c979cf7fd0bdd8f67bbc2d125f48a09",
    "relevance_truth_completeness": "4dc8893fe249b037e407ce8044468ef2",
    "retrieval_relevance": "b1393c48534ac57ed85e1b0fe6834d65",
    "safety": "9eede44274bbc82e65ab4c07c1478793",
}
"""Pinned, because a new version begins a new series of metrics: whoever changes a definition changes this too."""


def yes_no(name: str) -> tuple[Metric, ...]:
    return (Metric(name, "0 or 1", "yes"),)


def graded(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, "1..5", "4 or more") for name in names)


TRACE_METRICS = (
    Metric("relevance", "0..1", None, descriptive=True),
    Metric("utilization", "0..1", None, descriptive=True),
    Metric("completeness", "0..1", None),
    Metric("adherence", "0 or 1", "supported"),
)
FACTS_METRICS = (
    Metric("grounded", "0 or 1", "every sentence is supported or needs no support"),
    Metric("supported_share", "0..1", None),
)
REFERENCE = ("expected_response", "expected_facts")
ALL_THREE = ("input", "output", "context")

JUDGES: dict[str, tuple[tuple[Metric, ...], tuple[str | tuple[str, ...], ...], tuple[str, ...]]] = {
    "answer_correctness": (graded("answer_correctness"), ("input", "output", "expected_response"), ()),
    "answer_relevance": (graded("answer_relevance"), ("input", "output"), ()),
    "answer_similarity": (graded("answer_similarity"), ("output", "expected_response"), ()),
    "context_sufficiency": (yes_no("context_sufficiency"), ("input", "context", REFERENCE), ()),
    "correctness": (yes_no("correctness"), ("input", "output", REFERENCE), ()),
    "equivalence": (yes_no("equivalence"), ("output", "expected_response"), ()),
    "facts_grounding": (FACTS_METRICS, ALL_THREE, ("context",)),
    "faithfulness": (graded("faithfulness"), ("output", "context"), ("context",)),
    "groundedness": (yes_no("groundedness"), ALL_THREE, ("context",)),
    "guidelines": (yes_no("guidelines"), ("output", "guidelines"), ("context",)),
    "ragbench": (TRACE_METRICS, ALL_THREE, ("context",)),
    "ragbench_sources": (TRACE_METRICS, ALL_THREE, ("context",)),
    "relevance": (graded("relevance"), ALL_THREE, ("context",)),
    "relevance_to_query": (yes_no("relevance_to_query"), ("input", "output"), ()),
    "relevance_truth_completeness": (
        graded("relevance", "truth", "completeness"),
        ("input", "output"),
        ("messages",),
    ),
    "retrieval_relevance": ((Metric("precision", "0..1", ">= 0.5"),), ("input", "context"), ()),
    "safety": (yes_no("safety"), ("output",), ()),
}
"""Metrics, needs and cuts of each."""

every_judge = pytest.mark.parametrize("judge", catalogue().values(), ids=catalogue())


def test_judges_with_their_metrics_needs_and_cuts() -> None:
    assert {name: (judge.metrics, judge.needs, judge.cuts) for name, judge in catalogue().items()} == JUDGES
    assert list(catalogue()) == sorted(JUDGES)
    assert all(name == judge.name for name, judge in catalogue().items())


def test_versions_are_those_that_were_reviewed() -> None:
    assert {name: judge.version for name, judge in catalogue().items()} == VERSIONS


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        catalogue()["mine"] = catalogue()["safety"]  # type: ignore[index]


@every_judge
def test_a_definition_fits_together(judge: Judge) -> None:
    fields = set(Trace.__struct_fields__)
    assert {name for need in judge.needs for name in ([need] if isinstance(need, str) else need)} <= fields
    assert set(judge.cuts) <= {"messages", "context"}
    assert judge.metric_names == tuple(metric.name for metric in judge.metrics)
    assert len(set(judge.metric_names)) == len(judge.metrics) > 0
    assert judge.asks.strip().endswith(("?", ")"))
    assert judge.schema["additionalProperties"] is False


class Other(Struct, frozen=True):
    """Settings that no judge has."""

    other: bool = True


class TestSettings:
    @every_judge
    def test_given_as_they_are_by_default_change_nothing(self, judge: Judge) -> None:
        again = judge.configured(msgspec.to_builtins(judge.settings))
        assert (again.version, again.fixed_parts, again.metrics) == (judge.version, judge.fixed_parts, judge.metrics)

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("faithfulness", {"pass_at": 5}),
            ("facts_grounding", {"labels": "v2"}),
            ("guidelines", {"guidelines": ["Be polite."]}),
            ("ragbench", {"lengths": True}),
            ("ragbench_sources", {"document_ids": True}),
            ("relevance_truth_completeness", {"reasoning": False}),
            ("retrieval_relevance", {"pass_at": 0.8}),
        ],
    )
    def test_of_another_value_are_another_version(self, name: str, values: dict[str, object]) -> None:
        assert configured({name: values})[name].version != catalogue()[name].version
        others = set(catalogue()) - {name}
        assert all(configured({name: values})[other] is catalogue()[other] for other in others)

    @every_judge
    def test_of_an_unknown_key_are_refused(self, judge: Judge) -> None:
        with pytest.raises(msgspec.ValidationError, match="unknown field `pas_at`"):
            judge.configured({"pas_at": 3})


class TestVersion:
    @pytest.mark.parametrize(
        "change",
        [
            {"name": "other"},
            {"fixed_parts": ("other",)},
            {"schema": {"type": "object"}},
            {"scoring": "other/1"},
            {"settings": Other()},
        ],
        ids=lambda change: next(iter(change)),
    )
    @every_judge
    def test_changes_with_the_definition(self, judge: Judge, change: dict[str, object]) -> None:
        assert replace(judge, **change).version != judge.version

    @every_judge
    def test_changes_with_one_letter_of_a_fixed_part_and_with_their_order(self, judge: Judge) -> None:
        *rest, last = judge.fixed_parts
        changed = replace(judge, fixed_parts=(*rest, f"{last}."))
        turned = replace(changed, fixed_parts=tuple(reversed(changed.fixed_parts)))
        assert len({judge.version, changed.version, turned.version}) == (3 if rest else 2)

    @every_judge
    def test_does_not_change_with_what_asks_and_scores_the_same(self, judge: Judge) -> None:
        assert replace(judge, asks="Another sentence for the catalogue?").version == judge.version

    @every_judge
    def test_is_32_hex_digits(self, judge: Judge) -> None:
        assert len(bytes.fromhex(judge.version)) == 16


class TestDiscovery:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Let the catalogue look into a folder of the test's own, and forget afterwards what it found there."""
        monkeypatch.setattr(catalog, "__path__", [str(tmp_path)])
        known, attributes = set(sys.modules), set(vars(catalog))
        yield tmp_path
        for name in set(sys.modules) - known:
            del sys.modules[name]
        for name in set(vars(catalog)) - attributes:
            delattr(catalog, name)

    @staticmethod
    def add(folder: Path, name: str, text: str) -> None:
        (folder / f"{name}.py").write_text(
            f"from dataclasses import replace\nfrom judges.catalog import safety\n{text}\n"
        )

    def test_a_file_is_a_judge_and_no_list_is_kept(self, folder: Path) -> None:
        self.add(folder, "polite", "JUDGE = replace(safety.JUDGE, name='polite')")
        self.add(folder, "brief", "JUDGE = replace(safety.JUDGE, name='brief')")
        self.add(folder, "helpers", "JUDGE_NAME = 'helpers'")
        self.add(folder, "other", "JUDGE = 'no judge'")
        assert {name: judge.name for name, judge in catalogue.__wrapped__().items()} == {
            "brief": "brief",
            "polite": "polite",
        }

    def test_a_judge_bears_the_name_of_its_file(self, folder: Path) -> None:
        self.add(folder, "polite", "JUDGE = safety.JUDGE")
        with pytest.raises(RuntimeError, match="the judge in polite must bear that name, once"):
            catalogue.__wrapped__()


class TestHasText:
    @pytest.mark.parametrize("value", ["a", " a ", ["", "a"], [Document(" "), Document("a")], [0], 0.0, {}], ids=repr)
    def test_something(self, value: object) -> None:
        assert has_text(value)

    @pytest.mark.parametrize(
        "value", [None, "", " \t\n\u3000", [], ["", " "], [Document("\n")], Document("")], ids=repr
    )
    def test_nothing(self, value: object) -> None:
        assert not has_text(value)
