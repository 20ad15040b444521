"""The catalogue: built-in judges, their settings and what each sends; the built-in models and the samples.

The golden files are the expectation: of what each judge is, version included, for a new version begins a new series of
metrics, and of its requests for a short trace and a long one. After a change that is meant:

    UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/judges/test_catalogue.py
"""

import asyncio
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from judge_traces import (
    ASKING,
    ERRORS,
    LONG,
    SAMPLES,
    SERVICES,
    SHORT,
    YES_NO,
    all_samples,
    references,
    samples,
    served,
    table,
)
from support.cases import each_case
from support.tables import UPDATES, check_golden

from judges import catalog
from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, has_text
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelSettings
from judges.core.prompt import Message, ToolCall, render
from judges.core.verdict import Assessment
from judges.custom.variables import guess
from judges.models import scripted
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step, load_script
from judges.parsing.sentences import content_words, coverage, numbers
from judges.registry import CatalogueError, catalogue, load_judges
from tracejudge import Document, Trace

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
CASES = {"short": SHORT, "long": LONG}
VARIANTS = {
    "golden_short": catalogue()["relevance_truth_completeness"].configured({"reasoning": False}),
    "golden_v2": catalogue()["facts_grounding"].configured({"labels": "v2"}),
}
RUN_WORDS = 8
RUNS = (FOLDER / "corpora" / "published_runs.bin").read_bytes()
"""Digests of 5 bytes, one for each run of eight words of the prompts of MLflow 3.18 and 2.22: no text of them."""
TABLES = table("catalogue")
each_judge = each_case("judge", ASKING.values(), ids=ASKING)


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
        check_golden(FOLDER / "golden_catalogue.txt", "".join(map(described, catalogue().values())))

    @each_case(("folder", "judge"), [*(("golden", judge) for judge in ASKING.values()), *VARIANTS.items()])
    def test_messages_are_those_of_the_golden_file(self, folder: str, judge: Judge) -> None:
        for case, trace in CASES.items():
            path = FOLDER / folder / f"{judge.name}.{case}.txt"
            check_golden(path, written(judge, served(judge, trace)))
            if judge.decision_form is not None and path.parent == GOLDEN:
                check_golden(path.with_suffix(".questions.txt"), questions_of(judge, served(judge, trace)))

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
    def test_settings_as_they_are_by_default_change_nothing_and_unknown_ones_are_refused(self, judge: Judge) -> None:
        again = judge.configured(msgspec.to_builtins(judge.settings))
        assert (again.version, again.fixed_parts, again.metrics) == (judge.version, judge.fixed_parts, judge.metrics)
        with pytest.raises(msgspec.ValidationError, match="unknown field `pas_at`"):
            judge.configured({"pas_at": 3})

    @each_judge
    def test_the_version_changes_with_the_definition_and_one_letter_of_a_fixed_part(self, judge: Judge) -> None:
        assert len(bytes.fromhex(judge.version)) == 16
        assert replace(judge, asks="Another sentence for the catalogue?").version == judge.version
        changes: list[dict[str, object]] = [{"name": "other"}, {"fixed_parts": ("other",)}, {"scoring": "other/1"}]
        changes += [{"temperature": 0.5}, {"samples": 3}]
        changes.append({"unit": "session" if judge.unit == "trace" else "trace"})
        for change in (*changes, {"schema": {"type": "object"}}, {"settings": Other()}):
            assert replace(judge, **change).version != judge.version, change  # type: ignore[arg-type]
        warm, warmer = (replace(judge, temperature=each).version for each in (0.25, 0.5))
        assert warm != warmer
        *rest, last = judge.fixed_parts
        changed = replace(judge, fixed_parts=(*rest, f"{last}."))
        turned = replace(changed, fixed_parts=tuple(reversed(changed.fixed_parts)))
        assert len({judge.version, changed.version, turned.version}) == (3 if rest else 2)


@each_judge
def test_nothing_is_asked_without_a_needed_input(judge: Judge) -> None:
    for need in judge.needs:
        whole = served(judge, SHORT)
        if need != "context" and not (isinstance(need, str) and isinstance(getattr(whole, need), str)):
            continue
        blank = [Document(" "), "\n"] if need == "context" else " \n"
        model = ScriptedModel(["{}"])
        expected = Assessment("unscored", "missing_input", note=f"the trace has no {need}")
        changes = {str(need): blank}
        assert asyncio.run(evaluate(judge, msgspec.structs.replace(whole, **changes), model)) == expected, need
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

    @pytest.mark.parametrize(("text", "error"), TABLES["no judges"])
    def test_a_file_that_is_no_judge_is_told_in_one_line(self, folder: Path, text: str, error: str) -> None:
        self.add(folder, "polite", text)
        with pytest.raises(CatalogueError) as caught:
            catalogue.__wrapped__()
        assert str(caught.value).startswith(f"judges/catalog/polite.py: {error}")
        assert "\n" not in str(caught.value)


def test_what_has_text() -> None:
    for value in ("a", " a ", ["", "a"], [Document(" "), Document("a")], [0], 0.0, {}):
        assert has_text(value), value
    blank = ["", " \t\n\u3000", "\u200b \u2060", "\x00", "\u2800"]
    for value in (None, *blank, [], blank, Document(""), list(map(Document, blank))):
        assert not has_text(value), value


BUILTIN = table("builtin")
FAULTS = (
    *("contradictions", "missing_entries", "repeated_entries", "check_differs", "fabricated_evidence"),
    *("missing_evidence", "uncovered_sentences", "invented_sentences", "repeated_sentences"),
)
"""Details that count what in an answer contradicts itself or the material."""
LABELS = {"correctness": "correct", "groundedness": "grounded", "relevance_to_query": "relevant", "safety": "safe"}
"""The tag of the samples that says what each judge should find."""


def judged(judge: Judge, traces: list[Trace]) -> list[Assessment]:
    async def all_in_turn() -> list[Assessment]:
        return [await evaluate(judge, trace, LexicalModel()) for trace in traces]

    return asyncio.run(all_in_turn())


def guesses(judge: Judge, trace: Trace) -> list[Any]:
    """Return the heuristic answers to all requests of a judge for a trace."""
    prepared = judge.prepare(served(judge, trace))
    return [judge.heuristic(prepared, prompt) for prompt in judge.prompts(prepared)]


class TestLexicalModel:
    @each_judge
    def test_each_sample_is_scored_without_contradiction_unless_an_input_is_missing(self, judge: Judge) -> None:
        """In the form that was asked, the same for the same trace; ``test_attacks.py`` has the hostile ones."""
        # A third of the samples, another one for each judge.
        some = all_samples()[[*ASKING].index(judge.name) % 3 :: 3]
        traces = [served(judge, trace) for trace in [SHORT, LONG, *some]]
        assert judge.missing(judge.prepare(traces[0])) is None
        once: list[Any] = []
        for trace, assessment in zip(traces, judged(judge, traces), strict=True):
            if (missing := judge.missing(judge.prepare(trace))) is not None:
                assert assessment == Assessment("unscored", "missing_input", note=missing)
                continue
            assert (assessment.outcome, assessment.reason) == ("scored", None)
            # supported_share is absent where no sentence needs support, completeness where none is relevant.
            metrics = {score.metric for score in assessment.scores}
            assert {*judge.metric_names} - metrics <= {"supported_share", "completeness"}
            assert {name: assessment.details[name] for name in FAULTS if assessment.details.get(name)} == {}
            assert assessment.rationale
            assert not assessment.rationale.startswith("Let's think")
            assert {(call.status, call.response_model) for call in assessment.calls} == {("ok", "lexical")}
            once.append((trace, guesses(judge, trace)))
            for answer in once[-1][1]:
                assert isinstance(answer, str) or list(answer) == judge.schema["required"]
                if judge.name in YES_NO:
                    assert answer["result"] in {"yes", "no"}
                    assert str(answer["rationale"]).startswith("Let's think step by step. ")
        assert once == [(trace, guesses(judge, trace)) for trace, _ in reversed(once)][::-1]

    def test_the_sentence_about_facts_says_the_result(self) -> None:
        judge = catalogue()["correctness"]
        for trace in (trace for trace in all_samples() if trace.expected_facts):
            (answer,) = guesses(judge, trace)
            text = "The response is correct." if answer["result"] == "yes" else "The response is not correct."
            assert str(answer["rationale"]).endswith(text)
        (answer,) = guesses(judge, SHORT)
        assert "The response is" not in str(answer["rationale"])

    @each_case(("name", "tag"), LABELS.items())
    def test_agrees_with_the_labels_of_the_samples_above_chance(self, name: str, tag: str) -> None:
        """A bound far below what it reaches: the figure itself is printed in the documentation."""
        traces = [trace for trace in all_samples() if tag in (trace.tags or {})]
        right: dict[str, list[bool]] = {"yes": [], "no": []}
        for trace, assessment in zip(traces, judged(catalogue()[name], traces), strict=True):
            label = trace.tags[tag]
            right[label].append(assessment.scores[0].label == label)
        assert all(len(match) >= 5 for match in right.values())
        assert sum(sum(match) / len(match) for match in right.values()) / 2 >= 0.75

    def test_the_model_costs_nothing_takes_any_length_and_bears_its_label(self) -> None:
        model = LexicalModel()
        request = ChatRequest((), "j", {}, lambda: {"rationale": "„So“\n", "result": "no"})
        expected = ChatResponse('{"rationale":"„So“\\n","result":"no"}', model="lexical")
        assert asyncio.run(model.complete(request)) == expected
        assert model.settings.judge_model == "lexical"
        small = LexicalModel(ModelSettings(provider="lexical", label="words", max_input_tokens=1))
        assert small.settings.judge_model == "words"
        assert asyncio.run(evaluate(catalogue()["safety"], SHORT, small)).outcome == "scored"
        asyncio.run(model.aclose())

    def test_words_and_numbers_of_a_text(self) -> None:
        for text, words in BUILTIN["words"].items():
            assert content_words(text) == set(words), text
        for text, found in BUILTIN["numbers"].items():
            assert numbers(text) == set(found), text
        assert coverage({"a", "b", "c", "d"}, {"a", "x"}) == 0.25
        assert coverage(set(), {"a"}) == coverage(set(), set()) == 1.0
        assert coverage({"a"}, set()) == 0.0

    def test_a_failed_step_of_a_trace_counts_once_however_often_the_trace_tells_it(self) -> None:
        for fields, failed in BUILTIN["failed steps"]:
            trace = msgspec.convert({"trace_id": "1", "service": "bot", "output": "Done.", **fields}, Trace)
            guessed = guess(["trace"], trace)
            assert guessed.share == (0.0 if failed else 1.0), fields
            assert f"{failed or 'No'} step" in guessed.reason, fields


def request(text: str = "Is it so?") -> ChatRequest:
    return ChatRequest((Message("user", text),), "j", {}, dict)


def answers(model: ScriptedModel, count: int = 1) -> list[ChatResponse]:
    async def ask() -> list[ChatResponse]:
        return [await model.complete(request()) for _ in range(count)]

    return asyncio.run(ask())


class TestScriptedModel:
    def test_steps_are_followed_in_order_and_then_again(self) -> None:
        model = ScriptedModel(["a", Step("b"), lambda _: "c"])
        assert [answer.text for answer in answers(model, 7)] == ["a", "b", "c", "a", "b", "c", "a"]
        by_request = ScriptedModel([lambda asked: asked.messages[0].content.upper()])
        assert asyncio.run(by_request.complete(request("why?"))).text == "WHY?"
        assert answers(ScriptedModel([Step("four", finish_reason="length", refusal=True)])) == [
            ChatResponse("four", "length", refusal=True, input_tokens=4, output_tokens=4, model="scripted")
        ]
        calls = (ToolCall("1", "root", "{}"),)
        model = ScriptedModel([Step("Hm.", tool_calls=calls), lambda _: Step(tool_calls=calls), Step()])
        assert [(each.text, each.tool_calls) for each in answers(model, 3)] == [("Hm.", calls), ("", calls), ("", ())]
        labelled = ScriptedModel(["a"], ModelSettings(provider="scripted", model="m", label="l"))
        assert isinstance(labelled, ChatModel)
        asyncio.run(labelled.aclose())
        assert (model.settings.judge_model, labelled.settings.judge_model) == ("scripted", "l")
        assert answers(labelled)[0].model == "m"

    def test_delays_come_before_answers_and_failures_which_are_the_errors_of_their_reasons(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        monkeypatch.setattr(scripted.asyncio, "sleep", sleep)
        assert answers(ScriptedModel([Step("a", delay_s=2.5), Step("b")]), 2)[1].text == "b"
        for failure in BUILTIN["failures"]:
            with pytest.raises(ERRORS[failure], match=f"^scripted: {failure}$"):
                answers(ScriptedModel([Step("never", failure=failure, delay_s=60)]))
        assert waited == [2.5, *[60] * len(BUILTIN["failures"])]

    def test_the_last_1000_requests_are_kept_failed_ones_included(self) -> None:
        """A rehearsal may run for days."""
        model = ScriptedModel(["a", Step(failure="timeout")])
        asked = [request(str(number)) for number in range(1003)]

        async def ask_all() -> None:
            await asyncio.gather(*map(model.complete, asked), return_exceptions=True)

        asyncio.run(ask_all())
        assert model.requests == asked[3:]

    def test_a_file_holds_a_step_a_line_or_is_no_script(self, tmp_path: Path) -> None:
        path = tmp_path / "script.jsonl"
        with pytest.raises(FileNotFoundError):
            load_script(str(path))
        # JSON lets line breaks stand in a text as they are.
        path.write_text("\n".join(BUILTIN["script"]["lines"]), encoding="utf-8")
        assert json.loads(msgspec.json.encode(load_script(str(path)))) == BUILTIN["script"]["steps"]
        for content, error in BUILTIN["no scripts"].items():
            path.write_bytes(content.encode("latin-1"))
            with pytest.raises(ValueError, match=error):
                load_script(str(path))


ASKED = ("relevant", "safe", "grounded", "correct")
REFERENCE_LABELS = ("obeys", "equivalent", "same_meaning", "sufficient", "retrieved", "complete")
README = (SAMPLES / "README.md").read_text(encoding="utf-8")


def figures(traces: list[Trace]) -> list[int]:
    """Count traces, yes and no of each label, and those that are hard."""
    tags = Counter(tag for trace in traces for tag in trace.tags.items())
    return [len(traces), *(tags[name, value] for name in ASKED for value in ("yes", "no")), tags["hard", "yes"]]


class TestSamples:
    def test_each_sample_can_be_published_and_bears_its_labels_as_often_as_the_documentation_says(self) -> None:
        rows = re.findall(r"^\| `?([\w.-]+)`? \|((?: \d+(?: / \d+)? \|)+)$", README, re.MULTILINE)
        stated = {name: list(map(int, re.findall(r"\d+", row))) for name, row in rows}
        actual = {f"{service}.jsonl": figures(samples(service)) for service in SERVICES}
        assert stated == {**actual, "together": figures(all_samples())}
        assert sorted(path.stem for path in SAMPLES.glob("*.jsonl")) == sorted(SERVICES)
        for service in SERVICES:
            lines = (SAMPLES / f"{service}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            assert [set(json.loads(line)) - set(Trace.__struct_fields__) for line in lines] == [set()] * len(lines)
            assert {trace.service for trace in samples(service)} == {service}
        for trace in all_samples():
            tags = trace.tags
            assert {"relevant", "safe", "labelled_by"} <= set(tags) <= {*ASKED, "hard", "sample", "labelled_by"}
            assert {tags[name] for name in ASKED if name in tags} <= {"yes", "no"}
            assert tags.get("hard", "yes") == "yes"
            assert ("grounded" in tags) == has_text(trace.context)
            assert ("correct" in tags) == (has_text(trace.expected_response) or has_text(trace.expected_facts))
            assert (trace.started_at, trace.ended_at) == (None, None)

    def test_ids_are_unique_and_of_the_w3c_form(self) -> None:
        traces = [*all_samples(), *references()]
        for digits, ids in (
            (32, [trace.trace_id for trace in traces]),
            (16, [trace.id for trace in traces]),
            (16, [trace.span_id for trace in all_samples()]),
        ):
            assert len(set(ids)) == len(ids)
            assert all(re.fullmatch(f"[0-9a-f]{{{digits}}}", match) for match in ids)
        assert len({trace.tags["sample"] for trace in traces}) == len(traces)

    def test_each_reference_brings_everything_that_a_judge_may_compare_with(self) -> None:
        assert len(references()) == 20
        for trace in references():
            assert all(map(has_text, (trace.input, trace.output, trace.context, trace.expected_response)))
            assert has_text(trace.guidelines)
            tags, labels = trace.tags, {*REFERENCE_LABELS, "relevant", "grounded", "correct"}
            assert tags.keys() == {*labels, "sample", "labelled_by"}
            assert {tags[name] for name in labels} <= {"yes", "no"}
            # What means the same in the same form means the same.
            assert (tags["equivalent"], tags["same_meaning"]) != ("yes", "no")
        counts = Counter(tag for trace in references() for tag in trace.tags.items())
        for name in REFERENCE_LABELS:
            row = re.search(rf"^\| `{name}` \| .* \| (\d+) / (\d+) \|$", README, re.MULTILINE)
            assert (int(row[1]), int(row[2])) == (counts[name, "yes"], counts[name, "no"]), name

    def test_two_pages_state_the_same_figure_of_the_lexical_model(self) -> None:
        """It is measured on data outside of this repository."""
        pages = SAMPLES.parents[1]
        row = re.search(
            r"\| `groundedness` \| `groundedness` \| (0\.\d+) \|\n",
            (pages / "docs/several-models.md").read_text("utf-8"),
        )
        assert f"balanced accuracy of {row[1]}" in " ".join((pages / "README.md").read_text("utf-8").split())
