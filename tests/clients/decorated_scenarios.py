"""The scenarios of OpenAI's client below functions that a tracing SDK decorates, whichever SDK.

`observe(kind, name)` gives the decorator of a step of the kind `agent`, `chain`, `tool` or `retriever`. `request`
opens the span of a request, or what else names the session and the user.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
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
    def answer(question: str, history: Sequence[dict[str, str]] = ()) -> str:
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

    works: dict[str, list[tuple[Any, ...]]] = {
        "single": [(answer, harness.QUESTION)],
        "stream": [(partial(ask, stream=True), harness.QUESTION)],
        "two_turns": [(answer, harness.QUESTION), (answer, harness.QUESTION, harness.TURNS)],
        "tool": [(support, harness.TOOL_QUESTION)],
        "retrieval": [(answer_from_documents, harness.RETRIEVAL_QUESTION)],
        "typed": [(choose, harness.TYPED_QUESTION)],
        "error": [(answer, harness.ERROR_QUESTION)],
    }

    def run(name: str) -> None:
        for work, *arguments in works[name]:
            with request():
                work(*arguments)

    return {name: partial(run, name) for name in works}
