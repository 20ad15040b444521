"""How a service uses the SDK, checked by mypy --strict and run by no test: a wrong type here is a broken promise."""

import tracejudge


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
        model="gpt-4.1-mini",
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
