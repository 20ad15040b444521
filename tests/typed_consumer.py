"""How a service uses the SDK, and how an author writes a judge: checked by mypy --strict and run by no test.

A wrong type here is a broken promise.
"""

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, assert_type

import tracejudge
from judges import JudgeVerdict, evaluate, evaluate_aio, evaluate_all, groundedness, make_judge, safety
from judges.code import CodeJudge, Metric, Score, judge, texts_of


def configure() -> None:
    tracejudge.init(service="support-bot", environment="prod", release="1.4.2", redis_url="redis://localhost:6379/0")


def answer(question: str) -> str:
    documents = [tracejudge.Document("Parcels arrive on Monday.", id="faq-1", score=0.9)]
    reply = "On Monday."
    trace_id: str = tracejudge.publish(
        input=question,
        output=reply,
        context=documents,
        messages=[tracejudge.Message("system", "Be brief.")],
        model="gpt-6-luna",
        usage=tracejudge.Usage(100, 10),
        tags={"team": "support"},
    )
    tracejudge.feedback(trace_id, score=-1, comment="It came on Tuesday.")
    return reply


def whole_trace() -> str:
    return tracejudge.publish(tracejudge.Trace(trace_id="0" * 31 + "1", service="bot", output="Yes."))


def finish() -> bool:
    everything_arrived: bool = tracejudge.flush(timeout=5.0)
    tracejudge.shutdown(timeout=2.0)
    return everything_arrived


@tracejudge.observe
def observed(question: str, *, limit: int = 3) -> list[str]:
    return [question] * limit


@tracejudge.observe(name="answer", kind="llm", model="gpt-6-luna", tags={"team": "support"})
async def observed_later(question: str) -> int:
    return len(question)


@tracejudge.observe(input="question", output=lambda piece: piece)
def streamed(question: str, tenant: str) -> Iterator[str]:
    yield from (question, tenant)


@tracejudge.observe(input=lambda question: question)
async def streamed_later(question: str) -> AsyncIterator[str]:
    yield question


class Shop:
    @tracejudge.observe
    def method(self, question: str) -> str:
        return question

    @classmethod
    @tracejudge.observe(kind="tool")
    def of_class(cls, question: str) -> str:
        return question


async def types_survive_observation() -> None:
    assert_type(observed("Where?", limit=2), list[str])
    assert_type(await observed_later("Where?"), int)
    assert_type(streamed("Where?", "a"), Iterator[str])
    assert_type([piece async for piece in streamed_later("Where?")], list[str])
    assert_type(Shop().method("Where?"), str)
    assert_type(Shop.of_class("Where?"), str)
    observed(question=3)  # type: ignore[arg-type]
    observed("Where?", depth=3)  # type: ignore[call-arg]
    Shop().method()  # type: ignore[call-arg]
    tracejudge.observe(naming="answer")(observed)("Where?")
    tracejudge.observe(name=3)(observed)  # type: ignore[call-overload]


async def blocks() -> str:
    with tracejudge.trace(name="answer", input="Where?", user_id="u-1") as t:
        t.output = {"text": "Here."}
        t.context = ["It is here.", tracejudge.Document("Or there.")]
        t.usage = tracejudge.Usage(1, 2)
        t.set(session_id="s-1", tenant="a")
        t.model = 4  # type: ignore[assignment]
        t.outptu = "Here."  # type: ignore[attr-defined]
        assert_type(t, tracejudge.OpenTrace)
    async with tracejudge.trace(kind="retriever") as step:
        step.output = [tracejudge.Document("It is here.")]
    tracejudge.current().user_id = "u-1"
    assert_type(t.span_id, str)
    trace_id: str = tracejudge.current().trace_id
    return trace_id


@judge
def has_link(trace: tracejudge.Trace) -> bool:
    return "https://" in trace.output


@judge(needs=("output", ("expected_response", "expected_facts")), pass_at=0.5, version="2", time_limit_s=3)
def length(trace: tracejudge.Trace) -> float | None:
    return min(1.0, len(trace.output) / 100) if trace.output else None


@judge(metrics=(Metric("short", "0 or 1", "true"), Metric("calls", "0..1", None, descriptive=True)))
def several(trace: tracejudge.Trace) -> Sequence[Score]:
    calls = [call.name for call in trace.tool_calls or []]
    return [Score(len(trace.output) < 100, metric="short", rationale="By its length."), Score(not calls, "calls")]


@judge(asks="Is the answer good?")
async def asked_later(trace: tracejudge.Trace) -> Score | bool | None:
    return Score(1, passed=True, raw="A", label="best") if trace.output else None


async def judges_keep_their_types(trace: tracejudge.Trace) -> None:
    assert_type(has_link, CodeJudge[bool])
    assert_type(has_link(trace), bool)
    assert_type(length(trace), float | None)
    assert_type(several(trace), Sequence[Score])
    assert_type(asked_later, CodeJudge[Coroutine[Any, Any, Score | bool | None]])
    assert_type(await asked_later(trace), Score | bool | None)
    assert_type(texts_of(trace.context), list[str])
    has_link("text")  # type: ignore[arg-type]
    judge(pass_at=("high",))  # type: ignore[call-overload]
    judge(passes=0.5)  # type: ignore[call-overload]
    Score("high")  # type: ignore[arg-type]


@judge  # type: ignore[type-var]
def no_judge(_trace: tracejudge.Trace) -> bytes:
    return b"good"


@judge  # type: ignore[type-var]
async def no_judge_later(_trace: tracejudge.Trace) -> list[float]:
    return [0.5]


@judge()  # type: ignore[arg-type]
def judge_of_a_text(text: str) -> bool:
    return bool(text)


async def judges_of_a_notebook(frame: "Frame") -> None:
    verdict = groundedness(inputs="Who?", outputs="Ada.", context=["Ada."], model="openai:/gpt-6-luna")
    assert_type(verdict, JudgeVerdict)
    assert_type(await safety.aio(outputs="Ada.", model={"base_url": "http://localhost/v1", "model": "m"}), JudgeVerdict)
    assert_type((verdict.value, verdict.passed), tuple[float | None, bool | None])
    tone = make_judge("tone", "Is {{ outputs }} polite?", result=["polite", "rude"])
    rows = [{"inputs": "Who?", "outputs": "Ada."}]
    assert_type(evaluate(rows, tone), list[JudgeVerdict])
    assert_type(evaluate_all(rows, [tone, safety]), list[dict[str, JudgeVerdict]])
    assert_type(await evaluate_aio(frame, tone.configured(model="lexical")), Frame)
    groundedness("Who?")  # type: ignore[arg-type]
    evaluate(rows, [tone])  # type: ignore[call-overload]
    verdict.value = 1.0  # type: ignore[misc]


class Frame:
    columns: list[str]
