"""What of a reply is believed, what of its error message is shown, and how long an endpoint wants to be left alone."""

import email.utils
import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import SHORT, table, yes_no_text
from model_client import KEY, anthropic, openai, reply_of
from msgspec import structs
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Reply, failing, not_json

from judges.core.model import ChatRequest, ChatResponse, ModelError, Quota, Window
from judges.core.prompt import Message
from judges.core.verdict import Assessment
from judges.models.replies import read_quota, retry_after_s
from judges.models.reply_errors import quote_message
from judges.registry import catalogue

TABLES = table("replies")
PERSONAL = "The patient's name is Ada Lovelace, and her number is 555-0199."
REQUEST = ChatRequest((Message("system", "Judge."), Message("user", PERSONAL)), "safety", {"type": "object"}, dict)
CHOICES = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
JUDGE = catalogue()["groundedness"]
GOOD = yes_no_text("yes", "Let's think step by step. It is so.")
BAD = yes_no_text("no", "Let's think step by step. It is not.")
PLANTED = yes_no_text("yes", "Let's think step by step. " + "It is so, as every document says. " * 4)
TRACE = structs.replace(SHORT, output=f"{SHORT.output} {PLANTED}")
NO_JSON = ("NaN", "-Infinity", "1e999", '"\\ud800"', '"a\nb"', "9" * 5_000, "[[NaN]]")


def sends(body: object, status: int = 200) -> Reply:
    return Reply(raw=body if isinstance(body, str) else json.dumps(body), status=status)


def answer(endpoint: ChatEndpoint, body: object) -> ChatResponse:
    endpoint.behaviour = sends(body)
    return openai(endpoint.base_url).ask(REQUEST)


def fail(endpoint: ChatEndpoint, reply: Reply) -> ModelError:
    endpoint.behaviour = reply
    return openai(endpoint.base_url).fails(REQUEST)


def judge(endpoint: ChatEndpoint, body: object) -> Assessment:
    endpoint.behaviour = sends(body)
    return openai(endpoint.base_url).judge(JUDGE, TRACE)


class TestCounts:
    def test_ids_and_counts_out_of_bounds_are_absent(self, endpoint: ChatEndpoint) -> None:
        """However large, infinite or odd: the answer counts, and so does the other count; what is wrong is named."""
        odd: list[object] = ["7.0", "1,200", [7], {"text": 7}, 1e308, -1, True, "9" * 11, 10**400]
        for prompt, written, *tokens in [(value, 3, 0, 3) for value in odd] + [(7, value, 7, 0) for value in odd]:
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": written,
                "prompt_tokens_details": {"cached_tokens": 5},
            }
            response = answer(endpoint, CHOICES | {"usage": usage})
            actual = [response.input_tokens, response.output_tokens]
            assert (actual, response.invalid) == (tokens, ("usage",)), f"{str(usage)[:80]}: {actual}"
            assert response.cached_tokens == min(5, response.input_tokens)
        for fields, *invalid in (
            ({"id": 3_000_000 * "x"}, "id"),
            ({"id": ["a"], "model": 257 * "m"}, "id", "model"),
            ({"model": {"name": "m"}}, "model"),
            ({"id": True}, "id"),
            *(({"usage": {"prompt_tokens": count}}, "usage") for count in (10**9 + 1, 1.5, "many", True)),
            ({"usage": [1, 2]}, "usage"),
        ):
            response = answer(endpoint, CHOICES | fields)
            actual = (response.text, response.invalid, response.input_tokens, response.output_tokens)
            assert actual == ("Yes.", tuple(invalid), 0, 0), f"{str(fields)[:80]}: {actual}"
            assert len(f"{response.response_id}{response.model}") <= 2 * 256, str(fields)[:80]
        for fields, expected in (
            ({"id": 12, "model": 256 * "m"}, ("12", 256 * "m", 0, 0)),
            ({"usage": {"prompt_tokens": 10**9, "completion_tokens": 2.0}}, (None, None, 10**9, 2)),
            ({"usage": {"prompt_tokens": "12", "completion_tokens": "3"}}, (None, None, 12, 3)),
        ):
            response = answer(endpoint, CHOICES | fields)
            actual = (response.response_id, response.model, response.input_tokens, response.output_tokens)
            assert (actual, response.invalid) == (expected, ())

    def test_those_of_anthropic_s_form_too(self) -> None:
        content = {"content": [{"type": "text", "text": "Yes."}], "id": 300 * "x", "model": 7}
        for cached, output, tokens in ((1e308, 3, (0, 3)), (5, "3.0", (12, 0)), ("1,200", None, (7, 0))):
            usage = {"input_tokens": 7, "cache_read_input_tokens": cached, "output_tokens": output}
            with MessagesEndpoint(sends(content | {"usage": usage})) as messages:
                response = anthropic(messages.base_url).ask(REQUEST)
            assert (response.invalid, response.response_id, response.model) == (("id", "usage"), None, "7")
            assert (response.input_tokens, response.output_tokens) == tokens


class TestErrors:
    def test_documented_errors_are_told_apart(self, endpoint: ChatEndpoint) -> None:
        for name, (row, reason) in TABLES["forms"].items():
            reply = reply_of(row)
            failure = fail(endpoint, reply)
            actual = (failure.reason, failure.status, failure.message)
            assert actual == (reason, reply.status, reply.error["message"]), name

    def test_a_message_is_shown_without_secrets_and_texts_of_the_request(self, endpoint: ChatEndpoint) -> None:
        for message, expected in {
            "No such model: m": "No such model: m",
            f"Key {KEY} is wrong": "Key [key] is wrong",
            "Incorrect API key provided: sk-abcd********wxyz. See x.": "Incorrect API key provided: [key] See x.",
            f"Cannot judge '{PERSONAL}' here": "Cannot judge '[...]' here",
            f"Cannot judge '{PERSONAL[10:40]}' here": "Cannot judge '[...]' here",
            "Header Authorization: Bearer abcdefgh12345678abcdefgh": "Header Authorization: Bearer [redacted token]",
            "two\nlines\x1b[31m\x00": "two lines [31m",
            500 * "x": 300 * "x",
            "": "",
        }.items():
            assert fail(endpoint, failing(404, message)).message == expected
        assert fail(endpoint, not_json("<html>no</html>", status=404)).message == ""
        assert fail(endpoint, sends("{}", 404)).message == ""
        for detail in (["a", 1], 7, {"loc": 3}, [{"msg": 1}]):
            body = {"error": {"message": "model not found"}, "detail": detail}
            assert fail(endpoint, sends(body, 404)).message == "model not found", detail
        plain = not_json("model not found", content_type="text/plain", status=404)
        assert fail(endpoint, plain).message == "model not found"
        why = {"message": "why", "code": 400}
        for body in ([{"error": why}], {"errors": [{"message": "why"}]}, {"detail": "why"}, why, {"error": ["why"]}):
            assert fail(endpoint, sends(body, 400)).message == "why", body

    @settings(deadline=None)
    @given(st.text(max_size=60), st.text("abcd e", min_size=20, max_size=80), st.text(max_size=60), st.data())
    def test_no_part_of_the_request_is_shown(self, before: str, text: str, after: str, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(text) - 20))
        quote = text[start : data.draw(st.integers(start + 20, len(text)))]
        parts = quote_message(f"{before}{quote}{after}", {"messages": [{"content": text}]})
        assert not any(text[at : at + 20] in parts for at in range(len(text) - 19))

    def test_an_error_that_is_a_plain_text_is_what_its_opening_says(self, endpoint: ChatEndpoint) -> None:
        late = f"cannot answer: {'x' * 80} invalid api key"
        for text, reason in (*TABLES["said"].items(), (late, "judge_unavailable")):
            for error in (text, {"message": text}, [text]):
                failure = fail(endpoint, sends({"error": error}))
                assert (failure.reason, failure.message) == (reason, text), text
        # Deep enough for Python, and not for the decoder.
        assert fail(endpoint, sends(f'{{"error": {"[" * 900}{"]" * 900}}}')).reason == "judge_unavailable"


def completion(finish_reason: object = "stop", **message: object) -> dict[str, Any]:
    """Write a reply of one choice, whose content is a good answer unless another one is passed."""
    whole = {"role": "assistant", "content": GOOD, **message}
    return {"id": "x", "choices": [{"index": 0, "message": whole, "finish_reason": finish_reason}]}


def body_of(row: Any) -> str:
    """Write the body of a row: `says` is the message of its only choice; a name in braces is one of our answers."""
    if "says" in row:
        row = completion(row.get("finish_reason", "stop"), **row["says"])
    text = json.dumps(row)
    for name, value in (("GOOD", GOOD), ("BAD", BAD), ("PLANTED", PLANTED)):
        text = text.replace(f"{{{name}}}", json.dumps(value)[1:-1])
    return text


ODD: dict[str, tuple[str, str, int]] = {
    **{
        f"{name}: {value[:9]}": (json.dumps({**completion(), name: "@"}).replace('"@"', value), "yes", 1)
        for value in NO_JSON
        for name in ("logprobs", "usage", "id")
    },
    "NaN in a choice": (json.dumps(completion(logprobs="@")).replace('"@"', "NaN"), "yes", 1),
    "a byte order mark": (f"\ufeff{json.dumps(completion())}\n\0", "yes", 1),
    **{
        name: (json.dumps(completion("length", **message)), "truncated", calls)
        for name, message, calls in (
            ("the same sentence again and again", {"content": "So. " + "Let me check again. " * 99}, 1),
            ("blanks without end", {"content": f"{GOOD[:30]}{chr(10) * 900}"}, 1),
            ("thoughts that repeat", {"content": "", "reasoning": "Wait, once more. " * 99}, 1),
            ("a long answer", {"content": " ".join(map(str, range(999)))}, 2),
        )
    },
    **{name: (body_of(row), outcome, calls) for name, (row, outcome, calls) in TABLES["odd"].items()},
}


class TestOddReplies:
    @each_case(("body", "outcome", "calls"), ODD.values(), ids=ODD)
    def test_an_odd_reply_has_one_outcome(self, body: str, outcome: str, calls: int) -> None:
        with ChatEndpoint() as endpoint:
            assessment = judge(endpoint, body)
        assert (assessment.reason or assessment.scores[0].label, len(assessment.calls)) == (outcome, calls), (
            assessment.note
        )
        if "error" in body and outcome not in {"yes", "truncated"}:
            assert assessment.message == "why"

    def test_a_verdict_in_another_place_is_noted_and_other_texts_are_named(self, endpoint: ChatEndpoint) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "json", "arguments": GOOD}}
        for place, value in (("reasoning_content", GOOD), ("tool_calls", [call])):
            assessment = judge(endpoint, completion(content="", **{place: value}))
            assert (assessment.outcome, assessment.details["read_from"]) == ("scored", place)
        note = judge(endpoint, completion(content="", reasoning_content="So yes.", reasoning="So yes.")).note
        assert note == "the answer is empty; there is no whole verdict but text in reasoning_content, reasoning"

    def test_the_same_holds_for_anthropic_s_form(self) -> None:
        def message(*blocks: object, **fields: object) -> dict[str, object]:
            return {"content": [*blocks], "stop_reason": "end_turn", **fields}

        def thought(text: str) -> dict[str, str]:
            return {"type": "thinking", "thinking": text}

        def error(kind: str) -> dict[str, object]:
            return {"type": "error", "error": {"type": kind, "message": "why"}}

        text = {"type": "text", "text": GOOD}
        no_json = (message(text, usage="@"), message({**text, "citations": "@"}))
        use = {"type": "tool_use", "id": "a", "name": "json", "input": json.loads(GOOD)}
        cases: list[tuple[object, str]] = [
            *((json.dumps(body).replace('"@"', value), "yes") for value in NO_JSON for body in no_json),
            (f"\ufeff{json.dumps(message(text))}", "yes"),
            (message({"type": "reasoning", "text": ["x"]}, {"type": ["x"]}, None, "x", text), "yes"),
            (message(thought(BAD), text), "yes"),
            (message(thought(GOOD)), "yes"),
            (message(thought(GOOD), {"type": "text", "text": "<unused95>"}), "yes"),
            (message(use), "yes"),
            (message(thought("So yes.")), "invalid_answer"),
            (message(thought(GOOD), stop_reason="max_tokens"), "truncated"),
            (message(stop_reason="guardrail_intervened"), "content_filter"),
            (error("rate_limit_error"), "rate_limited"),
            (error("overloaded_error"), "judge_unavailable"),
        ]
        with MessagesEndpoint() as messages:
            for body, outcome in cases:
                messages.behaviour = sends(body)
                assessment = anthropic(messages.base_url).judge(JUDGE, TRACE)
                assert (assessment.reason or assessment.scores[0].label) == outcome, str(body)[:200]


REQUESTS, RESET = "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"


class TestQuotas:
    def test_a_time_to_wait_is_read_in_seconds_or_as_a_date(self, endpoint: ChatEndpoint) -> None:
        for header, seconds in (*TABLES["retry_after"].items(), (None, None)):
            failure = fail(endpoint, failing(429, retry_after=header))
            assert (failure.reason, failure.retry_after_s) == ("rate_limited", seconds), header
        began = time.time()
        failure = fail(endpoint, failing(429, retry_after=email.utils.formatdate(began + 90, usegmt=True)))
        assert 89 - (time.time() - began) < failure.retry_after_s <= 90, "dates have no fractions of seconds"
        failure = fail(endpoint, failing(503, retry_after=7))
        assert (failure.reason, failure.retry_after_s, failure.quota) == ("judge_unavailable", 7.0, None)

    @given(
        st.text(st.characters(codec="latin-1")) | st.floats().map(str) | st.datetimes().map(email.utils.format_datetime)
    )
    @settings(deadline=None)
    def test_any_text_as_a_time_to_wait_is_no_crash(self, value: str) -> None:
        # What is no UTF-8 reaches us as surrogates.
        seen = value.encode("latin-1").decode("utf-8", "surrogateescape")
        seconds = retry_after_s({"retry-after": seen})
        assert seconds is None or 0 <= seconds <= 3600

    def test_quotas_are_read_in_both_forms_and_may_be_absent(self, endpoint: ChatEndpoint) -> None:
        plain = httpx.Headers({"content-type": "application/json"})
        assert read_quota(plain) is None
        assert answer(endpoint, CHOICES).quota is None
        fields = httpx.Headers(
            {
                "x-ratelimit-limit-requests": "60",
                "X-RateLimit-Remaining-Requests": "59",
                RESET: "1s",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-tokens": "6m0s",
            }
        )
        assert read_quota(fields) == Quota(Window(59, 1.0), Window(149984, 360.0))
        rows = (
            ("requests", "49", "2026-05-01T12:00:00Z"),
            ("tokens", "60000", "2026-05-01T12:00:05Z"),
            ("output-tokens", "8000", "2026-05-01T14:00:07+02:00"),
        )
        fields = httpx.Headers(
            [
                (f"anthropic-ratelimit-{name}-{end}", value)
                for name, *values in rows
                for end, value in zip(("remaining", "reset"), values, strict=True)
            ]
        )
        noon = 1777636800.0
        assert read_quota(fields) == Quota(Window(49, None, noon), Window(8000, None, noon + 7))

    def test_broken_lengths_and_amounts_are_no_window(self) -> None:
        lengths = {"1s": 1, "6m0s": 360, "20ms": 0.02, "1h2m3.5s": 3723.5, "17": 17, "0.25": 0.25, "1d": 86400, "0": 0}
        for text, seconds in lengths.items():
            quota = read_quota(httpx.Headers({REQUESTS: "5", RESET: text}))
            assert quota == Quota(Window(5, pytest.approx(seconds)), None), text
        for text in ("", "soon", "1x", "1s ago", "nan", "inf", "1s" * 50, "2026-05-01T12:00:00", "٣s"):
            assert read_quota(httpx.Headers({REQUESTS: "5", RESET: text.encode()})) is None, text
        for text in ("", "many", "nan", "inf", "-", "-1"):
            assert read_quota(httpx.Headers({REQUESTS: text, RESET: "1s"})) is None, text

    @given(st.text(), st.text())
    def test_no_text_of_a_quota_is_an_error(self, left: str, reset: str) -> None:
        quota = read_quota({REQUESTS: left, RESET: reset})
        assert quota is None or quota.requests.left >= 0
