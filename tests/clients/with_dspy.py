"""DSPy through OpenInference, whose spans of model calls name the requested model alone."""

import asyncio
import os
import tempfile
from typing import Any

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()

import dspy
import harness
from openinference.instrumentation.dspy import DSPyInstrumentor

DSPyInstrumentor().instrument(tracer_provider=harness.provider)
dspy.configure(
    lm=dspy.LM(f"openai/{harness.MODEL}", api_base=harness.BASE_URL, api_key="none", cache=False, num_retries=0)
)


class Answer(dspy.Module):
    """Finds documents and answers from them."""

    def __init__(self) -> None:
        super().__init__()
        self.search = dspy.Retrieve(k=len(harness.DOCUMENTS))
        self.answer = dspy.Predict(dspy.Signature("context: list[str], question -> answer", harness.SYSTEM))

    def forward(self, question: str) -> dspy.Prediction:
        return self.answer(context=self.search(question).passages, question=question)


def ask(question: str, signature: str = "question -> answer", **fields: Any) -> None:
    """Predict the output fields of a signature within a request."""
    with harness.request():
        dspy.Predict(dspy.Signature(signature, harness.SYSTEM))(question=question, **fields)


def stream() -> None:
    async def work() -> None:
        predict = dspy.Predict(dspy.Signature("question -> answer", harness.SYSTEM))
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        async for _ in dspy.streamify(predict, stream_listeners=[listener])(question=harness.QUESTION):
            pass

    with harness.request():
        asyncio.run(work())


def two_turns() -> None:
    ask(harness.QUESTION)
    history = dspy.History(messages=[{"question": harness.QUESTION, "answer": harness.ANSWER}])
    ask(harness.QUESTION, "question, history: dspy.History -> answer", history=history)


def tool() -> None:
    signature = dspy.Signature("question -> answer", harness.SYSTEM)
    with harness.request():
        dspy.ReAct(signature, tools=[harness.track])(question=harness.TOOL_QUESTION)


def retrieval() -> None:
    with harness.request(), dspy.context(rm=dspy.ColBERTv2(url=f"{harness.ROOT_URL}/colbert")):
        Answer()(question=harness.RETRIEVAL_QUESTION)


others = {one.__name__: one for one in (stream, two_turns, tool, retrieval)}
harness.run(harness.asked(ask, **others, typed={"signature": "question -> city: str, days: int"}))
