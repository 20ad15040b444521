"""The catalogue: the built-in judges, their definitions and their settings."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from judge_traces import ASKING
from msgspec import Struct
from support.cases import each_case

from judges import catalog
from judges.core.judge import Judge, has_text
from judges.registry import CatalogueError, catalogue, load_judges
from tracejudge import Document, Trace

GOLDEN = Path(__file__).with_name("golden_catalogue.txt")
"""What each judge is, version included: a new version begins a new series of metrics, so that a change shows in review.

After a change that is meant: UPDATE_GOLDEN=1 .venv/bin/pytest tests/judges -k golden
"""

every_judge = pytest.mark.parametrize("judge", ASKING.values(), ids=ASKING)


def described(judge: Judge) -> str:
    metrics = (f"{metric.name} ({metric.scale}; {metric.passes})" for metric in judge.metrics)
    lines = (
        f"{judge.name} {judge.version}",
        f"  gives {', '.join(metrics)}",
        f"  needs {', '.join(judge.needs_in_words)}",
        f"  cuts {', '.join(judge.cuts) or 'nothing'}",
        f"  settings {msgspec.json.encode(judge.settings).decode()}",
    )
    return "\n".join(lines)


def test_the_catalogue_is_that_of_the_golden_file() -> None:
    actual = "\n".join(map(described, catalogue().values())) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(actual, encoding="utf-8")
    assert actual == GOLDEN.read_text(encoding="utf-8")


def test_judges_stand_under_their_own_names_in_order() -> None:
    assert list(catalogue()) == sorted(judge.name for judge in catalogue().values())


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

    @each_case(
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
        assert load_judges({name: values})[name].version != catalogue()[name].version
        others = set(catalogue()) - {name}
        assert all(load_judges({name: values})[other] is catalogue()[other] for other in others)

    @every_judge
    def test_of_an_unknown_key_are_refused(self, judge: Judge) -> None:
        with pytest.raises(msgspec.ValidationError, match="unknown field `pas_at`"):
            judge.configured({"pas_at": 3})


class TestVersion:
    @each_case(
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
        """Load the catalogue from a temporary folder, and remove its modules afterwards."""
        monkeypatch.setattr(catalog, "__path__", [str(tmp_path)])
        modules, attributes = set(sys.modules), set(vars(catalog))
        yield tmp_path
        for name in set(sys.modules) - modules:
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
        self.add(folder, "_helpers", "JUDGE_NAME = 'helpers'")
        assert {name: judge.name for name, judge in catalogue.__wrapped__().items()} == {
            "brief": "brief",
            "polite": "polite",
        }

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("JUDGE = safety.JUDGE", "defines a judge named 'safety'; give it the name of its file"),
            ("JUDGE = 'no judge'", "defines no JUDGE; define one, or start the name of a helper with an underscore"),
            ("JUDGES = []", "defines no JUDGE; define one, or start the name of a helper with an underscore"),
            ("1 / 0", "cannot be loaded (ZeroDivisionError: division by zero)"),
            ("from judges import nothing", "cannot be loaded (ImportError: cannot import name 'nothing' from 'judges'"),
        ],
        ids=["another name", "another object", "none", "a fault", "an import"],
    )
    def test_a_file_that_is_no_judge_is_told_in_one_line(self, folder: Path, text: str, said: str) -> None:
        self.add(folder, "polite", text)
        with pytest.raises(CatalogueError) as caught:
            catalogue.__wrapped__()
        assert str(caught.value).startswith(f"judges/catalog/polite.py: {said}")
        assert "\n" not in str(caught.value)


class TestHasText:
    @each_case("value", ["a", " a ", ["", "a"], [Document(" "), Document("a")], [0], 0.0, {}], ids=repr)
    def test_something(self, value: object) -> None:
        assert has_text(value)

    @each_case(
        "value",
        [None, "", " \t\n\u3000", [], ["", " "], [Document("\n")], Document(""), "\u200b \u2060", ["\x00", "\u2800"]],
        ids=repr,
    )
    def test_nothing(self, value: object) -> None:
        assert not has_text(value)
