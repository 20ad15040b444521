"""A decision model in this process, which answers typed questions by rule."""

from collections.abc import Callable
from typing import Final

from judges.core.decision import Decision, Question
from judges.core.model import ChatRequest, ChatResponse, ModelSettings

Answering = Callable[[Question], Decision | None]
DECIDES: Final = ModelSettings(provider="decisions", base_url="http://localhost", model="decider")


def sure(share: float) -> Answering:
    """Answer all alike: a predicate with a probability, a score or choice with the rest spread over other options."""

    def answer(question: Question) -> Decision:
        if question.kind == "predicate":
            return Decision((share,))
        # Of a score the last option is the best, of a choice the first is.
        others = [(1 - share) / (len(question.options) - 1)] * (len(question.options) - 1)
        return Decision((*others, share) if question.kind == "score" else (share, *others))

    return answer


class DecisionModel:
    """Answers each question by a function; None leaves the answers from there on out."""

    def __init__(self, answering: Answering, settings: ModelSettings = DECIDES) -> None:
        self.settings = settings
        self.requests: list[ChatRequest] = []
        self._answering = answering

    async def complete(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        answers = [self._answering(question) for question in request.questions]
        result = tuple(answer for answer in answers if answer is not None)
        return ChatResponse("", input_tokens=100, output_tokens=len(result), decisions=result)

    async def aclose(self) -> None:
        """Close nothing."""
