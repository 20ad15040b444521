"""A real HTTP server for decisions in both dialects; it refuses every request that the published types do not allow.

`/v1/decisions` speaks the dialect `openai`, `/v1/systemone` the dialect `systemone`. Answers are made from a function
of the question; `change` may spoil a whole reply.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Struct

from support.loopback import LoopbackServer

MODEL = "decider-1"
INPUT_TOKENS = 120
OUTPUT_TOKENS = 3


class _Strict(Struct, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Message(_Strict):
    role: Literal["user", "developer", "system", "assistant"]
    content: str
    type: Literal["message"] = "message"


class Predicate(_Strict, tag="predicate"):
    instructions: str
    name: str | None = None


class Option(_Strict):
    value: str
    description: str | None = None


class Choice(_Strict, tag="choice"):
    instructions: str
    choices: list[Option]
    name: str | None = None


class Level(_Strict):
    label: str
    description: str | None = None


class Score(_Strict, tag="score"):
    instructions: str
    levels: list[Level]
    name: str | None = None


class DecisionRequest(_Strict):
    """The body of `POST /decisions`."""

    model: str
    input: str | list[Message]
    questions: list[Predicate | Choice | Score]


class Noul(_Strict, tag="noul"):
    instructions: str
    criteria: dict[Literal["true", "false"], str] | None = None


class MapChoice(_Strict, tag="choice"):
    instructions: str
    criteria: dict[str, str | None]


class ListScore(_Strict, tag="score"):
    instructions: str
    criteria: list[str]


class SystemOneRequest(_Strict):
    """The body of `POST /systemone`."""

    model: str
    state: str | dict[str, Any]
    questions: dict[str, Noul | MapChoice | ListScore]


class Asked(NamedTuple):
    """One question, whichever the dialect; options of a predicate are empty, those of `ListScore` descriptions."""

    kind: str
    instructions: str
    options: Sequence[str]


Answer = Callable[[Asked], Sequence[float]]
"""Chooses the probabilities of one question: one for a predicate, else one for each option."""
Change = Callable[[dict[str, Any]], object]
"""Spoils a reply; what it returns is sent in its place, unless it is None."""


def first_option(asked: Asked) -> Sequence[float]:
    """Answer with 0.9 to each predicate, and to the first option of every other question."""
    count = len(asked.options)
    return [0.9, *[0.1 / (count - 1)] * (count - 1)] if count else [0.9]


class DecisionEndpoint(LoopbackServer):
    """Serves `base_url` + "/decisions" and "/systemone"; its limits are set at any time."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.answer: Answer = first_option
        self.change: Change | None = None
        self.fault: web.Response | None = None
        self.max_options = 255
        self.max_questions = 400
        self._lock = threading.Lock()
        self._bodies: list[Any] = []

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The accepted requests, as `DecisionRequest` and `SystemOneRequest`."""
        with self._lock:
            return list(self._bodies)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/decisions", self._decisions),
            web.post("/v1/systemone", self._systemone),
            web.get("/v1/models", self._models),
        ]

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _decisions(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=DecisionRequest)
            asked = [_of_list(question) for question in body.questions]
            names = [question.name for question in body.questions if question.name is not None]
            self._check(asked, are_named=len(set(names)) == len(names))
        except (msgspec.ValidationError, ValueError) as error:
            fault = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": fault}, status=400)
        answers = [
            _listed(question, each, self.answer(each)) for question, each in zip(body.questions, asked, strict=True)
        ]
        usage = {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        return self._reply(body, {"answers": answers, "model": body.model, "usage": usage})

    async def _systemone(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=SystemOneRequest)
            asked = {name: _of_map(question) for name, question in body.questions.items()}
            self._check(list(asked.values()), are_named=all(asked))
        except (msgspec.ValidationError, ValueError) as error:
            detail = [{"type": "value_error", "loc": ["body", "questions"], "msg": str(error)}]
            return web.json_response({"detail": detail}, status=422)
        answers = {name: _mapped(each, self.answer(each)) for name, each in asked.items()}
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
        return self._reply(body, {"model": body.model, "answers": answers, "usage": usage})

    def _check(self, asked: Sequence[Asked], *, are_named: bool) -> None:
        if not are_named:
            raise ValueError("names of questions must be unique and not empty")
        if not 1 <= len(asked) <= self.max_questions:
            raise ValueError(f"between 1 and {self.max_questions} questions, not {len(asked)}")
        for question in asked:
            count = len(question.options)
            if question.kind != "predicate" and not 2 <= count <= self.max_options:
                raise ValueError(f"a question has between 2 and {self.max_options} options, not {count}")
            if len(set(question.options)) < count:
                raise ValueError("options must be unique")
            if not question.instructions.strip():
                raise ValueError("instructions are empty")

    def _reply(self, body: object, reply: dict[str, Any]) -> web.Response:
        with self._lock:
            self._bodies.append(body)
        if self.fault is not None:
            return self.fault
        changed = None if self.change is None else self.change(reply)
        if isinstance(changed, bytes):
            return web.Response(body=changed, content_type="application/json")
        return web.json_response(reply if changed is None else changed)


def _of_list(question: Predicate | Choice | Score) -> Asked:
    if isinstance(question, Predicate):
        return Asked("predicate", question.instructions, ())
    if isinstance(question, Choice):
        return Asked("choice", question.instructions, [choice.value for choice in question.choices])
    return Asked("score", question.instructions, [level.label for level in question.levels])


def _of_map(question: Noul | MapChoice | ListScore) -> Asked:
    kind = {Noul: "predicate", MapChoice: "choice", ListScore: "score"}[type(question)]
    return Asked(kind, question.instructions, () if isinstance(question, Noul) else list(question.criteria))


def _listed(question: Predicate | Choice | Score, asked: Asked, probabilities: Sequence[float]) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": asked.kind, "name": question.name}
    if asked.kind == "predicate":
        return {**answer, "probability": probabilities[0]}
    by_option = list(zip(asked.options, probabilities, strict=True))
    answer["confidence"] = max(probabilities)
    if asked.kind == "choice":
        answer["choice"] = asked.options[probabilities.index(max(probabilities))]
        answer["probabilities"] = [{"value": value, "probability": share} for value, share in by_option]
    else:
        answer["score"] = _expected(probabilities)
        answer["probabilities"] = [
            {"label": label, "value": level, "probability": share} for level, (label, share) in enumerate(by_option)
        ]
    return answer


def _mapped(asked: Asked, shares: Sequence[float]) -> dict[str, Any]:
    if asked.kind == "predicate":
        return {"type": "noul", "noul": shares[0]}
    answer: Mapping[str, Any] = {"type": asked.kind, "confidence": max(shares)}
    if asked.kind == "choice":
        best = asked.options[shares.index(max(shares))]
        return {**answer, "choice": best, "probabilities": dict(zip(asked.options, shares, strict=True))}
    levels = [str(level) for level in range(len(shares))]
    legend = dict(zip(levels, asked.options, strict=True))
    probabilities = dict(zip(levels, shares, strict=True))
    return {**answer, "score": _expected(shares), "legend": legend, "probabilities": probabilities}


def _expected(probabilities: Sequence[float]) -> float:
    return sum(level * probability for level, probability in enumerate(probabilities))


def cut(reply: dict[str, Any]) -> bytes:
    """Send only the first half of a reply."""
    body = json.dumps(reply).encode()
    return body[: len(body) // 2]
