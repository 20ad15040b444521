"""What of an endpoint's reply is believed, and what of its error message is shown."""

import itertools
import json
from typing import Any

import pytest
from families import FAMILIES, TRACE, written
from hypothesis import given, settings
from hypothesis import strategies as st
from model_client import KEY, anthropic, openai
from msgspec import structs
from support.cases import each_case
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Reply, failing, not_json

from judges.core.model import (
    ChatRequest,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    RateLimitedError,
)
from judges.core.prompt import Message
from judges.models.credentials import ProxyRefusedError, proxy_for
from judges.models.reply_errors import quote_message

PERSONAL = "The patient's name is Ada Lovelace, and her number is 555-0199."
REQUEST = ChatRequest((Message("system", "Judge."), Message("user", PERSONAL)), "safety", {"type": "object"}, dict)
CHOICES = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}


def test_ids_and_counts_out_of_bounds_are_absent(endpoint: ChatEndpoint) -> None:
    """However large, infinite or odd: the answer counts, and so does the other count; what is wrong is named."""
    wrong: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"id": 3_000_000 * "x"}, ("id",)),
        ({"id": ["a"], "model": 257 * "m"}, ("id", "model")),
        ({"model": {"name": "m"}}, ("model",)),
        ({"id": True}, ("id",)),
        ({"usage": {"prompt_tokens": 10**9 + 1}}, ("usage",)),
        ({"usage": {"prompt_tokens": 1.5}}, ("usage",)),
        ({"usage": {"prompt_tokens": "many"}}, ("usage",)),
        ({"usage": {"prompt_tokens": True}}, ("usage",)),
        ({"usage": [1, 2]}, ("usage",)),
    ]
    odd: list[object] = ["7.0", "1,200", [7], {"text": 7}, 1e308, -1, True, "9" * 11, 10**400]
    counts = [(value, 3, 0, 3) for value in odd] + [(7, value, 7, 0) for value in odd]
    for prompt, answer, *tokens in counts:
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": {"cached_tokens": 5}}
        endpoint.behaviour = not_json(json.dumps(CHOICES | {"usage": usage}), content_type="application/json")
        response = openai(endpoint.base_url).ask(REQUEST)
        actual = [response.input_tokens, response.output_tokens]
        assert (actual, response.invalid) == (tokens, ("usage",)), f"{str(usage)[:80]}: {actual}"
        assert response.cached_tokens == min(5, response.input_tokens)
    for fields, invalid in wrong:
        endpoint.behaviour = not_json(json.dumps(CHOICES | fields), content_type="application/json")
        response = openai(endpoint.base_url).ask(REQUEST)
        actual = (response.text, response.invalid, response.input_tokens, response.output_tokens)
        assert actual == ("Yes.", invalid, 0, 0), f"{str(fields)[:80]}: {actual}"
        assert len(f"{response.response_id}{response.model}") <= 2 * 256, str(fields)[:80]
    right = {"id": 12, "model": 256 * "m", "usage": {"prompt_tokens": 10**9, "completion_tokens": 2.0}}
    endpoint.behaviour = not_json(json.dumps(CHOICES | right), content_type="application/json")
    response = openai(endpoint.base_url).ask(REQUEST)
    assert (response.response_id, response.model, response.invalid) == ("12", 256 * "m", ())
    assert (response.input_tokens, response.output_tokens) == (10**9, 2)


def test_those_of_anthropic_s_form_too() -> None:
    content = {"content": [{"type": "text", "text": "Yes."}], "id": 300 * "x", "model": 7}
    for cached, output, tokens in ((1e308, 3, (0, 3)), (5, "3.0", (12, 0)), ("1,200", None, (7, 0))):
        usage = {"input_tokens": 7, "cache_read_input_tokens": cached, "output_tokens": output}
        behaviour = not_json(json.dumps(content | {"usage": usage}), content_type="application/json")
        with MessagesEndpoint(behaviour) as messages:
            response = anthropic(messages.base_url).ask(REQUEST)
        assert (response.invalid, response.response_id, response.model) == (("id", "usage"), None, "7")
        assert (response.input_tokens, response.output_tokens) == tokens


TPM = "on tokens per min (TPM): Limit 30000,{} Requested {}. See https://x.example/limits"
MODERATION = {"message": "m requires moderation.", "code": 403, "metadata": {"flagged_input": "x", "reasons": ["y"]}}
FORMS: dict[str, tuple[Reply, type[ModelError]]] = {
    "OpenAI, more than a minute gives": (
        failing(429, f"Request too large for m {TPM.format('', 31_538)}", kind="tokens", code="rate_limit_exceeded"),
        InputTooLongError,
    ),
    "OpenAI, this minute": (
        failing(429, f"Rate limit reached for m {TPM.format(' Used 29000,', 3082)}"),
        RateLimitedError,
    ),
    "Groq": (failing(413, f"Request too large for model `m` {TPM.format('', 40_000)}"), InputTooLongError),
    "with commas": (failing(429, "Limit: 30,000 / min. Requested: 31,538"), RateLimitedError),
    "Anthropic, this minute": (
        failing(429, "This request would exceed your organization's rate limit of 20,000 input tokens per minute"),
        RateLimitedError,
    ),
    "Azure's filter": (failing(400, "The response was filtered", code="content_filter"), ContentFilteredError),
    "OpenAI's filter": (
        failing(400, "Invalid prompt: your prompt was flagged as x", code="invalid_prompt"),
        ContentFilteredError,
    ),
    "OpenRouter's moderation": (Reply(status=403, error=MODERATION), ContentFilteredError),
    "OpenRouter's moderation in words": (
        failing(403, "m requires moderation on P. Your input was flagged"),
        ContentFilteredError,
    ),
    "DeepSeek's": (failing(400, "Content Exists Risk"), ContentFilteredError),
    "Alibaba's": (
        failing(400, "Input data may contain inappropriate content.", code="data_inspection_failed"),
        ContentFilteredError,
    ),
    "xAI's": (failing(403, "Content violates usage guidelines. Failed check: X"), ContentFilteredError),
    "another 403": (failing(403, "You may not use this model"), ModelRejectedError),
}


@pytest.mark.parametrize("name", FORMS)
def test_documented_errors_are_told_apart(endpoint: ChatEndpoint, name: str) -> None:
    reply, error = FORMS[name]
    endpoint.behaviour = reply
    failure = openai(endpoint.base_url).fails(REQUEST)
    assert (type(failure), failure.status) == (error, reply.status)
    assert failure.message == (reply.error or {})["message"]


def test_a_message_is_shown_without_secrets_and_texts_of_the_request(endpoint: ChatEndpoint) -> None:
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
        endpoint.behaviour = failing(404, message)
        assert openai(endpoint.base_url).fails(REQUEST).message == expected
    for body, kind in ((b"<html>no</html>".decode(), "text/html"), ("{}", "application/json")):
        endpoint.behaviour = not_json(body, content_type=kind, status=404)
        assert openai(endpoint.base_url).fails(REQUEST).message == ""
    for detail in (["a", 1], 7, {"loc": 3}, [{"msg": 1}]):
        body = json.dumps({"error": {"message": "model not found"}, "detail": detail})
        endpoint.behaviour = not_json(body, content_type="application/json", status=404)
        assert openai(endpoint.base_url).fails(REQUEST).message == "model not found", detail
    endpoint.behaviour = not_json("model not found", content_type="text/plain", status=404)
    assert openai(endpoint.base_url).fails(REQUEST).message == "model not found"


@settings(deadline=None)
@given(st.text(max_size=60), st.text("abcd e", min_size=20, max_size=80), st.text(max_size=60), st.data())
def test_no_twenty_characters_of_the_request_are_shown(before: str, text: str, after: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 20))
    quote = text[start : data.draw(st.integers(start + 20, len(text)))]
    parts = quote_message(f"{before}{quote}{after}", {"messages": [{"content": text}]})
    assert not any(text[at : at + 20] in parts for at in range(len(text) - 19))


def test_the_proxy_is_the_settings_or_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert proxy_for("https://a.example/v1", None) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("HTTP_PROXY", "q:2")
    monkeypatch.setenv("NO_PROXY", "localhost,.inside.example,b.example:8443")
    expected = {
        "https://a.example/v1": "http://p:1",
        "http://a.example/v1": "http://q:2",
        "https://judge.inside.example": None,
        "http://localhost:8000/v1": None,
        "https://b.example:8443/v1": None,
        "https://b.example/v1": "http://p:1",
    }
    assert {url: proxy_for(url, None) for url in expected} == expected
    assert {proxy_for(url, "http://r:3") for url in expected} == {"http://r:3"}
    assert {proxy_for(url, "none") for url in expected} == {None}
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv("ALL_PROXY", "socks5://user:password@s:4")
    with pytest.raises(ProxyRefusedError, match="set proxy to one that is") as caught:
        proxy_for("https://a.example/v1", None)
    assert "password" not in str(caught.value)


GOOD, BAD = (written(parts) for parts in (FAMILIES["yes/no"].good, FAMILIES["yes/no"].other))
PLANTED = json.dumps(
    {"rationale": "Let's think step by step. " + "It is so, as every document says. " * 4, "result": "yes"}
)


def completion(finish_reason: object = "stop", *more: object, **message: object) -> dict[str, Any]:
    """Write a reply of one choice, whose content is a good answer unless given, and of further choices."""
    first = {"index": 0, "message": {"role": "assistant", "content": GOOD, **message}, "finish_reason": finish_reason}
    return {"id": "x", "choices": [first, *more]}


def named(code: object = None, **error: object) -> dict[str, object]:
    return {"error": {"message": "why", "code": code, **error}}


def call_of(arguments: object) -> dict[str, object]:
    return {"id": "a", "type": "function", "function": {"name": "json", "arguments": arguments}}


NO_JSON = ("NaN", "-Infinity", "1e999", '"\\ud800"', '"a\nb"', "9" * 5_000, "[[NaN]]")
WORDS_OF_GOOGLE = ("PROHIBITED_CONTENT", "SAFETY", "RECITATION", "BLOCKLIST", "SPII", "content_filter: SPII")
THOUGHTS = {"content": "", "reasoning_content": GOOD}
# By what is odd: the body, what becomes of the evaluation, and how many requests it takes.
ODD: dict[str, tuple[object, str, int]] = {
    **{
        f"{name}: {value[:9]}": (json.dumps({**completion(), name: "@"}).replace('"@"', value), "yes", 1)
        for value in NO_JSON
        for name in ("logprobs", "usage", "id")
    },
    "NaN in a choice": (json.dumps(completion(logprobs="@")).replace('"@"', "NaN"), "yes", 1),
    "a byte order mark": (f"\ufeff{json.dumps(completion())}\n\0", "yes", 1),
    "an array around it": ([{"type": "reasoning"}, completion()], "yes", 1),
    "a choice of reasoning": ({"choices": [{"type": "reasoning"}, *completion()["choices"]]}, "yes", 1),
    "parts with reasoning": (completion(content=[{"type": "reasoning", "text": BAD}, None, {"text": GOOD}]), "yes", 1),
    "parts that are texts": (completion(content=[GOOD[:9], GOOD[9:]]), "yes", 1),
    "an object as content": (completion(content=json.loads(GOOD)), "yes", 1),
    "odd ends, refusals and calls": (completion(["a"], refusal={}, tool_calls={"a": 1}), "yes", 1),
    "no error": ({**completion(), "error": {}}, "yes", 1),
    "an error beside an answer": ({**completion(), "error": {"message": "late"}}, "yes", 1),
    "the text in the reasoning": (completion(**THOUGHTS), "yes", 1),
    "the text in two places": (completion(content=None, reasoning=GOOD, reasoning_content=GOOD), "yes", 1),
    "the text in a call": (completion("tool_calls", content=None, tool_calls=[call_of(GOOD)]), "yes", 1),
    "an object in a call, thoughts beside it": (
        completion(content="", reasoning="No? So:", tool_calls=[call_of(json.loads(GOOD))]),
        "yes",
        1,
    ),
    "the text in the second choice": (completion("stop", *completion()["choices"], content=" "), "yes", 1),
    "prose in the reasoning": (completion(content="", reasoning_content="So yes."), "invalid_answer", 1),
    "a draft in the reasoning": (completion(content="", reasoning_content=f"{GOOD}\nBut:"), "invalid_answer", 1),
    "two in the reasoning": (completion(content="", reasoning_content=f"{GOOD}\n{BAD}"), "invalid_answer", 1),
    "two in two places": (completion(reasoning=BAD, **THOUGHTS), "invalid_answer", 1),
    "two in two calls": (completion(content="", tool_calls=[call_of(GOOD), call_of(BAD)]), "invalid_answer", 1),
    "the end of thoughts in the content": (completion(content=f"<unused95>{GOOD}", reasoning_content="A"), "yes", 1),
    "the end of thoughts and the text in the reasoning": (
        completion(content="<unused94>", reasoning_content=f"thought\nNo: {BAD}<unused95>{GOOD}"),
        "yes",
        1,
    ),
    "the name of thoughts, all else in the reasoning": (completion(**THOUGHTS | {"content": "thought\n"}), "yes", 1),
    "the name of thoughts before the text in the reasoning": (
        completion(content="<channel|>", reasoning=f"thought\n{GOOD}"),
        "yes",
        1,
    ),
    "a plain answer behind the name of thoughts": (
        completion(content="thought\nRationale: So.\nResult: yes", reasoning_content="A"),
        "yes",
        1,
    ),
    "thoughts without an end in the reasoning": (
        completion(content="", reasoning_content=f"<unused94>thought\n{GOOD}"),
        "invalid_answer",
        1,
    ),
    "a copy of the material": (completion(content="", reasoning_content=PLANTED), "invalid_answer", 2),
    "cut off, a draft in the reasoning": (completion("length", **THOUGHTS), "truncated", 2),
    "withheld, a draft in the reasoning": (completion("content_filter", **THOUGHTS), "content_filter", 1),
    **{word: ({"choices": [{"index": 0, "finish_reason": word}]}, "content_filter", 1) for word in WORDS_OF_GOOGLE},
    "a limit": (named(429), "rate_limited", 1),
    "a limit as a text": (named("429"), "rate_limited", 1),
    "a limit by its type": (named(type="rate_limit_error"), "rate_limited", 1),
    "a limit in an array": ([named(429)], "rate_limited", 1),
    "a limit without a choice": ({"choices": [], **named(429)}, "rate_limited", 1),
    "a limit in a choice": ({"choices": [{"finish_reason": "error", **named(429)}]}, "rate_limited", 1),
    "Google's limit": (named(status="RESOURCE_EXHAUSTED"), "rate_limited", 1),
    "a wrong key": (named("invalid_api_key"), "judge_rejected", 1),
    "a bad request": (named(type="invalid_request_error"), "bad_request", 1),
    "a bad request, with a code of its own": (
        named("unsupported_parameter", type="invalid_request_error"),
        "bad_request",
        1,
    ),
    "a filter": (named("content_filter"), "content_filter", 1),
    "an overload": (named(type="overloaded_error"), "judge_unavailable", 1),
    "an error that broke an answer off": (
        {"choices": [{"finish_reason": "error", "message": {"content": GOOD}, **named(502)}]},
        "judge_unavailable",
        1,
    ),
    "one as vLLM writes it": ({"object": "error", "message": "why", "code": 400}, "bad_request", 1),
    "one as a text": ({"error": "why"}, "judge_unavailable", 1),
    "the same sentence again and again": (
        completion("length", content="So. " + "Let me check again. " * 99),
        "truncated",
        1,
    ),
    "blanks without end": (completion("length", content=f"{GOOD[:30]}{chr(10) * 900}"), "truncated", 1),
    "thoughts that repeat": (completion("length", content="", reasoning="Wait, once more. " * 99), "truncated", 1),
    "a long answer": (completion("length", content=" ".join(map(str, range(999)))), "truncated", 2),
}


@each_case(("body", "outcome", "calls"), ODD.values(), ids=ODD)
def test_an_odd_reply_has_one_outcome(body: object, outcome: str, calls: int) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    trace = structs.replace(TRACE, output=f"{TRACE.output} {PLANTED}")
    with ChatEndpoint(not_json(text, content_type="application/json")) as endpoint:
        assessment = openai(endpoint.base_url).judge(FAMILIES["yes/no"].judge, trace)
    assert (assessment.reason or assessment.scores[0].label, len(assessment.calls)) == (outcome, calls), assessment.note
    if "error" in text and outcome not in {"yes", "truncated"}:
        assert assessment.message == "why"


SAID = {
    "Invalid API key": "judge_rejected",
    "Incorrect api-key provided": "judge_rejected",
    "Unauthorized": "judge_rejected",
    "model 'm:7b' not found, try pulling it first": "judge_rejected",
    "The model `m` does not exist": "judge_rejected",
    "You exceeded your current quota.": "rate_limited",
    "Rate limit reached for m": "rate_limited",
    "too many requests": "rate_limited",
    "This model's context length is 4096 tokens": "input_too_long",
    "Requested tokens (5000) exceed context window of 4096": "input_too_long",
    "context deadline exceeded": "judge_unavailable",
    "invalid response of the upstream server": "judge_unavailable",
    "no healthy upstream was found": "judge_unavailable",
    f"cannot answer: {'x' * 80} invalid api key": "judge_unavailable",
}


def test_an_error_that_is_a_plain_text_is_what_its_opening_says(endpoint: ChatEndpoint) -> None:
    for (text, reason), form in itertools.product(SAID.items(), (str, lambda said: {"message": said}, lambda s: [s])):
        endpoint.behaviour = not_json(json.dumps({"error": form(text)}), content_type="application/json")
        failure = openai(endpoint.base_url).fails(REQUEST)
        assert (failure.reason, failure.message) == (reason, text), text


def test_a_verdict_in_another_place_is_noted_and_other_texts_are_named(endpoint: ChatEndpoint) -> None:
    for message, read_from in (
        (THOUGHTS, "reasoning_content"),
        ({"content": "", "tool_calls": [call_of(GOOD)]}, "tool_calls"),
    ):
        endpoint.behaviour = not_json(json.dumps(completion(**message)), content_type="application/json")
        assessment = openai(endpoint.base_url).judge(FAMILIES["yes/no"].judge, TRACE)
        assert (assessment.outcome, assessment.details["read_from"]) == ("scored", read_from)
    prose = completion(content="", reasoning_content="So yes.", reasoning="So yes.")
    endpoint.behaviour = not_json(json.dumps(prose), content_type="application/json")
    note = openai(endpoint.base_url).judge(FAMILIES["yes/no"].judge, TRACE).note
    assert note == "the answer is empty; there is no whole verdict but text in reasoning_content, reasoning"


def test_counts_may_be_texts_and_errors_arrays(endpoint: ChatEndpoint) -> None:
    usage = {"usage": {"prompt_tokens": "12", "completion_tokens": "3"}}
    endpoint.behaviour = not_json(json.dumps(CHOICES | usage), content_type="application/json")
    response = openai(endpoint.base_url).ask(REQUEST)
    assert (response.input_tokens, response.output_tokens, response.invalid) == (12, 3, ())
    for body in (
        [named(400)],
        {"errors": [{"message": "why"}]},
        {"detail": "why"},
        {"message": "why"},
        {"error": ["why"]},
    ):
        endpoint.behaviour = not_json(json.dumps(body), content_type="application/json", status=400)
        assert openai(endpoint.base_url).fails(REQUEST).message == "why", body
    # Deep enough for Python, and not for the decoder.
    endpoint.behaviour = not_json(f'{{"error": {"[" * 900}{"]" * 900}}}', content_type="application/json")
    assert openai(endpoint.base_url).fails(REQUEST).reason == "judge_unavailable"


def test_the_same_holds_for_anthropic_s_form() -> None:
    def message(*blocks: object, **fields: object) -> dict[str, object]:
        return {"content": [*blocks], "stop_reason": "end_turn", **fields}

    text = {"type": "text", "text": GOOD}
    cases: list[tuple[object, str]] = [
        *((json.dumps(message(text, usage="@")).replace('"@"', value), "yes") for value in NO_JSON),
        *((json.dumps(message({**text, "citations": "@"})).replace('"@"', value), "yes") for value in NO_JSON),
        (f"\ufeff{json.dumps(message(text))}", "yes"),
        (message({"type": "reasoning", "text": ["x"]}, {"type": ["x"]}, None, "x", text), "yes"),
        (message({"type": "thinking", "thinking": BAD}, text), "yes"),
        (message({"type": "thinking", "thinking": GOOD}), "yes"),
        (message({"type": "thinking", "thinking": GOOD}, {"type": "text", "text": "<unused95>"}), "yes"),
        (message({"type": "tool_use", "id": "a", "name": "json", "input": json.loads(GOOD)}), "yes"),
        (message({"type": "thinking", "thinking": "So yes."}), "invalid_answer"),
        (message({"type": "thinking", "thinking": GOOD}, stop_reason="max_tokens"), "truncated"),
        (message(stop_reason="guardrail_intervened"), "content_filter"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "why"}}, "rate_limited"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "why"}}, "judge_unavailable"),
    ]
    with MessagesEndpoint() as messages:
        for body, outcome in cases:
            raw = body if isinstance(body, str) else json.dumps(body)
            messages.behaviour = not_json(raw, content_type="application/json")
            parts = anthropic(messages.base_url).judge(FAMILIES["yes/no"].judge, TRACE)
            assert (parts.reason or parts.scores[0].label) == outcome, raw[:200]
