"""Classifiers in the worker: folders of ONNX models, what is wrong with them, and their answers."""

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from model_client import Client
from support.cases import each_case
from tiny_classifier import PAIR, PLAIN, logistic, model, write_folder

from judges.core.decision import Calibration, Decision, Question
from judges.core.judge import DecisionForm, Judge, Reading
from judges.core.model import ChatModel, ChatRequest, ModelSettings
from judges.core.prompt import Prompt
from judges.core.verdict import Score
from judges.models.registry import ModelSettingsError, build, decides
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.doctor.http_endpoints import ask, endpoint

NLI = 'task = "nli"\nlabels = ["contradiction", "entailment", "neutral"]\nmax_tokens = 64\n'
EACH_WORD = 'task = "token"\nlabels = ["fine", "bad"]\nsupport = "fine"\nmax_tokens = 64\n'
SINGLE = 'task = "pair"\nlabels = ["supported"]\nsupport = "supported"\nmax_tokens = 64\n'
LONG = " ".join(PLAIN * 10)  # 200 tokens


def settings(folder: Path, **fields: object) -> ModelSettings:
    expected = {"provider": "classifier", "backend": "onnx", "model": "tiny", "path": str(folder), **fields}
    return msgspec.convert(expected, ModelSettings)


def opened(folder: Path, **fields: object) -> ChatModel:
    return build(settings(folder, **fields), {})


def asked(*pairs: tuple[str, str] | None) -> ChatRequest:
    questions = tuple(Question("predicate", "The claim is supported.", pair=pair) for pair in pairs)
    return ChatRequest((), "j", {}, dict, questions=questions)


def probability(folder: Path, evidence: str, claim: str) -> float:
    (decision,) = Client(opened(folder)).ask(asked((evidence, claim))).decisions
    assert decision.problem is None
    return decision.probability


def refusal(folder: Path) -> str:
    with pytest.raises(ModelSettingsError) as caught:
        opened(folder)
    return str(caught.value)


class TestAnswers:
    def test_reads_the_label_of_support_of_each_task(self, tmp_path: Path) -> None:
        pair = write_folder(tmp_path / "pair")
        assert probability(pair, "w1 confirmed", "w2") == pytest.approx(logistic(2))
        assert probability(pair, "w1", "w2") == pytest.approx(logistic(-2))
        nli = write_folder(tmp_path / "nli", NLI, model(3, 1))
        assert probability(nli, "confirmed", "w2") == pytest.approx(math.exp(2) / (math.exp(2) + 2))
        single = write_folder(tmp_path / "single", SINGLE, model(1, 0))
        assert probability(single, "confirmed", "w2") == pytest.approx(logistic(2))
        # HHEM is exported with results for each token, and classifies by the first, here [CLS].
        first = write_folder(tmp_path / "first", PAIR, model(2, 1, by_token=True))
        assert probability(first, "confirmed", "w2") == pytest.approx(0.5)

    def test_takes_the_least_supported_token_of_the_claim_alone(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "token", EACH_WORD, model(2, 0, by_token=True))
        assert probability(folder, "wrong wrong", "w1 confirmed") == pytest.approx(0.5)
        assert probability(folder, "confirmed", "confirmed wrong w1") == pytest.approx(logistic(-8))

    def test_divides_long_evidence_and_takes_its_best_chunk(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "pair")
        for evidence in (f"{LONG} confirmed", f"confirmed {LONG}", f"{LONG} confirmed {LONG}"):
            # One chunk with the word: in two that overlap, each has it once.
            assert probability(folder, evidence, "w1") == pytest.approx(logistic(2)), evidence[:20]
        assert probability(folder, LONG, "w1") == pytest.approx(logistic(-2))
        response = Client(opened(folder)).ask(asked((LONG, "w1")))
        assert response.input_tokens > 200
        assert response.model == "tiny"

    def test_divides_a_claim_where_asked_and_takes_its_least_sentence(self, tmp_path: Path) -> None:
        claim = "The w1 is confirmed confirmed. The w2 is wrong."
        whole = probability(write_folder(tmp_path / "whole"), "w3", claim)
        divided = probability(write_folder(tmp_path / "divided", f"{PAIR}sentences = true\n"), "w3", claim)
        assert whole == pytest.approx(logistic(-2))
        assert divided == pytest.approx(logistic(-10))

    def test_answers_many_questions_in_their_order(self, tmp_path: Path) -> None:
        evidence = [f"{'w1 ' * (number % 7)}{'confirmed' if number % 3 == 0 else 'w2'}" for number in range(100)]
        response = Client(opened(write_folder(tmp_path / "pair"))).ask(asked(*((each, "w1") for each in evidence)))
        expected = [logistic(2) if number % 3 == 0 else logistic(-2) for number in range(100)]
        assert [each.probability for each in response.decisions] == pytest.approx(expected)

    def test_a_template_is_filled_in_one_pass_and_special_tokens_of_the_material_are_none(self, tmp_path: Path) -> None:
        text = f'{PAIR}text = "{{evidence}} [SEP] confirmed {{claim}}"\n'
        folder = write_folder(tmp_path / "pair", text)
        assert probability(folder, "{claim} w1", "w2") == pytest.approx(logistic(2))
        # A planted [CLS] would lower the probability.
        assert probability(folder, "[CLS] [CLS] w1", "w2") == pytest.approx(logistic(2))

    def test_an_answer_that_is_no_number_is_unusable_for_its_question_alone(self, tmp_path: Path) -> None:
        model = opened(write_folder(tmp_path / "pair"))
        response = Client(model).ask(asked(("w1 broken", "w2"), (f"broken {LONG} confirmed", "w2"), ("w1", "w2")))
        assert [each.problem for each in response.decisions] == ["out_of_range", "out_of_range", None]

    def test_refuses_what_it_cannot_answer(self, tmp_path: Path) -> None:
        client = Client(opened(write_folder(tmp_path / "pair")))
        assert client.fails(asked(None)).reason == "bad_request"
        assert decides(client.model.settings)
        too_long = Client(opened(tmp_path / "pair")).fails(asked((LONG, LONG)))
        assert (too_long.reason, "no room for evidence" in str(too_long)) == ("input_too_long", True)


class TestLoop:
    def test_the_event_loop_goes_on_and_a_request_out_of_time_ends(self, tmp_path: Path) -> None:
        model = opened(write_folder(tmp_path / "pair"), timeout_s=0.2)
        entered, release = threading.Event(), threading.Event()
        seen: list[bool] = []

        def blocked(_questions: object, is_cancelled: object) -> None:
            entered.set()
            release.wait(10)
            seen.append(is_cancelled())  # type: ignore[operator]
            raise RuntimeError("late")

        model._classifier.answer = blocked  # type: ignore[attr-defined]
        started = time.monotonic()
        error = Client(model).fails(asked(("w1", "w2")))
        assert error.reason == "timeout"
        assert entered.is_set()
        assert time.monotonic() - started < 5
        release.set()
        model._thread.shutdown()  # type: ignore[attr-defined]
        assert seen == [True]

    def test_concurrent_requests_are_all_answered(self, tmp_path: Path) -> None:
        responses = Client(opened(write_folder(tmp_path / "pair"))).ask_often(20, asked(("confirmed", "w2")))
        assert {round(each.decisions[0].probability, 6) for each in responses} == {round(logistic(2), 6)}


class TestFolders:
    @each_case("name", ["judge.toml", "model.onnx", "tokenizer.json"])
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        folder = write_folder(tmp_path / "whole")
        (folder / name).unlink()
        assert f"path: {folder} has no {name}; " in refusal(folder)

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        assert "is not a folder; name the folder that holds judge.toml" in refusal(tmp_path / "none")

    @each_case(
        ("description", "words"),
        [
            ('task = "other"\nlabels = ["a"]\nmax_tokens = 64', "judge.toml: Invalid enum value 'other'"),
            (PAIR + "chunks = 3\n", "unknown field `chunks`"),
            (PAIR.replace('"yes"]', '"no"]'), "labels: must name each output of the model once"),
            (PAIR.replace('support = "yes"\n', ""), "support: must be one of the labels, no, yes"),
            (NLI.replace("entailment", "ENTAILMENT"), "support: must be one of the labels"),
            (PAIR.replace("64", "8"), "max_tokens: must be at least 32"),
            (PAIR + "overlap = 40\n", "overlap: must be from 0 to half of max_tokens"),
            (PAIR + 'text = "all"\n', "text: must contain {evidence}"),
            (PAIR + 'text_pair = "all"\n', "text or text_pair {claim}"),
            (EACH_WORD + 'text_pair = "so: {claim}"\n', 'text_pair: must be "{claim}" for the task token'),
            (PAIR.replace('"no", ', ""), "labels: are 1, but the model's output is 1 x 2; name them all"),
            (PAIR.replace("pair", "token"), "task: the model has no result for each token; set nli or pair"),
        ],
    )
    def test_a_description_that_cannot_serve(self, tmp_path: Path, description: str, words: str) -> None:
        folder = write_folder(tmp_path / "whole", description)
        assert words in (message := refusal(folder)), message
        assert str(folder / "judge.toml") in message

    def test_labels_in_another_order_than_the_models_are_refused(self, tmp_path: Path) -> None:
        config = '{"id2label": {"1": "no", "0": "yes"}}'
        message = refusal(write_folder(tmp_path / "whole", config=config))
        assert message.endswith("labels: are not the model's; write them as in config.json: yes, no")
        opened(write_folder(tmp_path / "right", config='{"id2label": {"0": "no", "1": "yes"}}'))

    def test_files_that_are_no_models(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "whole")
        (folder / "model.onnx").write_bytes(b"none")
        assert f"{folder / 'model.onnx'} cannot be loaded" in refusal(folder)
        (folder / "tokenizer.json").write_text("{}")
        assert f"{folder / 'tokenizer.json'} cannot be read" in refusal(folder)

    def test_a_model_with_a_decoder_is_refused(self, tmp_path: Path) -> None:
        made = model(2, 1, inputs=("input_ids", "attention_mask", "decoder_input_ids"))
        message = refusal(write_folder(tmp_path / "whole", PAIR, made))
        assert "needs the input decoder_input_ids; export the model for classification" in message

    @each_case(
        ("fields", "words"),
        [
            ({"backend": None}, "backend: is missing"),
            ({"path": None}, "path: is missing; name the folder with judge.toml"),
            ({"model": None}, "model: is missing; name the model as verdicts and metrics should show it"),
            ({"base_url": "http://h/predict"}, 'base_url: goes with backend = "http" alone; take it out'),
            ({"provider": "openai", "base_url": "http://h/v1"}, "backend: goes with the provider classifier alone"),
        ],
    )
    def test_settings_that_cannot_serve(self, tmp_path: Path, fields: dict[str, object], words: str) -> None:
        with pytest.raises(ModelSettingsError) as caught:
            opened(tmp_path, **fields)
        assert words in str(caught.value)


class TestUse:
    def test_doctor_loads_the_folder_and_asks(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "whole")
        (assessment,) = endpoint("tiny", settings(folder), {})
        assert assessment.result == "ok"
        (assessment,) = ask("tiny", settings(folder), {})
        assert assessment.result == "ok"
        (folder / "model.onnx").unlink()
        (assessment,) = endpoint("tiny", settings(folder), {})
        assert assessment.result == "broken"
        assert "has no model.onnx" in f"{assessment.what} {assessment.fix}"

    def test_a_judge_is_scored(self, tmp_path: Path) -> None:
        def score(_trace: Trace, answered: object, calibrations: dict[str, Calibration]) -> Reading:
            decision: Decision = answered[0].answer[0]  # type: ignore[index]
            passed = calibrations.get("groundedness", Calibration()).passes(decision.probability)
            return Reading((Score("groundedness", float(passed), passed=passed, probability=decision.probability),))

        def prompts(trace: Trace) -> tuple[Prompt, ...]:
            pair = (str(trace.context[0]), trace.output)
            return (Prompt("", (), questions=(Question("predicate", "It is supported.", pair=pair),)),)

        judge: Judge = replace(
            catalogue()["groundedness"], decision_form=DecisionForm(prompts, ("",), score, "1", has_pairs=True)
        ).for_decisions({})
        for context, passed in (("w1 confirmed", True), ("w1", False)):
            trace = Trace(trace_id="t", service="s", name="t", input="w2", output="w3", context=[context])
            assessment = Client(opened(write_folder(tmp_path / "whole"))).judge(judge, trace)
            assert (assessment.outcome, assessment.scores[0].passed) == ("scored", passed), assessment
            assert assessment.calls[0].input_tokens == len(context.split()) + 4
