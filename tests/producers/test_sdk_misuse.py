"""Mistakes of callers are counted and never raise."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sdk_started import StartedSdk

import tracejudge
from tracejudge.delivery.buffer import Kind, Totals

WRONG_FEEDBACK = {
    "too good": ("1", 1.5),
    "not a number": ("1", float("nan")),
    "words": ("1", "good"),
    "true": ("1", True),
    "no trace id": ("", 1),
    "trace id no string": (7, 1),
}


@pytest.mark.swallows
@pytest.mark.parametrize(("trace_id", "score"), WRONG_FEEDBACK.values(), ids=WRONG_FEEDBACK.keys())
def test_wrong_feedback_is_a_counted_drop(sdk: StartedSdk, trace_id: Any, score: Any) -> None:
    tracejudge.feedback(trace_id, score)
    assert tracejudge.flush(60)
    assert sdk.client.totals(Kind.FEEDBACK) == Totals(1, 1, {"invalid": 1})
    assert sdk.client.totals(Kind.TRACE) == Totals(0, 0, {})


MISUSE: dict[str, tuple[tuple[Any, ...], dict[str, Any], int]] = {
    "unknown field": ((), {"output": "a", "outptu": "b"}, 1),
    "no output": ((), {"input": "a"}, 1),
    "no trace": (("a",), {}, 0),
    "trace and fields": ((tracejudge.Trace(trace_id="1", service="s", output=""),), {"model": "m"}, 0),
    "trace id no string": ((), {"output": "a", "trace_id": 7}, 1),
}


@pytest.mark.swallows
@pytest.mark.parametrize(("positional", "fields", "accepted"), MISUSE.values(), ids=MISUSE.keys())
def test_misuse_is_a_counted_drop_and_still_returns_an_id(
    sdk: StartedSdk, positional: tuple[Any, ...], fields: dict[str, Any], accepted: int
) -> None:
    """Some at the door, the rest in the background."""
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(*positional, **fields))
    assert tracejudge.flush(60)
    assert sdk.client.totals() == Totals(published=1, accepted=accepted, dropped={"invalid": 1})
    assert sdk.reports()[0]["dropped"] == {"invalid": 1}


@pytest.mark.swallows
def test_misuse_returns_the_id_that_was_given(sdk: StartedSdk) -> None:
    assert tracejudge.publish(trace_id="mine", unknown=1) == "mine"
    assert tracejudge.flush(60)
    assert sdk.traces() == []


@pytest.mark.swallows
def test_the_counts_balance_after_a_flush(sdk: StartedSdk) -> None:
    """What the hash says was sent is what was accepted less what was dropped after."""
    for number in range(20):
        tracejudge.publish(output=str(number))
        tracejudge.publish(outptu="unknown")
        tracejudge.publish(output="unencodable", tags={"a": object()})
    tracejudge.feedback("1", 1)
    assert tracejudge.flush(60)
    assert sdk.client.totals() == Totals(published=60, accepted=60, dropped={"invalid": 40})
    assert sdk.producer() == {"batch": sdk.producer()["batch"], "service": "shop", "sent": "20", "trimmed": "0"}
    report = sdk.reports()[-1]
    assert report == {
        "producer": sdk.client.producer,
        "seq": len(sdk.reports()),
        "service": "shop",
        "published": 60,
        "accepted": 60,
        "dropped": {"invalid": 40},
    }
    assert [trace["output"] for trace in sdk.traces()] == [str(number) for number in range(20)]


class _Stubborn(list[str]):
    def copy(self) -> "_Stubborn":
        raise OSError("never")


@pytest.mark.swallows
def test_feedback_of_any_kind_never_raises_and_says_why_it_is_lost(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    tracejudge.feedback("abc", _Stubborn())  # type: ignore[arg-type]
    tracejudge.feedback("abc", "bad")  # type: ignore[arg-type]
    assert tracejudge.flush(60)
    assert [entry for entry in sdk.entries() if entry.kind == "f"] == []
    assert "Feedback dropped: invalid (score must be a number from -1 to 1)" in caplog.messages


@pytest.mark.swallows
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": "a"}, "Missing required argument 'output'"),
        ({"output": "a", "contxt": "b"}, "Unexpected keyword argument 'contxt'; did you mean context?"),
        ({"output": "a", "zzz": "b"}, "Unexpected keyword argument 'zzz'"),
        ({"output": 5}, "output must be a string, not int"),
        ({"output": "a", "tags": ["SECRET"]}, "tags must be a dict, not list"),
    ],
    ids=["missing", "misspelt", "unknown", "type", "container"],
)
def test_a_wrong_publication_is_said_in_the_log(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], said: str
) -> None:
    tracejudge.publish(**fields)
    tracejudge.flush(60)
    assert f"Trace dropped: invalid ({said})" in caplog.messages
    assert "SECRET" not in caplog.text
    assert sdk.traces() == []


def test_times_that_cannot_be_times_are_left_out_and_said_once(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    before_s = time.time()
    spans = [tracejudge.Span("1", "a", started_at=1e12, ended_at=1.7e9), {"span_id": "2", "name": "b", "ended_at": 0}]
    for value in (1_700_000_000_000, -1, 1e300, 10**400):
        tracejudge.publish(output="a", started_at=value, ended_at=value, spans=spans)
    assert tracejudge.flush(60)
    for trace in sdk.traces():
        assert "started_at" not in trace
        assert before_s <= trace["ended_at"] <= time.time()
        assert trace["spans"] == [{"span_id": "1", "name": "a", "ended_at": 1.7e9}, {"span_id": "2", "name": "b"}]
    assert len(sdk.traces()) == 4
    (said,) = caplog.messages
    assert said.startswith("Times before 2000 or after 2100 left out, 3 since the start")


def test_a_single_text_is_a_list_of_one_and_a_number_is_feedback(sdk: StartedSdk) -> None:
    tracejudge.publish(output="a", context="one", guidelines="be brief", feedback=-1)
    assert tracejudge.flush(60)
    (trace,) = sdk.traces()
    assert (trace["context"], trace["guidelines"], trace["feedback"]) == (["one"], ["be brief"], {"score": -1})


@pytest.mark.swallows
def test_an_exit_in_a_redaction_of_the_host_costs_its_trace_and_not_the_delivery(
    start: Callable[..., StartedSdk],
) -> None:
    def redact(text: str) -> str:
        if "poison" in text:
            raise SystemExit(3)
        return text

    sdk = start(redact=redact)
    tracejudge.publish(output="poison")
    tracejudge.publish(output="fine")
    assert tracejudge.flush(60)
    assert [trace["output"] for trace in sdk.traces()] == ["fine"]
