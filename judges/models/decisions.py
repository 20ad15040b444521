"""Decision models: endpoints that answer typed questions with probabilities and generate no text.

Two dialects are spoken. ``openai`` posts messages and a list of questions to `/decisions`, and the answers come in the
same order. ``systemone`` posts a text and questions by id to `/systemone`, and the answers come by id. Questions have
names in both, so that no answer is read as the answer to another question. An answer that cannot be used is a problem
of its question alone; a reply that cannot be read at all is a failure of the endpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import httpx
import msgspec
from msgspec import Struct

from judges.core.decision import Decision, Question, read_probabilities
from judges.core.model import BadModelRequestError, ChatRequest, ChatResponse, Dialect, ModelSettings
from judges.models.http import EndpointModel
from judges.models.provider import bearer, join_path, read_access
from judges.models.replies import UNREADABLE, decode_reply, read_quota, reply_fields
from judges.models.reply_errors import no_chat_reply, read_fault, translated

T = TypeVar("T")
_INCOMPLETE: Final = Decision(problem="incomplete")
_INVALID: Final = Decision(problem="invalid_answer")
_REFUSED: Final = Decision(problem="refusal")


class _Answer(Struct):
    type: Any = None  # Any: an odd value here must not make the answers to other questions unreadable.
    name: Any = None
    probability: Any = None
    noul: Any = None
    probabilities: Any = None


class _Reply(Struct, Generic[T]):
    answers: T
    model: Any = None
    usage: Any = None


def _name(place: int) -> str:
    return f"q{place + 1}"


def _openai_body(request: ChatRequest) -> dict[str, object]:
    messages = [
        {"role": "developer" if message.role == "system" else message.role, "content": message.content}
        for message in request.messages
    ]
    questions: list[dict[str, object]] = []
    for place, question in enumerate(request.questions):
        asked: dict[str, object] = {"type": question.kind, "name": _name(place), "instructions": question.instructions}
        key, label = ("choices", "value") if question.kind == "choice" else ("levels", "label")
        if question.options:
            asked[key] = [
                {label: option.value, "description": option.description}
                if option.description
                else {label: option.value}
                for option in question.options
            ]
        questions.append(asked)
    return {"input": messages, "questions": questions}


def _read_openai(questions: Sequence[Question], written: list[Any]) -> list[Decision]:
    # Thoughts are no answers.
    answers = [each for each in written if not (isinstance(each, dict) and each.get("type") == "reasoning")]
    if len(answers) > len(questions):
        # The reply does not tell which answers are superfluous.
        return [_INVALID] * len(questions)
    read = [
        _read_answer(answer, partial(_openai_answer, place, questions[place])) for place, answer in enumerate(answers)
    ]
    return read + [_INCOMPLETE] * (len(questions) - len(answers))


def _read_answer(answer: object, read: Callable[[_Answer], Decision]) -> Decision:
    """Read one answer; an odd one is a problem of its question alone."""
    if answer is None:
        return _INCOMPLETE
    try:
        return read(msgspec.convert(answer, _Answer))
    except msgspec.ValidationError:
        return _INVALID


def _openai_answer(place: int, question: Question, answer: _Answer) -> Decision:
    if answer.name not in (None, _name(place)):
        return _INVALID
    if answer.type == "refusal":
        return _REFUSED
    if answer.type != question.kind:
        return _INVALID
    if question.kind == "predicate":
        return read_probabilities(question, [answer.probability])
    key = "value" if question.kind == "choice" else "label"
    try:
        values = {each[key]: each["probability"] for each in answer.probabilities}
    except (TypeError, KeyError):
        return _INVALID
    # An option with two values is invalid: neither value is the right one for certain.
    return _by_option(question, values) if len(values) == len(answer.probabilities) else _INVALID


def _systemone_question(question: Question) -> dict[str, object]:
    if question.kind == "predicate":
        return {"type": "noul", "instructions": question.instructions}
    criteria: object = {option.value: option.description or None for option in question.options}
    if question.kind == "score":
        # Levels have no labels there, so that a label such as a grade is part of the description.
        criteria = [": ".join(filter(None, option)) for option in question.options]
    return {"type": question.kind, "instructions": question.instructions, "criteria": criteria}


def _read_systemone(questions: Sequence[Question], answers: dict[str, Any]) -> list[Decision]:
    return [
        _read_answer(answers.get(_name(place)), partial(_systemone_answer, question))
        for place, question in enumerate(questions)
    ]


def _systemone_answer(question: Question, answer: _Answer) -> Decision:
    if answer.type == "refusal":
        return _REFUSED
    if answer.type != ("noul" if question.kind == "predicate" else question.kind):
        return _INVALID
    if question.kind == "predicate":
        return read_probabilities(question, [answer.noul])
    if not isinstance(answer.probabilities, dict):
        return _INVALID
    # Levels are answered by their numbers, counted from 0.
    names = [str(level) for level in range(len(question.options))] if question.kind == "score" else None
    return _by_option(question, answer.probabilities, names)


def _by_option(question: Question, values: Mapping[Any, object], names: Sequence[str] | None = None) -> Decision:
    """Read the probabilities by option, or by the names that options have in the answer."""
    names = names or [option.value for option in question.options]
    return read_probabilities(question, [values[name] for name in names]) if values.keys() == set(names) else _INVALID


class _Form(NamedTuple):
    path: str  # Below `base_url`.
    body: Callable[[ChatRequest], dict[str, object]]  # Everything but the model.
    reply: type[_Reply[Any]]
    read: Callable[[Sequence[Question], Any], list[Decision]]  # Reads the answers of a reply.


_FORMS: Final[Mapping[Dialect, _Form]] = {
    "openai": _Form("/decisions", _openai_body, _Reply[list[Any]], _read_openai),
    "systemone": _Form(
        "/systemone",
        lambda request: {
            "state": "\n\n".join(message.content for message in request.messages),
            "questions": {_name(place): _systemone_question(each) for place, each in enumerate(request.questions)},
        },
        _Reply[dict[str, Any]],
        _read_systemone,
    ),
}


class DecisionModel(EndpointModel):
    """A model behind an endpoint for decisions."""

    def __init__(self, settings: ModelSettings, api_key: str | None, proxy: str | None = None) -> None:
        self._form = _FORMS[settings.dialect or "openai"]
        super().__init__(settings, join_path(settings.base_url or "", self._form.path), bearer(api_key), proxy)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer the questions of one request, or raise ``ModelError``."""
        questions = request.questions
        if not questions:
            error = BadModelRequestError("the model answers typed questions only, and this judge asks none")
            error.was_asked = False
            raise error
        body = {"model": self.settings.model, **self._form.body(request)}
        reply = await self._endpoint.post(msgspec.json.encode(body))
        if reply.status != httpx.codes.OK:
            raise translated(reply, read_fault(reply.body), body, self._endpoint)
        try:
            content = decode_reply(reply.body, self._form.reply)
        except UNREADABLE as error:
            raise no_chat_reply(reply, "the reply holds no decisions", "an endpoint for decisions") from error
        fields = reply_fields(None, content.model, content.usage, ("input_tokens", "output_tokens"))
        return ChatResponse(
            text="",
            input_tokens=fields.tokens[0],
            output_tokens=fields.tokens[1],
            model=fields.model,
            invalid=fields.invalid,
            quota=read_quota(reply.headers),
            decisions=tuple(self._form.read(questions, content.answers)),
        )


def make(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None) -> DecisionModel:
    """Make the model of checked settings, or raise ``ModelSettingsError``."""
    return DecisionModel(*read_access(settings, environment, proxy, settings.base_url or ""))
