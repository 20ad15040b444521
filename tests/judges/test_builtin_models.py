"""The built-in models and the samples: word overlap answers every judge, scripts answer by steps."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from judge_traces import ASKING, ERRORS, HOSTILE, LONG, SAMPLES, SHORT, YES_NO, all_samples, filled, references, served
from support.cases import each_case
from tables import table

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, has_text
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelSettings
from judges.core.prompt import Message, ToolCall
from judges.core.verdict import Assessment
from judges.custom.variables import guess
from judges.models import scripted
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step, load_script
from judges.parsing.sentences import content_words, coverage, numbers
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("builtin")
LABELS = {"correctness": "correct", "groundedness": "grounded", "relevance_to_query": "relevant", "safety": "safe"}
"""The tag of the samples that says what each judge should find."""
every_judge = each_case("judge", ASKING.values(), ids=ASKING)


def judged(judge: Judge, traces: list[Trace]) -> list[Assessment]:
    async def all_in_turn() -> list[Assessment]:
        return [await evaluate(judge, trace, LexicalModel()) for trace in traces]

    return asyncio.run(all_in_turn())


def guesses(judge: Judge, trace: Trace) -> list[Any]:
    """Return the heuristic answers to all requests of a judge for a trace."""
    prepared = judge.prepare(served(judge, trace))
    return [judge.heuristic(prepared, prompt) for prompt in judge.prompts(prepared)]


class TestLexicalModel:
    @every_judge
    def test_each_sample_is_scored_unless_an_input_is_missing(self, judge: Judge) -> None:
        traces = [served(judge, trace) for trace in [SHORT, LONG, *all_samples()]]
        assert judge.missing(judge.prepare(traces[0])) is None
        for trace, assessment in zip(traces, judged(judge, traces), strict=True):
            if (missing := judge.missing(judge.prepare(trace))) is not None:
                assert assessment == Assessment("unscored", "missing_input", note=missing)
                continue
            assert (assessment.outcome, assessment.reason) == ("scored", None)
            # supported_share is absent where no sentence needs support, completeness where none is relevant.
            metrics = {score.metric for score in assessment.scores}
            assert {*judge.metric_names} - metrics <= {"supported_share", "completeness"}
            assert assessment.rationale
            assert not assessment.rationale.startswith("Let's think")
            assert {(call.status, call.response_model) for call in assessment.calls} == {("ok", "lexical")}

    @every_judge
    def test_answers_in_the_form_that_was_asked_the_same_for_the_same_trace(self, judge: Judge) -> None:
        for trace in [SHORT, LONG, *(trace for text in HOSTILE.values() for trace in filled(text))]:
            for answer in guesses(judge, trace):
                judge.read(answer if isinstance(answer, str) else json.dumps(answer))
                assert isinstance(answer, str) or list(answer) == judge.schema["required"]
        traces = [trace for trace in all_samples() if judge.missing(judge.prepare(trace)) is None]
        once = [guesses(judge, trace) for trace in traces]
        assert once == [guesses(judge, trace) for trace in reversed(traces)][::-1]

    def test_answers_yes_or_no_with_the_sentences_that_are_asked_for(self) -> None:
        for judge in YES_NO.values():
            for trace in [SHORT, LONG, *all_samples()]:
                (answer,) = guesses(judge, trace)
                assert answer["result"] in {"yes", "no"}
                assert str(answer["rationale"]).startswith("Let's think step by step. ")
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
        for text, words in TABLES["words"].items():
            assert content_words(text) == set(words), text
        for text, found in TABLES["numbers"].items():
            assert numbers(text) == set(found), text
        assert coverage({"a", "b", "c", "d"}, {"a", "x"}) == 0.25
        assert coverage(set(), {"a"}) == coverage(set(), set()) == 1.0
        assert coverage({"a"}, set()) == 0.0

    def test_a_failed_step_of_a_trace_counts_once_however_often_the_trace_tells_it(self) -> None:
        for fields, failed in TABLES["failed steps"]:
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
        assert answers(ScriptedModel([Step()]))[0].text == ""
        calls = (ToolCall("1", "root", "{}"),)
        model = ScriptedModel([Step("Hm.", tool_calls=calls), lambda _: Step(tool_calls=calls)])
        assert [(each.text, each.tool_calls) for each in answers(model, 2)] == [("Hm.", calls), ("", calls)]

    def test_a_delay_is_waited_for_before_answer_and_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        monkeypatch.setattr(scripted.asyncio, "sleep", sleep)
        model = ScriptedModel([Step("a", delay_s=2.5), Step("b"), Step(delay_s=60, failure="timeout")])
        assert [answer.text for answer in answers(model, 2)] == ["a", "b"]
        with pytest.raises(ERRORS["timeout"]):
            answers(model)
        assert waited == [2.5, 60]

    def test_a_failure_is_the_error_with_that_reason(self) -> None:
        for failure in TABLES["failures"]:
            with pytest.raises(ERRORS[failure], match=f"^scripted: {failure}$"):
                answers(ScriptedModel([Step("never", failure=failure)]))

    def test_the_last_1000_requests_are_kept_failed_ones_included(self) -> None:
        """A rehearsal may run for days."""
        model = ScriptedModel(["a", Step(failure="timeout")])
        asked = [request(str(number)) for number in range(1003)]

        async def ask_all() -> None:
            await asyncio.gather(*map(model.complete, asked), return_exceptions=True)

        asyncio.run(ask_all())
        assert model.requests == asked[3:]

    def test_the_scripted_model_is_a_chat_model_that_bears_the_name_of_its_settings(self) -> None:
        model = ScriptedModel(["a"], ModelSettings(provider="scripted", model="m", label="l"))
        assert isinstance(model, ChatModel)
        asyncio.run(model.aclose())
        assert (ScriptedModel(["a"]).settings.judge_model, model.settings.judge_model) == ("scripted", "l")
        assert answers(model)[0].model == "m"

    def test_a_file_holds_a_step_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "script.jsonl"
        path.write_text(
            '{"text": "a"}\n'
            "\n"
            '  {"text": "„b“", "delay_s": 0.5, "finish_reason": "length", "refusal": true}  \r\n'
            '{"failure": "rate_limited"}\n'
            '{"tool_calls": [{"name": "root"}, {"name": "span", "arguments": {"id": "ä", "n": 1}, "id": "mine"}]}\n'
            '{"text": "Hm.", "tool_calls": [{"name": "span", "arguments": "{\\"id\\": "}]}\n'
            # JSON lets these line breaks stand in a text as they are.
            '{"text": "a\u2028b\u2029c\x85d"}\n'
            "{}",
            encoding="utf-8",
        )
        assert load_script(str(path)) == [
            Step("a"),
            Step("„b“", 0.5, None, "length", refusal=True),
            Step(failure="rate_limited"),
            Step(tool_calls=(ToolCall("call00000", "root", "{}"), ToolCall("mine", "span", '{"id":"ä","n":1}'))),
            Step("Hm.", tool_calls=(ToolCall("call00002", "span", '{"id": '),)),
            Step("a\u2028b\u2029c\x85d"),
            Step(),
        ]

    def test_what_is_no_script_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "script.jsonl"
        with pytest.raises(FileNotFoundError):
            load_script(str(path))
        for content, error in TABLES["no scripts"].items():
            path.write_bytes(content.encode("latin-1"))
            with pytest.raises(ValueError, match=error):
                load_script(str(path))


ASKED = ("relevant", "safe", "grounded", "correct")
# By service: traces, then yes and no of each label, then how many are hard.
COUNTS = TABLES["counts"]
REFERENCE_LABELS = ("obeys", "equivalent", "same_meaning", "sufficient", "retrieved", "complete")


def counted(traces: list[Trace]) -> list[Any]:
    tags = Counter(tag for trace in traces for tag in trace.tags.items())
    return [len(traces), *([tags[name, "yes"], tags[name, "no"]] for name in ASKED), tags["hard", "yes"]]


class TestSamples:
    def test_each_sample_can_be_published_and_bears_its_labels(self) -> None:
        assert sorted(path.stem for path in SAMPLES.glob("*.jsonl")) == sorted(COUNTS)
        for service in COUNTS:
            lines = (SAMPLES / f"{service}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            assert [set(json.loads(line)) - set(Trace.__struct_fields__) for line in lines] == [set()] * len(lines)
            traces = [msgspec.json.decode(line, type=Trace) for line in lines]
            assert {trace.service for trace in traces} == {service}
            assert counted(traces) == COUNTS[service]
        for trace in all_samples():
            tags = trace.tags
            assert {"relevant", "safe", "labelled_by"} <= set(tags) <= {*ASKED, "hard", "sample", "labelled_by"}
            assert {tags[name] for name in ASKED if name in tags} <= {"yes", "no"}
            assert tags.get("hard", "yes") == "yes"
            assert ("grounded" in tags) == has_text(trace.context)
            assert ("correct" in tags) == (has_text(trace.expected_response) or has_text(trace.expected_facts))
            assert (trace.started_at, trace.ended_at) == (None, None)

    def test_ids_are_unique_and_of_the_w3c_form(self) -> None:
        for name in ("trace_id", "span_id", "id"):
            ids = [getattr(trace, name) for trace in all_samples()]
            assert len(set(ids)) == len(ids)
            assert all(re.fullmatch("[0-9a-f]{32}" if name == "trace_id" else "[0-9a-f]{16}", match) for match in ids)
        traces = [*all_samples(), *references()]
        assert len({trace.trace_id for trace in traces}) == len({trace.id for trace in traces}) == len(traces)
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

    def test_the_documentation_states_the_same_figures(self) -> None:
        readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
        rows = dict(re.findall(r"^\| `?([\w.-]+)`? \|((?: \d+(?: / \d+)? \|)+)$", readme, re.MULTILINE))
        read = {name.removesuffix(".jsonl"): tuple(map(int, re.findall(r"\d+", row))) for name, row in rows.items()}
        assert read == {
            name: (count, *relevant, *safe, *grounded, *correct, hard)
            for name, (count, relevant, safe, grounded, correct, hard) in {
                **COUNTS,
                "together": counted(all_samples()),
            }.items()
        }
        tags = Counter(tag for trace in references() for tag in trace.tags.items())
        for name in REFERENCE_LABELS:
            row = re.search(rf"^\| `{name}` \| .* \| (\d+) / (\d+) \|$", readme, re.MULTILINE)
            assert (int(row[1]), int(row[2])) == (tags[name, "yes"], tags[name, "no"])
        # The lexical model's figure is measured on data outside of this repository: nothing here can measure it anew.
        pages = SAMPLES.parents[1]
        several = (pages / "docs" / "several-models.md").read_text("utf-8")
        row = re.search(r"^\| `groundedness` \| `groundedness` \| (0\.\d+) \|$", several, re.MULTILINE)
        assert f"balanced accuracy of {row[1]}" in " ".join((pages / "README.md").read_text("utf-8").split())
