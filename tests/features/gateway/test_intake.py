"""Plain JSON is read by the converter that the SDK and the worker share."""

import json
from typing import Any

import msgspec
import pytest
from support.cases import each_case

from worker.core.config.settings import Settings
from worker.features.gateway.admission import Form, RefusedError
from worker.features.gateway.intake import Encoder, Intake, read_intake, sdk_settings

IDS = ("trace_id", "span_id", "id", "service")


def intake(body: str | bytes, form: Form = Form.JSON, *, service: str | None = None, key: str | None = None) -> Intake:
    content = body if isinstance(body, bytes) else body.encode()
    encoder = Encoder(sdk_settings(Settings()))
    return read_intake(content, form, encoder, service=service, repeat_key=key, now_s=1.0)


def arrived(intake_result: Intake) -> list[dict[str, Any]]:
    return [json.loads(entry.payload) for entry in intake_result.entries]


def test_other_names_and_a_wrong_field_are_no_reason_to_reject() -> None:
    secret = "the user's own text"  # noqa: S105 - a text
    intake_result = intake(
        json.dumps(
            [
                {"serviceName": "bot", "traceId": "A" * 32, "prompt": "q", "answer": "a", "sessionId": None},
                {"app": "bot", "output": "b", "startTime": "2023-11-14T22:13:20", "documents": [{"text": "d"}, 7.5]},
                {"service": "bot", "output": "c", "usage": secret, "feedback": secret, "trace_id": {"a": secret}},
                {"service": "bot", "output": "d", "usage": [secret]},
            ]
        )
    )
    traces = arrived(intake_result)
    assert [trace["service"] for trace in traces] == ["bot"] * 4
    assert (traces[0]["input"], traces[0]["output"], traces[0]["trace_id"]) == ("q", "a", "A" * 32)
    assert traces[1]["started_at"] == 1_700_000_000
    assert intake_result.reply()["accepted"] == 4
    assert intake_result.reply()["left_out"] == [
        {"field": "feedback", "type": "string", "count": 1},
        {"field": "trace_id", "type": "object", "count": 1},
        {"field": "usage", "type": "array", "count": 1},
        {"field": "usage", "type": "string", "count": 1},
    ]
    assert secret not in json.dumps(intake_result.reply())


@each_case(
    ("body", "reason"),
    [
        ('{"output": "a"}', "no service"),
        ('{"service": {"a": 1}, "output": "a"}', "no service"),
        ('{"service": "", "output": "a"}', "no service"),
        ('{"service": "bot", "model": "m"}', "no content: give output, input, messages or error"),
        ("[7]", "no object"),
        ('{"trace_id": "a", "score": "good"}', "no score from -1 to 1"),
        ('{"score": 1}', "no trace id"),
        ('{"resourceSpans": []}', "OTLP: send it to /v1/traces"),
        ('{"resourceLogs": []}', "OTLP: send it to /v1/logs"),
    ],
)
def test_an_invalid_body_is_rejected_with_its_reason(body: str, reason: str) -> None:
    intake_result = intake(body)
    assert (intake_result.entries, [rejection.reason.words for rejection in intake_result.rejected]) == ([], [reason])


def test_unknown_names_come_with_the_closest_field() -> None:
    secret = "a text of the user"  # noqa: S105 - a text
    intake_result = intake(
        json.dumps(
            [
                {"service": "bot", "outptu": "a"},
                {"service": {"name": "bot", "version": "1"}, "output": "a", "tenant": "t", secret: "b"},
                {"service": "bot", "output": "a", **{f"own_{number}": 1 for number in range(200)}},
            ]
        )
    )
    reply = intake_result.reply()
    assert reply["accepted"] == 3
    unknown = reply["unknown"]
    assert isinstance(unknown, list)
    assert unknown[:2] == [{"name": "outptu", "did_you_mean": "output"}, {"name": "tenant"}]
    assert len(unknown) == 100
    assert secret not in json.dumps(reply)
    assert [trace["service"] for trace in arrived(intake_result)] == ["bot"] * 3, (
        "a service may be an object with a name"
    )


@each_case(
    "place", ["{names}", '"tags": {{{names}}}', '"tags": {{"a": 1}}, "metadata": {{{names}}}', '"input": {{{whole}}}']
)
def test_names_beyond_a_thousand_are_counted_and_left_out(place: str) -> None:
    """A field is read wherever it stands among them; the others cost far more than their bytes."""
    names = ", ".join(f'"a text {number}": 1' for number in range(3_000))
    body = place.format(names=names, whole=f'"input": "q", {names}, "answer": "a"')
    answer = "" if '"answer"' in body else ', "Model Output": "a"'
    intake_result = intake(f'{{"serviceName": "bot", {body}{answer}, "traceId": "t1"}}')
    (trace,) = arrived(intake_result)
    assert (trace["service"], trace["output"], trace["trace_id"]) == ("bot", "a", "t1")
    assert 999 <= len(trace["tags"]) <= 1_001
    assert intake_result.reply()["left_out"] == [{"field": "tags", "type": "object", "count": 1}]
    assert "a text" not in json.dumps(intake_result.reply())


def test_the_cause_of_a_refusal_names_no_unknown_name() -> None:
    secret = "a text of the user"  # noqa: S105 - a text

    def broken(_: str) -> str:
        raise RuntimeError(secret)

    settings = sdk_settings(Settings())
    encoder = Encoder(msgspec.structs.replace(settings, redact=(broken,)))
    body = json.dumps({"service": "bot", "output": "a", secret: "b"}).encode()
    intake_result = read_intake(body, Form.JSON, encoder, service=None, repeat_key=None, now_s=1.0)
    assert [rejection.reason.words for rejection in intake_result.rejected] == [
        "redaction: trace RedactionError in redact"
    ]


def test_many_rejected_objects_are_few_losses() -> None:
    intake_result = intake("[" + ",".join(['{"service":"bot","model":"m"}'] * 5_000) + "]")
    losses = list(intake_result.losses)
    assert (len(losses), sum(loss.count for loss in losses)) == (101, 5_000)


def test_feedback_is_read_under_other_names() -> None:
    intake_result = intake(
        '[{"traceId": "t1", "Score": "0.5", "reason": "ok"}, {"trace_id": "t2", "score": true, "tags": {}}]'
    )
    assert arrived(intake_result) == [
        {"trace_id": "t1", "score": 0.5, "comment": "ok"},
        {"trace_id": "t2", "score": 1.0},
    ]


def test_json_that_only_some_parsers_accept_is_read() -> None:
    """A producer in Python writes NaN, and one in JavaScript halves of surrogate pairs."""
    for form, body in (
        (Form.JSON, '[{"service": "bot", "output": "a\\ud83d", "usage": NaN}]'),
        (Form.JSON, '{"service": "bot", "output": "a\\ud83d", "usage": NaN}'),
        (Form.JSON, b'{"service": "bot", "output": "a\xff"}'),
        (Form.LINES, '{"service": "bot", "output": "a\\ud83d", "usage": NaN}\n{bro\n'),
    ):
        intake_result = intake(body, form)
        assert [trace["output"][0] for trace in arrived(intake_result)] == ["a"], form
        assert len(intake_result.rejected) == (form is Form.LINES)
    for body in ("{bro", "[{]", "", b"\xff"):
        with pytest.raises(RefusedError):
            intake(body)


def test_the_token_s_service_replaces_every_name_of_it() -> None:
    intake_result = intake(
        '[{"output": "a"}, {"app": "x", "output": "a"}, {"service": 7, "output": "a"}]', service="bot"
    )
    assert [(trace["service"], trace.get("tags")) for trace in arrived(intake_result)] == [("bot", None)] * 3


def test_ids_derive_from_the_text_or_the_key() -> None:
    text = '{"service": "bot", "traceId": "t", "output": "a"}'
    first, second = (arrived(intake(text))[0] for _ in range(2))
    assert {name: first[name] for name in IDS} == {name: second[name] for name in IDS}
    own = arrived(intake('{"service": "bot", "id": "0123456789abcdef", "trace_id": "t", "output": "a"}'))[0]
    assert own["id"] == "0123456789abcdef"
    without = '{"service": "bot", "output": "a"}'
    keyed = [arrived(intake(without, key="k"))[0]["id"] for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert arrived(intake(without))[0]["id"] != arrived(intake(without))[0]["id"]
