"""DSPy through OpenInference, whose spans of model calls name the requested model alone."""

import asyncio
import os
import tempfile
from typing import Any

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()

import dspy
from harness import (
    ANSWER,
    BASE_URL,
    DOCUMENTS,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    ROOT_URL,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    provider,
    request,
    run,
    track,
)
from openinference.instrumentation.dspy import DSPyInstrumentor

DSPyInstrumentor().instrument(tracer_provider=provider)
dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key="none", cache=False, num_retries=0))


class Answer(dspy.Module):
    """Finds documents and answers from them."""

    def __init__(self) -> None:
        super().__init__()
        self.search = dspy.Retrieve(k=len(DOCUMENTS))
        self.answer = dspy.Predict(dspy.Signature("context: list[str], question -> answer", SYSTEM))

    def forward(self, question: str) -> dspy.Prediction:
        return self.answer(context=self.search(question).passages, question=question)


def ask(signature: str, question: str, **fields: Any) -> None:
    """Predict the output fields of a signature within a request."""
    with request():
        dspy.Predict(dspy.Signature(signature, SYSTEM))(question=question, **fields)


def stream() -> None:
    async def work() -> None:
        predict = dspy.Predict(dspy.Signature("question -> answer", SYSTEM))
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        async for _ in dspy.streamify(predict, stream_listeners=[listener])(question=QUESTION):
            pass

    with request():
        asyncio.run(work())


def two_turns() -> None:
    ask("question -> answer", QUESTION)
    history = dspy.History(messages=[{"question": QUESTION, "answer": ANSWER}])
    ask("question, history: dspy.History -> answer", QUESTION, history=history)


def tool() -> None:
    with request():
        dspy.ReAct(dspy.Signature("question -> answer", SYSTEM), tools=[track])(question=TOOL_QUESTION)


def retrieval() -> None:
    with request(), dspy.context(rm=dspy.ColBERTv2(url=f"{ROOT_URL}/colbert")):
        Answer()(question=RETRIEVAL_QUESTION)


run(
    {
        "single": lambda: ask("question -> answer", QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "typed": lambda: ask("question -> city: str, days: int", TYPED_QUESTION),
        "error": lambda: ask("question -> answer", ERROR_QUESTION),
    }
)
