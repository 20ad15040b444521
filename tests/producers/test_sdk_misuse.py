"""Mistakes of callers are counted and never raise."""

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sdk_started import StartedSdk

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
WRONG_FEEDBACK = {
    "too good": ("1", 1.5),
    "not a number": ("1", float("nan")),
    "words": ("1", "good"),
    "no score": ("1", None),
    "no trace id": ("", 1),
    "trace id no text": ([], 1),
}


@pytest.mark.swallows
@pytest.mark.parametrize(("trace_id", "score"), WRONG_FEEDBACK.values(), ids=WRONG_FEEDBACK.keys())
def test_wrong_feedback_is_a_counted_drop(sdk: StartedSdk, trace_id: Any, score: Any) -> None:
    tracejudge.feedback(trace_id, score)
    assert tracejudge.flush(60)
    assert sdk.client.totals(Kind.FEEDBACK) == Totals(1, 1, {"invalid": 1})
    assert sdk.client.totals(Kind.TRACE) == Totals(0, 0, {})


@pytest.mark.swallows
def test_what_has_no_content_is_a_counted_drop_and_still_returns_an_id(sdk: StartedSdk) -> None:
    assert re.fullmatch("[0-9a-f]{32}", tracejudge.publish(input=None, model="m"))
    assert tracejudge.publish(trace_id="mine", user_id=7) == "mine"
    assert tracejudge.flush(60)
    assert sdk.client.totals() == Totals(published=2, accepted=2, dropped={"invalid": 2})
    assert sdk.reports()[0]["dropped"] == {"invalid": 2}
    assert sdk.traces() == []


@pytest.mark.swallows
def test_the_counts_balance_after_a_flush(sdk: StartedSdk) -> None:
    """What the hash says was sent is what was accepted less what was dropped after."""
    for number in range(20):
        tracejudge.publish(output=str(number))
        tracejudge.publish(model="without content")
        tracejudge.publish(output=None, user_id="u")
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
    assert "Feedback dropped: invalid (score must be a number from -1 to 1, not" in caplog.text


def test_each_fault_is_said_once_with_field_type_and_place_and_without_a_text(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        tracejudge.publish(trace_id=f"t{number}", output="SECRET", contxt="SECRET", started_at="SECRET")
    tracejudge.publish(trace_id="t3", input="SECRET")
    assert tracejudge.flush(60)
    place = f"{__file__}:"
    warnings = [message.partition(place) for message in caplog.messages]
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
    assert tracejudge.flush(60)
    many = {"...": "mine"} | {f"name{number}": 1 for number in range(3_000)}
    tracejudge.publish({**names, "output": "a"}, input="q", further=1)
    tracejudge.publish(output="a", tags=many)
    tracejudge.publish(output="a", tags={"b": "c"}, metadata=many)
    assert tracejudge.flush(60)
    tags = [trace["tags"] for trace in sdk.traces()]
    assert [(trace["output"], len(trace["tags"])) for trace in sdk.traces()] == [("a", 500)] * 4 + [("a", 501)]
    assert [names.get("...") for names in tags] == [None] * 3 + ["mine"] * 2
    assert not any(value.startswith("[...") for names in tags for value in names.values())
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


@pytest.mark.swallows
def test_feedback_without_effect_is_reported_with_its_cause_and_place(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    for trace_id, score in (("t", "SECRET"), (None, 1), ("t", [5]), (object(), 1), ("t", 5)):
        tracejudge.feedback(trace_id, score)  # type: ignore[arg-type]
    assert tracejudge.flush(60)
    scale = "scale a rating, as (stars - 3) / 2 for 1 to 5, or pass True or False for a thumb"
    assert [message.partition("; published at ")[0] for message in caplog.messages] == [
        f"Feedback dropped: invalid (score must be a number from -1 to 1, not str); {scale}; trace id t",
        "Feedback dropped: invalid (trace_id must be a non-empty string, not NoneType); pass what publish returned",
    ]
    assert all(f"published at {__file__}:" in message for message in caplog.messages)
    assert sdk.client.totals(Kind.FEEDBACK).dropped == {"invalid": 5}


def test_a_second_init_repeats_no_warning(start: Callable[..., StartedSdk], caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_fault_without_its_place_is_said_again_with_it(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports(lambda: 0.0)
    reports.sites_left = 0
    for site in (None, None, "bot.py:1", "bot.py:2"):
        reports.add([Note("missing", "output")], "t", site)
    assert caplog.messages == [f"{_MISSING}; trace id t", f"{_MISSING}; trace id t; published at bot.py:1"]
    assert reports.sites_left > 0, "the place of the next call is recorded"


def test_times_that_cannot_be_times_are_left_out_and_said_once(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    before_s = time.time()
    spans = [tracejudge.Span("1", "a", started_at=1e11, ended_at=1.7e9), {"span_id": "2", "name": "b", "ended_at": 0}]
    for value in (5_000_000_000, -1, 1e300, 10**400):
        tracejudge.publish(output="a", started_at=value, ended_at=value, spans=spans)
    assert tracejudge.flush(60)
    for trace in sdk.traces():
        assert "started_at" not in trace
        assert before_s <= trace["ended_at"] <= time.time()
        assert trace["spans"] == [{"span_id": "1", "name": "a", "ended_at": 1.7e9}, {"span_id": "2", "name": "b"}]
    assert len(sdk.traces()) == 4
    assert sorted(message.split()[1] for message in caplog.messages) == [
        *("ended_at", "spans.ended_at", "spans.started_at", "started_at")
    ]


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
