"""Classifiers behind servers: the two forms of requests, checked strictly, and every way in which they fail."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from model_client import Client
from support.cases import each_case
from support.loopback import LoopbackServer

from judges.core.decision import Question
from judges.core.model import ChatRequest, ModelSettings, ModelTimeoutError
from judges.models.registry import ModelSettingsError, build
from worker.base.doctor.http_endpoints import ask, endpoint

PAIR = 'task = "nli"\nlabels = ["entailment", "neutral"]\nmax_tokens = 64\n'
TEXT = PAIR + 'text = "{evidence} / {claim}"\n'
KEY = {"JUDGE_KEY": "s3cret-key-of-the-test"}
Answer = Callable[[list[Any]], web.Response] | None


class Server(LoopbackServer):
    """Both forms. A text with "yes" is supported with 0.9, another one with 0.2; ``answer`` replaces the next reply."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.answer: Answer = None
        self.batches: list[list[Any]] = []
        self.delay_s = 0.0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/predict", self._predict),
            web.post("/classify", self._classify),
            web.get("/info", self._info),
            web.get("/v1/models", self._models),
        ]

    async def _info(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == f"Bearer {KEY['JUDGE_KEY']}"
        return web.json_response({"model_id": "tiny", "max_client_batch_size": 32})

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    async def _predict(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        await asyncio.sleep(self.delay_s)
        assert body.keys() <= {"inputs", "raw_scores", "truncate", "truncation_direction"}
        assert body["truncate"] is False
        assert body["raw_scores"] is False
        inputs = body["inputs"]
        assert 0 < len(inputs) <= 32
        assert all(len(each) in {1, 2} and all(isinstance(text, str) for text in each) for each in inputs)
        return self._replied(inputs, lambda: _predictions([_supported(each) for each in inputs]))

    async def _classify(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        assert body.keys() == {"model", "input"}
        assert body["model"] == "tiny"
        assert all(isinstance(each, str) for each in body["input"])
        return self._replied(body["input"], lambda: _classes([_supported([each]) for each in body["input"]]))

    async def _body(self, request: web.Request) -> dict[str, Any]:
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == f"Bearer {KEY['JUDGE_KEY']}"
        return json.loads(await request.text())

    def _replied(self, inputs: list[Any], usual: Callable[[], web.Response]) -> web.Response:
        self.batches.append(inputs)
        answer, self.answer = self.answer, None
        return answer(inputs) if answer is not None else usual()


def _supported(texts: list[str]) -> float:
    return 0.9 if any("yes" in text for text in texts) else 0.2


def _predictions(values: list[object], labels: tuple[str, str] = ("entailment", "neutral")) -> web.Response:
    classes = [[{"label": labels[1], "score": 0.1}, {"label": labels[0], "score": value}] for value in values]
    return web.json_response(classes, headers={"x-compute-tokens": str(10 * len(values))})


def _classes(values: list[float], tokens: object = None, **changes: object) -> web.Response:
    # Neither order of the list nor of the classes is that of the labels by chance.
    data = [
        {
            "index": index,
            "label": "entailment" if value > 0.5 else "neutral",
            "probs": [value, 1 - value],
            "num_classes": 2,
            **changes,
        }
        for index, value in enumerate(values)
    ]
    usage = {"prompt_tokens": tokens or 10 * len(values), "total_tokens": 10 * len(values), "completion_tokens": 0}
    return web.json_response(
        {"id": "classify-1", "object": "list", "created": 1, "model": "tiny-1", "data": data[::-1], "usage": usage}
    )


def _failed(status: int, message: str, kind: str = "Validation", **headers: str) -> Answer:
    return lambda _inputs: web.json_response({"error": message, "error_type": kind}, status=status, headers=headers)


def settings(server: Server, folder: Path, description: str, form: str, **fields: object) -> ModelSettings:
    folder.mkdir(exist_ok=True)
    (folder / "judge.toml").write_text(description)
    expected = {
        "provider": "classifier",
        "backend": "http",
        "model": "tiny",
        "path": str(folder),
        "base_url": f"{server.root_url}{form}",
        "api_key_env": "JUDGE_KEY",
        **fields,
    }
    return msgspec.convert(expected, ModelSettings)


def asked(*pairs: tuple[str, str]) -> ChatRequest:
    questions = tuple(Question("predicate", "The claim is supported.", pair=pair) for pair in pairs)
    return ChatRequest((), "j", {}, dict, questions=questions)


FORMS = {"/predict": PAIR, "/classify": TEXT}


class TestForms:
    @pytest.mark.parametrize("form", FORMS)
    def test_answers_in_order_with_long_evidence_in_chunks(self, tmp_path: Path, form: str) -> None:
        pairs = [(("a word " * 40 * number) + ("yes" if number % 2 else "no"), "the claim") for number in range(8)]
        with Server() as server:
            client = Client(build(settings(server, tmp_path, FORMS[form], form), KEY))
            response = client.ask(asked(*pairs))
            assert [each.probability for each in response.decisions] == [0.9 if n % 2 else 0.2 for n in range(8)]
            sent = [each for batch in server.batches for each in batch]
            assert len(sent) > 32 >= max(map(len, server.batches))
            assert response.input_tokens == 10 * len(sent)
            assert response.text == ""
            longest = max(sum(map(len, each)) if isinstance(each, list) else len(each) for each in sent)
            assert longest <= 64 * 3
            if form == "/classify":
                assert (response.response_id, response.model) == ("classify-1", "tiny-1")
                assert all(each.endswith(" / the claim") for each in sent)

    def test_a_server_that_accepts_fewer_inputs_is_sent_fewer(self, tmp_path: Path) -> None:
        with Server() as server:
            client = Client(build(settings(server, tmp_path, PAIR, "/predict"), KEY))
            server.answer = _failed(413, "batch size 20 > maximum allowed batch size 8")
            response = client.ask(asked(*((f"{number}", "c") for number in range(20))))
            assert [len(batch) for batch in server.batches] == [20, 8, 8, 4]
            assert len(response.decisions) == 20

    def test_an_odd_count_of_any_request_is_named(self, tmp_path: Path) -> None:
        with Server() as server:
            client = Client(build(settings(server, tmp_path, TEXT, "/classify"), KEY))
            server.answer = lambda inputs: _classes([0.2 for _ in inputs], tokens="1,200")
            response = client.ask(asked(*((f"{number}", "c") for number in range(40))))
            first, *others = map(len, server.batches)
            assert others
            assert (response.input_tokens, response.invalid) == (10 * sum(others), ("usage",)), first

    def test_one_time_limit_holds_for_all_requests_of_a_call(self, tmp_path: Path) -> None:
        with Server() as server:
            server.delay_s = 0.3
            client = Client(build(settings(server, tmp_path, PAIR, "/predict", timeout_s=0.5), KEY))
            with pytest.raises(ModelTimeoutError, match=r"no answer within 0\.5 s"):
                client.ask(asked(*((f"{number}", "c") for number in range(64))))

    def test_doctor_reads_the_list_and_asks(self, tmp_path: Path) -> None:
        with Server() as server:
            for form, description in FORMS.items():
                fields = settings(server, tmp_path, description, form)
                (assessment,) = endpoint("tiny", fields, KEY)
                assert assessment.result == "ok", assessment
                (assessment,) = ask("tiny", fields, KEY)
                assert assessment.result == "ok", assessment
            (tmp_path / "judge.toml").unlink()
            (assessment,) = endpoint("tiny", fields, KEY)
            assert (assessment.result, "has no judge.toml" in f"{assessment.what} {assessment.fix}") == ("broken", True)


class TestFailures:
    @each_case(
        ("form", "answer", "reason", "words"),
        [
            ("/predict", _failed(413, "batch size 1 > maximum allowed batch size 0"), "input_too_long", "413"),
            (
                "/predict",
                _failed(422, "`inputs` must have less than 64 tokens. Given: 70"),
                "input_too_long",
                "lower max_tokens in judge.toml",
            ),
            ("/predict", _failed(424, "Inference failed", "Backend"), "judge_unavailable", "424"),
            ("/predict", _failed(422, "no tokenizer", "Tokenizer"), "bad_request", "422"),
            (
                "/predict",
                lambda _inputs: web.Response(text='[[{"label": "entail', content_type="application/json"),
                "judge_unavailable",
                "the reply is no list of predictions",
            ),
            ("/predict", lambda inputs: _predictions([0.5] * (len(inputs) + 1)), "judge_unavailable", "2 predictions"),
            ("/predict", lambda _inputs: _predictions([]), "judge_unavailable", "0 predictions for 1 inputs"),
            (
                "/predict",
                lambda _inputs: _predictions([0.5], ("LABEL_0", "LABEL_1")),
                "judge_rejected",
                "other labels than judge.toml: LABEL_0, LABEL_1",
            ),
            ("/classify", lambda _inputs: _classes([0.9], probs=[0.9]), "judge_rejected", "1 classes"),
            ("/classify", lambda _inputs: _classes([0.9], label="neutral"), "judge_rejected", "another order"),
            ("/classify", lambda _inputs: _classes([0.9], index=1), "judge_unavailable", "repeats an index"),
            ("/classify", lambda _inputs: _classes([0.9, 0.2]), "judge_unavailable", "2 predictions for 1"),
            ("/classify", _failed(429, "slow", **{"retry-after": "7"}), "rate_limited", "429"),
            ("/classify", _failed(200, "slow", "rate_limit"), "judge_unavailable", "502"),
            ("/predict", lambda _inputs: web.json_response({"error": {"code": 429}}), "rate_limited", "429"),
        ],
    )
    def test_each_has_its_reason(self, tmp_path: Path, form: str, answer: Answer, reason: str, words: str) -> None:
        with Server() as server:
            server.answer = answer
            error = Client(build(settings(server, tmp_path, FORMS[form], form), KEY)).fails(asked(("e", "c")))
        assert error.reason == reason, error
        assert words in str(error)
        assert KEY["JUDGE_KEY"] not in f"{error} {error.message}"

    @each_case(
        ("values", "problem"),
        [
            ([1.7], "out_of_range"),
            ([-0.4], "out_of_range"),
            (["0.5"], "invalid_answer"),
            ([None], "invalid_answer"),
            ([math.nan], "invalid_answer"),
            ([True], "invalid_answer"),
        ],
    )
    def test_a_score_that_is_no_probability_concerns_its_question_alone(
        self, tmp_path: Path, values: list[object], problem: str
    ) -> None:
        with Server() as server:
            server.answer = lambda _inputs: _predictions([*values, 0.75])
            response = Client(build(settings(server, tmp_path, PAIR, "/predict"), KEY)).ask(
                asked(("e", "c"), ("yes", "c"))
            )
        assert [each.problem for each in response.decisions] == [problem, None]
        assert response.decisions[1].probability == 0.75

    @each_case(
        ("description", "form", "words"),
        [
            (PAIR, "/v1", "base_url: must be the address of the requests; end it with /predict"),
            (PAIR, "/classify", "/classify reads single texts, and judge.toml describes pairs"),
            (PAIR.replace("nli", "token") + 'support = "neutral"\n', "/predict", "goes with the backend onnx alone"),
        ],
    )
    def test_settings_that_cannot_serve(self, tmp_path: Path, description: str, form: str, words: str) -> None:
        with pytest.raises(ModelSettingsError) as caught:
            build(settings(Server(port=1), tmp_path, description, form), KEY)
        assert words in str(caught.value)
