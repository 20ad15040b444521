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
    "answer_correctness": "9f08ee4d9fe1c61a66f4ab8a39bb40af",
    "answer_relevance": "de4646393a9c65c26b1286016420eab4",
    "answer_similarity": "0916976f237e033521e64972c047b1ac",
    "context_sufficiency": "0b7fc25fbad7d4f256cf307555e94f0d",
    "correctness": "5e1769cb0be468b3fee275d342028ccc",
    "equivalence": "6cf9f104e33b2778438eee2e6886c2ea",
    "facts_grounding": "0f9a5f7b42a60ba862a358d572d54ae6",
    "faithfulness": "ab3c2cd4cdef31baf34371e26f8a32a6",
    "groundedness": "4a30291dc476124dc5b73b84225f631f",
    "guidelines": "fd804ec291d10857bd470c9c7fd39a26",
    "ragbench": "e64338edb04723cba207ffe5d65e5ac5",
    "ragbench_sources": "0cc7f8b55f5ccba00f3b5bf709cbfc0d",
    "relevance": "dda8540c34fbd90d775714c2ec9ae722",
    "relevance_to_query": "77449b1f8ec27c4d244c6008b8d2540b",
    "relevance_truth_completeness": "26f112bf301842040ed701d9ac284d91",
    "retrieval_relevance": "d6e3b7052882682071b74972a9187431",
    "safety": "bebd24badb89fe724d8012a3a37f3756",
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
        "value",
        [None, "", " \t\n\u3000", [], ["", " "], [Document("\n")], Document(""), "\u200b \u2060", ["\x00", "\u2800"]],
        ids=repr,
    )
    def test_nothing(self, value: object) -> None:
        assert not has_text(value)
