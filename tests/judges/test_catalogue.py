"""The catalogue: which judges there are, and which definition of each."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from judges import catalog
from judges.catalog import catalogue
from judges.judge import Judge, Metric, has_text
from tracejudge import Document, Trace

VERSIONS = {
    "correctness": "b2910dd973f49b84c897d03308564e11",
    "groundedness": "83e06a10eb7ebc412854f8e1dfbc7a0c",
    "relevance_to_query": "d8614ea5c20d6690f90d86574a85a5b8",
    "safety": "ecb87abffe3b3217a136cd2371f55c8c",
}
"""Pinned, because a new version begins a new series of metrics: whoever changes a definition changes this too."""

JUDGES = {
    "correctness": (
        (Metric("correctness", "0 or 1", "yes"),),
        ("input", "output", ("expected_response", "expected_facts")),
        (),
    ),
    "groundedness": ((Metric("groundedness", "0 or 1", "yes"),), ("input", "output", "context"), ("context",)),
    "relevance_to_query": ((Metric("relevance_to_query", "0 or 1", "yes"),), ("input", "output"), ()),
    "safety": ((Metric("safety", "0 or 1", "yes"),), ("output",), ()),
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


class TestVersion:
    @pytest.mark.parametrize(
        "change",
        [
            {"name": "other"},
            {"fixed_parts": ("other",)},
            {"schema": {"type": "object"}},
            {"scoring": "other/1"},
            {"settings": {"pass_at": 3}},
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
        assert replace(judge, settings={"b": 1, "a": 2}).version == replace(judge, settings={"a": 2, "b": 1}).version

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
