"""Mistakes of callers are counted and said once, and never raise."""

import re
import time
from collections import Counter
from typing import Any

import pytest
from sdk_rig import StartedSdk

import tracejudge
from tracejudge.content.convert import Note, Notes, convert_trace
from tracejudge.content.field_names import MAX_TAGS, closest_field
from tracejudge.delivery.buffer import Kind, Totals
from tracejudge.delivery.sender import MAX_WARNINGS, Reports

_MISSING = "Field output is missing: pass the answer as output, or the failure of the call as error"
_NO_TIME = (
    "Field started_at cannot be read from a value of type str and is left out; "
    "it is read from a number of seconds, a datetime or a text in ISO 8601"
)


class _Stubborn(list[str]):
    def copy(self) -> "_Stubborn":
        raise OSError("never")


@pytest.mark.swallows
def test_wrong_feedback_is_a_drop_with_its_cause_and_place(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[tuple[Any, Any]] = [
        *(("t", "SECRET"), (None, 1), ("t", [5]), (object(), 1), ("t", 5), ("1", 1.5), ("1", float("nan"))),
        *(("1", None), ("", 1), ([], 1), ("abc", _Stubborn())),
    ]
    for count, (trace_id, score) in enumerate(wrong, 1):
        tracejudge.feedback(trace_id, score)
        assert tracejudge.flush(60)
        assert sdk.client.totals(Kind.FEEDBACK) == Totals(count, count, {"invalid": count}), (trace_id, score)
    assert sdk.client.totals(Kind.TRACE) == Totals(0, 0, {})
    assert sdk.records("f") == []
    scale = "scale a rating, as (stars - 3) / 2 for 1 to 5, or pass True or False for a thumb"
    assert [message.partition("; published at ")[0] for message in caplog.messages] == [
        f"Feedback dropped: invalid (score must be a number from -1 to 1, not str); {scale}; trace id t",
        "Feedback dropped: invalid (trace_id must be a non-empty string, not NoneType); pass what publish returned",
    ]
    assert all(f"published at {__file__}:" in message for message in caplog.messages)


@pytest.mark.swallows
def test_what_has_no_content_is_a_counted_drop_and_the_counts_balance_after_a_flush(sdk: StartedSdk) -> None:
    """What the hash says was sent is what was accepted less what was dropped after."""
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(input=None, model="m"))
    assert tracejudge.publish(trace_id="mine", user_id=7) == "mine"
    assert sdk.flushed() == []
    assert sdk.client.totals() == Totals(published=2, accepted=2, dropped={"invalid": 2})
    assert sdk.reports()[0]["dropped"] == {"invalid": 2}
    for number in range(20):
        tracejudge.publish(output=str(number))
        tracejudge.publish(model="without content")
        tracejudge.publish(output=None, user_id="u")
    tracejudge.feedback("1", 1)
    assert tracejudge.flush(60)
    assert sdk.client.totals() == Totals(published=62, accepted=62, dropped={"invalid": 42})
    assert sdk.producer() == {"batch": sdk.producer()["batch"], "service": "shop", "sent": "20", "trimmed": "0"}
    report = {"producer": sdk.client.producer, "seq": len(sdk.reports()), "service": "shop"}
    assert sdk.reports()[-1] == {**report, "published": 62, "accepted": 62, "dropped": {"invalid": 42}}
    assert sdk.outputs() == [str(number) for number in range(20)]


def test_each_fault_is_said_once_with_field_type_and_place_and_without_a_text(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        tracejudge.publish(trace_id=f"t{number}", output="SECRET", contxt="SECRET", started_at="SECRET")
    tracejudge.publish(trace_id="t3", input="SECRET")
    assert tracejudge.flush(60)
    warnings = [message.partition(f"{__file__}:") for message in caplog.messages]
    assert [before for before, _, _ in warnings] == [
        "Field contxt is no field and is sent as a tag; did you mean context?; trace id t0; published at ",
        f"{_NO_TIME}; trace id t0; published at ",
        f"{_MISSING}; trace id t3; published at ",
    ]
    assert all(line.isdigit() for _, _, line in warnings)
    assert "SECRET" not in caplog.text
    assert len(sdk.traces()) == 4
    caplog.clear()
    tracejudge.shutdown()
    (summary,) = caplog.messages
    assert summary.startswith("Faults of published traces since the start, by reason and field: ")
    assert summary.endswith(": unknown_name contxt 3, unreadable started_at 3, missing output 1")


def test_at_most_twenty_warnings_and_the_totals_each_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    reports = Reports(lambda: clock[0])
    for number in range(30):
        reports.add([Note("unknown_name", f"f{number}")] * 2, "t", "bot.py:1")
    assert len(caplog.messages) == MAX_WARNINGS
    assert caplog.messages[-1].endswith("further faults are only counted")
    caplog.clear()
    for clock[0] in (10.0, 3600.0, 3601.0, 7200.0):
        reports.summarize()
    assert len(caplog.messages) == 1, "nothing new after the first hour"
    assert "unknown_name f29 2" in caplog.messages[0]
    caplog.clear()
    reports = Reports(lambda: 0.0)
    reports.sites_left = 0
    for site in (None, None, "bot.py:1", "bot.py:2"):
        reports.add([Note("missing", "output")], "t", site)
    assert caplog.messages == [f"{_MISSING}; trace id t", f"{_MISSING}; trace id t; published at bot.py:1"]
    assert reports.sites_left > 0, "the place of the next call is recorded"


def test_a_hint_names_a_field_only_for_a_misspelt_name() -> None:
    for name, field in (("contxt", "context"), ("anwser", "output"), ("sesion_id", "session_id"), ("promt", "input")):
        assert closest_field(name) == field, name
    for name in ("tenant", "region", "plan", "product", "customer", "category", "finish_reason", "request_id"):
        assert closest_field(name) is None, name


def test_a_field_after_very_many_names_is_read(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    """The count of the names that are cut is no tag, which could be one of the caller's."""
    names = {f"name{number}": 1 for number in range(700)}
    tracejudge.publish(**names, output="a")
    tracejudge.publish({**names, "output": "a", "input": "q"})
    many = {"...": "mine"} | {f"name{number}": 1 for number in range(3_000)}
    tracejudge.publish({**names, "output": "a"}, input="q", further=1)
    tracejudge.publish(output="a", tags=many)
    tracejudge.publish(output="a", tags={"b": "c"}, metadata=many)
    traces = sdk.flushed()
    assert [(trace["output"], len(trace["tags"])) for trace in traces] == [("a", 500)] * 4 + [("a", 501)]
    assert [trace["tags"].get("...") for trace in traces] == [None] * 3 + ["mine"] * 2
    assert not any(value.startswith("[...") for trace in traces for value in trace["tags"].values())
    tracejudge.shutdown(60)
    assert "Field tags has too many names; the last 200 are left out" in caplog.text
    assert f"too_many tags {200 + 200 + 201 + 2 * 2_501}" in caplog.text


def test_names_without_end_cost_little_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The field that a name resembles takes a third of a millisecond to find, so it is for names that are shown."""
    notes, began = Notes(), time.process_time()
    fields = convert_trace({"output": "a", **{f"name{number}": 1 for number in range(200_000)}, "contxt": "b"}, notes)
    assert len(fields["tags"]) == MAX_TAGS
    assert Counter(note.reason for note in notes.entries) == {"unknown_name": MAX_TAGS, "too_many": 1}
    reports = Reports(time.monotonic)
    reports.add(notes.entries, "t", "bot.py:1")
    reports.summarize(at_end=True)
    assert time.process_time() - began < 3
    assert "too_many tags 199001" in caplog.messages[-1]
    assert len(caplog.messages) == MAX_WARNINGS + 1


def test_a_second_init_repeats_no_warning(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        start()
        for number in range(15):
            tracejudge.publish(output="a", started_at="soon", **{f"key{number}": 1})
        tracejudge.publish({"output": "a", "my words are SECRET": 1})
        assert tracejudge.flush(60)
    warnings = [message for message in caplog.messages if message.startswith("Field ")]
    assert len(warnings) == 17
    assert "Field (another) is no field" in warnings[-1]
    assert "SECRET" not in caplog.text


def test_times_that_cannot_be_times_are_left_out_and_said_once(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    before_s = time.time()
    spans = [tracejudge.Span("1", "a", started_at=1e11, ended_at=1.7e9), {"span_id": "2", "name": "b", "ended_at": 0}]
    for value in (5_000_000_000, -1, 1e300, 10**400):
        tracejudge.publish(output="a", started_at=value, ended_at=value, spans=spans)
    traces = sdk.flushed()
    assert len(traces) == 4
    for trace in traces:
        assert "started_at" not in trace
        assert before_s <= trace["ended_at"] <= time.time()
        assert trace["spans"] == [{"span_id": "1", "name": "a", "ended_at": 1.7e9}, {"span_id": "2", "name": "b"}]
    fields = ["ended_at", "spans.ended_at", "spans.started_at", "started_at"]
    assert sorted(message.split()[1] for message in caplog.messages) == fields


@pytest.mark.swallows
def test_an_exit_in_a_redaction_of_the_host_costs_its_trace_and_not_the_delivery(start: Any) -> None:
    def redact(text: str) -> str:
        if "poison" in text:
            raise SystemExit(3)
        return text

    sdk = start(redact=redact)
    tracejudge.publish(output="poison")
    tracejudge.publish(output="fine", context="one", guidelines="be brief", feedback=-1)
    (trace,) = sdk.flushed()
    assert trace["output"] == "fine"
    assert (trace["context"], trace["guidelines"], trace["feedback"]) == (["one"], ["be brief"], {"score": -1})
