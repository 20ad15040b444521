"""The catalogue: the built-in judges, their definitions and settings, and what each sends, to the letter.

The golden files are the expectation: of what each judge is, version included, for a new version begins a new series of
metrics, and of its requests for a short trace and a long one. After a change that is meant:

    UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/judges/test_catalogue.py
"""

import asyncio
import difflib
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from judge_traces import ASKING, LONG, SHORT, served
from support.cases import each_case
from tables import table

from judges import catalog
from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, has_text
from judges.core.prompt import render
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel
from judges.registry import CatalogueError, catalogue, load_judges
from tracejudge import Document, Trace

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
CASES = {"short": SHORT, "long": LONG}
UPDATES = os.environ.get("UPDATE_GOLDEN") == "1"
RUN_WORDS = 8
RUNS = (FOLDER / "corpora" / "published_runs.bin").read_bytes()
"""Digests of 5 bytes, one for each run of eight words of the prompts of MLflow 3.18 and 2.22: no text of them."""
TABLES = table("catalogue")
each_judge = each_case("judge", ASKING.values(), ids=ASKING)


def compare(path: Path, actual: str) -> None:
    if UPDATES:
        path.write_bytes(actual.encode())
    expected = path.read_bytes().decode() if path.exists() else ""
    if actual != expected:
        names = (f"golden/{path.name}", "rendered now")
        diff = difflib.unified_diff(expected.split("\n"), actual.split("\n"), *names, lineterm="")
        pytest.fail("\n".join(("the prompt has changed; if it should have: UPDATE_GOLDEN=1", *diff)), pytrace=False)


def written(judge: Judge, trace: Trace) -> str:
    """Lay out all requests on a trace, each message under a line with its role."""
    requests = [
        "\n\n".join(f"=== {message.role}\n{message.content}" for message in render(prompt))
        for prompt in judge.prompts(judge.prepare(trace))
    ]
    return "\n\n=== next request\n\n".join(requests) + "\n"


def questions_of(judge: Judge, trace: Trace) -> str:
    """Lay out the fixed part and the typed questions of the form for decision models."""
    form = judge.for_decisions({})
    parts = []
    for prompt in form.prompts(form.prepare(trace)):
        parts.append(f"=== fixed\n{prompt.fixed}")
        parts.append("=== material\n" + "\n".join(block.name for block in prompt.blocks))
        for question in prompt.questions:
            pair = "" if question.pair is None else " with a pair"
            options = (f"- {value}: {meaning}" for value, meaning in question.options)
            parts.append("\n".join((f"=== {question.kind}{pair}", question.instructions, *options)))
    return "\n\n".join(parts) + "\n"


def described(judge: Judge) -> str:
    metrics = (f"{metric.name} ({metric.scale}; {metric.passes})" for metric in judge.metrics)
    return f"""{judge.name} {judge.version}
  gives {", ".join(metrics)}
  needs {", ".join(judge.needs_in_words)}
  cuts {", ".join(judge.cuts) or "nothing"}
  settings {msgspec.json.encode(judge.settings).decode()}
"""


class TestGolden:
    def test_the_catalogue_is_that_of_the_golden_file(self) -> None:
        compare(FOLDER / "golden_catalogue.txt", "".join(map(described, catalogue().values())))

    @each_case("case", CASES)
    @each_judge
    def test_messages_are_those_of_the_golden_file(self, judge: Judge, case: str) -> None:
        compare(GOLDEN / f"{judge.name}.{case}.txt", written(judge, served(judge, CASES[case])))
        if judge.decision_form is not None:
            compare(GOLDEN / f"{judge.name}.{case}.questions.txt", questions_of(judge, served(judge, CASES[case])))

    def test_messages_of_variants_are_those_of_their_golden_files(self) -> None:
        short = catalogue()["relevance_truth_completeness"].configured({"reasoning": False})
        for folder, judge in (
            ("golden_short", short),
            ("golden_v2", catalogue()["facts_grounding"].configured({"labels": "v2"})),
        ):
            for case, trace in CASES.items():
                compare(FOLDER / folder / f"{judge.name}.{case}.txt", written(judge, trace))

    def test_no_golden_file_is_left_over(self) -> None:
        expected = {f"{name}.{case}.txt" for name in catalogue() for case in CASES}
        asked = [name for name, judge in catalogue().items() if judge.decision_form is not None]
        expected |= {f"{name}.{case}.questions.txt" for name in asked for case in CASES}
        left_over = sorted(path for path in GOLDEN.iterdir() if path.name not in expected)
        for path in left_over if UPDATES else ():
            path.unlink()
        assert UPDATES or left_over == []

    def test_no_prompt_has_eight_words_in_a_row_in_common_with_a_published_one(self) -> None:
        published = {RUNS[start : start + 5] for start in range(0, len(RUNS), 5)}
        own = {"own": {"instructions": "{{ inputs }} {{ outputs }}"}, "steps": {"instructions": "{{ trace }}"}}
        shared = set()
        for judge in load_judges(own).values():
            form = judge.decision_form
            for text in (*judge.fixed_parts, *(form.fixed_parts if form is not None else ())):
                words = re.findall(r"\w+(?:['\u2019]\w+)?", text.lower())
                for start in range(len(words) - RUN_WORDS + 1):
                    run = " ".join(words[start : start + RUN_WORDS])
                    if hashlib.blake2b(run.encode(), digest_size=5).digest() in published:
                        shared.add((judge.name, run))
        assert shared == set()


class Other(msgspec.Struct, frozen=True):
    """Settings that no judge has."""

    other: bool = True


class TestDefinition:
    def test_judges_stand_under_their_own_names_in_order_and_cannot_be_changed(self) -> None:
        assert list(catalogue()) == sorted(judge.name for judge in catalogue().values())
        with pytest.raises(TypeError):
            catalogue()["mine"] = catalogue()["safety"]  # type: ignore[index]

    @each_judge
    def test_fits_together(self, judge: Judge) -> None:
        fields = set(Trace.__struct_fields__)
        assert {name for need in judge.needs for name in ([need] if isinstance(need, str) else need)} <= fields
        assert set(judge.cuts) <= {"messages", "context"}
        assert judge.metric_names == tuple(metric.name for metric in judge.metrics)
        assert len(set(judge.metric_names)) == len(judge.metrics) > 0
        assert judge.asks.strip().endswith(("?", ")"))
        assert judge.schema["additionalProperties"] is False

    @each_judge
    def test_settings_as_they_are_by_default_change_nothing_and_unknown_ones_are_refused(self, judge: Judge) -> None:
        again = judge.configured(msgspec.to_builtins(judge.settings))
        assert (again.version, again.fixed_parts, again.metrics) == (judge.version, judge.fixed_parts, judge.metrics)
        with pytest.raises(msgspec.ValidationError, match="unknown field `pas_at`"):
            judge.configured({"pas_at": 3})

    def test_settings_of_another_value_are_another_version(self) -> None:
        for name, values in TABLES["settings"].items():
            judges = load_judges({name: values})
            assert judges[name].version != catalogue()[name].version, name
            assert all(judges[other] is catalogue()[other] for other in set(catalogue()) - {name}), name

    @each_judge
    def test_the_version_changes_with_the_definition_and_one_letter_of_a_fixed_part(self, judge: Judge) -> None:
        assert len(bytes.fromhex(judge.version)) == 16
        assert replace(judge, asks="Another sentence for the catalogue?").version == judge.version
        changes: list[dict[str, object]] = [{"name": "other"}, {"fixed_parts": ("other",)}, {"scoring": "other/1"}]
        for change in (*changes, {"schema": {"type": "object"}}, {"settings": Other()}):
            assert replace(judge, **change).version != judge.version, change  # type: ignore[arg-type]
        *rest, last = judge.fixed_parts
        changed = replace(judge, fixed_parts=(*rest, f"{last}."))
        turned = replace(changed, fixed_parts=tuple(reversed(changed.fixed_parts)))
        assert len({judge.version, changed.version, turned.version}) == (3 if rest else 2)


class TestAnyTrace:
    @each_judge
    def test_nothing_is_asked_without_a_needed_input(self, judge: Judge) -> None:
        for need in judge.needs:
            whole = served(judge, SHORT)
            if isinstance(need, str) and isinstance(getattr(whole, need), str):
                trace = msgspec.structs.replace(whole, **{need: " \n"})
            elif need == "context":
                trace = msgspec.structs.replace(whole, context=[Document(" "), "\n"])
            else:
                continue
            model = ScriptedModel(["{}"])
            expected = Assessment("unscored", "missing_input", note=f"the trace has no {need}")
            assert asyncio.run(evaluate(judge, trace, model)) == expected, need
            assert model.requests == [], need


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
        start = "from dataclasses import replace\nfrom judges.catalog import safety\n"
        (folder / f"{name}.py").write_text(f"{start}{text}\n")

    def test_a_file_is_a_judge_and_no_list_is_kept(self, folder: Path) -> None:
        for name in ("polite", "brief"):
            self.add(folder, name, f"JUDGE = replace(safety.JUDGE, name='{name}')")
        self.add(folder, "_helpers", "JUDGE_NAME = 'helpers'")
        found = {name: judge.name for name, judge in catalogue.__wrapped__().items()}
        assert found == {"brief": "brief", "polite": "polite"}

    @pytest.mark.parametrize(("text", "said"), TABLES["no judges"])
    def test_a_file_that_is_no_judge_is_told_in_one_line(self, folder: Path, text: str, said: str) -> None:
        self.add(folder, "polite", text)
        with pytest.raises(CatalogueError) as caught:
            catalogue.__wrapped__()
        assert str(caught.value).startswith(f"judges/catalog/polite.py: {said}")
        assert "\n" not in str(caught.value)


def test_what_has_text() -> None:
    something = ["a", " a ", ["", "a"], [Document(" "), Document("a")], [0], 0.0, {}]
    assert [value for value in something if not has_text(value)] == []
    nothing = [
        None,
        "",
        " \t\n\u3000",
        [],
        ["", " "],
        [Document("\n")],
        Document(""),
        "\u200b \u2060",
        ["\x00", "\u2800"],
    ]
    assert [value for value in nothing if has_text(value)] == []
