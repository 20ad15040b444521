"""Decision models: both dialects of endpoints on the loopback, and each judge as such models are asked.

What is sent, what is read, what each bad answer becomes, and what the answers mean for a judge.
"""

import asyncio
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web
from clients.recording import environment
from judge_traces import ASKING, LONG, SHORT, served, table
from model_client import KEY, PATIENT, PROMPT, Client
from msgspec import structs
from support.decision_endpoint import INPUT_TOKENS, MODEL, OUTPUT_TOKENS, Asked, DecisionEndpoint, cut
from support.tables import check_golden

from judges.calling.evaluation import evaluate
from judges.core.decision import Calibration, Decision, Option, Question
from judges.core.judge import AnsweredPrompt, DecisionForm, Judge, Reading
from judges.core.model import BadModelRequestError, ChatRequest, ChatResponse, ModelSettings
from judges.core.prompt import Block, Message, Prompt
from judges.core.verdict import Assessment, Score
from judges.custom import define
from judges.models.registry import ModelSettingsError, build, check, decides, judge_for
from judges.registry import catalogue
from tracejudge import Trace

Answering = Callable[[Question], Decision]
DECIDES: Final = ModelSettings(provider="decisions", base_url="http://localhost", model="decider")


def sure(share: float) -> Answering:
    """Answer all alike: the first option, or the only one, with a probability; the rest is spread over the others."""

    def answer(question: Question) -> Decision:
        others = len(question.options) - 1
        return Decision((share, *([(1 - share) / others] * others if others > 0 else ())))

    return answer


class DecisionModel:
    """Answers each question by a function."""

    def __init__(self, answering: Answering, settings: ModelSettings = DECIDES) -> None:
        self.settings = settings
        self.requests: list[ChatRequest] = []
        self._answering = answering

    async def complete(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        result = tuple(map(self._answering, request.questions))
        return ChatResponse("", input_tokens=100, output_tokens=len(result), decisions=result)

    async def aclose(self) -> None:
        """Close nothing."""


TABLES: Final = table("decisions")
DIALECTS: Final = ("openai", "systemone")
TRACE = Trace(trace_id="a" * 32, service="s", input="Is it on?", output="It is on.")
GRADES = tuple(Option(str(grade), f"worth {grade}") for grade in range(1, 6))
PLACES = (Option("kitchen", "where one cooks"), Option("cellar", ""))
MIXED = (
    Question("predicate", "The answer is right."),
    Question("choice", "Where is it?", PLACES),
    Question("score", "How good is it?", GRADES),
)


@pytest.fixture
def server() -> Iterator[DecisionEndpoint]:
    with DecisionEndpoint() as running:
        yield running


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings_of(base_url: str, dialect: str, **others: object) -> ModelSettings:
    fields = {**PATIENT, "provider": "decisions", "dialect": dialect, "base_url": base_url, "model": MODEL, **others}
    return msgspec.convert({"api_key_env": "KEY", **fields}, ModelSettings)


def client(server: DecisionEndpoint, dialect: str, **others: object) -> Client:
    return Client(build(settings_of(server.base_url, dialect, **others), {"KEY": KEY}))


def judge_of(questions: Sequence[Question]) -> Judge:
    """Make the form for decisions of a judge with these questions; the score is the first predicate's."""

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt], _maps: Mapping[str, Calibration]) -> Reading:
        (decisions,) = (each.answer for each in answered)
        probability = decisions[0].probabilities[0]
        value = float(probability >= 0.5)
        details = {"probabilities": [decision.probabilities for decision in decisions]}
        return Reading((Score("relevance", value, probability=probability),), None, details)

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt("Assess the answer.", (Block("answer", trace.output),), questions=tuple(questions)),)

    form = DecisionForm(prompts, ("Assess the answer.",), score, "1")
    return dataclasses.replace(catalogue()["relevance_to_query"], decision_form=form).for_decisions({})


def judged(server: DecisionEndpoint, dialect: str, questions: Sequence[Question] = MIXED, **others: Any) -> Assessment:
    return client(server, dialect, **others).judge(judge_of(questions), TRACE)


def test_every_kind_of_question_is_sent_and_read(server: DecisionEndpoint, dialect: str) -> None:
    assessment = judged(server, dialect)
    assert (assessment.outcome, assessment.scores) == ("scored", (Score("relevance", 1.0, probability=0.9),))
    rounded = [[round(item, 4) for item in each] for each in assessment.details["probabilities"]]  # type: ignore[attr-defined]
    assert rounded == [[0.9], [0.9, 0.1], [0.9, 0.025, 0.025, 0.025, 0.025]]
    (call,) = assessment.calls
    assert (call.status, call.input_tokens, call.output_tokens) == ("ok", INPUT_TOKENS, OUTPUT_TOKENS)
    assert call.response_model == MODEL
    (body,) = server.bodies
    assert body.model == MODEL
    assert msgspec.to_builtins(body.questions) == TABLES["questions"][dialect]
    if dialect == "openai":
        assert [message.role for message in body.input] == ["developer", "user"]
        assert body.input[0].content == "Assess the answer."
        assert "It is on." in body.input[1].content
    else:
        assert body.state.startswith("Assess the answer.\n\n")
        assert "It is on." in body.state


def spoil(reply: dict[str, Any], how: str, *more: Any) -> None:
    """Spoil the answers of a reply; ``set`` without a value removes the field, ``replace`` and ``lose`` are of q2."""
    answers = reply["answers"]
    keys = [0, 1, 2] if isinstance(answers, list) else ["q1", "q2", "q3"]
    match how, more:
        case "set", (place, name):
            answers[keys[place]].pop(name)
        case "set", (place, name, value):
            answers[keys[place]][name] = value
        case "replace", (value,):
            answers[keys[1]] = value
        case "lose", ():
            del answers[keys[1]]
        case "swap", ():
            answers[0], answers[1] = answers[1], answers[0]
        case "pop", ():
            answers.pop()
        case _:
            answers.append(answers[0])


def test_each_bad_answer_has_its_outcome(server: DecisionEndpoint) -> None:
    wrong = {}
    for dialect, name, spoilt, reason, note in TABLES["bad answers"]:
        server.change = functools.partial(lambda how, reply: spoil(reply, *how), spoilt)
        assessment = judged(server, dialect)
        if (assessment.outcome, assessment.reason) != ("unscored", reason) or note not in (assessment.note or ""):
            wrong[dialect, name] = assessment
        assert [call.status for call in assessment.calls] == ["ok"], name
    assert not wrong


def test_a_reply_that_cannot_be_read_is_a_failure_of_the_endpoint_and_an_ignored_field_costs_no_answer(
    server: DecisionEndpoint, dialect: str
) -> None:
    def with_thoughts(reply: dict[str, Any]) -> None:
        if isinstance(reply["answers"], list):
            reply["answers"].insert(0, {"type": "reasoning", "summary": []})

    def with_nan(reply: dict[str, Any]) -> bytes:
        return b"\xef\xbb\xbf" + json.dumps({**reply, "usage": math.nan, "logprobs": [math.inf, "\ud800"]}).encode()

    unreadable = ("judge_unavailable", "the reply holds no decisions")
    changes: dict[str, tuple[Callable[[dict[str, Any]], object], tuple[str, str] | None]] = {
        "truncated JSON": (cut, unreadable),
        "no JSON": (lambda _reply: b"<html>", unreadable),
        "no answers": (lambda reply: {"model": reply["model"]}, unreadable),
        "answers that are a number": (lambda _reply: {"answers": 3}, unreadable),
        "thoughts": (with_thoughts, None),
        "values that are no JSON": (with_nan, None),
    }
    for name, (server.change, failure) in changes.items():
        assessment = judged(server, dialect)
        assert (assessment.reason, assessment.note) == (failure or (None, None)), name
    server.change = lambda reply: json.dumps({**reply, "answers": None, "error": {"code": 429}}).encode()
    assert judged(server, dialect).reason == "rate_limited"


def test_requests_that_the_endpoint_refuses(server: DecisionEndpoint, dialect: str) -> None:
    server.max_options = 4  # The score has five levels.
    assessment = judged(server, dialect)
    where = "" if dialect == "openai" else "body.questions: "
    assert assessment.message == f"{where}a question has between 2 and 4 options, not 5"
    assert assessment.reason == "bad_request"
    server.max_options = 255
    for status in (400, 422):
        server.fault = web.json_response({"detail": f"see {PROMPT}"}, status=status)
        assert judged(server, dialect).reason == "bad_request", status
    assert len(server.bodies) == 2


def test_more_questions_than_one_request_takes_are_several_calls(server: DecisionEndpoint, dialect: str) -> None:
    def place(asked: Asked) -> list[float]:
        return [int(asked.instructions.split()[-1]) / 1000]

    server.answer = place
    questions = [Question("predicate", f"statement {number}") for number in range(901)]
    assessment = judged(server, dialect, questions)
    assert assessment.details["probabilities"] == [(number / 1000,) for number in range(901)]
    assert [call.input_tokens for call in assessment.calls] == [INPUT_TOKENS] * 3
    assert [len(body.questions) for body in server.bodies] == [400, 400, 101]
    assert len(judged(server, dialect, questions[:7], max_questions=3).calls) == 3


def test_a_choice_of_too_many_options_is_not_sent(server: DecisionEndpoint, dialect: str) -> None:
    options = tuple(Option(f"o{number}", "") for number in range(256))
    assessment = judged(server, dialect, [Question("choice", "Which?", options)])
    assert (assessment.reason, assessment.calls) == ("bad_request", ())
    assert assessment.note == "a question has more than 255 options, max_options"
    assessment = judged(server, dialect, [Question("choice", "Which?", options[:27])], max_options=26)
    assert (assessment.reason, assessment.calls) == ("bad_request", ())
    server.answer = lambda _asked: [0.33] * 3
    assessment = judged(server, dialect, [Question("choice", "Which?", options[:3])])
    assert assessment.details["probabilities"] == [pytest.approx((1 / 3,) * 3)], "rounded ones are normalised"


def test_a_judge_without_questions_is_not_sent(server: DecisionEndpoint, dialect: str) -> None:
    request = ChatRequest((Message("user", PROMPT),), "groundedness", {}, dict)
    error = client(server, dialect).fails(request)
    assert isinstance(error, BadModelRequestError)
    assert not error.was_asked
    assert not server.bodies


def test_settings() -> None:
    check(settings_of("https://host/v1", "systemone", max_options=26, max_questions=32))
    for fields, text in TABLES["settings"]:
        with pytest.raises(ModelSettingsError, match=f"^{text}"):
            check(settings_of(**{"base_url": "https://host/v1", "dialect": "openai", **fields}))
    with pytest.raises(msgspec.ValidationError, match="dialect"):
        settings_of("https://host/v1", "morse")


FORMS = {name: judge for name, judge in catalogue().items() if judge.decision_form is not None}


ASKED_ANEW: Final[Mapping[str, Judge]] = {
    **FORMS,
    **{
        f"{name} {json.dumps(changes)}": catalogue()[name].configured(changes) for name, changes in TABLES["configured"]
    },
    **{
        f"instructions {json.dumps(result)}": define("tone", {"instructions": "Is {{ outputs }} so?", "result": result})
        for result in TABLES["results"]
    },
}
CALIBRATIONS: Final = (
    None,
    Calibration(threshold=0.6, platt=(0.8, -0.3)),
    Calibration(isotonic=((0.1, 0.3), (0.8, 0.6))),
)


def drawn(seed: str) -> Answering:
    """Answer each question with other probabilities, the same in each run."""
    draw = random.Random(seed)

    def answer(question: Question) -> Decision:
        if question.kind == "predicate":
            return Decision((draw.random(),))
        weights = [draw.random() ** 3 for _ in question.options]
        return Decision(tuple(weight / sum(weights) for weight in weights))

    return answer


def rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def test_what_any_answers_mean_is_in_the_golden_file() -> None:
    """Each form, as built in, configured or of a user, for drawn answers, with and without calibrations."""
    lines = []
    for (name, judge), trace, calibration in itertools.product(ASKED_ANEW.items(), (SHORT, LONG), CALIBRATIONS):
        model = DecisionModel(drawn(f"{name} {trace.service} {calibration}"))
        maps = {} if calibration is None else dict.fromkeys(judge.metric_names, calibration)
        form = judge_for(judge, DECIDES, maps)
        assessment = asyncio.run(evaluate(form, served(judge, trace), model))
        asked = [question.kind for request in model.requests for question in request.questions]
        fields = msgspec.to_builtins(structs.replace(assessment, calls=()))
        kept = {
            key: each for key, each in fields.items() if key in {"reason", "scores", "rationale", "details"} and each
        }
        lines.append(f"{name}, {trace.service}, {calibration}\n  asks {asked}\n  {json.dumps(rounded(kept))}\n")
        assert form.version == judge_for(judge, DECIDES, maps).version, name
    check_golden(Path(__file__).with_name("golden_decisions.txt"), "".join(lines))


def test_a_calibration_makes_another_version() -> None:
    for name, judge in FORMS.items():
        metric = next(metric.name for metric in judge.metrics if metric.pass_rule is not None)
        maps = ({}, {metric: Calibration(threshold=0.95, platt=(1.0, 1.0))}, {metric: Calibration(threshold=0.6)})
        assert len({judge.version, *(judge.for_decisions(each).version for each in maps)}) == 4, name


def test_only_forms_of_pairs_are_for_classifiers() -> None:
    classifier = ModelSettings(provider="classifier", base_url="http://localhost", model="nli")
    pairs = {name for name, judge in FORMS.items() if "classifier" in judge.forms}
    assert {"groundedness", "correctness", "context_sufficiency"} <= pairs
    for name, judge in ASKING.items():
        if name in pairs:
            form = judge_for(judge, classifier)
            questions = [each for prompt in form.prompts(served(judge, SHORT)) for each in prompt.questions]
            assert all(question.pair and all(question.pair) for question in questions), name
        else:
            with pytest.raises(ValueError, match=f"{name} cannot be asked of a"):
                judge_for(judge, classifier)
    assert {name for name, judge in catalogue().items() if judge.unit == "session"}.isdisjoint(FORMS)
    assert judge_for(catalogue()["safety"], ModelSettings(model="chat")) is catalogue()["safety"]
    assert decides(DECIDES)


def test_judges_in_words_have_a_form_for_decisions_if_their_result_is_a_choice() -> None:
    text = "Is {{ outputs }} polite?"
    for result in ("text", {"number": [0.0, 1.0]}, {"integer": [0, 100]}):
        assert define("tone", {"instructions": text, "result": result}).forms == ("chat",), result
    assert define("tone", {"instructions": "Did {{ trace }} loop?"}).forms == ("chat",)
    chosen = define("tone", {"custom_prompt": "Is {{ outputs }} [[good]] or [[bad]]?", "pass": ["good"]})
    assert chosen.forms == ("chat", "decisions")
    model = DecisionModel(sure(0.9))
    tone = judge_for(define("tone", {"instructions": text}), model.settings)
    asyncio.run(evaluate(tone, SHORT, model))
    assert text in model.requests[0].questions[0].instructions


def test_guidance_is_part_of_the_questions_and_metrics_keep_the_name_of_the_judge() -> None:
    judge = define("strict", {"based_on": "groundedness", "guidance": ["Rounded figures fail."]})
    model = DecisionModel(sure(0.9))
    form = judge_for(judge, model.settings, {"strict": Calibration(threshold=0.95)})
    assessment = asyncio.run(evaluate(form, served(judge, SHORT), model))
    assert "Rounded figures fail." in model.requests[0].messages[0].content
    assert [(result.metric, result.passed) for result in assessment.scores] == [("strict", False)]
    assert assessment.details == {"uncalibrated": {"strict": 0.9}}


_CHECK = """
import json, sys
from openai import OpenAI
from openai.types.decision import Decision
from openai.types.decision_create_params import DecisionCreateParams
from pydantic import TypeAdapter
def whole(value):
    # Lists are validated as they are read.
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    return value if isinstance(value, str) else [whole(one) for one in value]
given = json.load(sys.stdin)
for body in given["bodies"]:
    read = whole(TypeAdapter(DecisionCreateParams).validate_python(body))
    assert read == body, read
body = given["bodies"][0]
reply = OpenAI(base_url=given["base_url"], api_key="key").decisions.with_raw_response.create(**body)
Decision.model_validate_json(reply.text)
"""


@pytest.mark.skipif("TRACEJUDGE_CLIENT_ENVS" not in os.environ, reason="needs a folder for environments")
def test_the_official_types_accept_what_is_sent_and_what_the_endpoint_answers() -> None:
    with DecisionEndpoint() as server:
        assert client(server, "openai").judge(judge_of(MIXED), TRACE).outcome == "scored"
        bodies = msgspec.json.decode(msgspec.json.encode(server.bodies))
        requests = json.dumps({"bodies": bodies, "base_url": server.base_url})
        command = [environment("openai_types", ("openai==3.54.0",)), "-c", _CHECK]
        done = subprocess.run(command, input=requests, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert bodies[0]["model"] == MODEL
