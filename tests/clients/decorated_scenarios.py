"""The scenarios of OpenAI's client below functions that a tracing SDK decorates, whichever SDK.

`observe(kind, name)` gives the decorator of a step of the kind `agent`, `chain`, `tool` or `retriever`. `request`
opens the span of a request, or what else names the session and the user.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import harness
import openai_scenarios
from openai_scenarios import ask

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def scenarios(
    observe: Callable[[str, str], Decorator],
    request: Callable[[], AbstractContextManager[Any]] = harness.request,
    documents: list[Any] = harness.DOCUMENTS,
) -> dict[str, Callable[[], None]]:
    """Build the scenarios by name."""

    @observe("chain", "answer")
    def answer(question: str) -> str:
        return str(ask(question).choices[0].message.content)

    @observe("chain", "answer")
    def answer_again(question: str, history: list[dict[str, str]]) -> str:
        return str(ask(question, *history).choices[0].message.content)

    track = observe("tool", "track")(harness.track)

    @observe("agent", "support")
    def support(question: str) -> str:
        return openai_scenarios.use_tool(question, track)

    @observe("retriever", "search")
    def search(query: str) -> list[Any]:
        return documents if query else []

    @observe("chain", "answer")
    def answer_from_documents(question: str) -> str:
        search(question)
        return str(ask(harness.stuffed(question)).choices[0].message.content)

    @observe("agent", "support")
    def choose(question: str) -> dict[str, Any]:
        answer = ask(question, response_format=openai_scenarios.STAY_FORMAT).choices[0].message.content
        return dict(json.loads(answer))

    def stream() -> None:
        with request():
            for _ in ask(harness.QUESTION, stream=True, stream_options={"include_usage": True}):
                pass

    def in_request(work: Callable[..., object], *arguments: object) -> None:
        with request():
            work(*arguments)

    def two_turns() -> None:
        in_request(answer, harness.QUESTION)
        in_request(answer_again, harness.QUESTION, harness.TURNS)

    return {
        "single": lambda: in_request(answer, harness.QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": lambda: in_request(support, harness.TOOL_QUESTION),
        "retrieval": lambda: in_request(answer_from_documents, harness.RETRIEVAL_QUESTION),
        "typed": lambda: in_request(choose, harness.TYPED_QUESTION),
        "error": lambda: in_request(answer, harness.ERROR_QUESTION),
    }
