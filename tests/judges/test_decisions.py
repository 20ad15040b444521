"""Both dialects of decision endpoints on the loopback: what is sent, what is read, what each bad answer becomes."""

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web
from judge_traces import LONG, SHORT, served
from model_client import KEY, PATIENT, PROMPT, Client
from support import decision_endpoint
from support.decision_endpoint import INPUT_TOKENS, MODEL, OUTPUT_TOKENS, Asked, DecisionEndpoint, cut

from judges.calling.evaluation import evaluate
from judges.core.decision import Calibration, Option, Question
from judges.core.judge import AnsweredPrompt, DecisionForm, Judge, Reading
from judges.core.model import BadModelRequestError, ChatRequest, ModelSettings
from judges.core.prompt import Block, Message, Prompt
from judges.core.verdict import Assessment, Score
from judges.endpoints.client import LimitedModel
from judges.models.registry import ModelSettingsError, build, check
from judges.registry import catalogue
from tracejudge import Trace

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
    return Client(LimitedModel(build(settings_of(server.base_url, dialect, **others), {"KEY": KEY})))


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
    if dialect == "openai":
        assert [message.role for message in body.input] == ["developer", "user"]
        assert body.input[0].content == "Assess the answer."
        assert "It is on." in body.input[1].content
        assert body.questions == [
            decision_endpoint.Predicate("The answer is right.", "q1"),
            decision_endpoint.Choice(
                "Where is it?",
                [decision_endpoint.Option("kitchen", "where one cooks"), decision_endpoint.Option("cellar")],
                "q2",
            ),
            decision_endpoint.Score("How good is it?", [decision_endpoint.Level(*grade) for grade in GRADES], "q3"),
        ]
    else:
        assert body.state.startswith("Assess the answer.\n\n")
        assert "It is on." in body.state
        assert body.questions == {
            "q1": decision_endpoint.Noul("The answer is right."),
            "q2": decision_endpoint.MapChoice("Where is it?", {"kitchen": "where one cooks", "cellar": None}),
            "q3": decision_endpoint.ListScore("How good is it?", [f"{grade}: worth {grade}" for grade in range(1, 6)]),
        }


def test_each_judge_with_a_form_for_decisions_is_accepted_and_scored(server: DecisionEndpoint, dialect: str) -> None:
    judges = [judge for judge in catalogue().values() if judge.decision_form is not None]
    assert judges
    wrong = {}
    for judge in judges:
        for trace in (SHORT, LONG):
            assessment = client(server, dialect).judge(judge.for_decisions({}), served(judge, trace))
            if assessment.outcome != "scored":
                wrong[judge.name] = assessment
    assert not wrong


def _at(place: int, **fields: object) -> Callable[[dict[str, Any]], object]:
    """Change fields of one answer; ``...`` removes the field."""

    def change(reply: dict[str, Any]) -> None:
        answers = reply["answers"]
        answer = answers[place] if isinstance(answers, list) else answers[f"q{place + 1}"]
        for name, value in fields.items():
            if value is ...:
                answer.pop(name, None)
            else:
                answer[name] = value

    return change


def _swap(reply: dict[str, Any]) -> None:
    reply["answers"][0], reply["answers"][1] = reply["answers"][1], reply["answers"][0]


def _refuse(reply: dict[str, Any]) -> None:
    reply["answers"][1] = {"type": "refusal", "name": "q2"}


def _shorten(reply: dict[str, Any]) -> None:
    reply["answers"].pop()


def _lengthen(reply: dict[str, Any]) -> None:
    reply["answers"].append(reply["answers"][0])


def _replace(answer: object) -> Callable[[dict[str, Any]], object]:
    def change(reply: dict[str, Any]) -> None:
        answers = reply["answers"]
        answers[1 if isinstance(answers, list) else "q2"] = answer

    return change


def _lose(reply: dict[str, Any]) -> None:
    del reply["answers"]["q2"]


def _off(probabilities: object) -> Callable[[dict[str, Any]], object]:
    return _at(1, probabilities=probabilities)


def _values(**rows: object) -> list[dict[str, object]]:
    return [{"value": value, "probability": assessment} for value, assessment in rows.items()]


# By dialect and name: how the reply is spoilt, the reason, and what the note says.
BAD_ANSWERS: Final[dict[tuple[str, str], tuple[Callable[[dict[str, Any]], object], str, str]]] = {
    ("openai", "a refusal of one question"): (_refuse, "refusal", "question 2 of 3: the model declined"),
    ("openai", "an answer too few"): (_shorten, "incomplete", "question 3 of 3: the endpoint left"),
    ("openai", "an answer too many"): (_lengthen, "invalid_answer", "question 1 of 3"),
    ("openai", "answers in another order"): (_swap, "invalid_answer", "question 1 of 3"),
    ("openai", "an answer of another kind"): (_at(0, type="score"), "invalid_answer", "question 1 of 3"),
    ("openai", "a probability above 1"): (_at(0, probability=1.2), "out_of_range", "question 1 of 3"),
    ("openai", "a probability below 0"): (_at(0, probability=-0.1), "out_of_range", "question 1 of 3"),
    ("openai", "a probability as a text"): (_at(0, probability="0.9"), "invalid_answer", "question 1 of 3"),
    ("openai", "no probability"): (_at(0, probability=...), "invalid_answer", "question 1 of 3"),
    ("openai", "a sum of 1.4"): (_off(_values(kitchen=0.9, cellar=0.5)), "out_of_range", "question 2 of 3"),
    ("openai", "an option too few"): (_off(_values(kitchen=1.0)), "invalid_answer", "question 2 of 3"),
    ("openai", "an unknown option"): (_off(_values(kitchen=0.9, attic=0.1)), "invalid_answer", "question 2 of 3"),
    ("openai", "an option twice"): (
        _off([*_values(kitchen=0.5, cellar=0.4), *_values(kitchen=0.1)]),
        "invalid_answer",
        "question 2 of 3",
    ),
    ("openai", "probabilities as a number"): (_off(0.5), "invalid_answer", "question 2 of 3"),
    ("openai", "null in place of an answer"): (_replace(None), "incomplete", "question 2 of 3: the endpoint left"),
    ("openai", "a number in place of an answer"): (_replace(0.7), "invalid_answer", "question 2 of 3"),
    ("systemone", "null in place of an answer"): (_replace(None), "incomplete", "question 2 of 3: the endpoint left"),
    ("systemone", "a number in place of an answer"): (_replace(0.7), "invalid_answer", "question 2 of 3"),
    ("systemone", "a text in place of an answer"): (_replace("yes"), "invalid_answer", "question 2 of 3"),
    ("systemone", "no answer to one question"): (_lose, "incomplete", "question 2 of 3: the endpoint left"),
    ("systemone", "an answer of another kind"): (_at(0, type="score"), "invalid_answer", "question 1 of 3"),
    ("systemone", "a probability above 1"): (_at(0, noul=1.2), "out_of_range", "question 1 of 3"),
    ("systemone", "a probability below 0"): (_at(0, noul=-0.1), "out_of_range", "question 1 of 3"),
    ("systemone", "no probability"): (_at(0, noul=None), "invalid_answer", "question 1 of 3"),
    ("systemone", "a sum of 1.4"): (_off({"kitchen": 0.9, "cellar": 0.5}), "out_of_range", "question 2 of 3"),
    ("systemone", "an option too few"): (_off({"kitchen": 1.0}), "invalid_answer", "question 2 of 3"),
    ("systemone", "probabilities as a list"): (_off([0.9, 0.1]), "invalid_answer", "question 2 of 3"),
}


def test_each_bad_answer_has_its_outcome(server: DecisionEndpoint) -> None:
    wrong = {}
    for (dialect, name), (change, reason, note) in BAD_ANSWERS.items():
        server.change = change
        assessment = judged(server, dialect)
        if (assessment.outcome, assessment.reason) != ("unscored", reason) or note not in (assessment.note or ""):
            wrong[dialect, name] = assessment
        assert [call.status for call in assessment.calls] == ["ok"], name
    assert not wrong


def test_a_reply_that_cannot_be_read_is_a_failure_of_the_endpoint(server: DecisionEndpoint, dialect: str) -> None:
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "truncated JSON": cut,
        "no JSON": lambda _reply: b"<html>",
        "no answers": lambda reply: {"model": reply["model"]},
        "answers that are a number": lambda _reply: {"answers": 3},
    }
    model = build(settings_of(server.base_url, dialect), {"KEY": KEY})
    for name, server.change in changes.items():
        assessment = asyncio.run(_evaluated(judge_of(MIXED), model))
        assert (assessment.reason, assessment.note) == ("judge_unavailable", "the reply holds no decisions"), name


def test_an_ignored_field_costs_no_answer(server: DecisionEndpoint, dialect: str) -> None:
    def with_thoughts(reply: dict[str, Any]) -> None:
        if isinstance(reply["answers"], list):
            reply["answers"].insert(0, {"type": "reasoning", "summary": []})

    def with_nan(reply: dict[str, Any]) -> bytes:
        return b"\xef\xbb\xbf" + json.dumps({**reply, "usage": math.nan, "logprobs": [math.inf, "\ud800"]}).encode()

    for server.change in (with_thoughts, with_nan):
        assert judged(server, dialect).outcome == "scored"
    server.change = lambda reply: json.dumps({**reply, "answers": None, "error": {"code": 429}}).encode()
    model = build(settings_of(server.base_url, dialect), {"KEY": KEY})
    assert asyncio.run(_evaluated(judge_of(MIXED), model)).reason == "rate_limited"


async def _evaluated(judge: Judge, model: Any) -> Assessment:
    try:
        return await evaluate(judge, TRACE, model)
    finally:
        await model.aclose()


def test_requests_that_the_endpoint_refuses(server: DecisionEndpoint, dialect: str) -> None:
    server.max_options = 4  # The score has five levels.
    assessment = judged(server, dialect)
    assert (assessment.reason, assessment.message) == (
        "bad_request",
        {
            "openai": "a question has between 2 and 4 options, not 5",
            "systemone": "body.questions: a question has between 2 and 4 options, not 5",
        }[dialect],
    )
    statuses = {400: "bad_request", 422: "bad_request"}
    server.max_options = 255
    for status, reason in statuses.items():
        server.fault = web.json_response({"detail": f"see {PROMPT}"}, status=status)
        assert judged(server, dialect).reason == reason, status
    assert len(server.bodies) == len(statuses)


def test_more_questions_than_one_request_takes_are_several_calls(server: DecisionEndpoint, dialect: str) -> None:
    def place(asked: Asked) -> list[float]:
        return [int(asked.instructions.split()[-1]) / 1000]

    server.answer = place
    questions = [Question("predicate", f"statement {number}") for number in range(401)]
    assessment = judged(server, dialect, questions)
    assert assessment.details["probabilities"] == [(number / 1000,) for number in range(401)]
    assert [call.input_tokens for call in assessment.calls] == [INPUT_TOKENS] * 2
    assert [len(body.questions) for body in server.bodies] == [400, 1]
    assert len(judged(server, dialect, questions[:7], max_questions=3).calls) == 3


def test_a_choice_of_too_many_options_is_not_sent(server: DecisionEndpoint, dialect: str) -> None:
    options = tuple(Option(f"o{number}", "") for number in range(256))
    assessment = judged(server, dialect, [Question("choice", "Which?", options)])
    assert (assessment.reason, assessment.calls) == ("bad_request", ())
    assert assessment.note == "a question has more than 255 options, max_options"
    assessment = judged(server, dialect, [Question("choice", "Which?", options[:27])], max_options=26)
    assert (assessment.reason, assessment.calls) == ("bad_request", ())
    assert judged(server, dialect, [Question("choice", "Which?", options[:255])]).outcome == "scored"


def test_rounded_probabilities_are_normalised(server: DecisionEndpoint, dialect: str) -> None:
    thirds = tuple(Option(name, "") for name in "abc")
    server.answer = lambda _asked: [0.33, 0.33, 0.33]
    assessment = judged(server, dialect, [Question("choice", "Which?", thirds)])
    assert assessment.details["probabilities"] == [pytest.approx((1 / 3,) * 3)]


def test_a_judge_without_questions_is_not_sent(server: DecisionEndpoint, dialect: str) -> None:
    request = ChatRequest((Message("user", PROMPT),), "groundedness", {}, dict)
    error = client(server, dialect).fails(request)
    assert isinstance(error, BadModelRequestError)
    assert not error.was_asked
    assert not server.bodies


def test_settings() -> None:
    check(settings_of("https://host/v1", "systemone", max_options=26, max_questions=32))
    wrong: Sequence[tuple[dict[str, Any], str]] = (
        ({"max_options": 1}, "max_options: must be at least 2"),
        ({"max_questions": 0}, "max_questions: must be at least 1"),
        ({"base_url": "https://host/v1/decisions"}, "base_url: must end before /decisions"),
        ({"base_url": "https://host/v1/systemone"}, "base_url: must end before /systemone"),
        ({"max_output_tokens": 10}, "max_output_tokens: goes with the provider"),
        ({"provider": "openai"}, "dialect: goes with the provider decisions alone"),
    )
    for fields, text in wrong:
        with pytest.raises(ModelSettingsError, match=f"^{text}"):
            check(settings_of(**{"base_url": "https://host/v1", "dialect": "openai", **fields}))
    with pytest.raises(msgspec.ValidationError, match="dialect"):
        settings_of("https://host/v1", "morse")
