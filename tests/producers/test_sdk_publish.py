"""From the call to the entry in a real Redis."""

import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry import trace as opentelemetry
from sdk_started import StartedSdk
from support.processes import wait_until

import tracejudge

Start = Callable[..., StartedSdk]

EVERYTHING: dict[str, Any] = {
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "service": "billing",
    "output": "On its way… ça va.",
    "id": "0123456789abcdef",
    "span_id": "00f067aa0ba902b7",
    "environment": "staging",
    "release": "1.2",
    "name": "answer",
    "session_id": "s-1",
    "user_id": "u-1",
    "response_id": "r-1",
    "started_at": 1700000000.25,
    "ended_at": 1700000001.5,
    "provider": "openai",
    "model": "gpt-6-luna",
    "input": "Where is my parcel?",
    "messages": [{"role": "system", "content": "Be kind."}],
    "context": [{"text": "Parcels take a day.", "id": "d1", "score": 0.5}, "Plain text."],
    "expected_response": "It is on its way.",
    "expected_facts": ["on its way"],
    "guidelines": ["be short"],
    "tool_calls": [{"name": "track", "arguments": {"parcel": 7}, "result": [1, None], "error": "late"}],
    "spans": [{"span_id": "00f067aa0ba902b8", "name": "retrieve", "attributes": {"k": 3}}],
    "usage": {"input_tokens": 12, "output_tokens": 3},
    "error": "slow",
    "feedback": {"score": 0.5, "comment": "ok"},
    "tags": {"team": "a"},
}


def test_every_field_arrives_as_it_was_given(sdk: StartedSdk) -> None:
    assert tracejudge.publish(**EVERYTHING) == EVERYTHING["trace_id"]
    assert tracejudge.flush(60)
    entry = sdk.entries()[0]
    assert (entry.kind, entry.version, entry.producer) == ("t", "1", sdk.client.producer)
    assert entry.record == EVERYTHING


def test_a_trace_object_arrives_like_its_fields(sdk: StartedSdk) -> None:
    trace = tracejudge.Trace(
        trace_id="0af7651916cd43dd8448eb211c80319c",
        service="billing",
        output="Done.",
        span_id="00f067aa0ba902b7",
        ended_at=1_700_000_007,
        context=[tracejudge.Document(text="a"), "b"],
        usage=tracejudge.Usage(input_tokens=1),
    )
    assert tracejudge.publish(trace) == trace.trace_id
    assert tracejudge.flush(60)
    (stored,) = sdk.traces()
    assert re.fullmatch("[0-9a-f]{16}", stored.pop("id"))
    assert stored == {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "service": "billing",
        "output": "Done.",
        "span_id": "00f067aa0ba902b7",
        "ended_at": 1_700_000_007,
        "context": [{"text": "a"}, "b"],
        "usage": {"input_tokens": 1},
    }


def test_ids_and_what_init_said_fill_the_rest(start: Start) -> None:
    sdk = start(environment="prod", release="8")
    before_s = time.time()
    trace_id = tracejudge.publish(output="Done.")
    after_s = time.time()
    assert tracejudge.flush(60)
    (stored,) = sdk.traces()
    assert before_s <= stored.pop("ended_at") <= after_s
    assert re.fullmatch("[0-9a-f]{32}", trace_id)
    assert re.fullmatch("[0-9a-f]{16}", stored.pop("id"))
    assert re.fullmatch("[0-9a-f]{16}", stored.pop("span_id"))
    assert stored == {"trace_id": trace_id, "service": "shop", "output": "Done.", "environment": "prod", "release": "8"}


def test_every_publication_has_an_id_of_its_own(sdk: StartedSdk) -> None:
    for _ in range(3):
        tracejudge.publish(trace_id="same", output="again")
    assert tracejudge.flush(60)
    assert len({stored["id"] for stored in sdk.traces()}) == 3


def in_span() -> Any:
    context = opentelemetry.SpanContext(0xA1 << 120, 0xB2 << 56, is_remote=False)
    return opentelemetry.use_span(opentelemetry.NonRecordingSpan(context))


def test_ids_come_from_the_current_span(sdk: StartedSdk) -> None:
    with in_span():
        trace_id = tracejudge.publish(output="Done.")
    assert trace_id == "a1" + "0" * 30
    assert tracejudge.flush(60)
    assert sdk.traces()[0]["span_id"] == "b2" + "0" * 14


def test_another_trace_does_not_get_the_current_span(sdk: StartedSdk) -> None:
    with in_span():
        tracejudge.publish(output="Done.", trace_id="c" * 32)
    assert tracejudge.flush(60)
    (stored,) = sdk.traces()
    assert stored["trace_id"] == "c" * 32
    assert stored["span_id"] != "b2" + "0" * 14


def test_lists_and_dicts_are_copied_at_the_call(sdk: StartedSdk) -> None:
    """The sender is kept from encoding until the caller has changed what it gave."""
    context, tags = ["first"], {"k": "v"}
    with sdk.client._delivery.buffer._lock:
        tracejudge.publish(output="a", context=context, tags=tags)
        tracejudge.publish(tracejudge.Trace(trace_id="1", service="s", output="b", context=context))
        context.append("second")
        tags.clear()
    assert tracejudge.flush(60)
    stored = sdk.traces()
    assert [trace["context"] for trace in stored] == [["first"], ["first"]]
    assert stored[0]["tags"] == {"k": "v"}


def test_late_feedback_is_an_entry_of_its_own(sdk: StartedSdk) -> None:
    trace_id = tracejudge.publish(output="Done.")
    tracejudge.feedback(trace_id, score=-1)
    tracejudge.feedback(trace_id, 0.5, comment="better")
    assert tracejudge.flush(60)
    feedback = [entry.record for entry in sdk.entries() if entry.kind == "f"]
    assert feedback == [{"trace_id": trace_id, "score": -1}, {"trace_id": trace_id, "score": 0.5, "comment": "better"}]
    assert sdk.producer()["sent"] == "1"


def test_many_threads_publish_and_nothing_is_lost_or_doubled(sdk: StartedSdk) -> None:
    def publish(first: int) -> None:
        for number in range(first, first + 300):
            tracejudge.publish(output=str(number))

    threads = [threading.Thread(target=publish, args=(first,)) for first in range(0, 2_400, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracejudge.flush(60)
    assert sorted(int(trace["output"]) for trace in sdk.traces()) == list(range(2_400))


def test_without_a_flush_an_entry_is_there_soon(sdk: StartedSdk) -> None:
    tracejudge.publish(output="a")
    wait_until(lambda: len(sdk.traces()) == 1)


def test_the_stream_is_capped_and_the_cut_counted(start: Start) -> None:
    sdk = start(max_stream=100)
    for number in range(1_000):
        tracejudge.publish(output=str(number))
    assert tracejudge.flush(60)
    stored, producer = sdk.entries(), sdk.producer()
    assert 100 <= len(stored) < 300
    assert producer["sent"] == "1000"
    # Of the reports all that were ever made: one that was due on the way may have been cut off like the traces.
    assert int(producer["trimmed"]) == 1_000 + sdk.reports()[-1]["seq"] - len(stored)


def test_a_signal_handler_may_publish(sdk: StartedSdk) -> None:
    former = signal.signal(signal.SIGUSR1, lambda *_: tracejudge.publish(output="signal"))
    try:
        for _ in range(200):
            tracejudge.publish(output="main")
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert tracejudge.flush(60)
    assert sdk.producer()["sent"] == "400"
