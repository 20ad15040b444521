"""Classifiers in the worker and behind servers: folders, answers of a tiny model, and every way in which they fail.

The tiny model is computed exactly: each word adds its row of ``WORDS`` to the logits. The other words add nothing.
"""

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from aiohttp import web
from judge_traces import table
from model_client import Client
from onnx import TensorProto, helper, numpy_helper
from support.cases import each_case
from support.loopback import LoopbackServer

from judges.core.decision import Calibration, Decision, Question
from judges.core.judge import DecisionForm, Judge, Reading
from judges.core.model import ChatRequest, ModelError, ModelSettings, ModelTimeoutError
from judges.core.prompt import Prompt
from judges.core.verdict import Score
from judges.models.pairs import Description, lay_out
from judges.models.registry import ModelSettingsError, build, decides
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.doctor.http_endpoints import ask, endpoint

TABLES = table("classifiers")
# The words of the model, by spaces, and as in files of trained models that say so a truncation to 16 tokens: a
# classifier that obeyed it would judge the beginning of its evidence alone.
TOKENIZER = table("tiny_tokenizer")
PLAIN = tuple(f"w{number}" for number in range(20))
WORDS = {"confirmed": 4.0, "wrong": -8.0, "broken": math.nan, "[CLS]": -2.0}
LONG = " ".join(PLAIN * 10)  # 200 tokens
PAIR = 'task = "pair"\nlabels = ["no", "yes"]\nsupport = "yes"\nmax_tokens = 64\n'
NLI = 'task = "nli"\nlabels = ["contradiction", "entailment", "neutral"]\nmax_tokens = 64\n'
TWO = NLI.replace('"contradiction", ', "")
EACH_WORD = 'task = "token"\nlabels = ["fine", "bad"]\nsupport = "fine"\nmax_tokens = 64\n'
SINGLE = 'task = "pair"\nlabels = ["supported"]\nsupport = "supported"\nmax_tokens = 64\n'
KEY = "s3cret-key-of-the-test"


def model(labels: int, supported: int, *, by_token: bool = False, inputs: Sequence[str] = ()) -> onnx.ModelProto:
    vocabulary = TOKENIZER["model"]["vocab"]
    table = np.zeros((len(vocabulary), labels), np.float32)
    for word, weight in WORDS.items():
        table[vocabulary[word], supported] = 0.0 if by_token and word == "[CLS]" else weight
    # Padding would add a large number, were it not masked.
    table[vocabulary["[PAD]"]] = 100.0
    names = inputs or ("input_ids", "attention_mask")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["masked"]),
        helper.make_node("Identity", ["masked"], ["logits"])
        if by_token
        else helper.make_node("ReduceSum", ["masked", "axis"], ["logits"], keepdims=0),
    ]
    constants = {"table": table, "last": np.array([2]), "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_folder(folder: Path, description: str = PAIR, made: onnx.ModelProto | None = None, **others: str) -> Path:
    """Write a folder that is whole; ``others`` are further files by their names without `.json`."""
    folder.mkdir(exist_ok=True)
    (folder / "judge.toml").write_text(description)
    (folder / "model.onnx").write_bytes((made or model(2, 1)).SerializeToString())
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    for name, text in others.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def settings(folder: Path, **fields: object) -> ModelSettings:
    local = {"provider": "classifier", "backend": "onnx", "model": "tiny", "path": str(folder)}
    return msgspec.convert({**local, **fields}, ModelSettings)


def opened(folder: Path, **fields: object) -> Client:
    return Client(build(settings(folder, **fields), {"KEY": KEY}))


def asked(*pairs: tuple[str, str] | None) -> ChatRequest:
    questions = tuple(Question("predicate", "The claim is supported.", pair=pair) for pair in pairs)
    return ChatRequest((), "j", {}, dict, questions=questions)


def numbered(count: int) -> ChatRequest:
    return asked(*((f"{number}", "c") for number in range(count)))


def probability(folder: Path, evidence: str, claim: str) -> float:
    (decision,) = opened(folder).ask(asked((evidence, claim))).decisions
    assert decision.problem is None
    return decision.probability


def refusal(folder: Path, **fields: object) -> str:
    with pytest.raises(ModelSettingsError) as caught:
        opened(folder, **fields)
    return str(caught.value)


class TestOnnx:
    def test_the_label_of_support_of_each_task_is_read(self, tmp_path: Path) -> None:
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
        # The least supported token of the claim alone.
        token = write_folder(tmp_path / "token", EACH_WORD, model(2, 0, by_token=True))
        assert probability(token, "wrong wrong", "w1 confirmed") == pytest.approx(0.5)
        assert probability(token, "confirmed", "confirmed wrong w1") == pytest.approx(logistic(-8))

    def test_long_evidence_is_divided_and_its_best_chunk_counts_and_claims_where_asked(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "pair")
        for evidence in (f"{LONG} confirmed", f"confirmed {LONG}", f"{LONG} confirmed {LONG}"):
            # One chunk with the word: in two that overlap, each has it once.
            assert probability(folder, evidence, "w1") == pytest.approx(logistic(2)), evidence[:20]
        assert probability(folder, LONG, "w1") == pytest.approx(logistic(-2))
        response = opened(folder).ask(asked((LONG, "w1")))
        assert (response.input_tokens > 200, response.model) == (True, "tiny")
        claim = "The w1 is confirmed confirmed. The w2 is wrong."
        assert probability(folder, "w3", claim) == pytest.approx(logistic(-2))
        divided = write_folder(tmp_path / "divided", f"{PAIR}sentences = true\n")
        assert probability(divided, "w3", claim) == pytest.approx(logistic(-10)), "the least sentence"

    def test_chunks_end_where_words_end_in_their_last_quarter(self) -> None:
        """Each letter is a token, and the second word has no end in the last quarter of its chunk."""
        words = ["w" * (1 + number % 9) for number in range(40)]
        evidence = " ".join([words[0], "v" * 60, *words[1:]])
        description = Description("pair", ("yes",), 41, "yes", overlap=4)
        question = Question("predicate", "Is it supported?", pair=(evidence, "c"))

        def letters(text: str) -> list[tuple[int, int]]:
            return [found.span() for found in re.finditer(r"\w", text)]

        chunks = [each.text for each in lay_out(description, [question], letters, spare=0).inputs]
        tokens, first = letters(evidence), 0
        for number, chunk in enumerate(chunks[:-1]):
            size = len(letters(chunk))
            assert evidence.startswith(chunk, tokens[first][0]), number
            assert size == 40 if number == 0 else chunk.endswith(" "), number
            assert 30 < size <= 40, number
            first += size - 4
        assert evidence.endswith(chunks[-1])
        assert len(letters(chunks[-1])) == len(tokens) - first

    def test_many_questions_and_requests_are_answered_in_order(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "pair")
        evidence = [f"{'w1 ' * (number % 7)}{'confirmed' if number % 3 == 0 else 'w2'}" for number in range(100)]
        response = opened(folder).ask(asked(*((each, "w1") for each in evidence)))
        expected = [logistic(2) if number % 3 == 0 else logistic(-2) for number in range(100)]
        assert [each.probability for each in response.decisions] == pytest.approx(expected)
        responses = opened(folder).ask_often(20, asked(("confirmed", "w2")))
        assert {round(each.decisions[0].probability, 6) for each in responses} == {round(logistic(2), 6)}

    def test_a_template_is_filled_in_one_pass_and_special_tokens_of_the_material_are_none(self, tmp_path: Path) -> None:
        text = f'{PAIR}text = "{{evidence}} [SEP] confirmed {{claim}}"\n'
        folder = write_folder(tmp_path / "pair", text)
        assert probability(folder, "{claim} w1", "w2") == pytest.approx(logistic(2))
        # A planted [CLS] would lower the probability.
        assert probability(folder, "[CLS] [CLS] w1", "w2") == pytest.approx(logistic(2))

    def test_what_cannot_be_answered_is_unusable_or_refused(self, tmp_path: Path) -> None:
        client = opened(write_folder(tmp_path / "pair"))
        response = client.ask(asked(("w1 broken", "w2"), (f"broken {LONG} confirmed", "w2"), ("w1", "w2")))
        assert [each.problem for each in response.decisions] == ["out_of_range", "out_of_range", None]
        assert opened(tmp_path / "pair").fails(asked(None)).reason == "bad_request"
        assert decides(client.model.settings)
        too_long = opened(tmp_path / "pair").fails(asked((LONG, LONG)))
        assert (too_long.reason, "no room for evidence" in str(too_long)) == ("input_too_long", True)

    def test_the_event_loop_goes_on_and_a_request_out_of_time_ends(self, tmp_path: Path) -> None:
        client = opened(write_folder(tmp_path / "pair"), timeout_s=0.2)
        entered, release = threading.Event(), threading.Event()
        seen: list[bool] = []

        def blocked(_questions: object, is_cancelled: Callable[[], bool]) -> None:
            entered.set()
            release.wait(10)
            seen.append(is_cancelled())
            raise RuntimeError("late")

        client.model._classifier.answer = blocked  # no model of a few words takes so long
        started = time.monotonic()
        assert client.fails(asked(("w1", "w2"))).reason == "timeout"
        assert entered.is_set()
        assert time.monotonic() - started < 5
        release.set()
        client.model._thread.shutdown()  # to see what the abandoned thread was told
        assert seen == [True]

    def test_missing_and_broken_files_of_a_folder_are_named(self, tmp_path: Path) -> None:
        for name in ("judge.toml", "model.onnx", "tokenizer.json"):
            folder = write_folder(tmp_path / name)
            (folder / name).unlink()
            assert f"path: {folder} has no {name}; " in refusal(folder)
        assert "is not a folder; name the folder that holds judge.toml" in refusal(tmp_path / "none")
        folder = write_folder(tmp_path / "whole")
        (folder / "model.onnx").write_bytes(b"none")
        assert f"{folder / 'model.onnx'} cannot be loaded" in refusal(folder)
        (folder / "tokenizer.json").write_text("{}")
        assert f"{folder / 'tokenizer.json'} cannot be read" in refusal(folder)
        message = refusal(write_folder(tmp_path / "other", config='{"id2label": {"1": "no", "0": "yes"}}'))
        assert message.endswith("labels: are not the model's; write them as in config.json: yes, no")
        opened(write_folder(tmp_path / "right", config='{"id2label": {"0": "no", "1": "yes"}}'))
        made = model(2, 1, inputs=("input_ids", "attention_mask", "decoder_input_ids"))
        message = refusal(write_folder(tmp_path / "decoder", PAIR, made))
        assert "needs the input decoder_input_ids; export the model for classification" in message

    @each_case(("description", "words"), TABLES["descriptions"])
    def test_a_description_that_cannot_serve_is_refused(self, tmp_path: Path, description: str, words: str) -> None:
        folder = write_folder(tmp_path / "whole", description)
        assert words in (message := refusal(folder)), message
        assert str(folder / "judge.toml") in message

    def test_settings_that_cannot_serve_are_refused(self, tmp_path: Path) -> None:
        for fields, words in TABLES["settings"]:
            assert words in refusal(tmp_path, **fields), words
        token = TWO.replace("nli", "token") + 'support = "neutral"\n'
        for description, path, words in (
            (TWO, "/v1", "base_url: must be the address of the requests; end it with /predict"),
            (TWO, "/classify", "/classify reads single texts, and judge.toml describes pairs"),
            (token, "/predict", "goes with the backend onnx alone"),
        ):
            (tmp_path / "judge.toml").write_text(description)
            assert words in refusal(tmp_path, backend="http", base_url=f"http://h{path}"), words

    def test_doctor_loads_the_folder_and_asks_and_a_judge_is_scored(self, tmp_path: Path) -> None:
        def score(_trace: Trace, answered: Any, calibrations: dict[str, Calibration]) -> Reading:
            decision: Decision = answered[0].answer[0]
            passed = calibrations.get("groundedness", Calibration()).passes(decision.probability)
            return Reading((Score("groundedness", float(passed), passed=passed, probability=decision.probability),))

        def prompts(trace: Trace) -> tuple[Prompt, ...]:
            pair = (str(trace.context[0]), trace.output)
            return (Prompt("", (), questions=(Question("predicate", "It is supported.", pair=pair),)),)

        form = DecisionForm(prompts, ("",), score, "1", has_pairs=True)
        judge: Judge = replace(catalogue()["groundedness"], decision_form=form).for_decisions({})
        folder = write_folder(tmp_path / "whole")
        for context, passed in (("w1 confirmed", True), ("w1", False)):
            trace = Trace(trace_id="t", service="s", name="t", input="w2", output="w3", context=[context])
            assessment = opened(folder).judge(judge, trace)
            assert (assessment.outcome, assessment.scores[0].passed) == ("scored", passed), assessment
            assert assessment.calls[0].input_tokens == len(context.split()) + 4
        for look in (endpoint, ask):
            assert [check.result for check in look("tiny", settings(folder), {})] == ["ok"]
        (folder / "model.onnx").unlink()
        (check,) = endpoint("tiny", settings(folder), {})
        assert (check.result, "has no model.onnx" in f"{check.what} {check.fix}") == ("broken", True)


FORMS = {"/predict": TWO, "/classify": TWO + 'text = "{evidence} / {claim}"\n'}
Answering = Callable[[list[Any]], web.Response] | None


class Server(LoopbackServer):
    """Both forms. A text with "yes" is supported with 0.9, another one with 0.2; ``answer`` replaces the next reply."""

    def __init__(self) -> None:
        super().__init__(port=0)
        self.answer: Answering = None
        self.batches: list[list[Any]] = []
        self.delay_s = 0.0

    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.post(form, self._classify) for form in FORMS),
            *(web.get(path, self._about) for path in ("/info", "/v1/models")),
        ]

    def client(self, folder: Path, form: str, **fields: object) -> Client:
        return Client(build(self.settings(folder, form, **fields), {"KEY": KEY}))

    def settings(self, folder: Path, form: str, **fields: object) -> ModelSettings:
        (folder / "judge.toml").write_text(FORMS[form])
        return settings(folder, backend="http", base_url=f"{self.root_url}{form}", api_key_env="KEY", **fields)

    async def _about(self, request: web.Request) -> web.Response:
        assert request.path != "/info" or request.headers["authorization"] == f"Bearer {KEY}"
        return web.json_response({"model_id": "tiny", "max_client_batch_size": 32, "data": [{"id": "tiny"}]})

    async def _classify(self, request: web.Request) -> web.Response:
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        body, is_pairs = json.loads(await request.text()), request.path == "/predict"
        await asyncio.sleep(self.delay_s)
        if is_pairs:
            assert body.keys() <= {"inputs", "raw_scores", "truncate", "truncation_direction"}
            assert (body["truncate"], body["raw_scores"], 0 < len(body["inputs"]) <= 32) == (False, False, True)
            assert all(len(each) in {1, 2} and all(isinstance(text, str) for text in each) for each in body["inputs"])
        else:
            assert (body.keys(), body["model"]) == ({"model", "input"}, "tiny")
            assert all(isinstance(each, str) for each in body["input"])
        inputs = body["inputs" if is_pairs else "input"]
        self.batches.append(inputs)
        answer, self.answer = self.answer, None
        return (answer or (supported if is_pairs else classified))(inputs)


def values_of(inputs: list[Any]) -> list[float]:
    return [0.9 if "yes" in str(each) else 0.2 for each in inputs]


def supported(inputs: list[Any]) -> web.Response:
    return predictions(*values_of(inputs))(inputs)


def predictions(*values: object) -> Answering:
    classes = [[{"label": "neutral", "score": 0.1}, {"label": "entailment", "score": value}] for value in values]
    return lambda _: web.json_response(classes, headers={"x-compute-tokens": str(10 * len(values))})


def classified(inputs: list[Any], tokens: object = None) -> web.Response:
    # Neither order of the list nor of the classes is that of the labels by chance.
    data = [
        {"index": index, "label": "entailment" if value > 0.5 else "neutral", "probs": [value, 1 - value]}
        for index, value in enumerate(values_of(inputs))
    ]
    usage = {"prompt_tokens": tokens or 10 * len(data), "total_tokens": 10 * len(data), "completion_tokens": 0}
    return web.json_response({"id": "classify-1", "model": "tiny-1", "data": data[::-1], "usage": usage})


def replying(status: int, text: str) -> Answering:
    return lambda _: web.Response(text=text, status=status, content_type="application/json")


class TestServers:
    @pytest.mark.parametrize("form", FORMS)
    def test_answers_come_in_order_with_long_evidence_in_chunks(self, tmp_path: Path, form: str) -> None:
        pairs = [(("a word " * 40 * number) + ("yes" if number % 2 else "no"), "the claim") for number in range(8)]
        with Server() as server:
            response = server.client(tmp_path, form).ask(asked(*pairs))
            assert [each.probability for each in response.decisions] == [0.9 if n % 2 else 0.2 for n in range(8)]
            sent = [each for batch in server.batches for each in batch]
            assert len(sent) > 32 >= max(map(len, server.batches))
            assert (response.input_tokens, response.text) == (10 * len(sent), "")
            assert max(sum(map(len, each)) if isinstance(each, list) else len(each) for each in sent) <= 64 * 3
            if form == "/classify":
                assert (response.response_id, response.model) == ("classify-1", "tiny-1")
                assert all(each.endswith(" / the claim") for each in sent)

    def test_fewer_inputs_odd_counts_and_one_time_limit_for_all_requests_of_a_call(self, tmp_path: Path) -> None:
        with Server() as server:
            server.answer = replying(413, '{"error": "batch size 20 > maximum allowed batch size 8"}')
            response = server.client(tmp_path, "/predict").ask(numbered(20))
            assert ([len(batch) for batch in server.batches], len(response.decisions)) == ([20, 8, 8, 4], 20)
            server.batches.clear()
            server.answer = lambda inputs: classified(inputs, "1,200")
            response = server.client(tmp_path, "/classify").ask(numbered(40))
            _, *others = map(len, server.batches)
            assert (len(others) > 0, response.input_tokens, response.invalid) == (True, 10 * sum(others), ("usage",))
            server.delay_s = 0.3
            with pytest.raises(ModelTimeoutError, match=r"no answer within 0\.5 s"):
                server.client(tmp_path, "/predict", timeout_s=0.5).ask(numbered(64))

    def test_doctor_reads_the_list_of_a_server_and_asks(self, tmp_path: Path) -> None:
        with Server() as server:
            for form in FORMS:
                fields = server.settings(tmp_path, form)
                for look in (endpoint, ask):
                    assert [check.result for check in look("tiny", fields, {"KEY": KEY})] == ["ok"]
            (tmp_path / "judge.toml").unlink()
            (check,) = endpoint("tiny", fields, {"KEY": KEY})
            assert (check.result, "has no judge.toml" in f"{check.what} {check.fix}") == ("broken", True)

    def test_each_failure_of_a_server_has_its_reason(self, tmp_path: Path) -> None:
        for form, status, text, reason, words in TABLES["failing"]:
            with Server() as server:
                server.answer = replying(status, text)
                error: ModelError = server.client(tmp_path, form).fails(asked(("e", "c")))
            assert (error.reason, words in str(error)) == (reason, True), error
            assert KEY not in f"{error} {error.message}"

    def test_a_score_that_is_no_probability_concerns_its_question_alone(self, tmp_path: Path) -> None:
        with Server() as server:
            for value in (1.7, -0.4, "0.5", None, math.nan, True):
                server.answer = predictions(value, 0.75)
                response = server.client(tmp_path, "/predict").ask(asked(("e", "c"), ("yes", "c")))
                problem = "out_of_range" if value in (1.7, -0.4) else "invalid_answer"
                assert [each.problem for each in response.decisions] == [problem, None], value
                assert response.decisions[1].probability == 0.75
